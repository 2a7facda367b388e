//! Large datagrams between real sockets, whose kernels take them apart, put them together and verify every checksum.

use std::{
    io::ErrorKind,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    os::fd::AsRawFd,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn, SockaddrIn6, sendto, socket,
};

use super::{
    orders::Order,
    pieces::{Datagram, L3},
};
use crate::harness::lab::{Daemon, Host, Lab, SECOND, SERVICE_IPV4, SERVICE_IPV6};

const PORT: u16 = 5353;
const BACKENDS: u8 = 3;
const SIZES: [usize; 12] = [1400, 1472, 1473, 1474, 1475, 1476, 1477, 1478, 1479, 1480, 4000, 9000];
const PATIENCE: Duration = Duration::from_secs(20);

/// Sends every datagram back to where it came from, until it is dropped.
struct Mirror {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Mirror {
    fn start(host: &Host, addresses: &[SocketAddr]) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let serve = |address: &SocketAddr| {
            let socket = UdpSocket::bind(address).unwrap();
            socket.set_read_timeout(Some(SECOND / 10)).unwrap();
            let stop = Arc::clone(&stop);
            thread::spawn(move || {
                let mut buffer = vec![0; 65_536];
                while !stop.load(Ordering::Relaxed) {
                    match socket.recv_from(&mut buffer) {
                        Ok((length, from)) => drop(socket.send_to(&buffer[..length], from)),
                        Err(error) => {
                            assert!(matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted));
                        }
                    }
                }
            })
        };
        let threads = host.run(|| addresses.iter().map(serve).collect());
        Self { stop, threads }
    }
}

impl Drop for Mirror {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

/// A load balancer with one service, on the client's interface and, where `everywhere`, on those of the backends.
struct Scene {
    lab: Lab,
    daemon: Daemon,
    service: SocketAddr,
    _mirrors: Vec<Mirror>,
    _decaps: Vec<tidegate::datapath::Decap>,
}

impl Scene {
    fn new(mode: &str, ipv6: bool, everywhere: bool) -> Self {
        let lab = Lab::new(BACKENDS);
        let address: IpAddr = if ipv6 { SERVICE_IPV6.into() } else { SERVICE_IPV4.into() };
        let service = SocketAddr::new(address, PORT);
        let at = |backend: &Host| {
            SocketAddr::new(if ipv6 { backend.ipv6.into() } else { backend.ipv4.into() }, PORT)
        };
        let mut decaps = Vec::new();
        let mirrors = lab.backends.iter().map(|backend| {
            /* Room for outer headers around pieces of full size. */
            lab.lb.command(&format!("ip link set {} mtu 1600", backend.peer));
            backend.command(&format!("ip link set {} mtu 1600", backend.interface));
            if mode == "nat" {
                return Mirror::start(backend, &[at(backend)]);
            }
            backend.sysctl("net/ipv4/conf/all/arp_ignore", "1");
            backend.own(address);
            if mode != "dsr" {
                decaps.push(backend.decapsulate());
            }
            Mirror::start(backend, &[service])
        });
        let mirrors = mirrors.collect();
        /* Answers are to be taken apart for the way to the client. */
        for backend in &lab.backends {
            let [ipv4, ipv6] = gateways(backend);
            backend.command(&format!("ip route change default via {ipv4} mtu 1500"));
            backend.command(&format!("ip -6 route change default via {ipv6} mtu 1500"));
        }
        let names = lab.backends.iter().filter(|_| everywhere).map(|backend| backend.peer.clone());
        let interfaces: Vec<_> = std::iter::once(lab.client.peer.clone()).chain(names).collect();
        let backends: Vec<_> =
            lab.backends.iter().map(|backend| format!("{{ address: \"{}\" }}", at(backend).ip())).collect();
        let daemon = Daemon::start(
            &lab,
            &format!(
                "interfaces: [{}]\ncapacity: {{ services: 8, backends: 512, flows: 10000, fragments: 2048 }}\n\
                 services: [{{ name: large, address: \"{address}\", port: {PORT}, protocol: udp, mode: {mode}, \
                 health: none, backends: [{}] }}]\n",
                interfaces.iter().map(|name| format!("{{ name: {name} }}")).collect::<Vec<_>>().join(", "),
                backends.join(", ")
            ),
        );
        Self { lab, daemon, service, _mirrors: mirrors, _decaps: decaps }
    }

    /// Datagrams of every size there and back, each from several ports.
    fn exchange(&self) {
        let largest = if self.service.is_ipv4() { 65_507 } else { 65_527 };
        self.lab.client.run(|| {
            for number in 0..6 {
                let any: IpAddr = if self.service.is_ipv4() { [0; 4].into() } else { [0u16; 8].into() };
                let socket = UdpSocket::bind((any, 40_000 + number)).unwrap();
                socket.connect(self.service).unwrap();
                socket.set_read_timeout(Some(PATIENCE)).unwrap();
                for size in SIZES.into_iter().chain([largest]) {
                    let payload: Vec<u8> = (0..size).map(|at| (at * 31 + at / 253 + size) as u8).collect();
                    socket.send(&payload).unwrap();
                    let mut answer = vec![0; 65_536];
                    let length = socket
                        .recv(&mut answer)
                        .unwrap_or_else(|error| panic!("{size} bytes from port {number}: {error}"));
                    assert!(answer[..length] == payload, "{size} bytes came back as others");
                }
            }
        });
    }

    /// Fails where a packet was dropped or is not accounted for.
    #[track_caller]
    fn assert_accounted(&self) {
        let status = self.daemon.status();
        for ledger in status.services.iter().map(|service| &service.ledger).chain([&status.ledger]) {
            assert_eq!(ledger.seen, ledger.forwarded + ledger.passed + ledger.dropped, "{ledger:?}");
            assert_eq!(ledger.dropped, 0, "{ledger:?}");
        }
        let used = status.services[0].backends.iter().filter(|backend| backend.packets > 0).count();
        assert!(used > 1, "all flows went to one backend");
    }
}

/// The load balancer's addresses on the link to a backend: the ones before.
fn gateways(backend: &Host) -> [IpAddr; 2] {
    [
        Ipv4Addr::from_bits(backend.ipv4.to_bits() - 1).into(),
        Ipv6Addr::from_bits(backend.ipv6.to_bits() - 1).into(),
    ]
}

fn large_datagrams(mode: &str, ipv6: bool) {
    let scene = Scene::new(mode, ipv6, true);
    scene.exchange();
    scene.assert_accounted();
}

#[test]
fn large_datagrams_through_nat_over_ipv4() {
    large_datagrams("nat", false);
}

#[test]
fn large_datagrams_through_nat_over_ipv6() {
    large_datagrams("nat", true);
}

#[test]
fn large_datagrams_through_dsr_over_ipv4() {
    large_datagrams("dsr", false);
}

#[test]
fn large_datagrams_through_dsr_over_ipv6() {
    large_datagrams("dsr", true);
}

#[test]
fn large_datagrams_through_ipip_over_ipv4() {
    large_datagrams("ipip", false);
}

#[test]
fn large_datagrams_through_ipip_over_ipv6() {
    large_datagrams("ipip", true);
}

/// The programs are on the client's interface only: replies come up through the stack and are translated where they leave it.
#[test]
fn large_replies_through_the_stack() {
    for ipv6 in [false, true] {
        thread::spawn(move || {
            let scene = Scene::new("nat", ipv6, false);
            scene.exchange();
            scene.assert_accounted();
        })
        .join()
        .unwrap();
    }
}

/// Pieces that something on the way put into another order, and duplicates.
fn out_of_order(mode: &'static str, ipv6: bool) {
    let scene = Scene::new(mode, ipv6, true);
    let (service, client) = (scene.service, &scene.lab.client);
    let own: IpAddr = if ipv6 { client.ipv6.into() } else { client.ipv4.into() };
    client.run(|| {
        let family = if ipv6 { AddressFamily::Inet6 } else { AddressFamily::Inet };
        let raw = socket(family, SockType::Raw, SockFlag::empty(), SockProtocol::Raw).unwrap();
        for (number, order) in (1..).zip(Order::ALL) {
            for (identification, size) in [(1, 1500), (2, 4000), (3, 20_000)] {
                /* Bound, so that the answer is taken; the question is sent by hand. */
                let identification = number * 10 + identification;
                let socket = UdpSocket::bind((own, 41_000 + identification)).unwrap();
                socket.set_read_timeout(Some(PATIENCE)).unwrap();
                let from = socket.local_addr().unwrap();
                let datagram = Datagram::udp(from, service, identification.into(), size);
                for frame in order.arrange(&datagram.frames()) {
                    let sent = match service {
                        SocketAddr::V4(to) => {
                            sendto(raw.as_raw_fd(), &frame[L3..], &SockaddrIn::from(to), MsgFlags::empty())
                        }
                        SocketAddr::V6(mut to) => {
                            to.set_port(0);
                            sendto(raw.as_raw_fd(), &frame[L3..], &SockaddrIn6::from(to), MsgFlags::empty())
                        }
                    };
                    assert_eq!(sent.unwrap(), frame.len() - L3);
                }
                let mut answer = vec![0; 65_536];
                let length = socket
                    .recv(&mut answer)
                    .unwrap_or_else(|error| panic!("{order:?}, {size} bytes: {error}"));
                assert!(answer[..length] == datagram.transport()[8..], "{order:?}, {size} bytes");
            }
        }
    });
    let ledger = scene.daemon.status().ledger;
    assert_eq!((ledger.seen, ledger.dropped), (ledger.forwarded + ledger.passed, 0), "{ledger:?}");
}

#[test]
fn pieces_out_of_order_through_nat_over_ipv4() {
    out_of_order("nat", false);
}

#[test]
fn pieces_out_of_order_through_nat_over_ipv6() {
    out_of_order("nat", true);
}

#[test]
fn pieces_out_of_order_through_dsr_over_ipv4() {
    out_of_order("dsr", false);
}

#[test]
fn pieces_out_of_order_through_ipip_over_ipv6() {
    out_of_order("ipip", true);
}
