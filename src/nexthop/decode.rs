//! Netlink messages as the plain data the rest of this module works with.

use std::net::IpAddr;

use netlink_packet_route::{
    AddressFamily,
    link::{
        InfoData, InfoKind, InfoVlan, LinkAttribute, LinkFlags, LinkInfo, LinkLayerType, LinkMessage,
        VlanProtocol, VlanQosMapping,
    },
    neighbour::{NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState},
    route::{RouteAddress, RouteAttribute, RouteMessage, RouteMetric, RouteType, RouteVia},
};

use super::{
    egress::{Kind, Vlan},
    tables::{Answer, Link, Mac, Neighbour, Path},
};

/// An interface by its index; `None` for messages that describe a bridge port or the like.
pub(super) fn link(message: LinkMessage) -> Option<(u32, Link)> {
    if message.header.interface_family != AddressFamily::Unspec {
        return None;
    }
    let flags = message.header.flags;
    let mut link = Link {
        name: String::new(),
        mac: None,
        mtu: 0,
        up: flags.contains(LinkFlags::Up),
        carrier: flags.contains(LinkFlags::LowerUp),
        loopback: flags.contains(LinkFlags::Loopback),
        kind: Kind::Device,
    };
    let ethernet = message.header.link_layer_type == LinkLayerType::Ether;
    let (mut below, mut elsewhere) = (None, false);
    for attribute in message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => link.name = name,
            LinkAttribute::Address(bytes) if ethernet => link.mac = Mac::try_from(bytes).ok(),
            LinkAttribute::Mtu(mtu) => link.mtu = mtu,
            LinkAttribute::Link(index) => below = Some(index),
            LinkAttribute::LinkNetNsId(_) => elsewhere = true,
            LinkAttribute::LinkInfo(infos) => link.kind = kind(&infos),
            _ => {}
        }
    }
    if let Kind::Vlan(vlan) = &mut link.kind {
        // The index of a device in another network namespace means nothing in ours.
        vlan.below = below.filter(|_| !elsewhere);
    }
    Some((message.header.index, link))
}

/// What kind of device the driver says it is. Devices of hardware drivers say nothing.
fn kind(infos: &[LinkInfo]) -> Kind {
    let name = infos.iter().find_map(|info| match info {
        LinkInfo::Kind(kind) => Some(kind),
        _ => None,
    });
    let data = infos.iter().find_map(|info| match info {
        LinkInfo::Data(InfoData::Vlan(attributes)) => Some(attributes.as_slice()),
        _ => None,
    });
    match (name, data) {
        (None, _) => Kind::Device,
        (Some(InfoKind::Vlan), data) => Kind::Vlan(vlan(data.unwrap_or_default())),
        (Some(InfoKind::Veth), _) => Kind::Device,
        (Some(other), _) => Kind::Virtual(other.to_string()),
    }
}

fn vlan(attributes: &[InfoVlan]) -> Vlan {
    let mut vlan = Vlan { id: 0, priority: 0, service: false, below: None };
    for attribute in attributes {
        match attribute {
            InfoVlan::Id(id) => vlan.id = *id,
            InfoVlan::Protocol(protocol) => vlan.service = *protocol == VlanProtocol::Ieee8021Ad,
            InfoVlan::EgressQos(mappings) => {
                // What is forwarded in XDP has the priority that sockets have by default.
                let default = mappings.iter().find_map(|mapping| match mapping {
                    VlanQosMapping::Mapping(0, to) => Some(*to as u8 & 7),
                    _ => None,
                });
                vlan.priority = default.unwrap_or(0);
            }
            _ => {}
        }
    }
    vlan
}

/// A neighbour and what is known of it; `None` for proxies and for what is not an IP neighbour.
pub(super) fn neighbour(message: &NeighbourMessage) -> Option<(Neighbour, Answer)> {
    let header = &message.header;
    if header.flags.contains(NeighbourFlags::Proxy) {
        return None;
    }
    let mut address = None;
    let mut mac = None;
    for attribute in &message.attributes {
        match attribute {
            NeighbourAttribute::Destination(NeighbourAddress::Inet(v4)) => address = Some(IpAddr::V4(*v4)),
            NeighbourAttribute::Destination(NeighbourAddress::Inet6(v6)) => address = Some(IpAddr::V6(*v6)),
            NeighbourAttribute::LinkLayerAddress(bytes) => mac = Mac::try_from(bytes.as_slice()).ok(),
            _ => {}
        }
    }
    let answer = match (header.state, mac) {
        (NeighbourState::Failed, _) => Answer::Failed,
        (NeighbourState::Stale, Some(mac)) => Answer::Stale(mac),
        (
            NeighbourState::Reachable
            | NeighbourState::Delay
            | NeighbourState::Probe
            | NeighbourState::Permanent
            | NeighbourState::Noarp,
            Some(mac),
        ) => Answer::Confirmed(mac),
        _ => Answer::Awaited,
    };
    Some((Neighbour { interface: header.ifindex, address: address? }, answer))
}

/// What the kernel's routing says about `target`.
pub(super) fn path(target: IpAddr, message: &RouteMessage) -> Path {
    match message.header.kind {
        RouteType::Local | RouteType::Anycast => Path::Local,
        RouteType::Unicast => unicast(target, message),
        RouteType::Broadcast => no_path(format!("{target} is a broadcast address")),
        RouteType::Multicast => no_path(format!("{target} is a multicast address")),
        other => no_path(format!("the route to {target} is of the type {other:?}")),
    }
}

fn unicast(target: IpAddr, message: &RouteMessage) -> Path {
    let (mut interface, mut gateway, mut source, mut mtu) = (None, None, None, None);
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Oif(index) => interface = Some(*index),
            RouteAttribute::Gateway(address) => gateway = ip(address),
            RouteAttribute::Via(RouteVia::Inet(v4)) => gateway = Some(IpAddr::V4(*v4)),
            RouteAttribute::Via(RouteVia::Inet6(v6)) => gateway = Some(IpAddr::V6(*v6)),
            RouteAttribute::PrefSource(address) => source = ip(address),
            RouteAttribute::Metrics(metrics) => {
                mtu = metrics.iter().find_map(|metric| match metric {
                    RouteMetric::Mtu(mtu) => Some(*mtu),
                    _ => None,
                });
            }
            RouteAttribute::EncapType(kind) => {
                return no_path(format!(
                    "the route to {target} encapsulates packets ({kind:?}), which only the kernel can"
                ));
            }
            _ => {}
        }
    }
    match (interface, source) {
        (None, _) => no_path(format!("the route to {target} names no interface")),
        (Some(_), None) => {
            let family = if target.is_ipv4() { "IPv4" } else { "IPv6" };
            no_path(format!(
                "this node has no {family} address to reach {target} from; give its interface one"
            ))
        }
        (Some(interface), Some(source)) => {
            Path::Via { neighbour: Neighbour { interface, address: gateway.unwrap_or(target) }, source, mtu }
        }
    }
}

fn no_path(reason: String) -> Path {
    Path::None { reason }
}

fn ip(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(v4) => Some(IpAddr::V4(*v4)),
        RouteAddress::Inet6(v6) => Some(IpAddr::V6(*v6)),
        _ => None,
    }
}

/// First and last address of the prefix a route is for; `None` for routes of other families.
pub(super) fn prefix(message: &RouteMessage) -> Option<(IpAddr, IpAddr)> {
    let length = u32::from(message.header.destination_prefix_length);
    let destination = message.attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Destination(address) => ip(address),
        _ => None,
    });
    match (message.header.address_family, destination) {
        (AddressFamily::Inet, None) => Some(([0; 4].into(), [255; 4].into())),
        (AddressFamily::Inet6, None) => Some(([0; 16].into(), [255; 16].into())),
        (AddressFamily::Inet, Some(IpAddr::V4(first))) => {
            let host = u32::MAX.checked_shr(length).unwrap_or(0);
            Some((first.into(), IpAddr::V4((first.to_bits() | host).into())))
        }
        (AddressFamily::Inet6, Some(IpAddr::V6(first))) => {
            let host = u128::MAX.checked_shr(length).unwrap_or(0);
            Some((first.into(), IpAddr::V6((first.to_bits() | host).into())))
        }
        _ => None,
    }
}
