//! Clients that mean no good, and an engine that hangs.

use std::sync::{Arc, Mutex, mpsc};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
    sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    time::Instant,
};

use super::fixture::{Answer, Engine, Server, sample};
use crate::{
    api::{
        Observe, ObserveError,
        connections::{CONNECTIONS, HEAD_TIMEOUT},
    },
    model::status::Status,
};

/// An engine that says when it is asked and answers when it is released.
pub(super) struct Blocked {
    entered: UnboundedSender<()>,
    release: Mutex<mpsc::Receiver<()>>,
}

impl Blocked {
    pub(super) fn new() -> (Arc<Self>, UnboundedReceiver<()>, mpsc::Sender<()>) {
        let (entered, entries) = unbounded_channel();
        let (releaser, release) = mpsc::channel();
        (Arc::new(Self { entered, release: Mutex::new(release) }), entries, releaser)
    }
}

impl Observe for Blocked {
    fn status(&self) -> Result<Status, ObserveError> {
        let _ = self.entered.send(());
        let _ = self.release.lock().unwrap().recv();
        Ok(sample())
    }
}

async fn connect(server: &Server, bytes: &[u8]) -> UnixStream {
    let mut stream = UnixStream::connect(server.path()).await.unwrap();
    stream.write_all(bytes).await.unwrap();
    stream
}

#[tokio::test]
async fn garbage_is_refused_and_harms_nobody() {
    let server = Server::start(Engine::new(sample()));
    for garbage in [
        &b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"[..],
        b"\0\0\0\0\r\n\r\n",
        b"GET\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ] {
        let status = server.send(garbage).await.status;
        assert!(matches!(status, 400 | 0), "{garbage:?} was answered with {status}");
    }
    assert_eq!(server.get("/healthz").await.status, 200);
}

#[tokio::test]
async fn a_huge_head_is_refused() {
    let server = Server::start(Engine::new(sample()));
    let long = format!("GET /healthz HTTP/1.1\r\nx: {}\r\n", "y".repeat(20_000));
    assert_eq!(server.send(long.as_bytes()).await.status, 431);
    let many = format!("GET /healthz HTTP/1.1\r\n{}\r\n", "x: y\r\n".repeat(100));
    assert_eq!(server.send(many.as_bytes()).await.status, 431);
    assert_eq!(server.get("/healthz").await.status, 200);
}

#[tokio::test]
async fn a_large_body_is_refused_before_it_is_sent() {
    let server = Server::start(Engine::new(sample()));
    let head =
        b"GET /healthz HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999999\r\nexpect: 100-continue\r\n\r\n";
    let answer = server.send(head).await;
    assert_eq!((answer.status, answer.problem().as_str()), (413, "body-too-large"));
}

#[tokio::test]
async fn a_client_that_closes_its_side_is_still_answered() {
    let server = Server::start(Engine::new(sample()));
    let mut stream = connect(&server, b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").await;
    stream.shutdown().await.unwrap();
    assert_eq!(Answer::read(&mut stream).await.status, 200);
}

#[tokio::test(start_paused = true)]
async fn half_open_connections_give_way_to_one_that_asks() {
    let server = Server::start(Engine::new(sample()));
    let mut silent = Vec::new();
    for _ in 0..4 * CONNECTIONS {
        silent.push(connect(&server, b"GET /api/v1/sta").await);
    }
    assert_eq!(server.get("/api/v1/status").await.status, 200);
    // The oldest were closed without a word, and not only because they were silent for long.
    let began = Instant::now();
    for stream in &mut silent[..CONNECTIONS] {
        let mut nothing = Vec::new();
        let _ = stream.read_to_end(&mut nothing).await;
        assert!(nothing.is_empty());
    }
    assert!(began.elapsed() < HEAD_TIMEOUT);
    // The youngest are still served once they have asked.
    let youngest = silent.last_mut().unwrap();
    youngest.write_all(b"tus HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.unwrap();
    assert_eq!(Answer::read(youngest).await.status, 200);
}

#[tokio::test(start_paused = true)]
async fn a_silent_client_is_cut() {
    let server = Server::start(Engine::new(sample()));
    // The clock jumps ahead once nothing else can happen.
    let began = Instant::now();
    let mut stream = connect(&server, b"GET /api/v1/status HTTP/1.1\r\nx").await;
    Answer::read(&mut stream).await;
    // So is one that asked once and then keeps the connection for itself.
    let mut stream = connect(&server, b"GET /none HTTP/1.1\r\nhost: x\r\n\r\n").await;
    assert_eq!(Answer::read(&mut stream).await.problem(), "no-such-route");
    assert!(began.elapsed() < 3 * HEAD_TIMEOUT, "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn an_engine_that_hangs_is_answered_for() {
    let (engine, mut entered, release) = Blocked::new();
    let server = Server::start(engine);
    let mut asking = connect(&server, b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await;
    entered.recv().await.unwrap();
    // The clock does not jump by itself while a thread is busy.
    tokio::time::advance(std::time::Duration::from_secs(6)).await;
    let answer = Answer::read(&mut asking).await;
    assert_eq!((answer.status, answer.problem().as_str()), (503, "timed-out"));
    release.send(()).unwrap();
}

#[tokio::test]
async fn an_engine_that_panics_is_a_problem_of_one_request() {
    struct Broken;
    impl Observe for Broken {
        fn status(&self) -> Result<Status, ObserveError> {
            panic!("a defect, made on purpose by a test")
        }
    }
    let server = Server::start(Arc::new(Broken));
    for _ in 0..10 {
        let answer = server.get("/api/v1/status").await;
        assert_eq!((answer.status, answer.problem().as_str()), (500, "internal"));
    }
    assert_eq!(server.get("/none").await.status, 404);
}
