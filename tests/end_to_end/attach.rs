//! Whose interface is it, in which mode, and what is left when it is over.

use std::{fs, path::Path, process::Command};

use super::scene::*;
use crate::harness::lab::{Daemon, Lab, SERVICE_IPV4, await_until};

const TIDEGATE: &str = env!("CARGO_BIN_EXE_tidegate");

fn web(lab: &Lab) -> String {
    let service = Service::tcp("web", "nat", (SERVICE_IPV4, 80).into(), all(lab, false, 80));
    configuration(lab, &[service])
}

fn run(arguments: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(TIDEGATE).args(arguments).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8_lossy(&text).into_owned())
}

#[test]
fn a_second_daemon_on_the_same_pins_is_refused() {
    let lab = Lab::new(1);
    let _server = lab.backends[0].serve(80);
    let first = Daemon::start(&lab, &web(&lab));
    await_up(&first, 1);
    let mut second = Daemon::prepare(&lab, &web(&lab));
    second.spawn();
    assert_eq!(second.await_end().code(), Some(6));
    assert!(second.log().contains("another tidegate"), "{}", second.log());
    assert_eq!(run(&["detach"]).0, Some(6), "nor can its pins be taken away");
    spread(5, || lab.client.fetch((SERVICE_IPV4, 80), REQUEST));
}

#[test]
fn a_strangers_program_is_named_and_left_alone() {
    let lab = Lab::new(1);
    lab.lb.attach_xdp_pass("backend1");
    let mut daemon = Daemon::prepare(&lab, &web(&lab));
    daemon.spawn();
    assert_eq!(daemon.await_end().code(), Some(6));
    let log = daemon.log();
    assert!(log.contains("backend1") && log.contains("ip link set dev backend1 xdp off"), "{log}");
    let client = lab.lb.command("ip -details link show client");
    assert!(!client.contains("prog/xdp"), "what was attached before the failure is taken away: {client}");
    assert!(!Path::new("/sys/fs/bpf/tidegate/maps/node").exists());
}

#[test]
fn native_is_strict_and_names_the_driver_where_auto_falls_back() {
    let lab = Lab::new(1);
    /* A tun device has no native XDP without a queue that is open. */
    lab.lb.command("ip link add bridge0 type bridge");
    lab.lb.command("ip link set bridge0 up");
    let with = |mode: &str| {
        web(&lab).replace("interfaces:\n", &format!("interfaces:\n  - {{ name: bridge0, mode: {mode} }}\n"))
    };
    let mut daemon = Daemon::prepare(&lab, &with("native"));
    daemon.spawn();
    assert_eq!(daemon.await_end().code(), Some(1));
    assert!(daemon.log().contains("driver bridge"), "{}", daemon.log());
    for mode in ["auto", "generic"] {
        daemon.configure(&with(mode));
        daemon.spawn();
        daemon.await_ready();
        let status = daemon.status();
        let bridge = status.interfaces.iter().find(|interface| interface.name == "bridge0").unwrap();
        assert_eq!(bridge.xdp, "generic", "{mode}");
        daemon.kill();
        assert_eq!(run(&["detach"]).0, Some(0));
    }
}

#[test]
fn generic_mode_serves_as_well() {
    let lab = Lab::new(2);
    let _servers: Vec<_> = lab.backends.iter().map(|backend| backend.serve(80)).collect();
    let generic = web(&lab)
        .replace(" }\ncapacity", ", mode: generic }\ncapacity")
        .replace("name: client }", "name: client, mode: generic }");
    let generic = generic.replace("name: backend1 }", "name: backend1, mode: generic }");
    let daemon = Daemon::start(&lab, &generic);
    await_up(&daemon, 2);
    assert!(daemon.status().interfaces.iter().all(|interface| interface.xdp == "generic"));
    assert_eq!(spread(30, || lab.client.fetch((SERVICE_IPV4, 80), REQUEST)).len(), 2);
}

#[test]
fn detach_takes_all_of_it_away_and_nothing_else() {
    let lab = Lab::new(1);
    let _server = lab.backends[0].serve(80);
    let _decap = lab.backends[0].decapsulate();
    let mut daemon = Daemon::start(&lab, &web(&lab));
    await_up(&daemon, 1);
    assert!(daemon.terminate().success());
    spread(5, || lab.client.fetch((SERVICE_IPV4, 80), REQUEST));

    let (code, text) = run(&["detach"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("client") && text.contains("backend1"), "{text}");
    assert!(!Path::new("/sys/fs/bpf/tidegate").exists());
    assert!(Path::new("/sys/fs/bpf/backend1/maps/decap_addresses").exists(), "the backend's own pins stay");
    for interface in ["client", "backend1"] {
        assert!(!lab.lb.command(&format!("ip -details link show {interface}")).contains("prog/xdp"));
    }
    await_unreachable(&lab.client, (SERVICE_IPV4, 80).into());
    assert_eq!(run(&["detach"]).0, Some(0), "nothing left to do is no failure");
}

#[test]
fn an_interface_that_goes_and_comes_back_is_attached_again() {
    let lab = Lab::new(1);
    lab.lb.command("ip link add extra type veth peer name extra-peer");
    let text = web(&lab).replace("interfaces:\n", "interfaces:\n  - { name: extra }\n");
    let daemon = Daemon::start(&lab, &text);
    lab.lb.command("ip link delete extra");
    await_until("the loss to be noticed", PATIENCE, || {
        let status = daemon.status();
        !status.ready && status.problems.iter().any(|problem| problem.message.contains("extra"))
    });
    lab.lb.command("ip link add extra type veth peer name extra-peer");
    await_until("the interface to be attached again", PATIENCE, || daemon.status().ready);
    assert!(lab.lb.command("ip -details link show extra").contains("prog/xdp"));
}

#[test]
fn every_map_is_pinned_under_its_name_with_types_that_bpftool_prints() {
    let lab = Lab::new(1);
    let _server = lab.backends[0].serve(80);
    let daemon = Daemon::start(&lab, &web(&lab));
    await_up(&daemon, 1);
    let maps: Vec<_> = fs::read_dir("/sys/fs/bpf/tidegate/maps")
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    for name in ["services_v4", "services", "backends", "tables", "flows", "node", "ledger"] {
        assert!(maps.iter().any(|map| map == name), "{name} in {maps:?}");
    }
    let dump = |name: &str| {
        let path = format!("/sys/fs/bpf/tidegate/maps/{name}");
        let output = Command::new("bpftool").args(["map", "dump", "pinned", &path]).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    for (name, fields) in [
        ("services", &["slots", "port", "mode"][..]),
        ("backends", &["destination_mac", "interface", "state"]),
    ] {
        let text = dump(name);
        assert!(fields.iter().all(|field| text.contains(&format!("\"{field}\""))), "{text:.500}");
    }
}

#[test]
fn decap_attaches_shows_and_goes_away_by_the_command_line() {
    let lab = Lab::new(1);
    let backend = &lab.backends[0];
    let pins = "/sys/fs/bpf/by-hand";
    let on_backend = |arguments: &[&str]| {
        let all = [&["decap", "--interface", "eth0", "--pins", pins], arguments].concat();
        backend.run(|| run(&all))
    };
    assert_eq!(on_backend(&[]).0, Some(6), "the pass program of the lab is there");
    drop(backend.decapsulate());
    backend.command("ip link show eth0");
    let replaced = backend.run(|| {
        tidegate::datapath::Decap::detach(&tidegate::datapath::Pins::new("/sys/fs/bpf/backend1"), "eth0")
    });
    assert!(replaced.unwrap());
    let (code, text) = on_backend(&[]);
    assert_eq!(code, Some(0), "{text}");
    let (code, text) = on_backend(&["--status", "--output", "json"]);
    assert_eq!(code, Some(0));
    assert!(text.contains(&backend.ipv4.to_string()) && text.contains(&backend.ipv6.to_string()), "{text}");
    assert_eq!(on_backend(&["--detach"]).0, Some(0));
    assert_eq!(on_backend(&["--status"]).0, Some(5));
    assert!(!Path::new(pins).exists());
}

#[test]
fn a_daemon_that_cannot_have_its_socket_attaches_nothing_and_leaves_nothing() {
    let lab = Lab::new(1);
    let mut daemon = Daemon::prepare(&lab, &web(&lab));
    fs::write(daemon.socket(), "not a socket").unwrap();
    daemon.spawn();
    assert_eq!(daemon.await_end().code(), Some(1));
    assert!(!lab.lb.command("ip -details link show client").contains("prog/xdp"));
    assert!(!Path::new("/sys/fs/bpf/tidegate/maps/node").exists(), "{}", daemon.log());
}

#[test]
fn a_link_whose_pin_is_removed_is_attached_anew() {
    let lab = Lab::new(1);
    let _server = lab.backends[0].serve(80);
    let daemon = Daemon::start(&lab, &web(&lab));
    await_up(&daemon, 1);
    fs::remove_file("/sys/fs/bpf/tidegate/links/xdp-client").unwrap();
    await_until("the program to be back", PATIENCE, || {
        Path::new("/sys/fs/bpf/tidegate/links/xdp-client").exists()
            && lab.lb.command("ip -details link show client").contains("prog/xdp")
    });
    spread(10, || lab.client.fetch((SERVICE_IPV4, 80), REQUEST));
    assert!(daemon.log().contains("removed our pinned links"), "{}", daemon.log());
}

#[test]
fn pins_that_are_damaged_or_of_another_layout_are_left_alone() {
    let lab = Lab::new(1);
    let _server = lab.backends[0].serve(80);
    let mut daemon = Daemon::start(&lab, &web(&lab));
    await_up(&daemon, 1);
    daemon.kill();
    let refused = |daemon: &mut Daemon, words: &str| {
        fs::remove_file(daemon.socket()).ok();
        daemon.spawn();
        assert_eq!(daemon.await_end().code(), Some(1));
        assert!(daemon.log().contains(words) && daemon.log().contains("tidegate detach"), "{}", daemon.log());
        spread(5, || lab.client.fetch((SERVICE_IPV4, 80), REQUEST));
    };
    let node = "/sys/fs/bpf/tidegate/maps/node";
    let settings = Command::new("bpftool").args(["-j", "map", "dump", "pinned", node]).output().unwrap();
    let settings: serde_json::Value = serde_json::from_slice(&settings.stdout).unwrap();
    let mut bytes: Vec<String> = settings[0]["value"]
        .as_array()
        .unwrap()
        .iter()
        .map(|byte| byte.as_str().unwrap().trim_start_matches("0x").to_owned())
        .collect();
    let write = |bytes: &[String]| {
        let mut arguments =
            vec!["map", "update", "pinned", node, "key", "hex", "0", "0", "0", "0", "value", "hex"];
        arguments.extend(bytes.iter().map(String::as_str));
        let done = Command::new("bpftool").args(arguments).output().unwrap();
        assert!(done.status.success(), "{done:?}");
    };
    let version = std::mem::replace(&mut bytes[4], "63".to_owned());
    write(&bytes);
    refused(&mut daemon, "layout 99");
    bytes[4] = version;
    write(&bytes);
    fs::remove_file("/sys/fs/bpf/tidegate/maps/nat_sources_v6").unwrap();
    refused(&mut daemon, "nat_sources_v6");
}

#[test]
fn systemd_is_told_when_it_is_ready_reloads_and_stops() {
    let lab = Lab::new(1);
    let _server = lab.backends[0].serve(80);
    let mut daemon = Daemon::prepare(&lab, &web(&lab));
    let path = daemon.configuration_path().with_file_name("notify.sock");
    let socket = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    daemon.set_environment("NOTIFY_SOCKET", path.to_str().unwrap());
    let hear = || {
        let mut buffer = [0; 512];
        let length = loop {
            match socket.recv(&mut buffer) {
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                received => break received.expect("a message to systemd"),
            }
        };
        String::from_utf8_lossy(&buffer[..length]).into_owned()
    };
    daemon.spawn();
    assert!(hear().contains("READY=1"));
    daemon.await_ready();
    daemon.reload();
    let reloading = hear();
    assert!(reloading.contains("RELOADING=1") && reloading.contains("MONOTONIC_USEC="), "{reloading}");
    assert!(hear().contains("READY=1"));
    assert!(daemon.terminate().success());
    assert!(hear().contains("STOPPING=1"));
}
