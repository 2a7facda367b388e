//! Observed state: what runs, as the API serves it and the CLI prints it.
//!
//! The JSON of the API is these types; field names are the words of the design.

use std::{collections::BTreeMap, net::IpAddr};

use serde::{Deserialize, Serialize};

use super::{
    BackendAddress, BackendState, HashMode, Mode, OnNoBackend, PortRange, Protocol, ServiceAddress,
    ServiceName,
};

/// The answer to "is it forwarding, and is anything wrong?".
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Status {
    /// Version of the daemon.
    pub version: String,
    /// Process id of the daemon.
    pub pid: u32,
    /// When the daemon started, seconds since the Unix epoch.
    pub started_at: u64,
    /// True once the whole desired state is programmed and every interface is attached.
    pub ready: bool,
    /// Interfaces with the programs attached to them.
    pub interfaces: Vec<InterfaceStatus>,
    /// What is wrong, most urgent first; empty when nothing is.
    pub problems: Vec<Problem>,
    /// Services in the order of the configuration.
    pub services: Vec<ServiceStatus>,
    /// The ledger of all packets on all interfaces.
    pub ledger: Ledger,
    /// How the kernel's maps were written by this process.
    pub publication: Publication,
    /// Flow table use.
    pub flows: FlowTableStatus,
}

/// One attached interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct InterfaceStatus {
    /// Kernel name.
    pub name: String,
    /// Kernel index.
    pub index: u32,
    /// `native` or `generic`: the mode the XDP program got.
    pub xdp: String,
    /// `tcx` or `clsact`: how the TC programs are attached.
    pub tc: String,
    /// Driver of the interface, where the kernel names one.
    pub driver: Option<String>,
    /// True when the link was there before this process started and its program was replaced in place.
    pub adopted: bool,
}

/// Something an operator should know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Problem {
    /// What is wrong, with the name of the thing it is about.
    pub message: String,
    /// What to do about it.
    pub remedy: String,
}

/// A service as it runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct ServiceStatus {
    /// Unique handle.
    pub name: ServiceName,
    /// Number of the service in the kernel's maps.
    pub id: u32,
    /// Service address.
    pub address: IpAddr,
    /// Service port, or the lowest of its ports; 0 where the service has every port.
    pub port: u16,
    /// Highest of the service's ports; absent where there is only one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port_end: Option<u16>,
    /// Transport protocol.
    pub protocol: Protocol,
    /// How packets are sent to backends.
    pub mode: Mode,
    /// What decides which backend a packet gets: `five-tuple`, `source` or `source-destination`.
    #[serde(default = "five_tuple")]
    pub hash: String,
    /// Bits of the client's address that count for `hash`; absent where the whole flow does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hash_prefix: Option<u8>,
    /// What becomes of packets while no backend is usable.
    pub on_no_backend: OnNoBackend,
    /// Slots of its Maglev table.
    pub slots: u32,
    /// Its backends in the order of the configuration.
    pub backends: Vec<BackendStatus>,
    /// Its ledger.
    pub ledger: Ledger,
}

impl ServiceStatus {
    /// What clients connect to.
    pub fn service_address(&self) -> ServiceAddress {
        let ports = PortRange::new(self.port, self.port_end.unwrap_or(self.port));
        ServiceAddress {
            address: self.address,
            ports: ports.unwrap_or(PortRange::single(self.port)),
            protocol: self.protocol,
        }
    }
}

/// What decides where nothing is said: daemons that say nothing know nothing else.
fn five_tuple() -> String {
    HashMode::FiveTuple.name().to_owned()
}

/// A backend of a service as it runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct BackendStatus {
    /// Number of the backend within its service, as slots and flows name it.
    pub id: u32,
    /// Backend address.
    pub address: IpAddr,
    /// Backend port; 0 where packets keep the port that the client chose.
    pub port: u16,
    /// Share of new flows relative to the others.
    pub weight: u16,
    /// State in the packet path.
    pub state: BackendState,
    /// The last probe's failure, where the last probe failed.
    pub last_failure: Option<String>,
    /// Slots of the table that name it now.
    pub slots: u32,
    /// How packets get there.
    pub next_hop: NextHopStatus,
    /// Packets sent to it.
    pub packets: u64,
    /// Bytes of those packets, counted from the IP header on as they arrived.
    pub bytes: u64,
}

impl BackendStatus {
    /// Where the backend listens.
    pub fn backend_address(&self) -> BackendAddress {
        BackendAddress { address: self.address, port: self.port }
    }
}

/// How packets get to a backend.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum NextHopStatus {
    /// Straight from XDP.
    Resolved {
        /// Interface the packets leave by.
        interface: String,
        /// MAC address of the next hop.
        mac: String,
    },
    /// The backend is this node; packets are passed up.
    Local,
    /// No usable next hop is known yet; packets are handed to the kernel's routing.
    Unresolved {
        /// Why, in words for an operator.
        reason: String,
    },
}

/// Packets by what became of them. `seen` = `forwarded` + `passed` + `dropped`, each the sum of its reasons.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Ledger {
    /// Packets that entered the program.
    pub seen: u64,
    /// Bytes of those packets.
    pub bytes: u64,
    /// Packets sent on, in all.
    pub forwarded: u64,
    /// Packets given to the kernel untouched, in all.
    pub passed: u64,
    /// Packets dropped, in all.
    pub dropped: u64,
    /// Packets by reason; reasons that never occurred are left out.
    pub reasons: BTreeMap<String, u64>,
}

/// How the kernel's maps were written by this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Publication {
    /// Services found pinned and taken over when the process started.
    pub adopted_services: u32,
    /// Map elements written since the process started; 0 after a restart with nothing changed.
    pub writes: u64,
    /// Tables published since the process started.
    pub tables: u64,
    /// Length of the last publication in microseconds.
    pub last_microseconds: u64,
}

/// Use of the flow table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct FlowTableStatus {
    /// Flows there is room for.
    pub capacity: u64,
    /// Bytes of memory of the table.
    pub bytes: u64,
    /// Entries in use when last counted.
    pub entries: u64,
}
