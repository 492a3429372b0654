//! Traces of Go programs.
//!
//! A program that serves `net/http/pprof` sends its trace all the time, which is cut into its generations,
//! of about a second each: a file per generation. Of the other programs, the flight recorder is read from
//! their memory for a dump.

use super::go_watch::watch;
use super::{Collected, MAX_PROCESSES, Unrecorded, late};
use crate::commands::flight::inbox::Outbox;
use crate::commands::flight::trigger::GoTrigger;
use crate::io::private;
use crate::run::family::Turns;
use crate::run::go_program::{SAME_CLOCK, release};
use crate::run::pprof::listening;
use crate::run::programs::{self, FileId, GoProgram};
use crate::run::{http, procfs};
use crate::timeline::now;
use crossbeam_channel::bounded;
use gotrace::{Generations, Limits};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use trace_flight::{Source, Timestamp, Window};

/// Known processes that are examined again at each look.
const AGAIN: usize = 64;

/// Time limit for the headers of a reply.
const HEADERS: Duration = Duration::from_secs(2);

/// Interval between requests for a trace to an address that refused one.
const RETRY: Duration = Duration::from_secs(10);

/// The length of a trace that is requested: after it, the next one is.
const LONG: Duration = Duration::from_secs(24 * 3600);

/// Generations that wait for the reader that looks for triggers.
const QUEUE: usize = 4;

/// Limits of a generation.
fn limits() -> Limits {
    /// A generation has a second of the trace: a few megabytes.
    const MAX_GENERATION: usize = 64 << 20;
    Limits { max_buffer: MAX_GENERATION, ..Limits::default() }
}

/// What has come of a trace.
#[derive(Debug, Default)]
struct Pulled {
    header: Vec<u8>,
    generations: VecDeque<Generation>,
    bytes: u64,
    /// Why nothing more comes, or triggers do not see it.
    failure: Option<String>,
    has_ended: bool,
}

#[derive(Debug)]
struct Generation {
    path: PathBuf,
    first: Timestamp,
    last: Timestamp,
    bytes: u64,
}

#[derive(Debug, Default)]
struct Shared {
    pulled: Mutex<Pulled>,
    /// A generation has come, or the end.
    news: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Pulled> {
        self.pulled.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut Pulled)) {
        change(&mut self.lock());
        self.news.notify_all();
    }

    /// Removes the oldest generations until the budget holds.
    fn evict(&self, earliest: Timestamp, budget: u64) {
        let mut pulled = self.lock();
        while let Some(oldest) = pulled.generations.front() {
            if oldest.last >= earliest && pulled.bytes <= budget {
                return;
            }
            let _ = fs::remove_file(&oldest.path); // it may be gone
            let bytes = oldest.bytes;
            pulled.bytes -= bytes;
            pulled.generations.pop_front();
        }
    }
}

/// A trace that a program sends all the time.
struct Pull {
    shared: Arc<Shared>,
    stream: TcpStream,
    thread: JoinHandle<()>,
}

impl Pull {
    fn start(
        address: SocketAddr,
        dir: &Path,
        (pid, name): (u32, &str),
        triggers: &[GoTrigger],
        outbox: &Outbox,
    ) -> io::Result<Self> {
        let target = format!("/debug/pprof/trace?seconds={}", LONG.as_secs());
        let reply = http::get(&[address], &address.to_string(), &target, Some(HEADERS))?;
        let shared = Arc::new(Shared::default());
        let (dir, name, outbox) = (dir.to_owned(), name.to_owned(), outbox.clone());
        let (to, triggers) = (Arc::clone(&shared), triggers.to_vec());
        let thread = std::thread::spawn(move || {
            let failure = std::thread::scope(|scope| {
                let (parts, received) = bounded(QUEUE);
                let watching = (!triggers.is_empty()).then(|| {
                    let (to, outbox, name) = (&to, &outbox, name.as_str());
                    scope.spawn(move || {
                        let failure = watch(received, limits(), triggers, (pid, name), outbox);
                        if let Some(failure) = failure {
                            to.change(|pulled| pulled.failure = Some(failure));
                        }
                    })
                });
                let mut pass = |bytes: &[u8]| {
                    if watching.is_some() {
                        let _ = parts.send(bytes.to_vec()); // it has failed, which is noted
                    }
                };
                let result = split(reply.body, &dir, pid, &to, &mut pass);
                drop(parts);
                result.err()
            });
            to.change(|pulled| {
                pulled.has_ended = true;
                if let Some(failure) = failure {
                    pulled.failure = Some(failure);
                }
            });
        });
        Ok(Self { shared, stream: reply.stream, thread })
    }

    fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }

    /// Requests the end. The connection is not needed for more: what comes is a generation that no
    /// dump wants.
    fn close(self) {
        http::end(&self.stream);
        let _ = self.stream.shutdown(std::net::Shutdown::Both); // it may be closed already
        let _ = self.thread.join(); // what it has is there
        self.shared.evict(Timestamp::MAX, 0);
    }
}

/// Writes each generation of a trace to a file.
fn split(
    body: impl Read,
    dir: &Path,
    pid: u32,
    shared: &Shared,
    pass: &mut dyn FnMut(&[u8]),
) -> Result<(), String> {
    let mut generations =
        Generations::with_limits(body, limits()).map_err(|error| error.to_string())?;
    let header = generations.version().header().to_vec();
    pass(&header);
    shared.change(|pulled| pulled.header.clone_from(&header));
    // An incomplete generation is that in which the program ended.
    while let Ok(Some((span, bytes))) = generations.next_generation() {
        let name = format!("go-{pid}-{}-{}.trace", span.first.nanos(), span.last.nanos());
        let path = dir.join(name);
        let write = || -> io::Result<()> {
            let mut options = OpenOptions::new();
            let mut file =
                options.write(true).create(true).truncate(true).mode(0o600).open(&path)?;
            file.write_all(&header)?;
            file.write_all(bytes)
        };
        write().map_err(|error| format!("{}: {error}", path.display()))?;
        pass(bytes);
        let bytes = (header.len() + bytes.len()) as u64;
        shared.change(|pulled| {
            pulled.bytes += bytes;
            let generation = Generation { path, first: span.first, last: span.last, bytes };
            pulled.generations.push_back(generation);
        });
    }
    Ok(())
}

/// The part of a trace in a dump.
pub(super) struct Part(Arc<Shared>);

impl Part {
    /// Writes the generations of a window, once they have come. Returns the time that they cover.
    pub(super) fn write(
        &self,
        window: &Window,
        path: &Path,
        timeout: Duration,
    ) -> io::Result<Option<(Timestamp, Timestamp)>> {
        let is_short = |pulled: &mut Pulled| {
            let last = pulled.generations.back().map(|generation| generation.last);
            !pulled.has_ended && last.is_none_or(|last| last < window.until)
        };
        let pulled = self.0.news.wait_timeout_while(self.0.lock(), timeout, is_short);
        let (pulled, _) = pulled.unwrap_or_else(PoisonError::into_inner);
        let is_within = |g: &&Generation| g.last >= window.from && g.first <= window.until;
        let mut within = pulled.generations.iter().filter(is_within).peekable();
        let Some(first) = within.peek().map(|generation| generation.first) else {
            return Ok(None);
        };
        let mut last = first;
        let mut out = private::create_new(path)?;
        out.write_all(&pulled.header)?;
        for generation in within {
            let bytes = fs::read(&generation.path)?;
            out.write_all(bytes.get(pulled.header.len()..).unwrap_or_default())?;
            last = last.max(generation.last);
        }
        out.sync_all()?;
        Ok(Some((first, last)))
    }

    /// What a part that covers this time lacks.
    pub(super) fn gap(&self, window: &Window, from: Timestamp, until: Timestamp) -> Option<String> {
        let end = || {
            (until < window.until).then(|| "the end: its last generation had not come".to_owned())
        };
        self.failure().or_else(|| late(window, from)).or_else(end)
    }

    pub(super) fn failure(&self) -> Option<String> {
        self.0.lock().failure.clone()
    }
}

/// A running Go program.
struct Process {
    file: FileId,
    program: Rc<GoProgram>,
    pull: Option<Pull>,
    tried: BTreeMap<SocketAddr, Instant>,
    /// Whether it was seen before. Between `fork(2)` and `execve(2)`, a child has the executable and
    /// the sockets of its parent.
    is_settled: bool,
    refusal: Option<String>,
}

/// The running Go programs.
pub(super) struct Programs {
    dir: PathBuf,
    triggers: Vec<GoTrigger>,
    outbox: Outbox,
    programs: programs::Programs,
    /// All processes, with the executables of those that are no Go programs.
    known: BTreeMap<u32, Option<FileId>>,
    processes: BTreeMap<u32, Process>,
    turns: Turns,
    /// Traces of programs that have ended.
    ended: Vec<(u32, String, Arc<Shared>)>,
}

impl Programs {
    pub(super) fn new(dir: &Path, triggers: Vec<GoTrigger>, outbox: &Outbox) -> Self {
        Self {
            dir: dir.to_owned(),
            triggers,
            outbox: outbox.clone(),
            programs: programs::Programs::default(),
            known: BTreeMap::new(),
            processes: BTreeMap::new(),
            turns: Turns::default(),
            ended: Vec::new(),
        }
    }

    fn shared(&self) -> impl Iterator<Item = &Arc<Shared>> {
        let running = self.processes.values().filter_map(|process| process.pull.as_ref());
        running.map(|pull| &pull.shared).chain(self.ended.iter().map(|(.., shared)| shared))
    }

    pub(super) fn bytes(&self) -> u64 {
        self.shared().map(|shared| shared.lock().bytes).sum()
    }

    pub(super) fn recorded(&self) -> usize {
        self.processes.values().filter(|process| process.pull.is_some()).count()
    }

    /// Looks at the processes, and keeps the budget.
    pub(super) fn look(&mut self, processes: &BTreeSet<u32>, budget: u64, keep: Duration) {
        self.known.retain(|pid, _| processes.contains(pid));
        let gone = self.processes.keys().filter(|pid| !processes.contains(pid));
        let gone: Vec<u32> = gone.copied().collect();
        gone.into_iter().for_each(|pid| self.conclude(pid));
        let is_new = |pid: &&u32| !self.known.contains_key(pid);
        let new: Vec<u32> = processes.iter().filter(is_new).copied().collect();
        let again = self.turns.next(&self.known, AGAIN);
        let go: Vec<u32> = self.processes.keys().copied().collect();
        let pids: BTreeSet<u32> = new.into_iter().chain(again).chain(go).collect();
        pids.into_iter().for_each(|pid| self.examine(pid));
        let earliest = now().unwrap_or(Timestamp::MIN) - keep;
        let share = budget / (self.shared().count().max(1) as u64);
        self.shared().for_each(|shared| shared.evict(earliest, share));
        self.ended.retain(|(.., shared)| !shared.lock().generations.is_empty());
    }

    /// The process has ended, or executes another program.
    fn conclude(&mut self, pid: u32) {
        let Some(process) = self.processes.remove(&pid) else { return };
        if let Some(pull) = process.pull {
            self.ended.push((pid, process.program.name.clone(), Arc::clone(&pull.shared)));
        }
    }

    fn examine(&mut self, pid: u32) {
        let file = programs::Programs::file(pid);
        if self.known.insert(pid, file) != Some(file) {
            self.conclude(pid);
            let program = file.and_then(|file| self.programs.go(pid, file));
            if let Some((program, file)) = program.zip(file).filter(|_| pid != std::process::id()) {
                let (tried, refusal) = (BTreeMap::new(), None);
                let process =
                    Process { file, program, pull: None, tried, is_settled: false, refusal };
                self.processes.insert(pid, process);
            }
            return;
        }
        let recorded = self.recorded();
        let Some(process) = self.processes.get_mut(&pid) else { return };
        let is_same = file == Some(process.file);
        if let Some(pull) = process.pull.take_if(|pull| pull.has_ended()) {
            self.ended.push((pid, process.program.name.clone(), pull.shared));
        }
        let is_recorded = process.pull.is_some();
        if is_recorded || !is_same || !std::mem::replace(&mut process.is_settled, true) {
            return;
        }
        if !process.program.has_pprof {
            return;
        }
        // Connecting to another network namespace would reach another program.
        if !procfs::shares_network(pid) {
            process.refusal = Some("it has another network namespace".to_owned());
            return;
        }
        if recorded >= MAX_PROCESSES {
            process.refusal = Some(format!("{MAX_PROCESSES} other programs are recorded"));
            return;
        }
        for address in listening(pid) {
            let tried = process.tried.get(&address);
            if tried.is_some_and(|tried| tried.elapsed() < RETRY) || process.tried.len() > AGAIN {
                continue;
            }
            process.tried.insert(address, Instant::now());
            let of = (pid, process.program.name.as_str());
            match Pull::start(address, &self.dir, of, &self.triggers, &self.outbox) {
                Ok(pull) => {
                    (process.pull, process.refusal) = (Some(pull), None);
                    return;
                }
                Err(error) => {
                    let why = format!("http://{address}/debug/pprof/trace: {error}");
                    process.refusal = Some(why);
                }
            }
        }
    }

    /// The traces for a dump.
    pub(super) fn collect(&mut self, window: &Window) -> Vec<Collected> {
        let mut collected = Vec::new();
        let mut unrecorded = Unrecorded::default();
        for (pid, process) in &self.processes {
            let source = Source::new("go", *pid, process.program.name.clone());
            if let Some(pull) = &process.pull {
                let part = super::Part::Go(Part(Arc::clone(&pull.shared)));
                collected.push(Collected { source, part });
                continue;
            }
            match self.snapshot(*pid, process, window) {
                Ok((path, (from, until))) => {
                    let mut source = source;
                    (source.from, source.until) = (Some(from), Some(until));
                    source.missing = late(window, from).or_else(|| {
                        let why = "the end: the generation in progress is not in its memory";
                        (until < window.until).then(|| why.to_owned())
                    });
                    collected.push(Collected { source, part: super::Part::File(path) });
                }
                Err(why) => unrecorded.add(*pid, &process.program.name, why),
            }
        }
        let is_within = |shared: &Arc<Shared>| {
            shared.lock().generations.back().is_some_and(|g| g.last >= window.from)
        };
        for (pid, name, shared) in self.ended.iter().filter(|(.., shared)| is_within(shared)) {
            if collected.iter().all(|other| other.source.pid != Some(*pid)) {
                let source = Source::new("go", *pid, name.clone());
                let part = super::Part::Go(Part(Arc::clone(shared)));
                collected.push(Collected { source, part });
            }
        }
        collected.extend(unrecorded.collect("go"));
        collected
    }

    /// The flight recorder in the memory of a process, as a file, and the time that it covers.
    fn snapshot(
        &self,
        pid: u32,
        process: &Process,
        window: &Window,
    ) -> Result<(PathBuf, (Timestamp, Timestamp)), String> {
        if release(&process.program.version).is_some_and(|version| version < SAME_CLOCK) {
            return Err(format!("the traces of {} have another clock", process.program.version));
        }
        let read = go_flight::Process::open(pid).and_then(|mut process| process.snapshot(limits()));
        let snapshot = read.map_err(|error| match &process.refusal {
            Some(refusal) => format!("{refusal}; {error}"),
            None if process.program.has_pprof => format!("it does not listen; {error}"),
            None => format!("it does not serve net/http/pprof; {error}"),
        })?;
        let path = self.dir.join(format!("go-{pid}-{}.snapshot", window.until.nanos()));
        let mut bytes = Vec::new();
        let write = || -> io::Result<()> {
            snapshot.write_to(&mut bytes)?;
            fs::write(&path, &bytes)
        };
        let mut write = write;
        write().map_err(|error| format!("{}: {error}", path.display()))?;
        let mut covered = None;
        let generations = Generations::with_limits(&bytes[..], limits());
        let mut generations = generations.map_err(|error| error.to_string())?;
        while let Ok(Some((span, _))) = generations.next_generation() {
            covered = Some(match covered {
                None => (span.first, span.last),
                Some((first, _)) => (first, span.last),
            });
        }
        covered.map(|covered| (path, covered)).ok_or_else(|| "its trace is empty".to_owned())
    }

    /// Ends all traces.
    pub(super) fn close(self) {
        self.shared().for_each(|shared| shared.evict(Timestamp::MAX, 0));
        let pulls = self.processes.into_values().filter_map(|process| process.pull);
        pulls.for_each(Pull::close);
    }
}
