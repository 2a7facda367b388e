//! The shapes of a model in the kernel's maps, and packets sent through the programs.

use std::net::{IpAddr, SocketAddr};

use nix::net::if_::if_nametoindex;
use tidegate::{
    datapath::{
        BackendRecord, Datapath, Kernel, Link, LinkFlags, Membership, Options, Pins, RecordRange,
        ServiceRecord, Slot,
    },
    model::{BackendState, Capacity, Protocol, ServiceAddress},
};

use super::model::{Expected, Model, OUTER_SOURCE, Request, SLOTS, Shape, mac_of, packet};
use crate::harness::{
    frame::{Ethernet, MacAddress, difference, hex},
    lab::Lab,
};

const XDP_DROP: u32 = 1;
const XDP_PASS: u32 = 2;
const XDP_TX: u32 = 3;

/// Records of each service.
const RECORDS: u32 = 256;

/// The programs with what a model knows, in a namespace of their own.
pub struct Programs {
    pub kernel: Kernel,
    interface: u32,
}

/// Moves the calling thread into namespaces of its own: once in a test, and first.
pub fn enter() {
    enter_with_clients(&[]);
}

/// The same with routes to these clients, all by one gateway.
pub fn enter_with_clients(clients: &[IpAddr]) {
    let lab = Lab::new(1);
    let gateway = &lab.backends[0];
    for via in [IpAddr::from(gateway.ipv4), gateway.ipv6.into()] {
        let mac = GATEWAY.map(|byte| format!("{byte:02x}")).join(":");
        lab.lb.command(&format!("ip neighbour replace {via} lladdr {mac} dev {INTERFACE} nud permanent"));
        for client in clients.iter().filter(|client| client.is_ipv4() == via.is_ipv4()) {
            lab.lb.command(&format!("ip route add {client} via {via}"));
        }
    }
    std::mem::forget(lab);
}

/// The MAC address of the clients' gateway.
const GATEWAY: MacAddress = [2, 0, 0, 0, 0xaa, 1];
/// Where everything arrives and leaves.
const INTERFACE: &str = "backend1";

fn own_mac() -> MacAddress {
    let text = std::fs::read_to_string(format!("/sys/class/net/{INTERFACE}/address")).unwrap();
    let bytes = text.trim().split(':').map(|byte| u8::from_str_radix(byte, 16).unwrap());
    bytes.collect::<Vec<u8>>().try_into().unwrap()
}

impl Programs {
    pub fn new(model: &Model) -> Self {
        Self::pinned_at("/sys/fs/bpf/tidegate", model)
    }

    pub fn pinned_at(pins: &str, model: &Model) -> Self {
        let mut programs = Self::open(pins);
        for (service, shape) in model.shapes.iter().enumerate() {
            programs.add(service, shape);
        }
        programs
    }

    pub fn open(pins: &str) -> Self {
        let capacity =
            Capacity { services: 64, backends: 64 * RECORDS, flows: 100_000, ..Capacity::default() };
        let kernel = Kernel::open(&Options { pins: Pins::new(pins), capacity }).expect("load the programs");
        Self { kernel, interface: if_nametoindex(INTERFACE).unwrap() }
    }

    /// Adds a service in the order in which the daemon would.
    pub fn add(&mut self, service: usize, shape: &Shape) {
        let (id, kernel) = (id_of(service), &mut self.kernel);
        let range = RecordRange { base: u32::from(id) * RECORDS, limit: RECORDS };
        for (index, &address) in shape.backends.iter().enumerate() {
            let ipv6 = address.address.is_ipv6();
            let record = BackendRecord {
                link: Link {
                    interface: self.interface,
                    mtu: 1500,
                    state: Membership::Member(BackendState::Up),
                    flags: LinkFlags { resolved: true, ..LinkFlags::default() },
                    ipv6,
                },
                address,
                protocol: shape.address.protocol,
                mode: shape.mode,
                inner_ipv6: shape.address.address.is_ipv6(),
                source: if ipv6 { [0u16; 8].into() } else { OUTER_SOURCE.into() },
                tags: [0; 2],
                destination_mac: mac_of(service, index),
                source_mac: [2, 0, 0, 9, 0, 1],
            };
            kernel.write_backend(range.record(index as u16 + 1).unwrap(), Some(&record)).unwrap();
            if shape.mode.translates() {
                kernel.set_nat_source(address, shape.address.protocol, true).unwrap();
            }
        }
        let slots = SLOTS as u32;
        let record = ServiceRecord {
            address: shape.address,
            mode: shape.mode,
            hash: shape.hash,
            on_no_backend: tidegate::model::OnNoBackend::Drop,
            slots,
            range,
        };
        kernel.write_service(id, &record).unwrap();
        let numbers = (0..SLOTS).map(|slot| Slot::settled((slot % shape.backends.len()) as u16 + 1));
        kernel.publish(&[(id, numbers.collect())]).unwrap();
        kernel.bind(shape.address, id).unwrap();
    }

    pub fn remove(&mut self, address: ServiceAddress) {
        self.kernel.unbind(address).unwrap();
    }

    /// What the program makes of a frame: action and bytes.
    pub fn run(&self, frame: &[u8]) -> (u32, Vec<u8>) {
        let outcome = self.kernel.run("xdp_lb", frame, self.interface).unwrap();
        (outcome.action, outcome.frame)
    }

    /// Sends a client's packet through model and programs, which must agree in every byte and in the ledger.
    #[track_caller]
    pub fn check_request(&self, model: &mut Model, request: Request) -> Expected {
        let frame = request.frame();
        let expected = model.request(request);
        self.check(&frame, &expected, &format!("{request:?}"));
        expected
    }

    /// The same with a backend's packet to a client.
    #[track_caller]
    pub fn check_reply(
        &self,
        model: &Model,
        from: SocketAddr,
        client: SocketAddr,
        protocol: Protocol,
    ) -> Expected {
        let frame = packet(from, client, protocol, 64, Ethernet::default()).build();
        let ethernet = Ethernet { destination: GATEWAY, source: own_mac(), ethertype: None };
        let expected = model.reply(from, client, protocol, ethernet);
        self.check(&frame, &expected, &format!("{from} -> {client} {protocol}"));
        expected
    }

    #[track_caller]
    fn check(&self, frame: &[u8], expected: &Expected, what: &str) {
        let seen = |id| self.kernel.ledger(id).unwrap();
        let id = match expected {
            Expected::Sent(service, _) => id_of(*service),
            _ => 0,
        };
        let before = seen(id);
        let (action, got) = self.run(frame);
        let (wanted_action, wanted) = match expected {
            Expected::Untouched => (XDP_PASS, frame),
            Expected::Dropped => (XDP_DROP, got.as_slice()),
            Expected::Sent(_, bytes) => (XDP_TX, bytes.as_slice()),
        };
        let difference = difference(wanted, &got);
        assert!(
            action == wanted_action && difference.is_none(),
            "{what}: action {action}, not {wanted_action}; {difference:?}\nfrom {}\nto   {}\n{before:?}\n{:?}",
            hex(frame),
            hex(&got),
            seen(id)
        );
        assert_ne!(before, seen(id), "{what}: counted for its service");
    }
}

pub fn id_of(service: usize) -> u16 {
    service as u16 + 1
}
