//! A node in memory: an engine on a watched datapath, with stand-ins for the prober and the kernel's routing.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use super::watched::Watched;
use crate::{
    datapath::{AddressServices, BackendRecord, Memory, Step},
    engine::{Applied, Engine, EngineError},
    health::{Report, Target},
    model::{
        Backend, BackendAddress, BackendState, HashMode, HealthCheck, InitialState, Mode, NextHop,
        OnNoBackend, Protocol, Route, Service, ServiceAddress, ServiceAdmission, ServiceName, Verdict,
        VlanTags,
    },
};

pub const UP: BackendState = BackendState::Up;
pub const DOWN: BackendState = BackendState::Down;

/// The address of service `number`.
pub fn vip(number: u8) -> ServiceAddress {
    ServiceAddress::new(IpAddr::from([192, 0, 2, number]), 80, Protocol::Tcp)
}

/// The address of backend `number`.
pub fn backend(number: u8) -> BackendAddress {
    BackendAddress { address: IpAddr::from([198, 51, 100, number]), port: 80 }
}

pub fn name(text: &str) -> ServiceName {
    text.parse().unwrap()
}

/// A service without health checks, in mode `ipip`, with these backends of weight 1.
pub fn service(number: u8, backends: &[u8]) -> Service {
    Service {
        name: name(&format!("s{number}")),
        address: vip(number),
        mode: Mode::Ipip,
        hash: HashMode::FiveTuple,
        on_no_backend: OnNoBackend::Drop,
        max_backends: 2,
        health: HealthCheck::none(),
        admission: ServiceAdmission::default(),
        backends: backends.iter().map(|&number| Backend { address: backend(number), weight: 1 }).collect(),
    }
}

pub fn in_mode(service: Service, mode: Mode) -> Service {
    Service { mode, ..service }
}

/// The same with health checks; new backends are down.
pub fn probed(service: Service) -> Service {
    Service { health: HealthCheck::default(), ..service }
}

/// A next hop by this interface and gateway.
pub fn next_hop(interface: u32, gateway: u8) -> NextHop {
    NextHop::Reachable { route: route(interface), destination_mac: [2, 0, 0, 0, 1, gateway] }
}

pub fn unresolved(interface: u32) -> NextHop {
    NextHop::Unresolved { route: Some(route(interface)), reason: "the neighbour does not answer".to_owned() }
}

fn route(interface: u32) -> Route {
    Route {
        interface,
        device: interface,
        tags: VlanTags::default(),
        interface_name: format!("eth{interface}"),
        source_mac: [2, 0, 0, 0, 0, 1],
        mtu: 1500,
        source: IpAddr::from([203, 0, 113, 1]),
    }
}

/// A node in memory.
pub struct World {
    pub engine: Engine<Watched>,
    pub desired: Vec<Service>,
    pub next_hops: BTreeMap<IpAddr, NextHop>,
    /// What the prober believes. It reports changes only.
    pub prober: BTreeMap<(ServiceName, BackendAddress), BackendState>,
}

impl World {
    /// An empty node with room for 16 services.
    pub fn new() -> Self {
        Self::on(Memory::new(16, 256))
    }

    /// A node that finds this pinned.
    pub fn on(memory: Memory) -> Self {
        let engine = Engine::adopt(Watched::new(memory)).unwrap();
        let next_hops = (0..=40).map(|number| (backend(number).address, next_hop(1, 1))).collect();
        Self { engine, desired: Vec::new(), next_hops, prober: BTreeMap::new() }
    }

    pub fn memory(&self) -> &Memory {
        &self.engine.datapath().memory
    }

    pub fn memory_mut(&mut self) -> &mut Memory {
        &mut self.engine.datapath_mut().memory
    }

    /// A new configuration. Takes effect with `apply`.
    pub fn desire(&mut self, services: &[Service]) {
        self.desired = services.to_vec();
        for service in services {
            let backends = service.backends.iter().map(|backend| backend.address);
            self.engine.datapath_mut().checker.allow(service.address, backends);
        }
        self.engine.set_desired(services);
        self.engine.set_next_hops(&self.next_hops);
        self.watch(self.engine.probe_targets());
    }

    fn watch(&mut self, targets: Vec<Target>) {
        let mut prober = BTreeMap::new();
        for target in targets {
            let initial = if target.check.initial == InitialState::Up { UP } else { DOWN };
            let key = (target.service, target.backend);
            let kept = self.prober.get(&key).copied();
            prober.insert(key, kept.or(target.known).unwrap_or(initial));
        }
        self.prober = prober;
        self.tell_checker();
    }

    fn tell_checker(&mut self) {
        let mut down = BTreeSet::new();
        for service in &self.desired {
            for backend in &service.backends {
                if self.prober.get(&(service.name.clone(), backend.address)) == Some(&DOWN) {
                    down.insert((service.address, backend.address));
                }
            }
        }
        self.engine.datapath_mut().checker.set_down(down);
    }

    /// The prober finds a backend in this state, and reports it where it believed otherwise.
    pub fn probe(&mut self, service: &str, backend: BackendAddress, state: BackendState) {
        let key = (name(service), backend);
        let Some(believed) = self.prober.get_mut(&key) else { return };
        if std::mem::replace(believed, state) == state {
            return;
        }
        let verdict = Some(if state == UP { Verdict::Up } else { Verdict::Down });
        let last_failure = (state == DOWN).then(|| "connection refused".to_owned());
        self.tell_checker();
        self.engine.report(Report { service: key.0, backend, verdict, last_failure });
    }

    /// The kernel says something new of the way to a backend.
    pub fn route(&mut self, backend: BackendAddress, next_hop: NextHop) {
        self.next_hops.insert(backend.address, next_hop);
        self.engine.set_next_hops(&self.next_hops);
    }

    /// Applies without failure and returns what was done.
    pub fn apply(&mut self) -> (Applied, Vec<Step>) {
        self.memory_mut().log.clear();
        let applied = self.engine.apply().unwrap();
        (applied, self.memory().log.clone())
    }

    pub fn desire_and_apply(&mut self, services: &[Service]) -> (Applied, Vec<Step>) {
        self.desire(services);
        self.apply()
    }

    /// Applies with the operation failing that comes after so many.
    pub fn apply_failing_after(&mut self, operations: usize) -> Result<Applied, EngineError> {
        self.memory_mut().fail_after = Some(operations);
        let result = self.engine.apply();
        self.memory_mut().fail_after = None;
        result
    }

    /// The process is killed; another finds the same configuration.
    pub fn restart(&mut self) {
        let mut datapath = self.engine.datapath().clone();
        datapath.memory.fail_after = None;
        self.engine = Engine::adopt(datapath).unwrap();
        self.prober.clear();
        self.desire(&self.desired.clone());
    }

    /// What is told of addresses is what is bound.
    #[track_caller]
    pub fn assert_addresses(&self) {
        let mut bound: BTreeMap<IpAddr, AddressServices> = BTreeMap::new();
        for (service, &id) in &self.memory().bindings {
            let known = bound.entry(service.address).or_default();
            *known = known.with(service.protocol, id);
        }
        assert_eq!(self.memory().addresses, bound);
    }

    /// The ID that an address leads to.
    pub fn id(&self, service: u8) -> u16 {
        self.memory().bindings[&vip(service)]
    }

    /// The backends that the slots of a service lead to.
    pub fn led_to(&self, service: u8) -> BTreeSet<BackendAddress> {
        let Some(table) =
            self.memory().bindings.get(&vip(service)).and_then(|id| self.memory().tables.get(id))
        else {
            return BTreeSet::new();
        };
        let leads = (0..table.len()).filter_map(|slot| self.memory().lead(vip(service), slot));
        leads.map(|record| record.address).collect()
    }

    /// The record of a backend of a service.
    pub fn record(&self, service: u8, backend: BackendAddress) -> Option<&BackendRecord> {
        let memory = self.memory();
        let range = memory.services[memory.bindings.get(&vip(service))?].range;
        let mut records = (1..range.limit as u16).filter_map(|n| memory.backends.get(&range.record(n)?));
        records.find(|record| record.address == backend)
    }

    /// Asserts that the datapath holds what an engine would make of the same from nothing, and nothing else.
    pub fn assert_as_new(&mut self) {
        self.assert_addresses();
        let mut fresh = World::new();
        fresh.next_hops = self.next_hops.clone();
        /* In another order, as another node may have it. */
        let mut desired = self.desired.clone();
        desired.reverse();
        desired.iter_mut().for_each(|service| service.backends.reverse());
        fresh.desire(&desired);
        for ((service, backend), state) in &self.prober {
            fresh.probe(service.as_str(), *backend, *state);
        }
        fresh.apply();
        let (found, wanted) = (Picture::of(self.memory()), Picture::of(fresh.memory()));
        assert_eq!(found.nat_sources, wanted.nat_sources);
        assert!(found.services.keys().eq(wanted.services.keys()), "{:?}", found.services.keys());
        for (address, wanted) in &wanted.services {
            let found = &found.services[address];
            assert_eq!((found.mode, &found.backends), (wanted.mode, &wanted.backends), "of {address}");
            assert!(found.table == wanted.table, "the table of {address} differs");
        }
        let (applied, log) = self.apply();
        assert_eq!((applied.writes, log), (0, vec![]), "with nothing to change nothing is written");
        assert!(!self.engine.is_dirty());
    }
}

/// What a datapath holds, IDs and numbers left out.
struct Picture {
    services: BTreeMap<ServiceAddress, PictureOfService>,
    nat_sources: BTreeSet<(BackendAddress, Protocol)>,
}

struct PictureOfService {
    mode: Mode,
    table: Vec<Option<BackendAddress>>,
    backends: BTreeMap<BackendAddress, BackendRecord>,
}

impl Picture {
    fn of(memory: &Memory) -> Self {
        let mut services = BTreeMap::new();
        let mut owners = BTreeSet::new();
        for (&address, id) in &memory.bindings {
            let service = &memory.services[id];
            let table = &memory.tables[id];
            assert_eq!(table.len(), service.slots as usize);
            let leads = (0..table.len()).map(|slot| memory.lead(address, slot).map(|record| record.address));
            let mut backends = BTreeMap::new();
            for number in 1..service.range.limit as u16 {
                let index = service.range.record(number).unwrap();
                if let Some(record) = memory.backends.get(&index) {
                    assert_eq!(backends.insert(record.address, record.clone()), None, "one record a backend");
                    owners.insert((*id, number));
                }
            }
            services
                .insert(address, PictureOfService { mode: service.mode, table: leads.collect(), backends });
        }
        assert_eq!(memory.services.len(), services.len(), "services that nothing leads to");
        assert_eq!(memory.tables.len(), services.len(), "tables that nothing leads to");
        assert_eq!(memory.backends.len(), owners.len(), "records that belong to nobody");
        let stale = memory.flows.iter().find(|owner| !owners.contains(&(owner.service, owner.backend)));
        assert_eq!(stale, None, "a flow of nobody");
        Self { services, nat_sources: memory.nat_sources.clone() }
    }
}

/// Telling that the address of a service has it, with this ID, or none.
pub fn told(service: u8, id: Option<u16>) -> Step {
    let service = vip(service);
    Step::Address(service.address, id.map(|id| AddressServices::default().with(service.protocol, id)))
}
