//! What must become of a packet, in plain Rust: services are searched one by one, flows are remembered whole.

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
};

use tidegate::model::{BackendAddress, HashMode, Mode, Protocol, ServiceAddress};

use crate::harness::{
    frame::{Ethernet, Ipv4, Ipv6, MacAddress, Network, Packet, Tcp, Transport, Udp},
    model::hash::{five_tuple, rehash, slot_index},
};

/// Slots of every table: as many as the most backends of a service, so that a slot can be a backend's own.
pub const SLOTS: usize = 251;
/// Backends that are tried for a flow whose replies would look like another's.
const ATTEMPTS: usize = 16;
/// Address of the load balancer, in outer headers.
pub const OUTER_SOURCE: [u8; 4] = [198, 51, 100, 254];

/// A service whose backends, numbered from 1, have the slots of its table in turn.
#[derive(Clone, Debug)]
pub struct Shape {
    pub address: ServiceAddress,
    pub mode: Mode,
    pub hash: HashMode,
    pub backends: Vec<BackendAddress>,
}

/// A packet of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    pub client: SocketAddr,
    pub to: SocketAddr,
    pub protocol: Protocol,
}

/// A flow that is remembered: what tells it apart, and who has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Tracked {
    request: Request,
    service: usize,
}

/// What must become of a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expected {
    /// Passed as it came.
    Untouched,
    Dropped,
    /// Sent on: the service, and the frame.
    Sent(usize, Vec<u8>),
}

/// All services, and the flows that were translated.
#[derive(Clone, Debug)]
pub struct Model {
    pub shapes: Vec<Shape>,
    flows: HashMap<Tracked, usize>,
}

impl Model {
    pub fn new(shapes: &[Shape]) -> Self {
        Self { shapes: shapes.to_vec(), flows: HashMap::new() }
    }

    /// The service with the fewest ports of those that have this one.
    pub fn find(&self, to: SocketAddr, protocol: Protocol) -> Option<usize> {
        let has = |shape: &Shape| {
            let ServiceAddress { address, ports, protocol: own } = shape.address;
            (address, own) == (to.ip(), protocol) && (ports.first()..=ports.last()).contains(&to.port())
        };
        (0..self.shapes.len())
            .filter(|&service| has(&self.shapes[service]))
            .min_by_key(|&service| self.shapes[service].address.ports.width())
    }

    pub fn request(&mut self, request: Request) -> Expected {
        let Some(service) = self.find(request.to, request.protocol) else { return Expected::Untouched };
        let shape = &self.shapes[service];
        let hash = hash(&request, shape.hash);
        let number = if shape.mode == Mode::Nat {
            match self.tracked(service, request, hash) {
                Some(number) => number,
                None => return Expected::Dropped,
            }
        } else {
            self.slot(service, hash)
        };
        Expected::Sent(service, self.sent(service, number, &request))
    }

    fn slot(&self, service: usize, hash: u64) -> usize {
        slot_index(hash, SLOTS) % self.shapes[service].backends.len()
    }

    /// The backend of a flow: where it went before, else the first that no other service uses for the same replies.
    fn tracked(&mut self, service: usize, request: Request, mut hash: u64) -> Option<usize> {
        let flow = Tracked { request, service };
        if let Some(&number) = self.flows.get(&flow) {
            return Some(number);
        }
        for _ in 0..ATTEMPTS {
            let number = self.slot(service, hash);
            let from = self.reached(service, number, &request);
            if self.owner_of_reply(from, &request.client, request.protocol).is_none() {
                self.flows.insert(flow, number);
                return Some(number);
            }
            hash = rehash(hash);
        }
        None
    }

    /// Where a packet arrives that goes to a backend.
    fn reached(&self, service: usize, number: usize, request: &Request) -> SocketAddr {
        let BackendAddress { address, port } = self.shapes[service].backends[number];
        SocketAddr::new(address, if port == 0 { request.to.port() } else { port })
    }

    /// The flow that a packet from this backend's port to this client is the reply of.
    fn owner_of_reply(&self, from: SocketAddr, client: &SocketAddr, protocol: Protocol) -> Option<Tracked> {
        let flow = |(flow, number): (&Tracked, &usize)| {
            let same = flow.request.client == *client && flow.request.protocol == protocol;
            (same && self.reached(flow.service, *number, &flow.request) == from).then_some(*flow)
        };
        self.flows.iter().find_map(flow)
    }

    /// What must become of a backend's packet to a client by this way.
    pub fn reply(
        &self,
        from: SocketAddr,
        client: SocketAddr,
        protocol: Protocol,
        ethernet: Ethernet,
    ) -> Expected {
        match self.owner_of_reply(from, &client, protocol) {
            None => Expected::Untouched,
            Some(flow) => {
                Expected::Sent(flow.service, packet(flow.request.to, client, protocol, 63, ethernet).build())
            }
        }
    }

    fn sent(&self, service: usize, number: usize, request: &Request) -> Vec<u8> {
        let shape = &self.shapes[service];
        let ethernet =
            Ethernet { destination: mac_of(service, number), source: [2, 0, 0, 9, 0, 1], ethertype: None };
        let Request { client, to, protocol } = *request;
        match shape.mode {
            Mode::Nat => {
                packet(client, self.reached(service, number, request), protocol, 63, ethernet).build()
            }
            Mode::Dsr => packet(client, to, protocol, 64, ethernet).build(),
            Mode::Ipip => {
                let packet = packet(client, to, protocol, 64, ethernet);
                let IpAddr::V4(backend) = shape.backends[number].address else { panic!("an IPv6 tunnel") };
                let (identification, dont_fragment) = match &packet.network {
                    Network::V4(ip) => (ip.identification, ip.dont_fragment),
                    Network::V6(_) => (0, true),
                };
                let outer = Ipv4 {
                    ttl: 64,
                    identification,
                    dont_fragment,
                    ..Ipv4::new(OUTER_SOURCE.into(), backend)
                };
                packet.inside(outer).build()
            }
            mode => panic!("{mode} is not modelled"),
        }
    }
}

/// What the table is asked with.
pub fn hash(request: &Request, mode: HashMode) -> u64 {
    const SEED: u64 = 0x3c6e_f372_fe94_f82b;
    const A: u64 = 0x9e37_79b9_7f4a_7c15;
    const B: u64 = 0xbb67_ae85_84ca_a73b;
    let (prefix, number, with_destination) = match mode {
        HashMode::FiveTuple => return five_tuple(request.client, request.to, request.protocol.number()),
        HashMode::Source { prefix } => (prefix, 1, false),
        HashMode::SourceDestination { prefix } => (prefix, 2, true),
    };
    let words = |address: IpAddr, bits: u8| -> Vec<u64> {
        let (number, width) = match address {
            IpAddr::V4(address) => (u128::from(u32::from(address)) << 96, 4),
            IpAddr::V6(address) => (u128::from(address), 8),
        };
        let kept = if bits == 0 { 0 } else { number >> (128 - u32::from(bits)) << (128 - u32::from(bits)) };
        let bytes = kept.to_be_bytes();
        let all = bytes.chunks(width).take(if width == 4 { 1 } else { 2 });
        all.map(|chunk| chunk.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte))).collect()
    };
    let source = words(request.client.ip(), prefix);
    let destination = words(request.to.ip(), if with_destination { 128.min(whole(request.to)) } else { 0 });
    let round = |state: u64, word: u64, multiplier: u64| {
        let product = (state ^ word).wrapping_mul(multiplier);
        product ^ product >> 32
    };
    let mixed = match source[..] {
        [only] => round(SEED, only << 32 | destination[0], A),
        _ => {
            round(round(round(round(SEED, source[0], A), source[1], B), destination[0], A), destination[1], B)
        }
    };
    round(mixed, number, B).wrapping_mul(A)
}

fn whole(address: SocketAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

/// The next hop's MAC address towards a backend: of its own, so that a frame shows where it goes.
pub fn mac_of(service: usize, number: usize) -> MacAddress {
    [2, 0, 0, 8, service as u8, number as u8]
}

/// A packet with a payload of odd length and a right checksum.
pub fn packet(from: SocketAddr, to: SocketAddr, protocol: Protocol, ttl: u8, ethernet: Ethernet) -> Packet {
    let transport: Transport = match protocol {
        Protocol::Tcp => Tcp::new(from.port(), to.port()).into(),
        Protocol::Udp => Udp::new(from.port(), to.port()).into(),
    };
    let network = match (from.ip(), to.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => Network::V4(Ipv4::new(from, to)),
        (IpAddr::V6(from), IpAddr::V6(to)) => Network::V6(Ipv6::new(from, to)),
        _ => panic!("{from} and {to} are of different families"),
    };
    Packet { ethernet, ..Packet::new(network.with_ttl(ttl), transport).payload(b"shape") }
}

impl Request {
    pub fn frame(&self) -> Vec<u8> {
        packet(self.client, self.to, self.protocol, 64, Ethernet::default()).build()
    }
}
