//! The operations of [`Datapath`] on pinned maps.

use super::*;

impl Datapath for Kernel {
    fn max_services(&self) -> u16 {
        (self.sizes.services - 1) as u16
    }

    fn max_records(&self) -> u32 {
        self.sizes.records - 1
    }

    fn adopt(&self) -> Result<Adopted, DatapathError> {
        let mut services: BTreeMap<u16, AdoptedService> = BTreeMap::new();
        let mut shared = BTreeSet::new();
        let mut stray_addresses = Vec::new();
        for (address, id) in self.bindings()? {
            let adopted = self.adopt_service(id, address)?;
            match (adopted, services.entry(id)) {
                (Some(service), Entry::Vacant(vacant)) => {
                    vacant.insert(service);
                }
                (None, _) => stray_addresses.push(address),
                (Some(_), Entry::Occupied(_)) => {
                    shared.insert(id);
                    stray_addresses.push(address);
                }
            }
        }
        for id in shared {
            stray_addresses.extend(services.remove(&id).map(|service| service.record.address));
        }
        Ok(Adopted {
            stray_ids: self.stray_ids(&services)?,
            stray_records: self.stray_records(&services),
            services: services.into_values().collect(),
            stray_addresses,
            nat_sources: self.read_nat_sources(),
            addresses: self.read_addresses()?,
            address_policy: addresses::policy_of(self.node.get(0).policies),
            admission: self.read_admission()?,
            egress: self.read_egress(),
            last_service_id: u16::try_from(self.node.get(0).last_service_id).unwrap_or(0),
        })
    }

    fn write_service(&mut self, id: u16, record: &ServiceRecord) -> Result<(), DatapathError> {
        let index = self.service_index(id)?;
        self.services.set(index, &record.to_raw());
        self.writes += 1;
        Ok(())
    }

    fn write_policy(&mut self, id: u16, record: &ServiceRecord) -> Result<(), DatapathError> {
        let index = self.service_index(id)?;
        self.services.set_word(index, POLICY_OFFSET, record.policy_word());
        self.writes += 1;
        Ok(())
    }

    fn move_service(&mut self, id: u16, range: RecordRange) -> Result<(), DatapathError> {
        let index = self.service_index(id)?;
        let offset = offset_of!(types::service, backends_base);
        self.services.set_word(index, offset, ServiceRecord::range_word(range));
        self.writes += 1;
        Ok(())
    }

    fn clear_service(&mut self, id: u16) -> Result<(), DatapathError> {
        let index = self.service_index(id)?;
        self.delete(|kernel| &kernel.maps.tables, &u32::from(id).to_ne_bytes())
            .map_err(|error| DatapathError::system(format!("remove table {id}"), error))?;
        self.services.set(index, &types::service::default());
        write_counters(&self.maps.ledger, id.into(), &types::ledger::default())?;
        self.writes += 1;
        Ok(())
    }

    fn set_last_service_id(&mut self, id: u16) -> Result<(), DatapathError> {
        let mut settings = self.node.get(0);
        settings.last_service_id = id.into();
        self.node.set(0, &settings);
        self.writes += 1;
        Ok(())
    }

    fn write_admission(&mut self, id: u16, record: &AdmissionRecord) -> Result<(), DatapathError> {
        self.replace_admission(id, record)
    }

    fn write_sources(&mut self, id: u16, ipv6: bool, list: Option<&SourceList>) -> Result<(), DatapathError> {
        self.replace_sources(id, ipv6, list)
    }

    fn set_egress(&mut self, interface: u32, egress: Option<Egress>) -> Result<(), DatapathError> {
        let key = interface.to_ne_bytes();
        let done = match egress {
            Some(egress) => {
                let raw = egress_to_raw(egress);
                self.maps.egress.update(&key, PlainData::bytes(&raw), MapFlags::ANY)
            }
            None => self.maps.egress.delete(&key),
        };
        match done {
            Err(error) if error.kind() != libbpf_rs::ErrorKind::NotFound => {
                Err(DatapathError::system(format!("say how frames leave by interface {interface}"), error))
            }
            _ => {
                self.writes += 1;
                Ok(())
            }
        }
    }

    fn outer_settings(&self) -> OuterSettings {
        outer_settings_from(&self.node.get(0))
    }

    fn set_outer_settings(&mut self, settings: OuterSettings) -> Result<(), DatapathError> {
        let mut raw = self.node.get(0);
        raw.outer_spread_v4 = settings.spread_v4.to_be();
        raw.outer_spread_v6 = address_words(Ipv6Addr::from(settings.spread_v6).into());
        raw.gue_port = settings.gue_port.to_be();
        self.node.set(0, &raw);
        self.writes += 1;
        Ok(())
    }

    fn bind(&mut self, address: ServiceAddress, id: u16) -> Result<(), DatapathError> {
        let Some(port) = address.ports.as_single() else {
            return self.change_ranges(address, |line| line.insert(address.ports, id.into()));
        };
        let key = EndpointKey::new(address.address, port, address.protocol);
        self.update(|kernel| kernel.service_map(&key), key.bytes(), id.into())
            .map_err(|error| DatapathError::system(format!("lead {address} to service {id}"), error))
    }

    fn unbind(&mut self, address: ServiceAddress) -> Result<(), DatapathError> {
        let Some(port) = address.ports.as_single() else {
            return self.change_ranges(address, |line| {
                line.remove(address.ports);
                true
            });
        };
        let key = EndpointKey::new(address.address, port, address.protocol);
        self.delete(|kernel| kernel.service_map(&key), key.bytes())
            .map_err(|error| DatapathError::system(format!("remove the address {address}"), error))
    }

    fn set_address(
        &mut self,
        address: IpAddr,
        services: Option<AddressServices>,
    ) -> Result<(), DatapathError> {
        let key = addresses::key(address);
        let done = match services {
            Some(services) => {
                let value = services.to_raw();
                let map = &self.maps.addresses;
                map.update(key.bytes(), value.bytes(), MapFlags::ANY).map(|()| self.writes += 1)
            }
            None => self.delete(|kernel| &kernel.maps.addresses, key.bytes()),
        };
        done.map_err(|error| DatapathError::system(format!("tell which services {address} has"), error))
    }

    fn set_address_policy(&mut self, policy: AddressPolicy) -> Result<(), DatapathError> {
        let mut settings = self.node.get(0);
        settings.policies = addresses::policy_bits(policy);
        self.node.set(0, &settings);
        self.writes += 1;
        Ok(())
    }

    fn write_backend(&mut self, record: u32, backend: Option<&BackendRecord>) -> Result<(), DatapathError> {
        let index = self.record_index(record)?;
        self.backends.set(index, &backend.map(BackendRecord::to_raw).unwrap_or_default());
        if backend.is_none() {
            write_counters(&self.maps.backend_counters, record, &types::backend_counters::default())?;
        }
        self.writes += 1;
        Ok(())
    }

    fn copy_backend_counters(&mut self, from: u32, to: u32) -> Result<(), DatapathError> {
        self.record_index(to)?;
        let BackendCounters { packets, bytes } = self.backend_counters(from)?;
        write_counters(&self.maps.backend_counters, to, &types::backend_counters { packets, bytes })
    }

    fn write_link(&mut self, record: u32, link: Link) -> Result<(), DatapathError> {
        let index = self.record_index(record)?;
        self.backends.set_word(index, offset_of!(types::backend, link), link.to_word());
        self.writes += 1;
        Ok(())
    }

    fn set_nat_source(
        &mut self,
        address: BackendAddress,
        protocol: Protocol,
        present: bool,
    ) -> Result<(), DatapathError> {
        let key = EndpointKey::new(address.address, address.port, protocol);
        let failed = |error| DatapathError::System {
            action: format!("change the NAT source {address}/{protocol}"),
            source: error,
        };
        let flag = types::node_flags::NODE_PORT_KEEPING_SOURCES;
        if present {
            if address.port == 0 {
                self.set_flag(flag, true);
            }
            self.update(|kernel| kernel.nat_source_map(&key), key.bytes(), 1)
                .map_err(|e| failed(e.into()))?;
            self.keeping_sources += usize::from(address.port == 0);
        } else {
            self.delete(|kernel| kernel.nat_source_map(&key), key.bytes()).map_err(|e| failed(e.into()))?;
            self.keeping_sources = self.keeping_sources.saturating_sub(usize::from(address.port == 0));
            if self.keeping_sources == 0 {
                self.set_flag(flag, false);
            }
        }
        Ok(())
    }

    fn publish(&mut self, tables: &[(u16, Vec<Slot>)]) -> Result<(), DatapathError> {
        for batch in tables.chunks(TABLES_PER_BATCH) {
            let mut keys = Vec::with_capacity(batch.len() * 4);
            let mut values = Vec::with_capacity(batch.len() * 4);
            let mut built = Vec::with_capacity(batch.len());
            for (id, slots) in batch {
                self.service_index(*id)?;
                let table = self
                    .build_table(slots)
                    .map_err(|error| DatapathError::system(format!("build table {id}"), error))?;
                keys.extend(u32::from(*id).to_ne_bytes());
                values.extend(table.as_raw_fd().to_ne_bytes());
                built.push(table);
            }
            self.maps
                .tables
                .update_batch(&keys, &values, built.len() as u32, MapFlags::ANY, MapFlags::ANY)
                .map_err(|error| DatapathError::system("publish tables", error))?;
            self.writes += built.len() as u64;
        }
        Ok(())
    }

    fn grace_period(&mut self) -> Result<(), DatapathError> {
        if sys::wait_for_programs() {
            return Ok(());
        }
        /* Replacing an element of a map of maps waits as well; element 0 is there for that. */
        let table = self.maps.no_table.as_fd().as_raw_fd().to_ne_bytes();
        self.maps
            .tables
            .update(&0u32.to_ne_bytes(), &table, MapFlags::ANY)
            .map_err(|error| DatapathError::system("wait for packets in flight", error))
    }

    fn retain_flows(&mut self, wanted: &dyn Fn(FlowOwner) -> bool) -> Result<u64, DatapathError> {
        let lifetimes = self.node.get(0).flow_lifetime;
        let now = current_tick()?;
        let mut removed = 0;
        for index in 0..self.flows.len() {
            let bucket = self.flows.get(index);
            for (way, flow) in bucket.flows.iter().enumerate().filter(|(_, flow)| flow.owner != 0) {
                let unwanted = !wanted(FlowOwner::from_raw(flow.owner));
                if !unwanted && !is_dead(flow, now, &lifetimes) {
                    continue;
                }
                let offset = way * size_of::<types::flow>() + offset_of!(types::flow, owner);
                /* A packet may have written another flow here meanwhile: that one stays. */
                let replaced = self.flows.replace_word(index, offset, owner_word(flow), 0);
                removed += u64::from(replaced && unwanted);
            }
        }
        self.writes += removed;
        Ok(removed)
    }

    fn count_flows(&self) -> Result<u64, DatapathError> {
        let used = |index| self.flows.get(index).flows.iter().filter(|flow| flow.owner != 0).count() as u64;
        Ok((0..self.flows.len()).map(used).sum())
    }

    fn flow_capacity(&self) -> (u64, u64) {
        let buckets = self.flows.len() as u64;
        (buckets * FLOWS_PER_BUCKET as u64, buckets * size_of::<types::flow_bucket>() as u64)
    }

    fn ledger(&self, id: u16) -> Result<LedgerCounters, DatapathError> {
        read_ledger(&self.maps.ledger, id.into())
    }

    fn backend_counters(&self, record: u32) -> Result<BackendCounters, DatapathError> {
        let mut total = BackendCounters::default();
        for_each_cpu::<types::backend_counters>(&self.maps.backend_counters, record, |counters| {
            total.packets = total.packets.wrapping_add(counters.packets);
            total.bytes = total.bytes.wrapping_add(counters.bytes);
        })?;
        Ok(total)
    }

    fn writes(&self) -> u64 {
        self.writes
    }
}
