//! What of a packet decides which backend it gets.

use std::{fmt, net::IpAddr};

use serde::{Deserialize, Serialize};

/// What of a packet decides which slot of its service's table it gets.
///
/// Prefix lengths are of the service's family: 1 to 32 for IPv4, 1 to 128 for IPv6.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HashMode {
    /// Both addresses, both ports and the protocol: every flow for itself.
    #[default]
    FiveTuple,
    /// The client's address alone: all flows of a client go to one backend.
    Source {
        /// Bits of the client's address that count.
        prefix: u8,
    },
    /// The client's address and the service's: the same, but independently for each service address.
    SourceDestination {
        /// Bits of the client's address that count.
        prefix: u8,
    },
}

impl HashMode {
    /// Its name in configuration and API.
    pub const fn name(self) -> &'static str {
        match self {
            Self::FiveTuple => "five-tuple",
            Self::Source { .. } => "source",
            Self::SourceDestination { .. } => "source-destination",
        }
    }

    /// Bits of the client's address that count, where not all of the flow does.
    pub const fn prefix(self) -> Option<u8> {
        match self {
            Self::FiveTuple => None,
            Self::Source { prefix } | Self::SourceDestination { prefix } => Some(prefix),
        }
    }

    /// Bits in an address of the family of `address`.
    pub const fn longest_prefix(address: IpAddr) -> u8 {
        if address.is_ipv4() { 32 } else { 128 }
    }
}

impl fmt::Display for HashMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
