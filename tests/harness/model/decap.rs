//! The backend's side of a tunnel: what `xdp_decap` must do.

use super::{
    Action, Node, Outcome, Reason,
    rewrite::put,
    view::{Fragment, IpHeader, Seen, read_ip, read_link, word},
};

use crate::harness::frame::checksum::{checksum, transport_checksum};

impl Node {
    /// What becomes of a frame that arrives at a backend.
    pub fn xdp_decap(&mut self, frame: &[u8]) -> Outcome {
        let (outer, verdict) = self.judge_tunnel(frame);
        let bytes = outer.map_or(0, |seen| seen.bytes());
        let (action, reason, frame) = match verdict {
            Ok(inner) => (Action::Pass, Reason::ForwardDecapsulated, inner),
            Err(reason) if reason.is_dropped() => (Action::Drop, reason, frame.to_vec()),
            Err(reason) => (Action::Pass, reason, frame.to_vec()),
        };
        self.decap_ledger.count(reason, bytes);
        Outcome { action, frame, metadata: None, reason, service: None, backend: None, redirect: None, bytes }
    }

    /// The outer header, as far as there is one, and the frame without it, or why it is not taken off.
    fn judge_tunnel(&self, frame: &[u8]) -> (Option<Seen>, Result<Vec<u8>, Reason>) {
        let (link, is_ipv6) = match read_link(frame) {
            Ok(found) => found,
            Err(reason) => return (None, Err(reason)),
        };
        let packet = &frame[link..];
        match read_ip(packet, is_ipv6).filter(|ip| ip.length >= ip.header) {
            None => (None, Err(Reason::PassMalformed)),
            Some(ip) => {
                let inner = self.take_off(packet, &ip);
                let with_link = |(kind, inner): (u16, Vec<u8>)| {
                    // Tags stay, with the ethertype of what follows them now.
                    [&frame[..link - 2], &kind.to_be_bytes(), &inner].concat()
                };
                (Some(Seen { ip, present: packet.len() }), inner.map(with_link))
            }
        }
    }

    /// The ethertype of the inner packet, and its bytes with what stands behind it in the frame.
    fn take_off(&self, packet: &[u8], outer: &IpHeader) -> Result<(u16, Vec<u8>), Reason> {
        // Only the first fragment of a tunnelled packet could be recognised as one.
        if outer.fragment != Fragment::Whole {
            return Err(Reason::PassFragment);
        }
        let behind = packet.get(outer.header..).unwrap_or_default();
        let shim = read_shim(outer, behind)?;
        if !self.decap_addresses.contains(&outer.destination) {
            return Err(Reason::PassOuterNotLocal);
        }
        if outer.length > packet.len() {
            return Err(Reason::DropInnerMalformed);
        }
        if !are_sums_right(packet, outer, behind) {
            return Err(Reason::PassOuterChecksum);
        }
        let inside = behind.get(shim.length..).unwrap_or_default();
        let inner = read_ip(inside, shim.inner_is_ipv6)
            .filter(|inner| inner.length >= inner.header)
            .filter(|inner| inner.length <= shim.room)
            .ok_or(Reason::DropInnerMalformed)?;
        if !self.decap_addresses.contains(&inner.destination) {
            return Err(Reason::DropInnerNotLocal);
        }
        let mut inside = inside.to_vec();
        let marks =
            congestion(marks_of(packet, outer.destination.is_ipv6()), marks_of(&inside, shim.inner_is_ipv6));
        set_marks(&mut inside, shim.inner_is_ipv6, marks.ok_or(Reason::DropEcnConflict)?);
        Ok((if shim.inner_is_ipv6 { 0x86dd } else { 0x0800 }, inside))
    }
}

/// The checksums that nobody sees once the outer headers are off. That of UDP may be absent.
fn are_sums_right(packet: &[u8], outer: &IpHeader, behind: &[u8]) -> bool {
    if outer.destination.is_ipv4() && checksum(&packet[..outer.header]) != 0 {
        return false;
    }
    if outer.protocol != 17 || word(behind, 6) == 0 {
        return true;
    }
    let datagram = &behind[..usize::from(word(behind, 4))];
    transport_checksum(outer.source, outer.destination, 17, datagram) == 0
}

/// The two bits of Explicit Congestion Notification.
fn marks_of(packet: &[u8], is_ipv6: bool) -> u8 {
    if is_ipv6 { packet[1] >> 4 & 3 } else { packet[1] & 3 }
}

/// Figure 4 of RFC 6040; `None`: dropped.
fn congestion(outer: u8, inner: u8) -> Option<u8> {
    match (inner, outer) {
        (0, 3) => None,
        (0, _) => Some(0),
        (_, 3) | (3, _) => Some(3),
        (2, 1) => Some(1),
        _ => Some(inner),
    }
}

/// Changes the marks, and the header's checksum by as much.
fn set_marks(packet: &mut [u8], is_ipv6: bool, marks: u8) {
    if is_ipv6 {
        packet[1] = packet[1] & 0xcf | marks << 4;
        return;
    }
    let old = word(packet, 0);
    packet[1] = packet[1] & 0xfc | marks;
    let new = word(packet, 0);
    if old != new {
        let check = adjusted(word(packet, 10), old, new);
        put(packet, 10, check);
    }
}

/// The checksum after one word was replaced (RFC 1624, equation 3).
fn adjusted(check: u16, old: u16, new: u16) -> u16 {
    let mut sum = u32::from(!check) + u32::from(!old) + u32::from(new);
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// What stands between the outer IP header and the inner packet.
struct Shim {
    length: usize,
    inner_is_ipv6: bool,
    /// Bytes that there are for the inner packet.
    room: usize,
}

const GUE_PORT: u16 = 6080;

/// `behind` is what follows the outer IP header.
fn read_shim(outer: &IpHeader, behind: &[u8]) -> Result<Shim, Reason> {
    let payload = outer.length - outer.header;
    let shim = |length: usize, inner_is_ipv6, room: usize| Ok(Shim { length, inner_is_ipv6, room });
    match outer.protocol {
        4 => shim(0, false, payload),
        41 => shim(0, true, payload),
        47 if behind.len() < 4 => Err(Reason::PassMalformed),
        47 => match (word(behind, 0), word(behind, 2)) {
            // Without optional fields; those would be another's tunnel.
            (0, 0x0800) => shim(4, false, payload.saturating_sub(4)),
            (0, 0x86dd) => shim(4, true, payload.saturating_sub(4)),
            _ => Err(Reason::PassNotTunnelled),
        },
        17 if behind.len() > 8 && word(behind, 2) == GUE_PORT && matches!(behind[8] >> 4, 4 | 6) => {
            let datagram = usize::from(word(behind, 4));
            if !(8..=payload).contains(&datagram) {
                return Err(Reason::PassMalformed);
            }
            shim(8, behind[8] >> 4 == 6, datagram - 8)
        }
        _ => Err(Reason::PassNotTunnelled),
    }
}
