//! Writing new services, aside from what packets use.

use std::collections::BTreeMap;

use super::{
    Engine, EngineError,
    apply::{Publication, Subject},
    goal,
    programmed::ProgrammedService,
};
use crate::{
    datapath::{Datapath, DatapathError, ServiceRecord},
    maglev,
    model::{Service, ServiceAddress, backend_records},
};

impl<D: Datapath> Engine<D> {
    /// Writes a service that nothing leads to yet, and adds its table to what is to be published. The inner error says that
    /// there is no room for it: nothing was changed then.
    pub(super) fn make_service(
        &mut self,
        service: &Service,
        publication: &mut Publication,
    ) -> Result<Result<(), EngineError>, DatapathError> {
        if let Err(error) = self.begin_service(service)? {
            return Ok(Err(error));
        }
        let Some(begun) = self.programmed.unfinished.get(&service.address) else { return Ok(Ok(())) };
        let (id, range) = (begun.id, begun.record.range);
        self.admit_to(id, service.address)?;
        let goal = self.goal(service, None, range.limit);
        let Some(begun) = self.programmed.unfinished.get_mut(&service.address) else { return Ok(Ok(())) };
        let needless: Vec<u16> =
            begun.backends.keys().filter(|number| !goal.backends.contains_key(number)).copied().collect();
        for number in needless {
            if let Some(index) = range.record(number) {
                self.datapath.write_backend(index, None)?;
            }
            begun.backends.remove(&number);
        }
        for (number, record) in goal.backends {
            let Some(index) = range.record(number) else { continue };
            begun.backends.insert(number, record.clone());
            self.datapath.write_backend(index, Some(&record))?;
        }
        self.datapath.write_service(begun.id, &begun.record)?;
        let table = goal::table(begun.record.slots, &goal.candidates);
        publication.add(begun.id, table, Subject::New(service.address));
        Ok(Ok(()))
    }

    /// Finds an ID and records for a service: those of an earlier attempt where they fit.
    fn begin_service(&mut self, service: &Service) -> Result<Result<(), EngineError>, DatapathError> {
        let slots = maglev::table_size(service.max_backends);
        let needed = backend_records(service.max_backends);
        if let Some(begun) = self.programmed.unfinished.get_mut(&service.address) {
            if begun.record.slots == slots && begun.record.range.limit == needed {
                begun.record.mode = service.mode;
                begun.record.hash = service.hash;
                self.programmed.nat_sources_unchecked = true;
                return Ok(Ok(()));
            }
            if let Some(begun) = self.programmed.unfinished.remove(&service.address) {
                self.programmed.retire(begun);
            }
        }
        let name = service.name.clone();
        let Some(id) = self.programmed.ids.next() else {
            let limit = self.datapath.max_services();
            return Ok(Err(EngineError::NoServiceId { service: name, limit }));
        };
        let Some(range) = self.programmed.records.allocate(needed) else {
            let limit = self.datapath.max_records();
            return Ok(Err(EngineError::NoRecords { service: name, needed, limit }));
        };
        if let Err(error) = self.datapath.set_last_service_id(id) {
            self.programmed.records.release(range.base, range.limit);
            return Err(error);
        }
        self.programmed.ids.give_out(id);
        let record = ServiceRecord {
            address: service.address,
            mode: service.mode,
            hash: service.hash,
            on_no_backend: service.on_no_backend,
            slots,
            range,
        };
        let begun =
            ProgrammedService { id, record, table: Vec::new(), backends: BTreeMap::new(), built_for: None };
        /* Before anything is written: should a step fail, this says what is to be cleared or used again. */
        self.programmed.unfinished.insert(service.address, begun);
        Ok(Ok(()))
    }

    /// Adds the NAT sources of these services.
    pub(super) fn add_nat_sources(
        &mut self,
        running: &[Service],
        new: &[ServiceAddress],
    ) -> Result<(), DatapathError> {
        let running = running.iter().filter_map(|service| self.programmed.services.get(&service.address));
        let new = new.iter().filter_map(|address| self.programmed.unfinished.get(address));
        let nat = running.chain(new).filter(|service| service.record.mode.translates());
        for (address, protocol) in nat.flat_map(ProgrammedService::nat_sources) {
            if !self.programmed.nat_sources.contains(&(address, protocol)) {
                self.datapath.set_nat_source(address, protocol, true)?;
                self.programmed.nat_sources.insert((address, protocol));
            }
        }
        Ok(())
    }
}
