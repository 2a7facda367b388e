//! Who may use services: the node's lists, and the sources and limits of each service.
//!
//! A list is there before a record names it, and goes after a grace period in which none did; a changed list is replaced in one
//! step. So no packet meets a service without the check that it had before and is to have afterwards.

use std::collections::{BTreeMap, BTreeSet};

use super::{Engine, programmed::ProgrammedService};
use crate::{
    datapath::{AdmissionRecord, AdoptedAdmission, Checks, Datapath, DatapathError, SourceList},
    model::{NodeAdmission, Service, ServiceAddress, ServiceAdmission},
};

const FAMILIES: [bool; 2] = [false, true];
/// The node's own place beside those of the services.
const NODE: u16 = 0;

/// What is to be looked at in one place.
#[derive(Clone, Debug, Default)]
struct Wanted {
    record: AdmissionRecord,
    /// Of IPv4 and of IPv6 sources, with their digests.
    lists: [Option<(SourceList, u64)>; 2],
}

/// What is wanted, and a mirror of what is programmed.
#[derive(Debug)]
pub(super) struct Admission {
    node: Wanted,
    services: BTreeMap<ServiceAddress, Wanted>,
    /// Records that say something, by service ID.
    records: BTreeMap<u16, AdmissionRecord>,
    /// Digests of the lists.
    lists: BTreeMap<(u16, bool), u64>,
    key: [u64; 2],
    /// The node's part may differ from what is wanted.
    pending: bool,
}

impl Wanted {
    fn of_node(admission: &NodeAdmission, key: [u64; 2]) -> Self {
        let lists = FAMILIES.map(|ipv6| SourceList::of_node(admission, ipv6));
        let lists = lists.map(|list| list.map(|list| with_digest(list, key)));
        let mut record = AdmissionRecord::default();
        record.checks.bogons = admission.drop_bogons;
        Self { record, lists }.with_list_checks()
    }

    /// `None` where nothing is to be looked at.
    fn of_service(admission: &ServiceAdmission, ipv6: bool, key: [u64; 2]) -> Option<Self> {
        let list = admission.sources.as_ref().and_then(|sources| SourceList::of_service(sources, ipv6));
        let mut lists = [None, None];
        lists[usize::from(ipv6)] = list.map(|list| with_digest(list, key));
        let record = AdmissionRecord::of_limits(&admission.limits);
        let wanted = Self { record, lists }.with_list_checks();
        (wanted.record.checks != Checks::default()).then_some(wanted)
    }

    fn with_list_checks(mut self) -> Self {
        self.record.checks.sources_v4 = self.lists[0].is_some();
        self.record.checks.sources_v6 = self.lists[1].is_some();
        self
    }
}

fn with_digest(list: SourceList, key: [u64; 2]) -> (SourceList, u64) {
    let digest = list.digest(key);
    (list, digest)
}

impl Admission {
    pub(super) fn new(adopted: AdoptedAdmission) -> Self {
        let AdoptedAdmission { key, records, lists } = adopted;
        Self { node: Wanted::default(), services: BTreeMap::new(), records, lists, key, pending: true }
    }

    /// Takes what these services want.
    pub(super) fn set_services(&mut self, services: &[Service]) {
        self.services = services
            .iter()
            .filter_map(|service| {
                let ipv6 = service.address.address.is_ipv6();
                Some((service.address, Wanted::of_service(&service.admission, ipv6, self.key)?))
            })
            .collect();
        self.pending = true;
    }

    pub(super) fn is_pending(&self) -> bool {
        self.pending
    }

    fn record(&self, id: u16) -> AdmissionRecord {
        self.records.get(&id).copied().unwrap_or_default()
    }

    /// True where a service has checks of its own.
    fn has_services(&self) -> bool {
        self.records.keys().any(|&id| id != NODE)
    }

    /// Places of services that something is programmed in.
    fn places(&self) -> BTreeSet<u16> {
        let listed = self.lists.keys().map(|&(id, _)| id);
        self.records.keys().copied().chain(listed).filter(|&id| id != NODE).collect()
    }
}

impl<D: Datapath> Engine<D> {
    /// Takes what holds for every service. Takes effect with [`Engine::apply`].
    pub fn set_admission(&mut self, admission: &NodeAdmission) {
        self.admission.node = Wanted::of_node(admission, self.admission.key);
        self.admission.pending = true;
    }

    /// Before services change: what holds for all of them, and that some have checks of their own.
    pub(super) fn begin_admission(&mut self) -> Result<(), DatapathError> {
        if !self.admission.pending {
            return Ok(());
        }
        if !self.admission.services.is_empty() {
            let mut record = self.admission.record(NODE);
            record.checks.services = true;
            self.write_record(NODE, record)?;
        }
        let mut wanted = self.admission.node.clone();
        wanted.record.checks.services = self.admission.record(NODE).checks.services;
        self.change_place(NODE, &wanted)
    }

    /// What is looked at before a packet may use a service that packets are led to, or will be.
    pub(super) fn admit_to(&mut self, id: u16, address: ServiceAddress) -> Result<(), DatapathError> {
        let wanted = self.admission.services.get(&address).cloned().unwrap_or_default();
        self.change_place(id, &wanted)
    }

    /// The same of one that runs, whatever else of it changes.
    pub(super) fn admit_to_running(&mut self, address: ServiceAddress) -> Result<(), DatapathError> {
        match self.programmed.services.get(&address) {
            Some(running) => self.admit_to(running.id, address),
            None => Ok(()),
        }
    }

    /// Nothing is looked at for an ID that no packet is led to.
    pub(super) fn forget_admission(&mut self, id: u16) -> Result<(), DatapathError> {
        self.change_place(id, &Wanted::default())
    }

    /// When services are as they should be: what an earlier process left is cleared, and packets of services without checks of
    /// their own do not look for them.
    pub(super) fn finish_admission(&mut self) -> Result<(), DatapathError> {
        if !self.admission.pending
            && self.admission.record(NODE).checks.services == self.admission.has_services()
        {
            return Ok(());
        }
        let programmed = self.programmed.services.values().chain(self.programmed.unfinished.values());
        let in_use: BTreeSet<u16> = programmed.map(|ProgrammedService { id, .. }| *id).collect();
        for id in self.admission.places().difference(&in_use) {
            self.forget_admission(*id)?;
        }
        let mut record = self.admission.record(NODE);
        record.checks.services = self.admission.has_services();
        self.write_record(NODE, record)?;
        self.admission.pending = false;
        Ok(())
    }

    fn change_place(&mut self, id: u16, wanted: &Wanted) -> Result<(), DatapathError> {
        let mut gone = Vec::new();
        for (ipv6, list) in FAMILIES.into_iter().zip(&wanted.lists) {
            let present = self.admission.lists.get(&(id, ipv6)).copied();
            let Some((list, digest)) = list else {
                gone.extend(present.map(|_| ipv6));
                continue;
            };
            if present != Some(*digest) {
                /* Should it fail, it is not known which list is there. */
                self.admission.lists.insert((id, ipv6), u64::MAX);
                self.datapath.write_sources(id, ipv6, Some(list))?;
                self.admission.lists.insert((id, ipv6), *digest);
            }
        }
        self.write_record(id, wanted.record)?;
        if !gone.is_empty() {
            self.datapath.grace_period()?;
        }
        for ipv6 in gone {
            self.datapath.write_sources(id, ipv6, None)?;
            self.admission.lists.remove(&(id, ipv6));
        }
        Ok(())
    }

    fn write_record(&mut self, id: u16, record: AdmissionRecord) -> Result<(), DatapathError> {
        if self.admission.record(id) == record {
            return Ok(());
        }
        self.datapath.write_admission(id, &record)?;
        if record == AdmissionRecord::default() {
            self.admission.records.remove(&id);
        } else {
            self.admission.records.insert(id, record);
        }
        Ok(())
    }
}
