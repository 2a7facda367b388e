//! Outer headers: where they come from, and the port of GUE.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

/// The UDP port of Generic UDP Encapsulation (IANA).
pub const GUE_PORT: u16 = 6080;

/// What outer headers of the node's tunnels have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Encapsulation {
    /// Outer IPv4 source addresses, by flow; the node's own address where absent.
    pub source_v4: Option<SourcePrefix>,
    /// Outer IPv6 source addresses, by flow; the node's own address where absent.
    pub source_v6: Option<SourcePrefix>,
    /// UDP port that backends take GUE on.
    pub gue_port: u16,
}

impl Default for Encapsulation {
    fn default() -> Self {
        Self { source_v4: None, source_v6: None, gue_port: GUE_PORT }
    }
}

impl Encapsulation {
    /// The prefix for outer headers of a family.
    pub fn source(&self, ipv6: bool) -> Option<SourcePrefix> {
        if ipv6 { self.source_v6 } else { self.source_v4 }
    }
}

/// A prefix that source addresses are taken from. Its bits beyond the length are zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SourcePrefix {
    address: IpAddr,
    length: u8,
}

impl SourcePrefix {
    /// The prefix of this length that the address is in. A length beyond that of the address counts as its whole length.
    pub fn containing(address: IpAddr, length: u8) -> Self {
        match address {
            IpAddr::V4(v4) => {
                let length = length.min(32);
                let host = host_bits_v4(length);
                Self { address: Ipv4Addr::from(v4.to_bits() & !host).into(), length }
            }
            IpAddr::V6(v6) => {
                let length = length.min(128);
                let host = host_bits_v6(length);
                Self { address: Ipv6Addr::from(v6.to_bits() & !host).into(), length }
            }
        }
    }

    /// Its first address.
    pub const fn address(self) -> IpAddr {
        self.address
    }

    /// The bits in which its addresses differ, as an address of its family.
    pub fn host_bits(self) -> IpAddr {
        match self.address {
            IpAddr::V4(_) => Ipv4Addr::from(host_bits_v4(self.length)).into(),
            IpAddr::V6(_) => Ipv6Addr::from(host_bits_v6(self.length)).into(),
        }
    }
}

impl fmt::Display for SourcePrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.length)
    }
}

fn host_bits_v4(length: u8) -> u32 {
    u32::MAX.checked_shr(length.into()).unwrap_or(0)
}

fn host_bits_v6(length: u8) -> u128 {
    u128::MAX.checked_shr(length.into()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bits_of_a_prefix_are_those_beyond_its_length() {
        for (text, length, first, host) in [
            ("198.51.100.77", 24, "198.51.100.0", "0.0.0.255"),
            ("198.51.100.77", 32, "198.51.100.77", "0.0.0.0"),
            ("198.51.100.77", 8, "198.0.0.0", "0.255.255.255"),
            ("2001:db8:1:2:3::4", 64, "2001:db8:1:2::", "::ffff:ffff:ffff:ffff"),
            ("2001:db8::4", 128, "2001:db8::4", "::"),
        ] {
            let prefix = SourcePrefix::containing(text.parse().unwrap(), length);
            assert_eq!(prefix.address(), first.parse::<IpAddr>().unwrap());
            assert_eq!(prefix.host_bits(), host.parse::<IpAddr>().unwrap());
            assert_eq!(prefix.to_string(), format!("{first}/{length}"));
        }
    }
}
