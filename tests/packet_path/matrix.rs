//! Every mode with every family, protocol and tagging, one by one and by name: what must leave is put together by hand here, and
//! the programs and the model must both come to it.

mod hostile;
mod sums;

use std::net::{IpAddr, SocketAddr};

use tidegate::model::Mode;

use super::network::{self, Range, address};
use crate::harness::{
    frame::{
        Ethernet, Extension, Ipv4, Ipv6, Network, Outer, Packet, Tag, Tcp, Transport, Udp, assert_same,
        protocol, tcp_flags, verify,
    },
    kernel::{Kernel, disagreement},
    model::{Action, Backend, Node, Outcome, Reason, Route, Service, hash},
};

/// An interface index that no test attaches to anything; frames leave by the interface they came in by.
const INTERFACE: u32 = 1;
const CLIENT_PORT: u16 = 40_000;
const BACKEND_PORT: u16 = 8_080;

/// VLAN tags of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tagging {
    Untagged,
    Vlan,
    QinQ,
}

impl Tagging {
    const ALL: [Self; 3] = [Self::Untagged, Self::Vlan, Self::QinQ];

    /// As a client's frame comes in.
    fn incoming(self) -> Vec<Tag> {
        match self {
            Self::Untagged => Vec::new(),
            Self::Vlan => vec![Tag::new(0x0007)],
            Self::QinQ => vec![Tag::service(0x6fff), Tag::new(0x1001)],
        }
    }

    /// The outer tag's kind and the tags of a backend's record.
    fn of_record(self) -> ([u16; 2], bool) {
        match self {
            Self::Untagged => ([0, 0], false),
            Self::Vlan => ([0x2064, 0], false),
            Self::QinQ => ([0x0101, 0xe005], true),
        }
    }

    /// As a frame leaves for a backend with such a record.
    fn outgoing(self) -> Vec<Tag> {
        match self {
            Self::Untagged => Vec::new(),
            Self::Vlan => vec![Tag::new(0x2064)],
            Self::QinQ => vec![Tag::service(0x0101), Tag::new(0xe005)],
        }
    }
}

/// One combination, which has a service with one backend of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    mode: Mode,
    inner_is_ipv6: bool,
    outer_is_ipv6: bool,
    protocol: u8,
    /// Of the way to the backend.
    tagging: Tagging,
    id: u32,
}

impl Case {
    fn client(&self) -> SocketAddr {
        SocketAddr::new(address(self.inner_is_ipv6, Range::Clients, 101), CLIENT_PORT)
    }

    fn service(&self) -> SocketAddr {
        SocketAddr::new(address(self.inner_is_ipv6, Range::Services, 1), 1000 + self.id as u16)
    }

    fn backend(&self) -> SocketAddr {
        let port = if self.mode == Mode::Nat { BACKEND_PORT } else { self.service().port() };
        SocketAddr::new(address(self.outer_is_ipv6, Range::Backends, self.id as u8), port)
    }

    /// The outer source address of an encapsulation.
    fn source(&self) -> IpAddr {
        address(self.outer_is_ipv6, Range::Backends, 254)
    }

    /// A packet between two ends, with what may not change on its way set to something that would be seen to change.
    fn packet(&self, from: SocketAddr, to: SocketAddr, length: usize) -> Packet {
        let network: Network = match Network::between(from.ip(), to.ip()) {
            Network::V4(ip) => Ipv4 { tos: 0xb9, identification: 0xbeef, options: vec![1; 8], ..ip }.into(),
            Network::V6(ip) => Ipv6 { traffic_class: 0x2e, flow_label: 0xabcde, ..ip }.into(),
        };
        let transport: Transport = match self.protocol {
            protocol::TCP => {
                Tcp { options: vec![1; 12], ..Tcp::with_flags(from.port(), to.port(), tcp_flags::ACK) }.into()
            }
            _ => Udp::new(from.port(), to.port()).into(),
        };
        let payload: Vec<u8> = (0..length).map(|byte| byte as u8 | 0x80).collect();
        Packet::new(network, transport).payload(&payload)
    }

    fn request(&self, length: usize) -> Packet {
        self.packet(self.client(), self.service(), length)
    }

    /// What must become of a request.
    fn sent(&self, request: &Packet) -> Packet {
        let mut sent = request.clone().tags(&self.tagging.outgoing());
        let backend = self.record();
        sent.ethernet = match backend.next_hop {
            crate::harness::model::NextHop::Resolved { source_mac, destination_mac, .. } => {
                Ethernet { destination: destination_mac, source: source_mac, ethertype: None }
            }
            other => panic!("{other:?}"),
        };
        let hash = hash::five_tuple(self.client(), self.service(), self.protocol);
        match self.mode {
            Mode::Nat => translate(sent, self.client(), self.backend()),
            Mode::Dsr => sent,
            Mode::Ipip => sent.inside(self.outer(request, hash)),
            Mode::Gre => sent.inside(Outer::gre(self.outer(request, hash))),
            Mode::Gue => sent.inside(Outer::gue(self.outer(request, hash), hash::source_port(hash))),
        }
    }

    fn outer(&self, request: &Packet, hash: u64) -> Network {
        let class = match &request.network {
            Network::V4(ip) => ip.tos,
            Network::V6(ip) => ip.traffic_class,
        };
        let mut outer = Network::between(self.source(), self.backend().ip()).with_traffic_class(class);
        match (&mut outer, &request.network) {
            (Network::V4(outer), Network::V4(inner)) => {
                outer.identification = inner.identification;
                outer.dont_fragment = inner.dont_fragment;
            }
            (Network::V4(_), Network::V6(_)) => {}
            (Network::V6(outer), _) => outer.flow_label = hash::flow_label(hash),
        }
        outer
    }

    fn record(&self) -> Backend {
        let (tags, has_service_tag) = self.tagging.of_record();
        Backend::new(self.backend(), self.source(), INTERFACE).behind_tags(tags, has_service_tag)
    }
}

/// The packet between other ends, one hop further.
fn translate(mut packet: Packet, from: SocketAddr, to: SocketAddr) -> Packet {
    match (&mut packet.network, from.ip(), to.ip()) {
        (Network::V4(ip), IpAddr::V4(from), IpAddr::V4(to)) => {
            (ip.source, ip.destination, ip.ttl) = (from, to, ip.ttl - 1);
        }
        (Network::V6(ip), IpAddr::V6(from), IpAddr::V6(to)) => {
            (ip.source, ip.destination, ip.hop_limit) = (from, to, ip.hop_limit - 1);
        }
        _ => panic!("{from} and {to}"),
    }
    let (source, destination) = match &mut packet.transport {
        Transport::Tcp(tcp) => (&mut tcp.source_port, &mut tcp.destination_port),
        Transport::Udp(udp) => (&mut udp.source_port, &mut udp.destination_port),
        other => panic!("{other:?}"),
    };
    (*source, *destination) = (from.port(), to.port());
    packet
}

/// Every combination that there is: only encapsulation crosses families.
fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for mode in Mode::ALL {
        for (inner_is_ipv6, outer_is_ipv6) in [(false, false), (true, true), (false, true), (true, false)] {
            for protocol in [protocol::TCP, protocol::UDP] {
                for tagging in Tagging::ALL {
                    if mode.encapsulates() || inner_is_ipv6 == outer_is_ipv6 {
                        let id = cases.len() as u32 + 1;
                        cases.push(Case { mode, inner_is_ipv6, outer_is_ipv6, protocol, tagging, id });
                    }
                }
            }
        }
    }
    cases
}

/// The model and the programs, with a service for every case.
struct Bench {
    node: Node,
    kernel: Kernel,
    cases: Vec<Case>,
    frames: u64,
}

impl Bench {
    /// `change` is applied to the node before the programs get to know it.
    fn new(change: impl Fn(&mut Node)) -> Self {
        let cases = cases();
        let mut node = Node::new(1024);
        for case in &cases {
            let service = Service::new(case.service(), case.protocol, case.mode).backend(case.record());
            node.services.insert(case.id, service);
            node.decap_addresses.extend([case.service().ip(), case.backend().ip()]);
        }
        change(&mut node);
        let kernel = Kernel::load(&node);
        Self { node, kernel, cases, frames: 0 }
    }

    /// What both make of a frame, where they agree.
    #[track_caller]
    fn run(&mut self, frame: &[u8]) -> Outcome {
        let expected = self.node.xdp_lb(frame, INTERFACE);
        let got = self.kernel.xdp_lb(frame, INTERFACE);
        self.frames += 1;
        assert_eq!(disagreement(frame, &expected, &got), None);
        expected
    }

    /// The same on the backend's side.
    #[track_caller]
    fn take_off(&mut self, frame: &[u8]) -> Outcome {
        let expected = self.node.xdp_decap(frame);
        assert_eq!(disagreement(frame, &expected, &self.kernel.xdp_decap(frame)), None);
        expected
    }

    /// Every packet was counted, under exactly one reason, and as the model has it.
    #[track_caller]
    fn close(&self) {
        self.kernel.assert_state(&self.node);
        let all = self.kernel.ledger(0);
        assert_eq!(all.seen, self.frames);
        for id in self.cases.iter().map(|case| case.id).chain([0]) {
            let ledger = self.kernel.ledger(id);
            assert_eq!(ledger.seen, ledger.packets.values().sum::<u64>(), "ledger {id}");
            if let Some(expected) = self.node.ledger.get(&id) {
                assert_eq!(ledger.bytes, expected.bytes, "bytes of ledger {id}");
            }
        }
    }
}

/// Empty, odd and even.
const LENGTHS: [usize; 5] = [0, 1, 2, 333, 1000];

#[test]
fn every_combination_leaves_with_the_right_bytes() {
    let mut bench = Bench::new(|_| {});
    for case in bench.cases.clone() {
        for tagging in Tagging::ALL {
            for length in LENGTHS {
                let request = case.request(length).tags(&tagging.incoming()).minimum_size(60);
                let outcome = bench.run(&request.build());
                let context = format!("{case:?}, came {tagging:?}, {length} bytes");
                assert_eq!((outcome.reason, outcome.action), (Reason::ForwardTx, Action::Tx), "{context}");
                assert_same(&case.sent(&request).build(), &outcome.frame);
                assert_eq!(verify(&outcome.frame), Ok(()), "{context}");
            }
        }
    }
    bench.close();
}

#[test]
fn extension_headers_go_along_in_every_combination() {
    let mut bench = Bench::new(|_| {});
    let extensions = [
        Extension::options(protocol::HOP_BY_HOP, 16),
        Extension::options(protocol::DESTINATION_OPTIONS, 8),
        Extension::routing(0),
        Extension::options(protocol::DESTINATION_OPTIONS, 40),
        Extension::atomic_fragment(),
        Extension::options(protocol::DESTINATION_OPTIONS, 8),
    ];
    for case in bench.cases.clone().into_iter().filter(|case| case.inner_is_ipv6) {
        for number in 1..=extensions.len() {
            let mut request = case.request(77);
            let Network::V6(ip) = &mut request.network else { unreachable!() };
            ip.extensions = extensions[..number].to_vec();
            let outcome = bench.run(&request.build());
            assert_eq!(outcome.reason, Reason::ForwardTx, "{case:?}, {number} headers");
            assert_same(&case.sent(&request).build(), &outcome.frame);
            assert_eq!(verify(&outcome.frame), Ok(()), "{case:?}, {number} headers");
        }
    }
    bench.close();
}

#[test]
fn what_was_put_into_a_tunnel_comes_out_as_it_went_in() {
    let mut bench = Bench::new(|_| {});
    for case in bench.cases.clone().into_iter().filter(|case| case.mode.encapsulates()) {
        for length in LENGTHS {
            let request = case.request(length).minimum_size(60);
            let sent = case.sent(&request);
            let outcome = bench.take_off(&sent.build());
            assert_eq!(outcome.reason, Reason::ForwardDecapsulated, "{case:?}, {length} bytes");
            let inside = Packet { outer: Vec::new(), ..sent };
            assert_same(&inside.build(), &outcome.frame);
            assert_eq!(verify(&outcome.frame), Ok(()), "{case:?}, {length} bytes");
        }
    }
    bench.close();
}

#[test]
fn replies_leave_with_the_service_as_their_source() {
    let lab = crate::harness::lab::Lab::new(2);
    let index = |name| nix::net::if_::if_nametoindex(name).unwrap();
    let interfaces = network::Interfaces { ingress: index("backend1"), other: index("backend2") };
    let mut routes = Node::new(16);
    network::add_routes(&lab, &mut routes, &interfaces);
    let mut bench = Bench::new(|node| node.routes.clone_from(&routes.routes));
    for case in bench.cases.clone().into_iter().filter(|case| case.mode == Mode::Nat) {
        let Some(Route::Resolved { source_mac, destination_mac, .. }) =
            routes.routes.get(&case.client().ip()).copied()
        else {
            panic!("{:?}", routes.routes)
        };
        bench.run(&case.request(10).build());
        for tagging in Tagging::ALL {
            for length in LENGTHS {
                let reply = case.packet(case.backend(), case.client(), length).tags(&tagging.incoming());
                let outcome = bench.run(&reply.build());
                assert!(outcome.reason.is_forwarded(), "{case:?}: {}", outcome.reason);
                // The way to the client is untagged, whatever the reply came with.
                let mut expected = translate(reply, case.service(), case.client()).tags(&[]);
                expected.ethernet =
                    Ethernet { destination: destination_mac, source: source_mac, ethertype: None };
                assert_same(&expected.build(), &outcome.frame);
                assert_eq!(verify(&outcome.frame), Ok(()), "{case:?}, {length} bytes");
            }
        }
    }
    bench.close();
}
