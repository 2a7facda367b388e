//! Clients with real sockets: one is turned away while another is served.

use std::net::{IpAddr, SocketAddr};

use crate::{
    end_to_end::scene::{
        PATIENCE, REQUEST, Service, all, assert_ledger_closes, await_unreachable, await_up, configuration,
    },
    harness::lab::{Daemon, Host, Lab, SECOND, SERVICE_IPV4, SERVICE_IPV6, await_until},
};

const PORT: u16 = 80;

/// NAT services of both families, with these lines of the node and these keys of each service.
fn text(lab: &Lab, admission: &str, service: &str) -> String {
    let services = [(SERVICE_IPV4.into(), "web", false), (SERVICE_IPV6.into(), "web-6", true)].map(
        |(address, name, ipv6): (IpAddr, _, _)| {
            let backends = all(lab, ipv6, PORT)[..1].to_vec();
            Service::tcp(name, "nat", SocketAddr::new(address, PORT), backends)
        },
    );
    let text = configuration(lab, &services).replace("    mode: nat\n", &format!("    mode: nat\n{service}"));
    format!("{admission}\n{text}")
}

fn change(daemon: &Daemon, text: &str) {
    daemon.configure(text);
    daemon.reload();
}

fn is_served(host: &Host, address: IpAddr) -> bool {
    host.fetch(SocketAddr::new(address, PORT), SECOND / 2).is_ok()
}

#[test]
fn a_blocked_client_is_turned_away_while_another_is_served_in_both_families() {
    let lab = Lab::new(2);
    let _server = lab.backends[0].serve(PORT);
    /* The second host behind the load balancer is a client too. */
    let (blocked, other) = (&lab.client, &lab.backends[1]);
    let lists = format!("admission: {{ blocklist: [{}, \"{}\"] }}", blocked.ipv4, blocked.ipv6);
    let daemon = Daemon::start(&lab, &text(&lab, &lists, ""));
    await_up(&daemon, 1);
    for address in [IpAddr::from(SERVICE_IPV4), SERVICE_IPV6.into()] {
        await_unreachable(blocked, SocketAddr::new(address, PORT));
        other.fetch(SocketAddr::new(address, PORT), REQUEST).unwrap();
    }
    change(&daemon, &text(&lab, "", ""));
    for address in [IpAddr::from(SERVICE_IPV4), SERVICE_IPV6.into()] {
        await_until("the list to be gone", PATIENCE, || is_served(blocked, address));
    }
    let status = daemon.status();
    assert!(status.services.iter().all(|service| service.ledger.reasons["drop-blocked"] > 0), "{status:?}");
    assert_ledger_closes(&daemon);
}

#[test]
fn sources_of_a_service_hold_across_reloads_and_a_kill() {
    let lab = Lab::new(2);
    let _server = lab.backends[0].serve(PORT);
    let (client, other) = (&lab.client, &lab.backends[1]);
    let only = |host: &Host| format!("    sources: {{ allow: [{}, \"{}\"] }}\n", host.ipv4, host.ipv6);
    let mut daemon = Daemon::start(&lab, &text(&lab, "", &only(client)));
    await_up(&daemon, 1);
    assert!(is_served(client, SERVICE_IPV4.into()) && is_served(client, SERVICE_IPV6.into()));
    await_unreachable(other, SocketAddr::new(SERVICE_IPV4.into(), PORT));

    daemon.kill();
    await_unreachable(other, SocketAddr::new(SERVICE_IPV4.into(), PORT));
    assert!(is_served(client, SERVICE_IPV4.into()), "without a daemon");
    daemon.restart();
    assert_eq!(daemon.status().publication.writes, 0, "adopted");

    change(&daemon, &text(&lab, "", &only(other)));
    await_until("the other client to be served", PATIENCE, || is_served(other, SERVICE_IPV4.into()));
    await_unreachable(client, SocketAddr::new(SERVICE_IPV4.into(), PORT));
    assert!(daemon.status().services[0].ledger.reasons["drop-source-refused"] > 0);
    assert_ledger_closes(&daemon);
}

#[test]
fn a_client_above_its_limit_waits_while_another_is_served() {
    let lab = Lab::new(2);
    let _server = lab.backends[0].serve(PORT);
    let limits = "    limits: { per-source: { new-flows: { rate: 1/s, burst: 30 } } }\n";
    let daemon = Daemon::start(&lab, &text(&lab, "", limits));
    await_up(&daemon, 1);
    let address = SocketAddr::new(SERVICE_IPV4.into(), PORT);
    for _ in 0..30 {
        lab.client.fetch(address, REQUEST).unwrap();
    }
    let refused = (0..30).filter(|_| !is_served(&lab.client, address.ip())).count();
    assert!(refused > 0, "a burst of 30 and one a second");
    lab.backends[1].fetch(address, REQUEST).unwrap();
    assert!(daemon.status().services[0].ledger.reasons["drop-rate-limit"] > 0);
    assert_ledger_closes(&daemon);
}
