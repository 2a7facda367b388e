//! The compiled daemon between real clients and real servers, each in a network namespace of its own.

mod adoption;
mod adversity;
mod attach;
mod failover;
mod handoff;
mod modes;
mod reload;
mod restart;
pub mod scene;
mod stack;
