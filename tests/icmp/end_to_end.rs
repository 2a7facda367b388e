//! What clients notice: path MTU discovery works, and failures are reported at once, with real sockets.

use std::{
    io::{self, ErrorKind, Read, Write},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream},
    thread,
    time::Duration,
};

use tidegate::datapath::Decap;

use crate::harness::lab::{Daemon, Host, Lab, SECOND, SERVICE_IPV4, SERVICE_IPV6};

/// MTU of the narrow link; with 40 bytes of outer header in front, what is left is above IPv6's least.
const NARROW: u16 = 1400;
/// Bytes that are transferred: many times what fits the first window.
const BULK: usize = 400_000;
/// Within this, a transfer that works is done many times over, also on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);
/// A transfer that does not work has not moved on for so long.
const STALLED: Duration = Duration::from_secs(3);

fn services() -> [SocketAddr; 2] {
    [(SERVICE_IPV4, 80).into(), (SERVICE_IPV6, 80).into()]
}

/// A lab with a client further away: `far` is behind the lab's client, which is a router here.
struct Scene {
    lab: Lab,
    far: Host,
    daemon: Daemon,
    _decap: Option<Decap>,
}

const FAR_IPV4: [Ipv4Addr; 2] = [Ipv4Addr::new(192, 0, 2, 129), Ipv4Addr::new(192, 0, 2, 130)];
const FAR_IPV6: [Ipv6Addr; 2] =
    [Ipv6Addr::new(0x2001, 0xdb8, 0xfa, 0, 0, 0, 0, 1), Ipv6Addr::new(0x2001, 0xdb8, 0xfa, 0, 0, 0, 0, 2)];

impl Scene {
    /// Services over both families in a mode, with one backend, whose server it does not start.
    fn new(mode: &str, narrow_at_the_client: bool) -> Self {
        let lab = Lab::new(1);
        let far = behind(&lab.client, narrow_at_the_client);
        lab.lb.command("ip route add 192.0.2.128/30 via 192.0.2.2");
        lab.lb.command("ip -6 route add 2001:db8:fa::/64 via 2001:db8:c::2");
        if !narrow_at_the_client {
            lab.lb.command(&format!("ip link set backend1 mtu {NARROW}"));
        }
        let backend = &lab.backends[0];
        if mode != "nat" {
            backend.own(SERVICE_IPV4);
            backend.own(SERVICE_IPV6);
        }
        let decap = (!["nat", "dsr"].contains(&mode)).then(|| backend.decapsulate());
        let daemon =
            Daemon::start(&lab, &configuration(mode, "drop", &[backend.ipv4.into(), backend.ipv6.into()]));
        Self { lab, far, daemon, _decap: decap }
    }

    /// Where the backend's server is to listen.
    fn listen_at(&self, service: SocketAddr, mode: &str) -> SocketAddr {
        let backend = &self.lab.backends[0];
        match (mode, service) {
            ("nat", SocketAddr::V4(_)) => (backend.ipv4, 80).into(),
            ("nat", SocketAddr::V6(_)) => (backend.ipv6, 80).into(),
            _ => service,
        }
    }

    /// What the router before the client has to say to the services gets lost.
    fn swallow_errors(&self) {
        for (family, service) in [("-4", IpAddr::from(SERVICE_IPV4)), ("-6", SERVICE_IPV6.into())] {
            // What a host makes itself enters its routing by lo; what it forwards does not.
            self.lab.client.command(&format!("ip {family} rule add to {service} iif lo blackhole pref 1"));
        }
    }
}

/// A host behind another. Towards it the link is narrow, which the host itself does not know.
fn behind(router: &Host, narrow: bool) -> Host {
    let far = Host::new("far");
    let path = far.namespace_path();
    router.command(&format!("ip link add far type veth peer name eth0 netns {path}"));
    for (host, interface, side) in [(router, "far", 0), (&far, "eth0", 1)] {
        host.disable_offloads(interface);
        host.command(&format!("ip address add {}/30 dev {interface}", FAR_IPV4[side]));
        host.command(&format!("ip address add {}/64 dev {interface} nodad", FAR_IPV6[side]));
        host.command(&format!("ip link set {interface} up"));
    }
    if narrow {
        router.command(&format!("ip link set far mtu {NARROW}"));
    }
    router.sysctl("net/ipv4/ip_forward", "1");
    router.sysctl("net/ipv6/conf/all/forwarding", "1");
    far.command(&format!("ip route add default via {}", FAR_IPV4[0]));
    far.command(&format!("ip -6 route add default via {}", FAR_IPV6[0]));
    far
}

fn configuration(mode: &str, on_no_backend: &str, backends: &[IpAddr]) -> String {
    let mut text = String::from("interfaces: [{ name: client }, { name: backend1 }]\nservices:\n");
    for service in services() {
        for protocol in ["tcp", "udp"] {
            let ipv6 = service.is_ipv6();
            text += &format!(
                "  - name: {protocol}-{}\n    address: \"{service}\"\n    protocol: {protocol}\n    mode: {mode}\n    \
                 on-no-backend: {on_no_backend}\n    health: none\n    backends:{}\n",
                if ipv6 { 6 } else { 4 },
                if backends.is_empty() { " []" } else { "" },
            );
            for backend in backends.iter().filter(|backend| backend.is_ipv6() == ipv6) {
                text += &format!("      - {{ address: \"{backend}\" }}\n");
            }
        }
    }
    text
}

/// A connection from the far client to the backend's server: the client's end and the server's.
fn connected(scene: &Scene, service: SocketAddr, mode: &str) -> io::Result<(TcpStream, TcpStream)> {
    let at = scene.listen_at(service, mode);
    let listener = scene.lab.backends[0].run(|| TcpListener::bind(at))?;
    let client = scene.far.run(|| connect(service))?;
    Ok((client, listener.accept()?.0))
}

/// Sends bulk over a connection, and says how much arrived.
fn transfer(mut from: TcpStream, to: TcpStream) -> io::Result<usize> {
    from.set_write_timeout(Some(STALLED))?;
    let sender = thread::spawn(move || from.write_all(&vec![b'x'; BULK]));
    let received = receive(to);
    let sent = sender.join().unwrap();
    received.and_then(|received| sent.map(|()| received))
}

fn download(scene: &Scene, service: SocketAddr, mode: &str) -> io::Result<usize> {
    let (client, server) = connected(scene, service, mode)?;
    transfer(server, client)
}

fn upload(scene: &Scene, service: SocketAddr, mode: &str) -> io::Result<usize> {
    let (client, server) = connected(scene, service, mode)?;
    transfer(client, server)
}

fn connect(service: SocketAddr) -> io::Result<TcpStream> {
    TcpStream::connect_timeout(&service, PATIENCE)
}

fn receive(mut stream: TcpStream) -> io::Result<usize> {
    stream.set_read_timeout(Some(STALLED))?;
    let mut received = 0;
    let mut buffer = [0; 65536];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return Ok(received),
            Ok(length) => received += length,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

fn reasons(daemon: &Daemon) -> std::collections::BTreeMap<String, u64> {
    daemon.status().ledger.reasons
}

fn path_mtu_discovery_behind_the_client(mode: &str) {
    let scene = Scene::new(mode, true);
    for service in services() {
        assert_eq!(download(&scene, service, mode).unwrap(), BULK, "{service}");
    }
}

fn path_mtu_discovery_before_the_backend(mode: &str) {
    let scene = Scene::new(mode, false);
    for service in services() {
        assert_eq!(upload(&scene, service, mode).unwrap(), BULK, "{service}");
    }
    let answered = reasons(&scene.daemon).get("drop-too-big-answered").copied().unwrap_or(0);
    assert!(answered >= 2, "{:?}", reasons(&scene.daemon));
}

#[test]
fn path_mtu_discovery_behind_the_client_nat() {
    path_mtu_discovery_behind_the_client("nat");
}

#[test]
fn path_mtu_discovery_behind_the_client_dsr() {
    path_mtu_discovery_behind_the_client("dsr");
}

#[test]
fn path_mtu_discovery_behind_the_client_ipip() {
    path_mtu_discovery_behind_the_client("ipip");
}

#[test]
fn path_mtu_discovery_before_the_backend_nat() {
    path_mtu_discovery_before_the_backend("nat");
}

#[test]
fn path_mtu_discovery_before_the_backend_dsr() {
    path_mtu_discovery_before_the_backend("dsr");
}

#[test]
fn path_mtu_discovery_before_the_backend_ipip() {
    path_mtu_discovery_before_the_backend("ipip");
}

#[test]
fn without_icmp_errors_the_same_transfers_stall() {
    for mode in ["nat", "dsr", "ipip"] {
        // Each scene takes a thread of its own into namespaces of its own.
        let run = move || {
            let scene = Scene::new(mode, true);
            scene.swallow_errors();
            for service in services() {
                let (client, server) = connected(&scene, service, mode).unwrap();
                let error = transfer(server, client).unwrap_err();
                assert!([ErrorKind::WouldBlock, ErrorKind::TimedOut].contains(&error.kind()), "{error}");
            }
        };
        thread::spawn(run).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    }
}

#[test]
fn a_router_before_a_nat_backend_tells_the_client() {
    let lab = Lab::new(1);
    let router = &lab.backends[0];
    let deep = behind(router, true);
    lab.lb.command(&format!("ip route add 192.0.2.128/30 via {}", router.ipv4));
    lab.lb.command(&format!("ip -6 route add 2001:db8:fa::/64 via {}", router.ipv6));
    let _daemon =
        Daemon::start(&lab, &configuration("nat", "drop", &[FAR_IPV4[1].into(), FAR_IPV6[1].into()]));
    for (service, backend) in services().into_iter().zip([IpAddr::from(FAR_IPV4[1]), FAR_IPV6[1].into()]) {
        let listener = deep.run(|| TcpListener::bind(SocketAddr::new(backend, 80))).unwrap();
        let client = lab.client.run(|| connect(service)).unwrap();
        let (server, _) = listener.accept().unwrap();
        assert_eq!(transfer(client, server).unwrap(), BULK, "{service}");
    }
}

#[test]
fn a_closed_port_of_a_backend_is_reported_to_the_client() {
    let lab = Lab::new(1);
    let backend = &lab.backends[0];
    let daemon =
        Daemon::start(&lab, &configuration("nat", "drop", &[backend.ipv4.into(), backend.ipv6.into()]));
    for service in services() {
        let error = lab.client.ask(service, PATIENCE).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{service}");
    }
    // Each error came through here, and was translated.
    let reasons = reasons(&daemon);
    let replies =
        ["forward-reply-tx", "forward-reply-redirect"].map(|name| reasons.get(name).copied().unwrap_or(0));
    assert_eq!(replies.iter().sum::<u64>(), 2, "{reasons:?}");
}

#[test]
fn a_closed_port_of_a_backend_on_the_node_itself_is_reported_to_the_client() {
    let lab = Lab::new(1);
    let own = [Ipv4Addr::new(192, 0, 2, 1).into(), Ipv6Addr::new(0x2001, 0xdb8, 0xc, 0, 0, 0, 0, 1).into()];
    let _daemon = Daemon::start(&lab, &configuration("nat", "drop", &own));
    for service in services() {
        let error = lab.client.ask(service, PATIENCE).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{service}");
    }
}

#[test]
fn without_a_backend_clients_fail_at_once_where_that_is_configured() {
    let lab = Lab::new(1);
    let daemon = Daemon::start(&lab, &configuration("nat", "reject", &[]));
    for service in services() {
        for error in
            [lab.client.fetch(service, PATIENCE).unwrap_err(), lab.client.ask(service, PATIENCE).unwrap_err()]
        {
            assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{service}");
        }
    }
    assert_eq!(reasons(&daemon).get("drop-no-backend-answered"), Some(&4));
    // The control run, by a reload of the same service: nothing comes back.
    let writes = daemon.status().publication.writes;
    daemon.configure(&configuration("nat", "drop", &[]));
    daemon.reload();
    crate::harness::lab::await_until("the reload", PATIENCE, || daemon.status().publication.writes > writes);
    for service in services() {
        assert_eq!(lab.client.fetch(service, SECOND).unwrap_err().kind(), ErrorKind::TimedOut, "{service}");
        assert_eq!(lab.client.ask(service, SECOND).unwrap_err().kind(), ErrorKind::WouldBlock, "{service}");
    }
    assert!(reasons(&daemon)["drop-no-backend"] >= 4);
    assert_eq!(daemon.status().publication.writes, writes + 4, "one word for each service");
}
