//! A node as the daemon would program it from a configuration, and packets of any source.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
};

use nix::net::if_::if_nametoindex;
use tidegate::{
    config,
    datapath::{Datapath, Kernel, Options, Pins, REASONS},
    engine::Engine,
    model::{Desired, NextHop, Route, VlanTags},
};

use crate::harness::{
    frame::{Network, Packet, Tcp, Transport, Udp, tcp_flags},
    lab::Lab,
};

pub const PINS: &str = "/sys/fs/bpf/tidegate";
const INTERFACE: &str = "backend1";
const XDP_DROP: u32 = 1;

/// The programs, with an engine that makes them be what a configuration says.
pub struct Bench {
    pub engine: Engine<Kernel>,
    pub interface: u32,
}

/// Moves the calling thread into namespaces of its own: once in a test, and first.
pub fn enter() {
    std::mem::forget(Lab::new(1));
}

/// A configuration of these services, each a line without `backends`, and of the node.
pub fn configuration(admission: &str, services: &[&str]) -> String {
    let mut text = format!(
        "interfaces: [{{ name: {INTERFACE} }}]\ncapacity: {{ services: 16, backends: 1024, flows: 20000 }}\n\
         defaults: {{ health: none }}\nadmission: {admission}\nservices:{}\n",
        if services.is_empty() { " []" } else { "" }
    );
    for (index, service) in services.iter().enumerate() {
        let backend =
            if service.contains("address: \"2001:db8") { "2001:db8:2::11" } else { "198.51.100.11" };
        text += &format!("  - {{ name: s{index}, {service}, backends: [{{ address: \"{backend}\" }}] }}\n");
    }
    text
}

/// The meaning of a configuration.
pub fn desired(text: &str) -> Desired {
    config::parse(text, "tidegate.yaml").unwrap_or_else(|error| panic!("{error}"))
}

impl Bench {
    pub fn new(text: &str) -> Self {
        let mut bench = Self::adopt(text);
        bench.apply();
        bench
    }

    /// What a daemon does at its start, but for applying.
    pub fn adopt(text: &str) -> Self {
        let desired = desired(text);
        let options = Options { pins: Pins::new(PINS), capacity: desired.capacity };
        let kernel = Kernel::open(&options).expect("load the programs");
        let engine = Engine::adopt(kernel).unwrap();
        let mut bench = Self { engine, interface: if_nametoindex(INTERFACE).unwrap() };
        bench.desire(&desired);
        bench
    }

    /// A reload.
    pub fn reload(&mut self, text: &str) -> u64 {
        self.desire(&desired(text));
        self.apply()
    }

    pub fn apply(&mut self) -> u64 {
        self.engine.apply().unwrap().writes
    }

    fn desire(&mut self, desired: &Desired) {
        self.engine.set_admission(&desired.admission);
        self.engine.set_desired(&desired.services);
        let route = Route {
            interface: self.interface,
            device: self.interface,
            tags: VlanTags::default(),
            interface_name: INTERFACE.to_owned(),
            source_mac: [2, 0, 0, 0, 0, 1],
            mtu: 1500,
            source: IpAddr::from([192, 0, 2, 1]),
        };
        let next_hop = NextHop::Reachable { route, destination_mac: [2, 0, 0, 0, 0, 2] };
        let targets = self.engine.next_hop_targets();
        self.engine.set_next_hops(
            &targets.into_iter().map(|address| (address, next_hop.clone())).collect::<BTreeMap<_, _>>(),
        );
    }

    /// Runs a frame. Returns the name of the reason it is counted under: the ledger must grow by one packet, under one reason.
    #[track_caller]
    pub fn reason(&self, packet: &Packet) -> &'static str {
        let ledger = || self.engine.datapath().ledger(0).unwrap();
        let before = ledger();
        let action = self.run(packet);
        let after = ledger();
        assert_eq!(after.seen, before.seen + 1);
        let grown: Vec<_> =
            REASONS.iter().filter(|&&reason| after.packets(reason) != before.packets(reason)).collect();
        let [reason] = grown[..] else { panic!("counted under {grown:?}") };
        assert_eq!(after.packets(*reason), before.packets(*reason) + 1);
        assert_eq!(action == XDP_DROP, reason.name.starts_with("drop-"), "{}", reason.name);
        reason.name
    }

    /// Runs a frame and returns what is to be done with it.
    pub fn run(&self, packet: &Packet) -> u32 {
        self.engine.datapath().run("xdp_lb", &packet.build(), self.interface).unwrap().action
    }

    /// Runs a frame so many times and returns how many got through.
    pub fn admitted(&self, packet: &Packet, count: usize) -> usize {
        let frame = packet.build();
        let kernel = self.engine.datapath();
        (0..count)
            .filter(|_| kernel.run("xdp_lb", &frame, self.interface).unwrap().action != XDP_DROP)
            .count()
    }
}

pub fn syn(from: SocketAddr, to: &str) -> Packet {
    with_flags(from, to, tcp_flags::SYN)
}

pub fn with_flags(from: SocketAddr, to: &str, flags: u8) -> Packet {
    let to: SocketAddr = to.parse().unwrap();
    between(from, to, Tcp::with_flags(from.port(), to.port(), flags).into())
}

pub fn datagram(from: SocketAddr, to: &str) -> Packet {
    let to: SocketAddr = to.parse().unwrap();
    between(from, to, Udp::new(from.port(), to.port()).into())
}

fn between(from: SocketAddr, to: SocketAddr, transport: Transport) -> Packet {
    Packet::new(Network::between(from.ip(), to.ip()), transport).payload(b"hello")
}

pub fn at(address: &str, port: u16) -> SocketAddr {
    SocketAddr::new(address.parse().unwrap(), port)
}
