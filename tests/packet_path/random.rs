//! Random frames: mostly sound, some lying, some damaged.

use std::{
    cell::Cell,
    net::{IpAddr, SocketAddr},
};

use tidegate::model::Mode;

use super::network::{CLIENTS, Range, address};
use crate::harness::{
    frame::{
        Checksum, Extension, GUE_PORT, Gre, Ipv4, Ipv6, Network, Outer, Packet, Shim, Tag, Tcp, Transport,
        Udp, ethertype, protocol, tcp_flags,
    },
    model::Node,
};

/// A small generator (splitmix64): the same frames in every run.
pub struct Random(Cell<u64>);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(Cell::new(seed))
    }

    fn next(&self) -> u64 {
        let state = self.0.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.0.set(state);
        let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn below(&self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    fn one_in(&self, number: usize) -> bool {
        self.below(number) == 0
    }

    fn pick<T: Clone>(&self, from: &[T]) -> T {
        from[self.below(from.len())].clone()
    }

    fn byte(&self) -> u8 {
        self.next() as u8
    }

    fn word(&self) -> u16 {
        self.next() as u16
    }

    fn bytes(&self, length: usize) -> Vec<u8> {
        (0..length).map(|_| self.byte()).collect()
    }

    fn checksum(&self) -> Checksum {
        if self.one_in(10) { Checksum::Exactly(self.word()) } else { Checksum::Right }
    }
}

/// A frame of a client to a service, of a NAT backend to a client, or of somebody else.
pub fn to_the_load_balancer(random: &Random, node: &Node) -> Vec<u8> {
    let ids: Vec<u32> = node.services.keys().copied().collect();
    let service = &node.services[&random.pick(&ids)];
    let number = CLIENTS.start + random.below(CLIENTS.len()) as u8;
    let client = address(service.address.is_ipv6(), Range::Clients, number);
    let client = SocketAddr::new(client, 1000 + random.below(12) as u16);
    let (from, to) = if service.mode == Mode::Nat && random.one_in(2) {
        let numbers: Vec<u16> = service.backends.keys().copied().collect();
        (service.backends[&random.pick(&numbers)].address, client)
    } else {
        (client, service.address)
    };
    let to_port = if random.one_in(40) { random.word() } else { to.port() };
    let transport = transport(random, service.protocol, from.port(), to_port);
    let packet = Packet::new(network(random, from.ip(), to.ip()), transport);
    damaged(random, finish(random, packet))
}

/// A frame with or without an outer header, some of them for the addresses the host owns.
pub fn to_a_backend(random: &Random, node: &Node) -> Vec<u8> {
    let own: Vec<IpAddr> = node.decap_addresses.iter().copied().collect();
    let other = |is_ipv6| address(is_ipv6, Range::Clients, 101);
    let to = |random: &Random| {
        let own = random.pick(&own);
        if random.one_in(8) { other(own.is_ipv6()) } else { own }
    };
    let inner = to(random);
    let transport = transport(random, random.pick(&[protocol::TCP, protocol::UDP]), 1000, 80);
    let mut packet = Packet::new(network(random, other(inner.is_ipv6()), inner), transport);
    if !random.one_in(8) {
        let to = to(random);
        let network = network(random, other(to.is_ipv6()), to);
        packet = packet.inside(Outer { network, shim: shim(random) });
    }
    damaged(random, finish(random, packet))
}

fn shim(random: &Random) -> Shim {
    match random.below(3) {
        0 => Shim::None,
        1 => Shim::Gre(Gre {
            flags: if random.one_in(10) { random.word() } else { 0 },
            protocol: random.one_in(20).then(|| random.pick(&[ethertype::IPV4, ethertype::IPV6, 0x6558])),
        }),
        _ => {
            let port = if random.one_in(20) { random.word() } else { GUE_PORT };
            let checksum = random.pick(&[Checksum::Right, Checksum::Exactly(0), Checksum::Exactly(0)]);
            let length = random.one_in(15).then(|| random.below(200) as u16);
            Shim::Gue(Udp { checksum, length, ..Udp::new(random.word(), port) })
        }
    }
}

/// Mostly none, sometimes more than are stepped over.
fn tags(random: &Random) -> Vec<Tag> {
    let tag =
        || Tag { kind: random.pick(&[ethertype::VLAN, ethertype::SERVICE_VLAN]), control: random.word() };
    let number = random.pick(&[0, 0, 0, 0, 1, 1, 2, 2, random.below(4)]);
    (0..number).map(|_| tag()).collect()
}

/// Mostly none, sometimes too many, too deep or not to be followed.
fn extensions(random: &Random) -> Vec<Extension> {
    let number = if random.one_in(4) { random.pick(&[1, 1, 2, 5, 6, 7]) } else { 0 };
    (0..number).map(|_| extension(random)).collect()
}

fn extension(random: &Random) -> Extension {
    let words = random.pick(&[0, 0, 1, 3, random.below(20), random.below(256)]);
    let number = random.pick(&[protocol::HOP_BY_HOP, protocol::DESTINATION_OPTIONS]);
    match random.below(12) {
        0..3 => Extension::atomic_fragment(),
        3 => Extension::Fragment {
            offset: if random.one_in(2) { random.below(0x2000) as u16 } else { 0 },
            more: random.one_in(2),
            identification: random.next() as u32,
        },
        4..6 => Extension::routing(if random.one_in(3) { random.byte() } else { 0 }),
        6 => Extension::Sized { number, body: random.bytes(6), length: Some(random.byte()) },
        _ => Extension::Sized { number, body: random.bytes(6 + 8 * words), length: None },
    }
}

fn finish(random: &Random, packet: Packet) -> Vec<u8> {
    let length = random.pick(&[0, 1, 5, random.below(600), random.below(1500)]);
    let padding = if random.one_in(4) { random.below(50) } else { 0 };
    packet.tags(&tags(random)).payload(&random.bytes(length)).padding(&random.bytes(padding)).build()
}

fn damaged(random: &Random, mut frame: Vec<u8>) -> Vec<u8> {
    if random.one_in(12) {
        let at = random.below(frame.len().min(110));
        frame[at] ^= 1 << random.below(8);
    }
    // A longer one does not fit the one page of a test run.
    frame.truncate(3400);
    if random.one_in(15) {
        // A test run takes no frame without an Ethernet header.
        frame.truncate(14 + random.below(120));
    }
    frame
}

fn transport(random: &Random, protocol: u8, from: u16, to: u16) -> Transport {
    if protocol == protocol::TCP {
        let words = if random.one_in(3) { random.below(11) } else { 0 };
        let flags = random.pick(&[
            tcp_flags::SYN,
            tcp_flags::ACK,
            tcp_flags::PSH | tcp_flags::ACK,
            tcp_flags::SYN | tcp_flags::ACK,
            tcp_flags::FIN | tcp_flags::ACK,
            tcp_flags::RST,
            random.byte(),
        ]);
        Tcp {
            options: random.bytes(words * 4),
            data_offset: random.one_in(30).then(|| random.below(16) as u8),
            checksum: random.checksum(),
            sequence: random.next() as u32,
            ..Tcp::with_flags(from, to, flags)
        }
        .into()
    } else {
        let checksum = if random.one_in(4) { Checksum::Exactly(0) } else { random.checksum() };
        let length = random.one_in(30).then(|| random.below(1500) as u16);
        Udp { length, checksum, ..Udp::new(from, to) }.into()
    }
}

fn network(random: &Random, from: IpAddr, to: IpAddr) -> Network {
    let ttl = random.pick(&[0, 1, 2, 64, 64, 64, 255, random.byte()]);
    let class = random.pick(&[0, 0xb9, random.byte()]);
    match Network::between(from, to) {
        Network::V4(ip) => {
            let words = if random.one_in(4) { random.below(11) } else { 0 };
            let lies = [0, 19, 20, 39, 40, 1500, random.word()];
            Network::V4(Ipv4 {
                ttl,
                tos: class,
                identification: random.word(),
                dont_fragment: random.one_in(2),
                reserved_flag: random.one_in(30),
                more_fragments: random.one_in(40),
                fragment_offset: if random.one_in(40) { random.below(0x2000) as u16 } else { 0 },
                options: random.bytes(words * 4),
                checksum: random.checksum(),
                total_length: random.one_in(25).then(|| random.pick(&lies)),
                version: random.one_in(60).then(|| random.below(16) as u8),
                header_words: random.one_in(60).then(|| random.below(16) as u8),
                ..ip
            })
        }
        Network::V6(ip) => {
            let lies = [0, 8, 20, 1500, 65495, 65496, 65535, random.word()];
            Network::V6(Ipv6 {
                hop_limit: ttl,
                extensions: extensions(random),
                traffic_class: class,
                flow_label: random.below(1 << 20) as u32,
                payload_length: random.one_in(25).then(|| random.pick(&lies)),
                next_header: random.one_in(40).then(|| random.pick(&[0, 44, 58, 60])),
                version: random.one_in(60).then(|| random.below(16) as u8),
                ..ip
            })
        }
    }
}
