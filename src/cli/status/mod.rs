//! `tidegate status`: asks the daemon and renders what it says.

mod overview;
mod service;
#[cfg(test)]
mod tests;
mod text;

use std::time::{SystemTime, UNIX_EPOCH};

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{
    Client, Exit, VERSION,
    args::{Output, StatusArgs},
    print::{columns, complain, print},
};
use crate::{
    api::{STATUS_PATH, service_path},
    model::status::{ServiceStatus, Status},
};

/// Prints the status of the daemon, or of one service.
pub fn execute(args: &StatusArgs) -> Exit {
    match show(args, columns()) {
        Ok((text, exit)) => print(&text, exit),
        Err((error, exit)) => {
            complain(error);
            exit
        }
    }
}

type Shown = Result<(Vec<u8>, Exit), (String, Exit)>;

/// What to print for `args`, in at most `columns` columns, and how to end.
fn show(args: &StatusArgs, columns: u16) -> Shown {
    let path = args.service.as_ref().map_or(STATUS_PATH.to_owned(), |name| service_path(name.as_str()));
    let reply = Client::new(&args.socket).get(&path).map_err(|error| (error.to_string(), error.exit()))?;
    let value: Value = parse(&reply.body)?;
    let well = match args.service {
        None => is_well(&value),
        Some(_) => is_served(&value),
    };
    let exit = if well { Exit::Ok } else { Exit::NotReady };
    let text = match (args.output, &args.service) {
        (Output::Json, _) => reply.body.to_vec(),
        (Output::Table, None) => {
            overview::render(&parse::<Status>(&reply.body)?, now(), columns).into_bytes()
        }
        (Output::Table, Some(_)) => {
            service::render(&parse::<ServiceStatus>(&reply.body)?, columns).into_bytes()
        }
    };
    Ok((text, exit))
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, (String, Exit)> {
    serde_json::from_slice(body).map_err(|error| {
        let complaint = format!(
            "the daemon's answer is not understood ({error}): it may be of another version than this command, \
             {VERSION}; use the daemon's own `tidegate`, or --output json"
        );
        (complaint, Exit::Failed)
    })
}

/// Whether a status says that all is well. Read from what every version answers, so that `--output json` works with a
/// daemon of another one.
fn is_well(status: &Value) -> bool {
    status["ready"] == true && status["problems"].as_array().is_some_and(Vec::is_empty)
}

/// Whether a service has backends and all of them are up.
fn is_served(service: &Value) -> bool {
    let backends = service["backends"].as_array();
    backends.is_some_and(|all| !all.is_empty() && all.iter().all(|backend| backend["state"] == "up"))
}

/// Seconds since the Unix epoch.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
