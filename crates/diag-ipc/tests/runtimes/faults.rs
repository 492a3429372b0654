//! Servers that do not reply, have ended, or belong to another process.

use super::*;
use diag_ipc::discovery::{self, Process};
use diag_ipc::{Error, Operation, Timeouts};
use rustix::process::{Pid, Signal, kill_process};
use std::io::Read as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

#[test]
#[ignore = "needs real runtimes: cargo xtask test-runtimes"]
fn a_server_that_another_client_blocks() {
    for runtime in Runtime::ALL {
        let target = Checked::start(Target::of(runtime));
        // One thread serves: it waits for what this connection never says.
        let silent = UnixStream::connect(target.socket()).unwrap();
        let timeouts = Timeouts::default().reply(Duration::from_millis(300));
        let client = target.client().timeouts(timeouts);
        match client.process_info_by(ProcessInfoCommand::ProcessInfo) {
            Err(Error::Timeout { operation: Operation::Reply, after }) => {
                assert_eq!(after, timeouts.reply);
            }
            other => panic!("{runtime:?}: {other:?}"),
        }
        drop(silent);
    }
}

#[test]
#[ignore = "needs real runtimes: cargo xtask test-runtimes"]
fn the_socket_of_a_dead_process() {
    for runtime in Runtime::ALL {
        let mut target = Target::of(runtime).start();
        let socket = target.socket();
        assert!(discovery::stale_sockets(target.tmpdir()).is_empty());
        target.kill();
        match Client::new(socket.clone()).process_info() {
            Err(Error::Io { operation: Operation::Connect, source }) => {
                assert_eq!(source.kind(), std::io::ErrorKind::ConnectionRefused);
            }
            other => panic!("{runtime:?}: {other:?}"),
        }
        assert_eq!(discovery::stale_sockets(target.tmpdir()), [socket]);
        let error = Process::find(target.pid()).unwrap_err();
        assert!(matches!(error, Error::NoSocket { .. }), "{error}");
    }
}

#[test]
#[ignore = "needs real runtimes: cargo xtask test-runtimes"]
fn the_socket_of_somebody_else() {
    let target = Checked::start(Target::of(Runtime::Net9));
    let (real, kept) = (target.socket(), target.tmpdir().join("kept"));
    let process = Process::find(target.pid()).unwrap();
    std::fs::rename(&real, &kept).unwrap();

    // A trap of the right name, by another process of the same user.
    let trap = UnixListener::bind(&real).unwrap();
    for client in [process.client(), Client::for_process(target.pid()).unwrap()] {
        match client.process_info() {
            Err(Error::WrongOwner { path, pid, found }) => {
                assert_eq!((path, pid), (real.clone(), target.pid()));
                assert!(found.contains(&std::process::id().to_string()), "{found}");
            }
            other => panic!("{other:?}"),
        }
        let mut said = Vec::new();
        trap.accept().unwrap().0.read_to_end(&mut said).unwrap();
        assert!(said.is_empty(), "nothing is said to a stranger");
    }

    // By another user: not even a connection is made.
    if std::os::unix::fs::chown(&real, Some(12345), None).is_ok() {
        let error = Process::find(target.pid()).unwrap_err();
        let Error::WrongOwner { found, .. } = &error else { panic!("{error}") };
        assert!(found.contains("12345"), "{found}");
        let found = discovery::processes().unwrap();
        assert!(found.rejected.iter().any(|e| e.to_string() == error.to_string()));
    } else {
        skip("a socket of another user", &"only root can make one");
    }

    // Something that is no socket.
    std::fs::remove_file(&real).unwrap();
    std::os::unix::fs::symlink(&kept, &real).unwrap();
    let error = Process::find(target.pid()).unwrap_err();
    assert!(matches!(error, Error::WrongOwner { .. }), "{error}");

    std::fs::rename(&kept, &real).unwrap();
    assert!(process.client().process_info().is_ok());
}

/// Stops a target and returns its process, to be continued.
pub(crate) fn stop(target: &mut Checked) -> Pid {
    let pid = Pid::from_raw(i32::try_from(target.pid()).unwrap()).unwrap();
    testkit::process::stop(target.pid());
    pid
}

#[test]
#[ignore = "needs real runtimes: cargo xtask test-runtimes"]
fn a_stopped_target_is_reported() {
    let mut target = Checked::start(Target::of(Runtime::Net9));
    let pid = stop(&mut target);
    let client = target.client().timeouts(Timeouts::default().reply(Duration::from_millis(200)));
    let result = client.process_info();
    kill_process(pid, Signal::CONT).unwrap();
    match result {
        Err(Error::TargetStopped { pid, .. }) => assert_eq!(pid, target.pid()),
        other => panic!("{other:?}"),
    }
}
