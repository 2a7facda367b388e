//! Tunnelled packets that are broken, foreign or marked: the other end agrees with the model on every one.

use std::{collections::BTreeSet, net::IpAddr};

use tidegate::datapath::Decap;

use super::{
    bench::{Bench, Case, GUE_PORT, arriving, client, packet, with_prefixes},
    model::{self, QINQ, decapsulate},
};
use crate::harness::frame::{assert_same, checksum, hex};

/// Compares the other end with the model on a frame. Returns what became of it.
fn compare(decap: &Decap, own: &BTreeSet<IpAddr>, ingress: u32, frame: &[u8]) -> &'static str {
    let before = decap.status().unwrap().ledger;
    let (reason, changed) = decapsulate(frame, own, GUE_PORT);
    let got = decap.run(frame, ingress).unwrap();
    let after = decap.status().unwrap().ledger;
    let count = |ledger: &tidegate::datapath::LedgerCounters| ledger.by_name(reason);
    if count(&after) != count(&before).map(|packets| packets + 1) {
        panic!("not {reason}, after {before:?} {after:?}:\n{}", hex(frame));
    }
    assert_eq!(got.action, if reason.starts_with("drop") { 1 } else { 2 }, "{reason}");
    if !reason.starts_with("drop") {
        assert_same(changed.as_deref().unwrap_or(frame), &got.frame);
    }
    reason
}

fn tunnelled(bench: &Bench, case: &Case, class: u8) -> Vec<u8> {
    let inner = packet(case, client(case, 40000), class, b"payload");
    bench.send(&arriving(&inner, QINQ, &[])).frame
}

#[test]
fn every_truncation_is_judged_as_the_model_does() {
    let bench = Bench::new(with_prefixes());
    let (decap, own) = bench.other_end();
    let mut reasons = BTreeSet::new();
    for case in &bench.cases {
        let frame = tunnelled(&bench, case, 0);
        for length in 14..frame.len() {
            reasons.insert(compare(&decap, &own, bench.ingress, &frame[..length]));
        }
    }
    assert!(!reasons.contains("forward-decapsulated"), "nothing that is cut short is unpacked");
}

#[test]
fn every_byte_that_is_changed_is_judged_as_the_model_does() {
    let bench = Bench::new(with_prefixes());
    let (decap, own) = bench.other_end();
    let mut reasons = BTreeSet::new();
    for case in &bench.cases {
        for class in [0, 2] {
            let frame = tunnelled(&bench, case, class);
            for at in 12..frame.len() {
                for flip in [0x01, 0x03, 0x10, 0x30, 0x80, 0xff] {
                    let mut mutant = frame.clone();
                    mutant[at] ^= flip;
                    reasons.insert(compare(&decap, &own, bench.ingress, &mutant));
                }
            }
        }
    }
    let expected = [
        "drop-ecn-conflict",
        "drop-inner-malformed",
        "drop-inner-not-local",
        "forward-decapsulated",
        "pass-malformed",
        "pass-not-ip",
        "pass-not-tunnelled",
        "pass-outer-checksum",
        "pass-outer-not-local",
    ];
    let missing: Vec<_> = expected.iter().filter(|reason| !reasons.contains(*reason)).collect();
    assert!(missing.is_empty(), "the mutants show none of {missing:?}, only {reasons:?}");
}

/// Writes right checksums into the outer headers of an IPv4 tunnel, so that what else is wrong is seen.
fn repair(frame: &mut [u8], l3: usize) {
    frame[l3 + 10..l3 + 12].fill(0);
    let length = usize::from(frame[l3] & 15) * 4;
    let sum = checksum::checksum(&frame[l3..l3 + length]);
    frame[l3 + 10..l3 + 12].copy_from_slice(&sum.to_be_bytes());
}

#[test]
fn marks_of_congestion_come_through_as_rfc_6040_says() {
    let bench = Bench::new(with_prefixes());
    let (decap, own) = bench.other_end();
    let mut seen = BTreeSet::new();
    for case in &bench.cases {
        for inner in 0..4 {
            for outer in 0..4 {
                let mut frame = tunnelled(&bench, case, 0xb8 | inner);
                let l3 = 14 + 4 * case.tags.len();
                if case.outer_ipv6 {
                    frame[l3 + 1] = frame[l3 + 1] & 0xcf | outer << 4;
                } else {
                    frame[l3 + 1] = frame[l3 + 1] & 0xfc | outer;
                    repair(&mut frame, l3);
                }
                let reason = compare(&decap, &own, bench.ingress, &frame);
                seen.insert((inner, outer, reason));
            }
        }
    }
    for (inner, outer, reason) in seen {
        let conflict = inner == 0 && outer == 3;
        assert_eq!(reason == "drop-ecn-conflict", conflict, "inner {inner}, outer {outer}: {reason}");
    }
}

#[test]
fn outer_options_and_fragments_and_changed_headers_with_right_checksums_are_judged_as_the_model_does() {
    let bench = Bench::new(with_prefixes());
    let (decap, own) = bench.other_end();
    for case in bench.cases.iter().filter(|case| !case.outer_ipv6) {
        let frame = tunnelled(&bench, case, 2);
        let l3 = 14 + 4 * case.tags.len();
        for at in (0..20).filter(|at| !(10..12).contains(at)) {
            for flip in [0x01, 0x04, 0x20, 0x40, 0xff] {
                let mut mutant = frame.clone();
                mutant[l3 + at] ^= flip;
                if usize::from(mutant[l3] & 15) * 4 + l3 <= mutant.len() {
                    repair(&mut mutant, l3);
                }
                compare(&decap, &own, bench.ingress, &mutant);
            }
        }
        // Options of every length, in front of the same packet.
        for words in 1..=10 {
            let mut longer = frame.clone();
            longer.splice(l3 + 20..l3 + 20, vec![1; words * 4]);
            longer[l3] = 0x45 + words as u8;
            let length = (longer.len() - l3) as u16;
            longer[l3 + 2..l3 + 4].copy_from_slice(&length.to_be_bytes());
            repair(&mut longer, l3);
            assert_eq!(compare(&decap, &own, bench.ingress, &longer), "forward-decapsulated");
            longer[l3 + 21] ^= 1;
            assert_eq!(compare(&decap, &own, bench.ingress, &longer), "pass-outer-checksum");
        }
    }
}

#[test]
fn an_outer_udp_checksum_is_verified_where_there_is_one() {
    let bench = Bench::new(with_prefixes());
    let (decap, own) = bench.other_end();
    for case in bench.cases.iter().filter(|case| case.mode == tidegate::model::Mode::Gue) {
        // Payloads around the size of what is added up at once, and an odd one.
        for size in [0, 1, 63, 64, 100, 101, 127, 128, 129, 1000, 1399] {
            let inner = packet(case, client(case, 40000), 0, &vec![0xa7; size]);
            let mut frame = bench.send(&arriving(&inner, QINQ, &[])).frame;
            let l3 = 14 + 4 * case.tags.len();
            let udp = l3 + if case.outer_ipv6 { 40 } else { 20 };
            let end = udp + usize::from(u16::from_be_bytes([frame[udp + 4], frame[udp + 5]]));
            let tunnel = bench.tunnel(case);
            let hash = crate::harness::model::hash::five_tuple(
                client(case, 40000),
                (super::bench::service(case), case.port).into(),
                17,
            );
            let source = model::source(&tunnel, hash);
            let right = checksum::transport_checksum(source, tunnel.destination, 17, &frame[udp..end]);
            frame[udp + 6..udp + 8].copy_from_slice(&right.to_be_bytes());
            assert_eq!(compare(&decap, &own, bench.ingress, &frame), "forward-decapsulated", "{size} bytes");
            for at in [udp, udp + 6, end - 1] {
                let mut mutant = frame.clone();
                mutant[at] ^= 0x11;
                assert_eq!(compare(&decap, &own, bench.ingress, &mutant), "pass-outer-checksum", "{size}");
            }
        }
    }
}
