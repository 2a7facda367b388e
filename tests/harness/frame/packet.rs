//! A whole frame, and the tunnels that may be around its packet.

use super::{Checksum, Ethernet, Ipv4, Ipv6, Network, Tag, Transport, Udp};

/// The UDP port behind which [`Packet::parse`] and [`super::verify`] expect a tunnel (Generic UDP Encapsulation).
pub const GUE_PORT: u16 = 6080;

/// A frame with an IP packet in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    pub ethernet: Ethernet,
    /// VLAN tags, the outer one first.
    pub tags: Vec<Tag>,
    /// Headers around the packet, outermost first.
    pub outer: Vec<Outer>,
    pub network: Network,
    pub transport: Transport,
    pub payload: Vec<u8>,
    /// Bytes behind the IP packet.
    pub padding: Vec<u8>,
}

/// Headers around a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outer {
    pub network: Network,
    pub shim: Shim,
}

/// What stands between the outer IP header and the packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shim {
    /// Nothing: IP in IP.
    None,
    Gre(Gre),
    /// The packet right behind a UDP header: Generic UDP Encapsulation, variant 1.
    Gue(Udp),
}

/// A GRE header (RFC 2784) without optional fields.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gre {
    /// Flags and version, zero in a header without optional fields.
    pub flags: u16,
    /// The ethertype, where it is not that of the packet.
    pub protocol: Option<u16>,
}

impl Outer {
    /// GRE.
    pub fn gre(network: impl Into<Network>) -> Self {
        Self { network: network.into(), shim: Shim::Gre(Gre::default()) }
    }

    /// UDP from this port, without a checksum.
    pub fn gue(network: impl Into<Network>, source_port: u16) -> Self {
        let udp = Udp { checksum: Checksum::Exactly(0), ..Udp::new(source_port, GUE_PORT) };
        Self { network: network.into(), shim: Shim::Gue(udp) }
    }
}

impl From<Network> for Outer {
    fn from(network: Network) -> Self {
        Self { network, shim: Shim::None }
    }
}

impl From<Ipv4> for Outer {
    fn from(ip: Ipv4) -> Self {
        Network::from(ip).into()
    }
}

impl From<Ipv6> for Outer {
    fn from(ip: Ipv6) -> Self {
        Network::from(ip).into()
    }
}

impl Packet {
    /// A packet without payload.
    pub fn new(network: impl Into<Network>, transport: impl Into<Transport>) -> Self {
        Self {
            ethernet: Ethernet::default(),
            tags: Vec::new(),
            outer: Vec::new(),
            network: network.into(),
            transport: transport.into(),
            payload: Vec::new(),
            padding: Vec::new(),
        }
    }

    /// The same behind these VLAN tags, the outer one first.
    pub fn tags(mut self, tags: &[Tag]) -> Self {
        self.tags = tags.to_vec();
        self
    }

    /// The same with these bytes behind its transport header.
    pub fn payload(mut self, payload: &[u8]) -> Self {
        self.payload = payload.to_vec();
        self
    }

    /// The same with these bytes behind the IP packet.
    pub fn padding(mut self, padding: &[u8]) -> Self {
        self.padding = padding.to_vec();
        self
    }

    /// The same, padded with zeros as Ethernet demands of short frames.
    pub fn minimum_size(mut self, bytes: usize) -> Self {
        self.padding.clear();
        self.padding = vec![0; bytes.saturating_sub(self.build().len())];
        self
    }

    /// The same within one more outer header.
    pub fn inside(mut self, outer: impl Into<Outer>) -> Self {
        self.outer.insert(0, outer.into());
        self
    }
}
