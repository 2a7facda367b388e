//! Frames of these tests, from values, with checksums computed from scratch.

use std::net::{IpAddr, SocketAddr};

use crate::harness::frame::{
    Ethernet, Ipv4, Ipv6, Network, Packet, Tcp, Transport, Udp,
    checksum::{checksum, transport_checksum},
    protocol,
};

/// What stands between an IP header and what it carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extra {
    Nothing,
    /// IPv4 options, or IPv6 hop-by-hop and destination options.
    Options,
}

/// A quoted packet, as its sender sent it.
#[derive(Clone, Debug)]
pub struct Quote {
    pub source: SocketAddr,
    pub destination: SocketAddr,
    pub protocol: u8,
    pub extra: Extra,
    /// UDP over IPv4 without a checksum.
    pub without_checksum: bool,
    /// Bytes quoted from the TCP or UDP header on.
    pub l4_bytes: usize,
}

/// An ICMP or ICMPv6 error.
#[derive(Clone, Debug)]
pub struct IcmpError {
    pub source: IpAddr,
    pub destination: IpAddr,
    pub ttl: u8,
    pub extra: Extra,
    pub kind: u8,
    pub code: u8,
    pub rest: u32,
    pub quote: Quote,
}

/// A network header with or without options, and what goes in front of an IPv6 payload.
fn network(source: IpAddr, destination: IpAddr, ttl: u8, extra: Extra, number: u8) -> (Network, Vec<u8>) {
    match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let options = if extra == Extra::Options { vec![7, 7, 4, 0, 0, 0, 0, 1] } else { Vec::new() };
            (Ipv4 { ttl, options, ..Ipv4::new(source, destination) }.into(), Vec::new())
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) if extra == Extra::Options => {
            let extensions = vec![
                60, 0, 1, 4, 0, 0, 0, 0, // hop-by-hop options, then destination options
                number, 1, 1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
            ];
            let ip = Ipv6 { hop_limit: ttl, next_header: Some(0), ..Ipv6::new(source, destination) };
            (ip.into(), extensions)
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            (Ipv6 { hop_limit: ttl, ..Ipv6::new(source, destination) }.into(), Vec::new())
        }
        _ => panic!("{source} and {destination} are of different families"),
    }
}

impl Quote {
    /// The quoted bytes.
    pub fn bytes(&self) -> Vec<u8> {
        let (source, destination) = (self.source, self.destination);
        let transport: Transport = match self.protocol {
            protocol::TCP => Tcp::with_flags(source.port(), destination.port(), 0x18).into(),
            _ if self.without_checksum => Udp::without_checksum(source.port(), destination.port()).into(),
            _ => Udp::new(source.port(), destination.port()).into(),
        };
        let plain = Network::between(source.ip(), destination.ip());
        let l4 = Packet::new(plain.clone(), transport).payload(b"what the sender had to say").build();
        let l4 = &l4[14 + if source.is_ipv4() { 20 } else { 40 }..];
        let (ip, mut carried) = network(source.ip(), destination.ip(), 61, self.extra, self.protocol);
        let header = if source.is_ipv4() && self.extra == Extra::Options { 28 } else { 20 };
        let header = if source.is_ipv4() { header } else { 40 + carried.len() };
        carried.extend(l4);
        let whole = Packet::new(ip, Transport::Raw(self.protocol)).payload(&carried).build();
        whole[14..(14 + header + self.l4_bytes).min(whole.len())].to_vec()
    }
}

impl IcmpError {
    /// The frame.
    pub fn build(&self, ethernet: Ethernet) -> Vec<u8> {
        icmp(ethernet, self, &self.quote.bytes())
    }
}

/// The frame of an ICMP error with any quoted bytes.
pub fn icmp(ethernet: Ethernet, error: &IcmpError, quote: &[u8]) -> Vec<u8> {
    let number = if error.source.is_ipv4() { protocol::ICMP } else { protocol::ICMPV6 };
    let mut message = vec![error.kind, error.code, 0, 0];
    message.extend(error.rest.to_be_bytes());
    message.extend(quote);
    let check = match number {
        protocol::ICMP => checksum(&message),
        _ => transport_checksum(error.source, error.destination, number, &message),
    };
    message[2..4].copy_from_slice(&check.to_be_bytes());
    let (ip, mut payload) = network(error.source, error.destination, error.ttl, error.extra, number);
    payload.extend(message);
    Packet { ethernet, ..Packet::new(ip, Transport::Raw(number)).payload(&payload) }.build()
}

/// A TCP or UDP packet.
pub fn packet(
    ethernet: Ethernet,
    network: Network,
    transport: impl Into<Transport>,
    payload: &[u8],
) -> Vec<u8> {
    Packet { ethernet, ..Packet::new(network, transport).payload(payload) }.build()
}

/// The frame with VLAN tags: an 802.1ad one and an 802.1Q one, or only the latter.
pub fn tagged(frame: &[u8], tags: usize) -> Vec<u8> {
    let headers: [[u8; 4]; 2] = [[0x88, 0xa8, 0x20, 100], [0x81, 0x00, 0x60, 7]];
    [&frame[..12], &headers[2 - tags..].concat(), &frame[12..]].concat()
}
