//! A table is replaced as a whole: nobody sees slots of two tables in one, and nobody the old one after its replacement.
//!
//! A packet reads one slot, so a torn table cannot be told from a single packet. The test therefore reads whole tables the
//! way packets do: one look-up in the outer map, then every line of the table found. A control rewrites a table in place, and
//! must be caught by the same check.

mod bench;

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
};

use bench::{Bench, Reader, SLOTS};

/// Publications of each pair of tables, at least; more until enough was seen.
const PUBLICATIONS: u64 = 150;
const MOST_PUBLICATIONS: u64 = 20_000;
/// After so many whole snapshots the control has failed.
const CONTROL_SNAPSHOTS: u64 = 200_000;

/// Two tables that are published in turn.
struct Pair([Vec<u16>; 2]);

impl Pair {
    /// All slots one backend, all slots the other.
    fn uniform() -> Self {
        Self([1, 2].map(|number| vec![number; SLOTS]))
    }

    /// Every slot differs between the two, and either has both backends.
    fn patterned() -> Self {
        let slot = |index: usize| 1 + (index * index / 7 % 2) as u16;
        Self([(0..SLOTS).map(slot).collect(), (0..SLOTS).map(|index| 3 - slot(index)).collect()])
    }

    /// The table that is current after so many publications.
    fn after(&self, publications: u64) -> &[u16] {
        &self.0[publications as usize % 2]
    }

    /// Which of the two a snapshot is; `None` for a mixture.
    fn which(&self, snapshot: &[u16]) -> Option<usize> {
        self.0.iter().position(|table| table == snapshot)
    }
}

/// How far publication is: twice the number of publications that are done, and one more while another is under way.
#[derive(Default)]
struct Progress(AtomicU64);

impl Progress {
    fn now(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }

    fn step(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// Says so when it goes, that other threads end even where this one fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// What the readers saw, for the publisher to go on until it is enough.
#[derive(Default)]
struct Seen {
    /// Snapshots of either table.
    snapshots: [AtomicU64; 2],
    /// Packets that ran while no publication was under way.
    settled_packets: AtomicU64,
}

impl Seen {
    fn is_enough(&self) -> bool {
        let counts = self.snapshots.iter().chain([&self.settled_packets]);
        counts.map(|count| count.load(Ordering::SeqCst)).all(|count| count > 0)
    }
}

#[test]
fn a_publication_is_seen_whole_or_not_at_all() {
    for pair in [Pair::uniform(), Pair::patterned()] {
        let mut bench = Bench::new(pair.after(0));
        let reader = bench.reader();
        let (progress, seen, is_over) = (Progress::default(), Seen::default(), AtomicBool::new(false));
        thread::scope(|scope| {
            let _over = Over(&is_over);
            let readers = [
                scope.spawn(|| take_snapshots(&reader, &pair, &seen, &is_over)),
                scope.spawn(|| send_packets(&reader, &pair, &progress, &seen, &is_over)),
            ];
            for publication in 1..=MOST_PUBLICATIONS {
                progress.step();
                bench.publish(pair.after(publication));
                progress.step();
                // Nothing goes to the old table's backend once the call has returned.
                for flow in 0..20 {
                    assert_eq!(reader.backend_of(flow), reader.slot_of(flow, pair.after(publication)));
                }
                let has_failed = readers.iter().any(|reader| reader.is_finished());
                if has_failed || publication >= PUBLICATIONS && seen.is_enough() {
                    break;
                }
            }
        });
        assert!(seen.is_enough(), "both tables, and packets between publications, were there to be seen");
    }
}

/// Takes snapshots until it is over, all of which must be whole.
fn take_snapshots(reader: &Reader, pair: &Pair, seen: &Seen, is_over: &AtomicBool) {
    while !is_over.load(Ordering::SeqCst) {
        let Some(snapshot) = reader.snapshot() else { continue };
        let which = pair.which(&snapshot).expect("a snapshot of two tables mixed");
        seen.snapshots[which].fetch_add(1, Ordering::SeqCst);
    }
}

/// Runs packets of many flows until it is over. Each must go where one of the tables sends it that were current while it ran.
fn send_packets(reader: &Reader, pair: &Pair, progress: &Progress, seen: &Seen, is_over: &AtomicBool) {
    for flow in 0.. {
        if is_over.load(Ordering::SeqCst) {
            break;
        }
        let before = progress.now();
        let backend = reader.backend_of(flow);
        let after = progress.now();
        // Publications done before it began, and those begun before it ended.
        let possible = before / 2..=after.div_ceil(2);
        let expected: Vec<u16> =
            possible.clone().map(|number| reader.slot_of(flow, pair.after(number))).collect();
        assert!(
            expected.contains(&backend),
            "flow {flow} went to {backend}, tables {possible:?} say {expected:?}"
        );
        seen.settled_packets.fetch_add(u64::from(expected.len() == 1), Ordering::SeqCst);
    }
}

#[test]
fn the_check_catches_a_writer_who_rewrites_a_table_in_place() {
    let pair = Pair::patterned();
    let bench = Bench::new(pair.after(0));
    let reader = bench.reader();
    let is_over = AtomicBool::new(false);
    let caught = thread::scope(|scope| {
        scope.spawn(|| {
            for number in 1.. {
                reader.rewrite_in_place(pair.after(number));
                if is_over.load(Ordering::SeqCst) {
                    break;
                }
            }
        });
        let _over = Over(&is_over);
        let mut snapshots = (0..CONTROL_SNAPSHOTS).filter_map(|_| reader.snapshot());
        snapshots.any(|snapshot| pair.which(&snapshot).is_none())
    });
    assert!(caught, "{CONTROL_SNAPSHOTS} snapshots of a table that was being rewritten all looked whole");
}
