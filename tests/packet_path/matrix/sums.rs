//! Checksums with a meaning of their own: none, and one that comes out as zero.

use tidegate::model::Mode;

use super::{Bench, Case, translate};
use crate::harness::frame::{Checksum, Packet, Transport, Udp, assert_same, layout, protocol};

fn udp_cases(bench: &Bench) -> Vec<Case> {
    bench.cases.iter().copied().filter(|case| case.protocol == protocol::UDP).collect()
}

/// The checksum of the UDP datagram, of the inner one in a tunnel.
fn udp_checksum(frame: &[u8]) -> u16 {
    let fields = layout(frame).fields;
    let field = fields.iter().rfind(|field| field.name.ends_with("UDP checksum")).unwrap();
    u16::from_be_bytes([frame[field.start], frame[field.start + 1]])
}

#[test]
fn a_datagram_without_a_checksum_stays_without_one() {
    let mut bench = Bench::new(|_| {});
    for case in udp_cases(&bench) {
        for length in [0, 1, 100] {
            let mut request = case.request(length);
            request.transport = Udp::without_checksum(case.client().port(), case.service().port()).into();
            let outcome = bench.run(&request.build());
            assert_same(&case.sent(&request).build(), &outcome.frame);
            assert_eq!(udp_checksum(&outcome.frame), 0, "{case:?}");
        }
    }
    bench.close();
}

/// A request whose checksum, once it was translated, comes out as zero: its last two bytes make it so.
fn comes_out_as_zero(case: &Case, length: usize) -> Packet {
    let mut request = case.request(length);
    request.payload.extend([0, 0]);
    // The checksum over a payload that ends in zeros, put there, makes the checksum zero: all ones as it is sent.
    let sent = translate(request.clone(), case.client(), case.backend());
    let at = request.payload.len() - 2;
    request.payload[at..].copy_from_slice(&udp_checksum(&sent.build()).to_be_bytes());
    request
}

#[test]
fn a_checksum_that_comes_out_as_zero_is_sent_as_all_ones() {
    let mut bench = Bench::new(|_| {});
    for case in udp_cases(&bench).into_iter().filter(|case| case.mode == Mode::Nat) {
        for length in [0, 2, 100] {
            let request = comes_out_as_zero(&case, length);
            let outcome = bench.run(&request.build());
            assert_same(&case.sent(&request).build(), &outcome.frame);
            assert_eq!(udp_checksum(&outcome.frame), 0xffff, "{case:?}");
        }
    }
    bench.close();
}

#[test]
fn a_wrong_checksum_is_not_made_right() {
    let mut bench = Bench::new(|_| {});
    for case in bench.cases.clone() {
        for wrong in [0x0001, 0x1234, 0xfffe, 0xffff] {
            let mut request = case.request(9);
            match &mut request.transport {
                Transport::Tcp(tcp) => tcp.checksum = Checksum::Exactly(wrong),
                Transport::Udp(udp) => udp.checksum = Checksum::Exactly(wrong),
                other => panic!("{other:?}"),
            }
            let outcome = bench.run(&request.build());
            assert!(outcome.reason.is_forwarded(), "{case:?}");
            assert!(crate::harness::frame::verify(&outcome.frame).is_err(), "{case:?}");
        }
    }
    bench.close();
}
