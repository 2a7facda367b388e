//! Exit codes: a contract with scripts, in `docs/reference/cli.md`.

use std::process::ExitCode;

/// How the command ended. A code, once released, keeps its meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// It did what was asked.
    Ok = 0,
    /// It failed; standard error says why.
    Failed = 1,
    /// The command line makes no sense.
    Usage = 2,
    /// The configuration is invalid; nothing was changed.
    InvalidConfiguration = 3,
    /// No daemon answers.
    Unreachable = 4,
    /// The daemon answers, and it is not ready or something is wrong.
    NotReady = 5,
    /// The interface or the pins belong to somebody else; nothing was changed.
    NotOurs = 6,
}

/// For the help of every command that can end with any of them.
pub(super) const HELP: &str = "\
Exit codes:
  0  done
  1  failed; standard error says why
  2  the command line makes no sense
  3  the configuration is invalid; nothing was changed
  4  no daemon answers on the socket
  5  the daemon is not ready, or something is wrong
  6  the interface or the pins belong to somebody else; nothing was changed";

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}
