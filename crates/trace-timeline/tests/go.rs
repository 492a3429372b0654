//! Go traces of real programs: intervals partition lifetimes, and pieces partition requests.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests may panic"
)]

use flate2::read::GzDecoder;
use gotrace::analysis::{GcCycles, GcTrigger, Scheduling, SchedulingOptions};
use gotrace::synthetic::{EventConfig, EventDetails, OwnedStack};
use gotrace::{
    EventKind as GoEventKind, EventType, GoId, GoState, ProcId, ProcState, Range, RangeName,
    Reader, Region, ResourceId, StackFrame, StateTransition, Task, TaskId, ThreadId,
};
use std::collections::{BTreeMap, HashMap};
use std::io::Read;
use std::path::PathBuf;
use trace_timeline::answers::critical_path;
use trace_timeline::answers::{
    CriticalPath, History, OffCpu, Piece, Report, RequestFilter, Requests,
};
use trace_timeline::sources::go::GoSource;
use trace_timeline::{
    Correlator, Derived, Entity, EntityId, EntityKind, Event, EventKind, FlowKind, InstantKind,
    Interval, SampleKind, SpanKind, State, TableLimits, Tables, ThreadState, Timestamp, Value,
};

fn fixtures() -> Vec<(String, Vec<u8>)> {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../gotrace/tests/data");
    let mut fixtures = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let bytes = std::fs::read(&path).ok();
        if let Some(name) = name.strip_suffix(".trace.gz") {
            let mut out = Vec::new();
            GzDecoder::new(&bytes.unwrap()[..]).read_to_end(&mut out).unwrap();
            fixtures.push((name.to_owned(), out));
        } else if let Some(name) = name.strip_suffix(".trace") {
            fixtures.push((name.to_owned(), bytes.unwrap()));
        }
    }
    fixtures.sort();
    assert!(fixtures.len() >= 9, "{}", fixtures.len());
    fixtures
}

fn read(bytes: &[u8], tables: &mut Tables) -> Vec<Event> {
    let mut reader = Reader::new(bytes).unwrap();
    let mut source = GoSource::new(Default::default());
    let mut events = Vec::new();
    while let Some(event) = reader.next_event().unwrap() {
        source.push(event, tables, &mut events);
    }
    events
}

#[test]
fn a_loss_at_the_start_has_the_time_of_the_first_event() {
    let (_, bytes) = fixtures().swap_remove(0);
    let mut tables = Tables::new();
    let mut reader = Reader::new(&bytes[..]).unwrap();
    let mut source = GoSource::new(Default::default());
    let mut events = Vec::new();
    source.loss("damaged", Some(20), &mut tables, &mut events);
    source.loss("damaged again", Some(3), &mut tables, &mut events);
    assert_eq!(events, []);
    while let Some(event) = reader.next_event().unwrap() {
        source.push(event, &mut tables, &mut events);
    }
    let first = source.stats().first.unwrap();
    let losses = events.iter().filter_map(|event| match event.kind {
        EventKind::Loss { count, since, entity, .. } => Some((event.time, since, count, entity)),
        _ => None,
    });
    let expected = (first, first, Some(23), source.process());
    assert_eq!(losses.collect::<Vec<_>>(), [expected]);
    assert!(first > Timestamp::from_nanos(0));
}

/// Their events do not count, and the trace mentions the goroutines and Ps again in each generation.
#[test]
fn entities_above_the_limit_are_counted_once() {
    let (_, bytes) =
        fixtures().into_iter().find(|(name, _)| name == "go1.23-mixed").expect("the fixture");
    let mut all = Tables::new();
    read(&bytes, &mut all);
    let mut limits = TableLimits::default();
    let mut dropped = [0, 1].map(|most| {
        limits.entities = most;
        let mut tables = Tables::with_limits(limits);
        read(&bytes, &mut tables);
        assert_eq!(tables.entities.len(), most);
        tables.dropped().entities
    });
    // Without a process, nothing else is asked for.
    assert_eq!(dropped[0], 1);
    dropped[0] = all.entities.len() as u64;
    assert!((2..dropped[0]).contains(&dropped[1]), "{dropped:?}");
}

/// What a damaged generation says may be wrong. The generation after it begins with nothing.
#[test]
fn states_end_with_a_damaged_generation() {
    let (_, mut bytes) =
        fixtures().into_iter().find(|(name, _)| name == "go1.23-mixed").expect("the fixture");
    let (from, to) = (bytes.len() * 2 / 5, bytes.len() * 3 / 5);
    bytes[from..to].fill(0xff);
    let mut tables = Tables::new();
    let mut reader = Reader::new(&bytes[..]).unwrap();
    let (mut source, mut events) = (GoSource::new(Default::default()), Vec::new());
    let (mut states, mut spans) = (HashMap::new(), HashMap::new());
    let mut known = Vec::new();
    let mut each = |event: gotrace::Event<'_>| {
        let restarts = event.sync().is_some_and(|sync| sync.restarts());
        if restarts {
            known.push(states.values().filter(|state| **state != State::Unknown).count());
        }
        source.push(event, &mut tables, &mut events);
        for event in events.drain(..) {
            match event.kind {
                EventKind::State { entity, state, .. } => drop(states.insert(entity, state)),
                EventKind::End { entity } => drop(states.remove(&entity)),
                // Tasks have ids that are not used again.
                EventKind::Begin { span, kind, .. } if kind != SpanKind::Task => {
                    spans.insert(span, kind);
                }
                EventKind::Finish { span, .. } => drop(spans.remove(&span)),
                _ => {}
            }
        }
        if restarts {
            assert!(states.values().all(|state| *state == State::Unknown), "{states:?}");
            assert_eq!(spans, HashMap::new());
        }
    };
    loop {
        match reader.next_event() {
            Ok(Some(event)) => each(event),
            Ok(None) => break,
            Err(_) => assert!(matches!(reader.recover(), Ok(Some(_)))),
        }
    }
    assert!(known.iter().any(|known| *known > 5), "{known:?}");
}

/// Makes a synthetic event at this time.
fn synthetic(time: i64, goroutine: i64, details: EventDetails<'_>) -> gotrace::OwnedEvent {
    let config = EventConfig::new(details).time(Timestamp::from_nanos(time));
    config.goroutine(GoId(goroutine)).thread(ThreadId(7)).build().unwrap()
}

/// (A unit test counts what a loss visits.)
#[test]
fn a_loss_ends_nothing_that_ended_at_others() {
    const COUNT: i64 = 1_000;
    let mut tables = Tables::new();
    let (mut source, mut events) = (GoSource::new(Default::default()), Vec::new());
    for id in 1..=COUNT {
        let change =
            StateTransition::of_goroutine(GoId(id), GoState::Undetermined, GoState::Waiting);
        let event = synthetic(id, id, EventDetails::StateTransition(change));
        source.push(event.as_event(), &mut tables, &mut events);
        let change =
            StateTransition::of_proc(ProcId(id), ProcState::Undetermined, ProcState::Running);
        let event = synthetic(id, id, EventDetails::StateTransition(change));
        source.push(event.as_event(), &mut tables, &mut events);
        let stop =
            Range::new(RangeName::StopTheWorld("GC".into()), ResourceId::Goroutine(GoId(id)));
        let event = synthetic(id, id, EventDetails::RangeBegin(stop));
        source.push(event.as_event(), &mut tables, &mut events);
    }
    events.clear();
    source.loss("damaged", None, &mut tables, &mut events);
    let ends = |events: &[Event]| {
        events.iter().filter(|e| matches!(e.kind, EventKind::Finish { .. })).count()
    };
    let states = events.iter().filter(|e| matches!(e.kind, EventKind::State { .. })).count();
    assert_eq!((ends(&events), states), (COUNT as usize, 2 * COUNT as usize));
    events.clear();
    for time in COUNT + 1..=3 * COUNT {
        // A region of a goroutine with an unknown state.
        let region = Region::new(TaskId::BACKGROUND, "region");
        let event = synthetic(time, 5, EventDetails::RegionBegin(region));
        source.push(event.as_event(), &mut tables, &mut events);
        source.loss("damaged", None, &mut tables, &mut events);
        assert_eq!(ends(&events), 1);
        events.clear();
    }
}

/// A region that a loss cuts may have lasted longer.
#[test]
fn a_region_that_a_loss_cuts_is_no_request() {
    let mut tables = Tables::new();
    let (mut source, mut events) = (GoSource::new(Default::default()), Vec::new());
    let change = StateTransition::of_goroutine(GoId(5), GoState::Undetermined, GoState::Running);
    let region = || Region::new(TaskId::BACKGROUND, "region");
    let mut push = |time, details| {
        source.push(synthetic(time, 5, details).as_event(), &mut tables, &mut events);
    };
    push(10, EventDetails::StateTransition(change));
    push(20, EventDetails::RegionBegin(region()));
    push(30, EventDetails::RegionEnd(region()));
    push(40, EventDetails::RegionBegin(region()));
    push(80, EventDetails::RegionBegin(region()));
    source.loss("damaged", None, &mut tables, &mut events);
    let mut requests = Requests::new(RequestFilter::default(), 10);
    events.iter().for_each(|event| requests.push(&Derived::Event(*event)));
    let ended = events.iter().filter(|e| matches!(e.kind, EventKind::Finish { .. })).count();
    assert_eq!((ended, requests.count()), (3, 1));
    assert_eq!(requests.into_worst()[0].nanos(), 10);
}

/// The trace begins within a mark phase: how long it lasted is not known.
#[test]
fn the_rest_of_a_mark_phase_is_no_duration() {
    let mut tables = Tables::new();
    let (mut source, mut events) = (GoSource::new(Default::default()), Vec::new());
    let mark = || Range::new(RangeName::GcMark, ResourceId::None);
    for (time, details) in [
        (10, EventDetails::RangeActive(mark())),
        (50, EventDetails::RangeEnd(mark())),
        (60, EventDetails::RangeBegin(mark())),
        // As at the start of a generation.
        (70, EventDetails::RangeActive(mark())),
        (90, EventDetails::RangeEnd(mark())),
    ] {
        source.push(synthetic(time, 1, details).as_event(), &mut tables, &mut events);
    }
    let mut report = Report::new();
    events.iter().for_each(|event| report.push(&Derived::Event(*event), &tables.entities));
    let durations: Vec<_> = report.gcs.values().map(|gcs| (gcs.count(), gcs.sum())).collect();
    assert_eq!(durations, [(1, 30)]);
    let cut = events.iter().filter_map(|event| match event.kind {
        EventKind::Finish { is_cut, .. } => Some((event.time.nanos(), is_cut)),
        _ => None,
    });
    assert_eq!(cut.collect::<Vec<_>>(), [(50, true), (90, false)]);
}

/// Only the end of a task says when it ended.
#[test]
fn a_task_outlives_a_loss() {
    let mut tables = Tables::new();
    let (mut source, mut events) = (GoSource::new(Default::default()), Vec::new());
    let task = || Task::new(TaskId(5), TaskId::BACKGROUND, "checkout");
    let event = synthetic(100, 1, EventDetails::TaskBegin(task()));
    source.push(event.as_event(), &mut tables, &mut events);
    source.loss("damaged", None, &mut tables, &mut events);
    let event = synthetic(300, 1, EventDetails::TaskEnd(task()));
    source.push(event.as_event(), &mut tables, &mut events);
    let spans = events.iter().filter_map(|event| match event.kind {
        EventKind::Begin { span, kind: SpanKind::Task, .. } | EventKind::Finish { span, .. } => {
            Some((event.time.nanos(), span))
        }
        _ => None,
    });
    let spans: Vec<_> = spans.collect();
    assert_eq!(spans.len(), 2);
    assert_eq!(((100, spans[0].1), (300, spans[0].1)), (spans[0], spans[1]));
}

/// A switch is three events, and one flow.
#[test]
fn coroutine_switches_hand_over() {
    let (_, bytes) =
        fixtures().into_iter().find(|(name, _)| name == "go1.23-coroutines").expect("the fixture");
    let mut reader = Reader::new(&bytes[..]).unwrap();
    let mut switches = Vec::new();
    while let Some(event) = reader.next_event().unwrap() {
        if matches!(event.wire_type(), Some(EventType::GO_SWITCH | EventType::GO_SWITCH_DESTROY)) {
            switches.push((event.time(), event.goroutine().0));
        }
    }
    let mut tables = Tables::new();
    let events = read(&bytes, &mut tables);
    let flows = events.iter().filter_map(|event| match event.kind {
        EventKind::Flow { kind: FlowKind::HandsOver, from, .. } => {
            Some((event.time, tables.entities.get(from?)?.number))
        }
        _ => None,
    });
    assert!(switches.len() > 100, "{}", switches.len());
    assert!(flows.eq(switches), "the flows are others");
}

#[test]
fn regions_above_the_limit_end_no_others() {
    const DEPTH: usize = 1100;
    const KEPT: usize = 1024;
    let kinds = include_str!("../../gotrace/tests/data/text/kinds.trace.txt");
    let start = "UserRegionBegin dt=1 task=5 name_string=6 stack=1\n";
    let end = "UserRegionEnd dt=1 task=5 name_string=6 stack=1\n";
    let size = 233 + (DEPTH - 1) * 2 * 5;
    let text = kinds
        .replace(start, &start.repeat(DEPTH))
        .replace(end, &end.repeat(DEPTH))
        .replace("size=233", &format!("size={size}"));
    let mut wire = Vec::new();
    gotrace::raw::TextToWire::new(text.as_bytes()).unwrap().read_to_end(&mut wire).unwrap();
    let mut tables = Tables::new();
    let events = read(&wire, &mut tables);
    let mut open = Vec::new();
    let mut ended = 0;
    for event in &events {
        match event.kind {
            EventKind::Begin { span, kind: SpanKind::Region, .. } => open.push(span),
            EventKind::Finish { span, .. } if open.contains(&span) => {
                assert_eq!(open.pop(), Some(span), "regions nest");
                ended += 1;
            }
            EventKind::Instant { name, .. } => {
                assert_ne!(tables.get(name), b"end of a region from before the trace");
            }
            _ => {}
        }
    }
    assert_eq!((ended, open.len()), (KEPT, 0));
}

fn correlate(events: &[Event], tables: &Tables, each: &mut dyn FnMut(Derived<'_>)) {
    let mut correlator = Correlator::new();
    for event in events {
        correlator.push(event, &tables.entities, each);
    }
    correlator.finish(each);
}

/// Nanoseconds by goroutine and state up to `end`, straight from the trace.
fn expected(bytes: &[u8], end: Timestamp) -> BTreeMap<(i64, State), i64> {
    let mut reader = Reader::new(bytes).unwrap();
    let mut live: HashMap<i64, (GoState, Timestamp)> = HashMap::new();
    let mut sums = BTreeMap::new();
    let mut add = |id: i64, state: GoState, nanos: i64| {
        let state = match state {
            GoState::Running => State::Running,
            GoState::Runnable => State::Runnable,
            GoState::Waiting => State::Waiting,
            GoState::Syscall => State::Syscall,
            _ => return,
        };
        *sums.entry((id, state)).or_insert(0) += nanos;
    };
    let (mut generation, mut start) = (None, Timestamp::default());
    while let Some(event) = reader.next_event().unwrap() {
        if event.sync().is_some() {
            continue;
        }
        if generation != Some(event.generation()) {
            (generation, start) = (Some(event.generation()), event.time());
        }
        let Some(transition) = event.state_transition() else { continue };
        let (Some(id), Some((from, to))) =
            (transition.resource().goroutine(), transition.goroutine())
        else {
            continue;
        };
        let mut since = event.time();
        if let Some((state, since)) = live.remove(&id.0) {
            add(id.0, state, event.time().nanos_since(since));
        } else if from == GoState::Undetermined {
            since = start;
        }
        if to != GoState::NotExist {
            live.insert(id.0, (to, since));
        }
    }
    for (id, (state, since)) in live {
        add(id, state, end.nanos_since(since));
    }
    sums.retain(|_, nanos| *nanos > 0);
    sums
}

/// A goroutine that does nothing is mentioned when a generation ends.
#[test]
fn a_state_at_the_first_mention_holds_since_the_begin() {
    let mut tables = Tables::new();
    let mut source = GoSource::new(Default::default());
    let mut events = Vec::new();
    for (time, id, from, to) in [
        (100, 1, GoState::Undetermined, GoState::Waiting),
        (300, 1, GoState::Waiting, GoState::Runnable),
        (400, 2, GoState::NotExist, GoState::Runnable),
        (900, 3, GoState::Undetermined, GoState::Waiting),
        (950, 4, GoState::Undetermined, GoState::Syscall),
        (960, 3, GoState::Waiting, GoState::Waiting),
        (1000, 3, GoState::Waiting, GoState::Runnable),
    ] {
        let change = StateTransition::of_goroutine(GoId(id), from, to);
        let event = EventConfig::new(EventDetails::StateTransition(change))
            .time(Timestamp::from_nanos(time))
            .thread(ThreadId(7))
            .build()
            .unwrap();
        source.push(event.as_event(), &mut tables, &mut events);
    }
    assert!(events.is_sorted_by_key(|event| event.time));
    let mut found = Vec::new();
    correlate(&events, &tables, &mut |derived| {
        let Derived::Interval(interval) = derived else { return };
        let number = tables.entities.get(interval.subject).unwrap().number;
        found.push((number, interval.state, interval.start.nanos(), interval.end.nanos()));
    });
    found.sort_by_key(|(number, _, start, _)| (*number, *start));
    let expected = [
        (1, State::Waiting, 100, 300),
        (1, State::Runnable, 300, 1000),
        (2, State::Runnable, 400, 1000),
        (3, State::Waiting, 100, 1000),
        (4, State::Syscall, 100, 1000),
    ];
    assert_eq!(found, expected);
    let mut report = Report::new();
    correlate(&events, &tables, &mut |derived| report.push(&derived, &tables.entities));
    let waited: u64 = report.waits.values().map(|waits| waits.durations.sum()).sum();
    assert_eq!(waited, 200 + 900);
}

/// As a program does that reads a trace and keeps nothing of it.
#[test]
fn a_goroutine_is_counted_in_the_group_of_its_entry_function() {
    let running = |id, from| StateTransition::of_goroutine(GoId(id), from, GoState::Running);
    let blocks = |id| StateTransition::of_goroutine(GoId(id), GoState::Running, GoState::Waiting);
    let stack = |name| OwnedStack::new(&[StackFrame::new(0x10, name, "main.go", 7)]);
    let (main, work) = (stack("main.main"), stack("main.work"));
    let mut tables = Tables::new();
    let mut source = GoSource::new(Default::default());
    let (mut correlator, mut report) = (Correlator::new(), Report::new());
    let mut events = Vec::new();
    let known = GoState::Undetermined;
    for (time, id, change, stack) in [
        (100, 1, running(1, known), None),
        (200, 1, blocks(1), Some(&main)),
        (300, 2, StateTransition::of_goroutine(GoId(2), known, GoState::Runnable), None),
        (400, 2, running(2, GoState::Runnable), None),
        (500, 2, blocks(2), Some(&work)),
        (600, 3, StateTransition::of_goroutine(GoId(3), known, GoState::Waiting), None),
        (700, 2, StateTransition::of_goroutine(GoId(2), GoState::Waiting, GoState::Runnable), None),
    ] {
        let change = match stack {
            Some(stack) => change.with_stack(stack.as_stack()),
            None => change,
        };
        let event = EventConfig::new(EventDetails::StateTransition(change))
            .time(Timestamp::from_nanos(time))
            .goroutine(GoId(id))
            .thread(ThreadId(7))
            .build()
            .unwrap();
        source.push(event.as_event(), &mut tables, &mut events);
        for event in events.drain(..) {
            let entities = &tables.entities;
            correlator.push(&event, entities, &mut |derived| report.push(&derived, entities));
        }
    }
    correlator.finish(&mut |derived| report.push(&derived, &tables.entities));
    let found: Vec<_> = report
        .groups
        .iter()
        .map(|((_, entry), group)| {
            (tables.str(*entry).into_owned(), group.count, group.total(), group.runnable)
        })
        .collect();
    // The second one waited for a P before its name was known.
    let expected = [("", 1, 600, 0), ("main.main", 1, 600, 0), ("main.work", 1, 600, 300)];
    let expected =
        expected.map(|(name, count, all, runnable)| (name.to_owned(), count, all, runnable));
    let found: std::collections::BTreeSet<_> = found.into_iter().collect();
    assert_eq!(found, expected.into());
}

#[test]
fn times_by_state_are_those_of_the_trace() {
    for (name, bytes) in fixtures() {
        let mut tables = Tables::new();
        let events = read(&bytes, &mut tables);
        let mut found: BTreeMap<(i64, State), i64> = BTreeMap::new();
        let mut last: HashMap<EntityId, Interval> = HashMap::new();
        let mut intervals = 0;
        correlate(&events, &tables, &mut |derived| {
            let Derived::Interval(interval) = derived else { return };
            intervals += 1;
            assert!(interval.nanos() > 0, "{name}: {interval:?}");
            let before = last.insert(interval.subject, interval);
            if let Some(before) = before {
                assert_eq!(before.end, interval.start, "{name}: a gap or an overlap");
                let is_one = before.state == interval.state && interval.state == State::Waiting;
                assert!(!is_one || !interval.reason.is_empty(), "{name}: a wait in pieces");
            }
            let entity = tables.entities.get(interval.subject).unwrap();
            if entity.kind == EntityKind::Goroutine && interval.state != State::Unknown {
                *found.entry((entity.number, interval.state)).or_default() += interval.nanos();
            }
        });
        assert!(intervals > 100, "{name}: {intervals}");
        let end = events.last().unwrap().time;
        assert_eq!(found, expected(&bytes, end), "{name}");
    }
}

/// The names of mark phases have the causes that the analysis of `gotrace` finds.
#[test]
fn mark_phases_are_named_by_their_cause() {
    let mut all = BTreeMap::new();
    for (name, bytes) in fixtures() {
        let mut collections = GcCycles::new(0);
        let mut reader = Reader::new(&bytes[..]).unwrap();
        while let Some(event) = reader.next_event().unwrap() {
            collections.push(event);
        }
        let of_trigger = |trigger| match trigger {
            GcTrigger::Unknown => "mark".to_owned(),
            trigger => format!("mark ({})", trigger.name()),
        };
        let cycles = collections.finish().cycles;
        let expected: Vec<String> = cycles.iter().map(|cycle| of_trigger(cycle.trigger)).collect();
        let mut tables = Tables::new();
        let events = read(&bytes, &mut tables);
        let found: Vec<String> = events
            .iter()
            .filter_map(|event| match event.kind {
                EventKind::Begin { kind: SpanKind::Gc, name, .. } => Some(name),
                _ => None,
            })
            .map(|name| tables.str(name).into_owned())
            .collect();
        assert_eq!(found, expected, "{name}");
        found.into_iter().for_each(|name| *all.entry(name).or_insert(0) += 1);
    }
    assert!(
        all.contains_key("mark (allocation)") && all.contains_key("mark (explicit)"),
        "{all:?}"
    );
}

/// The thread of a goroutine in a system call is known from the start: a status names it.
#[test]
fn a_goroutine_in_a_system_call_has_a_thread() {
    let mut in_call = 0;
    for (name, bytes) in fixtures() {
        let mut tables = Tables::new();
        let version = Reader::new(&bytes[..]).unwrap().version();
        for event in read(&bytes, &mut tables) {
            let EventKind::State { state: State::Syscall, on, .. } = event.kind else { continue };
            in_call += 1;
            // Earlier versions do not name all threads.
            assert!(on.is_some() || version < gotrace::Version::Go122, "{name}: {event:?}");
        }
    }
    assert!(in_call > 100, "{in_call}");
}

/// Other sources continue after the end of a trace: nothing is known of its goroutines and Ps then.
#[test]
fn nothing_is_known_after_the_end_of_a_trace() {
    for (name, bytes) in fixtures() {
        let mut tables = Tables::new();
        let mut reader = Reader::new(&bytes[..]).unwrap();
        let (mut source, mut events) = (GoSource::new(Default::default()), Vec::new());
        while let Some(event) = reader.next_event().unwrap() {
            source.push(event, &mut tables, &mut events);
        }
        let before = events.len();
        source.finish(&mut tables, &mut events);
        assert!(events.len() > before, "{name}");
        let (mut states, mut open) = (BTreeMap::new(), BTreeMap::new());
        for event in &events {
            match event.kind {
                EventKind::State { entity, state, .. } => drop(states.insert(entity, state)),
                EventKind::End { entity } => drop(states.remove(&entity)),
                EventKind::Begin { span, kind, .. } => drop(open.insert(span, kind)),
                EventKind::Finish { span, .. } => drop(open.remove(&span)),
                _ => {}
            }
        }
        let is_of_program = |kind: &SpanKind| matches!(kind, SpanKind::Task | SpanKind::Region);
        assert!(open.values().all(is_of_program), "{name}: {open:?}");
        assert!(states.values().all(|state| *state == State::Unknown), "{name}: {states:?}");
        let last = source.stats().last;
        assert!(events[before..].iter().all(|event| Some(event.time) == last), "{name}");
    }
}

fn check(path: &CriticalPath, what: &str) {
    let mut at = path.start;
    for piece in &path.pieces {
        assert_eq!(piece.start, at, "{what}: {path:#?}");
        assert!(piece.end > piece.start, "{what}: {piece:?}");
        at = piece.end;
    }
    assert_eq!(at, path.end, "{what}");
}

#[test]
fn pieces_sum_to_the_duration_of_every_task_region_and_goroutine() {
    let mut tasks = 0;
    for (name, bytes) in fixtures() {
        let mut tables = Tables::new();
        let events = read(&bytes, &mut tables);
        let mut requests = Requests::new(RequestFilter::default(), usize::MAX);
        let mut history = History::new(Timestamp::from_nanos(i64::MIN), Timestamp::MAX);
        correlate(&events, &tables, &mut |derived| {
            requests.push(&derived);
            history.push(&derived);
        });
        history.finish();
        assert_eq!(history.dropped(), 0);
        for r in requests.into_worst() {
            tasks += 1;
            let path = critical_path(&history, &tables.entities, r.subject, r.start, r.end, r.task);
            check(&path, &name);
            if r.nanos() > 0 {
                assert!(!path.pieces.is_empty(), "{name}");
            }
        }
        for subject in history.subjects() {
            let intervals = history.intervals(subject);
            let (start, end) = (intervals[0].start, intervals[intervals.len() - 1].end);
            let path = critical_path(&history, &tables.entities, subject, start, end, None);
            check(&path, &name);
        }
    }
    assert!(tasks > 100, "{tasks}");
}

/// The events of a Go trace on a machine that has a CPU for each of its threads.
fn with_cpus(events: &[Event], tables: &mut Tables) -> Vec<Event> {
    let mut all = Vec::new();
    for event in events {
        all.push(*event);
        let EventKind::Start { entity } = event.kind else { continue };
        let m = *tables.entities.get(entity).unwrap();
        if m.kind != EntityKind::GoThread {
            continue;
        }
        let [cpu, thread] = [EntityKind::Cpu, EntityKind::Thread]
            .map(|kind| tables.entity(Entity::new(kind, m.number)).unwrap());
        let (prev, left, next) = (None, ThreadState::Unknown, Some(thread));
        let (is_next_unknown, prio) = (false, 120);
        for kind in [
            EventKind::Start { entity: cpu },
            EventKind::Start { entity: thread },
            EventKind::Switch { cpu, prev, left, next, is_next_unknown, prio },
        ] {
            all.push(Event { kind, ..*event });
        }
    }
    all
}

/// The time of all requests that others spent on other tasks, and the part of it that is time of
/// kernel threads.
fn context(events: &[Event], tables: &Tables) -> (i64, i64) {
    let mut requests = Requests::new(RequestFilter::default(), usize::MAX);
    let mut history = History::new(Timestamp::from_nanos(i64::MIN), Timestamp::MAX);
    correlate(events, tables, &mut |derived| {
        requests.push(&derived);
        history.push(&derived);
    });
    history.finish();
    let (mut all, mut of_threads) = (0, 0);
    for r in requests.into_worst() {
        let path = critical_path(&history, &tables.entities, r.subject, r.start, r.end, r.task);
        check(&path, "with CPUs");
        for piece in path.pieces.iter().filter(|piece| piece.context.is_some()) {
            all += piece.nanos();
            let kind = tables.entities.kind(piece.entity);
            of_threads += i64::from(kind == Some(EntityKind::Thread)) * piece.nanos();
        }
    }
    (all, of_threads)
}

/// The kernel says more about the threads behind a goroutine that works for another task. It is
/// context all the same.
#[test]
fn the_context_does_not_depend_on_the_kernel() {
    let (_, shop) = fixtures().into_iter().find(|(name, _)| name == "shop").unwrap();
    let mut tables = Tables::new();
    let events = read(&shop, &mut tables);
    let (alone, none) = context(&events, &tables);
    let events = with_cpus(&events, &mut tables);
    let (with_kernel, of_threads) = context(&events, &tables);
    assert_eq!((with_kernel, none), (alone, 0));
    assert!(alone > 0 && of_threads > 0, "{alone} {of_threads}");
}

/// Without the kernel, both critical paths have the same work for other tasks. That of `gotrace` does not lead to the
/// causes of stop-the-worlds.
#[test]
fn the_context_is_that_of_gotrace() {
    let (mut sum, mut compared, mut stopped) = (0, 0, 0);
    for (name, bytes) in fixtures() {
        let mut tables = Tables::new();
        let mut requests = Requests::new(RequestFilter::default(), usize::MAX);
        let mut history = History::new(Timestamp::from_nanos(i64::MIN), Timestamp::MAX);
        correlate(&read(&bytes, &mut tables), &tables, &mut |derived| {
            requests.push(&derived);
            history.push(&derived);
        });
        history.finish();
        let mut found = Vec::new();
        for r in requests.into_worst() {
            let path = critical_path(&history, &tables.entities, r.subject, r.start, r.end, r.task);
            let others = path.pieces.iter().filter(|piece| piece.context.is_some());
            let nanos: i64 = others.map(Piece::nanos).sum();
            let is_stopped = path.pieces.iter().any(|piece| {
                let during = piece.during.map(|(kind, _)| kind);
                piece.depth > 0 && during == Some(SpanKind::StopTheWorld)
            });
            found.push(((r.start, r.end, tables.str(r.name).into_owned(), nanos), is_stopped));
        }
        let mut requests = gotrace::analysis::Requests::new(Default::default(), usize::MAX);
        let mut reader = Reader::new(&bytes[..]).unwrap();
        while let Some(event) = reader.next_event().unwrap() {
            requests.push(event);
        }
        let mut paths = gotrace::analysis::CriticalPaths::new(requests.finish());
        let mut reader = Reader::new(&bytes[..]).unwrap();
        while let Some(event) = reader.next_event().unwrap() {
            paths.push(event);
        }
        let mut expected = Vec::new();
        for path in paths.finish() {
            let others = path.pieces.iter().filter(|piece| piece.context.is_some());
            let nanos: i64 = others.map(|piece| piece.end.nanos_since(piece.start)).sum();
            let r = path.request;
            sum += nanos;
            expected.push((r.start, r.end, r.name.to_string(), nanos));
        }
        found.sort();
        expected.sort();
        assert_eq!(found.len(), expected.len(), "{name}");
        for ((found, is_stopped), expected) in found.iter().zip(&expected) {
            if *is_stopped {
                stopped += 1;
                continue;
            }
            compared += 1;
            assert_eq!(found, expected, "{name}");
        }
    }
    assert!(sum > 0 && compared > 2 * stopped, "{compared} {stopped}");
}

/// A coroutine that another one switches to waits for no P.
#[test]
fn latencies_are_those_of_the_analysis_of_go() {
    for (name, bytes) in fixtures() {
        let mut tables = Tables::new();
        let events = read(&bytes, &mut tables);
        let mut report = Report::new();
        correlate(&events, &tables, &mut |derived| report.push(&derived, &tables.entities));
        let mut reader = Reader::new(&bytes[..]).unwrap();
        let mut scheduling = Scheduling::new(SchedulingOptions::default());
        while let Some(event) = reader.next_event().unwrap() {
            scheduling.push(event);
        }
        let theirs = scheduling.finish().latency;
        let count: u64 = report.groups.values().map(|group| group.latency.count()).sum();
        let sum: u64 = report.groups.values().map(|group| group.latency.sum()).sum();
        assert_eq!((count, sum), (theirs.count(), theirs.sum()), "{name}");
    }
}

#[test]
fn reports_sum_to_the_intervals() {
    for (name, bytes) in fixtures() {
        let mut tables = Tables::new();
        let events = read(&bytes, &mut tables);
        let mut report = Report::new();
        let mut total = 0;
        correlate(&events, &tables, &mut |derived| {
            report.push(&derived, &tables.entities);
            if let Derived::Interval(interval) = derived {
                let kind = tables.entities.kind(interval.subject);
                total += i64::from(kind == Some(EntityKind::Goroutine)) * interval.nanos();
            }
        });
        let sum: i64 = report.groups.values().map(trace_timeline::answers::Group::total).sum();
        assert_eq!(sum, total, "{name}");
        let off = |is_it: fn(&OffCpu) -> bool| {
            let times = report.off_cpu.iter().filter(|((_, reason), _)| is_it(reason));
            times.map(|(_, times)| times.nanos).sum::<i64>()
        };
        let waits: i64 = report.groups.values().map(|group| group.waiting).sum();
        let runnable: i64 = report.groups.values().map(|group| group.runnable).sum();
        assert_eq!(off(|reason| matches!(reason, OffCpu::Waits(_))), waits, "{name}");
        assert_eq!(off(|reason| *reason == OffCpu::WaitsForProc), runnable, "{name}");
        let longest = report.groups.values().map(|group| group.latency.max()).max();
        let delays: Vec<u64> =
            report.longest_delays(|_| true).iter().map(|d| d.nanos as u64).collect();
        assert_eq!(delays.first().copied(), longest.filter(|_| !delays.is_empty()), "{name}");
        assert!(delays.is_sorted_by(|a, b| a >= b), "{name}");
        let goroutines: u64 = report.groups.values().map(|group| group.count).sum();
        let known = tables.entities.iter().filter(|(_, e)| e.kind == EntityKind::Goroutine);
        assert_eq!(goroutines, known.count() as u64, "{name}");
        if name.contains("mixed") || name.contains("collections") {
            assert!(!report.pauses.is_empty(), "{name}");
        }
    }
}

/// What the model has beside times is what the trace has: stacks, categories, bytes swept, threads
/// of samples, readings of clocks.
#[test]
fn details_are_those_of_the_trace() {
    #[derive(Debug, Default, PartialEq)]
    struct Details {
        /// Category, message and whether it has a task.
        logs: Vec<(String, String, bool)>,
        swept: u64,
        reclaimed: u64,
        /// The number of frames of the stacks of regions and tasks.
        annotations: Vec<usize>,
        samples: Vec<i64>,
        clocks: usize,
        marks: usize,
    }
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let mut all = Details::default();
    for (name, bytes) in fixtures() {
        let mut expected = Details::default();
        let mut reader = Reader::new(&bytes[..]).unwrap();
        let mut tasks = std::collections::HashSet::new();
        // A range, region or task that is open at the start of the trace has no begin.
        let mut sweeps = std::collections::HashSet::new();
        while let Some(event) = reader.next_event().unwrap() {
            if let Some(snapshot) = event.sync().and_then(|sync| sync.clock_snapshot()) {
                expected.clocks += 1 + usize::from(snapshot.wall().is_some());
            }
            let frames = event.stack().map_or(0, |stack| stack.frames().count());
            match event.kind() {
                GoEventKind::Log => {
                    let log = event.log().unwrap();
                    let has_task = tasks.contains(&log.task);
                    expected.logs.push((text(log.category), text(log.message), has_task));
                }
                GoEventKind::TaskBegin => {
                    tasks.insert(event.task().unwrap().id);
                    expected.annotations.push(frames);
                }
                GoEventKind::TaskEnd => drop(tasks.remove(&event.task().unwrap().id)),
                GoEventKind::RegionBegin => expected.annotations.push(frames),
                GoEventKind::RangeBegin | GoEventKind::RangeActive | GoEventKind::RangeEnd => {
                    let range = event.range().unwrap();
                    let is_end = event.kind() == GoEventKind::RangeEnd;
                    match range.name {
                        RangeName::GcMark => {
                            let is_begin = event.kind() == GoEventKind::RangeBegin;
                            expected.marks += usize::from(is_begin);
                        }
                        RangeName::GcSweep if is_end => {
                            let values: Vec<u64> = event
                                .range_attributes()
                                .unwrap()
                                .filter_map(|attribute| attribute.value.as_u64())
                                .collect();
                            if sweeps.remove(&event.proc()) {
                                expected.swept += values[0];
                                expected.reclaimed += values[1];
                            }
                        }
                        RangeName::GcSweep => drop(sweeps.insert(event.proc())),
                        _ => {}
                    }
                }
                GoEventKind::StackSample => expected.samples.push(event.thread().0),
                _ => {}
            }
        }
        let mut tables = Tables::new();
        let events = read(&bytes, &mut tables);
        let (mut found, mut arguments) = (Details::default(), Vec::new());
        let frames = |stack: Option<_>| stack.map_or(0, |stack| tables.frames(stack).len());
        for event in &events {
            match event.kind {
                EventKind::Argument { name, value } => {
                    arguments.push((text(tables.get(name)), value));
                    continue;
                }
                EventKind::Instant { kind: InstantKind::Log, name, of, .. } => {
                    let category = match arguments.pop() {
                        Some((name, Value::Text(category))) if name == "category" => category,
                        None => Default::default(),
                        other => panic!("{other:?}"),
                    };
                    let category = text(tables.get(category));
                    found.logs.push((category, text(tables.get(name)), of.is_some()));
                }
                EventKind::Begin { kind: SpanKind::Task | SpanKind::Region, stack, .. } => {
                    found.annotations.push(frames(stack));
                }
                EventKind::Begin { kind: SpanKind::Gc, of, .. } => {
                    assert_eq!(tables.entities.kind(of.unwrap()), Some(EntityKind::Gc), "{name}");
                    found.marks += 1;
                }
                EventKind::Finish { .. } => {
                    for (name, value) in &arguments {
                        let Value::Uint(value) = value else { panic!("{value:?}") };
                        match name.as_str() {
                            "bytes swept" => found.swept += value,
                            "bytes reclaimed" => found.reclaimed += value,
                            other => panic!("{other}"),
                        }
                    }
                }
                EventKind::Sample { kind, thread, .. } => {
                    assert_eq!(kind, SampleKind::GoCpu);
                    let thread = thread.and_then(|thread| tables.entities.get(thread));
                    found.samples.push(thread.map_or(-1, |thread| thread.number));
                }
                EventKind::Clock { .. } => found.clocks += 1,
                _ => {}
            }
            arguments.clear();
        }
        assert_eq!(found, expected, "{name}");
        all.logs.extend(found.logs);
        all.annotations.extend(found.annotations);
        all.samples.extend(found.samples);
        all.swept += found.swept;
        all.reclaimed += found.reclaimed;
        all.clocks += found.clocks;
        all.marks += found.marks;
    }
    assert!(all.logs.iter().any(|(category, _, has_task)| !category.is_empty() && *has_task));
    assert!(all.annotations.iter().all(|frames| *frames > 0) && !all.annotations.is_empty());
    assert!(all.swept > all.reclaimed && all.reclaimed > 0 && all.clocks > 0 && all.marks > 0);
    assert!(all.samples.len() > 10, "{}", all.samples.len());
}
