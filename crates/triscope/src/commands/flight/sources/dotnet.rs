//! Sessions of .NET runtimes.
//!
//! A runtime has one session, whose stream goes to a file. For a dump, another session begins, and the
//! first one is ended, which completes its file with the names of methods. The same happens when a file
//! has half of its share of the disk, and the new session has lasted as long as is kept. If no other
//! session can be started, the one that there is ends with its share.

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
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use trace_flight::{Source, Timestamp, Window};

/// Age at which a process without a runtime is looked at less often.
const YOUNG: Duration = Duration::from_secs(3);

/// Older processes that are looked at again at each look.
const AGAIN: usize = 16;

/// Megabytes of the buffer in a runtime.
const BUFFER_MB: u32 = 16;

/// Bytes that a session for a dump may still write once its end was requested: the names of the methods of a
/// large program. A runtime could go on for minutes.
const NAMES: u64 = 64 << 20;

/// The size of a file, and its limit.
#[derive(Clone, Default)]
struct Size {
    bytes: Count,
    limit: Arc<AtomicU64>,
}

impl Size {
    /// Allows this number of bytes more.
    fn allow(&self, more: u64) {
        self.limit.store(self.bytes.get().saturating_add(more), Ordering::Relaxed);
    }

    fn has_room(&self, more: usize) -> bool {
        self.bytes.get() + more as u64 <= self.limit.load(Ordering::Relaxed)
    }
}

/// Writes the stream of a session to its file, and watches it.
struct Tee {
    file: Masked<Counted<File>>,
    size: Size,
    watch: Option<DotnetWatch>,
}

impl Write for Tee {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // The error ends the session.
        if !self.size.has_room(bytes.len()) {
            return Err(io::Error::new(
                io::ErrorKind::FileTooLarge,
                "it has its share of the disk",
            ));
        }
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
    size: Size,
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

    fn bytes(&self) -> u64 {
        self.size.bytes.get()
    }

    /// Requests the end, after which the runtime may write this number of bytes.
    fn stop(&self, room: u64) {
        self.size.allow(room);
        self.leads.store(false, Ordering::Relaxed);
        self.session.stop();
    }

    /// Requests the end, and removes the file: nobody needs it, and the runtime may take minutes.
    fn abandon(&self) {
        self.stop(0);
        // The session still has it open.
        let _ = File::options().write(true).truncate(true).open(&self.path);
        let _ = fs::remove_file(&self.path);
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
    /// Whether the end of the old session was requested, as no other could be started.
    is_stopped: bool,
}

impl Recorded {
    const fn new(process: Process, started: Option<u64>, old: Trace) -> Self {
        Self { process, started, old, new: None, ended: None, is_stopped: false }
    }

    fn bytes(&self) -> u64 {
        self.old.bytes() + self.new.as_ref().map_or(0, Trace::bytes)
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
    /// Sessions that were requested to end, without their files.
    ending: Vec<Trace>,
    /// Bytes of all files.
    budget: u64,
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
            budget: 0,
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
                    self.unrecorded.remove(pid);
                    self.recorded.insert(pid, Recorded::new(process, started, old));
                }
                Err(failure) => {
                    self.unrecorded.add(pid, &process.name, failure.message().to_owned());
                }
            }
        }
    }

    /// Ends sessions that have grown, and forgets processes that ended long ago.
    fn end_old(&mut self, budget: u64, keep: Duration) {
        self.budget = budget;
        let share = budget / (self.recorded.len().max(1) as u64);
        let at = now().unwrap_or(Timestamp::MIN);
        let mut grown = Vec::new();
        for (pid, recorded) in &mut self.recorded {
            if recorded.old.session.has_ended() && recorded.new.is_none() {
                recorded.ended.get_or_insert_with(Instant::now);
            } else if recorded.old.bytes() > share / 2
                && recorded.new.is_none()
                && !recorded.is_stopped
            {
                grown.push(*pid);
            }
            let is_due = |new: &mut Trace| {
                at - new.begun > keep || new.bytes() > share / 2 || new.session.has_ended()
            };
            if let Some(new) = recorded.new.take_if(is_due) {
                new.leads.store(true, Ordering::Relaxed);
                let old = std::mem::replace(&mut recorded.old, new);
                old.abandon();
                self.ending.push(old);
            }
        }
        for pid in grown {
            let successor = self.successor(pid);
            let Some(recorded) = self.recorded.get_mut(&pid) else { continue };
            match successor {
                Some(Err(failure)) if recorded.old.bytes() > share => {
                    let name = &recorded.process.name;
                    let why = format!(
                        "its trace has its share of the disk, and no other session can be \
                         started: {}",
                        failure.message()
                    );
                    let what = format_args!("not recorded any more: {why}");
                    Failure::about(format_args!("{name} ({pid})"), what).print();
                    self.unrecorded.add(pid, name, why);
                    recorded.is_stopped = true;
                    recorded.old.stop(share / 2);
                }
                // It is tried again.
                Some(Err(_)) => {}
                other => recorded.new = other.and_then(Result::ok),
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
            let first = self.ending.len();
            self.ending.push(recorded.old);
            self.ending.extend(recorded.new);
            self.ending.iter().skip(first).for_each(Trace::abandon);
        }
        self.ending.retain(|trace| !trace.session.has_ended());
    }

    /// Another session of a process that is recorded, if it runs.
    fn successor(&self, pid: u32) -> Option<Result<Trace>> {
        let recorded = self.recorded.get(&pid)?;
        if recorded.old.session.has_ended() {
            return None;
        }
        let client = Client::for_process(pid).map_err(Failure::new);
        Some(client.and_then(|client| self.start(&client, &recorded.process, false)))
    }

    fn start(&self, client: &Client, process: &Process, leads: bool) -> Result<Trace> {
        let time = now().map_err(Failure::new)?;
        let pid = process.pid;
        let path = self.dir.join(format!("dotnet-{pid}-{}.nettrace", time.nanos()));
        let fail = |error: io::Error| Failure::about(path.display(), error);
        let (file, size) = (private::create_new(&path).map_err(fail)?, Size::default());
        // Only a stream that is faster than the looks reaches it.
        size.allow(self.budget.saturating_mul(2));
        let leads = Arc::new(AtomicBool::new(leads));
        let watch = (!self.triggers.is_empty()).then(|| {
            DotnetWatch::new(self.triggers.clone(), process.clone(), &self.outbox, &leads)
        });
        let file = Masked::new(Counted::new(file, size.bytes.clone()), self.command_lines);
        let tee = Tee { file, size: size.clone(), watch };
        match Session::start(client, pid, &self.config, tee) {
            Ok(session) => {
                let begun = now().map_err(Failure::new)?;
                Ok(Trace { session, path, begun, size, leads })
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
        let room = self.budget.max(NAMES);
        let pids: Vec<u32> = self.recorded.keys().copied().collect();
        for pid in pids {
            let has_new = self.recorded.get(&pid).is_some_and(|recorded| recorded.new.is_some());
            let successor = if has_new { None } else { self.successor(pid) };
            let Some(mut recorded) = self.recorded.remove(&pid) else { continue };
            let mut source = Source::new("dotnet", pid, recorded.process.name.clone());
            let successor = match successor {
                Some(Err(failure)) => {
                    let why = failure.message().to_owned();
                    self.unrecorded.add(pid, &recorded.process.name, why);
                    None
                }
                other => other.and_then(Result::ok),
            };
            let new = recorded.new.take().or(successor);
            let is_stopped = std::mem::take(&mut recorded.is_stopped);
            let old = match new {
                Some(new) => {
                    new.leads.store(true, Ordering::Relaxed);
                    self.unrecorded.remove(pid);
                    let old = std::mem::replace(&mut recorded.old, new);
                    self.recorded.insert(pid, recorded);
                    old
                }
                None => recorded.old,
            };
            if !is_stopped {
                old.stop(room);
            }
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
        all.iter().for_each(Trace::abandon);
        all.into_iter().for_each(|trace| drop(trace.session.finish()));
    }
}

#[cfg(test)]
#[path = "dotnet_tests.rs"]
mod tests;
