//! Plain types and rules of the load balancer, without any input or output.
//!
//! Everything else depends on this module; it depends on nothing but the standard library and serde.
//! *Desired* state ([`Desired`]) is what the operator asked for; *observed* state ([`status`]) is what runs.

mod addresses;
mod admission;
mod desired;
mod encapsulation;
mod hash;
mod health;
mod names;
mod nexthop;
mod ports;
mod prefix;
pub mod status;

pub use addresses::{AddressPolicy, EchoRequest, UnservedPort};
pub use admission::{Limits, NodeAdmission, Rate, ServiceAdmission, Sources};
pub use desired::{
    ApiSocket, AttachMode, Backend, BackendAddress, Capacity, DEFAULT_SOCKET, Desired, Interface, Mode,
    OnNoBackend, Protocol, Service, ServiceAddress, backend_records,
};
pub use encapsulation::{Encapsulation, GUE_PORT, SourcePrefix};
pub use hash::HashMode;
pub use health::{BackendState, HealthCheck, InitialState, Probe, ProbeOutcome, Streak, Verdict};
pub use names::{InvalidName, ServiceName};
pub use nexthop::{Egress, NextHop, Route, VlanTags};
pub use ports::{PortRange, RANGES_PER_ADDRESS};
pub use prefix::{InvalidPrefix, Prefix};
