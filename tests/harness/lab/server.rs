//! A server that says who it is and how it was reached: HTTP over TCP, and plain datagrams over UDP.
//!
//! Each address gets sockets of its own, because a UDP answer must come from the address that was asked: a socket bound to
//! no address would answer from the interface's.

use std::{
    io::{self, BufRead, BufReader, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket},
    os::fd::AsRawFd,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
};

use nix::sys::socket;

use super::client::Answer;

/// A running server. Dropping it closes its sockets and ends its connections.
pub struct Server {
    shared: Arc<Shared>,
    listeners: Vec<TcpListener>,
    datagrams: Vec<UdpSocket>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    name: String,
    /// `None` once the server stops, so that no connection slips in behind that.
    connections: Mutex<Option<Vec<TcpStream>>>,
    requests: AtomicU64,
}

impl Server {
    /// Starts in the calling thread's namespace, on every one of these addresses, both protocols.
    pub fn start(name: &str, addresses: &[SocketAddr]) -> io::Result<Self> {
        let shared =
            Shared { name: name.into(), connections: Mutex::new(Some(Vec::new())), requests: 0.into() };
        let mut server = Self {
            shared: Arc::new(shared),
            listeners: Vec::new(),
            datagrams: Vec::new(),
            threads: Vec::new(),
        };
        for address in addresses {
            server.listen(*address)?;
        }
        Ok(server)
    }

    /// How many requests it has answered, over both protocols.
    pub fn requests(&self) -> u64 {
        self.shared.requests.load(Ordering::Relaxed)
    }

    /// Stops at once: new connections are refused, open ones are closed.
    pub fn stop(self) {}

    fn listen(&mut self, address: SocketAddr) -> io::Result<()> {
        let listener = TcpListener::bind(address)?;
        let datagrams = UdpSocket::bind(address)?;
        let (accepting, answering) = (listener.try_clone()?, datagrams.try_clone()?);
        let (for_tcp, for_udp) = (self.shared.clone(), self.shared.clone());
        self.threads.push(thread::spawn(move || for_tcp.accept(&accepting)));
        self.threads.push(thread::spawn(move || for_udp.answer_datagrams(&answering)));
        self.listeners.push(listener);
        self.datagrams.push(datagrams);
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        for connection in self.shared.connections.lock().unwrap().take().unwrap_or_default() {
            let _ = connection.shutdown(Shutdown::Both);
        }
        // Wakes the threads that wait in accept and recv. For UDP it says "not connected", and wakes them nevertheless.
        let listeners = self.listeners.iter().map(AsRawFd::as_raw_fd);
        for socket in listeners.chain(self.datagrams.iter().map(AsRawFd::as_raw_fd)) {
            let _ = socket::shutdown(socket, socket::Shutdown::Both);
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn accept(self: &Arc<Self>, listener: &TcpListener) {
        while let Ok((stream, _)) = listener.accept() {
            let Ok(copy) = stream.try_clone() else { return };
            match &mut *self.connections.lock().unwrap() {
                None => return,
                Some(connections) => connections.push(copy),
            }
            let shared = self.clone();
            thread::spawn(move || shared.answer_requests(&stream));
        }
    }

    /// Answers one request after the other, as long as the client keeps the connection.
    fn answer_requests(&self, stream: &TcpStream) -> Option<()> {
        let answer = self.answer(stream.local_addr().ok()?, stream.peer_addr().ok()?);
        let mut lines = BufReader::new(stream).lines();
        loop {
            // The request is what stands before an empty line, and all requests are answered alike.
            let mut first = true;
            loop {
                let line = lines.next()?.ok()?;
                if line.is_empty() && !first {
                    break;
                }
                first = false;
            }
            self.requests.fetch_add(1, Ordering::Relaxed);
            let head = format!(
                "HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: {}\r\n",
                answer.len()
            );
            (&*stream).write_all(format!("{head}\r\n{answer}").as_bytes()).ok()?;
        }
    }

    fn answer_datagrams(&self, socket: &UdpSocket) {
        let Ok(local) = socket.local_addr() else { return };
        let mut question = [0; 2048];
        while let Ok((_, peer)) = socket.recv_from(&mut question) {
            if self.connections.lock().unwrap().is_none() {
                return;
            }
            self.requests.fetch_add(1, Ordering::Relaxed);
            // A peer may be gone (an ICMP error is reported here); the next one is not.
            let _ = socket.send_to(self.answer(local, peer).as_bytes(), peer);
        }
    }

    fn answer(&self, addressed_as: SocketAddr, client: SocketAddr) -> String {
        format!("{}\n", Answer { server: self.name.clone(), addressed_as, client })
    }
}
