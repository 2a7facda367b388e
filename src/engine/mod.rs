//! The engine: makes the datapath be what is desired, given what health checks and next hops say. The only writer.
//!
//! It keeps a mirror of what is programmed ([`programmed`]), works out what each service should be ([`goal`]) and carries
//! out the difference in an order in which no packet ever meets half of a change ([`apply`]). What fails half-way leaves the
//! old state serving, and the same call repeated carries on from there.

mod addresses;
mod allocate;
mod apply;
mod goal;
mod observe;
mod programmed;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
    time::Duration,
};

use crate::{
    datapath::{Datapath, DatapathError},
    health::{Report, Target},
    model::{
        AddressPolicy, BackendAddress, BackendState, InitialState, NextHop, Service, ServiceAddress,
        ServiceName, Verdict,
        status::{InterfaceStatus, Problem},
    },
};
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

/// Health of one backend of a service.
#[derive(Clone, Debug)]
struct Health {
    state: BackendState,
    last_failure: Option<String>,
}

/// Makes a datapath be what is desired.
pub struct Engine<D> {
    datapath: D,
    programmed: Programmed,
    desired: BTreeMap<ServiceAddress, Service>,
    address_policy: AddressPolicy,
    /// Names in the order of the configuration.
    order: Vec<ServiceAddress>,
    health: BTreeMap<(ServiceAddress, BackendAddress), Health>,
    next_hops: BTreeMap<IpAddr, NextHop>,
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
        let adopted = datapath.adopt()?;
        let adopted_services = adopted.services.len() as u32;
        let programmed = Programmed::from_adopted(adopted);
        Ok(Self {
            datapath,
            address_policy: programmed.address_policy,
            programmed,
            desired: BTreeMap::new(),
            order: Vec::new(),
            health: BTreeMap::new(),
            next_hops: BTreeMap::new(),
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
    /// Health is kept for backends that stay; new ones begin as their service's check says, or in the state that was found
    /// pinned.
    pub fn set_desired(&mut self, services: &[Service]) {
        self.order = services.iter().map(|service| service.address).collect();
        self.dirty.extend(self.desired.keys());
        self.desired = services.iter().map(|service| (service.address, service.clone())).collect();
        self.dirty.extend(self.desired.keys());
        let mut health = BTreeMap::new();
        for service in services {
            for backend in &service.backends {
                let key = (service.address, backend.address);
                let kept = self.health.remove(&key);
                health.insert(key, self.initial_health(service, backend.address, kept));
            }
        }
        self.health = health;
    }

    /// Replaces what is done with packets for the addresses of services that are for no service. Takes effect with
    /// [`Engine::apply`].
    pub fn set_address_policy(&mut self, policy: AddressPolicy) {
        self.address_policy = policy;
    }

    fn initial_health(&self, service: &Service, backend: BackendAddress, kept: Option<Health>) -> Health {
        if service.health.probe.is_none() {
            return Health { state: BackendState::Up, last_failure: None };
        }
        if let Some(kept) = kept {
            return kept;
        }
        let initial = match service.health.initial {
            InitialState::Up => BackendState::Up,
            InitialState::Down => BackendState::Down,
        };
        let state = self.programmed.backend_state(service.address, backend).unwrap_or(initial);
        Health { state, last_failure: None }
    }

    /// The backends to probe, each with the state it is in.
    pub fn probe_targets(&self) -> Vec<Target> {
        let services = self.order.iter().filter_map(|address| self.desired.get(address));
        services
            .filter(|service| service.health.probe.is_some())
            .flat_map(|service| {
                service.backends.iter().map(|backend| Target {
                    service: service.name.clone(),
                    backend: backend.address,
                    check: service.health.clone(),
                    known: self.programmed.backend_state(service.address, backend.address),
                })
            })
            .collect()
    }

    /// The addresses whose next hops are needed.
    pub fn next_hop_targets(&self) -> BTreeSet<IpAddr> {
        let backends = self.desired.values().flat_map(|service| &service.backends);
        backends.map(|backend| backend.address.address).collect()
    }

    /// Takes what a prober reports. Takes effect with [`Engine::apply`].
    pub fn report(&mut self, report: Report) {
        let Some(service) = self.desired.values().find(|service| service.name == report.service) else {
            return;
        };
        let address = service.address;
        let Some(health) = self.health.get_mut(&(address, report.backend)) else { return };
        health.last_failure = report.last_failure;
        if let Some(verdict) = report.verdict {
            health.state = match verdict {
                Verdict::Up => BackendState::Up,
                Verdict::Down => BackendState::Down,
            };
            tracing::info!(service = %report.service, backend = %report.backend, state = ?health.state,
                reason = health.last_failure.as_deref(), "a backend changes state");
            self.dirty.insert(address);
        }
    }

    /// Takes what the kernel says of next hops. Takes effect with [`Engine::apply`].
    pub fn set_next_hops(&mut self, next_hops: &BTreeMap<IpAddr, NextHop>) {
        let changed: BTreeSet<IpAddr> = next_hops
            .iter()
            .filter(|(address, next_hop)| self.next_hops.get(*address) != Some(*next_hop))
            .map(|(address, _)| *address)
            .collect();
        for service in self.desired.values() {
            if service.backends.iter().any(|backend| changed.contains(&backend.address.address)) {
                self.dirty.insert(service.address);
            }
        }
        self.next_hops.extend(next_hops.iter().map(|(address, next_hop)| (*address, next_hop.clone())));
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

    /// Removes dead flows, and such as name what does not exist.
    ///
    /// # Errors
    /// Where the flow table cannot be read or written.
    pub fn sweep_flows(&mut self) -> Result<u64, EngineError> {
        let owners = self.programmed.flow_owners();
        Ok(self.datapath.retain_flows(&|owner| owners.contains(&owner))?)
    }

    /// True while something remains to be applied.
    pub fn is_dirty(&self) -> bool {
        !self.dirty.is_empty()
            || self.programmed.has_leftovers()
            || self.address_policy != self.programmed.address_policy
    }

    /// True where a service translates addresses, so that this node must forward replies.
    pub fn uses_nat(&self) -> bool {
        self.desired.values().any(|service| service.mode.translates())
    }
}

/// An engine that several threads use.
pub type SharedEngine<D> = Arc<Shared<D>>;
