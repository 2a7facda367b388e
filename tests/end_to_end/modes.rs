//! Every mode, family and protocol with real sockets and all offloads off, so that receivers verify every checksum.

use std::net::{IpAddr, SocketAddr};

use super::scene::*;
use crate::harness::lab::{Daemon, Lab, SERVICE_IPV4, SERVICE_IPV6};

const BACKENDS: u8 = 3;
const PORT: u16 = 80;

/// TCP and UDP requests to a service in `mode`: each is answered, each backend gets some, each side sees right addresses.
fn serves(mode: &'static str, service_ipv6: bool, backends_ipv6: bool) {
    let lab = Lab::new(BACKENDS);
    let ip: IpAddr = if service_ipv6 { SERVICE_IPV6.into() } else { SERVICE_IPV4.into() };
    let address = SocketAddr::new(ip, PORT);
    let nat = mode == "nat";
    let (_servers, decaps) = if nat {
        (lab.backends.iter().map(|backend| backend.serve(PORT)).collect(), Vec::new())
    } else {
        serve_directly(&lab, &[address])
    };
    let tcp = Service::tcp("tcp", mode, address, all(&lab, backends_ipv6, PORT));
    let udp = tcp.udp("udp");
    let daemon = Daemon::start(&lab, &configuration(&lab, &[tcp, udp]));
    await_up(&daemon, BACKENDS.into());

    let mut check = |answer: crate::harness::lab::Answer| {
        let client: IpAddr = if service_ipv6 { lab.client.ipv6.into() } else { lab.client.ipv4.into() };
        assert_eq!(answer.client.ip(), client, "the backend sees the client's own address");
        assert_eq!(answer.addressed_as.ip() == ip, !nat, "{answer}");
        answer
    };
    let by_tcp = spread(60, || lab.client.fetch(address, REQUEST).map(&mut check));
    let by_udp = spread(60, || lab.client.ask(address, REQUEST).map(&mut check));
    assert_eq!((by_tcp.len(), by_udp.len()), (3, 3), "{by_tcp:?} {by_udp:?}");

    let status = daemon.status();
    assert_eq!(status.problems, []);
    for service in &status.services {
        assert_eq!(service.ledger.dropped, 0, "{service:?}");
        assert!(service.ledger.forwarded >= 60, "{service:?}");
        let sent: u64 = service.backends.iter().map(|backend| backend.packets).sum();
        assert!(sent >= 60 && service.backends.iter().all(|backend| backend.packets > 0), "{service:?}");
    }
    assert_ledger_closes(&daemon);
    if mode != "nat" && mode != "dsr" {
        let taken_off: u64 = decaps
            .iter()
            .map(|decap| decap.status().unwrap().ledger.by_name("forward-decapsulated").unwrap())
            .sum();
        assert!(taken_off >= 120, "{taken_off}");
    }
}

#[test]
fn nat_over_ipv4() {
    serves("nat", false, false);
}

#[test]
fn nat_over_ipv6() {
    serves("nat", true, true);
}

#[test]
fn dsr_over_ipv4() {
    serves("dsr", false, false);
}

#[test]
fn dsr_over_ipv6() {
    serves("dsr", true, true);
}

#[test]
fn ipip_4_in_4() {
    serves("ipip", false, false);
}

#[test]
fn ipip_6_in_6() {
    serves("ipip", true, true);
}

#[test]
fn ipip_4_in_6() {
    serves("ipip", false, true);
}

#[test]
fn ipip_6_in_4() {
    serves("ipip", true, false);
}

/// One client port used to two services at once, which share their backends: each connection stays with its service.
#[test]
fn two_nat_services_share_backends_and_a_client_port() {
    let lab = Lab::new(2);
    let _servers: Vec<_> = lab.backends.iter().map(|backend| backend.serve(PORT)).collect();
    let addresses: [SocketAddr; 2] = ["203.0.113.10:80".parse().unwrap(), "203.0.113.11:80".parse().unwrap()];
    let services = ["one", "two"]
        .iter()
        .zip(addresses)
        .map(|(name, a)| Service::tcp(name, "nat", a, all(&lab, false, PORT)));
    let services: Vec<_> = services.collect();
    let udp = [services[0].udp("one-udp"), services[1].udp("two-udp")];
    let daemon = Daemon::start(&lab, &configuration(&lab, &udp));
    await_up(&daemon, 2);
    let answers = lab.client.run(|| {
        (0..20)
            .map(|number| {
                let port = 20_000 + number;
                let sockets = addresses.map(|service| {
                    let socket =
                        socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::DGRAM, None).unwrap();
                    socket.set_reuse_address(true).unwrap();
                    socket.bind(&SocketAddr::from(([0, 0, 0, 0], port)).into()).unwrap();
                    let socket: std::net::UdpSocket = socket.into();
                    socket.connect(service).unwrap();
                    socket.set_read_timeout(Some(REQUEST)).unwrap();
                    socket
                });
                sockets.map(|socket| {
                    socket.send(b"who?").unwrap();
                    let mut buffer = [0; 512];
                    let length = socket.recv(&mut buffer).unwrap();
                    String::from_utf8_lossy(&buffer[..length]).into_owned()
                })
            })
            .collect::<Vec<_>>()
    });
    for [one, two] in &answers {
        let server = |answer: &str| answer.split(' ').next().map(str::to_owned);
        assert_ne!(
            server(one),
            server(two),
            "one backend cannot tell two services apart for one client port"
        );
    }
    assert_ledger_closes(&daemon);
}
