//! A model's node as records in the maps of the loaded programs, after the comments in `include/tidegate/records.h`.

use std::{
    net::{IpAddr, SocketAddr},
    os::fd::{AsFd, AsRawFd},
    slice,
};

use libbpf_rs::{
    MapCore, MapFlags, MapHandle, MapType,
    libbpf_sys::{BPF_F_INNER_MAP, BPF_F_MMAPABLE, bpf_map_create_opts},
};
use tidegate::model::Mode;

use super::skeleton::{LbMaps, OpenLbSkel, types};
use crate::harness::{
    frame::{
        GUE_PORT,
        checksum::{octets, sum},
        protocol,
    },
    model::{Backend, NextHop, Node, Service},
};

/// What the owner of a flow is multiplied with before it is mixed into the tag.
pub const OWNER_SPREAD: u64 = 0x3c6e_f372_fe94_f82b;
/// Records of each service: its backends have numbers below this.
const RECORDS: u32 = 32;
const FLOWS_PER_BUCKET: usize = 4;
const SLOTS_PER_LINE: usize = 16;

/// Index of the record of a backend.
pub fn record(service: u32, number: u16) -> u32 {
    service * RECORDS + u32::from(number)
}

/// Sizes the maps for the node.
pub fn set_sizes(open: &mut OpenLbSkel<'_>, node: &Node) {
    let services = node.services.keys().max().copied().unwrap_or(0) + 1;
    let maps = &mut open.maps;
    for map in
        [&mut maps.services, &mut maps.tables, &mut maps.ledger, &mut maps.services_v4, &mut maps.services_v6]
    {
        map.set_max_entries(services).unwrap();
    }
    let backends = services * RECORDS;
    let of_backends =
        [&mut maps.backends, &mut maps.backend_counters, &mut maps.nat_sources_v4, &mut maps.nat_sources_v6];
    for map in of_backends {
        map.set_max_entries(backends).unwrap();
    }
    maps.flows.set_max_entries(node.flows.buckets() as u32).unwrap();
    maps.fragments.set_max_entries(1024).unwrap();
}

/// Writes everything the node knows.
pub fn write(maps: &LbMaps<'_>, node: &Node) {
    write_settings(maps, node);
    for (&id, service) in &node.services {
        write_table(maps, id, service);
        put(&maps.services, &id, &service_record(id, service));
        for (&number, backend) in &service.backends {
            assert!(u32::from(number) < RECORDS, "backend {number}");
            put(&maps.backends, &record(id, number), &backend_record(service, backend));
            if service.mode == Mode::Nat {
                put_endpoint(
                    &maps.nat_sources_v4,
                    &maps.nat_sources_v6,
                    backend.address,
                    service.protocol,
                    1,
                );
            }
        }
        put_endpoint(&maps.services_v4, &maps.services_v6, service.address, service.protocol, id);
    }
    for address in &node.decap_addresses {
        let family = if address.is_ipv4() { 4 } else { 6 };
        let key = types::endpoint_v6 { address: words(*address), protocol: family, ..Default::default() };
        put(&maps.decap_addresses, &key, &1u32);
    }
}

fn write_settings(maps: &LbMaps<'_>, node: &Node) {
    let mut settings = types::node_settings {
        magic: 0x7469_6465,
        version: 1,
        flow_secret: node.flows.secret,
        flow_buckets: node.flows.buckets() as u32,
        outer_spread_v6: words(node.spread.ipv6.into()),
        outer_spread_v4: words(node.spread.ipv4.into())[0],
        gue_port: GUE_PORT.to_be(),
        ..Default::default()
    };
    for (kind, ticks) in node.flows.lifetime.iter().enumerate() {
        settings.flow_lifetime[kind] = *ticks as u16;
    }
    assert_eq!(size_of::<types::flow_bucket>(), FLOWS_PER_BUCKET * size_of::<types::flow>());
    put(&maps.node, &0u32, &settings);
}

fn write_table(maps: &LbMaps<'_>, id: u32, service: &Service) {
    let lines: Vec<types::slot_line> = service
        .table
        .chunks(SLOTS_PER_LINE)
        .map(|numbers| {
            let mut line = types::slot_line::default();
            for (slot, number) in line.slots.iter_mut().zip(numbers) {
                *slot = types::slot { current: *number, previous: *number };
            }
            line
        })
        .collect();
    let options = bpf_map_create_opts {
        sz: size_of::<bpf_map_create_opts>() as _,
        map_flags: BPF_F_MMAPABLE | BPF_F_INNER_MAP,
        ..Default::default()
    };
    let (key, value) = (size_of::<u32>() as u32, size_of::<types::slot_line>() as u32);
    let table =
        MapHandle::create(MapType::Array, Some("table"), key, value, lines.len() as u32, &options).unwrap();
    for (index, line) in lines.iter().enumerate() {
        put(&table, &(index as u32), line);
    }
    put(&maps.tables, &id, &(table.as_fd().as_raw_fd()));
}

fn service_record(id: u32, service: &Service) -> types::service {
    types::service {
        address: words(service.address.ip()),
        backends_base: record(id, 0),
        backends_limit: RECORDS,
        slots: service.table.len() as u32,
        port: service.address.port().to_be(),
        endpoint_sum: endpoint_sum(service.address),
        protocol: service.protocol,
        family: if service.address.is_ipv4() { 4 } else { 6 },
        mode: mode_number(service.mode),
        ..Default::default()
    }
}

fn backend_record(service: &Service, backend: &Backend) -> types::backend {
    const RESOLVED: u8 = 1;
    const LOCAL: u8 = 2;
    const IPV6: u8 = 4;
    const SERVICE_TAG: u8 = 8;
    let (interface, flags, source_mac, destination_mac) = match backend.next_hop {
        NextHop::Local => (0, LOCAL, [0; 6], [0; 6]),
        NextHop::Resolved { interface, source_mac, destination_mac } => {
            (interface, RESOLVED, source_mac, destination_mac)
        }
        NextHop::Unresolved { interface } => (interface, 0, [0; 6], [0; 6]),
        NextHop::NoRoute => (0, 0, [0; 6], [0; 6]),
    };
    let flags = flags
        | if backend.address.is_ipv6() { IPV6 } else { 0 }
        | if backend.has_service_tag { SERVICE_TAG } else { 0 };
    let (address, source) = (backend.address.ip(), backend.source);
    types::backend {
        link: types::backend_link { interface, mtu: backend.mtu, state: backend.state as u8, flags },
        address: words(address),
        source: words(source),
        destination_mac,
        source_mac,
        port: backend.address.port().to_be(),
        endpoint_sum: endpoint_sum(backend.address),
        outer_sum: outer_sum(service, source, address),
        tags: backend.tags.map(u16::to_be),
        mode: mode_number(service.mode),
        protocol: service.protocol,
    }
}

/// Sum of an outer IPv4 header without checksum, length, TOS, identification and flags.
fn outer_sum(service: &Service, source: IpAddr, destination: IpAddr) -> u16 {
    let protocol = match service.mode {
        Mode::Ipip if service.address.is_ipv6() => protocol::IPV6,
        Mode::Ipip => protocol::IPIP,
        Mode::Gre => protocol::GRE,
        Mode::Gue => protocol::UDP,
        Mode::Nat | Mode::Dsr => return 0,
    };
    if destination.is_ipv6() {
        return 0;
    }
    let mut header = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, protocol, 0, 0];
    header.extend(octets(source));
    header.extend(octets(destination));
    sum(&header).to_be()
}

fn endpoint_sum(address: SocketAddr) -> u16 {
    let mut bytes = octets(address.ip());
    bytes.extend(address.port().to_be_bytes());
    sum(&bytes).to_be()
}

fn mode_number(mode: Mode) -> u8 {
    match mode {
        Mode::Nat => 1,
        Mode::Dsr => 2,
        Mode::Ipip => 3,
        Mode::Gre => 4,
        Mode::Gue => 5,
    }
}

/// An address as the records have it: as on the wire, an IPv4 address in the first word.
fn words(address: IpAddr) -> [u32; 4] {
    let mut bytes = octets(address);
    bytes.resize(16, 0);
    [0, 4, 8, 12].map(|at| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap()))
}

fn put_endpoint(v4: &impl MapCore, v6: &impl MapCore, address: SocketAddr, protocol: u8, value: u32) {
    let (address, port, words) = (address.ip(), address.port().to_be(), words(address.ip()));
    if address.is_ipv4() {
        put(v4, &types::endpoint_v4 { address: words[0], port, protocol, pad: 0 }, &value);
    } else {
        put(v6, &types::endpoint_v6 { address: words, port, protocol, pad: 0 }, &value);
    }
}

fn put<K: Copy, V: Copy>(map: &impl MapCore, key: &K, value: &V) {
    map.update(bytes_of(key), bytes_of(value), MapFlags::ANY).expect("write a map");
}

/// The bytes of a record, which has no implicit padding.
fn bytes_of<T: Copy>(value: &T) -> &[u8] {
    // SAFETY: the value is borrowed as long as the slice, and every byte of these records is a declared field.
    unsafe { slice::from_raw_parts(std::ptr::from_ref(value).cast(), size_of::<T>()) }
}
