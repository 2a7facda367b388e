//! Rewriting of frames: translation, encapsulation, MAC addresses.
//!
//! Checksums are computed from scratch over the packet before and after a change. What is written is
//! `right(after) + (found(before) - right(before))` in one's complement, so a packet that came with a right checksum leaves
//! with a right one, and one that came damaged stays damaged by the same amount: a load balancer must not make a broken
//! packet look sound. That is what RFC 1624's incremental update amounts to, without being it.

use std::net::{IpAddr, SocketAddr};

use super::view::{ETHERNET, View, word};
use crate::harness::frame::{
    MacAddress,
    checksum::{checksum, octets, transport_checksum},
};

/// Which end of the packet is replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Source,
    Destination,
}

/// True where the packet may not be forwarded any more.
pub fn is_ttl_used_up(frame: &[u8], view: &View) -> bool {
    frame[ttl_offset(view)] <= 1
}

/// Gives the packet another source or destination, and takes one off its TTL.
pub fn translate(frame: &mut [u8], view: &View, end: End, new: SocketAddr) {
    let before = frame.to_vec();
    let is_ipv6 = view.source.is_ipv6();
    let (width, first) = if is_ipv6 { (16, 8) } else { (4, 12) };
    let address = ETHERNET + first + if end == End::Source { 0 } else { width };
    let port = ETHERNET + view.ip_header + if end == End::Source { 0 } else { 2 };
    frame[address..address + width].copy_from_slice(&octets(new.ip()));
    frame[port..port + 2].copy_from_slice(&new.port().to_be_bytes());
    frame[ttl_offset(view)] -= 1;
    if !is_ipv6 {
        let header = |frame: &[u8]| without(&frame[ETHERNET..ETHERNET + view.ip_header], 10);
        let found = word(&before, ETHERNET + 10);
        let carried = carry_over(found, checksum(&header(&before)), checksum(&header(frame)));
        put(frame, ETHERNET + 10, carried);
    }
    let (source, destination) = match end {
        End::Source => (new.ip(), view.destination.ip()),
        End::Destination => (view.source.ip(), new.ip()),
    };
    update_transport(&before, frame, view, source, destination);
}

fn update_transport(before: &[u8], frame: &mut [u8], view: &View, source: IpAddr, destination: IpAddr) {
    let start = ETHERNET + view.ip_header;
    let is_udp = view.protocol == 17;
    // UDP has a length of its own; what stands behind it in the IP packet is not covered.
    let end = if is_udp { start + view.transport_length } else { ETHERNET + view.ip_length };
    let field = if is_udp { 6 } else { 16 };
    let found = word(before, start + field);
    if is_udp && found == 0 {
        return;
    }
    let right = |frame: &[u8], source, destination| {
        transport_checksum(source, destination, view.protocol, &without(&frame[start..end], field))
    };
    let old = right(before, view.source.ip(), view.destination.ip());
    let new = right(frame, source, destination);
    let carried = carry_over(found, old, new);
    put(frame, start + field, if is_udp && carried == 0 { 0xffff } else { carried });
}

/// The checksum that is wrong for the new packet by as much as `found` was for the old one.
fn carry_over(found: u16, old_right: u16, new_right: u16) -> u16 {
    const MODULUS: u32 = 0xffff;
    ((u32::from(new_right) + u32::from(found) + MODULUS - u32::from(old_right)) % MODULUS) as u16
}

/// Puts the packet into an outer header. What stands behind the packet in the frame stays there.
pub fn encapsulate(
    frame: &[u8],
    view: &View,
    source: IpAddr,
    destination: IpAddr,
    flow_label: u32,
) -> Vec<u8> {
    let inner = &frame[ETHERNET..];
    let inner_is_ipv6 = view.source.is_ipv6();
    let number = if inner_is_ipv6 { 41 } else { 4 };
    let class = if inner_is_ipv6 { inner[0] << 4 | inner[1] >> 4 } else { inner[1] };
    let (kind, outer) = match (source, destination) {
        (IpAddr::V4(_), IpAddr::V4(_)) => {
            let (identification, dont_fragment) =
                if inner_is_ipv6 { (0, 0x4000) } else { (word(inner, 4), word(inner, 6) & 0x4000) };
            let mut outer = vec![0x45, class];
            outer.extend((view.ip_length as u16 + 20).to_be_bytes());
            outer.extend(identification.to_be_bytes());
            outer.extend(dont_fragment.to_be_bytes());
            outer.extend([64, number, 0, 0]);
            outer.extend(octets(source));
            outer.extend(octets(destination));
            let right = checksum(&outer);
            put(&mut outer, 10, right);
            (0x0800u16, outer)
        }
        (IpAddr::V6(_), IpAddr::V6(_)) => {
            let first = 6 << 28 | u32::from(class) << 20 | flow_label & 0xf_ffff;
            let mut outer = first.to_be_bytes().to_vec();
            outer.extend((view.ip_length as u16).to_be_bytes());
            outer.extend([number, 64]);
            outer.extend(octets(source));
            outer.extend(octets(destination));
            (0x86dd, outer)
        }
        _ => panic!("{source} and {destination} are of different families"),
    };
    [&frame[..12], &kind.to_be_bytes(), &outer, inner].concat()
}

/// Replaces the MAC addresses.
pub fn set_macs(frame: &mut [u8], destination: MacAddress, source: MacAddress) {
    frame[..6].copy_from_slice(&destination);
    frame[6..12].copy_from_slice(&source);
}

fn ttl_offset(view: &View) -> usize {
    ETHERNET + if view.source.is_ipv6() { 7 } else { 8 }
}

/// The bytes with a checksum field of zero.
fn without(bytes: &[u8], field: usize) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    put(&mut bytes, field, 0);
    bytes
}

fn put(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}
