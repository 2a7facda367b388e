//! Translation with ports that are kept: requests, replies, and flows that must not be taken for each other.

use std::{
    collections::HashSet,
    net::{IpAddr, SocketAddr},
};

use tidegate::model::{BackendAddress, HashMode, Mode, PortRange, Protocol, ServiceAddress};

use super::{
    model::{Expected, Model, Request, Shape},
    node::{Programs, enter_with_clients},
};

fn host(ipv6: bool, number: u8) -> IpAddr {
    if ipv6 { format!("2001:db8:1::{number}").parse().unwrap() } else { [198, 51, 100, number].into() }
}

fn vip(ipv6: bool, number: u8) -> IpAddr {
    if ipv6 {
        format!("2001:db8:1000::{number}").parse().unwrap()
    } else {
        [203, 0, 113, 200 + number].into()
    }
}

fn client(ipv6: bool, number: u8, port: u16) -> SocketAddr {
    let ip =
        if ipv6 { format!("2001:db8:3000::{number}").parse().unwrap() } else { [203, 0, 113, number].into() };
    SocketAddr::new(ip, port)
}

/// Fixed services and ranges on the same few hosts, so that their replies look alike unless something is done about it.
fn shapes(ipv6: bool, protocol: Protocol) -> Vec<Shape> {
    let nat = |address: u8, ports: PortRange, port: u16, hosts: &[u8]| Shape {
        address: ServiceAddress { address: vip(ipv6, address), ports, protocol },
        mode: Mode::Nat,
        hash: HashMode::FiveTuple,
        backends: hosts.iter().map(|&number| BackendAddress { address: host(ipv6, number), port }).collect(),
    };
    let range = |first, last| PortRange::new(first, last).unwrap();
    vec![
        nat(1, 80.into(), 8001, &[1, 2, 3]),
        nat(1, 81.into(), 8002, &[1, 2, 3]),
        nat(1, range(8000, 8003), 0, &[1, 2, 3]),
        nat(2, PortRange::ANY, 0, &[1, 2, 3]),
        nat(3, range(8000, 8003), 0, &[4]),
        nat(4, range(8001, 8005), 0, &[4]),
        nat(4, 80.into(), 8003, &[4]),
    ]
}

/// A small generator (xorshift): the same numbers in every run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

/// Requests of few clients with few ports in random order, each followed by replies from every port they may have reached.
#[test]
fn replies_are_translated_to_where_the_request_went_whatever_shares_the_backends() {
    let clients = [false, true].map(|ipv6| (1..=4).map(move |number| client(ipv6, number, 0).ip()));
    enter_with_clients(&clients.into_iter().flatten().collect::<Vec<_>>());
    let mut all = Vec::new();
    for ipv6 in [false, true] {
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            all.extend(shapes(ipv6, protocol));
        }
    }
    let mut model = Model::new(&all);
    let programs = Programs::new(&model);
    let mut numbers = Numbers(0x5eed);
    let (mut sent, mut dropped, mut translated) = (HashSet::new(), 0, HashSet::new());
    for _ in 0..4000 {
        let ipv6 = numbers.below(2) == 1;
        let protocol = [Protocol::Tcp, Protocol::Udp][numbers.below(2) as usize];
        let client = client(ipv6, numbers.below(4) as u8 + 1, 1000 + numbers.below(3) as u16);
        let ports = [80, 81, 8000, 8001, 8002, 8003, 8004, 0];
        let to = SocketAddr::new(vip(ipv6, numbers.below(4) as u8 + 1), ports[numbers.below(8) as usize]);
        match programs.check_request(&mut model, Request { client, to, protocol }) {
            Expected::Sent(service, _) => drop(sent.insert(service)),
            Expected::Dropped => dropped += 1,
            Expected::Untouched => {}
        }
        let from = SocketAddr::new(host(ipv6, numbers.below(4) as u8 + 1), ports[numbers.below(8) as usize]);
        if let Expected::Sent(service, _) = programs.check_reply(&model, from, client, protocol) {
            translated.insert(service);
        }
    }
    // The test is worth nothing if it does not meet all that it is about.
    assert_eq!((sent.len(), translated.len()), (all.len(), all.len()));
    assert!(dropped > 10, "{dropped} conflicts");
}

/// Two flows of one client port to two ports of one range: each with a backend and replies of its own.
#[test]
fn one_client_port_has_a_flow_for_each_port_of_a_range() {
    enter_with_clients(&[client(false, 9, 0).ip()]);
    let shape = Shape {
        address: ServiceAddress { address: vip(false, 1), ports: PortRange::ANY, protocol: Protocol::Udp },
        mode: Mode::Nat,
        hash: HashMode::FiveTuple,
        backends: (1..=8).map(|n| BackendAddress { address: host(false, n), port: 0 }).collect(),
    };
    let mut model = Model::new(&[shape]);
    let programs = Programs::new(&model);
    let client = client(false, 9, 5353);
    let mut backends = HashSet::new();
    for port in 1..=200 {
        let request = Request { client, to: SocketAddr::new(vip(false, 1), port), protocol: Protocol::Udp };
        let Expected::Sent(_, frame) = programs.check_request(&mut model, request) else {
            panic!("port {port}")
        };
        backends.insert(frame[5]);
    }
    assert_eq!(backends.len(), 8, "a shared entry would send all to one");
    for port in 1..=200 {
        let answers = (1..=8)
            .filter(|&number| {
                let from = SocketAddr::new(host(false, number), port);
                programs.check_reply(&model, from, client, Protocol::Udp) != Expected::Untouched
            })
            .count();
        assert_eq!(answers, 1, "port {port}: only the backend that was asked may answer");
    }
}
