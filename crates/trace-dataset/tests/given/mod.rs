//! Datasets with known rows. The tests of this crate look at their files, and those of `sql/` at the answers
//! about them: that workspace is not built with this one, and includes this module.

use std::fs::File;
use std::path::{Path, PathBuf};
use trace_dataset::{Dataset, DatasetOptions, Summary};
use trace_timeline::sources::go::GoSource;
use trace_timeline::{
    Attribute, Correlator, Derived, Entity, EntityId, EntityKind, Event, EventKind, State, Tables,
    TextId, ThreadState, Timestamp,
};

/// The begin of 2026-11-23 in nanoseconds since 1970.
const DAY: i64 = 1_795_392_000_000_000_000;

/// Two of these are more than a `BIGINT` can be.
const LONG: i64 = 5_000_000_000_000_000_000;

/// The rows of a table.
pub(crate) fn rows(summary: &Summary, table: &str) -> u64 {
    summary.tables.iter().find(|found| found.name == table).unwrap().rows
}

/// A Go trace, below the workspace of this crate.
fn trace() -> PathBuf {
    let above = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    let mut paths = above.map(|dir| dir.join("crates/gotrace/tests/data/shop.trace"));
    paths.find(|path| path.exists()).unwrap()
}

/// Exports a Go trace. `each` gets what the rows are made of.
pub(crate) fn go_trace(
    dir: &Path,
    recording: i64,
    host: Option<&str>,
    mut each: impl FnMut(&Derived<'_>),
) -> Summary {
    let mut options = DatasetOptions::new(recording);
    options.host = host.map(str::to_owned);
    options.clock_offset_nanos = Some(DAY);
    let mut dataset = Dataset::create(dir, options).unwrap();
    let mut reader = gotrace::Reader::new(File::open(trace()).unwrap()).unwrap();
    let (mut tables, mut correlator) = (Tables::new(), Correlator::new());
    let (mut source, mut events) = (GoSource::new(Default::default()), Vec::new());
    let mut push = |derived: Derived<'_>, tables: &Tables| {
        each(&derived);
        dataset.push(&derived, tables);
    };
    while let Some(event) = reader.next_event().unwrap() {
        source.push(event, &mut tables, &mut events);
        for event in events.drain(..) {
            correlator.push(&event, &tables.entities, &mut |derived| push(derived, &tables));
        }
    }
    correlator.finish(&mut |derived| push(derived, &tables));
    dataset.finish(&tables).unwrap()
}

/// A counter of CPU 3, and one of a process.
pub(crate) fn counters(dir: &Path) -> Summary {
    let mut tables = Tables::new();
    let mut dataset = Dataset::create(dir, DatasetOptions::new(1)).unwrap();
    let (name, unit) = (tables.text(b"load"), TextId::EMPTY);
    for (kind, value) in [(EntityKind::Cpu, 3.0), (EntityKind::Process, 4.0)] {
        let entity = tables.entity(Entity::new(kind, 3)).unwrap();
        let kind = EventKind::Counter { entity, name, unit, value };
        dataset.push(&Derived::Event(Event { time: Timestamp::default(), kind }), &tables);
    }
    dataset.finish(&tables).unwrap()
}

/// The reading of a cgroup's counters, for two processes that are below it.
pub(crate) fn reading_of_several_cgroups(dir: &Path) -> Summary {
    let mut tables = Tables::new();
    let cgroup = tables.text(b"/sys/fs/cgroup/s");
    let mut dataset = Dataset::create(dir, DatasetOptions::new(1)).unwrap();
    for (pid, of) in [(10, "/s/a"), (11, "/s/b")] {
        let process = tables.entity(Entity::new(EntityKind::Process, pid)).unwrap();
        let of = tables.text(of.as_bytes());
        tables.entities.describe(process, Attribute::Cgroup, of);
        let (since, time) = (Timestamp::from_nanos(0), Timestamp::from_nanos(100));
        let kind = EventKind::Throttle { process, cgroup, since, nanos: 50, periods: 1 };
        dataset.push(&Derived::Event(Event { time, kind }), &tables);
    }
    dataset.finish(&tables).unwrap()
}

/// A process of which, for [`LONG`] each, two goroutines wait, two threads run, and two wait for the CPUs of those. The
/// latter run for 2 ns each.
pub(crate) fn long_times(dir: &Path) -> Summary {
    let mut tables = Tables::new();
    let mut entity = |kind, number, parent: Option<EntityId>, name: &str| {
        let name = tables.text(name.as_bytes());
        tables.entity(Entity::new(kind, number).child_of(parent).name(name)).unwrap()
    };
    let process = Some(entity(EntityKind::Process, 7, None, "p"));
    let cpus = [0, 1].map(|number| entity(EntityKind::Cpu, number, None, ""));
    let waiting = [8, 9].map(|tid| entity(EntityKind::Thread, tid, process, "waits"));
    let running = [10, 11].map(|tid| entity(EntityKind::Thread, tid, process, "runs"));
    let goroutines = [1, 2].map(|n| entity(EntityKind::Goroutine, n, process, "main.main"));
    let reason = tables.text(b"sleep");
    let mut events = Vec::new();
    let mut push = |nanos, kind| events.push(Event { time: Timestamp::from_nanos(nanos), kind });
    for entity in process.into_iter().chain([cpus, waiting, running, goroutines].concat()) {
        push(0, EventKind::Start { entity });
    }
    for ((cpu, waits), runs) in cpus.into_iter().zip(waiting).zip(running) {
        for (nanos, prev, left, next) in [
            (0, None, ThreadState::Unknown, Some(waits)),
            (1, Some(waits), ThreadState::Preempted, Some(runs)),
            (LONG + 1, Some(runs), ThreadState::Sleeping, Some(waits)),
            (LONG + 2, Some(waits), ThreadState::Sleeping, None),
        ] {
            let (is_next_unknown, prio) = (false, 120);
            push(nanos, EventKind::Switch { cpu, prev, left, next, is_next_unknown, prio });
        }
    }
    for entity in goroutines {
        for (nanos, state) in [(0, State::Waiting), (LONG, State::Running)] {
            push(nanos, EventKind::State { entity, state, on: None, reason, stack: None });
        }
    }
    events.sort_by_key(|event| event.time);
    let mut dataset = Dataset::create(dir, DatasetOptions::new(1)).unwrap();
    let mut correlator = Correlator::new();
    for event in &events {
        let each = &mut |derived: Derived<'_>| dataset.push(&derived, &tables);
        correlator.push(event, &tables.entities, each);
    }
    correlator.finish(&mut |derived| dataset.push(&derived, &tables));
    dataset.finish(&tables).unwrap()
}
