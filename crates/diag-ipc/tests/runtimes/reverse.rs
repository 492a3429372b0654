//! Reverse connections. .NET Core 3.1 does not make them.

use super::*;
use diag_ipc::reverse::Server;
use diag_ipc::{Error, Operation, Provider, Timeouts, TracingConfig};
use std::collections::HashSet;
use std::io::Write as _;
use std::os::unix::net::UnixStream;
use std::time::Duration;

const REVERSE: [Runtime; 2] = [Runtime::Net9, Runtime::Net10];
const TIMEOUT: Duration = Duration::from_secs(30);

fn server() -> (tempfile::TempDir, Server) {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::bind(&dir.path().join("port")).unwrap();
    (dir, server)
}

#[test]
#[ignore = "needs real runtimes: cargo xtask test-runtimes"]
fn a_session_covers_startup_and_exit() {
    for runtime in REVERSE {
        let (_dir, server) = server();
        let mut target = Target::of(runtime)
            .mode("mix")
            .seconds(1)
            .env("DOTNET_DiagnosticPorts", server.path())
            .no_wait()
            .start();
        let connected = server.accept(TIMEOUT).unwrap();
        assert_eq!(connected.pid(), u64::from(target.pid()));
        assert_eq!(connected.peer().pid, Some(target.pid()));
        let client = connected.client();
        assert_eq!(client.process_info().unwrap().cookie, connected.cookie());
        assert_eq!(client.is_suspended().unwrap(), Some(true));
        client.set_environment_variable("WORKLOAD_MODE", Some("idle")).unwrap();
        assert_eq!(client.process_environment().unwrap().get("WORKLOAD_MODE"), Some("idle"));
        client.set_environment_variable("WORKLOAD_MODE", Some("mix")).unwrap();
        let config = TracingConfig::new([
            Provider::new("Triscope-Workload"),
            Provider::new("Microsoft-Windows-DotNETRuntime").keywords(0x8),
        ]);
        let session = client.collect_tracing(&config).unwrap();
        client.resume_runtime().unwrap();
        let mut stream = Vec::new();
        let end = session.record(&mut stream);
        assert!(end.is_complete(), "{runtime:?}: {end:?}");
        assert!(holds(&stream, "System.Private.CoreLib"), "the first assembly's load");
        // Of the whole run, the first events and the rundown are there.
        assert!(holds(&stream, "héllo-😀-1") && holds(&stream, "Burn"));
        assert_eq!(target.wait().code(), Some(0), "{}", target.output());
    }
}

#[test]
#[ignore = "needs real runtimes: cargo xtask test-runtimes"]
fn a_suspended_runtime_is_resumed_by_its_own_server() {
    for runtime in REVERSE {
        let (_dir, server) = server();
        let suspended =
            Target::of(runtime).env("DOTNET_DiagnosticPorts", server.path()).suspended();
        let mut target = Checked::start(suspended);
        let client = server.accept(TIMEOUT).unwrap().client();
        // It answers on its own socket as well, and success there means nothing.
        target.client().resume_runtime().unwrap();
        assert_eq!(target.client().is_suspended().unwrap(), Some(true));
        client.resume_runtime().unwrap();
        target.await_workload();
    }
}

#[test]
#[ignore = "needs real runtimes: cargo xtask test-runtimes"]
fn many_runtimes_and_many_commands() {
    let (_dir, server) = server();
    let mut port = server.path().as_os_str().to_owned();
    port.push(",nosuspend");
    let targets: Vec<_> = REVERSE
        .iter()
        .cycle()
        .take(4)
        .map(|runtime| Checked::start(Target::of(*runtime).env("DOTNET_DiagnosticPorts", &port)))
        .collect();
    let runtimes: Vec<_> = targets.iter().map(|_| server.accept(TIMEOUT).unwrap()).collect();
    let cookies: HashSet<_> = runtimes.iter().map(diag_ipc::reverse::Runtime::cookie).collect();
    assert_eq!(cookies.len(), targets.len());
    std::thread::scope(|scope| {
        // Two threads take turns on the one connection that each runtime has.
        for runtime in runtimes.iter().chain(&runtimes) {
            scope.spawn(move || {
                for _ in 0..10 {
                    assert_eq!(runtime.client().process_info().unwrap().pid, runtime.pid());
                }
            });
        }
    });
    assert!(server.stats().advertised >= 80, "{:?}", server.stats());
    // Nobody new has come.
    let error = server.accept(Duration::from_millis(50)).unwrap_err();
    assert!(matches!(error, Error::Timeout { operation: Operation::Accept, .. }), "{error}");
}

#[test]
#[ignore = "needs real runtimes: cargo xtask test-runtimes"]
fn runtimes_reconnect_to_a_new_server() {
    for runtime in REVERSE {
        let (dir, server) = server();
        let mut port = server.path().as_os_str().to_owned();
        port.push(",nosuspend");
        let target = Checked::start(Target::of(runtime).env("DOTNET_DiagnosticPorts", port));
        let first = server.accept(TIMEOUT).unwrap();
        let client = first.client();
        client.process_info().unwrap();
        drop(server);
        assert!(!dir.path().join("port").exists(), "the socket is removed");
        assert!(matches!(client.process_info(), Err(Error::Closed { .. })));
        // The runtime tries again, twice a second at least.
        let server = Server::bind(&dir.path().join("port")).unwrap();
        let second = server.accept(TIMEOUT).unwrap();
        assert_eq!(first.cookie(), second.cookie());
        second.client().process_info().unwrap();
        drop(target);
    }
}

#[test]
#[ignore = "needs real runtimes: cargo xtask test-runtimes"]
fn a_killed_runtime_is_a_timeout() {
    let (_dir, server) = server();
    let mut target =
        Target::of(Runtime::Net9).env("DOTNET_DiagnosticPorts", server.path()).no_wait().start();
    let client = server.accept(TIMEOUT).unwrap().client();
    client.process_info().unwrap();
    target.kill();
    let timeouts = Timeouts::default().connect(Duration::from_millis(300));
    let error = client.timeouts(timeouts).process_info().unwrap_err();
    assert!(matches!(error, Error::Timeout { operation: Operation::Connect, .. }), "{error}");
}

#[test]
#[ignore = "needs real runtimes: cargo xtask test-runtimes"]
fn server_survives_malformed_clients() {
    let (_dir, server) = server();
    // Some say nothing, some say nonsense, some say half of the right thing.
    let silent: Vec<_> = (0..100).map(|_| UnixStream::connect(server.path()).unwrap()).collect();
    for nonsense in
        [&b"ADVR_V1\0half"[..], &[0xff; 100], b"GET / HTTP/1.1\r\n\r\n and so on and so on"]
    {
        UnixStream::connect(server.path()).unwrap().write_all(nonsense).unwrap();
    }
    let target = Checked::start(
        Target::of(Runtime::Net9).env("DOTNET_DiagnosticPorts", server.path()).suspended(),
    );
    let runtime = server.accept(TIMEOUT).unwrap();
    assert_eq!(runtime.pid(), u64::from(target.pid()));
    runtime.client().resume_runtime().unwrap();
    let stats = server.stats();
    assert!(stats.malformed >= 3 && stats.refused + stats.timed_out > 0, "{stats:?}");
    drop(silent);
}
