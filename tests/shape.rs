//! Services of another shape than one port hashed by the flow: ranges of ports, any port, and hashes of the client's address.
//!
//! The programs are driven by `tidegate::datapath` and run on single frames; [`model`] says what must come out, byte for byte.

mod end_to_end;
mod lookup;
mod model;
mod node;
mod spread;
mod translation;
