//! Sessions of .NET runtimes.
//!
//! A runtime has one session, whose stream goes to a file. For a dump, another session begins, and the
//! first one is ended, which completes its file with the names of methods. The same happens when a file
//! has half of its share of the disk, and the new session has lasted as long as is kept.

use super::dotnet_watch::{DotnetWatch, Process, providers};
use super::masked::Masked;
use super::{Collected, MAX_PROCESSES, Part, Unrecorded, late};
use crate::commands::flight::inbox::Outbox;
use crate::commands::flight::trigger::DotnetTrigger;
use crate::failure::{Failure, Result};
use crate::io::counting::{Count, Counted};
use crate::io::private;
use crate::run::family::Turns;
use crate::run::procfs;
use crate::run::runtimes::{Session, always, program};
use crate::timeline::now;
use diag_ipc::{Client, TracingConfig};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use trace_flight::{Source, Timestamp, Window};

/// Age at which a process without a runtime is looked at less often.
const YOUNG: Duration = Duration::from_secs(3);

/// Older processes that are looked at again at each look.
const AGAIN: usize = 16;

/// Megabytes of the buffer in a runtime.
const BUFFER_MB: u32 = 16;

/// Writes the stream of a session to its file, and watches it.
struct Tee {
    file: Masked<Counted<File>>,
    watch: Option<DotnetWatch>,
}

impl Write for Tee {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let len = self.file.write(bytes)?;
        if let Some(watch) = &mut self.watch {
            watch.push(bytes.get(..len).unwrap_or_default());
        }
        Ok(len)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// A session and its file.
pub(super) struct Trace {
    session: Session<Tee>,
    path: PathBuf,
    begun: Timestamp,
    bytes: Count,
    leads: Arc<AtomicBool>,
}

impl Trace {
    /// Waits for the end that was requested. Returns the file, its end, and why it is truncated.
    pub(super) fn finish(self) -> (PathBuf, Timestamp, Option<String>) {
        self.session.stop();
        let asked = now().unwrap_or(Timestamp::MIN);
        let failure = match self.session.finish() {
            Some((tee, failure)) => {
                let missing = tee.file.finish().unwrap_or_else(|error| Some(error.to_string()));
                failure.map(|failure| failure.message().to_owned()).or(missing)
            }
            None => Some("its recording failed".to_owned()),
        };
        (self.path, asked, failure)
    }

    /// Ends the session and removes the file.
    fn discard(self) {
        let (path, ..) = self.finish();
        let _ = fs::remove_file(path); // it is not needed any more
    }
}

/// A process with a runtime.
struct Recorded {
    process: Process,
    /// A process id can be reused.
    started: Option<u64>,
    old: Trace,
    new: Option<Trace>,
    ended: Option<Instant>,
}

impl Recorded {
    fn bytes(&self) -> u64 {
        self.old.bytes.get() + self.new.as_ref().map_or(0, |new| new.bytes.get())
    }
}

/// The runtimes that are recorded.
pub(super) struct Runtimes {
    dir: PathBuf,
    triggers: Vec<DotnetTrigger>,
    /// Whether the command lines of programs are kept.
    command_lines: bool,
    config: TracingConfig,
    outbox: Outbox,
    recorded: BTreeMap<u32, Recorded>,
    /// The other processes, since when they are known.
    candidates: BTreeMap<u32, Instant>,
    turns: Turns,
    unrecorded: Unrecorded,
    /// Sessions that were requested to end.
    ending: Vec<Trace>,
}

impl Runtimes {
    pub(super) fn new(
        dir: &Path,
        triggers: Vec<DotnetTrigger>,
        command_lines: bool,
        outbox: &Outbox,
    ) -> Self {
        let config = TracingConfig::new(providers(&triggers, always())).buffer_mb(BUFFER_MB);
        Self {
            dir: dir.to_owned(),
            triggers,
            command_lines,
            config,
            outbox: outbox.clone(),
            recorded: BTreeMap::new(),
            candidates: BTreeMap::new(),
            turns: Turns::default(),
            unrecorded: Unrecorded::default(),
            ending: Vec::new(),
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.recorded.values().map(Recorded::bytes).sum()
    }

    pub(super) fn recorded(&self) -> usize {
        self.recorded.len()
    }

    /// Looks at the processes, and keeps the budget.
    pub(super) fn look(&mut self, processes: &BTreeSet<u32>, budget: u64, keep: Duration) {
        self.end_old(budget, keep);
        let at = Instant::now();
        self.unrecorded.retain(processes);
        let is_other = |pid: &u32| processes.contains(pid) && !self.recorded.contains_key(pid);
        self.candidates.retain(|pid, _| is_other(pid));
        let again = self.turns.next(&self.candidates, AGAIN);
        let own = std::process::id();
        for pid in processes.iter().filter(|pid| **pid != own && is_other(pid)) {
            self.candidates.entry(*pid).or_insert(at);
        }
        let young = self.candidates.iter().filter(|(_, since)| at - **since < YOUNG);
        let pids: BTreeSet<u32> = young.map(|(pid, _)| *pid).chain(again).collect();
        for pid in pids {
            let Ok(client) = Client::for_process(pid) else { continue };
            self.candidates.remove(&pid);
            if self.recorded.len() >= MAX_PROCESSES {
                let why = format!("{MAX_PROCESSES} other runtimes are recorded");
                self.unrecorded.add(pid, &program(pid), why);
                continue;
            }
            let process = Process { pid, name: program(pid) };
            match self.start(&client, &process, true) {
                Ok(old) => {
                    let started = procfs::start_time(pid);
                    let new = Recorded { process, started, old, new: None, ended: None };
                    self.unrecorded.remove(pid);
                    self.recorded.insert(pid, new);
                }
                Err(failure) => {
                    self.unrecorded.add(pid, &process.name, failure.message().to_owned());
                }
            }
        }
    }

    /// Ends sessions that have grown, and forgets processes that ended long ago.
    fn end_old(&mut self, budget: u64, keep: Duration) {
        let share = budget / (self.recorded.len().max(1) as u64);
        let at = now().unwrap_or(Timestamp::MIN);
        let mut grown = Vec::new();
        for (pid, recorded) in &mut self.recorded {
            if recorded.old.session.has_ended() && recorded.new.is_none() {
                recorded.ended.get_or_insert_with(Instant::now);
            } else if recorded.old.bytes.get() > share / 2 && recorded.new.is_none() {
                grown.push(*pid);
            }
            let is_due = |new: &mut Trace| {
                at - new.begun > keep || new.bytes.get() > share / 2 || new.session.has_ended()
            };
            if let Some(new) = recorded.new.take_if(is_due) {
                new.leads.store(true, Ordering::Relaxed);
                let old = std::mem::replace(&mut recorded.old, new);
                old.leads.store(false, Ordering::Relaxed);
                old.session.stop();
                self.ending.push(old);
            }
        }
        for pid in grown {
            let successor = self.successor(pid);
            if let Some(recorded) = self.recorded.get_mut(&pid) {
                recorded.new = successor;
            }
        }
        // One that ended in less time than is kept is evicted for space.
        let is_full = self.bytes() > budget;
        let is_gone = |_: &u32, recorded: &mut Recorded| {
            let is_over = recorded.ended.is_some_and(|ended| ended.elapsed() > keep || is_full);
            // Another process has its id.
            is_over
                || procfs::start_time(recorded.process.pid)
                    .is_some_and(|start| recorded.started.is_some_and(|before| before != start))
        };
        let mut gone: Vec<u32> = Vec::new();
        for (pid, recorded) in &mut self.recorded {
            if is_gone(pid, recorded) {
                gone.push(*pid);
            }
        }
        for recorded in gone.iter().filter_map(|pid| self.recorded.remove(pid)) {
            self.ending.push(recorded.old);
            self.ending.extend(recorded.new);
        }
        let (ended, ending) = std::mem::take(&mut self.ending)
            .into_iter()
            .partition(|trace: &Trace| trace.session.has_ended());
        self.ending = ending;
        let ended: Vec<Trace> = ended;
        ended.into_iter().for_each(Trace::discard);
    }

    /// Another session of a process that is recorded, if it runs.
    fn successor(&mut self, pid: u32) -> Option<Trace> {
        let recorded = self.recorded.get(&pid)?;
        if recorded.old.session.has_ended() {
            return None;
        }
        let process = recorded.process.clone();
        let client = Client::for_process(pid).ok()?;
        match self.start(&client, &process, false) {
            Ok(trace) => Some(trace),
            Err(failure) => {
                self.unrecorded.add(pid, &process.name, failure.message().to_owned());
                None
            }
        }
    }

    fn start(&self, client: &Client, process: &Process, leads: bool) -> Result<Trace> {
        let time = now().map_err(Failure::new)?;
        let pid = process.pid;
        let path = self.dir.join(format!("dotnet-{pid}-{}.nettrace", time.nanos()));
        let fail = |error: io::Error| Failure::about(path.display(), error);
        let (file, bytes) = (private::create_new(&path).map_err(fail)?, Count::default());
        let leads = Arc::new(AtomicBool::new(leads));
        let watch = (!self.triggers.is_empty()).then(|| {
            DotnetWatch::new(self.triggers.clone(), process.clone(), &self.outbox, &leads)
        });
        let file = Masked::new(Counted::new(file, bytes.clone()), self.command_lines);
        let tee = Tee { file, watch };
        match Session::start(client, pid, &self.config, tee) {
            Ok(session) => {
                let begun = now().map_err(Failure::new)?;
                Ok(Trace { session, path, begun, bytes, leads })
            }
            Err(failure) => {
                let _ = fs::remove_file(&path); // it is empty
                Err(failure)
            }
        }
    }

    /// The traces for a dump. New sessions follow them.
    pub(super) fn collect(&mut self, window: &Window) -> Vec<Collected> {
        let mut collected: Vec<Collected> = self.unrecorded.collect("dotnet").collect();
        let pids: Vec<u32> = self.recorded.keys().copied().collect();
        for pid in pids {
            let has_new = self.recorded.get(&pid).is_some_and(|recorded| recorded.new.is_some());
            let successor = if has_new { None } else { self.successor(pid) };
            let Some(mut recorded) = self.recorded.remove(&pid) else { continue };
            let mut source = Source::new("dotnet", pid, recorded.process.name.clone());
            let new = recorded.new.take().or(successor);
            let old = match new {
                Some(new) => {
                    new.leads.store(true, Ordering::Relaxed);
                    let old = std::mem::replace(&mut recorded.old, new);
                    self.recorded.insert(pid, recorded);
                    old
                }
                None => recorded.old,
            };
            old.leads.store(false, Ordering::Relaxed);
            old.session.stop();
            source.from = Some(old.begun);
            source.missing = late(window, old.begun);
            collected.push(Collected { source, part: Part::Dotnet(old) });
        }
        collected
    }

    /// Ends all sessions.
    pub(super) fn close(self) {
        let all = self
            .recorded
            .into_values()
            .flat_map(|recorded| std::iter::once(recorded.old).chain(recorded.new));
        let all: Vec<Trace> = all.chain(self.ending).collect();
        all.iter().for_each(|trace| trace.session.stop());
        all.into_iter().for_each(Trace::discard);
    }
}
