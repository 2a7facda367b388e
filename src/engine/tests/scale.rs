//! Work that grows with what changed, not with what there is.

use std::time::Instant;

use super::world::*;
use crate::{
    datapath::{Memory, Step},
    engine::Engine,
    health::{Report, Target},
    model::{Backend, BackendAddress, Mode, Service, Verdict},
};

fn services(count: u16, backends: u8) -> Vec<Service> {
    (0..count)
        .map(|number| {
            let address = |last: u8| BackendAddress { port: number + 1, ..backend(last) };
            let mut service = probed(in_mode(service(1, &[]), Mode::Nat));
            service.name = name(&format!("s{number}"));
            service.address.ports = (number + 1).into();
            service.max_backends = backends.into();
            service.backends =
                (0..backends).map(|last| Backend { address: address(last), weight: 1 }).collect();
            service
        })
        .collect()
}

/// An engine without the checker, which itself looks at everything with every operation.
fn engine(count: u16, backends: u8) -> Engine<Memory> {
    let memory = Memory::new(count, u32::from(count) * (u32::from(backends) * 2 + 1));
    let mut engine = Engine::adopt(memory).unwrap();
    engine.set_desired(&services(count, backends));
    engine.apply().unwrap();
    engine
}

fn up(target: Target) -> Report {
    let Target { service, backend, .. } = target;
    Report { service, backend, verdict: Some(Verdict::Up), last_failure: None }
}

#[test]
fn one_verdict_among_many_services_is_two_writes() {
    let mut engine = engine(300, 2);
    let target = engine.probe_targets().swap_remove(250);
    engine.datapath_mut().log.clear();
    engine.report(up(target));
    engine.apply().unwrap();
    assert!(matches!(engine.datapath().log[..], [Step::WriteLink(..), Step::Publish(_)]));
}

/// For measuring by hand: `cargo test --lib -- --ignored --nocapture many_services`.
#[test]
#[ignore = "a measurement, not a test"]
fn many_services() {
    let mut last = Instant::now();
    let mut lap = |what: &str| {
        println!("{what}: {:?}", last.elapsed());
        last = Instant::now();
    };
    let mut engine = engine(4096, 16);
    lap("from nothing");
    let target = engine.probe_targets().swap_remove(30_000);
    lap("targets");
    engine.report(up(target));
    lap("report");
    engine.apply().unwrap();
    lap("verdict");
    engine.apply().unwrap();
    lap("nothing");
    engine.set_desired(&services(2000, 16));
    lap("desired");
    engine.apply().unwrap();
    lap("half of them removed");
}
