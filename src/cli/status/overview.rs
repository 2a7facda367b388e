//! The whole node: is it forwarding, is anything wrong, then the services.

use super::text::{Column, counted, ledger, since, table, wrapped};
use crate::model::{
    BackendState,
    status::{InterfaceStatus, Problem, ServiceStatus, Status},
};

/// The status as text in at most `columns` columns; `now` in seconds since the Unix epoch.
pub(super) fn render(status: &Status, now: u64, columns: u16) -> String {
    [
        headline(status, now, columns) + &interfaces(&status.interfaces, columns),
        problems(&status.problems, columns),
        services(&status.services, columns),
        totals(status, columns),
    ]
    .join("\n")
}

fn headline(status: &Status, now: u64, columns: u16) -> String {
    let attached = counted(status.interfaces.len(), "interface");
    let verdict = match (status.interfaces.is_empty(), status.ready) {
        (true, _) => "NOT FORWARDING: no interface has the program attached".to_owned(),
        (false, false) => {
            format!("NOT READY: attached to {attached}, but not all that is configured is in place")
        }
        (false, true) => format!("forwarding on {attached}"),
    };
    let Status { version, pid, started_at, .. } = status;
    let daemon = format!("tidegate {version}, pid {pid}, since {}", since(*started_at, now));
    wrapped("", &format!("{verdict}; {daemon}"), columns)
}

fn interfaces(interfaces: &[InterfaceStatus], columns: u16) -> String {
    if interfaces.is_empty() {
        return String::new();
    }
    let row = |interface: &InterfaceStatus| {
        vec![
            interface.name.clone(),
            interface.xdp.clone(),
            interface.tc.clone(),
            interface.driver.clone().unwrap_or_else(|| "-".to_owned()),
            if interface.adopted { "adopted" } else { "new" }.to_owned(),
        ]
    };
    let header = ["INTERFACE", "XDP", "TC", "DRIVER", "LINK"].map(Column::Words);
    table(&header, interfaces.iter().map(row).collect(), columns)
}

fn problems(problems: &[Problem], columns: u16) -> String {
    if problems.is_empty() {
        return "no problems\n".to_owned();
    }
    let mut text = format!("{}:\n", counted(problems.len(), "problem"));
    for Problem { message, remedy } in problems {
        text += &wrapped("  - ", &format!("{message} -> {remedy}"), columns);
    }
    text
}

fn services(services: &[ServiceStatus], columns: u16) -> String {
    if services.is_empty() {
        return "no services are configured\n".to_owned();
    }
    let row = |service: &ServiceStatus| {
        vec![
            service.name.to_string(),
            address(service),
            service.mode.to_string(),
            format!("{}/{}", up(service), service.backends.len()),
            service.slots.to_string(),
            service.ledger.seen.to_string(),
            service.ledger.dropped.to_string(),
        ]
    };
    let header = [
        Column::Words("SERVICE"),
        Column::Words("ADDRESS"),
        Column::Words("MODE"),
        Column::Numbers("UP/ALL"),
        Column::Numbers("SLOTS"),
        Column::Numbers("PACKETS"),
        Column::Numbers("DROPPED"),
    ];
    table(&header, services.iter().map(row).collect(), columns)
}

fn totals(status: &Status, columns: u16) -> String {
    let flows = format!("{} of {} entries", status.flows.entries, status.flows.capacity);
    let publication = &status.publication;
    let maps = format!(
        "{} adopted at start, {} and {} since",
        counted(publication.adopted_services as usize, "service"),
        counted(usize::try_from(publication.tables).unwrap_or(usize::MAX), "table"),
        counted(usize::try_from(publication.writes).unwrap_or(usize::MAX), "map write"),
    );
    ledger(&status.ledger, columns)
        + &wrapped("flows    ", &flows, columns)
        + &wrapped("maps     ", &maps, columns)
}

/// `192.0.2.10:80/tcp`.
pub(super) fn address(service: &ServiceStatus) -> String {
    service.service_address().to_string()
}

/// How many backends are up.
pub(super) fn up(service: &ServiceStatus) -> usize {
    service.backends.iter().filter(|backend| backend.state == BackendState::Up).count()
}
