//! `tidegate run`.

use super::{Exit, args::RunArgs, print::complain};
use crate::{
    daemon::{self, DaemonError, Options},
    datapath::Pins,
    telemetry,
};

const DEFAULT_FILTER: &str = "info";

pub(super) fn execute(args: &RunArgs) -> Exit {
    if let Err(error) = telemetry::init(args.log_format, DEFAULT_FILTER) {
        complain(error);
        return Exit::Failed;
    }
    let options = Options { config: args.config.clone(), pins: Pins::new(&args.pins.folder) };
    match daemon::run(options) {
        Ok(()) => Exit::Ok,
        Err(error) => {
            tracing::error!("not started: {error}");
            exit_of(&error)
        }
    }
}

fn exit_of(error: &DaemonError) -> Exit {
    match error {
        DaemonError::Config(_) => Exit::InvalidConfiguration,
        DaemonError::Datapath(error) if error.is_conflict() => Exit::NotOurs,
        _ => Exit::Failed,
    }
}
