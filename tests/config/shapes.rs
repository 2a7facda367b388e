//! Ranges of ports, and what the hash is of.

use tidegate::model::{HashMode, PortRange, RANGES_PER_ADDRESS};

use super::{good, refuses, with_service};

/// A service with these lines, the first of them on line 7, and nothing to probe.
fn service(lines: &str) -> String {
    with_service(&format!("name: a\naddress: 192.0.2.1\nprotocol: udp\n{lines}\nmode: nat\nhealth: none"))
}

#[test]
fn ports_are_one_a_range_or_any() {
    let ports = |lines| good(&service(lines)).services[0].address.ports;
    assert_eq!(ports("port: 80"), PortRange::single(80));
    assert_eq!(ports("ports: 8000-8099"), PortRange::new(8000, 8099).unwrap());
    assert_eq!(ports("ports: \"1-65535\""), PortRange::new(1, 65535).unwrap());
    assert_eq!(ports("ports: any"), PortRange::ANY);
    let addresses = ["port: 80", "ports: 1-2", "ports: any"]
        .map(|lines| good(&service(lines)).services[0].address.to_string());
    assert_eq!(addresses, ["192.0.2.1:80/udp", "192.0.2.1:1-2/udp", "192.0.2.1:*/udp"]);
}

#[test]
fn what_is_not_a_range_is_refused_with_what_to_write() {
    for (ports, message) in [
        ("80", "80 is a single port; write port: 80"),
        ("80-80", "`80-80` is a single port; write port: 80"),
        ("90-80", "`90-80` runs backwards; write 80-90"),
        ("0-80", "`0-80` is not a range of ports; use one like 8000-8099, within 1 to 65535, or any"),
        ("1-65536", "`1-65536` is not a range of ports; use one like 8000-8099, within 1 to 65535, or any"),
        ("80-", "`80-` is not a range of ports; use one like 8000-8099, within 1 to 65535, or any"),
        ("-80", "`-80` is not a range of ports; use one like 8000-8099, within 1 to 65535, or any"),
        ("1-2-3", "`1-2-3` is not a range of ports; use one like 8000-8099, within 1 to 65535, or any"),
        ("all", "`all` is not a range of ports; use one like 8000-8099, within 1 to 65535, or any"),
        ("", "the value is missing"),
        ("[80, 443]", "ports are one range, such as 8000-8099, or any; make a service for each other port"),
        ("{}", "a mapping stands where a single value belongs"),
    ] {
        let column = if ports.is_empty() { 10 } else { 12 };
        refuses(
            &service(&format!("ports: {ports}")),
            &[&format!("7:{column}: services[0].ports: {message}")],
        );
    }
}

#[test]
fn ports_are_given_once() {
    refuses(
        &service("ports: 1-2\nport: 1"),
        &[
            "7:12: services[0].ports: contradicts port; give either port, for a single one, or ports, for several",
        ],
    );
    refuses(
        &service("ports: any").replace("192.0.2.1", "192.0.2.1:80"),
        &[
            "7:12: services[0].ports: contradicts the 80 that stands with the address; leave that out to have several ports",
        ],
    );
}

/// Services of one address, a line each from line 3 on.
fn services(ports: &[(&str, &str)]) -> String {
    let line = |(number, (ports, protocol)): (usize, &(&str, &str))| {
        format!(
            "- {{ name: s{number}, address: 192.0.2.1, ports: {ports}, protocol: {protocol}, mode: nat, health: none }}\n"
        )
    };
    format!(
        "interfaces: [{{ name: eth0 }}]\nservices:\n{}",
        ports.iter().enumerate().map(line).collect::<String>()
    )
}

#[test]
fn ranges_of_one_width_may_not_overlap() {
    refuses(
        &services(&[("8000-8099", "tcp"), ("9000-9099", "tcp"), ("8050-8149", "tcp")]),
        &[
            "5:42: services[2].ports: 8050-8149 overlaps 8000-8099 of the service on line 3 and is as wide, so neither comes \
             first; narrower ranges come before wider ones",
        ],
    );
    refuses(
        &services(&[("any", "tcp"), ("any", "tcp")]),
        &["4:24: services[1].address: 192.0.2.1:*/tcp is the address of the service on line 3 already"],
    );
    // Of another width, protocol or without a common port they may.
    let fine = [
        ("8000-8099", "tcp"),
        ("8050-8059", "tcp"),
        ("8050-8149", "udp"),
        ("8100-8199", "tcp"),
        ("any", "tcp"),
    ];
    assert_eq!(good(&services(&fine)).services.len(), 5);
}

#[test]
fn an_address_has_room_for_so_many_ranges() {
    let ranges: Vec<String> =
        (0..=RANGES_PER_ADDRESS).map(|n| format!("{}-{}", 10 * n + 1, 10 * n + 5)).collect();
    let mut all: Vec<(&str, &str)> = ranges.iter().map(|range| (range.as_str(), "tcp")).collect();
    refuses(
        &services(&all),
        &[
            "11:42: services[8].ports: 192.0.2.1 has 8 services with a range of tcp ports already, the first on line 3, and \
             cannot have more; join ranges, or use single ports, of which there may be any number",
        ],
    );
    all[RANGES_PER_ADDRESS].1 = "udp";
    assert_eq!(good(&services(&all)).services.len(), 9);
}

#[test]
fn backends_of_a_range_have_no_port() {
    let with = |mode: &str, backend: &str| {
        service("ports: 1-9").replace("mode: nat", &format!("mode: {mode}"))
            + &format!("    backends: [{backend}]\n")
    };
    for mode in ["nat", "dsr", "ipip"] {
        let backend = good(&with(mode, "{ address: 198.51.100.1 }")).services[0].backends[0].address;
        assert_eq!((backend.port, backend.to_string().as_str()), (0, "198.51.100.1"));
        refuses(
            &with(mode, "{ address: 198.51.100.1, port: 8 }"),
            &[
                "10:47: services[0].backends[0].port: port 8 is not possible: the service has the ports 1-9, which packets \
                 keep; leave it out",
            ],
        );
        refuses(
            &with(mode, "{ address: 198.51.100.1:8 }"),
            &[
                "10:27: services[0].backends[0].address: port 8 is not possible: the service has the ports 1-9, which packets \
                 keep; leave it out",
            ],
        );
        let message = format!(
            "10:27: services[0].backends[0].address: 192.0.2.1 is the service's own address; in mode {mode} name the backend by \
             an address of its host"
        );
        refuses(&with(mode, "{ address: 192.0.2.1 }"), &[&message]);
    }
}

#[test]
fn a_range_is_probed_at_a_port_that_is_named() {
    let message = "backends of a range of ports have no port of their own to probe; name one, such as health: { tcp: { port: \
                   8000 } }, or trust them with health: none";
    let text = |health: &str| service("ports: 1-9").replace("health: none", health);
    refuses(&text("health: { tcp: {} }"), &[&format!("9:13: services[0].health: {message}")]);
    refuses(&text("table: { max-backends: 4 }"), &[&format!("7:12: services[0].ports: {message}")]);
    good(&text("health: { tcp: { port: 5 } }"));
    let defaults = "defaults: { health: { tcp: { port: 5 } } }\n";
    good(&(defaults.to_owned() + &text("table: { max-backends: 4 }")));
}

#[test]
fn the_hash_is_of_the_flow_or_of_addresses() {
    let hash = |lines: &str| good(&service(&format!("port: 80\n{lines}"))).services[0].hash;
    assert_eq!(hash("table: {}"), HashMode::FiveTuple);
    assert_eq!(hash("hash: five-tuple"), HashMode::FiveTuple);
    assert_eq!(hash("hash: source"), HashMode::Source { prefix: 32 });
    assert_eq!(hash("hash: source-destination\nhash-prefix: 24"), HashMode::SourceDestination { prefix: 24 });
    let ipv6 = service("port: 80\nhash: source").replace("192.0.2.1", "2001:db8::1");
    assert_eq!(good(&ipv6).services[0].hash, HashMode::Source { prefix: 128 });
}

#[test]
fn hashes_that_mean_nothing_are_refused() {
    let lines = |lines: &str| service(&format!("port: 80\n{lines}"));
    refuses(
        &lines("hash: random"),
        &["8:11: services[0].hash: `random` is not allowed; use five-tuple, source or source-destination"],
    );
    for prefix in ["0", "33"] {
        refuses(
            &lines(&format!("hash: source\nhash-prefix: {prefix}")),
            &[&format!("9:18: services[0].hash-prefix: {prefix} is out of range; use 1 to 32")],
        );
    }
    let ipv6 = lines("hash: source\nhash-prefix: 129").replace("192.0.2.1", "2001:db8::1");
    refuses(&ipv6, &["9:18: services[0].hash-prefix: 129 is out of range; use 1 to 128"]);
    for text in ["hash: five-tuple\nhash-prefix: 24", "table: {}\nhash-prefix: 24"] {
        refuses(
            &lines(text),
            &[
                "9:18: services[0].hash-prefix: means nothing with hash five-tuple; set hash: source or hash: \
                 source-destination, or leave it out",
            ],
        );
    }
}
