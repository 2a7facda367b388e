//! The API as a client sees it: over a real socket, with a stand-in for the engine.

pub(crate) mod fixture;
mod hostile;
mod routes;
mod socket;
