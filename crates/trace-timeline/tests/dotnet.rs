//! .NET traces of real programs: spans and activities are those that the analyses of `nettrace`
//! find in another way, and intervals partition the lives of threads.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests may panic"
)]

use flate2::read::GzDecoder;
use nettrace::analysis::{ActivityTracker, GcTracker, RuntimeRecord, RuntimeTracker};
use nettrace::{Item, Reader};
use std::collections::HashMap;
use std::io::Read;
use std::path::PathBuf;
use testkit::nettrace::{event, trace, utf16};
use trace_timeline::answers::{
    CriticalPath, History, RequestFilter, Requests, What, critical_path,
};
use trace_timeline::sources::dotnet::DotnetSource;
use trace_timeline::sources::go::GoSource;
use trace_timeline::{
    Context, Correlator, Derived, Entity, EntityId, EntityKind, Event, EventKind, FlowKind,
    SpanKind, State, Tables, TextId, ThreadState, Timestamp,
};

fn fixtures() -> Vec<(String, Vec<u8>)> {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../nettrace/tests/data");
    let mut fixtures: Vec<(String, Vec<u8>)> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "nettrace"))
        .map(|path| {
            let name = path.file_stem().unwrap().to_string_lossy().into_owned();
            (name, std::fs::read(&path).unwrap())
        })
        .collect();
    let runtime =
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/t9-runtime.nettrace.gz");
    let mut bytes = Vec::new();
    GzDecoder::new(&std::fs::read(runtime).unwrap()[..]).read_to_end(&mut bytes).unwrap();
    fixtures.push(("t9-runtime".to_owned(), bytes));
    fixtures.push(("by hand".to_owned(), by_hand()));
    fixtures.sort();
    assert!(fixtures.len() >= 11, "{}", fixtures.len());
    fixtures
}

/// What the captures do not have: a GC with its suspension, a lock wait, an exception.
fn by_hand() -> Vec<u8> {
    const RUNTIME: &str = "Microsoft-Windows-DotNETRuntime";
    let types = [
        (RUNTIME, 9, 1),
        (RUNTIME, 8, 1),
        (RUNTIME, 1, 1),
        (RUNTIME, 2, 1),
        (RUNTIME, 3, 1),
        (RUNTIME, 81, 2),
        (RUNTIME, 91, 1),
        (RUNTIME, 80, 1),
    ];
    let (u32s, u64s, clr) = (u32::to_le_bytes, u64::to_le_bytes, 9u16.to_le_bytes());
    let text = utf16("System.Exception");
    trace(
        &types,
        &[
            event(1, 1_000, 5, &[&u32s(1), &u32s(0), &clr]),
            event(2, 1_100, 5, &[&clr]),
            event(3, 1_200, 5, &[&u32s(7), &u32s(0), &u32s(0), &u32s(0), &clr]),
            event(4, 1_500, 5, &[&u32s(7), &u32s(0), &clr]),
            event(5, 1_600, 5, &[&clr]),
            event(6, 2_000, 6, &[&[0], &clr, &u64s(1), &u64s(2), &u64s(5)]),
            event(7, 2_700, 6, &[&[0], &clr, &700f64.to_le_bytes()]),
            event(8, 3_000, 6, &[&text, &text, &u64s(0), &u32s(0), &[0; 2], &clr]),
        ],
    )
}

/// The thread waits for the owner of the lock, and all threads are held back by the suspension.
#[test]
fn a_lock_wait_names_its_owner() {
    let bytes = by_hand();
    let (mut tables, mut events) = (Tables::new(), Vec::new());
    let mut source = DotnetSource::new(0);
    let mut reader = Reader::new(&bytes[..]);
    while let Some(item) = reader.next_item().unwrap() {
        source.push(&item, &mut tables, &mut events);
    }
    let wait = events.iter().find_map(|event| match event.kind {
        EventKind::Begin { kind: SpanKind::LockWait, entity, of, .. } => Some((entity, of?)),
        _ => None,
    });
    let (waits, owner) = wait.unwrap();
    let number = |id| tables.entities.get(id).unwrap().number;
    assert_eq!((number(waits), number(owner)), (6, 5));
    let (mut waited, mut pauses) = (Vec::new(), Vec::new());
    let mut correlator = Correlator::new();
    let mut each = |derived: Derived<'_>| match derived {
        Derived::Interval(i) if i.state == State::Waiting => waited.push((i.subject, i.nanos())),
        Derived::Pause(pause) => pauses.push(pause.clone()),
        _ => {}
    };
    for event in &events {
        correlator.push(event, &tables.entities, &mut each);
    }
    correlator.finish(&mut each);
    assert_eq!(waited, [(waits, 700)]);
    let [pause] = &pauses[..] else { panic!("{pauses:?}") };
    let since = |at: Timestamp| at.nanos_since(pause.start);
    assert_eq!((pause.stopped.map(since), since(pause.end)), (Some(100), 600));
    assert_eq!(tables.get(pause.reason), b"Gc");
}

/// What the trackers of `nettrace` count: GCs, suspensions, lock waits, exceptions, activities.
fn expected(bytes: &[u8]) -> [usize; 5] {
    let (mut gc, mut runtime) = (GcTracker::new(), RuntimeTracker::new());
    let mut activities = ActivityTracker::new();
    let mut counts = [0; 5];
    let mut reader = Reader::new(bytes);
    while let Ok(Some(event)) = reader.next_event() {
        counts[1] += usize::from(gc.push(&event).is_some());
        while gc.next_gc().is_some() {
            counts[0] += 1;
        }
        match runtime.push(&event) {
            Some(RuntimeRecord::Contention(_)) => counts[2] += 1,
            Some(RuntimeRecord::Exception(_)) => counts[3] += 1,
            _ => {}
        }
        counts[4] += usize::from(activities.push(&event).is_some());
    }
    counts
}

/// The pieces partition the time.
fn check(path: &CriticalPath, name: &str) {
    let mut at = path.start;
    for piece in &path.pieces {
        assert_eq!(piece.start, at, "{name}: {path:#?}");
        assert!(piece.end > piece.start, "{name}: {piece:?}");
        at = piece.end;
    }
    assert_eq!(at, path.end, "{name}");
}

/// The events of a trace, as far as it is not damaged.
fn read(bytes: &[u8], offset: i64, tables: &mut Tables) -> Vec<Event> {
    let mut source = DotnetSource::new(offset);
    let mut events = Vec::new();
    let mut reader = Reader::new(bytes);
    while let Ok(Some(item)) = reader.next_item() {
        if let Item::Event(_) | Item::Loss(_) = item {
            source.push(&item, tables, &mut events);
        }
    }
    events
}

/// The paths of all activities and requests, and of the life of each subject. Intervals and pieces partition it.
fn paths(events: &[Event], tables: &Tables, name: &str) -> Vec<CriticalPath> {
    let mut correlator = Correlator::new();
    let mut requests = Requests::new(RequestFilter::default(), usize::MAX);
    let mut history = History::new(Timestamp::from_nanos(i64::MIN), Timestamp::MAX);
    let mut last: HashMap<EntityId, Timestamp> = HashMap::new();
    let mut each = |derived: Derived<'_>| {
        requests.push(&derived);
        history.push(&derived);
        if let Derived::Interval(interval) = derived {
            let before = last.insert(interval.subject, interval.end);
            assert!(before.is_none_or(|before| before == interval.start), "{name}");
        }
    };
    for event in events {
        correlator.push(event, &tables.entities, &mut each);
    }
    correlator.finish(&mut each);
    history.finish();
    assert_eq!(history.dropped(), 0, "{name}");
    let entities = &tables.entities;
    let of_requests = requests
        .into_worst()
        .into_iter()
        .map(|r| critical_path(&history, entities, r.subject, r.start, r.end, r.task));
    let lives = history.subjects().into_iter().map(|subject| {
        let life = history.intervals(subject);
        let (start, end) = (life[0].start, life[life.len() - 1].end);
        critical_path(&history, entities, subject, start, end, None)
    });
    let paths: Vec<CriticalPath> = of_requests.chain(lives).collect();
    paths.iter().for_each(|path| check(path, name));
    paths
}

/// These events on a machine with two CPUs, which the threads of the runtimes get in turn. A thread leaves its CPU in
/// one of several ways, and is woken by the thread that it follows. Now and then there was throttling.
fn scheduled(events: &[Event], tables: &mut Tables) -> Vec<Event> {
    let mut all = Vec::new();
    let kernel = tables.entity(Entity::new(EntityKind::Process, 4242)).unwrap();
    let cpus = [0, 1].map(|number| tables.entity(Entity::new(EntityKind::Cpu, number)).unwrap());
    let first = events.first().unwrap().time;
    all.extend(cpus.map(|entity| Event { time: first, kind: EventKind::Start { entity } }));
    let (mut threads, mut running, mut turn) = (Vec::new(), [None; 2], 0);
    for event in events {
        let at = event.time;
        all.push(*event);
        if let EventKind::Start { entity } = event.kind {
            let runtime = *tables.entities.get(entity).unwrap();
            let is_dotnet = runtime.kind == EntityKind::DotnetThread;
            if is_dotnet || runtime.kind == EntityKind::GoThread {
                let parent = if is_dotnet { runtime.parent } else { Some(kernel) };
                let thread = Entity::new(EntityKind::Thread, runtime.number).child_of(parent);
                let entity = tables.entity(thread).unwrap();
                all.push(Event { time: at, kind: EventKind::Start { entity } });
                threads.push(entity);
            }
        }
        turn += 1;
        if turn % 3 != 0 || threads.is_empty() {
            continue;
        }
        let (cpu, left) =
            (turn % 2, [ThreadState::Preempted, ThreadState::Sleeping, ThreadState::Blocked]);
        let left = left[turn / 6 % 3];
        let next =
            Some(threads[turn / 3 % threads.len()]).filter(|next| !running.contains(&Some(*next)));
        let prev = std::mem::replace(&mut running[cpu], next);
        let (kind, context, on, cpu) = (FlowKind::Wakes, Context::Task, Some(cpus[cpu]), cpus[cpu]);
        if let Some(to) = next {
            let (from, cpu, stack) = (prev, Some(cpu), None);
            all.push(Event {
                time: at,
                kind: EventKind::Flow { kind, from, context, on, to, cpu, stack },
            });
        }
        let (is_next_unknown, prio) = (false, 120);
        all.push(Event {
            time: at,
            kind: EventKind::Switch { cpu, prev, left, next, is_next_unknown, prio },
        });
        if turn % 50 == 0 {
            let since = at.saturating_add_nanos(-5_000_000);
            let (cgroup, nanos, periods) = (TextId::EMPTY, 3_000_000, 1);
            let process = tables.entities.process_of(threads[0]).unwrap();
            all.push(Event {
                time: at,
                kind: EventKind::Throttle { process, cgroup, since, nanos, periods },
            });
        }
    }
    all
}

/// Together with a Go trace and with the scheduler of the machine, of which each names a part of the time.
#[test]
fn pieces_sum_to_the_duration_of_merged_traces() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../gotrace/tests/data/go1.23-mixed.trace.gz");
    let mut bytes = Vec::new();
    GzDecoder::new(&std::fs::read(path).unwrap()[..]).read_to_end(&mut bytes).unwrap();
    let go = |tables: &mut Tables| {
        let mut reader = gotrace::Reader::new(&bytes[..]).unwrap();
        let (mut source, mut events) = (GoSource::new(Default::default()), Vec::new());
        while let Some(event) = reader.next_event().unwrap() {
            source.push(event, tables, &mut events);
        }
        source.finish(tables, &mut events);
        events
    };
    let first = go(&mut Tables::new())[0].time;
    let (mut found, mut on_cpu, mut throttled) = (0, 0, 0);
    for (name, bytes) in fixtures() {
        let Some(start) = read(&bytes, 0, &mut Tables::new()).first().map(|event| event.time)
        else {
            continue;
        };
        let mut tables = Tables::new();
        let mut events = go(&mut tables);
        events.extend(read(&bytes, first.nanos_since(start), &mut tables));
        events.sort_by_key(|event| event.time);
        let events = scheduled(&events, &mut tables);
        for path in paths(&events, &tables, &name) {
            found += 1;
            let count = |is: fn(&What) -> bool| path.pieces.iter().filter(|p| is(&p.what)).count();
            on_cpu += count(|what| matches!(what, What::OnCpu { .. }));
            throttled += count(|what| matches!(what, What::Throttled));
        }
    }
    assert!(found > 1000 && on_cpu > 1000 && throttled > 10, "{found} {on_cpu} {throttled}");
}

#[test]
fn spans_are_those_of_the_analyses() {
    let (mut all, mut lives) = ([0; 5], 0);
    for (name, bytes) in fixtures() {
        let mut tables = Tables::new();
        // Some traces are damaged on purpose: what is before is drawn.
        let events = read(&bytes, 0, &mut tables);
        assert!(events.windows(2).all(|pair| pair[0].time <= pair[1].time), "{name}");
        let mut found = [0; 5];
        let mut open = HashMap::new();
        for event in &events {
            match event.kind {
                EventKind::Begin { span, kind, .. } => {
                    assert!(open.insert(span, kind).is_none(), "{name}");
                }
                EventKind::Finish { span, .. } => match open.remove(&span).unwrap() {
                    SpanKind::Gc => found[0] += 1,
                    SpanKind::StopTheWorld => found[1] += 1,
                    SpanKind::LockWait => found[2] += 1,
                    SpanKind::Activity => found[4] += 1,
                    _ => {}
                },
                EventKind::Instant { kind: trace_timeline::InstantKind::Exception, .. } => {
                    found[3] += 1;
                }
                _ => {}
            }
        }
        assert_eq!(found, expected(&bytes), "{name}");
        all.iter_mut().zip(found).for_each(|(all, found)| *all += found);

        let paths = paths(&events, &tables, &name);
        let is_thread = |path: &CriticalPath| tables.entities.kind(path.subject);
        assert!(paths.iter().all(|path| is_thread(path) == Some(EntityKind::DotnetThread)));
        // The scheduler was not recorded: none claims that a thread ran.
        let mut pieces = paths.iter().flat_map(|path| &path.pieces);
        let ran = |what| matches!(what, What::OnCpu { .. } | What::Running);
        assert!(!pieces.any(|piece| ran(piece.what)), "{name}");
        lives += paths.len();
    }
    assert!(lives > 10, "{lives}");
    assert!(all.iter().all(|count| *count > 0), "the fixtures have all of them: {all:?}");
}
