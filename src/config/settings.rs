//! The file as a whole: the API's socket, the capacity, the defaults, and what must fit together.

use std::{ops::RangeInclusive, path::PathBuf};

use super::{
    admission,
    encapsulation::encapsulation,
    field::{Field, Fields},
    health::health,
    interfaces::interfaces,
    problem::quoted,
    services::services,
};
use crate::model::{
    AddressPolicy, ApiSocket, Capacity, Desired, EchoRequest, Encapsulation, HealthCheck, NodeAdmission,
    Service, UnservedPort, backend_records,
};

const KEYS: [&str; 9] = [
    "interfaces",
    "api",
    "capacity",
    "encapsulation",
    "admission",
    "unserved-port",
    "echo",
    "defaults",
    "services",
];

const SERVICES: RangeInclusive<u32> = 1..=65_535;
/// 1 GiB of records at most.
const BACKENDS: RangeInclusive<u32> = 64..=1 << 24;
const FLOWS: RangeInclusive<u32> = 1024..=1 << 30;
const FRAGMENTS: RangeInclusive<u32> = 1024..=1 << 24;
/// Bytes of the longest path of a Unix socket (`sun_path` less the closing zero).
const LONGEST_SOCKET_PATH: usize = 107;

/// Reads the whole file.
pub fn desired(file: &Field<'_>) -> Option<Desired> {
    let fields = file.mapping(&KEYS)?;
    let interfaces = fields
        .require("interfaces", "name at least one interface: interfaces: [{ name: eth0 }]")
        .and_then(|field| interfaces(&field));
    let api = match fields.get("api") {
        Some(field) => api(&field),
        None => Some(ApiSocket::default()),
    };
    let capacity = match fields.get("capacity") {
        Some(field) => capacity(&field),
        None => Some(Capacity::default()),
    };
    let encapsulation = match fields.get("encapsulation") {
        Some(field) => encapsulation(&field),
        None => Some(Encapsulation::default()),
    };
    let admission = match fields.get("admission") {
        Some(field) => admission::node(&field),
        None => Some(NodeAdmission::default()),
    };
    // Services are read even where the defaults are wrong, so that their own problems are told in the same round.
    let default_health = default_health(&fields);
    let base = default_health.clone().unwrap_or_default();
    let services = match fields.get("services") {
        Some(field) => services(&field, &base),
        None => Some(Vec::new()),
    };
    let address_policy = address_policy(&fields);
    let (capacity, services) = (capacity?, services?);
    check_capacity(&fields, &capacity, &services);
    default_health?;
    let (encapsulation, address_policy) = (encapsulation?, address_policy?);
    Some(Desired {
        interfaces: interfaces?,
        api: api?,
        capacity,
        encapsulation,
        admission: admission?,
        address_policy,
        services,
    })
}

fn address_policy(file: &Fields<'_>) -> Option<AddressPolicy> {
    let unserved_port = match file.get("unserved-port") {
        Some(field) => field.choice(&UnservedPort::ALL),
        None => Some(UnservedPort::default()),
    };
    let echo = match file.get("echo") {
        Some(field) => field.choice(&EchoRequest::ALL),
        None => Some(EchoRequest::default()),
    };
    Some(AddressPolicy { unserved_port: unserved_port?, echo: echo? })
}

fn default_health(file: &Fields<'_>) -> Option<HealthCheck> {
    let builtin = HealthCheck::default();
    let Some(defaults) = file.get("defaults") else { return Some(builtin) };
    let fields = defaults.mapping(&["health"])?;
    match fields.get("health") {
        Some(field) => health(&field, &builtin),
        None => Some(builtin),
    }
}

fn api(field: &Field<'_>) -> Option<ApiSocket> {
    let fields = field.mapping(&["socket"])?;
    let Some(socket) = fields.get("socket") else { return Some(ApiSocket::default()) };
    let fields = socket.mapping(&["path", "mode", "group"])?;
    let default = ApiSocket::default();
    let path = fields.get("path").map_or(Some(default.path), |field| socket_path(&field));
    let mode = fields.get("mode").map_or(Some(default.mode), |field| permissions(&field));
    let group = match fields.get("group") {
        Some(field) => group(&field).map(Some),
        None => Some(None),
    };
    Some(ApiSocket { path: path?, mode: mode?, group: group? })
}

fn socket_path(field: &Field<'_>) -> Option<PathBuf> {
    let path = field.text()?;
    if !path.starts_with('/') || path.ends_with('/') {
        return field.refused(format!("{} is not the absolute path of a socket", quoted(path)));
    }
    if path.len() > LONGEST_SOCKET_PATH || path.contains('\0') {
        return field
            .refused(format!("a socket's path has at most {LONGEST_SOCKET_PATH} bytes, none of them zero"));
    }
    Some(path.into())
}

/// Permission bits in octal digits, quoted or not: there is only one way to read them.
fn permissions(field: &Field<'_>) -> Option<u32> {
    let text = field.text()?;
    let octal = (3..=4).contains(&text.len()) && text.bytes().all(|byte| (b'0'..=b'7').contains(&byte));
    match u32::from_str_radix(text, 8) {
        Ok(bits) if octal && bits <= 0o777 => Some(bits),
        _ => field.refused(format!(
            "{} is not a file mode; use octal digits from \"0000\" to \"0777\"",
            quoted(text)
        )),
    }
}

fn group(field: &Field<'_>) -> Option<String> {
    const LONGEST: usize = 32;
    let name = field.text()?;
    if name.len() > LONGEST || name.contains(|c: char| c == ':' || c.is_whitespace() || c.is_control()) {
        return field.refused(format!("{} is not the name of a group", quoted(name)));
    }
    Some(name.to_owned())
}

fn capacity(field: &Field<'_>) -> Option<Capacity> {
    let fields = field.mapping(&["services", "backends", "flows", "fragments"])?;
    let default = Capacity::default();
    let size = |key, default, allowed| fields.get(key).map_or(Some(default), |field| field.integer(allowed));
    let services = size("services", default.services, SERVICES);
    let backends = size("backends", default.backends, BACKENDS);
    let flows = size("flows", default.flows, FLOWS);
    let fragments = size("fragments", default.fragments, FRAGMENTS);
    Some(Capacity { services: services?, backends: backends?, flows: flows?, fragments: fragments? })
}

/// Says which limit of the capacity is too low for the services, and what it must be.
fn check_capacity(file: &Fields<'_>, capacity: &Capacity, services: &[Service]) {
    let records: u64 = services.iter().map(|service| u64::from(backend_records(service.max_backends))).sum();
    let needed_records = records + 1;
    if services.len() as u64 > u64::from(capacity.services) {
        let (needed, limit) = (services.len(), capacity.services);
        let remedy = remedy("services", needed as u64, SERVICES);
        refuse_capacity(file, "services", &format!("{needed} services do not fit into {limit}; {remedy}"));
    }
    if needed_records > u64::from(capacity.backends) {
        let limit = capacity.backends;
        let remedy = remedy("backends", needed_records, BACKENDS);
        let message = format!(
            "the services need {needed_records} backend records (for each twice its table.max-backends and one more, \
             and one besides), {limit} do not suffice; {remedy}"
        );
        refuse_capacity(file, "backends", &message);
    }
}

fn remedy(key: &str, needed: u64, allowed: RangeInclusive<u32>) -> String {
    if needed > u64::from(*allowed.end()) {
        return format!("capacity.{key} can be {} at most: use fewer", allowed.end());
    }
    format!("set capacity.{key} to {needed} or more")
}

/// Refuses the limit where it is given, else the list of services that exceeds its default.
fn refuse_capacity(file: &Fields<'_>, key: &str, message: &str) {
    let capacity = file.get("capacity");
    let services = file.get("services");
    if let Some(place) = capacity.as_ref().and_then(|field| field.find(key)).or(services) {
        place.refuse(message);
    }
}
