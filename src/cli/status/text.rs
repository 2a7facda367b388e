//! Building blocks of text for people: tables, wrapped lines, times.

use comfy_table::{Cell, CellAlignment, ContentArrangement, Table, presets::NOTHING};

use crate::model::status::Ledger;

/// A column of a table.
pub(super) enum Column {
    /// Words, aligned left.
    Words(&'static str),
    /// Numbers, aligned right.
    Numbers(&'static str),
}

/// A table without borders in at most `columns` columns; cells that do not fit are wrapped.
pub(super) fn table(header: &[Column], rows: Vec<Vec<String>>, columns: u16) -> String {
    let mut table = Table::new();
    // The last column's padding is trimmed away.
    table
        .load_style(NOTHING)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_width(columns.max(1).saturating_add(2));
    table.set_header(header.iter().map(|column| match column {
        Column::Words(name) | Column::Numbers(name) => Cell::new(name),
    }));
    for row in rows {
        table.add_row(row.iter().map(|text| Cell::new(printable(text))));
    }
    for (column, kind) in table.column_iter_mut().zip(header) {
        column.set_padding((0, 2));
        if matches!(kind, Column::Numbers(_)) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    format!("{}\n", table.trim_fmt())
}

/// `text` in lines of at most `columns` columns, the first after `first`, the others indented as far.
pub(super) fn wrapped(first: &str, text: &str, columns: u16) -> String {
    let indent = first.chars().count();
    let room = usize::from(columns).saturating_sub(indent).max(20);
    let mut lines = vec![String::new()];
    for word in printable(text).split_whitespace().flat_map(|word| pieces(word, room)) {
        let line = lines.last_mut().map_or(0, |line| line.chars().count());
        if line > 0 && line + 1 + word.chars().count() > room {
            lines.push(String::new());
        }
        if let Some(line) = lines.last_mut() {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(&word);
        }
    }
    format!("{first}{}\n", lines.join(&format!("\n{:indent$}", "")))
}

/// A word in pieces of at most `room` characters.
fn pieces(word: &str, room: usize) -> Vec<String> {
    let characters: Vec<char> = word.chars().collect();
    characters.chunks(room).map(|piece| piece.iter().collect()).collect()
}

/// `text` without what could move the cursor: reasons of failures may repeat what a server sent.
pub(super) fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// What became of the packets, and why some were dropped.
pub(super) fn ledger(ledger: &Ledger, columns: u16) -> String {
    let Ledger { seen, forwarded, passed, dropped, .. } = ledger;
    let sums = format!("{seen} seen: {forwarded} forwarded, {passed} passed, {dropped} dropped");
    let mut reasons: Vec<(&String, &u64)> =
        ledger.reasons.iter().filter(|(name, packets)| name.starts_with("drop") && **packets > 0).collect();
    reasons.sort_by(|a, b| b.1.cmp(a.1).then(a.0.cmp(b.0)));
    let reasons: Vec<String> = reasons.iter().map(|(name, packets)| format!("{packets} {name}")).collect();
    let mut text = wrapped("packets  ", &sums, columns);
    if !reasons.is_empty() {
        text.push_str(&wrapped("dropped  ", &reasons.join(", "), columns));
    }
    text
}

/// `count` of something, with its word in the singular or plural.
pub(super) fn counted(count: usize, word: &str) -> String {
    match count {
        1 => format!("1 {word}"),
        _ => format!("{count} {word}s"),
    }
}

/// A moment in UTC and how long ago it was, both in seconds since the Unix epoch.
pub(super) fn since(moment: u64, now: u64) -> String {
    match now.checked_sub(moment) {
        Some(age) => format!("{} ({})", utc(moment), duration(age)),
        // One of the two clocks was wrong.
        None => utc(moment),
    }
}

/// Two largest units of a duration.
fn duration(seconds: u64) -> String {
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, _) => format!("{minutes}m {}s", seconds % 60),
        (0, _, _) => format!("{hours}h {minutes}m"),
        _ => format!("{days}d {hours}h"),
    }
}

/// `2026-11-29 10:00:00 UTC`.
fn utc(seconds: u64) -> String {
    const END_OF_YEAR_9999: u64 = 253_402_300_799;
    if seconds > END_OF_YEAR_9999 {
        return "an unknown time".to_owned();
    }
    let (year, month, day) = date(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
}

/// Year, month and day of a day counted from 1970-01-01, in the Gregorian calendar.
fn date(days: u64) -> (u64, u64, u64) {
    const DAYS_OF_400_YEARS: u64 = 146_097;
    // Counted from 0000-03-01, so that the leap day ends a year.
    let day = days + 719_468;
    let (era, day) = (day / DAYS_OF_400_YEARS, day % DAYS_OF_400_YEARS);
    let year = (day - day / 1460 + day / 36_524 - day / (DAYS_OF_400_YEARS - 1)) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    // Months of 31, 30, 31, 30, 31 days repeat from March on: 153 days for every five.
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, next_year) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    (era * 400 + year + next_year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_utc() {
        for (seconds, text) in [
            (0, "1970-01-01 00:00:00 UTC"),
            (951_782_399, "2000-02-28 23:59:59 UTC"),
            (951_782_400, "2000-02-29 00:00:00 UTC"),
            (951_868_800, "2000-03-01 00:00:00 UTC"),
            (1_735_689_599, "2024-12-31 23:59:59 UTC"),
            (1_735_689_600, "2025-01-01 00:00:00 UTC"),
            (4_107_542_400, "2100-03-01 00:00:00 UTC"),
            (253_402_300_799, "9999-12-31 23:59:59 UTC"),
            (253_402_300_800, "an unknown time"),
            (u64::MAX, "an unknown time"),
        ] {
            assert_eq!(utc(seconds), text, "{seconds}");
        }
    }

    #[test]
    fn ages_have_two_units() {
        assert_eq!(since(100, 130), "1970-01-01 00:01:40 UTC (30s)");
        assert_eq!(since(130, 100), "1970-01-01 00:02:10 UTC");
        assert_eq!(duration(61), "1m 1s");
        assert_eq!(duration(7500), "2h 5m");
        assert_eq!(duration(3 * 86_400 + 3700), "3d 1h");
    }

    #[test]
    fn long_lines_are_wrapped_and_long_words_broken() {
        assert_eq!(
            wrapped("  - ", "one two three four five six", 24),
            "  - one two three four\n    five six\n"
        );
        assert_eq!(
            wrapped("- ", &"x".repeat(30), 22),
            format!("- {}\n  {}\n", "x".repeat(20), "x".repeat(10))
        );
        assert_eq!(wrapped("- ", "", 22), "- \n");
    }

    #[test]
    fn escapes_do_not_reach_the_terminal() {
        assert_eq!(printable("a\u{1b}[2Jb\nc"), "a\u{fffd}[2Jb\u{fffd}c");
    }
}
