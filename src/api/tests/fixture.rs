//! A stand-in for the engine, a server of it, and a client that knows nothing of HTTP libraries.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
    sync::oneshot,
    task::JoinHandle,
};

use crate::{
    api::{Observe, ObserveError, bind, serve},
    model::{
        ApiSocket, BackendState, Mode, OnNoBackend, Protocol,
        status::{
            BackendStatus, InterfaceStatus, Ledger, NextHopStatus, Problem, Publication, ServiceStatus,
            Status,
        },
    },
};

/// Says what it was told to say.
pub(crate) struct Engine(Mutex<Result<Status, ObserveError>>);

impl Engine {
    pub(crate) fn new(status: Status) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Ok(status))))
    }

    pub(crate) fn failing(message: &str, remedy: &str) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Err(ObserveError::new(message, remedy)))))
    }
}

impl Observe for Engine {
    fn status(&self) -> Result<Status, ObserveError> {
        self.0.lock().unwrap().clone()
    }
}

/// A running API in a folder of its own.
pub(crate) struct Server {
    folder: tempfile::TempDir,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

impl Server {
    pub(crate) fn start(observe: Arc<dyn Observe>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let listener = bind(&wanted(&folder.path().join("api.sock"))).unwrap();
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(serve(listener, observe, async {
            let _ = stopped.await;
        }));
        Self { folder, stop: Some(stop), task }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("api.sock")
    }

    /// Asks the server to end.
    pub(crate) fn tell_to_stop(&mut self) {
        self.stop.take().unwrap().send(()).unwrap();
    }

    /// Waits until it has, and hands over its folder.
    pub(crate) async fn stopped(self) -> tempfile::TempDir {
        self.task.await.unwrap();
        self.folder
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.request("GET", path).await
    }

    pub(crate) async fn request(&self, method: &str, path: &str) -> Answer {
        let text = format!("{method} {path} HTTP/1.1\r\nhost: tidegate\r\nconnection: close\r\n\r\n");
        self.send(text.as_bytes()).await
    }

    /// Sends `bytes` on a new connection and reads until the server closes it.
    pub(crate) async fn send(&self, bytes: &[u8]) -> Answer {
        let mut stream = UnixStream::connect(self.path()).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        Answer::read(&mut stream).await
    }
}

pub(crate) fn wanted(path: &Path) -> ApiSocket {
    ApiSocket { path: path.to_owned(), mode: 0o600, group: None }
}

/// What came back.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    head: String,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) async fn read(stream: &mut UnixStream) -> Self {
        let mut text = Vec::new();
        match stream.read_to_end(&mut text).await {
            // The server need not read all of what it refuses.
            Err(error) if error.kind() != io::ErrorKind::ConnectionReset => panic!("{error}"),
            _ => {}
        }
        let text = String::from_utf8(text).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
        Self { status, head: head.to_owned(), body: body.to_owned() }
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head
            .lines()
            .filter_map(|line| line.split_once(": "))
            .find_map(|(found, value)| found.eq_ignore_ascii_case(name).then_some(value))
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Code of the problem, after checking that it is a whole one.
    pub(crate) fn problem(&self) -> String {
        assert_eq!(self.header("content-type"), Some("application/problem+json"), "{self:?}");
        let problem = self.json();
        assert_eq!(problem["type"], "about:blank");
        assert_eq!(problem["status"], self.status);
        for member in ["title", "detail", "remedy"] {
            assert!(problem[member].as_str().is_some_and(|text| !text.is_empty()), "{member} of {problem}");
        }
        problem["code"].as_str().unwrap().to_owned()
    }
}

/// A node that forwards for two services, with one backend down.
pub(crate) fn sample() -> Status {
    Status {
        version: "0.1.0".to_owned(),
        pid: 4711,
        started_at: 1_795_946_400,
        ready: true,
        interfaces: vec![
            interface("eth0", 2, "native", "tcx", Some("ixgbe"), true),
            interface("eth1", 3, "generic", "clsact", None, false),
        ],
        problems: vec![Problem {
            message: "service web: backend 198.51.100.12:80 is down: connection refused".to_owned(),
            remedy: "see whether the server on 198.51.100.12 listens on port 80".to_owned(),
        }],
        services: vec![
            service(
                "web",
                1,
                "192.0.2.10",
                80,
                Mode::Ipip,
                vec![
                    backend(1, "198.51.100.11", 80, 4099, None),
                    backend(2, "198.51.100.12", 80, 0, Some("connection refused")),
                ],
            ),
            service("web-v6", 2, "2001:db8::10", 443, Mode::Nat, vec![]),
        ],
        ledger: ledger(1_234_567, 900_000, 334_560, 7),
        publication: Publication { adopted_services: 2, writes: 0, tables: 0, last_microseconds: 0 },
        flows: crate::model::status::FlowTableStatus { capacity: 1_000_000, bytes: 16_000_000, entries: 12 },
    }
}

fn interface(
    name: &str,
    index: u32,
    xdp: &str,
    tc: &str,
    driver: Option<&str>,
    adopted: bool,
) -> InterfaceStatus {
    let driver = driver.map(str::to_owned);
    InterfaceStatus { name: name.to_owned(), index, xdp: xdp.to_owned(), tc: tc.to_owned(), driver, adopted }
}

/// A service for tests.
pub(crate) fn service(
    name: &str,
    id: u32,
    address: &str,
    port: u16,
    mode: Mode,
    backends: Vec<BackendStatus>,
) -> ServiceStatus {
    ServiceStatus {
        name: name.parse().unwrap(),
        id,
        address: address.parse().unwrap(),
        port,
        port_end: None,
        protocol: Protocol::Tcp,
        mode,
        hash: "five-tuple".to_owned(),
        hash_prefix: None,
        on_no_backend: OnNoBackend::Drop,
        slots: 4099,
        backends,
        ledger: ledger(900_007, 900_000, 0, 7),
    }
}

/// A backend for tests; down where it has failed.
pub(crate) fn backend(id: u32, address: &str, port: u16, slots: u32, failure: Option<&str>) -> BackendStatus {
    let next_hop = match failure {
        None => NextHopStatus::Resolved { interface: "eth0".to_owned(), mac: "02:00:00:00:00:0b".to_owned() },
        Some(_) => NextHopStatus::Unresolved { reason: "no answer from 198.51.100.12".to_owned() },
    };
    BackendStatus {
        id,
        address: address.parse().unwrap(),
        port,
        weight: 10,
        state: if failure.is_none() { BackendState::Up } else { BackendState::Down },
        last_failure: failure.map(str::to_owned),
        slots,
        next_hop,
        packets: 900_000 / u64::from(id),
        bytes: 54_000_000,
    }
}

fn ledger(seen: u64, forwarded: u64, passed: u64, dropped: u64) -> Ledger {
    let reasons = BTreeMap::from([
        ("forward-tx".to_owned(), forwarded),
        ("pass-no-service".to_owned(), passed),
        ("drop-no-backend".to_owned(), dropped),
    ]);
    Ledger { seen, bytes: seen * 60, forwarded, passed, dropped, reasons }
}
