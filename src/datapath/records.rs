//! The records of the maps as domain types, and their translation to and from the layouts that C and Rust share.
//!
//! The layouts are the skeleton's generated types; this file asserts their sizes and offsets at compile time.

mod endpoint;
mod wire;

use std::{
    mem::{offset_of, size_of},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use super::{
    skeleton::types,
    sys::{PlainData, Word},
};
use crate::model::{
    BackendAddress, BackendState, HashMode, Mode, OnNoBackend, PortRange, Protocol, ServiceAddress,
};

pub(super) use endpoint::EndpointKey;
pub(super) use wire::{address_from_words, address_words};
use wire::{
    endpoint_sum, family_number, hash_from_numbers, hash_number, mode_from_number, mode_number,
    on_no_backend_from_number, on_no_backend_number, protocol_from_number, sum,
};

const _: () = {
    assert!(size_of::<types::service>() == 64);
    assert!(offset_of!(types::service, backends_base) == 16);
    assert!(offset_of!(types::service, backends_limit) == 20);
    assert!(offset_of!(types::service, protocol) == POLICY_OFFSET);
    assert!(offset_of!(types::service, hash) / 8 == POLICY_OFFSET / 8);
    assert!(offset_of!(types::service, hash_prefix) / 8 == POLICY_OFFSET / 8);
    assert!(offset_of!(types::service, on_no_backend) / 8 == POLICY_OFFSET / 8);
    assert!(size_of::<types::backend>() == 64);
    assert!(offset_of!(types::backend, link) == 0);
    assert!(size_of::<types::backend_link>() == 8);
    assert!(size_of::<types::slot>() == 4);
    assert!(size_of::<types::slot_line>() == 64);
    assert!(size_of::<types::flow>() == 16);
    assert!(offset_of!(types::flow, owner) == 8);
    assert!(size_of::<types::flow_bucket>() == 64);
    assert!(size_of::<types::node_settings>() == 72);
    assert!(size_of::<types::endpoint_v4>() == 8);
    assert!(size_of::<types::endpoint_v6>() == 20);
    assert!(size_of::<types::port_ranges>() == 64);
    assert!(size_of::<types::backend_counters>() == 16);
    assert!(size_of::<types::egress>() == 12);
    assert!(size_of::<types::ledger>() == 16 + 8 * 64);
    assert!(SLOTS_PER_LINE == 16);
    assert!(FLOWS_PER_BUCKET == 4);
};

/// Where the word of a service's record is that says how its packets are treated.
pub(super) const POLICY_OFFSET: usize = 32;

/// Slots in one element of a table.
pub(super) const SLOTS_PER_LINE: usize = types::table_shape::SLOTS_PER_LINE.0 as usize;
/// Entries in one bucket of the flow table.
pub(super) const FLOWS_PER_BUCKET: usize = types::table_shape::FLOWS_PER_BUCKET.0 as usize;

/// A part of the backend records that belongs to one service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordRange {
    /// Backend n of the service is record `base + n`.
    pub base: u32,
    /// n is at least 1 and below this.
    pub limit: u32,
}

impl RecordRange {
    /// The record of backend `number`, where the range has it.
    pub fn record(self, number: u16) -> Option<u32> {
        (number != 0 && u32::from(number) < self.limit).then(|| self.base + u32::from(number))
    }

    fn word(self) -> Word {
        Word::from(self.base) | Word::from(self.limit) << 32
    }
}

/// A service as the packet path knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceRecord {
    /// What clients connect to.
    pub address: ServiceAddress,
    /// How packets are sent to the backends.
    pub mode: Mode,
    /// What of a packet decides which slot it gets.
    pub hash: HashMode,
    /// What becomes of packets while no backend is usable.
    pub on_no_backend: OnNoBackend,
    /// Slots of its table.
    pub slots: u32,
    /// Its backend records.
    pub range: RecordRange,
}

/// What a backend record is to its service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Membership {
    /// Not a member of the service.
    Unused,
    /// A member, in this state.
    Member(BackendState),
}

/// Flags of a backend record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkFlags {
    /// Interface and MAC addresses are valid.
    pub resolved: bool,
    /// The backend is this node.
    pub local: bool,
    /// The outer VLAN tag is one of 802.1ad, not of 802.1Q.
    pub service_tag: bool,
}

/// The part of a backend record that changes while packets use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// Index of the interface towards the backend; 0 where no route is known.
    pub interface: u32,
    /// MTU of the path towards it, in bytes from the IP header on.
    pub mtu: u16,
    /// State of the backend.
    pub state: Membership,
    /// What is known of the way there.
    pub flags: LinkFlags,
    /// The backend's address is IPv6.
    pub ipv6: bool,
}

/// A backend of a service as the packet path knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendRecord {
    /// The changing part.
    pub link: Link,
    /// Where the backend listens.
    pub address: BackendAddress,
    /// Transport protocol of the service.
    pub protocol: Protocol,
    /// Mode of the service.
    pub mode: Mode,
    /// True where the service's address is IPv6: what is inside an encapsulation.
    pub inner_ipv6: bool,
    /// Outer source address of an encapsulation, of the backend's family; unspecified where unknown.
    pub source: IpAddr,
    /// VLAN tags towards the next hop, the outer one first: priority and ID; 0: none.
    pub tags: [u16; 2],
    /// MAC address of the next hop.
    pub destination_mac: [u8; 6],
    /// MAC address of the interface.
    pub source_mac: [u8; 6],
}

/// One entry of a table: numbers of backends within the service, 0 for none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slot {
    /// Where new flows go.
    pub current: u16,
    /// Equal to `current` in a settled slot.
    pub previous: u16,
}

impl Slot {
    /// A settled slot.
    pub const fn settled(number: u16) -> Self {
        Self { current: number, previous: number }
    }
}

/// Whose a flow is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FlowOwner {
    /// Service ID.
    pub service: u16,
    /// Number of the backend within the service.
    pub backend: u16,
}

impl FlowOwner {
    pub(super) const fn from_raw(owner: u32) -> Self {
        Self { service: (owner >> 16) as u16, backend: owner as u16 }
    }
}

impl ServiceRecord {
    pub(super) fn to_raw(&self) -> types::service {
        let ServiceAddress { address, ports, protocol } = self.address;
        let port = ports.as_single().unwrap_or(0);
        types::service {
            address: address_words(address),
            backends_base: self.range.base,
            backends_limit: self.range.limit,
            slots: self.slots,
            port: port.to_be(),
            endpoint_sum: endpoint_sum(address, port),
            protocol: protocol.number(),
            family: family_number(address),
            mode: mode_number(self.mode),
            hash: hash_number(self.hash),
            hash_prefix: self.hash.prefix().unwrap_or(0),
            first_port: ports.first(),
            last_port: ports.last(),
            on_no_backend: on_no_backend_number(self.on_no_backend),
            ..Default::default()
        }
    }

    /// The word at [`POLICY_OFFSET`].
    pub(super) fn policy_word(&self) -> Word {
        let raw = self.to_raw();
        let mut bytes = [0; size_of::<Word>()];
        bytes.copy_from_slice(&PlainData::bytes(&raw)[POLICY_OFFSET..][..size_of::<Word>()]);
        Word::from_ne_bytes(bytes)
    }

    /// The record in a map element, where the element holds a sound one.
    pub(super) fn from_raw(raw: &types::service) -> Option<Self> {
        let ipv6 = u32::from(raw.family) == types::address_family::FAMILY_IPV6.0;
        let address = ServiceAddress {
            address: address_from_words(raw.address, ipv6),
            ports: PortRange::new(raw.first_port, raw.last_port)?,
            protocol: protocol_from_number(raw.protocol)?,
        };
        let hash = hash_from_numbers(raw.hash, raw.hash_prefix)?;
        let range = RecordRange { base: raw.backends_base, limit: raw.backends_limit };
        let record = Self {
            address,
            mode: mode_from_number(raw.mode)?,
            hash,
            on_no_backend: on_no_backend_from_number(raw.on_no_backend)?,
            slots: raw.slots,
            range,
        };
        let same = PlainData::bytes(&record.to_raw()) == PlainData::bytes(raw);
        (same && raw.slots > 0).then_some(record)
    }

    pub(super) fn range_word(range: RecordRange) -> Word {
        range.word()
    }
}

impl Link {
    pub(super) fn to_word(self) -> Word {
        let state = match self.state {
            Membership::Unused => types::backend_state::BACKEND_UNUSED,
            Membership::Member(BackendState::Up) => types::backend_state::BACKEND_UP,
            Membership::Member(BackendState::Down) => types::backend_state::BACKEND_DOWN,
        };
        let flag = |set: bool, flag: types::backend_flags| if set { flag.0 } else { 0 };
        let flags = flag(self.flags.resolved, types::backend_flags::BACKEND_RESOLVED)
            | flag(self.flags.local, types::backend_flags::BACKEND_LOCAL)
            | flag(self.flags.service_tag, types::backend_flags::BACKEND_SERVICE_TAG)
            | flag(self.ipv6, types::backend_flags::BACKEND_IPV6);
        Word::from(self.interface)
            | Word::from(self.mtu) << 32
            | Word::from(state.0) << 48
            | Word::from(flags) << 56
    }

    pub(super) fn from_raw(raw: &types::backend_link) -> Option<Self> {
        let state = match types::backend_state(u32::from(raw.state)) {
            types::backend_state::BACKEND_UNUSED => Membership::Unused,
            types::backend_state::BACKEND_UP => Membership::Member(BackendState::Up),
            types::backend_state::BACKEND_DOWN => Membership::Member(BackendState::Down),
            _ => return None,
        };
        let has = |flag: types::backend_flags| u32::from(raw.flags) & flag.0 != 0;
        Some(Self {
            interface: raw.interface,
            mtu: raw.mtu,
            state,
            flags: LinkFlags {
                resolved: has(types::backend_flags::BACKEND_RESOLVED),
                local: has(types::backend_flags::BACKEND_LOCAL),
                service_tag: has(types::backend_flags::BACKEND_SERVICE_TAG),
            },
            ipv6: has(types::backend_flags::BACKEND_IPV6),
        })
    }

    fn to_raw(self) -> types::backend_link {
        let word = self.to_word();
        types::backend_link {
            interface: word as u32,
            mtu: (word >> 32) as u16,
            state: (word >> 48) as u8,
            flags: (word >> 56) as u8,
        }
    }
}

impl BackendRecord {
    /// True where only the link differs, which may be replaced while packets use the record.
    pub fn differs_only_in_link(&self, other: &Self) -> bool {
        Self { link: self.link, ..other.clone() } == *self
    }

    pub(super) fn to_raw(&self) -> types::backend {
        let BackendAddress { address, port } = self.address;
        types::backend {
            link: self.link.to_raw(),
            address: address_words(address),
            source: address_words(self.source),
            destination_mac: self.destination_mac,
            source_mac: self.source_mac,
            port: port.to_be(),
            endpoint_sum: endpoint_sum(address, port),
            outer_sum: self.outer_sum(),
            tags: self.tags.map(u16::to_be),
            mode: mode_number(self.mode),
            protocol: self.protocol.number(),
        }
    }

    pub(super) fn from_raw(raw: &types::backend, inner_ipv6: bool) -> Option<Self> {
        let link = Link::from_raw(&raw.link)?;
        let record = Self {
            link,
            address: BackendAddress {
                address: address_from_words(raw.address, link.ipv6),
                port: u16::from_be(raw.port),
            },
            protocol: protocol_from_number(raw.protocol)?,
            mode: mode_from_number(raw.mode)?,
            inner_ipv6,
            source: address_from_words(raw.source, link.ipv6),
            tags: raw.tags.map(u16::from_be),
            destination_mac: raw.destination_mac,
            source_mac: raw.source_mac,
        };
        (PlainData::bytes(&record.to_raw()) == PlainData::bytes(raw)).then_some(record)
    }

    /// Sum of the constant words of an outer IPv4 header; 0 where the outer header is IPv6, which has no checksum.
    fn outer_sum(&self) -> u16 {
        const VERSION_AND_LENGTH: [u8; 2] = [0x45, 0];
        const TTL: u8 = 64;
        match (self.outer_protocol(), self.source, self.address.address) {
            (Some(protocol), IpAddr::V4(source), IpAddr::V4(destination)) => {
                sum(&[&VERSION_AND_LENGTH, &[TTL, protocol], &source.octets(), &destination.octets()])
            }
            _ => 0,
        }
    }

    /// Protocol number in the outer header, where there is one.
    fn outer_protocol(&self) -> Option<u8> {
        const IPV4: u8 = 4;
        const UDP: u8 = 17;
        const IPV6: u8 = 41;
        const GRE: u8 = 47;
        match self.mode {
            Mode::Ipip if self.inner_ipv6 => Some(IPV6),
            Mode::Ipip => Some(IPV4),
            Mode::Gre => Some(GRE),
            Mode::Gue => Some(UDP),
            Mode::Nat | Mode::Dsr => None,
        }
    }
}

#[cfg(test)]
mod tests;
