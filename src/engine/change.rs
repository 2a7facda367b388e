//! Changing the backends of services that packets use.

use std::collections::BTreeMap;

use super::{
    Engine, EngineError,
    apply::{Publication, Subject},
    goal::{self, Goal},
    programmed::ProgrammedService,
};
use crate::{
    datapath::{BackendRecord, Datapath, DatapathError, Link, Membership},
    model::{BackendState, Service, ServiceAddress, backend_records},
};

/// The highest number that a slot or a flow can name.
const HIGHEST_NUMBER: u32 = u16::MAX as u32;

/// A record to be written anew once no packet trusts it.
struct Rewrite {
    service: ServiceAddress,
    number: u16,
    record: BackendRecord,
}

impl<D: Datapath> Engine<D> {
    /// What the service should be, keeping the numbers that `old` gave its backends. Backends that `limit` has no numbers for
    /// are left out.
    pub(super) fn goal(&self, service: &Service, old: Option<&ProgrammedService>, limit: u32) -> Goal {
        let numbers = old.map(ProgrammedService::numbers).unwrap_or_default();
        let highest = limit.saturating_sub(1).min(HIGHEST_NUMBER) as u16;
        let mut free =
            (1..=highest).filter(|number| !old.is_some_and(|old| old.backends.contains_key(number)));
        let health = self.health.get(&service.name);
        let (mut backends, mut interfaces) = (BTreeMap::new(), BTreeMap::new());
        for backend in &service.backends {
            let Some(number) = numbers.get(&backend.address).copied().or_else(|| free.next()) else {
                continue;
            };
            let state = health.map_or(BackendState::Down, |health| health.state(backend.address));
            let next_hop = self.next_hops.get(&backend.address.address);
            let encapsulation = &self.encapsulation;
            backends.insert(number, goal::backend_record(service, backend, state, next_hop, encapsulation));
            if let Some(route) = next_hop.and_then(goal::route_of) {
                interfaces.insert(number, route.interface);
            }
        }
        let candidates = goal::candidates(service, &backends);
        Goal { backends, candidates, interfaces }
    }

    /// Marks the backends that went down, in the records that packets use now.
    pub(super) fn mark_down(&mut self, service: &Service) -> Result<(), DatapathError> {
        let Some(health) = self.health.get(&service.name) else { return Ok(()) };
        let Some(running) = self.programmed.services.get_mut(&service.address) else { return Ok(()) };
        for (&number, record) in &mut running.backends {
            let is_down = health.of(record.address).is_some_and(|health| health.state == BackendState::Down);
            if record.link.state != Membership::Member(BackendState::Up) || !is_down {
                continue;
            }
            let Some(index) = running.record.range.record(number) else { continue };
            let link = Link { state: Membership::Member(BackendState::Down), ..record.link };
            self.datapath.write_link(index, link)?;
            record.link = link;
        }
        Ok(())
    }

    /// Moves a service to a larger range of records where its backends, and those not yet cleared, need it. The inner error
    /// says that there is none: nothing was changed then.
    pub(super) fn make_room(&mut self, service: &Service) -> Result<Result<(), EngineError>, DatapathError> {
        let Some(old) = self.programmed.services.get_mut(&service.address) else { return Ok(Ok(())) };
        let numbers = old.numbers();
        let new = service.backends.iter().filter(|backend| !numbers.contains_key(&backend.address)).count();
        let needed = old.backends.len() as u32 + new as u32 + 1;
        if needed <= old.record.range.limit {
            return Ok(Ok(()));
        }
        let limit = backend_records(service.max_backends).max(needed);
        let range = if needed <= HIGHEST_NUMBER + 1 { self.programmed.records.allocate(limit) } else { None };
        let Some(range) = range else {
            return Ok(Err(EngineError::NoRecords {
                service: service.name.clone(),
                needed: limit,
                limit: self.datapath.max_records(),
            }));
        };
        /* Should a later step fail, this says what must be cleared before the records are used again. */
        self.programmed.retired_ranges.insert(range.base, range.limit);
        for (&number, record) in &old.backends {
            let Some(index) = range.record(number) else { continue };
            self.datapath.write_backend(index, Some(record))?;
            if let Some(former) = old.record.range.record(number) {
                self.datapath.copy_backend_counters(former, index)?;
            }
        }
        self.datapath.move_service(old.id, range)?;
        let former = std::mem::replace(&mut old.record.range, range);
        self.programmed.retired_ranges.remove(&range.base);
        self.programmed.retired_ranges.insert(former.base, former.limit);
        Ok(Ok(()))
    }

    /// Makes the records of these running services what they should be, and adds their tables, where those differ, to what is
    /// to be published.
    ///
    /// In records that packets use, only the link is ever replaced. Where more changes, the record is made to say "unresolved"
    /// first, so that packets take the way through the kernel meanwhile; one grace period serves for all of those.
    pub(super) fn change_backends(
        &mut self,
        services: &[Service],
        publication: &mut Publication,
    ) -> Result<(), DatapathError> {
        let mut goals = Vec::with_capacity(services.len());
        let mut rewrites = Vec::new();
        for service in services {
            let Some(running) = self.programmed.services.get(&service.address) else { continue };
            let goal = self.goal(service, Some(running), running.record.range.limit);
            for &number in goal.backends.keys() {
                self.programmed.retired_backends.remove(&(service.address, number));
            }
            self.write_records(service.address, &goal, &mut rewrites)?;
            goals.push((service.address, goal));
        }
        self.rewrite(rewrites)?;
        for (address, goal) in goals {
            self.change_table(address, goal, publication);
        }
        Ok(())
    }

    fn write_records(
        &mut self,
        address: ServiceAddress,
        goal: &Goal,
        rewrites: &mut Vec<Rewrite>,
    ) -> Result<(), DatapathError> {
        let Some(service) = self.programmed.services.get_mut(&address) else { return Ok(()) };
        for (&number, wanted) in &goal.backends {
            let Some(index) = service.record.range.record(number) else { continue };
            let Some(old) = service.backends.get_mut(&number) else {
                self.datapath.write_backend(index, Some(wanted))?;
                service.backends.insert(number, wanted.clone());
                continue;
            };
            if old == wanted {
                continue;
            }
            let mut link = wanted.link;
            if !old.differs_only_in_link(wanted) {
                link = old.link;
                link.flags.resolved = false;
                /* The kernel knows the neighbour on the route's interface, not on the device below it. */
                link.interface = goal.interfaces.get(&number).copied().unwrap_or(0);
                if old.source != wanted.source {
                    /* Tunnels would read it while it changes; without an interface their packets are dropped. */
                    link.interface = 0;
                }
                rewrites.push(Rewrite { service: address, number, record: wanted.clone() });
            }
            if link != old.link {
                self.datapath.write_link(index, link)?;
                old.link = link;
            }
        }
        Ok(())
    }

    fn rewrite(&mut self, rewrites: Vec<Rewrite>) -> Result<(), DatapathError> {
        if rewrites.is_empty() {
            return Ok(());
        }
        self.datapath.grace_period()?;
        for Rewrite { service, number, record } in rewrites {
            let Some(service) = self.programmed.services.get_mut(&service) else { continue };
            let Some(index) = service.record.range.record(number) else { continue };
            self.datapath.write_backend(index, Some(&record))?;
            service.backends.insert(number, record);
        }
        Ok(())
    }

    fn change_table(&mut self, address: ServiceAddress, goal: Goal, publication: &mut Publication) {
        let Some(service) = self.programmed.services.get_mut(&address) else { return };
        let leaving = service.backends.keys().filter(|number| !goal.backends.contains_key(number));
        publication.leaving.extend(leaving.map(|&number| (address, number)));
        if service.built_for.as_ref() == Some(&goal.candidates) {
            return;
        }
        let table = goal::table(service.record.slots, &goal.candidates);
        if table == service.table {
            service.built_for = Some(goal.candidates);
            return;
        }
        publication.add(service.id, table, Subject::Running(address, goal.candidates));
    }
}
