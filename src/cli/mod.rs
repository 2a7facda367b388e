//! The `tidegate` command: parses, dispatches, and turns outcomes into exit codes.

pub mod args;
mod client;
mod decap;
mod detach;
mod exit;
pub mod print;
mod run;
mod status;
mod validate;
mod version;

use std::process::ExitCode;

use clap::{Parser, error::ErrorKind};

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
        Command::Run(args) => run::execute(&args),
        Command::Validate(args) => validate::execute(&args),
        Command::Status(args) => status::execute(&args),
        Command::Detach(args) => detach::execute(&args),
        Command::Decap(args) => decap::execute(&args),
        Command::Version(args) => version::execute(&args),
    }
}
