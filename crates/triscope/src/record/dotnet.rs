//! The .NET runtime of the command.

use crate::failure::{Failure, Result};
use diag_ipc::{Client, Level, Provider, TracingConfig};
use std::fs::File;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A session with the command's runtime, recorded to a temporary file until the command ends.
pub(super) struct Recorder {
    thread: JoinHandle<Result<File>>,
}

/// How long a runtime may take until it listens.
const PATIENCE: Duration = Duration::from_secs(10);

impl Recorder {
    /// Waits, beside the command, until its runtime listens, and starts a session.
    pub(super) fn start(pid: u32) -> Result<Self> {
        let file = tempfile::tempfile().map_err(|e| Failure::about("a temporary file", e))?;
        Ok(Self { thread: std::thread::spawn(move || record(pid, file)) })
    }

    /// What was recorded. To be called when the command has ended.
    pub(super) fn finish(self) -> Result<File> {
        self.thread.join().unwrap_or_else(|_| Err(Failure::new("the .NET recorder failed")))
    }
}

fn record(pid: u32, mut file: File) -> Result<File> {
    let config = TracingConfig::new([
        Provider::new("Microsoft-DotNETCore-SampleProfiler").level(Level::Informational),
        // GC, loader, JIT, contention, exceptions, threading.
        Provider::new("Microsoft-Windows-DotNETRuntime").keywords(0x1_c019).level(Level::Verbose),
        // Activity ids.
        Provider::new("System.Threading.Tasks.TplEventSource").keywords(0x80),
    ]);
    let start = Instant::now();
    let session = loop {
        match Client::for_process(pid).and_then(|client| client.collect_tracing(&config)) {
            Ok(session) => break session,
            Err(error) if start.elapsed() >= PATIENCE => {
                let why = format!("no .NET runtime that can be asked: {error}");
                return Err(Failure::about(format!("process {pid}"), why));
            }
            // The socket is there a moment before it listens, and gone when the process is.
            Err(error) if start.elapsed() > Duration::from_millis(200) && !is_running(pid) => {
                let why = format!("it ended before its .NET runtime could be asked: {error}");
                return Err(Failure::about(format!("process {pid}"), why));
            }
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    // Whether the stream is whole is told when it is read.
    let _ = session.record(&mut file);
    Ok(file)
}

fn is_running(pid: u32) -> bool {
    // A child that has ended and was not waited for has no command line any more.
    std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| !line.is_empty())
}
