//! The engine: makes the datapath be what is desired, given what health checks and next hops say. The only writer.
//!
//! It keeps a mirror of what is programmed ([`programmed`]), works out what each service should be ([`goal`], [`health`]) and
//! carries out the difference in an order in which no packet ever meets half of a change ([`apply`], with the steps in
//! [`change`], [`make`] and [`retire`]). What fails half-way leaves the old state serving, and the same call repeated carries
//! on from there.

mod addresses;
mod admission;
mod allocate;
mod apply;
mod change;
mod egress;
mod encapsulation;
mod goal;
mod health;
mod make;
mod observe;
mod programmed;
mod retire;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::IpAddr,
    sync::Arc,
    time::Duration,
};

use crate::{
    datapath::{Datapath, DatapathError},
    model::{
        AddressPolicy, Egress, Encapsulation, NextHop, Service, ServiceAddress, ServiceName,
        status::{InterfaceStatus, Problem},
    },
};
use health::ServiceHealth;
use programmed::Programmed;

pub use observe::Shared;

/// Why the engine could not make the datapath what is desired.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// An operation on the datapath failed.
    #[error(transparent)]
    Datapath(#[from] DatapathError),
    /// No service ID is free.
    #[error(
        "there is no room for service {service}: all {limit} service IDs of the pinned maps are in use; remove services, or \
         stop forwarding with `tidegate detach` and start on new maps with a higher capacity.services"
    )]
    NoServiceId {
        /// The service that found none.
        service: ServiceName,
        /// How many there are.
        limit: u16,
    },
    /// No range of backend records is free.
    #[error(
        "there is no room for the {needed} backend records of service {service} in the {limit} of the pinned maps; lower its \
         table.max-backends, or stop forwarding with `tidegate detach` and start on new maps with a higher capacity.backends"
    )]
    NoRecords {
        /// The service that found none.
        service: ServiceName,
        /// Records it needs.
        needed: u32,
        /// How many there are in all.
        limit: u32,
    },
    /// There is no room for several services.
    #[error("{first}; {others} more services found no room")]
    NoRoomForSeveral {
        /// What was missing for the first.
        first: Box<EngineError>,
        /// How many more there are.
        others: usize,
    },
}

/// What one call of [`Engine::apply`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// Elements written.
    pub writes: u64,
    /// Tables published.
    pub tables: u64,
    /// Time it took.
    pub duration: Duration,
}

impl EngineError {
    /// What to tell of services that there was no room for.
    fn of_refusals(refused: Vec<apply::Refusal>) -> Option<Self> {
        let others = refused.len().saturating_sub(1);
        let (_, first) = refused.into_iter().next()?;
        Some(if others == 0 { first } else { Self::NoRoomForSeveral { first: Box::new(first), others } })
    }
}

/// Makes a datapath be what is desired.
pub struct Engine<D> {
    datapath: D,
    programmed: Programmed,
    address_policy: AddressPolicy,
    desired: BTreeMap<ServiceAddress, Service>,
    /// Names in the order of the configuration.
    order: Vec<ServiceAddress>,
    /// By the names of the desired services.
    health: HashMap<ServiceName, ServiceHealth>,
    next_hops: BTreeMap<IpAddr, NextHop>,
    encapsulation: Encapsulation,
    admission: admission::Admission,
    /// How frames leave for interfaces that are not devices themselves; unknown until told.
    egress: Option<BTreeMap<u32, Egress>>,
    /// Services whose goal may differ from what is programmed.
    dirty: BTreeSet<ServiceAddress>,
    adopted_services: u32,
    tables_published: u64,
    last_apply: Duration,
    observed: observe::Surroundings,
}

impl<D: Datapath> Engine<D> {
    /// Takes over what the datapath holds, without changing anything.
    ///
    /// # Errors
    /// Where the datapath cannot be read.
    pub fn adopt(datapath: D) -> Result<Self, EngineError> {
        let mut adopted = datapath.adopt()?;
        let admission = admission::Admission::new(std::mem::take(&mut adopted.admission));
        let programmed = Programmed::from_adopted(adopted, datapath.max_services(), datapath.max_records());
        let adopted_services = programmed.services.len() as u32;
        Ok(Self {
            datapath,
            address_policy: programmed.address_policy,
            programmed,
            desired: BTreeMap::new(),
            order: Vec::new(),
            health: HashMap::new(),
            next_hops: BTreeMap::new(),
            encapsulation: Encapsulation::default(),
            admission,
            egress: None,
            dirty: BTreeSet::new(),
            adopted_services,
            tables_published: 0,
            last_apply: Duration::ZERO,
            observed: observe::Surroundings::default(),
        })
    }

    /// The datapath, for what is not a service: interfaces.
    pub fn datapath_mut(&mut self) -> &mut D {
        &mut self.datapath
    }

    /// The datapath, to look at.
    pub fn datapath(&self) -> &D {
        &self.datapath
    }

    /// Replaces the desired services. Takes effect with [`Engine::apply`].
    ///
    /// Health is kept for backends that stay, by the name of their service or else its address; new ones begin in the state that
    /// was found pinned, or as their service's check says.
    pub fn set_desired(&mut self, services: &[Service]) {
        self.health =
            services.iter().map(|service| (service.name.clone(), self.health_to_be(service))).collect();
        self.order = services.iter().map(|service| service.address).collect();
        self.dirty.extend(self.programmed.services.keys());
        self.desired = services.iter().map(|service| (service.address, service.clone())).collect();
        self.dirty.extend(self.desired.keys());
        self.admission.set_services(services);
        let needed = self.next_hop_targets();
        self.next_hops.retain(|address, _| needed.contains(address));
    }

    /// The addresses whose next hops are needed.
    pub fn next_hop_targets(&self) -> BTreeSet<IpAddr> {
        let backends = self.desired.values().flat_map(|service| &service.backends);
        backends.map(|backend| backend.address.address).collect()
    }

    /// Takes what the kernel says of next hops. Takes effect with [`Engine::apply`].
    pub fn set_next_hops(&mut self, next_hops: &BTreeMap<IpAddr, NextHop>) {
        let changed: BTreeSet<IpAddr> = next_hops
            .iter()
            .filter(|(address, next_hop)| self.next_hops.get(*address) != Some(*next_hop))
            .map(|(address, _)| *address)
            .collect();
        if changed.is_empty() {
            return;
        }
        for service in self.desired.values() {
            if service.backends.iter().any(|backend| changed.contains(&backend.address.address)) {
                self.dirty.insert(service.address);
            }
        }
        self.next_hops.extend(next_hops.iter().map(|(address, next_hop)| (*address, next_hop.clone())));
    }

    /// Takes how frames leave for interfaces that are not devices themselves. Takes effect with [`Engine::apply`].
    pub fn set_egress(&mut self, egress: &Option<BTreeMap<u32, Egress>>) {
        if egress.is_some() {
            self.egress.clone_from(egress);
        }
    }

    /// Replaces what outer headers of tunnels are like. Takes effect with [`Engine::apply`].
    pub fn set_encapsulation(&mut self, encapsulation: Encapsulation) {
        if self.encapsulation != encapsulation {
            self.encapsulation = encapsulation;
            self.dirty.extend(self.desired.keys());
        }
    }

    /// Tells what is attached, for the status.
    pub fn set_interfaces(&mut self, interfaces: Vec<InterfaceStatus>) {
        self.observed.interfaces = interfaces;
    }

    /// Replaces the problems from one source, for the status; none clears it.
    pub fn set_problems(&mut self, source: &'static str, problems: Vec<Problem>) {
        self.observed.problems.insert(source, problems);
    }

    /// Tells whether everything is programmed and attached, for the status.
    pub fn set_ready(&mut self, ready: bool) {
        self.observed.ready = ready;
    }

    /// Replaces what is done with packets for the addresses of services that are for no service. Takes effect with
    /// [`Engine::apply`].
    pub fn set_address_policy(&mut self, policy: AddressPolicy) {
        self.address_policy = policy;
    }

    /// True while something remains to be applied.
    pub fn is_dirty(&self) -> bool {
        !self.dirty.is_empty()
            || self.programmed.has_leftovers()
            || self.address_policy != self.programmed.address_policy
            || self.outer_settings_differ()
            || self.egress_differs()
            || self.admission.is_pending()
    }

    /// True where a service translates addresses, so that this node must forward replies.
    pub fn uses_nat(&self) -> bool {
        self.desired.values().any(|service| service.mode.translates())
    }
}

/// An engine that several threads use.
pub type SharedEngine<D> = Arc<Shared<D>>;
