//! ICMP errors that come from outside, byte for byte.

use std::net::{IpAddr, SocketAddr};

use tidegate::model::{Mode, Protocol};

use super::{
    node::{ARRIVING, Node, ROUTER, SENDER, Service, XDP_TX, client, middle_box, outer_protocol},
    wire::{Extra, IcmpError, Quote, icmp, tagged},
};
use crate::harness::frame::{Ethernet, assert_same, protocol};

/// Types of errors, by family: type, code and the word behind them.
const TYPES_V4: [(u8, u8, u32); 6] =
    [(3, 4, 1400), (3, 3, 0), (3, 13, 0), (4, 0, 0), (11, 0, 0), (12, 0, 0x1400_0000)];
const TYPES_V6: [(u8, u8, u32); 4] = [(1, 4, 0), (2, 0, 1400), (3, 0, 0), (4, 1, 40)];
/// Bytes of the quoted TCP or UDP header: the least, up to the TCP checksum, with it, and all there is.
const QUOTED: [usize; 6] = [8, 9, 16, 18, 20, 1000];

fn types(ipv6: bool) -> &'static [(u8, u8, u32)] {
    if ipv6 { &TYPES_V6 } else { &TYPES_V4 }
}

/// An error of a router about a packet from the service to the client.
pub fn about_a_reply(service: &Service, client: SocketAddr, kind: (u8, u8, u32)) -> IcmpError {
    IcmpError {
        source: middle_box(service.kind.ipv6),
        destination: service.address.ip(),
        ttl: 58,
        extra: Extra::Nothing,
        kind: kind.0,
        code: kind.1,
        rest: kind.2,
        quote: Quote {
            source: service.address,
            destination: client,
            protocol: service.protocol(),
            extra: Extra::Nothing,
            without_checksum: false,
            l4_bytes: 8,
        },
    }
}

/// An error about a packet from the client to a NAT backend.
pub fn about_a_request(service: &Service, client: SocketAddr, number: u16, source: IpAddr) -> IcmpError {
    let quote = Quote {
        source: client,
        destination: service.backend(number),
        ..about_a_reply(service, client, (3, 3, 0)).quote
    };
    let (kind, code) = if service.kind.ipv6 { (1, 4) } else { (3, 3) };
    IcmpError { source, destination: client.ip(), quote, ..about_a_reply(service, client, (kind, code, 0)) }
}

fn nat(node: &Node) -> impl Iterator<Item = &Service> {
    node.services.iter().filter(|service| service.kind.mode == Mode::Nat)
}

fn towards(mac: [u8; 6], source: [u8; 6]) -> Ethernet {
    Ethernet { destination: mac, source, ethertype: None }
}

/// What must become of an error about a reply.
#[track_caller]
fn check_towards_backend(node: &Node, service: &Service, error: &IcmpError, number: u16, tags: usize) {
    let frame = match tags {
        0 => error.build(ARRIVING),
        tags => tagged(&error.build(ARRIVING), tags),
    };
    let (outcome, reason) = node.run(&frame);
    let context = format!("{service:?} {error:?}");
    assert_eq!((outcome.action, reason), (XDP_TX, "forward-tx"), "{context}");
    let ethernet = towards(service.backend_mac(number), SENDER);
    match service.kind.mode {
        Mode::Nat => {
            let backend = service.backend(number);
            let quote = Quote { source: backend, ..error.quote.clone() };
            let expected =
                IcmpError { destination: backend.ip(), ttl: error.ttl - 1, quote, ..error.clone() };
            assert_same(&expected.build(ethernet), &outcome.frame);
        }
        Mode::Dsr => assert_same(&error.build(ethernet), &outcome.frame),
        Mode::Ipip | Mode::Gre | Mode::Gue => {
            let inner = &error.build(ethernet)[14..];
            let backend = service.backend(number).ip();
            let (outer, rest) = outcome.frame[14..].split_at(if backend.is_ipv4() { 20 } else { 40 });
            let (destination, protocol) = match backend {
                IpAddr::V4(_) => (IpAddr::from(<[u8; 4]>::try_from(&outer[16..20]).unwrap()), outer[9]),
                IpAddr::V6(_) => (IpAddr::from(<[u8; 16]>::try_from(&outer[24..40]).unwrap()), outer[6]),
            };
            assert_eq!((destination, protocol), (backend, outer_protocol(service.kind)), "{context}");
            assert_eq!(outcome.frame[..6], ethernet.destination, "{context}");
            assert_eq!(&rest[rest.len() - inner.len()..], inner, "{context}");
        }
    }
}

#[test]
fn an_error_about_a_reply_goes_to_the_flows_backend_in_every_mode() {
    let node = Node::new(1500);
    for service in &node.services {
        let mut reached = [0; 4];
        for port in 0..8 {
            let client = SocketAddr::new(client(service.kind.ipv6, 7), 40_000 + port);
            let number = node.backend_of_flow(service, client);
            reached[usize::from(number)] += 1;
            for &kind in types(service.kind.ipv6) {
                for l4_bytes in QUOTED {
                    for extra in [Extra::Nothing, Extra::Options] {
                        let mut error = about_a_reply(service, client, kind);
                        error.quote.l4_bytes = l4_bytes;
                        error.quote.extra = extra;
                        error.extra = if port % 2 == 0 { Extra::Nothing } else { Extra::Options };
                        check_towards_backend(&node, service, &error, number, usize::from(port) % 3);
                    }
                }
            }
        }
        assert!(reached[1..].iter().filter(|&&flows| flows > 0).count() > 1, "{reached:?}");
    }
}

#[test]
fn an_error_about_a_request_goes_back_to_the_client_as_if_from_the_service() {
    let node = Node::new(1500);
    for service in nat(&node) {
        let client = SocketAddr::new(client(service.kind.ipv6, 9), 50_000);
        let number = node.backend_of_flow(service, client);
        let backend = service.backend(number).ip();
        for (source, seen_from) in [(backend, service.address.ip()), {
            let router = middle_box(service.kind.ipv6);
            (router, router)
        }] {
            for &(kind, code, rest) in types(service.kind.ipv6) {
                for l4_bytes in QUOTED {
                    for extra in [Extra::Nothing, Extra::Options] {
                        let mut error = about_a_request(service, client, number, source);
                        (error.kind, error.code, error.rest) = (kind, code, rest);
                        (error.quote.l4_bytes, error.quote.extra, error.extra) = (l4_bytes, extra, extra);
                        let quote = Quote { destination: service.address, ..error.quote.clone() };
                        let expected =
                            IcmpError { source: seen_from, ttl: error.ttl - 1, quote, ..error.clone() };
                        let (outcome, reason) = node.run(&error.build(ARRIVING));
                        assert_eq!((outcome.action, reason), (XDP_TX, "forward-reply-tx"), "{error:?}");
                        assert_same(&expected.build(towards(ROUTER, node.ingress_mac)), &outcome.frame);
                    }
                }
            }
        }
    }
}

#[test]
fn a_quoted_udp_packet_without_a_checksum_stays_without() {
    let node = Node::new(1500);
    let service = nat(&node).find(|s| s.kind.protocol == Protocol::Udp && !s.kind.ipv6).unwrap();
    let client = SocketAddr::new(client(false, 11), 50_001);
    let number = node.backend_of_flow(service, client);
    let mut error = about_a_reply(service, client, (3, 4, 1400));
    error.quote.without_checksum = true;
    check_towards_backend(&node, service, &error, number, 0);
}

#[test]
fn an_error_keeps_the_flow_as_it_is_and_makes_none() {
    let node = Node::new(1500);
    for service in nat(&node) {
        let client = SocketAddr::new(client(service.kind.ipv6, 13), 50_002);
        let flows = node.kernel_flows();
        node.assert_passed(
            &about_a_reply(service, client, types(service.kind.ipv6)[0]).build(ARRIVING),
            "pass-icmp-unknown-flow",
        );
        let source = service.backend(1).ip();
        node.assert_passed(&about_a_request(service, client, 1, source).build(ARRIVING), "pass-not-tcp-udp");
        assert_eq!(node.kernel_flows(), flows);
    }
}

#[test]
fn errors_that_name_no_flow_of_ours_are_left_alone() {
    let node = Node::new(1500);
    for service in &node.services {
        let ipv6 = service.kind.ipv6;
        let client = SocketAddr::new(client(ipv6, 15), 50_003);
        let number = node.backend_of_flow(service, client);
        let good = about_a_reply(service, client, types(ipv6)[0]);
        check_towards_backend(&node, service, &good, number, 0);
        let untouched = |error: &IcmpError| node.assert_passed(&error.build(ARRIVING), "pass-not-tcp-udp");
        // No errors, or none that quote what was not delivered: echo, redirect, router advertisement.
        for kind in if ipv6 { vec![0, 5, 100, 128, 129, 137] } else { vec![0, 5, 8, 9, 13, 30] } {
            untouched(&IcmpError { kind, ..good.clone() });
        }
        // To somebody else than who sent the quoted packet.
        untouched(&IcmpError { destination: middle_box(ipv6), ..good.clone() });
        // About another port, protocol or address.
        let other = SocketAddr::new(service.address.ip(), 91);
        untouched(&IcmpError { quote: Quote { source: other, ..good.quote.clone() }, ..good.clone() });
        let other = if service.protocol() == protocol::TCP { protocol::UDP } else { protocol::TCP };
        untouched(&IcmpError { quote: Quote { protocol: other, ..good.quote.clone() }, ..good.clone() });
        untouched(&IcmpError { quote: Quote { protocol: 132, ..good.quote.clone() }, ..good.clone() });
        // Too little is quoted to tell the ports.
        for l4_bytes in 0..8 {
            untouched(&IcmpError { quote: Quote { l4_bytes, ..good.quote.clone() }, ..good.clone() });
        }
        // Enough in the frame, but as padding behind the IP packet.
        let short = IcmpError { quote: Quote { l4_bytes: 7, ..good.quote.clone() }, ..good.clone() };
        node.assert_passed(&[short.build(ARRIVING), vec![0; 20]].concat(), "pass-not-tcp-udp");
        // A later fragment is quoted: what looks like ports is payload.
        if !ipv6 {
            let mut quote = good.quote.bytes();
            quote[7] = 3;
            node.assert_passed(&icmp(ARRIVING, &good, &quote), "pass-not-tcp-udp");
            // The first one has ports.
            quote[6..8].copy_from_slice(&[0x20, 0]);
            assert_eq!(node.run(&icmp(ARRIVING, &good, &quote)).1, "forward-tx");
        }
    }
}

#[test]
fn an_error_with_its_last_hop_used_up_is_dropped_where_we_route() {
    let node = Node::new(1500);
    for service in nat(&node) {
        let client = SocketAddr::new(client(service.kind.ipv6, 17), 50_004);
        let number = node.backend_of_flow(service, client);
        let reply = about_a_reply(service, client, types(service.kind.ipv6)[0]);
        let request = about_a_request(service, client, number, middle_box(service.kind.ipv6));
        for error in [reply, request] {
            let (outcome, reason) = node.run(&IcmpError { ttl: 1, ..error }.build(ARRIVING));
            assert_eq!((outcome.action, reason), (super::node::XDP_DROP, "drop-ttl-expired"));
        }
    }
}
