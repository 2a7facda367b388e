//! Lists of sources, of the node and of services.

use std::{fmt::Write, fs, net::IpAddr};

use tidegate::model::Prefix;

use super::bench::{Bench, at, configuration, enter, syn, with_flags};
use crate::harness::frame::tcp_flags;

const WEB: &str = "203.0.113.10:80";
const WEB6: &str = "[2001:db8::10]:80";
const SERVICES: [&str; 2] = [
    "address: 203.0.113.10, port: 80, protocol: tcp, mode: dsr",
    "address: \"2001:db8::10\", port: 80, protocol: tcp, mode: dsr",
];
const SENT: &str = "forward-tx";

/// A plain model: the longest prefix that fits, the allowlist's of two that are equal, and with an allowlist of the family nobody else.
fn admits(block: &[Prefix], allow: &[Prefix], from: IpAddr) -> bool {
    let longest = |list: &[Prefix]| {
        list.iter().filter(|prefix| prefix.contains(from)).map(|prefix| i32::from(prefix.length())).max()
    };
    match (longest(block), longest(allow)) {
        (None, None) => !allow.iter().any(|prefix| prefix.is_ipv6() == from.is_ipv6()),
        (blocked, allowed) => allowed.unwrap_or(-1) >= blocked.unwrap_or(-1),
    }
}

fn prefixes(text: &str) -> Vec<Prefix> {
    text.split(", ")
        .filter(|prefix| !prefix.is_empty())
        .map(|prefix| prefix.trim_matches('"').parse().unwrap())
        .collect()
}

/// Addresses at and beside the borders of prefixes.
fn probes(lists: &[Prefix]) -> Vec<IpAddr> {
    let mut found: Vec<IpAddr> = vec!["198.18.0.1".parse().unwrap(), "2001:db9::1".parse().unwrap()];
    for prefix in lists {
        match prefix.address() {
            IpAddr::V4(first) => {
                let host = u32::MAX.checked_shr(prefix.length().into()).unwrap_or(0);
                let bits = first.to_bits();
                let near = [
                    bits,
                    bits | host,
                    (bits | host).wrapping_add(1),
                    bits.wrapping_sub(1),
                    bits | (host / 2),
                ];
                found.extend(near.map(|bits| IpAddr::V4(bits.into())));
            }
            IpAddr::V6(first) => {
                let host = u128::MAX.checked_shr(prefix.length().into()).unwrap_or(0);
                let bits = first.to_bits();
                let near = [
                    bits,
                    bits | host,
                    (bits | host).wrapping_add(1),
                    bits.wrapping_sub(1),
                    bits | (host / 2),
                ];
                found.extend(near.map(|bits| IpAddr::V6(bits.into())));
            }
        }
    }
    found
}

#[test]
fn the_programs_agree_with_a_plain_model_of_the_nodes_lists() {
    enter();
    let mut bench = Bench::new(&configuration("{}", &SERVICES));
    for (block, allow) in [
        ("", ""),
        ("192.0.2.0/24, \"2001:db8:7::/48\"", ""),
        ("192.0.2.0/24, 192.0.2.64/26, 192.0.2.65", "192.0.2.0/25, 192.0.2.65"),
        ("192.0.2.128/25", "192.0.2.0/24, 198.18.0.0/15"),
        ("\"2001:db8:7:8000::/49\", \"2001:db8:7::1\"", "\"2001:db8:7::/48\""),
        ("0.0.0.0/0, \"::/0\"", "192.0.2.7"),
        ("128.0.0.0/1", "0.0.0.0/0, \"2001:db8:7:0:2::/79\""),
        ("", "192.0.2.0/24"),
    ] {
        bench.reload(&configuration(&format!("{{ blocklist: [{block}], allowlist: [{allow}] }}"), &SERVICES));
        let (block, allow) = (prefixes(block), prefixes(allow));
        for from in probes(&[block.clone(), allow.clone()].concat()) {
            let to = if from.is_ipv4() { WEB } else { WEB6 };
            let expected = if admits(&block, &allow, from) { SENT } else { "drop-blocked" };
            let reason = bench.reason(&with_flags((from, 40_000).into(), to, tcp_flags::ACK));
            assert_eq!(reason, expected, "{from} with {block:?} and {allow:?}");
        }
    }
}

#[test]
fn only_packets_for_services_are_judged() {
    enter();
    let bench =
        Bench::new(&configuration("{ blocklist: [0.0.0.0/0, \"::/0\"], drop-bogons: true }", &SERVICES));
    for (from, to) in [
        ("192.0.2.1", "203.0.113.10:22"),
        ("2001:db8:7::1", "[2001:db8::11]:80"),
        ("127.0.0.1", "203.0.113.9:80"),
    ] {
        assert_eq!(bench.reason(&syn(at(from, 1000), to)), "pass-no-service", "the host's own traffic");
    }
    assert_eq!(bench.reason(&syn(at("192.0.2.1", 1000), WEB)), "drop-blocked");
}

#[test]
fn sources_of_services_hold_in_every_mode_family_and_protocol_and_for_no_other_service() {
    enter();
    let mut services = Vec::new();
    let mut addresses = Vec::new();
    for (index, mode) in ["nat", "dsr", "ipip", "gre", "gue"].into_iter().enumerate() {
        let port = 1000 + index;
        for address in ["203.0.113.10", "2001:db8::10"] {
            let sources = if index % 2 == 0 {
                "{ allow: [192.0.2.0/24, 10.0.0.0/8, \"2001:db8:7::/48\"] }"
            } else {
                "{ deny: [198.51.0.0/16, \"2001:db8:8::/48\"] }"
            };
            services.push(format!(
                "address: \"{address}\", port: {port}, protocol: tcp, mode: {mode}, sources: {sources}"
            ));
            addresses.push((
                if address.contains(':') {
                    format!("[{address}]:{port}")
                } else {
                    format!("{address}:{port}")
                },
                mode,
            ));
        }
    }
    services.push("address: 203.0.113.10, port: 80, protocol: tcp, mode: dsr".to_owned());
    let services: Vec<&str> = services.iter().map(String::as_str).collect();
    let bench = Bench::new(&configuration("{}", &services));
    for (to, mode) in &addresses {
        let (admitted, refused) = if to.starts_with('[') {
            ("2001:db8:7::1", "2001:db8:8::1")
        } else {
            ("192.0.2.1", "198.51.7.7")
        };
        for flags in [tcp_flags::SYN, tcp_flags::ACK] {
            assert_eq!(bench.reason(&with_flags(at(admitted, 1000), to, flags)), SENT, "{mode} {to}");
            let reason = bench.reason(&with_flags(at(refused, 1000), to, flags));
            assert_eq!(reason, "drop-source-refused", "{mode} {to}");
        }
    }
    assert_eq!(bench.reason(&syn(at("198.51.7.7", 1000), WEB)), SENT, "another service");
    let status = bench.engine.status().unwrap();
    let of = |name: &str| {
        status.services.iter().find(|service| service.name.as_str() == name).unwrap().ledger.clone()
    };
    assert_eq!(of("s0").reasons["drop-source-refused"], 2, "counted for the service");
    assert_eq!(of("s10").dropped, 0);
}

#[test]
fn a_restart_with_the_same_lists_writes_nothing() {
    enter();
    let text = configuration(
        "{ blocklist: [192.0.2.0/24, \"2001:db8:7::/48\"], allowlist: [192.0.2.1], drop-bogons: true }",
        &[
            "address: 203.0.113.10, port: 80, protocol: tcp, mode: dsr, sources: { deny: [198.51.100.0/24] }",
            "address: 203.0.113.10, port: 81, protocol: tcp, mode: nat, limits: { packets: 333333/s, per-source: { new-flows: 7/s } }",
        ],
    );
    drop(Bench::new(&text));
    let mut bench = Bench::adopt(&text);
    assert_eq!(bench.apply(), 0);
    assert_eq!(bench.reason(&syn(at("192.0.2.2", 1), WEB)), "drop-blocked", "before and after");
    drop(bench);
    let mut bench = Bench::adopt(&text.replace("allowlist: [192.0.2.1]", "allowlist: [192.0.2.2]"));
    assert_eq!(bench.apply(), 1, "the list of one family");
    assert_eq!(bench.reason(&syn(at("192.0.2.2", 1), WEB)), SENT);
    bench.reload(&configuration("{}", &[]));
    let lists = |name| {
        let map =
            libbpf_rs::MapHandle::from_pinned_path(format!("{}/maps/{name}", super::bench::PINS)).unwrap();
        libbpf_rs::MapCore::keys(&map)
            .filter(|key| libbpf_rs::MapCore::lookup(&map, key, libbpf_rs::MapFlags::ANY).unwrap().is_some())
            .count()
    };
    assert_eq!((lists("source_lists_v4"), lists("source_lists_v6")), (0, 0), "nothing is left");
}

#[test]
fn hundreds_of_thousands_of_prefixes_come_from_files_and_are_replaced_whole() {
    const COUNT: u32 = 200_000;
    enter();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("blocked.txt");
    let write = |first: u32| {
        let mut text = String::from("# a feed\n\n");
        for number in 0..COUNT {
            writeln!(text, "{}/28  # {number}", std::net::Ipv4Addr::from_bits((first + number) << 4))
                .unwrap();
        }
        fs::write(&path, text).unwrap();
    };
    let text = configuration(
        &format!("{{ blocklist: [192.0.2.9], blocklist-files: [{}] }}", path.display()),
        &SERVICES[..1],
    );
    let first = u32::from(std::net::Ipv4Addr::new(11, 0, 0, 0)) >> 4;
    write(first);
    let mut bench = Bench::new(&text);
    let reason = |bench: &Bench, number: u32| {
        let from = std::net::Ipv4Addr::from_bits((number << 4) + 5);
        bench.reason(&syn((from, 1000).into(), WEB))
    };
    for number in [0, 1, COUNT / 2, COUNT - 1] {
        assert_eq!(reason(&bench, first + number), "drop-blocked", "{number}");
    }
    assert_eq!(reason(&bench, first + COUNT), SENT);
    /* The next half of the feed is other prefixes. */
    write(first + COUNT / 2);
    assert_eq!(bench.reload(&text), 1, "one write publishes all of them");
    assert_eq!(reason(&bench, first), SENT);
    assert_eq!(reason(&bench, first + COUNT), "drop-blocked");
    assert_eq!(bench.reason(&syn(at("192.0.2.9", 1000), WEB)), "drop-blocked", "beside the file");
    assert_eq!(bench.reload(&text), 0);
}
