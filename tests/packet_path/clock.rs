//! Flows and the clock, which CPUs read at different moments.

use std::net::SocketAddr;

use tidegate::model::Mode;

use crate::harness::{
    frame::{Network, Packet, Tcp, protocol, tcp_flags},
    kernel::Kernel,
    model::{Backend, Node, Reason, Service},
};

#[test]
fn a_flow_that_another_cpu_has_just_touched_is_alive() {
    let at = |text: &str| text.parse::<SocketAddr>().unwrap();
    let (client, service, backend) = (at("192.0.2.2:1000"), at("203.0.113.10:80"), at("198.51.100.11:80"));
    let mut node = Node::new(16);
    let backend_record = Backend::new(backend, at("198.51.100.1:0").ip(), 1);
    node.services.insert(1, Service::new(service, protocol::TCP, Mode::Nat).backend(backend_record));
    let kernel = Kernel::load(&node);
    let segment = |from: SocketAddr, to: SocketAddr, flags| {
        Packet::new(Network::between(from.ip(), to.ip()), Tcp::with_flags(from.port(), to.port(), flags))
            .build()
    };
    kernel.xdp_lb(&segment(client, service, tcp_flags::SYN), 1);
    // The other CPU read the clock later than this one will have, and a tick began in between.
    kernel.shift_flow_ticks(1);
    kernel.xdp_lb(&segment(backend, client, tcp_flags::SYN | tcp_flags::ACK), 1);
    assert_eq!(kernel.ledger(0).packets.get(&Reason::PassNotAReply), None, "the reply is translated");
}
