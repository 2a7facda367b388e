//! The load balancer: what `xdp_lb` must do.

use tidegate::model::Mode;

use super::{
    Action, Backend, BackendState, Flow, Handoff, Kind, NextHop, Node, Outcome, Reason, Route,
    encapsulate::{Tunnel, overhead},
    hash::{five_tuple, hosts, rehash, slot_index},
    rewrite::{End, is_ttl_used_up, set_macs, translate},
    view::{self, Fragment, View},
};

/// Backends that are tried where the client's port is in use towards the first through another service.
const ATTEMPTS: usize = 16;

/// What is decided about a packet: [`Outcome`] without what every packet has.
struct Verdict {
    action: Action,
    frame: Vec<u8>,
    metadata: Option<Handoff>,
    reason: Reason,
    redirect: Option<u32>,
}

impl Verdict {
    fn new(reason: Reason, action: Action, frame: Vec<u8>) -> Self {
        Self { action, frame, metadata: None, reason, redirect: None }
    }

    /// Passed or dropped as it came.
    fn untouched(reason: Reason, frame: &[u8]) -> Self {
        let action = if reason.is_dropped() { Action::Drop } else { Action::Pass };
        Self::new(reason, action, frame.to_vec())
    }
}

impl Node {
    /// What becomes of a frame that arrives on an interface.
    pub fn xdp_lb(&mut self, frame: &[u8], ingress_ifindex: u32) -> Outcome {
        let (seen, view) = view::read(frame);
        let (verdict, service, backend) = match view {
            Err(reason) => (Verdict::untouched(reason, frame), None, None),
            Ok(view) => self.judge(frame, &view, ingress_ifindex),
        };
        let bytes = seen.map_or(0, |seen| seen.bytes());
        self.ledger.entry(0).or_default().count(verdict.reason, bytes);
        if let Some(id) = service {
            self.ledger.entry(id).or_default().count(verdict.reason, bytes);
        }
        let Verdict { action, frame, metadata, reason, redirect } = verdict;
        Outcome { action, frame, metadata, reason, service, backend, redirect, bytes }
    }

    fn judge(&mut self, frame: &[u8], view: &View, ingress: u32) -> (Verdict, Option<u32>, Option<u16>) {
        if let Some(id) = self.find_service(view.destination, view.protocol) {
            let (verdict, backend) = self.request(frame, view, ingress, id);
            return (verdict, Some(id), backend);
        }
        if self.is_nat_backend(view.source, view.protocol) {
            return self.reply(frame, view, ingress);
        }
        (Verdict::untouched(Reason::PassNoService, frame), None, None)
    }

    /// A packet for a service.
    fn request(&mut self, frame: &[u8], view: &View, ingress: u32, id: u32) -> (Verdict, Option<u16>) {
        if !view.lengths_agree(frame) {
            return (Verdict::untouched(Reason::DropBadLength, frame), None);
        }
        if view.source == view.destination {
            return (Verdict::untouched(Reason::DropBogon, frame), None);
        }
        let hash = five_tuple(view.source, view.destination, view.protocol);
        let mode = self.services[&id].mode;
        let chosen =
            if mode == Mode::Nat { self.choose_tracked(id, hash, view) } else { self.choose(id, hash) };
        let number = match chosen {
            Ok(number) => number,
            Err(reason) => return (Verdict::untouched(reason, frame), None),
        };
        let backend = self.services[&id].backends[&number];
        let hash = match view.fragment {
            Fragment::Whole => hash,
            // All pieces of a datagram look alike from outside.
            Fragment::First | Fragment::Later => hosts(view.source.ip(), view.destination.ip()),
        };
        let verdict = self.send(frame, view, mode, &backend, ingress, hash);
        if verdict.reason.is_forwarded() {
            let counters = self.backend_counters.entry((id, number)).or_default();
            *counters = (counters.0 + 1, counters.1 + view.ip_length as u64);
        }
        (verdict, Some(number))
    }

    /// The backend that the table of a service names for a hash.
    fn choose(&self, id: u32, hash: u64) -> Result<u16, Reason> {
        let service = &self.services[&id];
        let number = match service.table.get(slot_index(hash, service.table.len())) {
            None | Some(0) => return Err(Reason::DropNoBackend),
            Some(number) => *number,
        };
        match service.backends.get(&number) {
            None => Err(Reason::DropInternal),
            Some(backend) if serves(backend) => Ok(number),
            Some(_) => Err(Reason::DropBackendDown),
        }
    }

    /// The backend of a tracked flow; a new flow is recorded.
    fn choose_tracked(&mut self, id: u32, hash: u64, view: &View) -> Result<u16, Reason> {
        let (client, protocol) = (view.source, view.protocol);
        let is_tcp = protocol == 6;
        if let Some((place, flow)) = self.flows.find_request(client, protocol, id)
            && self.services[&id].backends.get(&flow.backend).is_some_and(serves)
        {
            self.flows.touch(place, view.tcp_flags, is_tcp, true);
            return Ok(flow.backend);
        }
        let mut hash = hash;
        for _ in 0..ATTEMPTS {
            let number = self.choose(id, hash)?;
            let address = self.services[&id].backends[&number].address;
            let in_use = self.flows.find_reply(client, protocol, |service, number| {
                service != id && self.backend_is(service, number, address, protocol)
            });
            if in_use.is_some() {
                hash = rehash(hash);
                continue;
            }
            let place = self.flows.vacancy(client, protocol, id).ok_or(Reason::DropFlowTableFull)?;
            let kind = Kind::of_first(is_tcp.then_some(view.tcp_flags));
            let flow = Flow { client, protocol, service: id, backend: number, kind, tick: self.flows.now };
            self.flows.record(place, flow);
            return Ok(number);
        }
        Err(Reason::DropFlowConflict)
    }

    /// A packet from a NAT backend.
    fn reply(&mut self, frame: &[u8], view: &View, ingress: u32) -> (Verdict, Option<u32>, Option<u16>) {
        if !view.lengths_agree(frame) {
            return (Verdict::untouched(Reason::PassMalformed, frame), None, None);
        }
        let found = self.flows.find_reply(view.destination, view.protocol, |service, number| {
            self.backend_is(service, number, view.source, view.protocol)
        });
        let Some((place, flow)) = found else {
            return (Verdict::untouched(Reason::PassNotAReply, frame), None, None);
        };
        self.flows.touch(place, view.tcp_flags, view.protocol == 6, false);
        let verdict = self.send_reply(frame, view, &flow, ingress);
        (verdict, Some(flow.service), Some(flow.backend))
    }

    fn send_reply(&self, frame: &[u8], view: &View, flow: &Flow, ingress: u32) -> Verdict {
        if is_ttl_used_up(frame, view) {
            return Verdict::untouched(Reason::DropTtlExpired, frame);
        }
        let mut translated = frame.to_vec();
        translate(&mut translated, view, End::Source, self.services[&flow.service].address, 1);
        match self.routes.get(&view.destination.ip()).copied().unwrap_or(Route::NotForwarded) {
            Route::Resolved { mtu, .. } | Route::NoNeighbour { mtu, .. }
                if view.ip_length > usize::from(mtu) =>
            {
                Verdict::untouched(Reason::DropTooBig, frame)
            }
            Route::Resolved { interface, source_mac, destination_mac, .. } => {
                let kind = view::word(&translated, view.link - 2).to_be_bytes();
                // Interfaces of the tests are devices: the tags that the reply came with are those of another way.
                let macs = [destination_mac, source_mac].concat();
                let translated = [&macs, &kind[..], &translated[view.link..]].concat();
                transmit(translated, interface, ingress, Reason::ForwardReplyTx, Reason::ForwardReplyRedirect)
            }
            Route::NoNeighbour { interface, .. } => Verdict {
                metadata: Some(Handoff { ingress, interface, next_hop: None }),
                ..Verdict::new(
                    Reason::ForwardReplyHandoff,
                    Action::Pass,
                    [&translated[..12], &translated[view.link - 2..]].concat(),
                )
            },
            Route::NotForwarded => Verdict::untouched(Reason::DropReplyNoRoute, frame),
            Route::ForwardingDisabled => Verdict::untouched(Reason::DropForwardingDisabled, frame),
            Route::Unreachable => Verdict::untouched(Reason::DropReplyNoRoute, frame),
        }
    }

    /// Sends a packet to a backend.
    fn send(
        &self,
        frame: &[u8],
        view: &View,
        mode: Mode,
        backend: &Backend,
        ingress: u32,
        hash: u64,
    ) -> Verdict {
        let is_local = backend.next_hop == NextHop::Local;
        let overhead = overhead(mode, backend.address.is_ipv6());
        if !is_local && view.ip_length + overhead > usize::from(backend.mtu) {
            return Verdict::untouched(Reason::DropTooBig, frame);
        }
        let mut frame = frame.to_vec();
        if mode == Mode::Nat {
            if is_ttl_used_up(&frame, view) {
                return Verdict::untouched(Reason::DropTtlExpired, &frame);
            }
            translate(&mut frame, view, End::Destination, backend.address, 1);
        }
        if is_local {
            return Verdict::new(Reason::ForwardLocal, Action::Pass, frame);
        }
        let (kind, packet) = if mode.encapsulates() {
            let (source, destination, spread) = (backend.source, backend.address.ip(), self.spread);
            Tunnel { mode, source, destination, spread }.wrap(&frame, view, hash)
        } else {
            (view::word(&frame, view.link - 2), frame[view.link..].to_vec())
        };
        // The kernel puts on the tags of the way it takes, and would send those on that the frame came with.
        let untagged = |packet| [&frame[..12], &kind.to_be_bytes(), packet].concat();
        match backend.next_hop {
            NextHop::Local => unreachable!("handled above"),
            NextHop::Resolved { interface, source_mac, destination_mac } => {
                let macs = [destination_mac, source_mac].concat();
                let sent = [&macs, link_tags(backend).as_slice(), &kind.to_be_bytes(), &packet].concat();
                transmit(sent, interface, ingress, Reason::ForwardTx, Reason::ForwardRedirect)
            }
            NextHop::Unresolved { interface } => Verdict {
                // A DSR packet's destination is the service, so the note must name the backend.
                metadata: Some(Handoff {
                    ingress,
                    interface,
                    next_hop: (mode == Mode::Dsr).then_some(backend.address.ip()),
                }),
                ..Verdict::new(Reason::ForwardHandoff, Action::Pass, untagged(&packet))
            },
            NextHop::NoRoute if mode == Mode::Nat => {
                Verdict::new(Reason::ForwardHandoff, Action::Pass, frame)
            }
            NextHop::NoRoute => Verdict::untouched(Reason::DropUnresolved, &frame),
        }
    }
}

fn serves(backend: &Backend) -> bool {
    matches!(backend.state, BackendState::Up | BackendState::Draining)
}

/// The tags towards a backend, each with its ethertype.
fn link_tags(backend: &Backend) -> Vec<u8> {
    let outer: u16 = if backend.has_service_tag { 0x88a8 } else { 0x8100 };
    let tags = [outer, 0x8100].into_iter().zip(backend.tags).filter(|(_, tag)| *tag != 0);
    tags.flat_map(|(kind, tag)| [kind, tag].map(u16::to_be_bytes).concat()).collect()
}

fn transmit(frame: Vec<u8>, interface: u32, ingress: u32, back: Reason, across: Reason) -> Verdict {
    if interface == ingress {
        Verdict::new(back, Action::Tx, frame)
    } else {
        Verdict { redirect: Some(interface), ..Verdict::new(across, Action::Redirect, frame) }
    }
}
