//! Lists of sources: what the maps `source_lists_v4` and `source_lists_v6` lead to.

use std::{net::IpAddr, sync::Arc};

use super::{records::address_words, skeleton::types, sys::PlainData};
use crate::model::{NodeAdmission, Prefix, Sources};

/// Bytes of a digest, of which eight bits are left for the verdict in the same word.
const DIGEST_BYTES: usize = 7;

/// Which sources of one family are admitted. Of the prefixes that fit an address the longest counts, and one of length 0 is always
/// among them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceList {
    /// Each prefix once, in ascending order, and whether it is admitted.
    rules: Arc<[(Prefix, bool)]>,
}

impl SourceList {
    /// What the node's lists say of a family; `None` where they say nothing.
    pub fn of_node(admission: &NodeAdmission, ipv6: bool) -> Option<Self> {
        let of_family = |prefix: &&Prefix| prefix.is_ipv6() == ipv6;
        let allowed = admission.allowlist.iter().filter(of_family).map(|&prefix| (prefix, true));
        let blocked = admission.blocklist.iter().filter(of_family).map(|&prefix| (prefix, false));
        let mut rules: Vec<_> = allowed.collect();
        let others = rules.is_empty();
        rules.extend(blocked);
        (!rules.is_empty()).then(|| Self::new(rules, others, ipv6))
    }

    /// What the sources of a service say of a family; `None` where they say nothing.
    pub fn of_service(sources: &Sources, ipv6: bool) -> Option<Self> {
        let (prefixes, allowed) = match sources {
            Sources::Allow(prefixes) => (prefixes, true),
            Sources::Deny(prefixes) => (prefixes, false),
        };
        let rules: Vec<_> = prefixes
            .iter()
            .filter(|prefix| prefix.is_ipv6() == ipv6)
            .map(|&prefix| (prefix, allowed))
            .collect();
        (!rules.is_empty()).then(|| Self::new(rules, !allowed, ipv6))
    }

    /// A list of these rules; of equal prefixes an admitted one counts, and what no rule fits is as `others` says.
    fn new(mut rules: Vec<(Prefix, bool)>, others: bool, ipv6: bool) -> Self {
        let all = if ipv6 { Prefix::ALL_IPV6 } else { Prefix::ALL_IPV4 };
        if !rules.iter().any(|(prefix, _)| *prefix == all) {
            rules.push((all, others));
        }
        rules.sort_unstable_by_key(|&(prefix, allowed)| (prefix, !allowed));
        rules.dedup_by_key(|(prefix, _)| *prefix);
        Self { rules: rules.into() }
    }

    /// Number of rules.
    pub fn len(&self) -> usize {
        self.rules.len()
    }

    /// False: a list has a rule for everything else.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// True where the list admits the address. Reads all rules: for tests and for looking at single addresses.
    pub fn admits(&self, address: IpAddr) -> bool {
        let fitting = self.rules.iter().filter(|(prefix, _)| prefix.contains(address));
        fitting.max_by_key(|(prefix, _)| prefix.length()).is_some_and(|(_, allowed)| *allowed)
    }

    /// A keyed digest of the rules in the lower 56 bits, by which a list that is there already is known. Who does not know the key
    /// cannot make a list that is taken for another.
    pub fn digest(&self, key: [u64; 2]) -> u64 {
        let mut state = key[0];
        for (prefix, allowed) in self.rules.iter() {
            let bits = match prefix.address() {
                IpAddr::V4(address) => u128::from(address.to_bits()),
                IpAddr::V6(address) => address.to_bits(),
            };
            let rule =
                u64::from(prefix.length()) << 2 | u64::from(prefix.is_ipv6()) << 1 | u64::from(*allowed);
            for word in [(bits >> 64) as u64, bits as u64, rule] {
                state = mix(state ^ word).wrapping_add(key[1]);
            }
        }
        mix(state ^ self.rules.len() as u64) >> 8
    }

    /// Keys and values of the rules, one behind the other, as the kernel takes them in batches of at most `most`.
    pub(super) fn batches(
        &self,
        most: usize,
        digest: u64,
    ) -> impl Iterator<Item = (Vec<u8>, Vec<u8>, u32)> + '_ {
        self.rules.chunks(most).map(move |rules| {
            let (mut keys, mut values) = (Vec::new(), Vec::new());
            for &(prefix, allowed) in rules {
                keys.extend(key(prefix));
                let digest = if prefix.length() == 0 { digest } else { 0 };
                values.extend_from_slice(value(allowed, digest).bytes());
            }
            (keys, values, rules.len() as u32)
        })
    }
}

/// The finaliser of SplitMix64.
fn mix(mut state: u64) -> u64 {
    state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    state = (state ^ (state >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    state ^ (state >> 31)
}

/// The key of a prefix in the list of its family.
pub(super) fn key(prefix: Prefix) -> Vec<u8> {
    let (length, words) = (u32::from(prefix.length()), address_words(prefix.address()));
    match prefix.address() {
        IpAddr::V4(_) => types::source_key_v4 { length, address: words[0] }.bytes().to_vec(),
        IpAddr::V6(_) => types::source_key_v6 { length, address: words }.bytes().to_vec(),
    }
}

fn value(allowed: bool, digest: u64) -> types::source_rule {
    let verdict =
        if allowed { types::source_verdict::SOURCE_ALLOWED } else { types::source_verdict::SOURCE_REFUSED };
    let mut rule = types::source_rule { verdict: verdict.0 as u8, ..Default::default() };
    rule.digest.copy_from_slice(&digest.to_le_bytes()[..DIGEST_BYTES]);
    rule
}

/// The digest in the rule of length 0.
pub(super) fn digest_of(rule: &types::source_rule) -> u64 {
    let mut bytes = [0; 8];
    bytes[..DIGEST_BYTES].copy_from_slice(&rule.digest);
    u64::from_le_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: [u64; 2] = [1, 2];

    fn prefixes(text: &str) -> Vec<Prefix> {
        text.split_whitespace().map(|prefix| prefix.parse().unwrap()).collect()
    }

    fn node(block: &str, allow: &str) -> NodeAdmission {
        NodeAdmission { blocklist: prefixes(block), allowlist: prefixes(allow), drop_bogons: false }
    }

    #[track_caller]
    fn check(list: &SourceList, admitted: &str, refused: &str) {
        for address in admitted.split_whitespace() {
            assert!(list.admits(address.parse().unwrap()), "{address} is refused");
        }
        for address in refused.split_whitespace() {
            assert!(!list.admits(address.parse().unwrap()), "{address} is admitted");
        }
    }

    #[test]
    fn the_longest_prefix_counts_whatever_list_it_is_in() {
        let lists = node("192.0.2.0/24 192.0.2.64/32", "192.0.0.0/16 192.0.2.64/26");
        let list = SourceList::of_node(&lists, false).unwrap();
        check(&list, "192.0.3.1 192.0.2.65 192.0.2.127", "192.0.2.1 192.0.2.128 192.0.2.64 198.51.100.1");
    }

    #[test]
    fn of_equal_prefixes_the_allowed_one_counts() {
        let list = SourceList::of_node(&node("192.0.2.0/24", "192.0.2.0/24"), false).unwrap();
        check(&list, "192.0.2.1", "198.51.100.1");
        assert_eq!(list.len(), 2);
    }

    #[test]
    fn families_are_apart() {
        let lists = node("", "192.0.2.0/24");
        assert!(SourceList::of_node(&lists, true).is_none(), "an IPv4 allowlist says nothing about IPv6");
        let mixed = node("2001:db8::/32", "192.0.2.0/24");
        check(&SourceList::of_node(&mixed, true).unwrap(), "2001:db9::1", "2001:db8::1");
        check(&SourceList::of_node(&mixed, false).unwrap(), "192.0.2.1", "198.51.100.1");
    }

    #[test]
    fn a_blocklist_alone_admits_all_others_and_everything_can_be_blocked_but_some() {
        check(&SourceList::of_node(&node("192.0.2.0/24", ""), false).unwrap(), "198.51.100.1", "192.0.2.1");
        let all_but = node("0.0.0.0/0", "192.0.2.1/32");
        check(&SourceList::of_node(&all_but, false).unwrap(), "192.0.2.1", "192.0.2.2 0.0.0.0");
        assert!(SourceList::of_node(&NodeAdmission::default(), false).is_none());
    }

    #[test]
    fn sources_of_services() {
        let allow = Sources::Allow(prefixes("192.0.2.0/24 2001:db8::/32").into());
        check(&SourceList::of_service(&allow, false).unwrap(), "192.0.2.1", "198.51.100.1");
        check(&SourceList::of_service(&allow, true).unwrap(), "2001:db8::1", "2001:db9::1");
        let deny = Sources::Deny(prefixes("192.0.2.0/24").into());
        check(&SourceList::of_service(&deny, false).unwrap(), "198.51.100.1", "192.0.2.1");
        assert!(SourceList::of_service(&deny, true).is_none());
    }

    #[test]
    fn the_digest_depends_on_every_rule_and_on_the_key_but_not_on_order() {
        let digest = |block: &str, allow: &str, key| {
            SourceList::of_node(&node(block, allow), false).unwrap().digest(key)
        };
        let base = digest("192.0.2.0/24 198.51.100.0/24", "203.0.113.0/24", KEY);
        assert!(base < 1 << 56);
        assert_eq!(base, digest("198.51.100.0/24 192.0.2.0/24 192.0.2.0/24", "203.0.113.0/24", KEY));
        for other in [
            digest("192.0.2.0/24 198.51.100.0/25", "203.0.113.0/24", KEY),
            digest("192.0.2.0/24", "198.51.100.0/24 203.0.113.0/24", KEY),
            digest("192.0.2.0/24 198.51.100.0/24", "", KEY),
            digest("192.0.2.0/24 198.51.100.0/24", "203.0.113.0/24", [1, 3]),
        ] {
            assert_ne!(base, other);
        }
    }
}
