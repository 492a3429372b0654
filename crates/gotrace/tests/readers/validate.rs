//! The validator: recorded traces violate no rule, and each rule is found where it is violated.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that fails is to panic")]

use crate::common;
use gotrace::synthetic::{EventConfig, EventDetails, OwnedStack, SyncDetails};
use gotrace::validate::{Validator, Violation};
use gotrace::{
    ClockSnapshot, GoId, GoState, Label, ProcId, ProcState, Range, RangeName, Reader, StackFrame,
    StateTransition, Task, TaskId, ThreadId, Timestamp, Version,
};

#[test]
fn recorded_traces_violate_no_rule() {
    for name in common::V2 {
        let trace = common::recorded(name);
        let mut reader = Reader::new(&trace[..]).unwrap();
        let mut validator = Validator::new(reader.version());
        let mut events = 0;
        while let Some(event) = reader.next_event().unwrap() {
            let violations = validator.push(event);
            assert_eq!(violations, [], "{name}: {event}");
            events += 1;
        }
        assert!(events > 100, "{name}");
    }
}

#[test]
fn an_event_left_out_is_found() {
    // Without one of its transitions, a trace is inconsistent at the next of that resource.
    let trace = common::recorded("go1.26-mixed.trace.gz");
    let transitions = |left_out: Option<usize>| {
        let mut reader = Reader::new(&trace[..]).unwrap();
        let mut validator = Validator::new(reader.version());
        let (mut number, mut found) = (0, Vec::new());
        while let Some(event) = reader.next_event().unwrap() {
            let transition = event.state_transition().and_then(|t| t.goroutine());
            if matches!(transition, Some((GoState::Running, GoState::Waiting))) {
                number += 1;
                if left_out == Some(number) {
                    continue;
                }
            }
            found.extend(validator.push(event));
        }
        (number, found)
    };
    let (count, none) = transitions(None);
    assert!(count > 10 && none.is_empty());
    let (_, found) = transitions(Some(count / 2));
    assert!(
        found.iter().any(|v| matches!(v, Violation::State { state: "Running", .. })),
        "{found:?}"
    );
    assert!(found.iter().any(|v| matches!(v, Violation::Occupied { .. })), "{found:?}");
}

struct Events(Validator, i64);

impl Events {
    fn new() -> Self {
        Self(Validator::new(Version::Go126), 0)
    }

    /// Emits an event on thread 1, one nanosecond later.
    fn emit(&mut self, goroutine: i64, details: EventDetails<'_>) -> Vec<Violation> {
        self.1 += 1;
        let event = EventConfig::new(details)
            .time(Timestamp::from_nanos(self.1))
            .goroutine(GoId(goroutine))
            .thread(ThreadId(1));
        self.0.push(event.build().unwrap().as_event())
    }

    fn go(&mut self, id: i64, from: GoState, to: GoState) -> Vec<Violation> {
        let by = if from.executing() { id } else { -1 };
        let transition = StateTransition::of_goroutine(GoId(id), from, to);
        self.emit(by, EventDetails::StateTransition(transition))
    }

    fn sync(&mut self, n: u64, clocks: Option<ClockSnapshot>) -> Vec<Violation> {
        let sync = SyncDetails { n, clock_snapshot: clocks, experimental_batches: Vec::new() };
        self.emit(-1, EventDetails::Sync(sync))
    }
}

/// A v1 trace does not have the thread of a system call that began before it.
#[test]
fn a_system_call_since_before_a_v1_trace_has_no_thread() {
    use GoState::{Runnable, Syscall, Undetermined};
    let found = |version| {
        let mut validator = Validator::new(version);
        let mut step = |time, from, to| {
            let transition = StateTransition::of_goroutine(GoId(1), from, to);
            let event = EventConfig::new(EventDetails::StateTransition(transition));
            let event = event.time(Timestamp::from_nanos(time)).build().unwrap();
            validator.push(event.as_event())
        };
        [step(1, Undetermined, Syscall), step(2, Syscall, Runnable)].concat()
    };
    assert_eq!(found(Version::Go121), []);
    let violations = [Violation::NoThread, Violation::NotExecuting(GoId(1).into())];
    assert_eq!(found(Version::Go126), violations);
}

#[test]
fn each_rule_is_found() {
    use GoState::{NotExist, Runnable, Running, Undetermined, Waiting};
    let mut e = Events::new();
    let clocks = ClockSnapshot::new(Timestamp::from_nanos(5), 6, 7, 8);
    assert_eq!(e.sync(1, None), [Violation::NoClockSnapshot(1)]);
    assert_eq!(e.sync(3, Some(clocks)), [Violation::SyncNumber { found: 3, previous: 1 }]);
    let clock = |clock| Violation::Clock { clock, n: 4 };
    assert_eq!(e.sync(4, Some(clocks)), [clock("trace"), clock("monotonic"), clock("wall")]);

    let g1 = GoId(1).into();
    assert_eq!(e.go(1, NotExist, Runnable), []);
    assert_eq!(
        e.go(1, Waiting, Runnable),
        [Violation::State { resource: g1, from: "Waiting", state: "Runnable" }]
    );
    assert_eq!(e.go(1, Runnable, Running), []);
    assert_eq!(e.go(2, NotExist, Runnable), []);
    let occupied = Violation::Occupied { thread: ThreadId(1), resource: GoId(2).into(), other: g1 };
    assert_eq!(e.go(2, Runnable, Running), [occupied]);
    assert_eq!(e.go(1, Running, Waiting), [Violation::NotExecuting(g1)]);
    assert_eq!(e.go(9, Undetermined, Waiting), [Violation::FromUndetermined(GoId(9).into())]);

    let assist = Range::new(RangeName::GcMarkAssist, GoId(2));
    let name = "GC mark assist".to_owned();
    let scope = GoId(2).into();
    assert_eq!(
        e.emit(2, EventDetails::RangeEnd(assist)),
        [Violation::RangeEnds { name: name.clone(), scope }]
    );
    assert_eq!(e.emit(2, EventDetails::RangeBegin(assist)), []);
    assert_eq!(
        e.emit(2, EventDetails::RangeBegin(assist)),
        [Violation::RangeBegins { name, scope }]
    );
    assert_eq!(e.go(2, Running, NotExist), [Violation::EndsWithinRange(scope)]);

    assert_eq!(
        e.emit(7, EventDetails::Label(Label::new("", GoId(7)))),
        [Violation::EmptyLabel, Violation::UnknownResource(GoId(7).into())]
    );
    let task = |id, parent, ty| Task::new(TaskId(id), parent, ty);
    let begin = |task| EventDetails::TaskBegin(task);
    assert_eq!(
        e.emit(-1, begin(task(0, TaskId::NONE, "x"))),
        [Violation::TaskId(TaskId::BACKGROUND)]
    );
    assert_eq!(e.emit(-1, begin(task(5, TaskId::NONE, "x"))), []);
    let end = EventDetails::TaskEnd(task(5, TaskId::NONE, "y"));
    assert_eq!(e.emit(-1, end), [Violation::TaskType(TaskId(5))]);

    let idle = StateTransition::of_proc(ProcId(0), ProcState::Idle, ProcState::Running);
    let p0 = ProcId(0).into();
    let violations = e.emit(-1, EventDetails::StateTransition(idle));
    assert_eq!(violations, [Violation::State { resource: p0, from: "Idle", state: "NotExist" }]);

    e.1 -= 1;
    let frames = [StackFrame::new(1, "f", "a.go", 1), StackFrame::new(0, "", "", 0)];
    let stack = OwnedStack::new(&frames);
    let sample = EventConfig::new(EventDetails::StackSample)
        .time(Timestamp::from_nanos(e.1))
        .stack(stack.as_stack());
    let (time, previous) = (Timestamp::from_nanos(e.1), Timestamp::from_nanos(e.1 + 1));
    assert_eq!(
        e.0.push(sample.build().unwrap().as_event()),
        [Violation::Time { time, previous }, Violation::Frame(1)]
    );
}
