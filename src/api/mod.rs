//! The admin API: HTTP and JSON over a Unix socket, read-only in this version.
//!
//! [`bind`] makes the socket, [`serve`] answers on it until it is told to stop. What runs is asked of an [`Observe`],
//! which the engine implements; nothing here writes. `docs/reference/api.md` is the operator's page.

mod connections;
mod listener;
mod problem;
mod routes;
mod server;
mod similar;
#[cfg(test)]
pub(crate) mod tests;

pub use listener::{ApiError, Listener, bind};
pub use problem::{CONTENT_TYPE as PROBLEM_CONTENT_TYPE, Problem};
pub use routes::{HEALTHZ_PATH, READYZ_PATH, SERVICES_PATH, STATUS_PATH, service_path};
pub use server::serve;

use serde::{Deserialize, Serialize};

use crate::model::status::Status;

/// What the API asks of the engine.
pub trait Observe: Send + Sync + 'static {
    /// What runs now, with counters read from the kernel's maps.
    ///
    /// Called on a thread that may block for some milliseconds; never called more than a few times at once.
    ///
    /// # Errors
    /// Where the maps cannot be read, so that nothing can be said about the packet path.
    fn status(&self) -> Result<Status, ObserveError>;
}

/// Why the engine could not say what runs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}; {remedy}")]
pub struct ObserveError {
    /// What failed, on which map.
    pub message: String,
    /// What to try.
    pub remedy: String,
}

impl ObserveError {
    /// An error that says what failed and what to try.
    pub fn new(message: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { message: message.into(), remedy: remedy.into() }
    }
}

/// A list as the API answers it.
///
/// Today a list is always whole. A later version may answer a part when asked with `limit`, and then adds `next`;
/// so a client that finds no `next` has seen everything.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct List<T> {
    /// The members, in the order of the configuration.
    pub items: Vec<T>,
}
