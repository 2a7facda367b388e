//! Limits: counted by packets, with rates so low that what comes in during a test hardly matters.

use std::{net::SocketAddr, os::fd::AsFd, sync::Barrier, thread, time::Instant};

use libbpf_rs::{MapHandle, MapInfo};

use super::bench::{Bench, PINS, at, configuration, datagram, enter, syn, with_flags};
use crate::harness::{
    frame::{Packet, tcp_flags::ACK},
    kernel::{program_with_map, run_xdp_repeatedly},
};

const WEB: &str = "203.0.113.10:80";
const WEB6: &str = "[2001:db8::10]:80";
const LIMITED: &str = "drop-rate-limit";
const SENT: &str = "forward-tx";

fn web(mode: &str, protocol: &str, limits: &str) -> String {
    format!("address: 203.0.113.10, port: 80, protocol: {protocol}, mode: {mode}, limits: {limits}")
}

fn bench(service: &str) -> Bench {
    Bench::new(&configuration("{}", &[service]))
}

fn client(number: u16) -> SocketAddr {
    SocketAddr::from(([198, 18, (number >> 8) as u8, number as u8], 1000))
}

/// Asserts that of many packets just the burst is admitted, and what came in at one a second meanwhile.
#[track_caller]
fn assert_burst(burst: usize, run: impl FnOnce() -> usize) {
    let started = Instant::now();
    let admitted = run();
    let most = burst + started.elapsed().as_secs() as usize + 1;
    assert!((burst..=most).contains(&admitted), "{admitted} of a burst of {burst}");
}

#[test]
fn a_service_takes_its_burst_of_packets_and_no_more() {
    enter();
    for mode in ["nat", "dsr", "ipip", "gre", "gue"] {
        let bench = bench(&web(mode, "tcp", "{ packets: { rate: 1/s, burst: 300 } }"));
        assert_burst(300, || {
            bench.admitted(&syn(client(7), WEB), 100) + bench.admitted(&with_flags(client(8), WEB, ACK), 600)
        });
        assert_eq!(bench.reason(&with_flags(client(9), WEB, ACK)), LIMITED, "whoever sends it");
        let ledger = bench.engine.status().unwrap().services[0].ledger.clone();
        assert_eq!(ledger.seen, ledger.forwarded + ledger.dropped);
        assert!(ledger.reasons[LIMITED] >= 398, "{ledger:?}");
        drop(bench);
        Bench::new(&configuration("{}", &[]));
    }
}

/// Runs a packet on two CPUs at once, so many times on each without a pause. Returns how many got through.
fn admitted_on_two_cpus(bench: &Bench, packet: &Packet, times: u32) -> usize {
    let admission = MapHandle::from_pinned_path(format!("{PINS}/maps/admission")).unwrap();
    let program = program_with_map("xdp_lb", MapInfo::new(admission.as_fd()).unwrap().info.id);
    let forwarded = || bench.engine.status().unwrap().services[0].ledger.forwarded;
    let (before, frame, start) = (forwarded(), packet.build(), Barrier::new(2));
    let run = |_| {
        start.wait();
        run_xdp_repeatedly(program.as_fd(), &frame, bench.interface, times);
    };
    thread::scope(|scope| {
        [0, 1].map(|cpu| scope.spawn(move || run(cpu))).map(|thread| thread.join().unwrap())
    });
    (forwarded() - before) as usize
}

/// Asserts that a limit of 1000/s with this burst holds on two CPUs.
#[track_caller]
fn assert_holds_on_two_cpus(bench: &Bench, packet: &Packet, burst: usize) {
    let started = Instant::now();
    let admitted = admitted_on_two_cpus(bench, packet, burst as u32);
    let most = burst + ((started.elapsed().as_secs_f64() + 0.01) * 1000.0) as usize + 1;
    assert!((burst..=most).contains(&admitted), "{admitted} of a burst of {burst}");
}

#[test]
fn a_rate_holds_however_many_processors_take_part() {
    enter();
    let bench = bench(&web("dsr", "tcp", "{ packets: { rate: 1000/s, burst: 2000000 } }"));
    assert_holds_on_two_cpus(&bench, &with_flags(client(1), WEB, ACK), 2_000_000);
}

#[test]
fn a_sources_rate_holds_however_many_processors_take_part() {
    enter();
    let bench = bench(&web("dsr", "tcp", "{ per-source: { packets: { rate: 1000/s, burst: 1000000 } } }"));
    for number in 0..3 {
        assert_holds_on_two_cpus(&bench, &with_flags(client(number), WEB, ACK), 1_000_000);
    }
}

#[test]
fn a_source_never_gets_two_buckets() {
    enter();
    let bench = bench(&web("dsr", "tcp", "{ per-source: { packets: { rate: 1/s, burst: 20 } } }"));
    /* So few that none is without a place. */
    for number in 0..100 {
        let packet = with_flags(client(number), WEB, ACK);
        assert_burst(20, || admitted_on_two_cpus(&bench, &packet, 40));
    }
}

#[test]
fn tokens_come_back_at_the_rate() {
    enter();
    let bench = bench(&web("dsr", "tcp", "{ packets: { rate: 1000/s, burst: 20 } }"));
    let packet = with_flags(client(1), WEB, ACK);
    let started = Instant::now();
    let mut admitted = 0;
    while admitted < 200 {
        admitted += bench.admitted(&packet, 10);
    }
    let elapsed = started.elapsed();
    /* The clock of the packet path may be one tick ahead of what was measured. */
    let most = 20.0 + (elapsed.as_secs_f64() + 0.01) * 1000.0 + 1.0;
    assert!(f64::from(admitted as u32) <= most, "{admitted} in {elapsed:?}");
}

#[test]
fn new_flows_are_syns_and_established_ones_go_on() {
    enter();
    let bench = bench(&web("ipip", "tcp", "{ new-flows: { rate: 1/s, burst: 50 } }"));
    assert_burst(50, || (0..200).map(|number| bench.admitted(&syn(client(number), WEB), 1)).sum());
    assert_eq!(bench.reason(&syn(client(7), WEB)), LIMITED);
    assert_eq!(bench.admitted(&with_flags(client(7), WEB, ACK), 100), 100, "of a flow that is there");
}

#[test]
fn where_flows_are_tracked_a_new_one_is_one_without_an_entry() {
    enter();
    let bench = bench(&web("nat", "udp", "{ new-flows: { rate: 1/s, burst: 50 } }"));
    assert_eq!(bench.admitted(&datagram(client(1), WEB), 100), 100, "one flow");
    assert_burst(49, || (2..200).map(|number| bench.admitted(&datagram(client(number), WEB), 1)).sum());
    assert_eq!(bench.admitted(&datagram(client(1), WEB), 100), 100, "it goes on");
    drop(bench);

    let bench =
        Bench::new(&configuration("{}", &[&web("nat", "tcp", "{ new-flows: { rate: 1/s, burst: 50 } }")]));
    let first_seen_half_way = (0..200).map(|number| bench.admitted(&with_flags(client(number), WEB, ACK), 1));
    assert_burst(50, || first_seen_half_way.sum());
}

#[test]
fn each_source_has_its_own_limit_and_one_does_not_use_up_the_services() {
    enter();
    let limits = "{ packets: { rate: 1/s, burst: 100 }, per-source: { packets: { rate: 1/s, burst: 10 } } }";
    let bench = bench(&web("dsr", "tcp", limits));
    let ack = |number| with_flags(client(number), WEB, ACK);
    assert_burst(10, || bench.admitted(&ack(1), 1000));
    assert_burst(10, || bench.admitted(&ack(2), 1000));
    assert_burst(80, || (3..200).map(|number| bench.admitted(&ack(number), 1)).sum());
    assert_eq!(bench.reason(&ack(250)), LIMITED, "the service's own limit");
}

#[test]
fn new_flows_of_a_source_are_apart_from_its_packets() {
    enter();
    let limits = "{ per-source: { new-flows: { rate: 1/s, burst: 5 }, packets: { rate: 1/s, burst: 50 } } }";
    let bench = bench(&web("dsr", "tcp", limits));
    assert_burst(5, || bench.admitted(&syn(client(1), WEB), 20));
    assert_burst(30, || bench.admitted(&with_flags(client(1), WEB, ACK), 100));
    assert_eq!(bench.reason(&syn(client(2), WEB)), SENT);
}

#[test]
fn a_source_is_as_many_bits_as_are_configured() {
    enter();
    let six = |limits: &str| {
        format!("address: \"2001:db8::10\", port: 80, protocol: tcp, mode: dsr, limits: {limits}")
    };
    let packet = |from: &str| {
        let to = if from.contains(':') { WEB6 } else { WEB };
        with_flags(at(from, 1000), to, ACK)
    };
    /* What shares a bucket with the first source, and what does not. */
    for (prefixes, same, other) in [
        ("", "192.0.2.1", "192.0.2.0"),
        (", prefix-v4: 24", "192.0.2.255", "192.0.3.1"),
        (", prefix-v4: 25", "192.0.2.127", "192.0.2.128"),
        (", prefix-v4: 0", "198.18.0.1", ""),
        ("", "2001:db8:7::ffff:0:0:1", "2001:db8:7:1::1"),
        (", prefix-v6: 128", "2001:db8:7::1", "2001:db8:7::2"),
        (", prefix-v6: 127", "2001:db8:7::", "2001:db8:7::2"),
        (", prefix-v6: 65", "2001:db8:7:0:7fff::1", "2001:db8:7:0:8000::1"),
        (", prefix-v6: 48", "2001:db8:7:ffff::1", "2001:db8:8::1"),
        (", prefix-v6: 1", "7fff::1", "8000::1"),
        (", prefix-v6: 0", "ffff::1", ""),
    ] {
        let first = if same.contains(':') { "2001:db8:7::1" } else { "192.0.2.1" };
        let limits = format!("{{ per-source: {{ packets: {{ rate: 1/s, burst: 3600 }}{prefixes} }} }}");
        Bench::new(&configuration("{}", &[]));
        let bench = Bench::new(&configuration("{}", &[&web("dsr", "tcp", &limits), &six(&limits)]));
        assert_burst(3600, || bench.admitted(&packet(first), 3700));
        let refused = (0..5).any(|_| bench.reason(&packet(same)) == LIMITED);
        assert!(refused, "{same} is another source than {first}{prefixes}");
        if !other.is_empty() {
            assert_eq!(bench.admitted(&packet(other), 10), 10, "{other} is {first}{prefixes}");
        }
    }
}

#[test]
fn sources_beyond_the_tables_room_are_held_by_the_services_limit_alone() {
    enter();
    let limits = "{ packets: { rate: 1/s, burst: 3600 }, per-source: { packets: { rate: 1/s, burst: 1 } } }";
    let small = |service: &str| {
        let text = configuration("{}", &[service]).replace("flows: 20000", "flows: 1024");
        Bench::new(&text)
    };
    let bench = small(&web("dsr", "tcp", limits));
    let packets: Vec<Packet> = (0..1000).map(|number| with_flags(client(number), WEB, ACK)).collect();
    /* 128 places for 1000 sources. */
    let first: usize = packets.iter().map(|packet| bench.admitted(packet, 1)).sum();
    assert_eq!(first, 1000, "nobody is refused for the sake of others");
    let second: usize = packets.iter().map(|packet| bench.admitted(packet, 1)).sum();
    assert!(second < 1000, "those that have a place are limited");
    let (burst, spent) = (3600, first + second);
    let rest = |_| packets.iter().map(|packet| bench.admitted(packet, 1)).sum::<usize>();
    assert_burst(burst - spent, || (0..5).map(rest).sum());
}

#[test]
fn a_bucket_outlives_the_daemon_and_begins_anew_where_its_limit_changes() {
    enter();
    let text = |burst: u32| {
        let limit = format!("{{ rate: 1/s, burst: {burst} }}");
        let limits = format!("{{ packets: {limit}, per-source: {{ packets: {limit} }} }}");
        configuration("{}", &[&web("dsr", "tcp", &limits)])
    };
    let packet = with_flags(client(1), WEB, ACK);
    let bench = Bench::new(&text(400));
    assert_burst(400, || bench.admitted(&packet, 500));
    drop(bench);
    let mut bench = Bench::adopt(&text(400));
    assert_eq!(bench.apply(), 0);
    assert!(bench.admitted(&packet, 400) < 200, "a restart is no new burst");
    bench.reload(&text(400));
    assert!(bench.admitted(&packet, 400) < 200, "nor is a reload");
    let with_sources = text(400).replace("limits:", "sources: { deny: [192.0.2.0/24] }, limits:");
    bench.reload(&with_sources);
    for packet in [packet.clone(), with_flags(client(2), WEB, ACK)] {
        assert!(bench.admitted(&packet, 400) < 200, "nor is one that changes something else of the service");
    }
    bench.reload(&text(500));
    assert_burst(500, || bench.admitted(&packet, 700));
}
