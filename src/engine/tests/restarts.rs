//! Starts and restarts: what is pinned is taken over, and nobody is answered by another's backend.

use super::world::*;
use crate::{
    datapath::{FlowOwner, Memory, Step},
    model::Mode,
};

#[test]
fn a_fresh_start_writes_publishes_and_binds_in_this_order() {
    let mut world = World::new();
    let (applied, log) = world.desire_and_apply(&[service(1, &[1, 2]), in_mode(service(2, &[3]), Mode::Nat)]);
    assert_eq!(
        log,
        [
            Step::RetainFlows,
            Step::WriteBackend(1),
            Step::WriteBackend(2),
            Step::WriteService(1),
            Step::WriteBackend(6),
            Step::WriteService(2),
            Step::NatSource(backend(3), true),
            Step::Publish(vec![1, 2]),
            told(1, Some(1)),
            Step::Bind(vip(1), 1),
            told(2, Some(2)),
            Step::Bind(vip(2), 2),
        ]
    );
    assert_eq!(applied.tables, 2);
    assert_eq!(world.led_to(1), [backend(1), backend(2)].into());
    world.assert_as_new();
}

#[test]
fn a_restart_with_nothing_changed_writes_nothing() {
    let mut world = World::new();
    world.desire_and_apply(&[probed(service(1, &[1, 2])), in_mode(service(2, &[3]), Mode::Nat)]);
    world.probe("s1", backend(1), UP);
    world.apply();
    let writes = world.memory().services.clone();
    world.restart();
    let (applied, log) = world.apply();
    assert_eq!((applied.writes, log), (0, vec![Step::RetainFlows]));
    assert_eq!(world.memory().services, writes);
    assert_eq!(world.engine.status().unwrap().publication.adopted_services, 2);
    assert!(!world.engine.is_dirty());
}

#[test]
fn a_restart_keeps_what_health_checks_found() {
    let mut world = World::new();
    world.desire_and_apply(&[probed(service(1, &[1, 2]))]);
    world.probe("s1", backend(1), UP);
    world.apply();
    world.restart();
    let known: Vec<_> = world.engine.probe_targets().iter().map(|target| target.known).collect();
    assert_eq!(known, [Some(UP), Some(DOWN)]);
    assert_eq!(world.apply().0.writes, 0);
    assert_eq!(world.led_to(1), [backend(1)].into());
}

#[test]
fn no_id_is_captured_over_restarts() {
    let [a, b, c] = [(1, [1, 2]), (2, [3, 4]), (3, [5, 6])]
        .map(|(n, backends)| in_mode(service(n, &backends), Mode::Nat));
    let mut world = World::new();
    world.desire_and_apply(&[a.clone(), b.clone()]);
    let (id_a, id_b) = (world.id(1), world.id(2));
    assert!(world.memory().flows.iter().any(|flow| flow.service == id_a), "packets made flows");
    world.desired = vec![b.clone()];
    world.restart();
    world.apply();
    assert!(!world.memory().flows.iter().any(|flow| flow.service == id_a));
    world.desired = vec![c, b, a];
    world.restart();
    world.apply();
    assert_eq!(world.id(2), id_b);
    assert!(world.id(1) != id_a && world.id(3) != id_a, "an ID is reused as late as possible");
    assert_eq!(world.led_to(3), [backend(5), backend(6)].into());
    world.assert_as_new();
}

#[test]
fn another_order_changes_nothing() {
    let mut world = World::new();
    world.desire_and_apply(&[service(1, &[1, 2]), service(2, &[3, 4])]);
    let (applied, log) = world.desire_and_apply(&[service(2, &[4, 3]), service(1, &[2, 1])]);
    assert_eq!((applied.writes, log), (0, vec![]));
    let names: Vec<_> = world.engine.status().unwrap().services.into_iter().map(|s| s.name).collect();
    assert_eq!(names, [name("s2"), name("s1")], "the status follows the configuration");
}

#[test]
fn two_nodes_with_the_same_set_build_the_same_tables() {
    let mut first = World::new();
    first.desire_and_apply(&[service(1, &[9])]);
    first.desire_and_apply(&[service(2, &[5]), service(1, &[1, 9])]);
    first.desire_and_apply(&[service(2, &[5, 6]), service(1, &[2, 1])]);
    first.assert_as_new();
}

#[test]
fn nothing_is_taken_away_before_a_configuration_is_known() {
    let mut world = World::new();
    world.desire_and_apply(&[service(1, &[1])]);
    let mut datapath = world.engine.datapath().clone();
    datapath.memory.log.clear();
    let mut engine = crate::engine::Engine::adopt(datapath).unwrap();
    engine.apply().unwrap();
    assert_eq!(engine.datapath().memory.log, [Step::RetainFlows]);
}

#[test]
fn a_service_that_was_removed_is_cleared_after_a_grace_period() {
    let mut world = World::new();
    world.desire_and_apply(&[in_mode(service(1, &[1]), Mode::Nat)]);
    let (_, log) = world.desire_and_apply(&[]);
    assert_eq!(
        log,
        [
            Step::Unbind(vip(1)),
            told(1, None),
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
fn flows_of_nobody_are_removed_before_their_id_is_given_out() {
    let mut memory = Memory::new(4, 64);
    memory.flows.push(FlowOwner { service: 1, backend: 1 });
    let mut world = World::on(memory);
    world.desire_and_apply(&[service(1, &[1])]);
    assert_eq!(world.memory().flows, []);
}
