//! How evenly are flows spread, and does a client stay where it is?

use std::{
    collections::{HashMap, HashSet},
    net::{IpAddr, Ipv4Addr, SocketAddr},
};

use tidegate::model::{BackendAddress, HashMode, Mode, Protocol, ServiceAddress};

use super::{
    model::{Model, Request, SLOTS, Shape},
    node::{Programs, enter},
};

const FLOWS: u32 = 100_000;
/// Of chi-square with 250 degrees of freedom, even spread exceeds this once in ten thousand times.
const LARGEST_CHI_SQUARE: f64 = 341.0;

/// A service with a backend for each of its slots.
fn shape(hash: HashMode, ipv6: bool) -> Shape {
    let (service, backend): (IpAddr, IpAddr) = match ipv6 {
        false => ([203, 0, 113, 200].into(), [198, 51, 100, 1].into()),
        true => ("2001:db8:1000::1".parse().unwrap(), "2001:db8:1::1".parse().unwrap()),
    };
    let backends = (0..SLOTS).map(|n| BackendAddress { address: backend, port: n as u16 + 1 });
    Shape {
        address: ServiceAddress::new(service, 80, Protocol::Udp),
        mode: Mode::Dsr,
        hash,
        backends: backends.collect(),
    }
}

fn chi_square(counts: &HashMap<u8, u32>, flows: u32) -> f64 {
    let expected = f64::from(flows) / SLOTS as f64;
    (0..SLOTS as u8)
        .map(|slot| f64::from(counts.get(&slot).copied().unwrap_or(0)) - expected)
        .map(|d| d * d / expected)
        .sum()
}

/// The n-th address of a block, of either family.
fn address(ipv6: bool, number: u32) -> IpAddr {
    if ipv6 {
        (0x2001_0db8_3000_0000_0000_0000_0000_0000u128 + u128::from(number)).to_be_bytes().into()
    } else {
        Ipv4Addr::from(0x0a00_0000 + number).into()
    }
}

/// Backends that these clients get, by number.
fn spread(
    programs: &Programs,
    to: SocketAddr,
    clients: impl Iterator<Item = SocketAddr>,
) -> HashMap<u8, u32> {
    let mut counts = HashMap::new();
    for client in clients {
        let (action, frame) = programs.run(&Request { client, to, protocol: Protocol::Udp }.frame());
        assert_eq!(action, 3, "{client}");
        *counts.entry(frame[5]).or_default() += 1;
    }
    counts
}

#[test]
fn sequential_ports_and_addresses_are_spread_evenly() {
    enter();
    for ipv6 in [false, true] {
        let shape = shape(HashMode::FiveTuple, ipv6);
        let to = SocketAddr::new(shape.address.address, 80);
        let programs = Programs::pinned_at(&format!("/sys/fs/bpf/spread-{ipv6}"), &Model::new(&[shape]));
        let ports =
            (0..FLOWS).map(|n| SocketAddr::new(address(ipv6, n / 50_000), 1024 + (n % 50_000) as u16));
        let addresses = (0..FLOWS).map(|n| SocketAddr::new(address(ipv6, n), 40_000));
        for (what, found) in [
            ("ports", chi_square(&spread(&programs, to, ports), FLOWS)),
            ("addresses", chi_square(&spread(&programs, to, addresses), FLOWS)),
        ] {
            println!("five-tuple, ipv6 {ipv6}, sequential {what}: chi-square {found:.0}");
            assert!(found < LARGEST_CHI_SQUARE, "sequential {what}, ipv6 {ipv6}: {found}");
        }
    }
    // The control: a hash without a finaliser, which is what such a test is to find.
    let mut counts = HashMap::new();
    for port in 0..FLOWS {
        *counts.entry((((u64::from(port) << 16) * SLOTS as u64) >> 32) as u8).or_default() += 1;
    }
    assert!(chi_square(&counts, FLOWS) > LARGEST_CHI_SQUARE);
}

#[test]
fn a_client_prefix_stays_on_one_backend_and_prefixes_are_spread_evenly() {
    enter();
    for (ipv6, prefix, step) in [(false, 24, 256), (true, 112, 65_536)] {
        let shape = shape(HashMode::Source { prefix }, ipv6);
        let to = SocketAddr::new(shape.address.address, 80);
        let programs = Programs::pinned_at(&format!("/sys/fs/bpf/sticky-{ipv6}"), &Model::new(&[shape]));
        let within = (0..2000).map(|n| SocketAddr::new(address(ipv6, step * 7 + n % step), 1024 + n as u16));
        assert_eq!(spread(&programs, to, within).len(), 1, "ipv6 {ipv6}: one prefix, one backend");
        let prefixes = (0..30_000).map(|n| SocketAddr::new(address(ipv6, step * n), 40_000));
        let found = chi_square(&spread(&programs, to, prefixes), 30_000);
        println!("source/{prefix}: chi-square {found:.0}");
        assert!(found < LARGEST_CHI_SQUARE, "sequential prefixes, ipv6 {ipv6}: {found}");
    }
}

#[test]
fn hashes_of_addresses_are_those_of_the_model_for_every_prefix() {
    enter();
    for ipv6 in [false, true] {
        let longest = if ipv6 { 128 } else { 32 };
        let mut programs = Programs::open(&format!("/sys/fs/bpf/prefixes-{ipv6}"));
        for prefix in 1..=longest {
            for hash in [HashMode::Source { prefix }, HashMode::SourceDestination { prefix }] {
                let shape = shape(hash, ipv6);
                programs.add(0, &shape);
                let mut model = Model::new(std::slice::from_ref(&shape));
                for number in [0, 1, 255, 256, 0xffff, 0x01_0000, 0xff_ffff] {
                    let client = SocketAddr::new(address(ipv6, number), 1000);
                    let to = SocketAddr::new(shape.address.address, 80);
                    programs.check_request(&mut model, Request { client, to, protocol: Protocol::Udp });
                }
            }
        }
    }
}

/// Nodes differ in their secrets and agree on backends; ports and protocols do not count.
#[test]
fn two_nodes_give_a_client_the_same_backend_whatever_port_it_uses() {
    enter();
    let shape = shape(HashMode::Source { prefix: 32 }, false);
    let to = SocketAddr::new(shape.address.address, 80);
    let model = Model::new(&[shape]);
    let nodes = ["/sys/fs/bpf/node-a", "/sys/fs/bpf/node-b"].map(|pins| Programs::pinned_at(pins, &model));
    for number in 0..200 {
        let client = |port| SocketAddr::new(address(false, number), port);
        let all = nodes.iter().flat_map(|node| spread(node, to, (1000..1005).map(client)).into_keys());
        assert_eq!(all.collect::<HashSet<u8>>().len(), 1, "client {number}");
    }
}

/// The flows of one client go to one backend, but not all by one path and to one receive queue.
#[test]
fn outer_headers_differ_by_flow_even_where_the_hash_does_not() {
    enter();
    let mut shape = shape(HashMode::Source { prefix: 32 }, false);
    shape.mode = Mode::Gue;
    let to = SocketAddr::new(shape.address.address, 80);
    let programs = Programs::new(&Model::new(&[shape]));
    let (mut backends, mut source_ports) = (HashSet::new(), HashSet::new());
    for port in 1000..1500 {
        let client = SocketAddr::new(address(false, 1), port);
        let (_, frame) = programs.run(&Request { client, to, protocol: Protocol::Udp }.frame());
        backends.insert(frame[5]);
        source_ports.insert([frame[34], frame[35]]);
    }
    assert_eq!(backends.len(), 1);
    assert!(source_ports.len() > 400, "{} source ports", source_ports.len());
}
