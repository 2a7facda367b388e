//! Rules of probing in exact virtual time, with a scripted stand-in for the network. Real sockets: `real`.

mod real;

use std::{
    collections::HashMap,
    io,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use nix::errno::Errno;
use tokio::{
    sync::mpsc,
    time::{Instant, sleep},
};

use super::{tcp::Connect, *};
use crate::model::{InitialState, Probe};

use Answer::{Accept, Refuse, Silence, Trouble};

/// How a scripted backend answers.
#[derive(Clone, Copy)]
enum Answer {
    Accept,
    Refuse,
    Silence,
    Trouble(Errno),
}

/// Backends that answer as told, and a record of when they were asked.
#[derive(Clone, Default)]
struct Network(Arc<Mutex<Script>>);

#[derive(Default)]
struct Script {
    answers: HashMap<SocketAddr, Vec<Answer>>,
    asked: Vec<(Instant, SocketAddr)>,
}

impl Network {
    /// `backend` answers by `answers` in turn, and by the last of them from then on.
    fn answers(&self, backend: BackendAddress, answers: &[Answer]) {
        let address = SocketAddr::new(backend.address, backend.port);
        self.0.lock().unwrap().answers.insert(address, answers.to_vec());
    }

    fn asked(&self) -> Vec<(Instant, SocketAddr)> {
        self.0.lock().unwrap().asked.clone()
    }

    fn next(&self, address: SocketAddr) -> Answer {
        let mut script = self.0.lock().unwrap();
        script.asked.push((Instant::now(), address));
        match script.answers.get_mut(&address) {
            None => Accept,
            Some(answers) if answers.len() == 1 => answers[0],
            Some(answers) => answers.remove(0),
        }
    }

    fn connect(&self) -> Connect {
        let network = self.clone();
        Arc::new(move |address| {
            let answer = network.next(address);
            Box::pin(async move {
                match answer {
                    Accept => Ok(()),
                    Refuse => Err(Errno::ECONNREFUSED.into()),
                    Trouble(errno) => Err(errno.into()),
                    Silence => std::future::pending().await,
                }
            })
        })
    }

    fn prober(&self, at_once: usize) -> (Prober, mpsc::Receiver<Report>) {
        let (sender, receiver) = mpsc::channel(100);
        (Prober::with(sender, at_once, self.connect()), receiver)
    }
}

fn backend(number: u16) -> BackendAddress {
    BackendAddress { address: [198, 51, 100, 11].into(), port: number }
}

fn target(number: u16, check: &HealthCheck, known: Option<BackendState>) -> Target {
    Target { service: "web".parse().unwrap(), backend: backend(number), check: check.clone(), known }
}

/// Everything that is reported within `time`, as `verdict failure` pairs.
async fn reports_within(
    time: Duration,
    reports: &mut mpsc::Receiver<Report>,
) -> Vec<(Option<Verdict>, Option<String>)> {
    sleep(time).await;
    let mut all = Vec::new();
    while let Ok(report) = reports.try_recv() {
        all.push((report.verdict, report.last_failure));
    }
    all
}

fn refused() -> Option<String> {
    Some("connection refused by 198.51.100.11:80".into())
}

#[tokio::test(start_paused = true)]
async fn a_new_backend_comes_up_with_its_first_answer_and_says_so_once() {
    let network = Network::default();
    let (mut prober, mut reports) = network.prober(16);
    prober.set_targets(vec![target(80, &HealthCheck::default(), None)]);
    assert_eq!(reports_within(Duration::from_secs(60), &mut reports).await, [(Some(Verdict::Up), None)]);
    let asked = network.asked();
    assert!((11..=14).contains(&asked.len()), "every 5 seconds, give or take a tenth: {asked:?}");
}

#[tokio::test(start_paused = true)]
async fn failures_in_a_row_take_a_backend_down_at_the_degraded_pace_and_successes_in_a_row_bring_it_back() {
    let network = Network::default();
    network.answers(backend(80), &[Refuse, Refuse, Refuse, Accept, Accept]);
    let (mut prober, mut reports) = network.prober(16);
    prober.set_targets(vec![target(80, &HealthCheck::default(), Some(BackendState::Up))]);
    let begin = Instant::now();
    assert_eq!(reports.recv().await.unwrap().last_failure, refused());
    let down = reports.recv().await.unwrap();
    assert_eq!((down.verdict, down.last_failure), (Some(Verdict::Down), refused()));
    let took = begin.elapsed().as_millis();
    assert!((900..=1101).contains(&took), "two pauses of 500 ms after the first failure, not {took} ms");
    let answer = reports.recv().await.unwrap();
    assert_eq!((answer.verdict, answer.last_failure), (None, None), "one answer is not `rise`");
    assert_eq!(reports.recv().await.unwrap().verdict, Some(Verdict::Up));
    assert_eq!(network.asked().len(), 5);
}

#[tokio::test(start_paused = true)]
async fn outcomes_that_alternate_never_take_a_backend_down() {
    let network = Network::default();
    let alternating: Vec<_> = [Refuse, Refuse, Accept].into_iter().cycle().take(300).collect();
    network.answers(backend(80), &alternating);
    let (mut prober, mut reports) = network.prober(16);
    prober.set_targets(vec![target(80, &HealthCheck::default(), Some(BackendState::Up))]);
    let all = reports_within(Duration::from_secs(60), &mut reports).await;
    assert!(all.len() > 10 && all.iter().all(|(verdict, _)| verdict.is_none()), "{all:?}");
}

#[tokio::test(start_paused = true)]
async fn silence_is_a_failure_when_the_time_is_up() {
    let network = Network::default();
    network.answers(backend(80), &[Silence]);
    let (mut prober, mut reports) = network.prober(16);
    let check = HealthCheck { fall: 1, timeout: Duration::from_millis(1500), ..HealthCheck::default() };
    prober.set_targets(vec![target(80, &check, Some(BackendState::Up))]);
    let begin = Instant::now();
    let report = reports.recv().await.unwrap();
    assert_eq!(report.verdict, Some(Verdict::Down));
    assert_eq!(report.last_failure.unwrap(), "no answer from 198.51.100.11:80 within 1.5s");
    assert!((1500..=1501).contains(&begin.elapsed().as_millis()));
}

#[tokio::test(start_paused = true)]
async fn setting_the_same_targets_again_keeps_streaks_and_schedules() {
    let network = Network::default();
    network.answers(backend(80), &[Refuse]);
    let (mut prober, mut reports) = network.prober(16);
    let check = HealthCheck { fall: 20, ..HealthCheck::default() };
    prober.set_targets(vec![target(80, &check, Some(BackendState::Up))]);
    // Resetting either the run of failures or the schedule this often would put the verdict off for ever.
    for _ in 0..40 {
        sleep(Duration::from_millis(300)).await;
        prober.set_targets(vec![target(80, &check, None), target(81, &HealthCheck::default(), None)]);
    }
    let all = reports_within(Duration::ZERO, &mut reports).await;
    assert!(all.contains(&(Some(Verdict::Down), refused())), "{all:?}");
    let asked = network.asked().iter().filter(|(_, address)| address.port() == 80).count();
    assert!((20..=24).contains(&asked), "20 at the degraded pace, then by `interval`: {asked}");
}

#[tokio::test(start_paused = true)]
async fn a_changed_check_keeps_the_state_and_applies_at_once() {
    let network = Network::default();
    network.answers(backend(80), &[Accept, Refuse]);
    let (mut prober, mut reports) = network.prober(16);
    let slow = HealthCheck { interval: Duration::from_secs(3600), ..HealthCheck::default() };
    prober.set_targets(vec![target(80, &slow, None)]);
    assert_eq!(reports.recv().await.unwrap().verdict, Some(Verdict::Up));
    let begin = Instant::now();
    let other = HealthCheck { fall: 2, ..slow };
    prober.set_targets(vec![target(80, &other, Some(BackendState::Down))]);
    let all = reports_within(Duration::from_secs(2), &mut reports).await;
    assert_eq!(
        all,
        [(None, refused()), (Some(Verdict::Down), refused())],
        "it was up, whatever `known` says now"
    );
    assert!(network.asked()[1].0 - begin < Duration::from_millis(10));
}

#[tokio::test(start_paused = true)]
async fn trouble_of_this_node_is_reported_and_counts_for_nothing() {
    let network = Network::default();
    network.answers(backend(80), &[Refuse, Trouble(Errno::EMFILE), Trouble(Errno::EADDRNOTAVAIL)]);
    let (mut prober, mut reports) = network.prober(16);
    prober.set_targets(vec![target(80, &HealthCheck::default(), Some(BackendState::Up))]);
    let all = reports_within(Duration::from_secs(60), &mut reports).await;
    assert_eq!(all.len(), 3, "{all:?}");
    assert!(all.iter().all(|(verdict, _)| verdict.is_none()), "{all:?}");
    assert!(all[1].1.as_ref().unwrap().contains("too many open files"), "{all:?}");
    assert!(all[2].1.as_ref().unwrap().contains("no free source port"), "{all:?}");
}

#[tokio::test(start_paused = true)]
async fn a_target_without_a_probe_is_up_whatever_was_known() {
    let network = Network::default();
    let (mut prober, mut reports) = network.prober(16);
    let unprobed = HealthCheck { initial: InitialState::Down, ..HealthCheck::none() };
    prober.set_targets(vec![
        target(80, &HealthCheck::none(), Some(BackendState::Down)),
        target(81, &HealthCheck::none(), Some(BackendState::Up)),
        target(82, &HealthCheck::none(), None),
        target(83, &unprobed, None),
    ]);
    sleep(Duration::from_secs(60)).await;
    let mut up = Vec::new();
    while let Ok(report) = reports.try_recv() {
        assert_eq!(report.verdict, Some(Verdict::Up));
        up.push(report.backend.port);
    }
    up.sort_unstable();
    assert_eq!(up, [80, 83], "the others are up already");
    assert!(network.asked().is_empty());
}

#[tokio::test(start_paused = true)]
async fn dropping_the_probe_of_a_backend_that_is_down_brings_it_up_and_clears_the_failure() {
    let network = Network::default();
    network.answers(backend(80), &[Refuse]);
    let (mut prober, mut reports) = network.prober(16);
    prober.set_targets(vec![target(80, &HealthCheck::default(), None)]);
    assert_eq!(reports.recv().await.unwrap().last_failure, refused());
    prober.set_targets(vec![target(80, &HealthCheck::none(), None)]);
    let all = reports_within(Duration::from_secs(10), &mut reports).await;
    assert_eq!(all.last(), Some(&(Some(Verdict::Up), None)), "{all:?}");
}

#[tokio::test(start_paused = true)]
async fn a_removed_target_is_left_alone_and_so_is_everything_when_the_prober_goes() {
    let network = Network::default();
    let (mut prober, mut reports) = network.prober(16);
    let check = HealthCheck::default();
    prober.set_targets(vec![target(80, &check, None), target(81, &check, None)]);
    sleep(Duration::from_secs(1)).await;
    prober.set_targets(vec![target(81, &check, None)]);
    let before = network.asked().len();
    sleep(Duration::from_secs(60)).await;
    let later = network.asked();
    assert!(later.len() > before + 5 && later[before..].iter().all(|(_, address)| address.port() == 81));
    drop(prober);
    sleep(Duration::from_secs(60)).await;
    assert_eq!(network.asked().len(), later.len());
    while reports.try_recv().is_ok() {}
    assert!(reports.is_closed(), "no task holds the channel any more");
}

#[tokio::test(start_paused = true)]
async fn a_silent_backend_delays_no_other() {
    let network = Network::default();
    let (mut prober, mut reports) = network.prober(101);
    let patient = HealthCheck { timeout: Duration::from_secs(3600), ..HealthCheck::default() };
    let mut targets = vec![target(80, &HealthCheck::default(), None)];
    for number in 1000..1100 {
        network.answers(backend(number), &[Silence]);
        targets.push(target(number, &patient, None));
    }
    prober.set_targets(targets);
    assert_eq!(reports.recv().await.unwrap().backend.port, 80);
    sleep(Duration::from_secs(60)).await;
    assert!(network.asked().iter().filter(|(_, address)| address.port() == 80).count() > 10);
}

#[tokio::test(start_paused = true)]
async fn thousands_of_targets_neither_start_at_once_nor_exceed_the_bound() {
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (running, peak) = (Arc::clone(&now), Arc::clone(&most));
    let connect: Connect = Arc::new(move |_| {
        let running = Arc::clone(&running);
        peak.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        Box::pin(async move {
            sleep(Duration::from_millis(50)).await;
            running.fetch_sub(1, Ordering::SeqCst);
            io::Result::Ok(())
        })
    });
    let (sender, mut reports) = mpsc::channel(10_000);
    let mut prober = Prober::with(sender, 64, connect);
    prober.set_targets((0..5000).map(|number| target(number, &HealthCheck::default(), None)).collect());
    for _ in 0..5000 {
        assert_eq!(reports.recv().await.unwrap().verdict, Some(Verdict::Up));
    }
    assert_eq!(most.load(Ordering::SeqCst), 64);
}
