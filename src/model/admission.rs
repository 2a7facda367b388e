//! Who may use services, and how much of them.

use std::sync::Arc;

use super::Prefix;

/// What holds for every service of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeAdmission {
    /// Sources that may not use services.
    pub blocklist: Vec<Prefix>,
    /// Sources that may; where it names a family, the others of that family may not. Of two prefixes that fit a source the longer
    /// one counts, and of two that are equal this one.
    pub allowlist: Vec<Prefix>,
    /// Packets for services are dropped where their source or their TCP flags cannot be sound.
    pub drop_bogons: bool,
}

/// What holds for one service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceAdmission {
    /// Which sources may use it; all where absent.
    pub sources: Option<Sources>,
    /// How much of it may be used.
    pub limits: Limits,
}

/// Sources of a service. Prefixes of the family that the service does not have say nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sources {
    /// Only these.
    Allow(Arc<[Prefix]>),
    /// All but these.
    Deny(Arc<[Prefix]>),
}

/// A token bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Tokens a second; 1 to [`Rate::HIGHEST`].
    pub per_second: u32,
    /// Tokens that a bucket holds.
    pub burst: u32,
}

impl Rate {
    /// The highest rate: above it the unit of time would be too coarse.
    pub const HIGHEST: u32 = 100_000_000;
    /// The clock of the packet path stands still for so many parts of a second: a burst must last that long.
    pub const TICKS_PER_SECOND: u32 = 100;

    /// The smallest burst with which the rate is reached.
    pub const fn smallest_burst(per_second: u32) -> u32 {
        per_second.div_ceil(Self::TICKS_PER_SECOND)
    }
}

/// Limits of a service: each of them must admit a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Packets of all sources.
    pub packets: Option<Rate>,
    /// New flows of all sources.
    pub new_flows: Option<Rate>,
    /// Packets of each source.
    pub source_packets: Option<Rate>,
    /// New flows of each source.
    pub source_new_flows: Option<Rate>,
    /// Bits of an IPv4 address that make a source; 0 to 32.
    pub prefix_v4: u8,
    /// Bits of an IPv6 address that make a source; 0 to 128.
    pub prefix_v6: u8,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            packets: None,
            new_flows: None,
            source_packets: None,
            source_new_flows: None,
            prefix_v4: 32,
            prefix_v6: 64,
        }
    }
}

impl Limits {
    /// True where nothing is limited.
    pub const fn is_none(&self) -> bool {
        self.packets.is_none()
            && self.new_flows.is_none()
            && self.source_packets.is_none()
            && self.source_new_flows.is_none()
    }
}
