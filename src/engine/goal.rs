//! What a service should be: its backend records and its table, from what is desired and what is known.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use crate::{
    datapath::{BackendRecord, Link, LinkFlags, Membership, Slot},
    maglev::{self, Candidate},
    model::{Backend, BackendState, Encapsulation, NextHop, Route, Service, SourcePrefix},
};

/// What a service should be.
#[derive(Clone, Debug)]
pub(super) struct Goal {
    /// Backend records by number; all are members.
    pub(super) backends: BTreeMap<u16, BackendRecord>,
    /// What the table is to be built for.
    pub(super) candidates: Vec<Candidate>,
    /// Interfaces by which the kernel reaches the backends, by number; where it knows a route.
    pub(super) interfaces: BTreeMap<u16, u32>,
}

/// The record of a backend in `state`, reached by `next_hop`.
pub(super) fn backend_record(
    service: &Service,
    backend: &Backend,
    state: BackendState,
    next_hop: Option<&NextHop>,
    encapsulation: &Encapsulation,
) -> BackendRecord {
    let ipv6 = backend.address.address.is_ipv6();
    let route = next_hop.and_then(route_of);
    let flags = LinkFlags {
        resolved: matches!(next_hop, Some(NextHop::Reachable { .. })),
        local: matches!(next_hop, Some(NextHop::Local)),
        service_tag: route.is_some_and(|route| route.tags.service),
    };
    let destination_mac = match next_hop {
        Some(NextHop::Reachable { destination_mac, .. }) => *destination_mac,
        _ => [0; 6],
    };
    let own = route.map(|route| route.source).filter(|source| source.is_ipv6() == ipv6);
    let prefix = encapsulation.source(ipv6).filter(|_| service.mode.encapsulates());
    let source = prefix.map(SourcePrefix::address).or(own);
    BackendRecord {
        link: Link {
            interface: route.map_or(0, |route| if flags.resolved { route.device } else { route.interface }),
            mtu: route.map_or(u16::MAX, |route| route.mtu.try_into().unwrap_or(u16::MAX)),
            state: Membership::Member(state),
            flags,
            ipv6,
        },
        address: backend.address,
        protocol: service.address.protocol,
        mode: service.mode,
        inner_ipv6: service.address.address.is_ipv6(),
        source: source.unwrap_or_else(|| unspecified(ipv6)),
        tags: route.map_or([0; 2], |route| route.tags.tci),
        destination_mac,
        source_mac: route.map_or([0; 6], |route| route.source_mac),
    }
}

pub(super) fn route_of(next_hop: &NextHop) -> Option<&Route> {
    match next_hop {
        NextHop::Reachable { route, .. } => Some(route),
        NextHop::Unresolved { route, .. } => route.as_ref(),
        NextHop::Local => None,
    }
}

fn unspecified(ipv6: bool) -> IpAddr {
    if ipv6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() }
}

/// The candidates of a service's table: its backends that are up.
pub(super) fn candidates(service: &Service, records: &BTreeMap<u16, BackendRecord>) -> Vec<Candidate> {
    let up = |record: &&BackendRecord| record.link.state == Membership::Member(BackendState::Up);
    let numbers: BTreeMap<_, _> = records
        .iter()
        .filter(|(_, record)| up(record))
        .map(|(&number, record)| (record.address, number))
        .collect();
    let candidate = |backend: &Backend| {
        let &number = numbers.get(&backend.address)?;
        Some(Candidate { key: backend.address, weight: backend.weight, number })
    };
    let mut candidates: Vec<_> = service.backends.iter().filter_map(candidate).collect();
    candidates.sort_by_key(|candidate| candidate.key);
    candidates
}

/// The table for these candidates: every slot settled.
pub(super) fn table(slots: u32, candidates: &[Candidate]) -> Vec<Slot> {
    maglev::build(slots, candidates).into_iter().map(Slot::settled).collect()
}
