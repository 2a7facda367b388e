//! Carrying out the difference between what is desired and what is programmed.
//!
//! Order, so that no packet ever meets half of a change:
//!
//! 1. Backends that went down are marked so in their records: none of them gets a packet from then on.
//! 2. Records of new backends are written, and changed next hops, before any table leads to them.
//! 3. NAT sources are added, so that replies are recognised before there can be any.
//! 4. All changed tables are published in one batch, those of new services among them.
//! 5. Addresses of new services are told, then bound; where a service is replaced, the same store ends the old one.
//! 6. Addresses of services that went are unbound, then told no more; backends that went are marked unused.
//! 7. After a grace period nothing can be using what went: flows that name it are removed, then its records are cleared and its
//!    IDs and numbers are free.
//!
//! The mirror is changed with each step that succeeded, so that repeating the call after a failure does what is left.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Instant,
};

use super::{
    Applied, Engine, EngineError,
    allocate::{free_number, free_range, next_service_id},
    goal::{self, Goal},
    programmed::ProgrammedService,
};
use crate::{
    datapath::{BackendRecord, Datapath, DatapathError, Link, Membership, RecordRange, ServiceRecord, Slot},
    maglev,
    model::{BackendState, Service, ServiceAddress, backend_records},
};

/// A service that is being put in the place of nothing, or of one that cannot be changed into it.
struct NewService {
    programmed: ProgrammedService,
    address: ServiceAddress,
}

impl<D: Datapath> Engine<D> {
    /// Makes the datapath what is desired. With nothing to change nothing is written.
    ///
    /// # Errors
    /// Where an operation failed or there is no room. What was done until then stays; a repeated call does the rest.
    pub fn apply(&mut self) -> Result<Applied, EngineError> {
        let started = Instant::now();
        let writes = self.datapath.writes();
        let tables = self.tables_published;
        let done = self.change_services().and_then(|()| {
            self.change_address_policy()?;
            self.unbind_what_went()?;
            Ok(self.clear_what_went()?)
        });
        if let Err(error) = done {
            self.distrust_tables();
            return Err(error);
        }
        self.dirty.clear();
        let applied = Applied {
            writes: self.datapath.writes() - writes,
            tables: self.tables_published - tables,
            duration: started.elapsed(),
        };
        if applied.writes > 0 {
            self.last_apply = applied.duration;
        }
        Ok(applied)
    }

    /// After a failure: which tables were published is not known, so all that may have changed are compared again.
    fn distrust_tables(&mut self) {
        for address in &self.dirty {
            if let Some(service) = self.programmed.services.get_mut(address) {
                service.built_for = None;
            }
        }
    }

    fn change_services(&mut self) -> Result<(), EngineError> {
        let wanted: Vec<Service> =
            self.dirty.iter().filter_map(|address| self.desired.get(address)).cloned().collect();
        let mut new_services = Vec::new();
        let mut tables = Vec::new();
        for service in &wanted {
            if self.can_change_into(service) {
                if let Some(table) = self.change_backends(service)? {
                    tables.push(table);
                }
            } else {
                let new = self.make_service(service)?;
                tables.push((new.programmed.id, new.programmed.table.clone()));
                new_services.push(new);
            }
        }
        self.add_nat_sources(&new_services)?;
        self.publish(tables)?;
        for new in new_services {
            self.bind(new)?;
        }
        Ok(())
    }

    /// True where the service is programmed and differs in nothing that is fixed for its life.
    fn can_change_into(&self, service: &Service) -> bool {
        self.programmed.services.get(&service.address).is_some_and(|old| old.record.mode == service.mode)
    }

    /// Changes the backends of a service that packets use. Returns its new table, where that differs.
    fn change_backends(&mut self, service: &Service) -> Result<Option<(u16, Vec<Slot>)>, EngineError> {
        self.make_room(service)?;
        let Some(old) = self.programmed.services.get(&service.address) else { return Ok(None) };
        let goal = self.goal(service, Some(old));
        self.mark_down(service.address, &goal)?;
        self.write_records(service.address, &goal)?;
        let Some(programmed) = self.programmed.services.get_mut(&service.address) else { return Ok(None) };
        for number in programmed.backends.keys().filter(|number| !goal.backends.contains_key(number)) {
            self.programmed.retired_backends.insert((service.address, *number));
        }
        if programmed.built_for.as_ref() == Some(&goal.candidates) {
            return Ok(None);
        }
        let table = goal::table(programmed.record.slots, &goal.candidates);
        programmed.built_for = Some(goal.candidates);
        Ok((table != programmed.table).then_some((programmed.id, table)))
    }

    /// What the service should be, keeping the numbers that `old` gave its backends.
    fn goal(&self, service: &Service, old: Option<&ProgrammedService>) -> Goal {
        let limit = old.map_or(u32::MAX, |old| old.record.range.limit);
        let mut taken: BTreeSet<u16> =
            old.map(|old| old.backends.keys().copied().collect()).unwrap_or_default();
        let mut backends = BTreeMap::new();
        for backend in &service.backends {
            let kept = old.and_then(|old| old.number_of(backend.address));
            let Some(number) = kept.or_else(|| free_number(limit, |number| taken.contains(&number))) else {
                continue;
            };
            taken.insert(number);
            let state = self
                .health
                .get(&(service.address, backend.address))
                .map_or(BackendState::Down, |health| health.state);
            let next_hop = self.next_hops.get(&backend.address.address);
            backends.insert(number, goal::backend_record(service, backend, state, next_hop));
        }
        let candidates = goal::candidates(service, &backends);
        Goal { backends, candidates }
    }

    /// Moves a service to a larger range of records where its backends, and those not yet cleared, need it.
    fn make_room(&mut self, service: &Service) -> Result<(), EngineError> {
        let Some(old) = self.programmed.services.get(&service.address) else { return Ok(()) };
        let new = service.backends.iter().filter(|backend| old.number_of(backend.address).is_none()).count();
        let needed = old.backends.len() + new + 1;
        if needed <= old.record.range.limit as usize {
            return Ok(());
        }
        let limit = backend_records(service.max_backends).max(needed as u32);
        let range = self.allocate_range(service, limit)?;
        let Some(old) = self.programmed.services.get_mut(&service.address) else { return Ok(()) };
        for (&number, record) in &old.backends {
            let Some(index) = range.record(number) else { continue };
            self.datapath.write_backend(index, Some(record))?;
            if let Some(former) = old.record.range.record(number) {
                self.datapath.copy_backend_counters(former, index)?;
            }
        }
        self.datapath.move_service(old.id, range)?;
        let former = std::mem::replace(&mut old.record.range, range);
        self.programmed.retired_ranges.insert(former.base, former.limit);
        Ok(())
    }

    fn mark_down(&mut self, address: ServiceAddress, goal: &Goal) -> Result<(), DatapathError> {
        let Some(service) = self.programmed.services.get_mut(&address) else { return Ok(()) };
        let up = Membership::Member(BackendState::Up);
        let down = Membership::Member(BackendState::Down);
        for (number, record) in &mut service.backends {
            let goes_down = goal.backends.get(number).is_some_and(|goal| goal.link.state == down);
            if record.link.state != up || !goes_down {
                continue;
            }
            let Some(index) = service.record.range.record(*number) else { continue };
            let link = Link { state: down, ..record.link };
            self.datapath.write_link(index, link)?;
            record.link = link;
        }
        Ok(())
    }

    /// Writes the records that differ. In records that packets use, only the link is ever replaced; where more changes, the
    /// record is made to say "unresolved" first, so that packets take the way through the kernel meanwhile.
    fn write_records(&mut self, address: ServiceAddress, goal: &Goal) -> Result<(), DatapathError> {
        let Some(service) = self.programmed.services.get_mut(&address) else { return Ok(()) };
        let range = service.record.range;
        let mut rewritten = Vec::new();
        for (&number, wanted) in &goal.backends {
            let Some(index) = range.record(number) else { continue };
            match service.backends.get_mut(&number) {
                Some(old) if old == wanted => continue,
                Some(old) if old.differs_only_in_link(wanted) => {
                    self.datapath.write_link(index, wanted.link)?;
                    old.link = wanted.link;
                    self.programmed.retired_backends.remove(&(address, number));
                }
                Some(old) if old.link.state != Membership::Unused => {
                    let mut link = old.link;
                    link.flags.resolved = false;
                    if old.source != wanted.source {
                        /* Tunnels would read it while it changes; without an interface their packets are dropped. */
                        link.interface = 0;
                    }
                    self.datapath.write_link(index, link)?;
                    old.link = link;
                    rewritten.push((number, index, wanted));
                }
                _ => {
                    self.datapath.write_backend(index, Some(wanted))?;
                    service.backends.insert(number, wanted.clone());
                    self.programmed.retired_backends.remove(&(address, number));
                }
            }
        }
        if rewritten.is_empty() {
            return Ok(());
        }
        self.datapath.grace_period()?;
        for (number, index, wanted) in rewritten {
            self.datapath.write_backend(index, Some(wanted))?;
            service.backends.insert(number, wanted.clone());
        }
        Ok(())
    }

    /// Writes a service that nothing leads to yet, except for its table.
    fn make_service(&mut self, service: &Service) -> Result<NewService, EngineError> {
        let id = self.allocate_id(service)?;
        let range = self.allocate_range(service, backend_records(service.max_backends))?;
        let goal = self.goal(service, None);
        let slots = maglev::table_size(service.max_backends);
        let programmed = ProgrammedService {
            id,
            record: ServiceRecord { address: service.address, mode: service.mode, slots, range },
            table: goal::table(slots, &goal.candidates),
            backends: goal.backends,
            built_for: Some(goal.candidates),
        };
        /* Should a later step fail, this says what must be cleared before the ID and the records are used again. */
        self.programmed.retired.insert(id, Some(programmed.clone()));
        for (&number, record) in &programmed.backends {
            let Some(index) = range.record(number) else { continue };
            self.datapath.write_backend(index, Some(record))?;
        }
        self.datapath.write_service(id, &programmed.record)?;
        Ok(NewService { programmed, address: service.address })
    }

    fn allocate_id(&mut self, service: &Service) -> Result<u16, EngineError> {
        let max = self.datapath.max_services();
        let last = self.programmed.last_service_id;
        let id = next_service_id(last, max, |id| self.programmed.id_in_use(id))
            .ok_or_else(|| EngineError::NoServiceId { service: service.name.clone(), limit: max })?;
        self.datapath.set_last_service_id(id)?;
        self.programmed.last_service_id = id;
        Ok(id)
    }

    fn allocate_range(&self, service: &Service, needed: u32) -> Result<RecordRange, EngineError> {
        let end = self.datapath.max_records() + 1;
        free_range(&self.programmed.ranges(), needed, end).ok_or_else(|| EngineError::NoRecords {
            service: service.name.clone(),
            needed,
            limit: end - 1,
        })
    }

    fn add_nat_sources(&mut self, new_services: &[NewService]) -> Result<(), DatapathError> {
        let mut needed = self.programmed.needed_nat_sources();
        for new in new_services.iter().filter(|new| new.programmed.record.mode.translates()) {
            needed.extend(new.programmed.backends.values().map(|record| (record.address, record.protocol)));
        }
        for (address, protocol) in needed {
            if !self.programmed.nat_sources.contains(&(address, protocol)) {
                self.datapath.set_nat_source(address, protocol, true)?;
                self.programmed.nat_sources.insert((address, protocol));
            }
        }
        Ok(())
    }

    fn publish(&mut self, tables: Vec<(u16, Vec<Slot>)>) -> Result<(), DatapathError> {
        if tables.is_empty() {
            return Ok(());
        }
        self.datapath.publish(&tables)?;
        self.tables_published += tables.len() as u64;
        let mut tables: BTreeMap<u16, Vec<Slot>> = tables.into_iter().collect();
        for service in self.programmed.services.values_mut() {
            if let Some(table) = tables.remove(&service.id) {
                service.table = table;
            }
        }
        Ok(())
    }

    fn bind(&mut self, new: NewService) -> Result<(), DatapathError> {
        let id = new.programmed.id;
        self.add_address(new.address, id)?;
        self.datapath.bind(new.address, id)?;
        self.programmed.retired.remove(&id);
        self.programmed.stray_addresses.remove(&new.address);
        let replaced = self.programmed.services.insert(new.address, new.programmed);
        if let Some(replaced) = replaced {
            self.forget_retired_backends(new.address);
            self.programmed.retired.insert(replaced.id, Some(replaced));
        }
        Ok(())
    }

    /// Retired backends of a service that is itself retired go with it.
    fn forget_retired_backends(&mut self, address: ServiceAddress) {
        self.programmed.retired_backends.retain(|(service, _)| *service != address);
    }

    fn unbind_what_went(&mut self) -> Result<(), DatapathError> {
        let gone: Vec<ServiceAddress> = self
            .programmed
            .services
            .keys()
            .filter(|address| !self.desired.contains_key(address))
            .copied()
            .collect();
        for address in gone {
            self.datapath.unbind(address)?;
            self.forget_retired_backends(address);
            if let Some(service) = self.programmed.services.remove(&address) {
                self.programmed.retired.insert(service.id, Some(service));
            }
        }
        for address in self.programmed.stray_addresses.clone() {
            self.datapath.unbind(address)?;
            self.programmed.stray_addresses.remove(&address);
        }
        self.correct_addresses()?;
        for (address, number) in self.programmed.retired_backends.clone() {
            self.mark_unused(address, number)?;
        }
        let needed = self.programmed.needed_nat_sources();
        for (address, protocol) in
            self.programmed.nat_sources.difference(&needed).copied().collect::<Vec<_>>()
        {
            self.datapath.set_nat_source(address, protocol, false)?;
            self.programmed.nat_sources.remove(&(address, protocol));
        }
        Ok(())
    }

    fn mark_unused(&mut self, address: ServiceAddress, number: u16) -> Result<(), DatapathError> {
        let Some(service) = self.programmed.services.get_mut(&address) else { return Ok(()) };
        let Some(record) = service.backends.get_mut(&number) else { return Ok(()) };
        let Some(index) = service.record.range.record(number) else { return Ok(()) };
        if record.link.state == Membership::Unused {
            return Ok(());
        }
        let link = Link { state: Membership::Unused, ..record.link };
        self.datapath.write_link(index, link)?;
        record.link = link;
        Ok(())
    }

    /// Clears what no packet can be using any more.
    fn clear_what_went(&mut self) -> Result<(), DatapathError> {
        if !self.programmed.has_retired() {
            return Ok(());
        }
        if !self.only_flows_unchecked() {
            self.datapath.grace_period()?;
        }
        let owners = self.programmed.flow_owners();
        self.datapath.retain_flows(&|owner| owners.contains(&owner))?;
        self.programmed.flows_unchecked = false;
        for (address, number) in self.programmed.retired_backends.clone() {
            if let Some(service) = self.programmed.services.get_mut(&address) {
                if let Some(index) = service.record.range.record(number) {
                    self.datapath.write_backend(index, None)?;
                }
                service.backends.remove(&number);
            }
            self.programmed.retired_backends.remove(&(address, number));
        }
        for (base, limit) in self.programmed.retired_ranges.clone() {
            self.clear_records(base, limit)?;
            self.programmed.retired_ranges.remove(&base);
        }
        for (id, service) in self.programmed.retired.clone() {
            if let Some(service) = service {
                self.clear_backends(service.record.range, &service.backends)?;
            }
            self.datapath.clear_service(id)?;
            self.programmed.retired.remove(&id);
        }
        Ok(())
    }

    fn only_flows_unchecked(&self) -> bool {
        self.programmed.retired.is_empty()
            && self.programmed.retired_backends.is_empty()
            && self.programmed.retired_ranges.is_empty()
    }

    fn clear_records(&mut self, base: u32, limit: u32) -> Result<(), DatapathError> {
        for record in base + 1..base + limit {
            self.datapath.write_backend(record, None)?;
        }
        Ok(())
    }

    fn clear_backends(
        &mut self,
        range: RecordRange,
        backends: &BTreeMap<u16, BackendRecord>,
    ) -> Result<(), DatapathError> {
        for record in backends.keys().filter_map(|&number| range.record(number)) {
            self.datapath.write_backend(record, None)?;
        }
        Ok(())
    }
}
