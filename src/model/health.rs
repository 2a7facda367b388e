//! Health of backends: what is asked for, and how single probe outcomes become a verdict.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// State of a backend of a service, as the packet path knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BackendState {
    /// Takes new flows.
    Up,
    /// Takes nothing.
    Down,
}

/// How the backends of a service are probed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HealthCheck {
    /// What a probe does; `None` trusts every backend.
    pub probe: Option<Probe>,
    /// Time between probes of a backend in a settled state.
    pub interval: Duration,
    /// Time between probes of a backend whose last outcomes disagree with its state.
    pub degraded_interval: Duration,
    /// A probe that takes longer has failed.
    pub timeout: Duration,
    /// Successes in a row that bring a backend up.
    pub rise: u32,
    /// Failures in a row that take a backend down.
    pub fall: u32,
    /// State of a new backend before its first verdict.
    pub initial: InitialState,
}

/// What one probe does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Probe {
    /// A TCP connection to the backend's address is opened and closed.
    Tcp {
        /// Port to connect to; the backend's own where absent.
        port: Option<u16>,
    },
}

/// State of a new backend before its first verdict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum InitialState {
    /// Down until its first success; that one success is enough, whatever `rise` says.
    #[default]
    Down,
    /// Up until it fails `fall` times in a row.
    Up,
}

/// Outcome of one probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProbeOutcome {
    /// The backend answered as it should.
    Success,
    /// It did not, and this is why, in words for an operator.
    Failure(String),
}

/// A change of state that a run of outcomes demands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The backend is to be used.
    Up,
    /// The backend is not to be used.
    Down,
}

/// Counts outcomes in a row and turns them into verdicts.
///
/// Only an unbroken run counts: with `fall: 2`, failures that alternate with successes never take a backend down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Streak {
    state: BackendState,
    proven: bool,
    opposing: u32,
}

impl Streak {
    /// A backend that has not been probed yet and starts in `initial`.
    pub fn new(initial: InitialState) -> Self {
        let state = match initial {
            InitialState::Down => BackendState::Down,
            InitialState::Up => BackendState::Up,
        };
        Self { state, proven: false, opposing: 0 }
    }

    /// A backend whose state was adopted from an earlier process.
    pub fn adopted(state: BackendState) -> Self {
        Self { state, proven: true, opposing: 0 }
    }

    /// The present state.
    pub fn state(&self) -> BackendState {
        self.state
    }

    /// True while the last outcomes disagree with the state: probe faster now.
    pub fn is_degraded(&self) -> bool {
        self.opposing > 0 || !self.proven
    }

    /// Takes one outcome and says whether the state changes with it.
    pub fn record(&mut self, success: bool, check: &HealthCheck) -> Option<Verdict> {
        let agrees = success == (self.state == BackendState::Up);
        if agrees {
            self.opposing = 0;
            self.proven = true;
            return None;
        }
        self.opposing += 1;
        let needed = match (success, self.proven) {
            (true, false) => 1,
            (true, true) => check.rise,
            (false, _) => check.fall,
        };
        if self.opposing < needed {
            return None;
        }
        self.opposing = 0;
        self.proven = true;
        self.state = if success { BackendState::Up } else { BackendState::Down };
        Some(if success { Verdict::Up } else { Verdict::Down })
    }
}

impl HealthCheck {
    /// No probing: every backend counts as up.
    pub fn none() -> Self {
        Self { probe: None, initial: InitialState::Up, ..Self::default() }
    }
}

impl Default for HealthCheck {
    fn default() -> Self {
        Self {
            probe: Some(Probe::Tcp { port: None }),
            interval: Duration::from_secs(5),
            degraded_interval: Duration::from_millis(500),
            timeout: Duration::from_secs(1),
            rise: 2,
            fall: 3,
            initial: InitialState::Down,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdicts(streak: &mut Streak, outcomes: &str) -> String {
        let check = HealthCheck { rise: 2, fall: 3, ..HealthCheck::default() };
        outcomes
            .chars()
            .map(|outcome| match streak.record(outcome == 'S', &check) {
                None => '.',
                Some(Verdict::Up) => 'U',
                Some(Verdict::Down) => 'D',
            })
            .collect()
    }

    #[test]
    fn a_new_backend_is_down_until_its_first_success() {
        let mut streak = Streak::new(InitialState::Down);
        assert_eq!(streak.state(), BackendState::Down);
        assert_eq!(verdicts(&mut streak, "S"), "U");
    }

    #[test]
    fn a_new_backend_that_failed_first_must_rise() {
        assert_eq!(verdicts(&mut Streak::new(InitialState::Down), "FSS"), "..U");
    }

    #[test]
    fn a_backend_that_begins_up_falls_by_failures_in_a_row() {
        assert_eq!(verdicts(&mut Streak::new(InitialState::Up), "FFF"), "..D");
    }

    #[test]
    fn alternating_outcomes_never_change_the_state() {
        assert_eq!(verdicts(&mut Streak::adopted(BackendState::Up), "FFSFFSFFSFFS"), "............");
        assert_eq!(verdicts(&mut Streak::adopted(BackendState::Down), "SFSFSF"), "......");
    }

    #[test]
    fn recovery_takes_rise_successes() {
        assert_eq!(verdicts(&mut Streak::adopted(BackendState::Up), "FFFSFSS"), "..D...U");
    }
}
