//! What packets without ports are led by is what is bound.

use std::net::IpAddr;

use crate::{
    datapath::{AddressServices, Memory, OnAddress, Step},
    engine::Engine,
    model::{
        AddressPolicy, EchoRequest, HashMode, HealthCheck, Mode, Protocol, Service, ServiceAddress,
        UnservedPort,
    },
};

const ADDRESS: &str = "192.0.2.10";

fn service(name: &str, port: u16, protocol: Protocol, mode: Mode) -> Service {
    Service {
        name: name.parse().unwrap(),
        address: ServiceAddress::new(ADDRESS.parse().unwrap(), port, protocol),
        mode,
        hash: HashMode::FiveTuple,
        on_no_backend: crate::model::OnNoBackend::Drop,
        max_backends: 4,
        health: HealthCheck::none(),
        admission: crate::model::ServiceAdmission::default(),
        backends: Vec::new(),
    }
}

fn engine() -> Engine<Memory> {
    Engine::adopt(Memory::new(100, 1000)).unwrap()
}

fn apply(engine: &mut Engine<Memory>, services: &[Service]) -> Vec<Step> {
    engine.datapath_mut().log.clear();
    engine.set_desired(services);
    engine.apply().unwrap();
    engine.datapath().log.clone()
}

fn known(engine: &Engine<Memory>) -> Option<AddressServices> {
    engine.datapath().addresses.get(&ADDRESS.parse::<IpAddr>().unwrap()).copied()
}

/// The ID that packets for the service are led to.
fn id(engine: &Engine<Memory>, service: &Service) -> u16 {
    engine.datapath().bindings[&service.address]
}

#[test]
fn an_address_is_told_before_its_first_service_is_bound_and_until_its_last_is_gone() {
    let mut engine = engine();
    let one = service("one", 53, Protocol::Udp, Mode::Dsr);
    let log = apply(&mut engine, std::slice::from_ref(&one));
    let at = |log: &[Step], step: &dyn Fn(&Step) -> bool| log.iter().position(step).unwrap();
    let told = |step: &Step| matches!(step, Step::Address(..));
    assert!(at(&log, &told) < at(&log, &|step| matches!(step, Step::Bind(..))), "{log:?}");
    let only = OnAddress::Only(id(&engine, &one));
    assert_eq!(known(&engine), Some(AddressServices { tcp: OnAddress::None, udp: only }));

    let log = apply(&mut engine, &[]);
    assert!(at(&log, &|step| matches!(step, Step::Unbind(..))) < at(&log, &told), "{log:?}");
    assert_eq!(known(&engine), None);
}

#[test]
fn services_that_come_and_go_are_counted_by_protocol() {
    let mut engine = engine();
    let services = [
        service("one", 53, Protocol::Udp, Mode::Dsr),
        service("two", 54, Protocol::Udp, Mode::Dsr),
        service("tcp", 53, Protocol::Tcp, Mode::Dsr),
    ];
    apply(&mut engine, &services);
    let tcp = OnAddress::Only(id(&engine, &services[2]));
    assert_eq!(known(&engine), Some(AddressServices { tcp, udp: OnAddress::Several }));
    apply(&mut engine, &services[1..]);
    let udp = OnAddress::Only(id(&engine, &services[1]));
    assert_eq!(known(&engine), Some(AddressServices { tcp, udp }));

    /* One that is put in the place of another has another ID. */
    let replaced = [service("two", 54, Protocol::Udp, Mode::Nat), services[2].clone()];
    apply(&mut engine, &replaced);
    assert_ne!(OnAddress::Only(id(&engine, &replaced[0])), udp);
    let udp = OnAddress::Only(id(&engine, &replaced[0]));
    assert_eq!(known(&engine), Some(AddressServices { tcp, udp }));
}

#[test]
fn a_restart_writes_nothing_and_corrects_what_is_wrong() {
    let mut engine = engine();
    let services = [service("one", 53, Protocol::Udp, Mode::Dsr)];
    let policy = AddressPolicy { unserved_port: UnservedPort::Drop, echo: EchoRequest::Answer };
    engine.set_address_policy(policy);
    apply(&mut engine, &services);
    let right = known(&engine);
    assert_eq!(engine.datapath().address_policy, policy);

    let mut memory = engine.datapath().clone();
    memory.log.clear();
    let mut adopted = Engine::adopt(memory.clone()).unwrap();
    adopted.set_address_policy(policy);
    assert_eq!(apply(&mut adopted, &services), [Step::RetainFlows]);

    /* As if the process had died between two steps. */
    memory.addresses.insert("192.0.2.99".parse().unwrap(), AddressServices::default());
    memory.addresses.insert(ADDRESS.parse().unwrap(), AddressServices::default().with(Protocol::Udp, 77));
    let mut adopted = Engine::adopt(memory).unwrap();
    adopted.set_address_policy(AddressPolicy::default());
    apply(&mut adopted, &services);
    assert_eq!((known(&adopted), adopted.datapath().addresses.len()), (right, 1));
    assert_eq!(adopted.datapath().address_policy, AddressPolicy::default());
}
