//! A load balancer with services whose next hops are all known: the loaded programs behind the daemon's own datapath.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
};

use nix::net::if_::if_nametoindex;
use tidegate::{
    datapath::{
        AddressServices, BackendRecord, Datapath, Kernel, LedgerCounters, Link, LinkFlags, Membership,
        Options, Pins, REASONS, RecordRange, RunOutcome, ServiceRecord, Slot,
    },
    model::{
        AddressPolicy, BackendAddress, BackendState, Capacity, HashMode, Mode, Protocol, ServiceAddress,
        status::Ledger,
    },
};

use crate::harness::lab::Lab;

/// Backends of each service.
pub const BACKENDS: u16 = 4;
const SLOTS: u32 = 251;
const RANGE: u32 = 16;
/// MAC address of the load balancer's interface towards all backends.
pub const SOURCE_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0x30];
pub const XDP_PASS: u32 = 2;
pub const XDP_DROP: u32 = 1;
pub const XDP_TX: u32 = 3;

/// The programs with their maps, in namespaces of their own, which go with the test's thread.
pub struct Node {
    pub kernel: Kernel,
    pub interface: u32,
    pub lab: Lab,
    policy: AddressPolicy,
    /// What decides about the services that are added.
    pub hash: HashMode,
    addresses: BTreeMap<IpAddr, AddressServices>,
}

/// A service that was put into the maps.
#[derive(Clone, Debug)]
pub struct Service {
    pub id: u16,
    pub address: SocketAddr,
    pub protocol: Protocol,
    pub mode: Mode,
    pub backends: Vec<BackendRecord>,
}

impl Node {
    pub fn new() -> Self {
        let lab = Lab::new(1);
        let capacity = Capacity { services: 60, backends: 1024, flows: 4096, fragments: 1024 };
        let kernel = Kernel::open(&Options { pins: Pins::new("/sys/fs/bpf/tidegate"), capacity }).unwrap();
        let interface = if_nametoindex(lab.client.peer.as_str()).unwrap();
        let (policy, hash) = (AddressPolicy::default(), HashMode::FiveTuple);
        Self { kernel, interface, lab, policy, hash, addresses: BTreeMap::new() }
    }

    pub fn set_policy(&mut self, policy: AddressPolicy) {
        self.policy = policy;
        self.kernel.set_address_policy(policy).unwrap();
    }

    /// Adds a service with [`BACKENDS`] backends of the given family.
    pub fn serve(
        &mut self,
        id: u16,
        address: SocketAddr,
        protocol: Protocol,
        mode: Mode,
        backends_ipv6: bool,
    ) -> Service {
        let range = RecordRange { base: RANGE * u32::from(id), limit: RANGE };
        let backends: Vec<_> = (1..=BACKENDS)
            .map(|number| {
                let port = if mode == Mode::Nat { 8080 } else { address.port() };
                self.backend(id, number, port, address, protocol, mode, backends_ipv6)
            })
            .collect();
        for (number, backend) in (1..).zip(&backends) {
            self.kernel.write_backend(range.record(number).unwrap(), Some(backend)).unwrap();
            if mode == Mode::Nat {
                self.kernel.set_nat_source(backend.address, protocol, true).unwrap();
            }
        }
        let key = ServiceAddress::new(address.ip(), address.port(), protocol);
        let record = ServiceRecord {
            address: key,
            mode,
            hash: self.hash,
            on_no_backend: tidegate::model::OnNoBackend::Drop,
            slots: SLOTS,
            range,
        };
        self.kernel.write_service(id, &record).unwrap();
        self.publish(id, |slot| 1 + slot % BACKENDS);
        let known = self.addresses.entry(address.ip()).or_default();
        *known = known.with(protocol, id);
        self.kernel.set_address(address.ip(), Some(*known)).unwrap();
        self.kernel.bind(key, id).unwrap();
        Service { id, address, protocol, mode, backends }
    }

    /// Publishes a table in which slot n has this backend.
    pub fn publish(&mut self, id: u16, backend: impl Fn(u16) -> u16) {
        let table = (0..SLOTS as u16).map(|slot| Slot::settled(backend(slot))).collect();
        self.kernel.publish(&[(id, table)]).unwrap();
    }

    /// Replaces the state of a backend.
    pub fn set_state(&mut self, service: &Service, number: u16, state: BackendState) {
        let record = RANGE * u32::from(service.id) + u32::from(number);
        let link = service.backends[usize::from(number) - 1].link;
        self.kernel.write_link(record, Link { state: Membership::Member(state), ..link }).unwrap();
    }

    #[allow(clippy::too_many_arguments, reason = "each is another field of a record")]
    fn backend(
        &self,
        id: u16,
        number: u16,
        port: u16,
        service: SocketAddr,
        protocol: Protocol,
        mode: Mode,
        ipv6: bool,
    ) -> BackendRecord {
        let host = id as u8 * 4 + number as u8;
        let (address, source): (IpAddr, IpAddr) = if ipv6 {
            (format!("2001:db8:b::{host:x}").parse().unwrap(), "2001:db8:b::ffff".parse().unwrap())
        } else {
            (IpAddr::from([198, 51, 100, host]), IpAddr::from([198, 51, 100, 254]))
        };
        BackendRecord {
            link: Link {
                interface: self.interface,
                mtu: 1600,
                state: Membership::Member(BackendState::Up),
                flags: LinkFlags { resolved: true, ..LinkFlags::default() },
                ipv6,
            },
            address: BackendAddress { address, port },
            protocol,
            mode,
            inner_ipv6: service.is_ipv6(),
            source,
            tags: [0; 2],
            destination_mac: [2, 0, 0, 1, 0, host],
            source_mac: SOURCE_MAC,
        }
    }

    /// Runs the program on a frame and returns what it did, and the one reason that it counted.
    pub fn run(&self, frame: &[u8]) -> (RunOutcome, &'static str) {
        let before = self.kernel.ledger(0).unwrap();
        let outcome = self.kernel.run("xdp_lb", frame, self.interface).unwrap();
        let after = self.kernel.ledger(0).unwrap();
        let count = |ledger: &LedgerCounters, name| ledger.by_name(name).unwrap();
        let counted: Vec<_> = REASONS
            .iter()
            .filter(|reason| count(&after, reason.name) != count(&before, reason.name))
            .map(|reason| reason.name)
            .collect();
        assert_eq!((after.seen - before.seen, counted.len()), (1, 1), "{counted:?}");
        (outcome, counted[0])
    }

    /// Runs the program on a frame that must leave; returns the frame that left.
    #[track_caller]
    pub fn forward(&self, frame: &[u8]) -> Vec<u8> {
        let (outcome, reason) = self.run(frame);
        assert_eq!((outcome.action, reason), (XDP_TX, "forward-tx"));
        outcome.frame
    }

    /// Runs the program on a frame that must be left as it is.
    #[track_caller]
    pub fn assert_untouched(&self, frame: &[u8], why: &str) {
        let (outcome, reason) = self.run(frame);
        assert_eq!((outcome.action, reason), (XDP_PASS, why));
        assert!(outcome.frame == frame && outcome.metadata.is_empty(), "not a byte differs");
    }

    /// Fails where the ledger does not close, for the node or for one of the services.
    #[track_caller]
    pub fn assert_ledger_closes(&self, services: &[&Service]) {
        for id in services.iter().map(|service| service.id).chain([0]) {
            let ledger = Ledger::from(&self.kernel.ledger(id).unwrap());
            assert_eq!(ledger.seen, ledger.forwarded + ledger.passed + ledger.dropped, "{id}: {ledger:?}");
        }
    }
}
