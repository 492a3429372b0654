//! The same on tokio's runtime.

use super::*;
use diag_ipc::asynchronous::{Client, Server};
use diag_ipc::{DumpFlags, DumpType, Provider, Rundown, TracingConfig, TruncationReason};
use std::time::Duration;
use tokio::io::AsyncReadExt as _;

#[tokio::test]
#[ignore = "needs real runtimes: cargo xtask test-runtimes"]
async fn commands_and_sessions() {
    for runtime in Runtime::ALL {
        let target = Checked::start(Target::of(runtime).mode("mix"));
        let client = Client::new(target.client());
        match client.process_info().await {
            Ok(info) => assert_eq!(info.pid, u64::from(target.pid())),
            Err(e) => assert!(runtime == Runtime::Core31 && e.is_unknown_command(), "{e}"),
        }
        // .NET Core 3.1 can deadlock in the rundown when it stops a session.
        let config = || {
            let config = TracingConfig::new([Provider::new("Triscope-Workload")]);
            if runtime == Runtime::Core31 { config.rundown(Rundown::None) } else { config }
        };

        let mut session = client.collect_tracing(config()).await.unwrap();
        let stop_handle = session.stop_handle();
        let (mut stream, mut buffer) = (Vec::new(), vec![0; 1 << 16]);
        while !holds(&stream, "héllo-😀-") {
            let n = session.read(&mut buffer).await.unwrap();
            assert!(n > 0, "{runtime:?}: the stream ended");
            stream.extend(&buffer[..n]);
        }
        let stop = tokio::task::spawn_blocking(move || stop_handle.stop());
        let end = session.record(&mut stream).await;
        stop.await.unwrap().unwrap();
        assert!(end.is_complete(), "{runtime:?}: {end:?}");
        assert!(matches!(end.stop, Some(Ok(()))), "{runtime:?}: {end:?}");
        let has_rundown = runtime == Runtime::Core31 || holds(&stream, "Burn");
        assert!(holds(&stream, "héllo-😀-") && has_rundown, "{runtime:?}");

        let session = client.collect_tracing(config()).await.unwrap();
        let mut stream = Vec::new();
        let end = session.record_for(Duration::from_millis(100), &mut stream).await;
        assert!(end.is_complete() && matches!(end.stop, Some(Ok(()))), "{runtime:?}: {end:?}");
        assert_eq!(client.peer().await.unwrap().pid, Some(target.pid()));
        assert_eq!(client.is_suspended().await.unwrap(), Some(false));

        // Stopped before anything was read.
        let session = client.collect_tracing(config()).await.unwrap();
        let end = session.stop_into(&mut tokio::io::sink()).await;
        assert!(end.is_complete(), "{runtime:?}: {end:?}");

        let session = client.collect_tracing(config()).await.unwrap();
        let end = session.finish().await;
        assert!(matches!(end.truncation, Some(TruncationReason::Abandoned)), "{end:?}");
    }
}

/// The runtime finds requests whose connections were closed, and executes them.
#[tokio::test]
#[ignore = "needs real runtimes: cargo xtask test-runtimes"]
async fn commands_that_are_dropped_do_not_harm_the_runtime() {
    use rustix::process::{Signal, kill_process};
    for runtime in Runtime::ALL {
        let mut target = Checked::start(Target::of(runtime));
        let client = Client::new(target.client());
        let pid = faults::stop(&mut target);
        for _ in 0..5 {
            // It does not answer, however long the commands wait.
            let limit = Duration::from_millis(50);
            let info = client.process_info();
            assert!(tokio::time::timeout(limit, info).await.is_err(), "{runtime:?}");
            let environment = client.process_environment();
            assert!(tokio::time::timeout(limit, environment).await.is_err(), "{runtime:?}");
            let dump = client.create_core_dump("/nowhere/core", DumpType::Full, DumpFlags::empty());
            assert!(tokio::time::timeout(limit, dump).await.is_err(), "{runtime:?}");
        }
        kill_process(pid, Signal::CONT).unwrap();
        match client.process_info().await {
            Ok(info) => assert_eq!(info.pid, u64::from(target.pid())),
            Err(e) => assert!(runtime == Runtime::Core31 && e.is_unknown_command(), "{e}"),
        }
    }
}

#[tokio::test]
#[ignore = "needs real runtimes: cargo xtask test-runtimes"]
async fn a_runtime_is_accepted_and_resumed() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::bind(&directory.path().join("port")).unwrap();
    let port = server.get_ref().path().to_owned();
    let mut target =
        Target::of(Runtime::Net9).env("DOTNET_DiagnosticPorts", &port).suspended().start();
    let (client, runtime) = server.accept(Duration::from_secs(60)).await.unwrap();
    assert_eq!(runtime.peer().pid, Some(target.pid()));
    client.resume_runtime().await.unwrap();
    target.await_workload();
    server.get_ref().shutdown();
    assert!(!port.exists());
}
