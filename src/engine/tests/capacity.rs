//! Nodes that are full: a clear error, the others go on, and room that comes free is used.

use super::world::*;
use crate::{
    datapath::{Memory, Step},
    engine::EngineError,
    model::{Mode, Service},
};

#[test]
fn a_service_without_an_id_stops_nobody() {
    let mut world = World::on(Memory::new(2, 64));
    let all = [service(1, &[1]), service(2, &[2]), service(3, &[3]), probed(service(4, &[4]))];
    world.desire_and_apply(&[service(2, &[2]), probed(service(4, &[4]))]);
    world.desire(&all);
    world.probe("s4", backend(4), UP);
    let error = world.engine.apply().unwrap_err();
    assert!(matches!(error, EngineError::NoRoomForSeveral { others: 1, .. }));
    let text = error.to_string();
    assert!(text.contains("no room for service s1: all 2 service IDs"), "{text}");
    assert_eq!(world.led_to(4), [backend(4)].into(), "its verdict was applied");
    assert!(world.engine.is_dirty());
    world.memory_mut().log.clear();
    world.engine.apply().unwrap_err();
    assert_eq!(world.memory().log, [], "trying again writes nothing");
    world.desire_and_apply(&all[..2]);
    world.assert_as_new();
}

#[test]
fn a_full_node_can_be_given_other_services() {
    let mut world = World::on(Memory::new(2, 10));
    world.desire_and_apply(&[service(1, &[1]), service(2, &[2])]);
    world.desire_and_apply(&[service(3, &[3]), service(4, &[4])]);
    assert_eq!(world.led_to(4), [backend(4)].into());
    world.assert_as_new();
}

#[test]
fn records_run_out_before_ids() {
    let mut world = World::on(Memory::new(8, 8));
    world.desire(&[service(1, &[1]), service(2, &[2]), service(3, &[3])]);
    let error = world.engine.apply().unwrap_err().to_string();
    assert!(error.contains("the 5 backend records of service s2 in the 8 of the pinned maps"), "{error}");
    assert_eq!(world.led_to(1), [backend(1)].into());
    world.desire_and_apply(&[service(3, &[3])]);
    assert_eq!(world.id(3), 2, "those that found no records took no ID");
    world.assert_as_new();
}

#[test]
fn records_to_the_last_one_are_used() {
    let mut world = World::on(Memory::new(8, 9));
    world.desire_and_apply(&[service(1, &[1]), service(2, &[2])]);
    world.assert_as_new();
}

#[test]
fn a_service_that_cannot_grow_uses_what_room_it_has() {
    let mut world = World::on(Memory::new(8, 8));
    world.desire_and_apply(&[probed(service(1, &[1, 2]))]);
    let grown = Service { max_backends: 8, ..probed(service(1, &[1, 2, 3, 4, 5, 6])) };
    world.desire(&[grown]);
    for number in [1, 3, 6] {
        world.probe("s1", backend(number), UP);
    }
    let error = world.engine.apply().unwrap_err().to_string();
    assert!(error.contains("the 17 backend records of service s1"), "{error}");
    assert_eq!(world.led_to(1), [backend(1), backend(3)].into());
    world.desire_and_apply(&[probed(service(1, &[3]))]);
    world.assert_as_new();
}

#[test]
fn a_mode_that_cannot_be_changed_for_want_of_room_leaves_a_service_that_follows_its_health() {
    let mut world = World::on(Memory::new(1, 64));
    world.desire_and_apply(&[probed(service(1, &[1, 2]))]);
    for number in [1, 2] {
        world.probe("s1", backend(number), UP);
    }
    world.apply();
    world.desire(&[probed(in_mode(service(1, &[1, 2]), Mode::Dsr))]);
    world.engine.apply().unwrap_err();
    assert_eq!(world.led_to(1), [backend(1), backend(2)].into());
    world.probe("s1", backend(1), DOWN);
    world.engine.apply().unwrap_err();
    assert_eq!(world.led_to(1), [backend(2)].into());
    assert_eq!(world.engine.status().unwrap().services[0].mode, Mode::Ipip, "what runs");
    world.desire(&[probed(in_mode(service(1, &[3]), Mode::Dsr))]);
    world.engine.apply().unwrap_err();
    assert_eq!(world.led_to(1), [backend(2)].into(), "better than nothing");
    world.desire(&[in_mode(service(1, &[]), Mode::Dsr)]);
    world.engine.apply().unwrap_err();
    assert_eq!(world.led_to(1), [].into(), "nothing was asked for");
    world.desire_and_apply(&[probed(service(1, &[2]))]);
    world.assert_as_new();
}

#[test]
fn modes_change_one_after_the_other_where_there_is_little_room() {
    let mut world = World::on(Memory::new(4, 64));
    let three = [1, 2, 3].map(|number| service(number, &[number]));
    world.desire_and_apply(&three);
    let (_, log) = world.desire_and_apply(&three.map(|service| in_mode(service, Mode::Nat)));
    assert_eq!(log.iter().filter(|step| **step == Step::GracePeriod).count(), 3);
    world.assert_as_new();
}

#[test]
fn ids_are_given_out_in_turn_over_restarts() {
    let mut world = World::on(Memory::new(4, 64));
    let mut ids = Vec::new();
    for number in 1..=9 {
        world.desired = vec![service(number, &[number])];
        world.restart();
        world.apply();
        ids.push(world.id(number));
    }
    assert_eq!(ids, [1, 2, 3, 4, 1, 2, 3, 4, 1]);
}
