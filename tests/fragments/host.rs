//! What is not for a service, and what is not as it should be.

use std::net::SocketAddr;

use libbpf_rs::{MapCore, MapFlags, MapHandle};
use tidegate::model::{Mode, Protocol};

use super::{
    node::{Node, Service, XDP_DROP},
    orders::Order,
    pieces::Datagram,
    requests::{client_address, send, service_address},
};
use crate::harness::frame::protocol;

fn prepare(ipv6: bool) -> (Node, Service) {
    let mut node = Node::new();
    let service = node.serve(1, service_address(ipv6, 1), Protocol::Udp, Mode::Dsr, ipv6);
    (node, service)
}

fn at_port(mut address: SocketAddr, port: u16) -> SocketAddr {
    address.set_port(port);
    address
}

#[track_caller]
fn assert_dropped(node: &Node, frame: &[u8], why: &str) {
    let (outcome, reason) = node.run(frame);
    assert_eq!((outcome.action, reason), (XDP_DROP, why));
}

#[test]
fn pieces_for_others_are_left_alone_in_every_order() {
    for ipv6 in [false, true] {
        let (node, service) = prepare(ipv6);
        let elsewhere = service_address(ipv6, 99);
        let client = client_address(ipv6, 1);
        for (identification, order) in (1..).zip(Order::ALL) {
            for datagram in [
                Datagram::udp(client, elsewhere, identification, 4000),
                Datagram::tcp(client, elsewhere, identification + 100, 4000),
                /* From the address of a service, as when this node were a client. */
                Datagram::udp(service.address, client, identification, 4000),
            ] {
                for frame in order.arrange(&datagram.frames()) {
                    let (_, reason) = node.run(&frame);
                    assert!(["pass-no-service", "pass-fragment"].contains(&reason));
                    node.assert_untouched(&frame, reason);
                }
            }
        }
        /* Neither is one that is too short for its ports. */
        let short = Datagram { piece: 8, ..Datagram::tcp(client, elsewhere, 1000, 100) };
        node.assert_untouched(&short.frames()[0], "pass-malformed");
    }
}

#[test]
fn a_datagram_for_the_host_at_the_address_of_a_service_is_the_hosts_to_the_last_piece() {
    for ipv6 in [false, true] {
        let (node, service) = prepare(ipv6);
        let client = client_address(ipv6, 1);
        let unserved = at_port(service.address, 9);
        for (identification, datagram) in (1..).zip([
            Datagram::udp(client, unserved, 0, 4000),
            Datagram::tcp(client, unserved, 0, 4000),
            Datagram {
                protocol: if ipv6 { protocol::ICMPV6 } else { protocol::ICMP },
                ..Datagram::udp(client, unserved, 0, 4000)
            },
        ]) {
            let datagram = Datagram { identification, ..datagram };
            let is_icmp = ![protocol::UDP, protocol::TCP].contains(&datagram.protocol);
            let frames = datagram.frames();
            node.assert_untouched(&frames[0], if is_icmp { "pass-not-tcp-udp" } else { "pass-no-service" });
            for frame in frames[1..].iter().chain(&frames[1..]) {
                node.assert_untouched(frame, "pass-fragment");
            }
        }
        /* TCP without a service of TCP, whatever comes first. */
        let tcp = Datagram::tcp(client, service.address, 50, 4000);
        for frame in Order::Reversed.arrange(&tcp.frames()) {
            let (_, reason) = node.run(&frame);
            assert!(["pass-no-service", "pass-fragment"].contains(&reason), "{reason}");
        }
    }
}

#[test]
fn where_an_address_has_several_services_only_a_piece_with_ports_tells_which() {
    for ipv6 in [false, true] {
        let (mut node, one) = prepare(ipv6);
        let two = node.serve(2, at_port(one.address, 54), Protocol::Udp, Mode::Ipip, ipv6);
        for (identification, order) in (1..).zip(Order::ALL) {
            for (service, offset) in [(&one, 0), (&two, 1)] {
                let client = client_address(ipv6, 10 + 2 * identification + offset);
                let datagram = Datagram::udp(client, service.address, identification.into(), 5000);
                let frames = order.arrange(&datagram.frames());
                let with_ports = frames.iter().position(|frame| super::pieces::has_ports(frame)).unwrap();
                for frame in &frames[..with_ports] {
                    assert_dropped(&node, frame, "drop-fragment-unknown");
                }
                assert_eq!(with_ports == 0, order.begins_with_ports() || with_ports == 0);
                send(&node, service, &datagram, &frames[with_ports..]);
            }
        }
        node.assert_ledger_closes(&[&one, &two]);
    }
}

#[test]
fn pieces_that_split_or_overlap_a_header_are_dropped() {
    for ipv6 in [false, true] {
        let mut node = Node::new();
        let tcp = node.serve(1, service_address(ipv6, 1), Protocol::Tcp, Mode::Dsr, ipv6);
        let udp = node.serve(2, service_address(ipv6, 2), Protocol::Udp, Mode::Nat, ipv6);
        let client = client_address(ipv6, 1);
        for piece in [8, 16] {
            let tiny = Datagram { piece, ..Datagram::tcp(client, tcp.address, piece as u32, 200) };
            assert_dropped(&node, &tiny.frames()[0], "drop-fragment-short");
        }
        let sound = Datagram::tcp(client, tcp.address, 1, 3000);
        send(&node, &tcp, &sound, &sound.frames()[..1]);
        for offset in [8, 16] {
            assert_dropped(&node, &sound.frame(Some((offset, true)), &[0xff; 64]), "drop-fragment-short");
        }
        send(&node, &tcp, &sound, &sound.frames()[1..]);
        /* Of UDP, nothing but a piece without a byte behind the IP header is too short. */
        let nothing = Datagram::udp(client, udp.address, 2, 3000);
        assert_dropped(&node, &nothing.frame(Some((0, true)), &[0; 4]), "drop-fragment-short");
    }
}

#[test]
fn a_piece_that_lies_about_its_length_is_dropped_and_decides_nothing() {
    for ipv6 in [false, true] {
        let (mut node, service) = prepare(ipv6);
        let datagram = Datagram::udp(client_address(ipv6, 1), service.address, 1, 4000);
        let frames = datagram.frames();
        node.publish(1, |_| 1);
        assert_dropped(&node, &frames[1][..frames[1].len() - 1], "drop-bad-length");
        node.publish(1, |_| 2);
        assert_eq!(send(&node, &service, &datagram, &Order::Reversed.arrange(&frames)), 1);
        node.assert_ledger_closes(&[&service]);
    }
}

/// Sets back the time of everything that is known of datagrams.
fn let_time_pass(ticks: u32) {
    let map = MapHandle::from_pinned_path("/sys/fs/bpf/tidegate/maps/fragments").unwrap();
    for key in map.keys().collect::<Vec<_>>() {
        let mut value = map.lookup(&key, MapFlags::ANY).unwrap().unwrap();
        let tick = u32::from_ne_bytes(value[4..8].try_into().unwrap());
        value[4..8].copy_from_slice(&(tick - ticks).to_ne_bytes());
        map.update(&key, &value, MapFlags::EXIST).unwrap();
    }
}

#[test]
fn a_datagram_is_known_for_half_a_minute() {
    let (mut node, service) = prepare(false);
    let datagram = Datagram::udp(client_address(false, 1), service.address, 1, 4000);
    let frames = datagram.frames();
    node.publish(1, |_| 1);
    assert_eq!(send(&node, &service, &datagram, &frames[..1]), 0);
    node.publish(1, |_| 2);
    let_time_pass(6);
    assert_eq!(send(&node, &service, &datagram, &frames[1..]), 0, "26 seconds later");
    let_time_pass(2);
    assert_eq!(send(&node, &service, &datagram, &frames[1..]), 1, "34 seconds later");
}

#[test]
fn more_datagrams_than_there_is_room_for_push_out_the_oldest() {
    let (node, service) = prepare(false);
    let datagrams: Vec<_> =
        (1..=6000).map(|n| Datagram::udp(client_address(false, 1), service.address, n, 1500)).collect();
    for datagram in &datagrams {
        node.forward(&datagram.frames()[0]);
    }
    for datagram in &datagrams[5900..] {
        send(&node, &service, datagram, &datagram.frames());
    }
}
