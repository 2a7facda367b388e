//! The two hashes of flows, whose arithmetic is part of the contract: all nodes must choose alike.
//!
//! Addresses and ports are in network byte order and are taken as little-endian machine words, as on x86-64 and arm64.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// The golden ratio's fraction, and those of the square roots of 3 and 5, made odd.
const MULTIPLIER_A: u64 = 0x9e37_79b9_7f4a_7c15;
/// Multiplies, plus [`REHASH_ADDEND`], a hash whose backend cannot be used.
const MULTIPLIER_B: u64 = 0xbb67_ae85_84ca_a73b;
/// Also the seed of the tables' hash.
const REHASH_ADDEND: u64 = 0x3c6e_f372_fe94_f82b;

/// Hash of a flow for the table of its service: the same on every node.
pub fn five_tuple(source: SocketAddr, destination: SocketAddr, protocol: u8) -> u64 {
    let seed = REHASH_ADDEND;
    let mixed = match (source.ip(), destination.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let word = u64::from(u32::from_le_bytes(from.octets())) << 32
                | u64::from(u32::from_le_bytes(to.octets()));
            round(seed, word, MULTIPLIER_A)
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let (from, to) = (halves(from.octets()), halves(to.octets()));
            let once = round(round(seed, from[0], MULTIPLIER_A), from[1], MULTIPLIER_B);
            round(round(once, to[0], MULTIPLIER_A), to[1], MULTIPLIER_B)
        }
        _ => panic!("{source} and {destination} are of different families"),
    };
    let ports =
        u64::from(protocol) << 32 | word_of_port(destination.port()) << 16 | word_of_port(source.port());
    round(mixed, ports, MULTIPLIER_B).wrapping_mul(MULTIPLIER_A)
}

/// Hash of what all pieces of a datagram have in common: as of a service that hashes by source and destination.
pub fn hosts(source: IpAddr, destination: IpAddr) -> u64 {
    const SOURCE_DESTINATION: u64 = 2;
    let mixed = match (source, destination) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let word = |address: Ipv4Addr| u64::from(u32::from_le_bytes(address.octets()));
            round(REHASH_ADDEND, word(from) << 32 | word(to), MULTIPLIER_A)
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let (from, to) = (halves(from.octets()), halves(to.octets()));
            let once = round(round(REHASH_ADDEND, from[0], MULTIPLIER_A), from[1], MULTIPLIER_B);
            round(round(once, to[0], MULTIPLIER_A), to[1], MULTIPLIER_B)
        }
        _ => panic!("{source} and {destination} are of different families"),
    };
    round(mixed, SOURCE_DESTINATION, MULTIPLIER_B).wrapping_mul(MULTIPLIER_A)
}

/// The hash to try next where the backend of the first has the client's port in use through another service.
pub fn rehash(hash: u64) -> u64 {
    hash.wrapping_mul(MULTIPLIER_B).wrapping_add(REHASH_ADDEND)
}

/// Hash of a client for the flow table, keyed with the secret of the node.
pub fn client(client: SocketAddr, protocol: u8, secret: [u64; 2]) -> u64 {
    let ports = word_of_port(client.port()) << 8 | u64::from(protocol);
    let mixed = match client.ip() {
        IpAddr::V4(address) => {
            round(secret[0], u64::from(u32::from_le_bytes(address.octets())) << 32 | ports, MULTIPLIER_A)
        }
        IpAddr::V6(address) => {
            let words = halves(address.octets());
            let once = round(round(secret[1], words[0], MULTIPLIER_A), words[1], MULTIPLIER_B);
            round(once, ports, MULTIPLIER_A)
        }
    };
    round(mixed, secret[1], MULTIPLIER_B)
}

/// The slot of a table for a hash: its upper half, scaled to the number of slots.
pub fn slot_index(hash: u64, slots: usize) -> usize {
    ((u128::from(hash >> 32) * slots as u128) >> 32) as usize
}

/// Bits of a flow for outer IPv4 source addresses, where the configured prefix leaves room.
pub fn spread_ipv4(hash: u64) -> [u8; 4] {
    ((hash >> 20) as u32).to_le_bytes()
}

/// The same for IPv6: the lower half of the hash in the first three words, the upper half in the last.
pub fn spread_ipv6(hash: u64) -> [u8; 16] {
    let (low, high) = ((hash as u32).to_le_bytes(), ((hash >> 32) as u32).to_le_bytes());
    let mut bytes = [0; 16];
    for (part, word) in bytes.chunks_mut(4).zip([low, low, low, high]) {
        part.copy_from_slice(&word);
    }
    bytes
}

/// The outer flow label.
pub fn flow_label(hash: u64) -> u32 {
    (hash >> 24) as u32 & 0xf_ffff
}

/// The outer UDP source port: one of the dynamic range.
pub fn source_port(hash: u64) -> u16 {
    0xc000 | (hash >> 24) as u16 & 0x3fff
}

fn round(state: u64, word: u64, multiplier: u64) -> u64 {
    let product = (state ^ word).wrapping_mul(multiplier);
    product ^ product >> 32
}

fn word_of_port(port: u16) -> u64 {
    u64::from(u16::from_le_bytes(port.to_be_bytes()))
}

fn halves(octets: [u8; 16]) -> [u64; 2] {
    let half = |at: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&octets[at..at + 8]);
        u64::from_le_bytes(bytes)
    };
    [half(0), half(8)]
}
