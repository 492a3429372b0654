//! The socket of a recorder: HTTP on a Unix socket in its directory.
//!
//! | request | reply |
//! | --- | --- |
//! | `POST /dump` | the path of the dump, when it is complete; the body is the reason |
//! | `GET /metrics` | numbers of the recorder for Prometheus |
//!
//! The loopback port of `--metrics` has the numbers alone. Any user of the machine can connect to it, and a
//! browser for any web site whose name resolves to it: such a name is refused. Requests in a row get the same
//! numbers: the recorder, which reads the kernel's buffers, is asked once per second.

use super::inbox::{Message, Outbox};
use super::{store, threads};
use crate::failure::{Failure, Result};
use crate::io::place::Place;
use crate::io::private_dir;
use crate::run::http;
use crate::run::timed::{Timed, set_limit};
use crate::sources::model::DUMPS;
use crossbeam_channel::{Receiver, bounded};
use rustix::net::sockopt::Timeout;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

pub(super) const SOCKET: &str = "control.sock";

/// Bytes of the headers of a request, and of a reason.
const MAX_HEADERS: u64 = 8 << 10;
pub(super) const MAX_REASON: u64 = 1 << 10;

/// Time limit for each part of a request, and of one for the metrics for all of it.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Time limit for the numbers of a recorder, which has them at once, and for the start of each request.
const REPLY: Duration = Duration::from_secs(10);

/// Bytes of a reply: the numbers of a recorder are kilobytes.
const MAX_REPLY: u64 = 1 << 20;

/// How long the numbers of the recorder are those for the loopback port.
const FRESH: Duration = Duration::from_secs(1);

/// Time limit for the request of a connection that is refused, while others wait, and its bytes.
const REFUSED: Duration = Duration::from_millis(100);
const MAX_REFUSED: u64 = 4 << 10;

/// First and longest pause after connections that cannot be accepted.
const PAUSES: (Duration, Duration) = (Duration::from_millis(5), Duration::from_secs(1));

/// Connections to the metrics at a time: others are closed.
const MAX_CONNECTIONS: usize = 16;

/// Serves the socket of the directory, which is open and locked by this process. The path is short enough whatever the
/// name of the directory is: `sun_path` has 108 bytes.
pub(super) fn serve(dir: &Place, outbox: &Outbox) -> Result {
    let socket = dir.join(SOCKET);
    let fail = |error: io::Error| Failure::about(socket.display(), error);
    match fs::remove_file(&socket) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(fail(error)),
        _ => {}
    }
    let listener = UnixListener::bind(&socket).map_err(fail)?;
    let outbox = outbox.clone();
    threads::start("the control socket", move || {
        accept(listener.incoming(), std::thread::sleep, |stream| {
            let outbox = outbox.clone();
            // A dump takes as long as its look-forward.
            on_thread(stream, move |stream: &UnixStream| {
                let timed = stream.set_read_timeout(Some(TIMEOUT));
                let _ = timed.and_then(|()| answer(stream, stream, &outbox, None));
            });
        });
    })?;
    Ok(())
}

/// Serves a connection on a thread of its own. Without one, the connection is refused.
fn on_thread<S>(stream: S, serve: impl FnOnce(&S) + Send + 'static)
where
    S: AsFd + Send + 'static,
    for<'a> &'a S: Read + Write,
{
    if let Err((stream, failure)) = threads::give("a connection", stream, |stream| serve(&stream)) {
        // A connection that is closed with an unread request is reset: the reply would be lost.
        skip_request(Timed::new(&stream, REFUSED));
        // A few bytes: the socket has room for them.
        let _ = reply_with(&stream, "503 Service Unavailable", failure.message());
    }
}

/// Reads a request up to the end of its headers. Its body usually comes with them.
fn skip_request(input: impl Read) {
    let lines = BufReader::new(input.take(MAX_REFUSED)).split(b'\n').map_while(io::Result::ok);
    lines.take_while(|line| !line.trim_ascii_end().is_empty()).for_each(drop);
}

/// Serves connections. While none can be accepted, because this process has no descriptor left, those that wait stay in
/// the queue, and each error comes at once: it pauses.
fn accept<S>(
    connections: impl Iterator<Item = io::Result<S>>,
    mut pause: impl FnMut(Duration),
    mut serve: impl FnMut(S),
) {
    let mut wait = PAUSES.0;
    for connection in connections {
        match connection {
            Ok(stream) => {
                wait = PAUSES.0;
                serve(stream);
            }
            Err(_) => {
                pause(wait);
                wait = wait.saturating_mul(2).min(PAUSES.1);
            }
        }
    }
}

/// Serves the metrics on a loopback port.
pub(super) fn serve_metrics(listener: TcpListener, outbox: &Outbox) -> Result {
    let outbox = outbox.clone();
    let metrics = Arc::new(Metrics::new(FRESH));
    threads::start("the metrics", move || {
        accept(listener.incoming(), std::thread::sleep, |stream| {
            // Each connection has one.
            let metrics = Arc::clone(&metrics);
            if Arc::strong_count(&metrics) > MAX_CONNECTIONS + 1 {
                return;
            }
            let outbox = outbox.clone();
            on_thread(stream, move |stream: &TcpStream| {
                let input = Timed::new(stream, TIMEOUT);
                let timed = stream.set_write_timeout(Some(TIMEOUT));
                let _ = timed.and_then(|()| answer(input, stream, &outbox, Some(&metrics)));
            });
        });
    })?;
    Ok(())
}

/// The last numbers of the recorder, which stay for this time.
struct Metrics {
    last: Mutex<Option<(Instant, Reply)>>,
    fresh: Duration,
}

impl Metrics {
    const fn new(fresh: Duration) -> Self {
        Self { last: Mutex::new(None), fresh }
    }

    /// The numbers, or `None` if the recorder has ended.
    fn get(&self, outbox: &Outbox) -> Option<Reply> {
        // Others wait for the same reply.
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.as_ref().is_none_or(|(at, _)| at.elapsed() >= self.fresh) {
            *last = ask(outbox, Message::Metrics).map(|reply| (Instant::now(), reply));
        }
        last.as_ref().map(|(_, reply)| reply.clone())
    }
}

/// Whether the header `Host` names this machine.
fn is_local(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.parse::<u16>().is_ok() => name,
        _ => host,
    };
    let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    let is_loopback = |address: IpAddr| address.is_loopback();
    name.eq_ignore_ascii_case("localhost") || address.parse().is_ok_and(is_loopback)
}

/// Answers a request. With `metrics`, it may be for these alone, by a host that is this machine.
fn answer(
    input: impl Read,
    mut out: impl Write,
    outbox: &Outbox,
    metrics: Option<&Metrics>,
) -> io::Result<()> {
    let may_dump = metrics.is_none();
    let mut input = BufReader::new(input);
    let mut head = (&mut input).take(MAX_HEADERS);
    let mut first = String::new();
    head.read_line(&mut first)?;
    let (mut line, mut length) = (String::new(), 0);
    while head.read_line(&mut line)? > 0 && !line.trim_end().is_empty() {
        if let Some((name, value)) = line.split_once(':') {
            if name.eq_ignore_ascii_case("content-length") {
                length = value.trim().parse().unwrap_or(u64::MAX);
            }
            if name.eq_ignore_ascii_case("host") && !may_dump && !is_local(value.trim()) {
                return reply_with(out, "403 Forbidden", "the host is not this machine");
            }
        }
        line.clear();
    }
    let mut words = first.split_ascii_whitespace();
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    // A query changes nothing.
    let path = target.split('?').next().unwrap_or_default();
    let reply = match (method, path) {
        ("GET" | "HEAD", "/metrics") => match metrics {
            Some(metrics) => metrics.get(outbox),
            None => ask(outbox, Message::Metrics),
        },
        ("POST", "/dump") if may_dump && length > MAX_REASON => {
            let why = format!("the reason has {length} bytes: {MAX_REASON} are kept at most");
            return reply_with(out, "413 Content Too Large", &why);
        }
        ("POST", "/dump") if may_dump => {
            let mut reason = Vec::new();
            (&mut input).take(length).read_to_end(&mut reason)?;
            let reason = String::from_utf8_lossy(&reason).into_owned();
            ask(outbox, |reply| Message::Dump { reason, reply })
        }
        _ => return write!(out, "HTTP/1.0 404 Not Found\r\nContent-Length: 0\r\n\r\n"),
    };
    let (status, text) = match reply {
        Some(Ok(text)) => ("200 OK", text),
        Some(Err(why)) => ("500 Internal Server Error", why),
        None => ("503 Service Unavailable", "the recorder has ended".to_owned()),
    };
    match method {
        "HEAD" => head_of(&mut out, status, &text),
        _ => reply_with(out, status, &text),
    }
}

fn reply_with(mut out: impl Write, status: &str, text: &str) -> io::Result<()> {
    head_of(&mut out, status, text)?;
    out.write_all(text.as_bytes())
}

/// The headers of a reply.
fn head_of(out: &mut impl Write, status: &str, text: &str) -> io::Result<()> {
    write!(
        out,
        "HTTP/1.0 {status}\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {}\r\n\r\n",
        text.len()
    )
}

type Reply = std::result::Result<String, String>;

fn ask(
    outbox: &Outbox,
    message: impl FnOnce(crossbeam_channel::Sender<Reply>) -> Message,
) -> Option<Reply> {
    let (reply, answered): (_, Receiver<Reply>) = bounded(1);
    outbox.post(message(reply));
    answered.recv().ok()
}

/// Requests the numbers of the recorder of a directory.
pub(super) fn metrics(dir: &Path) -> Result<String> {
    request(dir, "GET /metrics", "", Some(REPLY))
}

/// Requests a dump of the recorder of a directory. Returns its path.
pub(super) fn dump(dir: &Path, reason: &str) -> Result<String> {
    // A dump can take any time, but not that of a recorder which is stopped.
    metrics(dir)?;
    let path = request(dir, "POST /dump", reason, None)?;
    Ok(dump_below(dir, &path).display().to_string())
}

/// The path of a dump by that of its recorder, which can have another working directory or root.
fn dump_below(dir: &Path, path: &str) -> PathBuf {
    let dumps = dir.join(DUMPS);
    Path::new(path).file_name().map_or(dumps.clone(), |name| dumps.join(name))
}

/// Sends a request to the recorder of a directory. Returns its reply, which comes within `timeout`.
fn request(dir: &Path, request: &str, body: &str, timeout: Option<Duration>) -> Result<String> {
    let start = Instant::now();
    let until = timeout.map(|timeout| start + timeout);
    if !store::is_locked(dir)? {
        return Err(Failure::about(dir.display(), "no recorder runs in this directory"));
    }
    let opened = private_dir::open_dir(dir)?;
    let exchange = || {
        let sent = until.unwrap_or(start + REPLY);
        let stream = connected(opened.join(SOCKET).path(), sent)?;
        let length = body.len();
        let request = format!("{request} HTTP/1.0\r\nContent-Length: {length}\r\n\r\n{body}");
        Timed::until(&stream, Some(sent)).write_all(request.as_bytes())?;
        read_reply(Timed::until(&stream, until))
    };
    let reply = exchange().map_err(|error| {
        let error = http::late(error, "no reply", timeout.unwrap_or(REPLY));
        Failure::about(dir.join(SOCKET).display(), error)
    })?;
    let (head, text) = reply.split_once("\r\n\r\n").unwrap_or((&reply, ""));
    match head.split(' ').nth(1) {
        Some("200") => Ok(text.to_owned()),
        Some(_) if !text.is_empty() => Err(Failure::new(text)),
        _ => Err(Failure::about(dir.display(), "the recorder ended before it replied")),
    }
}

/// Connects to a socket, up to this time. The queue of a recorder that is stopped can be full.
fn connected(path: &Path, until: Instant) -> io::Result<UnixStream> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    set_limit(&socket, Timeout::Send, until)?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket.into())
}

/// Reads a reply up to its end.
fn read_reply(input: impl Read) -> io::Result<String> {
    let mut reply = String::new();
    input.take(MAX_REPLY + 1).read_to_string(&mut reply)?;
    if reply.len() as u64 > MAX_REPLY {
        let why =
            format!("the reply has more than {MAX_REPLY} bytes: it is not that of a recorder");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, why));
    }
    Ok(reply)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_of_a_dump_is_that_of_who_requests_it() {
        let path = dump_below(Path::new("/srv/flight"), "/flight/dumps/20261123T120000.000Z-psi");
        assert_eq!(path, Path::new("/srv/flight/dumps/20261123T120000.000Z-psi"));
    }

    use crate::commands::flight::inbox;
    use crate::run::threads::refusal::without_threads;

    /// As while this process has no descriptor left: a connection in the queue is an error again and again.
    #[test]
    fn connections_that_cannot_be_accepted_are_waited_for() {
        const EMFILE: i32 = 24;
        let none = |count| (0..count).map(|_| Err(io::Error::from_raw_os_error(EMFILE)));
        let connections = none(10).chain([Ok(1)]).chain(none(2)).chain([Ok(2)]);
        let (mut pauses, mut served) = (Vec::new(), Vec::new());
        accept(connections, |pause| pauses.push(pause.as_millis()), |stream| served.push(stream));
        assert_eq!(served, [1, 2]);
        assert_eq!(pauses, [5, 10, 20, 40, 80, 160, 320, 640, 1000, 1000, 5, 10]);
    }

    #[test]
    fn replies_have_a_limit() {
        let error = read_reply(io::repeat(b'x')).unwrap_err();
        assert!(error.to_string().contains("more than 1048576 bytes"), "{error}");
        let most = io::repeat(b'x').take(MAX_REPLY);
        assert_eq!(read_reply(most).unwrap().len() as u64, MAX_REPLY);
    }

    #[test]
    fn names_of_other_sites_are_not_this_machine() {
        for local in
            ["localhost", "LocalHost:9500", "127.0.0.1:9500", "127.1.2.3", "[::1]", "[::1]:9500"]
        {
            assert!(is_local(local), "{local}");
        }
        for other in [
            "",
            "example.org",
            "localhost.example.org:9500",
            "10.0.0.1",
            "[::2]:9500",
            "127.0.0.1:x",
        ] {
            assert!(!is_local(other), "{other}");
        }
    }

    #[test]
    fn metrics_are_served_beside_connections_that_send_nothing() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (inbox, outbox) = inbox::new().unwrap();
        serve_metrics(listener, &outbox).unwrap();
        let idle: Vec<TcpStream> = (0..3).map(|_| TcpStream::connect(address).unwrap()).collect();
        let ask = |request: &str| {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(request.as_bytes()).unwrap();
            stream
        };
        let text = |mut stream: TcpStream| {
            let mut reply = String::new();
            stream.read_to_string(&mut reply).unwrap();
            reply
        };
        let asked = ask("GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
        let Some(Message::Metrics(reply)) = inbox.recv() else { panic!("no request") };
        reply.send(Ok("triscope_up 1\n".to_owned())).unwrap();
        assert!(text(asked).ends_with("\r\n\r\ntriscope_up 1\n"));
        let refused = ask("GET /metrics HTTP/1.1\r\nHost: example.org\r\n\r\n");
        assert!(text(refused).starts_with("HTTP/1.0 403 "));
        let refused = ask("POST /dump HTTP/1.1\r\nHost: localhost\r\n\r\n");
        assert!(text(refused).starts_with("HTTP/1.0 404 "));
        drop(idle);
    }

    /// As in a storm of forks: the connection is refused with a reason, and the next one is served.
    #[test]
    fn a_connection_without_a_thread_is_refused() {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        let serve = |stream: &UnixStream| drop(reply_with(stream, "200 OK", "served"));
        ours.write_all(b"POST /dump HTTP/1.0\r\nContent-Length: 3\r\n\r\nwhy").unwrap();
        without_threads(|| on_thread(theirs, serve));
        let mut reply = String::new();
        ours.read_to_string(&mut reply).unwrap();
        assert!(reply.starts_with("HTTP/1.0 503 "), "{reply}");
        assert!(reply.contains("a thread for a connection: "), "{reply}");
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        on_thread(theirs, serve);
        reply.clear();
        ours.read_to_string(&mut reply).unwrap();
        assert!(reply.ends_with("served"), "{reply}");
    }

    #[test]
    fn the_recorder_is_asked_for_metrics_once_in_their_time() {
        let (inbox, outbox) = inbox::new().unwrap();
        let get = |metrics: &Metrics, text: &str| {
            std::thread::scope(|scope| {
                let asked = scope.spawn(|| metrics.get(&outbox));
                let Some(Message::Metrics(reply)) = inbox.recv() else { panic!("no request") };
                reply.send(Ok(text.to_owned())).unwrap();
                asked.join().unwrap()
            })
        };
        let metrics = Metrics::new(Duration::MAX);
        assert_eq!(get(&metrics, "first"), Some(Ok("first".to_owned())));
        assert_eq!(metrics.get(&outbox), Some(Ok("first".to_owned())));
        assert!(inbox.next().is_none());
        let metrics = Metrics::new(Duration::ZERO);
        for text in ["first", "second"] {
            assert_eq!(get(&metrics, text), Some(Ok(text.to_owned())));
        }
    }
}
