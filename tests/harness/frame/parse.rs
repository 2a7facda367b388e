//! From bytes to headers. What the bytes tell truthfully is left to the builder, so that building again gives the same bytes.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::{
    Checksum, Echo, Ethernet, Extension, GUE_PORT, Gre, Ipv4, Ipv6, Network, Outer, Packet, Shim, Tag, Tcp,
    Transport, Udp, checksum::checksum, ethertype, protocol,
};

/// Why a frame could not be read as an IP packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotReadable(pub String);

type Result<T> = std::result::Result<T, NotReadable>;

impl Packet {
    /// Reads a frame. Lengths and checksums may lie, but there must be whole headers where the header lengths say so.
    pub fn parse(frame: &[u8]) -> Result<Self> {
        let (ethernet, tags, mut kind, mut rest) = parse_ethernet(frame)?;
        let mut outer: Vec<Outer> = Vec::new();
        let mut padding = Vec::new();
        loop {
            let read = match kind {
                ethertype::IPV4 => parse_ipv4(rest)?,
                ethertype::IPV6 => parse_ipv6(rest)?,
                other => return Err(NotReadable(format!("ethertype {other:#06x} is not IP"))),
            };
            if outer.is_empty() {
                padding = read.behind.to_vec();
            } else if !read.behind.is_empty() {
                return Err(NotReadable("bytes between the end of the inner and of the outer packet".into()));
            }
            let Some((shim, inner_kind, inside)) = parse_shim(&read) else {
                let (transport, payload) = parse_transport(&read);
                let network = read.network;
                return Ok(finish(
                    Packet { ethernet, tags, outer, network, transport, payload, padding },
                    frame,
                ));
            };
            outer.push(Outer { network: read.network, shim });
            (kind, rest) = (inner_kind, inside);
        }
    }
}

/// An IP header and what it carries.
struct Read<'a> {
    network: Network,
    /// Protocol of the payload.
    number: u8,
    payload: &'a [u8],
    /// What stands behind the packet.
    behind: &'a [u8],
    /// The payload is no header, whatever its protocol.
    is_later_fragment: bool,
}

/// Finds out whether the transport checksum was right.
fn finish(packet: Packet, frame: &[u8]) -> Packet {
    let mut right = packet.clone();
    match &mut right.transport {
        Transport::Tcp(tcp) => tcp.checksum = Checksum::Right,
        Transport::Udp(udp) => udp.checksum = Checksum::Right,
        Transport::Echo(echo) => echo.checksum = Checksum::Right,
        Transport::Raw(_) => {}
    }
    // Where the right checksum gives the bytes that were read, there is nothing to note.
    if right.build() == frame { right } else { packet }
}

/// The header, its tags, the ethertype of what follows, and that.
fn parse_ethernet(frame: &[u8]) -> Result<(Ethernet, Vec<Tag>, u16, &[u8])> {
    if frame.len() < 14 {
        return Err(NotReadable(format!("{} bytes are no Ethernet header", frame.len())));
    }
    let mut ethernet = Ethernet { ethertype: None, ..Ethernet::default() };
    ethernet.destination.copy_from_slice(&frame[..6]);
    ethernet.source.copy_from_slice(&frame[6..12]);
    let (mut kind, mut rest) = (word(frame, 12), &frame[14..]);
    let mut tags = Vec::new();
    while matches!(kind, ethertype::VLAN | ethertype::SERVICE_VLAN) {
        if rest.len() < 4 {
            return Err(NotReadable(format!("{} bytes are no VLAN tag", rest.len())));
        }
        tags.push(Tag { kind, control: word(rest, 0) });
        (kind, rest) = (word(rest, 2), &rest[4..]);
    }
    Ok((ethernet, tags, kind, rest))
}

/// Where the packet is a tunnel: what stands before the inner packet, the latter's ethertype, and its bytes.
fn parse_shim<'a>(read: &Read<'a>) -> Option<(Shim, u16, &'a [u8])> {
    let bytes = read.payload;
    if read.is_later_fragment {
        return None;
    }
    match read.number {
        protocol::IPIP => Some((Shim::None, ethertype::IPV4, bytes)),
        protocol::IPV6 => Some((Shim::None, ethertype::IPV6, bytes)),
        protocol::GRE if bytes.len() >= 4 && word(bytes, 0) == 0 => {
            let kind = word(bytes, 2);
            let is_ip = matches!(kind, ethertype::IPV4 | ethertype::IPV6);
            is_ip.then(|| (Shim::Gre(Gre::default()), kind, &bytes[4..]))
        }
        protocol::UDP if bytes.len() > 8 && word(bytes, 2) == GUE_PORT => {
            let kind = match bytes[8] >> 4 {
                4 => ethertype::IPV4,
                6 => ethertype::IPV6,
                _ => return None,
            };
            Some((Shim::Gue(parse_udp(bytes)), kind, &bytes[8..]))
        }
        _ => None,
    }
}

fn parse_ipv4(bytes: &[u8]) -> Result<Read<'_>> {
    if bytes.len() < 20 {
        return Err(NotReadable(format!("{} bytes are no IPv4 header", bytes.len())));
    }
    let (version, header_length) = (bytes[0] >> 4, usize::from(bytes[0] & 0xf) * 4);
    if version != 4 || header_length < 20 || header_length > bytes.len() {
        return Err(NotReadable(format!("first byte {:#04x} of an IPv4 header", bytes[0])));
    }
    let total = usize::from(word(bytes, 2));
    let end = if total < header_length { bytes.len() } else { total.min(bytes.len()) };
    let flags = word(bytes, 6);
    let is_later_fragment = flags & 0x1fff != 0;
    let number = bytes[9];
    let ip = Ipv4 {
        source: Ipv4Addr::from([bytes[12], bytes[13], bytes[14], bytes[15]]),
        destination: Ipv4Addr::from([bytes[16], bytes[17], bytes[18], bytes[19]]),
        tos: bytes[1],
        identification: word(bytes, 4),
        reserved_flag: flags & 0x8000 != 0,
        dont_fragment: flags & 0x4000 != 0,
        more_fragments: flags & 0x2000 != 0,
        fragment_offset: flags & 0x1fff,
        ttl: bytes[8],
        protocol: None,
        options: bytes[20..header_length].to_vec(),
        version: None,
        header_words: None,
        total_length: (total != end).then_some(total as u16),
        checksum: ipv4_checksum(&bytes[..header_length]),
    };
    Ok(Read {
        network: ip.into(),
        number,
        payload: &bytes[header_length..end],
        behind: &bytes[end..],
        is_later_fragment,
    })
}

/// The header's checksum, as [`Checksum::Right`] where it is what the builder would write.
fn ipv4_checksum(header: &[u8]) -> Checksum {
    let found = word(header, 10);
    let without = [&header[..10], &[0, 0], &header[12..]].concat();
    if found == checksum(&without) { Checksum::Right } else { Checksum::Exactly(found) }
}

fn parse_ipv6(bytes: &[u8]) -> Result<Read<'_>> {
    if bytes.len() < 40 {
        return Err(NotReadable(format!("{} bytes are no IPv6 header", bytes.len())));
    }
    let first = u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    if first >> 28 != 6 {
        return Err(NotReadable(format!("first byte {:#04x} of an IPv6 header", bytes[0])));
    }
    let payload = usize::from(word(bytes, 4));
    let end = (40 + payload).min(bytes.len());
    let address = |at: usize| {
        let mut octets = [0; 16];
        octets.copy_from_slice(&bytes[at..at + 16]);
        Ipv6Addr::from(octets)
    };
    let ip = Ipv6 {
        source: address(8),
        destination: address(24),
        traffic_class: (first >> 20) as u8,
        flow_label: first & 0xf_ffff,
        hop_limit: bytes[7],
        next_header: None,
        version: None,
        payload_length: (40 + payload != end).then_some(payload as u16),
        extensions: Vec::new(),
    };
    let (extensions, number, payload) = parse_extensions(bytes[6], &bytes[40..end]);
    let is_later_fragment = extensions
        .iter()
        .any(|extension| matches!(extension, Extension::Fragment { offset, .. } if *offset != 0));
    let network = Ipv6 { extensions, ..ip }.into();
    Ok(Read { network, number, payload, behind: &bytes[end..], is_later_fragment })
}

/// The extension headers, the number of what follows them, and that. Headers that are not whole or not as they should be are
/// left, and so is what follows a later fragment's.
fn parse_extensions(first: u8, bytes: &[u8]) -> (Vec<Extension>, u8, &[u8]) {
    let (mut number, mut rest) = (first, bytes);
    let mut extensions = Vec::new();
    while rest.len() >= 8 {
        let (extension, length) = match number {
            protocol::HOP_BY_HOP | protocol::ROUTING | protocol::DESTINATION_OPTIONS => {
                let length = (usize::from(rest[1]) + 1) * 8;
                let Some(body) = rest.get(2..length) else { break };
                (Extension::Sized { number, body: body.to_vec(), length: None }, length)
            }
            protocol::FRAGMENT if rest[1] == 0 && rest[3] & 0x06 == 0 => {
                let place = word(rest, 2);
                let identification = u32::from_be_bytes([rest[4], rest[5], rest[6], rest[7]]);
                (Extension::Fragment { offset: place >> 3, more: place & 1 != 0, identification }, 8)
            }
            _ => break,
        };
        let is_last = matches!(extension, Extension::Fragment { offset, .. } if offset != 0);
        extensions.push(extension);
        (number, rest) = (rest[0], &rest[length..]);
        if is_last {
            break;
        }
    }
    (extensions, number, rest)
}

/// The transport header and its payload; headers that are not whole are left in the payload.
fn parse_transport(read: &Read<'_>) -> (Transport, Vec<u8>) {
    let (number, bytes) = (read.number, read.payload);
    let raw = || (Transport::Raw(number), bytes.to_vec());
    if read.is_later_fragment {
        return raw();
    }
    let is_ipv4 = matches!(read.network, Network::V4(_));
    match number {
        protocol::TCP if bytes.len() >= 20 => parse_tcp(bytes),
        protocol::UDP if bytes.len() >= 8 => (parse_udp(bytes).into(), bytes[8..].to_vec()),
        protocol::ICMP if is_ipv4 && bytes.len() >= 8 && matches!(bytes[0], 0 | 8) && bytes[1] == 0 => {
            parse_echo(bytes, bytes[0] == 0)
        }
        protocol::ICMPV6
            if !is_ipv4 && bytes.len() >= 8 && matches!(bytes[0], 128 | 129) && bytes[1] == 0 =>
        {
            parse_echo(bytes, bytes[0] == 129)
        }
        _ => raw(),
    }
}

fn parse_udp(bytes: &[u8]) -> Udp {
    let length = word(bytes, 4);
    Udp {
        source_port: word(bytes, 0),
        destination_port: word(bytes, 2),
        length: (usize::from(length) != bytes.len()).then_some(length),
        checksum: Checksum::Exactly(word(bytes, 6)),
    }
}

fn parse_tcp(bytes: &[u8]) -> (Transport, Vec<u8>) {
    let words = bytes[12] >> 4;
    let header = usize::from(words) * 4;
    let is_whole = (20..=bytes.len()).contains(&header);
    let end = if is_whole { header } else { 20 };
    let long = |at: usize| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let tcp = Tcp {
        source_port: word(bytes, 0),
        destination_port: word(bytes, 2),
        sequence: long(4),
        acknowledgement: long(8),
        flags: bytes[13],
        reserved: bytes[12] & 0xf,
        window: word(bytes, 14),
        urgent: word(bytes, 18),
        options: bytes[20..end].to_vec(),
        data_offset: (!is_whole).then_some(words),
        checksum: Checksum::Exactly(word(bytes, 16)),
    };
    (tcp.into(), bytes[end..].to_vec())
}

fn parse_echo(bytes: &[u8], reply: bool) -> (Transport, Vec<u8>) {
    let echo = Echo {
        reply,
        identifier: word(bytes, 4),
        sequence: word(bytes, 6),
        checksum: Checksum::Exactly(word(bytes, 2)),
    };
    (echo.into(), bytes[8..].to_vec())
}

fn word(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}
