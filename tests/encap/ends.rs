//! Both ends of tunnels on a wire, with real sockets: the daemon at one, `tidegate decap` at the other.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use tidegate::model::{Mode, status::NextHopStatus};

use super::model::MODES;
use crate::harness::lab::{Daemon, Host, Lab, SECOND, Server, await_until};

/// A service of the lab.
struct Scene {
    mode: Mode,
    address: SocketAddr,
    backend: IpAddr,
}

/// Services in every mode for either family in either, on one backend.
fn scenes(backend: &Host) -> Vec<Scene> {
    let mut scenes = Vec::new();
    for (number, mode) in MODES.into_iter().enumerate() {
        for inner_ipv6 in [false, true] {
            for outer in [IpAddr::from(backend.ipv4), backend.ipv6.into()] {
                let last = 20 + 4 * number as u8 + u8::from(outer.is_ipv6());
                let address: IpAddr = match inner_ipv6 {
                    false => Ipv4Addr::new(203, 0, 113, last).into(),
                    true => Ipv6Addr::new(0x2001, 0xdb8, 0xffff, 0, 0, 0, 0, last.into()).into(),
                };
                scenes.push(Scene { mode, address: (address, 80).into(), backend: outer });
            }
        }
    }
    scenes
}

fn configuration(scenes: &[Scene], encapsulation: &str) -> String {
    let mut text = format!("interfaces: [{{ name: client }}]\nencapsulation: {encapsulation}\nservices:\n");
    for (number, scene) in scenes.iter().enumerate() {
        for protocol in ["tcp", "udp"] {
            text += &format!(
                "  - {{ name: s{number}-{protocol}, address: \"{}\", protocol: {protocol}, mode: {}, health: none, \
                 backends: [{{ address: \"{}\" }}] }}\n",
                scene.address, scene.mode, scene.backend
            );
        }
    }
    text
}

/// Serves every service on the backend, which owns their addresses.
fn serve(backend: &Host, scenes: &[Scene]) -> Server {
    for scene in scenes {
        if backend.try_command(&format!("ip -o address show to {}", scene.address.ip())).unwrap().is_empty() {
            backend.own(scene.address.ip());
        }
    }
    let mut addresses: Vec<_> = scenes.iter().map(|scene| scene.address).collect();
    addresses.sort();
    addresses.dedup();
    backend.serve_at(&addresses)
}

/// Attaches `tidegate decap` at the backend.
fn decapsulate(backend: &Host, gue_port: u16) {
    backend.detach_xdp_pass();
    decap(backend, &format!("--gue-port {gue_port}"));
}

fn decap(backend: &Host, options: &str) -> String {
    let (program, interface, name) = (env!("CARGO_BIN_EXE_tidegate"), &backend.interface, &backend.name);
    backend.command(&format!("{program} decap --interface {interface} --pins /sys/fs/bpf/{name} {options}"))
}

/// Packets that the other end counted under a reason.
fn counted(backend: &Host, reason: &str) -> u64 {
    let text = decap(backend, "--status");
    let line = text.lines().find(|line| line.split_whitespace().next() == Some(reason));
    line.map_or(0, |line| line.split_whitespace().nth(1).unwrap().parse().unwrap())
}

fn assert_served(lab: &Lab, scenes: &[Scene]) {
    for scene in scenes {
        let about = format!("{} {} by {}", scene.mode, scene.address, scene.backend);
        for answer in
            [lab.client.fetch(scene.address, 10 * SECOND), lab.client.ask(scene.address, 10 * SECOND)]
        {
            let answer = answer.unwrap_or_else(|error| panic!("{about}: {error}"));
            assert_eq!(answer.addressed_as, scene.address, "{about}");
            let client: IpAddr = match scene.address {
                SocketAddr::V4(_) => lab.client.ipv4.into(),
                SocketAddr::V6(_) => lab.client.ipv6.into(),
            };
            assert_eq!(answer.client.ip(), client, "{about}: the client's address is seen");
        }
    }
}

const PREFIXES: &str = "{ source-v4: 198.18.7.0/24, source-v6: \"2001:db8:7:7::/64\", gue-port: 6090 }";

#[test]
fn every_tunnel_carries_either_family_in_either_with_offloads_off_and_on() {
    let lab = Lab::new(1);
    let backend = &lab.backends[0];
    let scenes = scenes(backend);
    let _server = serve(backend, &scenes);
    decapsulate(backend, 6090);
    let daemon = Daemon::start(&lab, &configuration(&scenes, PREFIXES));
    assert_served(&lab, &scenes);
    // Checksums stay off: virtual Ethernet leaves them unfinished, which no real wire does.
    for (host, interface) in
        [(&lab.client, "eth0"), (backend, "eth0"), (&lab.lb, "client"), (&lab.lb, "backend1")]
    {
        host.command(&format!("ethtool -K {interface} sg on gso on gro on rx on"));
    }
    assert_served(&lab, &scenes);
    let node = daemon.status().ledger;
    assert_eq!(node.seen, node.forwarded + node.passed + node.dropped);
    assert_eq!(node.dropped, 0, "{node:?}");
    assert_eq!(counted(backend, "drop-inner-malformed"), 0);
    assert!(counted(backend, "forward-decapsulated") >= 24 * 4);
}

#[test]
fn the_port_of_gue_and_the_sources_change_with_a_reload_and_nothing_is_written_when_nothing_changed() {
    let lab = Lab::new(1);
    let backend = &lab.backends[0];
    let scenes = scenes(backend);
    let _server = serve(backend, &scenes);
    decapsulate(backend, 6080);
    let mut daemon = Daemon::start(&lab, &configuration(&scenes, "{}"));
    assert_served(&lab, &scenes);

    daemon.configure(&configuration(&scenes, PREFIXES));
    daemon.reload();
    // On the old port the other end finds none of the tunnels of GUE any more.
    let gue: Vec<_> = scenes.iter().filter(|scene| scene.mode == Mode::Gue).collect();
    await_until("the new port to be used", 20 * SECOND, || {
        lab.client.ask(gue[0].address, SECOND / 10).is_err() && counted(backend, "pass-not-tunnelled") > 0
    });
    decapsulate(backend, 6090);
    await_until("the reload to be done", 20 * SECOND, || daemon.log().contains("reloaded"));
    assert_served(&lab, &scenes);

    daemon.restart();
    let publication = daemon.status().publication;
    assert_eq!(publication.writes, 0, "{publication:?}");
    assert_served(&lab, &scenes);
    daemon.configure(&configuration(&scenes, "{ gue-port: 6090 }"));
    daemon.reload();
    await_until("the sources to be changed", 20 * SECOND, || daemon.status().publication.writes > 0);
    assert_served(&lab, &scenes);
}

#[test]
fn by_a_bridge_the_kernel_sends_and_the_status_says_why() {
    let lab = Lab::new(1);
    let (lb, backend) = (&lab.lb, &lab.backends[0]);
    lb.command("ip link add br0 type bridge");
    lb.command("ip address flush dev backend1");
    lb.command("ip link set backend1 master br0");
    lb.command("ip link set br0 up");
    lb.command("ip address add 198.51.100.5/30 dev br0");
    lb.command("ip address add 2001:db8:1::1/64 dev br0 nodad");
    let mut scenes = scenes(backend);
    for mode in [Mode::Nat, Mode::Dsr] {
        let number = 60 + u8::from(mode == Mode::Nat);
        let address = SocketAddr::from((Ipv4Addr::new(203, 0, 113, number), 80));
        scenes.push(Scene { mode, address, backend: backend.ipv4.into() });
    }
    let (translated, others): (Vec<_>, Vec<_>) =
        scenes.into_iter().partition(|scene| scene.mode == Mode::Nat);
    let _server = serve(backend, &others);
    let _own = backend.serve(80);
    decapsulate(backend, 6090);
    let all: Vec<_> = others.into_iter().chain(translated).collect();
    let daemon = Daemon::start(&lab, &configuration(&all, PREFIXES));
    let (nat, rest) = all.split_last().unwrap();
    assert_served(&lab, rest);
    assert_eq!(lab.client.fetch(nat.address, 10 * SECOND).unwrap().addressed_as, (backend.ipv4, 80).into());

    let status = daemon.status();
    for service in &status.services {
        let NextHopStatus::Unresolved { reason } = &service.backends[0].next_hop else {
            panic!("{:?}", service.backends[0].next_hop);
        };
        assert_eq!(reason, "br0 is a virtual interface (bridge), by which only the kernel can send");
    }
    assert!(status.ledger.reasons["forward-handoff"] > 0);
    assert_eq!(status.ledger.dropped, 0, "{:?}", status.ledger);
}

#[test]
fn replies_to_a_client_behind_a_bridge_are_sent_by_the_kernel() {
    let lab = Lab::new(1);
    let (lb, backend) = (&lab.lb, &lab.backends[0]);
    lb.command("ip link add br0 type bridge");
    lb.command("ip address flush dev client");
    lb.command("ip link set client master br0");
    lb.command("ip link set br0 up");
    lb.command("ip address add 192.0.2.1/24 dev br0");
    lb.command("ip address add 2001:db8:c::1/64 dev br0 nodad");
    let _server = backend.serve(80);
    let services = [
        Scene { mode: Mode::Nat, address: "203.0.113.10:80".parse().unwrap(), backend: backend.ipv4.into() },
        Scene {
            mode: Mode::Nat,
            address: "[2001:db8:ffff::10]:80".parse().unwrap(),
            backend: backend.ipv6.into(),
        },
    ];
    let configuration = configuration(&services, "{}");
    let configuration = configuration.replace("[{ name: client }]", "[{ name: client }, { name: backend1 }]");
    let mut daemon = Daemon::start(&lab, &configuration);
    for service in &services {
        let answer = lab.client.fetch(service.address, 10 * SECOND).unwrap();
        assert_eq!(answer.addressed_as, (service.backend, 80).into());
        assert!(lab.client.ask(service.address, 10 * SECOND).is_ok());
    }
    let ledger = daemon.status().ledger;
    assert!(ledger.reasons["forward-reply-handoff"] >= 4, "{ledger:?}");
    assert_eq!(ledger.dropped, 0, "{ledger:?}");
    daemon.restart();
    assert_eq!(daemon.status().publication.writes, 0);
}

#[test]
fn an_interface_that_cannot_run_programs_is_refused_with_what_to_name_in_its_place() {
    let lab = Lab::new(1);
    lab.lb.command("ip link add br0 type bridge");
    lab.lb.command("ip link set backend1 master br0");
    let mut daemon = Daemon::prepare(&lab, "interfaces: [{ name: br0 }]");
    daemon.spawn();
    assert!(!daemon.await_end().success());
    let log = daemon.log();
    assert!(log.contains("it is a bridge: name what packets come in by in its place, backend1;"), "{log}");
}
