//! Tunnels: what the load balancer makes of a packet, what `tidegate decap` makes of that, and both on a wire.
//!
//! * `model`: both directions in plain Rust, from the RFCs
//! * `bench`: the real programs on single frames, with records written as the daemon writes them
//! * `matrix`, `spread`, `inverse`, `mutants`: byte for byte; `ends`: with real sockets

mod bench;
mod ends;
mod inverse;
mod matrix;
mod model;
mod mutants;
mod spread;
