//! The .NET runtimes of what is recorded: sessions to temporary files.

use crate::failure::{Failure, Result};
use crate::io::counting::{Count, Counted};
use crate::run::port::{Port, VARIABLE, process_of};
use crate::run::procfs;
use crossbeam_channel::{Receiver, Sender, TryRecvError, bounded, select};
use diag_ipc::{Client, Error, Level, Provider, StopHandle, TracingConfig, TruncationReason};
use std::fs::File;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a runtime is waited for before the recorder looks whether it is over.
const TICK: Duration = Duration::from_millis(50);

/// How long the command's runtime may take to connect to the port when it answers at its own
/// socket.
const TIMEOUT: Duration = Duration::from_secs(5);

impl Port {
    /// The processes whose runtimes connect to this port, if they have any.
    fn processes(&self) -> impl Iterator<Item = u32> {
        let path = self.server.path();
        procfs::processes()
            .into_iter()
            .filter(move |pid| procfs::has_variable(*pid, VARIABLE, path))
    }

    /// The next runtime that connects within a moment, and its process.
    fn accept(&self) -> std::result::Result<(Client, u32), Error> {
        let runtime = self.server.accept(TICK)?;
        let pid = u32::try_from(process_of(&runtime)).unwrap_or_default();
        Ok((runtime.client(), pid))
    }

    /// Resumes runtimes that connect after the recording has ended: without the port they would
    /// stay suspended. Reports a process whose runtime may still connect later.
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

/// What was recorded of one runtime.
pub(super) struct Recording {
    pub(super) pid: u32,
    pub(super) file: File,
    /// Why it is not whole, if that is known.
    pub(super) failure: Option<Failure>,
}

/// Records runtimes until they end, or until it is finished.
pub(super) struct Recorder {
    /// Closed when the recording is over.
    running: Option<Sender<()>>,
    thread: Option<JoinHandle<(Vec<Session>, Option<Failure>)>>,
    /// Bytes of all streams.
    received: Count,
}

impl Recorder {
    /// Records every runtime that connects to the port: the command's, and those of what it
    /// starts. .NET Core 3.1 does not connect; the command itself is asked then.
    pub(super) fn of_command(port: Port, pid: u32) -> Self {
        Self::start(move |over, received| {
            let port = port; // the whole of it, with its directory
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
                    // Whatever came of it, the program has to run. 3.1 is never suspended.
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
            // Commands for runtimes that connected to the port go through it.
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
        self.running = None;
        self.thread.take()?.join().ok()
    }
}

impl Drop for Recorder {
    /// A failure elsewhere leaves no session, no suspended runtime and no port behind.
    fn drop(&mut self) {
        let _ = self.join();
    }
}

/// The command's runtime at the socket that every runtime has.
struct OwnSocket {
    pid: u32,
    /// Since when it answers there and has not connected to the port.
    answers: Option<Instant>,
    is_reported: bool,
}

impl OwnSocket {
    const fn new(pid: u32) -> Self {
        Self { pid, answers: None, is_reported: false }
    }

    /// The runtime, if it has to be asked there: .NET Core 3.1 connects to no port.
    ///
    /// Neither does one whose environment was changed, which is not suspended. A newer one that
    /// is suspended and does not connect can be resumed in no other way: that is reported.
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

/// A session that a thread records.
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
            // Whether the stream is whole is seen when it is read, but not why it was not kept.
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

    /// Asks those that have not ended for their end.
    fn ask(sessions: &[Self]) {
        for session in sessions.iter().filter(|session| !session.thread.is_finished()) {
            // A process that has just ended cannot be asked, and its stream ends by itself.
            let _ = session.stop_handle.stop();
        }
    }

    /// Asks those that have not ended for their end, and waits for it.
    fn end(sessions: Vec<Self>) -> Vec<Self> {
        Self::ask(&sessions);
        for session in &sessions {
            let _ = session.ended.recv(); // closed
        }
        sessions
    }
}
