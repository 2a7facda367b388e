//! Why a configuration was refused.

use std::{fmt, io};

use super::{LARGEST_FILE, Problem};

/// Why a configuration was refused. Its text is for the operator, one line or several.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file could not be read.
    #[error("{file}: cannot read the configuration: {source}")]
    Read {
        /// Path as given.
        file: String,
        /// What the system said.
        source: io::Error,
    },
    /// It is a pipe or a device.
    #[error("{file}: not a regular file; a reload reads it again, so name one that stays")]
    NotAFile {
        /// Path as given.
        file: String,
    },
    /// The file is larger than [`LARGEST_FILE`].
    #[error("{file}: the file is larger than {} MiB, which no configuration needs", LARGEST_FILE >> 20)]
    TooLarge {
        /// Path as given.
        file: String,
    },
    /// The text is not a valid configuration.
    #[error("{}", Listing { file, problems, omitted: *omitted })]
    Invalid {
        /// Path as given.
        file: String,
        /// What is wrong, in order of position; never empty.
        problems: Vec<Problem>,
        /// Problems found beyond those listed.
        omitted: usize,
    },
}

impl ConfigError {
    /// What is wrong with the text, in order of position; empty where the text was never looked at.
    pub fn problems(&self) -> &[Problem] {
        match self {
            Self::Invalid { problems, .. } => problems,
            Self::Read { .. } | Self::NotAFile { .. } | Self::TooLarge { .. } => &[],
        }
    }
}

struct Listing<'a> {
    file: &'a str,
    problems: &'a [Problem],
    omitted: usize,
}

impl fmt::Display for Listing<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.problems.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            let Problem { line, column, excerpt, .. } = problem;
            write!(f, "{}:{line}:{column}: {problem}\n{excerpt}", self.file)?;
        }
        match self.omitted {
            0 => Ok(()),
            omitted => write!(f, "\n... and {omitted} more problems"),
        }
    }
}
