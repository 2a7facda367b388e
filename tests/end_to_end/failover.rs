//! Backends that die and come back, and requests that go on.

use super::scene::*;
use crate::harness::lab::{Daemon, Lab, SERVICE_IPV4, SERVICE_IPV6, await_until};

#[test]
fn requests_go_on_without_a_dead_backend_and_use_it_again_when_it_is_back() {
    let lab = Lab::new(3);
    let mut servers: Vec<_> = lab.backends.iter().map(|backend| backend.serve(80)).collect();
    let services = [
        Service::tcp("v4", "nat", (SERVICE_IPV4, 80).into(), all(&lab, false, 80)),
        Service::tcp("v6", "nat", (SERVICE_IPV6, 80).into(), all(&lab, true, 80)),
    ];
    let daemon = Daemon::start(&lab, &configuration(&lab, &services));
    await_up(&daemon, 3);

    servers.remove(1).stop();
    await_up(&daemon, 2);
    for service in &services {
        let answers = spread(40, || lab.client.fetch(service.address, REQUEST));
        assert_eq!(answers.keys().collect::<Vec<_>>(), ["backend1", "backend3"]);
    }
    let status = daemon.status();
    let down = &status.services[0].backends[1];
    assert_eq!((down.slots, down.last_failure.is_some()), (0, true), "{down:?}");

    servers.push(lab.backends[1].serve(80));
    await_up(&daemon, 3);
    for service in &services {
        assert_eq!(spread(60, || lab.client.fetch(service.address, REQUEST)).len(), 3);
    }
    assert_ledger_closes(&daemon);
}

#[test]
fn any_one_backend_takes_everything() {
    let lab = Lab::new(5);
    let mut servers: Vec<_> = lab.backends.iter().map(|backend| Some(backend.serve(80))).collect();
    let service = Service::tcp("web", "nat", (SERVICE_IPV4, 80).into(), all(&lab, false, 80));
    let daemon = Daemon::start(&lab, &configuration(&lab, &[service]));
    await_up(&daemon, 5);
    for survivor in [2, 4] {
        for (number, server) in servers.iter_mut().enumerate() {
            match (number == survivor, server.is_some()) {
                (true, false) => *server = Some(lab.backends[number].serve(80)),
                (false, true) => *server = None,
                _ => {}
            }
        }
        let name = format!("backend{}", survivor + 1);
        await_until("only one backend to be up", PATIENCE, || {
            let status = daemon.status();
            let slots: Vec<_> = status.services[0].backends.iter().map(|backend| backend.slots).collect();
            slots.iter().enumerate().all(|(number, &slots)| (slots > 0) == (number == survivor))
        });
        let answers = spread(30, || lab.client.fetch((SERVICE_IPV4, 80), REQUEST));
        assert_eq!(answers.keys().collect::<Vec<_>>(), [&name]);
    }
}

#[test]
fn a_new_backend_gets_nothing_before_its_first_success() {
    let lab = Lab::new(2);
    let _server = lab.backends[0].serve(80);
    let service = Service::tcp("web", "nat", (SERVICE_IPV4, 80).into(), all(&lab, false, 80));
    let daemon = Daemon::start(&lab, &configuration(&lab, &[service]));
    await_until("the living backend to be up", PATIENCE, || up(&daemon.status(), "web") == 1);
    assert_eq!(spread(40, || lab.client.fetch((SERVICE_IPV4, 80), REQUEST)).len(), 1);
    assert_eq!(daemon.status().services[0].backends[1].packets, 0);
}

#[test]
fn without_any_backend_packets_are_dropped_and_counted() {
    let lab = Lab::new(1);
    let service = Service::tcp("web", "nat", (SERVICE_IPV4, 80).into(), all(&lab, false, 80));
    let daemon = Daemon::start(&lab, &configuration(&lab, &[service]));
    await_unreachable(&lab.client, (SERVICE_IPV4, 80).into());
    let status = daemon.status();
    let ledger = &status.services[0].ledger;
    assert!(ledger.reasons["drop-no-backend"] > 0 && ledger.forwarded == 0, "{ledger:?}");
    assert!(status.problems.iter().any(|problem| problem.message.contains("web")), "{:?}", status.problems);
    assert_ledger_closes(&daemon);
}
