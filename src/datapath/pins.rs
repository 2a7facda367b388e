//! Where things are pinned, and who may work on them. `docs/reference/pins.md` is the written protocol.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use nix::fcntl::{AT_FDCWD, Flock, FlockArg, RenameFlags, renameat2};

use super::{error::DatapathError, sys};

/// Folder of the pins where none is named.
pub const DEFAULT_PINS: &str = "/sys/fs/bpf/tidegate";

/// The maps of the load balancer. `node` is made last and removed first: its content says that all are there.
pub(super) const LOAD_BALANCER_MAPS: [&str; 21] = [
    "node",
    "services_v4",
    "services_v6",
    "ranges_v4",
    "ranges_v6",
    "services",
    "backends",
    "tables",
    "nat_sources_v4",
    "nat_sources_v6",
    "flows",
    "addresses",
    "fragments",
    "admission",
    "source_limits",
    "source_lists_v4",
    "source_lists_v6",
    "egress",
    "ledger",
    "hook_ledger",
    "backend_counters",
];

/// The programs of the load balancer.
pub(super) const LOAD_BALANCER_PROGRAMS: [&str; 3] = ["xdp_lb", "tc_nat", "tc_handoff"];

/// The folder of the pins, and the paths in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pins {
    root: PathBuf,
}

/// Held while a process works on the pins; a second one is refused.
pub(super) struct PinsLock {
    _folder: Flock<fs::File>,
}

impl Pins {
    /// Pins in `root`.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The folder itself.
    pub fn root(&self) -> &Path {
        &self.root
    }

    pub(super) fn maps(&self) -> PathBuf {
        self.root.join("maps")
    }

    pub(super) fn map(&self, name: &str) -> PathBuf {
        self.maps().join(name)
    }

    pub(super) fn programs(&self) -> PathBuf {
        self.root.join("progs")
    }

    pub(super) fn links(&self) -> PathBuf {
        self.root.join("links")
    }

    /// Pin of a link: `xdp-eth0`, `tcx-egress-eth0`.
    pub(super) fn link(&self, hook: &str, interface: &str) -> PathBuf {
        self.links().join(format!("{hook}-{}", escape(interface)))
    }

    /// Interfaces that have something pinned for `hook`.
    pub(super) fn linked_interfaces(&self, hook: &str) -> Vec<String> {
        let prefix = format!("{hook}-");
        let Ok(entries) = fs::read_dir(self.links()) else { return Vec::new() };
        let mut names: Vec<_> = entries
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .filter_map(|name| Some(unescape(name.strip_prefix(&prefix)?)))
            .collect();
        names.sort();
        names
    }

    /// Makes the folders, where they are missing, on the BPF file system.
    pub(super) fn create(&self) -> Result<(), DatapathError> {
        self.check_file_system()?;
        for folder in [self.root.clone(), self.maps(), self.programs(), self.links()] {
            match fs::create_dir(&folder) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(DatapathError::system(format!("make {}", folder.display()), error));
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn check_file_system(&self) -> Result<(), DatapathError> {
        let parent = match self.root.parent() {
            Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
            Some(parent) => parent,
            None => &self.root,
        };
        if !parent.exists() {
            let action = format!("make {}", self.root.display());
            return Err(DatapathError::system(action, format!("there is no folder {}", parent.display())));
        }
        match sys::is_bpf_file_system(parent) {
            Ok(true) => Ok(()),
            _ => Err(DatapathError::NoBpfFileSystem { path: parent.to_owned() }),
        }
    }

    /// Takes the pins of the load balancer for this process, for as long as the result lives.
    pub(super) fn lock(&self) -> Result<PinsLock, DatapathError> {
        let folder = open_folder(&self.root)?;
        match Flock::lock(folder, FlockArg::LockExclusiveNonblock) {
            Ok(folder) => Ok(PinsLock { _folder: folder }),
            Err((_, nix::errno::Errno::EWOULDBLOCK)) => {
                Err(DatapathError::Locked { path: self.root.clone() })
            }
            Err((_, errno)) => Err(DatapathError::system(format!("lock {}", self.root.display()), errno)),
        }
    }

    /// Takes the pins of `tidegate decap`, which holds them only for moments and so waits for its like.
    pub(super) fn lock_decap(&self) -> Result<PinsLock, DatapathError> {
        let folder = open_folder(&self.links())?;
        match Flock::lock(folder, FlockArg::LockExclusive) {
            Ok(folder) => Ok(PinsLock { _folder: folder }),
            Err((_, errno)) => Err(DatapathError::system(format!("lock {}", self.links().display()), errno)),
        }
    }

    /// Removes the maps and programs of the load balancer; not what `tidegate decap` pinned beside them.
    pub(super) fn remove_load_balancer(&self) -> Result<(), DatapathError> {
        for name in LOAD_BALANCER_MAPS {
            Self::remove(&self.map(name))?;
        }
        for name in LOAD_BALANCER_PROGRAMS {
            Self::remove(&self.programs().join(name))?;
        }
        Ok(())
    }

    /// Removes the folders where nothing is left in them.
    pub(super) fn remove_empty_folders(&self) {
        for folder in [self.maps(), self.programs(), self.links(), self.root.clone()] {
            /* Fails where something is in it, which is then not ours to remove. */
            let _ = fs::remove_dir(folder);
        }
    }

    /// Gives a pin another path. A pin that is there takes the first one's place.
    pub(super) fn exchange(from: &Path, to: &Path) -> Result<(), DatapathError> {
        let flags = if to.exists() { RenameFlags::RENAME_EXCHANGE } else { RenameFlags::RENAME_NOREPLACE };
        renameat2(AT_FDCWD, from, AT_FDCWD, to, flags).map_err(|errno| {
            DatapathError::system(format!("rename {} to {}", from.display(), to.display()), errno)
        })
    }

    /// Removes a pin; nothing is no error.
    pub(super) fn remove(path: &Path) -> Result<(), DatapathError> {
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(DatapathError::system(format!("remove {}", path.display()), error))
            }
            _ => Ok(()),
        }
    }
}

fn open_folder(path: &Path) -> Result<fs::File, DatapathError> {
    fs::File::open(path).map_err(|error| DatapathError::system(format!("open {}", path.display()), error))
}

/// The BPF file system refuses dots in names; VLAN interfaces have them.
fn escape(interface: &str) -> String {
    interface.replace('%', "%25").replace('.', "%2e")
}

fn unescape(name: &str) -> String {
    name.replace("%2e", ".").replace("%25", "%")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interface_names_survive_the_file_system() {
        for name in ["eth0", "eth0.100", "a%b.c", "%2e", "br-lan"] {
            let escaped = escape(name);
            assert!(!escaped.contains('.'));
            assert_eq!(unescape(&escaped), name);
        }
    }

    #[test]
    fn a_missing_parent_is_named_instead_of_a_file_system() {
        let folder = tempfile::tempdir().unwrap();
        let error = Pins::new(folder.path().join("missing/pins")).create().unwrap_err().to_string();
        assert!(error.contains("there is no folder") && error.contains("missing"), "{error}");
        let error = Pins::new("pins").create().unwrap_err().to_string();
        assert!(error.starts_with(". is not"), "a relative path begins here: {error}");
    }

    #[test]
    fn elsewhere_than_on_a_bpf_file_system_nothing_is_made() {
        let folder = tempfile::tempdir().unwrap();
        let pins = Pins::new(folder.path().join("pins"));
        let error = pins.create().unwrap_err().to_string();
        assert!(error.contains("mount -t bpf"), "{error}");
        assert!(!pins.root().exists());
    }
}
