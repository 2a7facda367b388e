//! Reading what is pinned: services, tables, addresses, and what belongs to none of them.

use super::*;

impl Kernel {
    /// The slots of the table that service `id` uses; empty where it has none.
    pub(super) fn read_table(&self, id: u16, slots: u32) -> Result<Vec<Slot>, DatapathError> {
        let failed = |error: libbpf_rs::Error| DatapathError::system(format!("read table {id}"), error);
        let key = u32::from(id).to_ne_bytes();
        let Some(value) = self.maps.tables.lookup(&key, MapFlags::ANY).map_err(failed)? else {
            return Ok(Vec::new());
        };
        let map_id = u32::from_ne_bytes(value.try_into().unwrap_or_default());
        let table = MapHandle::from_map_id(map_id).map_err(|error| match error.kind() {
            libbpf_rs::ErrorKind::PermissionDenied => DatapathError::system(
                format!("take over table {id} (a map is opened by its ID with CAP_SYS_ADMIN only)"),
                error,
            ),
            _ => failed(error),
        })?;
        let lines = table.max_entries() as usize;
        if lines * SLOTS_PER_LINE < slots as usize {
            return Ok(Vec::new());
        }
        let mapped = MappedArray::<types::slot_line>::new(table.as_fd(), lines)
            .map_err(|error| DatapathError::system(format!("map table {id}"), error))?;
        let slot = |raw: &types::slot| Slot { current: raw.current, previous: raw.previous };
        let all = (0..lines).flat_map(|line| mapped.get(line).slots.map(|raw| slot(&raw)));
        Ok(all.take(slots as usize).collect())
    }

    /// Every address that leads to a service, with the service's ID.
    pub(super) fn bindings(&self) -> Result<Vec<(ServiceAddress, u16)>, DatapathError> {
        let mut bindings = Vec::new();
        for (map, ipv6) in [(&self.maps.services_v4, false), (&self.maps.services_v6, true)] {
            for key in map.keys() {
                let value = map
                    .lookup(&key, MapFlags::ANY)
                    .map_err(|error| DatapathError::system("read the service addresses", error))?;
                let id = value.and_then(|value| Some(u32::from_ne_bytes(value.try_into().ok()?)));
                if let (Some((address, port, protocol)), Some(id)) = (EndpointKey::parse(&key, ipv6), id) {
                    let id = u16::try_from(id).unwrap_or(0);
                    bindings.push((ServiceAddress::new(address, port, protocol), id));
                }
            }
        }
        for (map, ipv6) in [(&self.maps.ranges_v4, false), (&self.maps.ranges_v6, true)] {
            for key in map.keys() {
                let Some((address, _, protocol)) = EndpointKey::parse(&key, ipv6) else { continue };
                for (ports, id) in read_ranges(map, &key)?.iter() {
                    let id = u16::try_from(id).unwrap_or(0);
                    bindings.push((ServiceAddress { address, ports, protocol }, id));
                }
            }
        }
        bindings.sort();
        Ok(bindings)
    }

    pub(super) fn read_egress(&self) -> BTreeMap<u32, Egress> {
        let map = &self.maps.egress;
        map.keys()
            .filter_map(|key| {
                let value = map.lookup(&key, MapFlags::ANY).ok()??;
                let index = u32::from_ne_bytes(key.try_into().ok()?);
                Some((index, egress_from_raw(&types::egress::from_bytes(&value)?)))
            })
            .collect()
    }

    pub(super) fn read_nat_sources(&self) -> BTreeSet<(BackendAddress, Protocol)> {
        let maps = [(&self.maps.nat_sources_v4, false), (&self.maps.nat_sources_v6, true)];
        maps.into_iter()
            .flat_map(|(map, ipv6)| map.keys().map(move |key| (key, ipv6)))
            .filter_map(|(key, ipv6)| EndpointKey::parse(&key, ipv6))
            .map(|(address, port, protocol)| (BackendAddress { address, port }, protocol))
            .collect()
    }

    pub(super) fn read_addresses(&self) -> Result<BTreeMap<IpAddr, AddressServices>, DatapathError> {
        let mut found = BTreeMap::new();
        for key in self.maps.addresses.keys() {
            let value = self
                .maps
                .addresses
                .lookup(&key, MapFlags::ANY)
                .map_err(|error| DatapathError::system("read the addresses of services", error))?;
            let services = value.and_then(|value| AddressServices::from_bytes(&value));
            if let (Some(address), Some(services)) = (addresses::address_of_key(&key), services) {
                found.insert(address, services);
            }
        }
        Ok(found)
    }

    /// The service behind an ID, if its record is sound and belongs to `address`.
    pub(super) fn adopt_service(
        &self,
        id: u16,
        address: ServiceAddress,
    ) -> Result<Option<AdoptedService>, DatapathError> {
        let Ok(index) = self.service_index(id) else { return Ok(None) };
        let Some(record) = ServiceRecord::from_raw(&self.services.get(index)) else { return Ok(None) };
        let end = u64::from(record.range.base) + u64::from(record.range.limit);
        if record.address != address || end > u64::from(self.sizes.records) {
            return Ok(None);
        }
        let inner_ipv6 = address.address.is_ipv6();
        let mut backends = Vec::new();
        for number in 1..record.range.limit {
            let raw = self.backends.get((record.range.base + number) as usize);
            if let (Ok(number), Some(backend)) =
                (u16::try_from(number), BackendRecord::from_raw(&raw, inner_ipv6))
            {
                backends.push((number, backend));
            }
        }
        let table = self.read_table(id, record.slots)?;
        Ok(Some(AdoptedService { id, record, table, backends }))
    }

    /// IDs other than `known` that something is left of.
    pub(super) fn stray_ids(&self, known: &BTreeMap<u16, AdoptedService>) -> Result<Vec<u16>, DatapathError> {
        let mut strays = Vec::new();
        for id in 1..=self.max_services() {
            if known.contains_key(&id) {
                continue;
            }
            let has_record = PlainData::bytes(&self.services.get(id.into())).iter().any(|&byte| byte != 0);
            let has_table = self
                .maps
                .tables
                .lookup(&u32::from(id).to_ne_bytes(), MapFlags::ANY)
                .map_err(|error| DatapathError::system(format!("read table {id}"), error))?
                .is_some();
            if has_record || has_table {
                strays.push(id);
            }
        }
        Ok(strays)
    }

    /// Backend records that hold something and belong to none of these services: what a process left that died while it wrote.
    pub(super) fn stray_records(&self, services: &BTreeMap<u16, AdoptedService>) -> Vec<u32> {
        let adopted: BTreeSet<u32> = services
            .values()
            .flat_map(|service| {
                let range = service.record.range;
                service.backends.iter().filter_map(move |(number, _)| range.record(*number))
            })
            .collect();
        let is_written =
            |record: u32| PlainData::bytes(&self.backends.get(record as usize)).iter().any(|&byte| byte != 0);
        (1..self.sizes.records).filter(|&record| is_written(record) && !adopted.contains(&record)).collect()
    }
}
