//! The task that watches one target.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use tokio::{
    sync::{Semaphore, mpsc, watch},
    time::{Instant, sleep_until},
};

use crate::model::{BackendAddress, BackendState, HealthCheck, Probe, ServiceName, Streak, Verdict};

use super::{
    Report, Target, schedule,
    tcp::{Connect, Outcome, probe},
};

/// Everything the task of one target knows.
pub(super) struct Monitor {
    service: ServiceName,
    backend: BackendAddress,
    check: watch::Receiver<HealthCheck>,
    reports: mpsc::Sender<Report>,
    permits: Arc<Semaphore>,
    connect: Connect,
    streak: Streak,
    last_failure: Option<String>,
    seed: u64,
    round: u64,
}

/// Why a monitor ends: nobody listens to it any more.
struct Unwanted;

impl Monitor {
    pub(super) fn new(
        target: Target,
        check: watch::Receiver<HealthCheck>,
        reports: mpsc::Sender<Report>,
        permits: Arc<Semaphore>,
        connect: Connect,
    ) -> Self {
        let streak = target.known.map_or_else(|| Streak::new(target.check.initial), Streak::adopted);
        let seed = schedule::seed(&target.service, &target.backend);
        let Target { service, backend, .. } = target;
        Self {
            service,
            backend,
            check,
            reports,
            permits,
            connect,
            streak,
            last_failure: None,
            seed,
            round: 0,
        }
    }

    /// Watches the target until nobody wants to know. `crowd` targets were added together with it.
    pub(super) async fn run(mut self, crowd: usize) {
        let first = schedule::first_delay(self.seed, crowd);
        let _ = self.watch(first).await;
    }

    async fn watch(&mut self, first: Duration) -> Result<(), Unwanted> {
        let mut due = Instant::now() + first;
        loop {
            let check = self.check.borrow_and_update().clone();
            let Some(Probe::Tcp { port }) = check.probe else {
                self.trust().await?;
                self.check.changed().await.map_err(|_| Unwanted)?;
                due = Instant::now() + first;
                continue;
            };
            let address = SocketAddr::new(self.backend.address, port.unwrap_or(self.backend.port));
            tokio::select! {
                changed = self.check.changed() => {
                    changed.map_err(|_| Unwanted)?;
                    due = Instant::now() + first;
                }
                (started, outcome) = attempt(due, &self.permits, &self.connect, address, check.timeout) => {
                    self.record(outcome, &check).await?;
                    due = started + self.pause(&check);
                }
            }
        }
    }

    /// Without a probe there is nothing to doubt: the target is up, whatever was known of it.
    async fn trust(&mut self) -> Result<(), Unwanted> {
        let was_down = self.streak.state() == BackendState::Down;
        self.streak = Streak::adopted(BackendState::Up);
        self.report(was_down.then_some(Verdict::Up), None).await
    }

    async fn record(&mut self, outcome: Outcome, check: &HealthCheck) -> Result<(), Unwanted> {
        match outcome {
            Outcome::Success => {
                let verdict = self.streak.record(true, check);
                self.report(verdict, None).await
            }
            Outcome::Failure(text) => {
                let verdict = self.streak.record(false, check);
                self.report(verdict, Some(text)).await
            }
            Outcome::Trouble(text) => self.report(None, Some(text)).await,
        }
    }

    /// Sends a report where there is news.
    async fn report(&mut self, verdict: Option<Verdict>, failure: Option<String>) -> Result<(), Unwanted> {
        if verdict.is_none() && failure == self.last_failure {
            return Ok(());
        }
        self.last_failure.clone_from(&failure);
        let report =
            Report { service: self.service.clone(), backend: self.backend, verdict, last_failure: failure };
        self.reports.send(report).await.map_err(|_| Unwanted)
    }

    /// Time from the start of the last probe to the start of the next.
    fn pause(&mut self, check: &HealthCheck) -> Duration {
        self.round += 1;
        let interval = if self.streak.is_degraded() { check.degraded_interval } else { check.interval };
        schedule::jittered(interval, self.seed, self.round)
    }
}

/// Waits until a probe is due and may start, and makes it. Its time limit does not run while it waits.
async fn attempt(
    due: Instant,
    permits: &Semaphore,
    connect: &Connect,
    address: SocketAddr,
    limit: Duration,
) -> (Instant, Outcome) {
    sleep_until(due).await;
    // The semaphore is never closed; were it, probing without a bound is better than not probing.
    let _permit = permits.acquire().await;
    let started = Instant::now();
    let outcome = probe(connect, address, limit).await;
    (started, outcome)
}
