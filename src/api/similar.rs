//! Which names an operator may have meant.

/// At most this many names are offered.
const OFFERED: usize = 5;

/// The `known` names nearest to `wanted`, nearest first; none where nothing comes close.
pub(super) fn similar<'a>(wanted: &str, known: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    // A name of the configuration has at most 63 characters; more is no slip of the finger, only work.
    if wanted.len() > 80 {
        return Vec::new();
    }
    let wanted = wanted.to_ascii_lowercase();
    let mut near: Vec<(usize, &str)> = known
        .filter_map(|name| distance_if_near(&wanted, &name.to_ascii_lowercase()).map(|far| (far, name)))
        .collect();
    near.sort();
    near.into_iter().take(OFFERED).map(|(_, name)| name).collect()
}

/// The distance where `known` is near `wanted`: a third of it mistyped, or one the beginning or end of the other.
fn distance_if_near(wanted: &str, known: &str) -> Option<usize> {
    let distance = edit_distance(wanted.as_bytes(), known.as_bytes());
    let tolerated = wanted.len().max(known.len()).div_ceil(3).min(4);
    let is_part =
        wanted.len() >= 2 && (known.contains(wanted) || (known.len() >= 2 && wanted.contains(known)));
    (distance <= tolerated || is_part).then_some(distance)
}

/// The fewest insertions, deletions, replacements and swaps of neighbours that make `a` into `b`
/// (optimal string alignment).
fn edit_distance(a: &[u8], b: &[u8]) -> usize {
    let mut before: Vec<usize> = Vec::new();
    let mut above: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let replaced = above[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut best = replaced.min(above[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(before[j - 2] + 1);
            }
            row.push(best);
        }
        before = std::mem::replace(&mut above, row);
    }
    above[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(wanted: &str) -> Vec<&'static str> {
        similar(wanted, ["web", "web-v6", "dns-udp", "dns-tcp", "mail"].into_iter())
    }

    #[test]
    fn finds_slips_of_the_finger() {
        assert_eq!(of("wbe"), ["web"]);
        assert_eq!(of("WEB"), ["web", "web-v6"]);
        assert_eq!(of("dns_udp"), ["dns-udp", "dns-tcp"]);
        assert_eq!(of("dns"), ["dns-tcp", "dns-udp"]);
        assert_eq!(of("web-v4"), ["web-v6", "web"]);
    }

    #[test]
    fn offers_nothing_far_fetched() {
        assert!(of("postgres").is_empty());
        assert!(of("").is_empty());
        assert!(of("x").is_empty());
        assert!(of(&"web".repeat(100)).is_empty());
    }

    #[test]
    fn a_swap_of_neighbours_is_one_step() {
        assert_eq!(edit_distance(b"wbe", b"web"), 1);
        assert_eq!(edit_distance(b"", b"web"), 3);
        assert_eq!(edit_distance(b"kitten", b"sitting"), 3);
    }
}
