//! What an operator reads, and how the command ends.

use std::{fs, os::unix::net::UnixListener as StdListener, path::Path, sync::Arc};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixListener,
    task::spawn_blocking,
};

use super::{overview, service, show};
use crate::{
    api::tests::fixture::{Engine, Server, backend, sample, service as any_service},
    cli::{
        Exit,
        args::{Output, StatusArgs},
    },
    model::{
        Mode,
        status::{FlowTableStatus, Ledger, NextHopStatus, Status},
    },
};

/// Two hours and five minutes after the sample's daemon started.
const NOW: u64 = 1_795_946_400 + 7500;

fn args(socket: &Path, service: Option<&str>, output: Output) -> StatusArgs {
    StatusArgs { service: service.map(|name| name.parse().unwrap()), output, socket: socket.to_owned() }
}

/// Text and exit code, on a thread that may block.
async fn shown(args: StatusArgs) -> (String, Exit) {
    match spawn_blocking(move || show(&args, 100)).await.unwrap() {
        Ok((text, exit)) => (String::from_utf8(text).unwrap(), exit),
        Err((error, exit)) => (error, exit),
    }
}

#[test]
fn the_overview_answers_in_order() {
    assert_eq!(
        overview::render(&sample(), NOW, 100),
        "\
forwarding on 2 interfaces; tidegate 0.1.0, pid 4711, since 2026-11-29 10:00:00 UTC (2h 5m)
INTERFACE  XDP      TC      DRIVER  LINK
eth0       native   tcx     ixgbe   adopted
eth1       generic  clsact  -       new

1 problem:
  - service web: backend 198.51.100.12:80 is down: connection refused -> see whether the server on
    198.51.100.12 listens on port 80

SERVICE  ADDRESS                 MODE  UP/ALL  SLOTS  PACKETS  DROPPED
web      192.0.2.10:80/tcp       ipip     1/2   4099   900007        7
web-v6   [2001:db8::10]:443/tcp  nat      0/0   4099   900007        7

packets  1234567 seen: 900000 forwarded, 334560 passed, 7 dropped
dropped  7 drop-no-backend
flows    12 of 1000000 entries
maps     2 services adopted at start, 0 tables and 0 map writes since
"
    );
}

#[test]
fn a_node_with_nothing_says_so() {
    let status = Status {
        interfaces: Vec::new(),
        problems: Vec::new(),
        services: Vec::new(),
        ledger: Ledger::default(),
        flows: FlowTableStatus::default(),
        ..sample()
    };
    let text = overview::render(&status, NOW, 100);
    assert!(
        text.starts_with("NOT FORWARDING: no interface has the program attached; tidegate 0.1.0"),
        "{text}"
    );
    assert!(text.contains("\nno problems\n"), "{text}");
    assert!(text.contains("\nno services are configured\n"), "{text}");
    let text = overview::render(&Status { ready: false, ..sample() }, NOW, 100);
    assert!(
        text.starts_with("NOT READY: attached to 2 interfaces, but not all that is configured"),
        "{text}"
    );
}

#[test]
fn a_service_shows_its_backends() {
    let web = &sample().services[0];
    assert_eq!(
        service::render(web, 100),
        "\
web: 192.0.2.10:80/tcp, mode ipip, 4099 slots; 1 of 2 backends up

BACKEND           STATE  WEIGHT  SLOTS  PACKETS  NEXT HOP                    LAST FAILURE
198.51.100.11:80  up         10   4099   900000  eth0 02:00:00:00:00:0b      -
198.51.100.12:80  DOWN       10      0   450000  unresolved: no answer from  connection refused
                                                 198.51.100.12

packets  900007 seen: 900000 forwarded, 0 passed, 7 dropped
dropped  7 drop-no-backend
"
    );
}

#[test]
fn a_service_without_a_backend_that_is_up_shouts() {
    let down = || backend(1, "198.51.100.11", 80, 0, Some("timed out"));
    let text = service::render(&any_service("web", 1, "192.0.2.10", 80, Mode::Nat, vec![down()]), 100);
    assert!(
        text.starts_with("web: 192.0.2.10:80/tcp, mode nat, 4099 slots; NO BACKEND of 1 is up\n"),
        "{text}"
    );
    let text = service::render(&sample().services[1], 100);
    assert!(text.contains("NO BACKEND is configured"), "{text}");
    assert!(text.contains("no backends are configured"), "{text}");
}

/// The longest of everything: names, addresses, counters, reasons.
fn extreme() -> Status {
    let mut status = sample();
    let mut long = backend(65_535, "2001:db8:ffff:ffff:ffff:ffff:ffff:fff1", 65_535, 65_537, None);
    (long.packets, long.bytes) = (u64::MAX, u64::MAX);
    long.next_hop = NextHopStatus::Unresolved { reason: "no route ".repeat(40) };
    long.last_failure = Some(format!("\u{1b}[31m{}", "x".repeat(300)));
    let name = "n".repeat(63);
    let mut service = any_service(
        &name,
        u32::MAX,
        "2001:db8:ffff:ffff:ffff:ffff:ffff:ffff",
        65_535,
        Mode::Ipip,
        vec![long],
    );
    (service.ledger.seen, service.ledger.dropped) = (u64::MAX, u64::MAX);
    service.ledger.reasons = (0..40).map(|n| (format!("drop-reason-{n}"), u64::MAX)).collect();
    status.ledger = service.ledger.clone();
    status.interfaces[0].driver = Some("d".repeat(64));
    status.problems[0].message = "m".repeat(500);
    status.services.push(service);
    status
}

#[test]
fn everything_fits_the_columns() {
    let status = extreme();
    let extreme_service = status.services.last().unwrap();
    for columns in [60, 80, 100] {
        for text in [overview::render(&status, NOW, columns), service::render(extreme_service, columns)] {
            for line in text.lines() {
                assert!(line.chars().count() <= usize::from(columns), "{columns} columns: {line}\n{text}");
                assert!(!line.contains('\u{1b}') && !line.ends_with(' '), "{line:?}");
            }
        }
    }
}

#[test]
fn no_width_makes_it_panic() {
    let status = extreme();
    for columns in (0..=130).chain([1000, u16::MAX]) {
        assert!(overview::render(&status, NOW, columns).contains("forwarding"));
        assert!(!service::render(status.services.last().unwrap(), columns).is_empty());
    }
}

#[tokio::test]
async fn json_is_what_the_api_says_unchanged() {
    let server = Server::start(Engine::new(sample()));
    let direct = server.get("/api/v1/status").await.body;
    assert_eq!(shown(args(&server.path(), None, Output::Json)).await, (direct, Exit::NotReady));
    let direct = server.get("/api/v1/services/web").await.body;
    assert_eq!(shown(args(&server.path(), Some("web"), Output::Json)).await, (direct, Exit::NotReady));
}

#[tokio::test]
async fn the_exit_code_says_whether_all_is_well() {
    let well = Status { problems: Vec::new(), ..sample() };
    let starting = Status { ready: false, ..well.clone() };
    let mut served = well.clone();
    served.services[0].backends.truncate(1);
    for (status, service, exit) in [
        (well.clone(), None, Exit::Ok),
        (sample(), None, Exit::NotReady),
        (starting, None, Exit::NotReady),
        (served, Some("web"), Exit::Ok),
        (well.clone(), Some("web"), Exit::NotReady),
        (well, Some("web-v6"), Exit::NotReady),
    ] {
        let server = Server::start(Engine::new(status));
        for output in [Output::Table, Output::Json] {
            let (text, ended) = shown(args(&server.path(), service, output)).await;
            assert_eq!(ended, exit, "{text}");
            assert!(text.contains(service.unwrap_or("eth0")), "{text}");
        }
    }
}

#[tokio::test]
async fn problems_of_the_daemon_come_with_their_remedy() {
    let server = Server::start(Engine::new(sample()));
    let (text, exit) = shown(args(&server.path(), Some("wbe"), Output::Table)).await;
    assert_eq!(exit, Exit::Failed);
    assert!(text.starts_with("there is no service `wbe`; did you mean `web`?"), "{text}");

    let server = Server::start(Engine::failing("map `ledger` is gone", "start the daemon again"));
    let (text, exit) = shown(args(&server.path(), None, Output::Table)).await;
    assert_eq!((text.as_str(), exit), ("map `ledger` is gone; start the daemon again", Exit::Failed));
}

#[tokio::test]
async fn a_daemon_that_is_not_there_is_explained() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("none.sock");
    let (text, exit) = shown(args(&missing, None, Output::Table)).await;
    assert_eq!(exit, Exit::Unreachable);
    assert!(text.contains("is the daemon running? See `systemctl status tidegate`"), "{text}");

    let stale = folder.path().join("stale.sock");
    drop(StdListener::bind(&stale).unwrap());
    let (text, exit) = shown(args(&stale, None, Output::Table)).await;
    assert_eq!(exit, Exit::Unreachable);
    assert!(text.contains("nobody listens on") && text.contains("Forwarding goes on"), "{text}");

    let long = folder.path().join("x".repeat(200));
    fs::write(folder.path().join("file"), "").unwrap();
    for path in [long, folder.path().join("file/api.sock")] {
        let (text, exit) = shown(args(&path, None, Output::Table)).await;
        assert_eq!(exit, Exit::Unreachable);
        assert!(text.starts_with("cannot connect to "), "{text}");
    }
}

/// Answers every connection with `answer`, whatever it is asked.
fn impostor(path: &Path, answer: &'static [u8]) {
    let listener = UnixListener::bind(path).unwrap();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut head = [0; 4096];
            let _ = stream.read(&mut head).await;
            let _ = stream.write_all(answer).await;
        }
    });
}

#[tokio::test]
async fn what_is_not_the_api_is_called_so() {
    let folder = tempfile::tempdir().unwrap();
    for (name, answer, exit, part) in [
        ("ssh", &b"SSH-2.0-OpenSSH_9.2\r\n"[..], Exit::Unreachable, "is not tidegate's API"),
        ("shut", b"", Exit::Unreachable, "is not tidegate's API"),
        (
            "other",
            b"HTTP/1.1 404 Not Found\r\ncontent-length: 2\r\ncontent-type: application/json\r\n\r\n{}",
            Exit::Unreachable,
            "HTTP status 404",
        ),
        ("html", b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\n<html>", Exit::Failed, "is not understood"),
        (
            "future",
            b"HTTP/1.1 200 OK\r\ncontent-length: 14\r\n\r\n{\"ready\":true}",
            Exit::Failed,
            "another version",
        ),
    ] {
        let path = folder.path().join(name);
        impostor(&path, answer);
        let (text, ended) = shown(args(&path, None, Output::Table)).await;
        assert_eq!(ended, exit, "{name}: {text}");
        assert!(text.contains(part), "{name}: {text}");
    }
    // Programs still get what a newer daemon says.
    let (text, ended) = shown(args(&folder.path().join("future"), None, Output::Json)).await;
    assert_eq!((text.as_str(), ended), ("{\"ready\":true}", Exit::NotReady));
}

#[tokio::test]
async fn large_answers_are_shown_whole() {
    let mut status = sample();
    let (first, many) = (status.services[0].clone(), 5000);
    status.services = (0..many).map(|_| first.clone()).collect();
    let server = Server::start(Arc::clone(&Engine::new(status)) as _);
    let (text, _) = shown(args(&server.path(), None, Output::Table)).await;
    assert_eq!(text.lines().filter(|line| line.starts_with("web ")).count(), many);
}
