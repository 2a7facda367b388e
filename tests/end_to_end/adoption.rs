//! Services that come and go across restarts: no request is ever answered by another service's backend.

use std::net::SocketAddr;

use super::scene::*;
use crate::harness::lab::{Daemon, Lab};

/// Three services with a backend each, so that an answer tells whose it is.
fn service(lab: &Lab, number: usize) -> Service {
    let name = ["a", "b", "c"][number];
    let address = SocketAddr::from(([203, 0, 113, 20 + number as u8], 80));
    Service::tcp(name, "nat", address, vec![at(&lab.backends[number], false, 80)])
}

#[track_caller]
fn answers_as(lab: &Lab, number: usize) {
    let address = service(lab, number).address;
    let answers = spread(10, || lab.client.fetch(address, REQUEST));
    assert_eq!(answers.keys().collect::<Vec<_>>(), [&format!("backend{}", number + 1)]);
}

#[test]
fn ids_are_not_captured_across_restarts() {
    let lab = Lab::new(3);
    let _servers: Vec<_> = lab.backends.iter().map(|backend| backend.serve(80)).collect();
    let services = |numbers: &[usize]| {
        let services: Vec<_> = numbers.iter().map(|&number| service(&lab, number)).collect();
        configuration(&lab, &services)
    };
    let id = |daemon: &Daemon, name: &str| {
        let status = daemon.status();
        status.services.iter().find(|service| service.name.as_str() == name).unwrap().id
    };
    let mut daemon = Daemon::start(&lab, &services(&[0, 1]));
    await_up(&daemon, 1);
    answers_as(&lab, 0);
    answers_as(&lab, 1);
    let (id_of_a, id_of_b) = (id(&daemon, "a"), id(&daemon, "b"));

    daemon.kill();
    daemon.configure(&services(&[1]));
    daemon.restart();
    answers_as(&lab, 1);
    await_unreachable(&lab.client, service(&lab, 0).address);
    assert_eq!(id(&daemon, "b"), id_of_b);

    daemon.kill();
    daemon.configure(&services(&[2, 1, 0]));
    daemon.restart();
    await_up(&daemon, 1);
    for number in [2, 1, 0] {
        answers_as(&lab, number);
    }
    assert_eq!(id(&daemon, "b"), id_of_b);
    assert_ne!(id(&daemon, "c"), id_of_a, "a freed ID is reused last");
    assert_ledger_closes(&daemon);
}

#[test]
fn a_reordered_file_changes_nothing() {
    let lab = Lab::new(3);
    let _servers: Vec<_> = lab.backends.iter().map(|backend| backend.serve(80)).collect();
    let mut services = vec![service(&lab, 0), service(&lab, 1)];
    services[0].backends = all(&lab, false, 80);
    let mut daemon = Daemon::start(&lab, &configuration(&lab, &services));
    await_up_all(&daemon, &[("a", 3), ("b", 1)]);
    services.reverse();
    services[1].backends.reverse();
    daemon.configure(&configuration(&lab, &services));
    daemon.restart();
    assert_eq!(daemon.status().publication.writes, 0);
}

#[track_caller]
fn await_up_all(daemon: &Daemon, counts: &[(&str, usize)]) {
    crate::harness::lab::await_until("the backends to be up", PATIENCE, || {
        let status = daemon.status();
        counts.iter().all(|&(name, count)| up(&status, name) == count)
    });
}
