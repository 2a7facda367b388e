//! What the load balancer answers itself, byte for byte.

use std::net::SocketAddr;

use tidegate::model::{Mode, OnNoBackend, Protocol};

use super::{
    node::{ARRIVING, Node, Service, XDP_DROP, XDP_PASS, XDP_TX, client},
    wire::{packet, tagged},
};
use crate::harness::frame::{
    Ethernet, Ipv4, Network, Packet, Tcp, Transport, Udp, assert_same,
    checksum::{checksum, transport_checksum},
    protocol, tcp_flags,
};

/// Bytes quoted at most.
const QUOTE: usize = 128;

/// What comes back: the addresses of the frame and of the packet in each other's place.
fn back() -> Ethernet {
    Ethernet { destination: ARRIVING.source, source: ARRIVING.destination, ethertype: None }
}

/// The error that answers an untagged frame.
fn error(frame: &[u8], from: SocketAddr, to: SocketAddr, v4: (u8, u8), v6: (u8, u8), mtu: u32) -> Vec<u8> {
    let ipv4 = from.is_ipv4();
    let ((kind, code), number) = if ipv4 { (v4, protocol::ICMP) } else { (v6, protocol::ICMPV6) };
    let word = |at: usize| usize::from(u16::from_be_bytes([frame[at], frame[at + 1]]));
    let length = if ipv4 { word(16) } else { 40 + word(18) };
    let quoted = if length < QUOTE { length / 4 * 4 } else { QUOTE };
    let mut message = vec![kind, code, 0, 0];
    message.extend(mtu.to_be_bytes());
    message.extend(&frame[14..14 + quoted]);
    let check = match number {
        protocol::ICMP => checksum(&message),
        _ => transport_checksum(from.ip(), to.ip(), number, &message),
    };
    message[2..4].copy_from_slice(&check.to_be_bytes());
    let network = Network::between(from.ip(), to.ip());
    Packet { ethernet: back(), ..Packet::new(network, Transport::Raw(number)).payload(&message) }.build()
}

fn request(service: &Service, client: SocketAddr, payload: &[u8]) -> Vec<u8> {
    segment(service, client, Network::between(client.ip(), service.address.ip()), tcp_flags::ACK, payload)
}

fn segment(service: &Service, client: SocketAddr, ip: Network, flags: u8, payload: &[u8]) -> Vec<u8> {
    match service.kind.protocol {
        Protocol::Tcp => {
            let tcp = Tcp {
                options: vec![1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2],
                acknowledgement: 0xdead_beef,
                ..Tcp::with_flags(client.port(), service.address.port(), flags)
            };
            packet(ARRIVING, ip, tcp, payload)
        }
        Protocol::Udp => packet(ARRIVING, ip, Udp::new(client.port(), service.address.port()), payload),
    }
}

fn overhead(service: &Service) -> usize {
    let outer = if service.backend(1).is_ipv4() { 20 } else { 40 };
    match service.kind.mode {
        Mode::Nat | Mode::Dsr => 0,
        Mode::Ipip => outer,
        Mode::Gre => outer + 4,
        Mode::Gue => outer + 8,
    }
}

/// Runs a frame without tags, with one and with two, and demands the same answer with the same tags.
#[track_caller]
fn assert_answered(node: &Node, frame: &[u8], expected: &[u8], reason: &str) {
    for tags in 0..=2 {
        let (frame, expected) = match tags {
            0 => (frame.to_vec(), expected.to_vec()),
            tags => (tagged(frame, tags), tagged(expected, tags)),
        };
        let (outcome, counted) = node.run(&frame);
        assert_eq!((outcome.action, counted), (XDP_TX, reason));
        assert_same(&expected, &outcome.frame);
    }
}

#[track_caller]
fn assert_dropped(node: &Node, frame: &[u8], reason: &str) {
    let (outcome, counted) = node.run(frame);
    assert_eq!((outcome.action, counted), (XDP_DROP, reason));
    assert_same(frame, &outcome.frame);
}

#[test]
fn a_packet_that_is_too_big_is_answered_with_the_mtu_less_all_overhead() {
    const MTU: usize = 1400;
    let node = Node::new(MTU as u16);
    for service in &node.services {
        let from = SocketAddr::new(client(service.kind.ipv6, 21), 41_000);
        let room = MTU - overhead(service);
        let headers = request(service, from, b"").len() - 14;
        // What fits goes through.
        let (outcome, reason) = node.run(&request(service, from, &vec![b'x'; room - headers]));
        assert_eq!((outcome.action, reason), (XDP_TX, "forward-tx"), "{service:?}");
        for excess in [1, 2, 3, 100] {
            let frame = request(service, from, &vec![b'x'; room - headers + excess]);
            let expected = error(&frame, service.address, from, (3, 4), (2, 0), room as u32);
            assert_answered(&node, &frame, &expected, "drop-too-big-answered");
        }
        // With IPv4 options in front of TCP, and without DF: that one asks for fragments, and there is nothing to tell it.
        if let Network::V4(ip) = Network::between(from.ip(), service.address.ip()) {
            let ip = Ipv4 { options: vec![1; 40], ..ip };
            let frame = segment(service, from, ip.clone().into(), tcp_flags::ACK, &[b'x'; MTU]);
            let expected = error(&frame, service.address, from, (3, 4), (2, 0), room as u32);
            assert_answered(&node, &frame, &expected, "drop-too-big-answered");
            let ip = Ipv4 { dont_fragment: false, ..ip };
            assert_dropped(
                &node,
                &segment(service, from, ip.into(), tcp_flags::ACK, &[b'x'; MTU]),
                "drop-too-big",
            );
        }
    }
}

#[test]
fn a_packet_with_its_last_hop_used_up_is_answered_where_we_route() {
    let node = Node::new(1500);
    for service in node.services.iter().filter(|service| service.kind.mode == Mode::Nat) {
        let from = SocketAddr::new(client(service.kind.ipv6, 23), 41_001);
        for payload in [0, 1, 5, 500] {
            let ip = Network::between(from.ip(), service.address.ip()).with_ttl(1);
            let frame = segment(service, from, ip, tcp_flags::SYN, &vec![b'x'; payload]);
            let expected = error(&frame, service.address, from, (11, 0), (3, 0), 0);
            assert_answered(&node, &frame, &expected, "drop-ttl-expired-answered");
        }
    }
}

#[test]
fn a_reply_that_cannot_go_on_is_answered_as_its_backend_sent_it() {
    let node = Node::new(1500);
    for service in node.services.iter().filter(|service| service.kind.mode == Mode::Nat) {
        let to = SocketAddr::new(client(service.kind.ipv6, 25), 41_002);
        let backend = service.backend(node.backend_of_flow(service, to));
        let reply = |ttl, payload: usize| {
            let ip = Network::between(backend.ip(), to.ip()).with_ttl(ttl);
            match service.kind.protocol {
                Protocol::Tcp => {
                    let tcp = Tcp::with_flags(backend.port(), to.port(), tcp_flags::ACK);
                    packet(ARRIVING, ip, tcp, &vec![b'x'; payload])
                }
                Protocol::Udp => {
                    packet(ARRIVING, ip, Udp::new(backend.port(), to.port()), &vec![b'x'; payload])
                }
            }
        };
        let frame = reply(1, 4);
        let expected = error(&frame, service.address, backend, (11, 0), (3, 0), 0);
        assert_answered(&node, &frame, &expected, "drop-ttl-expired-answered");
        // The interface towards the client has an MTU of 1500.
        for ttl in [2, 64, 255] {
            let frame = reply(ttl, 1600);
            let expected = error(&frame, service.address, backend, (3, 4), (2, 0), 1500);
            assert_answered(&node, &frame, &expected, "drop-too-big-answered");
        }
    }
}

#[test]
fn without_backends_a_packet_is_dropped_rejected_or_passed_as_configured() {
    let mut node = Node::new(1500);
    for service in node.services.clone() {
        let from = SocketAddr::new(client(service.kind.ipv6, 27), 41_003);
        node.without_backends(&service, OnNoBackend::Drop);
        assert_dropped(&node, &request(&service, from, b"abc"), "drop-no-backend");
        node.without_backends(&service, OnNoBackend::Pass);
        node.assert_passed(&request(&service, from, b"abc"), "pass-no-backend");
        node.without_backends(&service, OnNoBackend::Reject);
        match service.kind.protocol {
            Protocol::Tcp => check_resets(&node, &service, from),
            Protocol::Udp => {
                for payload in [0, 1, 2, 3, 4, 99, 100, 101, 1000] {
                    let frame = request(&service, from, &vec![b'x'; payload]);
                    let expected = error(&frame, service.address, from, (3, 3), (1, 4), 0);
                    assert_answered(&node, &frame, &expected, "drop-no-backend-answered");
                }
            }
        }
    }
}

/// RFC 9293, 3.10.7.1.
fn check_resets(node: &Node, service: &Service, from: SocketAddr) {
    use tcp_flags::{ACK, FIN, PSH, RST, SYN};
    let ip = || Network::between(from.ip(), service.address.ip());
    let sequence = Tcp::new(1, 1).sequence;
    for (flags, payload, length) in
        [(SYN, 0, 1), (SYN, 3, 4), (SYN | FIN, 0, 2), (FIN, 7, 8), (PSH, 5, 5), (0, 0, 0)]
    {
        let frame = segment(service, from, ip(), flags, &vec![b'x'; payload]);
        let tcp = Tcp {
            sequence: 0,
            acknowledgement: sequence + length,
            window: 0,
            ..Tcp::with_flags(service.address.port(), from.port(), RST | ACK)
        };
        let expected = packet(back(), Network::between(service.address.ip(), from.ip()), tcp, b"");
        assert_answered(node, &frame, &expected, "drop-no-backend-answered");
        // What follows the IP packet in the frame is padding.
        let (outcome, _) = node.run(&[frame, vec![0; 9]].concat());
        assert_same(&expected, &outcome.frame);
    }
    for flags in [ACK, SYN | ACK, FIN | ACK, PSH | ACK] {
        let frame = segment(service, from, ip(), flags, b"payload");
        let tcp = Tcp {
            sequence: 0xdead_beef,
            acknowledgement: 0,
            window: 0,
            ..Tcp::with_flags(service.address.port(), from.port(), RST)
        };
        let expected = packet(back(), Network::between(service.address.ip(), from.ip()), tcp, b"");
        assert_answered(node, &frame, &expected, "drop-no-backend-answered");
    }
    for flags in [RST, RST | ACK, RST | SYN] {
        assert_dropped(node, &segment(service, from, ip(), flags, b""), "drop-no-backend");
    }
}

#[test]
fn nobody_is_answered_who_cannot_have_asked() {
    let mut node = Node::new(1500);
    for service in node.services.clone() {
        node.without_backends(&service, OnNoBackend::Reject);
        let sources: &[&str] = if service.kind.ipv6 {
            &["ff02::1", "::", "::1", "ff0e::1234"]
        } else {
            &["224.0.0.1", "0.0.0.0", "127.0.0.1", "255.255.255.255", "240.0.0.1"]
        };
        for source in sources {
            let from = SocketAddr::new(source.parse().unwrap(), 41_004);
            assert_dropped(&node, &request(&service, from, b""), "drop-no-backend");
        }
        // From the service to itself.
        assert_dropped(&node, &request(&service, service.address, b""), "drop-bogon");
        // To or from a group of Ethernet stations.
        let from = SocketAddr::new(client(service.kind.ipv6, 29), 41_005);
        for group in [0, 6] {
            let mut frame = request(&service, from, b"");
            frame[group] |= 1;
            assert_dropped(&node, &frame, "drop-no-backend");
        }
    }
}

#[test]
fn a_budget_limits_all_answers_of_the_node() {
    const FRAMES: u64 = 3000;
    let mut node = Node::new(1500);
    let service = node.services[0];
    node.without_backends(&service, OnNoBackend::Reject);
    let from = SocketAddr::new(client(false, 31), 41_006);
    let started = std::time::Instant::now();
    let mut answered = 0;
    for _ in 0..FRAMES {
        let (outcome, reason) = node.run(&request(&service, from, b""));
        answered += u64::from(reason == "drop-no-backend-answered");
        assert_eq!(outcome.action == XDP_TX, reason == "drop-no-backend-answered");
    }
    // A thousand at once, and one for each millisecond since.
    let most = 1000 + started.elapsed().as_millis() as u64 + 1;
    assert!((1000.min(FRAMES)..=most).contains(&answered), "{answered} of {FRAMES}, {most} at most");
}

#[test]
fn an_error_is_never_answered() {
    let mut node = Node::new(1500);
    for service in node.services.clone().iter().filter(|service| service.kind.mode != Mode::Nat) {
        let to = SocketAddr::new(client(service.kind.ipv6, 33), 41_007);
        let frame = super::errors::about_a_reply(service, to, (if service.kind.ipv6 { 1 } else { 3 }, 3, 0));
        node.without_backends(service, OnNoBackend::Reject);
        assert_dropped(&node, &frame.build(ARRIVING), "drop-no-backend");
        node.without_backends(service, OnNoBackend::Pass);
        let (outcome, _) = node.run(&frame.build(ARRIVING));
        assert_ne!(outcome.action, XDP_TX);
        assert!([XDP_PASS, XDP_DROP].contains(&outcome.action));
    }
}
