//! Lists of sources and limits.

use std::fs;

use tidegate::{
    config::parse,
    model::{Limits, Prefix, Rate, ServiceAdmission, Sources},
};

use super::{good, problems, refuses, with_service};

fn with_admission(text: &str) -> String {
    format!("interfaces: [{{ name: eth0 }}]\nadmission: {text}\n")
}

fn prefixes(text: &str) -> Vec<Prefix> {
    text.split_whitespace().map(|prefix| prefix.parse().unwrap()).collect()
}

/// A service whose last line, line 8 from column 5 on, is `line`.
fn service_with(address: &str, protocol: &str, mode: &str, line: &str) -> String {
    with_service(&format!("name: web\naddress: \"{address}\"\nprotocol: {protocol}\nmode: {mode}\n{line}"))
}

fn admission(line: &str) -> ServiceAdmission {
    good(&service_with("192.0.2.10:80", "tcp", "nat", line)).services.remove(0).admission
}

#[test]
fn lists_come_from_the_configuration_and_from_files() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("list");
    fs::write(&path, "# blocked\r\n\n  198.51.100.0/24\t# why\n2001:db8::1\r\n203.0.113.7").unwrap();
    let text = with_admission(&format!(
        "{{ blocklist: [192.0.2.0/24], blocklist-files: [{0}], allowlist-files: [{0}, {0}], drop-bogons: true }}",
        path.display()
    ));
    let admission = good(&text).admission;
    let of_file = prefixes("198.51.100.0/24 2001:db8::1 203.0.113.7");
    assert_eq!(admission.blocklist, [prefixes("192.0.2.0/24"), of_file.clone()].concat());
    assert_eq!(admission.allowlist, [of_file.clone(), of_file].concat(), "twice is no error");
    assert!(admission.drop_bogons && !good(&with_admission("{}")).admission.drop_bogons);
}

#[test]
fn wrong_lines_of_a_file_are_told_by_file_and_line() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("list");
    fs::write(&path, "192.0.2.0/24\n192.0.2.1/24\n\nexample.org # comment\n\u{0}\n").unwrap();
    let text = with_admission(&format!("{{ blocklist-files: [{}] }}", path.display()));
    let told = problems(&text);
    let at = |line: u32| format!("2:32: admission.blocklist-files[0]: {}:{line}: ", path.display());
    let lines: Vec<&str> = told.lines().collect();
    assert_eq!(lines.len(), 3, "{told}");
    assert!(lines[0].starts_with(&at(2)) && lines[0].contains("write 192.0.2.0/24"), "{told}");
    assert!(lines[1].starts_with(&at(4)) && lines[1].contains("`example.org` is not a prefix"), "{told}");
    assert!(lines[2].starts_with(&at(5)), "{told}");

    fs::write(&path, "x\n".repeat(1000)).unwrap();
    let told = problems(&text);
    assert_eq!(told.lines().count(), 11);
    assert!(told.ends_with("990 more lines are wrong\n"), "{told}");
    fs::write(&path, b"192.0.2.0/24\n\xff\xfe\n").unwrap();
    assert!(problems(&text).contains(":2: "), "{}", problems(&text));
}

#[test]
fn files_that_cannot_be_read_are_errors_and_not_empty_lists() {
    let folder = tempfile::tempdir().unwrap();
    for (path, message) in [
        (folder.path().join("missing"), "cannot read the file: No such file"),
        (folder.path().to_owned(), "cannot read the file: it is not a regular file"),
        ("/dev/zero".into(), "it is not a regular file"),
        ("relative/list".into(), "is not the absolute path of a file"),
    ] {
        let text = with_admission(&format!("{{ allowlist-files: [{}] }}", path.display()));
        assert!(problems(&text).contains(message), "{}", problems(&text));
    }
}

#[test]
fn more_prefixes_than_the_kernel_should_hold_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("list");
    fs::write(&path, "192.0.2.0/24\n".repeat(1_000_001)).unwrap();
    let text = with_admission(&format!("{{ blocklist-files: [{}] }}", path.display()));
    assert!(
        problems(&text).contains(":1000001: the list has more than 1000000 prefixes"),
        "{}",
        problems(&text)
    );
}

#[test]
fn what_is_no_prefix_is_refused() {
    refuses(
        &with_admission("{ blocklist: [192.0.2.1/24, 192.0.2.0/33, 12, []], drop-bogons: yes }"),
        &[
            "2:26: admission.blocklist[0]: `192.0.2.1/24` has bits set beyond its length; write 192.0.2.0/24, or the single address without a length",
            "2:40: admission.blocklist[1]: `192.0.2.0/33` has a length out of range; use 0 to 32",
            "2:54: admission.blocklist[2]: `12` is not a prefix; write one like 192.0.2.0/24 or 2001:db8::/32, or a single address",
            "2:58: admission.blocklist[3]: a list stands where a single value belongs",
            "2:76: admission.drop-bogons: `yes` is not allowed; use true or false",
        ],
    );
}

#[test]
fn sources_name_the_familys_of_their_service() {
    let mixed = "sources: { allow: [192.0.2.0/24, \"2001:db8::/32\"] }";
    let expected = Some(Sources::Allow(prefixes("192.0.2.0/24 2001:db8::/32").into()));
    assert_eq!(admission(mixed).sources, expected);
    for (address, list, message) in [
        (
            "192.0.2.10:80",
            "{ allow: [\"2001:db8::/32\"] }",
            "8:23: services[0].sources.allow: the service's address is IPv4 and the list names no IPv4 prefix, so that nobody could use the service",
        ),
        (
            "[2001:db8::10]:80",
            "{ deny: [192.0.2.0/24] }",
            "8:22: services[0].sources.deny: the service's address is IPv6 and the list names no IPv6 prefix, so that it would deny nothing",
        ),
        (
            "192.0.2.10:80",
            "{ allow: [] }",
            "8:23: services[0].sources.allow: the service's address is IPv4 and the list names no IPv4 prefix, so that nobody could use the service",
        ),
        (
            "192.0.2.10:80",
            "{ allow: [192.0.2.0/24], deny: [192.0.2.0/24] }",
            "8:14: services[0].sources: allow and deny exclude each other; of `allow`, all others are denied",
        ),
        (
            "192.0.2.10:80",
            "{}",
            "8:14: services[0].sources: neither allow nor deny is given; leave out `sources`",
        ),
    ] {
        refuses(&service_with(address, "tcp", "nat", &format!("sources: {list}")), &[message]);
    }
}

#[test]
fn limits_and_what_they_mean() {
    let rate = |per_second, burst| Some(Rate { per_second, burst });
    let limits = admission(
        "limits: { new-flows: 1000/s, packets: { rate: 50000/s, burst: 500 }, per-source: { new-flows: { rate: 1/s, burst: 3600 }, packets: 7/s, prefix-v4: 24, prefix-v6: 48 } }",
    )
    .limits;
    let expected = Limits {
        new_flows: rate(1000, 1000),
        packets: rate(50_000, 500),
        source_new_flows: rate(1, 3600),
        source_packets: rate(7, 7),
        prefix_v4: 24,
        prefix_v6: 48,
    };
    assert_eq!(limits, expected);
    assert_eq!(admission("limits: {}").limits, Limits::default());
    assert_eq!((Limits::default().prefix_v4, Limits::default().prefix_v6), (32, 64));
}

#[test]
fn limits_that_cannot_be_kept_are_refused() {
    for (limits, message) in [
        (
            "{ packets: 1000 }",
            "8:24: services[0].limits.packets: `1000` is not a rate; write how many a second, such as 1000/s",
        ),
        (
            "{ packets: 0/s }",
            "8:24: services[0].limits.packets: `0/s` is out of range; use 1/s to 100000000/s",
        ),
        (
            "{ packets: 100000001/s }",
            "8:24: services[0].limits.packets: `100000001/s` is out of range; use 1/s to 100000000/s",
        ),
        (
            "{ packets: { burst: 5 } }",
            "8:24: services[0].limits.packets.rate: missing; say how many a second, such as 1000/s",
        ),
        (
            "{ packets: { rate: 1000/s, burst: 9 } }",
            "8:47: services[0].limits.packets.burst: 9 is out of range; use 10 to 3600000",
        ),
        (
            "{ packets: { rate: 1/s, burst: 3601 } }",
            "8:44: services[0].limits.packets.burst: 3601 is out of range; use 1 to 3600",
        ),
        (
            "{ per-source: { prefix-v4: 33 } }",
            "8:40: services[0].limits.per-source.prefix-v4: 33 is out of range; use 0 to 32",
        ),
    ] {
        let text = service_with("192.0.2.10:80", "tcp", "dsr", &format!("limits: {limits}"));
        refuses(&text, &[message]);
    }
}

#[test]
fn new_udp_flows_can_only_be_limited_where_flows_are_tracked() {
    let text = |mode| service_with("192.0.2.10:80", "udp", mode, "limits: { new-flows: 5/s }");
    refuses(
        &text("ipip"),
        &[
            "8:26: services[0].limits.new-flows: mode ipip keeps no record of UDP flows and so cannot tell a new one; limit packets instead",
        ],
    );
    good(&text("nat"));
}

#[test]
fn any_list_file_is_read_without_a_panic() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("list");
    let text = with_admission(&format!("{{ blocklist-files: [{}] }}", path.display()));
    for seed in 0..200_u32 {
        let bytes: Vec<u8> = (0..300)
            .map(|at| (seed.wrapping_mul(2_654_435_761).rotate_left(at % 31) >> (at % 23)) as u8)
            .collect();
        fs::write(&path, &bytes).unwrap();
        let _ = parse(&text, "tidegate.yaml");
    }
}
