//! Pinned maps that are not as an engine leaves them.

use super::world::*;
use crate::{
    datapath::{FlowOwner, Membership, Memory, RecordRange, Slot, Step},
    model::Mode,
};

fn pinned() -> Memory {
    let mut world = World::new();
    world.desire_and_apply(&[in_mode(service(1, &[1, 2]), Mode::Nat), service(2, &[3])]);
    world.memory().clone()
}

/// A node that finds this pinned, where these addresses lead astray.
fn world_on(memory: Memory, strays: &[u8]) -> World {
    let mut world = World::on(memory);
    for &stray in strays {
        world.engine.datapath_mut().checker.expect_stray(vip(stray));
    }
    let backends = |numbers: &[u8]| numbers.iter().map(|&number| backend(number)).collect::<Vec<_>>();
    world.engine.datapath_mut().checker.allow(vip(1), backends(&[1, 2]).into_iter());
    world.engine.datapath_mut().checker.allow(vip(2), backends(&[3]).into_iter());
    world
}

#[test]
fn an_address_that_leads_to_anothers_service_is_unbound_first() {
    let mut memory = pinned();
    memory.bindings.insert(vip(7), 2);
    let mut world = world_on(memory, &[7]);
    let services = [in_mode(service(1, &[1, 2]), Mode::Nat), service(2, &[3]), service(7, &[7])];
    let (_, log) = world.desire_and_apply(&services);
    assert_eq!(log[0], Step::Unbind(vip(7)));
    assert_eq!((world.led_to(7), world.id(2)), ([backend(7)].into(), 2));
    world.assert_as_new();
}

#[test]
fn an_address_that_leads_nowhere_is_unbound() {
    let mut memory = pinned();
    memory.bindings.insert(vip(7), 9);
    let mut world = world_on(memory, &[7]);
    world.desire_and_apply(&[service(2, &[3])]);
    world.assert_as_new();
}

#[test]
fn what_no_address_leads_to_is_cleared() {
    let mut memory = pinned();
    memory.bindings.remove(&vip(1));
    memory.tables.insert(9, vec![Slot::settled(3)]);
    memory.flows.push(FlowOwner { service: 9, backend: 3 });
    let mut world = world_on(memory, &[]);
    world.desire_and_apply(&[service(2, &[3])]);
    assert_eq!(world.memory().flows, []);
    world.assert_as_new();
}

#[test]
fn ids_that_are_to_be_cleared_are_not_given_out() {
    let mut memory = pinned();
    memory.bindings.clear();
    let mut world = world_on(memory, &[]);
    world.desire_and_apply(&[service(5, &[5])]);
    assert_eq!(world.id(5), 3);
    world.assert_as_new();
}

#[test]
fn records_that_belong_to_nobody_are_cleared_and_not_written_over() {
    let mut memory = pinned();
    let record = memory.backends[&1].clone();
    memory.backends.extend([(11, record.clone()), (12, record.clone()), (100, record)]);
    let mut world = world_on(memory, &[]);
    let services = [in_mode(service(1, &[1, 2]), Mode::Nat), service(2, &[3]), service(3, &[4])];
    let (_, log) = world.desire_and_apply(&services);
    let cleared = |record| log.iter().position(|step| *step == Step::WriteBackend(record)).unwrap();
    assert_eq!(log[0], Step::GracePeriod);
    assert!([11, 12, 100].map(cleared).iter().all(|&position| position < 5), "before anything else: {log:?}");
    world.assert_as_new();
    world.desire_and_apply(&[service(9, &[9])]);
    world.assert_as_new();
}

#[test]
fn services_that_share_records_are_made_anew() {
    let mut memory = pinned();
    let range = memory.services[&1].range;
    memory.services.get_mut(&2).unwrap().range = RecordRange { base: range.base + 1, limit: range.limit };
    let mut world = world_on(memory, &[1, 2]);
    world.desire_and_apply(&[in_mode(service(1, &[1, 2]), Mode::Nat), service(2, &[3])]);
    assert_eq!(world.led_to(2), [backend(3)].into());
    world.restart();
    world.apply();
    world.assert_as_new();
}

#[test]
fn a_table_or_record_that_differs_is_put_right() {
    let mut memory = pinned();
    memory.tables.get_mut(&1).unwrap()[7] = Slot::settled(4);
    memory.tables.remove(&2);
    memory.nat_sources.insert((backend(30), vip(1).protocol));
    memory.nat_sources.remove(&(backend(1), vip(1).protocol));
    let mut unused = memory.backends[&1].clone();
    unused.link.state = Membership::Unused;
    memory.backends.insert(3, unused);
    let mut world = world_on(memory, &[1, 2]);
    world.desire_and_apply(&[in_mode(service(1, &[1, 2]), Mode::Nat), service(2, &[3])]);
    assert_eq!(world.led_to(1), [backend(1), backend(2)].into(), "a member counts, not what was left of one");
    world.assert_as_new();
}
