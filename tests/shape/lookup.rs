//! Which service has a port?

use std::net::{IpAddr, SocketAddr};

use tidegate::{
    datapath::Datapath,
    model::{BackendAddress, HashMode, Mode, PortRange, Protocol, RANGES_PER_ADDRESS, ServiceAddress},
};

use super::{
    model::{Expected, Model, Request, Shape},
    node::{Programs, enter, id_of},
};

fn range(first: u16, last: u16) -> PortRange {
    PortRange::new(first, last).unwrap()
}

/// A service with one backend of its own.
fn shape(number: u8, address: &str, ports: impl Into<PortRange>, protocol: Protocol, mode: Mode) -> Shape {
    let address: IpAddr = address.parse().unwrap();
    let ports = ports.into();
    let host: IpAddr = match address.is_ipv6() && !mode.encapsulates() {
        true => format!("2001:db8:1::{number}").parse().unwrap(),
        false => [198, 51, 100, number].into(),
    };
    let backend = BackendAddress { address: host, port: ports.backend_port() };
    Shape {
        address: ServiceAddress { address, ports, protocol },
        mode,
        hash: HashMode::FiveTuple,
        backends: vec![backend],
    }
}

/// Exact ports, nested and overlapping ranges and any port, over both protocols and families.
fn shapes(address: &str) -> Vec<Shape> {
    use Mode::{Dsr, Ipip, Nat};
    use Protocol::{Tcp, Udp};
    vec![
        shape(1, address, PortRange::ANY, Tcp, Ipip),
        shape(2, address, range(1, 65535), Tcp, Dsr),
        shape(3, address, range(8000, 8099), Tcp, Nat),
        shape(4, address, range(8010, 8019), Tcp, Ipip),
        shape(5, address, 8015, Tcp, Dsr),
        shape(6, address, range(8090, 8109), Tcp, Nat),
        shape(7, address, 80, Tcp, Nat),
        shape(8, address, 80, Udp, Dsr),
        shape(9, address, range(53, 54), Udp, Nat),
        shape(10, address, range(65534, 65535), Udp, Nat),
        shape(11, address, 1, Tcp, Ipip),
        shape(12, address, 65535, Tcp, Nat),
    ]
}

const CLIENTS: [&str; 2] = ["203.0.113.7", "2001:db8:3000::7"];
const SERVICES: [&str; 2] = ["203.0.113.200", "2001:db8:1000::200"];

#[test]
fn every_port_leads_to_the_narrowest_service_that_has_it() {
    enter();
    let mut all = shapes(SERVICES[0]);
    all.extend(shapes(SERVICES[1]));
    let mut model = Model::new(&all);
    let programs = Programs::new(&model);
    for (client, service) in CLIENTS.into_iter().zip(SERVICES) {
        let edges = [0, 1, 2, 52, 53, 54, 55, 79, 80, 81, 65533, 65534, 65535];
        for port in edges.into_iter().chain(7990..8120).chain((0..65535).step_by(if client.contains(':') {
            97
        } else {
            7
        })) {
            for protocol in [Protocol::Tcp, Protocol::Udp] {
                let client = SocketAddr::new(client.parse().unwrap(), 40000);
                let to = SocketAddr::new(service.parse().unwrap(), port);
                programs.check_request(&mut model, Request { client, to, protocol });
            }
        }
    }
    let is_for = |port: u16| model.find(SocketAddr::new(SERVICES[0].parse().unwrap(), port), Protocol::Tcp);
    // The model itself, in words: exact, narrow, wide, all but 0, any.
    assert_eq!([8015, 8010, 8000, 8095, 8105, 9000, 0].map(is_for), [4, 3, 2, 5, 5, 1, 0].map(Some));
}

/// The control: without ranges nothing else is found, and an address that has none is not touched by another's.
#[test]
fn addresses_and_protocols_do_not_share_ranges() {
    enter();
    let shapes = [shape(1, SERVICES[0], PortRange::ANY, Protocol::Tcp, Mode::Dsr)];
    let mut model = Model::new(&shapes);
    let programs = Programs::new(&model);
    let client: SocketAddr = "203.0.113.7:40000".parse().unwrap();
    for (to, protocol, is_ours) in [
        ("203.0.113.200:9", Protocol::Tcp, true),
        ("203.0.113.200:9", Protocol::Udp, false),
        ("203.0.113.201:9", Protocol::Tcp, false),
    ] {
        let expected =
            programs.check_request(&mut model, Request { client, to: to.parse().unwrap(), protocol });
        assert_eq!(expected != Expected::Untouched, is_ours, "{to}/{protocol}");
    }
}

#[test]
fn ranges_come_and_go_one_by_one() {
    enter();
    let all: Vec<Shape> = (0..RANGES_PER_ADDRESS as u8)
        .map(|n| {
            let first = u16::from(n) * 100 + 1;
            shape(n + 1, SERVICES[0], range(first, first + 10 + u16::from(n)), Protocol::Tcp, Mode::Dsr)
        })
        .collect();
    let mut programs = Programs::open("/sys/fs/bpf/tidegate");
    let ports: Vec<u16> = (0..1000).step_by(5).collect();
    let check = |programs: &Programs, present: &[Shape], ids: &[usize]| {
        let model = Model::new(present);
        for &port in &ports {
            let to = SocketAddr::new(SERVICES[0].parse().unwrap(), port);
            let request =
                Request { client: "203.0.113.7:40000".parse().unwrap(), to, protocol: Protocol::Tcp };
            let before: Vec<_> = ids.iter().map(|&id| programs.kernel.ledger(id_of(id)).unwrap()).collect();
            let (action, _) = programs.run(&request.frame());
            let found = model.find(to, Protocol::Tcp);
            assert_eq!(action == 3, found.is_some(), "port {port}");
            for (place, &id) in ids.iter().enumerate() {
                let counted = programs.kernel.ledger(id_of(id)).unwrap() != before[place];
                assert_eq!(counted, found == Some(place), "port {port}, service {id}");
            }
        }
    };
    for count in 1..=all.len() {
        programs.add(count - 1, &all[count - 1]);
        if count == 1 || count == all.len() {
            check(&programs, &all[..count], &(0..count).collect::<Vec<_>>());
        }
    }
    let one_more = shape(100, SERVICES[0], range(60000, 60001), Protocol::Tcp, Mode::Dsr).address;
    let error = programs.kernel.bind(one_more, 1).unwrap_err().to_string();
    assert!(error.contains("8 services with a range of ports"), "{error}");
    programs.remove(all[3].address);
    let (left, ids): (Vec<Shape>, Vec<usize>) =
        all.iter().cloned().zip(0..).filter(|(_, index)| *index != 3).unzip();
    check(&programs, &left, &ids);
    for shape in &left {
        programs.remove(shape.address);
    }
    check(&programs, &[], &[]);
}

/// What one process bound, the next finds, without writing anything.
#[test]
fn ranges_are_adopted_as_they_were_bound() {
    enter();
    let model = Model::new(&shapes(SERVICES[0]));
    drop(Programs::new(&model));
    let next = Programs::open("/sys/fs/bpf/tidegate");
    let adopted = next.kernel.adopt().unwrap();
    let mut found: Vec<_> =
        adopted.services.iter().map(|service| (service.id, service.record.address)).collect();
    found.sort();
    let bound: Vec<_> = model.shapes.iter().enumerate().map(|(n, shape)| (id_of(n), shape.address)).collect();
    assert_eq!(found, bound);
    assert!(adopted.stray_addresses.is_empty() && adopted.stray_ids.is_empty());
    assert_eq!(next.kernel.writes(), 0);
    let mut model = model;
    let request = Request {
        client: "203.0.113.7:40000".parse().unwrap(),
        to: "203.0.113.200:8017".parse().unwrap(),
        protocol: Protocol::Tcp,
    };
    assert!(matches!(next.check_request(&mut model, request), Expected::Sent(3, _)));
}
