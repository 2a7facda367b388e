//! Ports that a service has: one, a range of them, or all.

use std::fmt;

/// Ranges of ports, single ports not counted, that services may have at one address and protocol. The packet path finds
/// them in one cache line, `struct port_ranges` in `include/tidegate/records.h`.
pub const RANGES_PER_ADDRESS: usize = 8;

/// A port, a range of ports, or every port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortRange {
    first: u16,
    last: u16,
}

impl PortRange {
    /// Every port, 0 included.
    pub const ANY: Self = Self { first: 0, last: u16::MAX };

    /// A single port.
    pub const fn single(port: u16) -> Self {
        Self { first: port, last: port }
    }

    /// The ports from `first` to `last`, both included; `None` where there are none.
    pub const fn new(first: u16, last: u16) -> Option<Self> {
        if first <= last { Some(Self { first, last }) } else { None }
    }

    /// The lowest port.
    pub const fn first(self) -> u16 {
        self.first
    }

    /// The highest port.
    pub const fn last(self) -> u16 {
        self.last
    }

    /// The port, where it is only one.
    pub const fn as_single(self) -> Option<u16> {
        if self.first == self.last { Some(self.first) } else { None }
    }

    /// True where there are several, so that packets keep their port on the way to a backend.
    pub const fn is_range(self) -> bool {
        self.first < self.last
    }

    /// Ports less one. Of the services that have a port, the one with the smallest width gets its packets.
    pub const fn width(self) -> u16 {
        self.last - self.first
    }

    /// True where some port is in both.
    pub const fn overlaps(self, other: Self) -> bool {
        self.first <= other.last && other.first <= self.last
    }

    /// The port of a backend that is not said to have another: the single one, or 0 for "as in the packet".
    pub const fn backend_port(self) -> u16 {
        if self.is_range() { 0 } else { self.first }
    }
}

impl From<u16> for PortRange {
    fn from(port: u16) -> Self {
        Self::single(port)
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (*self, self.as_single()) {
            (Self::ANY, _) => f.write_str("*"),
            (_, Some(port)) => write!(f, "{port}"),
            _ => write!(f, "{}-{}", self.first, self.last),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_read_as_they_are_written() {
        assert_eq!(PortRange::single(80).to_string(), "80");
        assert_eq!(PortRange::new(8000, 8099).unwrap().to_string(), "8000-8099");
        assert_eq!(PortRange::ANY.to_string(), "*");
        assert_eq!(PortRange::new(1, u16::MAX).unwrap().to_string(), "1-65535");
        assert_eq!(PortRange::new(2, 1), None);
    }

    #[test]
    fn ranges_that_touch_at_one_port_overlap() {
        let range = |first, last| PortRange::new(first, last).unwrap();
        assert!(range(1, 10).overlaps(range(10, 20)) && range(10, 20).overlaps(range(1, 10)));
        assert!(!range(1, 9).overlaps(range(10, 20)) && !range(10, 20).overlaps(range(1, 9)));
        assert!(PortRange::ANY.overlaps(range(5, 6)) && range(5, 6).overlaps(PortRange::ANY));
        assert_eq!((PortRange::ANY.width(), range(80, 80).width()), (65535, 0));
    }
}
