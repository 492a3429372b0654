//! Execution traces of a running Go program by `net/http/pprof`.

use super::{http, procfs, threads};
use crate::failure::{Failure, Result};
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tempfile::tempfile_in;

/// Time limit for the connection and the headers of the reply; for each part of the trace, after the end was
/// requested.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Time limit for the rest of the trace after the end was requested.
const REST: Duration = Duration::from_secs(30);

/// Bytes of a trace that are in memory at a time.
const CHUNK: usize = 1 << 16;

/// A loopback address on which a process listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Listening {
    pub(crate) address: SocketAddr,
    pid: u32,
    /// The descriptors of its sockets, and their inodes.
    descriptors: Vec<(u32, u64)>,
}

impl Listening {
    /// An address that stays open.
    #[cfg(test)]
    pub(crate) const fn at(address: SocketAddr) -> Self {
        Self { address, pid: 0, descriptors: Vec::new() }
    }

    /// Whether none of the descriptors has been closed.
    ///
    /// A graceful shutdown (`http.Server.Shutdown`) closes the listener, and then waits for the requests: that for a
    /// trace must end with the listener, as it is without an end. The socket itself may continue: of socket
    /// activation and of an upgrade, another process has it, too.
    pub(crate) fn is_open(&self) -> bool {
        self.descriptors.iter().all(|(fd, socket)| procfs::is_socket(self.pid, *fd, *socket))
    }
}

/// The loopback addresses on which a process listens.
///
/// Source: `proc_pid_net(5)`, the files `tcp` and `tcp6`.
pub(crate) fn listening(pid: u32) -> Vec<Listening> {
    let sockets: Vec<(u32, u64)> = procfs::sockets(pid).collect();
    let mut found: Vec<Listening> = Vec::new();
    for file in ["tcp", "tcp6"] {
        let table = std::fs::read_to_string(format!("/proc/{pid}/net/{file}")).unwrap_or_default();
        for line in table.lines().skip(1) {
            let fields: Vec<&str> = line.split_ascii_whitespace().collect();
            let (Some(local), Some(&"0A"), Some(inode)) =
                (fields.get(1), fields.get(3), fields.get(9))
            else {
                continue;
            };
            let Ok(inode) = inode.parse::<u64>() else { continue };
            let of = sockets.iter().filter(|(_, socket)| *socket == inode);
            let descriptors: Vec<(u32, u64)> = of.copied().collect();
            let Some(address) = loopback(local).filter(|_| !descriptors.is_empty()) else {
                continue;
            };
            // Several sockets can have it: which one accepts is not known.
            match found.iter_mut().find(|other| other.address == address) {
                Some(other) => other.descriptors.extend(descriptors),
                None => found.push(Listening { address, pid, descriptors }),
            }
        }
    }
    found
}

/// The address under which a listening address is reached from this machine, if it is one.
fn loopback(local: &str) -> Option<SocketAddr> {
    let (address, port) = local.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    // Words in the byte order of the machine.
    let words: Option<Vec<u8>> = (0..address.len() / 8)
        .map(|at| {
            let word = u32::from_str_radix(address.get(at * 8..at * 8 + 8)?, 16).ok()?;
            Some(word.to_ne_bytes())
        })
        .collect::<Option<Vec<[u8; 4]>>>()
        .map(|words| words.concat());
    let ip = match words?.as_slice() {
        bytes @ [_, _, _, _] => IpAddr::from(<[u8; 4]>::try_from(bytes).ok()?),
        bytes => IpAddr::from(<[u8; 16]>::try_from(bytes).ok()?).to_canonical(),
    };
    let reached = match ip {
        ip if ip.is_loopback() => ip,
        ip if ip.is_unspecified() && ip.is_ipv4() => Ipv4Addr::LOCALHOST.into(),
        ip if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        _ => return None,
    };
    Some(SocketAddr::new(reached, port))
}

/// The other address of a socket that listens on all, where IPv6 is disabled: the kernel lists it as one of
/// IPv6 alone, and no address of IPv6 is reached.
fn without_ipv6(address: SocketAddr, error: &io::Error) -> Option<SocketAddr> {
    use io::ErrorKind::{AddrNotAvailable, HostUnreachable, NetworkUnreachable};
    let is_disabled =
        matches!(error.kind(), AddrNotAvailable | HostUnreachable | NetworkUnreachable);
    (is_disabled && address.ip() == Ipv6Addr::LOCALHOST)
        .then(|| (Ipv4Addr::LOCALHOST, address.port()).into())
}

/// A trace that a program sends while it runs. All waits are those of a thread of its own: a program answers
/// when it has data, which can be a second later.
///
/// When it is dropped, the connection is closed: a program would continue tracing for nobody.
pub(crate) struct Download {
    listening: Listening,
    request: Closing,
    /// An error if there is none.
    thread: io::Result<JoinHandle<io::Result<File>>>,
}

/// A request that is closed in the end.
struct Closing(Arc<Request>);

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// What is known of a download.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Nothing yet.
    Pending,
    Accepted,
    /// [`Download::finish`] says why.
    Refused,
}

impl Download {
    /// Asks for a trace of at most `limit`. It is on the file system of `dir`: the directory of temporary files can be a
    /// part of the memory.
    pub(crate) fn start(listening: Listening, limit: Duration, dir: &Path) -> Self {
        Self::start_within(TIMEOUT, listening, limit, dir)
    }

    /// As [`start`](Self::start), with another [`TIMEOUT`].
    fn start_within(timeout: Duration, listening: Listening, limit: Duration, dir: &Path) -> Self {
        let (address, request) = (listening.address, Closing(Arc::default()));
        let shared = Closing(Arc::clone(&request.0));
        let dir = dir.to_owned();
        let thread =
            threads::start(move || shared.0.download(address, limit, timeout, Target::new(dir)?));
        Self { listening, request, thread }
    }

    pub(crate) const fn address(&self) -> SocketAddr {
        self.listening.address
    }

    /// Requests the end if the program does not listen any more: it may wait for it.
    pub(crate) fn look(&self) {
        if !self.is_complete() && !self.listening.is_open() {
            self.stop();
        }
    }

    /// What the program has answered so far.
    pub(crate) fn answer(&self) -> Answer {
        // The thread may accept and end between two looks.
        let is_complete = self.is_complete();
        match self.request.0.is_accepted() {
            true => Answer::Accepted,
            false if is_complete => Answer::Refused,
            false => Answer::Pending,
        }
    }

    /// Requests the end of the trace.
    ///
    /// The server sees the end of the request and stops tracing, which writes the rest. The other
    /// direction is still open for it.
    pub(crate) fn stop(&self) {
        self.request.0.end();
    }

    /// Whether nothing more comes.
    pub(crate) fn is_complete(&self) -> bool {
        self.thread.as_ref().map_or(true, JoinHandle::is_finished)
    }

    /// Ends the trace and returns its file, which has no name.
    pub(crate) fn finish(self) -> Result<File> {
        self.stop();
        let failed = || io::Error::other("the download failed");
        let joined = self.thread.and_then(|thread| thread.join().map_err(|_| failed()));
        let file = joined.and_then(|file| file);
        file.map_err(|error| Failure::about(name(self.listening.address), error))
    }

    /// Its name in messages.
    pub(crate) fn name(&self) -> String {
        name(self.listening.address)
    }
}

/// The name of a trace in messages.
pub(crate) fn name(address: SocketAddr) -> String {
    format!("http://{address}/debug/pprof/trace")
}

/// The file of a trace, which has no name.
struct Target {
    file: File,
    dir: PathBuf,
}

impl Target {
    fn new(dir: PathBuf) -> io::Result<Self> {
        let fail =
            |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", dir.display()));
        Ok(Self { file: tempfile_in(&dir).map_err(fail)?, dir })
    }
}

/// A request for a trace that another thread can end.
#[derive(Debug, Default)]
pub(crate) struct Request(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// The connection, once the request was sent.
    stream: Option<TcpStream>,
    is_accepted: bool,
    /// When the end was requested.
    ended: Option<Instant>,
    is_closed: bool,
}

impl Request {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Requests a trace of at most `limit`. The connection and the headers together take at most `timeout`.
    pub(crate) fn send(
        &self,
        address: SocketAddr,
        limit: Duration,
        timeout: Duration,
    ) -> io::Result<http::Body> {
        let until = Instant::now() + timeout;
        let target = format!("/debug/pprof/trace?seconds={}", limit.as_secs_f64());
        let stream = http::connect(&[address], Some(timeout))
            .or_else(|error| match without_ipv6(address, &error) {
                Some(address) => http::connect(&[address], Some(timeout)),
                None => Err(error),
            })
            .map_err(|error| http::late(error, "no connection", timeout))?;
        http::send(&stream, &address.to_string(), &target)?;
        self.sent(stream.try_clone()?);
        let body = http::reply(&stream, Some(until))
            .map_err(|error| http::late(error, "no reply", timeout))?;
        self.lock().is_accepted = true;
        Ok(body)
    }

    /// The request was sent. Its end may have been requested before.
    fn sent(&self, stream: TcpStream) {
        let mut state = self.lock();
        if state.ended.is_some() {
            http::end(&stream);
        }
        match state.is_closed {
            true => close(&stream),
            false => state.stream = Some(stream),
        }
    }

    /// Whether the program sends its trace, or has sent it.
    pub(crate) fn is_accepted(&self) -> bool {
        self.lock().is_accepted
    }

    /// Requests the end of the trace: see [`Download::stop`].
    pub(crate) fn end(&self) {
        let mut state = self.lock();
        state.ended.get_or_insert_with(Instant::now);
        if let Some(stream) = &state.stream {
            http::end(stream);
        }
    }

    /// Closes the connection: the thread that reads it gets what has come, and then the end.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.is_closed = true;
        if let Some(stream) = state.stream.take() {
            close(&stream);
        }
    }

    /// Whether the end was requested that long ago.
    fn has_ended_for(&self, time: Duration) -> bool {
        self.lock().ended.is_some_and(|ended| ended.elapsed() >= time)
    }

    /// Requests a trace of at most `limit`, and receives it into `file`, until its end, a time limit or an error: that of
    /// the file is printed at once. `timeout` is that of [`TIMEOUT`].
    fn download(
        &self,
        address: SocketAddr,
        limit: Duration,
        timeout: Duration,
        target: Target,
    ) -> io::Result<File> {
        let Target { mut file, dir } = target;
        let mut body = self.send(address, limit, timeout)?;
        body.each(Some(timeout))?;
        let (mut chunk, mut length) = (vec![0; CHUNK], 0);
        loop {
            let read = match self.has_ended_for(REST) {
                true => {
                    let why = format!("the trace did not end within {} s", REST.as_secs());
                    Err(io::Error::new(io::ErrorKind::TimedOut, why))
                }
                false => body.read(&mut chunk),
            };
            match read {
                Ok(0) => return Ok(file),
                Ok(size) => {
                    let written = file.write_all(chunk.get(..size).unwrap_or_default());
                    if let Err(error) = written {
                        let why = format!("truncated: {}: {error}", dir.display());
                        Failure::about(name(address), why).print();
                        return Ok(file);
                    }
                    length += size;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // Data comes when the program has some. After the end, it has a time limit.
                Err(error) if is_timeout(&error) && !self.has_ended_for(timeout) => {}
                Err(error) if length == 0 => return Err(error),
                // A program that ends closes the connection in one way or another.
                Err(_) => return Ok(file),
            }
        }
    }
}

/// Ends both directions, for all who have the connection.
fn close(stream: &TcpStream) {
    let _ = stream.shutdown(Shutdown::Both); // it may be closed already
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::unnamed::descriptor;
    use crate::run::threads::refusal::without_threads;
    use std::io::{BufRead, BufReader};
    use std::os::unix::fs::MetadataExt;

    fn download(listening: Listening, limit: Duration) -> Download {
        // A loaded machine is slow.
        Download::start_within(LIMIT, listening, limit, &std::env::temp_dir())
    }

    #[test]
    fn without_ipv6_a_socket_on_all_addresses_is_reached() {
        let listed = SocketAddr::from((Ipv6Addr::LOCALHOST, 6060));
        let other = |address, kind: io::ErrorKind| without_ipv6(address, &kind.into());
        let reached = SocketAddr::from((Ipv4Addr::LOCALHOST, 6060));
        assert_eq!(other(listed, io::ErrorKind::AddrNotAvailable), Some(reached));
        assert_eq!(other(listed, io::ErrorKind::ConnectionRefused), None);
        assert_eq!(other(reached, io::ErrorKind::AddrNotAvailable), None);
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn addresses_of_proc_net_tcp() {
        let text = |local| loopback(local).map(|address| address.to_string());
        assert_eq!(text("0100007F:1770").as_deref(), Some("127.0.0.1:6000"));
        assert_eq!(text("00000000:0050").as_deref(), Some("127.0.0.1:80"));
        assert_eq!(text("0101A8C0:0050"), None, "192.168.1.1");
        let any = "00000000000000000000000000000000:1F90";
        assert_eq!(text(any).as_deref(), Some("[::1]:8080"));
        let mapped = "0000000000000000FFFF00000100007F:1F90";
        assert_eq!(text(mapped).as_deref(), Some("127.0.0.1:8080"));
        assert_eq!(text("xyz:1F90"), None);
        assert_eq!(text("é0100007:1F90"), None);
    }

    #[test]
    fn own_listeners_are_found() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let found = listening(std::process::id());
        let found = found.into_iter().find(|found| found.address == address).unwrap();
        assert!(found.is_open());
        // One of two descriptors is enough: the other one may be that of a process that continues.
        let other = listener.try_clone().unwrap();
        drop(listener);
        assert!(!found.is_open());
        drop(other);
    }

    #[test]
    fn the_trace_of_a_program_that_stops_listening_ends() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = server("HTTP/1.0 200 OK\r\n\r\ngo 1.", "27");
        let found = listening(std::process::id()).into_iter();
        let own = listener.local_addr().unwrap();
        let found = found.into_iter().find(|found| found.address == own).unwrap();
        let download = download(Listening { address, ..found }, Duration::from_secs(60));
        assert_eq!(answered(&download), Answer::Accepted);
        download.look();
        assert!(!download.request.0.has_ended_for(Duration::ZERO));
        drop(listener);
        download.look();
        assert!(download.request.0.has_ended_for(Duration::ZERO));
        let file = download.finish().unwrap();
        assert_eq!(std::fs::read_to_string(descriptor(&file)).unwrap(), "go 1.27");
    }

    /// A server that answers with this text, and sends the rest after the request was closed.
    fn server(reply: &'static str, rest: &'static str) -> SocketAddr {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = BufReader::new(stream.try_clone().unwrap());
            let mut line = String::new();
            while request.read_line(&mut line).unwrap() > 2 {
                line.clear();
            }
            stream.write_all(reply.as_bytes()).unwrap();
            let _ = request.read_to_end(&mut Vec::new());
            let _ = stream.write_all(rest.as_bytes());
        });
        address
    }

    /// Waits until the program has answered.
    fn answered(download: &Download) -> Answer {
        loop {
            match download.answer() {
                Answer::Pending => std::thread::yield_now(),
                answer => return answer,
            }
        }
    }

    #[test]
    fn the_rest_comes_after_the_end() {
        let address = server("HTTP/1.0 200 OK\r\nA: b\r\n\r\ngo 1.", "27");
        let download = download(Listening::at(address), Duration::from_secs(60));
        assert_eq!(answered(&download), Answer::Accepted);
        let file = download.finish().unwrap();
        // Nothing is left of it if this program ends without its destructors.
        assert_eq!(file.metadata().unwrap().nlink(), 0);
        assert_eq!(std::fs::read_to_string(descriptor(&file)).unwrap(), "go 1.27");
    }

    /// What came is kept if the program was killed.
    #[test]
    fn the_chunks_of_a_trace_are_joined() {
        const HEAD: &str = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\ngo 1.\r\n";
        for rest in ["2\r\n27\r\n0\r\n\r\n", "2\r\n27\r\n", "9\r\n27"] {
            let download = download(Listening::at(server(HEAD, rest)), LIMIT);
            assert_eq!(answered(&download), Answer::Accepted);
            let file = download.finish().unwrap();
            assert_eq!(std::fs::read_to_string(descriptor(&file)).unwrap(), "go 1.27", "{rest}");
        }
    }

    #[test]
    fn a_refusal_has_its_reason() {
        let address = server("HTTP/1.0 400 Bad Request\r\n\r\nexceeds WriteTimeout", "");
        let download = download(Listening::at(address), TIMEOUT);
        // The server keeps the connection open: the text that came is enough.
        assert_eq!(answered(&download), Answer::Refused);
        let Err(Failure::Message(why, _)) = download.finish().map(drop) else {
            panic!("it was not refused")
        };
        assert!(why.contains("400 Bad Request"), "{why}");
    }

    #[test]
    fn a_trace_without_a_thread_or_a_directory_is_refused() {
        let address = server("HTTP/1.0 200 OK\r\n\r\ngo 1.27", "");
        let refusal = |download: Download| {
            assert_eq!(answered(&download), Answer::Refused);
            download.finish().unwrap_err().message().to_owned()
        };
        let why = refusal(without_threads(|| download(Listening::at(address), LIMIT)));
        assert!(why.contains("no thread"), "{why}");
        let nowhere = Path::new("/nonexistent/directory");
        let why = refusal(Download::start(Listening::at(address), LIMIT, nowhere));
        assert!(why.contains("/nonexistent/directory"), "{why}");
    }

    /// A server that sends this and waits for the end of the connection, and how often that came.
    fn endless(sent: &'static str) -> (SocketAddr, std::sync::mpsc::Receiver<()>) {
        let (end, ended) = std::sync::mpsc::channel();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(sent.as_bytes()).unwrap();
            let _ = stream.read_to_end(&mut Vec::new()); // it may be reset
            end.send(()).unwrap();
        });
        (address, ended)
    }

    const LIMIT: Duration = Duration::from_secs(60);

    #[test]
    fn the_connection_of_a_download_that_is_dropped_is_closed() {
        let (address, ended) = endless("HTTP/1.0 200 OK\r\n\r\ngo 1.27");
        let download = download(Listening::at(address), LIMIT);
        assert_eq!(answered(&download), Answer::Accepted);
        drop(download);
        ended.recv_timeout(LIMIT).unwrap();
    }

    #[test]
    fn the_connection_of_a_trace_that_cannot_be_written_is_closed() {
        let (address, ended) = endless("HTTP/1.0 200 OK\r\n\r\ngo 1.27");
        let full = File::options().read(true).write(true).open("/dev/full").unwrap();
        let request = Closing(Arc::default());
        let shared = Closing(Arc::clone(&request.0));
        let target = Target { file: full, dir: PathBuf::new() };
        let thread = std::thread::spawn(move || shared.0.download(address, LIMIT, LIMIT, target));
        // The request is still there, as that of a recording.
        ended.recv_timeout(LIMIT).unwrap();
        thread.join().unwrap().unwrap();
        assert!(request.0.is_accepted());
    }

    /// A program sends nothing before the end of its trace: who records does not wait for it.
    #[test]
    fn a_trace_that_begins_late_is_complete() {
        let address = server("", "HTTP/1.0 200 OK\r\n\r\ngo 1.27");
        let download = download(Listening::at(address), Duration::from_secs(60));
        assert_eq!(download.answer(), Answer::Pending);
        let file = download.finish().unwrap();
        assert_eq!(std::fs::read_to_string(descriptor(&file)).unwrap(), "go 1.27");
    }

    /// The end can be requested before there is a request.
    #[test]
    fn a_request_that_ended_before_it_was_sent_is_ended() {
        let address = server("HTTP/1.0 200 OK\r\n\r\n", "go 1.27");
        let request = Request::default();
        request.end();
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
        request.sent(stream.try_clone().unwrap());
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        assert!(reply.ends_with("go 1.27"), "{reply}");
    }

    /// It can be closed before there is a connection.
    #[test]
    fn a_request_that_was_closed_before_it_was_sent_is_closed() {
        let address = server("", "HTTP/1.0 200 OK\r\n\r\ngo 1.27");
        let request = Request::default();
        request.close();
        request.sent(TcpStream::connect(address).unwrap());
        assert!(request.lock().stream.is_none());
        request.send(address, Duration::from_secs(60), TIMEOUT).map(drop).unwrap_err();
        assert!(!request.is_accepted());
    }
}
