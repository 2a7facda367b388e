//! Problems of services, backends and health checks.

use std::net::IpAddr;

use super::{good, problems, refuses, with_backends, with_service};

#[test]
fn services_need_their_keys() {
    refuses(
        &with_service("{}"),
        &[
            "4:5: services[0].name: missing; every service needs a name of its own, such as web",
            "4:5: services[0].protocol: missing; use tcp or udp",
            "4:5: services[0].address: missing; write what clients connect to, such as 192.0.2.10 or 2001:db8::10",
            "4:5: services[0].mode: missing; say how packets are sent to backends: nat, dsr, ipip, gre or gue",
        ],
    );
    refuses(
        &with_service("name: a\naddress: 192.0.2.1\nprotocol: tcp\nmode: nat"),
        &["4:5: services[0].port: missing; write the port clients connect to, 1 to 65535"],
    );
    refuses(
        &with_service("name: -a\naddress: 192.0.2.1:80\nprotocol: tcp\nmode: nat\nbackends:"),
        &[
            "4:11: services[0].name: `-a` is not a service name; use 1 to 63 characters of a-z, A-Z, 0-9, `.`, `_` \
             and `-`, beginning with a letter or digit",
            "8:13: services[0].backends: nothing stands where a list belongs; write [] for an empty one",
        ],
    );
}

#[test]
fn names_and_addresses_of_services_are_unique() {
    let service =
        |name, address| format!("- {{ name: {name}, address: {address}, protocol: tcp, mode: nat }}\n");
    let head = "interfaces: [{ name: eth0 }]\nservices:\n";
    let text = format!(
        "{head}{}{}{}",
        service("a", "192.0.2.1:80"),
        service("a", "192.0.2.2:80"),
        service("c", "192.0.2.1:80")
    );
    refuses(
        &text,
        &[
            "4:11: services[1].name: `a` is the name of the service on line 3 already",
            "5:23: services[2].address: 192.0.2.1:80/tcp is the address of the service on line 3 already",
        ],
    );
    let udp =
        text.replace("c, address: 192.0.2.1:80, protocol: tcp", "c, address: 192.0.2.1:80, protocol: udp");
    assert_eq!(
        good(&udp.replace("name: a, address: 192.0.2.2", "name: b, address: 192.0.2.2")).services.len(),
        3
    );
}

#[test]
fn addresses_that_cannot_work_are_refused_with_the_reason() {
    let cases = [
        ("0.0.0.0", "0.0.0.0 is the unspecified address; name a single one"),
        ("0.1.2.3", "0.1.2.3 is in 0.0.0.0/8, which hosts do not answer to"),
        ("224.0.0.1", "224.0.0.1 is a multicast address; only unicast can be balanced"),
        ("255.255.255.255", "255.255.255.255 is the broadcast address; only unicast can be balanced"),
        ("127.0.0.1", "127.0.0.1 is a loopback address, which never comes from the network"),
        ("\"::\"", ":: is the unspecified address; name a single one"),
        ("\"::1\"", "::1 is a loopback address, which never comes from the network"),
        ("ff02::1", "ff02::1 is a multicast address; only unicast can be balanced"),
        (
            "fe80::1",
            "fe80::1 is a link-local address, which means something else on every interface; use a routed one",
        ),
        ("\"::ffff:192.0.2.1\"", "::ffff:192.0.2.1 is an IPv4 address in IPv6 form; write 192.0.2.1"),
        ("192.0.2.0/24", "`192.0.2.0/24` is not an IP address; leave out the prefix length"),
        ("\"fe80::1%eth0\"", "`fe80::1%eth0` is not an IP address; addresses with a zone cannot be balanced"),
        (
            "\"[2001:db8::1]\"",
            "`[2001:db8::1]` is not an IP address; leave out the brackets, or add a port: \"[2001:db8::10]:80\"",
        ),
        ("192.0.2.1:0", "port 0 is out of range; use 1 to 65535"),
        (
            "192.0.2.256",
            "`192.0.2.256` is not an IP address; use one like 192.0.2.10 or 2001:db8::10, or with a port from 1 to \
             65535, 192.0.2.10:80 or \"[2001:db8::10]:80\"",
        ),
        ("\"\"", "the value is missing"),
        ("{}", "a mapping stands where a single value belongs"),
        ("[2001:db8::1]", "an address in brackets needs quotes: \"[2001:db8::10]:80\""),
    ];
    for (address, message) in cases {
        refuses(
            &with_service(&format!("name: a\nprotocol: tcp\nmode: nat\nport: 80\naddress: {address}")),
            &[&format!("8:14: services[0].address: {message}")],
        );
    }
}

/// Unquoted, these are YAML of another kind: the error says what to do.
#[test]
fn ipv6_addresses_that_yaml_misreads_get_a_hint() {
    for address in ["[2001:db8::10]:80", "2001:db8::"] {
        let text = with_service(&format!("name: a\naddress: {address}\nprotocol: tcp"));
        let lines = problems(&text);
        assert!(
            lines.starts_with("5:") && lines.contains("; put an IPv6 address in quotes: \"2001:db8::\""),
            "{lines}"
        );
    }
}

#[test]
fn backends_must_fit_the_mode_of_their_service() {
    let cases = [
        (
            "nat",
            "- { address: 2001:db8::1 }",
            "9:20: services[0].backends[0].address: 2001:db8::1 is IPv6, the service is IPv4; mode nat cannot mix \
             them, mode ipip can",
        ),
        (
            "dsr",
            "- { address: 2001:db8::1 }",
            "9:20: services[0].backends[0].address: 2001:db8::1 is IPv6, the service is IPv4; mode dsr cannot mix \
             them, mode ipip can",
        ),
        (
            "dsr",
            "- { address: 198.51.100.1, port: 81 }",
            "9:40: services[0].backends[0].port: port 81 is not the service's; mode dsr does not rewrite ports, so \
             use 80 or leave it out",
        ),
        (
            "ipip",
            "- { address: 198.51.100.1:81 }",
            "9:20: services[0].backends[0].address: port 81 is not the service's; mode ipip does not rewrite ports, \
             so use 80 or leave it out",
        ),
        (
            "ipip",
            "- { address: 192.0.2.10 }",
            "9:20: services[0].backends[0].address: 192.0.2.10 is the service's own address; in mode ipip name the \
             backend by an address of its host",
        ),
        (
            "nat",
            "- { address: 198.51.100.1:80, port: 81 }",
            "9:43: services[0].backends[0].port: 81 contradicts the 80 that stands with the address; give the port \
             once",
        ),
        (
            "nat",
            "- { address: 198.51.100.1 }\n- { address: 198.51.100.1:80 }",
            "10:20: services[0].backends[1].address: 198.51.100.1:80 is the backend on line 9 already",
        ),
        // The wrong port does not become the service's and then a duplicate.
        (
            "nat",
            "- { address: 198.51.100.1 }\n- { address: 198.51.100.1, port: 0 }",
            "10:40: services[0].backends[1].port: 0 is out of range; use 1 to 65535",
        ),
        (
            "nat",
            "- { port: 80 }",
            "9:9: services[0].backends[0].address: missing; write where the backend listens, such as 198.51.100.11 \
             or 2001:db8:1::11",
        ),
    ];
    for (mode, backends, expected) in cases {
        refuses(&with_backends(mode, backends), &[expected]);
    }
    let mixed = good(&with_backends("ipip", "- { address: 2001:db8::1 }\n- { address: 198.51.100.1 }"));
    let addresses: Vec<IpAddr> = mixed.services[0].backends.iter().map(|b| b.address.address).collect();
    assert_eq!(addresses, ["2001:db8::1".parse::<IpAddr>().unwrap(), "198.51.100.1".parse().unwrap()]);
    let two_ports =
        good(&with_backends("nat", "- { address: 198.51.100.1 }\n- { address: 198.51.100.1:81 }"));
    assert_eq!(two_ports.services[0].backends.len(), 2);
}

#[test]
fn numbers_are_plain_decimal_numbers() {
    let cases = [
        ("\"10\"", "`10` is a text here; leave out the quotes"),
        ("010", "`010` begins with 0, which some read as octal; use 1 to 1000"),
        ("1_0", "`1_0` is not a whole number in digits; use 1 to 1000"),
        ("0x10", "`0x10` is not a whole number in digits; use 1 to 1000"),
        ("1.5", "`1.5` is not a whole number in digits; use 1 to 1000"),
        ("ten", "`ten` is not a whole number in digits; use 1 to 1000"),
        ("-1", "-1 is out of range; use 1 to 1000"),
        ("1001", "1001 is out of range; use 1 to 1000"),
        ("99999999999999999999999", "99999999999999999999999 is out of range; use 1 to 1000"),
        ("~", "the value is missing"),
        ("[1]", "a list stands where a single value belongs"),
    ];
    for (weight, message) in cases {
        refuses(
            &with_backends("nat", &format!("- {{ address: 198.51.100.1, weight: {weight} }}")),
            &[&format!("9:42: services[0].backends[0].weight: {message}")],
        );
    }
}

#[test]
fn health_checks_are_checked() {
    let cases = [
        (
            "maybe",
            "11",
            "",
            "`maybe` is not a health check; use none, or keys such as { tcp: {}, interval: 5s }",
        ),
        ("{ interval: 5 }", "23", ".interval", "`5` has no unit; write 5s or 5ms"),
        ("{ interval: 1ms }", "23", ".interval", "1ms is out of range; use 10ms to 1h"),
        (
            "{ timeout: fast }",
            "22",
            ".timeout",
            "`fast` is not a length of time; write whole numbers with h, m, s or ms, such as 500ms, 5s or 2h20m",
        ),
        ("{ timeout: 61s }", "22", ".timeout", "61s is out of range; use 1ms to 1m"),
        ("{ rise: 0 }", "19", ".rise", "0 is out of range; use 1 to 1000"),
        ("{ fall: 1001 }", "19", ".fall", "1001 is out of range; use 1 to 1000"),
        ("{ initial: UP }", "22", ".initial", "`UP` is not allowed (did you mean `up`?); use down or up"),
        ("{ tcp: }", "16", ".tcp", "nothing stands where keys belong; allowed here: port"),
        ("{ tcp: { port: 0 } }", "26", ".tcp.port", "0 is out of range; use 1 to 65535"),
        (
            "{ http: {} }",
            "13",
            ".http",
            "unknown key; allowed here: tcp, interval, degraded-interval, timeout, rise, fall, \
             initial",
        ),
        (
            "{ interval: 1s, degraded-interval: 2s }",
            "46",
            ".degraded-interval",
            "2s is longer than the interval of 1s; a backend in doubt is probed faster, not slower",
        ),
    ];
    for (health, column, key, message) in cases {
        refuses(
            &format!("interfaces: [{{ name: eth0 }}]\ndefaults:\n  health: {health}\n"),
            &[&format!("3:{column}: defaults.health{key}: {message}")],
        );
    }
}

#[test]
fn tables_that_are_too_small_say_what_to_do() {
    let text = with_service(
        "name: a\naddress: 192.0.2.1:80\nprotocol: tcp\nmode: nat\ntable: { max-backends: 1 }\nbackends:\n- { address: \
         198.51.100.1 }\n- { address: 198.51.100.2 }",
    );
    refuses(
        &text,
        &["8:28: services[0].table.max-backends: 2 backends are listed, the table is sized for 1; set \
           table.max-backends to 2 or more, at a quiet time: another size of table moves flows"],
    );
    refuses(
        &text.replace("max-backends: 1", "max-backends: 65536"),
        &["8:28: services[0].table.max-backends: 65536 is out of range; use 1 to 65535"],
    );
}
