//! The mirror of what the datapath holds.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use crate::{
    datapath::{
        AddressServices, Adopted, AdoptedService, BackendRecord, FlowOwner, Membership, ServiceRecord, Slot,
    },
    maglev::Candidate,
    model::{AddressPolicy, BackendAddress, BackendState, Protocol, ServiceAddress},
};

/// A service that packets are led to.
#[derive(Clone, Debug)]
pub(super) struct ProgrammedService {
    pub(super) id: u16,
    pub(super) record: ServiceRecord,
    pub(super) table: Vec<Slot>,
    /// Backend records by number, also those of backends that are no longer members.
    pub(super) backends: BTreeMap<u16, BackendRecord>,
    /// What the table was built for; unknown after adoption.
    pub(super) built_for: Option<Vec<Candidate>>,
}

impl ProgrammedService {
    /// The number of a backend, member or not.
    pub(super) fn number_of(&self, address: BackendAddress) -> Option<u16> {
        let member = |record: &BackendRecord| record.link.state != Membership::Unused;
        let mut numbers: Vec<_> =
            self.backends.iter().filter(|(_, record)| record.address == address).collect();
        numbers.sort_by_key(|(_, record)| !member(record));
        numbers.first().map(|(number, _)| **number)
    }

    fn is_member(&self, number: u16) -> bool {
        self.backends.get(&number).is_some_and(|record| record.link.state != Membership::Unused)
    }
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

/// Everything the datapath holds.
#[derive(Clone, Debug, Default)]
pub(super) struct Programmed {
    pub(super) services: BTreeMap<ServiceAddress, ProgrammedService>,
    /// Keys to unbind.
    pub(super) stray_addresses: BTreeSet<ServiceAddress>,
    /// Services that no key leads to any more (or yet): to be cleared after a grace period.
    pub(super) retired: BTreeMap<u16, Option<ProgrammedService>>,
    pub(super) nat_sources: BTreeSet<(BackendAddress, Protocol)>,
    /// Addresses, with the services they are said to have.
    pub(super) addresses: BTreeMap<IpAddr, AddressServices>,
    pub(super) address_policy: AddressPolicy,
    pub(super) last_service_id: u16,
    /// Numbers of former backends whose records are to be cleared after a grace period, by service.
    pub(super) retired_backends: BTreeSet<(ServiceAddress, u16)>,
    /// Record ranges that services moved away from: first record and number.
    pub(super) retired_ranges: BTreeMap<u32, u32>,
    /// Flows may name what does not exist any more: nobody has looked since this process started.
    pub(super) flows_unchecked: bool,
}

impl Programmed {
    pub(super) fn from_adopted(adopted: Adopted) -> Self {
        let mut programmed = Self {
            stray_addresses: adopted.stray_addresses.into_iter().collect(),
            retired: adopted.stray_ids.into_iter().map(|id| (id, None)).collect(),
            nat_sources: adopted.nat_sources,
            addresses: adopted.addresses,
            address_policy: adopted.address_policy,
            last_service_id: adopted.last_service_id,
            flows_unchecked: true,
            ..Self::default()
        };
        for service in adopted.services {
            let address = service.record.address;
            let service = ProgrammedService::from(service);
            let unused = service.backends.keys().filter(|&&number| !service.is_member(number));
            programmed.retired_backends.extend(unused.map(|&number| (address, number)));
            programmed.services.insert(address, service);
        }
        programmed
    }

    /// State of a backend of a service, where it is a member.
    pub(super) fn backend_state(
        &self,
        service: ServiceAddress,
        backend: BackendAddress,
    ) -> Option<BackendState> {
        let service = self.services.get(&service)?;
        match service.backends.get(&service.number_of(backend)?)?.link.state {
            Membership::Member(state) => Some(state),
            Membership::Unused => None,
        }
    }

    /// True where something waits to be cleared.
    pub(super) fn has_leftovers(&self) -> bool {
        !self.stray_addresses.is_empty() || self.has_retired()
    }

    /// True where something waits for a grace period to be cleared.
    pub(super) fn has_retired(&self) -> bool {
        !self.retired.is_empty()
            || !self.retired_backends.is_empty()
            || !self.retired_ranges.is_empty()
            || self.flows_unchecked
    }

    /// True where a service has the ID, or had it and is not cleared.
    pub(super) fn id_in_use(&self, id: u16) -> bool {
        self.retired.contains_key(&id) || self.services.values().any(|service| service.id == id)
    }

    /// The ranges of backend records in use: first record and number of records.
    pub(super) fn ranges(&self) -> BTreeMap<u32, u32> {
        let living = self.services.values();
        let retired = self.retired.values().flatten();
        let mut ranges: BTreeMap<u32, u32> = living
            .chain(retired)
            .map(|service| (service.record.range.base, service.record.range.limit))
            .collect();
        ranges.extend(self.retired_ranges.iter().map(|(&base, &limit)| (base, limit)));
        ranges
    }

    /// The owners that flows may have: members of services that packets are led to.
    pub(super) fn flow_owners(&self) -> BTreeSet<FlowOwner> {
        self.services
            .values()
            .flat_map(|service| {
                let members = service.backends.keys().filter(|&&number| service.is_member(number));
                members.map(|&backend| FlowOwner { service: service.id, backend })
            })
            .collect()
    }

    /// The services that packets for this address are led to.
    pub(super) fn services_on(&self, address: IpAddr) -> impl Iterator<Item = (ServiceAddress, u16)> + '_ {
        let first = ServiceAddress { address, port: 0, protocol: Protocol::Tcp };
        let on_address = self.services.range(first..).take_while(move |(key, _)| key.address == address);
        on_address.map(|(key, service)| (*key, service.id))
    }

    /// The NAT sources that the programmed services need.
    pub(super) fn needed_nat_sources(&self) -> BTreeSet<(BackendAddress, Protocol)> {
        let nat = self.services.values().filter(|service| service.record.mode.translates());
        nat.flat_map(|service| service.backends.values())
            .filter(|record| record.link.state != Membership::Unused)
            .map(|record| (record.address, record.protocol))
            .collect()
    }
}
