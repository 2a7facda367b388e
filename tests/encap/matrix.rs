//! Every tunnel, family and tagging, byte for byte.

use super::{
    bench::{Bench, arriving, client, packet, with_prefixes, without_prefixes},
    model::SHAPES,
};
use crate::harness::frame::assert_same;

const XDP_TX: u32 = 3;

#[test]
fn every_tunnel_in_every_family_and_tagging_is_what_the_model_makes() {
    for encapsulation in [without_prefixes(), with_prefixes()] {
        // A lab moves its thread, so each has one of its own.
        std::thread::spawn(move || {
            let bench = Bench::new(encapsulation);
            for case in &bench.cases {
                for tags in SHAPES {
                    for (number, payload) in ["", "x", "a longer payload"].iter().enumerate() {
                        let from = client(case, 40000 + number as u16);
                        let inner = packet(case, from, 0xb8, payload.as_bytes());
                        let got = bench.send(&arriving(&inner, tags, &[]));
                        assert_eq!(got.action, XDP_TX, "{case:?} from {tags:x?}");
                        assert_same(&bench.expected(case, &inner, &[], from), &got.frame);
                    }
                }
            }
        })
        .join()
        .unwrap();
    }
}

#[test]
fn every_traffic_class_is_copied_outwards_and_every_mark_of_congestion_with_it() {
    let bench = Bench::new(with_prefixes());
    for case in &bench.cases {
        for class in [0, 1, 2, 3, 4, 7, 0xb8, 0xbb, 0xff] {
            let from = client(case, 40000);
            let inner = packet(case, from, class, b"payload");
            let got = bench.send(&arriving(&inner, case.tags, &[]));
            assert_same(&bench.expected(case, &inner, &[], from), &got.frame);
        }
    }
}

#[test]
fn the_padding_of_short_frames_is_not_taken_for_payload() {
    let bench = Bench::new(without_prefixes());
    for case in &bench.cases {
        for tags in SHAPES {
            let from = client(case, 40000);
            let (inner, padding) = (packet(case, from, 0, b"x"), [0x5a; 17]);
            let got = bench.send(&arriving(&inner, tags, &padding));
            assert_same(&bench.expected(case, &inner, &padding, from), &got.frame);
        }
    }
}
