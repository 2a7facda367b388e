//! One service of the shipped datapath, and readers of its table that share nothing with it but the pinned maps.

use std::{
    net::{IpAddr, SocketAddr},
    os::fd::{AsFd, OwnedFd},
    path::Path,
};

use libbpf_rs::{MapCore, MapFlags, MapHandle, MapInfo};
use tidegate::{
    datapath::{
        BackendRecord, DEFAULT_PINS, Datapath, Kernel, Link, LinkFlags, Membership, Options, Pins,
        RecordRange, ServiceRecord, Slot,
    },
    model::{BackendAddress, BackendState, Capacity, HashMode, Mode, OnNoBackend, Protocol, ServiceAddress},
};

use crate::harness::{
    frame::{Network, Packet, Tcp, protocol},
    kernel::{program_with_map, run_xdp},
    lab::Lab,
    model::{Action, hash},
};

/// Slots of the table: a prime, so that reading it takes a while.
pub const SLOTS: usize = 4001;
const SERVICE: u16 = 1;
/// The loopback interface.
const INTERFACE: u32 = 1;
const SLOT_BYTES: usize = 4;

/// The datapath with one DSR service and its backends 1 and 2.
pub struct Bench {
    kernel: Kernel,
    _lab: Lab,
}

/// Reads tables and runs packets, from any thread.
pub struct Reader {
    tables: MapHandle,
    program: OwnedFd,
}

fn service_address() -> SocketAddr {
    "203.0.113.10:80".parse().unwrap()
}

fn client(flow: u64) -> SocketAddr {
    SocketAddr::new("192.0.2.2".parse().unwrap(), 1024 + (flow % 60_000) as u16)
}

impl Bench {
    /// Moves the calling thread into namespaces of its own; a second one in a thread starts from nothing as well.
    pub fn new(table: &[u16]) -> Self {
        let lab = Lab::new(0);
        let capacity = Capacity { services: 4, backends: 64, flows: 1024, ..Capacity::default() };
        let options = Options { pins: Pins::new(DEFAULT_PINS), capacity };
        let mut kernel = Kernel::open(&options).unwrap();
        let address = ServiceAddress {
            address: service_address().ip(),
            ports: service_address().port().into(),
            protocol: Protocol::Tcp,
        };
        let range = RecordRange { base: 1, limit: 8 };
        let record = ServiceRecord {
            address,
            mode: Mode::Dsr,
            hash: HashMode::FiveTuple,
            on_no_backend: OnNoBackend::Drop,
            slots: SLOTS as u32,
            range,
        };
        kernel.write_service(SERVICE, &record).unwrap();
        for number in [1, 2] {
            kernel.write_backend(range.record(number).unwrap(), Some(&backend(number))).unwrap();
        }
        let mut bench = Self { kernel, _lab: lab };
        bench.publish(table);
        bench.kernel.bind(address, SERVICE).unwrap();
        bench
    }

    /// Publishes a table as the daemon does.
    pub fn publish(&mut self, table: &[u16]) {
        let slots = table.iter().map(|number| Slot::settled(*number)).collect();
        self.kernel.publish(&[(SERVICE, slots)]).unwrap();
    }

    pub fn reader(&self) -> Reader {
        let tables = MapHandle::from_pinned_path(Path::new(DEFAULT_PINS).join("maps/tables")).unwrap();
        let id = MapInfo::new(tables.as_fd()).unwrap().info.id;
        Reader { tables, program: program_with_map("xdp_lb", id) }
    }
}

fn backend(number: u16) -> BackendRecord {
    let link = Link {
        interface: INTERFACE,
        mtu: 1500,
        state: Membership::Member(BackendState::Up),
        flags: LinkFlags { resolved: true, ..LinkFlags::default() },
        ipv6: false,
    };
    BackendRecord {
        link,
        address: BackendAddress {
            address: IpAddr::from([198, 51, 100, number as u8]),
            port: service_address().port(),
        },
        protocol: Protocol::Tcp,
        mode: Mode::Dsr,
        inner_ipv6: false,
        source: IpAddr::from([0; 4]),
        tags: [0; 2],
        destination_mac: [2, 0, 0, 0, 0, number as u8],
        source_mac: [2, 0, 0, 0, 1, 0],
    }
}

impl Reader {
    /// The service's table, which the outer map leads to at this moment. `None` where it went in between.
    fn table(&self) -> Option<MapHandle> {
        let id = self.tables.lookup(&u32::from(SERVICE).to_ne_bytes(), MapFlags::ANY).unwrap().unwrap();
        MapHandle::from_map_id(u32::from_ne_bytes(id.try_into().unwrap())).ok()
    }

    /// The slots of the table that one look-up in the outer map found.
    pub fn snapshot(&self) -> Option<Vec<u16>> {
        let table = self.table()?;
        let mut slots = Vec::new();
        for line in 0..table.max_entries() {
            let bytes = table.lookup(&line.to_ne_bytes(), MapFlags::ANY).unwrap().unwrap();
            slots.extend(bytes.chunks(SLOT_BYTES).map(|slot| u16::from_ne_bytes([slot[0], slot[1]])));
        }
        slots.truncate(SLOTS);
        Some(slots)
    }

    /// What must not be done: writes slots into the table that packets read.
    pub fn rewrite_in_place(&self, table: &[u16]) {
        let live = self.table().expect("nobody replaces it");
        let slots_per_line = live.value_size() as usize / SLOT_BYTES;
        for (line, slots) in table.chunks(slots_per_line).enumerate() {
            let mut bytes: Vec<u8> = slots
                .iter()
                .flat_map(|number| [number.to_ne_bytes(), number.to_ne_bytes()].concat())
                .collect();
            bytes.resize(live.value_size() as usize, 0);
            live.update(&(line as u32).to_ne_bytes(), &bytes, MapFlags::ANY).unwrap();
        }
    }

    /// Number of the backend that a packet of a flow is sent to. Every packet must be sent.
    pub fn backend_of(&self, flow: u64) -> u16 {
        let (client, service) = (client(flow), service_address());
        let network = Network::between(client.ip(), service.ip());
        let frame = Packet::new(network, Tcp::new(client.port(), service.port())).build();
        let run = run_xdp(self.program.as_fd(), &frame, INTERFACE);
        assert_eq!(run.action, Action::Tx as u32, "flow {flow}");
        run.data[5].into()
    }

    /// What a table says of a flow.
    pub fn slot_of(&self, flow: u64, table: &[u16]) -> u16 {
        let hash = hash::five_tuple(client(flow), service_address(), protocol::TCP);
        table[hash::slot_index(hash, table.len())]
    }
}
