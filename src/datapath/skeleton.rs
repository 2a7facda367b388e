//! The skeleton that `build.rs` generates from `bpf/lb.bpf.c`: open, load, maps, programs and the shared types.

#![allow(
    missing_docs,
    unsafe_code,
    unused_qualifications,
    clippy::all,
    clippy::undocumented_unsafe_blocks,
    clippy::unwrap_used
)]

include!(concat!(env!("OUT_DIR"), "/lb.skel.rs"));
