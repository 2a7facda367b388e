//! Backends of a service.

use std::collections::HashMap;

use super::{
    address::{Use, endpoint},
    field::Field,
    services::Front,
};
use crate::model::{Backend, BackendAddress};

const KEYS: [&str; 3] = ["address", "port", "weight"];

/// Reads a list of backends. `front` is what they are checked against and `default_port` their port where they give
/// none; both are absent where the service itself is wrong.
pub fn backends(field: &Field<'_>, front: Option<Front>, default_port: Option<u16>) -> Option<Vec<Backend>> {
    let mut seen = HashMap::new();
    let backends: Vec<_> = field.list()?.map(|item| backend(&item, front, default_port, &mut seen)).collect();
    backends.into_iter().collect()
}

fn backend(
    field: &Field<'_>,
    front: Option<Front>,
    default_port: Option<u16>,
    seen: &mut HashMap<BackendAddress, u32>,
) -> Option<Backend> {
    let fields = field.mapping(&KEYS)?;
    let weight = fields.get("weight").map_or(Some(1), |field| field.integer(1..=1000));
    let (address, port) = endpoint(&fields, Use::Backend);
    // A port that was given and is wrong must not become the default.
    let port = port.or(if fields.get("port").is_none() { default_port } else { None });
    let address = BackendAddress { address: address?, port: port? };
    let place = fields.get("address")?;
    if let Some(front) = front
        && let Some((key, reason)) = mismatch(address, front)
    {
        return fields.get(key).unwrap_or(place).refused(reason);
    }
    if let Some(line) = seen.insert(address, place.at().line) {
        return place.refused(format!("{address} is the backend on line {line} already"));
    }
    Some(Backend { address, weight: weight? })
}

/// Why a backend cannot serve a service, with the key that is wrong.
fn mismatch(backend: BackendAddress, front: Front) -> Option<(&'static str, String)> {
    let (mode, service) = (front.mode, front.address);
    let same_family = backend.address.is_ipv4() == service.address.is_ipv4();
    if !same_family && !mode.encapsulates() {
        let (have, need) = if backend.address.is_ipv4() { ("IPv4", "IPv6") } else { ("IPv6", "IPv4") };
        let reason = format!(
            "{} is {have}, the service is {need}; mode {mode} cannot mix them, mode ipip can",
            backend.address
        );
        return Some(("address", reason));
    }
    if service.ports.is_range() && backend.port != 0 {
        let reason = format!(
            "port {} is not possible: the service has the ports {}, which packets keep; leave it out",
            backend.port, service.ports
        );
        return Some(("port", reason));
    }
    let sends_itself = !mode.translates() || service.ports.is_range();
    if sends_itself && backend.address == service.address {
        let reason = format!(
            "{} is the service's own address; in mode {mode} name the backend by an address of its host",
            backend.address
        );
        return Some(("address", reason));
    }
    if !mode.translates() && backend.port != service.ports.backend_port() {
        let reason = format!(
            "port {} is not the service's; mode {mode} does not rewrite ports, so use {} or leave it out",
            backend.port, service.ports
        );
        return Some(("port", reason));
    }
    None
}
