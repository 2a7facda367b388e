//! Who may use services: lists of prefixes, limits, and what is dropped early.

use super::{
    field::{Field, Fields},
    prefixes,
    problem::quoted,
};
use crate::model::{
    Limits, Mode, NodeAdmission, Prefix, Protocol, Rate, ServiceAddress, ServiceAdmission, Sources,
};

const KEYS: [&str; 5] = ["blocklist", "blocklist-files", "allowlist", "allowlist-files", "drop-bogons"];
const LIMIT_KEYS: [&str; 3] = ["new-flows", "packets", "per-source"];
const SOURCE_KEYS: [&str; 4] = ["new-flows", "packets", "prefix-v4", "prefix-v6"];
const SWITCH: [(&str, bool); 2] = [("true", true), ("false", false)];
/// Seconds of its rate that a burst may hold.
const LONGEST_BURST: u32 = 3600;

/// Reads what holds for the node.
pub fn node(field: &Field<'_>) -> Option<NodeAdmission> {
    let fields = field.mapping(&KEYS)?;
    let blocklist = list(&fields, "blocklist", "blocklist-files");
    let allowlist = list(&fields, "allowlist", "allowlist-files");
    let drop_bogons = fields.get("drop-bogons").map_or(Some(false), |field| field.choice(&SWITCH));
    Some(NodeAdmission { blocklist: blocklist?, allowlist: allowlist?, drop_bogons: drop_bogons? })
}

fn list(fields: &Fields<'_>, key: &str, files_key: &str) -> Option<Vec<Prefix>> {
    let mut found = Vec::new();
    /* Both are read even where one is wrong, so that all problems are told in one round. */
    let listed = fields.get(key).map_or(Some(()), |field| prefixes::listed(&field, &mut found));
    let of_files = fields.get(files_key).map_or(Some(()), |field| prefixes::of_files(&field, &mut found));
    listed.and(of_files).map(|()| found)
}

/// Reads what holds for one service. `front` is its address and mode, where those are sound.
pub fn service(fields: &Fields<'_>, front: Option<(ServiceAddress, Mode)>) -> Option<ServiceAdmission> {
    let sources = match fields.get("sources") {
        Some(field) => sources(&field, front.map(|(address, _)| address)).map(Some),
        None => Some(None),
    };
    let limits = match fields.get("limits") {
        Some(field) => limits(&field, front),
        None => Some(Limits::default()),
    };
    Some(ServiceAdmission { sources: sources?, limits: limits? })
}

fn sources(field: &Field<'_>, address: Option<ServiceAddress>) -> Option<Sources> {
    let fields = field.mapping(&["allow", "deny"])?;
    let (allow, deny) = (fields.get("allow"), fields.get("deny"));
    let (list, is_allow) = match (allow, deny) {
        (Some(list), None) => (list, true),
        (None, Some(list)) => (list, false),
        (Some(_), Some(_)) => {
            return field.refused("allow and deny exclude each other; of `allow`, all others are denied");
        }
        (None, None) => return field.refused("neither allow nor deny is given; leave out `sources`"),
    };
    let mut prefixes = Vec::new();
    prefixes::listed(&list, &mut prefixes)?;
    let is_ipv6 = address?.address.is_ipv6();
    if !prefixes.iter().any(|prefix| prefix.is_ipv6() == is_ipv6) {
        let family = if is_ipv6 { "IPv6" } else { "IPv4" };
        let effect = if is_allow { "nobody could use the service" } else { "it would deny nothing" };
        return list.refused(format!(
            "the service's address is {family} and the list names no {family} prefix, so that {effect}"
        ));
    }
    let prefixes = prefixes.into();
    Some(if is_allow { Sources::Allow(prefixes) } else { Sources::Deny(prefixes) })
}

fn limits(field: &Field<'_>, front: Option<(ServiceAddress, Mode)>) -> Option<Limits> {
    let fields = field.mapping(&LIMIT_KEYS)?;
    let new_flows = new_flows(&fields, front);
    let packets = optional_rate(&fields, "packets");
    let of_source = match fields.get("per-source") {
        Some(field) => of_source(&field, front),
        None => Some(Limits::default()),
    };
    Some(Limits { new_flows: new_flows?, packets: packets?, ..of_source? })
}

fn of_source(field: &Field<'_>, front: Option<(ServiceAddress, Mode)>) -> Option<Limits> {
    let fields = field.mapping(&SOURCE_KEYS)?;
    let default = Limits::default();
    let source_new_flows = new_flows(&fields, front);
    let source_packets = optional_rate(&fields, "packets");
    let prefix_v4 = fields.get("prefix-v4").map_or(Some(default.prefix_v4), |field| field.integer(0..=32));
    let prefix_v6 = fields.get("prefix-v6").map_or(Some(default.prefix_v6), |field| field.integer(0..=128));
    Some(Limits {
        source_new_flows: source_new_flows?,
        source_packets: source_packets?,
        prefix_v4: prefix_v4?,
        prefix_v6: prefix_v6?,
        ..default
    })
}

/// A limit of new flows, where the service can tell that a flow is new.
fn new_flows(fields: &Fields<'_>, front: Option<(ServiceAddress, Mode)>) -> Option<Option<Rate>> {
    let rate = optional_rate(fields, "new-flows")?;
    if let (Some(_), Some(field), Some((address, mode))) = (rate, fields.get("new-flows"), front)
        && address.protocol == Protocol::Udp
        && !mode.translates()
    {
        return field.refused(format!(
            "mode {mode} keeps no record of UDP flows and so cannot tell a new one; limit packets instead"
        ));
    }
    Some(rate)
}

fn optional_rate(fields: &Fields<'_>, key: &str) -> Option<Option<Rate>> {
    match fields.get(key) {
        Some(field) => rate(&field).map(Some),
        None => Some(None),
    }
}

/// A rate alone, `1000/s`, or with its burst, `{ rate: 1000/s, burst: 2000 }`.
fn rate(field: &Field<'_>) -> Option<Rate> {
    if field.find("rate").is_none() && field.find("burst").is_none() {
        let per_second = per_second(field)?;
        return Some(Rate { per_second, burst: per_second });
    }
    let fields = field.mapping(&["rate", "burst"])?;
    let per_second = fields
        .require("rate", "say how many a second, such as 1000/s")
        .and_then(|field| per_second(&field))?;
    let burst = match fields.get("burst") {
        Some(field) => {
            let highest = per_second.saturating_mul(LONGEST_BURST);
            field.integer(Rate::smallest_burst(per_second)..=highest)?
        }
        None => per_second,
    };
    Some(Rate { per_second, burst })
}

fn per_second(field: &Field<'_>) -> Option<u32> {
    let text = field.text()?;
    let number = text.strip_suffix("/s").unwrap_or_default();
    let digits = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    if !digits || number.len() > 1 && number.starts_with('0') {
        return field
            .refused(format!("{} is not a rate; write how many a second, such as 1000/s", quoted(text)));
    }
    match number.parse::<u32>() {
        Ok(number) if (1..=Rate::HIGHEST).contains(&number) => Some(number),
        _ => field.refused(format!("{} is out of range; use 1/s to {}/s", quoted(text), Rate::HIGHEST)),
    }
}
