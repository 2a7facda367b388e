//! Black-box tests, one module a capability.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod cli;
mod config;
