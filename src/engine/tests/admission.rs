//! Who may use services: nothing is written without a change, and no step on the way opens a gap.

use std::net::IpAddr;

use super::world::*;
use crate::{
    datapath::{Memory, Step},
    model::{Limits, Mode, NodeAdmission, Prefix, Rate, Service, ServiceAdmission, Sources},
};

fn prefixes(text: &str) -> Vec<Prefix> {
    text.split_whitespace().map(|prefix| prefix.parse().unwrap()).collect()
}

fn blocking(text: &str) -> NodeAdmission {
    NodeAdmission { blocklist: prefixes(text), ..NodeAdmission::default() }
}

fn allow(text: &str) -> Option<Sources> {
    Some(Sources::Allow(prefixes(text).into()))
}

fn deny(text: &str) -> Option<Sources> {
    Some(Sources::Deny(prefixes(text).into()))
}

fn for_sources(sources: Option<Sources>) -> Service {
    let admission = ServiceAdmission { sources, ..ServiceAdmission::default() };
    Service { admission, ..service(1, &[1]) }
}

fn limited(per_second: u32) -> Service {
    let packets = Some(Rate { per_second, burst: 10 });
    let limits = Limits { packets, ..Limits::default() };
    Service { admission: ServiceAdmission { sources: None, limits }, ..service(1, &[1]) }
}

fn source(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// What an engine does that has just adopted, less its sweep of the flow table.
fn changes(world: &mut World) -> Vec<Step> {
    world.apply().1.into_iter().filter(|step| *step != Step::RetainFlows).collect()
}

/// What the packet path makes of a source that wants to use service 1. `None` where there is no such service.
fn admits(memory: &Memory, from: IpAddr) -> Option<bool> {
    let id = *memory.bindings.get(&vip(1))?;
    let asks = |id: u16| {
        let checks = memory.admission.get(&id).map(|record| record.checks).unwrap_or_default();
        let checked = if from.is_ipv6() { checks.sources_v6 } else { checks.sources_v4 };
        let list = memory.sources.get(&(id, from.is_ipv6()));
        assert!(!checked || list.is_some(), "a record names a list that is not there");
        !checked || list.is_some_and(|list| list.admits(from))
    };
    let of_node = memory.admission.get(&0).map(|record| record.checks).unwrap_or_default();
    Some(asks(0) && (!of_node.services || asks(id)))
}

#[test]
fn lists_are_adopted_without_a_write_and_replaced_when_they_differ() {
    let mut world = World::new();
    world.engine.set_admission(&blocking("192.0.2.0/24 2001:db8::/32"));
    world.desire_and_apply(&[for_sources(allow("203.0.113.0/24"))]);
    assert_eq!(admits(world.memory(), source("203.0.113.1")), Some(true));
    assert_eq!(admits(world.memory(), source("198.51.100.1")), Some(false));
    assert_eq!(world.apply().0.writes, 0);

    world.restart();
    world.engine.set_admission(&blocking("2001:db8::/32 192.0.2.0/24"));
    assert_eq!(world.apply().0.writes, 0, "another order of the same list");

    world.restart();
    world.engine.set_admission(&blocking("192.0.2.0/25 2001:db8::/32"));
    assert_eq!(changes(&mut world), [Step::Sources(0, true)], "one family differs");
    world.restart();
    world.engine.set_admission(&blocking("2001:db8::/32"));
    let expected = [Step::Admission(0), Step::GracePeriod, Step::Sources(0, false)];
    assert_eq!(changes(&mut world), expected, "nobody asks for a list that goes");
    world.assert_as_new();
}

#[test]
fn no_step_of_a_change_opens_a_gap_wherever_it_is_broken_off() {
    let variants = [
        for_sources(None),
        for_sources(allow("203.0.113.0/24")),
        for_sources(allow("203.0.113.0/25 198.51.100.0/24")),
        for_sources(deny("192.0.2.0/24")),
        in_mode(for_sources(deny("192.0.2.0/24 198.51.100.7/32")), Mode::Dsr),
    ];
    let nodes = [NodeAdmission::default(), blocking("192.0.2.128/25"), blocking("198.51.100.0/24")];
    let sources =
        ["203.0.113.1", "203.0.113.200", "198.51.100.7", "198.51.100.9", "192.0.2.1", "192.0.2.200"];
    let reach = |node: &NodeAdmission, service: &Service| {
        let mut world = World::new();
        world.engine.set_admission(node);
        world.desire_and_apply(std::slice::from_ref(service));
        world
    };
    for (from, to) in variants.iter().flat_map(|from| variants.iter().map(move |to| (from, to))) {
        /* Either the service or the node changes. */
        let changes_of_node = nodes.iter().zip(nodes.iter().cycle().skip(1)).filter(|_| from == to);
        for (node, next) in nodes.iter().zip(&nodes).chain(changes_of_node) {
            let begin = reach(node, from);
            let end = reach(next, to);
            for operations in 0.. {
                let mut world = reach(node, from);
                world.engine.set_admission(next);
                world.desire(std::slice::from_ref(to));
                let done = world.apply_failing_after(operations).is_ok();
                for text in sources {
                    let verdict = |world: &World| admits(world.memory(), source(text)).unwrap();
                    let (before, now, after) = (verdict(&begin), verdict(&world), verdict(&end));
                    assert!(
                        before || after || !now,
                        "{text} passes after {operations} operations: {from:?} {to:?}"
                    );
                    assert!(!done || now == after, "{text}");
                }
                if done {
                    break;
                }
                world.apply();
                assert_eq!(world.apply().0.writes, 0, "a repeated call does the rest");
                let left = |world: &World| world.memory().sources.values().cloned().collect::<Vec<_>>();
                assert_eq!(left(&world), left(&end), "nothing is left over");
            }
        }
    }
}

#[test]
fn a_service_is_never_bound_without_its_checks() {
    let wanted = [for_sources(allow("203.0.113.0/24"))];
    for operations in 0.. {
        let mut world = World::new();
        world.desire(&wanted);
        let done = world.apply_failing_after(operations).is_ok();
        assert_ne!(
            admits(world.memory(), source("198.51.100.1")),
            Some(true),
            "after {operations} operations"
        );
        if done {
            break;
        }
    }
}

#[test]
fn what_went_leaves_nothing_for_the_next_owner_of_its_id() {
    let mut world = World::on(Memory::new(1, 64));
    world.desire_and_apply(&[Service {
        admission: limited(5).admission,
        ..for_sources(deny("192.0.2.0/24"))
    }]);
    world.desire_and_apply(&[for_sources(deny("192.0.2.0/24"))]);
    world.desire_and_apply(&[]);
    assert!(world.memory().sources.is_empty() && world.memory().admission.is_empty());
    world.desire_and_apply(&[service(1, &[1])]);
    assert_eq!(admits(world.memory(), source("192.0.2.1")), Some(true));
}

#[test]
fn what_an_earlier_process_left_under_no_service_is_cleared() {
    let mut world = World::new();
    world.desire_and_apply(&[for_sources(deny("192.0.2.0/24"))]);
    let mut memory = world.memory().clone();
    let list = memory.sources.values().next().unwrap().clone();
    let record = *memory.admission.values().last().unwrap();
    memory.sources.insert((9, false), list);
    memory.admission.insert(9, record);
    let mut world = World::on(memory);
    world.desire_and_apply(&[for_sources(deny("192.0.2.0/24"))]);
    assert!(!world.memory().sources.contains_key(&(9, false)) && !world.memory().admission.contains_key(&9));
    assert_eq!(world.apply().0.writes, 0);
}

#[test]
fn limits_are_written_once_and_again_when_they_change() {
    let mut world = World::new();
    world.desire_and_apply(&[limited(5)]);
    let id = world.id(1);
    let first = world.memory().admission[&id];
    assert!(first.checks.limits && world.memory().admission[&0].checks.services);
    world.restart();
    assert_eq!(world.apply().0.writes, 0);
    assert_eq!(world.desire_and_apply(&[limited(6)]).1, [Step::Admission(id)]);
    assert_ne!(world.memory().admission[&id], first);
    let (_, log) = world.desire_and_apply(&[service(1, &[1])]);
    assert_eq!(log, [Step::Admission(id), Step::Admission(0)], "packets do not look for limits any more");
}

#[test]
fn a_list_that_cannot_be_replaced_does_not_keep_a_backend_that_died_in_use() {
    let mut world = World::new();
    let probed = probed(service(1, &[1, 2]));
    world.desire(std::slice::from_ref(&probed));
    world.probe("s1", backend(1), UP);
    world.probe("s1", backend(2), UP);
    world.apply();
    world.engine.set_admission(&blocking("192.0.2.0/24"));
    world.probe("s1", backend(1), DOWN);
    /* The very first operation, which replaces the list, fails. */
    world.memory_mut().fail_sources = true;
    assert!(world.engine.apply().is_err());
    assert_eq!(world.led_to(1), [backend(2)].into(), "the dead backend is out");
    assert!(world.engine.is_dirty(), "it is tried again");
    world.memory_mut().fail_sources = false;
    world.apply();
    assert_eq!(admits(world.memory(), source("192.0.2.1")), Some(false));
}
