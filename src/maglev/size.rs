//! How many slots a service's table has.

/// Slots for each backend that a service may come to have: keeps shares within one percent of each other.
pub const SLOTS_PER_BACKEND: u32 = 250;

/// Slots of the smallest table.
pub const SMALLEST_TABLE: u32 = 251;

/// Slots of the largest table, of services of 262 backends and more. A cold table costs more per packet than an even
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
        let known = [(0, 251), (1, 251), (2, 503), (16, 4001), (100, 25_013), (262, 65_519), (263, 65_537)];
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
