//! Scheduling latency, stalls and the use of the processors: exact numbers for a short history, and
//! agreement with the other analyses for recorded traces.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that fails is to panic"
)]

use crate::common;
use gotrace::analysis::{
    Finished, Profile, ProfileKind, ProfileScope, RunnableCause, Scheduling, SchedulingOptions,
    SchedulingReport, Stall, Summarizer,
};
use gotrace::synthetic::{EventConfig, EventDetails, OwnedStack};
use gotrace::{
    Event, EventType, GoId, GoState, Label, Metric, ProcId, ProcState, StackFrame, StateTransition,
    ThreadId, Timestamp,
};
use std::time::Duration;

const NS: fn(u64) -> Duration = Duration::from_nanos;

/// Emits events of goroutines. The entry function of goroutine N is `main.goN`.
struct History(Scheduling);

fn stack_of(goroutine: i64) -> OwnedStack {
    OwnedStack::new(&[StackFrame::new(goroutine as u64, &format!("main.go{goroutine}"), "a.go", 1)])
}

impl History {
    fn new() -> Self {
        let mut options = SchedulingOptions::default();
        options.worst = 2;
        Self(Scheduling::new(options))
    }

    fn emit(&mut self, time: i64, by: i64, stack: Option<&OwnedStack>, details: EventDetails<'_>) {
        let mut event = EventConfig::new(details)
            .time(Timestamp::from_nanos(time))
            .goroutine(GoId(by))
            .proc(ProcId(0))
            .thread(ThreadId(1));
        if let Some(stack) = stack {
            event = event.stack(stack.as_stack());
        }
        self.0.push(event.build().unwrap().as_event());
    }

    fn procs(&mut self, time: i64, count: u64) {
        let metric = EventDetails::Metric(Metric::new(Metric::GOMAXPROCS, count));
        self.emit(time, -1, None, metric);
    }

    /// A transition of a goroutine that goroutine `by` makes; -1 is the scheduler.
    fn go(&mut self, time: i64, by: i64, id: i64, (from, to): (GoState, GoState), reason: &str) {
        let (own, causing) = (stack_of(id), stack_of(by));
        let mut transition = StateTransition::of_goroutine(GoId(id), from, to);
        let mut stack = None;
        match (from, to) {
            (GoState::NotExist, _) => {
                transition = transition.with_stack(own.as_stack());
                stack = Some(&causing);
            }
            (GoState::Running, GoState::Waiting | GoState::Runnable | GoState::Syscall) => {
                transition = transition.with_reason(reason).with_stack(own.as_stack());
                stack = Some(&own);
            }
            (GoState::Waiting, _) if by >= 0 => stack = Some(&causing),
            _ => {}
        }
        self.emit(time, by, stack, EventDetails::StateTransition(transition));
    }
}

#[test]
fn a_short_history_has_exact_latencies() {
    use GoState::{NotExist, Runnable, Running, Syscall, Waiting};
    let mut h = History::new();
    h.procs(0, 2);
    h.go(10, -1, 1, (NotExist, Runnable), "");
    h.go(20, -1, 1, (Runnable, Running), ""); // created: 10
    h.go(30, 1, 2, (NotExist, Runnable), "");
    h.go(40, 1, 1, (Running, Waiting), "chan receive");
    h.go(45, -1, 2, (Runnable, Running), ""); // created: 15
    h.go(100, 2, 1, (Waiting, Runnable), ""); // blocked: 60
    h.go(110, 2, 2, (Running, Runnable), "preempted");
    h.go(130, -1, 1, (Runnable, Running), ""); // unblocked: 30
    h.go(140, 1, 1, (Running, Syscall), "");
    let idle = StateTransition::of_proc(ProcId(0), ProcState::Running, ProcState::Idle);
    h.emit(150, -1, None, EventDetails::StateTransition(idle));
    h.go(160, 1, 1, (Syscall, Runnable), "");
    h.go(170, -1, 2, (Runnable, Running), ""); // preempted: 60
    h.emit(180, 2, None, EventDetails::Label(Label::new("GC (dedicated)", GoId(2))));
    h.go(200, -1, 1, (Runnable, Running), ""); // after a system call: 40
    h.go(230, 2, 2, (Running, NotExist), "");
    h.go(240, 1, 1, (Running, Waiting), "select"); // until the end
    h.procs(250, 2);
    let report = h.0.finish();

    let causes: Vec<_> = report.by_cause.iter().map(|(c, h)| (*c, h.count(), h.sum())).collect();
    assert_eq!(
        causes,
        [
            (RunnableCause::Created, 2, 25),
            (RunnableCause::Unblocked, 1, 30),
            (RunnableCause::Preempted, 1, 60),
            (RunnableCause::Syscall, 1, 40),
        ]
    );
    assert_eq!((report.latency.count(), report.latency.sum()), (5, 155));
    let entries: Vec<_> =
        report.by_entry.iter().map(|(n, h)| (n.to_string(), h.count(), h.sum())).collect();
    assert_eq!(entries, [("main.go1".to_owned(), 3, 80), ("main.go2".to_owned(), 2, 75)]);
    let blocked: Vec<_> = report.blocked.iter().map(|(n, h)| (n.to_string(), h.sum())).collect();
    assert_eq!(blocked, [("chan receive".to_owned(), 60)]);
    assert_eq!(report.cut, 1);

    let [block] = &report.blocks[..] else { panic!("{:?}", report.blocks) };
    assert_eq!((block.goroutine, block.duration), (GoId(1), NS(60)));
    assert_eq!(
        (block.entry.to_string(), block.reason.to_string()),
        pair("main.go1", "chan receive")
    );
    assert_eq!(functions(block), ["main.go1"]);
    let by = block.by.as_ref().unwrap();
    assert_eq!((by.goroutine, by.entry.to_string()), (GoId(2), "main.go2".to_owned()));
    assert_eq!(by.stack[0].function.to_string(), "main.go2");

    let delays: Vec<_> =
        report.delays.iter().map(|d| (d.goroutine.0, d.duration, d.start.nanos())).collect();
    assert_eq!(delays, [(2, NS(60), 110), (1, NS(40), 160)], "the two longest");
    assert_eq!(report.delays[0].reason.to_string(), "preempted");
    // Where they were preempted, and where the system call began.
    assert_eq!(
        report.delays.iter().map(functions).collect::<Vec<_>>(),
        [["main.go2"], ["main.go1"]]
    );

    let mean = report.mean().unwrap();
    let nanos = |value: f64| (value * mean.length.as_nanos() as f64).round() as u64;
    // G1: 20..40, 130..140, 200..240; G2: 45..110.
    assert_eq!(nanos(mean.running), 20 + 10 + 40 + 65);
    assert_eq!(nanos(mean.gc), 60, "G2, 170..230: from its start, as its label comes later");
    assert_eq!(nanos(mean.syscall), 10, "140..150, then without a P");
    assert_eq!(nanos(mean.runnable), 155);
    assert_eq!((nanos(mean.procs), mean.length), (500, NS(250)));
}

/// Goroutine 1 returns from a system call whose P was taken away, while goroutine 2 is in one on that P.
#[test]
fn the_end_of_a_system_call_leaves_that_of_another_goroutine() {
    use GoState::{Runnable, Running, Syscall, Undetermined};
    let mut scheduling = Scheduling::new(SchedulingOptions::default());
    let mut summarizer = Summarizer::new();
    let mut emit = |time: i64, by: i64, proc: i64, details: EventDetails<'_>| {
        let event = EventConfig::new(details).time(Timestamp::from_nanos(time));
        let event = event.goroutine(GoId(by)).proc(ProcId(proc)).thread(ThreadId(1));
        let event = event.build().unwrap();
        scheduling.push(event.as_event());
        summarizer.push(event.as_event());
    };
    let go = |id: i64, from, to| {
        EventDetails::StateTransition(StateTransition::of_goroutine(GoId(id), from, to))
    };
    let (idle, running) = (ProcState::Idle, ProcState::Running);
    let proc =
        |from, to| EventDetails::StateTransition(StateTransition::of_proc(ProcId(0), from, to));
    let procs = || EventDetails::Metric(Metric::new(Metric::GOMAXPROCS, 1_u64));
    emit(0, -1, -1, procs());
    emit(0, -1, -1, proc(idle, running));
    emit(5, -1, 0, go(1, Undetermined, Running));
    emit(5, -1, 0, go(2, Undetermined, Runnable));
    emit(10, 1, 0, go(1, Running, Syscall));
    emit(20, -1, -1, proc(running, idle));
    emit(30, -1, -1, proc(idle, running));
    emit(31, -1, 0, go(2, Runnable, Running));
    emit(40, 2, 0, go(2, Running, Syscall));
    emit(50, 1, -1, go(1, Syscall, Runnable));
    emit(60, -1, -1, proc(running, idle));
    emit(100, -1, -1, procs());
    let mean = scheduling.finish().mean().unwrap();
    let nanos = |value: f64| (value * mean.length.as_nanos() as f64).round() as u64;
    assert_eq!(nanos(mean.syscall), 10 + 20, "10..20 of goroutine 1, 40..60 of goroutine 2");
    // Go's summarizer forgets the system call of goroutine 2 when goroutine 1 returns.
    let goroutines = summarizer.finish().goroutines;
    let times: Vec<_> =
        goroutines.iter().map(|g| (g.times.syscall, g.times.syscall_blocked)).collect();
    assert_eq!(times, [(NS(10), NS(30)), (NS(60), NS(0))]);
}

fn pair(a: &str, b: &str) -> (String, String) {
    (a.to_owned(), b.to_owned())
}

fn functions(stall: &Stall) -> Vec<String> {
    stall.stack.iter().map(|frame| frame.function.to_string()).collect()
}

/// The switches of coroutines. Each is three events, the last of which starts a goroutine.
#[derive(Default)]
struct Switches {
    since: Option<Timestamp>,
    count: u64,
    time: Duration,
}

impl Switches {
    fn push(&mut self, event: Event<'_>) {
        match event.wire_type() {
            Some(EventType::GO_SWITCH | EventType::GO_SWITCH_DESTROY) => {
                self.since = Some(event.time());
            }
            Some(EventType::GO_START) => {
                if let Some(since) = self.since.take() {
                    self.count += 1;
                    self.time += event.time() - since;
                }
            }
            _ => {}
        }
    }
}

/// A program with `iter.Pull` has more switches than waits.
#[test]
fn switches_of_coroutines_are_no_latencies() {
    let trace = common::recorded("go1.23-coroutines.trace.gz");
    let (mut switches, mut starts) = (Switches::default(), 0);
    common::events_of(&trace, |event| {
        switches.push(event);
        starts += u64::from(event.wire_type() == Some(EventType::GO_START));
    });
    let (report, ..) = of(&trace);
    let waits = starts - switches.count;
    assert!(switches.count > 1000 && waits < 200, "{waits} of {starts}");
    let counted = report.latency.count();
    assert!((waits.saturating_sub(report.cut)..=waits).contains(&counted), "{counted} of {waits}");
    assert!(report.latency.buckets().all(|(_, longest, _)| longest > 2));
    assert!(report.delays.iter().all(|delay| delay.duration > NS(2)));
}

/// The report of a trace, all delays of its scheduler profile but those of switches of coroutines, and all
/// running times.
fn of(trace: &[u8]) -> (SchedulingReport, (u64, Duration), Duration) {
    let mut scheduling = Scheduling::new(SchedulingOptions::default());
    let mut profile = Profile::new(ProfileKind::Scheduler, ProfileScope::all());
    let mut summarizer = Summarizer::new();
    let mut running = Duration::ZERO;
    let mut switches = Switches::default();
    common::events_of(trace, |event| {
        switches.push(event);
        scheduling.push(event);
        profile.push(event);
        if let Some(Finished::Goroutine(goroutine)) = summarizer.push(event) {
            running += goroutine.times.running;
        }
    });
    profile.finish();
    running += summarizer.finish().goroutines.iter().map(|g| g.times.running).sum::<Duration>();
    let (count, time) = profile.stacks().fold((0, Duration::ZERO), |(count, time), (delay, _)| {
        (count + delay.count, time + delay.time)
    });
    // They are in the profile, as in Go's.
    let delays = (count - switches.count, time - switches.time);
    (scheduling.finish(), delays, running)
}

#[test]
fn the_analyses_of_recorded_traces_agree() {
    let mut unblocked = 0;
    for (name, trace) in common::traces() {
        let (report, (count, time), running) = of(&trace);
        assert!(report.latency.count() > 10, "{name}");
        // The profile has no delay of less than a nanosecond.
        let zero = report.latency.buckets().find(|(_, to, _)| *to == 0).map_or(0, |b| b.2);
        assert_eq!(report.latency.count() - zero, count, "{name}");
        assert_eq!(NS(report.latency.sum()), time, "{name}");
        for histograms in [
            report.by_cause.iter().map(|(_, h)| h).collect::<Vec<_>>(),
            report.by_entry.iter().map(|(_, h)| h).collect(),
        ] {
            assert_eq!(histograms.iter().map(|h| h.count()).sum::<u64>(), report.latency.count());
            assert_eq!(histograms.iter().map(|h| h.sum()).sum::<u64>(), report.latency.sum());
        }
        assert_eq!(report.delays.first().map(|d| d.duration), Some(NS(report.latency.max())));
        // Goroutines that did not run yet have no stack.
        unblocked += report.delays.iter().filter(|d| d.by.is_some() && !d.stack.is_empty()).count();
        let mean = report.mean().unwrap();
        let executed = (mean.running + mean.gc) * mean.length.as_secs_f64();
        let difference = (executed - running.as_secs_f64()).abs();
        // v1 traces and the first generation: goroutines that run before their first event.
        assert!(
            difference <= 0.001 * running.as_secs_f64() + 1e-7,
            "{name}: {executed} {running:?}"
        );
        for (at, each) in report.processors.iter().enumerate() {
            let used = each.running + each.gc + each.syscall;
            assert!(used <= each.procs + 0.01 || at == 0, "{name} {at}: {each:?}");
        }
    }
    assert!(unblocked > 10, "{unblocked} waits after a block have a stack");
}
