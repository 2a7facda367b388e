//! Packets to backends whose MAC address is not known: the kernel's neighbour table finds it.

use std::net::SocketAddr;

use nix::{
    net::if_::if_nametoindex,
    sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, socket},
};
use tidegate::model::Mode;

use crate::harness::{
    frame::protocol,
    kernel::Kernel,
    lab::{Lab, SECOND, SERVICE_IPV4, SERVICE_IPV6},
    model::{Backend, NextHop, Node, Reason, Service},
};

#[test]
fn a_note_is_obeyed_only_on_the_interface_that_the_packet_came_in_by() {
    let lab = Lab::new(1);
    let (client, backend) = (&lab.client, &lab.backends[0]);
    // Packets come in by a port of a bridge, where their notes are not carried out, and come by once more on the bridge.
    let bridge = "bridge";
    lab.lb.command(&format!("ip link add {bridge} type bridge"));
    lab.lb.command(&format!("ip link set {} master {bridge}", client.peer));
    lab.lb.command(&format!("ip link set {bridge} up"));
    let interface = if_nametoindex(backend.peer.as_str()).unwrap();
    let at = SocketAddr::new(backend.ipv4.into(), 80);
    let record = Backend { next_hop: NextHop::Unresolved { interface }, ..Backend::new(at, at.ip(), 0) };
    let service = SocketAddr::new(SERVICE_IPV4.into(), 80);
    let mut node = Node::new(16);
    node.services.insert(1, Service::new(service, protocol::UDP, Mode::Dsr).backend(record));
    let kernel = Kernel::load(&node);
    let _links = [kernel.attach_xdp_lb(&client.peer), kernel.attach_tc_handoff(bridge)];
    assert!(client.ask(service, SECOND / 2).is_err(), "nobody has this address");
    assert!(kernel.ledger(1).packets.get(&Reason::ForwardHandoff).is_some_and(|count| *count > 0));
    assert_eq!(kernel.tc_handoff_ledger().seen, 0, "notes that were obeyed");
}

/// A client asks a DSR service in both families, whose one backend is on a known interface behind an unknown MAC address.
fn ask_unresolved_backends(lab: &Lab) {
    let backend = &lab.backends[0];
    let mut node = Node::new(16);
    let next_hop = NextHop::Unresolved { interface: if_nametoindex(backend.peer.as_str()).unwrap() };
    let services: [SocketAddr; 2] = [(SERVICE_IPV4, 80).into(), (SERVICE_IPV6, 80).into()];
    let backends: [SocketAddr; 2] = [(backend.ipv4, 80).into(), (backend.ipv6, 80).into()];
    for (id, (service, at)) in services.into_iter().zip(backends).enumerate() {
        backend.own(service.ip());
        let backend = Backend { next_hop, ..Backend::new(at, at.ip(), 0) };
        node.services.insert(id as u32 + 1, Service::new(service, protocol::UDP, Mode::Dsr).backend(backend));
    }
    let kernel = Kernel::load(&node);
    let _links = [kernel.attach_xdp_lb(&lab.client.peer), kernel.attach_tc_handoff(&lab.client.peer)];
    let _server = backend.serve_at(&services);
    for service in services {
        let answer = lab.client.ask(service, 2 * SECOND);
        assert_eq!(answer.unwrap().addressed_as, service);
    }
}

#[test]
fn the_kernel_finds_the_neighbour() {
    ask_unresolved_backends(&Lab::new(1));
}

#[test]
fn the_kernel_finds_the_neighbour_while_somebody_captures_packets() {
    let lab = Lab::new(1);
    // What a DHCP client, an LLDP daemon or a VRRP daemon has open.
    let _tap = socket(AddressFamily::Packet, SockType::Raw, SockFlag::empty(), SockProtocol::EthAll).unwrap();
    ask_unresolved_backends(&lab);
}
