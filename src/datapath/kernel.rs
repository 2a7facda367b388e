//! The datapath in the kernel: opening or adopting the pinned maps, and the operations on them.

mod adopt;
mod counters;
mod operations;
mod pinned;

use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    io,
    mem::offset_of,
    net::{IpAddr, Ipv6Addr},
    os::fd::{AsFd, AsRawFd, OwnedFd},
};

use libbpf_rs::{MapCore, MapFlags, MapHandle};
use nix::time::{ClockId, clock_gettime};

pub(super) use counters::read_ledger;
use counters::{for_each_cpu, write_counters};
use pinned::{pin_maps, pinned_sizes, remove_unfinished};

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

/// The ranges of ports under a key of `ranges_v4` or `ranges_v6`; none where it is not there.
fn read_ranges(map: &MapHandle, key: &[u8]) -> Result<RangeLine, DatapathError> {
    let value = map
        .lookup(key, MapFlags::ANY)
        .map_err(|error| DatapathError::system("read the port ranges of services", error))?;
    let raw = value.and_then(|bytes| types::port_ranges::from_bytes(&bytes));
    Ok(raw.map(|raw| RangeLine::from_raw(&raw)).unwrap_or_default())
}
