//! Against the real kernel, in network namespaces of each test's own. Rules without a kernel: `rules`.

mod following;
mod lab;
mod rules;

use std::{collections::BTreeSet, time::Duration};

use super::*;
use lab::{Lab, MAC_0, MAC_1, PEER_0, ip, run, unresolved};

/// Shorter than the time between full checks: what only these would notice is too late.
const PATIENCE: Duration = Duration::from_secs(20);

#[test]
fn every_kind_of_path_is_told_as_the_kernel_has_it() {
    run(async |lab: Lab| {
        ip("route add 198.51.100.0/25 via 192.0.2.2 mtu 1400");
        ip("route add 198.51.100.128/25 via inet6 2001:db8::2 dev up0");
        ip("route add 2001:db8:1::/48 via 2001:db8::2");
        ip("route add blackhole 203.0.113.16/28");
        ip("route add unreachable 203.0.113.32/28");
        ip("route add prohibit 203.0.113.48/28");
        ip("route add 203.0.113.64/28 dev lo");
        let reachable = |source: &str, mtu| NextHop::Reachable {
            route: lab.route("up0", MAC_0, source.parse().unwrap(), mtu),
            destination_mac: PEER_0,
        };
        let expected = [
            ("192.0.2.2", reachable("192.0.2.1", 1500)),
            ("198.51.100.7", reachable("192.0.2.1", 1400)),
            ("198.51.100.200", reachable("192.0.2.1", 1500)),
            ("2001:db8::2", reachable("2001:db8::1", 1500)),
            ("2001:db8:1::7", reachable("2001:db8::1", 1500)),
            ("192.0.2.1", NextHop::Local),
            ("127.0.0.1", NextHop::Local),
            ("2001:db8::1", NextHop::Local),
            ("203.0.113.1", unresolved("there is no route to 203.0.113.1")),
            ("2001:db8:2::1", unresolved("there is no route to 2001:db8:2::1")),
            ("203.0.113.33", unresolved("a route of the type unreachable covers 203.0.113.33")),
            ("203.0.113.49", unresolved("a route or rule of the type prohibit covers 203.0.113.49")),
            ("192.0.2.255", unresolved("192.0.2.255 is a broadcast address")),
            ("203.0.113.65", unresolved("lo is not an Ethernet interface")),
            (
                "203.0.113.17",
                unresolved(
                    "a route of the type blackhole covers 203.0.113.17, or it is no address of a host",
                ),
            ),
        ];
        let targets = expected.iter().map(|(target, _)| target.parse().unwrap()).collect();
        let found = resolve_once(&targets, PATIENCE).await.unwrap();
        assert_eq!(found.len(), expected.len());
        for (target, next_hop) in &expected {
            assert_eq!(&found[&target.parse::<IpAddr>().unwrap()], next_hop, "{target}");
        }
    });
}

#[test]
fn a_host_that_does_not_answer_is_named_and_found_as_soon_as_it_does() {
    run(async |lab: Lab| {
        lab.hurry();
        let resolver = Resolver::spawn().unwrap();
        let (v4, v6) = ("192.0.2.7".parse().unwrap(), "2001:db8::7".parse().unwrap());
        resolver.set_targets(BTreeSet::from([v4, v6]));
        let snapshot = resolver.settled(PATIENCE).await;
        let reason = |address| match &snapshot.next_hops[&address] {
            NextHop::Unresolved { route: Some(_), reason } => reason.clone(),
            other => panic!("{other:?}"),
        };
        assert_eq!(reason(v4), "192.0.2.7 does not answer to ARP on up0");
        assert_eq!(reason(v6), "2001:db8::7 does not answer to neighbour discovery on up0");
        lab.peer.ip("address add 192.0.2.7/24 dev peer0");
        lab.peer.ip("address add 2001:db8::7/64 dev peer0 nodad");
        lab::until(&resolver, "both answer", |all| {
            [v4, v6].iter().all(|target| lab::mac(all, *target) == Some(PEER_0))
        })
        .await;
    });
}

#[test]
fn targets_come_and_go_without_losing_what_is_known_of_the_others() {
    run(async |_lab: Lab| {
        let resolver = Resolver::spawn().unwrap();
        let (on_link, local) = ("192.0.2.2".parse().unwrap(), "192.0.2.1".parse().unwrap());
        resolver.set_targets(BTreeSet::from([on_link]));
        let before = resolver.settled(PATIENCE).await;
        resolver.set_targets(BTreeSet::from([on_link, local]));
        let both = resolver.settled(PATIENCE).await;
        assert_eq!(both.next_hops.len(), 2);
        assert_eq!(both.next_hops[&on_link], before.next_hops[&on_link]);
        resolver.set_targets(BTreeSet::from([local]));
        lab::until(&resolver, "only one is left", |all| {
            all.next_hops.keys().eq([&local]) && all.next_hops[&local] == NextHop::Local
        })
        .await;
        resolver.set_targets(BTreeSet::new());
        lab::until(&resolver, "none is left", |all| all.next_hops.is_empty()).await;
    });
}

#[test]
fn no_permanent_neighbour_is_left_behind_and_that_of_an_operator_stays_one() {
    run(async |_lab: Lab| {
        ip("neigh add 192.0.2.9 lladdr 02:00:00:00:00:99 dev up0 nud permanent");
        let targets: BTreeSet<IpAddr> =
            ["192.0.2.2", "192.0.2.9", "2001:db8::2"].map(|a| a.parse().unwrap()).into();
        let found = resolve_once(&targets, PATIENCE).await.unwrap();
        assert!(found.values().all(|next_hop| matches!(next_hop, NextHop::Reachable { .. })), "{found:?}");
        let permanent = ip("-4 neigh show nud permanent") + &ip("-6 neigh show nud permanent");
        let permanent: Vec<_> =
            permanent.lines().map(|line| line.split_whitespace().next().unwrap()).collect();
        assert_eq!(permanent, ["192.0.2.9"]);
    });
}

#[test]
fn thousands_of_targets_are_resolved_and_follow_their_route_together() {
    run(async |lab: Lab| {
        ip("route add 203.0.113.0/24 via 192.0.2.2");
        ip("route add 10.0.0.0/8 via 192.0.2.2");
        let targets: BTreeSet<IpAddr> =
            (0..5000u32).map(|n| IpAddr::V4((0x0a00_0000 + n * 7).into())).collect();
        let resolver = Resolver::spawn().unwrap();
        resolver.set_targets(targets.clone());
        let all = resolver.settled(PATIENCE).await;
        assert!(targets.iter().all(|target| lab::mac(&all, *target) == Some(PEER_0)));
        ip("route replace 10.0.0.0/8 via 192.0.3.2");
        let all = lab::until(&resolver, "all go by the other gateway", |all| {
            targets.iter().all(|target| lab::mac(all, *target) == Some(lab::PEER_1))
        })
        .await;
        let NextHop::Reachable { route, .. } = &all.next_hops[targets.first().unwrap()] else { panic!() };
        assert_eq!(route, &lab.route("up1", MAC_1, "192.0.3.1".parse().unwrap(), 1500));
    });
}
