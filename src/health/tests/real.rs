//! The same over real sockets on loopback.

use std::{
    fs,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    os::fd::AsRawFd,
    thread,
};

use nix::{
    sched::{CloneFlags, unshare},
    sys::socket::{
        AddressFamily, Backlog, SockFlag, SockType, SockaddrIn, bind, getsockname, listen, socket,
    },
};
use tokio::{io::Interest, net::TcpListener, time::timeout};

use super::*;

const PATIENCE: Duration = Duration::from_secs(30);

fn check() -> HealthCheck {
    HealthCheck {
        interval: Duration::from_millis(100),
        degraded_interval: Duration::from_millis(20),
        timeout: Duration::from_secs(5),
        ..HealthCheck::default()
    }
}

fn at(address: SocketAddr, check: HealthCheck) -> Target {
    let backend = BackendAddress { address: address.ip(), port: address.port() };
    Target { service: "web".parse().unwrap(), backend, check, known: None }
}

async fn next(reports: &mut mpsc::Receiver<Report>) -> Report {
    timeout(PATIENCE, reports.recv()).await.expect("a report in time").expect("the prober is alive")
}

#[tokio::test]
async fn a_real_server_comes_up_goes_down_and_comes_back() {
    for address in [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()] {
        let listener = TcpListener::bind((address, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, mut reports) = mpsc::channel(8);
        let mut prober = Prober::new(sender);
        prober.set_targets(vec![at(address, check())]);
        assert_eq!(next(&mut reports).await.verdict, Some(Verdict::Up));
        drop(listener);
        let refused = Some(format!("connection refused by {address}"));
        let first = next(&mut reports).await;
        assert_eq!((first.verdict, first.last_failure), (None, refused.clone()));
        let second = next(&mut reports).await;
        assert_eq!((second.verdict, second.last_failure), (Some(Verdict::Down), refused));
        let _listener = TcpListener::bind(address).await.unwrap();
        assert_eq!(next(&mut reports).await.last_failure, None);
        assert_eq!(next(&mut reports).await.verdict, Some(Verdict::Up));
    }
}

#[tokio::test]
async fn the_probe_goes_to_the_port_the_check_names() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut check = check();
    check.probe = Some(Probe::Tcp { port: Some(listener.local_addr().unwrap().port()) });
    let (sender, mut reports) = mpsc::channel(8);
    let mut prober = Prober::new(sender);
    prober.set_targets(vec![at("127.0.0.1:1".parse().unwrap(), check)]);
    assert_eq!(next(&mut reports).await.verdict, Some(Verdict::Up));
}

#[tokio::test]
async fn a_server_sees_an_orderly_end_and_this_node_keeps_nothing() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    for _ in 0..20 {
        connect(address).await.unwrap();
        // Accepted only after the probe is over, as by a busy server: the harder case.
        let (stream, _) = listener.accept().await.unwrap();
        stream.ready(Interest::READABLE).await.unwrap();
        assert_eq!(stream.try_read(&mut [0; 16]).expect("no reset"), 0, "end of file");
    }
    let port = format!(":{:04X}", address.port());
    let table = fs::read_to_string("/proc/net/tcp").unwrap();
    let kept: Vec<_> = table
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .filter(|words| words[2].ends_with(&port) && words[3] == "06")
        .collect();
    assert!(kept.is_empty(), "sockets in TIME_WAIT: {kept:?}");
}

#[tokio::test]
async fn a_server_whose_queue_is_full_does_not_answer_in_time() {
    let server = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).unwrap();
    bind(server.as_raw_fd(), &SockaddrIn::new(127, 0, 0, 1, 0)).unwrap();
    listen(&server, Backlog::new(0).unwrap()).unwrap();
    let address = SocketAddr::V4(getsockname::<SockaddrIn>(server.as_raw_fd()).unwrap().into());
    let _fills_the_queue = tokio::net::TcpStream::connect(address).await.unwrap();
    let (sender, mut reports) = mpsc::channel(8);
    let mut prober = Prober::new(sender);
    prober.set_targets(vec![at(address, HealthCheck { timeout: Duration::from_millis(200), ..check() })]);
    let report = next(&mut reports).await;
    assert_eq!(report.verdict, None, "it is down already");
    assert_eq!(report.last_failure.unwrap(), format!("no answer from {address} within 200ms"));
}

#[tokio::test]
async fn a_thousand_targets_come_up_with_few_descriptors() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move { while listener.accept().await.is_ok() {} });
    let (sender, mut reports) = mpsc::channel(8);
    let mut prober = Prober::with(sender, 16, Arc::new(|address| Box::pin(connect(address))));
    prober.set_targets(
        (0..1000)
            .map(|number| {
                let mut target = at(SocketAddr::from(([127, 0, 0, 1], port)), HealthCheck::default());
                target.service = format!("service-{number}").parse().unwrap();
                target
            })
            .collect(),
    );
    for _ in 0..1000 {
        let report = next(&mut reports).await;
        assert_eq!((report.verdict, report.last_failure), (Some(Verdict::Up), None));
    }
}

/// In a network namespace that has nothing, not even loopback.
#[test]
fn a_backend_without_a_route_fails_and_says_how_to_see_it() {
    let report = thread::spawn(|| {
        unshare(CloneFlags::CLONE_NEWNET).unwrap();
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
            let (sender, mut reports) = mpsc::channel(8);
            let mut prober = Prober::new(sender);
            let check = HealthCheck { fall: 1, initial: InitialState::Up, ..check() };
            prober.set_targets(vec![at("192.0.2.1:80".parse().unwrap(), check)]);
            next(&mut reports).await
        })
    })
    .join()
    .unwrap();
    assert_eq!(report.verdict, Some(Verdict::Down));
    assert!(report.last_failure.unwrap().starts_with("no route to 192.0.2.1"));
}
