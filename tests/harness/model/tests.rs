use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use tidegate::model::Mode;

use super::*;
use crate::harness::frame::{
    Checksum, Ethernet, Ipv4, Network, Packet, Tcp, Udp, assert_same, tcp_flags, verify,
};

const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2));
const CLIENT6: IpAddr = IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2));
const SOURCE: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 51, 100, 1));
const SOURCE6: IpAddr = IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 0, 0, 0, 1));
const INGRESS: u32 = 2;

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// A node with one service of two families' worth of backends: `backend` decides which.
fn node(mode: Mode, service: &str, backends: &[&str]) -> Node {
    let mut node = Node::new(64);
    let mut made = Service::new(at(service), 6, mode);
    for backend in backends {
        let source = if at(backend).is_ipv6() { SOURCE6 } else { SOURCE };
        made = made.backend(Backend::new(at(backend), source, INGRESS));
    }
    node.services.insert(1, made);
    node
}

fn syn(client: IpAddr, port: u16, service: &str) -> Packet {
    let service = at(service);
    Packet::new(Network::between(client, service.ip()), Tcp::new(port, service.port())).payload(b"payload")
}

/// The MAC addresses that [`Backend::new`] gives to a backend.
fn to_backend(last: u8) -> Ethernet {
    Ethernet { destination: [2, 0, 0, 2, 0, last], source: [2, 0, 0, 1, 0, INGRESS as u8], ethertype: None }
}

#[test]
fn reasons_are_those_of_the_contract() {
    let header = include_str!("../../../include/tidegate/ledger.h");
    let mut declared = BTreeMap::new();
    for line in header.lines() {
        let Some((name, rest)) = line.trim().split_once(" = ") else { continue };
        let number: String = rest.chars().take_while(char::is_ascii_digit).collect();
        if ["FORWARD_", "PASS_", "DROP_"].iter().any(|prefix| name.starts_with(prefix)) {
            declared.insert(number.parse().unwrap(), name);
        }
    }
    let known: BTreeMap<u32, &str> =
        Reason::ALL.iter().map(|reason| (reason.number(), reason.name())).collect();
    assert_eq!(known, declared);
}

#[test]
fn hashes_are_the_documented_arithmetic() {
    // Computed by a few lines of another language.
    let (client, client6) = (SocketAddr::new(CLIENT, 40000), SocketAddr::new(CLIENT6, 40000));
    assert_eq!(hash::five_tuple(client, at("203.0.113.10:80"), 6), 0x6b91_e438_c5be_53cf);
    assert_eq!(hash::five_tuple(client6, at("[2001:db8:ffff::10]:80"), 6), 0xcd78_89a3_8166_221e);
    assert_eq!(hash::client(client, 6, [1, 2]), 0x058c_8d99_2c9d_5b78);
    assert_eq!(hash::client(client6, 17, [1, 2]), 0xf739_2cfe_adae_afed);
    assert_eq!(hash::slot_index(u64::MAX, 251), 250);
    assert_eq!(hash::slot_index(u64::from(u32::MAX), 251), 0);
}

#[test]
fn nat_gives_the_backend_as_destination_and_takes_the_reply_back() {
    for (client, service, backend) in [
        (CLIENT, "203.0.113.10:80", "198.51.100.11:8080"),
        (CLIENT6, "[2001:db8:ffff::10]:80", "[2001:db8:1::11]:8080"),
    ] {
        let mut node = node(Mode::Nat, service, &[backend]);
        let request = node.xdp_lb(&syn(client, 40000, service).build(), INGRESS);
        assert_eq!((request.reason, request.action), (Reason::ForwardTx, Action::Tx));
        assert_eq!((request.service, request.backend), (Some(1), Some(1)));
        let mut expected = syn(client, 40000, backend);
        expected.network = expected.network.with_ttl(63);
        expected.ethernet = to_backend(if at(backend).is_ipv6() { 0x11 } else { 11 });
        assert_same(&expected.build(), &request.frame);

        let (macs, reply) =
            ([2, 9, 9, 9, 9, 9], Tcp::with_flags(at(backend).port(), 40000, tcp_flags::SYN | tcp_flags::ACK));
        let from_backend = Packet::new(Network::between(at(backend).ip(), client), reply.clone());
        node.routes.insert(
            client,
            Route::Resolved { interface: 3, mtu: 1500, source_mac: macs, destination_mac: macs },
        );
        let answer = node.xdp_lb(&from_backend.build(), INGRESS);
        assert_eq!((answer.reason, answer.redirect), (Reason::ForwardReplyRedirect, Some(3)));
        let reply = Tcp { source_port: 80, ..reply };
        let mut expected = Packet::new(Network::between(at(service).ip(), client).with_ttl(63), reply);
        expected.ethernet = Ethernet { destination: macs, source: macs, ethertype: None };
        assert_same(&expected.build(), &answer.frame);

        let stranger = Packet::new(Network::between(at(backend).ip(), client), Tcp::new(8080, 40001)).build();
        let outcome = node.xdp_lb(&stranger, INGRESS);
        assert_eq!((outcome.reason, outcome.frame), (Reason::PassNotAReply, stranger));
    }
}

#[test]
fn dsr_changes_the_mac_addresses_alone() {
    let mut node = node(Mode::Dsr, "203.0.113.10:80", &["198.51.100.11:80"]);
    let mut packet = syn(CLIENT, 40000, "203.0.113.10:80").minimum_size(80);
    let outcome = node.xdp_lb(&packet.build(), INGRESS + 1);
    assert_eq!((outcome.reason, outcome.redirect), (Reason::ForwardRedirect, Some(INGRESS)));
    packet.ethernet = to_backend(11);
    assert_same(&packet.build(), &outcome.frame);
}

#[test]
fn ipip_puts_the_packet_into_an_outer_header_of_the_backends_family() {
    for (client, service) in [(CLIENT, "203.0.113.10:80"), (CLIENT6, "[2001:db8:ffff::10]:80")] {
        for backend in ["198.51.100.11:80", "[2001:db8:1::11]:80"] {
            let mut node = node(Mode::Ipip, service, &[backend]);
            let mut packet = syn(client, 40000, service).minimum_size(90);
            packet.network = packet.network.with_traffic_class(0xb9);
            let outcome = node.xdp_lb(&packet.build(), INGRESS);
            assert_eq!(outcome.reason, Reason::ForwardTx);
            let source = if at(backend).is_ipv6() { SOURCE6 } else { SOURCE };
            let mut outer = Network::between(source, at(backend).ip()).with_traffic_class(0xb9);
            let hash = hash::five_tuple(SocketAddr::new(client, 40000), at(service), 6);
            if let Network::V6(ip) = &mut outer {
                ip.flow_label = (hash >> 24) as u32 & 0xf_ffff;
            }
            let mut expected = packet.inside(outer);
            expected.ethernet = to_backend(if at(backend).is_ipv6() { 0x11 } else { 11 });
            assert_same(&expected.build(), &outcome.frame);

            node.decap_addresses = [at(backend).ip(), at(service).ip()].into();
            let taken_off = node.xdp_decap(&outcome.frame);
            assert_eq!(taken_off.reason, Reason::ForwardDecapsulated);
            expected.outer.clear();
            assert_same(&expected.build(), &taken_off.frame);
        }
    }
}

#[test]
fn a_damaged_packet_stays_damaged_by_the_same_amount() {
    let mut node = node(Mode::Nat, "203.0.113.10:80", &["198.51.100.11:8080"]);
    let mut packet = syn(CLIENT, 40000, "203.0.113.10:80");
    let right = node.xdp_lb(&packet.build(), INGRESS).frame;
    for flip in [[0x00u8, 0x01], [0x80, 0x00], [0xff, 0xff]] {
        let mut frame = packet.build();
        // The payload is damaged, the checksum is not: the same word must be what would repair the packet.
        let last = frame.len() - 3;
        frame[last] ^= flip[0];
        frame[last + 1] ^= flip[1];
        let sent = node.xdp_lb(&frame, INGRESS).frame;
        assert!(verify(&sent).is_err());
        let mut repaired = sent.clone();
        repaired[last] ^= flip[0];
        repaired[last + 1] ^= flip[1];
        assert_same(&right, &repaired);
    }
    let Network::V4(ip) = &mut packet.network else { unreachable!() };
    ip.checksum = Checksum::Exactly(0x1234);
    assert!(verify(&node.xdp_lb(&packet.build(), INGRESS).frame).is_err());
}

#[test]
fn udp_without_a_checksum_stays_so() {
    let mut node = node(Mode::Nat, "203.0.113.10:53", &["198.51.100.11:53"]);
    node.services.get_mut(&1).unwrap().protocol = 17;
    let ip = || Network::between(CLIENT, at("203.0.113.10:53").ip());
    let bare = node.xdp_lb(&Packet::new(ip(), Udp::without_checksum(40000, 53)).build(), INGRESS).frame;
    assert_eq!(bare[40..42], [0, 0]);
    let sound = node.xdp_lb(&Packet::new(ip(), Udp::new(40000, 53)).build(), INGRESS).frame;
    assert_ne!(sound[40..42], [0, 0]);
    assert_eq!(verify(&sound), Ok(()));
}

#[test]
fn bad_and_foreign_frames_are_passed_or_dropped_as_they_came() {
    let service = "203.0.113.10:80";
    let mut node = node(Mode::Ipip, service, &["198.51.100.11:80"]);
    let ip = Ipv4::new([192, 0, 2, 2].into(), [203, 0, 113, 10].into());
    let whole = syn(CLIENT, 40000, service).build();
    let tcp = Tcp::new(40000, 80);
    let cases = [
        (whole[..33].to_vec(), Reason::PassMalformed),
        (whole[..53].to_vec(), Reason::PassMalformed),
        (whole[..54].to_vec(), Reason::DropBadLength),
        (Packet::new(Ipv4 { version: Some(6), ..ip.clone() }, tcp.clone()).build(), Reason::PassMalformed),
        (
            Packet::new(Ipv4 { header_words: Some(4), ..ip.clone() }, tcp.clone()).build(),
            Reason::PassMalformed,
        ),
        (Packet::new(Ipv4 { fragment_offset: 1, ..ip.clone() }, tcp.clone()).build(), Reason::PassFragment),
        (Packet::new(ip.clone(), Tcp { data_offset: Some(4), ..tcp.clone() }).build(), Reason::PassMalformed),
        (
            Packet::new(ip.clone(), Tcp { data_offset: Some(15), ..tcp.clone() }).build(),
            Reason::DropBadLength,
        ),
        (
            Packet::new(Ipv4 { total_length: Some(39), ..ip.clone() }, tcp.clone()).build(),
            Reason::DropBadLength,
        ),
        (Packet::new(ip.clone(), Udp::new(40000, 80)).build(), Reason::PassNoService),
        (Packet::new(ip, Tcp::new(40000, 81)).build(), Reason::PassNoService),
    ];
    for (frame, reason) in cases {
        let outcome = node.xdp_lb(&frame, INGRESS);
        assert_eq!(outcome.reason, reason, "{frame:02x?}");
        assert_same(&frame, &outcome.frame);
    }
    let all = &node.ledger[&0];
    assert_eq!(all.seen, all.packets.values().sum::<u64>());
    assert_eq!(node.ledger[&1].seen, 3, "packets for the service whose lengths lie");
}

#[test]
fn backends_that_cannot_serve_get_nothing() {
    let service = "203.0.113.10:80";
    let frame = syn(CLIENT, 40000, service).build();
    let mut node = node(Mode::Dsr, service, &["198.51.100.11:80"]);
    let reason_with = |change: &dyn Fn(&mut Service)| {
        let mut changed = node.clone();
        change(changed.services.get_mut(&1).unwrap());
        changed.xdp_lb(&frame, INGRESS).reason
    };
    let one =
        |service: &mut Service, change: &dyn Fn(&mut Backend)| change(service.backends.get_mut(&1).unwrap());
    assert_eq!(reason_with(&|service| service.table.fill(0)), Reason::DropNoBackend);
    for (state, reason) in [
        (BackendState::Down, Reason::DropBackendDown),
        (BackendState::Unused, Reason::DropBackendDown),
        (BackendState::Draining, Reason::ForwardTx),
    ] {
        assert_eq!(reason_with(&|service| one(service, &|backend| backend.state = state)), reason);
    }
    assert_eq!(reason_with(&|service| one(service, &|backend| backend.mtu = 46)), Reason::DropTooBig);
    assert_eq!(reason_with(&|service| one(service, &|backend| backend.mtu = 47)), Reason::ForwardTx);
    for (next_hop, reason) in [
        (NextHop::Local, Reason::ForwardLocal),
        (NextHop::Unresolved { interface: 7 }, Reason::ForwardHandoff),
        (NextHop::NoRoute, Reason::DropUnresolved),
    ] {
        assert_eq!(reason_with(&|service| one(service, &|backend| backend.next_hop = next_hop)), reason);
    }
    node.services.get_mut(&1).unwrap().backends.get_mut(&1).unwrap().next_hop =
        NextHop::Unresolved { interface: 7 };
    let outcome = node.xdp_lb(&frame, INGRESS);
    assert_eq!(outcome.data_out().len(), 32 + frame.len());
    assert_eq!(outcome.metadata.unwrap().next_hop, Some(at("198.51.100.11:80").ip()));
}

#[test]
fn a_clients_port_is_not_used_towards_one_backend_through_two_services() {
    let (first, second) = ("203.0.113.10:80", "203.0.113.11:80");
    let mut node = node(Mode::Nat, first, &["198.51.100.11:80"]);
    let mut other = Service { address: at(second), ..node.services[&1].clone() };
    node.services.insert(2, other.clone());
    assert_eq!(node.xdp_lb(&syn(CLIENT, 40000, first).build(), INGRESS).reason, Reason::ForwardTx);
    assert_eq!(node.xdp_lb(&syn(CLIENT, 40000, second).build(), INGRESS).reason, Reason::DropFlowConflict);
    assert_eq!(node.xdp_lb(&syn(CLIENT, 40001, second).build(), INGRESS).reason, Reason::ForwardTx);
    other = other.backend(Backend::new(at("198.51.100.12:80"), SOURCE, INGRESS));
    node.services.insert(2, other);
    // With a second backend, some ports find it within the tries, and none shares the first.
    for port in 41000..41050 {
        node.xdp_lb(&syn(CLIENT, port, first).build(), INGRESS);
        let outcome = node.xdp_lb(&syn(CLIENT, port, second).build(), INGRESS);
        assert!(matches!(
            (outcome.reason, outcome.backend),
            (Reason::ForwardTx, Some(2)) | (Reason::DropFlowConflict, None)
        ));
    }
}

#[test]
fn a_flow_stays_with_its_backend_and_dies_of_silence() {
    let service = "203.0.113.10:80";
    let mut node = node(Mode::Nat, service, &["198.51.100.11:80", "198.51.100.12:80"]);
    let packet = |flags| {
        Packet::new(Network::between(CLIENT, at(service).ip()), Tcp::with_flags(40000, 80, flags)).build()
    };
    let first = node.xdp_lb(&packet(tcp_flags::SYN), INGRESS).backend.unwrap();
    let other = 3 - first;
    node.services.get_mut(&1).unwrap().table.fill(other);
    for (flags, kind) in [
        (tcp_flags::SYN, Kind::HalfOpen),
        (tcp_flags::ACK, Kind::Established),
        (tcp_flags::SYN, Kind::Established),
        (tcp_flags::FIN | tcp_flags::ACK, Kind::Closing),
        (tcp_flags::ACK, Kind::Closing),
    ] {
        assert_eq!(node.xdp_lb(&packet(flags), INGRESS).backend, Some(first));
        assert_eq!(node.flows.live()[0].kind, kind);
    }
    node.flows.now += node.flows.lifetime[Kind::Closing as usize];
    assert_eq!(node.xdp_lb(&packet(tcp_flags::ACK), INGRESS).backend, Some(first));
    node.flows.now += node.flows.lifetime[Kind::Closing as usize] + 1;
    assert_eq!(node.xdp_lb(&packet(tcp_flags::SYN), INGRESS).backend, Some(other));
    assert_eq!(node.flows.live().len(), 1);
}

#[test]
fn a_full_flow_table_refuses_new_flows_and_keeps_the_old_ones() {
    let service = "203.0.113.10:80";
    let mut node = node(Mode::Nat, service, &["198.51.100.11:80"]);
    node.flows = Flows::new(2);
    let mut reasons = BTreeMap::new();
    for port in 1000..1020 {
        *reasons.entry(node.xdp_lb(&syn(CLIENT, port, service).build(), INGRESS).reason).or_insert(0) += 1;
    }
    assert_eq!(reasons, [(Reason::ForwardTx, 8), (Reason::DropFlowTableFull, 12)].into());
    assert_eq!(node.xdp_lb(&syn(CLIENT, 1000, service).build(), INGRESS).reason, Reason::ForwardTx);
}
