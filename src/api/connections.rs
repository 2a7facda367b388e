//! The open connections: how many there may be, which gives way, how long each may live.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::Router;
use hyper::{server::conn::http1, service::Service, service::service_fn};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::{
    net::UnixStream,
    sync::watch,
    task::{AbortHandle, JoinSet},
    time::{sleep, timeout},
};
use tracing::debug;

use super::Problem;

/// Connections kept open at once.
pub(super) const CONNECTIONS: usize = 64;
/// A request head must be complete this long after the connection could first read it; idle connections end with it.
pub(super) const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// A connection is asked to end after this long, however busy it is.
const LIFETIME: Duration = Duration::from_secs(120);
/// A connection that was asked to end is cut after this long.
pub(super) const GRACE: Duration = Duration::from_secs(2);
/// Largest request head, in bytes.
const HEAD_LIMIT: usize = 16 * 1024;
/// Most header lines of a request.
const HEADER_LINES: usize = 64;

/// The open connections, oldest first.
pub(super) struct Connections {
    router: Router,
    closing: watch::Sender<bool>,
    tasks: JoinSet<()>,
    open: VecDeque<Open>,
}

struct Open {
    task: AbortHandle,
    requests: InWork,
}

/// Counts the requests of a connection that are being answered.
#[derive(Clone, Default)]
struct InWork(Arc<AtomicUsize>);

struct Working(InWork);

impl Connections {
    pub(super) fn new(router: Router) -> Self {
        Self { router, closing: watch::Sender::new(false), tasks: JoinSet::new(), open: VecDeque::new() }
    }

    /// Talks HTTP on `stream` from now on. Where all places are taken, the oldest connection that waits for its client
    /// gives way, so that clients which say nothing never keep out one that asks something.
    pub(super) fn open(&mut self, stream: UnixStream) {
        self.forget_closed();
        if self.open.len() >= CONNECTIONS && !self.close_oldest_waiting() {
            turn_away(&stream);
            return;
        }
        let requests = InWork::default();
        let conversation = converse(stream, self.router.clone(), requests.clone(), self.closing.subscribe());
        let task = self.tasks.spawn(conversation);
        self.open.push_back(Open { task, requests });
    }

    /// Waits until a connection has ended; for ever where none is open.
    pub(super) async fn one_closed(&mut self) {
        if self.tasks.join_next().await.is_none() {
            std::future::pending::<()>().await;
        }
    }

    /// Lets every connection finish the request it is in, and cuts what takes longer than [`GRACE`].
    pub(super) async fn close(mut self) {
        self.closing.send_replace(true);
        let all = async { while self.tasks.join_next().await.is_some() {} };
        if timeout(GRACE, all).await.is_err() {
            debug!("cut connections that did not end in time");
        }
        self.tasks.shutdown().await;
    }

    fn forget_closed(&mut self) {
        self.open.retain(|connection| !connection.task.is_finished());
    }

    fn close_oldest_waiting(&mut self) -> bool {
        let waiting = self.open.iter().position(|connection| connection.requests.none());
        match waiting.and_then(|index| self.open.remove(index)) {
            Some(connection) => {
                debug!("closed the oldest waiting connection to make room for a new one");
                connection.task.abort();
                true
            }
            None => false,
        }
    }
}

impl InWork {
    fn begin(&self) -> Working {
        self.0.fetch_add(1, Ordering::Relaxed);
        Working(self.clone())
    }

    fn none(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

async fn converse(stream: UnixStream, router: Router, requests: InWork, mut closing: watch::Receiver<bool>) {
    let routes = TowerToHyperService::new(router);
    let service = service_fn(move |request| {
        let working = requests.begin();
        let answer = routes.call(request);
        async move {
            let answer = answer.await;
            drop(working);
            answer
        }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(HEAD_LIMIT)
        .max_headers(HEADER_LINES)
        // Clients such as `nc -N` close their side once they have asked.
        .half_close(true);
    let mut connection = std::pin::pin!(http.serve_connection(TokioIo::new(stream), service));
    tokio::select! {
        ended = connection.as_mut() => {
            if let Err(error) = ended {
                debug!(%error, "a connection ended early");
            }
            return;
        }
        _ = closing.wait_for(|closing| *closing) => {}
        () = sleep(LIFETIME) => {}
    }
    connection.as_mut().graceful_shutdown();
    if timeout(GRACE, connection).await.is_err() {
        debug!("cut a connection whose client was too slow");
    }
}

/// Says why and closes. What does not fit into the socket's buffer at once is not worth waiting for.
fn turn_away(stream: &UnixStream) {
    let problem = Problem::too_many_connections(CONNECTIONS);
    let body = problem.to_json();
    let mut answer = format!(
        "HTTP/1.1 {} {}\r\ncontent-type: {}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        problem.status,
        problem.title,
        super::PROBLEM_CONTENT_TYPE,
        body.len(),
    )
    .into_bytes();
    answer.extend_from_slice(&body);
    if let Err(error) = stream.try_write(&answer) {
        debug!(%error, "turned a connection away without a word");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::{io::AsyncReadExt, task::yield_now};

    use super::*;

    /// A client that asked for something which is never answered.
    async fn asking(connections: &mut Connections) -> UnixStream {
        let (client, server) = UnixStream::pair().unwrap();
        client.try_write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
        connections.open(server);
        while connections.open.back().unwrap().requests.none() {
            yield_now().await;
        }
        client
    }

    #[tokio::test]
    async fn a_request_in_work_never_gives_way() {
        let never = Router::new().fallback(std::future::pending::<Problem>);
        let mut connections = Connections::new(never);
        let mut clients = Vec::new();
        for _ in 0..CONNECTIONS {
            clients.push(asking(&mut connections).await);
        }
        let (mut late, server) = UnixStream::pair().unwrap();
        connections.open(server);
        let mut answer = String::new();
        late.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 503 Service Unavailable\r\n"), "{answer}");
        assert!(answer.contains(r#""code":"too-many-connections""#), "{answer}");
        assert_eq!(connections.open.len(), CONNECTIONS);

        // One that went leaves its place to the next.
        drop(clients.remove(0));
        connections.open[0].task.abort();
        connections.one_closed().await;
        clients.push(asking(&mut connections).await);
        assert_eq!(connections.open.len(), CONNECTIONS);
    }

    #[tokio::test]
    async fn requests_are_counted_while_they_are_in_work() {
        let requests = InWork(Arc::default());
        let working = requests.begin();
        assert!(!requests.none());
        drop(working);
        assert!(requests.none());
    }
}
