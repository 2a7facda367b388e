//! Black-box tests, one module a capability.

mod config;
