//! Flows and the clock, which CPUs read at different moments.

use std::net::SocketAddr;

use tidegate::model::Mode;

use crate::harness::{
    frame::{Network, Packet, Tcp, protocol, tcp_flags},
    kernel::Kernel,
    model::{Backend, Kind, Node, Reason, Service},
};

const CLIENT: &str = "192.0.2.2:1000";
const SERVICE: &str = "203.0.113.10:80";
const BACKEND: &str = "198.51.100.11:80";

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn segment(from: &str, to: &str, flags: u8) -> Vec<u8> {
    let (from, to) = (at(from), at(to));
    Packet::new(Network::between(from.ip(), to.ip()), Tcp::with_flags(from.port(), to.port(), flags)).build()
}

/// True where the reply to a SYN whose flow seems to be so many ticks younger is translated.
fn is_translated_after_a_shift_of(ticks: i16) -> bool {
    let mut node = Node::new(16);
    let backend = Backend::new(at(BACKEND), at("198.51.100.1:0").ip(), 1);
    node.services.insert(1, Service::new(at(SERVICE), protocol::TCP, Mode::Nat).backend(backend));
    let kernel = Kernel::load(&node);
    assert_eq!(node.flows.lifetime[Kind::HalfOpen as usize], HALF_OPEN_LIFETIME);
    kernel.xdp_lb(&segment(CLIENT, SERVICE, tcp_flags::SYN), 1);
    kernel.shift_flow_ticks(ticks);
    kernel.xdp_lb(&segment(BACKEND, CLIENT, tcp_flags::SYN | tcp_flags::ACK), 1);
    !kernel.ledger(0).packets.contains_key(&Reason::PassNotAReply)
}

/// Ticks.
const HALF_OPEN_LIFETIME: u64 = 7;

#[test]
fn a_flow_that_another_cpu_has_just_touched_is_alive() {
    // The other CPU read the clock later than this one will have, and a tick began in between.
    assert!(is_translated_after_a_shift_of(1));
    assert!(is_translated_after_a_shift_of(10));
}

#[test]
fn a_flow_that_was_silent_for_too_long_is_dead() {
    // A tick may begin while the test runs.
    assert!(is_translated_after_a_shift_of(1 - HALF_OPEN_LIFETIME as i16));
    assert!(!is_translated_after_a_shift_of(-1 - HALF_OPEN_LIFETIME as i16));
    assert!(!is_translated_after_a_shift_of(i16::MIN));
}
