//! Rules that need no kernel, in exact virtual time.

use std::collections::HashMap;

use tokio::time::{Instant, advance};

use super::super::{
    egress::{Kind, Vlan},
    solicit::Solicitor,
    tables::{Answer, Link, Need, Neighbour, Path, Tables},
    *,
};

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const OTHER: [u8; 6] = [2, 0, 0, 0, 0, 2];

fn target() -> IpAddr {
    [192, 0, 2, 2].into()
}

fn neighbour() -> Neighbour {
    Neighbour { interface: 7, address: target() }
}

fn link() -> Link {
    Link {
        name: "up0".into(),
        mac: Some([2, 0, 0, 0, 0, 9]),
        mtu: 1500,
        up: true,
        carrier: true,
        loopback: false,
        kind: Kind::Device,
    }
}

/// One target on the link of one interface.
fn tables() -> Tables {
    let mut tables = Tables::default();
    tables.set_links(HashMap::from([(7, link())]));
    let path = Path::Via { neighbour: neighbour(), source: [192, 0, 2, 1].into(), mtu: None };
    tables.paths.insert(target(), path);
    tables
}

fn mac(tables: &Tables) -> Option<[u8; 6]> {
    match tables.resolve(&target(), Instant::now())?.next_hop {
        NextHop::Reachable { destination_mac, .. } => Some(destination_mac),
        _ => None,
    }
}

#[tokio::test(start_paused = true)]
async fn the_mac_address_of_a_neighbour_the_kernel_forgot_serves_a_little_longer() {
    let mut tables = tables();
    tables.set_neighbour(neighbour(), Answer::Stale(MAC), Instant::now());
    tables.remove_neighbour(neighbour(), Instant::now());
    assert_eq!(tables.needs()[&neighbour()], Some(Need::Resolve), "and it is asked for at once");
    advance(Duration::from_secs(4)).await;
    // What the kernel says while it asks does not make the time longer.
    tables.set_neighbour(neighbour(), Answer::Awaited, Instant::now());
    assert_eq!(mac(&tables), Some(MAC));
    advance(Duration::from_secs(2)).await;
    assert_eq!(mac(&tables), None);
    tables.set_neighbour(neighbour(), Answer::Confirmed(OTHER), Instant::now());
    assert_eq!(mac(&tables), Some(OTHER));
}

#[tokio::test(start_paused = true)]
async fn a_neighbour_that_failed_or_whose_link_went_is_not_used_any_longer() {
    let now = Instant::now();
    let mut failed = tables();
    failed.set_neighbour(neighbour(), Answer::Confirmed(MAC), now);
    failed.set_neighbour(neighbour(), Answer::Failed, now);
    assert_eq!(mac(&failed), None);

    let mut unplugged = tables();
    unplugged.set_neighbour(neighbour(), Answer::Confirmed(MAC), now);
    unplugged.remove_neighbour(neighbour(), now);
    assert!(unplugged.set_links(HashMap::from([(7, Link { carrier: false, ..link() })])));
    unplugged.set_links(HashMap::from([(7, link())]));
    assert_eq!(mac(&unplugged), None, "somebody else may be plugged in now");
}

#[tokio::test(start_paused = true)]
async fn a_dump_tells_what_was_removed_and_old_failures_of_others_do_not_count() {
    let now = Instant::now();
    let mut tables = tables();
    tables.set_neighbours(HashMap::from([(neighbour(), Answer::Failed)]), now);
    assert!(tables.resolve(&target(), now).unwrap().pending);
    tables.set_neighbour(neighbour(), Answer::Failed, now);
    assert!(!tables.resolve(&target(), now).unwrap().pending);
    tables.set_neighbour(neighbour(), Answer::Awaited, now);
    assert!(!tables.resolve(&target(), now).unwrap().pending, "it was asked in vain and is asked again");
    tables.set_neighbours(HashMap::from([(neighbour(), Answer::Confirmed(MAC))]), now);
    tables.set_neighbours(HashMap::new(), now);
    assert_eq!(mac(&tables), Some(MAC), "held");
    assert_eq!(tables.needs()[&neighbour()], Some(Need::Resolve));
}

#[test]
fn links_that_neither_come_nor_go_lead_to_no_look_ups() {
    let mut tables = tables();
    assert!(!tables.set_links(HashMap::from([(7, Link { mtu: 9000, mac: Some(MAC), ..link() })])));
    assert!(!tables.set_links(HashMap::from([(7, link()), (8, Link { up: false, ..link() })])));
    assert!(tables.set_links(HashMap::from([(7, link()), (8, link())])));
    assert!(tables.set_links(HashMap::from([(7, link())])));
}

#[test]
fn a_neighbour_on_a_sub_interface_is_reached_by_the_device_below_with_its_tag() {
    let now = Instant::now();
    let mut tables = tables();
    let kind = Kind::Vlan(Vlan { id: 10, priority: 0, service: false, below: Some(3) });
    let above = Link { name: "eth0.10".into(), mtu: 1400, kind, ..link() };
    let device = Link { name: "eth0".into(), mac: Some(OTHER), ..link() };
    tables.set_links(HashMap::from([(7, above), (3, device)]));
    tables.set_neighbour(neighbour(), Answer::Confirmed(MAC), now);
    let NextHop::Reachable { route, destination_mac } = tables.resolve(&target(), now).unwrap().next_hop
    else {
        panic!("not reachable");
    };
    assert_eq!(destination_mac, MAC);
    assert_eq!((route.interface, route.device, route.tags.tci), (7, 3, [10, 0]));
    assert_eq!((route.mtu, route.source_mac), (1400, [2, 0, 0, 0, 0, 9]), "those of the sub-interface");
}

#[test]
fn by_an_interface_that_xdp_cannot_send_by_the_kernel_does_and_finds_the_neighbour_itself() {
    let now = Instant::now();
    let mut tables = tables();
    tables.set_links(HashMap::from([(7, Link { kind: Kind::Virtual("bridge".into()), ..link() })]));
    tables.set_neighbour(neighbour(), Answer::Confirmed(MAC), now);
    let resolution = tables.resolve(&target(), now).unwrap();
    let NextHop::Unresolved { route: Some(route), reason } = resolution.next_hop else { panic!() };
    assert_eq!(route.interface, 7);
    assert!(reason.contains("up0 is a virtual interface (bridge)"), "{reason}");
    assert!(!resolution.pending, "nothing is waited for");
    assert_eq!(tables.needs()[&neighbour()], None, "nobody need be asked");
}

#[test]
fn by_an_interface_without_mac_addresses_the_kernel_sends_but_not_by_the_loopback_one() {
    let mut tables = tables();
    for (loopback, expected) in [(false, Some(7)), (true, None)] {
        tables.set_links(HashMap::from([(7, Link { mac: None, loopback, ..link() })]));
        match tables.resolve(&target(), Instant::now()).unwrap().next_hop {
            NextHop::Unresolved { route, .. } => assert_eq!(route.map(|route| route.interface), expected),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_neighbour_that_does_not_answer_is_asked_for_less_and_less_often() {
    let mut solicitor = Solicitor::default();
    let needs = HashMap::from([(neighbour(), Some(Need::Resolve))]);
    let begin = Instant::now();
    let mut asked = Vec::new();
    while begin.elapsed() < Duration::from_secs(70) {
        solicitor.update(&needs, Instant::now());
        if !solicitor.due(Instant::now()).is_empty() {
            asked.push(begin.elapsed().as_secs());
        }
        advance(Duration::from_millis(250)).await;
    }
    assert_eq!(asked, [0, 1, 3, 7, 15, 31, 47, 63]);
    solicitor.update(&HashMap::from([(neighbour(), None)]), Instant::now());
    assert_eq!(solicitor.wake(), None);
    solicitor.update(&needs, Instant::now());
    assert_eq!(solicitor.due(Instant::now()), [neighbour()], "a new need is met at once");
}

#[tokio::test(start_paused = true)]
async fn many_neighbours_are_asked_for_in_batches_and_all_of_them() {
    let mut solicitor = Solicitor::default();
    let needs: HashMap<_, _> = (0..1000u32)
        .map(|n| (Neighbour { interface: 7, address: IpAddr::V4(n.into()) }, Some(Need::Resolve)))
        .collect();
    solicitor.update(&needs, Instant::now());
    let mut asked = BTreeSet::new();
    while asked.len() < 1000 {
        let due = solicitor.due(Instant::now());
        assert!(!due.is_empty() && due.len() <= 200);
        asked.extend(due.iter().map(|neighbour| neighbour.address));
        assert!(solicitor.due(Instant::now()).is_empty(), "not at once");
        advance(solicitor.wake().unwrap() - Instant::now()).await;
    }
}
