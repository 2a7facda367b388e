//! Outer headers.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use tidegate::model::Mode;

use super::{
    Spread, hash,
    rewrite::put,
    view::{View, word},
};
use crate::harness::frame::checksum::{checksum, octets};

/// TTL and hop limit of outer headers.
const TTL: u8 = 64;
const GUE_PORT: u16 = 6080;

/// An encapsulation: what goes into the outer headers.
pub struct Tunnel {
    pub mode: Mode,
    /// The configured source address, or the prefix of it.
    pub source: IpAddr,
    pub destination: IpAddr,
    pub spread: Spread,
}

/// Bytes that a mode adds in front of an IP packet.
pub fn overhead(mode: Mode, is_ipv6: bool) -> usize {
    let shim = match mode {
        Mode::Nat | Mode::Dsr => return 0,
        Mode::Ipip => 0,
        Mode::Gre => 4,
        Mode::Gue => 8,
    };
    shim + if is_ipv6 { 40 } else { 20 }
}

impl Tunnel {
    /// The ethertype of the outer packet, and the packet itself. What stands behind the inner packet in the frame stays there.
    pub fn wrap(&self, frame: &[u8], view: &View, hash: u64) -> (u16, Vec<u8>) {
        let inner = &frame[view.link..];
        let inner_is_ipv6 = view.source.is_ipv6();
        let (protocol, shim) = self.shim(view, hash);
        let class = if inner_is_ipv6 { inner[0] << 4 | inner[1] >> 4 } else { inner[1] };
        let payload = view.ip_length + shim.len();
        let (kind, outer) = match self.destination {
            IpAddr::V4(_) => {
                let (identification, dont_fragment) = if inner_is_ipv6 {
                    (0, 0x4000)
                } else {
                    (identification(inner), word(inner, 6) & 0x4000)
                };
                (0x0800, self.ipv4([class, protocol], payload, identification, dont_fragment, hash))
            }
            IpAddr::V6(_) => (0x86dd, self.ipv6([class, protocol], payload, hash)),
        };
        (kind, [&outer, &shim, inner].concat())
    }

    /// The protocol of the outer header, and what stands between it and the packet.
    fn shim(&self, view: &View, hash: u64) -> (u8, Vec<u8>) {
        let is_ipv6 = view.source.is_ipv6();
        match self.mode {
            Mode::Ipip => (if is_ipv6 { 41 } else { 4 }, Vec::new()),
            Mode::Gre => (47, [[0, 0], if is_ipv6 { [0x86, 0xdd] } else { [0x08, 0x00] }].concat()),
            Mode::Gue => {
                let length = view.ip_length as u16 + 8;
                (17, [hash::source_port(hash), GUE_PORT, length, 0].map(u16::to_be_bytes).concat())
            }
            Mode::Nat | Mode::Dsr => panic!("{} does not encapsulate", self.mode),
        }
    }

    fn ipv4(&self, [class, protocol]: [u8; 2], payload: usize, id: u16, fragment: u16, hash: u64) -> Vec<u8> {
        let length = payload as u16 + 20;
        let mut outer = vec![0x45, class];
        outer.extend([length, id, fragment].map(u16::to_be_bytes).concat());
        outer.extend([TTL, protocol, 0, 0]);
        let mask = self.spread.ipv4.octets();
        outer.extend(spread(&octets(self.source), &mask, &hash::spread_ipv4(hash)));
        outer.extend(octets(self.destination));
        let right = checksum(&outer);
        put(&mut outer, 10, right);
        outer
    }

    fn ipv6(&self, [class, protocol]: [u8; 2], payload: usize, hash: u64) -> Vec<u8> {
        let first = 6 << 28 | u32::from(class) << 20 | hash::flow_label(hash);
        let mut outer = first.to_be_bytes().to_vec();
        outer.extend((payload as u16).to_be_bytes());
        outer.extend([protocol, TTL]);
        let mask = self.spread.ipv6.octets();
        outer.extend(spread(&octets(self.source), &mask, &hash::spread_ipv6(hash)));
        outer.extend(octets(self.destination));
        outer
    }
}

impl Default for Spread {
    fn default() -> Self {
        Self { ipv4: Ipv4Addr::UNSPECIFIED, ipv6: Ipv6Addr::UNSPECIFIED }
    }
}

/// Pieces of one datagram share an identification; their outer packets must not, lest they be put together wrongly where they are
/// fragmented once more. As in [`hash`], words are taken as little-endian ones.
fn identification(inner: &[u8]) -> u16 {
    let place = (word(inner, 6) & 0x3fff).swap_bytes();
    word(inner, 4).swap_bytes().wrapping_add(place.wrapping_mul(0x9e37)).swap_bytes()
}

/// The prefix, with the bits of the flow where the mask is set.
fn spread(prefix: &[u8], mask: &[u8], bits: &[u8]) -> Vec<u8> {
    prefix.iter().zip(mask).zip(bits).map(|((prefix, mask), bits)| prefix & !mask | bits & mask).collect()
}
