//! Properties of tables that operators rely on.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use proptest::prelude::*;

use super::{Candidate, build, table_size};
use crate::model::BackendAddress;

fn candidate(address: impl Into<IpAddr>, weight: u16, number: u16) -> Candidate {
    Candidate { key: BackendAddress { address: address.into(), port: 80 }, weight, number }
}

/// `count` backends 10.0.0.1, 10.0.0.2, ..., numbered from 1.
fn neighbours(count: u16, weight: u16) -> Vec<Candidate> {
    (1..=count)
        .map(|number| candidate(Ipv4Addr::from(0x0a00_0000 + u32::from(number)), weight, number))
        .collect()
}

/// Backends of distinct random addresses of both families, with weights from `weights`.
fn sets(
    count: std::ops::RangeInclusive<usize>,
    weights: std::ops::RangeInclusive<u16>,
) -> impl Strategy<Value = Vec<Candidate>> {
    let address = prop_oneof![
        any::<u32>().prop_map(|bits| IpAddr::V4(bits.into())),
        any::<u64>().prop_map(|bits| IpAddr::V6(Ipv6Addr::from(0x2001_0db8 << 96 | u128::from(bits)))),
    ];
    let keys = proptest::collection::btree_map(address, weights, count);
    keys.prop_map(|keys| {
        keys.into_iter()
            .zip(1..)
            .map(|((address, weight), number)| candidate(address, weight, number))
            .collect()
    })
}

fn counts(table: &[u16]) -> BTreeMap<u16, u32> {
    table.iter().fold(BTreeMap::new(), |mut counts, number| {
        *counts.entry(*number).or_default() += 1;
        counts
    })
}

/// Share of the slots whose owner differs though neither owner is `changed`, in percent.
fn moved_without_need(before: &[u16], after: &[u16], changed: u16) -> f64 {
    let moved = before.iter().zip(after).filter(|(a, b)| a != b && **a != changed && **b != changed).count();
    100.0 * moved as f64 / before.len() as f64
}

fn without(set: &[Candidate], number: u16) -> Vec<Candidate> {
    set.iter().copied().filter(|candidate| candidate.number != number).collect()
}

/// For every backend of `count`: what its removal moves without need, in percent of the slots, by way of `builder`.
fn movements(count: u16, builder: fn(u32, &[Candidate]) -> Vec<u16>) -> Vec<f64> {
    let (slots, set) = (table_size(count), neighbours(count, 1));
    let all = builder(slots, &set);
    let chosen = (1..=count).step_by(usize::from(count.div_ceil(10)));
    chosen.map(|number| moved_without_need(&all, &builder(slots, &without(&set, number)), number)).collect()
}

/// The control: a table that is even but moves nearly everything.
fn by_remainder(slots: u32, set: &[Candidate]) -> Vec<u16> {
    (0..slots as usize).map(|slot| set[slot % set.len()].number).collect()
}

/// An exact copy of a small table. If this test fails, nodes of different versions send flows to different backends.
#[test]
fn a_table_never_changes_from_version_to_version() {
    let set = [
        candidate(Ipv4Addr::new(192, 0, 2, 1), 1, 1),
        candidate(Ipv4Addr::new(192, 0, 2, 2), 2, 2),
        candidate("2001:db8::3".parse::<IpAddr>().unwrap(), 3, 3),
    ];
    let text: String = build(53, &set).iter().map(u16::to_string).collect();
    assert_eq!(text, "21233322232323112121133223233333332333232213112333323");
    // FNV-1a over a table of the largest size.
    let digest = build(65_537, &set).iter().fold(0xcbf2_9ce4_8422_2325_u64, |digest, slot| {
        (digest ^ u64::from(*slot)).wrapping_mul(0x100_0000_01b3)
    });
    assert_eq!(digest, 8_135_539_243_751_972_386);
}

#[test]
fn no_backend_is_an_empty_table_and_no_slot_is_none() {
    assert_eq!(build(7, &[]), [0; 7]);
    assert_eq!(build(7, &neighbours(3, 0)), [0; 7]);
    assert_eq!(build(0, &neighbours(3, 1)), [0_u16; 0]);
    assert_eq!(build(1, &neighbours(1, 1)), [1]);
    let unnumbered = [candidate(Ipv4Addr::LOCALHOST, 1, 0), candidate(Ipv4Addr::UNSPECIFIED, 1, 9)];
    assert_eq!(build(5, &unnumbered), [9; 5]);
}

#[test]
fn more_backends_than_slots_still_end() {
    let owners: BTreeSet<u16> = build(251, &neighbours(1000, 5)).into_iter().collect();
    assert_eq!(owners.len(), 251);
}

#[test]
fn removing_one_of_many_moves_at_most_two_percent_of_the_others() {
    for count in [2, 3, 4, 5, 8, 10, 16, 20, 32, 50, 64, 100] {
        let movements = movements(count, build);
        assert!(
            movements.iter().all(|moved| *moved <= 2.0),
            "removing one of {count} moves {movements:.2?} %"
        );
    }
}

/// Shows that the test above can fail.
#[test]
fn a_table_by_remainder_would_move_most_of_the_others() {
    for count in [3, 10, 100] {
        assert!(movements(count, by_remainder).iter().all(|moved| *moved > 25.0), "{count}");
    }
}

#[test]
fn a_changed_weight_moves_little_beyond_the_change() {
    for (from, to) in [(10, 11), (10, 20), (20, 10), (1000, 1)] {
        let mut set = neighbours(16, from);
        let before = build(table_size(16), &set);
        set[4].weight = to;
        let moved = moved_without_need(&before, &build(table_size(16), &set), 5);
        assert!(moved <= 2.0, "weight {from} to {to} moves {moved:.2} %");
    }
}

/// A weight of 1 beside 1000 is small, not nothing.
#[test]
fn the_smallest_weight_still_owns_a_slot() {
    let mut set = neighbours(16, 1000);
    set[3].weight = 1;
    for slots in [17, 251, table_size(16)] {
        let counts = counts(&build(slots, &set));
        assert!(counts[&4] >= 1, "{slots} slots");
    }
    assert_eq!(counts(&build(251, &[set[3], set[0]]))[&4], 1);
}

#[test]
fn equal_weights_are_equal_whatever_they_are() {
    let set = |first, second| {
        let mut set = neighbours(6, first);
        set.iter_mut().skip(3).for_each(|candidate| candidate.weight = second);
        build(1511, &set)
    };
    assert_eq!(set(100, 100), set(1, 1));
    assert_eq!(set(30, 20), set(3, 2));
    assert_ne!(set(30, 20), set(1, 1));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn equal_weights_share_evenly(set in sets(1..=100, 7..=7)) {
        let slots = table_size(set.len() as u16);
        let counts = counts(&build(slots, &set));
        prop_assert_eq!(counts.len(), set.len());
        let (least, most) = (counts.values().min().unwrap(), counts.values().max().unwrap());
        prop_assert!(most - least <= 1, "from {} to {} slots", least, most);
    }

    #[test]
    fn shares_follow_weights(set in sets(1..=60, 1..=1000)) {
        let slots = table_size(set.len() as u16);
        let counts = counts(&build(slots, &set));
        let total: f64 = set.iter().map(|candidate| f64::from(candidate.weight)).sum();
        for candidate in &set {
            let ideal = f64::from(slots) * f64::from(candidate.weight) / total;
            let owned = f64::from(counts[&candidate.number]);
            // Half a slot by rounding, and what the slots given to the smallest weights take from everybody.
            prop_assert!((owned - ideal).abs() <= 1.5 + ideal * 0.01, "{} slots instead of {}", owned, ideal);
        }
    }

    #[test]
    fn order_does_not_matter(set in sets(1..=40, 1..=3), seed in any::<u64>()) {
        let mut shuffled = set.clone();
        for index in (1..shuffled.len()).rev() {
            shuffled.swap(index, (seed.rotate_left(index as u32 % 64) % (index as u64 + 1)) as usize);
        }
        prop_assert_eq!(build(1009, &set), build(1009, &shuffled));
    }

    /// Two nodes number the same backends differently and still send every flow to the same one.
    #[test]
    fn numbers_do_not_matter(set in sets(1..=40, 1..=3), offset in 0_u16..60_000) {
        let renumber = |number| offset + set.len() as u16 + 1 - number;
        let renumbered: Vec<_> = set
            .iter()
            .map(|candidate| Candidate { number: renumber(candidate.number), ..*candidate })
            .collect();
        let expected: Vec<_> = build(1009, &set).into_iter().map(renumber).collect();
        prop_assert_eq!(build(1009, &renumbered), expected);
    }

    #[test]
    fn any_single_backend_takes_everything(set in sets(1..=1, 1..=1000)) {
        prop_assert!(build(4001, &set).iter().all(|number| *number == 1));
    }

    /// Chance decides what one change of one set moves; the bound leaves room for it.
    #[test]
    fn adding_or_removing_one_moves_little_else(set in sets(2..=60, 1..=1000), chosen in any::<prop::sample::Index>()) {
        let slots = table_size(set.len() as u16);
        let number = chosen.get(&set).number;
        let moved = moved_without_need(&build(slots, &set), &build(slots, &without(&set, number)), number);
        prop_assert!(moved <= 2.4, "{} % of {} slots", moved, slots);
    }
}
