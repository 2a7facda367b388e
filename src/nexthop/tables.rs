//! What is known of links, routes and neighbours, and the rule that makes next hops of it. No input or output.

use std::{
    collections::{BTreeMap, HashMap},
    net::IpAddr,
    time::Duration,
};

use tokio::time::Instant;

use super::egress::{self, Kind};
use crate::model::{Egress, NextHop, Route};

/// An Ethernet address.
pub(super) type Mac = [u8; 6];

/// The last known MAC address of a neighbour that the kernel removed (it collects entries nobody uses, and XDP does not
/// count as use) serves this long, while the neighbour is asked for again.
const HOLD: Duration = Duration::from_secs(5);

/// An interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Link {
    pub name: String,
    /// Present on Ethernet interfaces only.
    pub mac: Option<Mac>,
    pub mtu: u32,
    /// Switched on by the administrator.
    pub up: bool,
    pub carrier: bool,
    pub loopback: bool,
    pub kind: Kind,
}

/// A host on a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Neighbour {
    pub interface: u32,
    pub address: IpAddr,
}

/// What the kernel knows of a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// Its MAC address, as good as it gets.
    Confirmed(Mac),
    /// Its MAC address, which nobody confirmed lately.
    Stale(Mac),
    /// It has been asked for, or not even that.
    Awaited,
    /// It has been asked for and did not answer.
    Failed,
}

/// How packets to a target leave this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Path {
    Local,
    Via {
        neighbour: Neighbour,
        source: IpAddr,
        /// Where the route has one of its own.
        mtu: Option<u32>,
    },
    None {
        reason: String,
    },
}

/// What should be done about a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Need {
    /// Its MAC address is not known.
    Resolve,
    /// Its MAC address should be confirmed.
    Refresh,
}

/// How packets get to a target, and whether that is about to change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Resolution {
    pub next_hop: NextHop,
    /// A neighbour has been asked for and has neither answered nor failed to.
    pub pending: bool,
}

#[derive(Clone, Debug)]
struct Entry {
    answer: Answer,
    held: Option<(Mac, Instant)>,
    /// It failed to answer since it last did.
    failed: bool,
    /// The kernel refused to ask for it, for this reason.
    refused: Option<String>,
}

/// Everything known.
#[derive(Default)]
pub(super) struct Tables {
    links: HashMap<u32, Link>,
    neighbours: HashMap<Neighbour, Entry>,
    /// By target.
    pub paths: BTreeMap<IpAddr, Path>,
}

impl Tables {
    /// Takes a dump of all interfaces. Says whether routes may lead elsewhere now.
    pub fn set_links(&mut self, links: HashMap<u32, Link>) -> bool {
        let working = |links: &HashMap<u32, Link>| {
            let mut all: Vec<_> = links
                .iter()
                .filter(|(_, link)| link.up)
                .map(|(index, link)| (*index, link.carrier))
                .collect();
            all.sort_unstable();
            all
        };
        let rerouted = working(&self.links) != working(&links);
        // Whoever was behind an interface that went away may not be there when it is back.
        let same = |index: &u32| match (self.links.get(index), links.get(index)) {
            (Some(old), Some(new)) => {
                new.up && new.carrier && old.name == new.name && old.mac == new.mac && old.kind == new.kind
            }
            _ => false,
        };
        for (neighbour, entry) in &mut self.neighbours {
            if !same(&neighbour.interface) {
                entry.held = None;
            }
        }
        self.neighbours.retain(|neighbour, _| links.contains_key(&neighbour.interface));
        self.links = links;
        rerouted
    }

    /// Takes a dump of all neighbours.
    pub fn set_neighbours(&mut self, dump: HashMap<Neighbour, Answer>, now: Instant) {
        let gone: Vec<_> =
            self.neighbours.keys().filter(|known| !dump.contains_key(known)).copied().collect();
        for neighbour in gone {
            self.remove_neighbour(neighbour, now);
        }
        for (neighbour, answer) in dump {
            self.set_neighbour(neighbour, answer, now);
        }
    }

    /// Takes news of one neighbour.
    pub fn set_neighbour(&mut self, neighbour: Neighbour, answer: Answer, now: Instant) {
        let Some(entry) = self.neighbours.get_mut(&neighbour) else {
            // That others asked in vain, at some time before, does not mean that it will not answer us.
            let answer = if answer == Answer::Failed { Answer::Awaited } else { answer };
            self.neighbours.insert(neighbour, Entry { answer, held: None, failed: false, refused: None });
            return;
        };
        match answer {
            Answer::Confirmed(_) | Answer::Stale(_) => {
                entry.held = None;
                entry.failed = false;
                entry.refused = None;
            }
            Answer::Awaited => entry.hold(now),
            Answer::Failed => {
                entry.held = None;
                entry.failed = true;
            }
        }
        entry.answer = answer;
    }

    /// Takes the news that the kernel has forgotten a neighbour. Its MAC address is still used for a while.
    pub fn remove_neighbour(&mut self, neighbour: Neighbour, now: Instant) {
        if let Some(entry) = self.neighbours.get_mut(&neighbour) {
            entry.hold(now);
            entry.answer = Answer::Awaited;
        }
    }

    /// Notes that the kernel refused to ask for a neighbour.
    pub fn refuse(&mut self, neighbour: Neighbour, reason: String, now: Instant) {
        self.set_neighbour(neighbour, Answer::Awaited, now);
        if let Some(entry) = self.neighbours.get_mut(&neighbour) {
            entry.refused = Some(reason);
        }
    }

    /// Forgets neighbours that are neither known to the kernel nor `wanted`.
    pub fn tidy(&mut self, wanted: impl Fn(&Neighbour) -> bool) {
        let known = |entry: &Entry| matches!(entry.answer, Answer::Confirmed(_) | Answer::Stale(_));
        self.neighbours.retain(|neighbour, entry| known(entry) || wanted(neighbour));
    }

    /// How frames leave for the interfaces that are not devices themselves.
    pub fn egress(&self) -> BTreeMap<u32, Egress> {
        egress::all(&self.links)
    }

    /// The neighbours that targets are reached by, and what each needs.
    pub fn needs(&self) -> HashMap<Neighbour, Option<Need>> {
        let neighbours = self.paths.values().filter_map(|path| match path {
            Path::Via { neighbour, .. } => Some(*neighbour),
            _ => None,
        });
        neighbours.map(|neighbour| (neighbour, self.need(&neighbour))).collect()
    }

    fn need(&self, neighbour: &Neighbour) -> Option<Need> {
        let link = self.links.get(&neighbour.interface)?;
        if link.unusable().is_some() || egress::find(neighbour.interface, &self.links).is_err() {
            return None;
        }
        match self.neighbours.get(neighbour).map(|entry| entry.answer) {
            Some(Answer::Confirmed(_)) => None,
            Some(Answer::Stale(_)) => Some(Need::Refresh),
            Some(Answer::Awaited | Answer::Failed) | None => Some(Need::Resolve),
        }
    }

    /// How packets get to `target`; `None` where it has not been looked up.
    pub fn resolve(&self, target: &IpAddr, now: Instant) -> Option<Resolution> {
        let settled = |next_hop| Resolution { next_hop, pending: false };
        let unresolved = |route, reason| settled(NextHop::Unresolved { route, reason });
        Some(match self.paths.get(target)? {
            Path::Local => settled(NextHop::Local),
            Path::None { reason } => unresolved(None, reason.clone()),
            Path::Via { neighbour, source, mtu } => match self.links.get(&neighbour.interface) {
                None => unresolved(
                    None,
                    format!(
                        "{target} is routed by interface {}, which the kernel does not list",
                        neighbour.interface
                    ),
                ),
                Some(link) => self.by_link(neighbour, link, *source, *mtu, now),
            },
        })
    }

    /// How packets get to a neighbour on a link that is there.
    fn by_link(
        &self,
        neighbour: &Neighbour,
        link: &Link,
        source: IpAddr,
        mtu: Option<u32>,
        now: Instant,
    ) -> Resolution {
        let interface = neighbour.interface;
        let egress = egress::find(interface, &self.links);
        let found = egress.as_ref().ok();
        let route = Route {
            interface,
            device: found.map_or(interface, |(device, _)| *device),
            tags: found.map(|(_, tags)| *tags).unwrap_or_default(),
            interface_name: link.name.clone(),
            source_mac: link.mac.unwrap_or_default(),
            mtu: mtu.map_or(link.mtu, |mtu| mtu.min(link.mtu)),
            source,
        };
        let reason = match (link.unusable(), egress) {
            (None, Ok(_)) => return self.last_step(neighbour, route, now),
            (Some(reason), _) | (None, Err(reason)) => reason,
        };
        // By an interface that only the kernel can send by, the kernel does: the route says which.
        let route = (!link.loopback).then_some(route);
        Resolution { next_hop: NextHop::Unresolved { route, reason }, pending: false }
    }

    fn last_step(&self, neighbour: &Neighbour, route: Route, now: Instant) -> Resolution {
        let entry = self.neighbours.get(neighbour);
        if let Some(destination_mac) = entry.and_then(|entry| entry.mac(now)) {
            return Resolution { next_hop: NextHop::Reachable { route, destination_mac }, pending: false };
        }
        let (reason, pending) = match entry {
            Some(Entry { refused: Some(reason), .. }) => (reason.clone(), false),
            Some(Entry { failed: true, .. }) => {
                (neighbour.describe("does not answer", &route.interface_name), false)
            }
            _ => (neighbour.describe("has not answered yet", &route.interface_name), true),
        };
        Resolution { next_hop: NextHop::Unresolved { route: Some(route), reason }, pending }
    }
}

impl Entry {
    fn mac(&self, now: Instant) -> Option<Mac> {
        match (self.answer, self.held) {
            (Answer::Confirmed(mac) | Answer::Stale(mac), _) => Some(mac),
            (Answer::Awaited, Some((mac, until))) if now < until => Some(mac),
            _ => None,
        }
    }

    fn hold(&mut self, now: Instant) {
        if let Answer::Confirmed(mac) | Answer::Stale(mac) = self.answer {
            self.held = Some((mac, now + HOLD));
        }
    }
}

impl Neighbour {
    fn describe(&self, what: &str, interface: &str) -> String {
        let protocol = if self.address.is_ipv4() { "ARP" } else { "neighbour discovery" };
        format!("{} {what} to {protocol} on {interface}", self.address)
    }
}

impl Link {
    /// Why packets cannot leave by it from XDP.
    fn unusable(&self) -> Option<String> {
        let Self { name, mac, up, carrier, .. } = self;
        match (mac, up, carrier) {
            (None, ..) => Some(format!("{name} is not an Ethernet interface")),
            (_, false, _) => Some(format!("{name} is down")),
            (_, _, false) => Some(format!("{name} has no carrier")),
            _ => None,
        }
    }
}
