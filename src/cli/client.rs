//! Asks the daemon: one HTTP request over its Unix socket, within bounded time and memory.

use std::{
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::Duration,
};

use http_body_util::{BodyExt, Empty, Limited};
use hyper::{
    Request, StatusCode,
    body::Bytes,
    client::conn::http1,
    header::{CONTENT_TYPE, HOST},
};
use hyper_util::rt::TokioIo;
use nix::unistd::{Gid, Group};
use tokio::{net::UnixStream, time::timeout};

use super::Exit;
use crate::api::{PROBLEM_CONTENT_TYPE, Problem};

/// A question that takes longer than this, connecting included, has failed.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Largest answer that is read, in bytes: several times the status of a node at the limit of its capacity.
const ANSWER_LIMIT: usize = 256 * 1024 * 1024;

/// A client of the daemon's API.
#[derive(Clone, Debug)]
pub struct Client {
    socket: PathBuf,
}

/// What the daemon answered with success.
#[derive(Clone, Debug)]
pub struct Reply {
    /// The body, as it came.
    pub body: Bytes,
}

/// Why there is no answer to show.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// There is no socket.
    #[error(
        "there is no socket {}: is the daemon running? See `systemctl status tidegate`, or name its socket with --socket or TIDEGATE_SOCKET",
        socket.display()
    )]
    NoSocket {
        /// Path of the socket.
        socket: PathBuf,
    },
    /// There is a socket, and nobody listens on it.
    #[error(
        "nobody listens on {}: the daemon has died or was killed; see `systemctl status tidegate` and `journalctl -u tidegate`. Forwarding goes on without it",
        socket.display()
    )]
    NobodyListens {
        /// Path of the socket.
        socket: PathBuf,
    },
    /// The operating system does not let this user in.
    #[error("no permission to use {}: {remedy}", socket.display())]
    NoPermission {
        /// Path of the socket.
        socket: PathBuf,
        /// How to get it.
        remedy: String,
    },
    /// It took too long.
    #[error(
        "no answer on {} within {} seconds: the daemon is overloaded or stuck; see `journalctl -u tidegate`. Forwarding goes on all the same",
        socket.display(),
        TIMEOUT.as_secs()
    )]
    TimedOut {
        /// Path of the socket.
        socket: PathBuf,
    },
    /// What answers does not speak the daemon's language.
    #[error(
        "what answers on {} is not tidegate's API ({reason}); name its socket with --socket or TIDEGATE_SOCKET",
        socket.display()
    )]
    NotTheApi {
        /// Path of the socket.
        socket: PathBuf,
        /// What was wrong with the answer.
        reason: String,
    },
    /// The connection failed in another way.
    #[error("cannot connect to {}: {source}; see `systemctl status tidegate`", socket.display())]
    Connection {
        /// Path of the socket.
        socket: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// No connection could be tried.
    #[error("cannot prepare a connection: {0}; is the process out of file descriptors?")]
    Runtime(io::Error),
    /// The daemon answered with an error of its own.
    #[error("{}; {}", .0.detail, .0.remedy)]
    Problem(Box<Problem>),
}

impl ClientError {
    /// The exit code that goes with it.
    pub fn exit(&self) -> Exit {
        match self {
            Self::Problem(_) | Self::Runtime(_) => Exit::Failed,
            _ => Exit::Unreachable,
        }
    }
}

impl Client {
    /// A client of the daemon that listens on `socket`.
    pub fn new(socket: &Path) -> Self {
        Self { socket: socket.to_owned() }
    }

    /// Asks for `path` and waits for the answer. Must not be called from asynchronous code.
    ///
    /// # Errors
    /// Where nobody answers, or answers with a problem; see [`ClientError`].
    pub fn get(&self, path: &str) -> Result<Reply, ClientError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(ClientError::Runtime)?;
        runtime.block_on(self.ask(path))
    }

    async fn ask(&self, path: &str) -> Result<Reply, ClientError> {
        match timeout(TIMEOUT, self.converse(path)).await {
            Ok(answer) => answer,
            Err(_) => Err(ClientError::TimedOut { socket: self.socket.clone() }),
        }
    }

    async fn converse(&self, path: &str) -> Result<Reply, ClientError> {
        let stream = UnixStream::connect(&self.socket).await.map_err(|error| self.not_connected(error))?;
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(|error| self.not_the_api(error))?;
        // Errors of the connection come back through the request.
        tokio::spawn(connection);
        let request = Request::get(path)
            .header(HOST, "tidegate")
            .body(Empty::<Bytes>::new())
            .map_err(|error| self.not_the_api(error))?;
        let answer = sender.send_request(request).await.map_err(|error| self.not_the_api(error))?;
        let (head, body) = answer.into_parts();
        let body =
            Limited::new(body, ANSWER_LIMIT).collect().await.map_err(|error| self.not_the_api(error))?;
        let body = body.to_bytes();
        if head.status == StatusCode::OK {
            return Ok(Reply { body });
        }
        let is_problem = head.headers.get(CONTENT_TYPE).is_some_and(|kind| kind == PROBLEM_CONTENT_TYPE);
        match serde_json::from_slice(&body) {
            Ok(problem) if is_problem => Err(ClientError::Problem(Box::new(problem))),
            _ => Err(self.not_the_api(format!("HTTP status {}", head.status))),
        }
    }

    fn not_the_api(&self, reason: impl ToString) -> ClientError {
        ClientError::NotTheApi { socket: self.socket.clone(), reason: reason.to_string() }
    }

    fn not_connected(&self, error: io::Error) -> ClientError {
        let socket = self.socket.clone();
        match error.kind() {
            io::ErrorKind::NotFound => ClientError::NoSocket { socket },
            // Also what Linux answers for a file that is no socket.
            io::ErrorKind::ConnectionRefused => ClientError::NobodyListens { socket },
            io::ErrorKind::PermissionDenied => {
                ClientError::NoPermission { remedy: permission_remedy(&socket), socket }
            }
            _ => ClientError::Connection { socket, source: error },
        }
    }
}

/// Which group to join, where the socket can be looked at.
fn permission_remedy(socket: &Path) -> String {
    let group = fs::metadata(socket)
        .ok()
        .and_then(|file| Group::from_gid(Gid::from_raw(file.gid())).ok().flatten())
        .filter(|group| group.gid.as_raw() != 0);
    match group {
        Some(group) => format!(
            "it belongs to group `{0}`; join it with `usermod -aG {0} USER` and log in again, or use sudo",
            group.name
        ),
        None => "use sudo, or let a group in with `api.socket.group` in the configuration".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::lchown;

    use nix::unistd::geteuid;

    use super::*;

    #[test]
    fn the_remedy_of_a_lack_of_permission_names_the_group() {
        if !geteuid().is_root() {
            return;
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        let group = Group::from_gid(Gid::from_raw(1)).unwrap().unwrap();
        assert!(permission_remedy(file.path()).contains("api.socket.group"));
        lchown(file.path(), None, Some(1)).unwrap();
        let remedy = permission_remedy(file.path());
        assert!(remedy.contains(&format!("usermod -aG {} USER", group.name)), "{remedy}");

        let denied = Client::new(file.path()).not_connected(io::ErrorKind::PermissionDenied.into());
        assert!(denied.to_string().starts_with("no permission to use "), "{denied}");
        assert_eq!(denied.exit(), Exit::Unreachable);
        assert!(permission_remedy(Path::new("/none")).contains("use sudo"));
    }
}
