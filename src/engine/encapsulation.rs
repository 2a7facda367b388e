//! What outer headers of all tunnels have in common, changed together with the records that depend on it.

use super::Engine;
use crate::datapath::{Datapath, DatapathError, OuterSettings};

impl<D: Datapath> Engine<D> {
    /// Before records change. An outer source is joined from the record and the spread, so there is no spread while records
    /// may have ones where the spread does.
    pub(super) fn begin_encapsulation(&mut self) -> Result<(), DatapathError> {
        let wanted = OuterSettings::from(&self.encapsulation);
        let present = self.datapath.outer_settings();
        let same_spread = present == OuterSettings { gue_port: present.gue_port, ..wanted };
        let meanwhile = if same_spread { wanted } else { wanted.without_spread() };
        if present == meanwhile {
            return Ok(());
        }
        self.datapath.set_outer_settings(meanwhile)?;
        self.datapath.grace_period()
    }

    /// When all records are as they should be.
    pub(super) fn finish_encapsulation(&mut self) -> Result<(), DatapathError> {
        if !self.outer_settings_differ() {
            return Ok(());
        }
        self.datapath.grace_period()?;
        self.datapath.set_outer_settings(OuterSettings::from(&self.encapsulation))
    }

    /// True where what outer headers have in common is not yet as it should be.
    pub(super) fn outer_settings_differ(&self) -> bool {
        self.datapath.outer_settings() != OuterSettings::from(&self.encapsulation)
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, net::IpAddr};

    use super::*;
    use crate::{
        datapath::{Memory, Step},
        model::{
            Backend, BackendAddress, Encapsulation, HealthCheck, Mode, NextHop, OnNoBackend, Protocol, Route,
            Service, ServiceAddress, SourcePrefix, VlanTags,
        },
    };

    const OWN: &str = "192.0.2.1";
    const BACKEND: &str = "198.51.100.2";

    fn service(mode: Mode) -> Service {
        let backend = BackendAddress { address: BACKEND.parse().unwrap(), port: 80 };
        Service {
            name: "web".parse().unwrap(),
            address: ServiceAddress {
                address: "203.0.113.10".parse().unwrap(),
                ports: 80.into(),
                protocol: Protocol::Tcp,
            },
            mode,
            hash: crate::model::HashMode::FiveTuple,
            on_no_backend: OnNoBackend::Drop,
            max_backends: 1,
            health: HealthCheck::none(),
            admission: crate::model::ServiceAdmission::default(),
            backends: vec![Backend { address: backend, weight: 1 }],
        }
    }

    fn route() -> Route {
        Route {
            interface: 7,
            device: 3,
            tags: VlanTags { tci: [100, 10], service: true },
            interface_name: "eth0.100.10".into(),
            source_mac: [2; 6],
            mtu: 1500,
            source: OWN.parse().unwrap(),
        }
    }

    fn prefixed(prefix: &str, length: u8) -> Encapsulation {
        let source_v4 = Some(SourcePrefix::containing(prefix.parse().unwrap(), length));
        Encapsulation { source_v4, ..Encapsulation::default() }
    }

    fn tell(engine: &mut Engine<Memory>, next_hop: NextHop) {
        let address: IpAddr = BACKEND.parse().unwrap();
        engine.set_next_hops(&BTreeMap::from([(address, next_hop)]));
        engine.apply().unwrap();
    }

    fn engine(mode: Mode) -> Engine<Memory> {
        let mut engine = Engine::adopt(Memory::new(8, 1000)).unwrap();
        engine.set_desired(&[service(mode)]);
        tell(&mut engine, NextHop::Reachable { route: route(), destination_mac: [4; 6] });
        engine.datapath_mut().log.clear();
        engine
    }

    fn source(engine: &Engine<Memory>) -> String {
        engine.datapath().backends.values().next().unwrap().source.to_string()
    }

    #[test]
    fn the_spread_begins_when_records_have_room_for_it_and_ends_before_they_have_not() {
        let mut engine = engine(Mode::Gue);
        assert_eq!(source(&engine), OWN);
        engine.set_encapsulation(prefixed("198.18.7.0", 24));
        assert!(engine.is_dirty());
        engine.apply().unwrap();
        assert_eq!(source(&engine), "198.18.7.0");
        let log = std::mem::take(&mut engine.datapath_mut().log);
        let spread = OuterSettings::from(&prefixed("198.18.7.0", 24));
        assert_eq!(log.last(), Some(&Step::OuterSettings(spread)), "{log:?}");
        assert!(!engine.is_dirty());

        engine.set_encapsulation(Encapsulation::default());
        engine.apply().unwrap();
        assert_eq!(source(&engine), OWN);
        let log = std::mem::take(&mut engine.datapath_mut().log);
        let none = OuterSettings::from(&Encapsulation::default());
        assert_eq!(log[..2], [Step::OuterSettings(none), Step::GracePeriod], "{log:?}");
        assert!(!log[2..].iter().any(|step| matches!(step, Step::OuterSettings(_))));
        assert_eq!(engine.apply().unwrap().writes, 0, "nothing is left to do");
    }

    #[test]
    fn a_failure_on_the_way_leaves_no_spread_over_records_without_room_and_is_made_good() {
        for steps in 0..12 {
            let mut engine = engine(Mode::Ipip);
            engine.set_encapsulation(prefixed("198.18.0.0", 15));
            engine.datapath_mut().fail_after = Some(steps);
            let failed = engine.apply().is_err();
            let spread = engine.datapath().outer.spread_v4;
            assert!(spread == 0 || source(&engine) == "198.18.0.0", "after {steps} steps");
            engine.datapath_mut().fail_after = None;
            assert_eq!(engine.is_dirty(), failed, "after {steps} steps");
            engine.apply().unwrap();
            assert_eq!(
                (engine.datapath().outer.spread_v4, source(&engine).as_str()),
                (0x0001_ffff, "198.18.0.0")
            );
        }
    }

    #[test]
    fn another_port_alone_is_one_write() {
        let mut engine = engine(Mode::Gue);
        engine.set_encapsulation(Encapsulation { gue_port: 7777, ..Encapsulation::default() });
        assert_eq!(engine.apply().unwrap().writes, 1);
        assert_eq!(engine.datapath().outer.gue_port, 7777);
    }

    #[test]
    fn modes_without_outer_headers_are_not_concerned() {
        let mut engine = engine(Mode::Nat);
        engine.set_encapsulation(prefixed("198.18.7.0", 24));
        engine.apply().unwrap();
        assert_eq!(source(&engine), OWN);
    }

    #[test]
    fn xdp_sends_by_the_device_with_tags_and_the_kernel_by_the_sub_interface() {
        let mut engine = engine(Mode::Gre);
        let record = engine.datapath().backends.values().next().unwrap().clone();
        assert_eq!((record.link.interface, record.tags), (3, [100, 10]));
        assert!(record.link.flags.resolved && record.link.flags.service_tag);
        // Another MAC address: while the record is rewritten, the kernel sends.
        engine.datapath_mut().log.clear();
        engine.datapath_mut().fail_after = Some(1);
        let next_hop = NextHop::Reachable { route: route(), destination_mac: [5; 6] };
        engine.set_next_hops(&BTreeMap::from([(BACKEND.parse().unwrap(), next_hop)]));
        assert!(engine.apply().is_err());
        let between = engine.datapath().backends.values().next().unwrap().link;
        assert_eq!((between.interface, between.flags.resolved), (7, false));
        engine.datapath_mut().fail_after = None;
        let reason = "gone".to_owned();
        tell(&mut engine, NextHop::Unresolved { route: Some(route()), reason });
        let after = engine.datapath().backends.values().next().unwrap().link;
        assert_eq!((after.interface, after.flags.resolved), (7, false));
    }
}
