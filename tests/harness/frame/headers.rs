//! The headers a frame is made of. Addresses and numbers are values, not wire bytes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A MAC address.
pub type MacAddress = [u8; 6];

/// Ethertypes.
pub mod ethertype {
    pub const IPV4: u16 = 0x0800;
    pub const ARP: u16 = 0x0806;
    pub const VLAN: u16 = 0x8100;
    pub const IPV6: u16 = 0x86dd;
}

/// IP protocol numbers.
pub mod protocol {
    pub const ICMP: u8 = 1;
    pub const IPIP: u8 = 4;
    pub const TCP: u8 = 6;
    pub const UDP: u8 = 17;
    pub const IPV6: u8 = 41;
    pub const FRAGMENT: u8 = 44;
    pub const ICMPV6: u8 = 58;
}

/// Bits of [`Tcp::flags`].
pub mod tcp_flags {
    pub const FIN: u8 = 0x01;
    pub const SYN: u8 = 0x02;
    pub const RST: u8 = 0x04;
    pub const PSH: u8 = 0x08;
    pub const ACK: u8 = 0x10;
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

/// An Ethernet II header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ethernet {
    pub destination: MacAddress,
    pub source: MacAddress,
    /// The ethertype, where it is not that of the first IP header.
    pub ethertype: Option<u16>,
}

impl Default for Ethernet {
    fn default() -> Self {
        Self { destination: [2, 0, 0, 0, 0, 1], source: [2, 0, 0, 0, 0, 2], ethertype: None }
    }
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
        }
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

/// A frame with an IP packet in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    pub ethernet: Ethernet,
    /// Headers around the packet, outermost first.
    pub outer: Vec<Network>,
    pub network: Network,
    pub transport: Transport,
    pub payload: Vec<u8>,
    /// Bytes behind the IP packet.
    pub padding: Vec<u8>,
}

/// An ARP packet for IPv4 over Ethernet (RFC 826).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arp {
    pub ethernet: Ethernet,
    /// 1: request, 2: reply.
    pub operation: u16,
    pub sender_mac: MacAddress,
    pub sender: Ipv4Addr,
    pub target_mac: MacAddress,
    pub target: Ipv4Addr,
}

impl Arp {
    /// A broadcast question for the MAC address of `target`.
    pub fn request(sender_mac: MacAddress, sender: Ipv4Addr, target: Ipv4Addr) -> Self {
        let ethernet =
            Ethernet { destination: [0xff; 6], source: sender_mac, ethertype: Some(ethertype::ARP) };
        Self { ethernet, operation: 1, sender_mac, sender, target_mac: [0; 6], target }
    }
}
