//! Random histories: configurations, verdicts, next hops, failures and deaths, with the checker watching each operation.

use proptest::{prelude::*, sample::subsequence};

use super::world::*;
use crate::{
    datapath::Memory,
    engine::EngineError,
    model::{Backend, BackendState, HealthCheck, InitialState, Mode, NextHop, Service},
};

#[derive(Clone, Debug)]
enum Event {
    Desire(Vec<Service>),
    /// A backend of a service, by name, is found in this state.
    Probe(u8, u8, BackendState),
    Route(u8, NextHop),
    Apply,
    /// The operation after so many fails.
    Fail(usize),
    Kill,
}

fn modes() -> impl Strategy<Value = Mode> {
    prop_oneof![3 => Just(Mode::Nat), 1 => Just(Mode::Ipip), 1 => Just(Mode::Dsr)]
}

fn health() -> impl Strategy<Value = HealthCheck> {
    let initially = |initial| HealthCheck { initial, ..HealthCheck::default() };
    prop_oneof![
        Just(HealthCheck::none()),
        Just(initially(InitialState::Up)),
        Just(initially(InitialState::Down)),
    ]
}

/// Service `number` under one of the names, with some of the backends: shared ones, and two of its own.
fn services_of(number: u8, named: u8) -> impl Strategy<Value = Service> {
    let own = [10 * number, 10 * number + 1, 1, 2, 3];
    (modes(), health(), subsequence(own.to_vec(), 0..=3), prop::collection::vec(1u16..4, 3)).prop_map(
        move |(mode, health, backends, weights)| {
            let backends = backends.into_iter().zip(weights);
            Service {
                name: name(&format!("s{named}")),
                mode,
                health,
                backends: backends
                    .map(|(number, weight)| Backend { address: backend(number), weight })
                    .collect(),
                ..service(number, &[])
            }
        },
    )
}

fn configurations() -> impl Strategy<Value = Vec<Service>> {
    (subsequence(vec![1u8, 2, 3, 4], 0..=4).prop_shuffle(), 0u8..6).prop_flat_map(|(numbers, turn)| {
        /* Mostly every service has its own name; now and then they swap. */
        let named = move |number: u8| if turn == 0 { (number + 1) % 4 } else { number };
        numbers.into_iter().map(|number| services_of(number, named(number))).collect::<Vec<_>>()
    })
}

fn next_hops() -> impl Strategy<Value = NextHop> {
    prop_oneof![
        4 => (1u32..3, 1u8..3).prop_map(|(interface, gateway)| next_hop(interface, gateway)),
        1 => (1u32..3).prop_map(unresolved),
        1 => Just(NextHop::Local),
    ]
}

fn events() -> impl Strategy<Value = Event> {
    let backends = prop_oneof![1u8..4, 10u8..12, 20u8..22, 30u8..32, 40u8..41];
    prop_oneof![
        3 => configurations().prop_map(Event::Desire),
        3 => (0u8..5, backends.clone(), prop_oneof![Just(UP), Just(DOWN)])
            .prop_map(|(service, backend, state)| Event::Probe(service, backend, state)),
        1 => (backends, next_hops()).prop_map(|(backend, next_hop)| Event::Route(backend, next_hop)),
        2 => Just(Event::Apply),
        3 => (0usize..40).prop_map(Event::Fail),
        1 => Just(Event::Kill),
    ]
}

/// Applies; only room may be wanting.
fn apply(world: &mut World) {
    match world.engine.apply() {
        Ok(_)
        | Err(
            EngineError::NoServiceId { .. }
            | EngineError::NoRecords { .. }
            | EngineError::NoRoomForSeveral { .. },
        ) => {}
        Err(error) => panic!("{error}"),
    }
}

fn live(world: &mut World, history: Vec<Event>) {
    for event in history {
        match event {
            Event::Desire(services) => world.desire(&services),
            Event::Probe(service, number, state) => {
                world.probe(&format!("s{service}"), backend(number), state);
            }
            Event::Route(number, next_hop) => world.route(backend(number), next_hop),
            Event::Apply => apply(world),
            Event::Fail(after) => drop(world.apply_failing_after(after)),
            Event::Kill => world.restart(),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_no_packet_is_hurt_and_the_end_is_as_if_new(
        history in prop::collection::vec(events(), 1..24)
    ) {
        let mut world = World::new();
        live(&mut world, history);
        world.apply();
        world.assert_as_new();
    }

    #[test]
    fn the_same_where_there_is_hardly_any_room(history in prop::collection::vec(events(), 1..24)) {
        let mut world = World::on(Memory::new(5, 34));
        live(&mut world, history);
        for _ in 0..3 {
            apply(&mut world);
        }
        let writes = world.memory().log.len();
        apply(&mut world);
        prop_assert_eq!(world.memory().log.len(), writes, "what there is no room for is not written again and again");
        /* Nothing was lost of the room there is. */
        world.desire(&[]);
        world.apply();
        world.assert_as_new();
    }
}
