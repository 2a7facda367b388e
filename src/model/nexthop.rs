//! How packets get to an address: what the kernel's routing and neighbour tables say, as plain data.

use std::net::IpAddr;

/// The egress side of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Index of the interface packets leave by.
    pub interface: u32,
    /// Name of that interface.
    pub interface_name: String,
    /// MAC address of that interface.
    pub source_mac: [u8; 6],
    /// MTU of that interface or of the route where it is smaller, in bytes from the IP header on.
    pub mtu: u32,
    /// The address this node would use as source.
    pub source: IpAddr,
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
    /// There is no route, or the neighbour has not answered (yet).
    Unresolved {
        /// The egress side, where at least a route is known.
        route: Option<Route>,
        /// Why, in words for an operator.
        reason: String,
    },
}
