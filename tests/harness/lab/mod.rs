//! Networks of namespaces around a load balancer, with real sockets.
//!
//! ```text
//!              192.0.2.0/24                            198.51.100.4n/30
//!   client  2 ──────────── 1  [client]  lb  [backend n]  1 ──────────── 2  backend n    (n = 1, 2, ...)
//!           2001:db8:c::/64                            2001:db8:n::/64
//! ```
//!
//! ```ignore
//! let lab = Lab::new(3);
//! let servers: Vec<_> = lab.backends.iter().map(|backend| backend.serve(80)).collect();
//! let answer = lab.client.fetch((lab.backends[0].ipv4, 80), SECOND).unwrap();
//! assert_eq!(answer.server, "backend1");
//! ```
//!
//! The thread of the test itself *is* the load balancer: [`Lab::new`] moves it into a network and a mount namespace of its own,
//! where `/sys` and `/sys/fs/bpf` are its own too. So tests run in parallel under the same names, and all of it goes when
//! the thread ends, however it ends.

mod client;
mod daemon;
mod host;
mod server;
#[cfg(test)]
mod tests;
mod topology;
mod unix_http;
mod wait;
mod xdp_pass;

pub use client::{Answer, Session, ask, fetch};
pub use daemon::Daemon;
pub use host::Host;
pub use server::Server;
pub use topology::{Lab, SERVICE_IPV4, SERVICE_IPV6};
pub use unix_http::get;
pub use wait::{SECOND, await_some, await_until};
