//! `tidegate run`: starts everything in the order in which nothing is lost, and keeps it current.
//!
//! Start: configuration, pinned maps, next hops, tables, interfaces, API, health checks. What was forwarding before goes on
//! all the time; the programs are replaced in their links only when their maps are as they should be. Stop: nothing is taken
//! away.

mod attachments;
mod reload;
mod start;

use std::{path::PathBuf, sync::Arc, time::Duration};

use sd_notify::NotifyState;
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::{mpsc, oneshot},
    task::block_in_place,
    time::{Instant, MissedTickBehavior, interval, interval_at},
};

use crate::{
    api::{self, ApiError, Observe, ObserveError},
    config::ConfigError,
    datapath::{DatapathError, Kernel, Pins},
    engine::{EngineError, Shared},
    health::{Prober, Report, Target},
    model::{
        Desired,
        status::{Problem, Status},
    },
    nexthop::{NextHopError, Resolver, Snapshot},
};
use attachments::Attachments;

/// How often interfaces are looked after and what failed is tried again.
const MAINTENANCE: Duration = Duration::from_secs(1);
/// How often dead flows are removed. Packets take the place of dead ones by themselves; this keeps the count true.
const FLOW_SWEEP: Duration = Duration::from_secs(600);
/// How long a start or reload waits for the MAC addresses of new backends.
const NEXT_HOP_PATIENCE: Duration = Duration::from_secs(2);
/// Reports of health checks that may wait to be taken.
const REPORT_QUEUE: usize = 4096;

/// What the daemon is started with.
#[derive(Clone, Debug)]
pub struct Options {
    /// Configuration file.
    pub config: PathBuf,
    /// Where things are pinned.
    pub pins: Pins,
}

/// Why the daemon did not start.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// The configuration file is invalid or cannot be read.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Programs, maps or interfaces.
    #[error(transparent)]
    Datapath(#[from] DatapathError),
    /// The pinned state cannot be taken over.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// Netlink.
    #[error(transparent)]
    NextHop(#[from] NextHopError),
    /// The API's socket.
    #[error(transparent)]
    Api(#[from] ApiError),
    /// Threads, timers or signals.
    #[error("cannot set up the process: {0}")]
    Process(#[from] std::io::Error),
}

/// Everything that runs.
struct Daemon {
    options: Options,
    desired: Desired,
    engine: Arc<Shared<Kernel>>,
    attachments: Attachments,
    resolver: Resolver,
    prober: Prober,
    reports: mpsc::Receiver<Report>,
    /// What is to be probed once everything is attached.
    targets: Vec<Target>,
}

/// Runs the daemon until SIGTERM or SIGINT.
///
/// # Errors
/// Where it cannot start. What was forwarding before goes on.
pub fn run(options: Options) -> Result<(), DaemonError> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let signals = Signals::listen()?;
        let mut daemon = Daemon::start(options).await?;
        /* Before anything is attached: a daemon that nobody can ask must not change what is forwarded. */
        let listener = daemon.abandon_on_error(api::bind)?;
        daemon.attach_all()?;
        let (stop, stopped) = oneshot::channel::<()>();
        let observe = Arc::new(Observer(Arc::clone(&daemon.engine)));
        let serving = tokio::spawn(api::serve(listener, observe, async {
            let _ = stopped.await;
        }));
        notify(&[NotifyState::Ready]);
        tracing::info!(services = daemon.desired.services.len(), "forwarding");
        daemon.follow(signals).await;
        notify(&[NotifyState::Stopping]);
        drop(stop);
        let _ = serving.await;
        tracing::info!(
            "stopped; forwarding goes on from what is pinned, without health checks, until `tidegate detach`"
        );
        Ok(())
    })
}

/// Tells systemd, where it listens. That it does not is no error worth a word.
fn notify(state: &[NotifyState<'_>]) {
    let _ = sd_notify::notify(state);
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl Signals {
    /// From here on signals wait for us instead of ending the process.
    fn listen() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }
}

impl Daemon {
    /// Keeps everything current until a signal ends it.
    async fn follow(&mut self, mut signals: Signals) {
        let mut next_hops = self.resolver.subscribe();
        let mut maintenance = interval(MAINTENANCE);
        maintenance.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut sweep = interval_at(Instant::now() + FLOW_SWEEP, FLOW_SWEEP);
        sweep.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = signals.terminate.recv() => return,
                _ = signals.interrupt.recv() => return,
                _ = signals.hangup.recv() => self.reload().await,
                Some(report) = self.reports.recv() => self.take_reports(report),
                Ok(()) = next_hops.changed() => {
                    let snapshot = Arc::clone(&next_hops.borrow_and_update());
                    self.take_next_hops(&snapshot);
                    self.apply();
                }
                _ = maintenance.tick() => self.maintain(),
                _ = sweep.tick() => self.sweep_flows(),
            }
        }
    }

    fn take_next_hops(&self, snapshot: &Snapshot) {
        let mut engine = self.engine.lock();
        engine.set_egress(&snapshot.egress);
        engine.set_next_hops(&snapshot.next_hops);
    }

    /// Takes this report and all that wait behind it, so that many verdicts make one publication.
    fn take_reports(&mut self, first: Report) {
        {
            let mut engine = self.engine.lock();
            engine.report(first);
            while let Ok(report) = self.reports.try_recv() {
                engine.report(report);
            }
        }
        self.apply();
    }

    /// Makes the datapath what is desired; what fails is tried again by the next maintenance.
    fn apply(&self) {
        block_in_place(|| {
            let mut engine = self.engine.lock();
            let problems = match engine.apply() {
                Ok(applied) if applied.writes > 0 => {
                    tracing::debug!(
                        writes = applied.writes,
                        tables = applied.tables,
                        duration = ?applied.duration,
                        "applied"
                    );
                    Vec::new()
                }
                Ok(_) => Vec::new(),
                Err(error) => {
                    tracing::error!("not everything could be programmed: {error}");
                    vec![Problem {
                        message: format!("not everything is programmed: {error}"),
                        remedy: "what was programmed before goes on; it is tried again every second"
                            .to_owned(),
                    }]
                }
            };
            engine.set_problems("programming", problems);
            let ready = !engine.is_dirty() && self.attachments.is_complete();
            engine.set_ready(ready);
        });
    }

    fn sweep_flows(&self) {
        if let Err(error) = block_in_place(|| self.engine.lock().sweep_flows()) {
            tracing::warn!("dead flows stay in the table for now: {error}");
        }
    }

    fn maintain(&mut self) {
        block_in_place(|| self.attachments.maintain(&mut self.engine.lock()));
        if self.engine.lock().is_dirty() {
            self.apply();
        } else {
            self.engine.lock().set_ready(self.attachments.is_complete());
        }
    }
}

/// The engine as the API sees it.
struct Observer(Arc<Shared<Kernel>>);

impl Observe for Observer {
    fn status(&self) -> Result<Status, ObserveError> {
        self.0.lock().status().map_err(|error| {
            ObserveError::new(
                error.to_string(),
                "see whether the pins are still there (`bpftool map show`), and restart the daemon",
            )
        })
    }
}
