//! Whose turn it is to take a slot.
//!
//! A backend of weight w has its turns at the times 0, 3/2w, 5/2w, 7/2w, ...: evenly spread, w of them per unit of time.
//! The turns are taken in order of time, which has the properties that the tables need:
//! - until any time every backend had round(w × time) turns, so that shares follow weights to half a slot,
//!   but at least one, so that a small weight never means no traffic at all;
//! - when turns meet depends on ratios of weights only: 100 and 100 is the same as 1 and 1;
//! - the order of any two backends' turns does not depend on the others, so that one backend that comes, goes or
//!   changes its weight disturbs the others as little as possible.
//!
//! Backends of equal weight always have their turns at the same time, so they are kept as one class.

use std::{cmp::Ordering, collections::BinaryHeap, ops::Range};

/// The endless sequence of turns of classes of backends of equal weight.
pub struct Turns {
    classes: BinaryHeap<Class>,
}

/// Backends of equal weight, and when they have their next turn.
struct Class {
    weight: u64,
    /// The time of the next turn is `halves` / (2 × `weight`).
    halves: u64,
    members: Range<usize>,
}

impl Turns {
    /// Turns of backends of these weights, none of them 0, in descending order.
    pub fn new(weights: impl Iterator<Item = u16>) -> Self {
        let mut classes: Vec<Class> = Vec::new();
        for (index, weight) in weights.map(u64::from).enumerate() {
            match classes.last_mut() {
                Some(class) if class.weight == weight => class.members.end = index + 1,
                _ => classes.push(Class { weight, halves: 0, members: index..index + 1 }),
            }
        }
        Self { classes: classes.into() }
    }
}

impl Iterator for Turns {
    /// Positions of the backends, in the order given to [`Turns::new`], that take a slot each, one after the other.
    type Item = Range<usize>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut class = self.classes.peek_mut()?;
        class.halves = if class.halves == 0 { 3 } else { class.halves + 2 };
        let members = class.members.clone();
        Some(members) // dropping `class` puts it back in order
    }
}

impl Ord for Class {
    /// The greatest is next in turn: the one with the earliest time, and of several the one of most weight.
    fn cmp(&self, other: &Self) -> Ordering {
        let (mine, theirs) = (self.halves * other.weight, other.halves * self.weight);
        theirs.cmp(&mine).then(self.weight.cmp(&other.weight))
    }
}

impl PartialOrd for Class {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Class {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Class {}
