//! A host: a network namespace in which closures and commands can be run.

use std::{
    collections::BTreeSet,
    fs::File,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    os::fd::{AsFd, AsRawFd, OwnedFd},
    panic::resume_unwind,
    process::{Command, id},
    sync::Mutex,
    thread,
    time::Duration,
};

use nix::{
    ifaddrs::getifaddrs,
    sched::{CloneFlags, setns, unshare},
};
use tidegate::{
    datapath::{DatapathError, Decap, Pins},
    model::{AttachMode, Interface},
};

use super::{
    client::{Answer, ask, fetch},
    server::Server,
    xdp_pass,
};

/// A network namespace. It lives as long as this value, or longer where threads or processes are left in it.
pub struct Host {
    /// Name for messages, and what its servers answer.
    pub name: String,
    /// Name of its interface towards the load balancer.
    pub interface: String,
    /// Name of the load balancer's interface towards it.
    pub peer: String,
    /// Its address on that interface.
    pub ipv4: Ipv4Addr,
    /// Its address on that interface.
    pub ipv6: Ipv6Addr,
    namespace: OwnedFd,
    /// XDP programs stay attached as long as these are open.
    links: Mutex<Vec<OwnedFd>>,
}

impl Host {
    /// A host in a new network namespace, with nothing but a loopback interface.
    pub fn new(name: &str) -> Self {
        let namespace = thread::scope(|scope| {
            let made = scope.spawn(|| {
                unshare(CloneFlags::CLONE_NEWNET)
                    .expect("a new network namespace needs root (CAP_SYS_ADMIN)");
                own_namespace()
            });
            made.join().unwrap_or_else(|panic| resume_unwind(panic))
        });
        Self::from_namespace(name, namespace)
    }

    /// The namespace that the calling thread is in.
    pub fn current(name: &str) -> Self {
        Self::from_namespace(name, own_namespace())
    }

    fn from_namespace(name: &str, namespace: OwnedFd) -> Self {
        let host = Self {
            name: name.into(),
            interface: String::new(),
            peer: String::new(),
            ipv4: Ipv4Addr::UNSPECIFIED,
            ipv6: Ipv6Addr::UNSPECIFIED,
            namespace,
            links: Mutex::default(),
        };
        host.prepare();
        host
    }

    /// Quiet and deterministic: no duplicate address detection, no reverse path filter.
    fn prepare(&self) {
        for which in ["all", "default"] {
            self.sysctl(&format!("net/ipv6/conf/{which}/accept_dad"), "0");
            self.sysctl(&format!("net/ipv6/conf/{which}/dad_transmits"), "0");
            self.sysctl(&format!("net/ipv4/conf/{which}/rp_filter"), "0");
        }
        self.command("ip link set lo up");
    }

    /// Runs a closure in this namespace, in a thread of its own; what it spawns stays there. Panics are passed on.
    pub fn run<R: Send>(&self, action: impl FnOnce() -> R + Send) -> R {
        thread::scope(|scope| {
            let running =
                thread::Builder::new().name(format!("in {}", self.name)).spawn_scoped(scope, || {
                    setns(self.namespace.as_fd(), CloneFlags::CLONE_NEWNET)
                        .expect("enter the network namespace");
                    action()
                });
            running.expect("a thread").join().unwrap_or_else(|panic| resume_unwind(panic))
        })
    }

    /// Runs a command in this namespace and returns what it printed. Fails the test with its errors where it fails.
    ///
    /// Words are separated by spaces; there is no shell and no quoting.
    #[track_caller]
    pub fn command(&self, line: &str) -> String {
        self.try_command(line).unwrap_or_else(|error| panic!("in {}: {error}", self.name))
    }

    /// Like [`Self::command`], for commands that may fail: the error is in words.
    pub fn try_command(&self, line: &str) -> Result<String, String> {
        let mut words = line.split_whitespace();
        let program = words.next().ok_or("no command")?;
        let output = self
            .run(|| Command::new(program).args(words).output())
            .map_err(|error| format!("cannot run `{line}`: {error}"))?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        if output.status.success() {
            return Ok(text);
        }
        Err(format!("`{line}`: {}: {text}{}", output.status, String::from_utf8_lossy(&output.stderr).trim()))
    }

    /// Sets a kernel parameter of this namespace, such as `net/ipv4/ip_forward`.
    #[track_caller]
    pub fn sysctl(&self, name: &str, value: &str) {
        let path = format!("/proc/sys/{name}");
        let written = self.run(|| std::fs::write(&path, value));
        written.unwrap_or_else(|error| panic!("in {}: {path} = {value}: {error}", self.name));
    }

    /// Makes an address the host's own, as a backend owns the address of a service in the modes `dsr` and `ipip`.
    pub fn own(&self, address: impl Into<IpAddr>) {
        let address = address.into();
        let options = if address.is_ipv6() { "/128 dev lo nodad" } else { "/32 dev lo" };
        self.command(&format!("ip address add {address}{options}"));
    }

    /// Switches every offload of an interface off, so that what is on the wire is what the packet path made.
    pub fn disable_offloads(&self, interface: &str) {
        self.command(&format!("ethtool -K {interface} rx off tx off sg off tso off gso off gro off"));
    }

    /// Attaches an XDP program that passes everything: without one, a veth end drops what its peer sends by XDP.
    pub fn attach_xdp_pass(&self, interface: &str) {
        let link = self.run(|| xdp_pass::attach(interface));
        let link = link.unwrap_or_else(|error| panic!("in {}: XDP_PASS on {interface}: {error}", self.name));
        self.links.lock().unwrap().push(link);
    }

    /// Takes that program off again, for another to be attached.
    pub fn detach_xdp_pass(&self) {
        self.links.lock().unwrap().clear();
    }

    /// Attaches a program to TCX egress that accepts every packet, so that programs behind it see none.
    pub fn attach_tcx_pass(&self, interface: &str) {
        let link = self.run(|| xdp_pass::attach_tcx_egress(interface));
        let link = link.unwrap_or_else(|error| panic!("in {}: TCX on {interface}: {error}", self.name));
        self.links.lock().unwrap().push(link);
    }

    /// Attaches `tidegate decap` in place of the program that passes everything, for all addresses that the host owns now.
    #[track_caller]
    pub fn decapsulate(&self) -> Decap {
        self.links.lock().unwrap().clear();
        let pins = Pins::new(format!("/sys/fs/bpf/{}", self.name));
        let interface = Interface { name: self.interface.clone(), mode: AttachMode::Native };
        let attached = self.run(|| {
            let mut decap = Decap::load(&pins)?;
            decap.set_addresses(&own_addresses())?;
            decap.attach(&interface)?;
            Ok::<_, DatapathError>(decap)
        });
        attached.unwrap_or_else(|error| panic!("in {}: {error}", self.name))
    }

    /// Starts a server on the host's own addresses.
    pub fn serve(&self, port: u16) -> Server {
        self.serve_at(&[(self.ipv4, port).into(), (self.ipv6, port).into()])
    }

    /// Starts a server on these addresses, which the host must own.
    pub fn serve_at(&self, addresses: &[SocketAddr]) -> Server {
        self.run(|| Server::start(&self.name, addresses))
            .unwrap_or_else(|error| panic!("in {}: a server at {addresses:?}: {error}", self.name))
    }

    /// Fetches over TCP from this host. See [`fetch`].
    pub fn fetch(&self, address: impl Into<SocketAddr>, timeout: Duration) -> io::Result<Answer> {
        let address = address.into();
        self.run(|| fetch(address, timeout))
    }

    /// Asks over UDP from this host. See [`ask`].
    pub fn ask(&self, address: impl Into<SocketAddr>, timeout: Duration) -> io::Result<Answer> {
        let address = address.into();
        self.run(|| ask(address, timeout))
    }

    /// A path by which other processes find the namespace, as `ip link set ... netns` takes it.
    pub fn namespace_path(&self) -> String {
        format!("/proc/{}/fd/{}", id(), self.namespace.as_raw_fd())
    }
}

fn own_addresses() -> BTreeSet<IpAddr> {
    let interfaces = getifaddrs().expect("the addresses of the host");
    interfaces
        .filter_map(|interface| {
            let address = interface.address?;
            let ipv4 = address.as_sockaddr_in().map(|address| IpAddr::V4(address.ip()));
            ipv4.or_else(|| address.as_sockaddr_in6().map(|address| IpAddr::V6(address.ip())))
        })
        .collect()
}

fn own_namespace() -> OwnedFd {
    File::open("/proc/thread-self/ns/net").expect("/proc/thread-self/ns/net").into()
}
