//! The .NET runtimes of monitored processes: sessions to files without a name.
//!
//! A socket may hang: each request has a thread of its own, and delays no other runtime.

use crate::failure::{Failure, Result};
use crate::io::counting::{Count, Counted};
use crate::run::candidate::{Answer, Candidate, Found};
use crate::run::family::Turns;
use crate::run::port::{Port, Startup, VARIABLE, process_of};
use crate::run::procfs::{self, NamespaceIds};
use crate::run::threads;
use crate::timeline::counted;
use crossbeam_channel::{
    Receiver, RecvTimeoutError, Sender, TrySendError, bounded, select, tick, unbounded,
};
use diag_ipc::discovery::Search;
use diag_ipc::reverse::Runtime;
use diag_ipc::{Client, Error, Guid, Level, Provider, StopHandle, TracingConfig, TruncationReason};
use rustix::process::geteuid;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Poll interval while the recorder waits for a runtime.
const TICK: Duration = Duration::from_millis(50);

/// Interval between looks for new threads of a runtime.
const LOOK: Duration = Duration::from_secs(1);

/// Time limit at the end for sessions that were requested, and for runtimes to be resumed.
const END: Duration = Duration::from_secs(5);

/// What is said of a runtime whose socket hangs.
pub(crate) const NO_REPLY: &str = "its runtime has not replied";

/// Age at which a process without a runtime is looked at less often.
const YOUNG: Duration = Duration::from_secs(2);

/// Older processes that are looked at again at each look.
const AGAIN: usize = 16;

/// Sessions of a recording: each has a file and two threads.
const MAX_SESSIONS: usize = 64;

/// Processes whose sockets are connected to at once, to find that of its runtime: each has a thread.
const MAX_SEARCHES: usize = 64;

/// Failures that are named at the end.
const MAX_NAMED: usize = 16;

/// The recording of one runtime.
pub(crate) struct Recording {
    pub(crate) pid: u32,
    /// The name of the program.
    pub(crate) name: String,
    pub(crate) file: File,
    /// Why it is truncated, if known.
    pub(crate) failure: Option<Failure>,
    /// The ids of its threads in its PID namespace and in this one, if it has another.
    pub(crate) threads: BTreeMap<u32, u32>,
}

/// Records runtimes until they end or the recorder is finished.
pub(crate) struct Recorder {
    /// Closed when the recording ends.
    running: Option<Sender<()>>,
    /// The processes to look at.
    looks: Sender<BTreeSet<u32>>,
    thread: Option<JoinHandle<Ended>>,
    /// Why there is no thread.
    failure: Option<Failure>,
    /// Bytes of all streams.
    received: Count,
}

/// What the thread of a recorder returns: the sessions have ended.
type Ended = (Vec<FileSession>, Vec<Failure>);

/// A session to a temporary file.
type FileSession = Session<Counted<File>>;

impl Recorder {
    /// Records every runtime that connects to the port, and every runtime of the processes that
    /// [`look`](Self::look) gets: .NET Core 3.1 connects to no port, and a process can have another
    /// environment, root directory or user. Streams are on the file system of temporary files.
    pub(crate) fn of_family(port: Option<Port>, config: TracingConfig) -> Self {
        Self::of_family_in(std::env::temp_dir(), port, config)
    }

    /// As [`of_family`](Self::of_family). Streams are on the file system of this directory.
    pub(crate) fn of_family_in(dir: PathBuf, port: Option<Port>, config: TracingConfig) -> Self {
        Self::start(move |over, looks, received| {
            let mut runtimes = Runtimes::new(port, Streams { dir, config, received });
            runtimes.watch(over, looks);
            runtimes.end(END)
        })
    }

    /// Records the runtime of a running process. The stream is on the file system of this directory.
    pub(crate) fn of_process(dir: PathBuf, pid: u32, config: TracingConfig) -> Result<Self> {
        let client = Client::for_process(pid).map_err(Failure::new)?;
        let received = Count::default();
        let session = Streams { dir, config, received: &received }.start(&client, pid)?;
        let mut recorder = Self::start(move |over, _, _| {
            let look = tick(LOOK);
            loop {
                select! {
                    recv(over) -> _ => break,
                    recv(session.ended) -> _ => break,
                    recv(look) -> _ => session.look(),
                }
            }
            (Session::end(vec![session]), Vec::new())
        });
        recorder.received = received;
        Ok(recorder)
    }

    fn start(
        body: impl FnOnce(&Receiver<()>, &Receiver<BTreeSet<u32>>, &Count) -> Ended + Send + 'static,
    ) -> Self {
        let (running, over) = bounded(0);
        let (looks, processes) = bounded(1);
        let received = Count::default();
        let started = {
            let received = received.clone();
            threads::start(move || body(&over, &processes, &received))
        };
        let (thread, failure) = match started {
            Ok(thread) => (Some(thread), None),
            Err(error) => (None, Some(Failure::about("the .NET recorder", error))),
        };
        Self { running: Some(running), looks, thread, failure, received }
    }

    /// Looks for runtimes of these processes.
    pub(crate) fn look(&self, processes: &BTreeSet<u32>) {
        match self.looks.try_send(processes.clone()) {
            // It is busy, and gets the processes of a later look.
            Err(TrySendError::Full(_)) | Ok(()) => {}
            // It records one process.
            Err(TrySendError::Disconnected(_)) => {}
        }
    }

    /// Bytes of all streams so far.
    pub(crate) fn received(&self) -> u64 {
        self.received.get()
    }

    /// Stops all running sessions. Returns the recordings, and failures.
    pub(crate) fn finish(mut self) -> (Vec<Recording>, Vec<Failure>) {
        let failure = self.failure.take();
        let failed = || Failure::new("the .NET recorder failed");
        let failed_first = || failure.unwrap_or_else(failed);
        let (sessions, mut failures) =
            self.join().unwrap_or_else(|| (Vec::new(), vec![failed_first()]));
        let mut recordings = Vec::new();
        for session in sessions {
            let (pid, name) = (session.pid, session.name.clone());
            let threads =
                session.threads.take().map_or_else(BTreeMap::new, |threads| threads.into_ids());
            match session.finish() {
                Some((file, failure)) => {
                    let file = file.into_inner();
                    recordings.push(Recording { pid, name, file, failure, threads });
                }
                None => failures.push(failed()),
            }
        }
        (recordings, failures)
    }

    fn join(&mut self) -> Option<Ended> {
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

/// The runtimes of a family of processes.
struct Runtimes<'a> {
    port: Option<Port>,
    streams: Streams<'a>,
    sessions: Vec<FileSession>,
    /// The processes of requests to begin.
    beginning: Vec<u32>,
    /// Searches whose reply has not come.
    searching: usize,
    replies: (Sender<Reply>, Receiver<Reply>),
    /// Whether sessions that begin are to end.
    is_ending: bool,
    failures: Vec<Failure>,
    /// Failures without a name.
    unnamed: u64,
    /// Runtimes above the limit.
    unrecorded: u64,
    /// Processes that this one may not look into, such as those of other users: with a runtime or without.
    unreadable: BTreeSet<u32>,
    /// Processes whose runtimes were recorded or failed.
    known: BTreeMap<u32, Known>,
    /// The other processes.
    candidates: BTreeMap<u32, Candidate>,
    turns: Turns,
}

/// A process whose runtime was recorded or failed.
struct Known {
    started: Option<u64>,
    /// That of its last runtime: a program can execute another one.
    cookie: Option<Guid>,
}

impl Known {
    fn read(pid: u32, cookie: Option<Guid>) -> Self {
        Self { started: procfs::start_time(pid), cookie }
    }

    /// Whether the process still exists.
    fn exists(&self, pid: u32) -> bool {
        self.started.is_some() && procfs::start_time(pid) == self.started
    }
}

/// The reply to a request to a runtime.
enum Reply {
    /// It was resumed if that was requested. Without a request for a session, there is none.
    Begun { pid: u32, session: Option<Result<FileSession>>, resumed: Result },
    /// The runtime of a candidate at its own socket, if it has one.
    Found(u32, Option<Client>),
    /// A candidate at its own socket.
    Answer(u32, Answer),
}

impl<'a> Runtimes<'a> {
    fn new(port: Option<Port>, streams: Streams<'a>) -> Self {
        Self {
            port,
            streams,
            sessions: Vec::new(),
            beginning: Vec::new(),
            searching: 0,
            replies: unbounded(),
            is_ending: false,
            failures: Vec::new(),
            unnamed: 0,
            unrecorded: 0,
            unreadable: BTreeSet::new(),
            known: BTreeMap::new(),
            candidates: BTreeMap::new(),
            turns: Turns::default(),
        }
    }

    fn watch(&mut self, over: &Receiver<()>, looks: &Receiver<BTreeSet<u32>>) {
        loop {
            if self.port.is_some() {
                self.accept();
                self.settle_all();
                match over.try_recv() {
                    Err(crossbeam_channel::TryRecvError::Empty) => {}
                    _ => return,
                }
                if let Ok(processes) = looks.try_recv() {
                    self.look(&processes);
                }
            } else {
                select! {
                    recv(over) -> _ => return,
                    recv(looks) -> processes => match processes {
                        Ok(processes) => self.look(&processes),
                        Err(_) => return,
                    },
                    recv(self.replies.1) -> reply => reply.into_iter().for_each(|r| self.settle(r)),
                }
            }
        }
    }

    /// Records a runtime that connects to the port within a tick. At the end, it is only resumed.
    fn accept(&mut self) {
        let Some(port) = &self.port else { return };
        let runtime = match port.server.accept(TICK) {
            Ok(runtime) => runtime,
            Err(Error::Timeout { .. }) => return,
            Err(error) => {
                if !self.is_ending {
                    self.fail(Failure::about("the diagnostic port", error));
                }
                self.port = None;
                return;
            }
        };
        let is_suspended = self.is_ending || port.startup() == Startup::Suspended;
        let pid = u32::try_from(process_of(&runtime)).unwrap_or_default();
        let cookie = Some(runtime.cookie());
        // It can connect after it was recorded by its own socket.
        let is_recorded = self.known.get(&pid).is_some_and(|known| known.cookie == cookie);
        let client = (!self.is_ending && !is_recorded).then(|| runtime.client());
        self.begin(client, pid, cookie, is_suspended.then_some(runtime));
    }

    /// Looks for runtimes that have not connected to the port.
    fn look(&mut self, processes: &BTreeSet<u32>) {
        self.sessions.iter().for_each(Session::look);
        // A runtime can connect to the port before its process is in a list.
        self.known.retain(|pid, known| known.exists(*pid));
        self.candidates.retain(|pid, _| processes.contains(pid) && !self.known.contains_key(pid));
        let now = Instant::now();
        let again = self.turns.next(&self.candidates, AGAIN);
        for pid in processes.iter().filter(|pid| !self.known.contains_key(pid)) {
            self.candidates.entry(*pid).or_insert_with(|| Candidate::new(now));
        }
        let is_young = |candidate: &Candidate| {
            candidate.replies() || now.duration_since(candidate.since) < YOUNG
        };
        let young = self.candidates.iter().filter(|(_, c)| is_young(c)).map(|(pid, _)| *pid);
        let pids: BTreeSet<u32> = young.chain(again).collect();
        let mut search = Search::new(Duration::ZERO);
        for pid in pids {
            let Some(candidate) = self.candidates.get_mut(&pid) else { continue };
            let found = candidate.find(pid, &mut search);
            match candidate.is_unreadable {
                true => self.unreadable.insert(pid),
                false => self.unreadable.remove(&pid),
            };
            match found {
                Found::Runtime(client) => self.found(pid, client),
                Found::Perhaps if !candidate.is_asked && self.searching < MAX_SEARCHES => {
                    candidate.is_asked = true;
                    self.searching += 1;
                    self.ask(move || Reply::Found(pid, Client::for_process(pid).ok()));
                }
                Found::Perhaps | Found::None => {}
            }
        }
    }

    /// The runtime of a candidate was found at its own socket.
    fn found(&mut self, pid: u32, client: Client) {
        let port = self.port.as_ref();
        let port = port.filter(|port| procfs::has_port(pid, VARIABLE, port.server.path()));
        let Some(startup) = port.map(Port::startup) else {
            return self.record(client, pid, None);
        };
        let candidate = self.candidates.get_mut(&pid);
        let Some(candidate) = candidate.filter(|candidate| !candidate.is_asked) else { return };
        candidate.is_asked = true;
        let is_late = candidate.is_late(startup);
        self.ask(move || Reply::Answer(pid, Answer::of(client, startup, is_late)));
    }

    /// Records a runtime by its own socket.
    fn record(&mut self, client: Client, pid: u32, cookie: Option<Guid>) {
        self.candidates.remove(&pid);
        self.begin(Some(client), pid, cookie, None);
    }

    /// Requests a session, and resumes the runtime then: the program must run in any case.
    fn begin(
        &mut self,
        client: Option<Client>,
        pid: u32,
        cookie: Option<Guid>,
        suspended: Option<Runtime>,
    ) {
        let mut client = client;
        if client.is_some() {
            self.known.insert(pid, Known::read(pid, cookie));
            if self.sessions.len() + self.beginning.len() >= MAX_SESSIONS {
                self.unrecorded += 1;
                client = None;
            }
        }
        if client.is_none() && suspended.is_none() {
            return;
        }
        let (dir, config) = (self.streams.dir.clone(), self.streams.config.clone());
        let received = self.streams.received.clone();
        self.beginning.push(pid);
        self.ask(move || Reply::Begun {
            pid,
            session: client
                .map(|client| Streams { dir, config, received: &received }.start(&client, pid)),
            resumed: suspended.map_or(Ok(()), |runtime| resume(&runtime)),
        });
    }

    /// Sends a request on a thread. If there is none, others wait for the reply: a suspended runtime must be resumed.
    fn ask(&self, request: impl FnOnce() -> Reply + Send + 'static) {
        let to = self.replies.0.clone();
        threads::start_or_run(move || {
            let _ = to.send(request()); // nothing may want it any more
        });
    }

    /// Takes the replies that there are.
    fn settle_all(&mut self) {
        while let Ok(reply) = self.replies.1.try_recv() {
            self.settle(reply);
        }
    }

    fn settle(&mut self, reply: Reply) {
        match reply {
            Reply::Begun { pid, session, resumed } => {
                // A process can have several.
                let at = self.beginning.iter().position(|beginning| *beginning == pid);
                at.map(|at| self.beginning.swap_remove(at));
                match session {
                    Some(Ok(session)) => {
                        if self.is_ending {
                            session.stop();
                        }
                        self.sessions.push(session);
                    }
                    Some(Err(failure)) => self.fail(failure),
                    None => {}
                }
                if let Err(failure) = resumed {
                    if !self.is_ending {
                        failure.print(); // someone may wait for the program
                    }
                    self.fail(failure);
                }
            }
            Reply::Found(pid, client) => {
                if self.is_ending && client.is_some() {
                    return; // it is not recorded any more
                }
                self.searching -= 1;
                // It may have connected meanwhile.
                let candidate =
                    self.candidates.get_mut(&pid).filter(|_| !self.known.contains_key(&pid));
                let Some(candidate) = candidate else { return };
                candidate.is_asked = false;
                if let Some(client) = client {
                    self.found(pid, client);
                }
            }
            Reply::Answer(pid, answer) => {
                let startup = self.port.as_ref().map(Port::startup);
                // It may have connected meanwhile.
                let candidate =
                    self.candidates.get_mut(&pid).filter(|_| !self.known.contains_key(&pid));
                let runs = candidate.and_then(|candidate| candidate.take(pid, answer, startup));
                if let Some((client, cookie)) = runs.filter(|_| !self.is_ending) {
                    self.record(client, pid, cookie);
                }
            }
        }
    }

    fn fail(&mut self, failure: Failure) {
        if self.failures.len() < MAX_NAMED {
            self.failures.push(failure);
        } else {
            self.unnamed += 1;
        }
    }

    /// Ends all sessions. Those that were requested have this time to begin, and as long as others take to
    /// end. What begins later ends by itself.
    fn end(mut self, limit: Duration) -> Ended {
        self.is_ending = true;
        Session::ask(&self.sessions);
        let until = Instant::now() + limit;
        loop {
            let is_open = !self.beginning.is_empty();
            let is_waiting = is_open && Instant::now() < until;
            let has_sessions = !self.sessions.iter().all(Session::has_ended);
            // Runtimes that connect from now on are not recorded. After this the rescue process of the
            // port resumes them.
            if self.port.is_some() && (is_waiting || has_sessions) {
                self.accept();
                self.settle_all();
            } else if is_waiting || (is_open && has_sessions) {
                let reply = self.replies.1.recv_timeout(TICK);
                reply.into_iter().for_each(|reply| self.settle(reply));
            } else {
                break;
            }
        }
        for pid in std::mem::take(&mut self.beginning) {
            self.fail(Failure::about(format!("process {pid}"), NO_REPLY));
        }
        let sessions = Session::end(self.sessions);
        let has_none = |reply: &Reply| matches!(reply, Reply::Found(_, None));
        let searching = self.searching - self.replies.1.try_iter().filter(has_none).count();
        if searching > 0 {
            let processes = counted(searching as u64, "process");
            let what = "may have a .NET runtime: the sockets had not answered";
            self.failures.push(Failure::new(format_args!("{processes} {what}")));
        }
        if self.unnamed > 0 {
            let what = format!("{} more failures of .NET runtimes", self.unnamed);
            self.failures.push(Failure::new(what));
        }
        if !self.unreadable.is_empty() {
            let processes = counted(self.unreadable.len() as u64, "process");
            // Root of a container may not read all processes, either.
            let fix = if geteuid().is_root() { "" } else { ": run as root" };
            let what = "cannot be read or asked for .NET runtimes";
            self.failures.push(Failure::new(format_args!("{processes} {what}{fix}")));
        }
        if self.unrecorded > 0 {
            let count = self.unrecorded;
            let what =
                format!("{count} .NET runtimes were left out: {MAX_SESSIONS} are recorded at most");
            self.failures.push(Failure::new(what));
        }
        (sessions, self.failures)
    }
}

/// The events that a timeline shows and that critical paths need, and those of `others`. A provider that
/// is in both has the keywords of both.
pub(crate) fn timeline(others: &[Provider]) -> TracingConfig {
    let mut providers = vec![
        Provider::new("Microsoft-DotNETCore-SampleProfiler").level(Level::Informational),
        runtime().level(Level::Verbose),
        activity_ids(),
        // Work items of the thread pool.
        Provider::new("System.Diagnostics.Eventing.FrameworkEventSource").keywords(0x2),
        // Requests.
        Provider::new("Microsoft.AspNetCore.Hosting").level(Level::Informational),
        Provider::new("System.Net.Http").level(Level::Informational),
    ];
    for other in others {
        let is_same = |known: &&mut Provider| known.name.eq_ignore_ascii_case(&other.name);
        match providers.iter_mut().find(is_same) {
            Some(known) => join(known, other),
            None => providers.push(other.clone()),
        }
    }
    TracingConfig::new(providers)
}

/// The providers of lists that are separated by commas: `NAME[:KEYWORDS[:LEVEL[:ARGUMENTS]]]`.
pub(crate) fn providers(lists: &[String]) -> Result<Vec<Provider>> {
    let texts = lists.iter().flat_map(|list| split(list));
    let usage = |error| Failure::new(error).with_code(2);
    let all: Result<Vec<Provider>> =
        texts.map(|text| text.parse::<Provider>().map_err(usage)).collect();
    merged(&all?)
}

/// Makes one provider of those with the same name: a runtime uses the first one only.
pub(crate) fn merged(providers: &[Provider]) -> Result<Vec<Provider>> {
    let mut all: Vec<Provider> = Vec::new();
    for provider in providers {
        let same = all.iter_mut().find(|known| known.name.eq_ignore_ascii_case(&provider.name));
        let Some(known) = same else {
            all.push(provider.clone());
            continue;
        };
        let arguments = [&known.arguments, &provider.arguments];
        if arguments[0] != arguments[1] && arguments.iter().all(|text| !text.is_empty()) {
            let what = format!("the provider {} has arguments twice", known.name);
            return Err(Failure::new(what).with_code(2));
        }
        join(known, provider);
    }
    Ok(all)
}

/// Adds the keywords, the level and the arguments of a provider to those of another one.
fn join(known: &mut Provider, other: &Provider) {
    known.keywords |= other.keywords;
    known.level = known.level.max(other.level);
    if !other.arguments.is_empty() {
        known.arguments.clone_from(&other.arguments);
    }
}

/// Splits a list at commas outside quotes: arguments of a provider can contain quoted commas.
fn split(list: &str) -> Vec<&str> {
    let mut quoted = false;
    list.split(|c| {
        quoted ^= c == '"';
        c == ',' && !quoted
    })
    .map(str::trim)
    .filter(|text| !text.is_empty())
    .collect()
}

/// The events that are recorded all the time: few, and none that suspends threads.
pub(crate) fn always() -> Vec<Provider> {
    vec![runtime().level(Level::Informational), activity_ids()]
}

/// GC, loader, JIT, contention, exceptions, threading, and, at level 5, waits for wait handles.
fn runtime() -> Provider {
    Provider::new("Microsoft-Windows-DotNETRuntime").keywords(0x400_0001_c019)
}

fn activity_ids() -> Provider {
    Provider::new("System.Threading.Tasks.TplEventSource").keywords(0x80)
}

/// The names of methods, and what their lines need.
pub(crate) fn names() -> TracingConfig {
    const LOADER_AND_JIT: u64 = 0x18;
    let runtime = Provider::new("Microsoft-Windows-DotNETRuntime");
    TracingConfig::new([runtime.keywords(LOADER_AND_JIT | IL_MAPS).level(Level::Verbose)])
}

/// `JittedMethodILToNativeMap`: which IL the code of a method belongs to. The list at the end of a
/// session has the same for methods that still exist.
const IL_MAPS: u64 = 0x2_0000;

fn resume(runtime: &Runtime) -> Result {
    runtime.client().resume_runtime().map_err(|error| {
        let process = format!("process {}", process_of(runtime));
        Failure::about(process, format!("its .NET runtime is still suspended: {error}"))
    })
}

/// The name of a .NET program: that of its assembly, if the host `dotnet` runs it.
pub(crate) fn program(pid: u32) -> String {
    let words = procfs::command_line(pid);
    let file =
        |word: &String| Path::new(word).file_name().map(|name| name.to_string_lossy().into_owned());
    let host = words.first().and_then(file).unwrap_or_default();
    let is_assembly = |word: &&String| !word.starts_with('-') && word.ends_with(".dll");
    let assembly = words.iter().skip(1).find(is_assembly).and_then(file);
    assembly.filter(|_| host == "dotnet").map_or(host, |name| name.trim_end_matches(".dll").into())
}

/// Where the streams go, and what is in them.
struct Streams<'a> {
    /// Streams have no limit: the directory of temporary files can be a part of the memory.
    dir: PathBuf,
    config: TracingConfig,
    /// Bytes of all streams.
    received: &'a Count,
}

impl Streams<'_> {
    /// Starts a session to a file without a name.
    fn start(&self, client: &Client, pid: u32) -> Result<FileSession> {
        let file = tempfile::tempfile_in(&self.dir);
        let file = file.map_err(|error| Failure::about(self.dir.display(), error))?;
        Session::start(client, pid, &self.config, Counted::new(file, self.received.clone()))
    }
}

/// The sessions that have begun, and whose end may not be requested yet.
static UNSTOPPED: Unstopped = Unstopped::new();

/// Waits until the end of each session that has begun is requested, for 5 s at most. To be called at the end of
/// the program: a connection that is closed before can crash .NET Core 3.1.
pub(crate) fn wait_for_stops() {
    let begun = Instant::now();
    UNSTOPPED.wait(END);
    diag_ipc::wait_for_late_sessions(END.saturating_sub(begun.elapsed()));
}

/// A number of sessions.
struct Unstopped {
    count: Mutex<usize>,
    changed: Condvar,
}

impl Unstopped {
    const fn new() -> Self {
        Self { count: Mutex::new(0), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, usize> {
        self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a session until the value is dropped.
    fn add(&self) -> Begun<'_> {
        *self.lock() += 1;
        Begun(self)
    }

    /// Waits until there are none. Returns whether that is so.
    fn wait(&self, limit: Duration) -> bool {
        let waited = self.changed.wait_timeout_while(self.lock(), limit, |count| *count > 0);
        *waited.unwrap_or_else(PoisonError::into_inner).0 == 0
    }
}

/// A session that is counted.
struct Begun<'a>(&'a Unstopped);

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        *self.0.lock() -= 1;
        self.0.changed.notify_all();
    }
}

/// A session recorded by a thread. Dropping it requests its end.
pub(crate) struct Session<W> {
    pid: u32,
    /// The name of the program.
    pub(crate) name: String,
    stop_handle: StopHandle,
    /// Closed when the stream has ended.
    ended: Receiver<()>,
    /// Until its result is taken.
    thread: Option<JoinHandle<(W, Option<Failure>)>>,
    /// The ids of its threads, if it has another PID namespace.
    threads: RefCell<Option<Box<NamespaceIds>>>,
    /// Until its end is requested.
    begun: Cell<Option<Begun<'static>>>,
}

impl<W: Write + Send + 'static> Session<W> {
    /// Records the events of a runtime to `out`.
    pub(crate) fn start(
        client: &Client,
        pid: u32,
        config: &TracingConfig,
        mut out: W,
    ) -> Result<Self> {
        let fail = |error: &dyn std::fmt::Display| {
            Failure::about(format!("process {pid}"), format_args!("its .NET runtime: {error}"))
        };
        let (running, ended) = bounded(0);
        // Before there is a session that nothing reads.
        let (begins, beginning) = bounded::<diag_ipc::Session>(1);
        let thread = threads::start(move || {
            let _running = running;
            let Ok(session) = beginning.recv() else { return (out, None) };
            // The reader detects a truncated stream, but not why the file is incomplete.
            let failure = match session.record(&mut out).truncation {
                Some(TruncationReason::Output(error)) => {
                    Some(Failure::about("the file of a .NET trace", error))
                }
                _ => None,
            };
            (out, failure)
        });
        let thread = thread.map_err(|error| fail(&error))?;
        let session = client.collect_tracing(config).map_err(|error| fail(&error))?;
        let begun = Cell::new(Some(UNSTOPPED.add()));
        let stop_handle = session.stop_handle();
        let _ = begins.send(session); // the thread waits for it
        let threads = RefCell::new(NamespaceIds::read(pid).map(Box::new));
        let thread = Some(thread);
        Ok(Self { pid, name: program(pid), stop_handle, ended, thread, threads, begun })
    }

    /// Waits for the end, up to this time. Returns whether it has come.
    pub(crate) fn wait_until(&self, until: Instant) -> bool {
        self.ended.recv_deadline(until) == Err(RecvTimeoutError::Disconnected)
    }

    /// Waits for the end. `None` if the thread failed; otherwise the output, and why it is truncated,
    /// if known.
    pub(crate) fn finish(mut self) -> Option<(W, Option<Failure>)> {
        self.thread.take()?.join().ok()
    }

    /// Requests the end of all running sessions.
    fn ask(sessions: &[Self]) {
        sessions.iter().for_each(Self::stop);
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

impl<W> Session<W> {
    /// Looks for new threads: only their ids in another PID namespace are in the stream.
    pub(crate) fn look(&self) {
        if let Some(threads) = &mut *self.threads.borrow_mut() {
            threads.add_new();
        }
    }

    /// Whether the stream has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Requests the end. A thread of its own sends the request: a runtime that hangs accepts it after seconds, or
    /// never.
    pub(crate) fn stop(&self) {
        if self.has_ended() {
            self.begun.take();
        } else {
            self.look();
            self.send_stop();
        }
    }

    fn send_stop(&self) {
        let (handle, begun) = (self.stop_handle.clone(), self.begun.take());
        let send = move || {
            // A process that has just ended cannot receive the request; its stream ends by itself.
            let _ = handle.stop();
            drop(begun);
        };
        threads::start_or_run(send);
    }
}

impl<W> Drop for Session<W> {
    /// A session that begins after its recorder has ended would continue for as long as its process.
    fn drop(&mut self) {
        if !self.has_ended() {
            self.send_stop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::fake;
    use crate::run::threads::refusal::without_threads;
    use crate::run::wait::until;
    use diag_ipc::message::Request;
    use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};
    use std::os::unix::net::UnixStream;
    use std::os::unix::process::CommandExt as _;
    use std::process::{Command, Stdio};

    fn streams(received: &Count) -> Streams<'_> {
        Streams { dir: std::env::temp_dir(), config: names(), received }
    }

    /// Looks for the runtimes of these processes, without a privilege.
    fn failures_without_privileges(pids: BTreeSet<u32>) -> Vec<String> {
        let look = move || {
            let none = CapabilitySet::empty();
            let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
            set_capabilities(None, sets).unwrap();
            let count = Count::default();
            let mut runtimes = Runtimes::new(None, streams(&count));
            runtimes.look(&pids);
            runtimes.end(END).1
        };
        // Capabilities are those of a thread.
        let failures = std::thread::spawn(look).join().unwrap();
        failures.iter().map(|failure| failure.message().to_owned()).collect()
    }

    #[test]
    fn recorded_processes_are_known_until_they_end() {
        let count = Count::default();
        let mut runtimes = Runtimes::new(None, streams(&count));
        let mut child = Command::new("sleep").arg("60").stdin(Stdio::null()).spawn().unwrap();
        let pid = child.id();
        runtimes.known.insert(pid, Known::read(pid, None));
        // The list was made before the process was started.
        runtimes.look(&BTreeSet::new());
        assert!(runtimes.known.contains_key(&pid));
        child.kill().unwrap();
        child.wait().unwrap();
        runtimes.look(&[pid].into());
        assert!(!runtimes.known.contains_key(&pid));
    }

    /// The queue of a socket can be full: connections to it would hold up the thread, and the end of the recording.
    #[test]
    fn a_look_connects_to_no_socket() {
        let dir = tempfile::tempdir().unwrap();
        let mut command = Command::new("sleep");
        command.arg("60").stdin(Stdio::null()).env("TMPDIR", dir.path());
        let mut child = command.spawn().unwrap();
        let pid = child.id();
        // With the start time of the process, it would be that of its runtime.
        let name = format!("dotnet-diagnostic-{pid}-x-socket");
        let listener = std::os::unix::net::UnixListener::bind(dir.path().join(name)).unwrap();
        // The kernel lets its starter continue a moment before.
        until("its environment", || procfs::has_port(pid, "TMPDIR", dir.path()));
        let count = Count::default();
        let mut runtimes = Runtimes::new(None, streams(&count));
        runtimes.look(&[pid].into());
        assert!(runtimes.searching == 1 && runtimes.candidates[&pid].is_asked);
        // A thread does. There is one of each process.
        runtimes.look(&[pid].into());
        assert_eq!(runtimes.searching, 1);
        drop(listener.accept().unwrap());
        let reply = runtimes.replies.1.recv().unwrap();
        assert!(matches!(reply, Reply::Found(found, None) if found == pid));
        runtimes.settle(reply);
        assert!(runtimes.searching == 0 && !runtimes.candidates[&pid].is_asked);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn searches_that_are_open_at_the_end_are_counted() {
        let failures = |replies: Vec<Reply>, settled: Option<Reply>| {
            let count = Count::default();
            let mut runtimes = Runtimes::new(None, streams(&count));
            runtimes.searching = 3;
            runtimes.is_ending = true;
            settled.into_iter().for_each(|reply| runtimes.settle(reply));
            replies.into_iter().for_each(|reply| runtimes.replies.0.send(reply).unwrap());
            let (_, failures) = runtimes.end(Duration::ZERO);
            failures.iter().map(|failure| failure.message().to_owned()).collect::<Vec<_>>()
        };
        let none = || Reply::Found(PID, None);
        let found = || Reply::Found(PID, Some(Client::new(Path::new("/nonexistent"))));
        let [failure] = &failures(vec![none()], Some(none()))[..] else { panic!("one failure") };
        assert!(failure.starts_with("1 process may have a .NET runtime"), "{failure}");
        // One that has a runtime is not recorded any more.
        let [failure] = &failures(vec![found()], Some(found()))[..] else { panic!("one failure") };
        assert!(failure.starts_with("3 processes may have"), "{failure}");
        assert_eq!(failures(vec![none(), none()], Some(none())), [""; 0]);
    }

    /// A process that does not exist.
    const PID: u32 = u32::MAX;

    /// A runtime whose requests the test gets, with their connections.
    fn runtime(dir: &Path) -> (Client, Receiver<(Request, UnixStream)>) {
        let (to, requests) = unbounded();
        let client = fake::runtime(dir, move |request, stream| {
            let _ = to.send((request, stream)); // the test may have ended
        });
        (client, requests)
    }

    /// The connection of the next request, which is for a session.
    fn requested(requests: &Receiver<(Request, UnixStream)>) -> UnixStream {
        match requests.recv_timeout(fake::LIMIT) {
            Ok((Request::CollectTracing { .. }, stream)) => stream,
            other => panic!("{other:?}"),
        }
    }

    /// The session of the next request, which is for its end.
    fn stopped(requests: &Receiver<(Request, UnixStream)>) -> u64 {
        match requests.recv_timeout(fake::LIMIT) {
            Ok((Request::StopTracing { session }, _)) => session,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn sessions_that_begin_too_late_are_stopped() {
        let dir = tempfile::tempdir().unwrap();
        let (client, requests) = runtime(dir.path());
        let count = Count::default();
        let mut runtimes = Runtimes::new(None, streams(&count));
        runtimes.begin(Some(client.clone()), PID, None, None);
        let mut first = requested(&requests);
        runtimes.begin(Some(client), PID, None, None);
        let mut second = requested(&requests);
        // The recorder does not look at this reply any more, and the other one comes after its end.
        fake::begin(&mut first, 7);
        until("the reply", || runtimes.replies.1.len() == 1);
        let (sessions, failures) = runtimes.end(Duration::ZERO);
        assert_eq!((sessions.len(), failures.len()), (0, 2));
        assert_eq!(stopped(&requests), 7);
        fake::begin(&mut second, 8);
        assert_eq!(stopped(&requests), 8);
    }

    #[test]
    fn without_a_thread_no_session_begins() {
        let dir = tempfile::tempdir().unwrap();
        let (client, requests) = runtime(dir.path());
        let count = Count::default();
        let mut runtimes = Runtimes::new(None, streams(&count));
        without_threads(|| runtimes.begin(Some(client), PID, None, None));
        runtimes.settle_all();
        let (sessions, failures) = runtimes.end(Duration::ZERO);
        assert!(sessions.is_empty() && requests.is_empty());
        let [failure] = &failures[..] else { panic!("{failures:?}") };
        assert!(failure.message().contains("no thread"), "{}", failure.message());
        // Of the recorder itself: what else is recorded does not end.
        let recorder = without_threads(|| Recorder::of_family(None, names()));
        recorder.look(&[PID].into());
        let (recordings, failures) = recorder.finish();
        let [failure] = &failures[..] else { panic!("{failures:?}") };
        assert!(recordings.is_empty() && failure.message().contains("no thread"));
    }

    #[test]
    fn without_a_thread_a_session_is_stopped() {
        let dir = tempfile::tempdir().unwrap();
        let (client, requests) = runtime(dir.path());
        let count = Count::default();
        let begin = std::thread::spawn(move || streams(&count).start(&client, PID));
        let mut stream = requested(&requests);
        fake::begin(&mut stream, 7);
        let session = begin.join().unwrap().unwrap();
        let stopping = std::thread::spawn(move || {
            without_threads(|| session.stop());
            session
        });
        assert_eq!(stopped(&requests), 7);
        drop(stream);
        assert!(stopping.join().unwrap().finish().is_some());
    }

    #[test]
    fn streams_are_beside_the_output() {
        let dir = tempfile::tempdir().unwrap();
        let (client, _requests) = runtime(dir.path());
        let (nowhere, count) = (dir.path().join("nowhere"), Count::default());
        let failure = Streams { dir: nowhere.clone(), ..streams(&count) }.start(&client, PID).err();
        let message = failure.unwrap().message().to_owned();
        assert!(message.starts_with(nowhere.to_str().unwrap()), "{message}");
    }

    #[test]
    fn sessions_that_begin_while_others_end_are_recorded() {
        let dir = tempfile::tempdir().unwrap();
        let (client, requests) = runtime(dir.path());
        let count = Count::default();
        std::thread::scope(|scope| {
            let mut runtimes = Runtimes::new(None, streams(&count));
            runtimes.begin(Some(client.clone()), PID, None, None);
            let mut first = requested(&requests);
            fake::begin(&mut first, 7);
            let reply = runtimes.replies.1.recv().unwrap();
            runtimes.settle(reply);
            runtimes.begin(Some(client), PID - 1, None, None);
            let mut second = requested(&requests);
            let ending = scope.spawn(|| runtimes.end(Duration::ZERO));
            assert_eq!(stopped(&requests), 7);
            fake::begin(&mut second, 8);
            assert_eq!(stopped(&requests), 8);
            drop((first, second));
            let (sessions, failures) = ending.join().unwrap();
            assert_eq!((sessions.len(), failures.len()), (2, 0));
        });
    }

    #[test]
    fn the_program_waits_for_requests_to_end_sessions() {
        let sessions = Unstopped::new();
        let (first, second) = (sessions.add(), sessions.add());
        drop(first);
        assert!(!sessions.wait(Duration::ZERO));
        drop(second);
        assert!(sessions.wait(Duration::ZERO));
    }

    #[test]
    fn lists_of_providers() {
        assert_eq!(split("A:1:2,B"), ["A:1:2", "B"]);
        assert_eq!(split("A:::k=\"x,y\",B,"), ["A:::k=\"x,y\"", "B"]);
        assert!(split("").is_empty());
    }

    #[test]
    fn providers_are_added_to_those_of_a_timeline() {
        let lists = ["A:1:4:x=\"1,2\",B".to_owned(), "system.net.http:2:5".to_owned()];
        let config = timeline(&providers(&lists).unwrap());
        let text = format!("{config:?}");
        for name in ["FrameworkEventSource", "AspNetCore.Hosting", "\"A\"", "\"B\""] {
            assert_eq!(text.matches(name).count(), 1, "{name}: {text}");
        }
        assert_eq!(text.to_lowercase().matches("system.net.http").count(), 1, "{text}");
        let of = |lists: &[&str]| {
            providers(&lists.iter().map(|list| (*list).to_owned()).collect::<Vec<_>>())
        };
        for lists in [&["A:1:4:x=1,a:2"][..], &["A:2", "A:1:4:x=1"]] {
            let [provider] = &of(lists).unwrap()[..] else { panic!("{lists:?}") };
            let Provider { keywords, level, arguments, .. } = provider;
            assert_eq!((*keywords, *level, &**arguments), (3, Level::Informational, "x=1"));
        }
        let error = of(&["A:1:4:x=1", "A:1:4:x=2"]).unwrap_err();
        assert!(error.message().contains("arguments twice"), "{}", error.message());
        let error = providers(&["A:x".to_owned()]).unwrap_err();
        assert!(
            error.message().contains("keywords are a 64-bit hexadecimal"),
            "{}",
            error.message()
        );
    }

    #[test]
    fn processes_that_cannot_be_read_are_counted() {
        const NOBODY: u32 = 65_534;
        let own = std::process::id();
        assert_eq!(failures_without_privileges([own].into()), [""; 0]);
        let is_root = geteuid().is_root();
        let mut command = Command::new("sleep");
        command.arg("60").stdin(Stdio::null());
        let mut child = is_root.then(|| command.uid(NOBODY).gid(NOBODY).spawn().unwrap());
        let other = child.as_ref().map_or(1, std::process::Child::id);
        // Until it has one, it is as a thread of the kernel.
        until("its command line", || {
            child.is_none() || !std::fs::read(format!("/proc/{other}/cmdline")).unwrap().is_empty()
        });
        // Without a PID namespace, a thread of the kernel.
        let kernel =
            std::fs::read("/proc/2/cmdline").is_ok_and(|line| line.is_empty()).then_some(2);
        let pids = [own, other, u32::MAX].into_iter().chain(kernel).collect();
        let failures = failures_without_privileges(pids);
        if let Some(child) = &mut child {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        let [failure] = &failures[..] else { panic!("{failures:?}") };
        assert!(failure.contains("1 process cannot be read"), "{failure}");
        assert_eq!(failure.contains("run as root"), !is_root, "{failure}");
    }
}
