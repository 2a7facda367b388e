//! One TCP probe: connect, close, and say in an operator's words what was wrong.
//!
//! # How a probe closes
//!
//! It sends a FIN and at once a RST behind it (`shutdown`, then `close` with a linger time of zero).
//!
//! - A plain `close` would leave this node, which closes first, with a socket in TIME_WAIT for a minute: 10,000 backends
//!   every 5 seconds make 120,000 of them, enough to overflow `net.ipv4.tcp_max_tw_buckets`.
//! - A bare RST leaves nothing behind, but servers read "connection reset by peer" and log it, every few seconds.
//! - With the FIN in front, the server's `read` returns end of file as with any client that went away, and nothing is
//!   left behind here.

use std::{
    io,
    net::{Shutdown, SocketAddr},
    sync::Arc,
    time::Duration,
};

use futures_util::future::BoxFuture;
use nix::errno::Errno;
use tokio::{net::TcpSocket, time::timeout};

/// Connects to an address and closes the connection. A function of its own kind so that tests can stand in for it.
pub(super) type Connect = Arc<dyn Fn(SocketAddr) -> BoxFuture<'static, io::Result<()>> + Send + Sync>;

/// What one probe found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The backend accepted the connection.
    Success,
    /// It did not; the text says why.
    Failure(String),
    /// This node could not even ask; the text says why.
    Trouble(String),
}

/// Connects to `address` by `connect` and gives up after `limit`.
pub(super) async fn probe(connect: &Connect, address: SocketAddr, limit: Duration) -> Outcome {
    match timeout(limit, connect(address)).await {
        Ok(Ok(())) => Outcome::Success,
        Ok(Err(error)) => explain(&error, address),
        Err(_) => Outcome::Failure(format!("no answer from {address} within {limit:?}")),
    }
}

/// Opens a connection to `address` and closes it; see the module's text for how.
pub(super) async fn connect(address: SocketAddr) -> io::Result<()> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    socket.set_zero_linger()?;
    let stream = socket.connect(address).await?;
    // A connect to a port of this very node on which nobody listens can meet itself, where the kernel happens to choose
    // that same port as its source. Nobody answered.
    if stream.local_addr()? == address {
        return Err(Errno::ECONNREFUSED.into());
    }
    // The backend has answered: it does not matter if it has already reset the connection.
    let _ = stream.into_std()?.shutdown(Shutdown::Write);
    Ok(())
}

fn explain(error: &io::Error, address: SocketAddr) -> Outcome {
    let host = address.ip();
    let errno = Errno::from_raw(error.raw_os_error().unwrap_or(0));
    match errno {
        Errno::ECONNREFUSED => Outcome::Failure(format!("connection refused by {address}")),
        Errno::ECONNRESET => Outcome::Failure(format!("connection reset by {address}")),
        Errno::ETIMEDOUT => Outcome::Failure(format!("no answer from {address}")),
        Errno::ENETUNREACH => Outcome::Failure(format!(
            "no route to {host}: this node's routing table has none (`ip route get {host}`)"
        )),
        Errno::EHOSTUNREACH => Outcome::Failure(format!(
            "no route to host {host}: it or its gateway does not answer on the link, or a router says so"
        )),
        Errno::EMFILE => trouble(address, "this process has too many open files; raise LimitNOFILE"),
        Errno::ENFILE => trouble(address, "this node has too many open files; raise fs.file-max"),
        Errno::ENOBUFS | Errno::ENOMEM => trouble(address, "this node is out of socket memory"),
        Errno::EADDRNOTAVAIL | Errno::EAGAIN => trouble(
            address,
            "this node has no free source port or address for it; see net.ipv4.ip_local_port_range and `ip address`",
        ),
        Errno::EAFNOSUPPORT => trouble(address, "this node does not support its address family"),
        Errno::EACCES | Errno::EPERM => {
            trouble(address, "this node's own firewall or routing policy forbids the connection")
        }
        _ => Outcome::Failure(format!("cannot connect to {address}: {error}")),
    }
}

fn trouble(address: SocketAddr, why: &str) -> Outcome {
    Outcome::Trouble(format!("{address} was not probed: {why}"))
}
