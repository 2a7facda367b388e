//! Keys of the look-ups by address, port and protocol.

use super::{wire::protocol_from_number, *};

/// A backend address and protocol as the key of the IPv4 or IPv6 map.
pub(in crate::datapath) enum EndpointKey {
    V4(types::endpoint_v4),
    V6(types::endpoint_v6),
}

impl EndpointKey {
    pub(in crate::datapath) fn new(address: IpAddr, port: u16, protocol: Protocol) -> Self {
        let words = address_words(address);
        let (port, protocol) = (port.to_be(), protocol.number());
        match address {
            IpAddr::V4(_) => Self::V4(types::endpoint_v4 { address: words[0], port, protocol, pad: 0 }),
            IpAddr::V6(_) => Self::V6(types::endpoint_v6 { address: words, port, protocol, pad: 0 }),
        }
    }

    pub(in crate::datapath) fn bytes(&self) -> &[u8] {
        match self {
            Self::V4(key) => key.bytes(),
            Self::V6(key) => key.bytes(),
        }
    }

    /// The address, port and protocol in a key's bytes; `None` where the protocol is unknown.
    pub(in crate::datapath) fn parse(bytes: &[u8], ipv6: bool) -> Option<(IpAddr, u16, Protocol)> {
        let address_length = if ipv6 { 16 } else { 4 };
        let (address, rest) = bytes.split_at_checked(address_length)?;
        let address = match ipv6 {
            false => IpAddr::from(<[u8; 4]>::try_from(address).ok()?),
            true => IpAddr::from(<[u8; 16]>::try_from(address).ok()?),
        };
        let port = u16::from_be_bytes([*rest.first()?, *rest.get(1)?]);
        Some((address, port, protocol_from_number(*rest.get(2)?)?))
    }
}
