//! Packets that cannot be sound.

use super::bench::{Bench, at, configuration, datagram, enter, syn, with_flags};
use crate::harness::frame::tcp_flags::{ACK, FIN, PSH, RST, SYN, URG};

const SERVICES: [&str; 3] = [
    "address: 203.0.113.10, port: 80, protocol: tcp, mode: dsr",
    "address: \"2001:db8::10\", port: 80, protocol: tcp, mode: dsr",
    "address: 203.0.113.10, port: 80, protocol: udp, mode: nat",
];
const WEB: &str = "203.0.113.10:80";
const WEB6: &str = "[2001:db8::10]:80";

fn to(from: &str) -> &'static str {
    if from.contains(':') { WEB6 } else { WEB }
}

#[test]
fn what_comes_from_the_services_own_address_and_port_is_dropped_whatever_is_configured() {
    enter();
    for admission in ["{}", "{ drop-bogons: true }"] {
        let bench = Bench::new(&configuration(admission, &SERVICES));
        for from in ["203.0.113.10", "2001:db8::10"] {
            assert_eq!(bench.reason(&syn(at(from, 80), to(from))), "drop-bogon", "{from} {admission}");
        }
        assert_eq!(bench.reason(&datagram(at("203.0.113.10", 80), WEB)), "drop-bogon");
        let same_beginning = bench.reason(&syn(at("2001:db8:7::10", 80), WEB6));
        assert_eq!(same_beginning, "forward-tx", "only the whole address counts");
        let another_port = bench.reason(&syn(at("203.0.113.10", 81), WEB));
        assert_eq!(another_port, if admission == "{}" { "forward-tx" } else { "drop-bogon" });
    }
}

#[test]
fn bogon_sources_are_dropped_where_that_is_asked_for() {
    enter();
    let mut bench = Bench::new(&configuration("{}", &SERVICES));
    let bogons = [
        "0.0.0.0",
        "0.255.255.255",
        "127.0.0.1",
        "127.255.255.255",
        "224.0.0.1",
        "239.255.255.255",
        "240.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "ff02::1",
        "ff0e::7",
    ];
    let sound = [
        "1.0.0.0",
        "126.255.255.255",
        "128.0.0.1",
        "223.255.255.255",
        "10.1.2.3",
        "::2",
        "::1:1",
        "fe80::1",
        "2001:db8:7::1",
        "1::",
    ];
    for from in bogons.iter().chain(&sound) {
        assert_eq!(bench.reason(&syn(at(from, 1000), to(from))), "forward-tx", "{from}");
    }
    bench.reload(&configuration("{ drop-bogons: true }", &SERVICES));
    for from in bogons {
        assert_eq!(bench.reason(&syn(at(from, 1000), to(from))), "drop-bogon", "{from}");
    }
    for from in sound {
        assert_eq!(bench.reason(&syn(at(from, 1000), to(from))), "forward-tx", "{from}");
    }
    assert_eq!(bench.reason(&datagram(at("127.0.0.1", 1000), WEB)), "drop-bogon");
    assert_eq!(bench.reason(&datagram(at("192.0.2.1", 1000), WEB)), "forward-tx", "UDP has no flags");
}

#[test]
fn flags_that_no_tcp_sends_are_dropped_where_that_is_asked_for() {
    enter();
    let bench = Bench::new(&configuration("{ drop-bogons: true }", &SERVICES));
    for flags in 0..=0xff_u8 {
        let six = flags & 0x3f;
        let senseless = six == 0 || six & SYN != 0 && six & (FIN | RST) != 0;
        let expected = if senseless { "drop-bogon" } else { "forward-tx" };
        for from in ["192.0.2.1", "2001:db8:7::1"] {
            assert_eq!(bench.reason(&with_flags(at(from, 1000), to(from), flags)), expected, "{flags:#04x}");
        }
    }
    assert_eq!(FIN | SYN | RST | PSH | ACK | URG, 0x3f);
}
