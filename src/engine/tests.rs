//! Tests of the engine on the datapath in memory.

mod addresses;
