//! Datagrams and their pieces, as frames.

use std::net::{IpAddr, SocketAddr};

use crate::harness::frame::{
    checksum::{checksum, octets, transport_checksum},
    ethertype, protocol,
};

/// Where an IP header begins.
pub const L3: usize = 14;
/// MAC addresses of the sender and of the load balancer.
pub const MACS: [[u8; 6]; 2] = [[2, 0, 0, 0, 0, 0x10], [2, 0, 0, 0, 0, 0x20]];
const FRAGMENT_HEADER: usize = 8;

/// A TCP or UDP packet that is to be sent in pieces.
#[derive(Clone, Debug)]
pub struct Datagram {
    pub source: SocketAddr,
    pub destination: SocketAddr,
    pub protocol: u8,
    pub identification: u32,
    /// Bytes behind the TCP or UDP header.
    pub payload: usize,
    /// Payload bytes of a piece, a multiple of 8.
    pub piece: usize,
    /// UDP over IPv4 without a checksum.
    pub no_checksum: bool,
}

impl Datagram {
    pub fn udp(source: SocketAddr, destination: SocketAddr, identification: u32, payload: usize) -> Self {
        let piece = if source.is_ipv4() { 1480 } else { 1448 };
        let protocol = protocol::UDP;
        Self { source, destination, protocol, identification, payload, piece, no_checksum: false }
    }

    pub fn tcp(source: SocketAddr, destination: SocketAddr, identification: u32, payload: usize) -> Self {
        Self { protocol: protocol::TCP, ..Self::udp(source, destination, identification, payload) }
    }

    /// TCP or UDP header and payload, with a right checksum.
    pub fn transport(&self) -> Vec<u8> {
        let mut bytes = self.source.port().to_be_bytes().to_vec();
        bytes.extend(self.destination.port().to_be_bytes());
        let check_at = if self.protocol == protocol::UDP {
            bytes.extend(((8 + self.payload) as u16).to_be_bytes());
            bytes.extend([0, 0]);
            6
        } else {
            bytes.extend([1, 2, 3, 4, 5, 6, 7, 8, 0x50, 0x10, 0xff, 0xff, 0, 0, 0, 0]);
            16
        };
        bytes.extend((0..self.payload).map(|at| (at * 7 + at / 251 + self.identification as usize) as u8));
        if !self.no_checksum {
            let right = transport_checksum(self.source.ip(), self.destination.ip(), self.protocol, &bytes);
            let right = if right == 0 && self.protocol == protocol::UDP { 0xffff } else { right };
            bytes[check_at..check_at + 2].copy_from_slice(&right.to_be_bytes());
        }
        bytes
    }

    /// The frames, in order. One that needs no pieces is sent whole.
    pub fn frames(&self) -> Vec<Vec<u8>> {
        let transport = self.transport();
        if transport.len() <= self.piece {
            return vec![self.frame(None, &transport)];
        }
        let count = transport.len().div_ceil(self.piece);
        let pieces = transport.chunks(self.piece).enumerate();
        pieces.map(|(n, bytes)| self.frame(Some((n * self.piece, n + 1 < count)), bytes)).collect()
    }

    /// One frame: the piece at this offset, with or without more to follow, or the whole.
    pub fn frame(&self, piece: Option<(usize, bool)>, bytes: &[u8]) -> Vec<u8> {
        let mut frame = MACS[1].to_vec();
        frame.extend(MACS[0]);
        let (offset, more) = piece.unwrap_or_default();
        match (self.source.ip(), self.destination.ip()) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                frame.extend(ethertype::IPV4.to_be_bytes());
                frame.extend([0x45, 0xb8]);
                frame.extend(((20 + bytes.len()) as u16).to_be_bytes());
                frame.extend((self.identification as u16).to_be_bytes());
                frame.extend(((offset / 8) as u16 | u16::from(more) << 13).to_be_bytes());
                frame.extend([61, self.protocol, 0, 0]);
                frame.extend(source.octets());
                frame.extend(destination.octets());
                set_ipv4_checksum(&mut frame);
            }
            (source, destination) => {
                frame.extend(ethertype::IPV6.to_be_bytes());
                frame.extend([0x6b, 0x80, 0, 0]);
                let header = if piece.is_some() { FRAGMENT_HEADER } else { 0 };
                frame.extend(((header + bytes.len()) as u16).to_be_bytes());
                frame.extend([if piece.is_some() { protocol::FRAGMENT } else { self.protocol }, 61]);
                frame.extend(octets(source));
                frame.extend(octets(destination));
                if piece.is_some() {
                    frame.extend([self.protocol, 0]);
                    frame.extend((offset as u16 | u16::from(more)).to_be_bytes());
                    frame.extend(self.identification.to_be_bytes());
                }
            }
        }
        frame.extend(bytes);
        frame
    }
}

/// Computes the checksum of the IPv4 header anew.
pub fn set_ipv4_checksum(frame: &mut [u8]) {
    frame[L3 + 10..L3 + 12].fill(0);
    let right = checksum(&frame[L3..L3 + 20]);
    frame[L3 + 10..L3 + 12].copy_from_slice(&right.to_be_bytes());
}

/// True for the piece that has the ports, and for a packet that is whole.
pub fn has_ports(frame: &[u8]) -> bool {
    offset(frame) == 0
}

/// Offset of the piece within its datagram.
pub fn offset(frame: &[u8]) -> usize {
    let word = |at: usize| usize::from(u16::from_be_bytes([frame[at], frame[at + 1]]));
    if is_ipv4(frame) {
        (word(L3 + 6) & 0x1fff) * 8
    } else if frame[L3 + 6] == protocol::FRAGMENT {
        word(L3 + 40 + 2) & 0xfff8
    } else {
        0
    }
}

/// Where the TCP or UDP header begins in a first piece, or the payload in a later one.
pub fn l4(frame: &[u8]) -> usize {
    if is_ipv4(frame) {
        L3 + 20
    } else if frame[L3 + 6] == protocol::FRAGMENT {
        L3 + 48
    } else {
        L3 + 40
    }
}

pub fn is_ipv4(frame: &[u8]) -> bool {
    frame[12..14] == [8, 0]
}

/// Puts pieces together as a host would. Panics where some are missing, and where overlapping ones differ.
pub fn reassemble(frames: &[Vec<u8>]) -> Vec<u8> {
    let end = frames.iter().map(|frame| offset(frame) + frame.len() - l4(frame)).max().unwrap();
    let mut whole = vec![None; end];
    for frame in frames {
        for (at, &byte) in frame[l4(frame)..].iter().enumerate() {
            let place = &mut whole[offset(frame) + at];
            assert!(place.is_none_or(|other| other == byte), "pieces disagree");
            *place = Some(byte);
        }
    }
    whole.into_iter().map(|byte| byte.expect("no piece is missing")).collect()
}
