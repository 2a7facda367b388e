//! Next hops that are not resolved (yet), or change: packets are handed to the kernel, not dropped, and MACs are followed.

use std::net::SocketAddr;

use super::scene::*;
use crate::harness::lab::{Daemon, Lab, SECOND, SERVICE_IPV4, SERVICE_IPV6, await_until};

/// The first connection after the neighbour was forgotten succeeds without a lost packet (a lost SYN would take a second).
fn first_connection_succeeds(mode: &'static str, ipv6: bool) {
    let lab = Lab::new(1);
    let address: SocketAddr = if ipv6 { (SERVICE_IPV6, 80).into() } else { (SERVICE_IPV4, 80).into() };
    let _kept = if mode == "nat" {
        (vec![lab.backends[0].serve(80)], Vec::new())
    } else {
        serve_directly(&lab, &[address])
    };
    let service = Service::tcp("web", mode, address, all(&lab, ipv6, 80));
    let mut daemon = Daemon::start(&lab, &configuration(&lab, &[service]));
    await_up(&daemon, 1);
    /* Nobody refreshes the neighbour or the record while the daemon is dead. The record is made to say "unresolved" as a start with
    an unknown neighbour would: by a daemon that cannot reach it. */
    daemon.kill();
    lab.backends[0].command("ip link set eth0 down");
    lab.lb.command("ip neigh flush all");
    lab.lb.command("ip -6 neigh flush all");
    daemon.restart();
    await_until("the next hop to be unresolved", PATIENCE, || {
        matches!(
            daemon.status().services[0].backends[0].next_hop,
            tidegate::model::status::NextHopStatus::Unresolved { .. }
        )
    });
    daemon.kill();
    lab.backends[0].command("ip link set eth0 up");
    if ipv6 {
        let back = lab.backends[0].ipv6;
        lab.backends[0].try_command(&format!("ip address add {back}/64 dev eth0 nodad")).ok();
    }
    lab.backends[0].try_command("ip route add default via 198.51.100.5").ok();
    lab.backends[0].try_command("ip -6 route add default via 2001:db8:1::1").ok();
    lab.lb.command("ip neigh flush all");
    lab.lb.command("ip -6 neigh flush all");
    for (host, interface) in [(&lab.lb, "backend1"), (&lab.backends[0], "eth0")] {
        await_until("the link to be up again", PATIENCE, || {
            host.command(&format!("ip link show {interface}")).contains("state UP")
        });
    }
    let answer = lab.client.fetch(address, REQUEST);
    daemon.restart();
    let ledger = &daemon.status().services[0].ledger;
    let handed_over = ledger.reasons.get("forward-handoff").copied();
    assert!(answer.is_ok() && handed_over > Some(0), "{answer:?}, {ledger:?}");
    await_up(&daemon, 1);
    lab.client.fetch(address, REQUEST).unwrap();
    assert_ledger_closes(&daemon);
}

#[test]
fn nat_ipv4() {
    first_connection_succeeds("nat", false);
}

#[test]
fn nat_ipv6() {
    first_connection_succeeds("nat", true);
}

#[test]
fn dsr_ipv4() {
    first_connection_succeeds("dsr", false);
}

#[test]
fn dsr_ipv6() {
    first_connection_succeeds("dsr", true);
}

#[test]
fn ipip_ipv4() {
    first_connection_succeeds("ipip", false);
}

#[test]
fn ipip_ipv6() {
    first_connection_succeeds("ipip", true);
}

#[test]
fn a_changed_mac_address_is_followed() {
    let lab = Lab::new(1);
    let _server = lab.backends[0].serve(80);
    let service = Service::tcp("web", "nat", (SERVICE_IPV4, 80).into(), all(&lab, false, 80));
    let daemon = Daemon::start(&lab, &configuration(&lab, &[service]));
    await_up(&daemon, 1);
    lab.client.fetch((SERVICE_IPV4, 80), REQUEST).unwrap();
    lab.backends[0].command("ip link set eth0 address 02:00:00:00:00:99");
    lab.lb.command("ip neigh flush dev backend1");
    await_until("requests to reach the backend under its new address", PATIENCE, || {
        lab.client.fetch((SERVICE_IPV4, 80), SECOND / 2).is_ok()
    });
    let next_hop = format!("{:?}", daemon.status().services[0].backends[0].next_hop);
    assert!(next_hop.contains("02:00:00:00:00:99"), "{next_hop}");
}
