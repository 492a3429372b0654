//! A runtime that is resumed. This process plays it, so that no other test can have the thread of a runtime
//! that runs.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test that fails is to panic")]

mod common;

use common::request;
use diag_ipc::message::{Reply, Request};
use diag_ipc::{
    Client, Error, HResult, PerfMapType, ProcessInfoCommand, RejectedRequest, Timeouts,
};
use std::io::Write as _;
use std::os::unix::net::UnixListener;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// The description of this process as .NET 9.
fn description() -> Vec<u8> {
    let status = std::fs::read("/proc/self/status").unwrap();
    let pid = trace_common::innermost_pid(&status).unwrap_or_else(std::process::id);
    let mut info = [&1u32.to_le_bytes()[..], &u64::from(pid).to_le_bytes(), &[0; 16]].concat();
    for text in ["app", "Linux", "x64", "app", "9.0.1", "linux-x64"] {
        info.extend((text.len() as u32 + 1).to_le_bytes());
        info.extend(text.encode_utf16().chain([0]).flat_map(u16::to_le_bytes));
    }
    info
}

/// Answers as a runtime that is suspended. It starts its threads when the client has looked for them in vain
/// after a resume. Returns whether it had them when a perf map was enabled.
fn serve(listener: UnixListener) -> Receiver<bool> {
    let (enabled, maps) = channel();
    std::thread::spawn(move || {
        let info = description();
        let (mut looks, mut finalizer) = (None, None);
        for mut stream in listener.incoming().flatten() {
            let reply = match request(&mut stream) {
                Some(Request::ProcessInfo { command: ProcessInfoCommand::ProcessInfo3 }) => {
                    Reply::Ok(&info)
                }
                Some(Request::ResumeRuntime) => {
                    looks = Some(0);
                    Reply::Ok(&[0; 4])
                }
                Some(Request::EnablePerfMap { .. }) => {
                    enabled.send(finalizer.is_some()).unwrap();
                    Reply::Ok(&[0; 4])
                }
                Some(_) => Reply::Error { code: HResult::UnknownCommand, message: None },
                // The client has asked for the process at the other end.
                None => {
                    looks = looks.map(|looks| looks + 1);
                    if looks == Some(2) {
                        let name = std::thread::Builder::new().name(".NET Finalizer".into());
                        // It ends with the process.
                        finalizer = Some(name.spawn(std::thread::park).unwrap());
                    }
                    continue;
                }
            };
            stream.write_all(&reply.encode().unwrap()).unwrap();
        }
    });
    maps
}

#[test]
fn a_perf_map_waits_for_the_threads_of_a_runtime_that_was_resumed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let maps = serve(UnixListener::bind(&path).unwrap());
    let client = Client::new(path).timeouts(Timeouts::all(Duration::from_secs(120)));
    // Native AOT need not name its threads: only CoreCLR, which has this one, is known to be suspended.
    assert_eq!(client.is_suspended().unwrap(), None);
    let synch = std::thread::Builder::new().name(".NET SynchManag".into());
    // It ends with the process.
    let _synch = synch.spawn(std::thread::park).unwrap();
    testkit::wait::until("the name of the thread", || client.is_suspended().unwrap() == Some(true));
    let error = client.enable_perf_map(PerfMapType::PerfMap).unwrap_err();
    assert!(matches!(error, Error::Rejected(RejectedRequest::Suspended(_))), "{error}");
    assert!(maps.try_recv().is_err(), "nothing was sent");
    // A client that was made before knows of it, too.
    let other = client.clone();
    client.resume_runtime().unwrap();
    other.enable_perf_map(PerfMapType::PerfMap).unwrap();
    assert_eq!(maps.try_recv(), Ok(true));
}
