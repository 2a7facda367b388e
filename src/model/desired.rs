//! What the operator asked for, already validated: every value here is in range and consistent with the others.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
};

use serde::{Deserialize, Serialize};

use super::{
    AddressPolicy, Encapsulation, HashMode, HealthCheck, NodeAdmission, PortRange, ServiceAdmission,
    ServiceName,
};

/// Everything a node is asked to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Desired {
    /// Interfaces the programs are attached to; at least one, names unique.
    pub interfaces: Vec<Interface>,
    /// Where the admin API listens.
    pub api: ApiSocket,
    /// Sizes of the kernel's maps.
    pub capacity: Capacity,
    /// Outer headers of tunnels.
    pub encapsulation: Encapsulation,
    /// What is done with packets for the addresses of services that are for no service.
    pub address_policy: AddressPolicy,
    /// Who may use services.
    pub admission: NodeAdmission,
    /// Services in the order of the file; names and addresses unique.
    pub services: Vec<Service>,
}

/// A network interface whose packets are balanced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interface {
    /// The kernel's name of the interface.
    pub name: String,
    /// How the XDP program is attached.
    pub mode: AttachMode,
}

/// How an XDP program is attached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AttachMode {
    /// In the driver, or not at all.
    #[default]
    Native,
    /// In the network stack, after the socket buffer was allocated: slow, and works on every driver.
    Generic,
    /// Native where the driver can, else generic with a warning.
    Auto,
}

/// Where the daemon listens unless told otherwise.
pub const DEFAULT_SOCKET: &str = "/run/tidegate/api.sock";

/// The Unix socket of the admin API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiSocket {
    /// Path of the socket.
    pub path: PathBuf,
    /// Permission bits of the socket, such as `0o660`.
    pub mode: u32,
    /// Group that owns the socket; the daemon's own where absent.
    pub group: Option<String>,
}

impl Default for ApiSocket {
    fn default() -> Self {
        Self { path: DEFAULT_SOCKET.into(), mode: 0o660, group: None }
    }
}

/// Sizes of the kernel's maps, in entries. Fixed when the maps are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capacity {
    /// Services.
    pub services: u32,
    /// Backend records, over all services; each reserves [`backend_records`] of them.
    pub backends: u32,
    /// Flows that can be tracked at once.
    pub flows: u32,
    /// Fragmented datagrams that can be under way at once; of each source that fragments, one more entry is used.
    pub fragments: u32,
}

impl Default for Capacity {
    fn default() -> Self {
        Self { services: 4096, backends: 262_144, flows: 1_000_000, fragments: 16_384 }
    }
}

/// Backend records that a service reserves whose table is sized for `max_backends` backends.
///
/// Twice as many, as the number of a removed backend rests while flows may still name it, and one for number 0, which
/// is never valid.
pub const fn backend_records(max_backends: u16) -> u32 {
    2 * max_backends as u32 + 1
}

/// Transport protocol of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// TCP (RFC 9293).
    Tcp,
    /// UDP (RFC 768).
    Udp,
}

impl Protocol {
    /// The protocol number in an IP header.
    pub const fn number(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
        }
    }
}

/// How packets are sent to a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// The destination is rewritten; replies come back through this node and are translated back.
    Nat,
    /// Only the destination MAC address is rewritten; the backend owns the service address and answers directly.
    Dsr,
    /// The packet is put whole into an outer IP header; the backend takes it off and answers directly.
    Ipip,
    /// The same with a GRE header in between (RFC 2784).
    Gre,
    /// The same with a UDP header in between (Generic UDP Encapsulation, variant 1).
    Gue,
}

impl Mode {
    /// Every mode, in the order of the manual.
    pub const ALL: [Self; 5] = [Self::Nat, Self::Dsr, Self::Ipip, Self::Gre, Self::Gue];

    /// Its name in configuration, API and CLI.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nat => "nat",
            Self::Dsr => "dsr",
            Self::Ipip => "ipip",
            Self::Gre => "gre",
            Self::Gue => "gue",
        }
    }

    /// True where the packet gets outer headers, whose family may be another than its own.
    pub const fn encapsulates(self) -> bool {
        matches!(self, Self::Ipip | Self::Gre | Self::Gue)
    }

    /// True where addresses are translated, so that every flow must be tracked.
    pub const fn translates(self) -> bool {
        matches!(self, Self::Nat)
    }
}

/// What becomes of packets while their service has no usable backend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnNoBackend {
    /// They are dropped: clients try again until their time is up.
    #[default]
    Drop,
    /// They are answered with a TCP reset, or with an ICMP error "port unreachable": clients fail at once.
    Reject,
    /// They are given to the kernel of this node, which may have a server of its own for them.
    Pass,
}

impl OnNoBackend {
    /// Every choice, in the order of the manual.
    pub const ALL: [Self; 3] = [Self::Drop, Self::Reject, Self::Pass];

    /// Its name in configuration, API and CLI.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Drop => "drop",
            Self::Reject => "reject",
            Self::Pass => "pass",
        }
    }
}

/// What clients connect to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceAddress {
    /// Address of the service.
    pub address: IpAddr,
    /// Port or ports of the service.
    pub ports: PortRange,
    /// Transport protocol.
    pub protocol: Protocol,
}

impl ServiceAddress {
    /// What clients connect to with a single port.
    pub const fn new(address: IpAddr, port: u16, protocol: Protocol) -> Self {
        Self { address, ports: PortRange::single(port), protocol }
    }
}

/// Where a backend listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BackendAddress {
    /// Address of the backend host.
    pub address: IpAddr,
    /// Port on the backend; in modes that do not rewrite it, equal to the service's. 0 where the service has a range of
    /// ports: packets keep the port that the client chose.
    pub port: u16,
}

/// A service and its backends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    /// Unique handle.
    pub name: ServiceName,
    /// What clients connect to.
    pub address: ServiceAddress,
    /// How packets are sent to the backends.
    pub mode: Mode,
    /// What of a packet decides which backend it gets.
    pub hash: HashMode,
    /// What becomes of packets while no backend is usable.
    pub on_no_backend: OnNoBackend,
    /// How many backends the table is sized for; see [`crate::maglev::table_size`].
    pub max_backends: u16,
    /// How backends are probed.
    pub health: HealthCheck,
    /// Who may use it, and how much.
    pub admission: ServiceAdmission,
    /// Backends, addresses unique within the service. May be empty.
    pub backends: Vec<Backend>,
}

/// One backend of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backend {
    /// Where it listens.
    pub address: BackendAddress,
    /// Share of new flows relative to the other backends of the service; 1 to 1000.
    pub weight: u16,
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        })
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for OnNoBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for AttachMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Native => "native",
            Self::Generic => "generic",
            Self::Auto => "auto",
        })
    }
}

impl fmt::Display for ServiceAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.address {
            IpAddr::V4(address) => write!(f, "{address}")?,
            IpAddr::V6(address) => write!(f, "[{address}]")?,
        }
        write!(f, ":{}/{}", self.ports, self.protocol)
    }
}

impl fmt::Display for BackendAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            0 => self.address.fmt(f),
            port => SocketAddr::new(self.address, port).fmt(f),
        }
    }
}
