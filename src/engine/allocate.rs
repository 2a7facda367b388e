//! Giving out service IDs and ranges of backend records.

use std::collections::{BTreeMap, BTreeSet};

use crate::datapath::RecordRange;

/// Which service IDs are in use.
#[derive(Clone, Debug)]
pub(super) struct ServiceIds {
    highest: u16,
    last: u16,
    in_use: BTreeSet<u16>,
}

impl ServiceIds {
    /// None of `1..=highest` is in use; `last` was given out last.
    pub(super) fn new(highest: u16, last: u16) -> Self {
        Self { highest, last, in_use: BTreeSet::new() }
    }

    /// Notes that an ID is in use. False where it was already, or is not one.
    pub(super) fn claim(&mut self, id: u16) -> bool {
        (1..=self.highest).contains(&id) && self.in_use.insert(id)
    }

    /// The next free ID after the one given out last, so that a freed one is reused as late as possible; `None` where all are
    /// in use.
    pub(super) fn next(&self) -> Option<u16> {
        if self.in_use.len() >= usize::from(self.highest) {
            return None;
        }
        let last = self.last.min(self.highest);
        let after = (last..=self.highest).skip(1);
        after.chain(1..=last).find(|id| !self.in_use.contains(id))
    }

    /// Gives out an ID that [`ServiceIds::next`] named.
    pub(super) fn give_out(&mut self, id: u16) {
        self.in_use.insert(id);
        self.last = id;
    }

    /// The ID is free from now on.
    pub(super) fn release(&mut self, id: u16) {
        self.in_use.remove(&id);
    }
}

/// Which backend records belong to nobody.
#[derive(Clone, Debug)]
pub(super) struct FreeRecords {
    /// Gaps: first record and number of records; no two touch.
    gaps: BTreeMap<u32, u32>,
    /// The same as number of records and first record, to find the smallest that suffices.
    by_size: BTreeSet<(u32, u32)>,
}

impl FreeRecords {
    /// Records 0 to below `end` are free.
    pub(super) fn new(end: u32) -> Self {
        let mut free = Self { gaps: BTreeMap::new(), by_size: BTreeSet::new() };
        free.insert(0, end);
        free
    }

    /// Takes these records out. False, and nothing changes, where not all of them are free.
    pub(super) fn claim(&mut self, first: u32, records: u32) -> bool {
        let Some((&start, &length)) = self.gaps.range(..=first).next_back() else { return false };
        let gap_end = u64::from(start) + u64::from(length);
        let end = u64::from(first) + u64::from(records);
        if end > gap_end || records == 0 {
            return false;
        }
        self.remove(start, length);
        self.insert(start, first - start);
        self.insert(end as u32, (gap_end - end) as u32);
        true
    }

    /// Gives out so many records: the smallest gap that suffices, and of several the first.
    pub(super) fn allocate(&mut self, records: u32) -> Option<RecordRange> {
        let &(_, base) = self.by_size.range((records, 0)..).next()?;
        self.claim(base, records).then_some(RecordRange { base, limit: records })
    }

    /// These records are free from now on.
    pub(super) fn release(&mut self, first: u32, records: u32) {
        let (mut start, mut end) = (first, first + records);
        if let Some((&before, &length)) = self.gaps.range(..first).next_back()
            && before + length == start
        {
            self.remove(before, length);
            start = before;
        }
        if let Some(&length) = self.gaps.get(&end) {
            self.remove(end, length);
            end += length;
        }
        self.insert(start, end - start);
    }

    fn insert(&mut self, start: u32, length: u32) {
        if length > 0 {
            self.gaps.insert(start, length);
            self.by_size.insert((length, start));
        }
    }

    fn remove(&mut self, start: u32, length: u32) {
        self.gaps.remove(&start);
        self.by_size.remove(&(length, start));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn give_out(ids: &mut ServiceIds) -> Option<u16> {
        let id = ids.next()?;
        ids.give_out(id);
        Some(id)
    }

    #[test]
    fn ids_are_given_out_in_turn() {
        let mut ids = ServiceIds::new(4, 0);
        assert_eq!([1, 2, 3].map(|_| give_out(&mut ids)), [Some(1), Some(2), Some(3)]);
        ids.release(1);
        assert_eq!(give_out(&mut ids), Some(4), "1 was freed only just now");
        assert_eq!(give_out(&mut ids), Some(1));
        assert_eq!(give_out(&mut ids), None);
    }

    #[test]
    fn ids_survive_a_smaller_limit_and_the_end_of_their_range() {
        assert_eq!(ServiceIds::new(4, 900).next(), Some(1));
        let mut ids = ServiceIds::new(u16::MAX, u16::MAX);
        assert!(ids.claim(1));
        assert_eq!(ids.next(), Some(2), "the last one was given out last, so it is its turn last");
        assert_eq!(ServiceIds::new(0, 0).next(), None);
    }

    #[test]
    fn an_id_is_claimed_once_and_only_where_there_is_such_an_id() {
        let mut ids = ServiceIds::new(4, 0);
        assert_eq!([0, 1, 1, 4, 5].map(|id| ids.claim(id)), [false, true, false, true, false]);
    }

    #[test]
    fn ranges_fill_the_smallest_gap_that_is_large_enough() {
        let mut free = FreeRecords::new(100);
        for (first, records) in [(0, 10), (12, 3), (20, 5)] {
            assert!(free.claim(first, records));
        }
        assert_eq!(free.allocate(76), None);
        assert_eq!(free.allocate(2), Some(RecordRange { base: 10, limit: 2 }));
        assert_eq!(free.allocate(5), Some(RecordRange { base: 15, limit: 5 }));
        assert_eq!(free.allocate(75), Some(RecordRange { base: 25, limit: 75 }));
        assert_eq!(free.allocate(1), None);
    }

    #[test]
    fn what_is_not_wholly_free_cannot_be_claimed() {
        let mut free = FreeRecords::new(100);
        assert!(free.claim(10, 10));
        for (first, records) in [(10, 10), (5, 6), (19, 1), (90, 11), (100, 1), (u32::MAX, u32::MAX), (50, 0)]
        {
            assert!(!free.claim(first, records), "{first} and {records}");
        }
        free.release(10, 10);
        assert_eq!(free.allocate(100), Some(RecordRange { base: 0, limit: 100 }));
    }

    proptest! {
        /// Against a plain list of records.
        #[test]
        fn records_belong_to_one_at_most(sizes in prop::collection::vec((1u32..9, any::<prop::sample::Index>()), 1..60)) {
            let mut free = FreeRecords::new(64);
            let mut held: Vec<RecordRange> = Vec::new();
            let mut taken = [false; 64];
            for (size, which) in sizes {
                match free.allocate(size) {
                    Some(range) => {
                        for record in &mut taken[range.base as usize..(range.base + range.limit) as usize] {
                            prop_assert!(!std::mem::replace(record, true));
                        }
                        held.push(range);
                    }
                    None => {
                        prop_assert!(!taken.chunk_by(|a, b| a == b).any(|run| !run[0] && run.len() >= size as usize));
                        let range = held.swap_remove(which.index(held.len()));
                        free.release(range.base, range.limit);
                        taken[range.base as usize..(range.base + range.limit) as usize].fill(false);
                    }
                }
            }
            for range in held {
                free.release(range.base, range.limit);
            }
            prop_assert_eq!(free.allocate(64), Some(RecordRange { base: 0, limit: 64 }));
        }
    }
}
