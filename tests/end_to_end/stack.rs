//! Backends whose packets go through this node's own network stack: replies are translated on egress, in TC.

use std::net::SocketAddr;

use tidegate::datapath::{Datapath, Kernel, Options, Pins, TcAttach};
use tidegate::model::{AttachMode, Capacity, Interface};

use super::scene::*;
use crate::harness::lab::{Daemon, Lab, SERVICE_IPV4, SERVICE_IPV6};

/// A nat service whose only backend is a server on the load balancer's own node.
#[test]
fn a_backend_on_this_node_answers_through_tc() {
    let lab = Lab::new(1);
    let local: [SocketAddr; 2] = ["192.0.2.1:8080".parse().unwrap(), "[2001:db8:c::1]:8080".parse().unwrap()];
    let _server = lab.lb.serve_at(&local);
    let services = [
        Service::tcp("v4", "nat", (SERVICE_IPV4, 80).into(), vec![local[0]]),
        Service::tcp("v6", "nat", (SERVICE_IPV6, 80).into(), vec![local[1]]),
    ];
    let udp = [services[0].udp("v4-udp"), services[1].udp("v6-udp")];
    let all: Vec<_> = services.into_iter().chain(udp).collect();
    let daemon = Daemon::start(&lab, &configuration(&lab, &all));
    await_up(&daemon, 1);
    for service in &all[..2] {
        spread(10, || lab.client.fetch(service.address, REQUEST));
        spread(10, || lab.client.ask(service.address, REQUEST));
    }
    let status = daemon.status();
    for service in &status.services {
        assert!(service.ledger.reasons["forward-local"] >= 10, "{service:?}");
    }
    assert!(status.interfaces.iter().all(|interface| interface.tc == "tcx"), "{:?}", status.interfaces);
    assert_ledger_closes(&daemon);
}

/// The same replies by filters of a clsact qdisc, as on a kernel without TCX; and what a later daemon makes of them.
#[test]
fn clsact_filters_do_the_same_and_give_way_to_tcx() {
    let lab = Lab::new(1);
    let local: SocketAddr = "192.0.2.1:8080".parse().unwrap();
    let _server = lab.lb.serve_at(&[local]);
    let service = Service::tcp("web", "nat", (SERVICE_IPV4, 80).into(), vec![local]);
    let mut daemon = Daemon::start(&lab, &configuration(&lab, &[service]));
    await_up(&daemon, 1);
    daemon.kill();
    {
        let capacity = Capacity { services: 32, backends: 2048, flows: 10_000, ..Capacity::default() };
        let options = Options { pins: Pins::new("/sys/fs/bpf/tidegate"), capacity };
        let mut kernel = Kernel::open(&options).unwrap();
        for name in ["client", "backend1"] {
            let interface = Interface { name: name.into(), mode: AttachMode::Native };
            assert_eq!(kernel.attach(&interface, TcAttach::Clsact).unwrap().tc, "clsact");
            /* Once more: what is there is replaced, not doubled. */
            kernel.attach(&interface, TcAttach::Clsact).unwrap();
        }
        assert_eq!(kernel.writes(), 0);
    }
    let filters = lab.lb.command("tc filter show dev client egress");
    assert_eq!(filters.matches("handle 0x1 ").count(), 1, "{filters}");
    spread(10, || lab.client.fetch((SERVICE_IPV4, 80), REQUEST));

    daemon.restart();
    assert!(daemon.status().interfaces.iter().all(|interface| interface.tc == "tcx"));
    assert!(!lab.lb.command("tc filter show dev client egress").contains("tc_nat"));
    spread(10, || lab.client.fetch((SERVICE_IPV4, 80), REQUEST));
}
