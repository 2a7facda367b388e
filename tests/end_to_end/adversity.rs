//! Operators with bad luck, and strangers on the same interfaces.

use std::{fs, path::Path, process::Command};

use nix::{sys::stat::Mode, unistd::mkfifo};

use super::scene::*;
use crate::harness::lab::{Daemon, Lab, SERVICE_IPV4, await_until};

const TIDEGATE: &str = env!("CARGO_BIN_EXE_tidegate");
const LINKS: &str = "/sys/fs/bpf/tidegate/links";

fn web(lab: &Lab) -> String {
    configuration(lab, &[Service::tcp("web", "nat", (SERVICE_IPV4, 80).into(), all(lab, false, 80))])
}

fn programs_of(lab: &Lab, interface: &str) -> String {
    let text = lab.lb.command(&format!("ip -details link show {interface}"));
    text.lines().filter(|line| line.contains("prog/xdp")).collect()
}

/// Interface names after those given were exchanged.
fn swap(lab: &Lab, one: &str, other: &str) {
    for (from, to) in [(one, "aside"), (other, one), ("aside", other)] {
        lab.lb.command(&format!("ip link set dev {from} name {to}"));
    }
}

#[test]
fn interfaces_that_swap_their_names_keep_their_programs() {
    let lab = Lab::new(2);
    let _servers: Vec<_> = lab.backends.iter().map(|backend| backend.serve(80)).collect();
    let mut daemon = Daemon::start(&lab, &web(&lab));
    await_up(&daemon, 2);
    swap(&lab, "backend1", "backend2");
    let all_attached = |daemon: &Daemon| {
        let status = daemon.status();
        status.ready && status.interfaces.len() == 3 && status.problems.is_empty()
    };
    await_until("the renaming to be noticed", PATIENCE, || daemon.log().contains("was renamed"));
    await_until("all interfaces to be attached", PATIENCE, || all_attached(&daemon));
    assert_eq!(spread(30, || lab.client.fetch((SERVICE_IPV4, 80), REQUEST)).len(), 2);

    daemon.kill();
    swap(&lab, "backend1", "backend2");
    daemon.restart();
    await_until("all interfaces to be attached", PATIENCE, || all_attached(&daemon));
    assert!(daemon.status().interfaces.iter().all(|interface| interface.adopted), "{}", daemon.log());
    assert_eq!(spread(30, || lab.client.fetch((SERVICE_IPV4, 80), REQUEST)).len(), 2);
    assert_eq!(fs::read_dir(LINKS).unwrap().count(), 9, "three links by interface, none twice");

    assert!(daemon.terminate().success());
    assert!(Command::new(TIDEGATE).arg("detach").status().unwrap().success());
    for interface in ["client", "backend1", "backend2"] {
        assert_eq!(programs_of(&lab, interface), "", "{interface}");
    }
}

#[test]
fn an_interface_with_a_new_name_is_adopted_under_it() {
    let lab = Lab::new(1);
    let _server = lab.backends[0].serve(80);
    let daemon = Daemon::start(&lab, &web(&lab));
    await_up(&daemon, 1);
    lab.lb.command("ip link set dev backend1 name uplink.7");
    await_until("the loss to be noticed", PATIENCE, || !daemon.status().ready);
    daemon.configure(&web(&lab).replace("name: backend1 ", "name: uplink.7 "));
    daemon.reload();
    await_until("the new name to be attached", PATIENCE, || daemon.status().ready);
    spread(10, || lab.client.fetch((SERVICE_IPV4, 80), REQUEST));
    let adopted = daemon.status().interfaces.into_iter().find(|interface| interface.name == "uplink.7");
    assert!(adopted.unwrap().adopted);
    assert!(!Path::new(LINKS).join("xdp-backend1").exists());
}

/// Replies that come in by an interface without our programs are translated when they leave, whoever else works there.
#[test]
fn a_strangers_program_that_accepts_packets_hides_no_replies() {
    let lab = Lab::new(1);
    let _server = lab.backends[0].serve(80);
    lab.lb.attach_tcx_pass("client");
    let daemon = Daemon::start(&lab, &web(&lab).replace("  - { name: backend1 }\n", ""));
    await_up(&daemon, 1);
    spread(10, || lab.client.fetch((SERVICE_IPV4, 80), REQUEST));
}

#[test]
fn a_pipe_in_place_of_the_file_is_refused_and_stops_nothing() {
    let lab = Lab::new(1);
    let _server = lab.backends[0].serve(80);
    let mut daemon = Daemon::start(&lab, &web(&lab));
    await_up(&daemon, 1);
    fs::remove_file(daemon.configuration_path()).unwrap();
    mkfifo(&daemon.configuration_path(), Mode::S_IRUSR).unwrap();
    daemon.reload();
    await_until("the pipe to be refused", PATIENCE, || {
        daemon.status().problems.iter().any(|problem| problem.message.contains("not a regular file"))
    });
    spread(5, || lab.client.fetch((SERVICE_IPV4, 80), REQUEST));
    assert!(daemon.terminate().success());
}

#[test]
fn validate_reads_what_another_program_writes() {
    let lab = Lab::new(1);
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    mkfifo(&pipe, Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
    let text = web(&lab);
    let output = std::thread::scope(|scope| {
        let validating = scope.spawn(|| Command::new(TIDEGATE).arg("validate").arg(&pipe).output().unwrap());
        fs::write(&pipe, text).unwrap();
        validating.join().unwrap()
    });
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn a_restart_without_cap_sys_admin_says_which_capability_is_missing() {
    let lab = Lab::new(1);
    let _server = lab.backends[0].serve(80);
    let mut daemon = Daemon::start(&lab, &web(&lab));
    await_up(&daemon, 1);
    daemon.kill();
    let few = "-all,+bpf,+net_admin,+perfmon";
    let mut command = Command::new("setpriv");
    command.args([&format!("--bounding-set={few}"), &format!("--inh-caps={few}")]);
    command.args([TIDEGATE, "run", "--config"]).arg(daemon.configuration_path());
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("CAP_SYS_ADMIN"), "{text}");
    spread(5, || lab.client.fetch((SERVICE_IPV4, 80), REQUEST));
}
