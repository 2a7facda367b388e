use std::net::{Ipv4Addr, Ipv6Addr};

use proptest::{collection::vec, prelude::*};

use super::{checksum::sum, *};

const CLIENT: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
const SERVICE: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 10);
const CLIENT6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2);
const SERVICE6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0xffff, 0, 0, 0, 0, 0x10);

/// A frame of each shape, by name.
fn shapes() -> Vec<(&'static str, Packet)> {
    let v4 = Ipv4::new(CLIENT, SERVICE);
    let v6 = Ipv6::new(CLIENT6, SERVICE6);
    let with_options =
        Ipv4 { options: vec![1; 8], tos: 0xb9, dont_fragment: false, identification: 7, ..v4.clone() };
    let tcp = Tcp { options: vec![2, 4, 5, 0xb4], ..Tcp::new(40000, 80) };
    let echo = Echo { reply: false, identifier: 1, sequence: 2, checksum: Checksum::Right };
    let extensions = [
        Extension::options(protocol::HOP_BY_HOP, 8),
        Extension::routing(0),
        Extension::options(protocol::DESTINATION_OPTIONS, 24),
        Extension::atomic_fragment(),
    ];
    let later = Extension::Fragment { offset: 185, more: true, identification: 9 };
    vec![
        ("v4 tcp", Packet::new(v4.clone(), tcp.clone()).payload(b"odd")),
        ("v4 udp", Packet::new(v4.clone(), Udp::new(40000, 53)).payload(b"question")),
        ("v4 udp without checksum", Packet::new(v4.clone(), Udp::without_checksum(40000, 53))),
        ("v4 options", Packet::new(with_options, tcp.clone()).payload(b"even")),
        ("v4 padded", Packet::new(v4.clone(), Udp::new(1, 2)).minimum_size(60)),
        ("v4 echo", Packet::new(v4.clone(), echo.clone()).payload(&[7; 9])),
        ("v6 tcp", Packet::new(Ipv6 { flow_label: 0xabcde, traffic_class: 0x2e, ..v6.clone() }, tcp.clone())),
        ("v6 udp", Packet::new(v6.clone(), Udp::new(40000, 53)).payload(b"x")),
        ("v6 echo", Packet::new(v6.clone(), echo)),
        ("4 in 4", Packet::new(v4.clone(), tcp.clone()).inside(Ipv4::new(SERVICE, CLIENT))),
        ("4 in 6", Packet::new(v4.clone(), tcp.clone()).inside(v6.clone()).payload(b"abc").padding(b"xyz")),
        ("6 in 4", Packet::new(v6.clone(), tcp.clone()).inside(Ipv4::new(SERVICE, CLIENT))),
        ("6 in 6", Packet::new(v6.clone(), tcp.clone()).inside(v6.clone())),
        ("4 in 4 by gre", Packet::new(v4.clone(), tcp.clone()).inside(Outer::gre(v4.clone()))),
        ("6 in 4 by gre", Packet::new(v6.clone(), tcp.clone()).inside(Outer::gre(v4.clone())).padding(b"z")),
        (
            "4 in 6 by gue",
            Packet::new(v4.clone(), tcp.clone()).inside(Outer::gue(v6.clone(), 0xc001)).payload(b"a"),
        ),
        ("6 in 4 by gue", Packet::new(v6.clone(), tcp.clone()).inside(Outer::gue(v4.clone(), 0xffff))),
        ("v4 vlan", Packet::new(v4.clone(), tcp.clone()).tags(&[Tag::new(0x2064)])),
        (
            "v6 qinq",
            Packet::new(v6.clone(), tcp.clone()).tags(&[Tag::service(100), Tag::new(5)]).payload(b"b"),
        ),
        ("three tags", Packet::new(v4, tcp.clone()).tags(&[Tag::new(1); 3])),
        ("v6 extensions", Packet::new(v6.clone().with_extensions(&extensions), tcp.clone()).payload(b"c")),
        (
            "v6 fragment",
            Packet::new(v6.clone().with_extensions(&[later]), Transport::Raw(protocol::TCP)).payload(b"d"),
        ),
        ("extensions in 6", Packet::new(v6.clone().with_extensions(&extensions), tcp).inside(v6)),
    ]
}

#[test]
fn sums_are_those_of_the_rfc() {
    // RFC 1071, section 3, and the header of a well-known example.
    assert_eq!(sum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]), 0xddf2);
    let header = [
        0x45, 0x00, 0x00, 0x73, 0x00, 0x00, 0x40, 0x00, 0x40, 0x11, 0xb8, 0x61, 0xc0, 0xa8, 0x00, 0x01, 0xc0,
        0xa8, 0x00, 0xc7,
    ];
    assert_eq!(sum(&header), 0xffff);
    let built = Packet::new(
        Ipv4 { ..Ipv4::new([192, 168, 0, 1].into(), [192, 168, 0, 199].into()) },
        Transport::Raw(protocol::UDP),
    )
    .payload(&[0; 0x73 - 20])
    .build();
    assert_eq!(hex(&built[14..34]), hex(&header));
}

#[test]
fn a_built_frame_is_sound_and_reads_back_as_what_it_was_built_from() {
    for (name, packet) in shapes() {
        let frame = packet.build();
        assert_eq!(verify(&frame), Ok(()), "{name}");
        assert_eq!(Packet::parse(&frame), Ok(packet), "{name}");
    }
}

#[test]
fn every_byte_of_a_frame_belongs_to_exactly_one_field() {
    for (name, packet) in shapes() {
        let frame = packet.build();
        let mut next = 0;
        for field in layout(&frame).fields {
            assert_eq!(field.start, next, "{name}: {}", field.name);
            next += field.length;
        }
        assert_eq!(next, frame.len(), "{name}");
    }
}

#[test]
fn a_flipped_bit_under_a_checksum_is_noticed() {
    for (name, packet) in shapes() {
        if name.contains("without checksum") {
            continue;
        }
        let frame = packet.build();
        for field in layout(&frame).fields {
            // No checksum covers the link's headers, GRE, our UDP around a packet, and an IPv6 header but for the addresses.
            let bare = ["Ethernet", "VLAN", "GRE", "trailing", "extension", "fragment"];
            let is_covered = if field.name.contains("IPv6") {
                field.name.contains("inner IPv6 source")
            } else {
                let is_gue = name.contains("gue") && field.name.starts_with("UDP");
                !is_gue && !bare.iter().any(|part| field.name.contains(part))
            };
            if is_covered {
                let mut broken = frame.clone();
                broken[field.start + field.length - 1] ^= 0x01;
                assert!(verify(&broken).is_err(), "{name}: {}", field.name);
            }
        }
    }
}

#[test]
fn lies_are_built_noticed_and_read_back() {
    let v4 = Ipv4::new(CLIENT, SERVICE);
    let lies = [
        Packet::new(Ipv4 { total_length: Some(1000), ..v4.clone() }, Tcp::new(1, 2)),
        Packet::new(Ipv4 { total_length: Some(10), ..v4.clone() }, Tcp::new(1, 2)),
        Packet::new(Ipv4 { checksum: Checksum::Exactly(1), ..v4.clone() }, Tcp::new(1, 2)),
        Packet::new(v4.clone(), Tcp { checksum: Checksum::Exactly(1), ..Tcp::new(1, 2) }),
        Packet::new(v4.clone(), Tcp { data_offset: Some(4), ..Tcp::new(1, 2) }),
        Packet::new(v4.clone(), Tcp { data_offset: Some(15), ..Tcp::new(1, 2) }),
        Packet::new(v4, Udp { length: Some(9), ..Udp::new(1, 2) }),
        Packet::new(Ipv6 { payload_length: Some(65535), ..Ipv6::new(CLIENT6, SERVICE6) }, Udp::new(1, 2)),
        Packet::new(Ipv6::new(CLIENT6, SERVICE6), Udp::without_checksum(1, 2)),
    ];
    for lie in lies {
        let frame = lie.build();
        assert!(verify(&frame).is_err(), "{lie:?}");
        assert_eq!(Packet::parse(&frame).map(|packet| packet.build()), Ok(frame), "{lie:?}");
    }
}

#[test]
fn an_arp_request_is_the_bytes_of_the_rfc() {
    let arp = Arp::request([2, 0, 0, 0, 0, 9], CLIENT, SERVICE).build();
    assert_eq!(arp.len(), 42);
    assert_eq!(hex(&arp[..14]), "ff ff ff ff ff ff 02 00 00 00 00 09 08 06");
    assert_eq!(hex(&arp[14..22]), "00 01 08 00 06 04 00 01");
    assert_eq!(hex(&arp[22..]), "02 00 00 00 00 09 c0 00 02 02 00 00 00 00 00 00 cb 00 71 0a");
}

#[test]
fn a_difference_names_the_field() {
    let expected = Packet::new(Ipv4::new(CLIENT, SERVICE), Tcp::new(40000, 80)).payload(b"abc").build();
    assert_eq!(difference(&expected, &expected), None);
    let mut got = expected.clone();
    got[24] ^= 0xff;
    got[36] = 0xab;
    let text = difference(&expected, &got).unwrap();
    assert!(text.contains("byte 24 (IPv4 checksum): expected "), "{text}");
    assert!(text.contains("byte 36 (TCP destination port): expected 00 50 got ab 50"), "{text}");
    got.truncate(40);
    assert!(difference(&expected, &got).unwrap().contains("length: expected 57 got 40"));
    got = [expected.clone(), vec![0xee]].concat();
    assert!(difference(&expected, &got).unwrap().contains("byte 57 (beyond the end): got ee"));
}

prop_compose! {
    fn any_ipv4()(
        addresses in any::<(u32, u32)>(), tos: u8, identification: u16, flags in any::<(bool, bool)>(), ttl: u8,
        words in 0usize..=10, option: u8,
    ) -> Ipv4 {
        Ipv4 {
            tos, identification, ttl, dont_fragment: flags.0, reserved_flag: flags.1, options: vec![option; words * 4],
            ..Ipv4::new(addresses.0.into(), addresses.1.into())
        }
    }
}

prop_compose! {
    fn any_ipv6()(addresses in any::<(u128, u128)>(), traffic_class: u8, flow_label in 0u32..1 << 20, hop_limit: u8,
        extensions in vec(any_extension(), 0..4)) -> Ipv6 {
        Ipv6 { extensions, traffic_class, flow_label, hop_limit, ..Ipv6::new(addresses.0.into(), addresses.1.into()) }
    }
}

fn any_network() -> impl Strategy<Value = Network> {
    prop_oneof![any_ipv4().prop_map(Network::V4), any_ipv6().prop_map(Network::V6)]
}

fn any_outer() -> impl Strategy<Value = Outer> {
    (any_network(), 0..3, any::<u16>()).prop_map(|(network, shim, port)| match shim {
        0 => Outer::from(network),
        1 => Outer::gre(network),
        _ => Outer::gue(network, port),
    })
}

fn any_tag() -> impl Strategy<Value = Tag> {
    any::<(bool, u16)>().prop_map(
        |(is_service, control)| {
            if is_service { Tag::service(control) } else { Tag::new(control) }
        },
    )
}

fn any_extension() -> impl Strategy<Value = Extension> {
    let number =
        prop_oneof![Just(protocol::HOP_BY_HOP), Just(protocol::ROUTING), Just(protocol::DESTINATION_OPTIONS)];
    let sized = (number, 0usize..20, any::<u8>()).prop_map(|(number, words, fill)| Extension::Sized {
        number,
        body: vec![fill; 6 + 8 * words],
        length: None,
    });
    prop_oneof![4 => sized, 1 => Just(Extension::atomic_fragment())]
}

fn any_transport() -> impl Strategy<Value = Transport> {
    let tcp = (any::<(u16, u16, u32, u32, u8, u16)>(), 0usize..=10).prop_map(|(fields, words)| {
        let (source_port, destination_port, sequence, acknowledgement, flags, window) = fields;
        let options = vec![1; words * 4];
        let rest = Tcp::new(source_port, destination_port);
        Tcp { sequence, acknowledgement, flags, window, options, ..rest }.into()
    });
    // Not to the port of tunnels, where the payload is read as a packet.
    let udp = any::<(u16, u16)>().prop_map(|(source, to)| Udp::new(source, to | 0x8000).into());
    prop_oneof![tcp, udp]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_packet_is_sound_and_reads_back(
        network in any_network(), outer in vec(any_outer(), 0..3), transport in any_transport(),
        payload in vec(any::<u8>(), 0..100), padding in vec(any::<u8>(), 0..50), tags in vec(any_tag(), 0..4),
    ) {
        let plain = Packet::new(network, transport).payload(&payload).padding(&padding);
        let packet = Packet { outer, tags, ..plain };
        let frame = packet.build();
        prop_assert_eq!(verify(&frame), Ok(()));
        prop_assert_eq!(Packet::parse(&frame).unwrap(), packet);
    }

    #[test]
    fn no_bytes_make_the_tools_panic(bytes in vec(any::<u8>(), 0..120), kind in 0usize..3) {
        let mut frame = bytes;
        if frame.len() > 14 {
            let start: &[u8] = [&[0x08, 0x00, 0x45][..], &[0x86, 0xdd, 0x60], &[0x08, 0x00, 0x46]][kind];
            frame[12..15].copy_from_slice(start);
        }
        let _ = verify(&frame);
        if let Ok(packet) = Packet::parse(&frame) {
            prop_assert_eq!(packet.build(), frame);
        }
    }
}
