//! What happens to the network is followed.

use std::{fs, net::IpAddr};

use super::{
    super::{kernel::Kernel, *},
    PATIENCE,
    lab::{Lab, MAC_0, PEER_0, PEER_1, index, ip, mac, reason, run, until},
};

fn peer() -> IpAddr {
    [192, 0, 2, 2].into()
}

fn far() -> IpAddr {
    [203, 0, 113, 7].into()
}

async fn resolving(targets: &[IpAddr]) -> Resolver {
    let resolver = Resolver::spawn().unwrap();
    resolver.set_targets(targets.iter().copied().collect());
    resolver.settled(PATIENCE).await;
    resolver
}

#[test]
fn a_changed_mac_address_is_found_out_without_any_announcement() {
    run(async |lab: Lab| {
        lab.hurry();
        let resolver = resolving(&[peer()]).await;
        assert_eq!(mac(&resolver.subscribe().borrow(), peer()), Some(PEER_0));
        lab.peer.ip("link set peer0 address 02:00:00:00:00:77");
        until(&resolver, "the new address", |all| mac(all, peer()) == Some([2, 0, 0, 0, 0, 0x77])).await;
    });
}

#[test]
fn the_own_mac_address_mtu_and_name_are_followed() {
    run(async |_lab: Lab| {
        let resolver = resolving(&[peer()]).await;
        ip("link set up0 address 02:00:00:00:00:66");
        ip("link set up0 mtu 1300");
        ip("link property add dev up0 altname uplink");
        let own = |all: &Snapshot| match &all.next_hops[&peer()] {
            NextHop::Reachable { route, .. } => {
                Some((route.source_mac, route.mtu, route.interface_name.clone()))
            }
            _ => None,
        };
        until(&resolver, "the new address and MTU", |all| {
            own(all) == Some(([2, 0, 0, 0, 0, 0x66], 1300, "up0".to_owned()))
        })
        .await;
        ip("link set up0 down");
        ip("link set up0 name wan0");
        ip("link set wan0 up");
        until(&resolver, "the new name", |all| own(all).is_some_and(|(_, _, name)| name == "wan0")).await;
    });
}

#[test]
fn a_link_that_goes_down_and_up_is_followed() {
    run(async |lab: Lab| {
        let resolver = resolving(&[peer()]).await;
        ip("link set up0 down");
        until(&resolver, "no route", |all| reason(all, peer()) == Some("there is no route to 192.0.2.2"))
            .await;
        ip("link set up0 up");
        until(&resolver, "reachable again", |all| mac(all, peer()) == Some(PEER_0)).await;
        lab.peer.ip("link set peer0 down");
        until(&resolver, "no carrier", |all| reason(all, peer()) == Some("up0 has no carrier")).await;
        lab.peer.ip("link set peer0 up");
        until(&resolver, "reachable once more", |all| mac(all, peer()) == Some(PEER_0)).await;
    });
}

#[test]
fn routes_rules_and_addresses_that_change_are_followed() {
    run(async |_lab: Lab| {
        let resolver = resolving(&[far()]).await;
        assert_eq!(reason(&resolver.subscribe().borrow(), far()), Some("there is no route to 203.0.113.7"));
        ip("route add 203.0.113.0/24 via 192.0.2.2");
        until(&resolver, "a route", |all| mac(all, far()) == Some(PEER_0)).await;
        ip("route replace 203.0.113.0/24 via 192.0.3.2");
        until(&resolver, "another route", |all| mac(all, far()) == Some(PEER_1)).await;
        ip("route add 203.0.113.7/32 via 192.0.2.2 table 100");
        ip("rule add to 203.0.113.0/24 table 100");
        until(&resolver, "a rule", |all| mac(all, far()) == Some(PEER_0)).await;
        ip("address add 203.0.113.7/32 dev lo");
        until(&resolver, "its own", |all| all.next_hops[&far()] == NextHop::Local).await;
        ip("address del 203.0.113.7/32 dev lo");
        ip("rule del to 203.0.113.0/24 table 100");
        ip("route del 203.0.113.0/24");
        until(&resolver, "no route", |all| reason(all, far()) == Some("there is no route to 203.0.113.7"))
            .await;
    });
}

#[test]
fn an_interface_that_is_deleted_and_made_again_is_followed() {
    run(async |lab: Lab| {
        let resolver = resolving(&[peer()]).await;
        let before = index("up0");
        ip("link del up0");
        until(&resolver, "no route", |all| reason(all, peer()) == Some("there is no route to 192.0.2.2"))
            .await;
        lab.pair(0);
        ip("address add 192.0.2.1/24 dev up0");
        lab.peer.ip("address add 192.0.2.2/24 dev peer0");
        let all = until(&resolver, "reachable again", |all| mac(all, peer()) == Some(PEER_0)).await;
        let expected = lab.route("up0", MAC_0, [192, 0, 2, 1].into(), 1500);
        assert_ne!(expected.interface, before);
        assert!(matches!(&all.next_hops[&peer()], NextHop::Reachable { route, .. } if *route == expected));
    });
}

#[test]
fn neighbours_that_are_flushed_are_asked_for_again() {
    run(async |_lab: Lab| {
        let resolver = resolving(&[peer()]).await;
        for _ in 0..5 {
            ip("neigh flush dev up0");
            let there = || ip("neigh show 192.0.2.2 dev up0").contains("lladdr 02:00:00:00:00:20");
            let mut snapshots = resolver.subscribe();
            while !there() {
                timeout(PATIENCE, snapshots.changed()).await.expect("asked for again").unwrap();
            }
            until(&resolver, "reachable", |all| mac(all, peer()) == Some(PEER_0)).await;
        }
    });
}

/// The events of the changes that matter are lost among thousands of others, for which there is no room.
#[test]
fn lost_events_lead_to_a_full_check() {
    run(async |_lab: Lab| {
        let resolver = Resolver::with(Kernel::connect_with(8192).unwrap());
        resolver.set_targets([far()].into());
        resolver.settled(PATIENCE).await;
        let folder = tempfile::tempdir().unwrap();
        let batch = folder.path().join("batch");
        let mut commands: String =
            (0..2000).map(|n| format!("route add 10.{}.{}.0/24 via 192.0.2.2\n", n / 250, n % 250)).collect();
        commands += "route add 203.0.113.0/24 via 192.0.2.2\n";
        fs::write(&batch, commands).unwrap();
        // This blocks the only thread of the runtime: nobody reads events meanwhile.
        ip(&format!("-batch {}", batch.display()));
        until(&resolver, "the route", |all| mac(all, far()) == Some(PEER_0)).await;
    });
}

#[test]
fn a_broken_connection_is_replaced_and_what_changed_meanwhile_is_found() {
    run(async |_lab: Lab| {
        for broken in 0..2 {
            let kernel = Kernel::connect().unwrap();
            let connection = kernel.tasks[broken].clone();
            let resolver = Resolver::with(kernel);
            resolver.set_targets([far(), peer()].into());
            resolver.settled(PATIENCE).await;
            connection.abort();
            ip("route add 203.0.113.0/24 via 192.0.2.2");
            until(&resolver, "the route", |all| mac(all, far()) == Some(PEER_0)).await;
            assert_eq!(mac(&resolver.subscribe().borrow(), peer()), Some(PEER_0));
            ip("route del 203.0.113.0/24");
            until(&resolver, "no route", |all| reason(all, far()).is_some()).await;
        }
    });
}
