//! The loop that keeps the tables current: hears of changes, looks up what they concern, publishes, asks for neighbours.

use std::{
    collections::{BTreeSet, HashMap},
    net::IpAddr,
    sync::Arc,
    time::Duration,
};

use futures_util::{StreamExt, TryStreamExt, stream};
use nix::errno::Errno;
use tokio::{
    sync::watch,
    time::{Instant, sleep, sleep_until},
};
use tracing::{info, warn};

use super::{
    Snapshot,
    kernel::{Event, Failure, Kernel},
    solicit::Solicitor,
    tables::{Need, Neighbour, Path, Tables},
};

/// Changes seldom come alone; so much later most of a burst is there.
const DEBOUNCE: Duration = Duration::from_millis(15);
/// After a pass the task rests for this many times as long, so that a storm of changes cannot keep a CPU busy.
const REST: u32 = 4;
const LONGEST_REST: Duration = Duration::from_secs(2);
/// Everything is read anew this often, in case something escaped us.
const FULL_CHECK: Duration = Duration::from_secs(30);
const FIRST_RECONNECT: Duration = Duration::from_millis(100);
const LAST_RECONNECT: Duration = Duration::from_secs(5);
/// Requests that are under way at once.
const AT_ONCE: usize = 32;
/// Events taken before anything else is done.
const EVENTS_AT_ONCE: usize = 10_000;

/// Why a session with the kernel ends.
enum End {
    /// Nobody wants to know any more.
    Unwanted,
    /// A request failed in a way that only a new connection can mend.
    Broken(Failure),
}

impl From<Failure> for End {
    fn from(failure: Failure) -> Self {
        Self::Broken(failure)
    }
}

/// What has to be read again.
#[derive(Default)]
struct Work {
    links: bool,
    neighbours: bool,
    all_routes: bool,
    routes: BTreeSet<IpAddr>,
    /// The tables changed.
    publish: bool,
}

impl Work {
    fn everything() -> Self {
        Self { links: true, neighbours: true, all_routes: true, routes: BTreeSet::new(), publish: true }
    }

    fn is_none(&self) -> bool {
        !(self.links || self.neighbours || self.all_routes || self.publish) && self.routes.is_empty()
    }
}

/// The state of a resolver.
pub(super) struct Task {
    kernel: Kernel,
    targets: watch::Receiver<BTreeSet<IpAddr>>,
    snapshots: watch::Sender<Arc<Snapshot>>,
    tables: Tables,
    solicitor: Solicitor,
    needs: HashMap<Neighbour, Option<Need>>,
    work: Work,
    work_since: Option<Instant>,
    rest_until: Instant,
    full_check: Instant,
    /// When the log last said that events were lost.
    overrun_told: Option<Instant>,
}

impl Task {
    pub(super) fn new(
        kernel: Kernel,
        targets: watch::Receiver<BTreeSet<IpAddr>>,
        snapshots: watch::Sender<Arc<Snapshot>>,
    ) -> Self {
        let now = Instant::now();
        Self {
            kernel,
            targets,
            snapshots,
            tables: Tables::default(),
            solicitor: Solicitor::default(),
            needs: HashMap::new(),
            work: Work::everything(),
            work_since: None,
            rest_until: now,
            full_check: now + FULL_CHECK,
            overrun_told: None,
        }
    }

    /// Works until nobody wants to know any more.
    pub(super) async fn run(mut self) {
        self.targets.mark_changed();
        let mut pause = FIRST_RECONNECT;
        loop {
            let begin = Instant::now();
            let failure = match self.session().await {
                End::Unwanted => return,
                End::Broken(failure) => failure,
            };
            if begin.elapsed() > FULL_CHECK {
                pause = FIRST_RECONNECT;
            }
            warn!(%failure, "next hops: lost touch with the kernel, connecting anew; the known ones stay in use");
            self.reconnect(&mut pause).await;
            self.work = Work::everything();
            info!("next hops: connected to the kernel again, reading everything anew");
        }
    }

    /// Connects until it succeeds, with pauses that grow.
    async fn reconnect(&mut self, pause: &mut Duration) {
        loop {
            sleep(*pause).await;
            *pause = (*pause * 2).min(LAST_RECONNECT);
            match Kernel::connect() {
                Ok(kernel) => {
                    self.kernel = kernel;
                    return;
                }
                Err(error) => warn!(%error, "next hops: cannot open a netlink socket, trying again"),
            }
        }
    }

    async fn session(&mut self) -> End {
        loop {
            if let Err(end) = self.step().await {
                return end;
            }
        }
    }

    async fn step(&mut self) -> Result<(), End> {
        let wake = self.wake();
        tokio::select! {
            changed = self.targets.changed() => {
                changed.map_err(|_| End::Unwanted)?;
                self.retarget();
            }
            event = self.kernel.event() => {
                self.note(event?);
                for _ in 0..EVENTS_AT_ONCE {
                    let Some(event) = self.kernel.ready_event() else { break };
                    self.note(event);
                }
            }
            () = sleep_until(wake) => {}
        }
        let now = Instant::now();
        if now >= self.full_check {
            self.work = Work::everything();
        }
        if self.due().is_some_and(|due| due <= now) {
            self.pass().await?;
        }
        self.solicit().await
    }

    /// When there will be something to do.
    fn wake(&mut self) -> Instant {
        [self.due(), self.solicitor.wake()].into_iter().flatten().fold(self.full_check, Instant::min)
    }

    /// When the present work is to be done; notes when it began to wait.
    fn due(&mut self) -> Option<Instant> {
        if self.work.is_none() {
            return None;
        }
        let since = *self.work_since.get_or_insert_with(Instant::now);
        Some((since + DEBOUNCE).max(self.rest_until))
    }

    fn retarget(&mut self) {
        let targets = self.targets.borrow_and_update().clone();
        self.tables.paths.retain(|target, _| targets.contains(target));
        let new = targets.into_iter().filter(|target| !self.tables.paths.contains_key(target));
        self.work.routes.extend(new);
        self.work.publish = true;
    }

    fn note(&mut self, event: Event) {
        let now = Instant::now();
        match event {
            Event::Links => self.work.links = true,
            Event::Routing => self.work.all_routes = true,
            Event::Route(first, last) => {
                let concerned = self.tables.paths.range(first..=last).map(|(target, _)| *target);
                self.work.routes.extend(concerned);
            }
            Event::Neighbour(neighbour, answer) => {
                self.tables.set_neighbour(neighbour, answer, now);
                self.work.publish |= self.needs.contains_key(&neighbour);
            }
            Event::NeighbourGone(neighbour) => {
                self.tables.remove_neighbour(neighbour, now);
                self.work.publish |= self.needs.contains_key(&neighbour);
            }
            Event::Overrun => {
                if self.overrun_told.is_none_or(|told| now - told > FULL_CHECK) {
                    self.overrun_told = Some(now);
                    warn!(
                        "next hops: the kernel reports changes faster than they are read; reading everything anew"
                    );
                }
                self.work = Work::everything();
            }
            Event::Other => {}
        }
    }

    /// Reads again what has to be, and publishes.
    async fn pass(&mut self) -> Result<(), End> {
        let work = std::mem::take(&mut self.work);
        self.work_since = None;
        let begin = Instant::now();
        let full = work.links && work.neighbours && work.all_routes;
        let mut all_routes = work.all_routes;
        if work.links {
            all_routes |= self.tables.set_links(self.kernel.links().await?.into_iter().collect());
        }
        self.tables.tidy(|neighbour| self.needs.contains_key(neighbour));
        if work.neighbours {
            let dump = self.kernel.neighbours().await?.into_iter().collect();
            self.tables.set_neighbours(dump, Instant::now());
        }
        let mut routes = self.targets.borrow().clone();
        if !all_routes {
            routes.retain(|target| work.routes.contains(target));
        }
        self.look_up(routes).await?;
        self.publish();
        let end = Instant::now();
        self.rest_until = end + (end - begin).saturating_mul(REST).min(LONGEST_REST);
        if full {
            self.full_check = end + FULL_CHECK;
        }
        Ok(())
    }

    async fn look_up(&mut self, targets: BTreeSet<IpAddr>) -> Result<(), End> {
        let kernel = &self.kernel;
        let paths: Vec<(IpAddr, Path)> = stream::iter(targets)
            .map(|target| async move { kernel.path(target).await.map(|path| (target, path)) })
            .buffer_unordered(AT_ONCE)
            .try_collect()
            .await?;
        self.tables.paths.extend(paths);
        Ok(())
    }

    /// Works out needs and next hops from the tables, and publishes these where they changed.
    fn publish(&mut self) {
        let now = Instant::now();
        self.needs = self.tables.needs();
        self.solicitor.update(&self.needs, now);
        let egress = Some(self.tables.egress());
        let mut snapshot = Snapshot { egress, ..Snapshot::default() };
        for target in self.tables.paths.keys() {
            if let Some(resolution) = self.tables.resolve(target, now) {
                snapshot.next_hops.insert(*target, resolution.next_hop);
                if resolution.pending {
                    snapshot.pending.insert(*target);
                }
            }
        }
        self.snapshots.send_if_modified(|current| {
            let changed = **current != snapshot;
            if changed {
                *current = Arc::new(snapshot);
            }
            changed
        });
    }

    /// Asks for the neighbours that are due.
    async fn solicit(&mut self) -> Result<(), End> {
        let due = self.solicitor.due(Instant::now());
        if due.is_empty() {
            return Ok(());
        }
        let kernel = &self.kernel;
        let answers: Vec<_> = stream::iter(due)
            .map(|neighbour| async move { (neighbour, kernel.solicit(neighbour).await) })
            .buffer_unordered(AT_ONCE)
            .collect()
            .await;
        let now = Instant::now();
        for (neighbour, answer) in answers {
            match answer {
                Ok(answer) => self.tables.set_neighbour(neighbour, answer, now),
                Err(Failure::Refused(errno)) => self.tables.refuse(neighbour, refusal(neighbour, errno), now),
                Err(failure) => return Err(failure.into()),
            }
        }
        // Also where nothing changed: an address that was held may have served its time.
        self.work.publish = true;
        Ok(())
    }
}

/// What the errors of asking for a neighbour mean.
fn refusal(neighbour: Neighbour, errno: Errno) -> String {
    let Neighbour { address, .. } = neighbour;
    let family = if address.is_ipv4() { "ipv4" } else { "ipv6" };
    match errno {
        Errno::EPERM | Errno::EACCES => {
            format!("{address} is not in the neighbour table, and asking for it needs CAP_NET_ADMIN")
        }
        Errno::ENOBUFS => {
            format!(
                "the kernel's neighbour table is full, no room for {address}; raise net.{family}.neigh.default.gc_thresh3"
            )
        }
        _ => format!("the kernel cannot ask for the neighbour {address}: {errno}"),
    }
}
