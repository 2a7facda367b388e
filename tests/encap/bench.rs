//! The real programs, on single frames: services with one backend each, for every kind of tunnel and way out.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
};

use nix::net::if_::if_nametoindex;
use tidegate::{
    datapath::{
        BackendRecord, Datapath, Decap, Kernel, Link, LinkFlags, Membership, Options, OuterSettings, Pins,
        RecordRange, RunOutcome, ServiceRecord, Slot,
    },
    model::{
        AttachMode, BackendAddress, BackendState, Capacity, Encapsulation, Interface, Mode, OnNoBackend,
        Protocol, ServiceAddress, SourcePrefix,
    },
};

use super::model::{self, MODES, SHAPES, Tags, Tunnel};
use crate::harness::{
    frame::{Ipv4, Ipv6, Network, Packet, Transport},
    lab::{Lab, SERVICE_IPV4, SERVICE_IPV6},
    model::hash::five_tuple,
};

pub const SOURCE_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0x51];
pub const BACKEND_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0xbe];
pub const CLIENT_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0xc1];
pub const GUE_PORT: u16 = 6081;
const SLOTS: u32 = 13;

/// One service of the bench.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub mode: Mode,
    pub inner_ipv6: bool,
    pub outer_ipv6: bool,
    /// Tags of what leaves.
    pub tags: Tags,
    pub port: u16,
}

/// The programs, and the services they have.
pub struct Bench {
    pub kernel: Kernel,
    pub cases: Vec<Case>,
    pub ingress: u32,
    encapsulation: Encapsulation,
    _lab: Lab,
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Outer sources by flow: 24 and 64 bits of prefix.
pub fn with_prefixes() -> Encapsulation {
    Encapsulation {
        source_v4: Some(SourcePrefix::containing(ip("198.18.7.0"), 24)),
        source_v6: Some(SourcePrefix::containing(ip("2001:db8:7:7::"), 64)),
        gue_port: GUE_PORT,
    }
}

/// One outer source per family.
pub fn without_prefixes() -> Encapsulation {
    Encapsulation { gue_port: GUE_PORT, ..Encapsulation::default() }
}

impl Bench {
    /// Moves this thread into a lab and programs a service for every case.
    pub fn new(encapsulation: Encapsulation) -> Self {
        let lab = Lab::new(0);
        let pins = Pins::new("/sys/fs/bpf/tidegate");
        let capacity = Capacity { services: 64, backends: 1024, flows: 4096, ..Capacity::default() };
        let kernel = Kernel::open(&Options { pins, capacity }).expect("tests with BPF need root");
        let ingress = if_nametoindex("client").unwrap();
        let mut bench = Self { kernel, cases: Vec::new(), ingress, encapsulation, _lab: lab };
        bench.kernel.set_outer_settings(OuterSettings::from(&encapsulation)).unwrap();
        for inner_ipv6 in [false, true] {
            for outer_ipv6 in [false, true] {
                for mode in MODES {
                    for tags in SHAPES {
                        let port = 1000 + bench.cases.len() as u16;
                        bench.cases.push(Case { mode, inner_ipv6, outer_ipv6, tags, port });
                    }
                }
            }
        }
        for (number, case) in bench.cases.clone().iter().enumerate() {
            bench.program(number as u16 + 1, case);
        }
        bench
    }

    fn program(&mut self, id: u16, case: &Case) {
        let range = RecordRange { base: u32::from(id) * 4, limit: 3 };
        let address = ServiceAddress::new(service(case), case.port, Protocol::Udp);
        let record = ServiceRecord {
            address,
            mode: case.mode,
            hash: tidegate::model::HashMode::FiveTuple,
            on_no_backend: OnNoBackend::Drop,
            slots: SLOTS,
            range,
        };
        let record_of_backend = self.record(case);
        self.kernel.write_backend(range.record(1).unwrap(), Some(&record_of_backend)).unwrap();
        self.kernel.write_service(id, &record).unwrap();
        self.kernel.publish(&[(id, vec![Slot::settled(1); SLOTS as usize])]).unwrap();
        self.kernel.bind(address, id).unwrap();
    }

    fn record(&self, case: &Case) -> BackendRecord {
        let tci = |at: usize| case.tags.get(at).map_or(0, |(_, tci)| *tci);
        let tunnel = self.tunnel(case);
        BackendRecord {
            link: Link {
                interface: self.ingress,
                mtu: 9000,
                state: Membership::Member(BackendState::Up),
                flags: LinkFlags {
                    resolved: true,
                    local: false,
                    service_tag: case.tags.first().is_some_and(|(kind, _)| *kind == 0x88a8),
                },
                ipv6: case.outer_ipv6,
            },
            address: BackendAddress { address: tunnel.destination, port: case.port },
            protocol: Protocol::Udp,
            mode: case.mode,
            inner_ipv6: case.inner_ipv6,
            source: tunnel.source,
            tags: [tci(0), tci(1)],
            destination_mac: BACKEND_MAC,
            source_mac: SOURCE_MAC,
        }
    }

    /// The tunnel of a case.
    pub fn tunnel(&self, case: &Case) -> Tunnel {
        let (own, destination, none) = match case.outer_ipv6 {
            false => ("198.51.100.1", "198.51.100.77", "0.0.0.0"),
            true => ("2001:db8:5::1", "2001:db8:5::77", "::"),
        };
        let prefix = self.encapsulation.source(case.outer_ipv6);
        Tunnel {
            mode: case.mode,
            source: prefix.map_or(ip(own), SourcePrefix::address),
            spread: prefix.map_or(ip(none), SourcePrefix::host_bits),
            destination: ip(destination),
            gue_port: GUE_PORT,
        }
    }

    /// What the load balancer makes of a frame.
    pub fn send(&self, frame: &[u8]) -> RunOutcome {
        self.kernel.run("xdp_lb", frame, self.ingress).unwrap()
    }

    /// The frame that must leave for the IP packet `inner` and what followed it.
    pub fn expected(&self, case: &Case, inner: &[u8], padding: &[u8], client: SocketAddr) -> Vec<u8> {
        let hash = five_tuple(client, (service(case), case.port).into(), 17);
        let mut frame = model::l2(BACKEND_MAC, SOURCE_MAC, case.tags, case.outer_ipv6);
        frame.extend(model::encapsulate(inner, &self.tunnel(case), hash));
        frame.extend(padding);
        frame
    }

    /// The other end of the tunnels: its program, and its addresses.
    pub fn other_end(&self) -> (Decap, BTreeSet<IpAddr>) {
        let own = BTreeSet::from([
            SERVICE_IPV4.into(),
            SERVICE_IPV6.into(),
            ip("198.51.100.77"),
            ip("2001:db8:5::77"),
        ]);
        let mut decap = Decap::load_for(&Pins::new("/sys/fs/bpf/end"), GUE_PORT).unwrap();
        decap.set_addresses(&own).unwrap();
        decap.attach(&Interface { name: "client".into(), mode: AttachMode::Native }).unwrap();
        (decap, own)
    }
}

/// The address of the service of a case.
pub fn service(case: &Case) -> IpAddr {
    if case.inner_ipv6 { SERVICE_IPV6.into() } else { SERVICE_IPV4.into() }
}

/// An address of a client of a case.
pub fn client(case: &Case, port: u16) -> SocketAddr {
    let address = if case.inner_ipv6 { ip("2001:db8:c::2") } else { ip("192.0.2.2") };
    (address, port).into()
}

/// An IP packet from a client to the service of a case, with this traffic class.
pub fn packet(case: &Case, client: SocketAddr, class: u8, payload: &[u8]) -> Vec<u8> {
    let network: Network = match (client.ip(), service(case)) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let dont_fragment = class & 4 == 0;
            Ipv4 { tos: class, identification: 0x1234, dont_fragment, ttl: 7, ..Ipv4::new(from, to) }.into()
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            Ipv6 { traffic_class: class, flow_label: 0xabcde, hop_limit: 7, ..Ipv6::new(from, to) }.into()
        }
        _ => panic!("ends of two families"),
    };
    let udp = crate::harness::frame::Udp::new(client.port(), case.port);
    Packet::new(network, Transport::Udp(udp)).payload(payload).build().split_off(14)
}

/// The frame of an IP packet as it comes from the client.
pub fn arriving(inner: &[u8], tags: Tags, padding: &[u8]) -> Vec<u8> {
    let mut frame = model::l2(SOURCE_MAC, CLIENT_MAC, tags, inner[0] >> 4 == 6);
    frame.extend(inner);
    frame.extend(padding);
    frame
}
