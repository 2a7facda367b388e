//! The status says what the datapath does.

use super::world::*;
use crate::model::{Mode, status::NextHopStatus};

#[test]
fn the_status_agrees_with_the_datapath() {
    let mut world = World::new();
    let desired = [in_mode(service(2, &[3, 1]), Mode::Nat), probed(service(1, &[1, 2]))];
    world.desire_and_apply(&desired);
    world.probe("s1", backend(2), UP);
    world.route(backend(1), unresolved(1));
    world.apply();
    let status = world.engine.status().unwrap();
    assert_eq!(status.services.iter().map(|s| s.name.clone()).collect::<Vec<_>>(), [name("s2"), name("s1")]);
    for (shown, wanted) in status.services.iter().zip(&desired) {
        let number = if shown.name == name("s1") { 1 } else { 2 };
        let table = &world.memory().tables[&world.id(number)];
        assert_eq!(shown.id, u32::from(world.id(number)));
        assert_eq!((shown.slots as usize, shown.mode), (table.len(), wanted.mode));
        assert_eq!(shown.backends.len(), wanted.backends.len());
        for (shown, wanted) in shown.backends.iter().zip(&wanted.backends) {
            assert_eq!((shown.address, shown.port), (wanted.address.address, wanted.address.port));
            let slots = table.iter().filter(|slot| u32::from(slot.current) == shown.id).count();
            assert_eq!(shown.slots as usize, slots);
            let record = world.record(number, wanted.address).unwrap();
            let resolved = matches!(shown.next_hop, NextHopStatus::Resolved { .. });
            assert_eq!(resolved, record.link.flags.resolved);
        }
    }
    let states: Vec<_> = status.services[1].backends.iter().map(|backend| backend.state).collect();
    assert_eq!(states, [DOWN, UP]);
}

#[test]
fn backends_and_services_that_went_do_not_linger() {
    let mut world = World::new();
    world.desire_and_apply(&[service(1, &[1, 2]), service(2, &[3])]);
    world.desire_and_apply(&[service(1, &[2])]);
    let status = world.engine.status().unwrap();
    assert_eq!(status.services.len(), 1);
    assert_eq!(status.services[0].backends.len(), 1);
    assert_eq!(status.services[0].backends[0].slots, status.services[0].slots);
}

#[test]
fn a_verdict_that_could_not_be_applied_is_not_shown_as_if_it_were() {
    let mut world = World::new();
    world.desire_and_apply(&[probed(service(1, &[1]))]);
    world.probe("s1", backend(1), UP);
    world.apply_failing_after(0).unwrap_err();
    assert_eq!(world.engine.status().unwrap().services[0].backends[0].state, DOWN);
    world.apply();
    assert_eq!(world.engine.status().unwrap().services[0].backends[0].state, UP);
}

#[test]
fn writes_and_tables_are_those_of_this_process() {
    let mut world = World::new();
    let (applied, _) = world.desire_and_apply(&[service(1, &[1])]);
    let publication = world.engine.status().unwrap().publication;
    assert_eq!((publication.adopted_services, publication.tables), (0, 1));
    assert_eq!(publication.writes, applied.writes);
    assert!(applied.writes > 0);
}
