//! Writing to standard output and error.

use std::{
    fmt::Display,
    io::{self, IsTerminal, Write},
};

use super::Exit;

/// Columns that text is made for: the terminal's, within reason.
const COLUMNS: std::ops::RangeInclusive<u16> = 40..=100;

/// Prints `text` and says how that ended.
///
/// A reader that has seen enough (`| head`) is no failure: `exit` stays what it is only for those who read everything.
pub fn print(text: &[u8], exit: Exit) -> Exit {
    let mut output = io::stdout().lock();
    settle(output.write_all(text).and_then(|()| output.flush()), exit)
}

fn settle(written: io::Result<()>, exit: Exit) -> Exit {
    match written {
        Ok(()) => exit,
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Exit::Ok,
        Err(error) => {
            complain(format_args!("cannot write to standard output: {error}"));
            Exit::Failed
        }
    }
}

/// Prints an error for the operator.
pub fn complain(error: impl Display) {
    // There is nobody left to tell where this fails.
    let _ = writeln!(io::stderr(), "tidegate: {error}");
}

/// Columns to make text for.
pub fn columns() -> u16 {
    let output = io::stdout();
    let width = output.is_terminal().then(|| terminal_size::terminal_size_of(&output)).flatten();
    match width {
        Some((terminal_size::Width(width), _)) => width.clamp(*COLUMNS.start(), *COLUMNS.end()),
        None => *COLUMNS.end(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broken_pipe_is_no_failure() {
        let broken = || Err(io::Error::from(io::ErrorKind::BrokenPipe));
        assert_eq!(settle(broken(), Exit::Ok), Exit::Ok);
        assert_eq!(settle(broken(), Exit::NotReady), Exit::Ok);
        assert_eq!(settle(Ok(()), Exit::NotReady), Exit::NotReady);
        assert_eq!(settle(Err(io::Error::from(io::ErrorKind::StorageFull)), Exit::Ok), Exit::Failed);
    }
}
