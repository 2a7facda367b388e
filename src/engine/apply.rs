//! Carrying out the difference between what is desired and what is programmed.
//!
//! Order, so that no packet ever meets half of a change:
//!
//! 1. Backends that went down are marked so in their records, whatever else is to change: none of them gets a packet from then
//!    on.
//! 2. Records of new backends are written, and changed next hops, before any table leads to them; services that are new, and
//!    those that replace one of another mode, are written aside.
//! 3. NAT sources are added, so that replies are recognised before there can be any.
//! 4. All changed tables are published in one batch, those of new services among them.
//! 5. Addresses of new services are told, then bound; where a service is replaced, the same store ends the old one.
//! 6. Addresses of services that went are unbound, then told no more; backends that went are marked unused.
//! 7. After a grace period nothing can be using what went: flows that name it are removed, then its records are cleared and its
//!    IDs and numbers are free.
//!
//! The mirror is changed with each step that succeeded, so that repeating the call after a failure does what is left. A service
//! that there is no room for stops none of the others, and is tried again when step 7 has made room.

use std::{collections::BTreeSet, time::Instant};

use super::{Applied, Engine, EngineError};
use crate::{
    datapath::{Datapath, DatapathError, ServiceRecord, Slot},
    maglev::Candidate,
    model::{Service, ServiceAddress},
};

/// Each round waits for a grace period, and the caller waits for all of them.
const MOST_ROUNDS: usize = 16;

/// A service that there was no room for, or not for all of it.
pub(super) type Refusal = (ServiceAddress, EngineError);

/// What is to be published together, and what follows from it.
#[derive(Default)]
pub(super) struct Publication {
    tables: Vec<(u16, Vec<Slot>)>,
    /// What each of the tables is of.
    subjects: Vec<Subject>,
    /// Numbers of backends that no table leads to from then on.
    pub(super) leaving: Vec<(ServiceAddress, u16)>,
}

/// What a table to be published is of.
pub(super) enum Subject {
    /// A service that packets use, and what the table was built for.
    Running(ServiceAddress, Vec<Candidate>),
    /// A service that is to be bound when its table is there.
    New(ServiceAddress),
}

impl Publication {
    pub(super) fn add(&mut self, id: u16, table: Vec<Slot>, subject: Subject) {
        self.tables.push((id, table));
        self.subjects.push(subject);
    }

    fn new_services(&self) -> Vec<ServiceAddress> {
        let new = |subject: &Subject| match subject {
            Subject::New(address) => Some(*address),
            Subject::Running(..) => None,
        };
        self.subjects.iter().filter_map(new).collect()
    }
}

impl<D: Datapath> Engine<D> {
    /// Makes the datapath what is desired. With nothing to change nothing is written.
    ///
    /// # Errors
    /// Where an operation failed: what was done until then stays, and a repeated call does the rest. Or where there was no room
    /// for a service: everything else was done then.
    pub fn apply(&mut self) -> Result<Applied, EngineError> {
        let started = Instant::now();
        let writes = self.datapath.writes();
        let tables = self.tables_published;
        self.change_egress()?;
        self.begin_encapsulation()?;
        /* Lists that cannot be replaced must not keep packets from being led away from a backend that is down. */
        let admission = self.begin_admission();
        let refused = self.apply_in_rounds()?;
        self.finish_encapsulation()?;
        admission?;
        self.finish_admission()?;
        self.dirty = refused.iter().map(|(address, _)| *address).collect();
        let applied = Applied {
            writes: self.datapath.writes() - writes,
            tables: self.tables_published - tables,
            duration: started.elapsed(),
        };
        if applied.writes > 0 {
            self.last_apply = applied.duration;
        }
        EngineError::of_refusals(refused).map_or(Ok(applied), Err)
    }

    fn apply_in_rounds(&mut self) -> Result<Vec<Refusal>, DatapathError> {
        self.unbind_strays()?;
        self.clear_what_was_left()?;
        self.change_address_policy()?;
        let mut addresses = self.dirty.clone();
        let mut round = 1;
        loop {
            let refused = self.change_services(&addresses)?;
            self.take_away_what_went(&addresses)?;
            let made_room = self.clear_what_went()?;
            if refused.is_empty() || !made_room || round == MOST_ROUNDS {
                return Ok(refused);
            }
            addresses = refused.into_iter().map(|(address, _)| address).collect();
            round += 1;
        }
    }

    /// Changes what there is and adds what is new, up to where packets use it. Returns what there was no room for.
    fn change_services(
        &mut self,
        addresses: &BTreeSet<ServiceAddress>,
    ) -> Result<Vec<Refusal>, DatapathError> {
        let wanted: Vec<Service> =
            addresses.iter().filter_map(|address| self.desired.get(address)).cloned().collect();
        let mut refused = Vec::new();
        let mut publication = Publication::default();
        for service in &wanted {
            self.mark_down(service)?;
        }
        for service in &wanted {
            self.admit_to_running(service.address)?;
        }
        let (running, new): (Vec<_>, Vec<_>) =
            wanted.into_iter().partition(|service| self.can_change_into(service));
        let mut changes = Vec::with_capacity(running.len());
        for service in running {
            self.change_policy(&service)?;
            if let Err(error) = self.make_room(&service)? {
                refused.push((service.address, error));
            }
            changes.push(service);
        }
        for service in new {
            match self.make_service(&service, &mut publication)? {
                Ok(()) => {}
                Err(error) => {
                    refused.push((service.address, error));
                    changes.extend(self.as_it_runs(&service));
                }
            }
        }
        self.change_backends(&changes, &mut publication)?;
        self.add_nat_sources(&changes, &publication.new_services())?;
        self.publish_and_bind(publication)?;
        Ok(refused)
    }

    /// True where the service is programmed and differs in nothing that is fixed for its life.
    fn can_change_into(&self, service: &Service) -> bool {
        self.programmed.services.get(&service.address).is_some_and(|old| old.record.mode == service.mode)
    }

    /// What can be made of the service that runs while there is no room to replace it: it follows the health and the weights of
    /// the backends that both have. Where they have none in common it goes on as it is.
    fn as_it_runs(&self, service: &Service) -> Option<Service> {
        let running = self.programmed.services.get(&service.address)?;
        let states = running.states();
        let backends: Vec<_> = service
            .backends
            .iter()
            .filter(|backend| states.contains_key(&backend.address))
            .copied()
            .collect();
        let mode = running.record.mode;
        let serves = !backends.is_empty() || service.backends.is_empty();
        serves.then(|| Service { mode, backends, ..service.clone() })
    }

    /// Changes how a running service's packets are treated, where that is another than before.
    fn change_policy(&mut self, service: &Service) -> Result<(), DatapathError> {
        let Some(running) = self.programmed.services.get_mut(&service.address) else { return Ok(()) };
        let record = ServiceRecord {
            hash: service.hash,
            on_no_backend: service.on_no_backend,
            ..running.record.clone()
        };
        if record == running.record {
            return Ok(());
        }
        self.datapath.write_policy(running.id, &record)?;
        running.record = record;
        Ok(())
    }

    fn publish_and_bind(&mut self, publication: Publication) -> Result<(), DatapathError> {
        let new = publication.new_services();
        let Publication { tables, subjects, leaving } = publication;
        if !tables.is_empty() {
            self.forget_tables(&subjects);
            self.datapath.publish(&tables)?;
            self.tables_published += tables.len() as u64;
        }
        for ((_, table), subject) in tables.into_iter().zip(subjects) {
            let (service, built_for) = match subject {
                Subject::Running(address, candidates) => {
                    (self.programmed.services.get_mut(&address), Some(candidates))
                }
                Subject::New(address) => (self.programmed.unfinished.get_mut(&address), None),
            };
            if let Some(service) = service {
                service.table = table;
                service.built_for = built_for;
            }
        }
        self.programmed.retired_backends.extend(leaving);
        new.into_iter().try_for_each(|address| self.bind(address))
    }

    /// Should a publication fail, some of its tables may have been published and others not.
    fn forget_tables(&mut self, subjects: &[Subject]) {
        for subject in subjects {
            if let Subject::Running(address, _) = subject
                && let Some(service) = self.programmed.services.get_mut(address)
            {
                service.table = Vec::new();
                service.built_for = None;
            }
        }
    }

    fn bind(&mut self, address: ServiceAddress) -> Result<(), DatapathError> {
        self.make_room_for_range(address)?;
        let Some(service) = self.programmed.unfinished.get(&address) else { return Ok(()) };
        let id = service.id;
        self.add_address(address, id)?;
        self.datapath.bind(address, id)?;
        let Some(service) = self.programmed.unfinished.remove(&address) else { return Ok(()) };
        if let Some(replaced) = self.programmed.services.insert(address, service) {
            self.programmed.forget_retired_backends(address);
            self.programmed.retire(replaced);
        }
        Ok(())
    }
}
