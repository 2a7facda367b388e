//! What is put into a tunnel comes out of it, byte for byte, whatever tags are around it.

use super::{
    bench::{BACKEND_MAC, Bench, SOURCE_MAC, arriving, client, packet, with_prefixes},
    model::{SHAPES, l2},
};
use crate::harness::frame::assert_same;

const XDP_PASS: u32 = 2;

#[test]
fn decapsulation_is_the_inverse_of_encapsulation() {
    let bench = Bench::new(with_prefixes());
    let (decap, _) = bench.other_end();
    let mut frames = 0;
    for case in &bench.cases {
        for tags in SHAPES {
            for class in [0, 1, 2, 3, 0xb9] {
                for padding in [&[][..], &[0; 9]] {
                    let inner = packet(case, client(case, 40000), class, b"payload");
                    let sent = bench.send(&arriving(&inner, tags, padding)).frame;
                    let got = decap.run(&sent, bench.ingress).unwrap();
                    assert_eq!(got.action, XDP_PASS, "{case:?}");
                    let mut expected = l2(BACKEND_MAC, SOURCE_MAC, case.tags, case.inner_ipv6);
                    expected.extend(&inner);
                    expected.extend(padding);
                    assert_same(&expected, &got.frame);
                    frames += 1;
                }
            }
        }
    }
    let ledger = decap.status().unwrap().ledger;
    assert_eq!(ledger.by_name("forward-decapsulated"), Some(frames));
    assert_eq!(ledger.seen, frames);
}
