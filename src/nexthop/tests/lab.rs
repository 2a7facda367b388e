//! Two network namespaces, joined by two pairs of virtual Ethernet interfaces:
//!
//! ```text
//! this thread's                         the peer's
//! up0 192.0.2.1/24 2001:db8::1/64  ---  peer0 192.0.2.2/24 2001:db8::2/64
//! up1 192.0.3.1/24                 ---  peer1 192.0.3.2/24
//! ```
//!
//! Both end with the test: nothing but open files keeps them.

use std::{fs::File, net::IpAddr, os::fd::AsRawFd, process::Command, sync::Arc, thread};

use nix::sched::{CloneFlags, unshare};
use tokio::time::timeout;

use super::{super::*, PATIENCE};
use crate::model::{Route, VlanTags};

pub const MAC_0: [u8; 6] = [2, 0, 0, 0, 0, 0x10];
pub const MAC_1: [u8; 6] = [2, 0, 0, 0, 0, 0x11];
pub const PEER_0: [u8; 6] = [2, 0, 0, 0, 0, 0x20];
pub const PEER_1: [u8; 6] = [2, 0, 0, 0, 0, 0x21];

/// A network namespace, which lives as long as this and what runs in it.
pub struct Namespace(File);

/// Both namespaces; the test's thread is in the first.
pub struct Lab {
    pub peer: Namespace,
}

/// Runs a test on a thread in a lab of its own.
pub fn run<F: Future<Output = ()>>(test: impl FnOnce(Lab) -> F + Send + 'static) {
    let outcome = thread::spawn(|| {
        let lab = Lab::new();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(test(lab));
    })
    .join();
    if let Err(panic) = outcome {
        std::panic::resume_unwind(panic);
    }
}

/// Runs `ip` in this thread's namespace; returns what it prints.
pub fn ip(arguments: &str) -> String {
    command(Command::new("ip").args(arguments.split_whitespace()))
}

fn command(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

impl Namespace {
    /// Moves this thread to a new namespace.
    fn enter_new() -> Self {
        unshare(CloneFlags::CLONE_NEWNET).unwrap();
        Self(File::open("/proc/thread-self/ns/net").unwrap())
    }

    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }

    /// Runs `ip` in it.
    pub fn ip(&self, arguments: &str) -> String {
        let namespace = format!("--net={}", self.path());
        command(Command::new("nsenter").arg(namespace).arg("ip").args(arguments.split_whitespace()))
    }
}

impl Lab {
    fn new() -> Self {
        let peer = Namespace::enter_new();
        Namespace::enter_new();
        let lab = Self { peer };
        ip("link set lo up");
        lab.pair(0);
        lab.pair(1);
        ip("address add 192.0.2.1/24 dev up0");
        ip("address add 2001:db8::1/64 dev up0 nodad");
        ip("address add 192.0.3.1/24 dev up1");
        lab.peer.ip("address add 192.0.2.2/24 dev peer0");
        lab.peer.ip("address add 2001:db8::2/64 dev peer0 nodad");
        lab.peer.ip("address add 192.0.3.2/24 dev peer1");
        lab
    }

    /// Makes a pair of interfaces, without addresses.
    pub fn pair(&self, number: u8) {
        let (mac, peer_mac) = (0x10 + number, 0x20 + number);
        ip(&format!(
            "link add up{number} address 02:00:00:00:00:{mac:02x} type veth \
             peer name peer{number} address 02:00:00:00:00:{peer_mac:02x} netns {}",
            self.peer.path()
        ));
        // The kernel's own link-local addresses would come seconds later: events that hide the loss of others.
        ip(&format!("link set up{number} addrgenmode none up"));
        self.peer.ip(&format!("link set peer{number} addrgenmode none up"));
        ip(&format!("address add fe80::1/64 dev up{number} nodad"));
        self.peer.ip(&format!("address add fe80::2/64 dev peer{number} nodad"));
    }

    /// Makes the kernel lose patience with the neighbours on up0 in tenths of seconds.
    pub fn hurry(&self) {
        for family in ["ipv4", "ipv6"] {
            for (what, value) in [
                ("retrans_time_ms", "50"),
                ("base_reachable_time_ms", "500"),
                ("delay_first_probe_time", "1"),
            ] {
                std::fs::write(format!("/proc/sys/net/{family}/neigh/up0/{what}"), value).unwrap();
            }
        }
    }

    pub fn route(&self, interface: &str, source_mac: [u8; 6], source: IpAddr, mtu: u32) -> Route {
        let interface_name = interface.to_owned();
        let interface = index(interface);
        let tags = VlanTags::default();
        Route { interface, device: interface, tags, interface_name, source_mac, mtu, source }
    }
}

/// The index of an interface of this thread's namespace.
pub fn index(interface: &str) -> u32 {
    let line = ip(&format!("-o link show {interface}"));
    line.split(':').next().unwrap().parse().unwrap()
}

pub fn unresolved(reason: &str) -> NextHop {
    NextHop::Unresolved { route: None, reason: reason.to_owned() }
}

/// The MAC address `target` is reached by.
pub fn mac(snapshot: &Snapshot, target: IpAddr) -> Option<[u8; 6]> {
    match snapshot.next_hops.get(&target)? {
        NextHop::Reachable { destination_mac, .. } => Some(*destination_mac),
        _ => None,
    }
}

/// Why `target` is not reached.
pub fn reason(snapshot: &Snapshot, target: IpAddr) -> Option<&str> {
    match snapshot.next_hops.get(&target)? {
        NextHop::Unresolved { reason, .. } => Some(reason),
        _ => None,
    }
}

/// Waits until what is known meets a condition.
pub async fn until(resolver: &Resolver, what: &str, condition: impl Fn(&Snapshot) -> bool) -> Arc<Snapshot> {
    let mut snapshots = resolver.subscribe();
    let met = timeout(PATIENCE, snapshots.wait_for(|snapshot| condition(snapshot)))
        .await
        .map(|met| met.unwrap().clone());
    met.unwrap_or_else(|_| panic!("never came about: {what}; known is {:#?}", resolver.subscribe().borrow()))
}
