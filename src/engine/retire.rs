//! Taking away what went, and clearing it when no packet can be using it.

use std::collections::BTreeSet;

use super::{Engine, programmed::Remains};
use crate::{
    datapath::{Datapath, DatapathError, Link, Membership},
    model::{RANGES_PER_ADDRESS, ServiceAddress},
};

impl<D: Datapath> Engine<D> {
    /// Unbinds addresses that lead to no sound service of their own. First of all: packets for them go astray.
    pub(super) fn unbind_strays(&mut self) -> Result<(), DatapathError> {
        while let Some(&address) = self.programmed.stray_addresses.first() {
            self.datapath.unbind(address)?;
            self.programmed.stray_addresses.remove(&address);
        }
        Ok(())
    }

    /// Clears, once in the life of a process, what an earlier one left: before any ID, number or record is given out, so that none
    /// of them is one that something still names.
    pub(super) fn clear_what_was_left(&mut self) -> Result<(), DatapathError> {
        if !self.programmed.just_adopted {
            return Ok(());
        }
        self.correct_all_addresses()?;
        if !self.clear_what_went()? {
            self.sweep_flows()?;
        }
        self.programmed.just_adopted = false;
        Ok(())
    }

    /// Removes dead flows, and such as name what does not exist.
    ///
    /// # Errors
    /// Where the flow table cannot be read or written.
    pub fn sweep_flows(&mut self) -> Result<(), DatapathError> {
        let owners = self.programmed.flow_owners();
        self.datapath.retain_flows(&|owner| owners.contains(owner))?;
        Ok(())
    }

    /// Takes from packets what is not desired any more among these services, and all backends that went.
    pub(super) fn take_away_what_went(
        &mut self,
        addresses: &BTreeSet<ServiceAddress>,
    ) -> Result<(), DatapathError> {
        for &address in addresses {
            if !self.desired.contains_key(&address) {
                self.end_service(address)?;
            }
        }
        self.correct_addresses(addresses.iter().map(|service| service.address).collect())?;
        /* Those that are desired were finished before this. */
        while let Some((_, service)) = self.programmed.unfinished.pop_first() {
            self.programmed.retire(service);
        }
        for (address, number) in self.programmed.retired_backends.clone() {
            self.mark_unused(address, number)?;
        }
        self.remove_nat_sources()
    }

    fn end_service(&mut self, address: ServiceAddress) -> Result<(), DatapathError> {
        if !self.programmed.services.contains_key(&address) {
            return Ok(());
        }
        self.datapath.unbind(address)?;
        if let Some(service) = self.programmed.services.remove(&address) {
            self.programmed.retire(service);
        }
        Ok(())
    }

    /// Ranges of ports that went make room for a new one where there is none left; their packets are for no service until the
    /// new one is bound, which is microseconds. Elsewhere they stay until then.
    pub(super) fn make_room_for_range(&mut self, new: ServiceAddress) -> Result<(), DatapathError> {
        let shares = |other: &&ServiceAddress| {
            other.ports.is_range() && ServiceAddress { ports: new.ports, ..**other } == new
        };
        let line: Vec<ServiceAddress> = self.programmed.services.keys().filter(shares).copied().collect();
        if !new.ports.is_range() || line.contains(&new) || line.len() < RANGES_PER_ADDRESS {
            return Ok(());
        }
        for address in line {
            if !self.desired.contains_key(&address) {
                self.end_service(address)?;
            }
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
        self.programmed.nat_sources_unchecked = true;
        Ok(())
    }

    fn remove_nat_sources(&mut self) -> Result<(), DatapathError> {
        if !self.programmed.nat_sources_unchecked {
            return Ok(());
        }
        let needed = self.programmed.needed_nat_sources();
        let needless: Vec<_> = self.programmed.nat_sources.difference(&needed).copied().collect();
        for (address, protocol) in needless {
            self.datapath.set_nat_source(address, protocol, false)?;
            self.programmed.nat_sources.remove(&(address, protocol));
        }
        self.programmed.nat_sources_unchecked = false;
        Ok(())
    }

    /// Clears what no packet can be using any more. Returns whether there was anything.
    pub(super) fn clear_what_went(&mut self) -> Result<bool, DatapathError> {
        if !self.programmed.has_retired() {
            return Ok(false);
        }
        self.datapath.grace_period()?;
        self.sweep_flows()?;
        self.clear_retired_backends()?;
        self.clear_records()?;
        self.clear_retired_services()?;
        Ok(true)
    }

    fn clear_retired_backends(&mut self) -> Result<(), DatapathError> {
        while let Some(&(address, number)) = self.programmed.retired_backends.first() {
            if let Some(service) = self.programmed.services.get_mut(&address) {
                if let Some(index) = service.record.range.record(number) {
                    self.datapath.write_backend(index, None)?;
                }
                service.backends.remove(&number);
            }
            self.programmed.retired_backends.remove(&(address, number));
        }
        Ok(())
    }

    /// Clears records that belong to no service.
    fn clear_records(&mut self) -> Result<(), DatapathError> {
        while let Some((&base, &limit)) = self.programmed.retired_ranges.first_key_value() {
            for record in base + 1..base + limit {
                self.datapath.write_backend(record, None)?;
            }
            self.programmed.retired_ranges.remove(&base);
            self.programmed.records.release(base, limit);
        }
        while let Some(&record) = self.programmed.stray_records.first() {
            self.datapath.write_backend(record, None)?;
            self.programmed.stray_records.remove(&record);
        }
        Ok(())
    }

    fn clear_retired_services(&mut self) -> Result<(), DatapathError> {
        while let Some((&id, remains)) = self.programmed.retired.first_key_value() {
            if let Some(Remains { range, numbers }) = remains {
                for record in numbers.iter().filter_map(|&number| range.record(number)) {
                    self.datapath.write_backend(record, None)?;
                }
            }
            self.forget_admission(id)?;
            self.datapath.clear_service(id)?;
            if let Some((_, Some(Remains { range, .. }))) = self.programmed.retired.pop_first() {
                self.programmed.records.release(range.base, range.limit);
            }
            self.programmed.ids.release(id);
        }
        Ok(())
    }
}
