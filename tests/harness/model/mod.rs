//! What the shipped programs must do with a frame, in plain Rust.
//!
//! Written from what the programs are to do and not from their code: whole buffers instead of offsets, addresses instead of
//! sums and tags, checksums from scratch. Only the arithmetic that is itself a contract (the hashes and the choice of a slot)
//! is the same. Where this model and the kernel disagree, one of them is wrong.
//!
//! ```ignore
//! let mut node = Node::new(64);
//! node.services.insert(1, Service::new(address, protocol::TCP, Mode::Ipip).backend(backend));
//! let outcome = node.xdp_lb(&frame, ingress_interface);
//! assert_eq!(outcome.reason, Reason::ForwardTx);
//! assert_same(&outcome.data_out(), &what_the_kernel_made_of_it);
//! ```

mod decap;
mod encapsulate;
mod extension;
mod flows;
pub mod hash;
mod lb;
mod node;
mod outcome;
mod reason;
mod rewrite;
mod stack;
#[cfg(test)]
mod tests;
mod view;

pub use flows::{Flow, Flows, Kind};
pub use node::{Backend, BackendState, Ledger, NextHop, Node, Route, Service, Spread};
pub use outcome::{Action, Handoff, Outcome};
pub use reason::Reason;
