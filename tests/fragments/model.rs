//! What must become of a piece, by the standards, with every checksum computed from scratch.

use std::net::{IpAddr, SocketAddr};

use tidegate::{datapath::BackendRecord, model::Mode};

use super::{
    node::{SOURCE_MAC, Service},
    pieces::{L3, has_ports, is_ipv4, l4, set_ipv4_checksum},
};
use crate::harness::frame::{
    checksum::{checksum, octets, transport_checksum},
    protocol,
};

/// A datagram's transport packet after the destination or the source was replaced.
pub fn translated_transport(
    transport: &[u8],
    number: u8,
    source: SocketAddr,
    destination: SocketAddr,
) -> Vec<u8> {
    let mut bytes = transport.to_vec();
    let at = if number == protocol::UDP { 6 } else { 16 };
    bytes[..2].copy_from_slice(&source.port().to_be_bytes());
    bytes[2..4].copy_from_slice(&destination.port().to_be_bytes());
    if number == protocol::UDP && bytes[at..at + 2] == [0, 0] {
        return bytes;
    }
    bytes[at..at + 2].fill(0);
    let right = transport_checksum(source.ip(), destination.ip(), number, &bytes);
    let right = if right == 0 && number == protocol::UDP { 0xffff } else { right };
    bytes[at..at + 2].copy_from_slice(&right.to_be_bytes());
    bytes
}

/// The backend that a frame was sent to.
pub fn backend_of<'a>(sent: &[u8], service: &'a Service) -> &'a BackendRecord {
    let found = service.backends.iter().find(|backend| sent[..6] == backend.destination_mac);
    found.unwrap_or_else(|| panic!("sent to nobody: {:02x?}", &sent[..14]))
}

/// The frame that a piece must be sent on as; `transport` is its whole datagram's packet as it came, `sent` what did leave: of it
/// only what a hash decides is taken.
pub fn expected(
    piece: &[u8],
    transport: &[u8],
    client: SocketAddr,
    service: &Service,
    backend: &BackendRecord,
    sent: &[u8],
) -> Vec<u8> {
    let mut frame = piece.to_vec();
    match service.mode {
        Mode::Nat => {
            let to = SocketAddr::new(backend.address.address, backend.address.port);
            translate(&mut frame, transport, service.protocol.number(), client, to, End::Destination);
        }
        Mode::Dsr => {}
        mode => frame = encapsulate(&frame, mode, backend, sent),
    }
    frame[..6].copy_from_slice(&backend.destination_mac);
    frame[6..12].copy_from_slice(&SOURCE_MAC);
    frame
}

/// Which end of a packet is replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Source,
    Destination,
}

/// Replaces one end of a piece, after which it goes from `source` to `destination`, and takes one from its TTL.
pub fn translate(
    frame: &mut [u8],
    transport: &[u8],
    number: u8,
    source: SocketAddr,
    destination: SocketAddr,
    end: End,
) {
    let ip = if end == End::Source { source.ip() } else { destination.ip() };
    let behind = usize::from(end == End::Destination);
    match ip {
        IpAddr::V4(address) => {
            let at = L3 + 12 + 4 * behind;
            frame[at..at + 4].copy_from_slice(&address.octets());
            frame[L3 + 8] -= 1;
            set_ipv4_checksum(frame);
        }
        IpAddr::V6(address) => {
            let at = L3 + 8 + 16 * behind;
            frame[at..at + 16].copy_from_slice(&address.octets());
            frame[L3 + 7] -= 1;
        }
    }
    if has_ports(frame) {
        let at = l4(frame);
        let right = translated_transport(transport, number, source, destination);
        let length = frame.len() - at;
        frame[at..].copy_from_slice(&right[..length]);
    }
}

/// Outer headers. The port of GUE and the flow label are by a hash, which is another test's business.
fn encapsulate(piece: &[u8], mode: Mode, backend: &BackendRecord, sent: &[u8]) -> Vec<u8> {
    let inner = &piece[L3..];
    let outer_ipv4 = backend.address.address.is_ipv4();
    let mut shim = Vec::new();
    let mut number = if is_ipv4(piece) { protocol::IPIP } else { protocol::IPV6 };
    match mode {
        Mode::Gre => {
            number = 47;
            shim.extend([0, 0]);
            shim.extend(&piece[12..14]);
        }
        Mode::Gue => {
            number = protocol::UDP;
            let at = L3 + if outer_ipv4 { 20 } else { 40 };
            shim.extend(&sent[at..at + 2]);
            shim.extend(6080u16.to_be_bytes());
            shim.extend(((8 + inner.len()) as u16).to_be_bytes());
            shim.extend([0, 0]);
        }
        _ => {}
    }
    let mut frame = vec![0; 12];
    if outer_ipv4 {
        frame.extend([8, 0]);
        let header = frame.len();
        frame.extend([0x45, 0xb8]);
        frame.extend(((20 + shim.len() + inner.len()) as u16).to_be_bytes());
        frame.extend(outer_identification(inner));
        frame.extend([if is_ipv4(piece) { inner[6] & 0x40 } else { 0x40 }, 0, 64, number, 0, 0]);
        frame.extend(octets(backend.source));
        frame.extend(octets(backend.address.address));
        let right = checksum(&frame[header..]);
        frame[header + 10..header + 12].copy_from_slice(&right.to_be_bytes());
    } else {
        frame.extend([0x86, 0xdd, 0x6b, 0x80 | (sent[L3 + 1] & 0xf), sent[L3 + 2], sent[L3 + 3]]);
        frame.extend(((shim.len() + inner.len()) as u16).to_be_bytes());
        frame.extend([number, 64]);
        frame.extend(octets(backend.source));
        frame.extend(octets(backend.address.address));
    }
    frame.extend(shim);
    frame.extend(inner);
    frame
}

/// Pieces of one datagram share an identification; their outer packets must not, lest they be put together wrongly where they are
/// fragmented once more.
fn outer_identification(inner: &[u8]) -> [u8; 2] {
    if inner[0] >> 4 == 6 {
        return [0, 0];
    }
    let place = u16::from_ne_bytes([inner[6] & 0x3f, inner[7]]);
    u16::from_ne_bytes([inner[4], inner[5]]).wrapping_add(place.wrapping_mul(0x9e37)).to_ne_bytes()
}
