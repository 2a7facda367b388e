//! Black-box tests, one module a capability. `README.md` beside this file says how they are made and run.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod admission;
mod cli;
mod config;
mod encap;
mod end_to_end;
mod fragments;
#[allow(dead_code, unused_imports, reason = "a toolbox: no single test needs all of it")]
mod harness;
mod icmp;
mod packet_path;
mod shape;
mod torn_tables;
mod verifier;
