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
use trace_timeline::{
    Correlator, Derived, EntityId, EntityKind, Event, EventKind, SpanKind, State, Tables, Timestamp,
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
    let since = |at: Timestamp| at.nanos_since(pause.begin);
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
        counts[1] += usize::from(gc.observe(&event).is_some());
        while gc.next_gc().is_some() {
            counts[0] += 1;
        }
        match runtime.observe(&event) {
            Some(RuntimeRecord::Contention(_)) => counts[2] += 1,
            Some(RuntimeRecord::Exception(_)) => counts[3] += 1,
            _ => {}
        }
        counts[4] += usize::from(activities.observe(&event).is_some());
    }
    counts
}

/// The pieces partition the time, and none claims that a thread ran: the scheduler was not recorded.
fn check(path: &CriticalPath, name: &str) {
    let mut at = path.begin;
    for piece in &path.pieces {
        assert_eq!(piece.begin, at, "{name}: {path:#?}");
        assert!(piece.end > piece.begin, "{name}: {piece:?}");
        assert!(!matches!(piece.what, What::OnCpu { .. } | What::Running), "{name}: {piece:?}");
        at = piece.end;
    }
    assert_eq!(at, path.end, "{name}");
}

#[test]
fn spans_are_those_of_the_analyses() {
    let (mut all, mut lives) = ([0; 5], 0);
    for (name, bytes) in fixtures() {
        let mut tables = Tables::new();
        let mut source = DotnetSource::new(0);
        let mut events: Vec<Event> = Vec::new();
        let mut reader = Reader::new(&bytes[..]);
        // Some traces are damaged on purpose: what is before is drawn.
        while let Ok(Some(item)) = reader.next_item() {
            if let Item::Event(_) | Item::Loss(_) = item {
                source.push(&item, &mut tables, &mut events);
            }
        }
        assert!(events.windows(2).all(|pair| pair[0].at <= pair[1].at), "{name}");
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

        let mut correlator = Correlator::new();
        let mut requests = Requests::new(RequestFilter::default(), usize::MAX);
        let mut history = History::new(Timestamp::from_nanos(i64::MIN), Timestamp::MAX);
        let mut last: HashMap<EntityId, Timestamp> = HashMap::new();
        let mut each = |derived: Derived<'_>| {
            requests.push(&derived);
            history.push(&derived);
            if let Derived::Interval(interval) = derived {
                let before = last.insert(interval.subject, interval.end);
                assert!(before.is_none_or(|before| before == interval.begin), "{name}");
            }
        };
        for event in &events {
            correlator.push(event, &tables.entities, &mut each);
        }
        correlator.finish(&mut each);
        history.finish();
        for r in requests.into_worst() {
            let entities = &tables.entities;
            assert_eq!(entities.kind(r.subject), Some(EntityKind::DotnetThread));
            let path = critical_path(&history, entities, r.subject, r.begin, r.end, r.task);
            check(&path, &name);
        }
        // The life of each thread, too.
        for subject in history.subjects() {
            let life = history.intervals(subject);
            let (begin, end) = (life[0].begin, life[life.len() - 1].end);
            check(&critical_path(&history, &tables.entities, subject, begin, end, None), &name);
            lives += 1;
        }
    }
    assert!(lives > 10, "{lives}");
    assert!(all.iter().all(|count| *count > 0), "the fixtures have all of them: {all:?}");
}
