//! The datapath in memory under the eyes of the checker.

use std::net::IpAddr;

use super::checker::{Checker, Operation};
use crate::{
    datapath::{
        AddressServices, AdmissionRecord, Adopted, BackendCounters, BackendRecord, Datapath, DatapathError,
        FlowOwner, LedgerCounters, Link, Memory, OuterSettings, RecordRange, ServiceRecord, Slot, SourceList,
    },
    model::{AddressPolicy, BackendAddress, Egress, Protocol, ServiceAddress},
};

/// A datapath in memory that panics with the first operation that could hurt a packet.
#[derive(Clone, Debug)]
pub struct Watched {
    pub memory: Memory,
    pub checker: Checker,
}

impl Watched {
    pub fn new(memory: Memory) -> Self {
        let mut checker = Checker::default();
        checker.begin(&memory);
        Self { memory, checker }
    }

    fn run<T>(
        &mut self,
        operation: Operation<'_>,
        act: impl FnOnce(&mut Memory) -> Result<T, DatapathError>,
    ) -> Result<T, DatapathError> {
        self.checker.before(&self.memory, &operation);
        let result = act(&mut self.memory);
        self.checker.after(&mut self.memory, &operation, result.is_ok());
        result
    }
}

impl Datapath for Watched {
    fn max_services(&self) -> u16 {
        self.memory.max_services()
    }

    fn max_records(&self) -> u32 {
        self.memory.max_records()
    }

    fn adopt(&self) -> Result<Adopted, DatapathError> {
        self.memory.adopt()
    }

    fn write_service(&mut self, id: u16, record: &ServiceRecord) -> Result<(), DatapathError> {
        self.run(Operation::WriteService(id, record), |memory| memory.write_service(id, record))
    }

    fn write_policy(&mut self, id: u16, record: &ServiceRecord) -> Result<(), DatapathError> {
        self.run(Operation::Other, |memory| memory.write_policy(id, record))
    }

    fn move_service(&mut self, id: u16, range: RecordRange) -> Result<(), DatapathError> {
        self.run(Operation::MoveService(id, range), |memory| memory.move_service(id, range))
    }

    fn clear_service(&mut self, id: u16) -> Result<(), DatapathError> {
        self.run(Operation::ClearService(id), |memory| memory.clear_service(id))
    }

    fn set_last_service_id(&mut self, id: u16) -> Result<(), DatapathError> {
        self.run(Operation::Other, |memory| memory.set_last_service_id(id))
    }

    fn write_admission(&mut self, id: u16, record: &AdmissionRecord) -> Result<(), DatapathError> {
        self.memory.write_admission(id, record)
    }

    fn write_sources(&mut self, id: u16, ipv6: bool, list: Option<&SourceList>) -> Result<(), DatapathError> {
        self.memory.write_sources(id, ipv6, list)
    }

    fn set_egress(&mut self, interface: u32, egress: Option<Egress>) -> Result<(), DatapathError> {
        self.run(Operation::Other, |memory| memory.set_egress(interface, egress))
    }

    fn outer_settings(&self) -> OuterSettings {
        self.memory.outer_settings()
    }

    fn set_outer_settings(&mut self, settings: OuterSettings) -> Result<(), DatapathError> {
        self.run(Operation::Other, |memory| memory.set_outer_settings(settings))
    }

    fn bind(&mut self, address: ServiceAddress, id: u16) -> Result<(), DatapathError> {
        self.run(Operation::Bind(address, id), |memory| memory.bind(address, id))
    }

    fn unbind(&mut self, address: ServiceAddress) -> Result<(), DatapathError> {
        self.run(Operation::Other, |memory| memory.unbind(address))
    }

    fn set_address(
        &mut self,
        address: IpAddr,
        services: Option<AddressServices>,
    ) -> Result<(), DatapathError> {
        self.run(Operation::Other, |memory| memory.set_address(address, services))
    }

    fn set_address_policy(&mut self, policy: AddressPolicy) -> Result<(), DatapathError> {
        self.run(Operation::Other, |memory| memory.set_address_policy(policy))
    }

    fn write_backend(&mut self, record: u32, backend: Option<&BackendRecord>) -> Result<(), DatapathError> {
        self.run(Operation::WriteBackend(record, backend), |memory| memory.write_backend(record, backend))
    }

    fn copy_backend_counters(&mut self, from: u32, to: u32) -> Result<(), DatapathError> {
        self.run(Operation::Other, |memory| memory.copy_backend_counters(from, to))
    }

    fn write_link(&mut self, record: u32, link: Link) -> Result<(), DatapathError> {
        self.run(Operation::WriteLink(record), |memory| memory.write_link(record, link))
    }

    fn set_nat_source(
        &mut self,
        address: BackendAddress,
        protocol: Protocol,
        present: bool,
    ) -> Result<(), DatapathError> {
        self.run(Operation::Other, |memory| memory.set_nat_source(address, protocol, present))
    }

    fn publish(&mut self, tables: &[(u16, Vec<Slot>)]) -> Result<(), DatapathError> {
        self.run(Operation::Publish(tables), |memory| memory.publish(tables))
    }

    fn grace_period(&mut self) -> Result<(), DatapathError> {
        self.run(Operation::GracePeriod, Memory::grace_period)
    }

    fn retain_flows(&mut self, wanted: &dyn Fn(FlowOwner) -> bool) -> Result<u64, DatapathError> {
        self.run(Operation::Other, |memory| memory.retain_flows(wanted))
    }

    fn count_flows(&self) -> Result<u64, DatapathError> {
        self.memory.count_flows()
    }

    fn flow_capacity(&self) -> (u64, u64) {
        self.memory.flow_capacity()
    }

    fn ledger(&self, id: u16) -> Result<LedgerCounters, DatapathError> {
        self.memory.ledger(id)
    }

    fn backend_counters(&self, record: u32) -> Result<BackendCounters, DatapathError> {
        self.memory.backend_counters(record)
    }

    fn writes(&self) -> u64 {
        self.memory.writes()
    }
}
