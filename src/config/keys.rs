//! Words that are not allowed, and the allowed ones that may have been meant.

use super::problem::quoted;

/// What is wrong with a key that is not one of `allowed`.
pub fn unknown(key: &str, allowed: &[&str]) -> String {
    format!("unknown key{}; allowed here: {}", suggestion(key, allowed), allowed.join(", "))
}

/// What is wrong with a value that is not one of `allowed`.
pub fn unknown_value(value: &str, allowed: &[&str]) -> String {
    let list = match allowed {
        [] => String::new(),
        [only] => (*only).to_owned(),
        [others @ .., last] => format!("{} or {last}", others.join(", ")),
    };
    format!("{} is not allowed{}; use {list}", quoted(value), suggestion(value, allowed))
}

/// ` (did you mean ...?)` where one of `allowed` is near.
fn suggestion(word: &str, allowed: &[&str]) -> String {
    const LONGEST: usize = 32;
    if word.len() > LONGEST {
        return String::new();
    }
    let word = word.to_lowercase().replace('_', "-");
    let near = allowed.iter().map(|candidate| (distance(&word, candidate), candidate)).min();
    match near {
        Some((edits, candidate)) if edits <= 2 && edits < candidate.len().div_ceil(2) => {
            format!(" (did you mean `{candidate}`?)")
        }
        _ => String::new(),
    }
}

/// Characters to insert, delete or replace to make `a` into `b` (Levenshtein).
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.chars().count()).collect();
    for (index, from) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = index + 1;
        for (column, to) in b.chars().enumerate() {
            let replaced = diagonal + usize::from(from != to);
            diagonal = row[column + 1];
            row[column + 1] = replaced.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_words_are_suggested_and_far_ones_are_not() {
        let allowed = ["address", "port", "weight", "degraded-interval"];
        assert_eq!(suggestion("wieght", &allowed), " (did you mean `weight`?)");
        assert_eq!(suggestion("degraded_interval", &allowed), " (did you mean `degraded-interval`?)");
        assert_eq!(suggestion("Port", &allowed), " (did you mean `port`?)");
        for far in ["flows", "", "nonsense", &"x".repeat(40)] {
            assert_eq!(suggestion(far, &allowed), "", "{far}");
        }
    }

    #[test]
    fn distances() {
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("nat", "nat"), 0);
    }
}
