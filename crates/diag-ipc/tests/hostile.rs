//! Servers and runtimes that violate the protocol: each is a typed error, within the deadline and
//! with bounded memory.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used, reason = "these are tests")]

mod common;

use common::request;
use diag_ipc::message::{Advertise, DecodeErrorKind, MAGIC, Reply, Request};
use diag_ipc::reverse::Server;
use diag_ipc::{
    Client, Error, Guid, HResult, Operation, ProcessInfoCommand, Provider, Session, Timeouts,
    TracingConfig, TruncationReason,
};
use std::io::{Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The timeout of a step that never ends, and is to end with it.
const LIMIT: Duration = Duration::from_millis(200);

/// The timeouts of all other steps: a loaded machine is slow, but it gets there.
fn patient() -> Timeouts {
    Timeouts::all(Duration::from_secs(120))
}

/// A server that does `behave` with each connection, and a patient client of it.
fn server(behave: impl Fn(UnixStream) + Send + 'static) -> (tempfile::TempDir, Client) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    // Ends with the test's process.
    std::thread::spawn(move || listener.incoming().flatten().for_each(behave));
    (dir, Client::new(path).timeouts(patient()))
}

/// A server that answers every request with `bytes` and closes.
fn answers(bytes: Vec<u8>) -> (tempfile::TempDir, Client) {
    server(move |mut stream| {
        request(&mut stream).expect("a request");
        let _ = stream.write_all(&bytes);
    })
}

fn message(magic: &[u8], size: u16, set: u8, id: u8, payload: &[u8]) -> Vec<u8> {
    [magic, &size.to_le_bytes(), &[set, id, 0, 0], payload].concat()
}

fn malformed(client: &Client) -> DecodeErrorKind {
    match client.process_info_by(ProcessInfoCommand::ProcessInfo) {
        Err(Error::Malformed { source, .. }) => source.kind,
        other => panic!("{other:?}"),
    }
}

#[test]
fn replies_that_end_early() {
    let whole = Reply::Ok(&[0; 100]).encode().unwrap();
    for cut in [0, 1, 13, 14, 19, 20, 21, 119] {
        let (_dir, client) = answers(whole[..cut].to_vec());
        match client.process_info_by(ProcessInfoCommand::ProcessInfo) {
            Err(Error::Closed { operation: Operation::Reply }) => {}
            other => panic!("{cut}: {other:?}"),
        }
    }
}

#[test]
fn replies_of_another_protocol() {
    let (_dir, client) = answers(message(b"DOTNET_IPC_V2\0", 24, 0xff, 0, &[0; 4]));
    assert_eq!(malformed(&client), DecodeErrorKind::BadMagic);
    let (_dir, client) = answers(message(&MAGIC, 19, 0xff, 0, &[0; 4]));
    assert_eq!(malformed(&client), DecodeErrorKind::BadSize(19));
    let (_dir, client) = answers(message(&MAGIC, 24, 0x04, 0, &[0; 4]));
    assert_eq!(malformed(&client), DecodeErrorKind::BadCommand(4, 0));
    let (_dir, client) = answers(message(&MAGIC, 24, 0xff, 1, &[0; 4]));
    assert_eq!(malformed(&client), DecodeErrorKind::BadCommand(0xff, 1));
    let (_dir, client) = answers(message(&MAGIC, 22, 0xff, 0xff, &[0; 2]));
    assert_eq!(malformed(&client), DecodeErrorKind::BadSize(22));
    let (_dir, client) = answers(b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec());
    assert_eq!(malformed(&client), DecodeErrorKind::BadMagic);
    // Strings that claim to be longer than the message.
    let mut payload = vec![0; 24];
    payload.extend([0xff; 4]);
    let (_dir, client) = answers(Reply::Ok(&payload).encode().unwrap());
    assert!(matches!(malformed(&client), DecodeErrorKind::Read(_)));
    // Numbers that are too long or too short.
    for payload in [&[0; 3][..], &[0; 5], &[0; 8]] {
        let (_dir, client) = answers(Reply::Ok(payload).encode().unwrap());
        let error = client.resume_runtime().unwrap_err();
        assert!(matches!(error, Error::Malformed { .. }), "{error}");
    }
}

#[test]
fn a_server_that_echoes() {
    let (_dir, client) = server(|mut stream| {
        let mut bytes = [0; 1024];
        while let Ok(n @ 1..) = stream.read(&mut bytes) {
            if stream.write_all(&bytes[..n]).is_err() {
                break;
            }
        }
    });
    assert_eq!(malformed(&client), DecodeErrorKind::BadCommand(4, 0));
}

#[test]
fn a_server_that_is_slow() {
    // One byte at a time, always before any timeout of a single read. All of them take minutes.
    let (_dir, client) = server(|mut stream| {
        request(&mut stream).expect("a request");
        for byte in Reply::Ok(&[0; 60_000]).encode().unwrap() {
            // The subject of the test: a pause shorter than the limit of one read.
            std::thread::sleep(LIMIT / 20);
            if stream.write_all(&[byte]).is_err() {
                break;
            }
        }
    });
    let client = client.timeouts(patient().reply(LIMIT));
    match client.process_info_by(ProcessInfoCommand::ProcessInfo) {
        Err(Error::Timeout { operation: Operation::Reply, after }) => assert_eq!(after, LIMIT),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_server_that_says_nothing() {
    let (_dir, client) = server(|stream| {
        std::thread::spawn(move || hold(stream));
    });
    let client = client.timeouts(patient().reply(LIMIT));
    for answer in [
        client.process_info().map(drop),
        client.resume_runtime(),
        client.process_environment().map(drop),
        client.stop_tracing(1),
    ] {
        assert!(matches!(answer, Err(Error::Timeout { operation: Operation::Reply, .. })));
    }
}

#[test]
fn a_server_that_does_not_accept() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    // The queue of a server has up to `net.core.somaxconn` connections. This one is short.
    rustix::net::listen(&listener, 1).unwrap();
    let client = Client::new(path).timeouts(patient().connect(LIMIT));
    // Fill it; the last one has to wait.
    let mut results = (0..10).map(|_| client.peer());
    match results.find_map(Result::err) {
        Some(Error::Timeout { operation: Operation::Connect, after }) => assert_eq!(after, LIMIT),
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_environment_that_never_ends() {
    // The size it announces is refused, or never comes.
    for size in [u32::MAX, (64 << 20) + 1] {
        let mut bytes = Reply::Ok(&[&size.to_le_bytes()[..], &[0; 2]].concat()).encode().unwrap();
        bytes.extend([0; 100]);
        let (_dir, client) = answers(bytes);
        match client.process_environment() {
            Err(Error::Malformed { source, .. }) => {
                assert_eq!(source.kind, DecodeErrorKind::Limit(size.into(), 64 << 20));
            }
            other => panic!("{other:?}"),
        }
    }
    let (_dir, client) = server(|mut stream| {
        request(&mut stream).expect("a request");
        let size: u32 = 64 << 20;
        let reply = Reply::Ok(&[&size.to_le_bytes()[..], &[0; 2]].concat()).encode().unwrap();
        let _ = stream.write_all(&reply);
        while stream.write_all(&[0; 10]).is_ok() {
            // Slower than the client's limit for the reply allows.
            std::thread::sleep(Duration::from_millis(5));
        }
    });
    match client.timeouts(patient().reply(LIMIT)).process_environment() {
        Err(Error::Timeout { operation: Operation::Reply, .. }) => {}
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_error_code_is_reported() {
    for code in [0x8013_1384, 0xdead_beef] {
        let (_dir, client) = answers(message(&MAGIC, 24, 0xff, 0xff, &u32::to_le_bytes(code)));
        let error = client.resume_runtime().unwrap_err();
        assert_eq!(error.code(), Some(HResult::from(code)));
    }
    // A server that knows nothing at all, and one that fails where success should be.
    let unknown = HResult::UnknownCommand.code().to_le_bytes();
    let (_dir, client) = answers(message(&MAGIC, 24, 0xff, 0xff, &unknown));
    assert!(client.process_info().unwrap_err().is_unknown_command());
    assert!(client.collect_tracing(&config()).unwrap_err().is_unknown_command());
    let (_dir, client) = answers(Reply::Ok(&[5, 0, 7, 0x80]).encode().unwrap());
    assert_eq!(client.resume_runtime().unwrap_err().code(), Some(HResult::Other(0x8007_0005)));
    // An explanation that is garbage.
    let payload = [&[5, 0, 0x13, 0x80][..], &[0xff; 30]].concat();
    let (_dir, client) = answers(message(&MAGIC, 54, 0xff, 0xff, &payload));
    let error = client.resume_runtime().unwrap_err();
    assert!(matches!(error, Error::Runtime { message: None, .. }), "{error}");
}

/// Keeps a connection open, without a word, until the client closes it.
fn hold(mut connection: UnixStream) {
    let _ = std::io::copy(&mut connection, &mut std::io::sink());
}

fn config() -> TracingConfig {
    TracingConfig::new([Provider::new("A")])
}

const STREAM_HEAD: &[u8] = b"Nettrace\x14\0\0\0!FastSerialization.1";

/// A session with a server that sends `stream`, then does what `then` says with it; a request
/// to stop is answered with `stopped`.
fn session(
    timeouts: Timeouts,
    stream: Vec<u8>,
    then: impl Fn(UnixStream) + Send + Clone + 'static,
    stopped: Option<Vec<u8>>,
) -> (tempfile::TempDir, Session) {
    let (dir, client) = session_server(stream, then, stopped);
    let client = client.timeouts(timeouts);
    let session = loop {
        match client.collect_tracing(&config()) {
            Ok(session) => break session,
            // The limit of the reply that does not come is also that of this one.
            Err(Error::Timeout { operation: Operation::Reply, after: LIMIT }) => {}
            Err(error) => panic!("{error}"),
        }
    };
    (dir, session)
}

/// Such a server.
fn session_server(
    stream: Vec<u8>,
    then: impl Fn(UnixStream) + Send + Clone + 'static,
    stopped: Option<Vec<u8>>,
) -> (tempfile::TempDir, Client) {
    server(move |mut connection| match request(&mut connection) {
        Some(Request::CollectTracing { .. }) => {
            let reply = Reply::Ok(&7u64.to_le_bytes()).encode().unwrap();
            let (stream, then) = (stream.clone(), then.clone());
            std::thread::spawn(move || {
                let _ = connection.write_all(&[reply, stream].concat()); // the client may be gone
                then(connection);
            });
        }
        Some(Request::StopTracing { session: 7 }) => match &stopped {
            Some(reply) => connection.write_all(reply).unwrap(),
            None => {
                std::thread::spawn(move || hold(connection));
            }
        },
        other => panic!("{other:?}"),
    })
}

#[test]
fn streams_that_are_not_complete() {
    let ok = Some(Reply::Ok(&7u64.to_le_bytes()).encode().unwrap());
    // It ends where it should not, although the server says that all is well.
    let (_dir, cut) = session(patient(), [STREAM_HEAD, b"and"].concat(), drop, ok.clone());
    let end = cut.stop();
    assert!(matches!(end.truncation, Some(TruncationReason::Closed)), "{end:?}");
    assert!(matches!(end.stop, Some(Ok(()))), "{end:?}");
    // It ends where it should, and the reply is for somebody else, or none.
    let whole = || [STREAM_HEAD, b"\x06\x01"].concat();
    let other = Some(Reply::Ok(&8u64.to_le_bytes()).encode().unwrap());
    let (_dir, complete) = session(patient(), whole(), drop, other);
    let end = complete.stop();
    assert!(end.is_complete());
    assert!(
        matches!(end.stop, Some(Err(Error::WrongSession { expected: 7, found: 8 }))),
        "{end:?}"
    );
    let (_dir, complete) = session(patient().reply(LIMIT), whole(), drop, None);
    let end = complete.stop();
    assert!(end.is_complete());
    assert!(matches!(end.stop, Some(Err(Error::Timeout { .. }))), "{end:?}");
    // It just stays open after the request to stop.
    let (_dir, silent) = session(patient().drain(LIMIT), whole(), hold, ok);
    let end = silent.stop();
    assert!(
        matches!(end.truncation, Some(TruncationReason::Silent(after)) if after == LIMIT),
        "{end:?}"
    );
}

#[test]
fn a_stream_that_never_ends() {
    // It does not end after the request to stop: the caller decides, who sees
    // every byte and can leave at any moment.
    let left = Arc::new(AtomicBool::new(false));
    let is_left = Arc::clone(&left);
    let on = move |mut connection: UnixStream| {
        while !is_left.load(Ordering::Relaxed) && connection.write_all(&[0; 65536]).is_ok() {}
    };
    let ok = Some(Reply::Ok(&7u64.to_le_bytes()).encode().unwrap());
    let (_dir, mut session) = session(patient(), STREAM_HEAD.to_vec(), on, ok);
    session.stop_handle().stop().unwrap();
    let mut buffer = vec![0; 1 << 20];
    while session.bytes_read() < 10 << 20 {
        assert!(session.read(&mut buffer).unwrap() > 0);
    }
    // The rest is discarded for as long as the patient client drains.
    left.store(true, Ordering::Relaxed);
    let end = session.finish();
    assert!(matches!(end.truncation, Some(TruncationReason::Abandoned)), "{end:?}");
}

/// The reply comes when other stops have returned.
#[test]
fn a_stop_does_not_wait_for_the_reply_to_another() {
    let (returned, others) = std::sync::mpsc::channel();
    let others = std::sync::Mutex::new(others);
    let ok = Reply::Ok(&7u64.to_le_bytes()).encode().unwrap();
    let (_dir, client) = server(move |mut connection| match request(&mut connection) {
        Some(Request::CollectTracing { .. }) => {
            connection.write_all(&[&ok[..], STREAM_HEAD, b"\x06\x01"].concat()).unwrap();
        }
        Some(Request::StopTracing { session: 7 }) => {
            others.lock().unwrap().recv().unwrap();
            connection.write_all(&ok).unwrap();
        }
        other => panic!("{other:?}"),
    });
    let session = client.collect_tracing(&config()).unwrap();
    let stop = session.stop_handle();
    stop.stop().unwrap();
    let reader = std::thread::spawn(move || session.stop());
    // Some of them while the reader waits.
    for _ in 0..1000 {
        stop.stop().unwrap();
        std::thread::yield_now();
    }
    returned.send(()).unwrap();
    let end = reader.join().unwrap();
    assert!(end.is_complete() && matches!(end.stop, Some(Ok(()))), "{end:?}");
}

#[test]
fn a_stream_that_continues_after_the_stop_is_truncated() {
    let (_dir, client) = stoppable(|connection, stop| {
        stop.recv().unwrap();
        // There is data after the limit has passed, however late it is read.
        let stopped = Instant::now();
        while stopped.elapsed() < 5 * LIMIT {
            connection.write_all(&[0; 65536]).unwrap();
        }
    });
    let client = client.timeouts(patient().end(LIMIT));
    let session = client.collect_tracing(&config()).unwrap();
    let end = session.record_for(LIMIT, &mut std::io::sink());
    let limit = matches!(end.truncation, Some(TruncationReason::Overrun(after)) if after == LIMIT);
    assert!(limit, "{end:?}");
}

#[test]
fn a_stop_that_cannot_be_sent_ends_the_stream_too() {
    let left = Arc::new(AtomicBool::new(false));
    let is_left = Arc::clone(&left);
    let on = move |mut connection: UnixStream| {
        while !is_left.load(Ordering::Relaxed) && connection.write_all(&[0; 65536]).is_ok() {}
    };
    let (dir, mut session) = session(patient().end(LIMIT), STREAM_HEAD.to_vec(), on, None);
    // Nobody listens any more, and the stream continues.
    drop(dir);
    let stop = session.stop_handle();
    assert!(stop.stop().is_err());
    assert!(stop.stop().is_err(), "it is tried again");
    let start = Instant::now();
    let mut buffer = vec![0; 1 << 20];
    while session.read(&mut buffer).is_ok() {
        assert!(start.elapsed() < Duration::from_secs(60), "it never ends");
    }
    // The stop is tried again while the rest is discarded.
    left.store(true, Ordering::Relaxed);
    let end = session.finish();
    let limit = matches!(end.truncation, Some(TruncationReason::Overrun(after)) if after == LIMIT);
    assert!(limit && end.stop.is_none(), "{end:?}");
}

/// It is tried for the limit of silence, also if the stream is not silent.
#[test]
fn a_stop_that_cannot_be_sent_is_given_up() {
    let on = |mut connection: UnixStream| while connection.write_all(&[0; 65536]).is_ok() {};
    let (dir, session) = session(patient().drain(LIMIT), STREAM_HEAD.to_vec(), on, None);
    drop(dir);
    let end = session.finish();
    let is_left = matches!(end.truncation, Some(TruncationReason::Abandoned));
    assert!(is_left && end.stop.is_none(), "{end:?}");
}

/// Puts the socket of a server back at the first write.
struct Restoring {
    hidden: std::path::PathBuf,
    socket: std::path::PathBuf,
    bytes: Vec<u8>,
}

impl std::io::Write for Restoring {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.hidden.exists() {
            std::fs::rename(&self.hidden, &self.socket)?;
        }
        self.bytes.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// A server whose stream ends when it is stopped. Until then it does `until` with the connection, which
/// returns when the channel says so.
fn stoppable(
    until: impl Fn(&mut UnixStream, &Receiver<()>) + Send + Clone + 'static,
) -> (tempfile::TempDir, Client) {
    let (stopped, stop) = std::sync::mpsc::channel();
    let stop = Arc::new(std::sync::Mutex::new(stop));
    let (dir, client) = server(move |mut connection| match request(&mut connection) {
        Some(Request::CollectTracing { .. }) => {
            let (stop, until) = (Arc::clone(&stop), until.clone());
            std::thread::spawn(move || {
                connection.write_all(&Reply::Ok(&7u64.to_le_bytes()).encode().unwrap()).unwrap();
                connection.write_all(STREAM_HEAD).unwrap();
                until(&mut connection, &stop.lock().unwrap());
                connection.write_all(b"\x06\x01").unwrap();
            });
        }
        Some(Request::StopTracing { session: 7 }) => {
            stopped.send(()).unwrap();
            connection.write_all(&Reply::Ok(&7u64.to_le_bytes()).encode().unwrap()).unwrap();
        }
        other => panic!("{other:?}"),
    });
    (dir, client)
}

/// A server whose stream continues until it is stopped, and where its socket has gone and will be again.
fn endless() -> (tempfile::TempDir, Client, Restoring) {
    let (dir, client) = stoppable(|connection, stop| {
        while stop.try_recv().is_err() {
            connection.write_all(&[0; 64]).unwrap();
            std::thread::yield_now();
        }
    });
    let (socket, hidden) = (dir.path().join("socket"), dir.path().join("hidden"));
    (dir, client, Restoring { hidden, socket, bytes: Vec::new() })
}

#[test]
fn a_stop_is_tried_again() {
    let (_dir, client, mut out) = endless();
    let session = client.collect_tracing(&config()).unwrap();
    std::fs::rename(&out.socket, &out.hidden).unwrap();
    let end = session.stop_into(&mut out);
    assert!(end.is_complete() && matches!(end.stop, Some(Ok(()))), "{end:?}");
    assert!(out.bytes.starts_with(STREAM_HEAD) && out.bytes.ends_with(b"\x06\x01"));
}

/// Reports the first write.
struct Reporting {
    first: Option<Sender<()>>,
    bytes: Vec<u8>,
}

impl std::io::Write for Reporting {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if let Some(first) = self.first.take() {
            first.send(()).unwrap();
        }
        self.bytes.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// The connection of a runtime to a reverse port.
fn runtime_at(port: &std::path::Path) -> UnixStream {
    let mut connection = UnixStream::connect(port).unwrap();
    let advertise = Advertise { cookie: Guid::from_u128(7), pid: 42 };
    connection.write_all(&advertise.encode()).unwrap();
    connection
}

/// A runtime at a reverse port that executes another command from the start of its session until the client has read:
/// it does not connect before.
struct Busy {
    _dir: tempfile::TempDir,
    _server: Server,
    client: Client,
    out: Reporting,
    runtime: JoinHandle<()>,
}

fn busy() -> Busy {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("port");
    let server = Server::bind(&path).unwrap();
    let mut stream = runtime_at(&path);
    let client = server.accept(patient().connect).unwrap().client().timeouts(patient());
    let (first, is_read) = std::sync::mpsc::channel();
    let runtime = std::thread::spawn(move || {
        let reply = Reply::Ok(&7u64.to_le_bytes()).encode().unwrap();
        assert!(matches!(request(&mut stream), Some(Request::CollectTracing { .. })));
        stream.write_all(&[&reply[..], STREAM_HEAD].concat()).unwrap();
        while is_read.try_recv().is_err() {
            if stream.write_all(&[0; 64]).is_err() {
                return; // the client has given up
            }
            std::thread::yield_now();
        }
        let mut stop = runtime_at(&path);
        assert!(matches!(request(&mut stop), Some(Request::StopTracing { session: 7 })));
        stream.write_all(b"\x06\x01").unwrap();
        drop(stream);
        stop.write_all(&reply).unwrap();
    });
    let out = Reporting { first: Some(first), bytes: Vec::new() };
    Busy { _dir: dir, _server: server, client, out, runtime }
}

#[test]
fn a_stream_is_read_while_its_stop_waits_for_the_runtime() {
    let mut busy = busy();
    let session = busy.client.collect_tracing(&config()).unwrap();
    let end = session.stop_into(&mut busy.out);
    assert!(end.is_complete() && matches!(end.stop, Some(Ok(()))), "{end:?}");
    assert!(busy.out.bytes.starts_with(STREAM_HEAD) && busy.out.bytes.ends_with(b"\x06\x01"));
    busy.runtime.join().unwrap();
}

/// The runtime connects when its stream is read, which is after the first attempt.
#[test]
fn a_dropped_session_is_stopped_once_its_runtime_connects() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("port");
    let server = Server::bind(&path).unwrap();
    let mut stream = runtime_at(&path);
    let client = server.accept(patient().connect).unwrap().client();
    let runtime = std::thread::spawn(move || {
        let reply = Reply::Ok(&7u64.to_le_bytes()).encode().unwrap();
        assert!(matches!(request(&mut stream), Some(Request::CollectTracing { .. })));
        stream.write_all(&reply).unwrap();
        // More than the buffer of a socket.
        stream.write_all(&vec![0; 8 << 20]).expect("the stream is read");
        let mut stop = runtime_at(&path);
        assert!(matches!(request(&mut stop), Some(Request::StopTracing { session: 7 })));
        drop(stream);
        stop.write_all(&reply).unwrap();
    });
    let client = client.timeouts(patient().connect(LIMIT));
    drop(client.collect_tracing(&config()).unwrap());
    runtime.join().unwrap();
}

/// The error has the time for which the stop was tried: that of an attempt, which is half a second, if it is longer.
#[test]
fn a_stop_of_a_runtime_that_does_not_connect_has_its_time_limit() {
    let attempt = Duration::from_millis(500);
    for (limit, tried) in [(LIMIT, attempt), (attempt + LIMIT, attempt + LIMIT)] {
        let busy = busy();
        let client = busy.client.timeouts(patient().drain(limit));
        let session = client.collect_tracing(&config()).unwrap();
        let end = session.stop();
        let Some(TruncationReason::Stop(Error::Timeout { operation, after })) = end.truncation
        else {
            panic!("{end:?}")
        };
        assert_eq!((operation, after), (Operation::Connect, tried));
    }
}

#[cfg(feature = "tokio")]
#[test]
fn an_asynchronous_read_of_nothing_is_not_the_end() {
    use tokio::io::AsyncReadExt as _;
    let (_dir, client) = stoppable(|connection, stop| {
        connection.write_all(b"events").unwrap();
        stop.recv().unwrap();
    });
    let client = diag_ipc::asynchronous::Client::new(client.timeouts(patient()));
    let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (read, end) = tokio.block_on(async {
        let mut session = client.collect_tracing(config()).await.unwrap();
        let mut head = vec![0; STREAM_HEAD.len()];
        session.read_exact(&mut head).await.unwrap();
        // Data is there, or will be.
        assert_eq!(session.read(&mut []).await.unwrap(), 0);
        let read = session.read(&mut head).await.unwrap();
        (read, session.stop_into(&mut tokio::io::sink()).await)
    });
    assert_ne!(read, 0);
    assert!(end.is_complete() && matches!(end.stop, Some(Ok(()))), "{end:?}");
}

/// The limits of a session hold for every way to read it.
#[cfg(feature = "tokio")]
#[test]
fn an_asynchronous_read_ends_at_the_limit() {
    let ok = Some(Reply::Ok(&7u64.to_le_bytes()).encode().unwrap());
    let (_dir, client) = session_server(STREAM_HEAD.to_vec(), hold, ok);
    let client = diag_ipc::asynchronous::Client::new(client.timeouts(patient().drain(LIMIT)));
    let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (read, end) = tokio.block_on(async {
        let mut session = client.collect_tracing(config()).await.unwrap();
        session.stop_handle().stop().unwrap();
        let mut stream = Vec::new();
        let read = tokio::io::AsyncReadExt::read_to_end(&mut session, &mut stream);
        // Without the limit, this would never return.
        let read = tokio::time::timeout(Duration::from_secs(60), read).await.expect("an end");
        (read, session.finish().await)
    });
    assert_eq!(read.unwrap_err().kind(), std::io::ErrorKind::TimedOut);
    let silent = matches!(end.truncation, Some(TruncationReason::Silent(after)) if after == LIMIT);
    assert!(silent, "{end:?}");
}

/// Stops an asynchronous session into `out`, after `begun`.
#[cfg(feature = "tokio")]
fn stopped_asynchronously<W: std::io::Write + Send + 'static>(
    client: Client,
    begun: impl FnOnce(),
    mut out: W,
) -> (diag_ipc::SessionEnd, W) {
    let client = diag_ipc::asynchronous::Client::new(client);
    let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tokio.block_on(async {
        let session = client.collect_tracing(config()).await.unwrap();
        begun();
        let (mut ours, mut theirs) = tokio::io::duplex(1 << 16);
        let reading = tokio::spawn(async move {
            let mut buffer = vec![0; 1 << 16];
            while let Ok(n @ 1..) = tokio::io::AsyncReadExt::read(&mut theirs, &mut buffer).await {
                out.write_all(&buffer[..n]).unwrap();
            }
            out
        });
        let end = session.stop_into(&mut ours).await;
        drop(ours);
        (end, reading.await.unwrap())
    })
}

#[cfg(feature = "tokio")]
#[test]
fn an_asynchronous_stop_is_tried_again() {
    let (_dir, client, out) = endless();
    let (socket, hidden) = (out.socket.clone(), out.hidden.clone());
    // The first data puts it back.
    let hide = || std::fs::rename(&socket, &hidden).unwrap();
    let (end, out) = stopped_asynchronously(client, hide, out);
    assert!(end.is_complete() && matches!(end.stop, Some(Ok(()))), "{end:?}");
    assert!(out.bytes.ends_with(b"\x06\x01"));
}

#[cfg(feature = "tokio")]
#[test]
fn an_asynchronous_stream_is_read_while_its_stop_waits_for_the_runtime() {
    let Busy { _dir, _server, client, out, runtime } = busy();
    let (end, out) = stopped_asynchronously(client, || (), out);
    assert!(end.is_complete() && matches!(end.stop, Some(Ok(()))), "{end:?}");
    assert!(out.bytes.ends_with(b"\x06\x01"));
    runtime.join().unwrap();
}

/// The connection is closed instead.
#[cfg(feature = "tokio")]
#[test]
fn an_asynchronous_stop_that_was_given_up_is_not_tried_again() {
    let dialled = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let count = Arc::clone(&dialled);
    let client = Client::with_dialer(move |_| {
        if count.fetch_add(1, Ordering::SeqCst) > 0 {
            return Err(std::io::ErrorKind::ConnectionRefused.into());
        }
        let (ours, mut theirs) = UnixStream::pair()?;
        std::thread::spawn(move || {
            request(&mut theirs).unwrap();
            theirs.write_all(&Reply::Ok(&7u64.to_le_bytes()).encode().unwrap()).unwrap();
            hold(theirs);
        });
        Ok(ours)
    });
    let client = client.timeouts(patient().drain(Duration::ZERO));
    let (end, _) = stopped_asynchronously(client, || (), std::io::sink());
    assert!(matches!(end.truncation, Some(TruncationReason::Stop(_))), "{end:?}");
    assert_eq!(dialled.load(Ordering::SeqCst), 2, "a session and one attempt to stop it");
}

#[test]
fn record_for_stops_a_silent_session() {
    let (dir, client) = stoppable(|_, stop| stop.recv().unwrap());
    let session = client.collect_tracing(&config()).unwrap();
    let mut stream = Vec::new();
    let end = session.record_for(Duration::from_millis(50), &mut stream);
    assert!(end.is_complete() && matches!(end.stop, Some(Ok(()))), "{end:?}");
    assert_eq!(stream, [STREAM_HEAD, b"\x06\x01"].concat());
    drop(dir);
}

#[test]
fn dropping_a_session_does_not_block() {
    // The server ends the stream only after `drop` has returned: one that waits for the end would
    // deadlock until its time limit, and the stream would end without having been read.
    let (dropped, wait) = std::sync::mpsc::channel::<()>();
    let wait = Arc::new(std::sync::Mutex::new(wait));
    let (read, result) = std::sync::mpsc::channel();
    let hold = move |mut connection: UnixStream| {
        wait.lock().unwrap().recv().unwrap();
        // The client still reads.
        let sent = connection.write_all(&[0; 1 << 20]);
        read.send(sent.is_ok()).unwrap();
    };
    let (_dir, client) = server(move |mut connection| match request(&mut connection) {
        Some(Request::CollectTracing { .. }) => {
            let hold = hold.clone();
            std::thread::spawn(move || {
                connection.write_all(&Reply::Ok(&7u64.to_le_bytes()).encode().unwrap()).unwrap();
                hold(connection);
            });
        }
        Some(Request::StopTracing { session: 7 }) => {}
        other => panic!("{other:?}"),
    });
    let session = client.collect_tracing(&config()).unwrap();
    drop(session);
    dropped.send(()).unwrap();
    assert!(result.recv().unwrap(), "the rest of the stream is read in the background");
}

/// Starts a session of user_events with a file that is none of them.
#[cfg(any(target_os = "linux", feature = "tokio"))]
fn user_events(client: &Client) -> Result<diag_ipc::UserEventsSession, Error> {
    use diag_ipc::{Tracepoints, UserEventsConfig, UserEventsProvider};
    use std::os::fd::AsFd as _;
    let provider = UserEventsProvider::new(Provider::new("A"), Tracepoints::new("events"));
    let file = std::fs::File::open("/dev/null").unwrap();
    client.collect_user_events(&UserEventsConfig::new([provider]), file.as_fd())
}

/// The target is another process: this one cannot be stopped.
#[cfg(target_os = "linux")]
#[test]
fn a_stopped_target_of_user_events_is_reported() {
    const SOCKET: &str = "DIAG_IPC_TEST_SOCKET";
    if let Some(path) = std::env::var_os(SOCKET) {
        let _listener = UnixListener::bind(path).unwrap();
        loop {
            std::thread::park();
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let mut target = std::process::Command::new(std::env::current_exe().unwrap());
    target.args(["--exact", "a_stopped_target_of_user_events_is_reported"]).env(SOCKET, &path);
    let target = testkit::process::Running::start(&mut target);
    testkit::wait::until("it listens", || UnixStream::connect(&path).is_ok());
    testkit::process::stop(target.id());
    match user_events(&Client::new(path).timeouts(patient().reply(LIMIT))) {
        Err(Error::TargetStopped { pid, .. }) => assert_eq!(pid, target.id()),
        other => panic!("{other:?}"),
    }
}

/// A target that is stopped does not answer. The program that asked it must not wait for the deadline.
#[cfg(feature = "tokio")]
#[test]
fn a_dropped_asynchronous_command_closes_its_connection() {
    type Command = fn(&Client) -> Result<(), Error>;
    let commands: [Command; 2] =
        [|client| client.process_info().map(drop), |client| user_events(client).map(drop)];
    for command in commands {
        let (requests, requested) = std::sync::mpsc::channel();
        let (_dir, client) = server(move |mut stream| {
            let is_request = request(&mut stream).is_some();
            // This ends the test if the client stays connected.
            stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            requests.send((is_request, None)).unwrap();
            let is_closed = std::io::copy(&mut stream, &mut std::io::sink()).is_ok();
            requests.send((is_request, Some(is_closed))).unwrap();
        });
        let client = diag_ipc::asynchronous::Client::new(client.timeouts(patient()));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let requested = runtime.block_on(async {
            let arrived = tokio::task::spawn_blocking(move || {
                assert_eq!(requested.recv(), Ok((true, None)));
                requested
            });
            tokio::select! {
                biased;
                requested = arrived => requested.unwrap(),
                answer = client.call(command) => panic!("{answer:?}"),
            }
        });
        assert_eq!(requested.recv(), Ok((true, Some(true))));
        // Waits for the thread of the command.
        drop(runtime);
    }
    // A command that was answered is not affected by the end of its future.
    let (_dir, client) = answers(Reply::Ok(&[0; 4]).encode().unwrap());
    let client = diag_ipc::asynchronous::Client::new(client);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let clone = runtime.block_on(client.call(|client| {
        client.resume_runtime()?;
        Ok(client.clone())
    }));
    clone.unwrap().resume_runtime().unwrap();
}

/// The runtime refuses the newest version of the request after its future was dropped.
#[cfg(feature = "tokio")]
#[test]
fn a_dropped_asynchronous_request_for_a_session_has_no_other_version() {
    let (requests, requested) = std::sync::mpsc::channel();
    let (dropped, is_dropped) = std::sync::mpsc::channel::<()>();
    let (_dir, client) = server(move |mut stream| {
        let is_of_session = matches!(request(&mut stream), Some(Request::CollectTracing { .. }));
        requests.send(is_of_session).unwrap();
        if is_of_session {
            let _ = is_dropped.recv(); // closed
        }
        let refusal = Reply::Error { code: HResult::UnknownCommand, message: None };
        stream.write_all(&refusal.encode().unwrap()).unwrap();
    });
    let asynchronous = diag_ipc::asynchronous::Client::new(client.clone());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let requested = runtime.block_on(async {
        let arrived = tokio::task::spawn_blocking(move || {
            assert_eq!(requested.recv(), Ok(true));
            requested
        });
        tokio::select! {
            biased;
            requested = arrived => requested.unwrap(),
            session = asynchronous.collect_tracing(config()) => panic!("{session:?}"),
        }
    });
    drop(dropped);
    // Waits for the thread of the command.
    drop(runtime);
    client.resume_runtime().unwrap_err();
    assert_eq!(requested.recv(), Ok(false), "another request for a session");
}

/// A reverse server can wait for its runtime for a while.
#[cfg(feature = "tokio")]
#[test]
fn a_request_for_a_session_that_was_dropped_while_it_connects_is_not_sent() {
    let (connecting, connects) = std::sync::mpsc::channel();
    let (dropped, is_dropped) = std::sync::mpsc::channel::<()>();
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let server = std::sync::Mutex::new(Some((ours, is_dropped)));
    let client = Client::with_dialer(move |_| {
        let (connection, is_dropped) = server.lock().unwrap().take().expect("one connection");
        connecting.send(()).unwrap();
        let _ = is_dropped.recv(); // closed
        Ok(connection)
    });
    let client = diag_ipc::asynchronous::Client::new(client);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let arrived = tokio::task::spawn_blocking(move || connects.recv());
        tokio::select! {
            biased;
            connecting = arrived => connecting.unwrap().unwrap(),
            session = client.collect_tracing(config()) => panic!("{session:?}"),
        }
    });
    drop(dropped);
    // Waits for the thread of the command.
    drop(runtime);
    assert!(request(&mut theirs).is_none());
}

/// The thread that discards the rest waits for data: tokio's mode would have it ask without a pause.
#[cfg(feature = "tokio")]
#[test]
fn a_dropped_asynchronous_session_waits_for_its_stream() {
    use rustix::fs::{OFlags, fcntl_getfl};
    let (_dir, client) = server(|mut connection| {
        if let Some(Request::CollectTracing { .. }) = request(&mut connection) {
            connection.write_all(&Reply::Ok(&7u64.to_le_bytes()).encode().unwrap()).unwrap();
            std::mem::forget(connection); // the stream does not end
        }
    });
    let client = diag_ipc::asynchronous::Client::new(client);
    let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let session = tokio.block_on(client.collect_tracing(config())).unwrap();
    let stream = session.get_ref().as_fd().unwrap().try_clone_to_owned().unwrap();
    assert!(fcntl_getfl(&stream).unwrap().contains(OFlags::NONBLOCK));
    tokio.block_on(async { drop(session) });
    testkit::wait::until("a stream that waits", || {
        !fcntl_getfl(&stream).unwrap().contains(OFlags::NONBLOCK)
    });
}

#[test]
fn reverse_server_survives_malformed_clients() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("port");
    let server = Server::bind(&path).unwrap();
    let connections = std::cell::Cell::new(0);
    let connect = || {
        connections.set(connections.get() + 1);
        UnixStream::connect(&path).unwrap()
    };
    let advertise = |n| Advertise { cookie: Guid::from_u128(n), pid: 42 }.encode();
    // The server waits a second for what a connection sends: on a loaded machine it can have closed it.
    let send = |bytes: &[u8]| {
        let mut connection = connect();
        let _ = connection.write_all(bytes);
        connection
    };
    // A runtime that the server has in time. No other one may come meanwhile.
    let runtime = |n| {
        loop {
            let before = server.stats().advertised;
            let mut runtime = send(&advertise(n));
            runtime.set_nonblocking(true).unwrap();
            let mut is_open = true;
            testkit::wait::until("the advertisement", || {
                let read = runtime.read(&mut [0]);
                is_open = read.is_err_and(|e| e.kind() == std::io::ErrorKind::WouldBlock);
                !is_open || server.stats().advertised > before
            });
            if is_open {
                runtime.set_nonblocking(false).unwrap();
                return runtime;
            }
        }
    };

    let half = send(&advertise(1)[..20]);
    testkit::wait::until("two that are malformed", || {
        send(b"ADVR_V2\0 and something that is long enough");
        connect();
        server.stats().malformed >= 2
    });
    // More of them at a time than the server keeps, within the second.
    let mut crowd = Vec::new();
    while server.stats().refused == 0 {
        if crowd.len() == 400 {
            crowd.clear();
        }
        crowd.push(connect());
    }

    let mut first = runtime(2);
    let accepted = server.accept(patient().connect).unwrap();
    assert_eq!(accepted.cookie(), Guid::from_u128(2));
    assert_eq!(accepted.peer().pid, Some(std::process::id()));

    // A runtime that speaks before it is asked is not used; the next connection is.
    first.write_all(b"hello?").unwrap();
    let client = accepted.client().timeouts(patient());
    let hasty = client.clone().timeouts(patient().connect(LIMIT));
    let error = hasty.resume_runtime().unwrap_err();
    assert!(matches!(error, Error::Timeout { operation: Operation::Connect, .. }), "{error}");
    let mut second = runtime(2);
    let thread = std::thread::spawn(move || {
        assert_eq!(request(&mut second), Some(Request::ResumeRuntime));
        second.write_all(&Reply::Ok(&[0; 4]).encode().unwrap()).unwrap();
    });
    client.resume_runtime().unwrap();
    thread.join().unwrap();

    // More runtimes than it keeps track of.
    for n in 10..1200 {
        send(&advertise(n));
    }
    testkit::wait::until("the end of all others", || {
        let stats = server.stats();
        let refused = stats.malformed + stats.timed_out + stats.impostors + stats.refused;
        stats.advertised + refused == connections.get()
    });
    let _last = runtime(5);
    while server.accept(patient().connect).unwrap().cookie() != Guid::from_u128(5) {}
    drop((half, crowd));
    drop(server);
    assert!(!path.exists());
}

#[test]
fn reverse_server_keeps_files_that_are_in_its_way() {
    use std::os::unix::fs::{MetadataExt as _, symlink};
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("port");
    let target = dir.path().join("target");
    // Symbolic links are not followed, to nothing or to something.
    symlink(&target, &path).unwrap();
    assert!(Server::bind(&path).is_err() && !target.exists());
    std::fs::write(&target, "precious").unwrap();
    assert!(Server::bind(&path).is_err());
    assert_eq!(std::fs::read(&target).unwrap(), b"precious");
    std::fs::remove_file(&path).unwrap();
    // Neither are files replaced, nor sockets that are in use.
    std::fs::write(&path, "precious").unwrap();
    assert!(Server::bind(&path).is_err());
    std::fs::remove_file(&path).unwrap();
    let server = Server::bind(&path).unwrap();
    assert!(Server::bind(&path).is_err());
    assert_eq!(std::fs::symlink_metadata(&path).unwrap().mode() & 0o777, 0o600);
    // Somebody else's file is not removed in the end.
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, "precious").unwrap();
    drop(server);
    assert_eq!(std::fs::read(&path).unwrap(), b"precious");
    std::fs::remove_file(&path).unwrap();
    // A socket that is left over is.
    drop(UnixListener::bind(&path).unwrap());
    drop(Server::bind(&path).unwrap());
    assert!(!path.exists());
}

/// A runtime would connect to another path, or to several.
#[test]
fn reverse_server_rejects_paths_that_a_runtime_cannot_be_given() {
    use std::os::unix::ffi::OsStrExt as _;
    let dir = tempfile::tempdir().unwrap();
    for name in [&b"a,b"[..], b"a;b", b",", b"a,nosuspend", b"a\xff"] {
        let name = std::ffi::OsStr::from_bytes(name);
        let error = Server::bind(&dir.path().join(name)).unwrap_err();
        assert!(matches!(error, Error::Io { operation: Operation::Bind, .. }), "{error}");
        assert!(error.to_string().contains("comma"), "{error}");
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

/// A runtime can have another working directory.
#[test]
fn reverse_server_has_an_absolute_path() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().canonicalize().unwrap().join("port");
    // The other tests of this program have absolute paths.
    let before = std::env::current_dir().unwrap();
    std::env::set_current_dir(dir.path()).unwrap();
    let server = Server::bind("port".as_ref()).unwrap();
    std::env::set_current_dir(before).unwrap();
    assert_eq!(server.path(), path);
    assert!(path.exists());
    drop(server);
    assert!(!path.exists());
}

#[test]
fn the_longest_time_limits_are_not_too_long() {
    let (_dir, client) = answers(Reply::Ok(&[0; 4]).encode().unwrap());
    let client = client.timeouts(Timeouts::all(Duration::MAX));
    client.attach_profiler(Duration::MAX, Guid::default(), "/nowhere/profiler.so", &[]).unwrap();
}

/// A read would return at once, again and again.
#[test]
fn the_connections_of_a_dialer_block() {
    use rustix::fs::{OFlags, fcntl_getfl};
    let client = Client::with_dialer(|_| {
        let (ours, mut theirs) = UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        std::thread::spawn(move || {
            request(&mut theirs).unwrap();
            theirs.write_all(&Reply::Ok(&7u64.to_le_bytes()).encode().unwrap()).unwrap();
            hold(theirs);
        });
        Ok(ours)
    });
    let session = client.timeouts(patient().drain(LIMIT)).collect_tracing(&config()).unwrap();
    assert!(!fcntl_getfl(session.as_fd().unwrap()).unwrap().contains(OFlags::NONBLOCK));
}

/// A runtime at a reverse port that has just ended connects no more.
#[test]
fn the_end_of_a_stream_does_not_wait_for_a_stop_that_cannot_be_sent() {
    let (theirs, at_test) = std::sync::mpsc::channel();
    let (dialled, is_dialled) = std::sync::mpsc::channel();
    let (release, released) = std::sync::mpsc::channel::<()>();
    let given_up = Arc::new(AtomicBool::new(false));
    let dial = {
        let (given_up, first) = (Arc::clone(&given_up), AtomicBool::new(true));
        let released = std::sync::Mutex::new(released);
        move |_| {
            if first.swap(false, Ordering::SeqCst) {
                let (ours, other) = UnixStream::pair()?;
                theirs.send(other).unwrap();
                return Ok(ours);
            }
            dialled.send(()).unwrap();
            // In time, unless the end waits for this.
            if released.lock().unwrap().recv_timeout(Duration::from_secs(10)).is_err() {
                given_up.store(true, Ordering::SeqCst);
            }
            Err(std::io::ErrorKind::TimedOut.into())
        }
    };
    let serve = std::thread::spawn(move || {
        let mut stream: UnixStream = at_test.recv().unwrap();
        request(&mut stream).unwrap();
        stream.write_all(&Reply::Ok(&7u64.to_le_bytes()).encode().unwrap()).unwrap();
        stream
    });
    let client = Client::with_dialer(dial).timeouts(patient());
    let version = diag_ipc::TracingCommand::CollectTracing;
    let mut session = client.collect_tracing_by(version, &config()).unwrap();
    let stop_handle = session.stop_handle();
    let stopping = std::thread::spawn(move || stop_handle.stop());
    is_dialled.recv().unwrap();
    drop(serve.join().unwrap());
    assert_eq!(session.read(&mut [0; 8]).unwrap(), 0);
    let end = session.finish();
    assert!(!given_up.load(Ordering::SeqCst), "it waited for the request");
    assert!(end.stop.is_none(), "{end:?}");
    release.send(()).unwrap();
    stopping.join().unwrap().unwrap_err();
}

#[test]
fn shutdown_removes_the_socket_and_ends_accept() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("port");
    let server = Arc::new(Server::bind(&path).unwrap());
    let waiting = std::thread::spawn({
        let server = Arc::clone(&server);
        move || server.accept(Duration::from_secs(600))
    });
    // Another owner of the server does not keep the file.
    server.shutdown();
    assert!(!path.exists());
    let error = waiting.join().unwrap().unwrap_err();
    assert!(matches!(error, Error::Closed { operation: Operation::Accept }), "{error}");
    // A file that is put in its place belongs to somebody else.
    std::fs::write(&path, "precious").unwrap();
    server.shutdown();
    drop(server);
    assert!(path.exists());
}

#[test]
fn a_path_longer_than_a_socket_address() {
    let dir = tempfile::tempdir().unwrap();
    let deep = dir.path().join("d".repeat(120));
    std::fs::create_dir(&deep).unwrap();
    let short = dir.path().join("s");
    let listener = UnixListener::bind(&short).unwrap();
    std::fs::rename(&short, deep.join("socket")).unwrap();
    std::thread::spawn(move || {
        let mut stream = listener.accept().unwrap().0;
        request(&mut stream).unwrap();
        stream.write_all(&Reply::Ok(&[0; 4]).encode().unwrap()).unwrap();
    });
    Client::new(deep.join("socket")).timeouts(patient()).resume_runtime().unwrap();
}

#[test]
fn a_dialer_makes_the_connections() {
    let client = Client::with_dialer(|timeout| {
        assert_eq!(timeout, LIMIT);
        let (ours, mut theirs) = UnixStream::pair()?;
        std::thread::spawn(move || {
            request(&mut theirs).unwrap();
            theirs.write_all(&Reply::Ok(&[0; 4]).encode().unwrap()).unwrap();
        });
        Ok(ours)
    });
    client.timeouts(patient().connect(LIMIT)).resume_runtime().unwrap();
    let client = Client::with_dialer(|_| Err(std::io::ErrorKind::AddrNotAvailable.into()));
    let error = client.resume_runtime().unwrap_err();
    assert!(matches!(error, Error::Io { operation: Operation::Connect, .. }), "{error}");
}

/// That the files of the target are not visible would be another reason.
#[test]
fn a_startup_hook_for_a_target_without_a_server_is_an_error_of_the_connection() {
    let client = Client::new(std::path::Path::new("/nowhere/socket"));
    match client.apply_startup_hook("/nowhere/Hook.dll") {
        Err(Error::Io { operation: Operation::Connect, .. }) => {}
        other => panic!("{other:?}"),
    }
}

/// A suspended runtime would run the parts of the path.
#[test]
fn a_startup_hook_with_a_colon_in_its_path_is_not_sent() {
    use diag_ipc::{RejectedRequest, StartupHookError};
    let client = Client::with_dialer(|_| panic!("it connects"));
    match client.apply_startup_hook("/a:b.dll") {
        Err(Error::Rejected(RejectedRequest::StartupHook { reason, .. })) => {
            assert_eq!(reason, StartupHookError::Colon);
        }
        other => panic!("{other:?}"),
    }
}

#[cfg(target_os = "linux")]
/// Answers the requests of a client as a runtime of the process `pid` that does not describe itself further.
fn describe(pid: u32, stream: &mut UnixStream) {
    let mut info = [&1u32.to_le_bytes()[..], &u64::from(pid).to_le_bytes(), &[0; 16]].concat();
    for text in ["app", "Linux", "x64", "app", "9.0.1", "linux-x64"] {
        info.extend((text.len() as u32 + 1).to_le_bytes());
        info.extend(text.encode_utf16().chain([0]).flat_map(u16::to_le_bytes));
    }
    let reply = match request(stream) {
        Some(Request::ProcessInfo { command: ProcessInfoCommand::ProcessInfo3 }) => {
            Reply::Ok(&info)
        }
        Some(Request::CreateCoreDump { .. }) => Reply::Ok(&[0; 4]),
        // The client asks for the peer only.
        None => return,
        Some(_) => Reply::Error { code: HResult::UnknownCommand, message: None },
    };
    stream.write_all(&reply.encode().unwrap()).unwrap();
}

#[cfg(target_os = "linux")]
/// The process id that this process would report if it were a runtime.
fn own_pid() -> u32 {
    let status = std::fs::read("/proc/self/status").unwrap();
    trace_common::innermost_pid(&status).unwrap_or_else(std::process::id)
}

#[cfg(target_os = "linux")]
#[test]
fn a_proxy_is_not_the_target() {
    use diag_ipc::{DumpFlags, DumpType, PerfMapType, RejectedRequest, StartupHookError};
    // This process is the peer, and has the thread that a runtime has unless it is suspended.
    let (end, ended) = std::sync::mpsc::channel::<()>();
    let name = std::thread::Builder::new().name(".NET Finalizer".into());
    let thread = name.spawn(move || ended.recv().is_err()).unwrap();
    testkit::wait::until("its name", || {
        std::fs::read_dir("/proc/self/task").unwrap().any(|task| {
            let comm = std::fs::read(task.unwrap().path().join("comm"));
            comm.is_ok_and(|comm| comm == b".NET Finalizer\n")
        })
    });
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("Hook.dll");
    std::fs::write(&file, "text").unwrap();
    let hook = |client: &Client| match client.apply_startup_hook(file.to_str().unwrap()) {
        Err(Error::Rejected(RejectedRequest::StartupHook { reason, .. })) => reason,
        other => panic!("{other:?}"),
    };
    let dump = |client: &Client| {
        client.create_core_dump("/nowhere/core", DumpType::Normal, DumpFlags::empty())
    };
    let patient = Timeouts::all(Duration::from_secs(60));

    // The runtime is another process: that of the peer shows nothing about it.
    let (_dir, client) = server(|mut stream| describe(own_pid() + 1, &mut stream));
    let client = client.timeouts(patient);
    assert_eq!(hook(&client), StartupHookError::Unverifiable);
    assert_eq!(client.is_suspended().unwrap(), None);
    let error = client.enable_perf_map(PerfMapType::PerfMap).unwrap_err();
    assert!(matches!(error, Error::Rejected(RejectedRequest::Suspended(_))), "{error}");
    dump(&client).unwrap();

    let (_dir, client) = server(|mut stream| describe(own_pid(), &mut stream));
    let client = client.timeouts(patient);
    assert!(matches!(hook(&client), StartupHookError::NotAnAssembly { .. }));
    // The kernel ends a list of threads early if one ends meanwhile, such as that of another test.
    testkit::wait::until("the thread of a runtime that runs", || {
        client.is_suspended().unwrap() == Some(false)
    });
    let error = dump(&client).unwrap_err();
    assert!(matches!(error, Error::Rejected(RejectedRequest::SingleFile)), "{error}");

    // The same with reverse connections.
    let path = dir.path().join("port");
    let server = Server::bind(&path).unwrap();
    let connected = |pid: u32| {
        let cookie = Guid::from_u128(pid.into());
        let mut stream = UnixStream::connect(&path).unwrap();
        stream.write_all(&Advertise { cookie, pid: pid.into() }.encode()).unwrap();
        let runtime = server.accept(Duration::from_secs(60)).unwrap();
        (stream, runtime.client().timeouts(patient))
    };
    let (_stream, client) = connected(own_pid());
    assert!(matches!(hook(&client), StartupHookError::NotAnAssembly { .. }));

    drop(end);
    assert!(thread.join().unwrap());
}

#[test]
fn types_are_shared_between_threads() {
    fn is_shared<T: Send + Sync>() {}
    is_shared::<Client>();
    is_shared::<Error>();
    is_shared::<diag_ipc::ProcessInfo>();
    is_shared::<TracingConfig>();
    is_shared::<diag_ipc::StopHandle>();
}
