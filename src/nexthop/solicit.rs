//! When the kernel is asked to resolve or confirm which neighbour. No input or output.

use std::{
    collections::HashMap,
    hash::{DefaultHasher, Hash, Hasher},
    time::Duration,
};

use tokio::time::Instant;

use super::tables::{Need, Neighbour};

/// The kernel itself tries for about 3 seconds before a neighbour has failed.
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LAST_RETRY: Duration = Duration::from_secs(16);
/// Stale entries are confirmed within this time, not all at once.
const REFRESH_SPREAD: Duration = Duration::from_secs(2);
/// A confirmation takes the kernel about 5 seconds when nothing is wrong.
const REFRESH_RETRY: Duration = Duration::from_secs(10);
/// No more are asked for at once, and then not before `BREATHER` is over: a broadcast each.
const BATCH: usize = 200;
const BREATHER: Duration = Duration::from_millis(50);

struct Ask {
    need: Need,
    next: Instant,
    asked: u32,
}

/// Who is asked for when.
#[derive(Default)]
pub(super) struct Solicitor {
    asks: HashMap<Neighbour, Ask>,
    not_before: Option<Instant>,
}

impl Solicitor {
    /// Takes what every neighbour needs now, and forgets those that need nothing.
    pub fn update(&mut self, needs: &HashMap<Neighbour, Option<Need>>, now: Instant) {
        self.asks.retain(|neighbour, ask| needs.get(neighbour).copied().flatten() == Some(ask.need));
        for (neighbour, need) in needs {
            if let Some(need) = *need {
                self.asks.entry(*neighbour).or_insert_with(|| {
                    let delay = match need {
                        Need::Resolve => Duration::ZERO,
                        Need::Refresh => spread(neighbour),
                    };
                    Ask { need, next: now + delay, asked: 0 }
                });
            }
        }
    }

    /// Those to ask for now, which are taken to be asked.
    pub fn due(&mut self, now: Instant) -> Vec<Neighbour> {
        if self.not_before.is_some_and(|time| now < time) {
            return Vec::new();
        }
        let ready = self.asks.iter_mut().filter(|(_, ask)| ask.next <= now).take(BATCH);
        let due: Vec<_> = ready
            .map(|(neighbour, ask)| {
                ask.next = now + ask.pause();
                ask.asked += 1;
                *neighbour
            })
            .collect();
        self.not_before = (due.len() == BATCH).then_some(now + BREATHER);
        due
    }

    /// When [`Solicitor::due`] should be called next.
    pub fn wake(&self) -> Option<Instant> {
        let next = self.asks.values().map(|ask| ask.next).min()?;
        Some(self.not_before.map_or(next, |time| time.max(next)))
    }
}

impl Ask {
    fn pause(&self) -> Duration {
        match self.need {
            Need::Resolve => FIRST_RETRY.saturating_mul(1 << self.asked.min(8)).min(LAST_RETRY),
            Need::Refresh => REFRESH_RETRY,
        }
    }
}

fn spread(neighbour: &Neighbour) -> Duration {
    let mut hasher = DefaultHasher::new();
    neighbour.hash(&mut hasher);
    REFRESH_SPREAD.mul_f64((hasher.finish() % 1024) as f64 / 1024.0)
}
