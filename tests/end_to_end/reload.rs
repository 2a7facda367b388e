//! SIGHUP: what differs is changed, and a bad file changes nothing.

use super::scene::*;
use crate::harness::lab::{Daemon, Lab, SERVICE_IPV4, SERVICE_IPV6, Session, await_until};

#[test]
fn a_bad_file_is_rejected_whole_and_what_ran_goes_on() {
    let lab = Lab::new(2);
    let _servers: Vec<_> = lab.backends.iter().map(|backend| backend.serve(80)).collect();
    let service = Service::tcp("web", "nat", (SERVICE_IPV4, 80).into(), all(&lab, false, 80));
    let good = configuration(&lab, &[service]);
    let daemon = Daemon::start(&lab, &good);
    await_up(&daemon, 2);
    let writes = daemon.status().publication.writes;

    daemon.configure(&good.replace("mode: nat", "mode: natt"));
    daemon.reload();
    await_until("the refusal", PATIENCE, || {
        daemon.status().problems.iter().any(|problem| problem.message.contains("refused"))
    });
    assert!(daemon.log().contains("natt"), "{}", daemon.log());
    assert_eq!(daemon.status().publication.writes, writes);
    assert_eq!(spread(40, || lab.client.fetch((SERVICE_IPV4, 80), REQUEST)).len(), 2);

    daemon.configure(&good);
    daemon.reload();
    await_until("the problem to be gone", PATIENCE, || daemon.status().problems.is_empty());
    assert_eq!(daemon.status().publication.writes, writes, "nothing changed, nothing written");
}

#[test]
fn services_and_backends_come_and_go_by_difference() {
    let lab = Lab::new(3);
    let _servers: Vec<_> = lab.backends.iter().map(|backend| backend.serve(80)).collect();
    let v4 = |backends| Service::tcp("v4", "nat", (SERVICE_IPV4, 80).into(), backends);
    let v6 = || Service::tcp("v6", "nat", (SERVICE_IPV6, 80).into(), all(&lab, true, 80));
    let two = all(&lab, false, 80)[..2].to_vec();
    let daemon = Daemon::start(&lab, &configuration(&lab, &[v4(two.clone())]));
    await_up(&daemon, 2);
    let mut session = lab.client.run(|| Session::connect((SERVICE_IPV4, 80).into(), REQUEST)).unwrap();
    let server = session.request().unwrap().server;

    daemon.configure(&configuration(&lab, &[v4(all(&lab, false, 80)), v6()]));
    daemon.reload();
    await_until("the new service", PATIENCE, || daemon.status().services.len() == 2);
    await_up(&daemon, 3);
    assert_eq!(spread(60, || lab.client.fetch((SERVICE_IPV4, 80), REQUEST)).len(), 3);
    assert_eq!(spread(60, || lab.client.fetch((SERVICE_IPV6, 80), REQUEST)).len(), 3);
    assert_eq!(session.request().unwrap().server, server, "a tracked connection stays where it is");

    daemon.configure(&configuration(&lab, &[v4(two)]));
    daemon.reload();
    await_until("the service to go", PATIENCE, || daemon.status().services.len() == 1);
    await_unreachable(&lab.client, (SERVICE_IPV6, 80).into());
    let answers = spread(40, || lab.client.fetch((SERVICE_IPV4, 80), REQUEST));
    assert_eq!(answers.keys().collect::<Vec<_>>(), ["backend1", "backend2"]);
    assert_ledger_closes(&daemon);
}

#[test]
fn interfaces_are_attached_and_detached_by_a_reload() {
    let lab = Lab::new(1);
    let _server = lab.backends[0].serve(80);
    let service = Service::tcp("web", "nat", (SERVICE_IPV4, 80).into(), all(&lab, false, 80));
    let both = configuration(&lab, &[service]);
    let client_only = both.replace("  - { name: backend1 }\n", "");
    let daemon = Daemon::start(&lab, &both);
    daemon.configure(&client_only);
    daemon.reload();
    let has_xdp = |name: &str| lab.lb.command(&format!("ip -details link show {name}")).contains("prog/xdp");
    await_until("the programs to be taken off", PATIENCE, || !has_xdp("backend1"));
    assert!(has_xdp("client"));
    daemon.configure(&both);
    daemon.reload();
    await_until("the programs to be back", PATIENCE, || has_xdp("backend1"));
}
