//! Who may use services, in the maps: `admission`, `source_lists_v4` and `source_lists_v6`.

use std::{
    collections::BTreeMap,
    mem::{offset_of, size_of},
    os::fd::{AsFd, AsRawFd},
};

use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType, libbpf_sys};

use super::{
    DatapathError,
    kernel::Kernel,
    skeleton::types::{self, admission_checks as check, limit_kind},
    sources::{self, SourceList},
    sys::{PlainData, Word},
};
use crate::model::{Limits, Prefix, Rate};

const _: () = {
    assert!(size_of::<types::admission>() == 128);
    assert!(offset_of!(types::admission, checks) == 0);
    assert!(offset_of!(types::admission, arrival) == 64);
    assert!(size_of::<types::source_bucket>() == 64);
    assert!(size_of::<types::source_key_v4>() == 8);
    assert!(size_of::<types::source_key_v6>() == 20);
    assert!(size_of::<types::source_rule>() == 8);
};

/// Rules that one call to the kernel carries.
const RULES_PER_BATCH: usize = 1 << 15;
const KINDS: usize = limit_kind::LIMIT_KINDS.0 as usize;

/// What is looked at before a packet may use a service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checks {
    /// There is a list of IPv4 sources.
    pub sources_v4: bool,
    /// There is a list of IPv6 sources.
    pub sources_v6: bool,
    /// There are limits.
    pub limits: bool,
    /// Of the node only: what cannot be sound is dropped.
    pub bogons: bool,
    /// Of the node only: some service has checks of its own.
    pub services: bool,
}

/// An element of the map `admission`, less what packets write there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AdmissionRecord {
    /// What is looked at.
    pub checks: Checks,
    /// Bits of an address that make a source, IPv4 and IPv6.
    prefixes: [u8; 2],
    /// Time between two tokens, in the unit of the packet path; 0: no limit.
    interval: [u64; KINDS],
    burst: [u32; KINDS],
}

/// What was found of it in pinned maps. Element 0 and list 0 are the node's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AdoptedAdmission {
    /// Key of the digests.
    pub key: [u64; 2],
    /// Records that say something, by service ID.
    pub records: BTreeMap<u16, AdmissionRecord>,
    /// Digests of lists, by service ID and whether they are of IPv6 sources.
    pub lists: BTreeMap<(u16, bool), u64>,
}

impl Checks {
    fn to_raw(self) -> u32 {
        let bit = |set: bool, bit: check| if set { bit.0 } else { 0 };
        bit(self.sources_v4, check::CHECK_SOURCES_V4)
            | bit(self.sources_v6, check::CHECK_SOURCES_V6)
            | bit(self.limits, check::CHECK_LIMITS)
            | bit(self.bogons, check::CHECK_BOGONS)
            | bit(self.services, check::CHECK_SERVICES)
    }

    fn from_raw(raw: u32) -> Self {
        let has = |bit: check| raw & bit.0 != 0;
        Self {
            sources_v4: has(check::CHECK_SOURCES_V4),
            sources_v6: has(check::CHECK_SOURCES_V6),
            limits: has(check::CHECK_LIMITS),
            bogons: has(check::CHECK_BOGONS),
            services: has(check::CHECK_SERVICES),
        }
    }
}

impl AdmissionRecord {
    /// A record with these limits and the checks that they need.
    pub fn of_limits(limits: &Limits) -> Self {
        if limits.is_none() {
            return Self::default();
        }
        let mut record = Self {
            checks: Checks { limits: true, ..Checks::default() },
            prefixes: [limits.prefix_v4, limits.prefix_v6],
            ..Self::default()
        };
        for (limit, rate) in [
            (limit_kind::LIMIT_PACKETS, limits.packets),
            (limit_kind::LIMIT_NEW_FLOWS, limits.new_flows),
            (limit_kind::LIMIT_SOURCE_PACKETS, limits.source_packets),
            (limit_kind::LIMIT_SOURCE_NEW_FLOWS, limits.source_new_flows),
        ] {
            if let Some(rate) = rate {
                record.interval[limit.0 as usize] = interval(rate);
                record.burst[limit.0 as usize] = rate.burst;
            }
        }
        record
    }

    fn has_same_limits(&self, other: &Self) -> bool {
        (self.prefixes, self.interval, self.burst) == (other.prefixes, other.interval, other.burst)
    }

    fn to_raw(self, source_buckets: u32) -> types::admission {
        types::admission {
            checks: self.checks.to_raw(),
            source_buckets,
            prefix_v4: self.prefixes[0],
            prefix_v6: self.prefixes[1],
            interval: self.interval,
            burst: self.burst,
            ..Default::default()
        }
    }

    fn from_raw(raw: &types::admission) -> Self {
        Self {
            checks: Checks::from_raw(raw.checks),
            prefixes: [raw.prefix_v4, raw.prefix_v6],
            interval: raw.interval,
            burst: raw.burst,
        }
    }
}

/// The time between two tokens in the unit of the packet path, rounded to the nearest.
fn interval(rate: Rate) -> u64 {
    const SECOND: u64 = 1_000_000_000 << types::limit_time::LIMIT_TIME_SHIFT.0;
    let rate = u64::from(rate.per_second.max(1));
    (SECOND + rate / 2) / rate
}

impl Kernel {
    fn list_map(&self, ipv6: bool) -> &MapHandle {
        if ipv6 { &self.maps.source_lists_v6 } else { &self.maps.source_lists_v4 }
    }

    pub(super) fn read_admission(&self) -> Result<AdoptedAdmission, DatapathError> {
        let mut adopted =
            AdoptedAdmission { key: self.node.get(0).flow_secret, ..AdoptedAdmission::default() };
        for id in 0..self.admission.len() {
            let index = u16::try_from(id).unwrap_or(u16::MAX);
            let record = AdmissionRecord::from_raw(&self.admission.get(id));
            if record != AdmissionRecord::default() {
                adopted.records.insert(index, record);
            }
            for ipv6 in [false, true] {
                if let Some(digest) = self.read_list_digest(index, ipv6)? {
                    adopted.lists.insert((index, ipv6), digest);
                }
            }
        }
        Ok(adopted)
    }

    /// The digest of a list, where there is a list. That of one without a digest is that of no list.
    fn read_list_digest(&self, id: u16, ipv6: bool) -> Result<Option<u64>, DatapathError> {
        let failed = |error| DatapathError::system(format!("read the list of sources {id}"), error);
        let key = u32::from(id).to_ne_bytes();
        let Some(value) = self.list_map(ipv6).lookup(&key, MapFlags::ANY).map_err(failed)? else {
            return Ok(None);
        };
        let map_id = u32::from_ne_bytes(value.try_into().unwrap_or_default());
        let list = MapHandle::from_map_id(map_id).map_err(failed)?;
        let all = if ipv6 { Prefix::ALL_IPV6 } else { Prefix::ALL_IPV4 };
        let rule = list.lookup(&sources::key(all), MapFlags::ANY).map_err(failed)?;
        let rule = rule.and_then(|bytes| types::source_rule::from_bytes(&bytes)).unwrap_or_default();
        Ok(Some(sources::digest_of(&rule)))
    }

    /// A list with these rules, not yet visible to packets.
    fn build_list(&self, list: &SourceList, ipv6: bool) -> Result<MapHandle, libbpf_rs::Error> {
        let mut options = libbpf_sys::bpf_map_create_opts {
            sz: size_of::<libbpf_sys::bpf_map_create_opts>() as _,
            map_flags: libbpf_sys::BPF_F_NO_PREALLOC,
            ..Default::default()
        };
        let (name, key_size, types) = if ipv6 {
            ("source_list_v6", size_of::<types::source_key_v6>(), &self.list_types[1])
        } else {
            ("source_list_v4", size_of::<types::source_key_v4>(), &self.list_types[0])
        };
        if let Some(types) = types {
            options.btf_fd = types.btf.as_raw_fd() as u32;
            options.btf_key_type_id = types.key;
            options.btf_value_type_id = types.value;
        }
        let value_size = size_of::<types::source_rule>() as u32;
        let rules = list.len() as u32;
        let map =
            MapHandle::create(MapType::LpmTrie, Some(name), key_size as u32, value_size, rules, &options)?;
        let digest = list.digest(self.node.get(0).flow_secret);
        for (keys, values, count) in list.batches(RULES_PER_BATCH, digest) {
            map.update_batch(&keys, &values, count, MapFlags::ANY, MapFlags::ANY)?;
        }
        Ok(map)
    }

    pub(super) fn replace_sources(
        &mut self,
        id: u16,
        ipv6: bool,
        list: Option<&SourceList>,
    ) -> Result<(), DatapathError> {
        let key = u32::from(id).to_ne_bytes();
        let family = if ipv6 { "IPv6" } else { "IPv4" };
        let subject = if id == 0 { "of the node".to_owned() } else { format!("of service {id}") };
        let failed = |what: &str, error: libbpf_rs::Error| {
            DatapathError::system(format!("{what} the list of {family} sources {subject}"), error)
        };
        let done = match list {
            Some(list) => {
                let built = self.build_list(list, ipv6).map_err(|error| failed("build", error))?;
                let value = built.as_fd().as_raw_fd().to_ne_bytes();
                self.list_map(ipv6).update(&key, &value, MapFlags::ANY)
            }
            None => self.list_map(ipv6).delete(&key),
        };
        match done {
            Err(error) if error.kind() != libbpf_rs::ErrorKind::NotFound => Err(failed("replace", error)),
            _ => {
                self.writes += 1;
                Ok(())
            }
        }
    }

    pub(super) fn replace_admission(
        &mut self,
        id: u16,
        record: &AdmissionRecord,
    ) -> Result<(), DatapathError> {
        let index = usize::from(id);
        if index != 0 {
            self.service_index(id)?;
        }
        let raw = self.admission.get(index);
        if AdmissionRecord::from_raw(&raw).has_same_limits(record) {
            let word = Word::from(record.checks.to_raw()) | Word::from(raw.source_buckets) << 32;
            self.admission.set_word(index, offset_of!(types::admission, checks), word);
        } else {
            /* The buckets of tokens begin anew: the times in them are those of the former rates. */
            self.admission.set(index, &record.to_raw(raw.source_buckets));
        }
        self.writes += 1;
        Ok(())
    }

    /// Writes into new maps what does not change any more.
    pub(super) fn initialize_admission(&self) {
        self.admission.set(0, &AdmissionRecord::default().to_raw(self.sizes.source_buckets()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_met_within_a_thousandth() {
        for per_second in [1, 3, 1000, 999_983, 10_000_000, 50_000_001, Rate::HIGHEST] {
            let interval = interval(Rate { per_second, burst: 1 });
            let reached = 64e9 / interval as f64;
            let error = (reached / f64::from(per_second) - 1.0).abs();
            assert!(error < 0.001, "{per_second}/s: {reached}");
        }
    }

    #[test]
    fn records_survive_the_map() {
        let rate = |per_second| Some(Rate { per_second, burst: per_second });
        let limits = Limits {
            packets: rate(10),
            new_flows: rate(20),
            source_packets: rate(30),
            source_new_flows: rate(40),
            prefix_v4: 24,
            prefix_v6: 56,
        };
        let mut record = AdmissionRecord::of_limits(&limits);
        record.checks.sources_v6 = true;
        assert_eq!(AdmissionRecord::from_raw(&record.to_raw(8)), record);
        assert_eq!(AdmissionRecord::of_limits(&Limits::default()), AdmissionRecord::default());
    }
}
