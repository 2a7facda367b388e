//! The backend's side of a tunnel: what `xdp_decap` must do.

use super::{
    Action, Node, Outcome, Reason,
    view::{ETHERNET, IpHeader, family, read_ip},
};

impl Node {
    /// What becomes of a frame that arrives at a backend.
    pub fn xdp_decap(&mut self, frame: &[u8]) -> Outcome {
        let (outer, verdict) = self.judge_tunnel(frame);
        let bytes = outer.map_or(0, |ip| ip.length.min(frame.len() - ETHERNET)) as u64;
        let (action, reason, frame) = match verdict {
            Ok(inner) => (Action::Pass, Reason::ForwardDecapsulated, inner),
            Err(reason) if reason.is_dropped() => (Action::Drop, reason, frame.to_vec()),
            Err(reason) => (Action::Pass, reason, frame.to_vec()),
        };
        self.decap_ledger.count(reason, bytes);
        Outcome { action, frame, metadata: None, reason, service: None, backend: None, redirect: None, bytes }
    }

    /// The outer header, as far as there is one, and the frame without it, or why it is not taken off.
    fn judge_tunnel(&self, frame: &[u8]) -> (Option<IpHeader>, Result<Vec<u8>, Reason>) {
        let is_ipv6 = match family(frame) {
            Ok(is_ipv6) => is_ipv6,
            Err(reason) => return (None, Err(reason)),
        };
        let packet = &frame[ETHERNET..];
        match read_ip(packet, is_ipv6).filter(|ip| ip.length >= ip.header) {
            None => (None, Err(Reason::PassMalformed)),
            Some(outer) => (Some(outer), self.take_off(frame, packet, &outer)),
        }
    }

    fn take_off(&self, frame: &[u8], packet: &[u8], outer: &IpHeader) -> Result<Vec<u8>, Reason> {
        let (inner_is_ipv6, kind) = match outer.protocol {
            4 => (false, 0x0800u16),
            41 => (true, 0x86dd),
            _ => return Err(Reason::PassNotTunnelled),
        };
        if !self.decap_addresses.contains(&outer.destination) {
            return Err(Reason::PassOuterNotLocal);
        }
        if outer.is_fragment {
            return Err(Reason::PassFragment);
        }
        let inside = packet.get(outer.header..).unwrap_or_default();
        let inner = read_ip(inside, inner_is_ipv6)
            .filter(|inner| inner.length >= inner.header)
            .filter(|inner| outer.header + inner.length <= outer.length && outer.length <= packet.len())
            .ok_or(Reason::DropInnerMalformed)?;
        if !self.decap_addresses.contains(&inner.destination) {
            return Err(Reason::DropInnerNotLocal);
        }
        Ok([&frame[..12], &kind.to_be_bytes(), inside].concat())
    }
}
