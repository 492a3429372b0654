//! Serves a few files on a loopback port: each at an address that other users of the machine cannot
//! guess, until each was fetched.

use super::timed::Timed;
use super::{peer, threads};
use crate::failure::{Failure, OneLine, Result};
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// Time limit for a request, and for each part of a reply: browsers open connections that they do
/// not use.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Bytes of a request.
const MAX_REQUEST: u64 = 16 << 10;

/// Connections at a time: others are closed.
const MAX_CONNECTIONS: usize = 64;

/// Bytes of a file that are in memory at a time.
const CHUNK: usize = 1 << 18;

/// A port of this machine, and the secret of its addresses.
#[derive(Debug)]
pub(crate) struct Loopback {
    listener: TcpListener,
    address: SocketAddr,
    secret: String,
}

/// A file with the end of its address.
#[derive(Debug)]
pub(crate) struct Served {
    pub(crate) name: String,
    /// The media type.
    pub(crate) kind: &'static str,
    pub(crate) content: Content,
}

/// The content of a file.
#[derive(Debug)]
pub(crate) enum Content {
    File(File),
    Text(Vec<u8>),
}

/// The files, and what has been fetched of them.
struct Files {
    host: String,
    secret: String,
    /// The web site that may read them, besides pages of this server.
    origin: Option<&'static str>,
    files: Vec<(Served, AtomicBool)>,
    connections: AtomicUsize,
}

impl Loopback {
    /// Takes a port, or any free one if it is 0.
    pub(crate) fn bind(port: u16) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
        let address = listener.local_addr()?;
        let mut random = [0; 16];
        File::open("/dev/urandom")?.read_exact(&mut random)?;
        let mut secret = String::new();
        for byte in random {
            let _ = write!(secret, "{byte:02x}"); // a string does not fail
        }
        Ok(Self { listener, address, secret })
    }

    /// The address of a file.
    pub(crate) fn url(&self, name: &str) -> String {
        format!("http://{}/{}/{name}", self.address, self.secret)
    }

    /// Answers requests until each file was fetched once.
    pub(crate) fn serve(self, files: Vec<Served>, origin: Option<&'static str>) -> Result {
        let files = Arc::new(Files {
            host: self.address.to_string(),
            secret: self.secret,
            origin,
            files: files.into_iter().map(|file| (file, AtomicBool::new(false))).collect(),
            connections: AtomicUsize::new(0),
        });
        let mut is_reported = false;
        while !files.are_fetched() {
            let (stream, peer) =
                self.listener.accept().map_err(|e| Failure::about("the connection", e))?;
            // Those of other users must not take the places of a browser.
            match is_own(peer, self.address) {
                Ok(true) => {}
                Ok(false) => continue,
                Err(error) => {
                    // The one that ends the wait has ended, too.
                    if !files.are_fetched() && !std::mem::replace(&mut is_reported, true) {
                        Failure::about("a connection was closed", error).print();
                    }
                    continue;
                }
            }
            if files.connections.fetch_add(1, Ordering::AcqRel) >= MAX_CONNECTIONS {
                files.connections.fetch_sub(1, Ordering::AcqRel);
                continue;
            }
            let files = Arc::clone(&files);
            threads::start_or_run(move || {
                if let Err(error) = files.answer(stream) {
                    message!("triscope: {}", OneLine(&error.to_string()));
                }
                files.connections.fetch_sub(1, Ordering::AcqRel);
                if files.are_fetched() {
                    let _ = TcpStream::connect(self.address); // ends the wait for a connection
                }
            });
        }
        Ok(())
    }
}

/// Whether a connection is answered. An error if its user is not known.
fn is_own(peer: SocketAddr, server: SocketAddr) -> io::Result<bool> {
    match (peer, server) {
        (SocketAddr::V4(peer), SocketAddr::V4(server)) => peer::is_own(peer, server),
        _ => Ok(false),
    }
}

impl Files {
    fn are_fetched(&self) -> bool {
        self.files.iter().all(|(_, is_fetched)| is_fetched.load(Ordering::Acquire))
    }

    /// Answers one request.
    fn answer(&self, mut stream: TcpStream) -> io::Result<()> {
        stream.set_write_timeout(Some(TIMEOUT))?;
        let Some(request) = Request::read(&stream, TIMEOUT)? else { return Ok(()) };
        let found = self.files.iter().find(|(file, _)| {
            let path = request.target.strip_prefix('/').and_then(|p| p.strip_prefix(&self.secret));
            path.and_then(|path| path.strip_prefix('/')) == Some(&file.name)
        });
        // Another host is the name of another site that resolves to this address.
        let (status, found) = match (&*request.method, found) {
            _ if request.host.as_deref() != Some(&self.host) => ("403 Forbidden", None),
            ("OPTIONS", Some(_)) => ("204 No Content", None),
            ("GET", Some(found)) => ("200 OK", Some(found)),
            (_, Some(_)) => ("405 Method Not Allowed", None),
            _ => ("404 Not Found", None),
        };
        let mut head = format!(
            "HTTP/1.1 {status}\r\nConnection: close\r\nCache-Control: no-store\r\n\
             X-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\n"
        );
        match self.origin {
            Some(origin) => head.push_str(&format!(
                "Access-Control-Allow-Origin: {origin}\r\nAccess-Control-Allow-Private-Network: true\r\n"
            )),
            None => head.push_str("Cross-Origin-Resource-Policy: same-origin\r\n"),
        }
        let Some((file, is_fetched)) = found else {
            return stream.write_all(format!("{head}Content-Length: 0\r\n\r\n").as_bytes());
        };
        let length = file.content.length()?;
        head.push_str(&format!("Content-Type: {}\r\nContent-Length: {length}\r\n\r\n", file.kind));
        stream.write_all(head.as_bytes())?;
        file.content.send(length, &mut stream)?;
        is_fetched.store(true, Ordering::Release);
        Ok(())
    }
}

impl Content {
    fn length(&self) -> io::Result<u64> {
        match self {
            Self::File(file) => Ok(file.metadata()?.len()),
            Self::Text(text) => Ok(text.len() as u64),
        }
    }

    fn send(&self, length: u64, to: &mut impl Write) -> io::Result<()> {
        let file = match self {
            Self::File(file) => file,
            Self::Text(text) => return to.write_all(text),
        };
        let (mut at, mut chunk) = (0, vec![0; CHUNK]);
        while at < length {
            let size = usize::try_from(length - at).unwrap_or(CHUNK).min(CHUNK);
            let part = chunk.get_mut(..size).unwrap_or_default();
            file.read_exact_at(part, at)?;
            to.write_all(part)?;
            at += size as u64;
        }
        Ok(())
    }
}

/// The parts of a request that matter here.
struct Request {
    method: String,
    target: String,
    host: Option<String>,
}

impl Request {
    /// Reads a request, at most for this time. `None` if the connection ends without one.
    fn read(stream: &TcpStream, timeout: Duration) -> io::Result<Option<Self>> {
        let mut lines = BufReader::new(Timed::new(stream, timeout).take(MAX_REQUEST));
        let mut line = Vec::new();
        let mut next = || {
            line.clear();
            let size = lines.read_until(b'\n', &mut line)?;
            io::Result::Ok((size, String::from_utf8_lossy(&line).trim_end().to_owned()))
        };
        let first = match next() {
            Ok((0, _)) => return Ok(None),
            // A connection that is not used.
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock) => return Ok(None),
            first => first?.1,
        };
        let mut words = first.split(' ').map(str::to_owned);
        let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let mut host = None;
        loop {
            let (size, header) = next()?;
            if size == 0 || header.is_empty() {
                return Ok(Some(Self { method, target, host }));
            }
            if let Some((name, value)) = header.split_once(':') {
                if name.eq_ignore_ascii_case("host") {
                    host = Some(value.trim().to_owned());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(address: SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        reply
    }

    fn text(name: &str, text: &str) -> Served {
        Served { name: name.to_owned(), kind: "text/plain", content: Content::Text(text.into()) }
    }

    #[test]
    fn each_file_is_served_until_all_were_fetched() {
        let mut file = tempfile::tempfile().unwrap();
        let trace: Vec<u8> = (0..3 * CHUNK + 5).map(|i| b'a' + (i % 23) as u8).collect();
        file.write_all(&trace).unwrap();
        let server = Loopback::bind(0).unwrap();
        let (address, page) = (server.address, server.url("").replace("http://", ""));
        let (host, path) = page.split_once('/').unwrap();
        let (host, path) = (host.to_owned(), format!("/{path}"));
        let kind = "application/octet-stream";
        let trace_file = Served { name: "files/0".to_owned(), kind, content: Content::File(file) };
        let served = std::thread::spawn(move || {
            server.serve(vec![text("", "a page"), trace_file], None).unwrap();
        });
        let get = |target: &str, host: &str| {
            ask(address, &format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n"))
        };
        // A connection without a request blocks nobody.
        let idle = TcpStream::connect(address).unwrap();
        for other in ["/etc/passwd", "/", "", "/files/0", &path[..path.len() - 1]] {
            assert!(get(other, &host).starts_with("HTTP/1.1 404"), "{other}");
        }
        for other in ["example.org", "localhost", "127.0.0.1", &format!("{host}0")] {
            let reply = get(&path, other);
            assert!(reply.starts_with("HTTP/1.1 403") && !reply.contains("a page"), "{reply}");
        }
        let reply = ask(address, &format!("GET {path} HTTP/1.1\r\n\r\n"));
        assert!(reply.starts_with("HTTP/1.1 403"), "{reply}");
        let reply = ask(address, &format!("POST {path} HTTP/1.1\r\nHost: {host}\r\n\r\n"));
        assert!(reply.starts_with("HTTP/1.1 405"), "{reply}");
        for _ in 0..2 {
            let reply = get(&path, &host);
            assert!(reply.contains("Content-Type: text/plain\r\n"), "{reply}");
            assert!(!reply.contains("Access-Control"), "{reply}");
            assert!(reply.ends_with("\r\n\r\na page"), "{reply}");
        }
        let reply = get(&format!("{path}files/0"), &host);
        assert!(reply.as_bytes().ends_with(&[b"\r\n\r\n", &trace[..]].concat()));
        served.join().unwrap();
        drop(idle);
    }

    #[test]
    fn a_site_may_read_its_file() {
        let server = Loopback::bind(0).unwrap();
        let (address, url) = (server.address, server.url("timeline.pftrace"));
        let (host, path) = url.strip_prefix("http://").unwrap().split_once('/').unwrap();
        let request = format!("/{path} HTTP/1.1\r\nHost: {host}\r\n\r\n");
        let served = std::thread::spawn(move || {
            let files = vec![text("timeline.pftrace", "a trace")];
            server.serve(files, Some("https://example.org")).unwrap();
        });
        let preflight = ask(address, &format!("OPTIONS {request}"));
        assert!(preflight.starts_with("HTTP/1.1 204"), "{preflight}");
        let reply = ask(address, &format!("GET {request}"));
        for reply in [&preflight, &reply] {
            assert!(reply.contains("Access-Control-Allow-Origin: https://example.org\r\n"));
            assert!(reply.contains("Access-Control-Allow-Private-Network: true\r\n"));
        }
        assert!(reply.ends_with("\r\n\r\na trace"), "{reply}");
        served.join().unwrap();
    }

    #[test]
    fn a_request_has_one_time_limit() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (stream, _) = listener.accept().unwrap();
        // Each byte comes within a time limit; the line does not end.
        let slow = std::thread::spawn(move || while client.write_all(b"G").is_ok() {});
        assert!(Request::read(&stream, Duration::ZERO).unwrap().is_none());
        drop(stream);
        slow.join().unwrap();
    }

    #[test]
    fn addresses_differ() {
        let urls = [(); 2].map(|()| Loopback::bind(0).unwrap());
        assert_ne!(urls[0].secret, urls[1].secret);
        assert!(urls[0].url("x").ends_with("/x"));
        assert!(urls[0].address.ip().is_loopback());
    }
}
