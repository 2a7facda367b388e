//! How packets get to an address: what the kernel's routing and neighbour tables say, as plain data.

use std::net::IpAddr;

/// The egress side of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Index of the interface packets leave by, as the kernel's routing has it: where the neighbour is.
    pub interface: u32,
    /// Index of the device that frames leave by: the interface itself, or what is below its VLAN sub-interfaces.
    pub device: u32,
    /// VLAN tags of frames on that device.
    pub tags: VlanTags,
    /// Name of that interface.
    pub interface_name: String,
    /// MAC address of that interface; zero where it is not an Ethernet interface.
    pub source_mac: [u8; 6],
    /// MTU of that interface or of the route where it is smaller, in bytes from the IP header on.
    pub mtu: u32,
    /// The address this node would use as source.
    pub source: IpAddr,
}

/// The VLAN tags of frames on a device: none, one, or one of a provider with one of a customer in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct VlanTags {
    /// Priority and VLAN ID of each tag, the outer one first; 0: there is none. An inner tag is of 802.1Q.
    pub tci: [u16; 2],
    /// The outer tag is one of 802.1ad, not of 802.1Q.
    pub service: bool,
}

/// How frames leave for an interface that is not a device itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Egress {
    /// By the device with this index, with these tags.
    Device(u32, VlanTags),
    /// Only the kernel can send by it.
    Kernel,
}

/// How packets get to an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NextHop {
    /// The address is this node's own.
    Local,
    /// Interface and neighbour are known.
    Reachable {
        /// The egress side.
        route: Route,
        /// MAC address of the gateway, or of the address itself where it is on the link.
        destination_mac: [u8; 6],
    },
    /// There is no route, the neighbour has not answered (yet), or only the kernel can send by that interface.
    Unresolved {
        /// The egress side, where at least a route is known.
        route: Option<Route>,
        /// Why, in words for an operator.
        reason: String,
    },
}
