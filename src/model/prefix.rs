//! Prefixes of IP addresses.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    str::FromStr,
};

/// The addresses that begin with the same bits: `192.0.2.0/24`, `2001:db8::/32`.
///
/// Ordered by family, then address, then length. The bits behind the length are zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Prefix {
    address: IpAddr,
    length: u8,
}

/// Why a text is not a prefix. Its text continues a sentence that begins with the text itself.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidPrefix {
    /// No address with or without a length.
    #[error("is not a prefix; write one like 192.0.2.0/24 or 2001:db8::/32, or a single address")]
    Malformed,
    /// More bits than an address has.
    #[error("has a length out of range; use 0 to {0}")]
    Length(u8),
    /// Bits beyond the length are set, so that it is not clear what is meant.
    #[error("has bits set beyond its length; write {0}, or the single address without a length")]
    HostBits(Prefix),
    /// An IPv4 address in IPv6 form, which no packet has.
    #[error("is an IPv4 address in IPv6 form; write it as IPv4")]
    Mapped,
}

impl Prefix {
    /// Every IPv4 address.
    pub const ALL_IPV4: Self = Self { address: IpAddr::V4(Ipv4Addr::UNSPECIFIED), length: 0 };
    /// Every IPv6 address.
    pub const ALL_IPV6: Self = Self { address: IpAddr::V6(Ipv6Addr::UNSPECIFIED), length: 0 };

    /// The addresses that share the first `length` bits with `address`, of which no later one may be set.
    ///
    /// # Errors
    /// [`InvalidPrefix`].
    pub fn new(address: IpAddr, length: u8) -> Result<Self, InvalidPrefix> {
        let bits = if address.is_ipv4() { 32 } else { 128 };
        if length > bits {
            return Err(InvalidPrefix::Length(bits));
        }
        if matches!(address, IpAddr::V6(address) if length >= 96 && address.to_ipv4_mapped().is_some()) {
            return Err(InvalidPrefix::Mapped);
        }
        let prefix = Self { address: masked(address, length), length };
        if prefix.address == address { Ok(prefix) } else { Err(InvalidPrefix::HostBits(prefix)) }
    }

    /// Its first address.
    pub const fn address(self) -> IpAddr {
        self.address
    }

    /// Bits that count.
    pub const fn length(self) -> u8 {
        self.length
    }

    /// True where it is one of IPv6 addresses.
    pub const fn is_ipv6(self) -> bool {
        self.address.is_ipv6()
    }

    /// True where `address` begins with it.
    pub fn contains(self, address: IpAddr) -> bool {
        address.is_ipv6() == self.is_ipv6() && masked(address, self.length) == self.address
    }
}

/// The address with all bits after the first `length` zero.
fn masked(address: IpAddr, length: u8) -> IpAddr {
    match address {
        IpAddr::V4(address) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0);
            Ipv4Addr::from_bits(address.to_bits() & mask).into()
        }
        IpAddr::V6(address) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0);
            Ipv6Addr::from_bits(address.to_bits() & mask).into()
        }
    }
}

impl FromStr for Prefix {
    type Err = InvalidPrefix;

    fn from_str(text: &str) -> Result<Self, InvalidPrefix> {
        let (address, length) = match text.split_once('/') {
            None => (text, None),
            Some((address, length)) => (address, Some(length)),
        };
        let address: IpAddr = address.parse().map_err(|_| InvalidPrefix::Malformed)?;
        let bits = if address.is_ipv4() { 32 } else { 128 };
        let length = match length {
            None => bits,
            Some(digits) if !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()) => {
                digits.parse().map_err(|_| InvalidPrefix::Length(bits))?
            }
            Some(_) => return Err(InvalidPrefix::Malformed),
        };
        Self::new(address, length)
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_operators_write_is_read() {
        for (text, shown) in [
            ("192.0.2.0/24", "192.0.2.0/24"),
            ("0.0.0.0/0", "0.0.0.0/0"),
            ("192.0.2.7", "192.0.2.7/32"),
            ("2001:db8::/32", "2001:db8::/32"),
            ("::/0", "::/0"),
            ("2001:DB8:0::7", "2001:db8::7/128"),
        ] {
            assert_eq!(text.parse::<Prefix>().unwrap().to_string(), shown);
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        let network = "192.0.2.0/24".parse().unwrap();
        for (text, error) in [
            ("192.0.2.1/24", InvalidPrefix::HostBits(network)),
            ("192.0.2.0/33", InvalidPrefix::Length(32)),
            ("192.0.2.0/999999999999", InvalidPrefix::Length(32)),
            ("2001:db8::/129", InvalidPrefix::Length(128)),
            ("192.0.2.0/", InvalidPrefix::Malformed),
            ("192.0.2.0/+8", InvalidPrefix::Malformed),
            ("192.0.2/24", InvalidPrefix::Malformed),
            ("", InvalidPrefix::Malformed),
            ("example.org", InvalidPrefix::Malformed),
            ("::ffff:192.0.2.1", InvalidPrefix::Mapped),
        ] {
            assert_eq!(text.parse::<Prefix>(), Err(error), "{text:?}");
        }
    }

    #[test]
    fn a_prefix_contains_what_begins_with_it() {
        let contains = |prefix: &str, address: &str| {
            prefix.parse::<Prefix>().unwrap().contains(address.parse().unwrap())
        };
        assert!(contains("192.0.2.128/25", "192.0.2.128") && contains("192.0.2.128/25", "192.0.2.255"));
        assert!(!contains("192.0.2.128/25", "192.0.2.127") && contains("0.0.0.0/0", "255.0.0.1"));
        assert!(
            contains("2001:db8::/33", "2001:db8:7fff::1") && !contains("2001:db8::/33", "2001:db8:8000::1")
        );
        assert!(!contains("0.0.0.0/0", "::1") && !contains("::/0", "192.0.2.1"));
    }
}
