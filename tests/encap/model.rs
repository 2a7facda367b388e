//! Tunnels in plain Rust: whole packets in, whole packets out.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use tidegate::model::Mode;

use crate::harness::frame::checksum::{checksum, transport_checksum};

pub const MODES: [Mode; 3] = [Mode::Ipip, Mode::Gre, Mode::Gue];

/// Tags of a frame, the outer one first: ethertype, and priority and ID.
pub type Tags = &'static [(u16, u16)];

pub const UNTAGGED: Tags = &[];
pub const VLAN: Tags = &[(0x8100, 0x6064)];
pub const QINQ: Tags = &[(0x88a8, 0x00c8), (0x8100, 0xa12d)];
pub const SHAPES: [Tags; 3] = [UNTAGGED, VLAN, QINQ];

/// A layer-2 header.
pub fn l2(destination: [u8; 6], source: [u8; 6], tags: Tags, ipv6: bool) -> Vec<u8> {
    let mut bytes = [destination, source].concat();
    for (ethertype, tci) in tags {
        bytes.extend(ethertype.to_be_bytes());
        bytes.extend(tci.to_be_bytes());
    }
    bytes.extend(ethertype(ipv6).to_be_bytes());
    bytes
}

fn ethertype(ipv6: bool) -> u16 {
    if ipv6 { 0x86dd } else { 0x0800 }
}

/// One end of a tunnel to the other.
#[derive(Clone, Copy, Debug)]
pub struct Tunnel {
    pub mode: Mode,
    pub source: IpAddr,
    /// The bits of the source that differ by flow.
    pub spread: IpAddr,
    pub destination: IpAddr,
    pub gue_port: u16,
}

/// The IP packet `inner` within the tunnel's headers; `hash` is that of its flow.
pub fn encapsulate(inner: &[u8], tunnel: &Tunnel, hash: u64) -> Vec<u8> {
    let inner_ipv6 = inner[0] >> 4 == 6;
    let (class, identification, dont_fragment) = match inner_ipv6 {
        false => (inner[1], [inner[4], inner[5]], inner[6] & 0x40),
        true => (inner[0] << 4 | inner[1] >> 4, [0, 0], 0x40),
    };
    let (protocol, mut payload) = match tunnel.mode {
        Mode::Ipip => (if inner_ipv6 { 41 } else { 4 }, Vec::new()),
        Mode::Gre => (47, [[0, 0], ethertype(inner_ipv6).to_be_bytes()].concat()),
        Mode::Gue => {
            let source_port = 0xc000 | (hash >> 24 & 0x3fff) as u16;
            let length = 8 + inner.len() as u16;
            let words = [source_port, tunnel.gue_port, length, 0];
            (17, words.iter().flat_map(|word| word.to_be_bytes()).collect())
        }
        other => panic!("{other} has no outer header"),
    };
    payload.extend(inner);
    let mut outer = match (tunnel.destination, source(tunnel, hash)) {
        (IpAddr::V4(to), IpAddr::V4(from)) => {
            let mut ip = vec![0x45, class];
            ip.extend((20 + payload.len() as u16).to_be_bytes());
            ip.extend(identification);
            ip.extend([dont_fragment, 0, 64, protocol, 0, 0]);
            ip.extend(from.octets());
            ip.extend(to.octets());
            let sum = checksum(&ip);
            ip[10..12].copy_from_slice(&sum.to_be_bytes());
            ip
        }
        (IpAddr::V6(to), IpAddr::V6(from)) => {
            let first = 6 << 28 | u32::from(class) << 20 | (hash >> 24) as u32 & 0xfffff;
            let mut ip = first.to_be_bytes().to_vec();
            ip.extend((payload.len() as u16).to_be_bytes());
            ip.extend([protocol, 64]);
            ip.extend(from.octets());
            ip.extend(to.octets());
            ip
        }
        _ => panic!("ends of two families"),
    };
    outer.extend(payload);
    outer
}

/// The outer source address of a flow.
pub fn source(tunnel: &Tunnel, hash: u64) -> IpAddr {
    match (tunnel.source, tunnel.spread) {
        (IpAddr::V4(base), IpAddr::V4(spread)) => {
            let bits = u32::from_be_bytes(((hash >> 20) as u32).to_le_bytes());
            Ipv4Addr::from(base.to_bits() | bits & spread.to_bits()).into()
        }
        (IpAddr::V6(base), IpAddr::V6(spread)) => {
            let (low, high) = ((hash as u32).to_le_bytes(), ((hash >> 32) as u32).to_le_bytes());
            let mut bits = [0; 16];
            for (word, bytes) in bits.chunks_mut(4).zip([low, low, low, high]) {
                word.copy_from_slice(&bytes);
            }
            Ipv6Addr::from(base.to_bits() | u128::from_be_bytes(bits) & spread.to_bits()).into()
        }
        _ => panic!("a spread of another family"),
    }
}

/// What the other end makes of a frame: its reason, and the frame where it is changed.
pub fn decapsulate(frame: &[u8], own: &BTreeSet<IpAddr>, gue_port: u16) -> (&'static str, Option<Vec<u8>>) {
    match judge(frame, own, gue_port) {
        Ok(changed) => ("forward-decapsulated", Some(changed)),
        Err(reason) => (reason, None),
    }
}

/// An IP header as far as a tunnel's end reads it.
struct Header {
    header: usize,
    length: usize,
    protocol: u8,
    fragment: bool,
    destination: IpAddr,
    ecn: u8,
}

fn read(bytes: &[u8], ipv6: bool) -> Option<Header> {
    let word = |at: usize| usize::from(u16::from_be_bytes([bytes[at], bytes[at + 1]]));
    let found = if ipv6 {
        if bytes.len() < 40 || bytes[0] >> 4 != 6 {
            return None;
        }
        let destination: [u8; 16] = bytes[24..40].try_into().unwrap();
        Header {
            header: 40,
            length: 40 + word(4),
            protocol: bytes[6],
            fragment: false,
            destination: destination.into(),
            ecn: bytes[1] >> 4 & 3,
        }
    } else {
        if bytes.len() < 20 || bytes[0] >> 4 != 4 || bytes[0] & 15 < 5 {
            return None;
        }
        let destination: [u8; 4] = bytes[16..20].try_into().unwrap();
        Header {
            header: usize::from(bytes[0] & 15) * 4,
            length: word(2),
            protocol: bytes[9],
            fragment: word(6) & 0x3fff != 0,
            destination: destination.into(),
            ecn: bytes[1] & 3,
        }
    };
    (found.length >= found.header).then_some(found)
}

fn judge(frame: &[u8], own: &BTreeSet<IpAddr>, gue_port: u16) -> Result<Vec<u8>, &'static str> {
    let half = |at: usize| frame.get(at..at + 2).map(|two| u16::from_be_bytes([two[0], two[1]]));
    let mut at = 12;
    for _ in 0..2 {
        if matches!(half(at), Some(0x8100 | 0x88a8)) {
            at += 4;
        }
    }
    let ipv6 = match half(at).ok_or("pass-malformed")? {
        0x0800 => false,
        0x86dd => true,
        _ => return Err("pass-not-ip"),
    };
    let packet = &frame[at + 2..];
    let outer = read(packet, ipv6).ok_or("pass-malformed")?;
    if outer.fragment {
        return Err("pass-fragment");
    }
    let shim = packet.get(outer.header..).unwrap_or_default();
    let mut length = outer.length;
    let (inner_ipv6, shim_length) = match outer.protocol {
        4 => (false, 0),
        41 => (true, 0),
        47 => match shim {
            [0, 0, 0x08, 0x00, ..] => (false, 4),
            [0, 0, 0x86, 0xdd, ..] => (true, 4),
            [_, _, _, _, ..] => return Err("pass-not-tunnelled"),
            _ => return Err("pass-malformed"),
        },
        17 => {
            let version = shim.get(8).ok_or("pass-not-tunnelled")? >> 4;
            if shim[2..4] != gue_port.to_be_bytes() || !matches!(version, 4 | 6) {
                return Err("pass-not-tunnelled");
            }
            let datagram = usize::from(u16::from_be_bytes([shim[4], shim[5]]));
            if datagram < 8 || outer.header + datagram > length {
                return Err("pass-malformed");
            }
            length = outer.header + datagram;
            (version == 6, 8)
        }
        _ => return Err("pass-not-tunnelled"),
    };
    if !own.contains(&outer.destination) {
        return Err("pass-outer-not-local");
    }
    if outer.length > packet.len() {
        return Err("drop-inner-malformed");
    }
    if !ipv6 && checksum(&packet[..outer.header]) != 0 {
        return Err("pass-outer-checksum");
    }
    if outer.protocol == 17 && shim[6..8] != [0, 0] {
        let source = match ipv6 {
            false => IpAddr::from(<[u8; 4]>::try_from(&packet[12..16]).unwrap()),
            true => IpAddr::from(<[u8; 16]>::try_from(&packet[8..24]).unwrap()),
        };
        if transport_checksum(source, outer.destination, 17, &packet[outer.header..length]) != 0 {
            return Err("pass-outer-checksum");
        }
    }
    let begin = outer.header + shim_length;
    let inner = read(&packet[begin..], inner_ipv6).ok_or("drop-inner-malformed")?;
    if begin + inner.length > length {
        return Err("drop-inner-malformed");
    }
    if !own.contains(&inner.destination) {
        return Err("drop-inner-not-local");
    }
    let mut rest = packet[begin..].to_vec();
    mark(&mut rest, inner_ipv6, congestion(outer.ecn, inner.ecn).ok_or("drop-ecn-conflict")?);
    let mut changed = frame[..at].to_vec();
    changed.extend(ethertype(inner_ipv6).to_be_bytes());
    changed.extend(rest);
    Ok(changed)
}

/// Figure 4 of RFC 6040: rows are the inner marks, columns the outer ones, both from 00 to 11.
fn congestion(outer: u8, inner: u8) -> Option<u8> {
    const DROP: u8 = 0xff;
    const TABLE: [[u8; 4]; 4] = [[0, 0, 0, DROP], [1, 1, 1, 3], [2, 1, 2, 3], [3, 3, 3, 3]];
    Some(TABLE[usize::from(inner)][usize::from(outer)]).filter(|marks| *marks != DROP)
}

/// Changes the marks of an IP header, and its checksum by as much: what was wrong stays as wrong.
fn mark(ip: &mut [u8], ipv6: bool, marks: u8) {
    if ipv6 {
        ip[1] = ip[1] & 0xcf | marks << 4;
        return;
    }
    let old = u16::from_be_bytes([ip[0], ip[1]]);
    ip[1] = ip[1] & 0xfc | marks;
    let new = u16::from_be_bytes([ip[0], ip[1]]);
    if old != new {
        let check = u16::from_be_bytes([ip[10], ip[11]]);
        let mut sum = u32::from(!check) + u32::from(!old) + u32::from(new);
        sum = (sum & 0xffff) + (sum >> 16);
        sum = (sum & 0xffff) + (sum >> 16);
        ip[10..12].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    }
}
