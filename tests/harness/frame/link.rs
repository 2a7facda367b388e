//! Layer 2: Ethernet, VLAN tags, ARP.

use std::net::Ipv4Addr;

/// A MAC address.
pub type MacAddress = [u8; 6];

/// Ethertypes.
pub mod ethertype {
    pub const IPV4: u16 = 0x0800;
    pub const ARP: u16 = 0x0806;
    /// A VLAN tag (802.1Q).
    pub const VLAN: u16 = 0x8100;
    pub const IPV6: u16 = 0x86dd;
    /// An outer VLAN tag of two (802.1ad).
    pub const SERVICE_VLAN: u16 = 0x88a8;
}

/// An Ethernet II header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ethernet {
    pub destination: MacAddress,
    pub source: MacAddress,
    /// The ethertype of what follows the header and its tags, where it is not that of the first IP header.
    pub ethertype: Option<u16>,
}

impl Default for Ethernet {
    fn default() -> Self {
        Self { destination: [2, 0, 0, 0, 0, 1], source: [2, 0, 0, 0, 0, 2], ethertype: None }
    }
}

/// A VLAN tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag {
    /// [`ethertype::VLAN`] or [`ethertype::SERVICE_VLAN`].
    pub kind: u16,
    /// Priority, drop eligibility and ID.
    pub control: u16,
}

impl Tag {
    /// A tag of 802.1Q.
    pub fn new(control: u16) -> Self {
        Self { kind: ethertype::VLAN, control }
    }

    /// A tag of 802.1ad.
    pub fn service(control: u16) -> Self {
        Self { kind: ethertype::SERVICE_VLAN, control }
    }
}

/// An ARP packet for IPv4 over Ethernet (RFC 826).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arp {
    pub ethernet: Ethernet,
    /// 1: request, 2: reply.
    pub operation: u16,
    pub sender_mac: MacAddress,
    pub sender: Ipv4Addr,
    pub target_mac: MacAddress,
    pub target: Ipv4Addr,
}

impl Arp {
    /// A broadcast question for the MAC address of `target`.
    pub fn request(sender_mac: MacAddress, sender: Ipv4Addr, target: Ipv4Addr) -> Self {
        let ethernet =
            Ethernet { destination: [0xff; 6], source: sender_mac, ethertype: Some(ethertype::ARP) };
        Self { ethernet, operation: 1, sender_mac, sender, target_mac: [0; 6], target }
    }
}
