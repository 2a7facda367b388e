//! Opening and loading the object: with maps of the configured sizes where none are pinned, with the pinned ones where
//! they are.

use std::{
    ffi::CStr,
    mem::MaybeUninit,
    os::fd::{AsFd, OwnedFd},
    path::Path,
    sync::Once,
};

use libbpf_rs::{
    MapHandle, MapInfo, OpenMapMut, PrintLevel, ProgramMut,
    skel::{OpenSkel, Skel, SkelBuilder},
};

use super::{
    error::DatapathError,
    pins::Pins,
    skeleton::{LbSkelBuilder, OpenLbSkel},
    sys::{self, Element},
};

/// Elements of the maps whose size is configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sizes {
    /// Services, ID 0 included.
    pub(super) services: u32,
    /// Backend records, record 0 included.
    pub(super) records: u32,
    /// Buckets of the flow table; a power of two.
    pub(super) flow_buckets: u32,
    /// Fragmented datagrams.
    pub(super) fragments: u32,
}

impl Sizes {
    /// Lines of the table of limited sources, a power of two: one for each sixteen of the flow table.
    pub(super) fn source_buckets(self) -> u32 {
        (self.flow_buckets / 16).max(1)
    }
}

/// The maps of the load balancer. All but `no_table` are pinned under their names.
pub(super) struct Maps {
    pub(super) services_v4: MapHandle,
    pub(super) services_v6: MapHandle,
    pub(super) ranges_v4: MapHandle,
    pub(super) ranges_v6: MapHandle,
    pub(super) services: MapHandle,
    pub(super) backends: MapHandle,
    pub(super) tables: MapHandle,
    pub(super) nat_sources_v4: MapHandle,
    pub(super) nat_sources_v6: MapHandle,
    pub(super) flows: MapHandle,
    pub(super) addresses: MapHandle,
    pub(super) fragments: MapHandle,
    pub(super) egress: MapHandle,
    pub(super) admission: MapHandle,
    pub(super) source_limits: MapHandle,
    pub(super) source_lists_v4: MapHandle,
    pub(super) source_lists_v6: MapHandle,
    pub(super) node: MapHandle,
    pub(super) ledger: MapHandle,
    pub(super) hook_ledger: MapHandle,
    pub(super) backend_counters: MapHandle,
    /// Not pinned: a table without slots, for element 0 of `tables`.
    pub(super) no_table: MapHandle,
}

/// A loaded program.
pub(super) struct LoadedProgram {
    /// Its name, in the object and in the pins.
    pub(super) name: &'static str,
    pub(super) fd: OwnedFd,
}

/// The programs of the load balancer.
pub(super) struct Programs {
    pub(super) xdp_lb: LoadedProgram,
    pub(super) tc_nat: LoadedProgram,
    pub(super) tc_handoff: LoadedProgram,
}

/// Type information for the elements of maps that are made later.
pub(super) struct ElementTypes {
    pub(super) btf: OwnedFd,
    pub(super) key: u32,
    pub(super) value: u32,
}

/// The loaded load balancer.
pub(super) struct Loaded {
    pub(super) maps: Maps,
    pub(super) programs: Programs,
    pub(super) table_types: Option<ElementTypes>,
    pub(super) list_types: [Option<ElementTypes>; 2],
}

/// Sends libbpf's messages to the log. Its warnings are about errors that we report ourselves, except for the verifier's.
pub(super) fn log_libbpf() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        libbpf_rs::set_print(Some((PrintLevel::Debug, |level, message| {
            let message = message.trim_end();
            match level {
                PrintLevel::Warn
                    if message.contains("BPF program load failed") || message.contains("PROG LOAD LOG") =>
                {
                    tracing::error!(target: "libbpf", "{message}");
                }
                PrintLevel::Warn | PrintLevel::Info => tracing::debug!(target: "libbpf", "{message}"),
                PrintLevel::Debug => tracing::trace!(target: "libbpf", "{message}"),
            }
        })));
    });
}

/// Calls `action` for each pinned map of the load balancer, with its name.
fn for_each_pinned_map(
    skeleton: &mut OpenLbSkel<'_>,
    mut action: impl FnMut(&'static str, &mut OpenMapMut<'_>) -> Result<(), DatapathError>,
) -> Result<(), DatapathError> {
    let maps = &mut skeleton.maps;
    action("services_v4", &mut maps.services_v4)?;
    action("services_v6", &mut maps.services_v6)?;
    action("ranges_v4", &mut maps.ranges_v4)?;
    action("ranges_v6", &mut maps.ranges_v6)?;
    action("services", &mut maps.services)?;
    action("backends", &mut maps.backends)?;
    action("tables", &mut maps.tables)?;
    action("nat_sources_v4", &mut maps.nat_sources_v4)?;
    action("nat_sources_v6", &mut maps.nat_sources_v6)?;
    action("flows", &mut maps.flows)?;
    action("addresses", &mut maps.addresses)?;
    action("fragments", &mut maps.fragments)?;
    action("egress", &mut maps.egress)?;
    action("admission", &mut maps.admission)?;
    action("source_limits", &mut maps.source_limits)?;
    action("source_lists_v4", &mut maps.source_lists_v4)?;
    action("source_lists_v6", &mut maps.source_lists_v6)?;
    action("ledger", &mut maps.ledger)?;
    action("hook_ledger", &mut maps.hook_ledger)?;
    action("backend_counters", &mut maps.backend_counters)?;
    action("node", &mut maps.node)
}

/// How often loading is tried again where the verifier was interrupted.
const ATTEMPTS_AFTER_INTERRUPTION: u32 = 5;

/// Loads the load balancer: on the maps pinned in `adopt`, which must all be there and of the given sizes, or on new ones.
pub(super) fn load(sizes: Sizes, adopt: Option<&Pins>) -> Result<Loaded, DatapathError> {
    log_libbpf();
    for _ in 0..ATTEMPTS_AFTER_INTERRUPTION {
        match load_once(sizes, adopt) {
            Err(DatapathError::Load { source, .. }) if source.kind() == libbpf_rs::ErrorKind::WouldBlock => {
                tracing::debug!("the kernel was interrupted while it verified the programs; once more");
            }
            done => return done,
        }
    }
    load_once(sizes, adopt)
}

fn load_once(sizes: Sizes, adopt: Option<&Pins>) -> Result<Loaded, DatapathError> {
    let mut object = MaybeUninit::uninit();
    let mut skeleton = LbSkelBuilder::default().open(&mut object).map_err(load_failed)?;
    exclude_decap(&mut skeleton)?;
    set_sizes(&mut skeleton, sizes)?;
    if let Some(pins) = adopt {
        for_each_pinned_map(&mut skeleton, |name, map| adopt_map(&pins.map(name), map))?;
    }
    let skeleton = skeleton.load().map_err(load_failed)?;
    let table_types = element_types(skeleton.object(), Element::Int, c"slot_line")?;
    let list_types = [
        element_types(skeleton.object(), Element::Struct(c"source_key_v4"), c"source_rule")?,
        element_types(skeleton.object(), Element::Struct(c"source_key_v6"), c"source_rule")?,
    ];
    let maps = take_maps(&skeleton.maps)?;
    let programs = Programs {
        xdp_lb: take_program("xdp_lb", &skeleton.progs.xdp_lb)?,
        tc_nat: take_program("tc_nat", &skeleton.progs.tc_nat)?,
        tc_handoff: take_program("tc_handoff", &skeleton.progs.tc_handoff)?,
    };
    Ok(Loaded { maps, programs, table_types, list_types })
}

fn element_types(
    object: &libbpf_rs::Object,
    key: Element<'_>,
    value: &CStr,
) -> Result<Option<ElementTypes>, DatapathError> {
    let Some((btf, key, value)) = sys::element_types(object, key, value) else { return Ok(None) };
    Ok(Some(ElementTypes { btf: duplicate("type information", btf)?, key, value }))
}

/// The backend's program and its maps are loaded by `tidegate decap` alone.
fn exclude_decap(skeleton: &mut OpenLbSkel<'_>) -> Result<(), DatapathError> {
    skeleton.progs.xdp_decap.set_autoload(false);
    for map in [&mut skeleton.maps.decap_addresses, &mut skeleton.maps.decap_ledger] {
        map.set_autocreate(false).map_err(load_failed)?;
    }
    Ok(())
}

/// What `tidegate decap` does without.
pub(super) fn exclude_load_balancer(skeleton: &mut OpenLbSkel<'_>) -> Result<(), DatapathError> {
    skeleton.progs.xdp_lb.set_autoload(false);
    skeleton.progs.tc_nat.set_autoload(false);
    skeleton.progs.tc_handoff.set_autoload(false);
    for map in [&mut skeleton.maps.no_table, &mut skeleton.maps.echo_allowance] {
        map.set_autocreate(false).map_err(load_failed)?;
    }
    for_each_pinned_map(skeleton, |_, map| map.set_autocreate(false).map_err(load_failed))
}

fn set_sizes(skeleton: &mut OpenLbSkel<'_>, sizes: Sizes) -> Result<(), DatapathError> {
    let maps = &mut skeleton.maps;
    let set = |map: &mut OpenMapMut<'_>, entries: u32| map.set_max_entries(entries).map_err(load_failed);
    set(&mut maps.services_v4, sizes.services)?;
    set(&mut maps.services_v6, sizes.services)?;
    set(&mut maps.ranges_v4, sizes.services)?;
    set(&mut maps.ranges_v6, sizes.services)?;
    set(&mut maps.services, sizes.services)?;
    set(&mut maps.tables, sizes.services)?;
    set(&mut maps.admission, sizes.services)?;
    set(&mut maps.source_lists_v4, sizes.services)?;
    set(&mut maps.source_lists_v6, sizes.services)?;
    set(&mut maps.source_limits, sizes.source_buckets())?;
    set(&mut maps.ledger, sizes.services)?;
    set(&mut maps.backends, sizes.records)?;
    set(&mut maps.backend_counters, sizes.records)?;
    set(&mut maps.nat_sources_v4, sizes.records)?;
    set(&mut maps.nat_sources_v6, sizes.records)?;
    set(&mut maps.flows, sizes.flow_buckets)?;
    set(&mut maps.addresses, sizes.services)?;
    set(&mut maps.fragments, sizes.fragments)
}

/// Takes a pinned map over, if it is what its name says. libbpf itself checks nothing here.
pub(super) fn adopt_map(path: &Path, map: &mut OpenMapMut<'_>) -> Result<(), DatapathError> {
    let failed = |error| DatapathError::system(format!("open the map pinned at {}", path.display()), error);
    let pinned = sys::open_pin(path)
        .map_err(|error| DatapathError::system(format!("open {}", path.display()), error))?;
    let found = MapInfo::new(pinned.as_fd()).map_err(failed)?.info;
    let properties = [
        ("type", found.type_, map.map_type() as u32),
        ("key size", found.key_size, map.key_size()),
        ("value size", found.value_size, map.value_size()),
        ("flags", found.map_flags, map.map_flags()),
        ("number of elements", found.max_entries, map.max_entries()),
    ];
    for (what, found, wanted) in properties {
        if found != wanted {
            return Err(DatapathError::Mismatch {
                path: path.to_owned(),
                what,
                found: found.into(),
                wanted: wanted.into(),
            });
        }
    }
    map.reuse_fd(pinned.as_fd()).map_err(failed)
}

impl Maps {
    /// The map that is pinned under `name`.
    pub(super) fn by_name(&self, name: &str) -> &MapHandle {
        match name {
            "services_v4" => &self.services_v4,
            "services_v6" => &self.services_v6,
            "ranges_v4" => &self.ranges_v4,
            "ranges_v6" => &self.ranges_v6,
            "services" => &self.services,
            "backends" => &self.backends,
            "tables" => &self.tables,
            "nat_sources_v4" => &self.nat_sources_v4,
            "nat_sources_v6" => &self.nat_sources_v6,
            "flows" => &self.flows,
            "addresses" => &self.addresses,
            "fragments" => &self.fragments,
            "egress" => &self.egress,
            "admission" => &self.admission,
            "source_limits" => &self.source_limits,
            "source_lists_v4" => &self.source_lists_v4,
            "source_lists_v6" => &self.source_lists_v6,
            "ledger" => &self.ledger,
            "hook_ledger" => &self.hook_ledger,
            "backend_counters" => &self.backend_counters,
            _ => &self.node,
        }
    }
}

fn take_maps(maps: &super::skeleton::LbMaps<'_>) -> Result<Maps, DatapathError> {
    let take = |map| {
        MapHandle::try_from(map).map_err(|error| DatapathError::system("keep a map's descriptor", error))
    };
    Ok(Maps {
        services_v4: take(&maps.services_v4)?,
        services_v6: take(&maps.services_v6)?,
        ranges_v4: take(&maps.ranges_v4)?,
        ranges_v6: take(&maps.ranges_v6)?,
        services: take(&maps.services)?,
        backends: take(&maps.backends)?,
        tables: take(&maps.tables)?,
        nat_sources_v4: take(&maps.nat_sources_v4)?,
        nat_sources_v6: take(&maps.nat_sources_v6)?,
        flows: take(&maps.flows)?,
        addresses: take(&maps.addresses)?,
        fragments: take(&maps.fragments)?,
        egress: take(&maps.egress)?,
        admission: take(&maps.admission)?,
        source_limits: take(&maps.source_limits)?,
        source_lists_v4: take(&maps.source_lists_v4)?,
        source_lists_v6: take(&maps.source_lists_v6)?,
        node: take(&maps.node)?,
        ledger: take(&maps.ledger)?,
        hook_ledger: take(&maps.hook_ledger)?,
        backend_counters: take(&maps.backend_counters)?,
        no_table: take(&maps.no_table)?,
    })
}

pub(super) fn take_program(
    name: &'static str,
    program: &ProgramMut<'_>,
) -> Result<LoadedProgram, DatapathError> {
    Ok(LoadedProgram { name, fd: duplicate("a program", program.as_fd())? })
}

fn duplicate(what: &str, fd: impl AsFd) -> Result<OwnedFd, DatapathError> {
    sys::duplicate(fd).map_err(|error| DatapathError::system(format!("keep the descriptor of {what}"), error))
}

pub(super) fn load_failed(source: libbpf_rs::Error) -> DatapathError {
    let hint = match source.kind() {
        libbpf_rs::ErrorKind::PermissionDenied => {
            "; root, or the capabilities CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON, are needed, and a kernel that is not locked \
             down"
        }
        libbpf_rs::ErrorKind::OutOfMemory => "; lower `capacity`, or raise the memory limit (LimitMEMLOCK)",
        _ => "",
    };
    DatapathError::Load { source, hint }
}
