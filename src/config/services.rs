//! Services.

use std::collections::HashMap;

use super::{
    address::{Use, endpoint},
    admission,
    backends::backends,
    field::{Field, Fields},
    hash::hash,
    health::health,
    ports::{SeenRanges, check_overlap, check_probe, ports},
    problem::quoted,
};
use crate::model::{Backend, HealthCheck, Mode, OnNoBackend, Protocol, Service, ServiceAddress, ServiceName};

const KEYS: [&str; 14] = [
    "name",
    "address",
    "port",
    "ports",
    "protocol",
    "mode",
    "hash",
    "hash-prefix",
    "on-no-backend",
    "table",
    "sources",
    "limits",
    "health",
    "backends",
];
const PROTOCOLS: [(&str, Protocol); 2] = [("tcp", Protocol::Tcp), ("udp", Protocol::Udp)];
const MODES: [(&str, Mode); 5] = {
    let [nat, dsr, ipip, gre, gue] = Mode::ALL;
    [(nat.name(), nat), (dsr.name(), dsr), (ipip.name(), ipip), (gre.name(), gre), (gue.name(), gue)]
};

const ON_NO_BACKEND: [(&str, OnNoBackend); 3] = {
    let [drop, reject, pass] = OnNoBackend::ALL;
    [(drop.name(), drop), (reject.name(), reject), (pass.name(), pass)]
};

/// Backends that a table is sized for where nothing is said and no more are listed.
const USUAL_MAX_BACKENDS: u16 = 16;

/// What was seen in earlier services, with its line.
#[derive(Default)]
struct Seen {
    names: HashMap<ServiceName, u32>,
    addresses: HashMap<ServiceAddress, u32>,
    ranges: SeenRanges,
}

/// What backends are checked against.
#[derive(Clone, Copy)]
pub struct Front {
    /// What clients connect to.
    pub address: ServiceAddress,
    /// How packets are sent on.
    pub mode: Mode,
}

/// Reads the list of services; what their health checks do not say is as in `base`.
pub fn services(field: &Field<'_>, base: &HealthCheck) -> Option<Vec<Service>> {
    let mut seen = Seen::default();
    let services: Vec<_> = field.list()?.map(|item| service(&item, base, &mut seen)).collect();
    services.into_iter().collect()
}

fn service(field: &Field<'_>, base: &HealthCheck, seen: &mut Seen) -> Option<Service> {
    let fields = field.mapping(&KEYS)?;
    let name = name(&fields, seen);
    let address = service_address(&fields, seen);
    let mode = fields
        .require("mode", "say how packets are sent to backends: nat, dsr, ipip, gre or gue")
        .and_then(|field| field.choice(&MODES));
    let on_no_backend = match fields.get("on-no-backend") {
        Some(field) => field.choice(&ON_NO_BACKEND),
        None => Some(OnNoBackend::default()),
    };
    let health = match fields.get("health") {
        Some(field) => health(&field, base),
        None => Some(base.clone()),
    };
    let admission = admission::service(&fields, address.zip(mode));
    let front = address.zip(mode).map(|(address, mode)| Front { address, mode });
    let port = address.map(|address| address.ports.backend_port());
    let hash = hash(&fields, address);
    if let Some((address, health)) = address.zip(health.as_ref()) {
        check_probe(&fields, address, health);
    }
    let backends = match fields.get("backends") {
        Some(field) => backends(&field, front, port),
        None => Some(Vec::new()),
    };
    let max_backends = max_backends(&fields, backends.as_deref());
    Some(Service {
        name: name?,
        address: address?,
        mode: mode?,
        hash: hash?,
        on_no_backend: on_no_backend?,
        max_backends: max_backends?,
        health: health?,
        admission: admission?,
        backends: backends?,
    })
}

fn name(fields: &Fields<'_>, seen: &mut Seen) -> Option<ServiceName> {
    let field = fields.require("name", "every service needs a name of its own, such as web")?;
    let name: ServiceName = match field.text()?.parse() {
        Ok(name) => name,
        Err(_) => {
            return field.refused(format!(
                "{} is not a service name; use 1 to 63 characters of a-z, A-Z, 0-9, `.`, `_` and `-`, beginning with \
                 a letter or digit",
                field.kind()
            ));
        }
    };
    if let Some(line) = seen.names.insert(name.clone(), field.at().line) {
        let name = quoted(name.as_str());
        return field.refused(format!("{name} is the name of the service on line {line} already"));
    }
    Some(name)
}

fn service_address(fields: &Fields<'_>, seen: &mut Seen) -> Option<ServiceAddress> {
    let protocol = fields.require("protocol", "use tcp or udp").and_then(|field| field.choice(&PROTOCOLS));
    let (address, port) = endpoint(fields, Use::Service);
    if port.is_none() && fields.get("port").is_none() && fields.get("ports").is_none() && address.is_some() {
        fields.require("port", "write the port clients connect to, 1 to 65535");
    }
    let ports = ports(fields, port);
    let address = ServiceAddress { address: address?, ports: ports?, protocol: protocol? };
    let field = fields.get("address")?;
    if let Some(line) = seen.addresses.insert(address, field.at().line) {
        return field.refused(format!("{address} is the address of the service on line {line} already"));
    }
    if let Some(field) = fields.get("ports") {
        check_overlap(&field, address, &mut seen.ranges)?;
    }
    Some(address)
}

/// The backends that the table is sized for.
fn max_backends(fields: &Fields<'_>, backends: Option<&[Backend]>) -> Option<u16> {
    let listed = fields.get("backends");
    let count = backends.map_or(0, <[Backend]>::len);
    if let Some(table) = fields.get("table")
        && let Some(field) = table.mapping(&["max-backends"])?.get("max-backends")
    {
        let max_backends = field.integer(1..=u16::MAX)?;
        return if count <= usize::from(max_backends) {
            Some(max_backends)
        } else {
            field.refused(format!(
                "{count} backends are listed, the table is sized for {max_backends}; set table.max-backends to {count} \
                 or more, at a quiet time: another size of table moves flows"
            ))
        };
    }
    match u16::try_from(count) {
        Ok(count) => Some(count.max(USUAL_MAX_BACKENDS).checked_next_power_of_two().unwrap_or(u16::MAX)),
        Err(_) => {
            listed?.refused(format!("{count} backends are listed; a service can have {} at most", u16::MAX))
        }
    }
}
