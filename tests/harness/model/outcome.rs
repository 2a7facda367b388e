//! What a program made of a frame.

use std::net::IpAddr;

use super::Reason;

/// What the driver is told to do, by the kernel's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Action {
    Drop = 1,
    Pass = 2,
    Tx = 3,
    Redirect = 4,
}

/// The note that is put in front of a packet whose neighbour the kernel is to find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handoff {
    /// Interface that the packet came in by: only there the note is obeyed.
    pub ingress: u32,
    /// Interface to send it out of.
    pub interface: u32,
    /// Where it is not the packet's destination.
    pub next_hop: Option<IpAddr>,
}

/// What a program made of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    pub action: Action,
    /// The frame as it leaves the program. Of a dropped packet: as it came, since nobody gets to see it.
    pub frame: Vec<u8>,
    pub metadata: Option<Handoff>,
    pub reason: Reason,
    /// ID of the service the packet is counted for.
    pub service: Option<u32>,
    /// Number of the backend that the packet was sent to, or comes from.
    pub backend: Option<u16>,
    /// Interface of [`Action::Redirect`].
    pub redirect: Option<u32>,
    /// Bytes that are counted.
    pub bytes: u64,
}

impl Outcome {
    /// What a test run of the program returns as its output: the note, where there is one, and the frame.
    pub fn data_out(&self) -> Vec<u8> {
        let mut bytes = self.metadata.map(|note| note.to_bytes()).unwrap_or_default();
        bytes.extend(&self.frame);
        bytes
    }
}

impl Handoff {
    /// "tide", as a number.
    const MAGIC: u32 = 0x7469_6465;
    const AF_INET: u32 = 2;
    const AF_INET6: u32 = 10;

    /// The 32 bytes of the note. Numbers are in the machine's byte order, the address in the network's.
    pub fn to_bytes(self) -> Vec<u8> {
        let (family, mut address) = match self.next_hop {
            None => (0, Vec::new()),
            Some(IpAddr::V4(address)) => (Self::AF_INET, address.octets().to_vec()),
            Some(IpAddr::V6(address)) => (Self::AF_INET6, address.octets().to_vec()),
        };
        address.resize(16, 0);
        let numbers = [Self::MAGIC, self.ingress, self.interface, family];
        numbers.into_iter().flat_map(u32::to_ne_bytes).chain(address).collect()
    }
}
