//! What the packet path knows of a service's address, whatever the port: its only service of each protocol, by which pieces of
//! datagrams without ports are led.

use std::{
    mem::{offset_of, size_of},
    net::IpAddr,
};

use super::{
    records::{address_from_words, address_words},
    skeleton::types,
    sys::PlainData,
};
use crate::model::{AddressPolicy, EchoRequest, Protocol, UnservedPort};

const _: () = {
    assert!(size_of::<types::address_key>() == 20);
    assert!(size_of::<types::address_services>() == 8);
    assert!(size_of::<types::fragment_key>() == 40);
    assert!(size_of::<types::datagram>() == 16);
    assert!(offset_of!(types::datagram, tick) == 4);
};

/// The services that an address has of one protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnAddress {
    /// None.
    #[default]
    None,
    /// One, with this ID.
    Only(u16),
    /// More than one, of which only a port can tell which is meant.
    Several,
}

impl OnAddress {
    fn number(self) -> u32 {
        match self {
            Self::None => 0,
            Self::Only(id) => id.into(),
            Self::Several => types::service_ids::SERVICES_SEVERAL.0,
        }
    }

    fn from_number(number: u32) -> Self {
        match u16::try_from(number) {
            Ok(0) => Self::None,
            Ok(id) => Self::Only(id),
            Err(_) => Self::Several,
        }
    }

    fn with(self, id: u16) -> Self {
        match self {
            Self::None => Self::Only(id),
            Self::Only(_) | Self::Several => Self::Several,
        }
    }
}

/// The services of an address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AddressServices {
    /// Those of TCP.
    pub tcp: OnAddress,
    /// Those of UDP.
    pub udp: OnAddress,
}

impl AddressServices {
    /// The same and one more service.
    #[must_use]
    pub fn with(self, protocol: Protocol, id: u16) -> Self {
        match protocol {
            Protocol::Tcp => Self { tcp: self.tcp.with(id), ..self },
            Protocol::Udp => Self { udp: self.udp.with(id), ..self },
        }
    }

    pub(super) fn to_raw(self) -> types::address_services {
        types::address_services { tcp: self.tcp.number(), udp: self.udp.number() }
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let raw = types::address_services::from_bytes(bytes)?;
        Some(Self { tcp: OnAddress::from_number(raw.tcp), udp: OnAddress::from_number(raw.udp) })
    }
}

/// The key of an address.
pub(super) fn key(address: IpAddr) -> types::address_key {
    let family = match address {
        IpAddr::V4(_) => types::address_family::FAMILY_IPV4,
        IpAddr::V6(_) => types::address_family::FAMILY_IPV6,
    };
    types::address_key { address: address_words(address), family: family.0 }
}

/// The address in the bytes of a key.
pub(super) fn address_of_key(bytes: &[u8]) -> Option<IpAddr> {
    let key = types::address_key::from_bytes(bytes)?;
    Some(address_from_words(key.address, key.family == types::address_family::FAMILY_IPV6.0))
}

/// The policy as bits of the node's settings.
pub(super) fn policy_bits(policy: AddressPolicy) -> u8 {
    let unserved = match policy.unserved_port {
        UnservedPort::Pass => 0,
        UnservedPort::Drop => types::address_policy::ADDRESS_UNSERVED_DROP.0,
    };
    let echo = match policy.echo {
        EchoRequest::Pass => 0,
        EchoRequest::Answer => types::address_policy::ADDRESS_ECHO_ANSWER.0,
        EchoRequest::Drop => types::address_policy::ADDRESS_ECHO_DROP.0,
    };
    (unserved | echo) as u8
}

/// The policy that the bits of the node's settings say; others than this version knows are as the default.
pub(super) fn policy_of(bits: u8) -> AddressPolicy {
    let all = UnservedPort::ALL.into_iter().flat_map(|(_, unserved_port)| {
        EchoRequest::ALL.map(|(_, echo)| AddressPolicy { unserved_port, echo })
    });
    all.into_iter().find(|&policy| policy_bits(policy) == bits).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_knows_its_only_service_of_each_protocol() {
        let one = AddressServices::default().with(Protocol::Udp, 7);
        assert_eq!(one, AddressServices { tcp: OnAddress::None, udp: OnAddress::Only(7) });
        let both = one.with(Protocol::Tcp, 8);
        assert_eq!(both, AddressServices { tcp: OnAddress::Only(8), udp: OnAddress::Only(7) });
        let several = both.with(Protocol::Udp, 9).with(Protocol::Udp, 10);
        assert_eq!(several, AddressServices { tcp: OnAddress::Only(8), udp: OnAddress::Several });
        for services in [one, both, several] {
            assert_eq!(AddressServices::from_bytes(services.to_raw().bytes()), Some(services));
        }
    }

    #[test]
    fn keys_read_back_the_address_they_were_made_of() {
        /* The last one has the words of the first. */
        for address in ["192.0.2.10", "2001:db8::10", "c000:20a::"] {
            let address: IpAddr = address.parse().unwrap();
            assert_eq!(address_of_key(key(address).bytes()), Some(address));
        }
    }

    #[test]
    fn policies_survive_the_settings() {
        for (_, unserved_port) in UnservedPort::ALL {
            for (_, echo) in EchoRequest::ALL {
                let policy = AddressPolicy { unserved_port, echo };
                assert_eq!(policy_of(policy_bits(policy)), policy);
            }
        }
    }
}
