//! The least HTTP client that can ask the daemon over its Unix socket.

use std::{
    io::{self, ErrorKind, Read, Write},
    os::unix::net::UnixStream,
    path::Path,
    time::Duration,
};

/// How long a daemon may take to answer.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Gets a path and returns the status and the body.
pub fn get(socket: &Path, path: &str) -> io::Result<(u16, String)> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    // With version 1.0 the answer is not chunked, and ends where the connection does.
    stream.write_all(format!("GET {path} HTTP/1.0\r\nhost: tidegate\r\n\r\n").as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let unexpected = || io::Error::new(ErrorKind::InvalidData, format!("not an HTTP answer: {answer:?}"));
    let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(unexpected)?;
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or_else(unexpected)?;
    Ok((status, body.to_owned()))
}
