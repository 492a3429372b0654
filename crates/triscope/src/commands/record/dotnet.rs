//! The .NET runtimes of what is recorded: sessions to temporary files.

use crate::failure::{Failure, Result};
use crate::run::port::{Port, VARIABLE, process_of};
use crate::run::procfs::numbers;
use diag_ipc::{Client, Error, Level, Provider, StopHandle, TracingConfig, TruncationReason};
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

impl Port {
    /// The next runtime that comes in a moment, and its process.
    fn accept(&self) -> std::result::Result<(Client, u32), Error> {
        let runtime = self.server.accept(TICK)?;
        let pid = u32::try_from(process_of(&runtime)).unwrap_or_default();
        Ok((runtime.client(), pid))
    }

    /// Lets runtimes go that come when the recording is over, as long as they may be on their way:
    /// with nobody here they would wait for ever. Those that did not come are told.
    fn see_off(&self, mut came: Vec<u32>) -> Option<Failure> {
        let start = Instant::now();
        loop {
            let pid = sent_here(self.server.path()).find(|pid| !came.contains(pid))?;
            if start.elapsed() > PATIENCE {
                let why = format!(
                    "goes on with {VARIABLE} set: a .NET runtime that it starts from now on \
                     waits for ever"
                );
                Failure::about(format!("process {pid}"), why).tell();
                return None;
            }
            if let Ok((client, pid)) = self.accept() {
                came.push(pid);
                if let Err(error) = client.resume_runtime() {
                    return Some(still_waits(pid, &error));
                }
            }
        }
    }
}

fn still_waits(pid: u32, error: &Error) -> Failure {
    Failure::about(format!("process {pid}"), format!("its .NET runtime still waits: {error}"))
}

/// The processes whose runtimes come to this port, if they have any.
fn sent_here(port: &Path) -> impl Iterator<Item = u32> {
    let variable = [VARIABLE.as_bytes(), b"=", port.as_os_str().as_encoded_bytes()].concat();
    numbers("/proc").into_iter().filter(move |pid| {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|b| *b == 0).any(|entry| entry == variable)
    })
}

/// What was recorded of one runtime.
pub(super) struct Recording {
    pub(super) pid: u32,
    pub(super) file: File,
    /// Why it is not whole, if that is known.
    pub(super) failure: Option<Failure>,
}

/// Records runtimes until they end, or until it is told to end.
pub(super) struct Recorder {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<(Vec<Session>, Option<Failure>)>>,
}

impl Recorder {
    /// Records every runtime that comes to the port: the command's, and those of what it starts.
    /// .NET Core 3.1 does not come; the command itself is asked then.
    pub(super) fn of_command(port: Port, pid: u32) -> Self {
        Self::start(move |over| {
            let port = port; // the whole of it, with its directory
            let mut sessions: Vec<Session> = Vec::new();
            let mut came = Vec::new();
            let mut failure = None;
            let mut own = OwnSocket::new(pid);
            while !over.load(Ordering::Acquire) {
                let next = match port.accept() {
                    Ok(next) => Some(next),
                    Err(Error::Timeout { .. }) if sessions.is_empty() && failure.is_none() => {
                        own.look().map(|client| (client, pid))
                    }
                    Err(Error::Timeout { .. }) => None,
                    Err(error) => {
                        failure = Some(Failure::about("the diagnostic port", error));
                        break;
                    }
                };
                if let Some((client, pid)) = next {
                    came.push(pid);
                    match Session::start(&client, pid) {
                        Ok(session) => sessions.push(session),
                        Err(error) => failure = Some(error),
                    }
                    // Whatever came of it, the program is to go on. 3.1 knows no waiting.
                    match client.resume_runtime() {
                        Err(error) if !error.is_unknown_command() => {
                            let error = still_waits(pid, &error);
                            error.tell();
                            failure = Some(error);
                        }
                        _ => {}
                    }
                }
            }
            Session::ask(&sessions);
            failure = failure.or(port.see_off(came));
            if sessions.is_empty() && failure.is_none() {
                failure = Some(Failure::about("the command", "no .NET runtime came up"));
            }
            // Commands for runtimes that came to the port go by it.
            (Session::end(sessions), failure)
        })
    }

    /// Records the runtime of a process that runs.
    pub(super) fn of_process(pid: u32) -> Result<Self> {
        let session = Session::start(&Client::for_process(pid).map_err(Failure::new)?, pid)?;
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
        Self { over, thread: Some(thread) }
    }

    /// Ends what has not ended. Returns what was recorded, and what was not.
    pub(super) fn finish(mut self) -> (Vec<Recording>, Option<Failure>) {
        let failed = || (Vec::new(), Some(Failure::new("the .NET recorder failed")));
        let (sessions, mut failure) = self.join().unwrap_or_else(failed);
        let mut recordings = Vec::new();
        for session in sessions {
            match session.thread.join() {
                Ok((file, failure)) => {
                    recordings.push(Recording { pid: session.pid, file, failure });
                }
                Err(_) => failure = Some(Failure::new("the .NET recorder failed")),
            }
        }
        (recordings, failure)
    }

    fn join(&mut self) -> Option<(Vec<Session>, Option<Failure>)> {
        self.over.store(true, Ordering::Release);
        self.thread.take()?.join().ok()
    }
}

impl Drop for Recorder {
    /// A failure elsewhere leaves no session, no waiting runtime and no port behind.
    fn drop(&mut self) {
        let _ = self.join();
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
    /// So does one whose environment was changed, which does not wait. A newer one that waits and
    /// does not come goes on by no other way: whoever started it has to know.
    fn look(&mut self) -> Option<Client> {
        let client = Client::for_process(self.pid).ok()?;
        match client.process_info() {
            Err(error) if error.is_unknown_command() => return Some(client),
            Ok(_) if self.answers.get_or_insert_with(Instant::now).elapsed() < PATIENCE => {}
            Ok(_) if matches!(client.is_suspended(), Ok(Some(false))) => return Some(client),
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
    stop_handle: StopHandle,
    thread: JoinHandle<(File, Option<Failure>)>,
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
        let stop_handle = session.stop_handle();
        let thread = std::thread::spawn(move || {
            // Whether the stream is whole is told when it is read, but not why it was not kept.
            let failure = match session.record(&mut file).truncation {
                Some(TruncationReason::Output(error)) => {
                    Some(Failure::about("a temporary file", error))
                }
                _ => None,
            };
            (file, failure)
        });
        Ok(Self { pid, stop_handle, thread })
    }

    fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }

    /// Asks those that have not ended for their end.
    fn ask(sessions: &[Self]) {
        for session in sessions.iter().filter(|session| !session.has_ended()) {
            // A process that has just ended cannot be asked, and its stream ends by itself.
            let _ = session.stop_handle.stop();
        }
    }

    /// Asks those that have not ended for their end, and waits for it.
    fn end(sessions: Vec<Self>) -> Vec<Self> {
        Self::ask(&sessions);
        while !sessions.iter().all(Self::has_ended) {
            std::thread::sleep(TICK);
        }
        sessions
    }
}
