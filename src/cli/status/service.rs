//! One service and its backends.

use super::{
    overview::{address, up},
    text::{Column, counted, ledger, table, wrapped},
};
use crate::model::{
    BackendState,
    status::{BackendStatus, NextHopStatus, ServiceStatus},
};

/// The service as text in at most `columns` columns.
pub(super) fn render(service: &ServiceStatus, columns: u16) -> String {
    [headline(service, columns), backends(&service.backends, columns), ledger(&service.ledger, columns)]
        .join("\n")
}

fn headline(service: &ServiceStatus, columns: u16) -> String {
    let ServiceStatus { name, mode, slots, backends, .. } = service;
    let hash = match service.hash_prefix {
        Some(prefix) => format!(", hash {}/{prefix}", service.hash),
        None => String::new(),
    };
    let all = counted(backends.len(), "backend");
    let verdict = match up(service) {
        0 => format!("NO BACKEND of {} is up", backends.len()),
        up if up == backends.len() => format!("all of {all} up"),
        up => format!("{up} of {all} up"),
    };
    let verdict = if backends.is_empty() { "NO BACKEND is configured".to_owned() } else { verdict };
    wrapped(
        "",
        &format!("{name}: {}, mode {mode}{hash}, {slots} slots; {verdict}", address(service)),
        columns,
    )
}

fn backends(backends: &[BackendStatus], columns: u16) -> String {
    if backends.is_empty() {
        return "no backends are configured\n".to_owned();
    }
    let row = |backend: &BackendStatus| {
        vec![
            backend.backend_address().to_string(),
            state(backend.state).to_owned(),
            backend.weight.to_string(),
            backend.slots.to_string(),
            backend.packets.to_string(),
            next_hop(&backend.next_hop),
            backend.last_failure.clone().unwrap_or_else(|| "-".to_owned()),
        ]
    };
    let header = [
        Column::Words("BACKEND"),
        Column::Words("STATE"),
        Column::Numbers("WEIGHT"),
        Column::Numbers("SLOTS"),
        Column::Numbers("PACKETS"),
        Column::Words("NEXT HOP"),
        Column::Words("LAST FAILURE"),
    ];
    table(&header, backends.iter().map(row).collect(), columns)
}

fn state(state: BackendState) -> &'static str {
    match state {
        BackendState::Up => "up",
        BackendState::Down => "DOWN",
    }
}

fn next_hop(next_hop: &NextHopStatus) -> String {
    match next_hop {
        NextHopStatus::Resolved { interface, mac } => format!("{interface} {mac}"),
        NextHopStatus::Local => "this node".to_owned(),
        NextHopStatus::Unresolved { reason } => format!("unresolved: {reason}"),
    }
}
