//! Active health checks: opens TCP connections to backends and turns the outcomes into verdicts.
//!
//! A [`Prober`] runs one small task a target, so that a backend that does not answer delays nobody. It knows nothing of
//! tables or maps: targets go in by [`Prober::set_targets`], [`Report`]s come out of a channel.
//!
//! Two kinds of bad outcome are kept apart. A *failure* is the backend's: it counts towards `fall`. *Trouble* is this
//! node's own (no descriptors, no ports, no memory): it is reported, but it says nothing about the backend, and a node
//! that ran out of descriptors must not take every backend down.

mod monitor;
mod schedule;
mod tcp;
#[cfg(test)]
mod tests;

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use nix::sys::resource::{Resource, getrlimit};
use tokio::{
    sync::{Semaphore, mpsc, watch},
    task::AbortHandle,
};

use crate::model::{BackendAddress, BackendState, HealthCheck, ServiceName, Verdict};

use self::{
    monitor::Monitor,
    tcp::{Connect, connect},
};

/// Probes that may be under way at once; fewer where the process may open few files.
const MOST_PROBES_AT_ONCE: u64 = 1024;
/// Probes that may be under way at once however few files the process may open.
const LEAST_PROBES_AT_ONCE: u64 = 16;

/// A backend of a service that is to be watched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The service it belongs to. A backend address in two services is probed for each, as their checks may differ.
    pub service: ServiceName,
    /// Where it listens.
    pub backend: BackendAddress,
    /// How it is probed. Without a probe the target counts as up.
    pub check: HealthCheck,
    /// The state adopted from an earlier process, if there is one. Until the first verdict a target has this state, or
    /// else the one that `check.initial` says. Only looked at when the target is new to the prober.
    pub known: Option<BackendState>,
}

/// News about one target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The service of the target.
    pub service: ServiceName,
    /// The backend of the target.
    pub backend: BackendAddress,
    /// The state it changes to; `None` where only `last_failure` is new.
    pub verdict: Option<Verdict>,
    /// What was wrong with the last probe, in words for an operator; `None` where it succeeded.
    pub last_failure: Option<String>,
}

/// Probes a changing set of targets until it is dropped.
pub struct Prober {
    reports: mpsc::Sender<Report>,
    permits: Arc<Semaphore>,
    connect: Connect,
    running: HashMap<Identity, Running>,
}

type Identity = (ServiceName, BackendAddress);

/// The task of one target; it ends with this.
struct Running {
    check: watch::Sender<HealthCheck>,
    task: AbortHandle,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Prober {
    /// A prober without targets, which sends what it finds to `reports`.
    ///
    /// A report is sent with every verdict, and whenever the last failure appears, changes or clears. Where the channel
    /// is full, the targets that have news wait for room: nothing is lost, but they are not probed meanwhile.
    pub fn new(reports: mpsc::Sender<Report>) -> Self {
        Self::with(reports, probes_at_once(), Arc::new(|address| Box::pin(connect(address))))
    }

    fn with(reports: mpsc::Sender<Report>, at_once: usize, connect: Connect) -> Self {
        Self { reports, permits: Arc::new(Semaphore::new(at_once)), connect, running: HashMap::new() }
    }

    /// Replaces the set of targets. Call it within a tokio runtime.
    ///
    /// A target is the same as before where service and backend are: it keeps its state, its run of outcomes and its
    /// schedule. Where its check changed it is probed by the new one at once. New targets are probed at once as well, a
    /// crowd of them spread over up to a second. The last of several targets with one identity wins.
    ///
    /// Reports of a target that is removed here may still be in the channel.
    pub fn set_targets(&mut self, targets: Vec<Target>) {
        let wanted: HashSet<Identity> =
            targets.iter().map(|target| (target.service.clone(), target.backend)).collect();
        self.running.retain(|identity, _| wanted.contains(identity));
        let new_ones = wanted.len() - self.running.len();
        for target in targets {
            match self.running.get(&(target.service.clone(), target.backend)) {
                Some(running) => {
                    running.check.send_if_modified(|check| {
                        let changed = *check != target.check;
                        *check = target.check;
                        changed
                    });
                }
                None => self.start(target, new_ones),
            }
        }
    }

    fn start(&mut self, target: Target, crowd: usize) {
        let identity = (target.service.clone(), target.backend);
        let (check, receiver) = watch::channel(target.check.clone());
        let monitor = Monitor::new(
            target,
            receiver,
            self.reports.clone(),
            Arc::clone(&self.permits),
            Arc::clone(&self.connect),
        );
        let task = tokio::spawn(monitor.run(crowd)).abort_handle();
        self.running.insert(identity, Running { check, task });
    }
}

/// Half of the files the process may open, within bounds: the API, the maps and the log need some as well.
fn probes_at_once() -> usize {
    let files = getrlimit(Resource::RLIMIT_NOFILE).map_or(MOST_PROBES_AT_ONCE, |(soft, _)| soft);
    (files / 2).clamp(LEAST_PROBES_AT_ONCE, MOST_PROBES_AT_ONCE) as usize
}
