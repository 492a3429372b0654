//! Requests to servers without TLS.

mod content;

use super::timed::Timed;
use content::{Content, Framing, Length, cut_off};
use std::fmt;
use std::io::{self, BufRead, BufReader, Read, Take, Write};
use std::net::{Shutdown, SocketAddr, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// Bytes of the headers of a reply, and of those of interim replies before it.
const MAX_HEADERS: u64 = 16 << 10;

/// A URL of a server without TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Url {
    /// As in the header `Host`.
    pub(crate) host: String,
    port: u16,
    /// The path and the query.
    pub(crate) target: String,
}

impl Url {
    /// Parses `http://HOST:PORT/PATH?QUERY`. A URL without a path gets `default`.
    pub(crate) fn parse(text: &str, default: &str) -> Result<Self, String> {
        let rest = match text.split_once("://") {
            Some(("http", rest)) => rest,
            Some(_) => return Err("only http:// is supported".to_owned()),
            None => return Err("expected http://HOST:PORT/PATH".to_owned()),
        };
        let (authority, target) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
        if text.chars().any(|c| c.is_control() || c == ' ') || authority.contains('@') {
            return Err("spaces, control characters and user names are not allowed".to_owned());
        }
        // An IPv6 address is in brackets.
        let after_address = authority.rfind(']').map_or(0, |at| at + 1);
        let (name, port) = match authority.get(after_address..).and_then(|rest| rest.rfind(':')) {
            Some(at) => authority.split_at(after_address + at),
            None => (authority, ":80"),
        };
        let port = port.trim_start_matches(':').parse().map_err(|e| format!("port: {e}"))?;
        if name.is_empty() {
            return Err("expected http://HOST:PORT/PATH".to_owned());
        }
        let target = if matches!(target, "" | "/") { default } else { target };
        Ok(Url { host: authority.to_owned(), port, target: target.to_owned() })
    }

    /// The addresses of the host: that of IPv6 is often first, whether the server has it or not.
    pub(crate) fn addresses(&self) -> io::Result<Vec<SocketAddr>> {
        let name = match self.host.rsplit_once(':') {
            Some((name, port)) if port.parse::<u16>().is_ok() => name,
            _ => &self.host,
        };
        let name = name.trim_start_matches('[').trim_end_matches(']');
        Ok((name, self.port).to_socket_addrs()?.collect())
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}{}", self.host, self.target)
    }
}

/// The content of a reply. If the connection ends before it does, as that of a server that is killed, this is an
/// error of kind `UnexpectedEof`.
pub(crate) type Body = Content<BufReader<Timed<TcpStream>>>;

impl Body {
    /// Lifts the limit of all reads. From now on, each read by itself takes at most `time`.
    pub(crate) fn each(&mut self, time: Option<Duration>) -> io::Result<()> {
        self.stream().get_mut().each(time)
    }
}

/// Requests `target`, such as `/debug/pprof/trace?seconds=5`, of the server `host` at the other end of
/// a connection.
pub(crate) fn send(mut stream: &TcpStream, host: &str, target: &str) -> io::Result<()> {
    // Proxies such as Envoy refuse HTTP/1.0.
    let head = format!("GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    stream.write_all(head.as_bytes())
}

/// Sends `content` of the media type `kind` to `url`, and returns the reply: at most `limit` bytes of it.
/// The connection, each part of the request that the server reads, and the reply take at most `timeout` each. The
/// addresses of the host are found before that.
///
/// # Errors
///
/// Those of the connection. Another status than that of success is an error with the text of the server.
#[cfg(feature = "push")]
pub(crate) fn post(
    url: &Url,
    kind: &str,
    content: &[u8],
    limit: u64,
    timeout: Duration,
) -> io::Result<Vec<u8>> {
    let mut stream = connect(&url.addresses()?, Some(timeout))
        .map_err(|error| late(error, "no connection", timeout))?;
    stream.set_write_timeout(Some(timeout))?;
    let Url { host, target, .. } = url;
    let length = content.len();
    let head = format!(
        "POST {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Type: {kind}\r\n\
         Content-Length: {length}\r\n\r\n"
    );
    // A server that refuses may answer before it has read all: its reply says why.
    let sent = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(content));
    let sent = sent.map_err(|error| late(error, "the server has not read the request", timeout));
    let no_reply = |error| late(error, "no reply", timeout);
    let mut text = Vec::new();
    match reply(&stream, Some(Instant::now() + timeout)).map_err(no_reply) {
        Ok(body) => {
            let read = body.take(limit).read_to_end(&mut text);
            sent.and(read.map_err(no_reply)).map(|_| text)
        }
        Err(error) if error.kind() == io::ErrorKind::Other => Err(error),
        Err(error) => Err(sent.err().unwrap_or(error)),
    }
}

/// An error that says what did not happen in time, if it is that of a time limit: the kernel's is that a
/// resource is unavailable.
pub(crate) fn late(error: io::Error, what: &str, timeout: Duration) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            let why = format!("{what} within {} s", timeout.as_secs_f64());
            io::Error::new(io::ErrorKind::TimedOut, why)
        }
        _ => error,
    }
}

/// Connects to the first of `addresses` that accepts. All tries take at most `timeout`: each one has its part of what
/// is left.
pub(crate) fn connect(
    addresses: &[SocketAddr],
    timeout: Option<Duration>,
) -> io::Result<TcpStream> {
    let until = timeout.map(|timeout| Instant::now() + timeout);
    let mut last = io::Error::other("the host has no address");
    for (address, tries) in addresses.iter().zip((1..=addresses.len() as u32).rev()) {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()) / tries);
        let stream = match left {
            Some(left) if left.is_zero() => Err(io::ErrorKind::TimedOut.into()),
            Some(left) => TcpStream::connect_timeout(address, left),
            None => TcpStream::connect(address),
        };
        match stream {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// A reply with another status than that of success.
#[derive(Debug)]
pub(crate) struct BadStatus {
    /// `None` if the reply is not one of HTTP.
    pub(crate) code: Option<u16>,
    /// The status line, and the begin of the content.
    text: String,
}

impl fmt::Display for BadStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for BadStatus {}

impl BadStatus {
    pub(crate) fn of(error: &io::Error) -> Option<&Self> {
        error.get_ref()?.downcast_ref()
    }
}

/// The status line and the headers of a reply.
struct Head {
    status: String,
    /// `None` if the reply is not one of HTTP.
    code: Option<u16>,
    framing: Framing,
    /// Whether the empty line after the headers has come.
    is_complete: bool,
}

impl Head {
    fn read(from: &mut Take<impl BufRead>) -> io::Result<Self> {
        let status = line(from)?;
        let mut framing = Framing::of(&status);
        let mut last = line(from)?;
        while !last.trim_end().is_empty() {
            framing.header(&last);
            last = line(from)?;
        }
        let is_complete = !last.is_empty();
        if !is_complete && from.limit() == 0 {
            let why = "the headers of the reply are too long";
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        if status.is_empty() {
            let why = "the server closed the connection without a reply";
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, why));
        }
        let code = status.strip_prefix("HTTP/").and_then(|status| status.split(' ').nth(1));
        let code = code.and_then(|code| code.trim_end().parse().ok());
        Ok(Self { status, code, framing, is_complete })
    }

    /// Whether the reply to the request follows: this one has no content.
    fn is_interim(&self) -> bool {
        self.is_complete && matches!(self.code, Some(100 | 102..=199))
    }
}

/// Reads the headers of a reply. Returns its content, which is read up to the same time if there is one: `each`
/// lifts that limit.
///
/// # Errors
///
/// Those of the connection. Another status than that of success is an error with the text of the server.
pub(crate) fn reply(stream: &TcpStream, until: Option<Instant>) -> io::Result<Body> {
    let mut stream = BufReader::new(Timed::until(stream.try_clone()?, until));
    let mut from = (&mut stream).take(MAX_HEADERS);
    let mut head = Head::read(&mut from)?;
    while head.is_interim() {
        head = Head::read(&mut from)?;
    }
    let Head { status, code, framing, is_complete } = head;
    let length = framing.length(code);
    if !code.is_some_and(|code| (200..300).contains(&code)) {
        let content = Content::new(stream, length.unwrap_or(Length::Connection));
        let mut why = Vec::new();
        let _ = content.take(200).read_to_end(&mut why); // the status is enough
        let (status, why) = (status.trim(), String::from_utf8_lossy(&why));
        let text = format!("{status} {}", why.trim()).trim().to_owned();
        return Err(io::Error::other(BadStatus { code, text }));
    }
    if !is_complete {
        return Err(cut_off());
    }
    Ok(Content::new(stream, length?))
}

/// Reads a line of the headers; an empty text at their end. A value can have bytes of any encoding.
///
/// Source: `obs-text` of RFC 9110.
fn line(head: &mut impl BufRead) -> io::Result<String> {
    let mut bytes = Vec::new();
    head.read_until(b'\n', &mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Ends a request. The server sees that and completes its reply; the other direction is still open
/// for it.
pub(crate) fn end(stream: &TcpStream) {
    let _ = stream.shutdown(Shutdown::Write); // it may be closed already
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls() {
        let parse = |text: &str| Url::parse(text, "/x");
        let url = |text: &str| parse(text).map(|url| (url.host, url.port, url.target));
        let ok = |host: &str, port, target: &str| Ok((host.to_owned(), port, target.to_owned()));
        assert_eq!(url("http://localhost:6060"), ok("localhost:6060", 6060, "/x"));
        assert_eq!(url("http://localhost:6060/"), ok("localhost:6060", 6060, "/x"));
        assert_eq!(url("http://a.b/x?y=1"), ok("a.b", 80, "/x?y=1"));
        assert_eq!(url("http://[::1]:80/x"), ok("[::1]:80", 80, "/x"));
        assert_eq!(url("http://[::1]/x"), ok("[::1]", 80, "/x"));
        for bad in [
            "localhost:6060",
            "https://a",
            "http://",
            "http://:80",
            "http://a:b",
            "http://a:99999",
            "http://a/b c",
            "http://a/\r\nX: y",
            "http://user@host/",
        ] {
            assert!(url(bad).is_err(), "{bad}");
        }
        for (text, address) in
            [("http://127.0.0.1:6060", "127.0.0.1:6060"), ("http://[::1]/x", "[::1]:80")]
        {
            let addresses = parse(text).unwrap().addresses().unwrap();
            assert_eq!(addresses, [address.parse().unwrap()]);
        }
    }

    #[test]
    fn every_address_of_a_host_is_tried() {
        use rustix::net::{AddressFamily, SocketType, bind, getsockname, socket};
        use std::net::{SocketAddrV4, TcpListener};
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        // Its socket does not listen, and keeps the port from others.
        let closed = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        bind(&closed, &SocketAddrV4::new([127, 0, 0, 2].into(), 0)).unwrap();
        let refused = SocketAddr::try_from(getsockname(&closed).unwrap()).unwrap();
        let accepts = server.local_addr().unwrap();
        let stream = connect(&[refused, accepts], Some(Duration::from_secs(60))).unwrap();
        assert_eq!(stream.peer_addr().unwrap(), accepts);
        let error = connect(&[refused], None).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
        connect(&[], None).unwrap_err();
        let late = connect(&[accepts], Some(Duration::ZERO)).unwrap_err();
        assert_eq!(late.kind(), io::ErrorKind::TimedOut);
    }

    /// What has come of the reply of a server to one request, and the error that ended it. The server refuses
    /// HTTP/1.0, as some proxies do.
    fn fetched(answer: &'static [u8]) -> (String, Option<String>) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = connect(&[listener.local_addr().unwrap()], None).unwrap();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
            let request: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
            let is_new = request == ["GET /x HTTP/1.1", "Host: a", "Connection: close"];
            let refusal = &b"HTTP/1.1 426 Upgrade Required\r\nContent-Length: 0\r\n\r\n"[..];
            stream.write_all(if is_new { answer } else { refusal }).unwrap();
        });
        send(&stream, "a", "/x").unwrap();
        let mut content = Vec::new();
        let read = reply(&stream, None).and_then(|mut body| body.read_to_end(&mut content));
        server.join().unwrap();
        (String::from_utf8(content).unwrap(), read.err().map(|error| error.to_string()))
    }

    #[test]
    fn replies_of_http_1_1_are_read() {
        let good = |content: &str| (content.to_owned(), None::<String>);
        let chunks =
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n1;x=y\r\n!\r\n\
              0\r\nX: y\r\n\r\n";
        assert_eq!(fetched(chunks), good("hello!"));
        let interim =
            b"HTTP/1.1 103 Early Hints\r\nContent-Length: 9\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n\
              HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello and more";
        assert_eq!(fetched(interim), good("hello"));
        assert_eq!(fetched(b"HTTP/1.1 200 OK\r\n\r\nhello"), good("hello"));
        assert_eq!(fetched(b"HTTP/1.0 200 OK\r\n\r\nhello"), good("hello"));
        let error = |answer: &'static [u8]| fetched(answer).1.unwrap();
        let refused =
            b"HTTP/1.1 500 Error\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nwhy\r\n0\r\n\r\n";
        assert_eq!(error(refused), "HTTP/1.1 500 Error why");
        assert_eq!(error(b"HTTP/1.1 101 Switching\r\n\r\n"), "HTTP/1.1 101 Switching");
        let length = b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\nhello";
        assert_eq!(error(length), "the reply has the length \"-5\"");
    }

    /// A server that is killed ends the connection.
    #[test]
    fn a_reply_that_is_cut_off_is_an_error() {
        let why = Some("the server closed the connection before the end of the reply".to_owned());
        let chunks = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n";
        assert_eq!(fetched(chunks), ("hello".to_owned(), why.clone()));
        let bytes = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello";
        assert_eq!(fetched(bytes), ("hello".to_owned(), why.clone()));
        assert_eq!(fetched(b"HTTP/1.1 200 OK\r\nContent-Le"), (String::new(), why));
    }

    /// Each byte comes in time, but not all of them.
    #[test]
    fn the_headers_have_one_time_limit() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = connect(&[listener.local_addr().unwrap()], None).unwrap();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            // The subject of the test: a pause that is shorter than the limit.
            let pause = Duration::from_millis(5);
            let write = |_: &i32| {
                std::thread::sleep(pause);
                stream.write_all(b"x").is_err()
            };
            (0..12_000).find(write)
        });
        let error = reply(&stream, Some(Instant::now() + Duration::from_millis(100))).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock, "{error}");
        drop(stream);
        assert!(server.join().unwrap().is_some(), "it was read to its end");
    }
}

#[cfg(test)]
#[cfg(feature = "push")]
mod post_tests {
    use super::*;
    use std::net::TcpListener;
    use std::thread::JoinHandle;

    /// A server that answers one request, and returns what came.
    fn server(reply: &'static [u8]) -> (Url, JoinHandle<Vec<u8>>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let thread = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = vec![0; REQUEST.len()];
            stream.read_exact(&mut request).unwrap();
            stream.write_all(reply).unwrap();
            request
        });
        (Url::parse(&url, "/x").unwrap(), thread)
    }

    const REQUEST: &[u8] = b"POST /x HTTP/1.1\r\nHost: 127.0.0.1:00000\r\nConnection: close\r\n\
                             Content-Type: a/b\r\nContent-Length: 4\r\n\r\n\0\r\n\xff";

    const CUT_OFF: &str = "the server closed the connection before the end of the reply";

    /// Headers that do not end within the limit.
    static LONG: [u8; MAX_HEADERS as usize + 1] = [b'x'; MAX_HEADERS as usize + 1];

    #[test]
    fn contents_are_posted() {
        for (reply, expected) in [
            (&b"HTTP/1.1 200 OK\r\nX: y\r\n\r\nthank you"[..], Ok(&b"thank"[..])),
            (b"HTTP/1.1 204 No Content\r\n\r\n", Ok(b"")),
            (
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
                Ok(b"ok"),
            ),
            (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok", Err(CUT_OFF)),
            (b"HTTP/1.1 200 OK\r\nX", Err(CUT_OFF)),
            (b"HTTP/1.1 200 D\xe9j\xe0\r\nX: \xff\r\n\r\n\xff", Ok(b"\xff")),
            (b"HTTP/1.1 400 Non\r\n\r\nd\xe9j\xe0", Err("HTTP/1.1 400 Non d\u{fffd}j\u{fffd}")),
            (b"HTTP/1.1 400 Bad Request\r\n\r\nno name\n", Err("HTTP/1.1 400 Bad Request no name")),
            (b"", Err("the server closed the connection without a reply")),
            (b"2", Err("2")),
            (&LONG, Err("the headers of the reply are too long")),
        ] {
            let (url, thread) = server(reply);
            let posted = post(&url, "a/b", b"\0\r\n\xff", 5, Duration::from_secs(60));
            let posted = posted.map_err(|error| error.to_string());
            assert_eq!(posted, expected.map(<[u8]>::to_vec).map_err(str::to_owned));
            let request = thread.join().unwrap();
            assert!(request.ends_with(b"Content-Length: 4\r\n\r\n\0\r\n\xff"), "{request:?}");
        }
    }

    #[test]
    fn a_server_that_is_late_is_an_error_with_the_time_limit() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let url = Url::parse(&url, "/x").unwrap();
        // The connection has the same limit.
        let timeout = Duration::from_secs(1);
        let error = post(&url, "a/b", b"", 5, timeout).unwrap_err();
        assert_eq!(error.to_string(), "no reply within 1 s");
        // More than the kernel holds for a server that reads nothing.
        let error = post(&url, "a/b", &vec![0; 32 << 20], 5, timeout).unwrap_err();
        assert_eq!(error.to_string(), "the server has not read the request within 1 s");
        // The headers came.
        let thread = std::thread::spawn(move || {
            let streams: Vec<_> = (0..3).map(|_| listener.accept().unwrap().0).collect();
            (&streams[2]).write_all(b"HTTP/1.1 200 OK\r\n\r\nbe").unwrap();
            streams
        });
        let error = post(&url, "a/b", b"", 5, timeout).unwrap_err();
        assert_eq!(error.to_string(), "no reply within 1 s");
        drop(thread.join().unwrap());
    }
}
