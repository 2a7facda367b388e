//! The kernel's side: programs, maps, links and pins. The only code that touches libbpf.
//!
//! The engine sees a [`Datapath`]: typed operations on services, backends, tables and flows. [`Kernel`] carries them out
//! on pinned maps; [`Memory`] does in memory, so that the engine can be tested without a kernel.
//!
//! How the operations must be ordered so that no packet ever sees half of a change is the engine's business; that each
//! single one is atomic towards packets is this module's, and stands with each method.

mod addresses;
mod admission;
mod attach;
mod decap;
mod devices;
mod error;
mod kernel;
mod ledger;
mod load;
mod memory;
mod pins;
mod ranges;
mod records;
mod skeleton;
mod sources;
mod sys;

pub use addresses::{AddressServices, OnAddress};
pub use admission::{AdmissionRecord, AdoptedAdmission, Checks};
pub use attach::{Attachment, TcAttach, detach_all};
pub use decap::{Decap, DecapStatus};
pub use devices::hidden_vlans;
pub use error::DatapathError;
pub use kernel::{Kernel, Options};
pub use ledger::{LedgerCounters, REASONS, Reason, ReasonClass};
pub use memory::{Memory, Step};
pub use pins::{DEFAULT_PINS, Pins};
pub use records::{BackendRecord, FlowOwner, Link, LinkFlags, Membership, RecordRange, ServiceRecord, Slot};
pub use sources::SourceList;
pub use sys::RunOutcome;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use crate::model::{
    AddressPolicy, BackendAddress, Egress, Encapsulation, Protocol, ServiceAddress, SourcePrefix,
};

/// A service found in pinned maps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdoptedService {
    /// Its ID.
    pub id: u16,
    /// Its record.
    pub record: ServiceRecord,
    /// Its table; empty where none is published.
    pub table: Vec<Slot>,
    /// Its backends by number, also those that are marked unused.
    pub backends: Vec<(u16, BackendRecord)>,
}

/// What was found in pinned maps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Adopted {
    /// Services that are whole.
    pub services: Vec<AdoptedService>,
    /// Keys that lead to no sound service, or to one that another key leads to as well: to be unbound.
    pub stray_addresses: Vec<ServiceAddress>,
    /// IDs that have a record or a table without a key leading to them: to be cleared.
    pub stray_ids: Vec<u16>,
    /// Backend records that hold something but are no adopted service's backend: to be cleared.
    pub stray_records: Vec<u32>,
    /// NAT sources.
    pub nat_sources: BTreeSet<(BackendAddress, Protocol)>,
    /// Addresses, with the services they are said to have.
    pub addresses: BTreeMap<IpAddr, AddressServices>,
    /// What is done with packets for these addresses that are for no service.
    pub address_policy: AddressPolicy,
    /// Who may use services.
    pub admission: AdoptedAdmission,
    /// The ID given out last.
    pub last_service_id: u16,
    /// How frames leave for interfaces that are not devices themselves, by index.
    pub egress: BTreeMap<u32, Egress>,
}

/// Packets and bytes sent to one backend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BackendCounters {
    /// Packets.
    pub packets: u64,
    /// Bytes from the IP header on, as they arrived.
    pub bytes: u64,
}

/// What outer headers of all backends have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OuterSettings {
    /// Bits of outer IPv4 source addresses that differ by flow. The sources in records have zeros there.
    pub spread_v4: u32,
    /// The same of IPv6.
    pub spread_v6: u128,
    /// UDP port of GUE.
    pub gue_port: u16,
}

impl OuterSettings {
    /// Those without any spread.
    pub const fn without_spread(self) -> Self {
        Self { spread_v4: 0, spread_v6: 0, ..self }
    }
}

impl From<&Encapsulation> for OuterSettings {
    fn from(encapsulation: &Encapsulation) -> Self {
        let spread_v4 = match encapsulation.source_v4.map(SourcePrefix::host_bits) {
            Some(IpAddr::V4(bits)) => bits.to_bits(),
            _ => 0,
        };
        let spread_v6 = match encapsulation.source_v6.map(SourcePrefix::host_bits) {
            Some(IpAddr::V6(bits)) => bits.to_bits(),
            _ => 0,
        };
        Self { spread_v4, spread_v6, gue_port: encapsulation.gue_port }
    }
}

/// Typed operations on the kernel's maps.
///
/// Service IDs are 1 to `max_services()`; numbers of backends within a service are 1 to the limit of its range; record
/// indexes are 1 to `max_records()`.
pub trait Datapath: Send {
    /// Highest service ID.
    fn max_services(&self) -> u16;

    /// Number of backend records; index 0 is never used.
    fn max_records(&self) -> u32;

    /// Reads everything that is pinned.
    fn adopt(&self) -> Result<Adopted, DatapathError>;

    /// Writes a service's record whole. Only for an ID that no key leads to.
    fn write_service(&mut self, id: u16, record: &ServiceRecord) -> Result<(), DatapathError>;

    /// Replaces what a service's record says about how its packets are treated: its hash. Atomic towards packets.
    fn write_policy(&mut self, id: u16, record: &ServiceRecord) -> Result<(), DatapathError>;

    /// Moves a service to another range of records, for packets at once.
    fn move_service(&mut self, id: u16, range: RecordRange) -> Result<(), DatapathError>;

    /// Clears a service's record, table and ledger. Only for an ID that no key leads to, after a grace period.
    fn clear_service(&mut self, id: u16) -> Result<(), DatapathError>;

    /// Remembers the ID given out last, so that another process goes on from there.
    fn set_last_service_id(&mut self, id: u16) -> Result<(), DatapathError>;

    /// Replaces what is looked at before a packet may use service `id`, or for 0 any service. Atomic towards packets, but that
    /// limits that change may be met half old and half new. The lists that it names must be there.
    fn write_admission(&mut self, id: u16, record: &AdmissionRecord) -> Result<(), DatapathError>;

    /// Replaces the list of sources of service `id`, or for 0 of the node: each packet meets the old or the new list whole. With
    /// `None` there is none; only after a grace period in which no record named it.
    fn write_sources(&mut self, id: u16, ipv6: bool, list: Option<&SourceList>) -> Result<(), DatapathError>;

    /// Says how frames leave for an interface; `None`: by itself.
    fn set_egress(&mut self, interface: u32, egress: Option<Egress>) -> Result<(), DatapathError>;

    /// What outer headers have in common now.
    fn outer_settings(&self) -> OuterSettings;

    /// Replaces that, for packets at once. Bits of the spread must be zero in the sources of all records that packets use.
    fn set_outer_settings(&mut self, settings: OuterSettings) -> Result<(), DatapathError>;

    /// Leads packets for `address` to service `id`; replaces atomically what they were led to before. At most
    /// [`crate::model::RANGES_PER_ADDRESS`] ranges of ports have room at one address and protocol.
    fn bind(&mut self, address: ServiceAddress, id: u16) -> Result<(), DatapathError>;

    /// Packets for `address` are no longer for a service.
    fn unbind(&mut self, address: ServiceAddress) -> Result<(), DatapathError>;

    /// Tells which services an address has, atomically for each protocol; `None` takes the address away.
    fn set_address(
        &mut self,
        address: IpAddr,
        services: Option<AddressServices>,
    ) -> Result<(), DatapathError>;

    /// Replaces what is done with packets for the addresses of services that are for no service.
    fn set_address_policy(&mut self, policy: AddressPolicy) -> Result<(), DatapathError>;

    /// Carries a backend's counters over to another record.
    fn copy_backend_counters(&mut self, from: u32, to: u32) -> Result<(), DatapathError>;

    /// Writes a backend record whole, or clears it and its counters with `None`. Not atomic: only for one that no packet uses.
    fn write_backend(&mut self, record: u32, backend: Option<&BackendRecord>) -> Result<(), DatapathError>;

    /// Replaces state, flags, MTU and interface of a backend record in use, atomically.
    fn write_link(&mut self, record: u32, link: Link) -> Result<(), DatapathError>;

    /// Adds to the backend addresses whose packets may be replies to translate, or removes from them. Port 0 stands for
    /// every port.
    fn set_nat_source(
        &mut self,
        address: BackendAddress,
        protocol: Protocol,
        present: bool,
    ) -> Result<(), DatapathError>;

    /// Publishes whole tables, all in one batch: each packet sees the old or the new table of its service, never a mix. When
    /// it returns, no packet uses an old one. Where it fails, some of the tables may have been published and others not.
    fn publish(&mut self, tables: &[(u16, Vec<Slot>)]) -> Result<(), DatapathError>;

    /// Waits until no packet can be using anything that was replaced before the call.
    fn grace_period(&mut self) -> Result<(), DatapathError>;

    /// Removes the flows whose owner is not wanted, and those that are dead; returns how many the former were.
    ///
    /// Dead ones must go at least every 78 hours: then the clock in the entries comes round and they would live again.
    fn retain_flows(&mut self, wanted: &dyn Fn(FlowOwner) -> bool) -> Result<u64, DatapathError>;

    /// Entries in use in the flow table, dead ones included.
    fn count_flows(&self) -> Result<u64, DatapathError>;

    /// Flows there is room for, and bytes of the table.
    fn flow_capacity(&self) -> (u64, u64);

    /// The ledger of a service, or of the node for 0.
    fn ledger(&self, id: u16) -> Result<LedgerCounters, DatapathError>;

    /// What was sent to a backend record.
    fn backend_counters(&self, record: u32) -> Result<BackendCounters, DatapathError>;

    /// Elements written by this process since it opened the maps.
    fn writes(&self) -> u64;
}
