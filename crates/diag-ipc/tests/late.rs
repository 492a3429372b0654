//! A runtime that starts a session after its client has got an error.
#![cfg(unix)]
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used, reason = "these are tests")]

mod common;

use common::request;
use diag_ipc::message::{Reply, Request};
use diag_ipc::{
    Client, Error, Operation, Provider, Timeouts, TracingConfig, wait_for_late_sessions,
};
use std::io::Write as _;
use std::os::unix::net::UnixListener;
use std::sync::mpsc::channel;
use std::time::Duration;

#[test]
fn a_session_that_begins_too_late_is_stopped() {
    const ID: u64 = 7;
    let long = Duration::from_secs(120);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    let (timed_out, has_timed_out) = channel::<()>();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        assert!(matches!(request(&mut stream), Some(Request::CollectTracing { .. })));
        has_timed_out.recv().unwrap();
        let reply = Reply::Ok(&ID.to_le_bytes()).encode().unwrap();
        stream.write_all(&reply).expect("the stream of the session is open");
        let (mut stop, _) = listener.accept().unwrap();
        assert!(matches!(request(&mut stop), Some(Request::StopTracing { session: ID })));
        // More than the buffer of a socket: it is read to its end.
        stream.write_all(&vec![0; 8 << 20]).expect("the rest of the stream is read");
        drop(stream);
        let _ = stop.write_all(&reply); // its time limit may be over
    });
    let timeouts = Timeouts::all(long).reply(Duration::from_millis(200));
    let client = Client::new(path).timeouts(timeouts);
    match client.collect_tracing(&TracingConfig::new([Provider::new("A")])) {
        Err(Error::Timeout { operation: Operation::Reply, .. }) => {}
        other => panic!("{other:?}"),
    }
    assert!(!wait_for_late_sessions(Duration::ZERO), "its reply is still waited for");
    timed_out.send(()).unwrap();
    server.join().unwrap();
    assert!(wait_for_late_sessions(long));
}
