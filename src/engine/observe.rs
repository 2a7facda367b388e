//! The observed state: what the API serves.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use super::{Engine, programmed::ProgrammedService};
use crate::{
    datapath::{Datapath, DatapathError, Membership},
    maglev,
    model::{
        BackendState, NextHop, OnNoBackend, Service,
        status::{
            BackendStatus, FlowTableStatus, InterfaceStatus, Ledger, NextHopStatus, Problem, Publication,
            ServiceStatus, Status,
        },
    },
};

/// Counting the flows reads the whole table, so it is done at most this often.
const FLOW_COUNT_AGE: Duration = Duration::from_secs(10);

/// What the engine is told of its surroundings, for the status only.
#[derive(Debug)]
pub(super) struct Surroundings {
    pub(super) interfaces: Vec<InterfaceStatus>,
    pub(super) problems: BTreeMap<&'static str, Vec<Problem>>,
    pub(super) ready: bool,
    started_at: u64,
    flows: Mutex<Option<(Instant, u64)>>,
}

impl Default for Surroundings {
    fn default() -> Self {
        let started_at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        Self {
            interfaces: Vec::new(),
            problems: BTreeMap::new(),
            ready: false,
            started_at,
            flows: Mutex::new(None),
        }
    }
}

/// An engine that several threads use, one at a time.
pub struct Shared<D> {
    engine: Mutex<Engine<D>>,
}

impl<D: Datapath> Shared<D> {
    /// Shares an engine.
    pub fn new(engine: Engine<D>) -> Self {
        Self { engine: Mutex::new(engine) }
    }

    /// The engine, for as long as the result lives. A thread that panicked with it has left a mirror that may be behind the
    /// datapath by a step, which the next call of `apply` repeats.
    pub fn lock(&self) -> MutexGuard<'_, Engine<D>> {
        self.engine.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<D: Datapath> Engine<D> {
    /// What runs, read from the datapath now.
    ///
    /// # Errors
    /// Where the counters cannot be read.
    pub fn status(&self) -> Result<Status, DatapathError> {
        let mut services = Vec::with_capacity(self.order.len());
        for address in &self.order {
            let (Some(desired), Some(programmed)) =
                (self.desired.get(address), self.programmed.services.get(address))
            else {
                continue;
            };
            services.push(self.service_status(desired, programmed)?);
        }
        let mut problems: Vec<Problem> = self.observed.problems.values().flatten().cloned().collect();
        problems.extend(self.table_size_problems());
        problems.extend(services.iter().filter_map(service_problem));
        let (capacity, bytes) = self.datapath.flow_capacity();
        Ok(Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            started_at: self.observed.started_at,
            ready: self.observed.ready,
            interfaces: self.observed.interfaces.clone(),
            problems,
            services,
            ledger: Ledger::from(&self.datapath.ledger(0)?),
            publication: Publication {
                adopted_services: self.adopted_services,
                writes: self.datapath.writes(),
                tables: self.tables_published,
                last_microseconds: self.last_apply.as_micros() as u64,
            },
            flows: FlowTableStatus { capacity, bytes, entries: self.count_flows()? },
        })
    }

    fn count_flows(&self) -> Result<u64, DatapathError> {
        let mut cached = self.observed.flows.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((when, count)) = *cached
            && when.elapsed() < FLOW_COUNT_AGE
        {
            return Ok(count);
        }
        let count = self.datapath.count_flows()?;
        *cached = Some((Instant::now(), count));
        Ok(count)
    }

    fn service_status(
        &self,
        desired: &Service,
        programmed: &ProgrammedService,
    ) -> Result<ServiceStatus, DatapathError> {
        /* Not a map: with many services this is most of the time that the status takes, and everybody waits for it. */
        let mut slots = vec![0u32; programmed.record.range.limit as usize];
        for slot in &programmed.table {
            if let Some(count) = slots.get_mut(usize::from(slot.current)) {
                *count += 1;
            }
        }
        let numbers = programmed.numbers();
        let health = self.health.get(&desired.name);
        let mut backends = Vec::with_capacity(desired.backends.len());
        for backend in &desired.backends {
            let Some(&number) = numbers.get(&backend.address) else { continue };
            let Some(record) = programmed.backends.get(&number) else { continue };
            let counters = match programmed.record.range.record(number) {
                Some(record) => self.datapath.backend_counters(record)?,
                None => Default::default(),
            };
            let health = health.and_then(|health| health.of(backend.address));
            backends.push(BackendStatus {
                id: number.into(),
                address: backend.address.address,
                port: backend.address.port,
                weight: backend.weight,
                /* What packets meet, which a verdict that could not be applied yet does not change. */
                state: match record.link.state {
                    Membership::Member(state) => state,
                    Membership::Unused => BackendState::Down,
                },
                last_failure: health.and_then(|health| health.last_failure.clone()),
                slots: slots.get(usize::from(number)).copied().unwrap_or(0),
                next_hop: next_hop_status(self.next_hops.get(&backend.address.address)),
                packets: counters.packets,
                bytes: counters.bytes,
            });
        }
        Ok(ServiceStatus {
            name: desired.name.clone(),
            id: programmed.id.into(),
            address: desired.address.address,
            port: desired.address.ports.first(),
            port_end: desired.address.ports.is_range().then(|| desired.address.ports.last()),
            protocol: desired.address.protocol,
            mode: programmed.record.mode,
            hash: programmed.record.hash.name().to_owned(),
            hash_prefix: programmed.record.hash.prefix(),
            on_no_backend: programmed.record.on_no_backend,
            slots: programmed.record.slots,
            backends,
            ledger: Ledger::from(&self.datapath.ledger(programmed.id)?),
        })
    }

    /// Services whose table is of another size than their configuration would give a new one.
    fn table_size_problems(&self) -> impl Iterator<Item = Problem> + '_ {
        self.desired.values().filter_map(|service| {
            let slots = self.programmed.services.get(&service.address)?.record.slots;
            let wanted = maglev::table_size(service.max_backends);
            /* A larger table than needed is no problem. */
            (slots < wanted).then(|| Problem {
                message: format!(
                    "the table of service {} has {slots} slots, where {wanted} would be made for up to {} backends",
                    service.name, service.max_backends
                ),
                remedy: "it is kept, as another size would move nearly every flow; remove the service and add it again to \
                         have it made anew"
                    .to_owned(),
            })
        })
    }
}

fn service_problem(service: &ServiceStatus) -> Option<Problem> {
    if service.backends.is_empty() {
        return Some(Problem {
            message: format!("service {} has no backends", service.name),
            remedy: format!("its packets are {}; add backends", fate(service.on_no_backend)),
        });
    }
    let up = service.backends.iter().filter(|backend| backend.state == BackendState::Up).count();
    if up == 0 {
        return Some(Problem {
            message: format!("service {} has no backend that is up", service.name),
            remedy: format!(
                "its packets are {}; see `tidegate status {}`",
                fate(service.on_no_backend),
                service.name
            ),
        });
    }
    let unresolved = service.backends.iter().find_map(|backend| match &backend.next_hop {
        NextHopStatus::Unresolved { reason } if backend.state == BackendState::Up => {
            Some(format!("{}: {reason}", backend.address))
        }
        _ => None,
    })?;
    Some(Problem {
        message: format!("service {}: no next hop towards {unresolved}", service.name),
        remedy: "packets take the slower way through the kernel meanwhile; check the route and the neighbour"
            .to_owned(),
    })
}

/// What becomes of the packets of a service without a usable backend.
fn fate(on_no_backend: OnNoBackend) -> &'static str {
    match on_no_backend {
        OnNoBackend::Drop => "dropped",
        OnNoBackend::Reject => "rejected",
        OnNoBackend::Pass => "passed to the kernel",
    }
}

fn next_hop_status(next_hop: Option<&NextHop>) -> NextHopStatus {
    match next_hop {
        Some(NextHop::Local) => NextHopStatus::Local,
        Some(NextHop::Reachable { route, destination_mac }) => NextHopStatus::Resolved {
            interface: route.interface_name.clone(),
            mac: destination_mac.map(|byte| format!("{byte:02x}")).join(":"),
        },
        Some(NextHop::Unresolved { reason, .. }) => NextHopStatus::Unresolved { reason: reason.clone() },
        None => NextHopStatus::Unresolved { reason: "not looked up yet".to_owned() },
    }
}
