//! SIGHUP: the configuration is read again; what differs is changed, and a bad file changes nothing.

use sd_notify::NotifyState;
use tokio::task::block_in_place;

use super::{Daemon, NEXT_HOP_PATIENCE, notify};
use crate::{
    config::{self, ConfigError},
    model::{Desired, status::Problem},
};

impl Daemon {
    /// Reads the configuration file again and makes it the desired state.
    pub(super) async fn reload(&mut self) {
        let mut reloading = vec![NotifyState::Reloading];
        reloading.extend(NotifyState::monotonic_usec_now());
        notify(&reloading);
        match block_in_place(|| config::load(&self.options.config)) {
            Ok(desired) => self.change_to(desired).await,
            Err(error) => self.refuse(&error),
        }
        notify(&[NotifyState::Ready]);
    }

    fn refuse(&self, error: &ConfigError) {
        tracing::error!("the configuration is refused whole and what ran goes on:\n{error}");
        self.engine.lock().set_problems(
            "configuration",
            vec![Problem {
                message: format!(
                    "the configuration file was refused at the last reload: {}",
                    first_line(error)
                ),
                remedy: format!(
                    "what ran before goes on; `tidegate validate {}` shows every error",
                    self.options.config.display()
                ),
            }],
        );
    }

    async fn change_to(&mut self, desired: Desired) {
        let not_applied = self.not_applied(&desired);
        let targets = {
            let mut engine = self.engine.lock();
            engine.set_encapsulation(desired.encapsulation);
            engine.set_admission(&desired.admission);
            engine.set_desired(&desired.services);
            engine.set_address_policy(desired.address_policy);
            engine.set_problems("configuration", not_applied);
            self.resolver.set_targets(engine.next_hop_targets());
            engine.probe_targets()
        };
        let snapshot = self.resolver.settled(NEXT_HOP_PATIENCE).await;
        self.take_next_hops(&snapshot);
        self.apply();
        block_in_place(|| self.attachments.change(&desired.interfaces, &mut self.engine.lock()));
        self.apply();
        self.prober.set_targets(targets);
        self.desired = Desired { api: self.desired.api.clone(), capacity: self.desired.capacity, ..desired };
        tracing::info!(services = self.desired.services.len(), "reloaded");
    }

    /// Settings that only a start applies and that differ from those in force.
    fn not_applied(&self, desired: &Desired) -> Vec<Problem> {
        let api = (desired.api != self.desired.api)
            .then_some(("api", "restart the daemon, which loses no packet: systemctl restart tidegate"));
        let capacity = (desired.capacity != self.desired.capacity).then_some((
            "capacity",
            "the pinned maps keep their sizes; to have others, stop forwarding with `tidegate detach` and start again",
        ));
        let problems = [api, capacity].into_iter().flatten().map(|(name, remedy)| {
            let message = format!("{name} has changed in the configuration file but is not applied");
            tracing::warn!("{message}");
            Problem { message, remedy: remedy.to_owned() }
        });
        problems.collect()
    }
}

fn first_line(error: &ConfigError) -> String {
    error.to_string().lines().next().unwrap_or_default().to_owned()
}
