//! What the engine knows of the health of backends, in step with the prober.
//!
//! The prober tells changes only, and knows a target by the name of its service and the backend's address. So does this: were
//! the two to disagree on what a backend's state is, no verdict would ever come to put that right.

use std::collections::HashMap;

use super::Engine;
use crate::{
    datapath::Datapath,
    health::{Report, Target},
    model::{BackendAddress, BackendState, InitialState, Service, ServiceAddress, Verdict},
};

/// Health of one backend of a service.
#[derive(Clone, Debug)]
pub(super) struct Health {
    pub(super) state: BackendState,
    pub(super) last_failure: Option<String>,
    /// The state is a verdict, found pinned, or trusted: not only what a new backend begins with.
    known: bool,
}

/// Health of the backends of a service.
#[derive(Clone, Debug)]
pub(super) struct ServiceHealth {
    address: ServiceAddress,
    probed: bool,
    backends: HashMap<BackendAddress, Health>,
}

impl ServiceHealth {
    /// Health of a backend.
    pub(super) fn of(&self, backend: BackendAddress) -> Option<&Health> {
        self.backends.get(&backend)
    }

    /// State of a backend; one that nothing is known of gets no packets.
    pub(super) fn state(&self, backend: BackendAddress) -> BackendState {
        self.of(backend).map_or(BackendState::Down, |health| health.state)
    }
}

impl<D: Datapath> Engine<D> {
    /// What is known of the backends of a service that is to become desired.
    pub(super) fn health_to_be(&self, service: &Service) -> ServiceHealth {
        let mut backends = HashMap::with_capacity(service.backends.len());
        let kept = self.health.get(&service.name);
        let renamed = self.desired.get(&service.address).and_then(|former| self.health.get(&former.name));
        let pinned = self
            .programmed
            .services
            .get(&service.address)
            .map(|service| service.states())
            .unwrap_or_default();
        for backend in &service.backends {
            let address = backend.address;
            let found =
                || pinned.get(&address).map(|&state| Health { state, last_failure: None, known: true });
            let health = if service.health.probe.is_none() {
                Health { state: BackendState::Up, last_failure: None, known: true }
            } else {
                kept.and_then(|kept| kept.of(address))
                    .or_else(|| renamed.and_then(|former| former.of(address)).filter(|health| health.known))
                    .cloned()
                    .or_else(found)
                    .unwrap_or_else(|| initial(service))
            };
            backends.insert(address, health);
        }
        ServiceHealth { address: service.address, probed: service.health.probe.is_some(), backends }
    }

    /// The backends to probe, each with the state it is in; without one where it is new.
    pub fn probe_targets(&self) -> Vec<Target> {
        let services = self.order.iter().filter_map(|address| self.desired.get(address));
        let probed = services.filter(|service| service.health.probe.is_some());
        probed
            .flat_map(|service| {
                let health = self.health.get(&service.name);
                service.backends.iter().map(move |backend| Target {
                    service: service.name.clone(),
                    backend: backend.address,
                    check: service.health.clone(),
                    known: health
                        .and_then(|health| health.of(backend.address))
                        .filter(|health| health.known)
                        .map(|health| health.state),
                })
            })
            .collect()
    }

    /// Takes what a prober reports. Takes effect with [`Engine::apply`].
    ///
    /// Reports of what is not probed any more are ignored: they may have waited in a queue.
    pub fn report(&mut self, report: Report) {
        let Some(service) = self.health.get_mut(&report.service).filter(|service| service.probed) else {
            return;
        };
        let Some(health) = service.backends.get_mut(&report.backend) else { return };
        health.last_failure = report.last_failure;
        let Some(verdict) = report.verdict else { return };
        health.known = true;
        health.state = match verdict {
            Verdict::Up => BackendState::Up,
            Verdict::Down => BackendState::Down,
        };
        tracing::info!(service = %report.service, backend = %report.backend, state = ?health.state,
            reason = health.last_failure.as_deref(), "a backend changes state");
        self.dirty.insert(service.address);
    }
}

fn initial(service: &Service) -> Health {
    let state = match service.health.initial {
        InitialState::Up => BackendState::Up,
        InitialState::Down => BackendState::Down,
    };
    Health { state, last_failure: None, known: false }
}
