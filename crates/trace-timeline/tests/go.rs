//! Go traces of real programs: intervals partition lifetimes, and pieces partition requests.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests may panic"
)]

use flate2::read::GzDecoder;
use gotrace::{GoState, Reader};
use std::collections::{BTreeMap, HashMap};
use std::io::Read;
use std::path::PathBuf;
use trace_timeline::answers::critical_path;
use trace_timeline::answers::{CriticalPath, History, Report, RequestFilter, Requests};
use trace_timeline::sources::go::GoSource;
use trace_timeline::{
    Correlator, Derived, EntityId, EntityKind, Event, Interval, State, Tables, Timestamp,
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
    while let Some(event) = reader.next_event().unwrap() {
        if event.sync().is_some() {
            continue;
        }
        let Some(transition) = event.state_transition() else { continue };
        let (Some(id), Some((_, to))) = (transition.resource().goroutine(), transition.goroutine())
        else {
            continue;
        };
        if let Some((state, since)) = live.remove(&id.0) {
            add(id.0, state, event.time().nanos_since(since));
        }
        if to != GoState::NotExist {
            live.insert(id.0, (to, event.time()));
        }
    }
    for (id, (state, since)) in live {
        add(id, state, end.nanos_since(since));
    }
    sums.retain(|_, nanos| *nanos > 0);
    sums
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
                assert_eq!(before.end, interval.begin, "{name}: a gap or an overlap");
                let is_one = before.state == interval.state && interval.state == State::Waiting;
                assert!(!is_one || !interval.reason.is_empty(), "{name}: a wait in pieces");
            }
            let entity = tables.entities.get(interval.subject).unwrap();
            if entity.kind == EntityKind::Goroutine && interval.state != State::Unknown {
                *found.entry((entity.number, interval.state)).or_default() += interval.nanos();
            }
        });
        assert!(intervals > 100, "{name}: {intervals}");
        let end = events.last().unwrap().at;
        assert_eq!(found, expected(&bytes, end), "{name}");
    }
}

fn check(path: &CriticalPath, what: &str) {
    let mut at = path.begin;
    for piece in &path.pieces {
        assert_eq!(piece.begin, at, "{what}: {path:#?}");
        assert!(piece.end > piece.begin, "{what}: {piece:?}");
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
            let path = critical_path(&history, &tables.entities, r.subject, r.begin, r.end, r.task);
            check(&path, &name);
            if r.nanos() > 0 {
                assert!(!path.pieces.is_empty(), "{name}");
            }
        }
        for subject in history.subjects() {
            let intervals = history.intervals(subject);
            let (begin, end) = (intervals[0].begin, intervals[intervals.len() - 1].end);
            let path = critical_path(&history, &tables.entities, subject, begin, end, None);
            check(&path, &name);
        }
    }
    assert!(tasks > 100, "{tasks}");
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
        let goroutines: u64 = report.groups.values().map(|group| group.count).sum();
        let known = tables.entities.iter().filter(|(_, e)| e.kind == EntityKind::Goroutine);
        assert_eq!(goroutines, known.count() as u64, "{name}");
        if name.contains("mixed") || name.contains("collections") {
            assert!(!report.pauses.is_empty(), "{name}");
        }
    }
}
