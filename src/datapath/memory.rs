//! The datapath in memory: what the kernel's maps would hold, and a log of what was done, so that the engine can be tested
//! without a kernel and against failures that a kernel seldom has.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use super::{
    AddressServices, AdmissionRecord, Adopted, AdoptedAdmission, AdoptedService, BackendCounters,
    BackendRecord, Datapath, DatapathError, FlowOwner, LedgerCounters, Link, Membership, OuterSettings,
    RecordRange, ServiceRecord, Slot, SourceList,
};
use crate::model::{
    AddressPolicy, BackendAddress, Egress, Encapsulation, Protocol, RANGES_PER_ADDRESS, ServiceAddress,
};

/// What was done, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// A service record was written.
    WriteService(u16),
    /// A service's policy was replaced.
    WritePolicy(u16),
    /// A service was moved to other records.
    MoveService(u16),
    /// A service's record and table were cleared.
    ClearService(u16),
    /// An address was led to a service.
    Bind(ServiceAddress, u16),
    /// An address was taken away.
    Unbind(ServiceAddress),
    /// The services of an address were told, or the address was taken away.
    Address(IpAddr, Option<AddressServices>),
    /// What is done with packets for no service was replaced.
    AddressPolicy(AddressPolicy),
    /// A backend record was written or cleared.
    WriteBackend(u32),
    /// The link of a backend record was replaced.
    WriteLink(u32, Membership),
    /// A NAT source was added or removed.
    NatSource(BackendAddress, bool),
    /// Tables were published.
    Publish(Vec<u16>),
    /// A grace period passed.
    GracePeriod,
    /// Flows were removed.
    RetainFlows,
    /// What outer headers have in common was replaced.
    OuterSettings(OuterSettings),
    /// What is looked at before a packet may use a service was replaced.
    Admission(u16),
    /// A list of sources was replaced, or removed.
    Sources(u16, bool),
    /// How frames leave for an interface was said.
    Egress(u32, Option<Egress>),
}

/// The datapath in memory.
#[derive(Clone, Debug)]
pub struct Memory {
    max_services: u16,
    max_records: u32,
    /// Service records by ID.
    pub services: BTreeMap<u16, ServiceRecord>,
    /// Tables by service ID.
    pub tables: BTreeMap<u16, Vec<Slot>>,
    /// Addresses and the services they lead to.
    pub bindings: BTreeMap<ServiceAddress, u16>,
    /// Backend records.
    pub backends: BTreeMap<u32, BackendRecord>,
    /// NAT sources.
    pub nat_sources: BTreeSet<(BackendAddress, Protocol)>,
    /// Addresses, with the services they are said to have.
    pub addresses: BTreeMap<IpAddr, AddressServices>,
    /// What is done with packets for these addresses that are for no service.
    pub address_policy: AddressPolicy,
    /// Owners of the flows in the table.
    pub flows: Vec<FlowOwner>,
    /// What was done since the log was last emptied.
    pub log: Vec<Step>,
    /// Fails the operation after so many more.
    pub fail_after: Option<usize>,
    /// Fails to replace lists of sources, as a kernel without memory does.
    pub fail_sources: bool,
    /// How frames leave for interfaces that are not devices themselves.
    pub egress: BTreeMap<u32, Egress>,
    /// What is looked at before a packet may use a service.
    pub admission: BTreeMap<u16, AdmissionRecord>,
    /// Lists of sources, by service and whether they are of IPv6.
    pub sources: BTreeMap<(u16, bool), SourceList>,
    /// What outer headers have in common.
    pub outer: OuterSettings,
    last_service_id: u16,
    writes: u64,
}

impl Memory {
    /// An empty datapath with room for so many services and backend records.
    pub fn new(max_services: u16, max_records: u32) -> Self {
        Self {
            max_services,
            max_records,
            services: BTreeMap::new(),
            tables: BTreeMap::new(),
            bindings: BTreeMap::new(),
            backends: BTreeMap::new(),
            nat_sources: BTreeSet::new(),
            addresses: BTreeMap::new(),
            address_policy: AddressPolicy::default(),
            flows: Vec::new(),
            log: Vec::new(),
            fail_after: None,
            fail_sources: false,
            egress: BTreeMap::new(),
            admission: BTreeMap::new(),
            sources: BTreeMap::new(),
            outer: OuterSettings::from(&Encapsulation::default()),
            last_service_id: 0,
            writes: 0,
        }
    }

    /// What a packet for `address` with this slot of the table would meet: the backend's record, if it leads to one.
    pub fn lead(&self, address: ServiceAddress, slot: usize) -> Option<&BackendRecord> {
        let id = self.bindings.get(&address)?;
        let service = self.services.get(id)?;
        let number = self.tables.get(id)?.get(slot)?.current;
        self.backends.get(&service.range.record(number)?)
    }

    fn adopted_admission(&self) -> AdoptedAdmission {
        let key = [1, 2];
        AdoptedAdmission {
            key,
            records: self.admission.clone(),
            lists: self.sources.iter().map(|(&place, list)| (place, list.digest(key))).collect(),
        }
    }

    fn records_of(&self, range: RecordRange) -> Vec<(u16, BackendRecord)> {
        let numbers = (1..range.limit).map_while(|number| u16::try_from(number).ok());
        numbers
            .filter_map(|number| Some((number, self.backends.get(&range.record(number)?)?.clone())))
            .collect()
    }

    fn step(&mut self, step: Step) -> Result<(), DatapathError> {
        if let Some(left) = self.fail_after.as_mut() {
            if *left == 0 {
                return Err(DatapathError::system(format!("carry out {step:?}"), "a failure was injected"));
            }
            *left -= 1;
        }
        if !matches!(step, Step::GracePeriod | Step::RetainFlows) {
            self.writes += 1;
        }
        self.log.push(step);
        Ok(())
    }
}

impl Datapath for Memory {
    fn max_services(&self) -> u16 {
        self.max_services
    }

    fn max_records(&self) -> u32 {
        self.max_records
    }

    fn adopt(&self) -> Result<Adopted, DatapathError> {
        let mut adopted = Adopted {
            nat_sources: self.nat_sources.clone(),
            addresses: self.addresses.clone(),
            address_policy: self.address_policy,
            egress: self.egress.clone(),
            admission: self.adopted_admission(),
            last_service_id: self.last_service_id,
            ..Adopted::default()
        };
        let mut seen = BTreeSet::new();
        for (&address, &id) in &self.bindings {
            match self.services.get(&id) {
                Some(record) if record.address == address && seen.insert(id) => {
                    let backends = self.records_of(record.range);
                    let table = self.tables.get(&id).cloned().unwrap_or_default();
                    adopted.services.push(AdoptedService { id, record: record.clone(), table, backends });
                }
                _ => adopted.stray_addresses.push(address),
            }
        }
        let ids: BTreeSet<u16> = self.services.keys().chain(self.tables.keys()).copied().collect();
        adopted.stray_ids = ids.difference(&seen).copied().collect();
        let owned: BTreeSet<u32> = adopted
            .services
            .iter()
            .flat_map(|service| service.backends.iter().filter_map(|(n, _)| service.record.range.record(*n)))
            .collect();
        adopted.stray_records =
            self.backends.keys().filter(|record| !owned.contains(record)).copied().collect();
        Ok(adopted)
    }

    fn write_service(&mut self, id: u16, record: &ServiceRecord) -> Result<(), DatapathError> {
        self.step(Step::WriteService(id))?;
        self.services.insert(id, record.clone());
        Ok(())
    }

    fn write_policy(&mut self, id: u16, record: &ServiceRecord) -> Result<(), DatapathError> {
        self.step(Step::WritePolicy(id))?;
        if let Some(service) = self.services.get_mut(&id) {
            service.hash = record.hash;
        }
        Ok(())
    }

    fn move_service(&mut self, id: u16, range: RecordRange) -> Result<(), DatapathError> {
        self.step(Step::MoveService(id))?;
        if let Some(service) = self.services.get_mut(&id) {
            service.range = range;
        }
        Ok(())
    }

    fn clear_service(&mut self, id: u16) -> Result<(), DatapathError> {
        self.step(Step::ClearService(id))?;
        self.services.remove(&id);
        self.tables.remove(&id);
        Ok(())
    }

    fn set_last_service_id(&mut self, id: u16) -> Result<(), DatapathError> {
        self.last_service_id = id;
        self.writes += 1;
        Ok(())
    }

    fn write_admission(&mut self, id: u16, record: &AdmissionRecord) -> Result<(), DatapathError> {
        self.step(Step::Admission(id))?;
        if *record == AdmissionRecord::default() {
            self.admission.remove(&id);
        } else {
            self.admission.insert(id, *record);
        }
        Ok(())
    }

    fn write_sources(&mut self, id: u16, ipv6: bool, list: Option<&SourceList>) -> Result<(), DatapathError> {
        if self.fail_sources {
            return Err(DatapathError::system("replace a list of sources", "a failure was injected"));
        }
        self.step(Step::Sources(id, list.is_some()))?;
        match list {
            Some(list) => self.sources.insert((id, ipv6), list.clone()),
            None => self.sources.remove(&(id, ipv6)),
        };
        Ok(())
    }

    fn set_egress(&mut self, interface: u32, egress: Option<Egress>) -> Result<(), DatapathError> {
        self.step(Step::Egress(interface, egress))?;
        match egress {
            Some(egress) => self.egress.insert(interface, egress),
            None => self.egress.remove(&interface),
        };
        Ok(())
    }

    fn outer_settings(&self) -> OuterSettings {
        self.outer
    }

    fn set_outer_settings(&mut self, settings: OuterSettings) -> Result<(), DatapathError> {
        self.step(Step::OuterSettings(settings))?;
        self.outer = settings;
        Ok(())
    }

    fn bind(&mut self, address: ServiceAddress, id: u16) -> Result<(), DatapathError> {
        let is_neighbour = |other: &&ServiceAddress| {
            other.ports.is_range() && ServiceAddress { ports: address.ports, ..**other } == address
        };
        if address.ports.is_range()
            && !self.bindings.contains_key(&address)
            && self.bindings.keys().filter(is_neighbour).count() >= RANGES_PER_ADDRESS
        {
            return Err(DatapathError::TooManyRanges { address, limit: RANGES_PER_ADDRESS });
        }
        self.step(Step::Bind(address, id))?;
        self.bindings.insert(address, id);
        Ok(())
    }

    fn unbind(&mut self, address: ServiceAddress) -> Result<(), DatapathError> {
        self.step(Step::Unbind(address))?;
        self.bindings.remove(&address);
        Ok(())
    }

    fn set_address(
        &mut self,
        address: IpAddr,
        services: Option<AddressServices>,
    ) -> Result<(), DatapathError> {
        self.step(Step::Address(address, services))?;
        match services {
            Some(services) => self.addresses.insert(address, services),
            None => self.addresses.remove(&address),
        };
        Ok(())
    }

    fn set_address_policy(&mut self, policy: AddressPolicy) -> Result<(), DatapathError> {
        self.step(Step::AddressPolicy(policy))?;
        self.address_policy = policy;
        Ok(())
    }

    fn copy_backend_counters(&mut self, _from: u32, _to: u32) -> Result<(), DatapathError> {
        Ok(())
    }

    fn write_backend(&mut self, record: u32, backend: Option<&BackendRecord>) -> Result<(), DatapathError> {
        self.step(Step::WriteBackend(record))?;
        match backend {
            Some(backend) => self.backends.insert(record, backend.clone()),
            None => self.backends.remove(&record),
        };
        Ok(())
    }

    fn write_link(&mut self, record: u32, link: Link) -> Result<(), DatapathError> {
        self.step(Step::WriteLink(record, link.state))?;
        if let Some(backend) = self.backends.get_mut(&record) {
            backend.link = link;
        }
        Ok(())
    }

    fn set_nat_source(
        &mut self,
        address: BackendAddress,
        protocol: Protocol,
        present: bool,
    ) -> Result<(), DatapathError> {
        self.step(Step::NatSource(address, present))?;
        if present {
            self.nat_sources.insert((address, protocol));
        } else {
            self.nat_sources.remove(&(address, protocol));
        }
        Ok(())
    }

    fn publish(&mut self, tables: &[(u16, Vec<Slot>)]) -> Result<(), DatapathError> {
        let done = self.step(Step::Publish(tables.iter().map(|(id, _)| *id).collect()));
        /* The kernel publishes one after the other, and may fail between two. */
        let published = if done.is_ok() { tables } else { &tables[..tables.len() / 2] };
        self.tables.extend(published.iter().cloned());
        done
    }

    fn grace_period(&mut self) -> Result<(), DatapathError> {
        self.step(Step::GracePeriod)
    }

    fn retain_flows(&mut self, wanted: &dyn Fn(FlowOwner) -> bool) -> Result<u64, DatapathError> {
        self.step(Step::RetainFlows)?;
        let before = self.flows.len();
        self.flows.retain(|&owner| wanted(owner));
        Ok((before - self.flows.len()) as u64)
    }

    fn count_flows(&self) -> Result<u64, DatapathError> {
        Ok(self.flows.len() as u64)
    }

    fn flow_capacity(&self) -> (u64, u64) {
        (0, 0)
    }

    fn ledger(&self, _id: u16) -> Result<LedgerCounters, DatapathError> {
        Ok(LedgerCounters::default())
    }

    fn backend_counters(&self, _record: u32) -> Result<BackendCounters, DatapathError> {
        Ok(BackendCounters::default())
    }

    fn writes(&self) -> u64 {
        self.writes
    }
}
