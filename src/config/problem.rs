//! Problems of a configuration text, where they are, and how they are shown.

use std::{
    cell::{Cell, RefCell},
    fmt,
};

use super::{ConfigError, field::FieldPath};

/// Problems that are listed; more than these are counted only.
const LISTED: usize = 100;
/// Characters of a source line that are shown before and after the position.
const SHOWN_BEFORE: usize = 60;
const SHOWN_AFTER: usize = 60;

/// One thing that is wrong with a configuration text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Line, from 1 on.
    pub line: u32,
    /// Column in characters, from 1 on.
    pub column: u32,
    /// The field, such as `services[0].backends[1].weight`; empty where the text is not even YAML.
    pub field: String,
    /// What is wrong and what is allowed.
    pub message: String,
    /// The source line with a mark under the place, two lines of text.
    pub excerpt: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.field.is_empty() {
            write!(f, "{}: ", self.field)?;
        }
        f.write_str(&self.message)
    }
}

/// A place in a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// Line, from 1 on.
    pub line: u32,
    /// Column in characters, from 1 on.
    pub column: u32,
    /// Offset in bytes.
    pub offset: u32,
    /// Characters that are meant, on this line.
    pub width: u32,
}

impl Position {
    /// The place `offset` bytes into `text`.
    pub fn of_offset(text: &str, offset: usize) -> Self {
        let before = text.get(..offset).unwrap_or_default();
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        Self {
            line: 1 + before.matches('\n').count() as u32,
            column: 1 + before[line_start..].chars().count() as u32,
            offset: offset as u32,
            width: 1,
        }
    }
}

/// Collects problems while a text is read.
#[derive(Default)]
pub struct Report {
    found: RefCell<Vec<(Position, String, String)>>,
    omitted: Cell<usize>,
}

impl Report {
    /// Notes that `field`, which stands `at` its place, is wrong.
    pub fn add(&self, at: Position, field: &FieldPath<'_>, message: impl Into<String>) {
        if self.is_full() {
            self.count();
        } else {
            self.found.borrow_mut().push((at, field.to_string(), message.into()));
        }
    }

    /// True where further problems are counted only, so that their words need not be made.
    pub fn is_full(&self) -> bool {
        self.found.borrow().len() >= LISTED
    }

    /// Counts a problem that is not listed.
    pub fn count(&self) {
        self.omitted.set(self.omitted.get() + 1);
    }

    /// True where nothing was found wrong.
    pub fn is_empty(&self) -> bool {
        self.found.borrow().is_empty()
    }

    /// The error that says it all, in order of position.
    pub fn to_error(&self, file_name: &str, text: &str) -> ConfigError {
        let mut found = self.found.borrow().clone();
        found.sort_by_key(|(at, ..)| *at);
        let problems = found.into_iter().map(|(at, field, message)| Problem {
            line: at.line,
            column: at.column,
            field,
            message,
            excerpt: excerpt(text, at),
        });
        ConfigError::Invalid {
            file: file_name.to_owned(),
            problems: problems.collect(),
            omitted: self.omitted.get(),
        }
    }
}

/// The source line with a mark under the place.
fn excerpt(text: &str, at: Position) -> String {
    let (before, after) = text.split_at_checked(at.offset as usize).unwrap_or((text, ""));
    let before = before.rsplit(['\n', '\r']).next().unwrap_or_default();
    let after = after.split(['\n', '\r']).next().unwrap_or_default();

    let skipped = before.chars().count().saturating_sub(SHOWN_BEFORE);
    let before = mark_cut(skipped > 0) + &printable(before.chars().skip(skipped));
    let after =
        printable(after.chars().take(SHOWN_AFTER)) + &mark_cut(after.chars().nth(SHOWN_AFTER).is_some());

    let number = at.line.to_string();
    let indent = " ".repeat(before.chars().count());
    let width = (at.width as usize).clamp(1, after.chars().count().max(1));
    let gutter = " ".repeat(number.len());
    format!("  {number} | {before}{after}\n  {gutter} | {indent}{}", "^".repeat(width))
}

fn mark_cut(cut: bool) -> String {
    if cut { "...".to_owned() } else { String::new() }
}

/// Text that leaves a terminal as it is; each character stays one column wide.
fn printable(text: impl Iterator<Item = char>) -> String {
    text.map(|c| match c {
        '\t' => ' ',
        c if c.is_control() => char::REPLACEMENT_CHARACTER,
        c => c,
    })
    .collect()
}

/// A text from the file as it is quoted in a message: short, on one line and printable.
pub fn quoted(text: &str) -> String {
    const LONGEST: usize = 64;
    let shown = printable(text.chars().take(LONGEST));
    format!("`{shown}{}`", mark_cut(text.chars().nth(LONGEST).is_some()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str, needle: &str, width: u32) -> String {
        let at = Position { width, ..Position::of_offset(text, text.find(needle).unwrap()) };
        excerpt(text, at)
    }

    #[test]
    fn the_mark_stands_under_the_value() {
        assert_eq!(shown("a: 1\n  weight: 2000\n", "2000", 4), "  2 |   weight: 2000\n    |           ^^^^");
    }

    #[test]
    fn long_lines_are_cut_on_both_sides() {
        let text = format!("{}X{}", "a".repeat(5000), "b".repeat(5000));
        let shown = shown(&text, "X", 1);
        assert_eq!(
            shown.lines().next().unwrap(),
            format!("  1 | ...{}X{}...", "a".repeat(60), "b".repeat(59))
        );
        assert_eq!(shown.lines().nth(1).unwrap(), format!("    | {}^", " ".repeat(63)));
    }

    #[test]
    fn escape_sequences_do_not_reach_the_terminal() {
        assert!(!shown("a: \u{1b}[31mX", "X", 1).contains('\u{1b}'));
        assert_eq!(quoted("a\u{1b}\nb"), "`a\u{fffd}\u{fffd}b`");
        assert_eq!(quoted(&"x".repeat(65)), format!("`{}...`", "x".repeat(64)));
    }
}
