//! Paths and queues are chosen by outer headers: flows must differ there, and one flow must not.

use std::collections::BTreeSet;

use tidegate::model::Mode;

use super::{
    bench::{Bench, arriving, client, packet, with_prefixes, without_prefixes},
    model::UNTAGGED,
};

/// The outer source address and what else differs by flow: UDP source port, flow label.
fn entropy(frame: &[u8], outer_ipv6: bool) -> (Vec<u8>, [u8; 2], [u8; 3]) {
    match outer_ipv6 {
        false => (frame[26..30].to_vec(), [frame[34], frame[35]], [0; 3]),
        true => (frame[22..38].to_vec(), [frame[54], frame[55]], [frame[15] & 15, frame[16], frame[17]]),
    }
}

#[test]
fn flows_differ_within_the_prefix_and_one_flow_always_looks_the_same() {
    let bench = Bench::new(with_prefixes());
    for case in bench.cases.iter().filter(|case| case.tags.is_empty()) {
        let (mut sources, mut ports, mut labels) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        for port in 30000..30200 {
            let from = client(case, port);
            let one = bench.send(&arriving(&packet(case, from, 0, b"x"), UNTAGGED, &[])).frame;
            let other = bench.send(&arriving(&packet(case, from, 0, b"more"), UNTAGGED, &[])).frame;
            let (source, udp, label) = entropy(&one, case.outer_ipv6);
            assert_eq!(
                (&source, label),
                (&entropy(&other, case.outer_ipv6).0, entropy(&other, case.outer_ipv6).2)
            );
            let prefix: &[u8] = match case.outer_ipv6 {
                false => &[198, 18, 7],
                true => &[0x20, 1, 0x0d, 0xb8, 0, 7, 0, 7],
            };
            assert!(source.starts_with(prefix), "{case:?}: {source:?}");
            if case.mode == Mode::Gue {
                assert_eq!(udp, entropy(&other, case.outer_ipv6).1);
                assert!(udp[0] >= 0xc0, "a port of the dynamic range");
                ports.insert(udp);
            }
            sources.insert(source);
            labels.insert(label);
        }
        // 200 draws of 256 values give about 139 different ones, with a deviation of about 5.
        assert!(sources.len() > 110, "{case:?}: {} sources", sources.len());
        if case.mode == Mode::Gue {
            assert!(ports.len() > 190, "{case:?}: {} ports", ports.len());
        }
        if case.outer_ipv6 {
            assert!(labels.len() > 190, "{case:?}: {} labels", labels.len());
        }
    }
}

#[test]
fn without_a_prefix_there_is_one_source() {
    let bench = Bench::new(without_prefixes());
    for case in bench.cases.iter().filter(|case| case.tags.is_empty()) {
        let sources: BTreeSet<_> = (30000..30050)
            .map(|port| {
                let inner = packet(case, client(case, port), 0, b"x");
                entropy(&bench.send(&arriving(&inner, UNTAGGED, &[])).frame, case.outer_ipv6).0
            })
            .collect();
        assert_eq!(sources.len(), 1, "{case:?}: {sources:?}");
    }
}
