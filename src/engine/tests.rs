//! Tests of the engine on the datapath in memory, with a checker that watches every single operation.

mod addresses;
mod admission;
mod adopting;
mod capacity;
mod changes;
mod checker;
mod failures;
mod health;
mod random;
mod restarts;
mod scale;
mod shapes;
mod status;
mod watched;
mod world;
