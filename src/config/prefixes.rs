//! Lists of prefixes, in the configuration and in files of their own.

use std::{
    fs::File,
    io::{self, Read},
};

use super::{field::Field, problem::quoted};
use crate::model::{InvalidPrefix, Prefix};

/// Prefixes that one list may have, those of its files included. The kernel takes 64 bytes for each.
const MOST_PREFIXES: usize = 1_000_000;
/// Largest file that is read, in bytes: as many of the longest lines and as much again of comments.
const LARGEST_FILE: u64 = 96 << 20;
/// Wrong lines of one file that are told; the others are counted.
const LINES_TOLD: usize = 10;

/// Adds the prefixes of a list to `found`.
pub fn listed(field: &Field<'_>, found: &mut Vec<Prefix>) -> Option<()> {
    let mut sound = Some(());
    for item in field.list()? {
        match item.text().map(|text| (text, text.parse::<Prefix>())) {
            Some((_, Ok(_))) if found.len() >= MOST_PREFIXES => {
                return item.refused(format!("the list has more than {MOST_PREFIXES} prefixes"));
            }
            Some((_, Ok(prefix))) => found.push(prefix),
            Some((text, Err(error))) => sound = item.refused(format!("{} {error}", quoted(text))),
            None => sound = None,
        }
    }
    sound
}

/// Adds the prefixes of the files that a list names to `found`.
pub fn of_files(field: &Field<'_>, found: &mut Vec<Prefix>) -> Option<()> {
    let files: Vec<Option<()>> = field.list()?.map(|item| of_file(&item, found)).collect();
    files.into_iter().collect()
}

fn of_file(field: &Field<'_>, found: &mut Vec<Prefix>) -> Option<()> {
    let path = field.text()?;
    if !path.starts_with('/') || path.contains('\0') {
        return field.refused(format!("{} is not the absolute path of a file", quoted(path)));
    }
    let bytes = match read(path) {
        Ok(bytes) if bytes.len() as u64 <= LARGEST_FILE => bytes,
        Ok(_) => return field.refused(format!("{path}: the file is larger than {} MiB", LARGEST_FILE >> 20)),
        Err(error) => return field.refused(format!("{path}: cannot read the file: {error}")),
    };
    let mut wrong = 0;
    for (index, line) in bytes.split(|&byte| byte == b'\n').enumerate() {
        match parse_line(line) {
            Ok(None) => {}
            Ok(Some(_)) if found.len() >= MOST_PREFIXES => {
                return field.refused(format!(
                    "{path}:{}: the list has more than {MOST_PREFIXES} prefixes; merge those that lie side by side",
                    index + 1
                ));
            }
            Ok(Some(prefix)) => found.push(prefix),
            Err((text, error)) => {
                wrong += 1;
                if wrong <= LINES_TOLD {
                    field.refuse(format!("{path}:{}: {} {error}", index + 1, quoted(&text)));
                }
            }
        }
    }
    if wrong > LINES_TOLD {
        field.refuse(format!("{path}: {} more lines are wrong", wrong - LINES_TOLD));
    }
    (wrong == 0).then_some(())
}

fn read(path: &str) -> io::Result<Vec<u8>> {
    let file = File::open(path)?;
    /* A pipe or a device would be waited for, and a folder says so only when it is read. */
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut bytes = Vec::new();
    file.take(LARGEST_FILE + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The prefix of a line, if it has one: what follows `#` is a comment.
fn parse_line(line: &[u8]) -> Result<Option<Prefix>, (String, InvalidPrefix)> {
    let content = line.split(|&byte| byte == b'#').next().unwrap_or_default().trim_ascii();
    if content.is_empty() {
        return Ok(None);
    }
    let Ok(text) = str::from_utf8(content) else {
        return Err((String::from_utf8_lossy(content).into_owned(), InvalidPrefix::Malformed));
    };
    text.parse().map(Some).map_err(|error| (text.to_owned(), error))
}
