//! Ranges of ports, and hashes of less than the whole flow.

use super::world::*;
use crate::{
    datapath::Step,
    model::{
        Backend, BackendAddress, HashMode, Mode, PortRange, Protocol, RANGES_PER_ADDRESS, Service,
        ServiceAddress,
    },
};

fn range(first: u16, last: u16) -> PortRange {
    PortRange::new(first, last).unwrap()
}

fn at(ports: PortRange) -> ServiceAddress {
    ServiceAddress { ports, ..vip(1) }
}

/// A service with these ports at the address of service 1, whose backends keep them.
fn ranged(name_of: &str, ports: PortRange, mode: Mode, backends: &[u8]) -> Service {
    let keeping =
        |&number: &u8| Backend { address: BackendAddress { port: 0, ..backend(number) }, weight: 1 };
    Service {
        name: name(name_of),
        address: at(ports),
        mode,
        backends: backends.iter().map(keeping).collect(),
        ..service(1, &[])
    }
}

#[test]
fn ranges_of_one_address_are_services_of_their_own() {
    let mut world = World::new();
    world.desire_and_apply(&[
        service(1, &[1]),
        ranged("narrow", range(8000, 8009), Mode::Nat, &[2]),
        ranged("any", PortRange::ANY, Mode::Ipip, &[3]),
    ]);
    let led_to = |ports| world.memory().lead(at(ports), 0).unwrap().address;
    assert_eq!(led_to(80.into()), backend(1));
    assert_eq!(led_to(range(8000, 8009)), BackendAddress { port: 0, ..backend(2) });
    assert_eq!(led_to(PortRange::ANY), BackendAddress { port: 0, ..backend(3) });
    let sources: Vec<_> = world.memory().nat_sources.iter().copied().collect();
    assert_eq!(
        sources,
        [(BackendAddress { port: 0, ..backend(2) }, Protocol::Tcp)],
        "any port of the backend"
    );
    let status = world.engine.status().unwrap();
    let ports: Vec<_> = status.services.iter().map(|service| (service.port, service.port_end)).collect();
    assert_eq!(ports, [(80, None), (8000, Some(8009)), (0, Some(65535))]);
    assert_eq!(status.services[2].service_address().to_string(), "192.0.2.1:*/tcp");
    world.assert_as_new();
}

#[test]
fn adopting_ranges_and_hashes_writes_nothing() {
    let mut world = World::new();
    let sticky = Service { hash: HashMode::Source { prefix: 24 }, ..service(2, &[4]) };
    world.desire_and_apply(&[
        ranged("narrow", range(8000, 8009), Mode::Nat, &[2]),
        ranged("any", PortRange::ANY, Mode::Ipip, &[3]),
        sticky,
    ]);
    world.restart();
    let (applied, log) = world.apply();
    assert_eq!((applied.writes, log), (0, vec![Step::RetainFlows]));
}

#[test]
fn the_last_of_a_backends_ranges_takes_its_nat_source_with_it() {
    let mut world = World::new();
    let wide = ranged("wide", range(1000, 1999), Mode::Nat, &[2]);
    let narrow = ranged("narrow", range(8000, 8009), Mode::Nat, &[2]);
    let keeping = BackendAddress { port: 0, ..backend(2) };
    world.desire_and_apply(&[wide.clone(), narrow]);
    world.desire_and_apply(&[wide]);
    assert!(world.memory().nat_sources.contains(&(keeping, Protocol::Tcp)));
    let (_, log) = world.desire_and_apply(&[]);
    assert!(log.contains(&Step::NatSource(keeping, false)), "{log:?}");
    world.assert_as_new();
}

#[test]
fn another_hash_is_one_write_and_keeps_the_service() {
    let mut world = World::new();
    world.desire_and_apply(&[in_mode(service(1, &[1, 2]), Mode::Nat)]);
    let id = world.id(1);
    for hash in
        [HashMode::Source { prefix: 32 }, HashMode::SourceDestination { prefix: 8 }, HashMode::FiveTuple]
    {
        let changed = Service { hash, ..in_mode(service(1, &[1, 2]), Mode::Nat) };
        assert_eq!(world.desire_and_apply(&[changed]).1, [Step::WritePolicy(id)]);
        assert_eq!(world.memory().services[&id].hash, hash);
    }
    world.assert_as_new();
}

#[test]
fn all_ranges_of_an_address_can_be_replaced_at_once() {
    let mut world = World::new();
    let all = |base: u16| -> Vec<Service> {
        (0..RANGES_PER_ADDRESS as u16)
            .map(|n| {
                ranged(&format!("r{base}-{n}"), range(base + 10 * n, base + 10 * n + 5), Mode::Ipip, &[1])
            })
            .collect()
    };
    world.desire_and_apply(&all(1000));
    world.desire_and_apply(&all(2000));
    assert_eq!(world.memory().bindings.len(), RANGES_PER_ADDRESS);
    world.assert_as_new();
}

#[test]
fn where_there_is_room_the_new_range_is_bound_before_the_old_one_goes() {
    let mut world = World::new();
    world.desire_and_apply(&[ranged("a", range(8000, 8099), Mode::Ipip, &[1])]);
    let (_, log) = world.desire_and_apply(&[ranged("a", range(8000, 8199), Mode::Ipip, &[1])]);
    let position = |wanted: &dyn Fn(&Step) -> bool| log.iter().position(wanted).unwrap();
    let bound = position(&|step| matches!(step, Step::Bind(address, _) if *address == at(range(8000, 8199))));
    let unbound = position(&|step| *step == Step::Unbind(at(range(8000, 8099))));
    assert!(bound < unbound, "{log:?}");
}
