//! What the load balancer sees of a frame before it has decided anything.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::{Reason, extension};

/// A TCP segment or UDP datagram, as its headers describe it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View {
    /// Bytes of the Ethernet header and its tags.
    pub link: usize,
    /// Never a later one, which has no ports.
    pub fragment: Fragment,
    pub source: SocketAddr,
    pub destination: SocketAddr,
    pub protocol: u8,
    /// Zero for UDP.
    pub tcp_flags: u8,
    /// Bytes of the IP header, with its options or extension headers.
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
    /// Of what follows the header, an extension header included.
    pub protocol: u8,
    /// Bytes of the header, extension headers not included.
    pub header: usize,
    /// Of the whole packet, as the header says.
    pub length: usize,
    /// An IPv4 fragment. Of IPv6, an extension header tells.
    pub fragment: Fragment,
}

/// What part of a datagram a packet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fragment {
    Whole,
    /// The one with the transport header.
    First,
    Later,
}

impl Fragment {
    /// From what its header says.
    pub fn new(offset: u16, more: bool) -> Self {
        match (offset, more) {
            (0, false) => Self::Whole,
            (0, true) => Self::First,
            _ => Self::Later,
        }
    }
}

/// What follows the IP headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Carried {
    pub protocol: u8,
    /// Where it begins in the frame; maybe beyond its end.
    pub offset: usize,
    pub fragment: Fragment,
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
            fragment: Fragment::Whole,
        })
    } else {
        let bytes = bytes.get(..20).filter(|bytes| bytes[0] >> 4 == 4 && bytes[0] & 0xf >= 5)?;
        let address =
            |at: usize| IpAddr::from(Ipv4Addr::from(<[u8; 4]>::try_from(&bytes[at..at + 4]).unwrap()));
        let place = word(bytes, 6);
        Some(IpHeader {
            source: address(12),
            destination: address(16),
            protocol: bytes[9],
            header: usize::from(bytes[0] & 0xf) * 4,
            length: usize::from(word(bytes, 2)),
            fragment: Fragment::new(place & 0x1fff, place & 0x2000 != 0),
        })
    }
}

/// The bytes of the Ethernet header with up to two tags, and the family of the IP packet behind it, as `true` for IPv6.
pub fn read_link(frame: &[u8]) -> Result<(usize, bool), Reason> {
    let mut length = 14;
    for tags in 0.. {
        let Some(header) = frame.get(..length) else { return Err(Reason::PassMalformed) };
        match word(header, length - 2) {
            0x0800 => return Ok((length, false)),
            0x86dd => return Ok((length, true)),
            0x8100 | 0x88a8 if tags < 2 => length += 4,
            _ => break,
        }
    }
    Err(Reason::PassNotIp)
}

/// What is known of an IP packet of which the rest may not be readable: its header, and bytes of the frame from that on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    pub ip: IpHeader,
    pub present: usize,
}

impl Seen {
    /// Bytes that are counted: what the header says, but no more than there are.
    pub fn bytes(&self) -> u64 {
        self.ip.length.min(self.present) as u64
    }
}

/// Reads a frame, or says why it is passed on. The IP header is returned as far as there is one.
pub fn read(frame: &[u8]) -> (Option<Seen>, Result<View, Reason>) {
    let (link, is_ipv6) = match read_link(frame) {
        Ok(found) => found,
        Err(reason) => return (None, Err(reason)),
    };
    let Some(ip) = read_ip(&frame[link..], is_ipv6) else {
        return (None, Err(Reason::PassMalformed));
    };
    let seen = Seen { ip, present: frame.len() - link };
    let first = Carried { protocol: ip.protocol, offset: link + ip.header, fragment: ip.fragment };
    let carried = if is_ipv6 { extension::step_over(frame, first) } else { Ok(first) };
    (Some(seen), carried.and_then(|carried| read_transport(frame, link, &ip, carried)))
}

fn read_transport(frame: &[u8], link: usize, ip: &IpHeader, carried: Carried) -> Result<View, Reason> {
    if carried.fragment == Fragment::Later {
        return Err(Reason::PassFragment);
    }
    let transport = frame.get(carried.offset..).unwrap_or_default();
    let (tcp_flags, transport_length, least) = match carried.protocol {
        6 if transport.len() >= 20 => (transport[13], usize::from(transport[12] >> 4) * 4, 20),
        17 if transport.len() >= 8 => (0, usize::from(word(transport, 4)), 8),
        6 | 17 => return Err(Reason::PassMalformed),
        _ => return Err(Reason::PassNotTcpUdp),
    };
    if transport_length < least {
        return Err(Reason::PassMalformed);
    }
    // The length in a UDP header is that of the whole datagram, of which this is only the first piece.
    let is_first_of_udp = carried.fragment == Fragment::First && carried.protocol == 17;
    let transport_length = if is_first_of_udp { 8 } else { transport_length };
    Ok(View {
        link,
        fragment: carried.fragment,
        source: SocketAddr::new(ip.source, word(transport, 0)),
        destination: SocketAddr::new(ip.destination, word(transport, 2)),
        protocol: carried.protocol,
        tcp_flags,
        ip_header: carried.offset - link,
        ip_length: ip.length,
        transport_length,
    })
}

impl View {
    /// The IP packet fits the frame, and the transport header fits the IP packet.
    pub fn lengths_agree(&self, frame: &[u8]) -> bool {
        self.ip_length <= frame.len() - self.link && self.ip_header + self.transport_length <= self.ip_length
    }
}

/// A 16-bit number in network byte order.
pub fn word(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}
