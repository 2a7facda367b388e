//! Services, backends and routes of every kind.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use tidegate::model::Mode;

use crate::harness::{
    frame::{MacAddress, protocol},
    lab::Lab,
    model::{Backend, BackendState, NextHop, Node, Route, Service, Spread},
};

/// Indexes of two interfaces of the load balancer.
pub struct Interfaces {
    /// Where frames arrive.
    pub ingress: u32,
    pub other: u32,
}

/// Ranges of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Range {
    Services,
    Backends,
    Clients,
}

/// The n-th address of a range.
pub fn address(is_ipv6: bool, range: Range, number: u8) -> IpAddr {
    let (prefix, subnet) = match range {
        Range::Services => ([203, 0, 113], 0x1000),
        Range::Backends => ([198, 51, 100], 0x2000),
        // Not in a subnet of the lab: there are no routes but those made here.
        Range::Clients => ([203, 0, 113], 0x3000),
    };
    if is_ipv6 {
        Ipv6Addr::new(0x2001, 0xdb8, subnet, 0x1234, 0xfedc, 0, 0, number.into()).into()
    } else {
        Ipv4Addr::new(prefix[0], prefix[1], prefix[2], number).into()
    }
}

/// Numbers of the clients there are routes for, and one there is none for.
pub const CLIENTS: std::ops::Range<u8> = 101..108;

/// Every mode, family and protocol, each with backends in every state and behind every kind of next hop. NAT comes twice, with
/// backends in common, so that clients' ports conflict.
pub fn node(interfaces: &Interfaces) -> Node {
    let mut node = Node::new(256);
    let mut id = 0;
    for mode in [Mode::Nat, Mode::Nat, Mode::Dsr, Mode::Ipip, Mode::Gre, Mode::Gue] {
        for is_ipv6 in [false, true] {
            for protocol in [protocol::TCP, protocol::UDP] {
                id += 1;
                let at = SocketAddr::new(address(is_ipv6, Range::Services, id), 80);
                node.services.insert(id.into(), with_backends(Service::new(at, protocol, mode), interfaces));
            }
        }
    }
    for is_ipv6 in [false, true] {
        for number in [201, 202] {
            id += 1;
            let at = SocketAddr::new(address(is_ipv6, Range::Services, number), 80);
            let only = Backend { mtu: 1400, ..backend(is_ipv6, 200, 8080, interfaces.ingress) };
            node.services.insert(id.into(), Service::new(at, protocol::TCP, Mode::Nat).backend(only));
        }
    }
    let own = |is_ipv6| [address(is_ipv6, Range::Backends, 1), address(is_ipv6, Range::Services, 1)];
    node.spread =
        Spread { ipv4: Ipv4Addr::new(0, 0, 0x0f, 0xff), ipv6: Ipv6Addr::new(0, 0, 0, 0xf, 0, 1, 2, 0xffff) };
    node.decap_addresses = own(false).into_iter().chain(own(true)).collect();
    node
}

fn backend(is_ipv6: bool, number: u8, port: u16, interface: u32) -> Backend {
    let at = SocketAddr::new(address(is_ipv6, Range::Backends, number), port);
    let source: IpAddr = if is_ipv6 {
        Ipv6Addr::new(0x2001, 0xdb8, 0x4000, 0x1230, 0xfedc, 0, 0, 0).into()
    } else {
        Ipv4Addr::new(198, 51, 96, 0).into()
    };
    Backend::new(at, source, interface)
}

fn with_backends(mut service: Service, interfaces: &Interfaces) -> Service {
    let is_ipv6 = service.address.is_ipv6();
    let (source_mac, destination_mac) = ([2, 1, 2, 3, 4, 5], [2, 6, 7, 8, 9, 10]);
    let resolved = |interface| NextHop::Resolved { interface, source_mac, destination_mac };
    let next_hops = [
        resolved(interfaces.ingress),
        resolved(interfaces.other),
        NextHop::Unresolved { interface: interfaces.other },
        NextHop::NoRoute,
        NextHop::Local,
    ];
    let port = if service.mode == Mode::Nat { 8080 } else { 80 };
    // Only encapsulation can cross families.
    let families = if service.mode.encapsulates() { vec![false, true] } else { vec![is_ipv6] };
    let mut number = 0;
    for family in families {
        for next_hop in next_hops {
            number += 1;
            let backend = Backend { next_hop, ..backend(family, number, port, interfaces.ingress) };
            service = service.backend(backend);
        }
        for (tags, has_service_tag) in [([0x2064, 0], false), ([0xe005, 7], true), ([6, 8], false)] {
            number += 1;
            let backend = backend(family, number, port, interfaces.ingress);
            service = service.backend(backend.behind_tags(tags, has_service_tag));
        }
    }
    for state in [BackendState::Draining, BackendState::Down, BackendState::Unused] {
        number += 1;
        service = service.backend(Backend {
            state,
            mtu: 576,
            ..backend(is_ipv6, number, port, interfaces.ingress)
        });
    }
    service.table[7] = 0;
    service
}

/// Routes of every kind to clients, in the kernel and in the model.
pub fn add_routes(lab: &Lab, node: &mut Node, interfaces: &Interfaces) {
    for is_ipv6 in [false, true] {
        let client = |number: u8| address(is_ipv6, Range::Clients, number);
        let prefix = if is_ipv6 { "/128" } else { "/32" };
        let gateways = [0, 1].map(|index: usize| {
            let backend = &lab.backends[index];
            let address: IpAddr = if is_ipv6 { backend.ipv6.into() } else { backend.ipv4.into() };
            lab.lb.command(&format!(
                "ip neighbour replace {address} lladdr 02:00:00:00:aa:0{index} dev {} nud permanent",
                backend.peer
            ));
            address
        });
        // An IPv4 route's MTU binds forwarded packets only where it is locked.
        for route in [
            format!("{}{prefix} via {}", client(101), gateways[0]),
            format!("{}{prefix} via {}", client(102), gateways[1]),
            format!("{}{prefix} dev {}", client(103), lab.backends[1].peer),
            format!("unreachable {}{prefix}", client(104)),
            format!("{}{prefix} via {} mtu lock 1280", client(106), gateways[0]),
        ] {
            lab.lb.command(&format!("ip route add {route}"));
        }
        lab.lb.own(client(105));
        let resolved = |index: usize, interface, mtu| Route::Resolved {
            interface,
            mtu,
            source_mac: own_mac(&lab.backends[index].peer),
            destination_mac: [2, 0, 0, 0, 0xaa, index as u8],
        };
        node.routes.extend([
            (client(101), resolved(0, interfaces.ingress, 1500)),
            (client(102), resolved(1, interfaces.other, 1500)),
            (client(103), Route::NoNeighbour { interface: interfaces.other, mtu: 1500 }),
            (client(104), Route::Unreachable),
            (client(105), Route::NotForwarded),
            (client(106), resolved(0, interfaces.ingress, 1280)),
        ]);
    }
}

fn own_mac(interface: &str) -> MacAddress {
    let text = std::fs::read_to_string(format!("/sys/class/net/{interface}/address")).unwrap();
    let bytes: Vec<u8> = text.trim().split(':').map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect();
    bytes.try_into().unwrap()
}
