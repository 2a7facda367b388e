//! What can go wrong between the daemon and the kernel, each with what to do about it.

use std::{error::Error, path::PathBuf};

use crate::model::ServiceAddress;

/// The error of a system call or of libbpf.
pub type Cause = Box<dyn Error + Send + Sync>;

/// Why an operation on the kernel's programs, maps, links or pins failed.
#[derive(Debug, thiserror::Error)]
pub enum DatapathError {
    /// The BPF file system is not mounted where the pins are to be.
    #[error("{path} is not on a BPF file system; mount one: mount -t bpf bpf /sys/fs/bpf")]
    NoBpfFileSystem {
        /// Folder that was looked at.
        path: PathBuf,
    },
    /// Another process holds the pins.
    #[error("another tidegate works on the pins in {path}; stop it first, or choose other pins with --pins")]
    Locked {
        /// Folder of the pins.
        path: PathBuf,
    },
    /// The pins are of a version that this binary cannot take over.
    #[error(
        "the maps pinned in {path} have layout {found}, this binary knows {known}; nothing was changed and forwarding goes \
         on: start the version that made them, or stop forwarding with `tidegate detach` and start again"
    )]
    Layout {
        /// Folder of the pins.
        path: PathBuf,
        /// Layout found, in words.
        found: String,
        /// Layout of this binary.
        known: u32,
    },
    /// A pinned map is not what its name says.
    #[error(
        "the map pinned at {path} does not fit: {what} is {found}, {wanted} was expected; nothing was changed: remove what \
         does not belong there, or stop forwarding with `tidegate detach` and start again"
    )]
    Mismatch {
        /// Path of the pin.
        path: PathBuf,
        /// Property that differs.
        what: &'static str,
        /// Its value there.
        found: u64,
        /// Its value as this binary needs it.
        wanted: u64,
    },
    /// An address has as many ranges of ports as there is room for.
    #[error(
        "{address} cannot be bound: its address has {limit} services with a range of ports for that protocol, which is the most there can be; \
         join ranges, or give single ports as services of their own"
    )]
    TooManyRanges {
        /// The service address that found no room.
        address: ServiceAddress,
        /// How many there can be.
        limit: usize,
    },
    /// The interface does not exist.
    #[error("there is no interface {name}; `ip link` lists those there are")]
    NoInterface {
        /// Its name.
        name: String,
    },
    /// Another program sits on the interface.
    #[error(
        "interface {name} already runs the XDP program `{program}` (id {id}), which is not ours; find its owner with \
         `bpftool net` and `bpftool prog show id {id}`, or remove it with `ip link set dev {name} xdp off`"
    )]
    Occupied {
        /// Interface name.
        name: String,
        /// Name of the program there.
        program: String,
        /// ID of the program there.
        id: u32,
    },
    /// The driver cannot run XDP programs.
    #[error("interface {name} (driver {driver}) cannot run XDP programs natively: {source}; {remedy}")]
    NotNative {
        /// Interface name.
        name: String,
        /// Its driver.
        driver: String,
        /// What to change.
        remedy: String,
        /// What the kernel said.
        source: Cause,
    },
    /// The kernel refused the programs.
    #[error(
        "the kernel refused the programs: {source}{hint}; the last lines of the verifier's log follow at level error"
    )]
    Load {
        /// What libbpf said.
        source: libbpf_rs::Error,
        /// What to try, where the cause can be guessed.
        hint: &'static str,
    },
    /// A system call on a map, link or pin failed.
    #[error("cannot {action}: {source}")]
    System {
        /// What was attempted, with the name of the thing.
        action: String,
        /// What the system said.
        source: Cause,
    },
    /// A map has no room.
    #[error(
        "{what} {index} is beyond the {limit} that the maps have room for; raise {setting} and start on new maps"
    )]
    Capacity {
        /// Kind of thing.
        what: &'static str,
        /// Its index.
        index: u64,
        /// The limit.
        limit: u64,
        /// Setting to raise.
        setting: &'static str,
    },
}

impl DatapathError {
    /// A failed system call or libbpf call. `action` completes "cannot ...".
    pub(crate) fn system(action: impl Into<String>, source: impl Into<Cause>) -> Self {
        Self::System { action: action.into(), source: source.into() }
    }

    /// True where the interface or the pins belong to somebody else.
    pub fn is_conflict(&self) -> bool {
        matches!(self, Self::Locked { .. } | Self::Occupied { .. })
    }
}
