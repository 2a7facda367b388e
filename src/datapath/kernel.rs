//! The datapath in the kernel: opening or adopting the pinned maps, and the operations on them.

use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    io,
    mem::offset_of,
    net::{IpAddr, Ipv6Addr},
    os::fd::{AsFd, AsRawFd, OwnedFd},
};

use libbpf_rs::{MapCore, MapFlags, MapHandle};
use nix::time::{ClockId, clock_gettime};

use super::{
    AddressServices, AdmissionRecord, Adopted, AdoptedService, BackendCounters, Datapath, DatapathError,
    OuterSettings, SourceList, addresses,
    ledger::LedgerCounters,
    load::{self, ElementTypes, Maps, Programs, Sizes},
    pins::{LOAD_BALANCER_MAPS, Pins, PinsLock},
    ranges::RangeLine,
    records::{
        BackendRecord, EndpointKey, FLOWS_PER_BUCKET, FlowOwner, Link, POLICY_OFFSET, RecordRange,
        SLOTS_PER_LINE, ServiceRecord, Slot, address_from_words, address_words,
    },
    skeleton::types,
    sys::{self, MappedArray, PlainData},
};
use crate::model::{
    AddressPolicy, BackendAddress, Capacity, Egress, GUE_PORT, Protocol, RANGES_PER_ADDRESS, ServiceAddress,
    VlanTags,
};

/// Tables published by one call to the kernel. Each is an open file until then.
const TABLES_PER_BATCH: usize = 256;

/// Seconds without a packet after which a tracked flow is dead, by `enum flow_kind`.
const FLOW_LIFETIMES: [(types::flow_kind, u64); 5] = [
    (types::flow_kind::FLOW_HALF_OPEN, 30),
    (types::flow_kind::FLOW_ASIDE, 120),
    /* Above the two hours after which hosts probe idle connections. */
    (types::flow_kind::FLOW_ESTABLISHED, 2 * 3600 + 20 * 60),
    (types::flow_kind::FLOW_CLOSING, 60),
    (types::flow_kind::FLOW_DATAGRAM, 120),
];

/// What the kernel's side is opened with.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where things are pinned.
    pub pins: Pins,
    /// Sizes of new maps. Pinned ones keep theirs.
    pub capacity: Capacity,
}

/// The datapath in the kernel.
pub struct Kernel {
    pub(super) pins: Pins,
    pub(super) programs: Programs,
    pub(super) maps: Maps,
    services: MappedArray<types::service>,
    backends: MappedArray<types::backend>,
    flows: MappedArray<types::flow_bucket>,
    pub(super) node: MappedArray<types::node_settings>,
    pub(super) admission: MappedArray<types::admission>,
    table_types: Option<ElementTypes>,
    /// Of lists of IPv4 and of IPv6 sources.
    pub(super) list_types: [Option<ElementTypes>; 2],
    pub(super) sizes: Sizes,
    /// Keys of `ranges_v4` and `ranges_v6`.
    range_lines: usize,
    /// NAT sources with port 0.
    keeping_sources: usize,
    pub(super) writes: u64,
    fresh: bool,
    _lock: PinsLock,
}

impl Kernel {
    /// Adopts what is pinned, or makes and pins new maps. Nothing is attached yet, and what is attached goes on.
    ///
    /// # Errors
    /// Where the pins belong to another process, are of another version or damaged, or the kernel refuses the programs.
    pub fn open(options: &Options) -> Result<Self, DatapathError> {
        let pins = options.pins.clone();
        pins.create()?;
        let lock = pins.lock()?;
        let pinned = pinned_sizes(&pins)?;
        if pinned.is_none() {
            remove_unfinished(&pins)?;
        }
        let sizes = pinned.unwrap_or_else(|| Sizes::from(options.capacity));
        let loaded = load::load(sizes, pinned.map(|_| &pins))?;
        let map_array = |error| DatapathError::system("map an array of the kernel", error);
        let maps = &loaded.maps;
        let mut kernel = Self {
            services: MappedArray::new(maps.services.as_fd(), sizes.services as usize).map_err(map_array)?,
            backends: MappedArray::new(maps.backends.as_fd(), sizes.records as usize).map_err(map_array)?,
            flows: MappedArray::new(maps.flows.as_fd(), sizes.flow_buckets as usize).map_err(map_array)?,
            node: MappedArray::new(maps.node.as_fd(), 1).map_err(map_array)?,
            admission: MappedArray::new(maps.admission.as_fd(), sizes.services as usize)
                .map_err(map_array)?,
            table_types: loaded.table_types,
            list_types: loaded.list_types,
            programs: loaded.programs,
            sizes,
            range_lines: 0,
            keeping_sources: 0,
            writes: 0,
            fresh: pinned.is_none(),
            _lock: lock,
            maps: {
                if pinned.is_none() {
                    pin_maps(&pins, &loaded.maps)?;
                }
                loaded.maps
            },
            pins,
        };
        if pinned.is_none() {
            kernel.initialize()?;
        }
        kernel.range_lines = kernel.maps.ranges_v4.keys().count() + kernel.maps.ranges_v6.keys().count();
        kernel.keeping_sources = kernel.read_nat_sources().iter().filter(|(at, _)| at.port == 0).count();
        Ok(kernel)
    }

    /// True where the configured capacity differs from that of the pinned maps, which is kept.
    pub fn capacity_differs(&self, capacity: Capacity) -> bool {
        Sizes::from(capacity) != self.sizes
    }

    /// Removes the pins of maps that this process made, for when it cannot start after all. Adopted ones stay.
    pub fn abandon(&mut self) {
        if self.fresh
            && let Err(error) = self.pins.remove_load_balancer()
        {
            tracing::warn!("{error}");
        }
    }

    /// Writes the node's settings into new maps. The magic number comes last: it says that everything is there.
    fn initialize(&self) -> Result<(), DatapathError> {
        let mut settings = types::node_settings {
            version: types::layout::LAYOUT_VERSION.0,
            flow_secret: sys::random_words()
                .map_err(|error| DatapathError::system("draw the flow table's secret", error))?,
            flow_buckets: self.sizes.flow_buckets,
            gue_port: GUE_PORT.to_be(),
            ..Default::default()
        };
        for (kind, seconds) in FLOW_LIFETIMES {
            settings.flow_lifetime[kind.0 as usize] = ticks(seconds);
        }
        self.initialize_admission();
        self.node.set(0, &settings);
        settings.magic = types::layout::LAYOUT_MAGIC.0;
        self.node.set(0, &settings);
        Ok(())
    }

    pub(super) fn service_index(&self, id: u16) -> Result<usize, DatapathError> {
        if id == 0 || u32::from(id) >= self.sizes.services {
            return Err(DatapathError::Capacity {
                what: "service",
                index: id.into(),
                limit: u64::from(self.sizes.services) - 1,
                setting: "capacity.services",
            });
        }
        Ok(id.into())
    }

    fn record_index(&self, record: u32) -> Result<usize, DatapathError> {
        if record == 0 || record >= self.sizes.records {
            return Err(DatapathError::Capacity {
                what: "backend record",
                index: record.into(),
                limit: u64::from(self.sizes.records) - 1,
                setting: "capacity.backends",
            });
        }
        Ok(record as usize)
    }

    fn service_map(&self, key: &EndpointKey) -> &MapHandle {
        match key {
            EndpointKey::V4(_) => &self.maps.services_v4,
            EndpointKey::V6(_) => &self.maps.services_v6,
        }
    }

    fn range_map(&self, key: &EndpointKey) -> &MapHandle {
        match key {
            EndpointKey::V4(_) => &self.maps.ranges_v4,
            EndpointKey::V6(_) => &self.maps.ranges_v6,
        }
    }

    fn nat_source_map(&self, key: &EndpointKey) -> &MapHandle {
        match key {
            EndpointKey::V4(_) => &self.maps.nat_sources_v4,
            EndpointKey::V6(_) => &self.maps.nat_sources_v6,
        }
    }

    /// A new table with these slots, not yet visible to packets.
    fn build_table(&self, slots: &[Slot]) -> io::Result<OwnedFd> {
        let lines = slots.len().div_ceil(SLOTS_PER_LINE).max(1);
        let types = self.table_types.as_ref().map(|types| (types.btf.as_fd(), types.key, types.value));
        let table = sys::create_table(lines as u32, types)?;
        let mapped = MappedArray::<types::slot_line>::new(table.as_fd(), lines)?;
        for (index, chunk) in slots.chunks(SLOTS_PER_LINE).enumerate() {
            let mut line = types::slot_line::default();
            for (raw, slot) in line.slots.iter_mut().zip(chunk) {
                *raw = types::slot { current: slot.current, previous: slot.previous };
            }
            mapped.set(index, &line);
        }
        Ok(table)
    }

    /// The slots of the table that service `id` uses; empty where it has none.
    fn read_table(&self, id: u16, slots: u32) -> Result<Vec<Slot>, DatapathError> {
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
    fn bindings(&self) -> Result<Vec<(ServiceAddress, u16)>, DatapathError> {
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

    /// Changes the ranges of ports at the service's address. Packets see the line before or after, never a mix.
    fn change_ranges(
        &mut self,
        address: ServiceAddress,
        change: impl FnOnce(&mut RangeLine) -> bool,
    ) -> Result<(), DatapathError> {
        let key = EndpointKey::new(address.address, 0, address.protocol);
        let failed =
            |error| DatapathError::system(format!("change the port ranges of {}", address.address), error);
        let before = read_ranges(self.range_map(&key), key.bytes())?;
        let mut line = before.clone();
        if !change(&mut line) {
            return Err(DatapathError::TooManyRanges { address, limit: RANGES_PER_ADDRESS });
        }
        if line.is_empty() {
            self.delete(|kernel| kernel.range_map(&key), key.bytes()).map_err(failed)?;
            self.range_lines -= usize::from(!before.is_empty());
            if self.range_lines == 0 {
                self.set_flag(types::node_flags::NODE_PORT_RANGES, false);
            }
            return Ok(());
        }
        self.set_flag(types::node_flags::NODE_PORT_RANGES, true);
        self.range_map(&key).update(key.bytes(), line.to_raw().bytes(), MapFlags::ANY).map_err(failed)?;
        self.range_lines += usize::from(before.is_empty());
        self.writes += 1;
        Ok(())
    }

    /// Sets or clears a flag of the node, where that is a change.
    fn set_flag(&mut self, flag: types::node_flags, set: bool) {
        let mut settings = self.node.get(0);
        let before = settings.flags;
        settings.flags = if set { before | flag.0 as u8 } else { before & !(flag.0 as u8) };
        if settings.flags != before {
            self.node.set(0, &settings);
            self.writes += 1;
        }
    }

    fn read_egress(&self) -> BTreeMap<u32, Egress> {
        let map = &self.maps.egress;
        map.keys()
            .filter_map(|key| {
                let value = map.lookup(&key, MapFlags::ANY).ok()??;
                let index = u32::from_ne_bytes(key.try_into().ok()?);
                Some((index, egress_from_raw(&types::egress::from_bytes(&value)?)))
            })
            .collect()
    }

    fn read_nat_sources(&self) -> BTreeSet<(BackendAddress, Protocol)> {
        let maps = [(&self.maps.nat_sources_v4, false), (&self.maps.nat_sources_v6, true)];
        maps.into_iter()
            .flat_map(|(map, ipv6)| map.keys().map(move |key| (key, ipv6)))
            .filter_map(|(key, ipv6)| EndpointKey::parse(&key, ipv6))
            .map(|(address, port, protocol)| (BackendAddress { address, port }, protocol))
            .collect()
    }

    fn read_addresses(&self) -> Result<BTreeMap<IpAddr, AddressServices>, DatapathError> {
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
    fn adopt_service(
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
    fn stray_ids(&self, known: &BTreeMap<u16, AdoptedService>) -> Result<Vec<u16>, DatapathError> {
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
    fn stray_records(&self, services: &BTreeMap<u16, AdoptedService>) -> Vec<u32> {
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

    fn update(&mut self, map: impl Fn(&Self) -> &MapHandle, key: &[u8], value: u32) -> io::Result<()> {
        map(self).update(key, &value.to_ne_bytes(), MapFlags::ANY).map_err(io::Error::other)?;
        self.writes += 1;
        Ok(())
    }

    fn delete(&mut self, map: impl Fn(&Self) -> &MapHandle, key: &[u8]) -> Result<(), libbpf_rs::Error> {
        match map(self).delete(key) {
            Err(error) if error.kind() != libbpf_rs::ErrorKind::NotFound => Err(error),
            _ => {
                self.writes += 1;
                Ok(())
            }
        }
    }

    /// The ledger of one of the TC programs.
    pub fn hook_ledger(&self, program: &str) -> Result<LedgerCounters, DatapathError> {
        let hook = match program {
            "tc_nat" => types::ledger_hook::LEDGER_HOOK_TC_NAT,
            _ => types::ledger_hook::LEDGER_HOOK_TC_HANDOFF,
        };
        read_ledger(&self.maps.hook_ledger, hook.0)
    }

    /// Runs a loaded program on a frame, as if it had come in by the interface with index `ingress`. Counts in the ledger.
    pub fn run(&self, program: &str, frame: &[u8], ingress: u32) -> Result<sys::RunOutcome, DatapathError> {
        let programs = [&self.programs.xdp_lb, &self.programs.tc_nat, &self.programs.tc_handoff];
        let Some(found) = programs.into_iter().find(|candidate| candidate.name == program) else {
            return Err(DatapathError::system(format!("run {program}"), "there is no such program"));
        };
        sys::run_xdp(found.fd.as_fd(), frame, ingress)
            .map_err(|error| DatapathError::system(format!("run {program} on a frame"), error))
    }
}

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

fn egress_to_raw(egress: Egress) -> types::egress {
    match egress {
        Egress::Device(device, tags) => types::egress {
            device,
            tags: tags.tci.map(u16::to_be),
            service_tag: tags.service.into(),
            ..Default::default()
        },
        Egress::Kernel => types::egress::default(),
    }
}

fn egress_from_raw(raw: &types::egress) -> Egress {
    if raw.device == 0 {
        return Egress::Kernel;
    }
    Egress::Device(raw.device, VlanTags { tci: raw.tags.map(u16::from_be), service: raw.service_tag != 0 })
}

/// What outer headers have in common, as the node's settings say it.
fn outer_settings_from(raw: &types::node_settings) -> OuterSettings {
    let spread_v6 = match address_from_words(raw.outer_spread_v6, true) {
        IpAddr::V6(bits) => bits.to_bits(),
        IpAddr::V4(_) => 0,
    };
    OuterSettings {
        spread_v4: u32::from_be(raw.outer_spread_v4),
        spread_v6,
        gue_port: u16::from_be(raw.gue_port),
    }
}

impl From<Capacity> for Sizes {
    fn from(capacity: Capacity) -> Self {
        /* Twice the room: a bucket that is full refuses flows long before the whole table is. */
        let buckets = (u64::from(capacity.flows) * 2).div_ceil(FLOWS_PER_BUCKET as u64).next_power_of_two();
        Self {
            services: capacity.services + 1,
            records: capacity.backends + 1,
            flow_buckets: buckets.min(1 << 31) as u32,
            fragments: capacity.fragments,
        }
    }
}

/// The second word of a flow, as it lies in memory.
fn owner_word(flow: &types::flow) -> u64 {
    u64::from(flow.owner)
        | u64::from(flow.tick) << 32
        | u64::from(flow.kind) << 48
        | u64::from(flow.pad) << 56
}

/// True where the flow has been silent for longer than its kind may be. A tick slightly in the future is another CPU's now.
fn is_dead(flow: &types::flow, now: u16, lifetimes: &[u16]) -> bool {
    const AHEAD: u16 = 16;
    let age = now.wrapping_sub(flow.tick);
    age < u16::MAX - AHEAD && age > lifetimes.get(usize::from(flow.kind)).copied().unwrap_or(0)
}

/// The time as the packet path writes it into flows.
fn current_tick() -> Result<u16, DatapathError> {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC_COARSE)
        .map_err(|error| DatapathError::system("read the clock", error))?;
    let nanoseconds = now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64;
    Ok((nanoseconds >> types::flow_time::TICK_SHIFT.0) as u16)
}

/// Seconds in ticks of the flow table, rounded up.
fn ticks(seconds: u64) -> u16 {
    let nanoseconds = u128::from(seconds) * 1_000_000_000;
    nanoseconds.div_ceil(1 << types::flow_time::TICK_SHIFT.0).min(u128::from(u16::MAX / 2)) as u16
}

fn for_each_cpu<T: PlainData>(
    map: &MapHandle,
    key: u32,
    mut action: impl FnMut(T),
) -> Result<(), DatapathError> {
    let values = map
        .lookup_percpu(&key.to_ne_bytes(), MapFlags::ANY)
        .map_err(|error| DatapathError::system("read counters", error))?;
    for bytes in values.unwrap_or_default() {
        if let Some(value) = bytes.get(..size_of::<T>()).and_then(T::from_bytes) {
            action(value);
        }
    }
    Ok(())
}

/// The ranges of ports under a key of `ranges_v4` or `ranges_v6`; none where it is not there.
fn read_ranges(map: &MapHandle, key: &[u8]) -> Result<RangeLine, DatapathError> {
    let value = map
        .lookup(key, MapFlags::ANY)
        .map_err(|error| DatapathError::system("read the port ranges of services", error))?;
    let raw = value.and_then(|bytes| types::port_ranges::from_bytes(&bytes));
    Ok(raw.map(|raw| RangeLine::from_raw(&raw)).unwrap_or_default())
}

/// Makes counters add up to `total` over all CPUs. What packets count meanwhile may be lost.
fn write_counters<T: PlainData>(map: &MapHandle, key: u32, total: &T) -> Result<(), DatapathError> {
    let failed = |error| DatapathError::system("write counters", error);
    let cpus = libbpf_rs::num_possible_cpus().map_err(failed)?;
    let mut values = vec![T::default().bytes().to_vec(); cpus];
    if let Some(first) = values.first_mut() {
        *first = total.bytes().to_vec();
    }
    map.update_percpu(&key.to_ne_bytes(), &values, MapFlags::ANY).map_err(failed)
}

pub(super) fn read_ledger(map: &MapHandle, key: u32) -> Result<LedgerCounters, DatapathError> {
    let mut counters = LedgerCounters::default();
    for_each_cpu::<types::ledger>(map, key, |block| counters.add(&block))?;
    Ok(counters)
}

/// Sizes of the pinned maps, if a whole set of a layout that we know is pinned.
fn pinned_sizes(pins: &Pins) -> Result<Option<Sizes>, DatapathError> {
    let node = pins.map("node");
    if !node.exists() {
        return Ok(None);
    }
    let settings = read_settings(pins)?;
    if settings.magic == 0 {
        return Ok(None);
    }
    let known = types::layout::LAYOUT_VERSION.0;
    if settings.magic != types::layout::LAYOUT_MAGIC.0 || settings.version != known {
        let found = if settings.magic == types::layout::LAYOUT_MAGIC.0 {
            settings.version.to_string()
        } else {
            "unknown to tidegate".to_owned()
        };
        return Err(DatapathError::Layout { path: pins.root().to_owned(), found, known });
    }
    let entries = |name: &str| -> Result<u32, DatapathError> {
        let path = pins.map(name);
        let map = MapHandle::from_pinned_path(&path).map_err(|error| {
            DatapathError::system(format!("open the map pinned at {}", path.display()), error)
        })?;
        Ok(map.max_entries())
    };
    Ok(Some(Sizes {
        services: entries("services")?,
        records: entries("backends")?,
        flow_buckets: entries("flows")?,
        fragments: entries("fragments")?,
    }))
}

fn read_settings(pins: &Pins) -> Result<types::node_settings, DatapathError> {
    let path = pins.map("node");
    let failed = |error| DatapathError::system(format!("read the map pinned at {}", path.display()), error);
    let map = MapHandle::from_pinned_path(&path).map_err(failed)?;
    let value = map.lookup(&0u32.to_ne_bytes(), MapFlags::ANY).map_err(failed)?.unwrap_or_default();
    types::node_settings::from_bytes(&value).ok_or(DatapathError::Mismatch {
        path,
        what: "value size",
        found: value.len() as u64,
        wanted: size_of::<types::node_settings>() as u64,
    })
}

/// Removes what a process left that died while it made the maps. Nothing can be attached to those.
fn remove_unfinished(pins: &Pins) -> Result<(), DatapathError> {
    pins.remove_load_balancer()
}

fn pin_maps(pins: &Pins, maps: &Maps) -> Result<(), DatapathError> {
    for name in LOAD_BALANCER_MAPS.iter().rev() {
        let (path, map) = (pins.map(name), maps.by_name(name));
        sys::pin(map.as_fd(), &path)
            .map_err(|error| DatapathError::system(format!("pin {}", path.display()), error))?;
    }
    Ok(())
}
