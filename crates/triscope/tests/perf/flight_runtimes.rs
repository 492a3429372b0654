//! `triscope flight` of real .NET runtimes and Go programs: each trigger has a real cause, and the dump
//! contains it.

use crate::flight::{Recorder, causes, manifest};
use crate::needs_root;
use crate::support::run;
use gotrace::{EventKind, RangeName};
use nettrace::analysis::{CounterTracker, GcTracker};
use serde_json::Value;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use testkit::dotnet::{Runtime, Target};

/// Records a process until a trigger has fired. Returns the dump and its first cause.
fn dump_by(pid: u32, source: &str, trigger: &str) -> (tempfile::TempDir, PathBuf, Value) {
    let base = tempfile::tempdir().unwrap();
    let pid = pid.to_string();
    let options = ["-p", &pid, "--forward", "200ms", "--oneshot", source, "--trigger", trigger];
    let mut recorder = Recorder::start(base.path(), &options);
    let kind = trigger.split('=').next().unwrap();
    let (dump, manifest) = recorder.dump_with(kind);
    let status = recorder.running.0.take().unwrap().wait().unwrap();
    assert!(status.success(), "{}", recorder.log());
    let cause = causes(&manifest)[0].clone();
    assert_eq!((&cause["trigger"], cause["pid"].to_string()), (&kind.into(), pid));
    run(&["report", dump.to_str().unwrap()]).is_good();
    (base, dump, cause)
}

/// The only source in a manifest.
#[track_caller]
fn source(dump: &Path) -> Value {
    let manifest = manifest(dump);
    let [source] = manifest["sources"].as_array().unwrap().as_slice() else { panic!("{manifest}") };
    source.clone()
}

/// Whether the .NET trace of a dump has an event for which this holds, at the time of the cause.
fn has(dump: &Path, cause: &Value, mut is_cause: impl FnMut(&nettrace::Event<'_>) -> bool) -> bool {
    let source = source(dump);
    assert_eq!(source["kind"], "dotnet");
    let at = cause["at"].as_i64().unwrap();
    let file = dump.join(source["file"].as_str().unwrap());
    let mut reader = nettrace::Reader::new(File::open(file).unwrap());
    let mut has = false;
    while let Some(event) = reader.next_event().unwrap() {
        // Trackers see all events.
        has |= is_cause(&event) && event.timestamp().nanos() == at;
    }
    assert!(reader.parser().is_complete() && reader.stats().lost == 0, "{:?}", reader.stats());
    has
}

#[test]
#[ignore = "needs real runtimes: cargo xtask test-record"]
fn gc_pauses_fire() {
    needs_root!();
    for runtime in Runtime::ALL {
        let target = Target::of(runtime).mode("mix").start();
        let (_base, dump, cause) = dump_by(target.pid(), "--dotnet", "gc-pause=1us");
        let mut gc = GcTracker::new();
        let is_pause = |event: &nettrace::Event<'_>| gc.observe(event).is_some();
        assert!(has(&dump, &cause, is_pause), "{runtime:?}: {cause}");
    }
}

#[test]
#[ignore = "needs real runtimes: cargo xtask test-record"]
fn events_and_counters_of_dotnet_fire() {
    needs_root!();
    for runtime in [Runtime::Core31, Runtime::Net9] {
        let target = Target::of(runtime).mode("mix").start();
        let trigger = "dotnet-event=Triscope-Workload/Strings";
        let (_base, dump, cause) = dump_by(target.pid(), "--dotnet", trigger);
        let is_event = |event: &nettrace::Event<'_>| {
            event.provider() == "Triscope-Workload" && event.name() == "Strings"
        };
        assert!(has(&dump, &cause, is_event), "{runtime:?}: {cause}");
        let trigger = "dotnet-counter=Triscope-SelfDescribing/heap-size>1";
        let (_base, dump, cause) = dump_by(target.pid(), "--dotnet", trigger);
        let mut counters = CounterTracker::new();
        let is_value = |event: &nettrace::Event<'_>| {
            let counter = counters.observe(event);
            counter.is_some_and(|counter| counter.name == "heap-size" && counter.value > 1.0)
        };
        assert!(has(&dump, &cause, is_value), "{runtime:?}: {cause}");
    }
}

/// A Go program, until it is dropped.
struct Program(Child);

impl Program {
    fn start(dir: &Path, args: &[&str]) -> Self {
        let program = dir.join("regions");
        if !program.exists() {
            let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/regions");
            testkit::go::build(&sources, &program);
        }
        Self(Command::new(program).args(args).stdin(Stdio::piped()).spawn().unwrap())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait(); // it ends with its input
    }
}

/// Whether the Go trace of a dump has an event for which this holds, at the time of the cause.
fn has_go(dump: &Path, cause: &Value, is_cause: impl Fn(gotrace::Event<'_>) -> bool) -> bool {
    let source = source(dump);
    assert_eq!((&source["kind"], &source["name"]), (&"go".into(), &"regions".into()));
    let file = dump.join(source["file"].as_str().unwrap());
    let mut reader = gotrace::Reader::new(File::open(file).unwrap()).unwrap();
    let mut has = false;
    while let Some(event) = reader.next_event().unwrap() {
        has |= Some(event.time().nanos()) == cause["at"].as_i64() && is_cause(event);
    }
    has
}

#[test]
#[ignore = "needs a Go toolchain: cargo xtask test-record"]
fn regions_tasks_and_stops_of_go_fire() {
    needs_root!();
    let dir = tempfile::tempdir().unwrap();
    let program = Program::start(dir.path(), &[]);
    let dump_by = |trigger| dump_by(program.0.id(), "--go", trigger);
    let (_base, dump, cause) = dump_by("go-region=slow:20ms");
    let is_region = |event: gotrace::Event<'_>| {
        event.kind() == EventKind::RegionEnd && event.region().is_some_and(|r| r.ty == "slow")
    };
    assert!(has_go(&dump, &cause, is_region), "{cause}");
    let (_base, dump, cause) = dump_by("go-task=request:20ms");
    let is_task = |event: gotrace::Event<'_>| {
        event.kind() == EventKind::TaskEnd && event.task().is_some_and(|t| t.ty == "request")
    };
    assert!(has_go(&dump, &cause, is_task), "{cause}");
    let (_base, dump, cause) = dump_by("go-stw=1us");
    let is_stop = |event: gotrace::Event<'_>| {
        let range = event.range().filter(|_| event.kind() == EventKind::RangeEnd);
        range.is_some_and(|range| matches!(range.name, RangeName::StopTheWorld(_)))
    };
    assert!(has_go(&dump, &cause, is_stop), "{cause}");
}

/// A program without `net/http/pprof`, or that does not serve it: its memory is read.
#[test]
#[ignore = "needs a Go toolchain: cargo xtask test-record"]
fn the_flight_recorder_of_a_go_program_is_in_the_dump() {
    needs_root!();
    let dir = tempfile::tempdir().unwrap();
    let program = Program::start(dir.path(), &["recorder"]);
    let pid = program.0.id().to_string();
    let mut covered = None;
    let recorder = Recorder::start(dir.path(), &["-p", &pid, "--forward", "200ms", "--go"]);
    // A generation takes a second. Before, the manifest says that there is none.
    testkit::wait::until("a generation", || {
        let dump = recorder.dump("is there one?");
        let source = source(&dump);
        assert_eq!(source["kind"], "go");
        let Some(file) = source["file"].as_str() else {
            assert!(source["missing"].is_string(), "{source}");
            return false;
        };
        let mut reader = gotrace::Reader::new(File::open(dump.join(file)).unwrap()).unwrap();
        let mut regions = 0;
        while let Some(event) = reader.next_event().unwrap() {
            regions += u64::from(event.kind() == EventKind::RegionEnd);
        }
        covered = source["covered"]["from"].as_i64().zip(source["covered"]["until"].as_i64());
        regions > 0
    });
    let (from, until) = covered.unwrap();
    assert!(from < until);
    recorder.end("TERM");
}
