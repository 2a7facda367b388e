use std::{
    env, fs,
    io::{ErrorKind, Read, Write},
    net::{IpAddr, SocketAddr},
    os::unix::{fs::PermissionsExt, net::UnixListener, process::ExitStatusExt},
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    sync::mpsc,
    thread,
    time::Duration,
};

use nix::sys::signal::Signal;

use super::*;

#[test]
fn the_client_reaches_every_backend_through_the_kernels_routing() {
    let lab = Lab::new(3);
    for (number, backend) in lab.backends.iter().enumerate() {
        let server = backend.serve(80);
        for address in [IpAddr::from(backend.ipv4), backend.ipv6.into()] {
            let address = SocketAddr::new(address, 80);
            for answer in [lab.client.fetch(address, 5 * SECOND), lab.client.ask(address, 5 * SECOND)] {
                let answer = answer.unwrap();
                assert_eq!(answer.server, format!("backend{}", number + 1));
                assert_eq!(answer.addressed_as, address);
                let client =
                    if address.is_ipv4() { lab.client.ipv4.into() } else { IpAddr::from(lab.client.ipv6) };
                assert_eq!(answer.client.ip(), client);
            }
        }
        assert_eq!(server.requests(), 4);
    }
}

#[test]
fn backends_can_own_the_address_of_a_service_and_answer_from_it() {
    let lab = Lab::new(1);
    let backend = &lab.backends[0];
    for (service, via) in
        [(IpAddr::from(SERVICE_IPV4), IpAddr::from(backend.ipv4)), (SERVICE_IPV6.into(), backend.ipv6.into())]
    {
        backend.own(service);
        lab.lb.command(&format!("ip route add {service} via {via}"));
        let _server = backend.serve_at(&[SocketAddr::new(service, 80)]);
        let address = SocketAddr::new(service, 80);
        assert_eq!(lab.client.fetch(address, 5 * SECOND).unwrap().addressed_as, address);
        assert_eq!(lab.client.ask(address, 5 * SECOND).unwrap().addressed_as, address);
    }
}

#[test]
fn a_session_is_one_connection_and_ends_with_its_server() {
    let lab = Lab::new(1);
    let server = lab.backends[0].serve(80);
    let address = (lab.backends[0].ipv4, 80).into();
    let mut session = lab.client.run(|| Session::connect(address, 5 * SECOND)).unwrap();
    let first = session.request().unwrap();
    assert_eq!(session.request().unwrap(), first);
    assert_eq!(first.client, session.local_address().unwrap());
    server.stop();
    assert!(session.request().is_err());
    assert_eq!(lab.client.fetch(address, 5 * SECOND).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    assert_eq!(lab.client.ask(address, 5 * SECOND).unwrap_err().kind(), ErrorKind::ConnectionRefused);
}

#[test]
fn offloads_are_off_and_xdp_is_on_where_packets_arrive() {
    let lab = Lab::new(1);
    for host in [&lab.client, &lab.backends[0]] {
        let links = host.command("ip -details link show eth0");
        assert!(links.contains("prog/xdp"), "{links}");
        for (end, interface) in [(host, &host.interface), (&lab.lb, &host.peer)] {
            let features = end.command(&format!("ethtool -k {interface}"));
            for feature in
                ["rx-checksumming", "tx-checksumming", "generic-receive-offload", "tcp-segmentation-offload"]
            {
                assert!(
                    features.contains(&format!("{feature}: off")),
                    "{}/{interface}: {features}",
                    end.name
                );
            }
        }
    }
}

#[test]
fn two_labs_at_once_do_not_see_each_other() {
    let (say, hear) = mpsc::channel();
    let both: Vec<_> = [80, 81]
        .into_iter()
        .map(|port| {
            let say = say.clone();
            let (go, wait) = mpsc::channel::<()>();
            let thread = thread::spawn(move || {
                let lab = Lab::new(1);
                let _server = lab.backends[0].serve(port);
                let pinned = Path::new("/sys/fs/bpf").join(port.to_string());
                fs::create_dir(&pinned).unwrap();
                say.send(()).unwrap();
                // Both are up now.
                wait.recv().unwrap();
                let other = 161 - port;
                let answers = [port, other]
                    .map(|port| lab.client.fetch((lab.backends[0].ipv4, port), 5 * SECOND).is_ok());
                let pins = [port, other].map(|port| Path::new("/sys/fs/bpf").join(port.to_string()).exists());
                let interfaces = fs::read_dir("/sys/class/net").unwrap().count();
                (answers, pins, interfaces)
            });
            (thread, go)
        })
        .collect();
    hear.recv().unwrap();
    hear.recv().unwrap();
    both.iter().for_each(|(_, go)| go.send(()).unwrap());
    for (thread, _) in both {
        assert_eq!(thread.join().unwrap(), ([true, false], [true, false], 3), "lo, client, backend1");
    }
}

#[test]
fn nothing_is_left_of_a_lab_even_after_a_panic() {
    for fails in [false, true] {
        let (say, hear) = mpsc::channel();
        let test = thread::spawn(move || {
            let lab = Lab::new(1);
            let _server = lab.backends[0].serve(80);
            let hosts = [&lab.lb, &lab.client, &lab.backends[0]];
            let namespaces = hosts.map(|host| fs::read_link(host.namespace_path()).unwrap());
            assert!(namespaces.iter().all(|namespace| is_in_use(namespace)));
            say.send(namespaces).unwrap();
            assert!(!fails, "this panic is part of the test");
        });
        assert_eq!(test.join().is_err(), fails);
        for namespace in hear.recv().unwrap() {
            await_until("the namespace to be left", 30 * SECOND, || !is_in_use(&namespace));
        }
    }
}

/// Does a thread or file descriptor of this process refer to the namespace (`net:[number]`)?
fn is_in_use(namespace: &Path) -> bool {
    let links = |folder: &str, suffix: &str| {
        let entries = fs::read_dir(folder).unwrap().flatten().map(|entry| entry.path().join(suffix));
        entries.collect::<Vec<_>>()
    };
    let threads = links("/proc/self/task", "ns/net");
    let files = fs::read_dir("/proc/self/fd").unwrap().flatten().map(|entry| entry.path());
    threads.into_iter().chain(files).any(|link| fs::read_link(link).is_ok_and(|found| found == namespace))
}

#[test]
fn a_panic_on_a_host_is_the_tests() {
    let host = Host::new("far");
    let panic =
        catch_unwind(AssertUnwindSafe(|| host.run(|| panic!("seen from {}", host.name)))).unwrap_err();
    assert_eq!(panic.downcast_ref::<String>().unwrap(), "seen from far");
    assert!(host.try_command("ip link set nothing up").unwrap_err().contains("Cannot find device"));
}

#[test]
fn waiting_in_vain_says_for_what() {
    let panic = catch_unwind(|| await_until("the tide", Duration::ZERO, || false)).unwrap_err();
    assert_eq!(panic.downcast_ref::<String>().unwrap(), "waited 0ns in vain for the tide");
    let mut looks = 0;
    await_until("the third look", SECOND, || {
        looks += 1;
        looks == 3
    });
}

/// Names the configuration to [`stand_in_daemon`].
const STAND_IN_FOR: &str = "TIDEGATE_TEST_STAND_IN_FOR";

/// Not a test: run by [`stand_in`], it behaves like the daemon as far as the harness can see.
#[test]
#[ignore = "the other side of the tests of Daemon"]
fn stand_in_daemon() {
    let Some(path) = env::var_os(STAND_IN_FOR) else { return };
    let text = fs::read_to_string(path).unwrap();
    assert!(!text.contains("broken"), "this configuration is broken");
    let socket = text.split("path: ").nth(1).unwrap().split(" }").next().unwrap();
    let listener = UnixListener::bind(socket).unwrap();
    println!("listens");
    for connection in listener.incoming() {
        let mut connection = connection.unwrap();
        let mut request = [0; 4096];
        let length = connection.read(&mut request).unwrap();
        let path = String::from_utf8_lossy(&request[..length]).split(' ').nth(1).unwrap().to_owned();
        let status = if path == "/readyz" { 200 } else { 404 };
        write!(connection, "HTTP/1.0 {status} X\r\n\r\n{path}").unwrap();
    }
}

fn stand_in(folder: &Path, configuration: &str) -> Daemon {
    let program = folder.join("stand-in");
    let tests = env::current_exe().unwrap();
    let arguments = "--exact harness::lab::tests::stand_in_daemon --ignored --nocapture";
    let expected = r#"[ "$1 $2" = "run --config" ] || exit 2"#;
    let run = format!("{STAND_IN_FOR}=\"$3\" exec {} {arguments}", tests.display());
    fs::write(&program, format!("#!/bin/sh\n{expected}\n{run}\n")).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    Daemon::with_program(&program, configuration)
}

#[test]
fn a_daemon_is_started_asked_signalled_and_started_again() {
    let folder = tempfile::tempdir().unwrap();
    let mut daemon = stand_in(folder.path(), "services: []");
    daemon.spawn();
    daemon.await_ready();
    assert_eq!(daemon.get("/any").unwrap(), (404, "/any".into()));
    let first = daemon.pid();
    daemon.restart();
    assert_ne!(daemon.pid(), first);
    // The stand-in has no handlers: it dies of the signal that it gets.
    daemon.reload();
    assert_eq!(daemon.await_end().signal(), Some(Signal::SIGHUP as i32));
    daemon.restart();
    assert_eq!(daemon.terminate().signal(), Some(Signal::SIGTERM as i32));
    assert_eq!(daemon.log().matches("listens").count(), 3);
}

#[test]
fn a_daemon_that_ends_before_it_is_ready_fails_the_test_with_its_log() {
    let folder = tempfile::tempdir().unwrap();
    let mut daemon = stand_in(folder.path(), "broken: yes");
    daemon.spawn();
    let panic = catch_unwind(AssertUnwindSafe(|| daemon.await_ready())).unwrap_err();
    let text = panic.downcast_ref::<String>().unwrap();
    assert!(text.contains("this configuration is broken") && text.contains("exit status: "), "{text}");
}
