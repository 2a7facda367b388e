//! What a node knows: services, backends, flows, routes, and the ledger of what it did.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use tidegate::model::Mode;

use super::{Flows, Reason};
use crate::harness::frame::MacAddress;

/// State of a backend within its service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum BackendState {
    /// No longer a member; flows may still name it.
    Unused = 0,
    Up = 1,
    Draining = 2,
    Down = 3,
}

/// How packets get to a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextHop {
    /// The backend is this node.
    Local,
    /// Straight from XDP.
    Resolved { interface: u32, source_mac: MacAddress, destination_mac: MacAddress },
    /// Only the interface is known: the kernel is to find the neighbour.
    Unresolved { interface: u32 },
    /// Not even the interface is known.
    NoRoute,
}

/// A backend of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backend {
    pub address: SocketAddr,
    pub state: BackendState,
    pub next_hop: NextHop,
    /// From the IP header on. It binds whatever the next hop, but for a local one.
    pub mtu: u16,
    /// Outer source address of an encapsulation, or the prefix of it; of the family of `address`.
    pub source: IpAddr,
    /// VLAN tags towards a resolved next hop, the outer one first: priority and ID; 0: none.
    pub tags: [u16; 2],
    /// The outer tag is one of 802.1ad.
    pub has_service_tag: bool,
}

/// Bits of outer source addresses that differ by flow. Where they are set, those of backends' `source` are zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spread {
    pub ipv4: Ipv4Addr,
    pub ipv6: Ipv6Addr,
}

/// A service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    pub address: SocketAddr,
    pub protocol: u8,
    pub mode: Mode,
    /// By number; 0 is no number.
    pub backends: BTreeMap<u16, Backend>,
    /// Slots: the number of the backend new flows go to; 0 where there is none.
    pub table: Vec<u16>,
}

/// What the kernel's routing table says about a client. MTUs are in bytes from the IP header on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    Resolved {
        interface: u32,
        mtu: u16,
        source_mac: MacAddress,
        destination_mac: MacAddress,
    },
    /// The neighbour's MAC address is not known.
    NoNeighbour {
        interface: u32,
        mtu: u16,
    },
    /// There is no route.
    NotForwarded,
    ForwardingDisabled,
    /// There is a route, and it says that there is no way.
    Unreachable,
}

/// Counters of the ledger.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    pub seen: u64,
    /// Bytes of the packets seen, from the IP header on; never more than there were.
    pub bytes: u64,
    pub packets: BTreeMap<Reason, u64>,
}

/// A load balancer.
#[derive(Clone, Debug)]
pub struct Node {
    /// By ID; 0 is no ID.
    pub services: BTreeMap<u32, Service>,
    pub flows: Flows,
    pub spread: Spread,
    /// Routes to clients, for replies that are translated. Absent: not forwarded.
    pub routes: BTreeMap<IpAddr, Route>,
    /// Addresses of this host, for [`Node::xdp_decap`].
    pub decap_addresses: BTreeSet<IpAddr>,
    /// What `xdp_lb` did, by service ID; 0: all packets.
    pub ledger: BTreeMap<u32, Ledger>,
    /// What `tc_nat` did.
    pub tc_nat_ledger: Ledger,
    /// What `xdp_decap` did.
    pub decap_ledger: Ledger,
    /// Packets and bytes sent to backends, by service ID and number.
    pub backend_counters: BTreeMap<(u32, u16), (u64, u64)>,
}

impl Node {
    /// A node without services whose flow table has this many buckets (a power of two).
    pub fn new(flow_buckets: usize) -> Self {
        Self {
            services: BTreeMap::new(),
            flows: Flows::new(flow_buckets),
            spread: Spread::default(),
            routes: BTreeMap::new(),
            decap_addresses: BTreeSet::new(),
            ledger: BTreeMap::new(),
            tc_nat_ledger: Ledger::default(),
            decap_ledger: Ledger::default(),
            backend_counters: BTreeMap::new(),
        }
    }

    /// ID of the service with this address and protocol.
    pub fn find_service(&self, address: SocketAddr, protocol: u8) -> Option<u32> {
        self.services
            .iter()
            .find(|(_, service)| (service.address, service.protocol) == (address, protocol))
            .map(|(id, _)| *id)
    }

    /// Is this a backend whose replies are translated?
    pub fn is_nat_backend(&self, address: SocketAddr, protocol: u8) -> bool {
        self.services.values().any(|service| {
            service.mode == Mode::Nat
                && service.protocol == protocol
                && service.backends.values().any(|backend| backend.address == address)
        })
    }

    /// Has the backend with this number this address and protocol?
    pub fn backend_is(&self, service: u32, number: u16, address: SocketAddr, protocol: u8) -> bool {
        self.services.get(&service).is_some_and(|service| {
            service.protocol == protocol
                && service.backends.get(&number).is_some_and(|backend| backend.address == address)
        })
    }
}

impl Service {
    /// A service without backends.
    pub fn new(address: SocketAddr, protocol: u8, mode: Mode) -> Self {
        Self { address, protocol, mode, backends: BTreeMap::new(), table: vec![0; 251] }
    }

    /// The same with a backend more, under the next number, and a table that names all in turn.
    pub fn backend(mut self, backend: Backend) -> Self {
        let number = self.backends.keys().last().copied().unwrap_or(0) + 1;
        self.backends.insert(number, backend);
        let numbers: Vec<u16> = self.backends.keys().copied().collect();
        self.table = (0..self.table.len()).map(|slot| numbers[slot % numbers.len()]).collect();
        self
    }
}

impl Backend {
    /// The same behind these tags, the outer one first; 0: none.
    pub fn behind_tags(self, tags: [u16; 2], has_service_tag: bool) -> Self {
        Self { tags, has_service_tag, ..self }
    }

    /// A backend that is up, behind a resolved next hop, with an MTU of 1500.
    pub fn new(address: SocketAddr, source: IpAddr, interface: u32) -> Self {
        let last = match address.ip() {
            IpAddr::V4(ip) => ip.octets()[3],
            IpAddr::V6(ip) => ip.octets()[15],
        };
        let next_hop = NextHop::Resolved {
            interface,
            source_mac: [2, 0, 0, 1, 0, interface as u8],
            destination_mac: [2, 0, 0, 2, 0, last],
        };
        Self {
            address,
            state: BackendState::Up,
            next_hop,
            mtu: 1500,
            source,
            tags: [0; 2],
            has_service_tag: false,
        }
    }
}

impl Ledger {
    /// Counts a packet.
    pub fn count(&mut self, reason: Reason, bytes: u64) {
        self.seen += 1;
        self.bytes += bytes;
        *self.packets.entry(reason).or_default() += 1;
    }
}
