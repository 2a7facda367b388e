//! Outer headers: `encapsulation`.

use std::{net::IpAddr, ops::RangeInclusive};

use super::{field::Field, problem::quoted};
use crate::model::{Encapsulation, SourcePrefix};

/// Fewer bits would make a prefix that cannot be one network's own.
const LENGTHS_V4: RangeInclusive<u8> = 8..=32;
const LENGTHS_V6: RangeInclusive<u8> = 32..=128;

/// Reads `encapsulation`.
pub fn encapsulation(field: &Field<'_>) -> Option<Encapsulation> {
    let fields = field.mapping(&["source-v4", "source-v6", "gue-port"])?;
    let source = |key, ipv6| match fields.get(key) {
        Some(field) => prefix(&field, ipv6).map(Some),
        None => Some(None),
    };
    let source_v4 = source("source-v4", false);
    let source_v6 = source("source-v6", true);
    let gue_port = match fields.get("gue-port") {
        Some(field) => field.integer(1..=u16::MAX),
        None => Some(Encapsulation::default().gue_port),
    };
    Some(Encapsulation { source_v4: source_v4?, source_v6: source_v6?, gue_port: gue_port? })
}

fn prefix(field: &Field<'_>, ipv6: bool) -> Option<SourcePrefix> {
    let (allowed, example) = match ipv6 {
        false => (LENGTHS_V4, "198.18.0.0/24"),
        true => (LENGTHS_V6, "2001:db8:0:1::/64"),
    };
    let text = field.text()?;
    let family = if ipv6 { "IPv6" } else { "IPv4" };
    let parsed = text.split_once('/').and_then(|(address, length)| {
        let digits = !length.is_empty() && length.bytes().all(|byte| byte.is_ascii_digit());
        Some((address.parse::<IpAddr>().ok()?, length.parse::<u8>().ok().filter(|_| digits)?))
    });
    let Some((address, length)) = parsed.filter(|(address, _)| address.is_ipv6() == ipv6) else {
        return field
            .refused(format!("{} is not an {family} prefix; write one like {example}", quoted(text)));
    };
    if !allowed.contains(&length) {
        return field.refused(format!(
            "a prefix of length {length} does not do for source addresses; use /{} to /{}",
            allowed.start(),
            allowed.end()
        ));
    }
    let prefix = SourcePrefix::containing(address, length);
    if prefix.address() != address {
        return field.refused(format!("{} has bits beyond its length; write {prefix}", quoted(text)));
    }
    if let Some(kind) = unusable(address) {
        return field.refused(format!(
            "{} is {kind}; use addresses that are routed to nobody else and that backends accept as a source",
            quoted(text)
        ));
    }
    Some(prefix)
}

/// What keeps the addresses of a prefix from being sources, if something does.
fn unusable(address: IpAddr) -> Option<&'static str> {
    match address {
        IpAddr::V4(v4) if v4.octets()[0] == 0 => Some("in 0.0.0.0/8, from which hosts accept nothing"),
        IpAddr::V4(v4) if v4.octets()[0] >= 224 => Some("not of unicast addresses"),
        IpAddr::V6(v6) if v6.is_multicast() => Some("of multicast addresses"),
        IpAddr::V6(v6) if v6.is_unicast_link_local() => Some("of link-local addresses"),
        IpAddr::V6(v6) if v6.segments()[..6] == [0; 6] || v6.to_ipv4_mapped().is_some() => {
            Some("of addresses with a special meaning")
        }
        _ if address.is_loopback() => Some("of loopback addresses"),
        _ => None,
    }
}
