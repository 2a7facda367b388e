//! The generated skeleton of the kernel's programs, once more: the tests load them without the code that they test.

#![allow(warnings, clippy::all, reason = "generated")]

include!(concat!(env!("OUT_DIR"), "/lb.skel.rs"));
