//! Sessions of .NET runtimes.
//!
//! A runtime has one session, whose stream goes to a file. For a dump, another session begins, and the
//! first one is ended, which completes its file with the names of methods. The same happens when a file
//! has half of its share of the disk, and the new session has lasted as long as is kept. If no other
//! session can be started, the one that there is ends with its share. One that ends while its process runs, as on a
//! full disk, stays for dumps, and another one begins after a pause.
//!
//! A socket may hang: each session is started and ended by threads of its own.

use super::dotnet_trace::{Begun, Start, Trace};
use super::dotnet_watch::{DotnetWatch, Process, providers};
use super::{Collected, MAX_PROCESSES, NO_SPACE, Part, Unrecorded, late};
use crate::commands::flight::inbox::Outbox;
use crate::commands::flight::threads;
use crate::commands::flight::trigger::DotnetTrigger;
use crate::failure::{Failure, Result};
use crate::io::place::Place;
use crate::io::private;
use crate::run::candidate::may_have_socket;
use crate::run::family::Turns;
use crate::run::procfs;
use crate::run::runtimes::{NO_REPLY, always, program};
use crate::timeline::now;
use crossbeam_channel::{Receiver, Sender, unbounded};
use diag_ipc::{Client, TracingConfig, discovery};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};
use trace_flight::{Source, Timestamp, Window};

/// Age at which a process without a runtime is looked at less often.
const YOUNG: Duration = Duration::from_secs(3);

/// Older processes that are looked at again at each look.
const AGAIN: usize = 16;

/// Megabytes of the buffer in a runtime.
const BUFFER_MB: u32 = 16;

/// Bytes that a session for a dump may still write once its end was requested: the names of the methods of a
/// large program. A runtime could continue for minutes.
const NAMES: u64 = 64 << 20;

/// Time after which a session is not waited for that was requested as the share of another one is used up.
const LATE: Duration = Duration::from_secs(2);

/// First and longest time after which another session begins where one has ended while its process runs. Each is twice
/// as long as the one before.
const PAUSE: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(320));

/// Time limit for the ends of all sessions at the end.
const END: Duration = Duration::from_secs(5);

/// A process with a runtime.
struct Recorded {
    process: Process,
    /// A process id can be reused.
    started: Option<u64>,
    old: Trace,
    new: Option<Trace>,
    /// Whether the old session ended before the new one, at its own limit.
    is_cut: bool,
    ended: Option<Instant>,
    /// Whether the end of the old session was requested, as no other could be started.
    is_stopped: bool,
    /// Why no other could be started.
    refusal: Option<String>,
}

impl Recorded {
    const fn new(process: Process, started: Option<u64>, old: Trace) -> Self {
        Self {
            process,
            started,
            old,
            new: None,
            is_cut: false,
            ended: None,
            is_stopped: false,
            refusal: None,
        }
    }

    /// Whether another session may begin.
    fn may_continue(&self) -> bool {
        self.ended.is_none() && self.new.is_none() && !self.old.has_ended()
    }

    /// Another session follows. Returns the one before.
    fn advance(&mut self, new: Trace) -> Trace {
        new.lead();
        (self.is_cut, self.is_stopped, self.refusal) = (false, false, None);
        std::mem::replace(&mut self.old, new)
    }

    /// Takes a new session that has ended: with the process, of which the old one has more, or by an error.
    fn take_ended(&mut self) -> Option<Trace> {
        let new = self.new.as_ref()?;
        if !new.has_ended() {
            self.is_cut = self.old.has_ended();
            if self.is_cut {
                // The old one has no more events that could.
                new.lead();
            }
            return None;
        }
        if self.is_cut {
            return None;
        }
        if !self.old.has_ended() {
            self.refusal.get_or_insert_with(|| "the session ended".to_owned());
        }
        self.new.take()
    }

    fn bytes(&self) -> u64 {
        self.old.bytes() + self.new.as_ref().map_or(0, Trace::bytes)
    }

    /// Whether its process runs.
    fn runs(&self) -> bool {
        let pid = self.process.pid;
        let is_it = self.started.is_some() && procfs::start_time(pid) == self.started;
        is_it && procfs::is_running(pid)
    }

    /// Whether another process has its id.
    fn is_replaced(&self) -> bool {
        let start = procfs::start_time(self.process.pid);
        start.zip(self.started).is_some_and(|(start, before)| start != before)
    }
}

/// A trace that later dumps of its time lack: a dump has taken it, or it was removed.
struct Gone {
    process: Process,
    started: Option<u64>,
    /// Its end.
    until: Timestamp,
    why: String,
}

/// A session that was requested. The reply may never come.
struct Starting {
    name: String,
    since: Instant,
    path: Place,
}

/// The reply to the request for a session.
pub(super) struct Settled {
    process: Process,
    started: Option<u64>,
    result: Result<Option<Begun>>,
}

/// The runtimes that are recorded.
pub(super) struct Runtimes {
    dir: Place,
    triggers: Vec<DotnetTrigger>,
    /// Whether the command lines of programs are kept.
    command_lines: bool,
    config: TracingConfig,
    outbox: Outbox,
    recorded: BTreeMap<u32, Recorded>,
    /// Those whose id another process has, and those whose process may have another session, oldest first.
    replaced: Vec<Recorded>,
    /// Those whose traces are not here any more.
    gone: Vec<Gone>,
    /// The last pauses of processes whose sessions have ended while they run.
    pauses: BTreeMap<u32, Duration>,
    /// Sessions that were requested: at most one of a process.
    starting: BTreeMap<u32, Starting>,
    replies: (Sender<Settled>, Receiver<Settled>),
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
        dir: impl Into<Place>,
        triggers: Vec<DotnetTrigger>,
        command_lines: bool,
        outbox: &Outbox,
    ) -> Self {
        let config = TracingConfig::new(providers(&triggers, always())).buffer_mb(BUFFER_MB);
        Self {
            dir: dir.into(),
            triggers,
            command_lines,
            config,
            outbox: outbox.clone(),
            recorded: BTreeMap::new(),
            replaced: Vec::new(),
            gone: Vec::new(),
            pauses: BTreeMap::new(),
            starting: BTreeMap::new(),
            replies: unbounded(),
            candidates: BTreeMap::new(),
            turns: Turns::default(),
            unrecorded: Unrecorded::default(),
            ending: Vec::new(),
            budget: 0,
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.recorded.values().chain(&self.replaced).map(Recorded::bytes).sum()
    }

    pub(super) fn recorded(&self) -> usize {
        self.recorded.len()
    }

    /// Looks at the processes, and keeps the budget, and what came since the earliest time.
    pub(super) fn look(&mut self, processes: &BTreeSet<u32>, budget: u64, earliest: Timestamp) {
        self.look_at(Instant::now(), processes, budget, earliest);
    }

    fn look_at(
        &mut self,
        at: Instant,
        processes: &BTreeSet<u32>,
        budget: u64,
        earliest: Timestamp,
    ) {
        self.end_old(budget, earliest);
        self.pauses.retain(|pid, _| processes.contains(pid));
        self.release_ended(at);
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
        // It connects to no socket: the thread of the session does. It lists a large directory once, not for each process.
        let mut search = discovery::Search::new(Duration::ZERO);
        for pid in pids {
            let may_have_runtime = match search.find(pid) {
                Ok(_) => true,
                Err(error) => may_have_socket(pid, &error),
            };
            if !may_have_runtime || self.starting.contains_key(&pid) {
                continue;
            }
            if self.recorded.len() >= MAX_PROCESSES {
                self.unrecorded.add(pid, &program(pid), too_many());
                continue;
            }
            if self.starting.len() < MAX_PROCESSES {
                let process = Process { pid, name: program(pid) };
                self.begin(process, true, move || Ok(Client::for_process(pid).ok()));
            }
        }
    }

    /// Requests a session. The reply is [`settled`](Self::settled).
    fn begin(
        &mut self,
        process: Process,
        leads: bool,
        client: impl FnOnce() -> Result<Option<Client>> + Send + 'static,
    ) {
        let started = procfs::start_time(process.pid);
        let (pid, name, since) = (process.pid, process.name.clone(), Instant::now());
        let start = match self.start(&process, leads) {
            Ok(start) => start,
            Err(failure) => return self.conclude(process, started, Err(failure)),
        };
        let (path, to, of) = (start.path().clone(), self.replies.0.clone(), process.clone());
        let thread = threads::start("a .NET session", move || {
            let result = start.run(client).map(|trace| trace.map(Begun::new));
            let _ = to.send(Settled { process, started, result }); // nothing may want it any more
        });
        match thread {
            Ok(_) => drop(self.starting.insert(pid, Starting { name, since, path })),
            Err(failure) => {
                let _ = fs::remove_file(&path); // it is empty
                self.conclude(of, started, Err(failure));
            }
        }
    }

    /// Another session of a process that is recorded.
    fn follow(&mut self, pid: u32) {
        let Some(recorded) = self.recorded.get(&pid) else { return };
        if recorded.may_continue() && !self.starting.contains_key(&pid) {
            let client = move || Client::for_process(pid).map(Some).map_err(Failure::new);
            self.begin(recorded.process.clone(), false, client);
        }
    }

    /// The replies to requests for sessions.
    pub(super) const fn settled(&self) -> &Receiver<Settled> {
        &self.replies.1
    }

    pub(super) fn settle(&mut self, settled: Settled) {
        let Settled { process, started, result } = settled;
        self.starting.remove(&process.pid);
        self.conclude(process, started, result);
    }

    fn conclude(&mut self, process: Process, started: Option<u64>, result: Result<Option<Begun>>) {
        let (pid, count) = (process.pid, self.recorded.len());
        match (result, self.recorded.get_mut(&pid)) {
            // Another process has its id meanwhile, and may be the one with this session. It is looked at again.
            (_, Some(recorded)) if recorded.started != started || recorded.is_replaced() => {}
            (Ok(Some(begun)), Some(recorded)) => {
                (recorded.new, recorded.ended) = (begun.take(), None);
                self.unrecorded.remove(pid);
            }
            (Ok(Some(_)), None) if count >= MAX_PROCESSES => {
                self.unrecorded.add(pid, &process.name, too_many());
            }
            (Ok(Some(begun)), None) => {
                let Some(trace) = begun.take() else { return };
                trace.lead();
                self.unrecorded.remove(pid);
                self.recorded.insert(pid, Recorded::new(process, started, trace));
            }
            (Err(failure), Some(recorded)) => recorded.refusal = Some(failure.message().to_owned()),
            (Err(failure), None) => {
                self.unrecorded.add(pid, &process.name, failure.message().to_owned());
            }
            // It has no runtime.
            (Ok(None), _) => {}
        }
    }

    /// Ends sessions that have grown, and forgets processes that ended long ago.
    fn end_old(&mut self, budget: u64, earliest: Timestamp) {
        self.budget = budget;
        let count = self.recorded.len() + self.replaced.len();
        let share = budget / (count.max(1) as u64);
        let mut grown = Vec::new();
        for recorded in self.recorded.values_mut().chain(&mut self.replaced) {
            if let Some(new) = recorded.take_ended() {
                new.abandon();
                self.ending.push(new);
            }
            if recorded.old.has_ended() && recorded.new.is_none() {
                recorded.ended.get_or_insert_with(Instant::now);
            } else if recorded.old.bytes() > share / 2
                && recorded.new.is_none()
                && recorded.ended.is_none()
                && !recorded.is_stopped
            {
                grown.push(recorded.process.pid);
            }
            let is_due = |new: &mut Trace| {
                new.begun < earliest || new.bytes() > share / 2 || new.has_ended()
            };
            if let Some(new) = recorded.new.take_if(is_due) {
                let old = recorded.advance(new);
                old.abandon();
                self.ending.push(old);
            }
        }
        for pid in grown {
            let Some(recorded) = self.recorded.get_mut(&pid) else { continue };
            let is_late = |starting: &&Starting| starting.since.elapsed() >= LATE;
            let late = self.starting.get(&pid).filter(is_late).map(|_| NO_REPLY.to_owned());
            match recorded.refusal.take().or(late) {
                Some(refusal) if recorded.old.bytes() > share => {
                    let name = &recorded.process.name;
                    let why = format!(
                        "its trace has its share of the disk, and no other session can be \
                         started: {refusal}"
                    );
                    let what = format!("not recorded any more: {why}");
                    Failure::about(format_args!("{name} ({pid})"), what).print();
                    self.unrecorded.add(pid, name, why);
                    recorded.is_stopped = true;
                    recorded.old.stop(share / 2);
                }
                // It is tried again.
                _ => self.follow(pid),
            }
        }
        let is_replaced =
            |(pid, recorded): (&u32, &Recorded)| recorded.is_replaced().then_some(*pid);
        let replaced: Vec<u32> = self.recorded.iter().filter_map(is_replaced).collect();
        for mut recorded in replaced.iter().filter_map(|pid| self.recorded.remove(pid)) {
            recorded.ended.get_or_insert_with(Instant::now);
            // Its streams end with it, unless one is that of the other process.
            let traces = std::iter::once(&recorded.old).chain(&recorded.new);
            traces.for_each(|trace| trace.stop(share / 2));
            self.replaced.push(recorded);
        }
        self.evict(budget, earliest);
        self.gone.retain(|gone| gone.until >= earliest);
        self.ending.retain(|trace| !trace.has_ended());
    }

    /// Removes sessions that ended before what is kept, and the oldest ones of the others until the rest fits.
    fn evict(&mut self, budget: u64, earliest: Timestamp) {
        let excess = self.replaced.len().saturating_sub(MAX_PROCESSES);
        for recorded in self.replaced.drain(..excess).collect::<Vec<_>>() {
            let why = format!("it was removed, as {MAX_PROCESSES} other traces are kept");
            self.remove(recorded, Some(why));
        }
        let (at, keep) = (Instant::now(), now().unwrap_or(Timestamp::MIN) - earliest);
        while let Some((ended, place, pid)) = self.oldest() {
            let is_old = at.saturating_duration_since(ended) > keep;
            if !is_old && self.bytes() <= budget {
                return;
            }
            let oldest = match place {
                Some(place) => Some(self.replaced.remove(place)),
                None => self.recorded.remove(&pid),
            };
            let Some(oldest) = oldest else { return };
            self.remove(oldest, (!is_old).then(|| NO_SPACE.to_owned()));
        }
    }

    /// The session that ended first: when, its place if it is one of those that were replaced, and its process.
    fn oldest(&self) -> Option<(Instant, Option<usize>, u32)> {
        let of = |place: Option<usize>, recorded: &Recorded| {
            Some((recorded.ended?, place, recorded.process.pid))
        };
        let replaced = self.replaced.iter().enumerate();
        let replaced = replaced.filter_map(|(place, recorded)| of(Some(place), recorded));
        self.recorded.values().filter_map(|recorded| of(None, recorded)).chain(replaced).min()
    }

    /// Removes a session. There is a reason if a dump could need it.
    fn remove(&mut self, recorded: Recorded, why: Option<String>) {
        if let Some(why) = why {
            self.note(&recorded, why);
        }
        let first = self.ending.len();
        self.ending.push(recorded.old);
        self.ending.extend(recorded.new);
        self.ending.iter().skip(first).for_each(Trace::abandon);
    }

    /// Notes why later dumps lack the trace of a process.
    fn note(&mut self, recorded: &Recorded, why: String) {
        let until = recorded.old.ended().or_else(|| now().ok()).unwrap_or(Timestamp::MIN);
        let (process, started) = (recorded.process.clone(), recorded.started);
        self.gone.push(Gone { process, started, until, why });
    }

    /// The pause after the session of a process that has ended. It is the first one again after a session that lasted.
    fn pause(&self, recorded: &Recorded) -> Duration {
        let age = now().map_or(Duration::ZERO, |now| now - recorded.old.begun);
        let before = self.pauses.get(&recorded.process.pid).filter(|_| age <= 2 * PAUSE.1);
        before.map_or(PAUSE.0, |before| before.saturating_mul(2).min(PAUSE.1))
    }

    /// Lets processes have other sessions whose own ones have ended while they run. What ended these can be over.
    fn release_ended(&mut self, at: Instant) {
        let is_due = |(pid, recorded): (&u32, &Recorded)| {
            let ended = recorded.ended.filter(|_| !self.starting.contains_key(pid))?;
            let pause = self.pause(recorded);
            let is_over = at.saturating_duration_since(ended) >= pause;
            (is_over && recorded.runs()).then_some((*pid, pause))
        };
        let due: Vec<(u32, Duration)> = self.recorded.iter().filter_map(is_due).collect();
        for (pid, pause) in due {
            let Some(recorded) = self.recorded.remove(&pid) else { continue };
            self.pauses.insert(pid, pause);
            let why = recorded.old.failure().unwrap_or_else(|| "its stream has ended".to_owned());
            let what = format!("its .NET session has ended, and it runs: {why}");
            Failure::about(format_args!("{} ({pid})", recorded.process.name), what).print();
            // Without data it is of no use to a dump.
            match recorded.old.bytes() {
                0 => recorded.old.abandon(),
                _ => self.replaced.push(recorded),
            }
        }
    }

    fn start(&self, process: &Process, leads: bool) -> Result<Start> {
        let time = now().map_err(Failure::new)?;
        let path = self.dir.join(format!("dotnet-{}-{}.nettrace", process.pid, time.nanos()));
        let fail = |error: io::Error| Failure::about(path.display(), error);
        let file = private::create_new(path.path()).map_err(fail)?;
        let leads = Arc::new(AtomicBool::new(leads));
        let watch = (!self.triggers.is_empty()).then(|| {
            DotnetWatch::new(self.triggers.clone(), process.clone(), &self.outbox, &leads)
        });
        // Only a stream that is faster than the looks reaches the limit.
        let limits = (self.budget.saturating_mul(2), self.command_lines);
        Ok(Start::new(process, &self.config, (path, file), limits, &leads, watch))
    }

    /// Requests the sessions that follow those of a dump.
    pub(super) fn prepare(&mut self) {
        let pids: Vec<u32> = self.recorded.keys().copied().collect();
        pids.into_iter().for_each(|pid| self.follow(pid));
    }

    /// Whether the sessions that follow have begun, or cannot.
    pub(super) fn is_prepared(&self) -> bool {
        self.starting.keys().all(|pid| !self.recorded.contains_key(pid))
    }

    /// The traces for a dump. Those that were [prepared](Self::prepare) follow them.
    pub(super) fn collect(&mut self, window: &Window) -> Vec<Collected> {
        let mut unrecorded = self.unrecorded.clone();
        for (pid, Starting { name, .. }) in &self.starting {
            if !self.recorded.contains_key(pid) && !unrecorded.has(*pid) {
                unrecorded.add(*pid, name, NO_REPLY.to_owned());
            }
        }
        for Gone { process, started, why, .. } in
            self.gone.iter().filter(|gone| gone.until >= window.start)
        {
            // A session that follows says itself what is missing before it.
            let recorded = self.recorded.get(&process.pid);
            let is_followed = recorded.is_some_and(|recorded| recorded.started == *started);
            if !is_followed && !unrecorded.has(process.pid) {
                unrecorded.add(process.pid, &process.name, why.clone());
            }
        }
        let mut collected = unrecorded.collect("dotnet");
        for recorded in std::mem::take(&mut self.replaced) {
            let (part, left) = self.part(recorded, window);
            collected.push(part);
            self.replaced.extend(left);
        }
        for (pid, recorded) in std::mem::take(&mut self.recorded) {
            let (part, left) = self.part(recorded, window);
            collected.push(part);
            self.recorded.extend(left.map(|left| (pid, left)));
        }
        collected
    }

    /// The part of a process in a dump, and what is left of it for the next one.
    fn part(&mut self, mut recorded: Recorded, window: &Window) -> (Collected, Option<Recorded>) {
        let (pid, is_stopped) = (recorded.process.pid, recorded.is_stopped);
        let mut source = Source::new("dotnet", pid, recorded.process.name.clone());
        if recorded.may_continue() {
            let why = recorded.refusal.take().unwrap_or_else(|| NO_REPLY.to_owned());
            self.unrecorded.add(pid, &recorded.process.name, why);
        }
        // A session that follows says itself what is missing before it.
        let is_followed = recorded.new.is_some() || self.recorded.contains_key(&pid);
        let is_cut = !is_followed && recorded.ended.is_some() && recorded.runs();
        let (old, left) = match recorded.new.take() {
            Some(new) => (recorded.advance(new), Some(recorded)),
            None => {
                self.note(&recorded, "it was taken for an earlier dump".to_owned());
                (recorded.old, None)
            }
        };
        if !is_stopped {
            old.stop(self.budget.max(NAMES));
        }
        source.start = Some(old.begun);
        let after = || is_cut.then(|| "the time after: its session had ended".to_owned());
        source.missing = late(window, old.begun).or_else(after);
        (Collected { source, part: Part::Dotnet(old) }, left)
    }

    /// Ends all sessions, and those that begin later. Returns those that were there.
    pub(super) fn abandon(self) -> Vec<Trace> {
        for starting in self.starting.values() {
            let _ = fs::remove_file(&starting.path); // it may have failed
        }
        let recorded = self.recorded.into_values().chain(self.replaced);
        let all = recorded.flat_map(|recorded| std::iter::once(recorded.old).chain(recorded.new));
        let all: Vec<Trace> = all.chain(self.ending).collect();
        all.iter().for_each(Trace::abandon);
        all
    }

    /// Ends all sessions, and waits a while for the ends.
    pub(super) fn close(mut self) {
        let until = Instant::now() + END;
        while !self.starting.is_empty() {
            let Ok(settled) = self.replies.1.recv_deadline(until) else { break };
            self.settle(settled);
        }
        self.abandon().iter().for_each(|trace| trace.wait_until(until));
    }
}

fn too_many() -> String {
    format!("{MAX_PROCESSES} other runtimes are recorded")
}

#[cfg(test)]
#[path = "dotnet_tests.rs"]
mod tests;
