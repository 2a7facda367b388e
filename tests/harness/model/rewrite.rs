//! Rewriting of frames: translation, MAC addresses.
//!
//! Checksums are computed from scratch over the packet before and after a change. What is written is
//! `right(after) + (found(before) - right(before))` in one's complement, so a packet that came with a right checksum leaves
//! with a right one, and one that came damaged stays damaged by the same amount: a load balancer must not make a broken
//! packet look sound. That is what RFC 1624's incremental update amounts to, without being it.

use std::net::{IpAddr, SocketAddr};

use super::view::{View, word};
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

/// Gives the packet another source or destination, and takes `hops` off its TTL.
pub fn translate(frame: &mut [u8], view: &View, end: End, new: SocketAddr, hops: u8) {
    let before = frame.to_vec();
    let is_ipv6 = view.source.is_ipv6();
    let (width, first) = if is_ipv6 { (16, 8) } else { (4, 12) };
    let address = view.link + first + if end == End::Source { 0 } else { width };
    let port = view.link + view.ip_header + if end == End::Source { 0 } else { 2 };
    frame[address..address + width].copy_from_slice(&octets(new.ip()));
    frame[port..port + 2].copy_from_slice(&new.port().to_be_bytes());
    frame[ttl_offset(view)] -= hops;
    if !is_ipv6 {
        let header = |frame: &[u8]| without(&frame[view.link..view.link + view.ip_header], 10);
        let found = word(&before, view.link + 10);
        let carried = carry_over(found, checksum(&header(&before)), checksum(&header(frame)));
        put(frame, view.link + 10, carried);
    }
    let (source, destination) = match end {
        End::Source => (new.ip(), view.destination.ip()),
        End::Destination => (view.source.ip(), new.ip()),
    };
    update_transport(&before, frame, view, source, destination);
}

fn update_transport(before: &[u8], frame: &mut [u8], view: &View, source: IpAddr, destination: IpAddr) {
    let start = view.link + view.ip_header;
    let is_udp = view.protocol == 17;
    // UDP has a length of its own; what stands behind it in the IP packet is not covered.
    let end = if is_udp { start + view.transport_length } else { view.link + view.ip_length };
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

/// Replaces the MAC addresses.
pub fn set_macs(frame: &mut [u8], destination: MacAddress, source: MacAddress) {
    frame[..6].copy_from_slice(&destination);
    frame[6..12].copy_from_slice(&source);
}

fn ttl_offset(view: &View) -> usize {
    view.link + if view.source.is_ipv6() { 7 } else { 8 }
}

/// The bytes with a checksum field of zero.
fn without(bytes: &[u8], field: usize) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    put(&mut bytes, field, 0);
    bytes
}

pub fn put(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}
