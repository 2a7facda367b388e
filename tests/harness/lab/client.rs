//! Clients of the test servers. Functions use the namespace of the calling thread: run them through a host.

use std::{
    fmt,
    io::{self, BufRead, BufReader, ErrorKind, Read, Write},
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket},
    str::FromStr,
    time::Duration,
};

/// What a server says: who it is and how it was reached.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Answer {
    /// Name of the host.
    pub server: String,
    /// Address and port that the server's socket was addressed at: the backend's in mode `nat`, the service's in others.
    pub addressed_as: SocketAddr,
    /// Address and port the server saw the client at.
    pub client: SocketAddr,
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.server, self.addressed_as, self.client)
    }
}

impl FromStr for Answer {
    type Err = io::Error;

    fn from_str(text: &str) -> io::Result<Self> {
        let mut words = text.split_whitespace();
        let mut next = || words.next().ok_or_else(|| unexpected(text));
        let server = next()?.to_owned();
        let mut address = || next()?.parse().map_err(|_| unexpected(text));
        Ok(Self { server, addressed_as: address()?, client: address()? })
    }
}

/// One request over a TCP connection of its own.
pub fn fetch(address: SocketAddr, timeout: Duration) -> io::Result<Answer> {
    Session::connect(address, timeout)?.request()
}

/// One datagram, and the answer to it. The answer must come from the address that was asked.
pub fn ask(address: SocketAddr, timeout: Duration) -> io::Result<Answer> {
    let any =
        if address.is_ipv6() { (Ipv6Addr::UNSPECIFIED, 0).into() } else { (Ipv4Addr::UNSPECIFIED, 0).into() };
    let socket = UdpSocket::bind::<SocketAddr>(any)?;
    socket.connect(address)?;
    socket.set_read_timeout(Some(timeout))?;
    socket.send(b"who are you?")?;
    let mut buffer = [0; 2048];
    let length = socket.recv(&mut buffer)?;
    String::from_utf8_lossy(&buffer[..length]).parse()
}

/// A TCP connection over which several requests can be made, as the tests of established flows need it.
#[derive(Debug)]
pub struct Session {
    stream: BufReader<TcpStream>,
}

impl Session {
    /// Connects. The timeout is also that of every request.
    pub fn connect(address: SocketAddr, timeout: Duration) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&address, timeout)?;
        stream.set_read_timeout(Some(timeout))?;
        stream.set_write_timeout(Some(timeout))?;
        stream.set_nodelay(true)?;
        Ok(Self { stream: BufReader::new(stream) })
    }

    /// The client's end of the connection.
    pub fn local_address(&self) -> io::Result<SocketAddr> {
        self.stream.get_ref().local_addr()
    }

    /// One request and its answer.
    pub fn request(&mut self) -> io::Result<Answer> {
        self.stream.get_mut().write_all(b"GET / HTTP/1.1\r\nhost: test\r\n\r\n")?;
        let status = self.line()?;
        if !status.starts_with("HTTP/1.1 200 ") {
            return Err(unexpected(&status));
        }
        let mut length = 0;
        loop {
            let line = self.line()?;
            match line.split_once(": ") {
                None => break,
                Some(("content-length", value)) => length = value.parse().map_err(|_| unexpected(&line))?,
                Some(_) => {}
            }
        }
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body)?;
        String::from_utf8_lossy(&body).parse()
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        Ok(line.trim_end().to_owned())
    }
}

fn unexpected(text: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, format!("unexpected answer: {text:?}"))
}
