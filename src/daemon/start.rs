//! The way from nothing, or from what an earlier process left, to a daemon that forwards.

use std::sync::Arc;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::{sync::mpsc, task::block_in_place};

use super::{Attachments, Daemon, DaemonError, NEXT_HOP_PATIENCE, Options, REPORT_QUEUE};
use crate::{
    api::{ApiError, Listener},
    config,
    datapath::{self, Kernel},
    engine::{Engine, Shared},
    health::Prober,
    model::{ApiSocket, Capacity, status::Problem},
    nexthop::Resolver,
};

impl Daemon {
    /// Takes over or makes the pinned state, and programs it. Nothing is attached that was not before.
    pub(super) async fn start(options: Options) -> Result<Self, DaemonError> {
        raise_file_limit();
        let desired = config::load(&options.config)?;
        let opened = block_in_place(|| {
            Kernel::open(&datapath::Options { pins: options.pins.clone(), capacity: desired.capacity })
        })?;
        let capacity_problems = capacity_problems(&opened, desired.capacity);
        let mut engine = Engine::adopt(opened)?;
        engine.set_problems("capacity", capacity_problems);
        engine.set_encapsulation(desired.encapsulation);
        engine.set_admission(&desired.admission);
        engine.set_desired(&desired.services);
        engine.set_address_policy(desired.address_policy);
        /* Before anything is applied: a backend that was found pinned is known, a new one is not. */
        let targets = engine.probe_targets();

        let resolver = Resolver::spawn()?;
        resolver.set_targets(engine.next_hop_targets());
        let snapshot = resolver.settled(NEXT_HOP_PATIENCE).await;
        engine.set_egress(&snapshot.egress);
        engine.set_next_hops(&snapshot.next_hops);

        let (sender, reports) = mpsc::channel(REPORT_QUEUE);
        let daemon = Self {
            options,
            engine: Arc::new(Shared::new(engine)),
            attachments: Attachments::default(),
            resolver,
            prober: Prober::new(sender),
            reports,
            desired,
            targets,
        };
        daemon.apply();
        Ok(daemon)
    }

    /// Takes the API's socket. If that fails, the pins that this process made are removed.
    pub(super) fn abandon_on_error(
        &self,
        bind: impl FnOnce(&ApiSocket) -> Result<Listener, ApiError>,
    ) -> Result<Listener, DaemonError> {
        bind(&self.desired.api).map_err(|error| {
            self.engine.lock().datapath_mut().abandon();
            error.into()
        })
    }

    /// Attaches to every interface of the configuration and begins to probe. If that fails, what this process attached or
    /// made is taken away again.
    pub(super) fn attach_all(&mut self) -> Result<(), DaemonError> {
        let wanted = self.desired.interfaces.clone();
        block_in_place(|| {
            let mut engine = self.engine.lock();
            match self.attachments.attach_all(&wanted, &mut engine) {
                Ok(()) => Ok(()),
                Err(error) => {
                    self.attachments.undo(&mut engine);
                    engine.datapath_mut().abandon();
                    Err(DaemonError::from(error))
                }
            }
        })?;
        self.apply();
        self.prober.set_targets(std::mem::take(&mut self.targets));
        Ok(())
    }
}

fn capacity_problems(kernel: &Kernel, wanted: Capacity) -> Vec<Problem> {
    if !kernel.capacity_differs(wanted) {
        return Vec::new();
    }
    let message = "capacity differs from that of the pinned maps, which is kept".to_owned();
    tracing::warn!("{message}");
    vec![Problem {
        message,
        remedy: "to have maps of the new size, stop forwarding with `tidegate detach` and start again"
            .to_owned(),
    }]
}

/// Tables are open files while they are built, and probes are sockets: the usual soft limit of 1,024 is small.
fn raise_file_limit() {
    if let Ok((_, hard)) = getrlimit(Resource::RLIMIT_NOFILE) {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    }
}
