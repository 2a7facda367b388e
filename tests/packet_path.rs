//! The real programs on single frames, against the model: every byte, counter and flow.

mod clock;
mod handoff;
mod matrix;
mod network;
mod random;

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use nix::net::if_::if_nametoindex;

use crate::harness::{
    frame::{Ipv6, Packet, Tcp, hex},
    kernel::{Kernel, Run, disagreement},
    lab::Lab,
    model::{Ledger, Node, Outcome, Reason},
};
use network::Interfaces;
use random::Random;

/// Enough for every reason to occur, and a second or two.
const FRAMES: usize = 20_000;

#[test]
fn the_load_balancer_agrees_with_the_model_on_random_packets() {
    let (mut node, kernel, interfaces) = prepare();
    let random = Random::new(1);
    for _ in 0..frames() {
        let frame = random::to_the_load_balancer(&random, &node);
        let before = kernel.ledger(0);
        let expected = node.xdp_lb(&frame, interfaces.ingress);
        let got = kernel.xdp_lb(&frame, interfaces.ingress);
        check(&frame, &expected, &got, &before, &kernel.ledger(0));
    }
    kernel.assert_state(&node);
    let never = [
        Reason::ForwardEchoReply,
        Reason::DropForwardingDisabled,
        Reason::DropInternal,
        Reason::PassNoBackend,
        Reason::PassIcmpUnknownFlow,
    ];
    let of_others = [
        Reason::ForwardDecapsulated,
        Reason::PassNotTunnelled,
        Reason::PassOuterNotLocal,
        Reason::PassOuterChecksum,
    ];
    for reason in Reason::ALL {
        let is_expected =
            !never.contains(reason) && !of_others.contains(reason) && *reason < Reason::DropInnerMalformed;
        let occurred = node.ledger[&0].packets.contains_key(reason);
        assert_eq!(occurred, is_expected, "{reason}: the packets are not as random as they should be");
    }
}

#[test]
fn the_backends_side_agrees_with_the_model_on_random_packets() {
    let (mut node, kernel, _) = prepare();
    let random = Random::new(2);
    for _ in 0..frames() {
        let frame = random::to_a_backend(&random, &node);
        let before = kernel.decap_ledger();
        let expected = node.xdp_decap(&frame);
        let got = kernel.xdp_decap(&frame);
        check(&frame, &expected, &got, &before, &kernel.decap_ledger());
    }
    kernel.assert_state(&node);
    assert_eq!(node.decap_ledger.packets.len(), 10, "{:?}", node.decap_ledger);
}

#[test]
fn replies_through_the_stack_agree_with_the_model_on_random_packets() {
    let (mut node, kernel, interfaces) = prepare();
    let random = Random::new(3);
    for _ in 0..frames() {
        // Requests make the flows that replies are of.
        let frame = random::to_the_load_balancer(&random, &node);
        let outcome = node.xdp_lb(&frame, interfaces.ingress);
        assert_eq!(disagreement(&frame, &outcome, &kernel.xdp_lb(&frame, interfaces.ingress)), None);
        let frame = random::to_the_load_balancer(&random, &node);
        // A test run takes none that has no room for the IP header that its ethertype promises.
        if frame.len() < 14 + 40 {
            continue;
        }
        let before = kernel.tc_nat_ledger();
        let Some(expected) = node.tc_nat(&frame) else { continue };
        check(&frame, &expected, &kernel.tc_nat(&frame), &before, &kernel.tc_nat_ledger());
    }
    kernel.assert_state(&node);
    assert_eq!(node.tc_nat_ledger.packets.len(), 8, "{:?}", node.tc_nat_ledger);
}

/// A lab whose load balancer has routes, and the same services in the model and in the kernel's maps.
fn prepare() -> (Node, Kernel, Interfaces) {
    let lab = Lab::new(2);
    let index = |name| if_nametoindex(name).unwrap();
    let interfaces = Interfaces { ingress: index("backend1"), other: index("backend2") };
    let mut node = network::node(&interfaces);
    network::add_routes(&lab, &mut node, &interfaces);
    // The model's clock stands still, so no flow may die in the kernel, however long the test takes.
    node.flows.lifetime.fill(60_000);
    let kernel = Kernel::load(&node);
    // Interfaces and routes stay in the namespace of this thread.
    std::mem::forget(lab);
    (node, kernel, interfaces)
}

#[test]
fn a_lying_length_is_counted_as_what_there_was() {
    let (mut node, kernel, interfaces) = prepare();
    let to: SocketAddr = node.services[&3].address;
    let ip =
        Ipv6 { payload_length: Some(65535), ..Ipv6::new([0x2001, 0xdb8, 0, 0, 0, 0, 0, 2].into(), ipv6(to)) };
    let frame = Packet::new(ip, Tcp::new(1000, 80)).build();
    kernel.xdp_lb(&frame, interfaces.ingress);
    assert_eq!(kernel.ledger(0).bytes, node.xdp_lb(&frame, interfaces.ingress).bytes);
    kernel.xdp_decap(&frame);
    assert_eq!(kernel.decap_ledger().bytes, node.xdp_decap(&frame).bytes);
}

fn ipv6(address: SocketAddr) -> Ipv6Addr {
    match address.ip() {
        IpAddr::V6(address) => address,
        IpAddr::V4(address) => address.to_ipv6_mapped(),
    }
}

/// `TIDEGATE_TEST_FRAMES` makes the tests look longer.
fn frames() -> usize {
    std::env::var("TIDEGATE_TEST_FRAMES").map_or(FRAMES, |number| number.parse().unwrap())
}

#[track_caller]
fn check(frame: &[u8], expected: &Outcome, got: &Run, before: &Ledger, after: &Ledger) {
    if let Some(text) = disagreement(frame, expected, got) {
        panic!("{text}");
    }
    let count = |ledger: &Ledger, reason| ledger.packets.get(reason).copied().unwrap_or(0);
    let counted: Vec<_> =
        Reason::ALL.iter().filter(|reason| count(after, reason) != count(before, reason)).collect();
    assert_eq!(counted, [&expected.reason], "{}", hex(frame));
    let bytes = after.bytes - before.bytes;
    assert_eq!(bytes, expected.bytes, "bytes counted: {}", hex(frame));
}
