//! Addresses, sums and enumerations as the records of the maps have them.

use super::*;

/// An address as four words in network byte order; IPv4 in the first.
pub(in crate::datapath) fn address_words(address: IpAddr) -> [u32; 4] {
    match address {
        IpAddr::V4(v4) => [u32::from_ne_bytes(v4.octets()), 0, 0, 0],
        IpAddr::V6(v6) => {
            let octets = v6.octets();
            std::array::from_fn(|i| {
                u32::from_ne_bytes([octets[4 * i], octets[4 * i + 1], octets[4 * i + 2], octets[4 * i + 3]])
            })
        }
    }
}

/// The address in four words in network byte order.
pub(in crate::datapath) fn address_from_words(words: [u32; 4], ipv6: bool) -> IpAddr {
    if !ipv6 {
        return IpAddr::V4(Ipv4Addr::from(words[0].to_ne_bytes()));
    }
    let mut octets = [0; 16];
    for (bytes, word) in octets.chunks_exact_mut(4).zip(words) {
        bytes.copy_from_slice(&word.to_ne_bytes());
    }
    IpAddr::V6(Ipv6Addr::from(octets))
}

/// One's complement sum of 16-bit words as they lie in memory (RFC 1071: it does not depend on byte order).
pub(super) fn sum(parts: &[&[u8]]) -> u16 {
    let mut total: u64 = 0;
    for part in parts {
        for pair in part.chunks_exact(2) {
            total += u64::from(u16::from_ne_bytes([pair[0], pair[1]]));
        }
    }
    while total > 0xffff {
        total = (total & 0xffff) + (total >> 16);
    }
    total as u16
}

pub(super) fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

pub(super) fn endpoint_sum(address: IpAddr, port: u16) -> u16 {
    sum(&[&octets(address), &port.to_be_bytes()])
}

pub(super) fn mode_number(mode: Mode) -> u8 {
    let number = match mode {
        Mode::Nat => types::forward_mode::MODE_NAT,
        Mode::Dsr => types::forward_mode::MODE_DSR,
        Mode::Ipip => types::forward_mode::MODE_IPIP,
        Mode::Gre => types::forward_mode::MODE_GRE,
        Mode::Gue => types::forward_mode::MODE_GUE,
    };
    number.0 as u8
}

pub(super) fn mode_from_number(number: u8) -> Option<Mode> {
    Mode::ALL.into_iter().find(|&mode| mode_number(mode) == number)
}

pub(super) fn on_no_backend_number(action: OnNoBackend) -> u8 {
    let number = match action {
        OnNoBackend::Drop => types::no_backend_action::NO_BACKEND_DROP,
        OnNoBackend::Reject => types::no_backend_action::NO_BACKEND_REJECT,
        OnNoBackend::Pass => types::no_backend_action::NO_BACKEND_PASS,
    };
    number.0 as u8
}

pub(super) fn on_no_backend_from_number(number: u8) -> Option<OnNoBackend> {
    OnNoBackend::ALL.into_iter().find(|&action| on_no_backend_number(action) == number)
}

pub(super) fn hash_number(hash: HashMode) -> u8 {
    let number = match hash {
        HashMode::FiveTuple => types::hash_mode::HASH_FIVE_TUPLE,
        HashMode::Source { .. } => types::hash_mode::HASH_SOURCE,
        HashMode::SourceDestination { .. } => types::hash_mode::HASH_SOURCE_DESTINATION,
    };
    number.0 as u8
}

pub(super) fn hash_from_numbers(number: u8, prefix: u8) -> Option<HashMode> {
    let all = [HashMode::FiveTuple, HashMode::Source { prefix }, HashMode::SourceDestination { prefix }];
    all.into_iter().find(|&hash| hash_number(hash) == number)
}

pub(super) fn protocol_from_number(number: u8) -> Option<Protocol> {
    [Protocol::Tcp, Protocol::Udp].into_iter().find(|protocol| protocol.number() == number)
}

pub(super) fn family_number(address: IpAddr) -> u8 {
    let number = match address {
        IpAddr::V4(_) => types::address_family::FAMILY_IPV4,
        IpAddr::V6(_) => types::address_family::FAMILY_IPV6,
    };
    number.0 as u8
}
