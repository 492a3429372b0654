//! `triscope flight` of real .NET runtimes and Go programs: each trigger has a real cause, and the dump
//! contains it.

use crate::flight::{Recorder, causes, files_with, manifest, metric};
use crate::needs_root;
use crate::support::{names, run};
use gotrace::{EventKind, RangeName};
use nettrace::analysis::{CounterTracker, GcTracker};
use serde_json::Value;
use std::fs::{self, File};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use testkit::dotnet::{Runtime, Target};
use testkit::wait::until;

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
    let at = cause["time"].as_i64().unwrap();
    let file = dump.join(source["file"].as_str().unwrap());
    let mut reader = nettrace::Reader::new(File::open(file).unwrap());
    let mut has = false;
    while let Some(event) = reader.next_event().unwrap() {
        // Trackers see all events.
        has |= is_cause(&event) && event.time().nanos() == at;
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
        let is_pause = |event: &nettrace::Event<'_>| gc.push(event).is_some();
        assert!(has(&dump, &cause, is_pause), "{runtime:?}: {cause}");
    }
}

#[test]
#[ignore = "needs real runtimes: cargo xtask test-record"]
fn command_lines_of_dotnet_are_in_no_dump() {
    needs_root!();
    for runtime in Runtime::ALL {
        // An argument that the host passes on to the program.
        let script = "exec \"$0\" \"$@\" --password=s3cr3t-argument";
        let target = Target::of(runtime).mode("mix").wrapper(["sh", "-c", script]);
        let target = target.env("TOKEN", "s3cr3t-of-the-environment").start();
        let pid = target.pid().to_string();
        for keeps in [false, true] {
            let base = tempfile::tempdir().unwrap();
            let more: &[&str] = if keeps { &["--command-lines"] } else { &[] };
            let options = [&["-p", &pid, "--forward", "200ms", "--dotnet"], more].concat();
            let recorder = Recorder::start(base.path(), &options);
            until("a session", || metric(&recorder.dir, "runtimes") == 1.0);
            let dump = recorder.dump("what does it have?");
            let source = source(&dump);
            assert_eq!(source["missing"].as_str().filter(|why| why.contains("command line")), None);
            let trace = source["file"].as_str().unwrap().to_owned();
            let mut expected =
                vec![trace, "processes.jsonl".to_owned(), "recording.json".to_owned()];
            expected.retain(|_| keeps);
            assert_eq!(files_with(&dump, "s3cr3t-argument"), expected, "{runtime:?}");
            assert_eq!(files_with(&dump, "s3cr3t-of-the-environment"), [""; 0], "{runtime:?}");
            // Files of sessions, too.
            let sources = recorder.dir.join("sources");
            assert!(keeps || files_with(&sources, "s3cr3t-argument").is_empty());
            recorder.end("TERM");
        }
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
            let counter = counters.push(event);
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
        has |= Some(event.time().nanos()) == cause["time"].as_i64() && is_cause(event);
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
        event.kind() == EventKind::RegionEnd && event.region().is_some_and(|r| r.name == "slow")
    };
    assert!(has_go(&dump, &cause, is_region), "{cause}");
    let (_base, dump, cause) = dump_by("go-task=request:20ms");
    let is_task = |event: gotrace::Event<'_>| {
        event.kind() == EventKind::TaskEnd && event.task().is_some_and(|t| t.name == "request")
    };
    assert!(has_go(&dump, &cause, is_task), "{cause}");
    let (_base, dump, cause) = dump_by("go-stw=1us");
    let is_stop = |event: gotrace::Event<'_>| {
        let range = event.range().filter(|_| event.kind() == EventKind::RangeEnd);
        range.is_some_and(|range| matches!(range.name, RangeName::StopTheWorld(_)))
    };
    assert!(has_go(&dump, &cause, is_stop), "{cause}");
}

/// `http.Server.Shutdown` waits for all requests: that for the trace has no end of its own.
#[test]
#[ignore = "needs a Go toolchain: cargo xtask test-record"]
fn a_go_program_shuts_down_while_it_is_recorded() {
    needs_root!();
    let dir = tempfile::tempdir().unwrap();
    let mut program = Program::start(dir.path(), &[]);
    let pid = program.0.id().to_string();
    let recorder = Recorder::start(dir.path(), &["-p", &pid, "--go"]);
    until("its trace", || !recorded(&recorder).is_empty());
    drop(program.0.stdin.take());
    // It fails if the shutdown does not end within its time limit.
    assert!(program.0.wait().unwrap().success(), "the shutdown has failed");
    drop(recorder);
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
    until("a generation", || {
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
        covered = source["covered"]["start"].as_i64().zip(source["covered"]["end"].as_i64());
        regions > 0
    });
    let (from, end) = covered.unwrap();
    assert!(from < end);
    recorder.end("TERM");
}

/// The files of runtimes of a recorder, oldest first.
fn recorded(recorder: &Recorder) -> Vec<String> {
    names(&recorder.dir.join("sources"))
}

#[test]
#[ignore = "needs a Go toolchain: cargo xtask test-record"]
fn sources_have_a_quarter_of_the_disk() {
    needs_root!();
    let dir = tempfile::tempdir().unwrap();
    let program = Program::start(dir.path(), &[]);
    let pid = program.0.id().to_string();
    let options = ["-p", &pid, "--go", "--disk", "8MB", "--back", "1h"];
    let recorder = Recorder::start(dir.path(), &options);
    for (kind, part) in [("segment", 2_000_000.0), ("runtime", 2_000_000.0)] {
        assert_eq!(metric(&recorder.dir, &format!("{kind}_budget_bytes")), part, "{kind}");
    }
    until("a generation", || !recorded(&recorder).is_empty());
    let first = recorded(&recorder).swap_remove(0);
    let sources = recorder.dir.join("sources");
    let size = |name: &String| fs::metadata(sources.join(name)).map_or(0, |file| file.len());
    let (mut largest, mut most) = (0, 0);
    until("the oldest generation is removed", || {
        let files = recorded(&recorder);
        largest = files.iter().map(size).max().unwrap_or(0).max(largest);
        most = files.iter().map(size).sum::<u64>().max(most);
        !files.contains(&first)
    });
    // It is looked at twice a second: those that have come since are there, too.
    assert!(most > 100_000 && most <= 2_000_000 + 2 * largest, "{most}, of {largest} at most");
    recorder.end("TERM");
}

/// A recorder that is killed when it has this many files of a process, and another one in its directory that
/// has as many. Returns the entries for the process in the manifest of a dump, with that dump.
fn killed_and_followed(dir: &Path, pid: u32, source: &str, files: usize) -> (PathBuf, Vec<Value>) {
    let options = ["-p", &pid.to_string(), "--forward", "200ms", "--disk", "2GB", source];
    let recorder = Recorder::start(dir, &options);
    let has_content = |recorder: &Recorder| {
        let files_of = recorded(recorder);
        let is_filled = |name: &String| {
            fs::metadata(recorder.dir.join("sources").join(name))
                .is_ok_and(|file| file.len() > 4096)
        };
        files_of.iter().filter(|name| is_filled(name)).count() >= files
    };
    until("traces", || has_content(&recorder));
    recorder.running.signal("KILL");
    drop(recorder);
    let recorder = Recorder::start(dir, &options);
    // They wait for the next dump, beside those of this recorder.
    assert!(!names(&recorder.dir.join("left")).is_empty());
    until("traces of the next recorder", || has_content(&recorder));
    let dump = recorder.dump("after the restart");
    assert!(names(&recorder.dir.join("left")).is_empty(), "they are in the dump");
    let manifest = manifest(&dump);
    assert_eq!(manifest["complete"], false);
    let sources = manifest["sources"].as_array().unwrap().clone();
    assert_eq!(sources.len(), 2, "{manifest}");
    let was_killed = |source: &&Value| source["missing"].to_string().contains("was killed");
    assert_eq!(sources.iter().filter(was_killed).count(), 1, "{manifest}");
    // The next dump has no more of it.
    let next = crate::flight::manifest(&recorder.dump("once more"));
    assert_eq!(next["sources"].as_array().unwrap().len(), 1, "{next}");
    recorder.end("TERM");
    (dump, sources)
}

#[test]
#[ignore = "needs a Go toolchain: cargo xtask test-record"]
fn generations_of_a_killed_recorder_are_in_the_next_dump() {
    needs_root!();
    let dir = tempfile::tempdir().unwrap();
    let program = Program::start(dir.path(), &[]);
    let (dump, sources) = killed_and_followed(dir.path(), program.0.id(), "--go", 2);
    run(&["report", dump.to_str().unwrap()]).is_good();
    for source in sources {
        let file = dump.join(source["file"].as_str().unwrap());
        let mut reader = gotrace::Reader::new(File::open(file).unwrap()).unwrap();
        let (mut regions, mut times) = (0, Vec::new());
        while let Some(event) = reader.next_event().unwrap() {
            times.push(event.time().nanos());
            regions += u64::from(event.kind() == EventKind::RegionEnd);
        }
        assert!(regions > 0, "{source}");
        let covered = &source["covered"];
        let (from, until) = (covered["start"].as_i64().unwrap(), covered["end"].as_i64().unwrap());
        let within = times.iter().filter(|time| (from..=until).contains(time)).count();
        assert!(within > times.len() / 2, "{within} of {}: {source}", times.len());
    }
}

#[test]
#[ignore = "needs real runtimes: cargo xtask test-record"]
fn sessions_of_a_killed_recorder_are_in_the_next_dump() {
    needs_root!();
    let target = Target::of(Runtime::Net9).mode("mix").start();
    let dir = tempfile::tempdir().unwrap();
    let (dump, sources) = killed_and_followed(dir.path(), target.pid(), "--dotnet", 1);
    // It is read up to its end, which is missing.
    let report = run(&["report", dump.to_str().unwrap()]);
    assert_eq!(report.code, Some(1), "{}", report.stderr);
    assert!(report.stderr.contains("the stream is truncated") && !report.stdout.is_empty());
    for source in sources {
        let file = dump.join(source["file"].as_str().unwrap());
        let mut reader = nettrace::Reader::new(File::open(file).unwrap());
        let mut events = 0;
        // The end of the first one may be within an event.
        while let Ok(Some(_)) = reader.next_event() {
            events += 1;
        }
        assert!(events > 0, "{source}");
    }
}

#[test]
#[ignore = "needs real runtimes: cargo xtask test-record"]
fn sources_follow_the_configuration() {
    needs_root!();
    let target = Target::of(Runtime::Net9).mode("mix").start();
    let base = tempfile::tempdir().unwrap();
    let config = base.path().join("flight.toml");
    let write = |text: &str| {
        fs::write(&config, format!("disk = \"2GB\"\nforward = \"200ms\"\n{text}")).unwrap();
    };
    write("dotnet = true\n");
    let pid = target.pid().to_string();
    let options = ["-p", &pid, "--config", config.to_str().unwrap()];
    let recorder = Recorder::start(base.path(), &options);
    let reload = |text: &str| {
        let said = || recorder.log().matches("the settings were read again").count();
        let before = said();
        write(text);
        recorder.running.signal("HUP");
        until("the settings", || said() > before);
    };
    let is_recorded = || metric(&recorder.dir, "runtimes") == 1.0;
    until("a session", is_recorded);
    let session = recorded(&recorder);
    // Other settings do not end it.
    reload("dotnet = true\nback = \"20s\"\n");
    assert!(is_recorded());
    assert_eq!(recorded(&recorder), session);
    reload("go = true\n");
    until("the end of the session", || recorded(&recorder).is_empty());
    assert_eq!(metric(&recorder.dir, "runtime_budget_bytes"), 500e6);
    let without = manifest(&recorder.dump("without .NET"));
    assert_eq!(without["sources"].as_array().unwrap().len(), 0, "{without}");
    assert!(without["missing"].to_string().contains(".NET before the settings"), "{without}");
    reload("\n");
    assert_eq!(metric(&recorder.dir, "runtime_budget_bytes"), 0.0);
    assert_eq!(metric(&recorder.dir, "segment_budget_bytes"), 1e9);
    reload("dotnet = true\n");
    until("a session again", is_recorded);
    let source = source(&recorder.dump("with .NET"));
    assert!(source["file"].is_string(), "{source}");
    recorder.end("TERM");
}

/// The sessions end with the settings, also those of processes that have ended.
#[test]
fn what_other_triggers_of_a_source_remove_is_missing() {
    needs_root!();
    let base = tempfile::tempdir().unwrap();
    let config = base.path().join("flight.toml");
    let write = |text: &str| {
        fs::write(&config, format!("forward = \"200ms\"\ndotnet = true\ngo = true\n{text}"))
            .unwrap();
    };
    write("");
    let recorder = Recorder::start(base.path(), &["--config", config.to_str().unwrap()]);
    let reloads = |text: &str| {
        let said = || recorder.log().matches("the settings were read again").count();
        let before = said();
        write(text);
        recorder.running.signal("HUP");
        until("the settings", || said() > before);
        let missing = manifest(&recorder.dump("what is missing?"))["missing"].to_string();
        [".NET", "Go"].map(|name| missing.contains(&format!("{name} before the settings")))
    };
    assert_eq!(reloads("back = \"1h\"\n"), [false, false]);
    assert_eq!(reloads("back = \"1h\"\ntriggers = [\"gc-pause=50ms\"]\n"), [true, false]);
    let both = "back = \"1h\"\ntriggers = [\"gc-pause=50ms\", \"go-stw=1ms\"]\n";
    assert_eq!(reloads(both), [true, true]);
    recorder.end("TERM");
}

/// The socket of a runtime that accepts connections and never replies: this process has one.
struct Silent {
    path: PathBuf,
    listener: UnixListener,
}

impl Silent {
    fn new() -> Self {
        let start = trace_common::start_ticks(&fs::read("/proc/self/stat").unwrap()).unwrap();
        let name = format!("dotnet-diagnostic-{}-{start}-socket", std::process::id());
        let path = std::env::temp_dir().join(name);
        Self { listener: UnixListener::bind(&path).unwrap(), path }
    }
}

impl Drop for Silent {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path); // a test that failed has more to report
    }
}

#[test]
fn a_runtime_that_never_replies_delays_no_dump() {
    needs_root!();
    let runtime = Silent::new();
    let base = tempfile::tempdir().unwrap();
    let pid = std::process::id().to_string();
    let recorder = Recorder::start(base.path(), &["-p", &pid, "--forward", "200ms", "--dotnet"]);
    let _request = runtime.listener.accept().unwrap();
    // The thread of the sources replies while the request has no reply.
    let dump = recorder.dump("what of it?");
    let manifest = manifest(&dump);
    let source = source(&dump);
    assert_eq!((&source["kind"], source["pid"].to_string()), (&"dotnet".into(), pid), "{manifest}");
    assert_eq!(source["missing"], "its runtime has not replied", "{manifest}");
    recorder.end("TERM");
}

#[test]
fn sources_that_a_recorder_cannot_start_are_refused() {
    needs_root!();
    let base = tempfile::tempdir().unwrap();
    let config = base.path().join("flight.toml");
    fs::write(&config, "disk = \"2GB\"\n").unwrap();
    let recorder = Recorder::start(base.path(), &["--config", config.to_str().unwrap()]);
    fs::write(&config, "disk = \"2GB\"\ngo = true\n").unwrap();
    recorder.running.signal("HUP");
    recorder.wait_for("a recorder without these needs a new start; the settings stay as they were");
    assert_eq!(metric(&recorder.dir, "segment_budget_bytes"), 1e9);
    recorder.end("TERM");
}
