//! The tools of the tests: frames as bytes, a model of what the programs must do with them, and networks to send them over.
//!
//! * [`frame`]: builds, reads, verifies and compares frames. Knows nothing of tidegate.
//! * [`model`]: what the shipped programs must do with a frame, in plain Rust.
//! * [`kernel`]: the real programs, loaded with what a model's node knows and run on single frames.
//! * [`lab`]: network namespaces with real sockets around a load balancer.

pub mod frame;
pub mod kernel;
pub mod lab;
pub mod model;
