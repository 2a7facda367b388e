//! Giving out service IDs and ranges of backend records.

use std::collections::BTreeMap;

use crate::datapath::RecordRange;

/// The next free service ID after `last`, in turn, so that a freed ID is reused as late as possible; `None` where all `1..=max`
/// are in use.
pub(super) fn next_service_id(last: u16, max: u16, in_use: impl Fn(u16) -> bool) -> Option<u16> {
    let after = (1..=max).skip(last.into());
    let before = 1..=last.min(max);
    after.chain(before).find(|&id| !in_use(id))
}

/// The first gap of `needed` records below `end` between the ranges in use, given as first record and number of records.
pub(super) fn free_range(in_use: &BTreeMap<u32, u32>, needed: u32, end: u32) -> Option<RecordRange> {
    let mut start = 0;
    for (&first, &records) in in_use {
        if first.saturating_sub(start) >= needed {
            break;
        }
        start = start.max(first + records);
    }
    (u64::from(start) + u64::from(needed) <= u64::from(end))
        .then_some(RecordRange { base: start, limit: needed })
}

/// The lowest number from 1 to below `limit` that is free.
pub(super) fn free_number(limit: u32, in_use: impl Fn(u16) -> bool) -> Option<u16> {
    let highest = limit.saturating_sub(1).min(u32::from(u16::MAX)) as u16;
    (1..=highest).find(|&number| !in_use(number))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn ids_are_given_out_in_turn() {
        let mut in_use = BTreeSet::new();
        let mut last = 0;
        for expected in [1, 2, 3] {
            last = next_service_id(last, 4, |id| in_use.contains(&id)).unwrap();
            assert_eq!(last, expected);
            in_use.insert(last);
        }
        in_use.remove(&1);
        assert_eq!(next_service_id(last, 4, |id| in_use.contains(&id)), Some(4), "1 was freed only just now");
        in_use.insert(4);
        assert_eq!(next_service_id(4, 4, |id| in_use.contains(&id)), Some(1));
        in_use.insert(1);
        assert_eq!(next_service_id(4, 4, |id| in_use.contains(&id)), None);
    }

    #[test]
    fn ids_survive_a_smaller_limit() {
        assert_eq!(next_service_id(900, 4, |_| false), Some(1));
        assert_eq!(next_service_id(u16::MAX, u16::MAX, |id| id == 1), Some(2));
    }

    #[test]
    fn ranges_fill_the_first_gap_that_is_large_enough() {
        let in_use = BTreeMap::from([(0, 10), (12, 3), (20, 5)]);
        assert_eq!(free_range(&in_use, 2, 100), Some(RecordRange { base: 10, limit: 2 }));
        assert_eq!(free_range(&in_use, 5, 100), Some(RecordRange { base: 15, limit: 5 }));
        assert_eq!(free_range(&in_use, 6, 100), Some(RecordRange { base: 25, limit: 6 }));
        assert_eq!(free_range(&in_use, 76, 100), None);
        assert_eq!(free_range(&BTreeMap::new(), 100, 100), Some(RecordRange { base: 0, limit: 100 }));
    }

    #[test]
    fn numbers_end_below_the_limit() {
        assert_eq!(free_number(3, |n| n == 1), Some(2));
        assert_eq!(free_number(3, |_| true), None);
        assert_eq!(free_number(1, |_| false), None);
    }
}
