//! Tracked flows. Unlike the kernel's table, an entry here holds the client itself and not a tag of it, and time does not wrap.

use std::net::SocketAddr;

use super::hash;

/// Entries of a bucket.
pub const BUCKET: usize = 4;

/// What is known of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Kind {
    /// TCP, only a SYN seen.
    HalfOpen = 1,
    Established = 2,
    /// TCP, FIN or RST seen.
    Closing = 3,
    /// UDP.
    Datagram = 4,
}

/// A client's flow through a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    pub client: SocketAddr,
    pub protocol: u8,
    pub service: u32,
    /// Number of the backend within the service.
    pub backend: u16,
    pub kind: Kind,
    /// Tick of the last packet.
    pub tick: u64,
}

/// All tracked flows of a node.
#[derive(Clone, Debug)]
pub struct Flows {
    /// Keys the hash of clients.
    pub secret: [u64; 2],
    /// Ticks without a packet after which a flow is dead, by [`Kind`]; the first is unused.
    pub lifetime: [u64; 5],
    /// Now, in ticks.
    pub now: u64,
    buckets: Vec<[Option<Flow>; BUCKET]>,
}

/// Where an entry is.
pub type Place = (usize, usize);

impl Flows {
    /// An empty table. `buckets` is a power of two.
    pub fn new(buckets: usize) -> Self {
        assert!(buckets.is_power_of_two(), "{buckets} buckets");
        Self {
            secret: [0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210],
            lifetime: [0, 7, 2000, 14, 28],
            now: 1000,
            buckets: vec![[None; BUCKET]; buckets],
        }
    }

    /// Buckets of the table.
    pub fn buckets(&self) -> usize {
        self.buckets.len()
    }

    /// Every live flow, in no order that means anything.
    pub fn live(&self) -> Vec<Flow> {
        self.buckets.iter().flatten().flatten().filter(|flow| self.is_live(flow)).copied().collect()
    }

    /// The live flow of a client through a service.
    pub fn find_request(&self, client: SocketAddr, protocol: u8, service: u32) -> Option<(Place, Flow)> {
        self.of_client(client, protocol).find(|(_, flow)| flow.service == service && self.is_live(flow))
    }

    /// The live flow of a client for whose service and backend `is_backend` is true.
    pub fn find_reply(
        &self,
        client: SocketAddr,
        protocol: u8,
        is_backend: impl Fn(u32, u16) -> bool,
    ) -> Option<(Place, Flow)> {
        self.of_client(client, protocol)
            .find(|(_, flow)| self.is_live(flow) && is_backend(flow.service, flow.backend))
    }

    /// Where a new flow may be written: over an entry of its own, else over a free or dead one.
    pub fn vacancy(&self, client: SocketAddr, protocol: u8, service: u32) -> Option<Place> {
        let own = self
            .of_client(client, protocol)
            .find(|(_, flow)| flow.service == service)
            .map(|(place, _)| place);
        own.or_else(|| {
            self.places(client, protocol)
                .find(|place| self.at(*place).is_none_or(|flow| !self.is_live(&flow)))
        })
    }

    /// Records a new flow.
    pub fn record(&mut self, place: Place, flow: Flow) {
        self.buckets[place.0][place.1] = Some(flow);
    }

    /// Notes a packet of a flow. Only the client's packets establish or reopen a connection; either side may close it.
    pub fn touch(&mut self, place: Place, tcp_flags: u8, is_tcp: bool, from_client: bool) {
        let now = self.now;
        let Some(flow) = &mut self.buckets[place.0][place.1] else { return };
        flow.tick = now;
        let closes = tcp_flags & (FIN | RST) != 0;
        let opens = tcp_flags & SYN != 0;
        flow.kind = match flow.kind {
            _ if closes => Kind::Closing,
            Kind::HalfOpen if is_tcp && from_client && !opens => Kind::Established,
            Kind::Closing if is_tcp && from_client && opens => Kind::HalfOpen,
            kind => kind,
        };
    }

    fn is_live(&self, flow: &Flow) -> bool {
        self.now - flow.tick <= self.lifetime[flow.kind as usize]
    }

    fn at(&self, place: Place) -> Option<Flow> {
        self.buckets[place.0][place.1]
    }

    fn of_client(&self, client: SocketAddr, protocol: u8) -> impl Iterator<Item = (Place, Flow)> + '_ {
        self.places(client, protocol)
            .filter_map(|place| Some((place, self.at(place)?)))
            .filter(move |(_, flow)| (flow.client, flow.protocol) == (client, protocol))
    }

    /// The entries of the two buckets that a client's flows may be in.
    fn places(&self, client: SocketAddr, protocol: u8) -> impl Iterator<Item = Place> + use<> {
        let mask = self.buckets.len() - 1;
        let tag = hash::client(client, protocol, self.secret);
        let first = (tag >> 32) as usize & mask;
        let second = (first ^ (tag as u32 | 1) as usize) & mask;
        [first, second].into_iter().flat_map(|bucket| (0..BUCKET).map(move |entry| (bucket, entry)))
    }
}

const FIN: u8 = 0x01;
const SYN: u8 = 0x02;
const RST: u8 = 0x04;

impl Kind {
    /// What the first packet of a flow says about it.
    pub fn of_first(tcp_flags: Option<u8>) -> Self {
        match tcp_flags {
            None => Self::Datagram,
            Some(flags) if flags & (FIN | RST) != 0 => Self::Closing,
            Some(flags) if flags & SYN != 0 => Self::HalfOpen,
            Some(_) => Self::Established,
        }
    }
}
