//! `triscope flight`: dumps with their causes, and recorders that are killed or run out of space.

use crate::needs_root;
use crate::support::{Ran, Running, can, child, code, names, run, triscope, with_default_signals};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};
use testkit::process::stop;
use testkit::wait::until;

/// Whether a child has ended, and was not waited for.
fn has_ended(pid: u32) -> bool {
    let stat = fs::read(format!("/proc/{pid}/stat")).unwrap_or_default();
    matches!(trace_common::stat_field(&stat, 3), None | Some("Z"))
}

/// Short windows: a busy machine has many events. Space for all dumps of a test.
const SHORT: [&str; 6] = ["--back", "1s", "--forward", "200ms", "--disk", "2GB"];

/// A recorder in the background.
pub(crate) struct Recorder {
    pub(crate) running: Running,
    pub(crate) dir: PathBuf,
    log: PathBuf,
}

impl Recorder {
    /// Starts it in `base`, and waits until it records.
    pub(crate) fn start(base: &Path, args: &[&str]) -> Self {
        let dir = base.join("flight");
        Self::start_by(triscope(&[]), base, &dir, args)
    }

    fn start_by(mut command: Command, base: &Path, dir: &Path, args: &[&str]) -> Self {
        let log = base.join("log");
        let file = fs::File::create(&log).unwrap();
        command.args(["flight", "-d", dir.to_str().unwrap()]).args(args);
        let command = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(file);
        let running = Running(Some(command.spawn().unwrap()));
        let this = Self { running, dir: dir.to_owned(), log };
        this.wait_for("recording");
        this
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    /// Waits until it has said this.
    pub(crate) fn wait_for(&self, words: &str) {
        until(words, || {
            let log = self.log();
            assert!(!log.contains("panicked"), "{log}");
            // It may have ended after it.
            let said = log.contains(words);
            assert!(said || !has_ended(self.running.id()), "{log}");
            said
        });
    }

    /// Makes a dump by a command.
    pub(crate) fn dump(&self, reason: &str) -> PathBuf {
        dump(&self.dir, reason)
    }

    /// The directory of a complete dump with this trigger among its causes.
    pub(crate) fn dump_with(&self, trigger: &str) -> (PathBuf, Value) {
        let mut found = None;
        until(trigger, || {
            found = dumps(&self.dir).into_iter().find(|(_, manifest)| {
                causes(manifest).iter().any(|cause| cause["trigger"] == trigger)
            });
            found.is_some()
        });
        found.unwrap()
    }

    /// Whether a thread has fired this trigger.
    fn has_dump_about(&self, trigger: &str, tid: u32) -> bool {
        let dumps = dumps(&self.dir);
        let mut causes = dumps.iter().flat_map(|(_, manifest)| causes(manifest));
        causes.any(|cause| cause["trigger"] == trigger && cause["tid"] == tid)
    }

    /// Ends it by a signal. Returns the log.
    pub(crate) fn end(self, signal: &str) -> String {
        let (is_good, log) = self.result(signal);
        assert!(is_good, "{log}");
        log
    }

    /// As [`Self::end`], with whether no dump has failed.
    fn result(mut self, signal: &str) -> (bool, String) {
        self.running.signal(signal);
        let status = self.running.0.take().unwrap().wait().unwrap();
        (status.success(), self.log())
    }
}

#[track_caller]
fn dump(dir: &Path, reason: &str) -> PathBuf {
    let ran = run(&["flight", "dump", "-d", dir.to_str().unwrap(), "--reason", reason]);
    ran.is_good();
    PathBuf::from(ran.stdout.trim())
}

/// A number of the recorder in this directory.
#[track_caller]
pub(crate) fn metric(dir: &Path, name: &str) -> f64 {
    let status = run(&["flight", "status", "-d", dir.to_str().unwrap()]);
    let name = format!("triscope_flight_{name} ");
    let value = status.stdout.lines().find_map(|line| line.strip_prefix(&name));
    value.unwrap_or_else(|| panic!("no {name}: {}", status.stderr)).parse().unwrap()
}

/// The complete dumps, with their manifests.
fn dumps(dir: &Path) -> Vec<(PathBuf, Value)> {
    let is_complete = |name: &String| !name.ends_with(".partial");
    let names = names(&dir.join("dumps")).into_iter().filter(is_complete);
    let paths = names.map(|name| dir.join("dumps").join(name));
    // The oldest can be removed for a newer one.
    let manifests = paths.map(|path| (fs::read_to_string(path.join("manifest.json")), path));
    manifests
        .filter(|(text, path)| text.is_ok() || path.exists())
        .map(|(text, path)| (path, serde_json::from_str(&text.unwrap()).unwrap()))
        .collect()
}

#[track_caller]
pub(crate) fn manifest(dump: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(dump.join("manifest.json")).unwrap()).unwrap()
}

pub(crate) fn causes(manifest: &Value) -> &Vec<Value> {
    manifest["causes"].as_array().unwrap()
}

/// The names of the threads in the report of a dump.
#[track_caller]
fn threads(dump: &Path) -> Vec<String> {
    let ran = run(&["report", "--json", dump.to_str().unwrap()]);
    assert!(ran.stdout.starts_with('{'), "{}", ran.stderr);
    let report: Value = serde_json::from_str(&ran.stdout).unwrap();
    let threads = report["threads"].as_array().unwrap().iter();
    threads.map(|thread| thread["name"].as_str().unwrap_or_default().to_owned()).collect()
}

/// The records of a dump as text.
#[track_caller]
pub(crate) fn script(dump: &Path) -> String {
    let file = dump.join("kernel.perf.data");
    let ran = run(&["perf", "script", "-i", file.to_str().unwrap()]);
    ran.is_good();
    ran.stdout
}

/// Two threads that switch this often.
pub(crate) fn ping_pong(times: usize) {
    let words = child(&format!("ping-pong {times}"));
    let status = Command::new(&words[0]).args(&words[1..]).stdout(Stdio::null()).status().unwrap();
    assert!(status.success());
}

/// Waits until a file of the segments has these bytes.
fn wait_for_segment_with(dir: &Path, bytes: &[u8]) {
    let has = |path: PathBuf| {
        let content = fs::read(path).unwrap_or_default(); // it may be renamed meanwhile
        content.windows(bytes.len()).any(|window| window == bytes)
    };
    let segments = dir.join("segments");
    until("a segment with it", || names(&segments).iter().any(|name| has(segments.join(name))));
}

#[test]
fn a_dump_has_the_time_before_the_trigger() {
    needs_root!();
    let base = tempfile::tempdir().unwrap();
    let recorder = Recorder::start(base.path(), &["--forward", "200ms", "-F", "99"]);
    let mode = |path: &Path| {
        std::os::unix::fs::PermissionsExt::mode(&fs::metadata(path).unwrap().permissions())
    };
    assert_eq!(mode(&recorder.dir) & 0o777, 0o700);
    ping_pong(100);
    let dump = recorder.dump("a slow page");
    let manifest = manifest(&dump);
    assert_eq!(causes(&manifest)[0]["what"], "a slow page");
    let time = |kind: &str, end: &str| manifest[kind][end].as_i64().unwrap();
    assert!(time("covered", "end") >= time("asked", "end"), "{manifest}");
    // It has just begun: that is said.
    let is_short = time("covered", "start") > time("asked", "start");
    assert_eq!(is_short, !manifest["missing"].as_array().unwrap().is_empty(), "{manifest}");
    assert!(threads(&dump).iter().any(|name| name == "pong"));
    // The place of the kernel: its functions are known also after a reboot.
    let symbols = fs::read_to_string("/proc/kallsyms").unwrap();
    let text = symbols.lines().find(|line| line.ends_with(" _text")).unwrap();
    let is_shown = !text.starts_with("0000000000000000");
    let with: &[&str] = if is_shown { &["kernel.perf.data"] } else { &[] };
    assert_eq!(files_with(&dump, "[kernel.kallsyms]_text"), with);
    // No command line of any process.
    assert_eq!(names(&dump), ["kernel.perf.data", "manifest.json"]);
    // Another recorder is refused, and this one continues.
    let dir = recorder.dir.to_str().unwrap().to_owned();
    run(&["flight", "-d", &dir]).is_refused(1, &["another recorder uses this directory"]);
    let status = run(&["flight", "status", "-d", &dir]);
    assert!(status.stdout.contains("\ntriscope_flight_dumps_total 1\n"), "{}", status.stdout);
    // A signal is a trigger, too.
    recorder.running.signal("USR1");
    let (_, by_signal) = recorder.dump_with("signal");
    assert_eq!(causes(&by_signal)[0]["what"], "SIGUSR1");
    let log = recorder.end("TERM");
    assert!(log.contains("2 dumps"), "{log}");
    are_accounted_for(&log);
}

/// The kernel's records have the time of the initial namespace, and so do the window and the segments.
#[test]
fn in_a_time_namespace_a_dump_has_the_records_of_its_window() {
    const HOUR: i64 = 3_600_000_000_000;
    needs_root!();
    let in_namespace = || {
        let mut command = Command::new("unshare");
        command.args(["--time", "--monotonic", "3600", env!("CARGO_BIN_EXE_triscope")]);
        command
    };
    let base = tempfile::tempdir().unwrap();
    let dir = base.path().join("flight");
    let args = ["--oneshot", "--forward", "200ms"];
    let mut recorder = Recorder::start_by(in_namespace(), base.path(), &dir, &args);
    ping_pong(100);
    let dump = recorder.dump("it is an hour later");
    assert!(recorder.running.child().wait().unwrap().success(), "{}", recorder.log());
    recorder.running.0 = None;
    let end = manifest(&dump)["covered"]["end"].as_i64().unwrap();
    let now = perf_monitor::now(trace_common::ClockDomain::Monotonic).unwrap().nanos();
    assert!((now - HOUR / 2..=now).contains(&end), "{end} {now}");
    assert!(threads(&dump).iter().any(|name| name == "pong"));
    // Their traces have the other time.
    for args in [
        &["flight", "-d", "none", "--go"][..],
        &["flight", "-d", "none", "--dotnet"],
        &["record", "--dotnet", "--sched", "true"],
    ] {
        let ran: Ran = in_namespace().args(args).output().unwrap().into();
        ran.is_refused(1, &["time namespace"]);
    }
}

/// A recorder whose standard error is full has not begun: it waits in its first message, before it records. With a
/// COMMAND, that is not started.
fn waiting(dir: &Path, command: &[&str]) -> (Running, std::io::PipeReader) {
    /// Bytes of a pipe.
    const FULL: usize = 1 << 16;
    /// The number of `write(2)`.
    const WRITE: &str = if cfg!(target_arch = "x86_64") { "1" } else { "64" };
    let (log, mut full) = std::io::pipe().unwrap();
    std::io::Write::write_all(&mut full, &[b'x'; FULL]).unwrap();
    let mut recorder = with_default_signals(&["flight", "-d", dir.to_str().unwrap()]);
    recorder.args(SHORT).args(["--metrics", "127.0.0.1:0"]).args(command);
    let recorder = Running(Some(recorder.stdout(Stdio::null()).stderr(full).spawn().unwrap()));
    until("a write to standard error", || {
        assert!(!has_ended(recorder.id()), "it has ended");
        let call = fs::read_to_string(format!("/proc/{}/syscall", recorder.id())).unwrap();
        let mut words = call.split(' ');
        (words.next(), words.next()) == (Some(WRITE), Some("0x2"))
    });
    (recorder, log)
}

#[test]
fn signals_during_the_start_are_received() {
    needs_root!();
    for signal in ["USR1", "HUP", "TERM"] {
        let base = tempfile::tempdir().unwrap();
        let dir = base.path().join("flight");
        let (mut recorder, log) = waiting(&dir, &[]);
        recorder.signal(signal);
        let log = std::thread::spawn(|| std::io::read_to_string(log).unwrap());
        if signal == "USR1" {
            until("the dump", || !dumps(&dir).is_empty());
        }
        if signal == "HUP" {
            until("the control socket", || dir.join("control.sock").exists());
            dump(&dir, "it continues");
        }
        if signal != "TERM" {
            recorder.signal("TERM");
        }
        let code = code(&mut recorder);
        recorder.0 = None;
        let log = log.join().unwrap();
        match code {
            // The thread that receives the signal may do so when the recording has begun.
            Some(0) => assert!(log.contains("of the kernel, "), "{log}"),
            Some(143) if signal == "TERM" => assert!(!dir.exists(), "{log}"),
            _ => panic!("{signal}: {code:?}: {log}"),
        }
    }
}

#[test]
fn a_signal_during_the_start_ends_the_recorder_of_a_command() {
    needs_root!();
    for signal in ["HUP", "INT", "TERM"] {
        let base = tempfile::tempdir().unwrap();
        let (dir, ran) = (base.path().join("flight"), base.path().join("ran"));
        let (mut recorder, log) = waiting(&dir, &["touch", ran.to_str().unwrap()]);
        recorder.signal(signal);
        let log = std::thread::spawn(|| std::io::read_to_string(log).unwrap());
        let code = code(&mut recorder);
        recorder.0 = None;
        let log = log.join().unwrap();
        let expected = match signal {
            "HUP" => 129,
            "INT" => 130,
            _ => 143,
        };
        assert_eq!(code, Some(expected), "{signal}: {log}");
        assert!(!ran.exists() && !dir.exists(), "{signal}: {log}");
    }
}

/// No more is delivered and lost than the kernel counts. Linux 6.18 counts a few switches that it
/// neither writes nor reports as lost: their number is printed.
#[track_caller]
pub(crate) fn are_accounted_for(log: &str) {
    let line = log.lines().find(|line| line.contains(" of the kernel, ")).unwrap();
    let numbers: Vec<i64> = line
        .split(|c: char| !c.is_ascii_digit())
        .filter_map(|word| word.parse().ok())
        .take(4)
        .collect();
    let [count, delivered, lost, missing] = numbers[..] else { panic!("{line}") };
    assert_eq!(count, delivered + lost + missing, "{line}");
    assert!(delivered > 0, "{line}");
}

/// The files of a dump that have this text, as UTF-8 or UTF-16.
#[track_caller]
pub(crate) fn files_with(dump: &Path, text: &str) -> Vec<String> {
    let utf16: Vec<u8> = text.encode_utf16().flat_map(u16::to_le_bytes).collect();
    let has = |name: &String| {
        let bytes = fs::read(dump.join(name)).unwrap();
        [text.as_bytes(), &utf16].iter().any(|t| bytes.windows(t.len()).any(|w| w == *t))
    };
    names(dump).into_iter().filter(has).collect()
}

#[test]
fn secrets_are_in_no_file_of_a_dump() {
    needs_root!();
    let with: &[&str] = &["kernel.perf.data", "processes.jsonl", "recording.json"];
    for (options, expected) in [(&[][..], &[][..]), (&["--command-lines"], with)] {
        let base = tempfile::tempdir().unwrap();
        let mut command = triscope(&[]);
        command.env("TOKEN", "s3cr3t-of-the-environment");
        let ended = "while [ ! -e $0 ]; do /bin/true --password=s3cr3t-argument; done";
        let end = base.path().join("end");
        let words = ["--", "sh", "-c", ended, end.to_str().unwrap(), "--password=s3cr3t-argument"];
        let options = [&SHORT[..], &["-F", "99"], options, &words].concat();
        let dir = base.path().join("flight");
        let mut recorder = Recorder::start_by(command, base.path(), &dir, &options);
        let dump = recorder.dump("what does it have?");
        assert_eq!(files_with(&dump, "s3cr3t-argument"), expected);
        assert_eq!(files_with(&dump, "s3cr3t-of-the-environment"), [""; 0]);
        for name in names(&dump) {
            let mode = fs::metadata(dump.join(&name)).unwrap().permissions();
            let mode = std::os::unix::fs::PermissionsExt::mode(&mode);
            assert_eq!(mode & 0o777, 0o600, "{name}");
        }
        fs::write(end, "").unwrap();
        assert!(recorder.running.0.take().unwrap().wait().unwrap().success());
    }
}

/// As `setproctitle(3)` and browsers do: the first word has the arguments, too.
#[test]
fn a_command_line_in_one_word_is_in_no_file_of_a_dump() {
    use std::os::unix::process::CommandExt;
    needs_root!();
    let base = tempfile::tempdir().unwrap();
    // It waits for its input. Others, such as `sleep`, can be one program that runs what its name says.
    let mut command = triscope(&["go", "events", "-"]);
    command.arg0("x --password=s3cr3t-argument").stdin(Stdio::piped());
    let titled = Running::start(&mut command);
    let pid = titled.id().to_string();
    let recorder = Recorder::start(base.path(), &[&SHORT[..], &["-p", &pid]].concat());
    let dump = recorder.dump("what does it have?");
    assert_eq!(files_with(&dump, "s3cr3t-argument"), [""; 0]);
    let recording = fs::read_to_string(dump.join("recording.json")).unwrap();
    let recording: Value = serde_json::from_str(&recording).unwrap();
    let program = fs::read_link(format!("/proc/{pid}/exe")).unwrap();
    assert_eq!(recording["command"].as_str(), program.to_str());
    recorder.end("TERM");
}

/// The directory of a recorder that was killed within a segment, when one had the thread `pong`.
fn killed(base: &Path) -> PathBuf {
    let recorder = Recorder::start(base, &[]);
    ping_pong(100);
    wait_for_segment_with(&recorder.dir, b"pong\0");
    // Not between two segments.
    until("a segment in progress", || {
        recorder.running.signal("CONT");
        stop(recorder.running.id());
        names(&recorder.dir.join("segments")).iter().any(|name| name.ends_with(".partial"))
    });
    recorder.running.signal("KILL");
    recorder.dir.clone()
}

#[test]
fn a_killed_recorder_leaves_its_segments() {
    needs_root!();
    let base = tempfile::tempdir().unwrap();
    let dir = killed(base.path());
    // Without a recorder.
    let left = dump(&dir, "it was killed");
    assert!(threads(&left).iter().any(|name| name == "pong"));
    assert!(names(&dir.join("segments")).iter().all(|name| name.ends_with(".perf.data")));
    // Another one continues with them.
    let recorder = Recorder::start(base.path(), &["--back", "1h", "--forward", "200ms"]);
    let both = recorder.dump("after the restart");
    assert!(threads(&both).iter().any(|name| name == "pong"));
    let gaps = manifest(&both)["gaps"].as_array().unwrap().len();
    assert_eq!(gaps, 1, "the time without a recorder");
    recorder.end("TERM");
}

/// With and without sources of its own.
#[test]
fn traces_of_before_the_look_back_are_in_no_dump() {
    needs_root!();
    for options in [&[][..], &["--dotnet"]] {
        let base = tempfile::tempdir().unwrap();
        let recorder = Recorder::start(base.path(), &SHORT);
        let sources = recorder.dir.join("sources");
        recorder.end("TERM");
        for (pid, age) in [(7, 7200), (8, 0)] {
            let file = fs::File::create(sources.join(format!("dotnet-{pid}-5.nettrace"))).unwrap();
            file.set_modified(SystemTime::now() - Duration::from_secs(age)).unwrap();
        }
        let options = [&["--back", "1h", "--forward", "200ms"], options].concat();
        let recorder = Recorder::start(base.path(), &options);
        let manifest = manifest(&recorder.dump("what is left?"));
        let sources = manifest["sources"].as_array().unwrap().iter();
        let left = |source: &&Value| source["file"].as_str().is_some_and(|f| f.contains("-5."));
        let left: Vec<_> = sources.filter(left).map(|source| source["pid"].clone()).collect();
        assert_eq!(left, [8_u32], "{options:?}");
        recorder.end("TERM");
    }
}

/// Its segment is not sealed: names of events and formats are not in it.
#[test]
fn a_recorder_that_is_killed_in_its_first_segment_leaves_what_can_be_read() {
    needs_root!();
    let base = tempfile::tempdir().unwrap();
    let recorder = Recorder::start(base.path(), &["--back", "1h"]);
    let dir = recorder.dir.clone();
    let segments = dir.join("segments");
    let is_partial = |name: &String| name.ends_with(".partial");
    // More often than in the names of threads.
    let has_switches = |name: &String| {
        let bytes = fs::read(segments.join(name)).unwrap();
        bytes.windows(5).filter(|text| text == b"pong\0").count() > 50
    };
    until("a segment in progress with switches", || {
        recorder.running.signal("CONT");
        ping_pong(100);
        stop(recorder.running.id());
        names(&segments).iter().filter(|name| is_partial(name)).any(has_switches)
    });
    recorder.running.signal("KILL");
    drop(recorder);
    // A machine can be so slow that it is not the first one.
    for name in names(&segments).iter().filter(|name| !is_partial(name)) {
        fs::remove_file(segments.join(name)).unwrap();
    }
    let left = dump(&dir, "it was killed");
    let text = script(&left);
    assert!(text.contains("sched:sched_switch:") && text.contains("prev_comm=pong"), "{text}");
    let lacks_formats = |dump: &Path| {
        let manifest = manifest(dump);
        manifest["missing"].to_string().contains("the formats of tracepoints")
    };
    assert!(!lacks_formats(&left));
    // Without the file that has them, it is said.
    fs::remove_file(dir.join("events")).unwrap();
    assert!(lacks_formats(&dump(&dir, "what of it?")));
}

#[test]
fn a_truncated_segment_is_read_up_to_its_end() {
    needs_root!();
    let base = tempfile::tempdir().unwrap();
    let dir = killed(base.path());
    let segments = dir.join("segments");
    let newest = names(&segments).into_iter().find(|name| name.ends_with(".partial")).unwrap();
    let path = segments.join(newest);
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    let length = file.metadata().unwrap().len();
    // Within a record.
    file.set_len(length - 3).unwrap();
    let dump = dump(&dir, "the power was cut");
    let manifest = manifest(&dump);
    assert_eq!(manifest["complete"], false);
    let missing = manifest["missing"].to_string();
    assert!(missing.contains("the end of 1 segment"), "{missing}");
    run(&["report", dump.to_str().unwrap()]).is_good();
}

#[test]
fn segments_that_are_removed_are_missing() {
    needs_root!();
    let base = tempfile::tempdir().unwrap();
    let config = base.path().join("flight.toml");
    // Their time does not come before the settings change.
    fs::write(&config, "back = \"1h\"\nforward = \"200ms\"\n").unwrap();
    let recorder = Recorder::start(base.path(), &["--config", config.to_str().unwrap()]);
    let segments = recorder.dir.join("segments");
    let is_sealed = |name: &String| name.ends_with(".perf.data");
    // Each dump seals that in progress.
    recorder.dump("the first segment");
    recorder.dump("the second segment");
    until("sealed segments", || names(&segments).iter().filter(|n| is_sealed(n)).count() >= 2);
    // Also that in progress.
    for name in names(&segments) {
        let _ = fs::remove_file(segments.join(name)); // it may be sealed meanwhile
    }
    let is_missing = |dump: &Path| {
        let manifest = manifest(dump);
        assert_eq!(manifest["complete"], false);
        let missing = manifest["missing"].to_string();
        assert!(missing.contains("No such file or directory"), "{missing}");
    };
    // A dump of nothing else is refused. It seals that in progress, too.
    let left = run(&["flight", "dump", "-d", recorder.dir.to_str().unwrap()]);
    match left.code {
        Some(0) => is_missing(Path::new(left.stdout.trim())),
        _ => left.is_refused(1, &["No such file or directory"]),
    }
    ping_pong(100);
    wait_for_segment_with(&recorder.dir, b"pong\0");
    let dump = recorder.dump("what is new?");
    is_missing(&dump);
    assert!(threads(&dump).iter().any(|name| name == "pong"));
    // Their time has come, and the recorder continues.
    fs::write(&config, "back = \"1s\"\nforward = \"200ms\"\n").unwrap();
    recorder.running.signal("HUP");
    recorder.wait_for("the settings were read again");
    recorder.wait_for("was removed by another program");
    recorder.dump("it continues");
    are_accounted_for(&recorder.end("TERM"));
}

/// A process of two threads that want the same CPU, until it is killed.
fn spinning() -> Running {
    let words = child("spin");
    let mut command = Command::new("taskset");
    command.args(["-c", "0"]).args(&words).stdin(Stdio::null());
    Running::start(&mut command)
}

#[test]
fn threads_that_wait_or_run_for_long_fire() {
    needs_root!();
    let spinning = spinning();
    let pid = spinning.id().to_string();
    for trigger in ["sched-delay", "on-cpu"] {
        let base = tempfile::tempdir().unwrap();
        let trigger_at = format!("{trigger}=300us");
        let options = [&SHORT[..], &["-p", &pid, "--oneshot", "--trigger", &trigger_at]].concat();
        let mut recorder = Recorder::start(base.path(), &options);
        let (dump, manifest) = recorder.dump_with(trigger);
        let status = recorder.running.0.take().unwrap().wait().unwrap();
        assert!(status.success(), "{}", recorder.log());
        // The trigger fired while the dump was written, too.
        assert!(recorder.log().contains("; 1 dump;"), "{}", recorder.log());
        // Its threads are known, and each cause is about one of them.
        let tids: Vec<u32> = perf_monitor::threads(spinning.id());
        let script = script(&dump);
        for cause in causes(&manifest) {
            assert_eq!(cause["trigger"], trigger);
            let tid = cause["tid"].as_u64().unwrap() as u32;
            assert!(tids.contains(&tid), "{cause} of {tids:?}");
            assert!(script.contains(&format!("next_pid={tid} ")), "{cause}");
        }
        assert_eq!(names(&dump), ["kernel.perf.data", "manifest.json", "recording.json"]);
    }
}

#[test]
fn a_command_continues_after_the_only_dump() {
    needs_root!();
    let base = tempfile::tempdir().unwrap();
    let go = base.path().join("go");
    let script = format!("until [ -e {} ]; do sleep 0.01; done; exit 7", go.display());
    let options = [&SHORT[..], &["--oneshot", "--", "sh", "-c", &script]].concat();
    let mut recorder = Recorder::start(base.path(), &options);
    recorder.dump("the only one");
    recorder.wait_for("the command continues");
    recorder.running.still_runs();
    fs::write(&go, "").unwrap();
    let status = recorder.running.0.take().unwrap().wait().unwrap();
    assert_eq!(status.code(), Some(7), "{}", recorder.log());
    are_accounted_for(&recorder.log());
}

#[test]
fn a_recorder_that_cannot_begin_does_not_end_its_command() {
    needs_root!();
    let base = tempfile::tempdir().unwrap();
    let (dir, go) = (base.path().join("flight"), base.path().join("go"));
    // It is in the place of the socket.
    let in_the_way = dir.join("control.sock");
    fs::create_dir_all(&in_the_way).unwrap();
    fs::write(dir.join("lock"), "").unwrap();
    fs::set_permissions(&dir, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    let script = format!(
        "until [ -e {} ]; do sleep 0.01; done; : > {}",
        go.display(),
        base.path().join("complete").display()
    );
    let log = base.path().join("log");
    let mut command = triscope(&["flight", "-d", dir.to_str().unwrap()]);
    command.args(SHORT).args(["--", "sh", "-c", &script]);
    let mut recorder = Running::spawn(command.stderr(fs::File::create(&log).unwrap()));
    let said = || fs::read_to_string(&log).unwrap();
    until("the failure", || {
        recorder.still_runs();
        said().contains("the command continues")
    });
    fs::write(&go, "").unwrap();
    let status = recorder.child().wait().unwrap();
    assert_eq!(status.code(), Some(1), "{}", said());
    assert!(said().contains("control.sock") && base.path().join("complete").exists(), "{}", said());
}

#[test]
fn events_and_fatal_signals_fire() {
    needs_root!();
    let base = tempfile::tempdir().unwrap();
    let victim = Running::start(Command::new("sleep").arg("1000"));
    let pid = victim.id();
    let event = format!("event=signal:signal_generate if sig == 11 && pid == {pid}");
    let options = [&SHORT[..], &["--trigger", "exit-signal", "--trigger", &event]].concat();
    let recorder = Recorder::start(base.path(), &options);
    // It is the event, and it ends the process.
    victim.signal("SEGV");
    assert_eq!(victim.end().code, None, "a signal has ended it");
    let (dump, _) = recorder.dump_with("event");
    let generated = format!("signal:signal_generate: sig=11 errno=0 code=0 comm=sleep pid={pid} ");
    assert!(script(&dump).contains(&generated), "no {generated}");
    until("the end of the process", || recorder.has_dump_about("exit-signal", pid));
    recorder.end("TERM");
}

#[test]
fn pressure_fires() {
    needs_root!();
    let base = tempfile::tempdir().unwrap();
    let options = [&SHORT[..], &["--oneshot", "--trigger", "psi=cpu:some:1ms/2s"]].concat();
    if !has_pressure() {
        let dir = base.path().join("refused");
        let args = [&["flight", "-d", dir.to_str().unwrap()], &options[..]].concat();
        run(&args).is_refused(1, &["psi=cpu", "/proc/pressure/cpu"]);
        return;
    }
    let spinning = spinning();
    let mut recorder = Recorder::start(base.path(), &options);
    let (dump, manifest) = recorder.dump_with("psi");
    assert_eq!(causes(&manifest)[0]["what"], "psi=cpu:some:1ms/2s");
    assert!(recorder.running.0.take().unwrap().wait().unwrap().success());
    // The threads that waited for each other are there.
    let script = script(&dump);
    let switch = |tid| script.contains(&format!("next_pid={tid} "));
    assert!(perf_monitor::threads(spinning.id()).into_iter().any(switch));
}

/// Whether the kernel has pressure stall information.
fn has_pressure() -> bool {
    can("pressure stall information", Path::new("/proc/pressure/cpu").exists())
}

/// Microseconds in which some task was stalled.
fn stalled(resource: &str) -> u64 {
    let text = fs::read_to_string(format!("/proc/pressure/{resource}")).unwrap();
    let total = text.lines().next().and_then(|some| some.rsplit_once("total=")).unwrap().1;
    total.parse().unwrap()
}

/// A script that is repeated until it is dropped.
fn repeated(script: &str, args: &[&Path]) -> Running {
    let script = format!("while :; do {script}; done");
    let mut command = Command::new("sh");
    command.args(["-c", &script, "sh"]).args(args).stdin(Stdio::null());
    command.stderr(Stdio::null());
    Running(Some(command.stdout(Stdio::null()).spawn().unwrap()))
}

/// A trigger of this resource fires while a script runs that stalls, unless nothing stalls here.
#[track_caller]
fn pressure_fires_by(resource: &str, script: &str, args: &[&Path]) {
    let base = tempfile::tempdir().unwrap();
    let before = stalled(resource);
    let once = Command::new("sh").args(["-c", script, "sh"]).args(args).output().unwrap();
    let stalls = once.status.success() && stalled(resource) > before;
    if !can(&format!("work that stalls for {resource}"), stalls) {
        return;
    }
    let _load = repeated(script, args);
    let trigger = format!("psi={resource}:some:1ms/2s");
    let options = [&SHORT[..], &["--oneshot", "--trigger", &trigger]].concat();
    let mut recorder = Recorder::start(base.path(), &options);
    let (_, manifest) = recorder.dump_with("psi");
    assert_eq!(causes(&manifest)[0]["what"], trigger);
    assert!(recorder.running.0.take().unwrap().wait().unwrap().success());
}

#[test]
fn pressure_of_io_fires() {
    needs_root!();
    let base = tempfile::tempdir().unwrap();
    if has_pressure() {
        let write = "dd if=/dev/zero of=\"$1\" bs=1M count=16 conv=fsync";
        pressure_fires_by("io", write, &[&base.path().join("file")]);
    }
}

/// A cgroup with a limit, removed at the end.
struct Limited(PathBuf);

impl Limited {
    /// The limit is that of the first of these files that the controller has.
    fn new(controller: &str, files: &[&str], limit: &str) -> Option<Self> {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        let fields = || mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        let has_controller = |f: &Vec<&str>| {
            let is_first = f[2] == "cgroup" && f[3].split(',').any(|option| option == controller);
            let control = Path::new(f[1]).join("cgroup.subtree_control");
            let unified = || fs::read_to_string(control).unwrap_or_default();
            is_first || f[2] == "cgroup2" && unified().split_whitespace().any(|c| c == controller)
        };
        let root = fields().find(has_controller)?[1].to_owned();
        let name = format!("triscope-test-{controller}-{}", std::process::id());
        let dir = Path::new(&root).join(name);
        fs::create_dir(&dir).ok()?;
        let this = Self(dir);
        let file = files.iter().map(|name| this.0.join(name)).find(|file| file.exists())?;
        fs::write(file, limit).ok()?;
        Some(this)
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        // Its processes have been killed, and leave it soon.
        until("the end of a cgroup", || fs::remove_dir(&self.0).is_ok());
    }
}

#[test]
fn pressure_of_memory_fires() {
    needs_root!();
    let base = tempfile::tempdir().unwrap();
    let file = base.path().join("file");
    fs::write(&file, vec![1; 64 << 20]).unwrap();
    let limited = Limited::new("memory", &["memory.high", "memory.limit_in_bytes"], "16M");
    if !has_pressure() || !can("a cgroup with a memory limit", limited.is_some()) {
        return;
    }
    // The pages of the file are read again each time.
    let procs = limited.as_ref().unwrap().0.join("cgroup.procs");
    let read = "(echo 0 >\"$2\" && exec dd if=\"$1\" of=/dev/null bs=1M)";
    fs::File::open(&file).unwrap().sync_all().unwrap();
    rustix::fs::fadvise(fs::File::open(&file).unwrap(), 0, None, rustix::fs::Advice::DontNeed)
        .unwrap();
    pressure_fires_by("memory", read, &[&file, &procs]);
}

/// As in a storm of forks that has used up the processes of a cgroup.
#[test]
fn a_dump_without_a_thread_is_written_later() {
    needs_root!();
    let limited = Limited::new("pids", &["pids.max"], "max");
    if !can("a cgroup with a limit of processes", limited.is_some()) {
        return;
    }
    let of_cgroup = |name: &str| limited.as_ref().unwrap().0.join(name);
    let base = tempfile::tempdir().unwrap();
    let recorder = Recorder::start(base.path(), &SHORT);
    fs::write(of_cgroup("cgroup.procs"), recorder.running.id().to_string()).unwrap();
    // Fewer than it has.
    fs::write(of_cgroup("pids.max"), "1").unwrap();
    recorder.running.signal("USR1");
    recorder.wait_for("a thread for a dump: ");
    assert_eq!(dumps(&recorder.dir).len(), 0);
    fs::write(of_cgroup("pids.max"), "max").unwrap();
    recorder.dump_with("signal");
    assert!(metric(&recorder.dir, "refused_threads_total") >= 1.0);
    let log = recorder.end("TERM");
    assert!(log.contains("; 1 dump;"), "{log}");
}

#[test]
fn a_process_that_is_killed_fires() {
    needs_root!();
    let base = tempfile::tempdir().unwrap();
    let victim = Running::start(Command::new("sleep").arg("1000"));
    let pid = victim.id();
    let options = [&SHORT[..], &["--trigger", "exit-signal"]].concat();
    let recorder = Recorder::start(base.path(), &options);
    victim.signal("KILL");
    assert_eq!(victim.end().code, None, "a signal has ended it");
    // Others are killed, too.
    let generated = format!("signal:signal_generate: sig=9 errno=0 code=0 comm=sleep pid={pid} ");
    until("its dump", || {
        dumps(&recorder.dir).iter().any(|(dump, manifest)| {
            let is_cause = |cause: &Value| cause["trigger"] == "exit-signal";
            causes(manifest).iter().any(is_cause) && script(dump).contains(&generated)
        })
    });
    recorder.end("TERM");
}

/// Its last records are read after its end.
#[test]
fn a_command_that_a_signal_ends_fires() {
    needs_root!();
    let base = tempfile::tempdir().unwrap();
    let dir = base.path().join("flight");
    let command = ["--", "sh", "-c", "kill -SEGV $$"];
    let start = ["flight", "-d", dir.to_str().unwrap(), "--trigger", "exit-signal"];
    let ran = run(&[&start[..], &SHORT, &command].concat());
    assert_eq!(ran.code, Some(128 + 11), "{}", ran.stderr);
    let dumps = dumps(&dir);
    let [(dump, manifest)] = &dumps[..] else { panic!("{}", ran.stderr) };
    let [cause] = &causes(manifest)[..] else { panic!("{manifest:#}") };
    assert_eq!(cause["trigger"], "exit-signal");
    assert!(script(dump).contains("signal:signal_deliver: sig=11 "), "{manifest:#}");
}

/// What happened before a signal is read after it.
#[test]
fn triggers_just_before_the_end_fire() {
    needs_root!();
    let base = tempfile::tempdir().unwrap();
    let config = base.path().join("flight.toml");
    fs::write(&config, "forward = \"200ms\"\ntriggers = [\"exit-signal\"]\n").unwrap();
    let recorder = Recorder::start(base.path(), &["--config", config.to_str().unwrap()]);
    let kill = || {
        let killed = Running::spawn(Command::new("sh").args(["-c", "kill -SEGV $$"]));
        let pid = killed.id();
        killed.end();
        pid
    };
    let pid = kill();
    recorder.running.signal("HUP");
    recorder.wait_for("the settings were read again");
    until("its dump", || recorder.has_dump_about("exit-signal", pid));
    let pid = kill();
    let dir = recorder.dir.clone();
    recorder.end("TERM");
    let has = |(_, manifest): &(PathBuf, Value)| causes(manifest).iter().any(|c| c["tid"] == pid);
    assert!(dumps(&dir).iter().any(has));
}

/// A signal of another process is no cause, and the cause of KILL is the thread that it is for.
#[test]
fn with_a_process_only_its_signals_fire() {
    needs_root!();
    let base = tempfile::tempdir().unwrap();
    let sleep = || Running::start(Command::new("sleep").arg("1000"));
    let (watched, others) = (sleep(), [sleep(), sleep()]);
    let pid = watched.id();
    let process = pid.to_string();
    let options = [&SHORT[..], &["-p", &process, "--trigger", "exit-signal"]].concat();
    let recorder = Recorder::start(base.path(), &options);
    for (other, signal) in others.into_iter().zip(["SEGV", "KILL"]) {
        other.signal(signal);
        assert_eq!(other.end().code, None, "a signal has ended it");
    }
    watched.signal("KILL");
    assert_eq!(watched.end().code, None, "a signal has ended it");
    let (_, manifest) = recorder.dump_with("exit-signal");
    let tids: Vec<_> = causes(&manifest).iter().map(|cause| cause["tid"].clone()).collect();
    assert_eq!(tids, [pid]);
}

/// Root without its capabilities may not write there. A file system that is remounted has no open files to
/// write to, which a recorder has.
#[test]
fn a_directory_that_becomes_read_only_is_survived() {
    needs_root!();
    let base = tempfile::tempdir().unwrap();
    let config = base.path().join("flight.toml");
    let looks_back = |time: &str| {
        let text = format!("back = \"{time}\"\nforward = \"200ms\"\ndisk = \"2GB\"\n");
        fs::write(&config, text).unwrap();
    };
    // What is missing has to be in the dump at the end: as long as a loaded machine may take.
    looks_back("40s");
    let recorder = Recorder::start(base.path(), &["--config", config.to_str().unwrap()]);
    let segments = recorder.dir.join("segments");
    let mode = |mode| {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
        fs::set_permissions(&segments, mode).unwrap();
    };
    until("a segment in progress", || names(&segments).iter().any(|n| n.ends_with(".partial")));
    mode(0o500);
    recorder.wait_for("a segment is lost: Permission denied");
    let lost = perf_monitor::now(trace_common::ClockDomain::Monotonic).unwrap().nanos();
    let failed = || metric(&recorder.dir, "failed_segments_total");
    // One can have been tried before.
    let several = failed() + 2.0;
    until("segments that cannot be begun", || failed() >= several);
    mode(0o700);
    recorder.wait_for("segments can be written again");
    ping_pong(100);
    wait_for_segment_with(&recorder.dir, b"pong\0");
    let dump = recorder.dump("after it");
    let is_missing = |dump: &Path| {
        let missing = manifest(dump)["missing"].to_string();
        missing.contains("\"up to ") && missing.contains("segments could not be written")
    };
    let after = manifest(&dump);
    assert_eq!(after["complete"], false);
    assert!(is_missing(&dump));
    // That time is no part of the next segment, which can be the first one of the dump.
    let gaps = after["gaps"].as_array().unwrap().iter();
    let begins = gaps.map(|gap| &gap["end"]).chain([&after["covered"]["start"]]);
    let last = begins.filter_map(Value::as_i64).max().unwrap();
    assert!(last >= lost, "{after} and {lost}");
    assert!(threads(&dump).iter().any(|name| name == "pong"));
    // Later dumps do not lack it.
    looks_back("1s");
    recorder.running.signal("HUP");
    recorder.wait_for("the settings were read again");
    until("a dump of the time after it", || !is_missing(&recorder.dump("later")));
    // Nothing else is left there.
    until("files without use are removed", || {
        names(&segments).iter().filter(|name| name.ends_with(".partial")).count() <= 1
    });
    are_accounted_for(&recorder.end("TERM"));
}

/// Root without capabilities may not enter a home directory of mode 0700, and may not read a file of mode 0600 there.
#[test]
fn a_directory_below_the_home_of_another_user_is_reached() {
    use std::os::unix::fs::{PermissionsExt, chown};
    needs_root!();
    let base = tempfile::tempdir().unwrap();
    let home = base.path().join("home");
    let config = home.join("flight.toml");
    fs::create_dir(&home).unwrap();
    fs::write(&config, "").unwrap();
    for (path, mode) in [(&home, 0o700), (&config, 0o600)] {
        chown(path, Some(65534), Some(65534)).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }
    let dir = home.join("flight");
    for (named, config_named) in [(&*dir, &*config), ("flight".as_ref(), "flight.toml".as_ref())] {
        let mut command = triscope(&[]);
        command.current_dir(&home);
        fs::write(&config, "forward = \"200ms\"\ndotnet = true\n").unwrap();
        let options = ["--config", config_named.to_str().unwrap()];
        let recorder = Recorder::start_by(command, base.path(), named, &options);
        let dumped = || {
            ping_pong(100);
            let dump = dump(&dir, "a slow page");
            // Linux 6.18 can leave out all switches from the idle task of a CPU.
            assert!(script(&dump).contains("prev_comm=pong"));
            manifest(&dump)["sources"].to_string()
        };
        let has_left = named.is_relative();
        assert_eq!(dumped().contains("dotnet-7-5.nettrace"), has_left);
        fs::write(&config, "forward = \"100ms\"\ndotnet = true\n").unwrap();
        recorder.running.signal("HUP");
        recorder.wait_for("the settings were read again");
        dumped();
        let log = recorder.end("TERM");
        // Messages have the path that was named.
        let dumps = format!("triscope: {}/dumps/", named.display());
        assert!(log.contains(&dumps) && !log.contains("/proc/self/fd"), "{log}");
        are_accounted_for(&log);
        // A dump of the next one has what this one has left.
        fs::write(dir.join("sources/dotnet-7-5.nettrace"), "").unwrap();
    }
}

#[test]
fn the_configuration_is_read_again() {
    needs_root!();
    let base = tempfile::tempdir().unwrap();
    let config = base.path().join("flight.toml");
    fs::write(&config, "forward = \"200ms\"\n").unwrap();
    // It ignores SIGHUP at the start.
    let mut command = Command::new("nohup");
    command.arg(env!("CARGO_BIN_EXE_triscope"));
    let options = ["--config", config.to_str().unwrap()];
    let recorder = Recorder::start_by(command, base.path(), &base.path().join("flight"), &options);
    fs::write(&config, "forward = \"200ms\"\ntriggers = [\"exit\"]\n").unwrap();
    recorder.running.signal("HUP");
    recorder.wait_for("flight.toml:2: triggers: ");
    recorder.wait_for("the settings stay as they were");
    ping_pong(20_000);
    let dir = base.path().join("flight");
    until("the records", || metric(&dir, "records_total") > 40_000.0);
    fs::write(&config, "forward = \"200ms\"\ntriggers = [\"exit-signal\"]\n").unwrap();
    recorder.running.signal("HUP");
    recorder.wait_for("the settings were read again");
    // It continues counting, and is as old as it was.
    assert!(metric(&dir, "records_total") > 40_000.0);
    assert!(metric(&dir, "lag_seconds") < 3600.0);
    let killed = Running::spawn(Command::new("sh").args(["-c", "kill -SEGV $$"]));
    let pid = killed.id();
    killed.end();
    until("its dump", || recorder.has_dump_about("exit-signal", pid));
    // The look-back has the time of the other settings, up to the present ones.
    let (_, manifest) = recorder.dump_with("exit-signal");
    assert_eq!(manifest["gaps"].as_array().unwrap().len(), 0, "{manifest}");
    let log = recorder.end("TERM");
    are_accounted_for(&log);
    let (_, delivered) = log.split_once(" of the kernel, ").unwrap();
    let delivered: u64 = delivered.split(' ').next().unwrap().parse().unwrap();
    assert!(delivered > 40_000, "{log}");
}

/// What the start refuses, `--check` refuses in the same words.
#[test]
fn settings_are_checked_as_at_the_start() {
    let able = can("root, with tracepoints", crate::support::is_able());
    let base = tempfile::tempdir().unwrap();
    let dir = base.path().join("flight");
    let dir = dir.to_str().unwrap();
    let psi = "psi=memory:some:100ms/100s";
    for (option, value, words, needs_root) in [
        ("--trigger", "event= ", "expected event=", false),
        ("--trigger", psi, "the window is from 500ms to 10s", false),
        ("--trigger", "psi=irq:some:100ms/2s", "psi=irq:full", false),
        ("--disk", "1B", "use at least", false),
        ("--disk", "200", "use at least", false),
        ("--disk", "1XB", "(units: K, M, G, T, Ki, Mi, Gi, Ti)", false),
        ("--memory", "1kB", "--memory: the buffers of ", false),
        ("-F", "100000000", "kernel.perf_event_max_sample_rate", false),
        ("--trigger", "event=nosuch:event", "nosuch", true),
        ("--trigger", "event=sched:sched_switch if nosuch == 1", "nosuch", true),
        ("--disk", "150K", "use at least", true),
    ] {
        let args = ["flight", "-d", dir, option, value];
        if needs_root && !able {
            continue;
        }
        let check = run(&[&args[..], &["--check"]].concat());
        assert!(matches!(check.code, Some(1 | 2)), "{value}: {}", check.stderr);
        assert!(check.stderr.contains(words), "{value}: {}", check.stderr);
        if able {
            let start = run(&args);
            assert_eq!(start.code, check.code, "{value}");
            assert!(start.stderr.contains(words), "{value}: {}", start.stderr);
            // It leaves nothing.
            assert_eq!(names(base.path()), [""; 0], "{value}");
        }
    }
    // Events with modifiers, and one that is no tracepoint.
    let good = [
        ["--trigger", "exit-signal"],
        ["--trigger", "event=sched:sched_process_exec:u"],
        ["--trigger", "event=page-faults:u"],
        ["-F", "99"],
    ];
    let good = good.as_flattened();
    let check = run(&[&["flight", "-d", dir, "--check"], good].concat());
    check.is_good();
    assert_eq!(check.stderr.is_empty(), able, "{}", check.stderr);
    if !able {
        assert!(check.stderr.contains("not checked: events, filters"), "{}", check.stderr);
    }
}

/// Without privileges, the output names what was not checked.
#[test]
fn unchecked_conditions_are_named() {
    let args = ["flight", "-d", "x", "--check", "--trigger", "event=nosuch:event"];
    let ran: Ran = crate::support::as_nobody(&args).output().unwrap().into();
    ran.is_good();
    assert!(ran.stderr.contains("not checked: events, filters"), "{}", ran.stderr);
}

#[test]
fn reasons_and_recorders_that_are_not_there_are_clear_errors() {
    needs_root!();
    let base = tempfile::tempdir().unwrap();
    let dir = base.path().join("flight");
    let path = dir.to_str().unwrap();
    // A command that is not there: nothing is left of the start.
    let ran = run(&["flight", "-d", path, "--", "/nonexistent/command"]);
    assert_eq!(ran.code, Some(127), "{}", ran.stderr);
    assert!(!dir.exists(), "{}", ran.stderr);
    let recorder = Recorder::start(base.path(), &SHORT);
    let long = "x".repeat(2000);
    let ran = run(&["flight", "dump", "-d", path, "--reason", &long]);
    assert_eq!(ran.code, Some(2));
    assert!(ran.stderr.contains("2000 bytes: 1024 are kept at most"), "{}", ran.stderr);
    let most = "x".repeat(1024);
    assert_eq!(causes(&manifest(&recorder.dump(&most)))[0]["what"], most);
    let ran = run(&["report", path]);
    ran.is_refused(1, &["directory of a flight recorder: use one of its dumps, in ", "/dumps"]);
    recorder.end("TERM");
    let ran = run(&["flight", "status", "-d", path]);
    ran.is_refused(1, &["no recorder runs in this directory"]);
}

#[test]
fn a_directory_that_others_control_is_refused() {
    needs_root!();
    let base = tempfile::tempdir().unwrap();
    let recorder = Recorder::start(base.path(), &SHORT);
    let dir = recorder.dir.clone();
    let path = dir.to_str().unwrap();
    recorder.end("TERM");
    let mode = |mode| std::os::unix::fs::PermissionsExt::from_mode(mode);
    fs::set_permissions(&dir, mode(0o777)).unwrap();
    let (dump, status) = (["flight", "dump", "-d", path], ["flight", "status", "-d", path]);
    for args in [&["flight", "-d", path], &dump[..], &status] {
        run(args).is_refused(1, &["others can write to it (mode 0777)", "chmod 700"]);
    }
    fs::set_permissions(&dir, mode(0o700)).unwrap();
    std::os::unix::fs::chown(&dir, Some(65534), None).unwrap();
    for args in [dump, status] {
        run(&args).is_refused(1, &["belongs to user 65534", "run this as its user"]);
    }
    std::os::unix::fs::chown(&dir, Some(0), None).unwrap();
    let elsewhere = base.path().join("elsewhere");
    fs::rename(dir.join("dumps"), &elsewhere).unwrap();
    std::os::unix::fs::symlink(&elsewhere, dir.join("dumps")).unwrap();
    run(&dump).is_refused(1, &["dumps", "is a symbolic link"]);
    assert_eq!(names(&elsewhere), [""; 0]);
}

#[test]
fn configurations_are_checked() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("flight.toml");
    let check =
        || -> Ran { run(&["flight", "-d", "x", "--check", "--config", config.to_str().unwrap()]) };
    fs::write(&config, "back = \"5s\"\ntriggers = [\"sched-delay=10ms\"]\n").unwrap();
    check().is_good();
    fs::write(&config, "back = \"5s\"\nbakc = \"5s\"\n").unwrap();
    check().is_refused(1, &["flight.toml:2", "bakc: unknown key"]);
    let both = ["flight", "-d", "x", "--back", "5s", "--config", config.to_str().unwrap()];
    assert_eq!(run(&both).code, Some(2));
}

#[test]
fn a_directory_of_others_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("mine"), "").unwrap();
    let path = dir.path().to_str().unwrap();
    for args in [&["flight", "-d", path][..], &["flight", "dump", "-d", path]] {
        if args.len() == 3 && !can("root, with tracepoints", crate::support::is_able()) {
            continue;
        }
        run(args).is_refused(1, &["director"]);
    }
    assert_eq!(names(dir.path()), ["mine"]);
}

/// The recorder in mounts of its own, where `dir` is a file system of this many KiB.
fn in_small_file_system(dir: &Path, kib: u32, more: &str) -> Command {
    let script = format!("mount -t tmpfs -o size={kib}k none \"$0\" && {more} exec \"$@\"");
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", &script]).arg(dir).arg(env!("CARGO_BIN_EXE_triscope"));
    command
}

#[test]
fn a_full_disk_is_survived() {
    needs_root!();
    let base = tempfile::tempdir().unwrap();
    let mount = base.path().join("small");
    fs::create_dir(&mount).unwrap();
    // Little of it is left, and segments are short: few records fill it.
    let command = in_small_file_system(&mount, 4096, "head -c 3000000 /dev/zero >\"$0/other\" &&");
    let options = ["--disk", "1GB", "--back", "4s"];
    let recorder = Recorder::start_by(command, base.path(), &mount.join("flight"), &options);
    let dir = PathBuf::from(format!("/proc/{}/root", recorder.running.id()))
        .join(mount.strip_prefix("/").unwrap())
        .join("flight");
    until("a full disk", || {
        ping_pong(2000);
        metric(&dir, "failed_segments_total") > 0.0
    });
    recorder.wait_for("a segment cannot be written");
    // It continues with the space that its oldest segments had.
    let before = metric(&dir, "segments_total");
    until("new segments", || metric(&dir, "segments_total") > before);
    // A dump has its files, or a reason why not.
    let ran = run(&["flight", "dump", "-d", dir.to_str().unwrap()]);
    if ran.code != Some(0) {
        ran.is_refused(1, &[]);
        // While no segment can be begun, the last one leaves the window.
        let reasons = ["No space left on device", "more space on the file system"];
        assert!(reasons.iter().any(|reason| ran.stderr.contains(reason)), "{}", ran.stderr);
    }
    let (is_good, log) = recorder.result("TERM");
    assert_eq!(is_good, ran.code == Some(0), "{log}");
    are_accounted_for(&log);
}

/// As where the disk of its log is full.
#[test]
fn a_full_standard_error_is_survived() {
    needs_root!();
    let base = tempfile::tempdir().unwrap();
    let dir = base.path().join("flight");
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let mut command = triscope(&["flight", "-d", dir.to_str().unwrap()]);
    let mut recorder = Running(Some(command.stdin(Stdio::null()).stderr(full).spawn().unwrap()));
    until("the control socket", || {
        assert!(!has_ended(recorder.id()), "it has ended");
        dir.join("control.sock").exists()
    });
    wait_for_segment_with(&dir, b"PERFILE2");
    dump(&dir, "it continues");
    recorder.signal("TERM");
    assert!(recorder.child().wait().unwrap().success());
    recorder.0 = None;
}

#[test]
fn a_read_only_disk_is_an_error() {
    needs_root!();
    let base = tempfile::tempdir().unwrap();
    let mount = base.path().join("small");
    fs::create_dir(&mount).unwrap();
    let mut command = in_small_file_system(&mount, 4096, "mount -o remount,ro \"$0\" &&");
    command.args(["flight", "-d"]).arg(mount.join("flight"));
    let ran: Ran = command.output().unwrap().into();
    ran.is_refused(1, &["Read-only file system"]);
}

#[test]
fn processes_that_come_and_go_are_all_there() {
    needs_root!();
    come_and_go(&[]);
}

/// Each is looked at for a runtime.
#[test]
fn processes_that_come_and_go_are_all_there_with_dotnet() {
    needs_root!();
    come_and_go(&["--dotnet"]);
}

/// 1000 processes that end at once are in a dump, and are forgotten.
#[track_caller]
fn come_and_go(options: &[&str]) {
    let base = tempfile::tempdir().unwrap();
    let options = [&["--back", "2m", "--forward", "200ms", "--disk", "2GB"], options].concat();
    let recorder = Recorder::start(base.path(), &options);
    let script = "i=0; while [ $i -lt 1000 ]; do /bin/true; i=$((i+1)); done; echo $$";
    let output = Command::new("sh").args(["-c", script]).output().unwrap();
    let parent: u64 = String::from_utf8(output.stdout).unwrap().trim().parse().unwrap();
    let dump = recorder.dump("churn");
    let ran = run(&["report", "--json", dump.to_str().unwrap()]);
    let report: Value = serde_json::from_str(&ran.stdout).unwrap();
    let processes = report["processes"].as_array().unwrap().iter();
    let children = processes.filter(|process| process["parent"] == parent).count();
    let lost = manifest(&dump)["lost"].as_u64().unwrap();
    assert!(children as u64 + lost >= 1000, "{children} and {lost} lost");
    // Only those that run are remembered.
    until("threads that ended are forgotten", || {
        let known = metric(&recorder.dir, "threads") as usize;
        let running: usize =
            perf_monitor::processes().into_iter().map(|pid| perf_monitor::threads(pid).len()).sum();
        known < running + 200
    });
    are_accounted_for(&recorder.end("TERM"));
}
