//! Restart is invisible: under load no request is lost, whatever ends the daemon, and with nothing changed no map is written.

use std::{
    net::SocketAddr,
    process::Command,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
};

use super::scene::*;
use crate::harness::lab::{Daemon, Lab, SECOND, SERVICE_IPV4, SERVICE_IPV6, Session, await_until};

/// Clients that send one request after the other until they are told to stop.
struct Load<'a> {
    stop: &'a AtomicBool,
    requests: &'a AtomicU64,
    failures: &'a AtomicU64,
}

impl Load<'_> {
    fn run(&self, lab: &Lab, address: SocketAddr) {
        while !self.stop.load(Ordering::Relaxed) {
            let failed = lab.client.fetch(address, REQUEST).is_err();
            self.failures.fetch_add(failed.into(), Ordering::Relaxed);
            self.requests.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Loads all services while `disturb` runs; returns requests and failures.
fn under_load(lab: &Lab, addresses: &[SocketAddr], disturb: impl FnOnce(&dyn Fn())) -> (u64, u64) {
    let (stop, requests, failures) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    thread::scope(|scope| {
        for &address in addresses {
            let load = Load { stop: &stop, requests: &requests, failures: &failures };
            scope.spawn(move || load.run(lab, address));
        }
        let more_requests = || {
            let before = requests.load(Ordering::Relaxed);
            await_until("more requests", PATIENCE, || requests.load(Ordering::Relaxed) > before + 30);
        };
        more_requests();
        disturb(&more_requests);
        more_requests();
        stop.store(true, Ordering::Relaxed);
    });
    (requests.into_inner(), failures.into_inner())
}

fn scene(lab: &Lab) -> (Vec<Service>, Vec<SocketAddr>) {
    let services = vec![
        Service::tcp("v4", "nat", (SERVICE_IPV4, 80).into(), all(lab, false, 80)),
        Service::tcp("v6", "nat", (SERVICE_IPV6, 80).into(), all(lab, true, 80)),
    ];
    let addresses = services.iter().map(|service| service.address).collect();
    (services, addresses)
}

#[test]
fn no_request_is_lost_over_sigkill_and_sigterm_and_nothing_is_written() {
    let lab = Lab::new(3);
    let _servers: Vec<_> = lab.backends.iter().map(|backend| backend.serve(80)).collect();
    let (services, addresses) = scene(&lab);
    let mut daemon = Daemon::start(&lab, &configuration(&lab, &services));
    await_up(&daemon, 3);
    let mut sessions: Vec<_> = addresses
        .iter()
        .map(|&address| lab.client.run(|| Session::connect(address, REQUEST)).unwrap())
        .collect();

    let (requests, failures) = under_load(&lab, &addresses, |more_requests| {
        daemon.kill();
        more_requests();
        daemon.restart();
        more_requests();
        assert!(daemon.terminate().success());
        more_requests();
        daemon.restart();
    });
    assert_eq!(failures, 0, "of {requests}");
    assert_eq!(unrouted(&lab.lb), 0, "TCP would hide a lost packet");
    for session in &mut sessions {
        session.request().expect("a connection lives through it all");
    }
    let status = daemon.status();
    assert_eq!((status.publication.writes, status.publication.adopted_services), (0, 2));
    assert!(status.interfaces.iter().all(|interface| interface.adopted), "{:?}", status.interfaces);
    assert_ledger_closes(&daemon);
}

/// The control: taking the programs away under the same load must be noticed.
#[test]
fn without_the_programs_requests_are_lost() {
    let lab = Lab::new(2);
    let _servers: Vec<_> = lab.backends.iter().map(|backend| backend.serve(80)).collect();
    let (services, addresses) = scene(&lab);
    let mut daemon = Daemon::start(&lab, &configuration(&lab, &services));
    await_up(&daemon, 2);
    under_load(&lab, &addresses, |_| {
        daemon.kill();
        let detached = Command::new(env!("CARGO_BIN_EXE_tidegate")).arg("detach").output().unwrap();
        assert!(detached.status.success(), "{detached:?}");
        await_until("a failure", PATIENCE, || lab.client.fetch(addresses[0], SECOND / 2).is_err());
        daemon.restart();
        await_up(&daemon, 2);
    });
    assert!(unrouted(&lab.lb) > 0);
}

#[test]
fn a_killed_daemons_counters_and_health_go_on() {
    let lab = Lab::new(2);
    let mut servers: Vec<_> = lab.backends.iter().map(|backend| backend.serve(80)).collect();
    let (services, addresses) = scene(&lab);
    let mut daemon = Daemon::start(&lab, &configuration(&lab, &services));
    await_up(&daemon, 2);
    servers.remove(0).stop();
    await_up(&daemon, 1);
    spread(10, || lab.client.fetch(addresses[0], REQUEST));
    let before = daemon.status();
    daemon.restart();
    let after = daemon.status();
    assert_eq!(up(&after, "v4"), 1, "a backend that was down is not tried out on clients");
    assert!(after.services[0].ledger.seen >= before.services[0].ledger.seen);
    assert!(after.services[0].backends[1].packets >= before.services[0].backends[1].packets);
}
