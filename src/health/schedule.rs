//! When a target is probed: spread out and jittered, yet the same on every run for the same target.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    time::Duration,
};

use crate::model::{BackendAddress, ServiceName};

/// What each new target adds to the time over which the first probes of a crowd are spread.
const SPREAD_PER_TARGET: Duration = Duration::from_micros(100);
/// The longest time over which first probes are spread.
const LONGEST_SPREAD: Duration = Duration::from_secs(1);
/// Intervals vary by this share in each direction, so that targets do not fall into step.
const JITTER: f64 = 0.1;

/// A number that stands for a target, the same in every process.
pub(super) fn seed(service: &ServiceName, backend: &BackendAddress) -> u64 {
    let mut hasher = DefaultHasher::new();
    (service, backend).hash(&mut hasher);
    hasher.finish()
}

/// How long a target that came with `crowd` others in all waits for its first probe.
pub(super) fn first_delay(seed: u64, crowd: usize) -> Duration {
    let crowd = u32::try_from(crowd).unwrap_or(u32::MAX);
    let window = SPREAD_PER_TARGET.saturating_mul(crowd).min(LONGEST_SPREAD);
    window.mul_f64(fraction(seed))
}

/// The time between one probe and the next, `interval` give or take a tenth.
pub(super) fn jittered(interval: Duration, seed: u64, round: u64) -> Duration {
    let position = fraction(seed.wrapping_add(round.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
    interval.mul_f64(1.0 - JITTER + 2.0 * JITTER * position)
}

/// Maps a number to an evenly spread one from 0 up to 1 (the finalizer of SplitMix64).
fn fraction(number: u64) -> f64 {
    let mut mixed = number;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^= mixed >> 31;
    (mixed >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crowd_is_spread_evenly_and_a_single_target_does_not_wait() {
        assert!(first_delay(7, 1) < Duration::from_micros(100));
        let mut tenths = [0; 10];
        for number in 0..10_000u64 {
            let backend = BackendAddress { address: [10, 0, 0, 1].into(), port: number as u16 };
            let delay = first_delay(seed(&"web".parse().unwrap(), &backend), 10_000);
            tenths[(delay.as_millis() / 100) as usize] += 1;
        }
        assert!(tenths.iter().all(|count| (800..1200).contains(count)), "{tenths:?}");
    }

    #[test]
    fn intervals_vary_by_a_tenth_and_no_more() {
        let interval = Duration::from_secs(10);
        let all: Vec<_> = (0..1000).map(|round| jittered(interval, 42, round)).collect();
        assert!(all.iter().all(|one| (9.0..=11.0).contains(&one.as_secs_f64())));
        assert!(
            all.iter().min().unwrap().as_secs_f64() < 9.1 && all.iter().max().unwrap().as_secs_f64() > 10.9
        );
    }
}
