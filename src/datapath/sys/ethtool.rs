//! What a driver says of its interface, by the system call that `ethtool` makes.

use std::os::fd::AsRawFd;

use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

/// The driver of an interface, as `ethtool -i` shows it.
pub(in crate::datapath) fn driver(interface: &str) -> Option<String> {
    const GET_DRIVER_INFO: u32 = 3;
    const DRIVER_INFO_SIZE: usize = 196;
    const NAME: std::ops::Range<usize> = 4..36;
    let info = ask::<{ DRIVER_INFO_SIZE / 4 }>(interface, GET_DRIVER_INFO)?;
    let bytes: Vec<u8> = info.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let name: Vec<u8> = bytes.get(NAME)?.iter().copied().take_while(|&byte| byte != 0).collect();
    (!name.is_empty()).then(|| String::from_utf8_lossy(&name).into_owned())
}

/// Whether the interface takes VLAN tags off the frames it receives, as `ethtool -k` shows it.
pub(in crate::datapath) fn rx_vlan_offload(interface: &str) -> Option<bool> {
    const GET_FLAGS: u32 = 0x25;
    const RX_VLAN: u32 = 1 << 8;
    let [_, flags] = ask::<2>(interface, GET_FLAGS)?;
    Some(flags & RX_VLAN != 0)
}

/// True where an interface merges packets before the generic XDP program sees them (`ethtool -k`: generic-receive-offload).
pub(in crate::datapath) fn merges_packets(interface: &str) -> bool {
    const GET_GRO: u32 = 0x2b;
    ask::<2>(interface, GET_GRO).is_some_and(|[_, value]| value != 0)
}

/// The words that a command fills, the command itself being the first; `None` where it is refused.
fn ask<const WORDS: usize>(interface: &str, command: u32) -> Option<[u32; WORDS]> {
    const SIOCETHTOOL: libc::c_ulong = 0x8946;
    let mut words = [0; WORDS];
    *words.first_mut()? = command;
    // SAFETY: an all-zero ifreq is a valid one.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    let name = interface.as_bytes();
    if name.len() >= request.ifr_name.len() {
        return None;
    }
    for (target, &byte) in request.ifr_name.iter_mut().zip(name) {
        *target = byte as libc::c_char;
    }
    request.ifr_ifru.ifru_data = words.as_mut_ptr().cast();
    let socket = socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None).ok()?;
    // SAFETY: the request names a buffer of the size that this command fills, and both live through the call.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL as _, &mut request) };
    (result == 0).then_some(words)
}
