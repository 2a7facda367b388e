//! Weighted Maglev: which backend owns which slot of a service's table.
//!
//! Maglev hashing (Eisenbud et al., NSDI 2016, section 3.4) gives every backend a list of the slots in an order of its
//! own, and lets the backends take turns: each takes the first slot of its list that is still free. The shares come
//! out even, and when one backend comes or goes nearly every slot of the others stays where it was.
//!
//! - **Same set, same table.** A table depends on the backends' addresses, ports and weights and on nothing else:
//!   not on their order, not on the numbers they have on this node, not on the process. Two nodes agree.
//! - **Weights are turns.** A backend of twice the weight has twice the turns, spread evenly; see the `turns` module.
//! - **Lists are computed, not stored**: a backend keeps the state of a generator only (see the `hash` module), so that
//!   65,537 slots take a few milliseconds whatever the number of backends.

mod hash;
mod size;
#[cfg(test)]
mod tests;
mod turns;

pub use size::{LARGEST_TABLE, SLOTS_PER_BACKEND, SMALLEST_TABLE, table_size};

use std::cmp::Reverse;

use crate::model::BackendAddress;
use hash::Preferences;
use turns::Turns;

/// A backend that is to own slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Address and port: what places it in the table. Unique among the candidates.
    pub key: BackendAddress,
    /// Share of the slots relative to the other candidates. With 0 it owns none.
    pub weight: u16,
    /// What its slots hold: the number of the backend within its service. A candidate numbered 0 owns no slot, as 0
    /// stands for "no backend".
    pub number: u16,
}

/// Builds a table of `slots` slots; each holds the number of the candidate that owns it.
///
/// Without candidates every slot holds 0. The packet path wants a prime of slots; see [`table_size`]. Every candidate owns at least one slot while there are at least as many slots as candidates, however small its weight.
pub fn build(slots: u32, candidates: &[Candidate]) -> Vec<u16> {
    let mut table = vec![0; slots as usize];
    let mut candidates: Vec<Candidate> =
        candidates.iter().copied().filter(|candidate| candidate.weight > 0 && candidate.number > 0).collect();
    candidates.sort_unstable_by_key(|candidate| (Reverse(candidate.weight), candidate.key));

    let mut walks: Vec<Walk> = candidates.iter().map(|candidate| Walk::new(candidate, slots)).collect();
    let mut turns = Turns::new(candidates.iter().map(|candidate| candidate.weight));
    let mut free = table.len();
    while free > 0
        && let Some(members) = turns.next()
    {
        for walk in walks[members].iter_mut().take(free) {
            walk.take_slot(&mut table);
            free -= 1;
        }
    }
    table
}

/// One candidate's way through the slots it prefers.
struct Walk {
    number: u16,
    preferences: Preferences,
}

impl Walk {
    fn new(candidate: &Candidate, slots: u32) -> Self {
        Self { number: candidate.number, preferences: Preferences::new(&candidate.key, slots) }
    }

    /// Takes the most preferred slot that is free; of the last few in a table the next one, as finding those by
    /// chance would take forever. One must be free.
    fn take_slot(&mut self, table: &mut [u16]) {
        let mut slot = self.preferences.next_slot();
        for _ in 0..table.len() {
            if table[slot] == 0 {
                break;
            }
            slot = self.preferences.next_slot();
        }
        while table[slot] != 0 {
            slot = (slot + 1) % table.len();
        }
        table[slot] = self.number;
    }
}
