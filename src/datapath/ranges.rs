//! The ranges of ports at one address and protocol: one element of the maps `ranges_v4` and `ranges_v6`.

use super::skeleton::types;
use crate::model::{PortRange, RANGES_PER_ADDRESS};

const _: () = assert!(RANGES_PER_ADDRESS == types::table_shape::RANGES_PER_ADDRESS.0 as usize);

/// Ranges of ports, each with the ID of its service, narrower ones first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RangeLine(Vec<(PortRange, u32)>);

impl RangeLine {
    /// What a map element holds. What cannot be a range is left out; packets do not find it either.
    pub(super) fn from_raw(raw: &types::port_ranges) -> Self {
        let used = raw.ranges.iter().take_while(|range| range.service != 0);
        Self(used.filter_map(|raw| Some((PortRange::new(raw.first, raw.last)?, raw.service))).collect())
    }

    pub(super) fn to_raw(&self) -> types::port_ranges {
        let mut raw = types::port_ranges::default();
        for (place, (ports, service)) in raw.ranges.iter_mut().zip(&self.0) {
            *place = types::port_range { first: ports.first(), last: ports.last(), service: *service };
        }
        raw
    }

    /// Leads a range to a service, in place of the one it led to before. Returns false where there is no room.
    pub(super) fn insert(&mut self, ports: PortRange, service: u32) -> bool {
        self.remove(ports);
        if self.0.len() >= RANGES_PER_ADDRESS {
            return false;
        }
        self.0.push((ports, service));
        self.0.sort_by_key(|(ports, _)| (ports.width(), ports.first()));
        true
    }

    pub(super) fn remove(&mut self, ports: PortRange) {
        self.0.retain(|(known, _)| *known != ports);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (PortRange, u32)> + '_ {
        self.0.iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(first: u16, last: u16) -> PortRange {
        PortRange::new(first, last).unwrap()
    }

    #[test]
    fn narrower_ranges_come_first_whatever_the_order_they_came_in() {
        let mut line = RangeLine::default();
        for (ports, service) in [(PortRange::ANY, 1), (range(8000, 8099), 2), (range(8010, 8019), 3)] {
            assert!(line.insert(ports, service));
        }
        let services: Vec<u32> = line.to_raw().ranges.iter().map(|range| range.service).collect();
        assert_eq!(services, [3, 2, 1, 0, 0, 0, 0, 0]);
        assert_eq!(RangeLine::from_raw(&line.to_raw()), line);
        line.remove(range(8000, 8099));
        assert_eq!(line.iter().collect::<Vec<_>>(), [(range(8010, 8019), 3), (PortRange::ANY, 1)]);
    }

    #[test]
    fn a_range_is_replaced_even_where_there_is_no_room_for_another() {
        let mut line = RangeLine::default();
        for number in 0..RANGES_PER_ADDRESS as u16 {
            assert!(line.insert(range(number * 100, number * 100 + 50), 1));
        }
        assert!(!line.clone().insert(PortRange::ANY, 2));
        assert!(line.insert(range(100, 150), 2));
        assert_eq!(line.iter().filter(|(_, service)| *service == 2).count(), 1);
    }

    #[test]
    fn what_packets_cannot_find_is_not_adopted() {
        let mut raw = types::port_ranges::default();
        raw.ranges[0] = types::port_range { first: 9, last: 8, service: 1 };
        raw.ranges[1] = types::port_range { first: 8, last: 9, service: 2 };
        raw.ranges[3] = types::port_range { first: 8, last: 9, service: 3 };
        assert_eq!(RangeLine::from_raw(&raw).iter().collect::<Vec<_>>(), [(range(8, 9), 2)]);
    }
}
