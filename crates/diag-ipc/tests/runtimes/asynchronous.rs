//! The same on tokio's runtime.

use super::*;
use diag_ipc::asynchronous::Client;
use diag_ipc::{Provider, TracingConfig, TruncationReason};
use std::time::Duration;

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
        let config = || TracingConfig::new([Provider::new("Triscope-Workload")]);

        let session = client.collect_tracing(config()).await.unwrap();
        let stop_handle = session.stop_handle();
        let stop = async {
            tokio::time::sleep(Duration::from_millis(700)).await;
            tokio::task::spawn_blocking(move || stop_handle.stop()).await.unwrap().unwrap();
        };
        let mut stream = Vec::new();
        let (end, ()) = tokio::join!(session.record(&mut stream), stop);
        assert!(end.is_complete(), "{runtime:?}: {end:?}");
        assert!(matches!(end.stop, Some(Ok(()))), "{runtime:?}: {end:?}");
        assert!(holds(&stream, "héllo-😀-") && holds(&stream, "Burn"), "{runtime:?}");

        // Stopped before anything was read.
        let session = client.collect_tracing(config()).await.unwrap();
        tokio::time::sleep(Duration::from_millis(300)).await;
        let end = session.stop_into(&mut tokio::io::sink()).await;
        assert!(end.is_complete(), "{runtime:?}: {end:?}");

        let session = client.collect_tracing(config()).await.unwrap();
        let end = session.finish().await;
        assert!(matches!(end.truncation, Some(TruncationReason::Abandoned)), "{end:?}");
    }
}
