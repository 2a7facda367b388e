//! Changes of a running node: what is written, and what is not.

use super::world::*;
use crate::{
    datapath::{Membership, Step},
    model::{Backend, BackendAddress, Mode, OnNoBackend, Service},
};

#[test]
fn other_weights_publish_a_table_and_write_no_record() {
    let mut world = World::new();
    world.desire_and_apply(&[service(1, &[1, 2])]);
    let mut heavier = service(1, &[1, 2]);
    heavier.backends[0].weight = 3;
    let (_, log) = world.desire_and_apply(&[heavier]);
    assert_eq!(log, [Step::Publish(vec![1])]);
    world.assert_as_new();
}

#[test]
fn swapped_ports_are_right_at_once() {
    let at = |host: u8, port: u16, weight: u16| Backend {
        address: BackendAddress { port, ..backend(host) },
        weight,
    };
    let with = |backends: Vec<Backend>| vec![Service { backends, mode: Mode::Nat, ..service(1, &[]) }];
    let mut world = World::new();
    world.desire_and_apply(&with(vec![at(1, 8080, 1), at(2, 9090, 5)]));
    world.desire_and_apply(&with(vec![at(1, 9090, 1), at(2, 8080, 5)]));
    assert_eq!(world.led_to(1), [at(1, 9090, 1).address, at(2, 8080, 1).address].into());
    world.assert_as_new();
    assert_eq!(world.desire_and_apply(&with(vec![at(2, 8080, 5), at(1, 9090, 1)])).1, []);
}

#[test]
fn a_backend_that_went_gets_no_packet_and_is_cleared_last() {
    let mut world = World::new();
    world.desire_and_apply(&[in_mode(service(1, &[1, 2]), Mode::Nat)]);
    let (_, log) = world.desire_and_apply(&[in_mode(service(1, &[2]), Mode::Nat)]);
    assert_eq!(
        log,
        [
            Step::Publish(vec![1]),
            Step::WriteLink(1, Membership::Unused),
            Step::NatSource(backend(1), false),
            Step::GracePeriod,
            Step::RetainFlows,
            Step::WriteBackend(1),
        ]
    );
    world.assert_as_new();
    world.desire_and_apply(&[in_mode(service(1, &[1, 2]), Mode::Nat)]);
    world.assert_as_new();
}

#[test]
fn a_renamed_service_writes_nothing_and_keeps_its_health() {
    let mut world = World::new();
    world.desire_and_apply(&[probed(service(1, &[1, 2]))]);
    world.probe("s1", backend(1), UP);
    world.apply();
    let renamed = Service { name: name("web"), ..probed(service(1, &[1, 2])) };
    assert_eq!(world.desire_and_apply(&[renamed]).1, []);
    assert_eq!(world.led_to(1), [backend(1)].into());
    world.probe("web", backend(1), DOWN);
    world.apply();
    assert_eq!(world.led_to(1), [].into());
    assert_eq!(world.engine.status().unwrap().services[0].name, name("web"));
}

#[test]
fn another_mode_replaces_the_service_in_one_step() {
    let mut world = World::new();
    world.desire_and_apply(&[in_mode(service(1, &[1]), Mode::Nat)]);
    let (_, log) = world.desire_and_apply(&[service(1, &[1])]);
    assert_eq!(
        log,
        [
            Step::WriteBackend(6),
            Step::WriteService(2),
            Step::Publish(vec![2]),
            told(1, Some(2)),
            Step::Bind(vip(1), 2),
            Step::NatSource(backend(1), false),
            Step::GracePeriod,
            Step::RetainFlows,
            Step::WriteBackend(1),
            Step::ClearService(1),
        ]
    );
    world.assert_as_new();
}

#[test]
fn the_next_hop_of_a_record_in_use_is_replaced_while_no_packet_trusts_it() {
    let mut world = World::new();
    world.desire_and_apply(&[service(1, &[1]), service(2, &[1, 2])]);
    world.route(backend(1), next_hop(2, 7));
    let (_, log) = world.apply();
    let up = Membership::Member(UP);
    assert_eq!(
        log,
        [
            Step::WriteLink(1, up),
            Step::WriteLink(6, up),
            Step::GracePeriod,
            Step::WriteBackend(1),
            Step::WriteBackend(6),
        ],
        "one grace period serves for all"
    );
    world.assert_as_new();
}

#[test]
fn a_link_that_alone_differs_is_one_store() {
    let mut world = World::new();
    world.desire_and_apply(&[service(1, &[1])]);
    world.route(backend(1), next_hop(2, 1));
    assert_eq!(world.apply().1, [Step::WriteLink(1, Membership::Member(UP))]);
    assert_eq!(world.record(1, backend(1)).unwrap().link.interface, 2);
    world.assert_as_new();
}

#[test]
fn a_next_hop_that_is_lost_leaves_the_way_through_the_kernel() {
    let mut world = World::new();
    world.desire_and_apply(&[service(1, &[1])]);
    world.route(backend(1), unresolved(1));
    world.apply();
    assert!(!world.record(1, backend(1)).unwrap().link.flags.resolved);
    assert_eq!(world.led_to(1), [backend(1)].into());
    world.assert_as_new();
    world.route(backend(30), next_hop(2, 7));
    assert!(!world.engine.is_dirty(), "the way to somebody else");
}

#[test]
fn a_service_that_was_moved_to_another_mode_with_other_backends_follows() {
    let mut world = World::new();
    world.desire_and_apply(&[probed(service(1, &[1, 2]))]);
    world.probe("s1", backend(2), UP);
    world.apply();
    world.desire(&[probed(in_mode(service(1, &[2, 3]), Mode::Dsr))]);
    world.probe("s1", backend(2), DOWN);
    world.apply();
    world.assert_as_new();
}

#[test]
fn ipv6_services_and_backends_are_written_as_such() {
    let mut world = World::new();
    let mut six = service(1, &[]);
    six.backends = vec![Backend {
        address: BackendAddress { address: "2001:db8::7".parse().unwrap(), port: 80 },
        weight: 1,
    }];
    world.desire_and_apply(&[six.clone()]);
    let record = world.record(1, six.backends[0].address).unwrap();
    assert!(record.link.ipv6 && record.source.is_ipv6() && !record.inner_ipv6);
    assert!(!record.link.flags.resolved, "nothing is known of the way there");
    world.assert_as_new();
}

#[test]
fn what_becomes_of_packets_without_a_backend_is_changed_by_one_store() {
    let mut world = World::new();
    world.desire_and_apply(&[service(1, &[1])]);
    let rejecting = [Service { on_no_backend: OnNoBackend::Reject, ..service(1, &[1]) }];
    assert_eq!(world.desire_and_apply(&rejecting).1, [Step::WritePolicy(1)]);
    assert_eq!(world.desire_and_apply(&rejecting).1, []);
    world.assert_as_new();
}
