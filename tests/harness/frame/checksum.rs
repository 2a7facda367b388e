//! The Internet checksum (RFC 1071), always computed from scratch.

use std::net::IpAddr;

/// One's complement sum of 16-bit words in network byte order; an odd last byte is padded with zero.
pub fn sum(bytes: &[u8]) -> u16 {
    let total: u64 = bytes
        .chunks(2)
        .map(|word| u64::from(u16::from_be_bytes([word[0], word.get(1).copied().unwrap_or(0)])))
        .sum();
    fold(total)
}

/// Adds the carries of a sum back in until it fits 16 bits.
pub fn fold(mut total: u64) -> u16 {
    while total > 0xffff {
        total = (total & 0xffff) + (total >> 16);
    }
    total as u16
}

/// The checksum of bytes whose checksum field is zero.
pub fn checksum(bytes: &[u8]) -> u16 {
    !sum(bytes)
}

/// The checksum of a TCP, UDP or ICMPv6 packet whose checksum field is zero, with its pseudo-header (RFC 9293, 768, 8200).
/// A result of zero is left as it is: only UDP sends it as all ones.
pub fn transport_checksum(source: IpAddr, destination: IpAddr, protocol: u8, packet: &[u8]) -> u16 {
    let mut pseudo = octets(source);
    pseudo.extend(octets(destination));
    pseudo.extend((packet.len() as u32).to_be_bytes());
    pseudo.extend([0, 0, 0, protocol]);
    !fold(u64::from(sum(&pseudo)) + u64::from(sum(packet)))
}

/// The bytes of an address as on the wire.
pub fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}
