//! Lengths of time as they are written: `500ms`, `5s`, `1m`, `2h20m`.

use std::time::Duration;

/// Units from the longest to the shortest, with their milliseconds.
const UNITS: [(&str, u64); 4] = [("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)];

/// Why a text is not a length of time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidDuration {
    /// A number alone does not say what it counts.
    #[error("has no unit; write {0}s or {0}ms")]
    NoUnit(String),
    /// Something else than numbers with units.
    #[error("is not a length of time; write whole numbers with h, m, s or ms, such as 500ms, 5s or 2h20m")]
    Malformed,
    /// Units that are not in descending order, or the same one twice.
    #[error("has its units in the wrong order; write the longest first, each once, such as 2h20m")]
    Order,
    /// More milliseconds than can be counted.
    #[error("is too long")]
    TooLong,
}

/// Reads a length of time: whole numbers with the units `h`, `m`, `s` and `ms`, the longest first.
///
/// # Errors
/// [`InvalidDuration`], whose text continues a sentence that begins with the text itself.
pub fn parse(text: &str) -> Result<Duration, InvalidDuration> {
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(InvalidDuration::NoUnit(text.chars().take(12).collect()));
    }
    let (mut rest, mut units, mut total) = (text, &UNITS[..], 0_u64);
    while !rest.is_empty() || text.is_empty() {
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (number, after) = rest.split_at(digits);
        let letters = after.len() - after.trim_start_matches(|c: char| c.is_ascii_alphabetic()).len();
        let (unit, after) = after.split_at(letters);
        let known = UNITS.iter().any(|(name, _)| *name == unit);
        if number.is_empty() || !known {
            return Err(InvalidDuration::Malformed);
        }
        let index = units.iter().position(|(name, _)| *name == unit).ok_or(InvalidDuration::Order)?;
        let number: u64 = number.parse().map_err(|_| InvalidDuration::TooLong)?;
        total = number
            .checked_mul(units[index].1)
            .and_then(|milliseconds| total.checked_add(milliseconds))
            .ok_or(InvalidDuration::TooLong)?;
        units = &units[index + 1..];
        rest = after;
    }
    Ok(Duration::from_millis(total))
}

/// Writes a length of time as [`parse`] reads it, rounded down to milliseconds.
pub fn format(duration: Duration) -> String {
    let mut rest = duration.as_millis();
    let mut text = String::new();
    for (name, milliseconds) in UNITS {
        let number = rest / u128::from(milliseconds);
        rest %= u128::from(milliseconds);
        if number > 0 {
            text += &format!("{number}{name}");
        }
    }
    if text.is_empty() { "0s".to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lengths_that_operators_write() {
        for (text, milliseconds) in
            [("500ms", 500), ("5s", 5000), ("1m", 60_000), ("2h20m", 8_400_000), ("1s500ms", 1500), ("0s", 0)]
        {
            assert_eq!(parse(text), Ok(Duration::from_millis(milliseconds)), "{text}");
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (text, error) in [
            ("5", InvalidDuration::NoUnit("5".into())),
            ("", InvalidDuration::Malformed),
            ("s", InvalidDuration::Malformed),
            ("1.5s", InvalidDuration::Malformed),
            ("-5s", InvalidDuration::Malformed),
            ("5 s", InvalidDuration::Malformed),
            ("5S", InvalidDuration::Malformed),
            ("1d", InvalidDuration::Malformed),
            ("5s3", InvalidDuration::Malformed),
            ("20m2h", InvalidDuration::Order),
            ("1s1s", InvalidDuration::Order),
            ("99999999999999999999h", InvalidDuration::TooLong),
            ("9999999999999999h", InvalidDuration::TooLong),
        ] {
            assert_eq!(parse(text), Err(error), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again(milliseconds in 0..u64::MAX) {
            let duration = Duration::from_millis(milliseconds);
            prop_assert_eq!(parse(&format(duration)), Ok(duration));
        }

        #[test]
        fn nothing_panics(text in ".*") {
            let _ = parse(&text);
        }
    }
}
