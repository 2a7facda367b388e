//! Next hops: for a changing set of addresses, the interface and the MAC addresses by which packets get there.
//!
//! The kernel knows all this already. A [`Resolver`] asks it over netlink (routes address by address, links and
//! neighbours by dump), listens to what changes, and asks the kernel to resolve neighbours that nobody else asks for:
//! packets that leave from XDP pass the kernel's neighbour table by and so neither create nor refresh entries in it.
//! No MAC address is ever configured by hand, and no permanent entry is left behind.
//!
//! - `kernel`: sockets and requests; `decode`: their messages as plain data
//! - `egress`: by which device and with which VLAN tags frames leave, for an interface
//! - `tables`: what is known, and the rule that makes a [`NextHop`] of it, without input or output
//! - `solicit`: which neighbour is asked for when; `task`: the loop that keeps it all current

mod decode;
mod egress;
mod kernel;
mod solicit;
mod tables;
mod task;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    net::IpAddr,
    sync::Arc,
    time::Duration,
};

use tokio::{sync::watch, task::AbortHandle, time::timeout};

use crate::model::{Egress, NextHop};

use self::{kernel::Kernel, task::Task};

/// Why next hops cannot be resolved at all.
#[derive(Debug, thiserror::Error)]
pub enum NextHopError {
    /// The kernel refused a netlink socket, or its subscription to changes.
    #[error(
        "cannot open a netlink socket to read routes and neighbours: {source}; nothing was changed. Check that the \
         process may use AF_NETLINK (RestrictAddressFamilies= in its unit) and has file descriptors left"
    )]
    Socket {
        /// What the kernel said.
        source: io::Error,
    },
}

/// What is known at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// How packets get to each target. A target that is not in it has not been looked up yet.
    pub next_hops: BTreeMap<IpAddr, NextHop>,
    /// Targets whose neighbour has been asked for and has neither answered nor failed to. Their next hop is unresolved,
    /// and that may change any moment.
    pub pending: BTreeSet<IpAddr>,
    /// How frames leave for interfaces that are not devices themselves, by index. `None`: not looked up yet.
    pub egress: Option<BTreeMap<u32, Egress>>,
}

/// Keeps the next hops of a set of addresses current until it is dropped.
///
/// It survives everything the kernel does to it: where messages were lost or the socket broke, it connects anew and
/// reads everything again, and it does so every 30 seconds in any case.
pub struct Resolver {
    targets: watch::Sender<BTreeSet<IpAddr>>,
    snapshots: watch::Receiver<Arc<Snapshot>>,
    task: AbortHandle,
}

impl Drop for Resolver {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Resolver {
    /// Starts a resolver without targets, in the network namespace of the calling thread. Call it within a tokio
    /// runtime. (Should the socket ever have to be opened anew, that happens on a thread of the runtime.)
    ///
    /// Asking for neighbours needs `CAP_NET_ADMIN`; without it only what others resolved is seen, and the reasons of
    /// unresolved next hops say so.
    ///
    /// # Errors
    /// The kernel refuses the sockets.
    pub fn spawn() -> Result<Self, NextHopError> {
        Kernel::connect().map(Self::with).map_err(|source| NextHopError::Socket { source })
    }

    fn with(kernel: Kernel) -> Self {
        let (targets, wanted) = watch::channel(BTreeSet::new());
        let (publisher, snapshots) = watch::channel(Arc::default());
        let task = tokio::spawn(Task::new(kernel, wanted, publisher).run()).abort_handle();
        Self { targets, snapshots, task }
    }

    /// Replaces the set of addresses. What is known of those that stay is kept.
    pub fn set_targets(&self, targets: BTreeSet<IpAddr>) {
        self.targets.send_if_modified(|current| {
            let changed = *current != targets;
            *current = targets;
            changed
        });
    }

    /// Everything known, now and at every change. A slow reader misses intermediate snapshots, never the last one.
    pub fn subscribe(&self) -> watch::Receiver<Arc<Snapshot>> {
        self.snapshots.clone()
    }

    /// Waits until every present target is looked up and no neighbour is pending, or `patience` is over, and returns
    /// what is known then. Addresses that cannot be reached are not waited for once that is clear.
    pub async fn settled(&self, patience: Duration) -> Arc<Snapshot> {
        let targets = self.targets.borrow().clone();
        let mut snapshots = self.snapshots.clone();
        let settled = snapshots.wait_for(|snapshot| {
            snapshot.pending.is_empty()
                && targets.iter().all(|target| snapshot.next_hops.contains_key(target))
        });
        // On either error the last snapshot is the best there is.
        let _ = timeout(patience, settled).await;
        self.snapshots.borrow().clone()
    }
}

/// Resolves `targets` once: a start-up that waits for this begins with known MAC addresses. Returns an entry for every
/// target, at the latest when `patience` is over.
///
/// # Errors
/// As [`Resolver::spawn`].
pub async fn resolve_once(
    targets: &BTreeSet<IpAddr>,
    patience: Duration,
) -> Result<BTreeMap<IpAddr, NextHop>, NextHopError> {
    let resolver = Resolver::spawn()?;
    resolver.set_targets(targets.clone());
    let snapshot = resolver.settled(patience).await;
    let not_looked_up = || NextHop::Unresolved {
        route: None,
        reason: format!("the kernel did not say within {patience:?} how it is reached"),
    };
    Ok(targets
        .iter()
        .map(|target| (*target, snapshot.next_hops.get(target).cloned().unwrap_or_else(not_looked_up)))
        .collect())
}
