//! The mirror of what the datapath holds.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::IpAddr,
};

use super::allocate::{FreeRecords, ServiceIds};
use crate::{
    datapath::{
        AddressServices, Adopted, AdoptedService, BackendRecord, FlowOwner, Membership, RecordRange,
        ServiceRecord, Slot,
    },
    maglev::Candidate,
    model::{AddressPolicy, BackendAddress, BackendState, Egress, Protocol, ServiceAddress},
};

/// A service as the datapath holds it.
#[derive(Clone, Debug)]
pub(super) struct ProgrammedService {
    pub(super) id: u16,
    pub(super) record: ServiceRecord,
    /// Its table; empty where none is published or it is not known which.
    pub(super) table: Vec<Slot>,
    /// Backend records by number, also those of backends that are no longer members.
    pub(super) backends: BTreeMap<u16, BackendRecord>,
    /// What the table was built for, where it was built and published by this process.
    pub(super) built_for: Option<Vec<Candidate>>,
}

impl ProgrammedService {
    /// The numbers of the backends, members or not.
    pub(super) fn numbers(&self) -> HashMap<BackendAddress, u16> {
        self.backends.iter().map(|(&number, record)| (record.address, number)).collect()
    }

    /// The states of the backends that are members.
    pub(super) fn states(&self) -> HashMap<BackendAddress, BackendState> {
        let state = |record: &BackendRecord| match record.link.state {
            Membership::Member(state) => Some((record.address, state)),
            Membership::Unused => None,
        };
        self.backends.values().filter_map(state).collect()
    }

    /// Indexes of its backend records.
    fn records(&self) -> impl Iterator<Item = u32> + '_ {
        self.backends.keys().filter_map(|&number| self.record.range.record(number))
    }

    /// Addresses whose packets may be replies to translate.
    pub(super) fn nat_sources(&self) -> impl Iterator<Item = (BackendAddress, Protocol)> + '_ {
        let members = self.backends.values().filter(|record| is_member(record));
        members.filter(|_| self.record.mode.translates()).map(|record| (record.address, record.protocol))
    }
}

fn is_member(record: &BackendRecord) -> bool {
    record.link.state != Membership::Unused
}

impl From<AdoptedService> for ProgrammedService {
    fn from(adopted: AdoptedService) -> Self {
        Self {
            id: adopted.id,
            record: adopted.record,
            table: adopted.table,
            backends: adopted.backends.into_iter().collect(),
            built_for: None,
        }
    }
}

/// What is left of a service that no key leads to.
#[derive(Clone, Debug)]
pub(super) struct Remains {
    pub(super) range: RecordRange,
    pub(super) numbers: Vec<u16>,
}

/// Everything the datapath holds.
#[derive(Clone, Debug)]
pub(super) struct Programmed {
    /// Services that packets are led to.
    pub(super) services: BTreeMap<ServiceAddress, ProgrammedService>,
    /// Services that were begun to be written: no packet was ever led to them.
    pub(super) unfinished: BTreeMap<ServiceAddress, ProgrammedService>,
    /// How frames leave for interfaces that are not devices themselves.
    pub(super) egress: BTreeMap<u32, Egress>,
    /// Keys to unbind.
    pub(super) stray_addresses: BTreeSet<ServiceAddress>,
    /// IDs that no key leads to any more: to be cleared after a grace period, with the records where those are known.
    pub(super) retired: BTreeMap<u16, Option<Remains>>,
    /// Numbers of former backends, named by no table, whose records are to be cleared after a grace period, by service.
    pub(super) retired_backends: BTreeSet<(ServiceAddress, u16)>,
    /// Record ranges that no service uses any more (or yet): first record and number.
    pub(super) retired_ranges: BTreeMap<u32, u32>,
    /// Records that hold something but belong to nobody: to be cleared after a grace period.
    pub(super) stray_records: BTreeSet<u32>,
    /// Addresses whose packets may be replies to translate.
    pub(super) nat_sources: BTreeSet<(BackendAddress, Protocol)>,
    /// Some of them may not be needed any more.
    pub(super) nat_sources_unchecked: bool,
    /// Addresses, with the services they are said to have.
    pub(super) addresses: BTreeMap<IpAddr, AddressServices>,
    pub(super) address_policy: AddressPolicy,
    /// What an earlier process left has not been cleared yet, and flows may name what does not exist any more.
    pub(super) just_adopted: bool,
    pub(super) ids: ServiceIds,
    pub(super) records: FreeRecords,
}

impl Programmed {
    pub(super) fn from_adopted(adopted: Adopted, max_services: u16, max_records: u32) -> Self {
        let mut programmed = Self {
            services: BTreeMap::new(),
            unfinished: BTreeMap::new(),
            egress: adopted.egress,
            stray_addresses: adopted.stray_addresses.into_iter().collect(),
            retired: BTreeMap::new(),
            retired_backends: BTreeSet::new(),
            retired_ranges: BTreeMap::new(),
            stray_records: adopted.stray_records.into_iter().collect(),
            nat_sources: adopted.nat_sources,
            nat_sources_unchecked: true,
            addresses: adopted.addresses,
            address_policy: adopted.address_policy,
            just_adopted: true,
            ids: ServiceIds::new(max_services, adopted.last_service_id),
            records: FreeRecords::new(max_records.saturating_add(1)),
        };
        let services = adopted.services.into_iter().map(ProgrammedService::from);
        let refused: Vec<_> = services.filter_map(|service| programmed.adopt(service)).collect();
        for service in refused {
            programmed.refuse(&service);
        }
        for id in adopted.stray_ids {
            programmed.ids.claim(id);
            programmed.retired.insert(id, None);
        }
        programmed
    }

    /// Takes over a service, or gives it back where its ID or records are another's already.
    fn adopt(&mut self, service: ProgrammedService) -> Option<ProgrammedService> {
        let RecordRange { base, limit } = service.record.range;
        if !self.ids.claim(service.id) || !self.records.claim(base, limit) {
            return Some(service);
        }
        let address = service.record.address;
        let unused = service.backends.iter().filter(|(_, record)| !is_member(record));
        self.retired_backends.extend(unused.map(|(&number, _)| (address, number)));
        self.services.insert(address, service);
        None
    }

    /// Nothing of the service can be trusted: it is to go, but for the records that are another's.
    fn refuse(&mut self, service: &ProgrammedService) {
        self.stray_addresses.insert(service.record.address);
        self.retired.insert(service.id, None);
        let own: BTreeSet<u32> = self.services.values().flat_map(ProgrammedService::records).collect();
        self.stray_records.extend(service.records().filter(|record| !own.contains(record)));
    }

    /// Notes that no packet is led to a service any more, or never was.
    pub(super) fn retire(&mut self, service: ProgrammedService) {
        let address = service.record.address;
        let numbers = service.backends.keys().copied().collect();
        self.retired.insert(service.id, Some(Remains { range: service.record.range, numbers }));
        if !self.services.contains_key(&address) {
            self.forget_retired_backends(address);
        }
        self.nat_sources_unchecked = true;
    }

    /// Retired backends of a service that is itself retired go with it.
    pub(super) fn forget_retired_backends(&mut self, address: ServiceAddress) {
        let gone: Vec<_> = self.retired_backends.range((address, 0)..=(address, u16::MAX)).copied().collect();
        for entry in gone {
            self.retired_backends.remove(&entry);
        }
    }

    /// The services that packets for this address are led to.
    pub(super) fn services_on(&self, address: IpAddr) -> impl Iterator<Item = (ServiceAddress, u16)> + '_ {
        let first = ServiceAddress::new(address, 0, Protocol::Tcp);
        let on_address = self.services.range(first..).take_while(move |(key, _)| key.address == address);
        on_address.map(|(key, service)| (*key, service.id))
    }

    /// True where something waits to be cleared or looked at.
    pub(super) fn has_leftovers(&self) -> bool {
        !self.stray_addresses.is_empty()
            || !self.unfinished.is_empty()
            || self.just_adopted
            || self.nat_sources_unchecked
            || self.has_retired()
    }

    /// True where something waits for a grace period to be cleared.
    pub(super) fn has_retired(&self) -> bool {
        !self.retired.is_empty()
            || !self.retired_backends.is_empty()
            || !self.retired_ranges.is_empty()
            || !self.stray_records.is_empty()
    }

    /// The owners that flows may have.
    pub(super) fn flow_owners(&self) -> FlowOwners {
        let mut owners = FlowOwners::default();
        for service in self.services.values() {
            let members = service.backends.iter().filter(|(_, record)| is_member(record));
            for (&backend, _) in members {
                owners.insert(FlowOwner { service: service.id, backend });
            }
        }
        owners
    }

    /// The NAT sources that the programmed services need.
    pub(super) fn needed_nat_sources(&self) -> BTreeSet<(BackendAddress, Protocol)> {
        self.services.values().flat_map(ProgrammedService::nat_sources).collect()
    }
}

/// A set of owners of flows that is fast to ask: there may be millions of flows.
#[derive(Debug, Default)]
pub(super) struct FlowOwners {
    /// By service ID, then by number of the backend.
    members: Vec<Vec<bool>>,
}

impl FlowOwners {
    fn insert(&mut self, owner: FlowOwner) {
        let (service, backend) = (usize::from(owner.service), usize::from(owner.backend));
        if self.members.len() <= service {
            self.members.resize_with(service + 1, Vec::new);
        }
        let numbers = &mut self.members[service];
        if numbers.len() <= backend {
            numbers.resize(backend + 1, false);
        }
        numbers[backend] = true;
    }

    /// True where the owner is a backend of a service that packets are led to.
    pub(super) fn contains(&self, owner: FlowOwner) -> bool {
        let numbers = self.members.get(usize::from(owner.service));
        numbers.and_then(|numbers| numbers.get(usize::from(owner.backend))).copied().unwrap_or(false)
    }
}
