//! Names and classes of the ledger's reasons, and counters read from its maps.

use std::collections::BTreeMap;

use super::skeleton::types::{self, ledger_class, ledger_reason as code};
use crate::model::status::Ledger;

/// Number of reasons a block has room for.
const REASON_COUNT: usize = code::LEDGER_REASONS.0 as usize;

/// What became of a packet, in the three classes that add up to all packets seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReasonClass {
    /// Sent on.
    Forwarded,
    /// Given to the kernel untouched.
    Passed,
    /// Dropped.
    Dropped,
}

/// One reason of the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reason {
    /// Its number in the maps.
    pub number: u32,
    /// Its name in API, CLI, metrics and manual.
    pub name: &'static str,
}

impl Reason {
    const fn new(number: code, name: &'static str) -> Self {
        Self { number: number.0, name }
    }

    /// Its class, which its number tells.
    pub const fn class(self) -> ReasonClass {
        if self.number >= ledger_class::LEDGER_FIRST_DROPPED.0 {
            ReasonClass::Dropped
        } else if self.number >= ledger_class::LEDGER_FIRST_PASSED.0 {
            ReasonClass::Passed
        } else {
            ReasonClass::Forwarded
        }
    }
}

/// Every reason, in the order of `include/tidegate/ledger.h`.
pub const REASONS: &[Reason] = &[
    Reason::new(code::FORWARD_TX, "forward-tx"),
    Reason::new(code::FORWARD_REDIRECT, "forward-redirect"),
    Reason::new(code::FORWARD_HANDOFF, "forward-handoff"),
    Reason::new(code::FORWARD_LOCAL, "forward-local"),
    Reason::new(code::FORWARD_REPLY_TX, "forward-reply-tx"),
    Reason::new(code::FORWARD_REPLY_REDIRECT, "forward-reply-redirect"),
    Reason::new(code::FORWARD_REPLY_HANDOFF, "forward-reply-handoff"),
    Reason::new(code::FORWARD_DECAPSULATED, "forward-decapsulated"),
    Reason::new(code::FORWARD_ECHO_REPLY, "forward-echo-reply"),
    Reason::new(code::PASS_NOT_IP, "pass-not-ip"),
    Reason::new(code::PASS_NOT_TCP_UDP, "pass-not-tcp-udp"),
    Reason::new(code::PASS_FRAGMENT, "pass-fragment"),
    Reason::new(code::PASS_MALFORMED, "pass-malformed"),
    Reason::new(code::PASS_NO_SERVICE, "pass-no-service"),
    Reason::new(code::PASS_NOT_A_REPLY, "pass-not-a-reply"),
    Reason::new(code::PASS_NOT_TUNNELLED, "pass-not-tunnelled"),
    Reason::new(code::PASS_OUTER_NOT_LOCAL, "pass-outer-not-local"),
    Reason::new(code::PASS_EXTENSION_HEADER, "pass-extension-header"),
    Reason::new(code::PASS_NO_BACKEND, "pass-no-backend"),
    Reason::new(code::PASS_ICMP_UNKNOWN_FLOW, "pass-icmp-unknown-flow"),
    Reason::new(code::PASS_OUTER_CHECKSUM, "pass-outer-checksum"),
    Reason::new(code::DROP_BAD_LENGTH, "drop-bad-length"),
    Reason::new(code::DROP_NO_BACKEND, "drop-no-backend"),
    Reason::new(code::DROP_BACKEND_DOWN, "drop-backend-down"),
    Reason::new(code::DROP_UNRESOLVED, "drop-unresolved"),
    Reason::new(code::DROP_TOO_BIG, "drop-too-big"),
    Reason::new(code::DROP_TTL_EXPIRED, "drop-ttl-expired"),
    Reason::new(code::DROP_FLOW_TABLE_FULL, "drop-flow-table-full"),
    Reason::new(code::DROP_FLOW_CONFLICT, "drop-flow-conflict"),
    Reason::new(code::DROP_REPLY_NO_ROUTE, "drop-reply-no-route"),
    Reason::new(code::DROP_FORWARDING_DISABLED, "drop-forwarding-disabled"),
    Reason::new(code::DROP_INTERNAL, "drop-internal"),
    Reason::new(code::DROP_INNER_MALFORMED, "drop-inner-malformed"),
    Reason::new(code::DROP_INNER_NOT_LOCAL, "drop-inner-not-local"),
    Reason::new(code::DROP_ECN_CONFLICT, "drop-ecn-conflict"),
    Reason::new(code::DROP_NO_BACKEND_ANSWERED, "drop-no-backend-answered"),
    Reason::new(code::DROP_TOO_BIG_ANSWERED, "drop-too-big-answered"),
    Reason::new(code::DROP_TTL_EXPIRED_ANSWERED, "drop-ttl-expired-answered"),
    Reason::new(code::DROP_FRAGMENT_UNKNOWN, "drop-fragment-unknown"),
    Reason::new(code::DROP_FRAGMENT_SHORT, "drop-fragment-short"),
    Reason::new(code::DROP_UNSERVED, "drop-unserved"),
    Reason::new(code::DROP_ECHO, "drop-echo"),
    Reason::new(code::DROP_BLOCKED, "drop-blocked"),
    Reason::new(code::DROP_SOURCE_REFUSED, "drop-source-refused"),
    Reason::new(code::DROP_RATE_LIMIT, "drop-rate-limit"),
    Reason::new(code::DROP_BOGON, "drop-bogon"),
];

/// One block of the ledger, added up over all CPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgerCounters {
    /// Packets that entered.
    pub seen: u64,
    /// Bytes of those from the IP header on.
    pub bytes: u64,
    packets: [u64; REASON_COUNT],
}

impl Default for LedgerCounters {
    fn default() -> Self {
        Self { seen: 0, bytes: 0, packets: [0; REASON_COUNT] }
    }
}

impl LedgerCounters {
    /// Packets under a reason.
    pub fn packets(&self, reason: Reason) -> u64 {
        self.packets.get(reason.number as usize).copied().unwrap_or(0)
    }

    /// Packets under the reason with this name; `None` where there is no such reason.
    pub fn by_name(&self, name: &str) -> Option<u64> {
        REASONS.iter().find(|reason| reason.name == name).map(|&reason| self.packets(reason))
    }

    pub(super) fn add(&mut self, block: &types::ledger) {
        self.seen = self.seen.wrapping_add(block.seen);
        self.bytes = self.bytes.wrapping_add(block.bytes);
        for (total, packets) in self.packets.iter_mut().zip(block.packets) {
            *total = total.wrapping_add(packets);
        }
    }

    fn total(&self, class: ReasonClass) -> u64 {
        REASONS.iter().filter(|reason| reason.class() == class).map(|&reason| self.packets(reason)).sum()
    }
}

impl From<&LedgerCounters> for Ledger {
    fn from(counters: &LedgerCounters) -> Self {
        let reasons: BTreeMap<String, u64> = REASONS
            .iter()
            .map(|&reason| (reason.name.to_owned(), counters.packets(reason)))
            .filter(|&(_, packets)| packets > 0)
            .collect();
        Self {
            seen: counters.seen,
            bytes: counters.bytes,
            forwarded: counters.total(ReasonClass::Forwarded),
            passed: counters.total(ReasonClass::Passed),
            dropped: counters.total(ReasonClass::Dropped),
            reasons,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const HEADER: &str = include_str!("../../include/tidegate/ledger.h");
    const MANUAL: &str = include_str!("../../docs/reference/ledger.md");

    /// Names and numbers of the reasons in the header that C includes.
    fn header_reasons() -> Vec<(String, u32)> {
        let body = HEADER.split("enum ledger_reason {").nth(1).unwrap().split("};").next().unwrap();
        body.lines()
            .filter_map(|line| line.trim().split_once(" = "))
            .map(|(name, rest)| (name.to_owned(), rest.split(',').next().unwrap().parse().unwrap()))
            .filter(|(name, _)| !name.starts_with("LEDGER_"))
            .collect()
    }

    #[test]
    fn every_reason_of_the_header_has_a_name_made_of_its_constant() {
        let known: Vec<_> =
            REASONS.iter().map(|r| (r.name.to_uppercase().replace('-', "_"), r.number)).collect();
        assert_eq!(known, header_reasons());
    }

    #[test]
    fn every_reason_stands_in_the_manual_and_no_other() {
        let documented: BTreeSet<_> = MANUAL
            .lines()
            .filter_map(|line| line.strip_prefix("| `")?.split_once('`'))
            .map(|(name, _)| name)
            .filter(|name| ["forward-", "pass-", "drop-"].iter().any(|class| name.starts_with(class)))
            .collect();
        assert_eq!(documented, REASONS.iter().map(|reason| reason.name).collect());
    }

    #[test]
    fn classes_follow_the_names() {
        for reason in REASONS {
            let class = match reason.name.split('-').next() {
                Some("forward") => ReasonClass::Forwarded,
                Some("pass") => ReasonClass::Passed,
                _ => ReasonClass::Dropped,
            };
            assert_eq!(reason.class(), class, "{}", reason.name);
        }
    }
}
