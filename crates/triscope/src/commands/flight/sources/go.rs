//! Traces of Go programs.
//!
//! A program that serves `net/http/pprof` sends its trace all the time, which is cut into its generations,
//! of about a second each: a file per generation. Of the other programs, the flight recorder is read from
//! their memory for a dump.

use super::go_pull::{Part, Pull, Shared, limits};
use super::{Collected, MAX_PROCESSES, Unrecorded, late};
use crate::commands::flight::inbox::Outbox;
use crate::commands::flight::trigger::GoTrigger;
use crate::io::place::Place;
use crate::run::family::Turns;
use crate::run::go_program::{SAME_CLOCK, release};
use crate::run::pprof::{Listening, listening};
use crate::run::procfs;
use crate::run::programs::{self, Executable, FileId, GoProgram};
use gotrace::{Generations, Limits};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};
use trace_flight::{Source, Timestamp, Window};

/// Known processes that are examined again at each look.
const AGAIN: usize = 64;

/// First and longest interval between requests for a trace to an address that refused one. Each is twice as long as
/// the one before.
const RETRY: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(320));

/// First and longest interval between looks for the addresses of a process that is not recorded: each look reads the
/// sockets of the machine.
const LISTENING: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(8));

/// Bytes of a flight recorder in the memory of a process, and of the data in which it is searched: it has all of its
/// generations.
const MAX_SNAPSHOT: u64 = 256 << 20;

/// Time limit of a dump for all flight recorders. One that is being read then is read to its end.
const SNAPSHOTS: Duration = Duration::from_secs(4);

/// Executables whose symbols are remembered.
const MAX_PARSED: usize = 1 << 10;

/// Time limit for what a process that has ended has sent. Another one may hold its end of the connection.
const REST: Duration = Duration::from_secs(2);

/// A running Go program.
struct Process {
    file: FileId,
    program: Rc<GoProgram>,
    pull: Option<Pull>,
    asked: Asked,
    /// Whether it was seen before. Between `fork(2)` and `execve(2)`, a child has the executable and
    /// the sockets of its parent.
    is_settled: bool,
    refusal: Option<String>,
}

/// The addresses of a process that were asked for its trace.
#[derive(Debug, Default)]
struct Asked {
    requests: BTreeMap<SocketAddr, Request>,
    /// The last look for the addresses, and the time until the next one.
    looked: Option<(Instant, Duration)>,
}

#[derive(Debug)]
struct Request {
    at: Instant,
    /// Time until the next one. `None`: there is none.
    wait: Option<Duration>,
}

impl Asked {
    /// Whether to look for the addresses now: one is due, or there may be another one. Most processes listen soon after
    /// their start, or never.
    fn looks(&mut self, now: Instant) -> bool {
        let is_due = |request: &Request| request.wait.is_some_and(|wait| now - request.at >= wait);
        if self.requests.values().any(is_due) {
            return true;
        }
        let wait = match self.looked {
            Some((at, wait)) if now - at < wait => return false,
            Some((_, wait)) => wait.saturating_mul(2).min(LISTENING.1),
            None => LISTENING.0,
        };
        self.looked = Some((now, wait));
        true
    }

    /// The address that is asked now, if one is due.
    fn next(&mut self, listening: Vec<Listening>, now: Instant) -> Option<Listening> {
        self.requests.retain(|address, _| listening.iter().any(|other| other.address == *address));
        let is_due = |listening: &Listening| match self.requests.get(&listening.address) {
            Some(Request { at, wait }) => wait.is_some_and(|wait| now - *at >= wait),
            None => self.requests.len() <= AGAIN,
        };
        let next = listening.into_iter().find(is_due)?;
        let before = self.requests.get(&next.address).and_then(|request| request.wait);
        let wait = before.map_or(RETRY.0, |before| before.saturating_mul(2).min(RETRY.1));
        self.requests.insert(next.address, Request { at: now, wait: Some(wait) });
        Some(next)
    }

    /// The request to an address has ended.
    fn ended(&mut self, address: SocketAddr, how: End, now: Instant) {
        let Some(request) = self.requests.get_mut(&address) else { return };
        // Another address may be next.
        self.looked = None;
        match how {
            End::Accepted => *request = Request { at: now, wait: Some(RETRY.0) },
            End::Failed => {}
            End::Refused => request.wait = None,
        }
    }
}

/// How a request has ended.
#[derive(Clone, Copy, Debug)]
enum End {
    Accepted,
    Failed,
    /// The address will never send a trace.
    Refused,
}

/// A trace that has ended: its program has, or only the request.
struct Ended {
    pid: u32,
    name: String,
    pull: Pull,
    at: Instant,
}

impl Ended {
    fn new(pid: u32, name: String, pull: Pull) -> Self {
        Self { pid, name, pull, at: Instant::now() }
    }
}

/// The processes of a dump that do not send a trace: a flight recorder may be in their memory.
#[derive(Debug)]
pub(super) struct Others {
    pids: Vec<u32>,
    /// Processes that have a part already.
    begun: BTreeSet<u32>,
}

/// What executables say about the flight recorders of their processes, or why these have none.
#[derive(Default)]
struct Parsed(HashMap<Executable, Result<go_flight::Program, String>>);

impl Parsed {
    /// Opens a process. Its executable is parsed once.
    fn open(&mut self, pid: u32) -> Result<go_flight::Process, String> {
        let executable = programs::Programs::file(pid);
        let opened = match executable.and_then(|executable| self.0.get(&executable)) {
            Some(Ok(program)) => go_flight::Process::with_program(pid, program.clone()),
            Some(Err(why)) => return Err(why.clone()),
            None => {
                let opened = go_flight::Process::open(pid);
                // It may execute another one by now.
                let is_it =
                    |executable: &Executable| programs::Programs::file(pid) == Some(*executable);
                if let Some(executable) = executable.filter(is_it) {
                    self.remember(executable, &opened);
                }
                opened
            }
        };
        opened.map_err(|error| error.to_string())
    }

    fn remember(&mut self, executable: Executable, opened: &go_flight::Result<go_flight::Process>) {
        use go_flight::Error::{NotGo, NotLinked, UnsupportedArchitecture, UnsupportedVersion};
        let found = match opened {
            Ok(process) => Ok(process.program().clone()),
            // It will be the same of each process.
            Err(
                error @ (NotGo
                | NotLinked
                | UnsupportedArchitecture { .. }
                | UnsupportedVersion { .. }),
            ) => Err(error.to_string()),
            Err(_) => return,
        };
        if self.0.len() >= MAX_PARSED {
            self.0.clear();
        }
        self.0.insert(executable, found);
    }

    /// The flight recorder in the memory of a process.
    fn read(&mut self, pid: u32, limits: Limits) -> Result<Vec<u8>, String> {
        let mut process = self.open(pid)?;
        let snapshot = process.snapshot(limits).map_err(|error| error.to_string())?;
        let mut trace = Vec::new();
        snapshot.write_to(&mut trace).map_err(|error| error.to_string())?;
        Ok(trace)
    }
}

/// What the flight recorders of other programs may take in a dump.
struct Room {
    bytes: u64,
    snapshots: usize,
    until: Instant,
}

impl Room {
    /// The limit of the next one.
    fn limits(&self) -> Result<Limits, String> {
        if Instant::now() >= self.until {
            return Err("no time was left to read its flight recorder".to_owned());
        }
        if self.snapshots == 0 {
            return Err(format!(
                "the dump has the flight recorders of {MAX_PROCESSES} other programs"
            ));
        }
        let least = limits().max_buffer;
        let max_buffer = usize::try_from(self.bytes.min(MAX_SNAPSHOT)).unwrap_or(least);
        Ok(Limits { max_buffer: max_buffer.max(least), ..limits() })
    }

    fn take(&mut self, bytes: u64) -> Result<(), String> {
        let Some(left) = self.bytes.checked_sub(bytes) else {
            let left = self.bytes;
            return Err(format!(
                "its flight recorder has {bytes} bytes: the disk budget has {left} left"
            ));
        };
        (self.bytes, self.snapshots) = (left, self.snapshots.saturating_sub(1));
        Ok(())
    }
}

/// The running Go programs.
pub(super) struct Programs {
    dir: Place,
    /// Bytes of all traces.
    budget: u64,
    triggers: Vec<GoTrigger>,
    outbox: Outbox,
    programs: programs::Programs,
    /// All processes, with the executables of those that are no Go programs.
    known: BTreeMap<u32, Option<FileId>>,
    processes: BTreeMap<u32, Process>,
    parsed: Parsed,
    turns: Turns,
    ended: Vec<Ended>,
}

impl Programs {
    pub(super) fn new(dir: impl Into<Place>, triggers: Vec<GoTrigger>, outbox: &Outbox) -> Self {
        Self {
            dir: dir.into(),
            budget: 0,
            triggers,
            outbox: outbox.clone(),
            programs: programs::Programs::default(),
            known: BTreeMap::new(),
            processes: BTreeMap::new(),
            parsed: Parsed::default(),
            turns: Turns::default(),
            ended: Vec::new(),
        }
    }

    /// The traces of programs that run.
    fn pulls(&self) -> impl Iterator<Item = &Pull> {
        self.processes.values().filter_map(|process| process.pull.as_ref())
    }

    fn shared(&self) -> impl Iterator<Item = &Shared> {
        let ended = self.ended.iter().map(|ended| &ended.pull);
        self.pulls().chain(ended).map(Pull::shared)
    }

    pub(super) fn bytes(&self) -> u64 {
        self.shared().map(Shared::bytes).sum()
    }

    pub(super) fn recorded(&self) -> usize {
        self.pulls().filter(|pull| pull.is_accepted()).count()
    }

    /// Looks at the processes, and keeps the budget, and what came since the earliest time.
    pub(super) fn look(&mut self, processes: &BTreeSet<u32>, budget: u64, earliest: Timestamp) {
        self.budget = budget;
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
        let share = budget / (self.shared().count().max(1) as u64);
        self.shared().for_each(|shared| shared.evict(earliest, share));
        let is_late = |ended: &&Ended| ended.at.elapsed() > REST;
        self.ended.iter().filter(is_late).for_each(|ended| ended.pull.close());
        self.ended.retain(|Ended { pull, .. }| !pull.has_ended() || pull.shared().last().is_some());
    }

    /// The process has ended, or executes another program.
    fn conclude(&mut self, pid: u32) {
        let Some(process) = self.processes.remove(&pid) else { return };
        if let Some(pull) = process.pull {
            // What it has sent is still received.
            pull.end();
            self.ended.push(Ended::new(pid, process.program.name.clone(), pull));
        }
    }

    fn examine(&mut self, pid: u32) {
        let executable = programs::Programs::file(pid);
        let file = executable.map(|executable| executable.id);
        if self.known.insert(pid, file) != Some(file) {
            self.conclude(pid);
            let program = executable.and_then(|executable| self.programs.go(pid, executable));
            if let Some((program, file)) = program.zip(file).filter(|_| pid != std::process::id()) {
                let (asked, refusal) = (Asked::default(), None);
                let process =
                    Process { file, program, pull: None, asked, is_settled: false, refusal };
                self.processes.insert(pid, process);
            }
            return;
        }
        let recorded = self.pulls().count();
        let Some(process) = self.processes.get_mut(&pid) else { return };
        let is_same = file == Some(process.file);
        process.pull.iter().for_each(Pull::look);
        if let Some(pull) = process.pull.take_if(|pull| pull.has_ended()) {
            process.refusal = pull.shared().failure();
            let end = match pull.is_accepted() {
                true => End::Accepted,
                false if pull.shared().is_refused() => End::Refused,
                false => End::Failed,
            };
            process.asked.ended(pull.address(), end, Instant::now());
            if pull.is_accepted() {
                self.ended.push(Ended::new(pid, process.program.name.clone(), pull));
            }
        }
        let is_recorded = process.pull.is_some();
        if is_recorded || !is_same || !std::mem::replace(&mut process.is_settled, true) {
            return;
        }
        if !process.program.has_pprof || has_another_clock(&process.program) {
            return;
        }
        // Connecting to another network namespace would reach another program.
        match procfs::shares_network(pid) {
            Some(true) => {}
            Some(false) => {
                process.refusal = Some("it has another network namespace".to_owned());
                return;
            }
            None => return,
        }
        if recorded >= MAX_PROCESSES {
            process.refusal = Some(format!("{MAX_PROCESSES} other programs are recorded"));
            return;
        }
        let now = Instant::now();
        if !process.asked.looks(now) {
            return;
        }
        let Some(next) = process.asked.next(listening(pid), now) else { return };
        let (of, address) = ((pid, process.program.name.as_str()), next.address);
        match Pull::start(next, &self.dir, of, &self.triggers, &self.outbox) {
            Ok(pull) => process.pull = Some(pull),
            // It is tried again.
            Err(failure) => {
                process.refusal = Some(failure.message().to_owned());
                process.asked.ended(address, End::Failed, now);
            }
        }
    }

    /// The traces that programs send, for a dump: of a process, those that have ended are before that which runs. Returns
    /// the processes that send none, too.
    pub(super) fn collect(&self, window: &Window) -> (Vec<Collected>, Others) {
        let mut collected = Vec::new();
        let (mut pids, mut begun) = (Vec::new(), BTreeSet::new());
        let is_within = |pull: &Pull| pull.shared().last().is_some_and(|last| last >= window.start);
        for Ended { pid, name, pull, .. } in self.ended.iter().filter(|one| is_within(&one.pull)) {
            collected.push(sent((*pid, name.as_str()), pull, window, begun.insert(*pid)));
        }
        for (pid, process) in &self.processes {
            match process.pull.as_ref().filter(|pull| pull.is_accepted()) {
                Some(pull) => {
                    let of = (*pid, process.program.name.as_str());
                    collected.push(sent(of, pull, window, !begun.contains(pid)));
                }
                None => pids.push(*pid),
            }
        }
        (collected, Others { pids, begun })
    }

    /// The flight recorders in the memory of other processes, for a dump, within the time for them.
    pub(super) fn others(&mut self, window: &Window, others: &Others) -> Vec<Collected> {
        let mut parsed = std::mem::take(&mut self.parsed);
        let mut read = |pid: u32, limits: Limits| parsed.read(pid, limits);
        let collected = self.others_by(window, others, Instant::now() + SNAPSHOTS, &mut read);
        self.parsed = parsed;
        collected
    }

    /// As [`others`](Self::others). `read` reads the flight recorder of a process.
    fn others_by(
        &self,
        window: &Window,
        others: &Others,
        until: Instant,
        read: &mut dyn FnMut(u32, Limits) -> Result<Vec<u8>, String>,
    ) -> Vec<Collected> {
        let mut collected = Vec::new();
        let mut unrecorded = Unrecorded::default();
        let mut room = Room { bytes: self.budget, snapshots: MAX_PROCESSES, until };
        for pid in &others.pids {
            let Some(process) = self.processes.get(pid) else { continue };
            let (name, is_first) = (process.program.name.as_str(), !others.begun.contains(pid));
            match self.snapshot(*pid, process, window, &mut room, read) {
                Ok((path, (from, until))) => {
                    let mut source = Source::new("go", *pid, name);
                    (source.start, source.end) = (Some(from), Some(until));
                    source.missing = late(window, from).filter(|_| is_first).or_else(|| {
                        let why = "the end: the generation in progress is not in its memory";
                        (until < window.end).then(|| why.to_owned())
                    });
                    collected.push(Collected { source, part: super::Part::File(path) });
                }
                Err(why) => match &process.pull {
                    // It may still be accepted while the dump waits.
                    Some(pull) => collected.push(sent((*pid, name), pull, window, is_first)),
                    None if is_first => unrecorded.add(*pid, name, why),
                    // What an earlier recording of it does not have is noted there.
                    None => {}
                },
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
        room: &mut Room,
        read: &mut dyn FnMut(u32, Limits) -> Result<Vec<u8>, String>,
    ) -> Result<(Place, (Timestamp, Timestamp)), String> {
        if has_another_clock(&process.program) {
            return Err(format!("the traces of {} have another clock", process.program.version));
        }
        let trace = read(pid, room.limits()?).map_err(|error| match &process.refusal {
            Some(refusal) => format!("{refusal}; {error}"),
            None if process.program.has_pprof => format!("it does not listen; {error}"),
            None => format!("it does not serve net/http/pprof; {error}"),
        })?;
        room.take(trace.len() as u64)?;
        let path = self.dir.join(format!("go-{pid}-{}.snapshot", window.end.nanos()));
        let covered = save(&path, &trace)?;
        Ok((path, covered))
    }

    /// Ends all traces.
    pub(super) fn close(self) {
        let running = self.processes.into_values().filter_map(|process| process.pull);
        let ended = self.ended.into_iter().map(|ended| ended.pull);
        let pulls: Vec<Pull> = running.chain(ended).collect();
        pulls.iter().for_each(Pull::close);
        pulls.into_iter().for_each(Pull::remove);
    }
}

/// The part in a dump of a trace that a program sends.
fn sent((pid, name): (u32, &str), pull: &Pull, window: &Window, is_first: bool) -> Collected {
    let part = super::Part::Go(Part::of(pull, window, is_first));
    Collected { source: Source::new("go", pid, name), part }
}

/// Writes a trace to a file, if it has events. Returns the time that it covers.
fn save(path: &Place, trace: &[u8]) -> Result<(Timestamp, Timestamp), String> {
    let mut covered = None;
    let generations = Generations::with_limits(trace, limits());
    let mut generations = generations.map_err(|error| error.to_string())?;
    while let Ok(Some((span, _))) = generations.next_generation() {
        covered = Some(match covered {
            None => (span.first, span.last),
            Some((first, _)) => (first, span.last),
        });
    }
    let covered = covered.ok_or_else(|| "its trace is empty".to_owned())?;
    fs::write(path, trace).map_err(|error| {
        // No dump takes it, and it counts in no budget.
        let _ = fs::remove_file(path);
        format!("{}: {error}", path.display())
    })?;
    Ok(covered)
}

/// Whether the traces of a program have a clock that cannot be related to that of the kernel's records: nothing of
/// them is kept.
fn has_another_clock(program: &GoProgram) -> bool {
    release(&program.version).is_some_and(|version| version < SAME_CLOCK)
}

#[cfg(test)]
#[path = "go_tests.rs"]
mod tests;
