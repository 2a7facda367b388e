//! A load balancer with services in every mode, in a namespace of its own.

use std::{
    net::{IpAddr, SocketAddr},
    path::Path,
};

use nix::net::if_::if_nametoindex;
use tidegate::{
    datapath::{
        BackendRecord, Datapath, Kernel, LedgerCounters, Link, LinkFlags, Membership, Options, Pins, REASONS,
        RecordRange, RunOutcome, ServiceRecord, Slot,
    },
    model::{
        BackendAddress, BackendState, Capacity, HashMode, Mode, OnNoBackend, PortRange, Protocol,
        ServiceAddress, backend_records,
    },
};

use super::wire;
use crate::harness::{
    frame::{Ethernet, MacAddress, Network, Tcp, Udp, protocol, tcp_flags},
    lab::Lab,
};

pub const XDP_DROP: u32 = 1;
pub const XDP_PASS: u32 = 2;
pub const XDP_TX: u32 = 3;

/// What frames come with: from the router to the load balancer.
pub const ARRIVING: Ethernet =
    Ethernet { destination: [2, 0, 0, 0, 0, 1], source: [2, 0, 0, 0, 0, 0xfe], ethertype: None };
/// The load balancer's address as sender of packets to backends.
pub const SENDER: MacAddress = [2, 0, 0, 0, 0, 0xaa];
/// The next hop towards clients.
pub const ROUTER: MacAddress = [2, 0, 0, 0, 0, 0xcc];
/// Backends of each service.
pub const BACKENDS: u16 = 3;
/// The ports of services that have a range.
const RANGE: std::ops::RangeInclusive<u16> = 70..=90;
/// Slots of each table: every backend has some.
const SLOTS: u32 = 251;

/// What a service of these tests is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    pub mode: Mode,
    pub ipv6: bool,
    pub protocol: Protocol,
    /// The backends, in modes that encapsulate, are of the other family.
    pub crossed: bool,
    /// The service has a range of ports, which are kept.
    pub keeping: bool,
}

/// A service of the node.
#[derive(Clone, Copy, Debug)]
pub struct Service {
    pub id: u16,
    pub kind: Kind,
    pub address: SocketAddr,
}

/// The node.
pub struct Node {
    pub kernel: Kernel,
    pub services: Vec<Service>,
    pub ingress: u32,
    pub ingress_mac: MacAddress,
    _lab: Lab,
}

/// Every mode, family and protocol.
pub fn kinds() -> Vec<Kind> {
    let mut kinds = Vec::new();
    for mode in Mode::ALL {
        for ipv6 in [false, true] {
            for protocol in [Protocol::Tcp, Protocol::Udp] {
                let kind = Kind { mode, ipv6, protocol, crossed: false, keeping: false };
                kinds.push(kind);
                kinds.push(Kind { keeping: true, ..kind });
                if mode.encapsulates() {
                    kinds.push(Kind { crossed: true, ..kind });
                }
            }
        }
    }
    kinds
}

fn ip(ipv6: bool, v4: [u8; 3], subnet: u16, number: u16) -> IpAddr {
    if ipv6 {
        [0x2001, 0xdb8, subnet, 0, 0, 0xfedc, 0x1234, number].into()
    } else {
        [v4[0], v4[1], v4[2], number as u8].into()
    }
}

/// The n-th client. Its route leads back out of the interface that everything comes in by.
pub fn client(ipv6: bool, number: u16) -> IpAddr {
    ip(ipv6, [203, 0, 113], 0xc1, number)
}

/// A router somewhere between the client and the backends.
pub fn middle_box(ipv6: bool) -> IpAddr {
    ip(ipv6, [203, 0, 113], 0xc2, 250)
}

impl Service {
    /// The address of backend `number`.
    pub fn backend(&self, number: u16) -> SocketAddr {
        let ipv6 = self.kind.ipv6 != self.kind.crossed;
        let translated = self.kind.mode == Mode::Nat && !self.kind.keeping;
        let port = if translated { 8080 } else { self.address.port() };
        SocketAddr::new(ip(ipv6, [198, 51, 100], 0xb0, self.id * 4 + number), port)
    }

    /// The MAC address by which packets to a backend can be told.
    pub fn backend_mac(&self, number: u16) -> MacAddress {
        [2, 0, 0, 1, self.id as u8, number as u8]
    }

    /// True for an address of the service.
    pub fn is_at(&self, address: SocketAddr) -> bool {
        address.ip() == self.address.ip() && self.has_port(address.port(), self.address.port())
    }

    /// True for an address of one of its backends.
    pub fn has_backend(&self, address: SocketAddr) -> bool {
        (1..=BACKENDS)
            .map(|number| self.backend(number))
            .any(|backend| backend.ip() == address.ip() && self.has_port(address.port(), backend.port()))
    }

    fn has_port(&self, port: u16, only: u16) -> bool {
        if self.kind.keeping { RANGE.contains(&port) } else { port == only }
    }

    /// The IP protocol number.
    pub fn protocol(&self) -> u8 {
        self.kind.protocol.number()
    }

    /// Number of the backend that a frame was sent to.
    pub fn backend_of(&self, frame: &[u8]) -> Option<u16> {
        (1..=BACKENDS).find(|&number| frame[..6] == self.backend_mac(number))
    }

    /// A packet of a client for the service.
    pub fn request(&self, client: SocketAddr) -> Vec<u8> {
        let network = Network::between(client.ip(), self.address.ip());
        match self.kind.protocol {
            Protocol::Tcp => wire::packet(
                ARRIVING,
                network,
                Tcp::with_flags(client.port(), self.address.port(), tcp_flags::ACK),
                b"",
            ),
            Protocol::Udp => {
                wire::packet(ARRIVING, network, Udp::new(client.port(), self.address.port()), b"?")
            }
        }
    }
}

impl Node {
    /// A node with a service of each kind, whose backends have this MTU.
    pub fn new(mtu: u16) -> Self {
        let lab = Lab::new(1);
        let name = "client";
        let ingress = if_nametoindex(name).unwrap();
        for ipv6 in [false, true] {
            let router = ip(ipv6, [192, 0, 2], 0xc, 0xfe);
            let family = if ipv6 { "-6" } else { "-4" };
            let mac = ROUTER.map(|byte| format!("{byte:02x}")).join(":");
            lab.lb.command(&format!(
                "ip {family} neigh replace {router} lladdr {mac} dev {name} nud permanent"
            ));
            let clients = if ipv6 { "2001:db8:c1::/64" } else { "203.0.113.0/24" };
            lab.lb.command(&format!("ip {family} route add {clients} via {router} dev {name}"));
        }
        let mac = std::fs::read_to_string(format!("/sys/class/net/{name}/address")).unwrap();
        let mac: Vec<u8> = mac.trim().split(':').map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect();
        let pins = Pins::new(Path::new("/sys/fs/bpf/icmp"));
        let capacity = Capacity { services: 64, backends: 4096, flows: 4096, ..Capacity::default() };
        let mut kernel = Kernel::open(&Options { pins, capacity }).unwrap();
        let services: Vec<Service> = kinds()
            .into_iter()
            .enumerate()
            .map(|(index, kind)| {
                let id = index as u16 + 1;
                Service { id, kind, address: SocketAddr::new(ip(kind.ipv6, [192, 0, 2], 0xa0, 100 + id), 80) }
            })
            .collect();
        for service in &services {
            program(&mut kernel, service, ingress, mtu, OnNoBackend::Drop);
        }
        Self { kernel, services, ingress, ingress_mac: mac.try_into().unwrap(), _lab: lab }
    }

    /// Empties a service's table.
    pub fn without_backends(&mut self, service: &Service, action: OnNoBackend) {
        let record = ServiceRecord { on_no_backend: action, ..record(service) };
        self.kernel.write_policy(service.id, &record).unwrap();
        self.kernel.publish(&[(service.id, vec![Slot::default(); SLOTS as usize])]).unwrap();
    }

    /// Runs the load balancer, and returns what it did, with the only reason that was counted.
    pub fn run(&self, frame: &[u8]) -> (RunOutcome, &'static str) {
        let before = self.kernel.ledger(0).unwrap();
        let outcome = self.kernel.run("xdp_lb", frame, self.ingress).unwrap();
        let after = self.kernel.ledger(0).unwrap();
        (outcome, counted(&before, &after))
    }

    /// Runs the load balancer on a frame that must go untouched to the kernel.
    #[track_caller]
    pub fn assert_passed(&self, frame: &[u8], reason: &str) {
        let (outcome, counted) = self.run(frame);
        assert_eq!((outcome.action, counted), (XDP_PASS, reason));
        crate::harness::frame::assert_same(frame, &outcome.frame);
    }

    /// The backend that a flow of the client uses.
    pub fn backend_of_flow(&self, service: &Service, client: SocketAddr) -> u16 {
        let (outcome, reason) = self.run(&service.request(client));
        assert_eq!((outcome.action, reason), (XDP_TX, "forward-tx"), "{service:?}");
        service.backend_of(&outcome.frame).unwrap()
    }
}

/// The one reason that grew.
fn counted(before: &LedgerCounters, after: &LedgerCounters) -> &'static str {
    assert_eq!(after.seen, before.seen + 1, "a packet was not counted as seen once");
    let grown: Vec<_> =
        REASONS.iter().filter(|&&reason| after.packets(reason) != before.packets(reason)).collect();
    assert_eq!(grown.len(), 1, "{grown:?}");
    assert_eq!(after.packets(*grown[0]), before.packets(*grown[0]) + 1);
    grown[0].name
}

fn record(service: &Service) -> ServiceRecord {
    let limit = backend_records(16);
    ServiceRecord {
        address: ServiceAddress {
            address: service.address.ip(),
            ports: match service.kind.keeping {
                true => PortRange::new(*RANGE.start(), *RANGE.end()).unwrap(),
                false => PortRange::new(80, 80).unwrap(),
            },
            protocol: service.kind.protocol,
        },
        mode: service.kind.mode,
        on_no_backend: OnNoBackend::Drop,
        hash: HashMode::FiveTuple,
        slots: SLOTS,
        range: RecordRange { base: u32::from(service.id) * limit, limit },
    }
}

fn program(kernel: &mut Kernel, service: &Service, interface: u32, mtu: u16, action: OnNoBackend) {
    let record = ServiceRecord { on_no_backend: action, ..record(service) };
    for number in 1..=BACKENDS {
        let address = service.backend(number);
        let backend = BackendAddress {
            address: address.ip(),
            port: if service.kind.keeping { 0 } else { address.port() },
        };
        let ipv6 = address.is_ipv6();
        let link = Link {
            interface,
            mtu,
            state: Membership::Member(BackendState::Up),
            flags: LinkFlags { resolved: true, ..LinkFlags::default() },
            ipv6,
        };
        let backend_record = BackendRecord {
            link,
            address: backend,
            protocol: service.kind.protocol,
            mode: service.kind.mode,
            inner_ipv6: service.kind.ipv6,
            source: ip(ipv6, [198, 51, 100], 0xb0, 254),
            tags: [0; 2],
            destination_mac: service.backend_mac(number),
            source_mac: SENDER,
        };
        kernel.write_backend(record.range.record(number).unwrap(), Some(&backend_record)).unwrap();
        if service.kind.mode == Mode::Nat {
            kernel.set_nat_source(backend, service.kind.protocol, true).unwrap();
        }
    }
    kernel.write_service(service.id, &record).unwrap();
    let slots = (0..SLOTS).map(|slot| Slot::settled((slot % u32::from(BACKENDS)) as u16 + 1)).collect();
    kernel.publish(&[(service.id, slots)]).unwrap();
    kernel.bind(record.address, service.id).unwrap();
}

/// Protocol number of an encapsulation.
pub fn outer_protocol(kind: Kind) -> u8 {
    match kind.mode {
        Mode::Gre => 47,
        Mode::Gue => protocol::UDP,
        _ if kind.ipv6 => protocol::IPV6,
        _ => protocol::IPIP,
    }
}

impl Node {
    /// Entries in use in the flow table.
    pub fn kernel_flows(&self) -> u64 {
        self.kernel.count_flows().unwrap()
    }
}
