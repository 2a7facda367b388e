//! The network around the load balancer.

use std::{
    net::{Ipv4Addr, Ipv6Addr},
    path::Path,
};

use nix::{
    mount::{MsFlags, mount},
    sched::{CloneFlags, unshare},
};

use super::host::Host;

/// An address for a service: routed from the client to the load balancer, owned by nobody.
pub const SERVICE_IPV4: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 10);
/// An address for a service: routed from the client to the load balancer, owned by nobody.
pub const SERVICE_IPV6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0xffff, 0, 0, 0, 0, 0x10);

/// A client, a load balancer and its backends, each pair joined by a veth link with all offloads off.
pub struct Lab {
    /// Where the test's own thread is.
    pub lb: Host,
    /// Reaches everything through the load balancer.
    pub client: Host,
    /// `backend1` and so on; they reach everything through the load balancer.
    pub backends: Vec<Host>,
}

impl Lab {
    /// Moves the calling thread into namespaces of its own and builds the network around it.
    ///
    /// Threads and processes that it starts from then on are in them too. Call it once in a thread, and first.
    pub fn new(backends: u8) -> Self {
        assert!(backends < 64, "there are addresses for 63 backends");
        enter_own_namespaces();
        let lb = Host::current("lb");
        lb.sysctl("net/ipv4/ip_forward", "1");
        lb.sysctl("net/ipv6/conf/all/forwarding", "1");
        let client = Link {
            name: "client".into(),
            ipv4: [Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(192, 0, 2, 2)],
            ipv4_prefix: 24,
            ipv6: ipv6_pair(0xc),
        };
        let client = client.join(&lb);
        let backends = (1..=backends).map(|number| Link::of_backend(number).join(&lb)).collect();
        Self { lb, client, backends }
    }
}

/// A link between the load balancer (first address) and a host (second address).
struct Link {
    /// Of the host, and of the load balancer's interface.
    name: String,
    ipv4: [Ipv4Addr; 2],
    ipv4_prefix: u8,
    ipv6: [Ipv6Addr; 2],
}

/// The name of each host's interface towards the load balancer.
const INTERFACE: &str = "eth0";

impl Link {
    fn of_backend(number: u8) -> Self {
        let ipv4 = |last| Ipv4Addr::new(198, 51, 100, 4 * number + last);
        Self {
            name: format!("backend{number}"),
            ipv4: [ipv4(1), ipv4(2)],
            ipv4_prefix: 30,
            // As written: backend 10 is on 2001:db8:10::/64.
            ipv6: ipv6_pair(
                u16::from_str_radix(&number.to_string(), 16).expect("digits are hexadecimal digits"),
            ),
        }
    }

    /// Makes the host and the veth pair, with addresses and routes.
    fn join(self, lb: &Host) -> Host {
        let mut host = Host::new(&self.name);
        host.interface = INTERFACE.into();
        host.peer = self.name.clone();
        (host.ipv4, host.ipv6) = (self.ipv4[1], self.ipv6[1]);
        let path = host.namespace_path();
        lb.command(&format!("ip link add {} type veth peer name {INTERFACE} netns {path}", self.name));
        for (end, interface, side) in [(lb, self.name.as_str(), 0), (&host, INTERFACE, 1)] {
            let (ipv4, prefix, ipv6) = (self.ipv4[side], self.ipv4_prefix, self.ipv6[side]);
            end.disable_offloads(interface);
            end.command(&format!("ip address add {ipv4}/{prefix} dev {interface}"));
            end.command(&format!("ip address add {ipv6}/64 dev {interface} nodad"));
            end.command(&format!("ip link set {interface} up"));
        }
        host.attach_xdp_pass(INTERFACE);
        host.command(&format!("ip route add default via {}", self.ipv4[0]));
        host.command(&format!("ip -6 route add default via {}", self.ipv6[0]));
        host
    }
}

fn ipv6_pair(subnet: u16) -> [Ipv6Addr; 2] {
    [1, 2].map(|last| Ipv6Addr::new(0x2001, 0xdb8, subnet, 0, 0, 0, 0, last))
}

/// Gives the calling thread a network, `/sys` and BPF file system of its own.
fn enter_own_namespaces() {
    unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS)
        .expect("tests with namespaces need root (CAP_SYS_ADMIN, CAP_NET_ADMIN and CAP_BPF)");
    let none = None::<&str>;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).expect("private mounts");
    // /sys/class/net shows the interfaces of the namespace that mounted it.
    mount(Some("sysfs"), "/sys", Some("sysfs"), MsFlags::empty(), none).expect("mount /sys");
    let bpf = Path::new("/sys/fs/bpf");
    mount(Some("bpf"), bpf, Some("bpf"), MsFlags::empty(), none).expect("mount /sys/fs/bpf");
}
