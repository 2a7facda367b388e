//! How problems are told, and files that are no configuration at all.

use std::fmt::Write as _;

use tidegate::config::{ConfigError, load, parse};

use super::{good, problems, refuses, with_backends, with_service};

/// The whole text as it reaches the terminal.
#[test]
fn an_error_reads_like_a_compilers() {
    let text = with_backends("nat", "- address: 198.51.100.11\n- address: 198.51.100.12\n  weight: 2000");
    let error = parse(&text, "tidegate.yaml").unwrap_err();
    assert_eq!(
        error.to_string(),
        "tidegate.yaml:11:17: services[0].backends[1].weight: 2000 is out of range; use 1 to 1000\n  \
         11 |         weight: 2000\n     |                 ^^^^"
    );
}

#[test]
fn all_problems_are_told_at_once_in_order_of_position() {
    let text = "\
services:
  - name: web
    adress: 192.0.2.10
    port: 70000
    protocol: TCP
    mode: ipvs
    backends:
      - { address: 198.51.100.11, weight: 0 }
      - { address: example.com }
interfaces:
  - name: eth0
  - name: eth0
    mode: fast
api: { sockets: {} }
capacity: { flows: 1 }
";
    refuses(
        text,
        &[
            "2:5: services[0].address: missing; write what clients connect to, such as 192.0.2.10 or 2001:db8::10",
            "3:5: services[0].adress: unknown key (did you mean `address`?); allowed here: name, address, port, \
             ports, protocol, mode, hash, hash-prefix, on-no-backend, table, sources, limits, health, backends",
            "4:11: services[0].port: 70000 is out of range; use 1 to 65535",
            "5:15: services[0].protocol: `TCP` is not allowed (did you mean `tcp`?); use tcp or udp",
            "6:11: services[0].mode: `ipvs` is not allowed; use nat, dsr, ipip, gre or gue",
            "8:43: services[0].backends[0].weight: 0 is out of range; use 1 to 1000",
            "9:20: services[0].backends[1].address: `example.com` is not an IP address; names are not looked up; use \
             an address like 192.0.2.10 or 2001:db8::10",
            "12:11: interfaces[1].name: `eth0` was given on line 11 already",
            "13:11: interfaces[1].mode: `fast` is not allowed; use native, generic or auto",
            "14:8: api.sockets: unknown key (did you mean `socket`?); allowed here: socket",
            "15:20: capacity.flows: 1 is out of range; use 1024 to 1073741824",
        ],
    );
}

#[test]
fn a_hundred_problems_are_enough() {
    let text = format!("interfaces: [{}]", "{ name: a/b }, ".repeat(130));
    let error = parse(&text, "tidegate.yaml").unwrap_err();
    assert_eq!(error.problems().len(), 100);
    assert!(error.to_string().ends_with("\n... and 30 more problems"));
}

#[test]
fn duplicate_keys_are_refused_where_they_come_again() {
    refuses(
        "interfaces: [{ name: eth0 }]\ncapacity:\n  flows: 2000\n  flows: 3000\n",
        &["4:3: capacity.flows: duplicate key; line 3 gives it already"],
    );
}

#[test]
fn options_of_other_versions_are_unknown_keys() {
    refuses(
        &with_service(
            "name: a\naddress: 192.0.2.1:80\nprotocol: tcp\nmode: full-nat\nhash: source\nflows: auto",
        ),
        &[
            "7:11: services[0].mode: `full-nat` is not allowed; use nat, dsr, ipip, gre or gue",
            "9:5: services[0].flows: unknown key; allowed here: name, address, port, ports, protocol, mode, hash, \
             hash-prefix, on-no-backend, table, sources, limits, health, backends",
        ],
    );
    refuses(
        "interfaces: [{ name: eth0 }]\nflow-horizon: 2h\napi: { tcp: { listen: 127.0.0.1:9870 } }",
        &[
            "2:1: flow-horizon: unknown key; allowed here: interfaces, api, capacity, encapsulation, admission, unserved-port, echo, defaults, services",
            "3:8: api.tcp: unknown key; allowed here: socket",
        ],
    );
}

#[test]
fn files_that_are_not_yaml_or_not_one_document_are_refused() {
    refuses("", &["1:1: the file is empty; name at least one interface: interfaces: [{ name: eth0 }]"]);
    refuses(
        "# nothing\n",
        &["1:1: the file is empty; name at least one interface: interfaces: [{ name: eth0 }]"],
    );
    refuses(
        "interfaces: []\n---\na: 1\n",
        &["2:1: a second YAML document begins here; one file is one document"],
    );
    refuses("interfaces: !!seq []\n", &["1:13: YAML tags have no meaning here; leave it out"]);
    refuses("? [a]\n: b\n", &["1:3: a key must be a single word; put quotes around this value"]);
    refuses(
        "- a\n",
        &[
            "1:1: a list stands where keys belong; allowed here: interfaces, api, capacity, encapsulation, admission, unserved-port, echo, defaults, services",
        ],
    );
    let lines = problems("interfaces:\n  - name: \"eth0\n");
    assert!(lines.contains("not valid YAML: "), "{lines}");
    refuses(&"[".repeat(100_000), &["1:33: nested deeper than 32 levels"]);
    refuses(&"- ".repeat(100_000), &["1:65: nested deeper than 32 levels"]);
}

#[test]
fn aliases_work_and_bombs_do_not() {
    let text = "interfaces: [{ name: eth0 }]\nservices:\n  - { name: a, address: 192.0.2.1:80, protocol: tcp, mode: nat, \
                backends: &b [{ address: 198.51.100.1 }] }\n  - { name: b, address: 192.0.2.2:80, protocol: tcp, \
                mode: nat, backends: *b }\n";
    let desired = good(text);
    assert_eq!(desired.services[0].backends, desired.services[1].backends);

    let mut bomb = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
    for level in 1..20 {
        let aliases = vec![format!("*a{}", level - 1); 10].join(", ");
        writeln!(bomb, "a{level}: &a{level} [{aliases}]").unwrap();
    }
    let lines = problems(&bomb);
    assert!(lines.contains("the file has more than 3000000 values, aliases counted in full"), "{lines}");
    let anchors: String = (0..=10_000).map(|n| format!("- &a{n} x\n")).collect();
    refuses(&anchors, &["10001:11: the file has more than 10000 anchors"]);
    let lines = problems("interfaces: &a [*a]\n");
    assert!(lines.contains("1:17: "), "{lines}");
}

#[test]
fn files_that_cannot_be_read_say_why() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tidegate.yaml");
    let error = load(&path).unwrap_err();
    assert!(matches!(error, ConfigError::Read { .. }));
    assert_eq!(
        error.to_string(),
        format!("{}: cannot read the configuration: No such file or directory (os error 2)", path.display())
    );

    std::fs::write(&path, b"interfaces:\n  - name: caf\xe9\n").unwrap();
    let error = load(&path).unwrap_err();
    let problem = &error.problems()[0];
    assert_eq!((problem.line, problem.column), (2, 14));
    assert_eq!(problem.message, "byte 0xe9 is not UTF-8; save the file as UTF-8 text");

    std::fs::File::create(&path).unwrap().set_len((16 << 20) + 1).unwrap();
    assert!(matches!(load(&path), Err(ConfigError::TooLarge { .. })));
}
