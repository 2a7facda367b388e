//! Frames that are broken or lie: passed as they came, or dropped and counted, never sent anywhere.

use super::{Bench, Case, Tagging};
use crate::harness::{
    frame::{Extension, Ipv4, Ipv6, Network, Packet, Tcp, Transport, Udp, protocol},
    model::{Action, Outcome, Reason},
};

/// The frame went nowhere: what is passed was not touched.
#[track_caller]
fn assert_not_forwarded(frame: &[u8], outcome: &Outcome, context: &str) {
    assert!(!outcome.reason.is_forwarded(), "{context}: {}", outcome.reason);
    assert!(matches!(outcome.action, Action::Pass | Action::Drop), "{context}: {:?}", outcome.action);
    assert_eq!(outcome.frame, frame, "{context}");
}

fn with_network(packet: &Packet, change: impl Fn(&mut Ipv4), change_ipv6: impl Fn(&mut Ipv6)) -> Vec<u8> {
    let mut packet = packet.clone();
    match &mut packet.network {
        Network::V4(ip) => change(ip),
        Network::V6(ip) => change_ipv6(ip),
    }
    packet.build()
}

fn with_transport(packet: &Packet, change: impl Fn(&mut Tcp), change_udp: impl Fn(&mut Udp)) -> Vec<u8> {
    let mut packet = packet.clone();
    match &mut packet.transport {
        Transport::Tcp(tcp) => change(tcp),
        Transport::Udp(udp) => change_udp(udp),
        other => panic!("{other:?}"),
    }
    packet.build()
}

/// A request of each case, tagged as the case's backend is.
fn requests(bench: &Bench) -> Vec<(Case, Packet)> {
    let cases = bench.cases.iter().copied();
    cases.map(|case| (case, case.request(5).tags(&case.tagging.incoming()))).collect()
}

#[test]
fn a_frame_that_was_cut_off_goes_nowhere() {
    let mut bench = Bench::new(|_| {});
    for (case, request) in requests(&bench) {
        let frame = request.build();
        // A test run takes no frame that is shorter than an Ethernet header.
        for length in 14..frame.len() {
            let outcome = bench.run(&frame[..length]);
            assert_not_forwarded(&frame[..length], &outcome, &format!("{case:?} cut off at {length}"));
        }
        assert!(bench.run(&frame).reason.is_forwarded(), "{case:?}");
    }
    bench.close();
}

#[test]
fn a_tunnelled_frame_that_was_cut_off_is_not_taken_out() {
    let mut bench = Bench::new(|_| {});
    for case in bench.cases.clone().into_iter().filter(|case| case.mode.encapsulates()) {
        let frame = case.sent(&case.request(5)).build();
        for length in 14..frame.len() {
            let outcome = bench.take_off(&frame[..length]);
            assert_not_forwarded(&frame[..length], &outcome, &format!("{case:?} cut off at {length}"));
        }
    }
    bench.close();
}

#[test]
fn a_header_that_is_shorter_than_it_can_be_goes_nowhere() {
    let mut bench = Bench::new(|_| {});
    for (case, request) in requests(&bench) {
        for words in 0..5 {
            let frames = [
                with_network(&request, |ip| ip.header_words = Some(words), |ip| ip.version = Some(words)),
                with_transport(
                    &request,
                    |tcp| tcp.data_offset = Some(words),
                    |udp| udp.length = Some(words.into()),
                ),
            ];
            for frame in frames {
                let outcome = bench.run(&frame);
                assert_not_forwarded(&frame, &outcome, &format!("{case:?}, {words} words"));
                assert_eq!(outcome.reason, Reason::PassMalformed, "{case:?}, {words} words");
            }
        }
    }
    bench.close();
}

#[test]
fn a_version_that_is_not_the_ethertypes_goes_nowhere() {
    let mut bench = Bench::new(|_| {});
    for (case, request) in requests(&bench) {
        let truth = if case.inner_is_ipv6 { 6 } else { 4 };
        for version in (0..16).filter(|version| *version != truth) {
            let frame =
                with_network(&request, |ip| ip.version = Some(version), |ip| ip.version = Some(version));
            let outcome = bench.run(&frame);
            assert_not_forwarded(&frame, &outcome, &format!("{case:?}, version {version}"));
        }
    }
    bench.close();
}

#[test]
fn a_length_that_exceeds_what_there_is_goes_nowhere_and_counts_as_what_there_is() {
    let mut bench = Bench::new(|_| {});
    for (case, request) in requests(&bench) {
        let link = 14 + 4 * request.tags.len();
        let present = request.build().len() - link;
        let header = if case.inner_is_ipv6 { 40 } else { 0 };
        for lie in [1, 2, 1000, 65_535 - (present - header)] {
            let length = (present - header + lie) as u16;
            let frame = with_network(
                &request,
                |ip| ip.total_length = Some(length),
                |ip| ip.payload_length = Some(length),
            );
            let outcome = bench.run(&frame);
            assert_not_forwarded(&frame, &outcome, &format!("{case:?}, length {length}"));
            assert_eq!((outcome.reason, outcome.bytes), (Reason::DropBadLength, present as u64), "{case:?}");
        }
    }
    bench.close();
}

#[test]
fn lengths_that_contradict_each_other_go_nowhere() {
    let mut bench = Bench::new(|_| {});
    for (case, request) in requests(&bench) {
        let behind = request.build().len() as u16 - 14 - 4 * request.tags.len() as u16;
        let (ip_header, transport_header) = match (case.inner_is_ipv6, case.protocol) {
            (true, protocol::TCP) => (0, 32),
            (true, _) => (0, 13),
            (false, protocol::TCP) => (28, 32),
            (false, _) => (28, 13),
        };
        // An IP packet that ends within its transport header, or within the datagram that this promises.
        for length in 0..ip_header + transport_header {
            let frame = with_network(
                &request,
                |ip| ip.total_length = Some(length),
                |ip| ip.payload_length = Some(length),
            );
            let outcome = bench.run(&frame);
            assert_not_forwarded(&frame, &outcome, &format!("{case:?}, length {length} of {behind}"));
            assert_eq!(outcome.reason, Reason::DropBadLength, "{case:?}, length {length} of {behind}");
        }
        // A transport header that reaches beyond the IP packet.
        let frame = with_transport(&request, |tcp| tcp.data_offset = Some(15), |udp| udp.length = Some(14));
        let outcome = bench.run(&frame);
        assert_not_forwarded(&frame, &outcome, &format!("{case:?}, transport header"));
        assert_eq!(outcome.reason, Reason::DropBadLength, "{case:?}, transport header");
    }
    bench.close();
}

#[test]
fn other_protocols_pass_by() {
    const OURS: [u8; 2] = [protocol::TCP, protocol::UDP];
    let mut bench = Bench::new(|_| {});
    let of_family = |is_ipv6| {
        let case = bench.cases.iter().copied().find(move |case| case.inner_is_ipv6 == is_ipv6);
        case.unwrap()
    };
    for case in [of_family(false), of_family(true)] {
        for tagging in Tagging::ALL {
            for number in (0..=255).filter(|number| !OURS.contains(number)) {
                let request = case.request(30).tags(&tagging.incoming());
                let frame = with_network(
                    &request,
                    |ip| ip.protocol = Some(number),
                    |ip| ip.next_header = Some(number),
                );
                let outcome = bench.run(&frame);
                assert_not_forwarded(&frame, &outcome, &format!("{case:?}, protocol {number}"));
                assert_eq!(outcome.service, None, "{case:?}, protocol {number}");
            }
        }
    }
    bench.close();
}

#[test]
fn more_than_two_tags_pass_by() {
    let mut bench = Bench::new(|_| {});
    for case in bench.cases.clone() {
        let mut request = case.request(5).tags(&Tagging::QinQ.incoming());
        request.tags.push(request.tags[1]);
        let frame = request.build();
        let outcome = bench.run(&frame);
        assert_not_forwarded(&frame, &outcome, &format!("{case:?}"));
        assert_eq!(outcome.reason, Reason::PassNotIp, "{case:?}");
    }
    bench.close();
}

/// What becomes of a request over IPv6 with these extension headers, once for each depth at which they can begin.
#[track_caller]
fn assert_passed_for(reason: Reason, extensions: &[Extension]) {
    let mut bench = Bench::new(|_| {});
    for case in bench.cases.clone().into_iter().filter(|case| case.inner_is_ipv6) {
        for tagging in Tagging::ALL {
            let request = case.request(9).tags(&tagging.incoming());
            let frame = with_network(&request, |_| {}, |ip| ip.extensions = extensions.to_vec());
            let outcome = bench.run(&frame);
            let context = format!("{case:?}, came {tagging:?}");
            assert_not_forwarded(&frame, &outcome, &context);
            assert_eq!(outcome.reason, reason, "{context}");
        }
    }
    bench.close();
}

#[test]
fn extension_headers_that_lead_too_far_pass_by() {
    let options = |bytes| Extension::options(protocol::DESTINATION_OPTIONS, bytes);
    assert_passed_for(Reason::PassExtensionHeader, &vec![options(8); 7]);
    // The last byte that is looked at is byte 511; without tags, 456 bytes of headers lead to byte 510.
    assert_passed_for(Reason::PassExtensionHeader, &[options(464)]);
    assert_passed_for(Reason::PassExtensionHeader, &[options(448), options(16)]);
    assert_passed_for(Reason::PassExtensionHeader, &[options(456), Extension::atomic_fragment()]);
    assert_passed_for(
        Reason::PassExtensionHeader,
        &[options(440), options(8), Extension::atomic_fragment(), options(8)],
    );
    assert_passed_for(Reason::PassExtensionHeader, &[options(2048)]);
}

#[test]
fn a_packet_that_is_only_on_its_way_to_a_way_point_passes_by() {
    assert_passed_for(Reason::PassExtensionHeader, &[Extension::routing(1)]);
    let options = Extension::options(protocol::HOP_BY_HOP, 8);
    assert_passed_for(Reason::PassExtensionHeader, &[options, Extension::routing(255)]);
}

#[test]
fn a_second_fragment_header_does_not_make_a_fragment_look_whole() {
    let fragment = |offset, more| Extension::Fragment { offset, more, identification: 7 };
    let options = Extension::options(protocol::DESTINATION_OPTIONS, 8);
    assert_passed_for(Reason::PassExtensionHeader, &[fragment(0, true), Extension::atomic_fragment()]);
    assert_passed_for(Reason::PassExtensionHeader, &[fragment(0, true), options, fragment(1, true)]);
}
