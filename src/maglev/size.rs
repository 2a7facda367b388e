//! How many slots a service's table has.

/// Slots for each backend that a service may come to have.
///
/// What the removal of one backend moves among the others grows as tables get smaller: with 250 slots for each of 16 up to
/// 2.1 % in random sets, with this many at most 1.9 %. The promise is 2 %.
pub const SLOTS_PER_BACKEND: u32 = 360;

/// Slots of the smallest table, of services of up to 12 backends, for the same reason.
pub const SMALLEST_TABLE: u32 = 4_507;

/// Slots of the largest table, of services of 183 backends and more. A cold table costs more per packet than an even
/// one gains.
pub const LARGEST_TABLE: u32 = 65_537;

/// Slots of the table of a service that may come to have `max_backends` backends.
///
/// The smallest prime from [`SLOTS_PER_BACKEND`] slots for each of them on, [`LARGEST_TABLE`] at most. A table keeps its
/// size for the life of its service, because another size would move nearly every flow.
pub fn table_size(max_backends: u16) -> u32 {
    let wanted = (SLOTS_PER_BACKEND * u32::from(max_backends)).clamp(SMALLEST_TABLE, LARGEST_TABLE);
    (wanted..LARGEST_TABLE).find(|&size| is_prime(size)).unwrap_or(LARGEST_TABLE)
}

fn is_prime(number: u32) -> bool {
    number >= 2
        && (2..)
            .take_while(|divisor| divisor * divisor <= number)
            .all(|divisor| !number.is_multiple_of(divisor))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_the_smallest_primes_that_suffice() {
        let known =
            [(0, 4507), (1, 4507), (12, 4507), (16, 5779), (100, 36_007), (182, 65_521), (183, 65_537)];
        for (max_backends, slots) in known {
            assert_eq!(table_size(max_backends), slots, "for {max_backends} backends");
        }
        assert_eq!(table_size(u16::MAX), 65_537);
    }

    #[test]
    fn every_size_is_a_prime_and_no_size_shrinks() {
        let mut previous = 0;
        for max_backends in 0..=300 {
            let slots = table_size(max_backends);
            assert!(is_prime(slots) && slots >= previous, "{slots} for {max_backends} backends");
            previous = slots;
        }
        assert!(is_prime(LARGEST_TABLE) && is_prime(2) && !is_prime(1) && !is_prime(0) && !is_prime(65_535));
    }
}
