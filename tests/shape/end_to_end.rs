//! Ranges of ports with real sockets on both sides.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket},
    time::Duration,
};

use crate::harness::lab::{Daemon, Host, Lab, SERVICE_IPV4, SERVICE_IPV6};

const TIMEOUT: Duration = Duration::from_secs(10);

#[test]
fn a_nat_range_keeps_ports_on_the_way_and_back() {
    let lab = Lab::new(2);
    let ports = [8000, 8050, 8099];
    let _servers: Vec<_> = lab.backends.iter().flat_map(|host| ports.map(|port| host.serve(port))).collect();
    let _other = lab.backends[0].serve(9000);
    let (first, second) = (&lab.backends[0], &lab.backends[1]);
    let service = |name: &str, address: IpAddr, protocol: &str, backends: [IpAddr; 2]| {
        let [one, two] = backends;
        format!(
            "  - {{ name: {name}, address: '{address}', ports: 8000-8099, protocol: {protocol}, mode: nat, health: {{ tcp: {{ \
             port: 8050 }}, initial: up }}, backends: [{{ address: '{one}' }}, {{ address: '{two}' }}] }}\n"
        )
    };
    let mut text =
        "interfaces: [{ name: client }, { name: backend1 }, { name: backend2 }]\nservices:\n".to_owned();
    for protocol in ["tcp", "udp"] {
        let v4 = [first.ipv4.into(), second.ipv4.into()];
        let v6 = [first.ipv6.into(), second.ipv6.into()];
        text += &service(&format!("{protocol}-4"), SERVICE_IPV4.into(), protocol, v4);
        text += &service(&format!("{protocol}-6"), SERVICE_IPV6.into(), protocol, v6);
    }
    // A single port within the range goes elsewhere.
    text += &format!(
        "  - {{ name: exact, address: '{SERVICE_IPV4}:8050', protocol: tcp, mode: nat, health: none, backends: [{{ address: \
         '{}:9000' }}] }}\n",
        first.ipv4
    );
    let daemon = Daemon::start(&lab, &text);
    let mut servers = BTreeSet::new();
    for address in [IpAddr::from(SERVICE_IPV4), SERVICE_IPV6.into()] {
        for port in ports {
            let to = SocketAddr::new(address, port);
            let expected = if to == SocketAddr::new(SERVICE_IPV4.into(), 8050) { 9000 } else { port };
            for _ in 0..8 {
                let answer = lab.client.fetch(to, TIMEOUT).unwrap();
                assert_eq!(answer.addressed_as.port(), expected, "{to}");
                servers.insert(answer.server);
                assert_eq!(lab.client.ask(to, TIMEOUT).unwrap().addressed_as.port(), port, "{to}");
            }
        }
    }
    assert_eq!(servers.len(), 2);
    // Nobody listens on this port: it is the backend that says so.
    let refused = lab.client.fetch((SERVICE_IPV4, 8001), TIMEOUT).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    one_socket_talks_to_all_ports(&lab, &ports);
    let status = daemon.status();
    assert_eq!((status.services[0].port, status.services[0].port_end), (8000, Some(8099)));
    assert_eq!(status.ledger.reasons.get("drop-flow-conflict"), None);
}

/// One client port, several ports of one service at once.
fn one_socket_talks_to_all_ports(lab: &Lab, ports: &[u16]) {
    lab.client.run(|| {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
        socket.set_read_timeout(Some(TIMEOUT)).unwrap();
        for _ in 0..3 {
            for &port in ports {
                socket.send_to(b"who?", (SERVICE_IPV4, port)).unwrap();
            }
            let mut from = BTreeSet::new();
            for _ in ports {
                let (_, peer) = socket.recv_from(&mut [0; 2048]).unwrap();
                from.insert(peer);
            }
            let expected: BTreeSet<SocketAddr> =
                ports.iter().map(|&port| (SERVICE_IPV4, port).into()).collect();
            assert_eq!(from, expected);
        }
    });
}

/// A backend behind a veth link of its own whose XDP program is `tidegate decap`.
fn tunnel_end(lab: &Lab) -> Host {
    let mut host = Host::new("tunnel");
    (host.interface, host.peer) = ("eth0".into(), "tunnel".into());
    host.ipv4 = Ipv4Addr::new(198, 51, 100, 254);
    let path = host.namespace_path();
    lab.lb.command(&format!("ip link add tunnel type veth peer name eth0 netns {path}"));
    for (end, interface, address) in
        [(&lab.lb, "tunnel", "198.51.100.253/30"), (&host, "eth0", "198.51.100.254/30")]
    {
        end.disable_offloads(interface);
        end.command(&format!("ip address add {address} dev {interface}"));
        end.command(&format!("ip link set {interface} up"));
    }
    host.command("ip route add default via 198.51.100.253");
    host.own(SERVICE_IPV4);
    host.command(&format!(
        "{} decap --interface eth0 --pins /sys/fs/bpf/tunnel",
        env!("CARGO_BIN_EXE_tidegate")
    ));
    host
}

#[test]
fn an_any_port_service_tunnels_every_port_but_those_of_others() {
    let lab = Lab::new(1);
    let host = tunnel_end(&lab);
    let ports = [1, 22, 8080, 65535];
    let addresses: Vec<SocketAddr> = ports.iter().map(|&port| (SERVICE_IPV4, port).into()).collect();
    let _tunnelled = host.serve_at(&addresses);
    let _translated = lab.backends[0].serve(80);
    let any = |protocol: &str| {
        format!(
            "  - {{ name: any-{protocol}, address: {SERVICE_IPV4}, ports: any, protocol: {protocol}, mode: ipip, hash: source, health: \
             none, backends: [{{ address: {} }}] }}\n",
            host.ipv4
        )
    };
    let exact = format!(
        "  - {{ name: exact, address: '{SERVICE_IPV4}:443', protocol: tcp, mode: nat, health: none, backends: [{{ address: \
         '{}:80' }}] }}\n",
        lab.backends[0].ipv4
    );
    let text = format!(
        "interfaces: [{{ name: client }}, {{ name: backend1 }}, {{ name: tunnel }}]\nservices:\n{}{}{exact}",
        any("tcp"),
        any("udp")
    );
    let mut daemon = Daemon::start(&lab, &text);
    let check = || {
        for &to in &addresses {
            for answer in [lab.client.fetch(to, TIMEOUT), lab.client.ask(to, TIMEOUT)] {
                let answer = answer.unwrap_or_else(|error| panic!("{to}: {error}"));
                assert_eq!((answer.server.as_str(), answer.addressed_as), ("tunnel", to));
            }
        }
        assert_eq!(lab.client.fetch((SERVICE_IPV4, 443), TIMEOUT).unwrap().server, "backend1");
    };
    check();
    let shown = &daemon.status().services[0];
    assert_eq!(shown.service_address().to_string(), format!("{SERVICE_IPV4}:*/tcp"));
    assert_eq!((shown.hash.as_str(), shown.hash_prefix), ("source", Some(32)));
    daemon.restart();
    check();
    assert_eq!(daemon.status().publication.writes, 0, "a restart with nothing changed writes nothing");
}
