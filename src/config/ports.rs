//! Ports of a service: one, a range, or all.

use std::{
    collections::{HashMap, hash_map::Entry},
    net::IpAddr,
};

use super::{
    field::{Field, Fields},
    problem::quoted,
    tree::Value,
};
use crate::model::{HealthCheck, PortRange, Probe, Protocol, RANGES_PER_ADDRESS, ServiceAddress};

/// The ranges of ports of earlier services, by address and protocol, each with its line.
#[derive(Default)]
pub struct SeenRanges(HashMap<(IpAddr, Protocol), Vec<(PortRange, u32)>>);

/// The ports of a service, in `ports` or, as `port` says that was read already, given in another way.
pub fn ports(fields: &Fields<'_>, port: Option<u16>) -> Option<PortRange> {
    let Some(field) = fields.get("ports") else { return port.map(PortRange::single) };
    if fields.get("port").is_some() {
        return field.refused("contradicts port; give either port, for a single one, or ports, for several");
    }
    if let Some(port) = port {
        return field.refused(format!(
            "contradicts the {port} that stands with the address; leave that out to have several ports"
        ));
    }
    range(&field)
}

fn range(field: &Field<'_>) -> Option<PortRange> {
    if matches!(field.value(), Value::List(_)) {
        return field
            .refused("ports are one range, such as 8000-8099, or any; make a service for each other port");
    }
    let text = field.text()?;
    if text == "any" {
        return Some(PortRange::ANY);
    }
    if let Some(single) = number(text) {
        return field.refused(format!("{single} is a single port; write port: {single}"));
    }
    let Some((first, last)) = text.split_once('-').and_then(|(first, last)| number(first).zip(number(last)))
    else {
        return field.refused(format!(
            "{} is not a range of ports; use one like 8000-8099, within 1 to 65535, or any",
            quoted(text)
        ));
    };
    match PortRange::new(first, last) {
        Some(range) if range.is_range() => Some(range),
        Some(_) => field.refused(format!("{} is a single port; write port: {first}", quoted(text))),
        None => field.refused(format!("{} runs backwards; write {last}-{first}", quoted(text))),
    }
}

/// A port in decimal digits, without leading zeros.
fn number(text: &str) -> Option<u16> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit()) && !text.starts_with('0');
    if digits { text.parse().ok() } else { None }
}

/// Refuses a range that another of the same width overlaps, so that neither comes first, and ranges that have no room.
pub fn check_overlap(field: &Field<'_>, address: ServiceAddress, seen: &mut SeenRanges) -> Option<()> {
    let ports = address.ports;
    if !ports.is_range() {
        return Some(());
    }
    let ranges = match seen.0.entry((address.address, address.protocol)) {
        Entry::Occupied(entry) => entry.into_mut(),
        Entry::Vacant(entry) => entry.insert(Vec::new()),
    };
    let rival = |(other, _): &&(PortRange, u32)| other.width() == ports.width() && other.overlaps(ports);
    if let Some((other, line)) = ranges.iter().find(rival) {
        return field.refused(format!(
            "{ports} overlaps {other} of the service on line {line} and is as wide, so neither comes first; narrower \
             ranges come before wider ones"
        ));
    }
    if ranges.len() >= RANGES_PER_ADDRESS {
        let line = ranges.first().map_or(0, |(_, line)| *line);
        return field.refused(format!(
            "{} has {RANGES_PER_ADDRESS} services with a range of {} ports already, the first on line {line}, and cannot \
             have more; join ranges, or use single ports, of which there may be any number",
            address.address, address.protocol
        ));
    }
    ranges.push((ports, field.at().line));
    Some(())
}

/// Refuses to probe the port of a backend that has none.
pub fn check_probe(fields: &Fields<'_>, address: ServiceAddress, health: &HealthCheck) -> Option<()> {
    if !address.ports.is_range() || health.probe != Some(Probe::Tcp { port: None }) {
        return Some(());
    }
    let message = "backends of a range of ports have no port of their own to probe; name one, such as health: { tcp: \
                   { port: 8000 } }, or trust them with health: none";
    fields.get("health").or_else(|| fields.get("ports"))?.refused(message)
}
