//! The files of a real trace. `cargo xtask test-dataset` reads them with DuckDB and Arrow.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic")]

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use trace_dataset::{Dataset, DatasetOptions, Summary, TABLES};
use trace_timeline::{
    ClockDomain, Derived, Entity, EntityKind, Event, EventKind, SpanKind, Tables, TextId, Timestamp,
};

mod given;

/// Exports the trace, and counts its intervals of goroutines and its counters.
fn export(dir: &Path, host: &str) -> (Summary, u64, u64) {
    let (mut intervals, mut counters) = (0, 0);
    let summary = given::go_trace(dir, 7, Some(host), |derived| match derived {
        Derived::Interval(interval) if interval.kind == EntityKind::Goroutine => intervals += 1,
        Derived::Event(Event { kind: EventKind::Counter { .. }, .. }) => counters += 1,
        _ => {}
    });
    (summary, intervals, counters)
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { files.extend(self::files(&path)) } else { files.push(path) }
    }
    files.sort();
    files
}

/// All files and directories in it.
fn tree(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(tree(&path));
        }
        found.push(path);
    }
    found.sort();
    found
}

#[test]
fn every_table_has_a_complete_file() {
    let dir = tempfile::tempdir().unwrap();
    let (summary, intervals, counters) = export(dir.path(), "web-1");
    let rows = |name| given::rows(&summary, name);
    assert!(intervals > 1000 && counters > 100);
    assert_eq!(rows("goroutine_states"), intervals);
    assert_eq!(rows("counters"), counters);
    assert_eq!((rows("recordings"), rows("sched")), (1, 0));
    assert!(rows("stacks") > rows("frames"), "frames are shared by stacks");
    // The offset is the begin of the day, and the trace began after its clock showed 0.
    assert!(summary.partition.ends_with("/host=web-1"), "{}", summary.partition);
    let found = files(dir.path());
    let expected: Vec<PathBuf> = TABLES
        .iter()
        .map(|table| {
            let dir = dir.path().join(table.name).join(&summary.partition);
            dir.join("0000000000000007.parquet")
        })
        .collect();
    assert_eq!(found, expected, "and no temporary file");
    let mut bytes = 0;
    for file in &found {
        let content = fs::read(file).unwrap();
        let (begin, end) = (&content[..4], &content[content.len() - 4..]);
        assert_eq!((begin, end), (&b"PAR1"[..], &b"PAR1"[..]));
        bytes += content.len() as u64;
    }
    assert_eq!(bytes, summary.bytes());

    // The same recording again: each file is replaced by an equal one.
    let before: Vec<Vec<u8>> = found.iter().map(|file| fs::read(file).unwrap()).collect();
    export(dir.path(), "web-1");
    assert_eq!(files(dir.path()), found);
    let after: Vec<Vec<u8>> = found.iter().map(|file| fs::read(file).unwrap()).collect();
    assert_eq!(before, after);
}

/// `sql/tests` ask about them.
#[test]
fn given_datasets_have_their_rows_and_files() {
    let check = |make: fn(&Path) -> Summary, least: &[(&str, u64)]| {
        let dir = tempfile::tempdir().unwrap();
        let summary = make(dir.path());
        for (table, rows) in least {
            assert!(given::rows(&summary, table) >= *rows, "{table}: {summary:?}");
        }
        let found = files(dir.path());
        assert_eq!(found.len(), TABLES.len(), "{found:?}");
    };
    check(given::counters, &[("counters", 2)]);
    check(given::reading_of_several_cgroups, &[("throttles", 2)]);
    check(given::long_times, &[("goroutine_states", 4), ("thread_states", 4), ("sched", 6)]);
}

/// As in two containers, whose processes have one process id.
#[test]
fn exports_of_one_recording_at_one_time_have_files_of_their_own() {
    let dir = tempfile::tempdir().unwrap();
    let mut exports =
        [(), ()].map(|()| Dataset::create(dir.path(), DatasetOptions::new(1)).unwrap());
    assert_ne!(exports[0].temporary(), exports[1].temporary());
    for (export, rows) in exports.iter_mut().zip([1, 2000]) {
        for time in (0..rows).map(Timestamp::from_nanos) {
            let kind = EventKind::Clock { time, domain: ClockDomain::Realtime, reading: time };
            export.push(&Derived::Event(Event { time, kind }), &Tables::new());
        }
    }
    for (export, rows) in exports.into_iter().zip([1, 2000]) {
        let summary = export.finish(&Tables::new()).unwrap();
        assert_eq!(given::rows(&summary, "clocks"), rows);
        for table in &summary.tables {
            let path = dir.path().join(table.name).join(&summary.partition);
            let content = fs::read(path.join("0000000000000001.parquet")).unwrap();
            assert_eq!(content.len() as u64, table.bytes, "{}", table.name);
            assert!(content.starts_with(b"PAR1") && content.ends_with(b"PAR1"), "{}", table.name);
        }
    }
    let hidden = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(hidden.filter(|name| name.as_encoded_bytes().starts_with(b".")).count(), 0);
}

#[test]
fn a_dataset_that_is_not_finished_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let dataset = Dataset::create(dir.path(), DatasetOptions::new(1)).unwrap();
    assert!(dataset.temporary().is_dir());
    drop(dataset);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn a_directory_that_cannot_be_written_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    let error = Dataset::create(&file, DatasetOptions::new(1)).unwrap_err();
    assert_eq!(error.path, file, "not a hidden one in it");
    assert!(error.to_string().contains("cannot be written"), "{error}");
}

/// The last table in the order of the alphabet cannot be published.
#[test]
fn a_dataset_that_cannot_be_published_leaves_no_file() {
    let partition = "wakeups/date=__HIVE_DEFAULT_PARTITION__/host=__HIVE_DEFAULT_PARTITION__";
    let blocked = |dir: &Path, path: &str| {
        let table = Dataset::create(dir, DatasetOptions::new(1)).unwrap();
        let error = table.finish(&Tables::new()).unwrap_err();
        assert!(error.path.starts_with(dir.join(path)), "{error}");
        assert!(error.to_string().contains("wakeups"), "{error}");
    };
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("wakeups"), "").unwrap();
    blocked(dir.path(), "wakeups");
    assert_eq!(files(dir.path()), [dir.path().join("wakeups")]);

    // A directory in the place of the file.
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir_all(dir.path().join(partition).join("0000000000000001.parquet")).unwrap();
    blocked(dir.path(), partition);
    assert_eq!(files(dir.path()), [] as [PathBuf; 0]);
}

/// It made those of all other tables before.
#[test]
fn an_export_that_fails_leaves_no_directory() {
    let failing = |dir: &Path| {
        let before = tree(dir);
        let export = Dataset::create(dir, DatasetOptions::new(1)).unwrap();
        export.finish(&Tables::new()).unwrap_err();
        assert_eq!(tree(dir), before);
    };
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("wakeups"), "").unwrap();
    failing(dir.path());
    // The last file cannot be renamed. The directories of one table were there.
    let dir = tempfile::tempdir().unwrap();
    let partition = "date=__HIVE_DEFAULT_PARTITION__/host=__HIVE_DEFAULT_PARTITION__";
    let place = dir.path().join("recordings").join(partition).join("0000000000000001.parquet");
    fs::create_dir_all(place).unwrap();
    failing(dir.path());
    // A signal came before.
    let dir = tempfile::tempdir().unwrap();
    let export = Dataset::create(dir.path(), DatasetOptions::new(1)).unwrap();
    export.cleanup().run();
    export.finish(&Tables::new()).unwrap_err();
    assert_eq!(tree(dir.path()), [] as [PathBuf; 0]);
}

/// A directory is in the place of the last file but one: those before it were renamed.
#[test]
fn an_export_that_fails_leaves_the_files_of_the_earlier_one() {
    let dir = tempfile::tempdir().unwrap();
    let export = || Dataset::create(dir.path(), DatasetOptions::new(1)).unwrap();
    export().finish(&Tables::new()).unwrap();
    let before = files(dir.path());
    let [new, blocked] = ["clocks", "wakeups"].map(|table| {
        let path = before.iter().find(|path| path.starts_with(dir.path().join(table))).unwrap();
        fs::remove_file(path).unwrap();
        path
    });
    fs::create_dir(blocked).unwrap();
    let failing = export();
    let temporary = failing.temporary().to_owned();
    let error = failing.finish(&Tables::new()).unwrap_err();
    assert_eq!(error.path, *blocked);
    let (from, text) = (temporary.join("wakeups"), error.to_string());
    assert!([&from, blocked].iter().all(|path| text.contains(&*path.to_string_lossy())), "{text}");
    assert!(!temporary.exists());
    let expected: Vec<_> = before.iter().filter(|path| ![new, blocked].contains(path)).collect();
    assert_eq!(files(dir.path()).iter().collect::<Vec<_>>(), expected);
}

#[test]
fn an_export_that_a_signal_ends_leaves_the_files_of_the_earlier_one() {
    let dir = tempfile::tempdir().unwrap();
    let export = || Dataset::create(dir.path(), DatasetOptions::new(1)).unwrap();
    export().finish(&Tables::new()).unwrap();
    let before = files(dir.path());
    let ended = export();
    ended.cleanup().run();
    assert!(!ended.temporary().exists());
    let error = ended.finish(&Tables::new()).unwrap_err();
    assert_eq!(error.source.kind(), std::io::ErrorKind::Interrupted);
    assert_eq!(files(dir.path()), before);
}

/// Whichever is first: all files are there, or none is.
#[test]
fn a_signal_waits_until_all_files_are_renamed() {
    for _ in 0..24 {
        let dir = tempfile::tempdir().unwrap();
        let dataset = Dataset::create(dir.path(), DatasetOptions::new(1)).unwrap();
        let (cleanup, mut found) = (dataset.cleanup(), 0);
        let first = dir.path().join("clocks/date=__HIVE_DEFAULT_PARTITION__");
        let finished = std::thread::scope(|scope| {
            scope.spawn(|| {
                // The directories of the partition are made immediately before.
                while !first.exists() && dataset_is_there(dir.path()) {
                    std::thread::yield_now();
                }
                cleanup.run();
                found = files(dir.path()).len();
            });
            dataset.finish(&Tables::new())
        });
        assert_eq!(found, if finished.is_ok() { TABLES.len() } else { 0 });
    }
}

/// Whether there is a directory of a dataset that is not finished.
fn dataset_is_there(dir: &Path) -> bool {
    let mut entries = fs::read_dir(dir).unwrap();
    entries.any(|entry| entry.unwrap().file_name().as_encoded_bytes().starts_with(b"."))
}

/// The host is another one by a later version of the traces' reader, say.
#[test]
fn a_recording_is_in_one_partition() {
    let dir = tempfile::tempdir().unwrap();
    let export = |number, host: &str| {
        let mut options = DatasetOptions::new(number);
        options.host = Some(host.to_owned());
        let dataset = Dataset::create(dir.path(), options).unwrap();
        dataset.finish(&Tables::new()).unwrap().partition
    };
    export(1, "a");
    let other = export(2, "a");
    let partition = export(1, "b");
    let mut expected = Vec::new();
    for table in TABLES {
        let dir = dir.path().join(table.name);
        expected.push(dir.join(&other).join("0000000000000002.parquet"));
        expected.push(dir.join(&partition).join("0000000000000001.parquet"));
    }
    expected.sort();
    assert_eq!(files(dir.path()), expected);
}

#[test]
fn what_killed_exports_left_is_removed_a_day_later() {
    let dir = tempfile::tempdir().unwrap();
    let names = [".0000000000000001.2.partial", ".ffffffffffffffff.3.partial"];
    let [old, new] = names.map(|name| dir.path().join(name));
    for path in [&old, &new] {
        fs::create_dir(path).unwrap();
        fs::write(path.join("clocks"), "").unwrap();
    }
    let before = SystemTime::now() - Duration::from_secs(25 * 60 * 60);
    for path in [old.join("clocks"), old.clone(), new.clone()] {
        fs::File::open(path).unwrap().set_modified(before).unwrap();
    }
    Dataset::create(dir.path(), DatasetOptions::new(1)).unwrap();
    assert!(!old.exists());
    assert!(new.join("clocks").exists(), "something wrote into it");
}

#[test]
fn directories_of_others_are_left() {
    let dir = tempfile::tempdir().unwrap();
    let names = [
        ".partial",
        ".download.partial",
        ".1.2.partial",
        ".0000000000000001.partial",
        ".0000000000000001..partial",
        ".0000000000000001.x.partial",
        ".000000000000000g.2.partial",
        "0000000000000001.2.partial",
    ];
    let before = SystemTime::now() - Duration::from_secs(25 * 60 * 60);
    for name in names {
        let path = dir.path().join(name);
        fs::create_dir(&path).unwrap();
        fs::File::open(path).unwrap().set_modified(before).unwrap();
    }
    Dataset::create(dir.path(), DatasetOptions::new(1)).unwrap();
    let left = names.into_iter().filter(|name| dir.path().join(name).exists());
    assert_eq!(left.collect::<Vec<_>>(), names);
}

#[test]
fn the_unread_rest_of_a_source_is_a_loss() {
    let dir = tempfile::tempdir().unwrap();
    let mut dataset = Dataset::create(dir.path(), DatasetOptions::new(1)).unwrap();
    dataset.push_unread(Timestamp::from_nanos(5));
    let summary = dataset.finish(&Tables::new()).unwrap();
    let losses = summary.tables.iter().find(|table| table.name == "losses").unwrap();
    assert_eq!(losses.rows, 1);
}

/// One with an end is a pause, which the correlator derives.
#[test]
fn a_stop_the_world_without_a_known_end_is_in_regions() {
    let regions = |is_cut: Option<bool>| {
        let dir = tempfile::tempdir().unwrap();
        let mut tables = Tables::new();
        let entity = tables.entity(Entity::new(EntityKind::Process, 3)).unwrap();
        let (span, kind, name) = (tables.new_span(), SpanKind::StopTheWorld, TextId::EMPTY);
        let begin = EventKind::Begin { span, entity, kind, name, by: None, of: None, stack: None };
        let finish = is_cut.map(|is_cut| EventKind::Finish { span, by: None, is_cut });
        let mut dataset = Dataset::create(dir.path(), DatasetOptions::new(1)).unwrap();
        for kind in [Some(begin), finish].into_iter().flatten() {
            let event = Event { time: Timestamp::default(), kind };
            dataset.push(&Derived::Event(event), &tables);
        }
        given::rows(&dataset.finish(&tables).unwrap(), "regions")
    };
    assert_eq!([None, Some(true), Some(false)].map(regions), [1, 1, 0]);
}

#[test]
fn types_are_shared_between_threads() {
    fn is_shared<T: Send + Sync>() {}
    is_shared::<Dataset>();
    is_shared::<DatasetOptions>();
    is_shared::<Summary>();
    is_shared::<trace_dataset::Error>();
}
