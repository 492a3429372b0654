//! Events made by hand are as Go's `MakeEvent` makes them: `tests/data/synthetic_events` has the
//! text of the same events from Go 1.27.3.

use gotrace::synthetic::{BuildError, EventConfig, EventDetails, OwnedStack, SyncDetails};
use gotrace::{
    ClockSnapshot, Event, EventKind, Experiment, ExperimentalBatch, GoId, GoState, Label, Log,
    Metric, OwnedEvent, ProcId, ProcState, Range, RangeName, Region, ResourceId, StackFrame,
    StateTransition, Task, TaskId, ThreadId, Timestamp, Value, bstr::BStr,
};
use std::fmt::Write;

/// The two stacks of the Go program.
fn stacks() -> (OwnedStack, OwnedStack) {
    let main = StackFrame::new(32, "main.main", "main.go", 9);
    (
        OwnedStack::new(&[StackFrame::new(16, "main.f", "f.go", 7), main]),
        OwnedStack::new(&[StackFrame::new(48, "main.g", "g.go", 3)]),
    )
}

/// In the context that all events of the Go program have.
fn config(details: EventDetails<'_>) -> EventConfig<'_> {
    EventConfig::new(details)
        .time(Timestamp::from_nanos(42))
        .goroutine(GoId(5))
        .proc(ProcId(2))
        .thread(ThreadId(3))
}

fn build(details: EventDetails<'_>) -> Result<OwnedEvent, BuildError> {
    config(details).build()
}

fn go(id: i64, from: GoState, to: GoState) -> StateTransition<'static> {
    StateTransition::of_goroutine(GoId(id), from, to)
}

fn proc(id: i64, from: ProcState, to: ProcState) -> StateTransition<'static> {
    StateTransition::of_proc(ProcId(id), from, to)
}

#[test]
fn events_are_those_of_go() {
    use EventDetails as D;
    use GoState::{NotExist, Runnable, Running, Syscall, Undetermined, Waiting};
    let (stack, other) = stacks();
    let (stack, other) = (stack.as_stack(), other.as_stack());
    let mut text = String::new();
    let mut show = |event: EventConfig<'_>| writeln!(text, "{}", event.build().unwrap()).unwrap();

    show(config(D::Metric(Metric::new(Metric::GOMAXPROCS, 4))).stack(stack));
    show(config(D::Metric(Metric::new(Metric::HEAP_OBJECTS, 1 << 40))));
    show(config(D::Metric(Metric::new(Metric::HEAP_GOAL, 0))));
    show(config(D::Label(Label::new("GC (idle)", GoId(5)))));
    let stop = Range::new(RangeName::StopTheWorld(BStr::new("read mem stats")), GoId(5));
    for phase in [D::RangeBegin, D::RangeActive, D::RangeEnd] {
        show(config(phase(Range::new(RangeName::GcMark, ResourceId::None))));
        show(config(phase(Range::new(RangeName::GcSweep, ProcId(2)))));
        show(config(phase(Range::new(RangeName::GcMarkAssist, GoId(5)))));
        if !matches!(phase(stop), D::RangeActive(_)) {
            show(config(phase(stop)));
        }
    }
    let task = |parent| Task::new(TaskId(1), parent, "request");
    show(config(D::TaskBegin(task(TaskId::NONE))).stack(stack));
    show(config(D::TaskEnd(task(TaskId(0)))).stack(stack));
    show(config(D::RegionBegin(Region::new(TaskId(1), "parse"))).stack(stack));
    show(config(D::RegionEnd(Region::new(TaskId(1), "parse"))));
    show(config(D::Log(Log::new(TaskId(1), "cat", "a\0\"b"))).stack(stack));
    show(config(D::StackSample).stack(stack));
    show(config(D::Sync(SyncDetails { n: 3, ..Default::default() })));
    let clock_snapshot = Some(ClockSnapshot::new(Timestamp::from_nanos(41), 99, 59, 123_456_789));
    show(config(D::Sync(SyncDetails { n: 4, clock_snapshot, ..Default::default() })));

    let transition = |transition| config(D::StateTransition(transition));
    show(transition(go(9, NotExist, Runnable).with_stack(other)).stack(stack));
    show(transition(go(9, NotExist, Waiting).with_stack(other)).stack(stack));
    show(transition(go(9, NotExist, Syscall)));
    show(transition(go(9, Runnable, Running)));
    show(transition(go(9, Waiting, Runnable)).stack(stack));
    show(transition(go(5, Running, NotExist)));
    // The stack of the event is that of the transition: either will do, or both.
    show(transition(go(5, Running, Runnable).with_reason("preempted")).stack(stack));
    show(transition(go(5, Running, Waiting).with_reason("chan send").with_stack(stack)));
    show(transition(go(5, Running, Syscall).with_stack(stack)).stack(stack));
    show(transition(go(5, Syscall, NotExist)));
    show(transition(go(5, Syscall, Running)));
    show(transition(go(5, Syscall, Runnable)));
    show(transition(go(9, Undetermined, Waiting)));
    show(transition(go(9, Undetermined, Running).with_stack(stack)));
    show(transition(go(9, Runnable, Runnable)));
    show(transition(proc(7, ProcState::Idle, ProcState::Running)));
    show(transition(proc(2, ProcState::Running, ProcState::Idle)));
    show(transition(proc(7, ProcState::Running, ProcState::Idle)));
    show(transition(proc(7, ProcState::Idle, ProcState::Idle)));
    show(transition(proc(7, ProcState::Undetermined, ProcState::Running)));
    show(transition(proc(7, ProcState::Undetermined, ProcState::Idle)));

    let expected = include_str!("../data/synthetic_events/expected.txt");
    for (line, (ours, theirs)) in text.lines().zip(expected.lines()).enumerate() {
        assert_eq!(ours, theirs, "line {}", line + 1);
    }
    assert_eq!(text.len(), expected.len());
}

#[test]
fn impossible_details_are_refused() {
    use EventDetails as D;
    let (stack, other) = stacks();
    let (stack, other) = (stack.as_stack(), other.as_stack());
    let refused = |details| build(details).unwrap_err().to_string();

    assert_eq!(refused(D::Metric(Metric::new("/test", 4))), "unknown metric \"/test\"");
    assert_eq!(
        refused(D::Metric(Metric::new(Metric::HEAP_GOAL, "many"))),
        "the value of a metric must be a number, not many"
    );
    assert_eq!(
        refused(D::Label(Label::new("l", ProcId(1)))),
        "a label needs a resource of kind Goroutine, not Proc(1)"
    );
    for (name, scope) in [
        (RangeName::GcMark, ResourceId::Goroutine(GoId(5))),
        (RangeName::GcSweep, ResourceId::Goroutine(GoId(5))),
        (RangeName::GcMarkAssist, ResourceId::None),
        (RangeName::StopTheWorld(BStr::new("why")), ResourceId::Thread(ThreadId(3))),
    ] {
        let error = build(D::RangeBegin(Range::new(name, scope))).unwrap_err();
        assert!(matches!(error, BuildError::Resource { found, .. } if found == scope), "{error}");
    }
    let stop = Range::new(RangeName::StopTheWorld(BStr::new("why")), GoId(5));
    assert_eq!(build(D::RangeActive(stop)).unwrap_err(), BuildError::ActiveStopTheWorld);
    let no_task = Task::new(TaskId::NONE, TaskId(1), "t");
    assert_eq!(build(D::TaskBegin(no_task)).unwrap_err(), BuildError::NoTask);
    assert_eq!(build(D::TaskEnd(no_task)).unwrap_err(), BuildError::NoTask);
    let experimental_batches = vec![ExperimentalBatch::new(Experiment(9), ThreadId(1), b"")];
    assert_eq!(
        refused(D::Sync(SyncDetails { n: 1, experimental_batches, ..Default::default() })),
        "unknown experiment 9"
    );

    // What Go's MakeEvent drops.
    let starts = go(9, GoState::Runnable, GoState::Running);
    assert_eq!(
        config(D::StateTransition(starts)).stack(stack).build().unwrap_err().to_string(),
        "GoStart events have no stack"
    );
    assert_eq!(
        refused(D::StateTransition(starts.with_reason("why"))),
        "GoStart events have no reason"
    );
    assert_eq!(
        refused(D::StateTransition(starts.with_stack(stack))),
        "GoStart events have no stack of the goroutine"
    );
    let blocks = go(5, GoState::Running, GoState::Waiting).with_stack(other);
    assert_eq!(
        config(D::StateTransition(blocks)).stack(stack).build().unwrap_err().to_string(),
        "GoBlock events have no stack of the transition besides their own"
    );
    let sync = D::Sync(SyncDetails::default());
    let error = config(sync).stack(stack).build().unwrap_err();
    assert_eq!(error.to_string(), "Sync events have no stack");

    // What happens to a goroutine or proc itself happens to no other.
    let ends = go(6, GoState::Running, GoState::NotExist);
    assert_eq!(
        refused(D::StateTransition(ends)),
        "the event happens to goroutine 6 itself, but is given goroutine 5"
    );
    let event = EventConfig::new(D::StateTransition(ends)).build().unwrap();
    assert_eq!(event.as_event().goroutine(), GoId(6), "it need not be given");
    let sweep = Range::new(RangeName::GcSweep, ProcId(1));
    assert_eq!(
        refused(D::RangeEnd(sweep)),
        "the event happens to proc 1 itself, but is given proc 2"
    );
}

/// Every pair of states gives an event with exactly this pair, or an error.
#[test]
fn transitions_are_those_that_were_given() {
    use GoState::{NotExist, Runnable, Running, Syscall, Undetermined, Waiting};
    let mut possible = 0;
    for from in [Undetermined, NotExist, Runnable, Running, Waiting, Syscall] {
        for to in [Undetermined, NotExist, Runnable, Running, Waiting, Syscall] {
            match build(EventDetails::StateTransition(go(5, from, to))) {
                Ok(event) => {
                    let transition = event.as_event().state_transition().unwrap();
                    assert_eq!(transition.goroutine(), Some((from, to)));
                    assert_eq!(transition.resource(), GoId(5).into());
                    possible += 1;
                }
                Err(error) => assert_eq!(error, BuildError::GoTransition { from, to }),
            }
        }
    }
    assert_eq!(possible, 12 + 5 + 4, "changes, what is found, what stays as it is");

    use ProcState as P;
    for from in [P::Undetermined, P::NotExist, P::Running, P::Idle] {
        for to in [P::Undetermined, P::NotExist, P::Running, P::Idle] {
            for id in [2, 7] {
                match build(EventDetails::StateTransition(proc(id, from, to))) {
                    Ok(event) => {
                        let transition = event.as_event().state_transition().unwrap();
                        assert_eq!(transition.proc(), Some((from, to)));
                        assert_eq!(transition.resource(), ProcId(id).into());
                    }
                    Err(error) => {
                        assert_eq!(error, BuildError::ProcTransition { from, to });
                        assert!(matches!(to, P::Undetermined | P::NotExist));
                    }
                }
            }
        }
    }
}

#[test]
fn accessors_give_back_what_was_put_in() {
    let experimental_batches =
        vec![ExperimentalBatch::new(Experiment::ALLOC_FREE, ThreadId(1), &[1, 2, 3])];
    let details = SyncDetails { n: 7, experimental_batches, ..Default::default() };
    let event = build(EventDetails::Sync(details)).unwrap();
    let sync = event.as_event().sync().unwrap();
    assert_eq!((sync.n(), sync.clock_snapshot()), (7, None));
    let batch = sync.experimental_batches().next().unwrap();
    assert_eq!((batch.thread, batch.data), (ThreadId(1), &[1u8, 2, 3][..]));

    // Frames with the same PC stay as they are, in strings that are no UTF-8.
    let frames = [StackFrame::new(1, "f", "f.go", 1), StackFrame::new(1, &b"\xff"[..], "f.go", 2)];
    let stack = OwnedStack::new(&frames);
    let event = config(EventDetails::StackSample).stack(stack.as_stack()).build().unwrap();
    assert!(event.as_event().stack().unwrap().frames().eq(frames));
    assert_eq!(event.as_event().kind(), EventKind::StackSample);

    // The empty string is a string as any other.
    let event = build(EventDetails::Log(Log::new(TaskId::BACKGROUND, "", ""))).unwrap();
    assert_eq!(event.as_event().log(), Some(Log::new(TaskId::BACKGROUND, "", "")));
    assert_eq!(Value::from("x"), Value::String("x".into()));
}

#[test]
fn events_go_to_other_threads() {
    let event = build(EventDetails::Log(Log::new(TaskId::BACKGROUND, "", ""))).unwrap();
    let sent = std::thread::spawn(move || Event::log(event.as_event()).is_some());
    assert!(sent.join().unwrap());
}

mod glob {
    use gotrace::*;

    /// Compiles only if `Sync` is that of the standard library.
    pub(super) fn assert_shareable<T: Send + Sync>(_: &T) {}

    pub(super) fn first(events: &[OwnedEvent]) -> Option<EventKind> {
        events.first().map(|event| event.as_event().kind())
    }
}

#[test]
fn a_glob_import_hides_no_marker_trait() {
    let event = build(EventDetails::Label(Label::new("x", GoId(5))));
    let events = [event.unwrap()];
    glob::assert_shareable(&events);
    assert_eq!(glob::first(&events), Some(EventKind::Label));
}
