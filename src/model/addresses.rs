//! What is done with packets for a service's address that are for no service.

use serde::{Deserialize, Serialize};

/// What the node does with packets for a service's address that are for no service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct AddressPolicy {
    /// TCP and UDP to a port that no service has.
    pub unserved_port: UnservedPort,
    /// ICMP and ICMPv6 echo requests.
    pub echo: EchoRequest,
}

/// What is done with TCP and UDP to a port of a service's address that no service has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum UnservedPort {
    /// Left to the kernel of the node.
    #[default]
    Pass,
    /// Dropped, and counted.
    Drop,
}

impl UnservedPort {
    /// Every value, with its name in the configuration.
    pub const ALL: [(&'static str, Self); 2] = [("pass", Self::Pass), ("drop", Self::Drop)];
}

/// What is done with echo requests to a service's address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EchoRequest {
    /// Left to the kernel of the node.
    #[default]
    Pass,
    /// Answered in XDP, at a limited rate.
    Answer,
    /// Dropped, and counted.
    Drop,
}

impl EchoRequest {
    /// Every value, with its name in the configuration.
    pub const ALL: [(&'static str, Self); 3] =
        [("pass", Self::Pass), ("answer", Self::Answer), ("drop", Self::Drop)];
}
