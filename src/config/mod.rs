//! The configuration file: YAML text in, validated [`Desired`] state out.
//!
//! ```text
//!  text ──> tree (nodes with positions) ──> fields (keys, types, ranges) ──> Desired
//!                                             └──> report: everything that is wrong, with file, line and column
//! ```
//!
//! Every problem of a file is reported at once and in order of position, so that an operator needs one round to repair
//! it. Nothing is guessed: unknown keys, duplicate keys, numbers in quotes and addresses that cannot work are errors.
//! A file that is refused has no effect at all. The files of prefixes that it names are read and validated with it.

mod address;
mod admission;
mod backends;
pub mod duration;
mod encapsulation;
mod error;
mod field;
mod hash;
mod health;
mod interfaces;
mod keys;
mod ports;
mod prefixes;
mod problem;
mod services;
mod settings;
mod tree;
mod values;

pub use error::ConfigError;
pub use problem::Problem;

use std::{fs::File, io::Read, os::unix::fs::OpenOptionsExt, path::Path};

use crate::model::Desired;
use field::{Field, FieldPath};
use problem::{Position, Report};

/// Largest file that is read, in bytes. A file of 65,535 services and 262,144 backends takes less.
pub const LARGEST_FILE: usize = 16 << 20;

/// Reads and validates the regular file at `path`. Never waits for anybody: a pipe in its place could stop a daemon for good.
///
/// # Errors
/// [`ConfigError::NotAFile`] for pipes and devices, [`ConfigError::Read`] where the file cannot be read, else as [`parse`].
pub fn load(path: &Path) -> Result<Desired, ConfigError> {
    let name = path.display().to_string();
    let unreadable = |source| ConfigError::Read { file: name.clone(), source };
    /* Opening a pipe waits for its writer otherwise. */
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path).map_err(unreadable)?;
    let kind = file.metadata().map_err(unreadable)?.file_type();
    /* Reading a folder fails with words of its own. */
    if !kind.is_file() && !kind.is_dir() {
        return Err(ConfigError::NotAFile { file: name });
    }
    read(file, name)
}

/// As [`load`], from a pipe or device as well: waits until the writer has closed it.
///
/// # Errors
/// [`ConfigError::Read`] where it cannot be read, else as [`parse`].
pub fn load_from_anything(path: &Path) -> Result<Desired, ConfigError> {
    let name = path.display().to_string();
    match File::open(path) {
        Ok(file) => read(file, name),
        Err(source) => Err(ConfigError::Read { file: name, source }),
    }
}

fn read(file: File, name: String) -> Result<Desired, ConfigError> {
    let unreadable = |source| ConfigError::Read { file: name.clone(), source };
    let mut bytes = Vec::new();
    file.take(LARGEST_FILE as u64 + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    match String::from_utf8(bytes) {
        Ok(text) => parse(&text, &name),
        Err(error) => Err(not_utf8(error, &name)),
    }
}

/// Validates the text of a configuration file; `file_name` is what problems are reported under.
///
/// # Errors
/// [`ConfigError::TooLarge`] above [`LARGEST_FILE`] bytes, [`ConfigError::Invalid`] with every problem of the text.
pub fn parse(text: &str, file_name: &str) -> Result<Desired, ConfigError> {
    if text.len() > LARGEST_FILE {
        return Err(ConfigError::TooLarge { file: file_name.to_owned() });
    }
    let report = Report::default();
    let tree = tree::read(text).map_err(|(at, message)| {
        report.add(at, &FieldPath::ROOT, message);
        report.to_error(file_name, text)
    })?;
    let desired = settings::desired(&Field::root(&tree, &report));
    match desired {
        Some(desired) if report.is_empty() => Ok(desired),
        _ => Err(report.to_error(file_name, text)),
    }
}

fn not_utf8(error: std::string::FromUtf8Error, file_name: &str) -> ConfigError {
    let valid = error.utf8_error().valid_up_to();
    let bytes = error.into_bytes();
    if bytes.len() > LARGEST_FILE {
        return ConfigError::TooLarge { file: file_name.to_owned() };
    }
    let readable = String::from_utf8_lossy(&bytes);
    let report = Report::default();
    let byte = bytes.get(valid).copied().unwrap_or_default();
    let message = format!("byte 0x{byte:02x} is not UTF-8; save the file as UTF-8 text");
    report.add(Position::of_offset(&readable, valid), &FieldPath::ROOT, message);
    report.to_error(file_name, &readable)
}
