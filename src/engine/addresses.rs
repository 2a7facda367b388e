//! What packets without ports are led by: the services of each address.

use std::{collections::BTreeSet, net::IpAddr};

use super::Engine;
use crate::{
    datapath::{AddressServices, Datapath, DatapathError},
    model::ServiceAddress,
};

impl<D: Datapath> Engine<D> {
    /// Tells of a service that is about to be bound, in the place of one with the same address, port and protocol where there is
    /// one.
    pub(super) fn add_address(&mut self, new: ServiceAddress, id: u16) -> Result<(), DatapathError> {
        let others = self.programmed.services_on(new.address).filter(|(address, _)| *address != new);
        let services = others
            .fold(AddressServices::default().with(new.protocol, id), |all, (address, id)| {
                all.with(address.protocol, id)
            });
        self.set_address(new.address, Some(services))
    }

    /// Makes what is told of all addresses what is bound.
    pub(super) fn correct_all_addresses(&mut self) -> Result<(), DatapathError> {
        let bound = self.programmed.services.keys().map(|service| service.address);
        self.correct_addresses(bound.chain(self.programmed.addresses.keys().copied()).collect())
    }

    /// Makes what is told of these addresses what is bound.
    pub(super) fn correct_addresses(&mut self, addresses: BTreeSet<IpAddr>) -> Result<(), DatapathError> {
        for address in addresses {
            let services = self.programmed.services_on(address).fold(None, |all, (service, id)| {
                Some(all.unwrap_or(AddressServices::default()).with(service.protocol, id))
            });
            self.set_address(address, services)?;
        }
        Ok(())
    }

    fn set_address(
        &mut self,
        address: IpAddr,
        services: Option<AddressServices>,
    ) -> Result<(), DatapathError> {
        if self.programmed.addresses.get(&address).copied() == services {
            return Ok(());
        }
        self.datapath.set_address(address, services)?;
        match services {
            Some(services) => self.programmed.addresses.insert(address, services),
            None => self.programmed.addresses.remove(&address),
        };
        Ok(())
    }

    /// Makes what is done with packets for no service what is desired.
    pub(super) fn change_address_policy(&mut self) -> Result<(), DatapathError> {
        if self.address_policy != self.programmed.address_policy {
            self.datapath.set_address_policy(self.address_policy)?;
            self.programmed.address_policy = self.address_policy;
        }
        Ok(())
    }
}
