//! What is for the address of a service, but for no service.

use std::net::{IpAddr, SocketAddr};

use nix::{
    sched::{CpuSet, sched_setaffinity},
    unistd::Pid,
};
use tidegate::model::{AddressPolicy, EchoRequest, Mode, Protocol, UnservedPort};

use super::{
    node::{Node, Service, XDP_DROP, XDP_TX},
    pieces::Datagram,
    requests::{client_address, send, service_address},
};
use crate::harness::frame::{
    Checksum, Echo, Ethernet, Ipv4, Network, Packet, Transport, assert_same, verify,
};

fn prepare(ipv6: bool, policy: AddressPolicy) -> (Node, Service) {
    let mut node = Node::new();
    let service = node.serve(1, service_address(ipv6, 1), Protocol::Udp, Mode::Nat, ipv6);
    node.set_policy(policy);
    (node, service)
}

fn ping(from: IpAddr, to: IpAddr, payload: usize) -> Packet {
    let echo = Echo { reply: false, identifier: 77, sequence: 3, checksum: Checksum::Right };
    let payload: Vec<u8> = (0..payload).map(|byte| byte as u8).collect();
    Packet::new(Network::between(from, to), Transport::Echo(echo)).payload(&payload)
}

const ANSWER: AddressPolicy = AddressPolicy { unserved_port: UnservedPort::Pass, echo: EchoRequest::Answer };

#[track_caller]
fn assert_dropped(node: &Node, frame: &[u8], why: &str) {
    let (outcome, reason) = node.run(frame);
    assert_eq!((outcome.action, reason), (XDP_DROP, why));
}

#[test]
fn packets_to_unserved_ports_are_passed_or_dropped_as_configured() {
    for ipv6 in [false, true] {
        let (mut node, service) = prepare(ipv6, AddressPolicy::default());
        let client = client_address(ipv6, 1);
        let mut unserved = service.address;
        unserved.set_port(9);
        let whole = [Datagram::udp(client, unserved, 1, 10), Datagram::tcp(client, service.address, 1, 10)];
        for datagram in &whole {
            node.assert_untouched(&datagram.frames()[0], "pass-no-service");
        }
        node.set_policy(AddressPolicy { unserved_port: UnservedPort::Drop, ..AddressPolicy::default() });
        let in_pieces = Datagram::udp(client, unserved, 2, 4000);
        for frame in whole.iter().chain([&in_pieces]).flat_map(Datagram::frames) {
            assert_dropped(&node, &frame, "drop-unserved");
        }
        /* Neither what is for a service nor what is for another address. */
        let served = Datagram::udp(client, service.address, 3, 4000);
        send(&node, &service, &served, &served.frames());
        let elsewhere = Datagram::udp(client, service_address(ipv6, 99), 4, 4000).frames();
        node.assert_untouched(&elsewhere[0], "pass-no-service");
        node.assert_untouched(&elsewhere[1], "pass-fragment");
        node.assert_ledger_closes(&[&service]);
    }
}

#[test]
fn an_echo_request_to_the_address_of_a_service_is_answered_from_it() {
    for ipv6 in [false, true] {
        let (node, service) = prepare(ipv6, ANSWER);
        let (client, service) = (client_address(ipv6, 1).ip(), service.address.ip());
        for payload in [0, 1, 56, 1400] {
            let request = ping(client, service, payload);
            let mut reply = ping(service, client, payload);
            if let Transport::Echo(echo) = &mut reply.transport {
                echo.reply = true;
            }
            if let Network::V4(ip) = &mut reply.network {
                *ip = Ipv4 { ttl: 64, ..ip.clone() };
            }
            let ethernet = request.ethernet;
            reply.ethernet =
                Ethernet { destination: ethernet.source, source: ethernet.destination, ..ethernet };
            let mut request = request;
            request.network = request.network.with_ttl(7);
            let (outcome, reason) = node.run(&request.build());
            assert_eq!((outcome.action, reason), (XDP_TX, "forward-echo-reply"));
            assert_same(&reply.build(), &outcome.frame);
            verify(&outcome.frame).unwrap();
        }
        node.assert_ledger_closes(&[]);
    }
}

#[test]
fn echo_requests_are_dropped_where_that_is_configured() {
    for ipv6 in [false, true] {
        let policy = AddressPolicy { echo: EchoRequest::Drop, ..AddressPolicy::default() };
        let (node, service) = prepare(ipv6, policy);
        let client = client_address(ipv6, 1).ip();
        assert_dropped(&node, &ping(client, service.address.ip(), 56).build(), "drop-echo");
        let elsewhere = ping(client, service_address(ipv6, 99).ip(), 56).build();
        node.assert_untouched(&elsewhere, "pass-not-tcp-udp");
    }
}

#[test]
fn nothing_but_a_plain_echo_request_from_one_host_is_answered() {
    for ipv6 in [false, true] {
        let (node, service) = prepare(ipv6, ANSWER);
        let (client, service) = (client_address(ipv6, 1).ip(), service.address.ip());
        let request = ping(client, service, 56);
        let mut others = vec![ping(client, service_address(ipv6, 99).ip(), 56), ping(service, service, 56)];
        for source in if ipv6 { ["ff02::1", "::1", "::"] } else { ["224.0.0.1", "127.0.0.1", "0.0.0.0"] } {
            others.push(ping(source.parse().unwrap(), service, 56));
        }
        let mut reply = request.clone();
        if let Transport::Echo(echo) = &mut reply.transport {
            echo.reply = true;
        }
        others.push(reply);
        let mut to_all = request.clone();
        to_all.ethernet.destination = [0xff; 6];
        others.push(to_all);
        if let Network::V4(ip) = &request.network {
            let with = |ip: Ipv4| Packet { network: ip.into(), ..request.clone() };
            others.push(with(Ipv4 { options: vec![1; 4], ..ip.clone() }));
            others.push(with(Ipv4 { more_fragments: true, ..ip.clone() }));
            others.push(with(Ipv4 { total_length: Some(100), ..ip.clone() }));
        }
        for other in others {
            node.assert_untouched(&other.build(), "pass-not-tcp-udp");
        }
    }
}

#[test]
fn echo_requests_beyond_the_rate_are_dropped() {
    let (node, service) = prepare(false, ANSWER);
    let mut one = CpuSet::new();
    one.set(0).unwrap();
    sched_setaffinity(Pid::from_raw(0), &one).unwrap();
    let frame = ping(client_address(false, 1).ip(), service.address.ip(), 0).build();
    let run = || node.kernel.run("xdp_lb", &frame, node.interface).unwrap().action;
    let answered = (0..100_000).take_while(|_| run() == XDP_TX).count();
    assert!((1000..100_000).contains(&answered), "{answered}");
}

/// Only the wire address decides: the first word of this IPv6 address is the service's IPv4 address.
#[test]
fn an_ipv6_address_that_begins_like_an_ipv4_service_is_another_address() {
    let policy = AddressPolicy { unserved_port: UnservedPort::Drop, ..AddressPolicy::default() };
    let (node, _) = prepare(false, policy);
    let alike: SocketAddr = "[c000:201::]:9".parse().unwrap();
    let frames = Datagram::udp(client_address(true, 1), alike, 1, 4000).frames();
    node.assert_untouched(&frames[0], "pass-no-service");
    node.assert_untouched(&frames[1], "pass-fragment");
}
