//! Work that grows with what changed, not with what there is.

use super::world::*;
use crate::{
    datapath::{Memory, Step},
    model::{Backend, BackendAddress, Mode, Service},
};

fn services(count: u16, backends: u8) -> Vec<Service> {
    (0..count)
        .map(|number| {
            let [high, low] = number.to_be_bytes();
            let mut service = in_mode(service(1, &[]), Mode::Nat);
            service.name = name(&format!("s{number}"));
            service.address.address = [192, 0, 2, 1].into();
            service.address.port = number + 1;
            service.health = crate::model::HealthCheck::default();
            let address = |last: u8| BackendAddress { address: [198, 18 + high, low, last].into(), port: 80 };
            service.backends =
                (0..backends).map(|last| Backend { address: address(last), weight: 1 }).collect();
            service.max_backends = 1;
            service
        })
        .collect()
}

/// An engine without the checker, which itself looks at everything with every operation.
fn engine(count: u16, backends: u8) -> crate::engine::Engine<Memory> {
    let memory = Memory::new(count, u32::from(count) * (u32::from(backends) * 2 + 1));
    let mut engine = crate::engine::Engine::adopt(memory).unwrap();
    let mut desired = services(count, backends);
    for service in &mut desired {
        service.max_backends = backends.into();
    }
    engine.set_desired(&desired);
    engine.apply().unwrap();
    engine
}

#[test]
fn one_verdict_among_many_services_is_two_writes() {
    let mut engine = engine(300, 2);
    let target = engine.probe_targets().swap_remove(250);
    engine.datapath_mut().log.clear();
    engine.report(crate::health::Report {
        service: target.service,
        backend: target.backend,
        verdict: Some(crate::model::Verdict::Up),
        last_failure: None,
    });
    engine.apply().unwrap();
    assert!(matches!(engine.datapath().log[..], [Step::WriteLink(..), Step::Publish(_)]));
}

/// For measuring by hand: `cargo test --lib -- --ignored --nocapture many_services`.
#[test]
#[ignore = "a measurement, not a test"]
fn many_services() {
    let mut last = std::time::Instant::now();
    let mut lap = |what: &str| {
        println!("{what}: {:?}", last.elapsed());
        last = std::time::Instant::now();
    };
    let mut engine = engine(4096, 16);
    lap("from nothing");
    let target = engine.probe_targets().swap_remove(30_000);
    lap("targets");
    engine.report(crate::health::Report {
        service: target.service,
        backend: target.backend,
        verdict: Some(crate::model::Verdict::Up),
        last_failure: None,
    });
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
