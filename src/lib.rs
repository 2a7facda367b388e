//! **tidegate**: a layer-4 load balancer whose C programs at XDP and TC forward packets inside the kernel, and whose
//! one Rust binary loads, pins, adopts and drives them.
//!
//! ```text
//!  config file ──> desired state ──> engine ──> datapath (the only code that touches libbpf)
//!                                      ├──> health (probes)        ──> verdicts ─┐
//!                                      ├──> nexthop (netlink)      ──> next hops ┤
//!                                      └──< ─────────────────────────────────────┘
//!                                      └──> observed state ──> api ──> cli
//! ```
//!
//! `docs/design.md` says why it is built this way.

pub mod api;
pub mod cli;
pub mod config;
pub mod daemon;
pub mod datapath;
pub mod engine;
pub mod health;
pub mod maglev;
pub mod model;
pub mod nexthop;
pub mod telemetry;
