//! The .NET runtimes of what is recorded: sessions to temporary files.

use crate::dotnet::target::process;
use crate::failure::{Failure, Result};
use diag_ipc::reverse::Server;
use diag_ipc::{Client, Error, Level, Provider, Stopper, TracingConfig};
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often the recorder looks whether it is over.
const TICK: Duration = Duration::from_millis(50);

/// How long the command's runtime may take to come to the port when it answers at its own socket.
const PATIENCE: Duration = Duration::from_secs(5);

/// A socket that runtimes come to and wait at, before the first line of their programs.
pub(super) struct Port {
    server: Server,
    _directory: tempfile::TempDir,
}

impl Port {
    pub(super) fn bind() -> Result<Self> {
        // Nobody else can even look into it.
        let directory = tempfile::Builder::new()
            .prefix("triscope-")
            .tempdir()
            .map_err(|e| Failure::about("a directory for the diagnostic port", e))?;
        let server = Server::bind(&directory.path().join("port")).map_err(Failure::new)?;
        Ok(Self { server, _directory: directory })
    }

    /// The variable that brings runtimes here, and its value.
    pub(super) fn variable(&self) -> (&str, &Path) {
        ("DOTNET_DiagnosticPorts", self.server.path())
    }
}

/// What was recorded of one runtime.
pub(super) struct Recording {
    pub(super) pid: u32,
    pub(super) file: File,
}

/// Records runtimes until they end, or until it is told to end.
pub(super) struct Recorder {
    over: Arc<AtomicBool>,
    thread: JoinHandle<(Vec<Session>, Option<Failure>)>,
}

impl Recorder {
    /// Records every runtime that comes to the port: the command's, and those of what it starts.
    /// .NET Core 3.1 does not come; the command itself is asked then.
    pub(super) fn of_command(port: Port, pid: u32) -> Self {
        Self::start(move |over| {
            let port = port; // the whole of it, with its directory
            let mut sessions = Vec::new();
            let mut failure = None;
            let mut own = OwnSocket::new(pid);
            while !over.load(Ordering::Acquire) {
                let came = match port.server.accept(TICK) {
                    Ok(runtime) => {
                        let pid = runtime.peer().pid.or(u32::try_from(runtime.pid()).ok());
                        Some((runtime.client(), pid.unwrap_or_default()))
                    }
                    Err(Error::Timeout { .. }) if sessions.is_empty() && failure.is_none() => {
                        own.look().map(|client| (client, pid))
                    }
                    Err(Error::Timeout { .. }) => None,
                    Err(error) => {
                        failure = Some(Failure::about("the diagnostic port", error));
                        break;
                    }
                };
                if let Some((client, pid)) = came {
                    match Session::start(&client, pid) {
                        Ok(session) => sessions.push(session),
                        Err(error) => failure = Some(error),
                    }
                    // Whatever came of it, the program goes on; 3.1 does not wait, and says so.
                    let _ = client.resume_runtime();
                }
            }
            if sessions.is_empty() && failure.is_none() {
                failure = Some(Failure::about("the command", "no .NET runtime came up"));
            }
            // Commands for runtimes that came to the port go by it.
            (Session::end(sessions), failure)
        })
    }

    /// Records the runtime of a process that runs.
    pub(super) fn of_process(pid: u32) -> Result<Self> {
        let session = Session::start(&process(pid)?.client, pid)?;
        Ok(Self::start(move |over| {
            while !over.load(Ordering::Acquire) && !session.has_ended() {
                std::thread::sleep(TICK);
            }
            (Session::end(vec![session]), None)
        }))
    }

    fn start(
        body: impl FnOnce(&AtomicBool) -> (Vec<Session>, Option<Failure>) + Send + 'static,
    ) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let thread = {
            let over = Arc::clone(&over);
            std::thread::spawn(move || body(&over))
        };
        Self { over, thread }
    }

    /// Ends what has not ended. Returns what was recorded, and what was not.
    pub(super) fn finish(self) -> (Vec<Recording>, Option<Failure>) {
        self.over.store(true, Ordering::Release);
        let failed = || (Vec::new(), Some(Failure::new("the .NET recorder failed")));
        let (sessions, mut failure) = self.thread.join().unwrap_or_else(|_| failed());
        let mut recordings = Vec::new();
        for session in sessions {
            match session.thread.join() {
                Ok(file) => recordings.push(Recording { pid: session.pid, file }),
                Err(_) => failure = Some(Failure::new("the .NET recorder failed")),
            }
        }
        (recordings, failure)
    }
}

/// The command's runtime at the socket that every runtime has.
struct OwnSocket {
    pid: u32,
    /// Since when it answers there and has not come to the port.
    answers: Option<Instant>,
    told: bool,
}

impl OwnSocket {
    const fn new(pid: u32) -> Self {
        Self { pid, answers: None, told: false }
    }

    /// The runtime, if it has to be asked there: .NET Core 3.1 comes to no port.
    ///
    /// A newer one that comes not either waits for somebody at the port, and goes on by no other
    /// way: whoever started it has to know.
    fn look(&mut self) -> Option<Client> {
        let client = Client::for_process(self.pid).ok()?;
        match client.process_info() {
            Err(error) if error.is_unknown_command() => return Some(client),
            Ok(_) if self.answers.get_or_insert_with(Instant::now).elapsed() < PATIENCE => {}
            Ok(_) if !self.told => {
                self.told = true;
                let why = "its .NET runtime waits at a port that it cannot reach: does it run as \
                           another user? Without --dotnet it does not wait";
                Failure::about(format!("process {}", self.pid), why).tell();
            }
            _ => {}
        }
        None
    }
}

/// A session that is recorded by a thread of its own.
struct Session {
    pid: u32,
    stopper: Stopper,
    thread: JoinHandle<File>,
}

impl Session {
    fn start(client: &Client, pid: u32) -> Result<Self> {
        let mut file = tempfile::tempfile().map_err(|e| Failure::about("a temporary file", e))?;
        let config = TracingConfig::new([
            Provider::new("Microsoft-DotNETCore-SampleProfiler").level(Level::Informational),
            // GC, loader, JIT, contention, exceptions, threading.
            Provider::new("Microsoft-Windows-DotNETRuntime")
                .keywords(0x1_c019)
                .level(Level::Verbose),
            // Activity ids.
            Provider::new("System.Threading.Tasks.TplEventSource").keywords(0x80),
        ]);
        let session = client.collect_tracing(&config).map_err(|error| {
            Failure::about(format!("process {pid}"), format!("its .NET runtime: {error}"))
        })?;
        let stopper = session.stopper();
        let thread = std::thread::spawn(move || {
            // Whether the stream is whole is told when it is read.
            let _ = session.record(&mut file);
            file
        });
        Ok(Self { pid, stopper, thread })
    }

    fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }

    /// Asks those that have not ended for their end, and waits for it.
    fn end(sessions: Vec<Self>) -> Vec<Self> {
        for session in sessions.iter().filter(|session| !session.has_ended()) {
            // A process that has just ended cannot be asked, and its stream ends by itself.
            let _ = session.stopper.stop();
        }
        while !sessions.iter().all(Self::has_ended) {
            std::thread::sleep(TICK);
        }
        sessions
    }
}
