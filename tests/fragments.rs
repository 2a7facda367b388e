//! Fragmented datagrams: all pieces go to one backend and arrive as one datagram with a right checksum, in every mode, family, order
//! and size; what is for nobody here is left alone, and every packet is accounted for.
//!
//! The pieces are run through the loaded program one by one and compared, byte for byte, with what this module's own model makes of
//! them. `wire` sends real datagrams through namespaces.

mod addresses;
mod host;
mod model;
mod node;
mod orders;
mod pieces;
mod replies;
mod requests;
mod wire;
