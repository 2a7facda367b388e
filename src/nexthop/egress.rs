//! By which device frames leave for an interface, and with which VLAN tags; or why only the kernel can send them.
//!
//! XDP hands frames to a device's driver. Of an interface that is not a device (a VLAN sub-interface) it must find the device
//! below; to an interface that works on packets of the network stack (a bridge, a bond, a macvlan) it cannot hand
//! anything. Linux can be asked which devices take frames (`xdp-features` of its netdev family, from 6.3), but not the 6.1 that
//! must do too, and drivers change the answer whenever a program is attached, without telling those who listen to links.
//! So the kind of the device decides: hardware drivers name none, and of the virtual ones veth takes frames. Any other is left
//! to the kernel, which is slower and always right.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::tables::Link;
use crate::model::{Egress, VlanTags};

/// What kind of device an interface is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A driver that takes frames from XDP.
    Device,
    /// A VLAN sub-interface.
    Vlan(Vlan),
    /// Another virtual interface, by the name of its kind.
    Virtual(String),
}

/// A VLAN sub-interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Vlan {
    pub id: u16,
    /// The priority that its frames get.
    pub priority: u8,
    /// Its tag is one of 802.1ad, not of 802.1Q.
    pub service: bool,
    /// Index of the interface below; `None` where that is in another network namespace.
    pub below: Option<u32>,
}

/// The interfaces that are not devices themselves.
pub(super) fn all(links: &HashMap<u32, Link>) -> BTreeMap<u32, Egress> {
    let indirect = links.iter().filter(|(_, link)| link.kind != Kind::Device);
    indirect
        .map(|(index, _)| {
            let egress = find(*index, links);
            (*index, egress.map_or(Egress::Kernel, |(device, tags)| Egress::Device(device, tags)))
        })
        .collect()
}

/// The device that frames leave by for interface `index`, and their tags; in words, why they cannot from XDP.
pub(super) fn find(index: u32, links: &HashMap<u32, Link>) -> Result<(u32, VlanTags), String> {
    let (mut device, mut seen) = (index, HashSet::new());
    let mut inward = Vec::new();
    loop {
        let link =
            links.get(&device).ok_or_else(|| format!("the kernel does not list interface {device}"))?;
        match &link.kind {
            Kind::Device => break,
            Kind::Virtual(kind) => return Err(virtual_device(&link.name, kind)),
            Kind::Vlan(vlan) => {
                inward.push((vlan, &link.name));
                device = vlan.below.ok_or_else(|| {
                    format!("the interface below {} is in another network namespace", link.name)
                })?;
            }
        }
        if !seen.insert(device) {
            return Err(format!("interface {} is above itself", link.name));
        }
    }
    Ok((device, tags(&inward)?))
}

/// The tags of VLAN sub-interfaces, the innermost first.
fn tags(inward: &[(&Vlan, &String)]) -> Result<VlanTags, String> {
    let tci = |vlan: &Vlan| u16::from(vlan.priority) << 13 | vlan.id & 0xfff;
    if let Some((_, name)) = inward.iter().find(|(vlan, _)| vlan.id == 0) {
        return Err(format!("{name} sends frames with a priority tag, which only the kernel can"));
    }
    match *inward {
        [] => Ok(VlanTags::default()),
        [(vlan, _)] => Ok(VlanTags { tci: [tci(vlan), 0], service: vlan.service }),
        [(inner, _), (outer, _)] if !inner.service => {
            Ok(VlanTags { tci: [tci(outer), tci(inner)], service: outer.service })
        }
        [(_, name), _] => {
            Err(format!("{name} puts a tag of 802.1ad into another one, which only the kernel can"))
        }
        [(_, name), ..] => {
            Err(format!("{name} sends frames with more than two VLAN tags, which only the kernel can"))
        }
    }
}

fn virtual_device(name: &str, kind: &str) -> String {
    format!("{name} is a virtual interface ({kind}), by which only the kernel can send")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(name: &str, kind: Kind) -> Link {
        Link {
            name: name.into(),
            mac: Some([2; 6]),
            mtu: 1500,
            up: true,
            carrier: true,
            loopback: false,
            kind,
        }
    }

    fn vlan(name: &str, id: u16, service: bool, below: u32) -> Link {
        link(name, Kind::Vlan(Vlan { id, priority: 0, service, below: Some(below) }))
    }

    /// A device 1, a bridge 2, and what is above them.
    fn links(above: impl IntoIterator<Item = (u32, Link)>) -> HashMap<u32, Link> {
        let mut links = HashMap::from([
            (1, link("eth0", Kind::Device)),
            (2, link("br0", Kind::Virtual("bridge".into()))),
        ]);
        links.extend(above);
        links
    }

    fn tagged(device: u32, tci: [u16; 2], service: bool) -> Result<(u32, VlanTags), String> {
        Ok((device, VlanTags { tci, service }))
    }

    #[test]
    fn of_all_interfaces_those_are_told_that_are_no_devices() {
        let all = all(&links([(10, vlan("eth0.10", 10, true, 1)), (11, vlan("br0.11", 11, false, 2))]));
        let tags = VlanTags { tci: [10, 0], service: true };
        let expected = [(2, Egress::Kernel), (10, Egress::Device(1, tags)), (11, Egress::Kernel)];
        assert_eq!(all, BTreeMap::from(expected));
    }

    #[test]
    fn a_device_sends_its_frames_itself_and_untagged() {
        assert_eq!(find(1, &links([])), tagged(1, [0; 2], false));
    }

    #[test]
    fn sub_interfaces_become_tags_of_the_device_below_the_outer_one_first() {
        let links = links([
            (10, vlan("eth0.10", 10, false, 1)),
            (20, vlan("eth0.20", 20, true, 1)),
            (21, vlan("eth0.20.21", 21, false, 20)),
            (22, vlan("eth0.10.22", 22, false, 10)),
        ]);
        assert_eq!(find(10, &links), tagged(1, [10, 0], false));
        assert_eq!(find(20, &links), tagged(1, [20, 0], true));
        assert_eq!(find(21, &links), tagged(1, [20, 21], true));
        assert_eq!(find(22, &links), tagged(1, [10, 22], false));
    }

    #[test]
    fn the_priority_of_a_sub_interface_goes_into_its_tag() {
        let gold = Kind::Vlan(Vlan { id: 0xfff - 1, priority: 5, service: false, below: Some(1) });
        assert_eq!(find(10, &links([(10, link("gold", gold))])), tagged(1, [0xaffe, 0], false));
    }

    #[test]
    fn what_only_the_kernel_can_send_by_is_told_with_its_name() {
        let orphan = Kind::Vlan(Vlan { id: 5, priority: 0, service: false, below: None });
        let links = links([
            (10, vlan("br0.10", 10, false, 2)),
            (11, vlan("a", 11, false, 1)),
            (12, vlan("b", 12, false, 11)),
            (13, vlan("c", 13, false, 12)),
            (14, vlan("double", 14, true, 11)),
            (15, link("orphan", orphan)),
            (16, vlan("zero", 0, false, 1)),
            (17, vlan("lost", 17, false, 99)),
            (18, vlan("loop", 18, false, 18)),
        ]);
        for (index, expected) in [
            (2, "br0 is a virtual interface (bridge), by which only the kernel can send"),
            (10, "br0 is a virtual interface (bridge), by which only the kernel can send"),
            (13, "c sends frames with more than two VLAN tags, which only the kernel can"),
            (14, "double puts a tag of 802.1ad into another one, which only the kernel can"),
            (15, "the interface below orphan is in another network namespace"),
            (16, "zero sends frames with a priority tag, which only the kernel can"),
            (17, "the kernel does not list interface 99"),
            (18, "interface loop is above itself"),
        ] {
            assert_eq!(find(index, &links), Err(expected.to_owned()), "{index}");
        }
    }
}
