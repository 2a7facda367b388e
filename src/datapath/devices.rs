//! Interfaces that are above others: VLAN sub-interfaces, bridges, bonds. XDP belongs below them.

use std::{fs, path::Path};

use super::sys;

/// Where the kernel shows its interfaces.
const INTERFACES: &str = "/sys/class/net";

/// An interface that is above others.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Stacked {
    /// Its kind, as the kernel calls it: `vlan`, `bridge`, `bond`.
    kind: String,
    /// The interfaces below.
    below: Vec<String>,
}

/// What to change where an interface cannot run XDP programs natively.
pub(super) fn native_remedy(name: &str) -> String {
    remedy(Path::new(INTERFACES), name)
}

fn remedy(interfaces: &Path, name: &str) -> String {
    let Some(Stacked { kind, below }) = stacked(interfaces, name) else {
        return "use `mode: auto` or `mode: generic` (slower), or see whether its MTU, LRO or number of queues stands in the way"
            .to_owned();
    };
    let devices = match below.as_slice() {
        [] => "the interfaces below it".to_owned(),
        [only] => only.clone(),
        many => many.join(" and "),
    };
    match kind.as_str() {
        "vlan" => format!(
            "it is a VLAN sub-interface: name {devices} in its place, where XDP understands the tags of frames, and switch \
             off what hides them: ethtool -K {devices} rxvlan off"
        ),
        "bridge" => format!(
            "it is a bridge: name what packets come in by in its place, {devices}; packets that leave by the bridge take \
             the way through the kernel"
        ),
        _ => format!("it is a {kind}: name {devices} in its place, or use `mode: generic` (slower)"),
    }
}

/// What kind of interface above others this is, if it is one.
fn stacked(interfaces: &Path, name: &str) -> Option<Stacked> {
    let folder = interfaces.join(name);
    let events = fs::read_to_string(folder.join("uevent")).ok()?;
    let kind = events.lines().find_map(|line| line.strip_prefix("DEVTYPE="))?.to_owned();
    let below = neighbours(&folder, "lower_");
    (kind == "vlan" || kind == "bridge" || !below.is_empty()).then_some(Stacked { kind, below })
}

/// VLAN sub-interfaces of an interface whose frames lose their tags before XDP sees them.
pub fn hidden_vlans(name: &str) -> Vec<String> {
    if sys::rx_vlan_offload(name) != Some(true) {
        return Vec::new();
    }
    vlans_above(Path::new(INTERFACES), name)
}

fn vlans_above(interfaces: &Path, name: &str) -> Vec<String> {
    let is_vlan = |above: &String| stacked(interfaces, above).is_some_and(|above| above.kind == "vlan");
    neighbours(&interfaces.join(name), "upper_").into_iter().filter(is_vlan).collect()
}

/// Interfaces that a folder of the kernel's links to under names with this prefix.
fn neighbours(folder: &Path, prefix: &str) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<_> = entries
        .filter_map(|entry| Some(entry.file_name().to_str()?.strip_prefix(prefix)?.to_owned()))
        .collect();
    names.sort();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder as the kernel shows it: a device with a VLAN and a bridge above it, and a bond of two.
    fn interfaces() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (name, kind, links) in [
            ("eth0", "", &["upper_eth0.10", "upper_br0"][..]),
            ("eth0.10", "vlan", &["lower_eth0"]),
            ("br0", "bridge", &["lower_eth0"]),
            ("bond0", "bond", &["lower_eth1", "lower_eth2"]),
            ("eth1", "", &["upper_bond0"]),
            ("wlan0", "wlan", &[]),
        ] {
            let folder = root.path().join(name);
            fs::create_dir(&folder).unwrap();
            let kind = if kind.is_empty() { String::new() } else { format!("DEVTYPE={kind}\n") };
            fs::write(folder.join("uevent"), format!("{kind}INTERFACE={name}\nIFINDEX=2\n")).unwrap();
            for link in links {
                std::os::unix::fs::symlink("..", folder.join(link)).unwrap();
            }
        }
        root
    }

    #[test]
    fn the_remedy_names_the_interfaces_below() {
        let root = interfaces();
        let remedy = |name| remedy(root.path(), name);
        assert!(remedy("eth0.10").contains("name eth0 in its place"), "{}", remedy("eth0.10"));
        assert!(remedy("eth0.10").contains("ethtool -K eth0 rxvlan off"));
        assert!(remedy("br0").contains("it is a bridge: name what packets come in by in its place, eth0;"));
        assert!(remedy("bond0").contains("it is a bond: name eth1 and eth2 in its place"));
        for device in ["eth0", "wlan0", "none"] {
            assert!(remedy(device).contains("`mode: auto`"), "{}", remedy(device));
        }
    }

    #[test]
    fn only_vlans_above_a_device_count() {
        let root = interfaces();
        assert_eq!(vlans_above(root.path(), "eth0"), ["eth0.10"]);
        assert!(vlans_above(root.path(), "eth1").is_empty());
        assert!(vlans_above(root.path(), "none").is_empty());
    }
}
