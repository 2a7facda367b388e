//! A lab with servers on its backends, and configurations for it.

use std::{
    collections::BTreeMap,
    fmt::Write,
    io,
    net::{IpAddr, SocketAddr},
};

use tidegate::{
    datapath::Decap,
    model::{BackendState, status::Status},
};

use crate::harness::lab::{Answer, Daemon, Host, Lab, SECOND, Server, await_until};

/// How long anything may take on a busy machine.
pub const PATIENCE: std::time::Duration = std::time::Duration::from_secs(20);
/// How long one request may take. A request that is lost takes a second longer, by TCP's first retransmission.
pub const REQUEST: std::time::Duration = std::time::Duration::from_secs(5);

/// A service as a line of the configuration.
pub struct Service {
    pub name: &'static str,
    pub address: SocketAddr,
    pub protocol: &'static str,
    pub mode: &'static str,
    pub backends: Vec<SocketAddr>,
}

impl Service {
    /// A TCP service.
    pub fn tcp(
        name: &'static str,
        mode: &'static str,
        address: SocketAddr,
        backends: Vec<SocketAddr>,
    ) -> Self {
        Self { name, address, protocol: "tcp", mode, backends }
    }

    /// The same service over UDP, under another name.
    pub fn udp(&self, name: &'static str) -> Self {
        Self { name, protocol: "udp", backends: self.backends.clone(), ..*self }
    }
}

/// A configuration of these services on all of the lab's interfaces, with health checks that are quick.
pub fn configuration(lab: &Lab, services: &[Service]) -> String {
    let mut text = String::from("interfaces:\n");
    for host in std::iter::once(&lab.client).chain(&lab.backends) {
        writeln!(text, "  - {{ name: {} }}", host.peer).unwrap();
    }
    text.push_str("capacity: { services: 32, backends: 2048, flows: 10000 }\n");
    text.push_str(
        "defaults: { health: { tcp: {}, interval: 200ms, degraded-interval: 50ms, timeout: 1s, rise: 2, fall: 2 } }\n",
    );
    text.push_str(if services.is_empty() { "services: []\n" } else { "services:\n" });
    for service in services {
        let Service { name, address, protocol, mode, backends } = service;
        writeln!(text, "  - name: {name}\n    address: \"{}\"\n    port: {}", address.ip(), address.port())
            .unwrap();
        writeln!(text, "    protocol: {protocol}\n    mode: {mode}\n    backends:").unwrap();
        for backend in backends {
            writeln!(text, "      - {{ address: \"{}\", port: {} }}", backend.ip(), backend.port()).unwrap();
        }
    }
    text
}

/// The addresses of a host's server in one family.
pub fn at(host: &Host, ipv6: bool, port: u16) -> SocketAddr {
    let address: IpAddr = if ipv6 { host.ipv6.into() } else { host.ipv4.into() };
    SocketAddr::new(address, port)
}

/// The backends of a lab in one family.
pub fn all(lab: &Lab, ipv6: bool, port: u16) -> Vec<SocketAddr> {
    lab.backends.iter().map(|backend| at(backend, ipv6, port)).collect()
}

/// Makes every backend the receiving end of tunnels and of dsr for `service`, and starts a server there and on its own address.
pub fn serve_directly(lab: &Lab, services: &[SocketAddr]) -> (Vec<Server>, Vec<Decap>) {
    let prepare = |backend: &Host| {
        backend.sysctl("net/ipv4/conf/all/arp_ignore", "1");
        let mut addresses =
            vec![at(backend, false, services[0].port()), at(backend, true, services[0].port())];
        for service in services {
            backend.own(service.ip());
            addresses.push(*service);
        }
        (backend.serve_at(&addresses), backend.decapsulate())
    };
    lab.backends.iter().map(prepare).unzip()
}

/// Waits until so many backends of every service are up, and packets go to them.
#[track_caller]
pub fn await_up(daemon: &Daemon, count: usize) {
    await_until("the backends to be up", PATIENCE, || {
        let status = daemon.status();
        status.ready && status.services.iter().all(|service| up(&status, service.name.as_str()) == count)
    });
}

/// Backends of a service that are up.
pub fn up(status: &Status, name: &str) -> usize {
    let service = status.services.iter().find(|service| service.name.as_str() == name).unwrap();
    service.backends.iter().filter(|backend| backend.state == BackendState::Up && backend.slots > 0).count()
}

/// Requests over connections of their own, counted by the server that answered.
#[track_caller]
pub fn spread(count: usize, mut request: impl FnMut() -> io::Result<Answer>) -> BTreeMap<String, usize> {
    let mut answers = BTreeMap::new();
    for number in 0..count {
        let answer = request().unwrap_or_else(|error| panic!("request {number} of {count}: {error}"));
        *answers.entry(answer.server).or_default() += 1;
    }
    answers
}

/// Checks that the ledger of the node and of every service closes.
#[track_caller]
pub fn assert_ledger_closes(daemon: &Daemon) {
    let status = daemon.status();
    let ledgers = status.services.iter().map(|service| (service.name.as_str(), &service.ledger));
    for (name, ledger) in ledgers.chain([("node", &status.ledger)]) {
        let accounted = ledger.forwarded + ledger.passed + ledger.dropped;
        assert_eq!(ledger.seen, accounted, "{name}: {ledger:?}");
        assert_eq!(ledger.reasons.values().sum::<u64>(), accounted, "{name}: {ledger:?}");
    }
}

/// Waits until connections to an address fail.
#[track_caller]
pub fn await_unreachable(client: &Host, address: SocketAddr) {
    await_until("connections to fail", PATIENCE, || client.fetch(address, SECOND / 2).is_err());
}

/// Packets that a host was asked to forward and had no route for. On the load balancer, where nobody owns the service addresses,
/// these are the packets of services that no program of ours took: a loss that does not depend on the machine's speed.
#[track_caller]
pub fn unrouted(host: &Host) -> u64 {
    let read =
        |name: &str| host.run(|| std::fs::read_to_string(format!("/proc/thread-self/net/{name}"))).unwrap();
    let (ipv4, ipv6) = (read("netstat"), read("snmp6"));
    let mut lines = ipv4.lines().filter_map(|line| line.strip_prefix("IpExt: "));
    let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
    let mut pairs = names.split(' ').zip(values.split(' '));
    let ipv4: u64 = pairs.find(|(name, _)| *name == "InNoRoutes").unwrap().1.parse().unwrap();
    let ipv6 = ipv6.lines().find_map(|line| line.strip_prefix("Ip6InNoRoutes")).unwrap();
    ipv4 + ipv6.trim().parse::<u64>().unwrap()
}
