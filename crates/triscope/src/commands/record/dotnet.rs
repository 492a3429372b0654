//! The .NET runtimes of the recorded processes: sessions to temporary files.

use crate::failure::{Failure, Result};
use crate::io::counting::{Count, Counted};
use crate::run::port::{Port, VARIABLE, process_of};
use crate::run::procfs;
use crossbeam_channel::{Receiver, Sender, TryRecvError, bounded, select};
use diag_ipc::{Client, Error, Level, Provider, StopHandle, TracingConfig, TruncationReason};
use std::fs::File;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Poll interval while the recorder waits for a runtime.
const TICK: Duration = Duration::from_millis(50);

/// Time limit for the command's runtime to connect to the port after it replies at its own socket.
const TIMEOUT: Duration = Duration::from_secs(5);

impl Port {
    /// The processes whose runtimes connect to this port, if any.
    fn processes(&self) -> impl Iterator<Item = u32> {
        let path = self.server.path();
        procfs::processes()
            .into_iter()
            .filter(move |pid| procfs::has_variable(*pid, VARIABLE, path))
    }

    /// The next runtime that connects within a tick, and its process.
    fn accept(&self) -> std::result::Result<(Client, u32), Error> {
        let runtime = self.server.accept(TICK)?;
        let pid = u32::try_from(process_of(&runtime)).unwrap_or_default();
        Ok((runtime.client(), pid))
    }

    /// Resumes runtimes that connect after the recording has ended: without the port they would
    /// stay suspended. Reports a process whose runtime can still connect later.
    fn resume_late_runtimes(&self, mut came: Vec<u32>) -> Option<Failure> {
        let start = Instant::now();
        loop {
            let pid = self.processes().find(|pid| !came.contains(pid))?;
            if start.elapsed() > TIMEOUT {
                let why = format!(
                    "still runs with {VARIABLE} set: a .NET runtime that it starts from now on \
                     stays suspended"
                );
                Failure::about(format!("process {pid}"), why).print();
                return None;
            }
            if let Ok((client, pid)) = self.accept() {
                came.push(pid);
                if let Err(error) = client.resume_runtime() {
                    return Some(still_suspended(pid, &error));
                }
            }
        }
    }
}

fn still_suspended(pid: u32, error: &Error) -> Failure {
    Failure::about(
        format!("process {pid}"),
        format!("its .NET runtime is still suspended: {error}"),
    )
}

/// The recording of one runtime.
pub(super) struct Recording {
    pub(super) pid: u32,
    pub(super) file: File,
    /// Why it is truncated, if known.
    pub(super) failure: Option<Failure>,
}

/// Records runtimes until they end or the recorder is finished.
pub(super) struct Recorder {
    /// Closed when the recording ends.
    running: Option<Sender<()>>,
    thread: Option<JoinHandle<(Vec<Session>, Option<Failure>)>>,
    /// Bytes of all streams.
    received: Count,
}

impl Recorder {
    /// Records every runtime that connects to the port: that of the command and those of its
    /// children. .NET Core 3.1 does not connect, so the command's own socket is used.
    pub(super) fn of_command(port: Port, pid: u32) -> Self {
        Self::start(move |over, received| {
            let port = port; // moves the whole port, including its directory, into the closure
            let mut sessions: Vec<Session> = Vec::new();
            let mut came = Vec::new();
            let mut failure = None;
            let mut own = OwnSocket::new(pid);
            while over.try_recv() == Err(TryRecvError::Empty) {
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
                    match Session::start(&client, pid, received) {
                        Ok(session) => sessions.push(session),
                        Err(error) => failure = Some(error),
                    }
                    // The program must run in any case. 3.1 is never suspended.
                    match client.resume_runtime() {
                        Err(error) if !error.is_unknown_command() => {
                            let error = still_suspended(pid, &error);
                            error.print();
                            failure = Some(error);
                        }
                        _ => {}
                    }
                }
            }
            Session::ask(&sessions);
            failure = failure.or(port.resume_late_runtimes(came));
            if sessions.is_empty() && failure.is_none() {
                failure = Some(Failure::about("the command", "no .NET runtime was started"));
            }
            // Commands for runtimes that connected to the port need the port.
            (Session::end(sessions), failure)
        })
    }

    /// Records the runtime of a running process.
    pub(super) fn of_process(pid: u32) -> Result<Self> {
        let client = Client::for_process(pid).map_err(Failure::new)?;
        let received = Count::default();
        let session = Session::start(&client, pid, &received)?;
        let mut recorder = Self::start(move |over, _| {
            select! {
                recv(over) -> _ => {}
                recv(session.ended) -> _ => {}
            }
            (Session::end(vec![session]), None)
        });
        recorder.received = received;
        Ok(recorder)
    }

    fn start(
        body: impl FnOnce(&Receiver<()>, &Count) -> (Vec<Session>, Option<Failure>) + Send + 'static,
    ) -> Self {
        let (running, over) = bounded(0);
        let received = Count::default();
        let thread = {
            let received = received.clone();
            std::thread::spawn(move || body(&over, &received))
        };
        Self { running: Some(running), thread: Some(thread), received }
    }

    /// Bytes of all streams so far.
    pub(super) fn received(&self) -> u64 {
        self.received.get()
    }

    /// Stops all running sessions. Returns the recordings, and a failure, if any.
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
        self.running = None;
        self.thread.take()?.join().ok()
    }
}

impl Drop for Recorder {
    /// A failure elsewhere must not leave a session, a suspended runtime or a port behind.
    fn drop(&mut self) {
        let _ = self.join();
    }
}

/// The command's runtime at its default socket.
struct OwnSocket {
    pid: u32,
    /// Time since which it replies there and has not connected to the port.
    answers: Option<Instant>,
    is_reported: bool,
}

impl OwnSocket {
    const fn new(pid: u32) -> Self {
        Self { pid, answers: None, is_reported: false }
    }

    /// The runtime, if only its default socket can be used: .NET Core 3.1 connects to no port.
    ///
    /// A runtime whose environment was changed does not connect either, and is not suspended. A
    /// newer runtime that is suspended and does not connect cannot be resumed otherwise: that is
    /// reported.
    fn look(&mut self) -> Option<Client> {
        let client = Client::for_process(self.pid).ok()?;
        match client.process_info() {
            Err(error) if error.is_unknown_command() => return Some(client),
            Ok(_) if self.answers.get_or_insert_with(Instant::now).elapsed() < TIMEOUT => {}
            Ok(_) if matches!(client.is_suspended(), Ok(Some(false))) => return Some(client),
            Ok(_) if !self.is_reported => {
                self.is_reported = true;
                let why = "its .NET runtime is suspended and cannot reach the diagnostic port: \
                           does it run as another user? Without --dotnet it is not suspended";
                Failure::about(format!("process {}", self.pid), why).print();
            }
            _ => {}
        }
        None
    }
}

/// A session recorded by a thread.
struct Session {
    pid: u32,
    stop_handle: StopHandle,
    /// Closed when the stream has ended.
    ended: Receiver<()>,
    thread: JoinHandle<(File, Option<Failure>)>,
}

impl Session {
    fn start(client: &Client, pid: u32, received: &Count) -> Result<Self> {
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
        let received = received.clone();
        let (running, ended) = bounded(0);
        let thread = std::thread::spawn(move || {
            let _running = running;
            // The reader detects a truncated stream, but not why the file is incomplete.
            let failure = match session.record(&mut Counted::new(&mut file, received)).truncation {
                Some(TruncationReason::Output(error)) => {
                    Some(Failure::about("a temporary file", error))
                }
                _ => None,
            };
            (file, failure)
        });
        Ok(Self { pid, stop_handle, ended, thread })
    }

    /// Requests the end of all running sessions.
    fn ask(sessions: &[Self]) {
        for session in sessions.iter().filter(|session| !session.thread.is_finished()) {
            // A process that has just ended cannot receive the request; its stream ends by itself.
            let _ = session.stop_handle.stop();
        }
    }

    /// Requests the end of all running sessions, and waits for it.
    fn end(sessions: Vec<Self>) -> Vec<Self> {
        Self::ask(&sessions);
        for session in &sessions {
            let _ = session.ended.recv(); // closed
        }
        sessions
    }
}
