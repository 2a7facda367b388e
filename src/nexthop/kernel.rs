//! The netlink sockets: one that asks, one that listens. Requests and their answers, one function each.

use std::{future::Future, io, net::IpAddr, time::Duration};

use futures_util::StreamExt;
use netlink_packet_route::{
    AddressFamily, RouteNetlinkMessage,
    link::{LinkAttribute, LinkExtentMask, LinkMessage},
    neighbour::{NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage},
    route::{RouteAddress, RouteAttribute, RouteMessage},
};
use nix::{
    errno::Errno,
    sys::socket::{setsockopt, sockopt},
};
use rtnetlink::{
    Handle, MulticastGroup, new_connection, new_multicast_connection,
    packet_core::{
        NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_REPLACE, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload,
    },
    sys::AsyncSocket,
};
use tokio::{sync::mpsc, task::AbortHandle, time::timeout};

use super::{
    decode,
    tables::{Answer, Link, Neighbour, Path},
};

type Message = NetlinkMessage<RouteNetlinkMessage>;

/// Everything that can change how packets get somewhere.
const GROUPS: [MulticastGroup; 8] = [
    MulticastGroup::Link,
    MulticastGroup::Neigh,
    MulticastGroup::Ipv4Route,
    MulticastGroup::Ipv6Route,
    MulticastGroup::Ipv4Ifaddr,
    MulticastGroup::Ipv6Ifaddr,
    MulticastGroup::Ipv4Rule,
    MulticastGroup::Ipv6Rule,
];
/// Room for bursts of events, in bytes. What does not fit is noticed and leads to a full check.
const EVENT_BUFFER: usize = 8 << 20;
/// The kernel answers at once; an answer that is not there after this long was lost or cannot be read.
const ANSWER_TIME: Duration = Duration::from_secs(5);

/// Something that happened to the kernel's tables.
pub(super) enum Event {
    /// Interfaces changed.
    Links,
    /// Addresses of this node or routing rules changed.
    Routing,
    /// A route to the addresses from the first to the last changed.
    Route(IpAddr, IpAddr),
    /// A neighbour changed.
    Neighbour(Neighbour, Answer),
    /// A neighbour was removed.
    NeighbourGone(Neighbour),
    /// Events were lost.
    Overrun,
    /// Nothing of interest.
    Other,
}

/// Why a request has no result.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    /// The kernel said no.
    #[error("the kernel refused a netlink request: {0}")]
    Refused(Errno),
    /// No answer came, or one that cannot be read.
    #[error("the kernel's answer to a netlink request did not come or could not be read")]
    Unanswered,
    /// The socket is broken.
    #[error("the netlink connection broke")]
    Lost,
}

/// Connections to the kernel, which end with this.
pub(super) struct Kernel {
    handle: Handle,
    events: mpsc::UnboundedReceiver<Event>,
    pub(super) tasks: [AbortHandle; 2],
}

impl Drop for Kernel {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

impl Kernel {
    /// Opens the sockets in the network namespace of this thread and subscribes to changes.
    pub(super) fn connect() -> io::Result<Self> {
        Self::connect_with(EVENT_BUFFER)
    }

    /// The same with so many bytes of room for events.
    pub(super) fn connect_with(event_buffer: usize) -> io::Result<Self> {
        let (mut listening, listener_handle, mut messages) = new_multicast_connection(&GROUPS)?;
        let socket = listening.socket_mut().socket_mut();
        // Beyond net.core.rmem_max only with CAP_NET_ADMIN; without it we take what there is.
        if setsockopt(&*socket, sockopt::RcvBufForce, &event_buffer).is_err() {
            let _ = setsockopt(&*socket, sockopt::RcvBuf, &event_buffer);
        }
        let (mut asking, handle, _) = new_connection()?;
        // A dump that ends without its end marker was cut short. It must not pass for a complete one.
        asking.set_forward_done(true);
        asking.set_forward_ack(true);
        let (sender, events) = mpsc::unbounded_channel();
        let listen = async move {
            // Held so that the connection lives on as long as it is listened to.
            let _handle = listener_handle;
            let mut listening = std::pin::pin!(listening);
            loop {
                tokio::select! {
                    () = &mut listening => break,
                    message = messages.next() => {
                        let Some((message, _)) = message else { break };
                        if sender.send(event(message)).is_err() {
                            break;
                        }
                    }
                }
            }
        };
        let tasks = [tokio::spawn(listen).abort_handle(), tokio::spawn(asking).abort_handle()];
        Ok(Self { handle, events, tasks })
    }

    /// The next event; fails when the connection broke.
    pub(super) async fn event(&mut self) -> Result<Event, Failure> {
        self.events.recv().await.ok_or(Failure::Lost)
    }

    /// The next event that is there already.
    pub(super) fn ready_event(&mut self) -> Option<Event> {
        self.events.try_recv().ok()
    }

    /// All interfaces by index.
    pub(super) async fn links(&self) -> Result<Vec<(u32, Link)>, Failure> {
        let mut request = LinkMessage::default();
        request.attributes.push(LinkAttribute::ExtMask(vec![LinkExtentMask::SkipStats]));
        let answers = self.ask(RouteNetlinkMessage::GetLink(request), NLM_F_DUMP).await?;
        let link = |message| match message {
            RouteNetlinkMessage::NewLink(link) => decode::link(link),
            _ => None,
        };
        Ok(answers.into_iter().filter_map(link).collect())
    }

    /// All neighbours.
    pub(super) async fn neighbours(&self) -> Result<Vec<(Neighbour, Answer)>, Failure> {
        let request = RouteNetlinkMessage::GetNeighbour(NeighbourMessage::default());
        let answers = self.ask(request, NLM_F_DUMP).await?;
        Ok(answers.iter().filter_map(neighbour).collect())
    }

    /// How packets to `target` leave this node.
    pub(super) async fn path(&self, target: IpAddr) -> Result<Path, Failure> {
        let mut request = RouteMessage::default();
        (request.header.address_family, request.header.destination_prefix_length) = match target {
            IpAddr::V4(_) => (AddressFamily::Inet, 32),
            IpAddr::V6(_) => (AddressFamily::Inet6, 128),
        };
        let destination = match target {
            IpAddr::V4(v4) => RouteAddress::Inet(v4),
            IpAddr::V6(v6) => RouteAddress::Inet6(v6),
        };
        request.attributes.push(RouteAttribute::Destination(destination));
        match self.ask(RouteNetlinkMessage::GetRoute(request), 0).await {
            Ok(answers) => Ok(answers
                .iter()
                .find_map(|answer| match answer {
                    RouteNetlinkMessage::NewRoute(route) => Some(decode::path(target, route)),
                    _ => None,
                })
                .unwrap_or_else(|| unreadable(target))),
            Err(Failure::Refused(errno)) => Ok(Path::None { reason: no_route(target, errno) }),
            Err(Failure::Unanswered) => Ok(unreadable(target)),
            Err(Failure::Lost) => Err(Failure::Lost),
        }
    }

    /// Asks the kernel to resolve a neighbour, or to confirm one that is stale, as if a packet were to be sent to it
    /// (`ip neigh ... use`). Says what is known of it then.
    ///
    /// Not for permanent neighbours: the kernel would make them ordinary ones.
    pub(super) async fn solicit(&self, neighbour: Neighbour) -> Result<Answer, Failure> {
        let mut request = neighbour_request(neighbour);
        request.header.flags = NeighbourFlags::Use;
        let flags = NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE;
        self.ask(RouteNetlinkMessage::NewNeighbour(request), flags).await?;
        let request = RouteNetlinkMessage::GetNeighbour(neighbour_request(neighbour));
        match self.ask(request, 0).await {
            Ok(answers) => {
                Ok(answers.iter().find_map(self::neighbour).map_or(Answer::Awaited, |(_, answer)| answer))
            }
            Err(Failure::Refused(_)) => Ok(Answer::Awaited),
            Err(failure) => Err(failure),
        }
    }

    async fn ask(
        &self,
        request: RouteNetlinkMessage,
        flags: u16,
    ) -> Result<Vec<RouteNetlinkMessage>, Failure> {
        let mut message = Message::from(request);
        message.header.flags = NLM_F_REQUEST | flags;
        let ends_with_marker = flags & (NLM_F_DUMP | NLM_F_ACK) != 0;
        let mut answers = self.handle.clone().request(message).map_err(|_| Failure::Lost)?;
        let mut all = Vec::new();
        loop {
            match within(answers.next()).await? {
                Some(answer) => match answer.payload {
                    NetlinkPayload::InnerMessage(message) => all.push(message),
                    NetlinkPayload::Done(done) if done.code == 0 => return Ok(all),
                    NetlinkPayload::Done(done) => {
                        return Err(Failure::Refused(Errno::from_raw(done.code.abs())));
                    }
                    NetlinkPayload::Error(error) if error.code.is_none() => return Ok(all),
                    NetlinkPayload::Error(error) => {
                        return Err(Failure::Refused(Errno::from_raw(error.raw_code().abs())));
                    }
                    _ => return Err(Failure::Unanswered),
                },
                None if ends_with_marker || all.is_empty() => return Err(Failure::Lost),
                None => return Ok(all),
            }
        }
    }
}

async fn within<T>(answer: impl Future<Output = T>) -> Result<T, Failure> {
    timeout(ANSWER_TIME, answer).await.map_err(|_| Failure::Unanswered)
}

fn neighbour_request(neighbour: Neighbour) -> NeighbourMessage {
    let mut request = NeighbourMessage::default();
    request.header.ifindex = neighbour.interface;
    request.header.family = match neighbour.address {
        IpAddr::V4(_) => AddressFamily::Inet,
        IpAddr::V6(_) => AddressFamily::Inet6,
    };
    request.attributes.push(NeighbourAttribute::Destination(NeighbourAddress::from(neighbour.address)));
    request
}

fn neighbour(message: &RouteNetlinkMessage) -> Option<(Neighbour, Answer)> {
    match message {
        RouteNetlinkMessage::NewNeighbour(neighbour) => decode::neighbour(neighbour),
        _ => None,
    }
}

fn event(message: Message) -> Event {
    match message.payload {
        NetlinkPayload::Overrun(_) => Event::Overrun,
        NetlinkPayload::InnerMessage(message) => match &message {
            RouteNetlinkMessage::NewLink(link) | RouteNetlinkMessage::DelLink(link)
                if link.header.interface_family == AddressFamily::Unspec =>
            {
                Event::Links
            }
            RouteNetlinkMessage::NewAddress(_)
            | RouteNetlinkMessage::DelAddress(_)
            | RouteNetlinkMessage::NewRule(_)
            | RouteNetlinkMessage::DelRule(_) => Event::Routing,
            RouteNetlinkMessage::NewRoute(route) | RouteNetlinkMessage::DelRoute(route) => {
                decode::prefix(route).map_or(Event::Other, |(first, last)| Event::Route(first, last))
            }
            RouteNetlinkMessage::NewNeighbour(_) => neighbour(&message)
                .map_or(Event::Other, |(neighbour, answer)| Event::Neighbour(neighbour, answer)),
            RouteNetlinkMessage::DelNeighbour(neighbour) => {
                decode::neighbour(neighbour).map_or(Event::Other, |(gone, _)| Event::NeighbourGone(gone))
            }
            _ => Event::Other,
        },
        _ => Event::Other,
    }
}

fn unreadable(target: IpAddr) -> Path {
    Path::None { reason: format!("the kernel's answer for the route to {target} could not be read") }
}

/// What the errors of a route look-up mean.
fn no_route(target: IpAddr, errno: Errno) -> String {
    match errno {
        Errno::ENETUNREACH | Errno::ESRCH => format!("there is no route to {target}"),
        Errno::EHOSTUNREACH => format!("a route of the type unreachable covers {target}"),
        Errno::EACCES => format!("a route or rule of the type prohibit covers {target}"),
        Errno::EINVAL => {
            format!("a route of the type blackhole covers {target}, or it is no address of a host")
        }
        _ => format!("the kernel finds no route to {target}: {errno}"),
    }
}
