//! Pieces of a NAT backend's reply on their way to the client.

use std::{fs, net::SocketAddr};

use tidegate::{
    datapath::BackendRecord,
    model::{Mode, Protocol},
};

use super::{
    model::{End, translate, translated_transport},
    node::{Node, Service, XDP_TX},
    orders::Order,
    pieces::{Datagram, reassemble},
    requests::{client_address, send, service_address},
};
use crate::harness::frame::assert_same;

const CLIENT_MAC: &str = "02:00:00:00:0c:02";

/// A node that knows the way to clients, with a NAT service of the family.
fn prepare(ipv6: bool) -> (Node, Service) {
    let mut node = Node::new();
    let dev = node.lab.client.peer.clone();
    for line in [
        format!("ip neighbour replace 192.0.2.2 lladdr {CLIENT_MAC} dev {dev} nud permanent"),
        format!("ip neighbour replace 2001:db8:c::2 lladdr {CLIENT_MAC} dev {dev} nud permanent"),
        "ip route add 203.0.113.0/24 via 192.0.2.2".to_owned(),
        "ip route add 2001:db8:cc::/64 via 2001:db8:c::2".to_owned(),
    ] {
        node.lab.lb.command(&line);
    }
    let service = node.serve(1, service_address(ipv6, 1), Protocol::Udp, Mode::Nat, ipv6);
    (node, service)
}

fn reply(backend: &BackendRecord, client: SocketAddr, identification: u32, size: usize) -> Datagram {
    let from = SocketAddr::new(backend.address.address, backend.address.port);
    Datagram::udp(from, client, identification, size)
}

/// Sends pieces of a reply and checks every byte of what leaves.
#[track_caller]
fn send_reply(node: &Node, service: &Service, datagram: &Datagram, frames: &[Vec<u8>]) {
    let transport = datagram.transport();
    let own = fs::read_to_string(format!("/sys/class/net/{}/address", node.lab.client.peer)).unwrap();
    let mac = |text: &str| -> Vec<u8> {
        text.trim().split(':').map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect()
    };
    let mut sent = Vec::new();
    for frame in frames {
        let mut expected = frame.clone();
        expected[..6].copy_from_slice(&mac(CLIENT_MAC));
        expected[6..12].copy_from_slice(&mac(&own));
        let (number, client) = (datagram.protocol, datagram.destination);
        translate(&mut expected, &transport, number, service.address, client, End::Source);
        let (outcome, reason) = node.run(frame);
        assert_eq!((outcome.action, reason), (XDP_TX, "forward-reply-tx"));
        assert_same(&expected, &outcome.frame);
        sent.push(outcome.frame);
    }
    let right = translated_transport(&transport, datagram.protocol, service.address, datagram.destination);
    assert_eq!(reassemble(&sent), right);
}

fn replies_in_pieces(ipv6: bool) {
    let (node, service) = prepare(ipv6);
    let mut identification = 0;
    for (client, size) in (1..).zip([1473, 1474, 1475, 1480, 4000, 9000, 65_507 - if ipv6 { 20 } else { 0 }])
    {
        let client = client_address(ipv6, client);
        let request = Datagram::udp(client, service.address, 1, 4000);
        let backend = &service.backends[send(&node, &service, &request, &request.frames())];
        for order in [Order::Forward, Order::Duplicated] {
            identification += 1;
            let reply = reply(backend, client, identification, size);
            send_reply(&node, &service, &reply, &order.arrange(&reply.frames()));
        }
    }
    node.assert_ledger_closes(&[&service]);
}

#[test]
fn replies_in_pieces_come_from_the_service_over_ipv4() {
    replies_in_pieces(false);
}

#[test]
fn replies_in_pieces_come_from_the_service_over_ipv6() {
    replies_in_pieces(true);
}

/// A datagram whose pieces were out of order may be at another backend than its flow: that one's answer counts as well.
#[test]
fn the_answer_to_a_datagram_that_went_elsewhere_than_its_flow_arrives() {
    let (node, service) = prepare(false);
    let mut elsewhere = 0;
    for number in 1..20 {
        let client = client_address(false, number);
        let whole = Datagram::udp(client, service.address, 1, 10);
        let flow = send(&node, &service, &whole, &whole.frames());
        let pieces = Datagram::udp(client, service.address, 2, 4000);
        let other = send(&node, &service, &pieces, &Order::Reversed.arrange(&pieces.frames()));
        elsewhere += usize::from(other != flow);
        for (identification, backend) in [(1, flow), (2, other)] {
            for size in [10, 4000] {
                let reply = reply(&service.backends[backend], client, identification, size);
                send_reply(&node, &service, &reply, &reply.frames());
            }
        }
        /* The flow itself stays where it was. */
        assert_eq!(send(&node, &service, &whole, &whole.frames()), flow);
    }
    assert!(elsewhere > 5, "{elsewhere}: otherwise this test shows nothing");
}

#[test]
fn what_a_backend_sends_of_its_own_is_left_alone() {
    let (node, service) = prepare(false);
    let client = client_address(false, 1);
    let backend = &service.backends[0];
    /* From the service's port, but of no flow; and from another port. */
    let of_no_flow = reply(backend, client, 5, 4000);
    let mut from = of_no_flow.source;
    from.set_port(123);
    let other_port = Datagram { source: from, identification: 6, ..of_no_flow.clone() };
    for (datagram, why) in [(of_no_flow, "pass-not-a-reply"), (other_port, "pass-no-service")] {
        let frames = datagram.frames();
        node.assert_untouched(&frames[0], why);
        for frame in &frames[1..] {
            node.assert_untouched(frame, "pass-fragment");
        }
    }
}

/// Which of the backend's datagrams are replies only their ports tell: documented in `docs/limitations.md`.
#[test]
fn a_piece_of_a_reply_that_overtakes_the_one_with_the_ports_is_left_alone() {
    let (node, service) = prepare(false);
    let client = client_address(false, 1);
    let whole = Datagram::udp(client, service.address, 1, 10);
    let backend = &service.backends[send(&node, &service, &whole, &whole.frames())];
    let reply = reply(backend, client, 9, 4000);
    let frames = reply.frames();
    node.assert_untouched(&frames[2], "pass-fragment");
    send_reply(&node, &service, &reply, &frames);
}
