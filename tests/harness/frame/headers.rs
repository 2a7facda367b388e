//! The headers a frame is made of. Addresses and numbers are values, not wire bytes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// IP protocol numbers.
pub mod protocol {
    pub const ICMP: u8 = 1;
    pub const IPIP: u8 = 4;
    pub const TCP: u8 = 6;
    pub const UDP: u8 = 17;
    pub const HOP_BY_HOP: u8 = 0;
    pub const IPV6: u8 = 41;
    pub const ROUTING: u8 = 43;
    pub const FRAGMENT: u8 = 44;
    pub const GRE: u8 = 47;
    pub const ICMPV6: u8 = 58;
    pub const DESTINATION_OPTIONS: u8 = 60;
}

/// Bits of [`Tcp::flags`].
pub mod tcp_flags {
    pub const FIN: u8 = 0x01;
    pub const SYN: u8 = 0x02;
    pub const RST: u8 = 0x04;
    pub const PSH: u8 = 0x08;
    pub const ACK: u8 = 0x10;
    pub const URG: u8 = 0x20;
}

/// What stands in a checksum field.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Checksum {
    /// What the standards demand.
    #[default]
    Right,
    /// This value. For UDP over IPv4, zero means that there is no checksum.
    Exactly(u16),
}

/// An IPv4 header (RFC 791).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ipv4 {
    pub source: Ipv4Addr,
    pub destination: Ipv4Addr,
    /// The whole byte: DSCP and ECN.
    pub tos: u8,
    pub identification: u16,
    pub dont_fragment: bool,
    pub more_fragments: bool,
    /// In units of 8 bytes, 13 bits.
    pub fragment_offset: u16,
    pub ttl: u8,
    /// The protocol, where it is not that of what follows.
    pub protocol: Option<u8>,
    /// A multiple of four bytes, 40 at most.
    pub options: Vec<u8>,
    pub version: Option<u8>,
    /// Header length in words, where it is not the truth.
    pub header_words: Option<u8>,
    /// Total length, where it is not the truth.
    pub total_length: Option<u16>,
    pub checksum: Checksum,
    /// The reserved flag, which is zero in sound packets.
    pub reserved_flag: bool,
}

impl Ipv4 {
    /// A sound header with TTL 64 and DF.
    pub fn new(source: Ipv4Addr, destination: Ipv4Addr) -> Self {
        Self {
            source,
            destination,
            tos: 0,
            identification: 0,
            dont_fragment: true,
            more_fragments: false,
            fragment_offset: 0,
            ttl: 64,
            protocol: None,
            options: Vec::new(),
            version: None,
            header_words: None,
            total_length: None,
            checksum: Checksum::Right,
            reserved_flag: false,
        }
    }
}

/// An IPv6 header (RFC 8200).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ipv6 {
    pub source: Ipv6Addr,
    pub destination: Ipv6Addr,
    pub traffic_class: u8,
    /// 20 bits.
    pub flow_label: u32,
    pub hop_limit: u8,
    /// The next header, where it is not that of what follows.
    pub next_header: Option<u8>,
    pub version: Option<u8>,
    /// Payload length, where it is not the truth.
    pub payload_length: Option<u16>,
    /// Extension headers, in order.
    pub extensions: Vec<Extension>,
}

/// An extension header of IPv6.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Extension {
    /// Options or a routing header: one that tells its length.
    Sized {
        /// Its own number, such as [`protocol::HOP_BY_HOP`].
        number: u8,
        /// What follows the length: 6 bytes, or more by a multiple of 8.
        body: Vec<u8>,
        /// The length in the header, where it is not the truth.
        length: Option<u8>,
    },
    /// A fragment header.
    Fragment {
        /// In units of 8 bytes, 13 bits.
        offset: u16,
        more: bool,
        identification: u32,
    },
}

impl Extension {
    /// Options of nothing but padding, `bytes` long in all: a multiple of 8, at least 8.
    pub fn options(number: u8, bytes: usize) -> Self {
        Self::Sized { number, body: vec![0; bytes - 2], length: None }
    }

    /// A routing header of an unknown type, with so many segments left.
    pub fn routing(segments_left: u8) -> Self {
        let body = vec![253, segments_left, 0, 0, 0, 0];
        Self::Sized { number: protocol::ROUTING, body, length: None }
    }

    /// The header of a fragment that is the whole datagram (RFC 6946).
    pub fn atomic_fragment() -> Self {
        Self::Fragment { offset: 0, more: false, identification: 0x1234_5678 }
    }

    /// Its number.
    pub fn number(&self) -> u8 {
        match self {
            Self::Sized { number, .. } => *number,
            Self::Fragment { .. } => protocol::FRAGMENT,
        }
    }
}

impl Ipv6 {
    /// A sound header with hop limit 64.
    pub fn new(source: Ipv6Addr, destination: Ipv6Addr) -> Self {
        Self {
            source,
            destination,
            traffic_class: 0,
            flow_label: 0,
            hop_limit: 64,
            next_header: None,
            version: None,
            payload_length: None,
            extensions: Vec::new(),
        }
    }

    /// The same header with extension headers behind it.
    pub fn with_extensions(self, extensions: &[Extension]) -> Self {
        Self { extensions: extensions.to_vec(), ..self }
    }
}

/// An IP header of either family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Network {
    V4(Ipv4),
    V6(Ipv6),
}

impl Network {
    /// A sound header between two addresses of one family.
    pub fn between(source: IpAddr, destination: IpAddr) -> Self {
        match (source, destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => Ipv4::new(source, destination).into(),
            (IpAddr::V6(source), IpAddr::V6(destination)) => Ipv6::new(source, destination).into(),
            _ => panic!("{source} and {destination} are of different families"),
        }
    }

    pub fn source(&self) -> IpAddr {
        match self {
            Self::V4(ip) => ip.source.into(),
            Self::V6(ip) => ip.source.into(),
        }
    }

    pub fn destination(&self) -> IpAddr {
        match self {
            Self::V4(ip) => ip.destination.into(),
            Self::V6(ip) => ip.destination.into(),
        }
    }

    /// The same header with another TTL or hop limit.
    pub fn with_ttl(mut self, ttl: u8) -> Self {
        match &mut self {
            Self::V4(ip) => ip.ttl = ttl,
            Self::V6(ip) => ip.hop_limit = ttl,
        }
        self
    }

    /// The same header with another TOS byte or traffic class.
    pub fn with_traffic_class(mut self, class: u8) -> Self {
        match &mut self {
            Self::V4(ip) => ip.tos = class,
            Self::V6(ip) => ip.traffic_class = class,
        }
        self
    }
}

impl From<Ipv4> for Network {
    fn from(ip: Ipv4) -> Self {
        Self::V4(ip)
    }
}

impl From<Ipv6> for Network {
    fn from(ip: Ipv6) -> Self {
        Self::V6(ip)
    }
}

/// A TCP header (RFC 9293).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tcp {
    pub source_port: u16,
    pub destination_port: u16,
    pub sequence: u32,
    pub acknowledgement: u32,
    /// See [`tcp_flags`].
    pub flags: u8,
    /// The four bits between data offset and flags, zero in sound packets.
    pub reserved: u8,
    pub window: u16,
    pub urgent: u16,
    /// A multiple of four bytes, 40 at most.
    pub options: Vec<u8>,
    /// Data offset in words, where it is not the truth.
    pub data_offset: Option<u8>,
    pub checksum: Checksum,
}

impl Tcp {
    /// A SYN.
    pub fn new(source_port: u16, destination_port: u16) -> Self {
        Self {
            source_port,
            destination_port,
            sequence: 0x1234_5678,
            acknowledgement: 0,
            flags: tcp_flags::SYN,
            reserved: 0,
            window: 0xfaf0,
            urgent: 0,
            options: Vec::new(),
            data_offset: None,
            checksum: Checksum::Right,
        }
    }

    /// A segment with these flags (see [`tcp_flags`]).
    pub fn with_flags(source_port: u16, destination_port: u16, flags: u8) -> Self {
        Self { flags, ..Self::new(source_port, destination_port) }
    }
}

/// A UDP header (RFC 768).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Udp {
    pub source_port: u16,
    pub destination_port: u16,
    /// Length, where it is not the truth.
    pub length: Option<u16>,
    pub checksum: Checksum,
}

impl Udp {
    /// A sound header with a checksum.
    pub fn new(source_port: u16, destination_port: u16) -> Self {
        Self { source_port, destination_port, length: None, checksum: Checksum::Right }
    }

    /// A header without a checksum.
    pub fn without_checksum(source_port: u16, destination_port: u16) -> Self {
        Self { checksum: Checksum::Exactly(0), ..Self::new(source_port, destination_port) }
    }
}

/// An ICMP or ICMPv6 echo, by the family of the IP header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Echo {
    pub reply: bool,
    pub identifier: u16,
    pub sequence: u16,
    pub checksum: Checksum,
}

/// What an IP packet carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Transport {
    Tcp(Tcp),
    Udp(Udp),
    Echo(Echo),
    /// Nothing but the payload, under this protocol number: fragments, unknown protocols, headers that are too short.
    Raw(u8),
}

impl From<Tcp> for Transport {
    fn from(tcp: Tcp) -> Self {
        Self::Tcp(tcp)
    }
}

impl From<Udp> for Transport {
    fn from(udp: Udp) -> Self {
        Self::Udp(udp)
    }
}

impl From<Echo> for Transport {
    fn from(echo: Echo) -> Self {
        Self::Echo(echo)
    }
}
