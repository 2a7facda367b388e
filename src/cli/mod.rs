//! The `tidegate` command: parses, dispatches, and turns outcomes into exit codes.

pub mod args;
mod client;
mod exit;
pub mod print;
mod status;
mod version;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, error::ErrorKind};

pub use client::{Client, ClientError, Reply};
pub use exit::Exit;
pub use version::VERSION;

use args::{Cli, Command};

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    match Cli::try_parse() {
        Ok(cli) => dispatch(cli.command).into(),
        Err(error) => refuse(&error).into(),
    }
}

/// Help and version are answers; everything else is a usage error.
fn refuse(error: &clap::Error) -> Exit {
    // A reader that went away has seen enough.
    let _ = error.print();
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => Exit::Ok,
        _ => Exit::Usage,
    }
}

fn dispatch(command: Command) -> Exit {
    match command {
        Command::Status(args) => status::execute(&args),
        Command::Version(args) => version::execute(&args),

        // The calls of the verbs that need the engine; see the branch that adds their modules.
        #[cfg(any())]
        Command::Run(args) => run::execute(&args),
        #[cfg(any())]
        Command::Validate(args) => validate::execute(&args),
        #[cfg(any())]
        Command::Detach(args) => detach::execute(&args),
        #[cfg(any())]
        Command::Decap(args) => decap::execute(&args),
        #[cfg(not(any()))]
        _ => refuse(&Cli::command().error(ErrorKind::InvalidSubcommand, "this build is without that verb")),
    }
}
