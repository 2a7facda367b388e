//! What must hold after every single operation on the datapath, whatever the engine is in the middle of.
//!
//! The checker thinks of packets as adversaries: one may have been in flight since the last grace period, may have read each
//! map at any moment since then, and as soon as it may track a flow it does. An operation that would pull the ground from under
//! such a packet panics.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    datapath::{BackendRecord, FlowOwner, Membership, Memory, RecordRange, ServiceRecord, Slot},
    model::{BackendAddress, BackendState, Mode, ServiceAddress},
};

/// An operation on the datapath, as far as there are rules for it.
#[derive(Debug)]
pub enum Operation<'a> {
    WriteService(u16, &'a ServiceRecord),
    MoveService(u16, RecordRange),
    ClearService(u16),
    Bind(ServiceAddress, u16),
    WriteBackend(u32, Option<&'a BackendRecord>),
    WriteLink(u32),
    Publish(&'a [(u16, Vec<Slot>)]),
    GracePeriod,
    Other,
}

/// What packets in flight may have read.
#[derive(Clone, Debug, Default)]
struct Window {
    bound: BTreeSet<(ServiceAddress, u16)>,
    ranges: BTreeMap<u16, Vec<RecordRange>>,
    /// Numbers that tables and usable flows led to, by service ID.
    numbers: BTreeMap<u16, BTreeSet<u16>>,
    /// Records that were up, so that a packet may be being rewritten by them.
    serving: BTreeSet<u32>,
    /// Records that were up and resolved, so that a packet may be being sent by their MAC addresses.
    trusted: BTreeSet<u32>,
}

/// Watches a datapath.
#[derive(Clone, Debug, Default)]
pub struct Checker {
    /// Backends that each address ever was desired with.
    allowed: BTreeMap<ServiceAddress, BTreeSet<BackendAddress>>,
    /// Backends that are reported down.
    down: BTreeSet<(ServiceAddress, BackendAddress)>,
    /// Those of them that were marked so already.
    marked: BTreeSet<(ServiceAddress, BackendAddress)>,
    /// Addresses that were led astray before the engine came.
    strays: BTreeSet<ServiceAddress>,
    window: Window,
    /// Numbers in each table.
    numbers: BTreeMap<u16, BTreeSet<u16>>,
    /// Operations watched.
    pub operations: usize,
}

fn is_up(record: &BackendRecord) -> bool {
    record.link.state == Membership::Member(BackendState::Up)
}

fn numbers_of(table: &[Slot]) -> BTreeSet<u16> {
    table.iter().flat_map(|slot| [slot.current, slot.previous]).filter(|&number| number != 0).collect()
}

impl Checker {
    pub fn begin(&mut self, memory: &Memory) {
        self.numbers = memory.tables.iter().map(|(&id, table)| (id, numbers_of(table))).collect();
        self.look(memory);
    }

    pub fn allow(&mut self, service: ServiceAddress, backends: impl Iterator<Item = BackendAddress>) {
        self.allowed.entry(service).or_default().extend(backends);
    }

    pub fn set_down(&mut self, down: BTreeSet<(ServiceAddress, BackendAddress)>) {
        self.marked.retain(|backend| down.contains(backend));
        self.down = down;
    }

    /// This address is known to lead to no sound service of its own until the engine changes that.
    pub fn expect_stray(&mut self, address: ServiceAddress) {
        self.strays.insert(address);
    }

    pub fn before(&mut self, memory: &Memory, operation: &Operation<'_>) {
        match operation {
            Operation::WriteService(id, record) => {
                self.assert_out_of_use(memory, *id, operation);
                assert!(record.range.limit > 0 && record.slots > 0, "{operation:?}");
            }
            Operation::ClearService(id) => self.assert_out_of_use(memory, *id, operation),
            Operation::MoveService(id, range) => self.check_move(memory, *id, *range),
            Operation::Bind(address, id) => self.check_whole(memory, *address, *id),
            Operation::WriteBackend(record, backend) => self.check_write(memory, *record, *backend),
            Operation::WriteLink(record) => {
                assert!(memory.backends.contains_key(record), "{operation:?}: there is no such record");
            }
            Operation::Publish(tables) => {
                for (id, table) in *tables {
                    self.check_table(memory, *id, &numbers_of(table));
                }
            }
            Operation::GracePeriod | Operation::Other => {}
        }
    }

    pub fn after(&mut self, memory: &mut Memory, operation: &Operation<'_>, done: bool) {
        self.operations += 1;
        match operation {
            Operation::GracePeriod if done => self.window = Window::default(),
            Operation::Publish(tables) => {
                for (id, _) in *tables {
                    self.numbers.insert(*id, numbers_of(memory.tables.get(id).map_or(&[], Vec::as_slice)));
                    if done {
                        self.window.numbers.remove(id);
                    }
                }
            }
            /* No packet was led there before, so none has read what was there before. */
            Operation::WriteService(id, _) if done => {
                self.window.ranges.remove(id);
                self.window.numbers.remove(id);
            }
            Operation::ClearService(id) if done => drop(self.numbers.remove(id)),
            Operation::Bind(address, _) if done => drop(self.strays.remove(address)),
            _ => {}
        }
        self.look(memory);
        self.track_flows(memory);
        self.look(memory);
        self.check_state(memory, operation);
    }

    /// Notes what packets may read now.
    fn look(&mut self, memory: &Memory) {
        let window = &mut self.window;
        window.bound.extend(memory.bindings.iter().map(|(&address, &id)| (address, id)));
        for (&id, service) in &memory.services {
            let ranges = window.ranges.entry(id).or_default();
            if !ranges.contains(&service.range) {
                ranges.push(service.range);
            }
        }
        for (&id, numbers) in &self.numbers {
            window.numbers.entry(id).or_default().extend(numbers);
        }
        for owner in &memory.flows {
            let service = memory.services.get(&owner.service);
            let record = service.and_then(|service| service.range.record(owner.backend));
            if record.and_then(|record| memory.backends.get(&record)).is_some_and(is_up) {
                window.numbers.entry(owner.service).or_default().insert(owner.backend);
            }
        }
        for (&record, backend) in memory.backends.iter().filter(|(_, backend)| is_up(backend)) {
            window.serving.insert(record);
            if backend.link.flags.resolved {
                window.trusted.insert(record);
            }
        }
    }

    /// Where packets in flight may come to: service ID, number and record.
    fn reachable(&self) -> impl Iterator<Item = (u16, u16, u32)> + '_ {
        let ids: BTreeSet<u16> = self.window.bound.iter().map(|&(_, id)| id).collect();
        ids.into_iter().flat_map(move |id| {
            let ranges = self.window.ranges.get(&id).into_iter().flatten();
            let numbers = self.window.numbers.get(&id);
            ranges.flat_map(move |range| {
                let numbers = numbers.into_iter().flatten();
                numbers.filter_map(move |&number| Some((id, number, range.record(number)?)))
            })
        })
    }

    /// Packets make every flow that they can make.
    fn track_flows(&self, memory: &mut Memory) {
        let mut flows: BTreeSet<FlowOwner> = memory.flows.iter().copied().collect();
        for (service, backend, record) in self.reachable() {
            let tracked = memory.services.get(&service).is_some_and(|service| service.mode == Mode::Nat);
            if tracked && self.window.serving.contains(&record) {
                flows.insert(FlowOwner { service, backend });
            }
        }
        memory.flows = flows.into_iter().collect();
    }

    fn assert_out_of_use(&self, memory: &Memory, id: u16, operation: &Operation<'_>) {
        let bound = self.window.bound.iter().find(|(_, bound)| *bound == id);
        assert_eq!(bound, None, "{operation:?}: packets may still be led there");
        let flow = memory.flows.iter().find(|owner| owner.service == id);
        assert_eq!(flow, None, "{operation:?}: a flow names it");
    }

    fn check_move(&self, memory: &Memory, id: u16, range: RecordRange) {
        let former = memory.services[&id].range;
        let flows = memory.flows.iter().filter(|owner| owner.service == id).map(|owner| owner.backend);
        for number in self.numbers[&id].iter().copied().chain(flows) {
            let record =
                |range: RecordRange| range.record(number).and_then(|index| memory.backends.get(&index));
            assert_eq!(record(range), record(former), "service {id} moves and loses backend {number}");
        }
    }

    fn check_write(&self, memory: &Memory, record: u32, backend: Option<&BackendRecord>) {
        let Some(old) = memory.backends.get(&record) else { return };
        let identity = |record: &BackendRecord| (record.address, record.protocol, record.mode);
        let same = backend.is_some_and(|backend| identity(backend) == identity(old));
        let reachable = self.reachable().find(|(_, _, reachable)| *reachable == record);
        if same {
            let trusted = reachable.is_some() && self.window.trusted.contains(&record);
            assert!(!trusted, "record {record} is rewritten while packets may be sent by it: {reachable:?}");
            return;
        }
        assert_eq!(
            reachable, None,
            "record {record} becomes another's ({backend:?}) while packets may use it"
        );
        let leads_here = |owner: &&FlowOwner| {
            memory.services.get(&owner.service).and_then(|service| service.range.record(owner.backend))
                == Some(record)
        };
        let flow = memory.flows.iter().find(leads_here);
        assert_eq!(flow, None, "record {record} becomes another's while a flow leads to it");
    }

    /// A service that is about to be bound is whole.
    fn check_whole(&self, memory: &Memory, address: ServiceAddress, id: u16) {
        let service = memory.services.get(&id).expect("a service record before the address leads to it");
        let table = memory.tables.get(&id).expect("a table before the address leads to it");
        assert_eq!(service.address, address, "{address} is led to another's service");
        assert_eq!(table.len(), service.slots as usize, "the table of {address} is not whole");
        self.check_table(memory, id, &self.numbers[&id]);
        self.check_service(memory, address, id);
    }

    /// A table that is about to be published leads to members that are not known to be down.
    fn check_table(&self, memory: &Memory, id: u16, numbers: &BTreeSet<u16>) {
        let service = memory.services.get(&id).expect("a service record before its table");
        for &number in numbers {
            let record = service.range.record(number).and_then(|index| memory.backends.get(&index));
            let record =
                record.unwrap_or_else(|| panic!("table {id} leads to {number}, which is not written"));
            assert_ne!(
                record.link.state,
                Membership::Unused,
                "table {id} leads to {number}, which is unused"
            );
        }
        for number in 1..service.range.limit as u16 {
            let record = service.range.record(number).and_then(|index| memory.backends.get(&index));
            if let Some(record) = record.filter(|record| is_up(record)) {
                let down = self.down.contains(&(service.address, record.address));
                assert!(!down, "table {id} is published before {} is marked down", record.address);
            }
        }
    }

    fn check_state(&mut self, memory: &Memory, operation: &Operation<'_>) {
        self.strays.retain(|address| memory.bindings.contains_key(address));
        for (&address, &id) in &memory.bindings {
            if self.strays.contains(&address) {
                continue;
            }
            let service = memory.services.get(&id);
            assert_eq!(service.map(|service| service.address), Some(address), "after {operation:?}");
            self.check_service(memory, address, id);
            self.check_down(memory, address, id);
        }
        let mut end = 0;
        let mut ranges: Vec<_> = memory.services.values().map(|service| service.range).collect();
        ranges.sort_by_key(|range| range.base);
        for range in ranges {
            assert!(range.base >= end || !self.strays.is_empty(), "ranges overlap after {operation:?}");
            end = range.base + range.limit;
        }
    }

    /// Every slot leads nowhere or to a whole record of this very service.
    fn check_service(&self, memory: &Memory, address: ServiceAddress, id: u16) {
        let service = &memory.services[&id];
        let allowed = self.allowed.get(&address);
        for &number in self.numbers.get(&id).into_iter().flatten() {
            let record = service.range.record(number).and_then(|index| memory.backends.get(&index));
            let record = record.unwrap_or_else(|| panic!("{address} leads to {number}, which is no record"));
            let own = allowed.is_some_and(|allowed| allowed.contains(&record.address));
            assert!(own, "{address} leads to {}, which was never its backend", record.address);
            assert_eq!((record.mode, record.protocol), (service.mode, address.protocol), "of {address}");
            assert_eq!(record.inner_ipv6, address.address.is_ipv6(), "of {address}");
            assert_ne!(record.link.state, Membership::Unused, "{address} leads to {number}, which is unused");
            let source = memory.nat_sources.contains(&(record.address, record.protocol));
            assert!(source || service.mode != Mode::Nat, "replies of {} are not known", record.address);
        }
    }

    /// What was marked down stays so until it is reported up.
    fn check_down(&mut self, memory: &Memory, address: ServiceAddress, id: u16) {
        let range = memory.services[&id].range;
        for number in 1..range.limit as u16 {
            let Some(record) = range.record(number).and_then(|index| memory.backends.get(&index)) else {
                continue;
            };
            let backend = (address, record.address);
            if !self.down.contains(&backend) {
                continue;
            }
            if is_up(record) {
                assert!(!self.marked.contains(&backend), "{} is down and becomes up", record.address);
            } else {
                self.marked.insert(backend);
            }
        }
    }
}
