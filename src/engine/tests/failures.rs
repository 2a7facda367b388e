//! Operations that fail: what ran goes on, and the same call repeated does the rest.

use super::world::*;
use crate::{
    datapath::Step,
    model::{Mode, Service},
};

/// A node with something of everything, and a configuration that changes all of it.
fn busy_world() -> (World, Vec<Service>) {
    let mut world = World::new();
    world.desire_and_apply(&[
        in_mode(service(1, &[1, 2]), Mode::Nat),
        probed(service(2, &[3, 4])),
        in_mode(service(3, &[5]), Mode::Nat),
        service(5, &[8, 9]),
    ]);
    world.probe("s2", backend(3), UP);
    world.probe("s2", backend(4), UP);
    world.apply();
    world.probe("s2", backend(3), DOWN);
    world.route(backend(2), next_hop(3, 3));
    let next = vec![
        in_mode(service(1, &[2, 6]), Mode::Nat),
        probed(service(2, &[3, 4])),
        service(4, &[7]),
        in_mode(service(5, &[8, 9]), Mode::Dsr),
    ];
    (world, next)
}

fn operations_of_the_change() -> usize {
    let (mut world, next) = busy_world();
    let before = world.engine.datapath().checker.operations;
    world.desire_and_apply(&next);
    world.assert_as_new();
    world.engine.datapath().checker.operations - before
}

#[test]
fn a_failure_at_any_operation_is_made_good_by_the_next_call() {
    for fails_after in 0..operations_of_the_change() {
        let (mut world, next) = busy_world();
        world.desire(&next);
        let _ = world.apply_failing_after(fails_after);
        world.apply();
        world.assert_as_new();
    }
}

#[test]
fn a_failure_at_any_operation_may_be_followed_by_the_way_back() {
    for fails_after in 0..operations_of_the_change() {
        let (mut world, next) = busy_world();
        let former = world.desired.clone();
        world.desire(&next);
        let _ = world.apply_failing_after(fails_after);
        world.desire_and_apply(&former);
        world.assert_as_new();
    }
}

#[test]
fn a_death_at_any_operation_is_made_good_by_the_next_process() {
    for fails_after in 0..operations_of_the_change() {
        for back in [false, true] {
            let (mut world, next) = busy_world();
            let former = world.desired.clone();
            world.desire(&next);
            let _ = world.apply_failing_after(fails_after);
            if back {
                world.desired = former;
            }
            world.restart();
            world.apply();
            world.assert_as_new();
        }
    }
}

#[test]
fn a_failure_that_lasts_uses_up_no_ids_and_no_records() {
    let mut world = World::new();
    world.desire_and_apply(&[service(1, &[1])]);
    world.desire(&[service(1, &[1]), service(2, &[2, 3]), service(3, &[4])]);
    for fails_after in [6, 6, 6, 6, 5, 4, 3, 2] {
        world.apply_failing_after(fails_after).unwrap_err();
    }
    world.apply();
    assert_eq!((world.id(2), world.id(3)), (2, 3));
    world.assert_as_new();
}

#[test]
fn what_was_begun_and_is_not_wanted_any_more_is_cleared() {
    let mut world = World::new();
    world.desire(&[service(1, &[1, 2])]);
    world.apply_failing_after(4).unwrap_err();
    assert!(!world.memory().backends.is_empty(), "half of it is there");
    world.desire_and_apply(&[]);
    assert!(world.memory().backends.is_empty());
    world.assert_as_new();
}

#[test]
fn what_was_begun_is_begun_anew_with_less() {
    let mut world = World::new();
    world.desire(&[service(1, &[1, 2])]);
    world.apply_failing_after(4).unwrap_err();
    world.desire_and_apply(&[in_mode(service(1, &[2]), Mode::Dsr)]);
    assert_eq!(world.id(1), 1, "its ID was free to use");
    world.assert_as_new();
    world.desire(&[service(1, &[2]), service(2, &[3])]);
    world.apply_failing_after(2).unwrap_err();
    world.desire_and_apply(&[service(1, &[2]), Service { max_backends: 4, ..service(2, &[3]) }]);
    assert_eq!(world.memory().services[&world.id(2)].range.limit, 9);
}

#[test]
fn a_table_of_which_nothing_is_known_is_published_again() {
    let mut world = World::new();
    let both = [service(1, &[1]), service(2, &[2])];
    world.desire_and_apply(&both);
    world.desire(&[service(1, &[1, 3]), service(2, &[2, 4])]);
    world.apply_failing_after(2).unwrap_err();
    assert_eq!(world.led_to(1), [backend(1), backend(3)].into(), "the first of them was published");
    let (_, log) = world.desire_and_apply(&both);
    assert_eq!(log[0], Step::Publish(vec![1, 2]));
    world.assert_as_new();
}

#[test]
fn a_backend_that_returns_before_it_was_taken_away_stays() {
    for to in [next_hop(1, 1), next_hop(2, 2)] {
        for fails_after in 0..5 {
            let mut world = World::new();
            world.desire_and_apply(&[service(1, &[1, 2])]);
            world.desire(&[service(1, &[2])]);
            let _ = world.apply_failing_after(fails_after);
            world.desire(&[service(1, &[1, 2])]);
            world.route(backend(1), to.clone());
            world.apply();
            world.assert_as_new();
        }
    }
}

#[test]
fn a_larger_range_is_made_where_former_backends_still_rest() {
    let mut world = World::new();
    world.desire_and_apply(&[in_mode(service(1, &[1, 2]), Mode::Nat)]);
    world.desire(&[in_mode(service(1, &[3, 4]), Mode::Nat)]);
    world.apply_failing_after(6).unwrap_err();
    let before = world.memory().services[&1].range;
    let (_, log) = world.desire_and_apply(&[in_mode(service(1, &[5, 6]), Mode::Nat)]);
    assert!(log.contains(&Step::MoveService(1)));
    assert_ne!(world.memory().services[&1].range, before);
    world.assert_as_new();
}

#[test]
fn a_failure_while_a_range_grows_leaves_nothing_behind() {
    for fails_after in 0..30 {
        for restart in [false, true] {
            let mut world = World::new();
            world.desire_and_apply(&[service(1, &[1, 2])]);
            let grown = Service { max_backends: 8, ..service(1, &[1, 2, 3, 4, 5, 6]) };
            world.desire(&[service(2, &[1]), grown]);
            let _ = world.apply_failing_after(fails_after);
            if restart {
                world.restart();
            }
            world.desire_and_apply(&[service(1, &[1, 2]), service(2, &[4])]);
            world.assert_as_new();
        }
    }
}

#[test]
fn a_backend_rests_only_when_no_table_leads_to_it() {
    let mut world = World::on(crate::datapath::Memory::new(1, 64));
    world.desire_and_apply(&[service(1, &[1, 2])]);
    world.desire(&[service(1, &[2])]);
    world.apply_failing_after(0).unwrap_err();
    world.desire(&[in_mode(service(1, &[3]), Mode::Dsr)]);
    world.engine.apply().unwrap_err();
    assert_eq!(world.led_to(1), [backend(1), backend(2)].into(), "there is no room for the other mode");
    world.desire_and_apply(&[service(1, &[2])]);
    world.assert_as_new();
}

#[test]
fn nat_sources_of_what_was_only_begun_do_not_stay() {
    let mut world = World::new();
    world.apply();
    world.desire(&[in_mode(service(1, &[1, 2]), Mode::Nat)]);
    world.apply_failing_after(4).unwrap_err();
    assert_eq!(world.memory().nat_sources.len(), 1);
    world.desire_and_apply(&[in_mode(service(1, &[]), Mode::Nat)]);
    world.assert_as_new();
}
