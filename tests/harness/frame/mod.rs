//! Frames as bytes: built from headers, read back, verified, compared.
//!
//! ```ignore
//! let frame = Packet::new(Ipv4 { ttl: 3, ..Ipv4::new(client, service) }, Tcp::new(40000, 80))
//!     .payload(b"hello")
//!     .minimum_size(60)
//!     .build();
//! verify(&frame).unwrap();
//! assert_same(&frame, &Packet::parse(&frame).unwrap().build());
//! ```
//!
//! Headers are plain structs: `new` makes a sound one, struct update syntax makes a special one. Fields that can lie
//! (lengths, checksums, the version) are filled in truthfully unless they are set.

mod build;
pub mod checksum;
mod diff;
mod headers;
mod layout;
mod link;
mod packet;
mod parse;
#[cfg(test)]
mod tests;

pub use diff::{assert_same, difference, hex};
pub use headers::{Checksum, Echo, Extension, Ipv4, Ipv6, Network, Tcp, Transport, Udp, protocol, tcp_flags};
pub use layout::{Field, Layout, layout, verify};
pub use link::{Arp, Ethernet, MacAddress, Tag, ethertype};
pub use packet::{GUE_PORT, Gre, Outer, Packet, Shim};
pub use parse::NotReadable;
