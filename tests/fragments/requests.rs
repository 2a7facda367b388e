//! Pieces on their way to a backend.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv6Addr, SocketAddr},
};

use tidegate::model::{BackendState, HashMode, Mode, Protocol};

use super::{
    model::{backend_of, expected, translated_transport},
    node::{Node, Service, XDP_DROP},
    orders::Order,
    pieces::{Datagram, has_ports, reassemble},
};
use crate::harness::frame::assert_same;

const SIZES: [usize; 12] = [1441, 1472, 1473, 1474, 1475, 1476, 1477, 1478, 1479, 1480, 4000, 9000];

/// The address of service n.
pub fn service_address(ipv6: bool, number: u8) -> SocketAddr {
    if ipv6 {
        SocketAddr::new(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, number.into()).into(), 53)
    } else {
        SocketAddr::new(IpAddr::from([192, 0, 2, number]), 53)
    }
}

/// A client of the family.
pub fn client_address(ipv6: bool, number: u16) -> SocketAddr {
    let port = 20_000 + number;
    if ipv6 {
        SocketAddr::new(Ipv6Addr::new(0x2001, 0xdb8, 0xcc, 0, 0, 0, 0, number).into(), port)
    } else {
        SocketAddr::new(IpAddr::from([203, 0, 113, (number % 250) as u8 + 1]), port)
    }
}

/// Every mode in every combination of families.
fn all_modes() -> Vec<(Mode, bool, bool)> {
    let mut all = Vec::new();
    for mode in Mode::ALL {
        for inner in [false, true] {
            for outer in [false, true] {
                if inner == outer || mode.encapsulates() {
                    all.push((mode, inner, outer));
                }
            }
        }
    }
    all
}

/// Sends frames of one datagram and checks every byte; returns the one backend's index.
#[track_caller]
pub fn send(node: &Node, service: &Service, datagram: &Datagram, frames: &[Vec<u8>]) -> usize {
    let transport = datagram.transport();
    let sent: Vec<_> = frames.iter().map(|frame| node.forward(frame)).collect();
    let backend = backend_of(&sent[0], service);
    for (frame, sent) in frames.iter().zip(&sent) {
        let expected = expected(frame, &transport, datagram.source, service, backend, sent);
        assert_same(&expected, sent);
    }
    if service.mode == Mode::Nat {
        let to = SocketAddr::new(backend.address.address, backend.address.port);
        let number = datagram.protocol;
        assert_eq!(reassemble(&sent), translated_transport(&transport, number, datagram.source, to));
    }
    service.backends.iter().position(|other| other.address == backend.address).unwrap()
}

#[test]
fn all_pieces_of_a_datagram_reach_one_backend_in_every_mode_family_order_and_size() {
    let mut node = Node::new();
    let mut services = Vec::new();
    for (number, (mode, inner, outer)) in (1..).zip(all_modes()) {
        let address = service_address(inner, number);
        services.push(node.serve(number.into(), address, Protocol::Udp, mode, outer));
    }
    for service in &services {
        let ipv6 = service.address.is_ipv6();
        let mut used = BTreeSet::new();
        let mut identification = 0;
        for order in Order::ALL {
            for (client, size) in (1..).zip(SIZES.into_iter().chain([65_507 - if ipv6 { 20 } else { 0 }])) {
                identification += 1;
                let client = client_address(ipv6, client);
                let datagram = Datagram::udp(client, service.address, identification, size);
                used.insert(send(&node, service, &datagram, &order.arrange(&datagram.frames())));
            }
        }
        assert!(used.len() > 1, "not all clients have one backend: {used:?}");
    }
    node.assert_ledger_closes(&services.iter().collect::<Vec<_>>());
}

#[test]
fn a_datagram_in_pieces_goes_where_its_flow_goes_when_it_is_whole() {
    let mut node = Node::new();
    for (number, (mode, inner, outer)) in (1..).zip(all_modes()) {
        for (id, protocol) in [(number, Protocol::Udp), (number + 20, Protocol::Tcp)] {
            let service = node.serve(id, service_address(inner, id as u8), protocol, mode, outer);
            for client in 1..20 {
                let datagram = |identification, size| {
                    let client = client_address(inner, client);
                    match protocol {
                        Protocol::Udp => Datagram::udp(client, service.address, identification, size),
                        Protocol::Tcp => Datagram::tcp(client, service.address, identification, size),
                    }
                };
                let whole = datagram(1, 100);
                let pieces = datagram(2, 3000);
                let one = send(&node, &service, &whole, &whole.frames());
                assert_eq!(send(&node, &service, &pieces, &pieces.frames()), one);
                /* The same source again, and now it is known where its datagrams go, whatever comes first. */
                let reversed = datagram(3, 3000);
                let frames = Order::Reversed.arrange(&reversed.frames());
                assert_eq!(send(&node, &service, &reversed, &frames), one);
            }
        }
    }
}

#[test]
fn datagrams_that_are_under_way_at_once_are_kept_apart() {
    let mut node = Node::new();
    for ipv6 in [false, true] {
        let id = 1 + u16::from(ipv6);
        let service = node.serve(id, service_address(ipv6, id as u8), Protocol::Udp, Mode::Nat, ipv6);
        let datagrams: Vec<_> = (1..=40)
            .map(|n| {
                /* All from one host: only identification and ports differ. */
                let mut client = client_address(ipv6, 1);
                client.set_port(30_000 + n);
                Datagram::udp(client, service.address, n.into(), 5000)
            })
            .collect();
        let frames: Vec<_> = datagrams.iter().map(Datagram::frames).collect();
        let alone: Vec<_> = datagrams
            .iter()
            .map(|datagram| Datagram { payload: 10, ..datagram.clone() })
            .map(|datagram| send(&node, &service, &datagram, &datagram.frames()))
            .collect();
        assert!(BTreeSet::from_iter(&alone).len() > 1);
        for piece in 0..frames[0].len() {
            for (n, datagram) in datagrams.iter().enumerate() {
                let one = &frames[n][piece..=piece];
                let transport = datagram.transport();
                let sent = node.forward(&one[0]);
                let backend = &service.backends[alone[n]];
                assert_same(&expected(&one[0], &transport, datagram.source, &service, backend, &sent), &sent);
            }
        }
    }
}

#[test]
fn a_change_of_the_table_does_not_tear_a_datagram() {
    let mut node = Node::new();
    let service = node.serve(1, service_address(false, 1), Protocol::Udp, Mode::Dsr, false);
    for order in Order::ALL {
        node.publish(1, |_| 1);
        let number = order_number(order);
        let datagram = Datagram::udp(client_address(false, number as u16), service.address, number, 5000);
        let frames = order.arrange(&datagram.frames());
        let (before, after) = frames.split_at(2);
        let first = send(&node, &service, &datagram, before);
        node.publish(1, |_| 2);
        assert_eq!((first, send(&node, &service, &datagram, after)), (0, 0), "{order:?}");
    }
}

fn order_number(order: Order) -> u32 {
    1 + Order::ALL.iter().position(|other| *other == order).unwrap() as u32
}

#[test]
fn pieces_for_a_backend_that_went_down_are_dropped_and_the_next_datagram_goes_elsewhere() {
    let mut node = Node::new();
    let service = node.serve(1, service_address(false, 1), Protocol::Udp, Mode::Ipip, false);
    let datagram =
        |identification| Datagram::udp(client_address(false, 1), service.address, identification, 4000);
    let frames = datagram(1).frames();
    let down = send(&node, &service, &datagram(1), &frames[..1]) as u16 + 1;
    node.set_state(&service, down, BackendState::Down);
    let (outcome, reason) = node.run(&frames[1]);
    assert_eq!((outcome.action, reason), (XDP_DROP, "drop-backend-down"));
    let other = if down == 1 { 2 } else { 1 };
    node.publish(1, |_| other);
    for (identification, order) in [(2, Order::Reversed), (3, Order::Forward)] {
        let datagram = datagram(identification);
        let frames = order.arrange(&datagram.frames());
        assert_eq!(send(&node, &service, &datagram, &frames), usize::from(other) - 1);
    }
    node.assert_ledger_closes(&[&service]);
}

/// IPv4 identifications come round within seconds on a busy host.
#[test]
fn the_next_datagram_with_the_same_identification_goes_where_its_own_flow_goes() {
    let mut node = Node::new();
    let service = node.serve(1, service_address(false, 1), Protocol::Udp, Mode::Nat, false);
    for port in 1..30 {
        let mut client = client_address(false, 1);
        client.set_port(port);
        let whole = Datagram::udp(client, service.address, 1000, 10);
        let pieces = Datagram::udp(client, service.address, 7, 4000);
        let alone = send(&node, &service, &whole, &whole.frames());
        assert_eq!(send(&node, &service, &pieces, &pieces.frames()), alone);
    }
}

#[test]
fn a_tcp_segment_whose_pieces_are_out_of_order_never_goes_to_another_backend() {
    let mut node = Node::new();
    for ipv6 in [false, true] {
        let id = 1 + u16::from(ipv6);
        let service = node.serve(id, service_address(ipv6, id as u8), Protocol::Tcp, Mode::Dsr, ipv6);
        for client in 1..20 {
            let client = client_address(ipv6, client);
            let whole = Datagram::tcp(client, service.address, 1, 10);
            let alone = send(&node, &service, &whole, &whole.frames());
            let segment = Datagram::tcp(client, service.address, 2, 3000);
            for frame in Order::Reversed.arrange(&segment.frames()) {
                if has_ports(&frame) {
                    assert_eq!(send(&node, &service, &segment, &[frame]), alone);
                } else {
                    let (outcome, reason) = node.run(&frame);
                    assert_eq!((outcome.action, reason), (XDP_DROP, "drop-fragment-unknown"));
                }
            }
            /* As TCP sends it again, it arrives. */
            let again = Datagram { identification: 3, ..segment };
            let frames = Order::Reversed.arrange(&again.frames());
            assert_eq!(send(&node, &service, &again, &frames), alone);
        }
        node.assert_ledger_closes(&[&service]);
    }
}

#[test]
fn a_udp_datagram_without_a_checksum_stays_without() {
    let mut node = Node::new();
    let service = node.serve(1, service_address(false, 1), Protocol::Udp, Mode::Nat, false);
    let datagram =
        Datagram { no_checksum: true, ..Datagram::udp(client_address(false, 1), service.address, 1, 4000) };
    send(&node, &service, &datagram, &datagram.frames());
}

#[test]
fn the_smallest_pieces_are_followed_too() {
    let mut node = Node::new();
    for ipv6 in [false, true] {
        let id = 1 + u16::from(ipv6);
        let service = node.serve(id, service_address(ipv6, id as u8), Protocol::Udp, Mode::Nat, ipv6);
        for order in Order::ALL {
            let client = client_address(ipv6, 1);
            let datagram =
                Datagram { piece: 8, ..Datagram::udp(client, service.address, order_number(order), 41) };
            send(&node, &service, &datagram, &order.arrange(&datagram.frames()));
        }
    }
}

/// Where addresses alone decide, no piece has to wait for the one with the ports.
#[test]
fn a_service_that_hashes_by_source_leads_every_piece_alike() {
    let mut node = Node::new();
    for (number, ipv6) in [(1, false), (2, true)] {
        node.hash = HashMode::Source { prefix: if ipv6 { 56 } else { 24 } };
        for (id, protocol) in [(number, Protocol::Udp), (number + 10, Protocol::Tcp)] {
            let service = node.serve(id, service_address(ipv6, id as u8), protocol, Mode::Dsr, ipv6);
            for client in 1..20 {
                let client = client_address(ipv6, client);
                let datagram = |identification, size| match protocol {
                    Protocol::Udp => Datagram::udp(client, service.address, identification, size),
                    Protocol::Tcp => Datagram::tcp(client, service.address, identification, size),
                };
                let (reversed, whole) = (datagram(1, 4000), datagram(2, 10));
                let frames = Order::Reversed.arrange(&reversed.frames());
                let one = send(&node, &service, &reversed, &frames);
                assert_eq!(send(&node, &service, &whole, &whole.frames()), one);
            }
        }
    }
}
