//! Delays and long runs of threads, from the records of the scheduler.

use super::trigger::Trigger;
use perf_monitor::{RawRecord, Record, RecordLayout};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;
use trace_flight::{Cause, Timestamp};
use trace_timeline::text;

/// The thresholds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Limits {
    /// From runnable to running.
    delay: Option<Duration>,
    /// On a CPU without a pause.
    on_cpu: Option<Duration>,
}

impl Limits {
    /// The lowest thresholds of triggers.
    pub(super) fn of(triggers: &[Trigger]) -> Self {
        let lowest = |of: fn(&Trigger) -> Option<Duration>| triggers.iter().filter_map(of).min();
        Self { delay: lowest(Trigger::delay), on_cpu: lowest(Trigger::on_cpu) }
    }
}

/// Follows threads. Records come in time order.
#[derive(Debug)]
pub(super) struct Detector {
    limits: Limits,
    /// The processes whose threads fire, or all.
    focus: Option<Focus>,
    /// Threads that wait for a CPU, since when, and whether that has fired.
    waiting: HashMap<u32, (Timestamp, bool)>,
    /// The threads on the CPUs, since when, and whether that has fired.
    running: BTreeMap<u32, (u32, Timestamp, bool)>,
    /// The threads on the CPUs: one that is woken while it runs does not wait.
    on: HashSet<u32>,
    /// This program.
    own: u32,
}

#[derive(Debug, Default)]
struct Focus {
    pids: HashSet<u32>,
    /// The threads, with their processes.
    tids: HashMap<u32, u32>,
}

/// Threads that wait at once and are followed.
const MAX_WAITING: usize = 1 << 16;

/// The type of a record. Source: `perf_event_open(2)`.
const PERF_RECORD_LOST: u32 = 2;

impl Detector {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            limits,
            focus: None,
            waiting: HashMap::new(),
            running: BTreeMap::new(),
            on: HashSet::new(),
            own: std::process::id(),
        }
    }

    /// Watches the threads of this process and of its future children only, and those of the processes
    /// that are watched already.
    pub(super) fn focus(&mut self, pid: u32) {
        let Focus { pids, tids } = self.focus.get_or_insert_default();
        pids.insert(pid);
        let threads = perf_monitor::threads(pid).into_iter().chain([pid]);
        tids.extend(threads.map(|tid| (tid, pid)));
    }

    /// Watches the processes that another detector watched.
    pub(super) fn take_focus(&mut self, of: &mut Self) {
        self.focus = of.focus.take();
    }

    /// Finds no delays and long runs any more: nothing ends a run or a wait. The processes are watched
    /// still.
    pub(super) fn stop(&mut self) {
        self.limits = Limits::default();
        self.waiting.clear();
        self.running.clear();
        self.on.clear();
    }

    /// Whether the thread is one of the process that is watched, or all are.
    fn follows(&self, tid: u32) -> bool {
        self.focus.as_ref().is_none_or(|of| of.tids.contains_key(&tid))
    }

    /// Whether a signal for the thread is one for a process that is watched: the main thread can end before the others, and
    /// is still the one that a KILL is for.
    pub(super) fn follows_signals(&self, tid: u32) -> bool {
        let follows = |of: &Focus| of.tids.contains_key(&tid) || of.pids.contains(&tid);
        self.focus.as_ref().is_none_or(follows)
    }

    pub(super) const fn is_active(&self) -> bool {
        self.limits.delay.is_some() || self.limits.on_cpu.is_some()
    }

    /// Follows the children of the process, and losses.
    pub(super) fn sideband(&mut self, cpu: u32, layout: &RecordLayout, raw: RawRecord<'_>) {
        if raw.type_() == PERF_RECORD_LOST {
            self.lost(cpu);
        }
        let Some(Focus { pids, tids }) = &mut self.focus else { return };
        match layout.decode(raw) {
            Ok(Record::Fork(fork)) if pids.contains(&fork.ppid) || pids.contains(&fork.pid) => {
                pids.insert(fork.pid);
                tids.insert(fork.tid, fork.pid);
            }
            // A thread that executes a program becomes the main thread, which has ended before.
            Ok(Record::Comm(comm)) if comm.by_exec && pids.contains(&comm.pid) => {
                tids.retain(|_, pid| *pid != comm.pid);
                tids.insert(comm.pid, comm.pid);
            }
            Ok(Record::Exit(exit)) => {
                tids.remove(&exit.tid);
                // The main thread can end before the others.
                if !tids.values().any(|pid| *pid == exit.pid) {
                    pids.remove(&exit.pid);
                }
            }
            _ => {}
        }
    }

    /// Records of a CPU were lost, or it went offline: which threads wait is not known, nor which one has it.
    pub(super) fn lost(&mut self, cpu: u32) {
        self.waiting.clear();
        if let Some((tid, ..)) = self.running.remove(&cpu) {
            self.on.remove(&tid);
        }
    }

    fn fires(&self, tid: u32) -> bool {
        tid != 0 && tid != self.own && self.follows(tid)
    }

    /// A thread is to run.
    pub(super) fn woken(&mut self, at: Timestamp, tid: u32) {
        let is_followed = self.limits.delay.is_some() && self.waiting.len() < MAX_WAITING;
        if is_followed && !self.on.contains(&tid) {
            self.waiting.entry(tid).or_insert((at, false));
        }
    }

    /// A CPU switches from one thread, which is still to run or not, to another.
    pub(super) fn switch(
        &mut self,
        at: Timestamp,
        cpu: u32,
        (prev, is_runnable): (u32, bool),
        next: u32,
        causes: &mut Vec<(Timestamp, Cause)>,
    ) {
        self.on.remove(&prev);
        self.on.insert(next);
        let before = self.running.insert(cpu, (next, at, false));
        // The switch away from one can be missing.
        if let Some((missed, ..)) = before.filter(|(tid, ..)| *tid != prev) {
            self.on.remove(&missed);
        }
        if let Some(limit) = self.limits.delay {
            self.waiting.remove(&prev);
            if is_runnable && prev != 0 {
                self.woken(at, prev);
            }
            if let Some((since, has_fired)) = self.waiting.remove(&next) {
                if at - since >= limit && !has_fired && self.fires(next) {
                    causes.push((at, delayed(next, at - since)));
                }
            }
        }
        if let Some(limit) = self.limits.on_cpu {
            if let Some((tid, since, has_fired)) = before.filter(|(tid, ..)| *tid == prev) {
                if at - since >= limit && !has_fired && self.fires(tid) {
                    causes.push((at, ran(tid, at - since)));
                }
            }
        }
    }

    /// Finds threads that wait or run for too long still, when everything up to `at` was seen. `gone` lists the CPUs that
    /// went offline: no record says that their last thread left them. It is asked if a thread seems to run for too long.
    pub(super) fn look(
        &mut self,
        at: Timestamp,
        gone: impl FnOnce() -> Vec<u32>,
        causes: &mut Vec<(Timestamp, Cause)>,
    ) {
        if !self.is_active() {
            return;
        }
        if let Some(limit) = self.limits.on_cpu {
            let is_due = |(tid, since, has_fired): &(u32, Timestamp, bool)| {
                at - *since >= limit && !*has_fired && self.fires(*tid)
            };
            if self.running.values().any(is_due) {
                gone().into_iter().for_each(|cpu| self.lost(cpu));
            }
        }
        let Self { limits, waiting, running, focus, own, .. } = self;
        let fires = |tid: u32| {
            tid != 0 && tid != *own && focus.as_ref().is_none_or(|of| of.tids.contains_key(&tid))
        };
        if let Some(limit) = limits.delay {
            for (tid, (since, has_fired)) in waiting.iter_mut() {
                if at - *since >= limit && !*has_fired && fires(*tid) {
                    *has_fired = true;
                    causes.push((at, delayed(*tid, at - *since)));
                }
            }
        }
        if let Some(limit) = limits.on_cpu {
            for (tid, since, has_fired) in running.values_mut() {
                if at - *since >= limit && !*has_fired && fires(*tid) {
                    *has_fired = true;
                    causes.push((at, ran(*tid, at - *since)));
                }
            }
        }
    }
}

fn delayed(tid: u32, time: Duration) -> Cause {
    let what = format!("thread {tid} waited for a CPU for {}", shown(time));
    Cause::new("sched-delay", what).of_thread(None, tid)
}

fn ran(tid: u32, time: Duration) -> Cause {
    let what = format!("thread {tid} was on a CPU for {}", shown(time));
    Cause::new("on-cpu", what).of_thread(None, tid)
}

fn shown(time: Duration) -> String {
    text::duration(i64::try_from(time.as_nanos()).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_nanos(millis * 1_000_000)
    }

    fn detector(delay: u64, on_cpu: u64) -> Detector {
        let time = |millis| (millis > 0).then(|| Duration::from_millis(millis));
        Detector::new(Limits { delay: time(delay), on_cpu: time(on_cpu) })
    }

    const A: u32 = 4_000_001;
    const B: u32 = 4_000_002;

    #[test]
    fn delays_are_from_runnable_to_running() {
        let (mut detector, mut causes) = (detector(10, 0), Vec::new());
        detector.woken(at(0), A);
        detector.woken(at(5), A);
        detector.switch(at(9), 0, (B, true), A, &mut causes);
        assert!(causes.is_empty(), "9 ms");
        // B was preempted at 9 and A sleeps at 19.
        detector.switch(at(19), 0, (A, false), B, &mut causes);
        assert_eq!(causes.pop().map(|(at, cause)| (at, cause.tid)), Some((at(19), Some(B))));
        detector.woken(at(20), B);
        detector.woken(at(20), A);
        detector.look(at(29), Vec::new, &mut causes);
        assert!(causes.is_empty());
        detector.look(at(30), Vec::new, &mut causes);
        let (time, cause) = causes.pop().unwrap();
        assert_eq!((time, cause.tid), (at(30), Some(A)));
        assert_eq!(cause.what, format!("thread {A} waited for a CPU for 10.0 ms"));
        detector.switch(at(50), 0, (B, false), A, &mut causes);
        assert!(causes.is_empty(), "it has fired");
    }

    /// The switch to the thread can be among the lost records.
    #[test]
    fn a_thread_does_not_wait_after_a_loss() {
        let (mut detector, mut causes) = (detector(10, 10), Vec::new());
        detector.switch(at(0), 1, (0, false), B, &mut causes);
        detector.woken(at(0), A);
        let bytes = [&PERF_RECORD_LOST.to_ne_bytes()[..], &[0, 0, 24, 0], &[0; 16]].concat();
        let layout = RecordLayout::new(&perf_data::perf_event_attr::new(1, 9));
        detector.sideband(1, &layout, RawRecord::split_first(&bytes, 0).unwrap().0);
        detector.look(at(50), Vec::new, &mut causes);
        assert!(causes.is_empty(), "{causes:?}");
    }

    #[test]
    fn long_runs_fire_once() {
        let (mut detector, mut causes) = (detector(0, 10), Vec::new());
        detector.switch(at(0), 0, (0, false), A, &mut causes);
        detector.switch(at(0), 1, (0, false), B, &mut causes);
        detector.look(at(12), Vec::new, &mut causes);
        let tids: Vec<_> = causes.drain(..).map(|(_, cause)| cause.tid).collect();
        assert_eq!(tids, [Some(A), Some(B)]);
        detector.switch(at(20), 0, (A, false), 0, &mut causes);
        detector.switch(at(20), 1, (B, false), A, &mut causes);
        detector.switch(at(30), 1, (A, false), 0, &mut causes);
        let tids: Vec<_> = causes.drain(..).map(|(_, cause)| cause.tid).collect();
        assert_eq!(tids, [Some(A)]);
        detector.look(at(99), Vec::new, &mut causes);
        assert!(causes.is_empty(), "the idle thread never fires");
    }

    /// The kernel ends the events of a CPU in a thread of its own, to which the last switch there is.
    #[test]
    fn a_thread_does_not_run_on_a_cpu_that_is_offline() {
        let (mut detector, mut causes) = (detector(0, 10), Vec::new());
        detector.switch(at(0), 0, (0, false), B, &mut causes);
        detector.switch(at(0), 1, (0, false), A, &mut causes);
        detector.look(at(9), || panic!("no thread seems to run for too long"), &mut causes);
        detector.look(at(99), || vec![1], &mut causes);
        let tids: Vec<_> = causes.drain(..).map(|(_, cause)| cause.tid).collect();
        assert_eq!(tids, [Some(B)]);
        detector.switch(at(100), 1, (0, false), A, &mut causes);
        detector.lost(1);
        detector.look(at(199), Vec::new, &mut causes);
        // The CPU is back.
        detector.switch(at(200), 1, (A, false), 0, &mut causes);
        assert!(causes.is_empty(), "{causes:?}");
    }

    /// Its main thread has ended, and another thread executes a program.
    #[test]
    fn a_process_is_followed_after_its_main_thread() {
        const COMM: u32 = 3;
        const EXIT: u32 = 4;
        const FORK: u32 = 7;
        const BY_EXEC: u16 = 1 << 13;
        let (all, signals, none) = ((true, true), (false, true), (false, false));
        let layout = RecordLayout::new(&perf_data::perf_event_attr::new(1, 9));
        let mut detector = detector(10, 0);
        detector.focus = Some(Focus { pids: HashSet::from([A]), tids: HashMap::from([(A, A)]) });
        let mut apply = |type_: u32, misc: u16, words: &[u32]| {
            let body: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
            let size = (8 + body.len()) as u16;
            let header = [&type_.to_ne_bytes()[..], &misc.to_ne_bytes(), &size.to_ne_bytes()];
            let bytes = [header.concat(), body].concat();
            detector.sideband(0, &layout, RawRecord::split_first(&bytes, 0).unwrap().0);
            [A, B, A + 2].map(|tid| (detector.fires(tid), detector.follows_signals(tid)))
        };
        assert_eq!(apply(FORK, 0, &[A, A, B, A, 0, 0]), [all, all, none]);
        assert_eq!(apply(EXIT, 0, &[A, 1, A, 1, 0, 0]), [signals, all, none]);
        assert_eq!(apply(COMM, BY_EXEC, &[A, A, 0x78, 0]), [all, none, none]);
        // A child.
        assert_eq!(apply(FORK, 0, &[A + 2, A, A + 2, A, 0, 0]), [all, none, all]);
        assert_eq!(apply(EXIT, 0, &[A, 1, A, 1, 0, 0]), [none, none, all]);
        assert_eq!(apply(FORK, 0, &[B, A, B, A, 0, 0]), [none, none, all], "it has ended");
    }

    #[test]
    fn a_detector_that_stops_watches_the_same_processes() {
        let (mut detector, mut causes) = (detector(10, 10), Vec::new());
        detector.focus(A);
        detector.switch(at(0), 0, (0, false), A, &mut causes);
        detector.stop();
        assert!(!detector.is_active());
        assert_eq!([A, B].map(|tid| detector.follows(tid)), [true, false]);
        detector.look(at(99), Vec::new, &mut causes);
        assert!(causes.is_empty(), "{causes:?}");
    }

    #[test]
    fn new_settings_keep_the_children() {
        let [mut old, mut new] = [detector(10, 0), detector(20, 0)];
        old.focus(A);
        // A child that was forked meanwhile.
        let of_old = old.focus.as_mut().unwrap();
        of_old.pids.insert(B);
        of_old.tids.insert(B, B);
        new.take_focus(&mut old);
        new.focus(A);
        assert_eq!([A, B, A + 2].map(|tid| new.follows(tid)), [true, true, false]);
        assert!(new.focus.unwrap().pids.contains(&B), "and its own children");
    }
}
