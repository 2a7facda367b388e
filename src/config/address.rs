//! Addresses with and without a port, and addresses that cannot work.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::{
    field::{Field, Fields},
    problem::quoted,
    tree::Value,
};

/// What an address is used for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Use {
    /// Clients connect to it.
    Service,
    /// A backend listens on it.
    Backend,
}

/// The address of a service or backend and the port given with it, in `address` or in `port`. `None` for either that
/// is wrong or, as for the port, not given.
pub fn endpoint(fields: &Fields<'_>, usage: Use) -> (Option<IpAddr>, Option<u16>) {
    let hint = match usage {
        Use::Service => "write what clients connect to, such as 192.0.2.10 or 2001:db8::10",
        Use::Backend => "write where the backend listens, such as 198.51.100.11 or 2001:db8:1::11",
    };
    let Some(field) = fields.require("address", hint) else {
        return (None, port(fields, None));
    };
    let Some((address, inline)) = parse(&field) else {
        return (None, port(fields, None));
    };
    if let Some(reason) = unusable(address, usage) {
        field.refuse(reason);
        return (None, port(fields, inline));
    }
    (Some(address), port(fields, inline))
}

/// The port in `port` or, `inline`, in the address.
fn port(fields: &Fields<'_>, inline: Option<u16>) -> Option<u16> {
    let Some(field) = fields.get("port") else { return inline };
    let port = field.integer(1..=u16::MAX)?;
    match inline {
        Some(inline) if inline != port => field.refused(format!(
            "{port} contradicts the {inline} that stands with the address; give the port once"
        )),
        _ => Some(port),
    }
}

fn parse(field: &Field<'_>) -> Option<(IpAddr, Option<u16>)> {
    if matches!(field.value(), Value::List(_)) {
        return field.refused("an address in brackets needs quotes: \"[2001:db8::10]:80\"");
    }
    let text = field.text()?;
    if let Ok(address) = text.parse::<IpAddr>() {
        return Some((address, None));
    }
    match text.parse::<SocketAddr>() {
        Ok(SocketAddr::V6(address)) if address.scope_id() != 0 => {}
        Ok(address) if address.port() == 0 => return field.refused("port 0 is out of range; use 1 to 65535"),
        Ok(address) => return Some((address.ip(), Some(address.port()))),
        Err(_) => {}
    }
    let hint = if text.contains('/') {
        "leave out the prefix length"
    } else if text.contains('%') {
        "addresses with a zone cannot be balanced"
    } else if text.starts_with('[') && text.ends_with(']') {
        "leave out the brackets, or add a port: \"[2001:db8::10]:80\""
    } else if text.contains(|c: char| c.is_ascii_alphabetic()) && !text.contains(':') {
        "names are not looked up; use an address like 192.0.2.10 or 2001:db8::10"
    } else {
        "use one like 192.0.2.10 or 2001:db8::10, or with a port from 1 to 65535, 192.0.2.10:80 or \"[2001:db8::10]:80\""
    };
    field.refused(format!("{} is not an IP address; {hint}", quoted(text)))
}

/// Why an address cannot work, if it cannot.
fn unusable(address: IpAddr, usage: Use) -> Option<String> {
    match address {
        IpAddr::V4(address) => unusable_v4(address, usage),
        IpAddr::V6(address) => unusable_v6(address, usage),
    }
    .map(|reason| format!("{address} {reason}"))
}

fn unusable_v4(address: Ipv4Addr, usage: Use) -> Option<String> {
    let reason = if address.is_unspecified() {
        "is the unspecified address; name a single one"
    } else if address.octets()[0] == 0 {
        "is in 0.0.0.0/8, which hosts do not answer to"
    } else if address.is_multicast() {
        "is a multicast address; only unicast can be balanced"
    } else if address.is_broadcast() {
        "is the broadcast address; only unicast can be balanced"
    } else if address.is_loopback() && usage == Use::Service {
        "is a loopback address, which never comes from the network"
    } else {
        return None;
    };
    Some(reason.to_owned())
}

fn unusable_v6(address: Ipv6Addr, usage: Use) -> Option<String> {
    if let Some(mapped) = address.to_ipv4_mapped() {
        return Some(format!("is an IPv4 address in IPv6 form; write {mapped}"));
    }
    let reason = if address.is_unspecified() {
        "is the unspecified address; name a single one"
    } else if address.is_multicast() {
        "is a multicast address; only unicast can be balanced"
    } else if address.is_loopback() && usage == Use::Service {
        "is a loopback address, which never comes from the network"
    } else if address.is_unicast_link_local() {
        "is a link-local address, which means something else on every interface; use a routed one"
    } else {
        return None;
    };
    Some(reason.to_owned())
}
