//! What the load balancer sees of a frame before it has decided anything.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::Reason;

/// Length of an Ethernet header.
pub const ETHERNET: usize = 14;

/// A TCP segment or UDP datagram, as its headers describe it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View {
    pub source: SocketAddr,
    pub destination: SocketAddr,
    pub protocol: u8,
    /// Zero for UDP.
    pub tcp_flags: u8,
    /// Bytes of the IP header, options included.
    pub ip_header: usize,
    /// Bytes of the IP packet, as its header says.
    pub ip_length: usize,
    /// Bytes that the transport header lays claim to: TCP's own header, all of a UDP datagram.
    pub transport_length: usize,
}

/// The IP part, known even where the rest is not for us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpHeader {
    pub source: IpAddr,
    pub destination: IpAddr,
    pub protocol: u8,
    pub header: usize,
    /// Of the whole packet, as the header says.
    pub length: usize,
    pub is_fragment: bool,
}

/// Reads an IP header of the family that the ethertype (or an outer header) promises. `None` where it is malformed.
pub fn read_ip(bytes: &[u8], is_ipv6: bool) -> Option<IpHeader> {
    if is_ipv6 {
        let bytes = bytes.get(..40).filter(|bytes| bytes[0] >> 4 == 6)?;
        let address =
            |at: usize| IpAddr::from(Ipv6Addr::from(<[u8; 16]>::try_from(&bytes[at..at + 16]).unwrap()));
        Some(IpHeader {
            source: address(8),
            destination: address(24),
            protocol: bytes[6],
            header: 40,
            length: 40 + usize::from(word(bytes, 4)),
            is_fragment: bytes[6] == 44,
        })
    } else {
        let bytes = bytes.get(..20).filter(|bytes| bytes[0] >> 4 == 4 && bytes[0] & 0xf >= 5)?;
        let address =
            |at: usize| IpAddr::from(Ipv4Addr::from(<[u8; 4]>::try_from(&bytes[at..at + 4]).unwrap()));
        Some(IpHeader {
            source: address(12),
            destination: address(16),
            protocol: bytes[9],
            header: usize::from(bytes[0] & 0xf) * 4,
            length: usize::from(word(bytes, 2)),
            // More fragments follow, or this is not the first.
            is_fragment: word(bytes, 6) & 0x3fff != 0,
        })
    }
}

/// The family that the ethertype promises, as `true` for IPv6; `Err` for anything but IP.
pub fn family(frame: &[u8]) -> Result<bool, Reason> {
    if frame.len() < ETHERNET {
        return Err(Reason::PassMalformed);
    }
    match word(frame, 12) {
        0x0800 => Ok(false),
        0x86dd => Ok(true),
        _ => Err(Reason::PassNotIp),
    }
}

/// Reads a frame, or says why it is passed on. The IP header is returned as far as there is one.
pub fn read(frame: &[u8]) -> (Option<IpHeader>, Result<View, Reason>) {
    let is_ipv6 = match family(frame) {
        Ok(is_ipv6) => is_ipv6,
        Err(reason) => return (None, Err(reason)),
    };
    let packet = &frame[ETHERNET..];
    let Some(ip) = read_ip(packet, is_ipv6) else {
        return (None, Err(Reason::PassMalformed));
    };
    (Some(ip), read_transport(packet, &ip))
}

fn read_transport(packet: &[u8], ip: &IpHeader) -> Result<View, Reason> {
    if ip.is_fragment {
        return Err(Reason::PassFragment);
    }
    let transport = packet.get(ip.header..).unwrap_or_default();
    let (tcp_flags, transport_length, least) = match ip.protocol {
        6 if transport.len() >= 20 => (transport[13], usize::from(transport[12] >> 4) * 4, 20),
        17 if transport.len() >= 8 => (0, usize::from(word(transport, 4)), 8),
        6 | 17 => return Err(Reason::PassMalformed),
        _ => return Err(Reason::PassNotTcpUdp),
    };
    if transport_length < least {
        return Err(Reason::PassMalformed);
    }
    Ok(View {
        source: SocketAddr::new(ip.source, word(transport, 0)),
        destination: SocketAddr::new(ip.destination, word(transport, 2)),
        protocol: ip.protocol,
        tcp_flags,
        ip_header: ip.header,
        ip_length: ip.length,
        transport_length,
    })
}

impl View {
    /// The IP packet fits the frame, and the transport header fits the IP packet.
    pub fn lengths_agree(&self, frame: &[u8]) -> bool {
        self.ip_length <= frame.len() - ETHERNET && self.ip_header + self.transport_length <= self.ip_length
    }
}

/// A 16-bit number in network byte order.
pub fn word(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}
