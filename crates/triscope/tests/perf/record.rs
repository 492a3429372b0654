use crate::needs_root;
use crate::support::{
    Ran, Running, WITH_TRACEFS, as_nobody, as_nobody_with, begin_recording, child, code,
    in_background, names, run, run_in, triscope, users_may_count, with_default_signals,
};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::tempdir;
use testkit::perfetto::Timeline;

pub(crate) fn read(path: &Path) -> Timeline {
    Timeline::read(&std::fs::read(path).unwrap())
}

/// Records a command, and reads what was written.
fn record(options: &[&str], command: &[&str]) -> (Ran, Timeline) {
    let dir = tempdir().unwrap();
    let ran = run_in(dir.path(), &[&["record", "-o", "out"][..], options, command].concat());
    assert_eq!(names(dir.path()), ["out"], "{}", ran.stderr);
    let timeline = read(&dir.path().join("out"));
    (ran, timeline)
}

/// The names and numbers of threads that are switched to.
fn switched_to(timeline: &Timeline) -> BTreeSet<(&str, u64)> {
    timeline
        .lines
        .iter()
        .filter_map(|line| {
            let (_, to) = switch_of(line)?;
            let (name, tid) = to.rsplit_once(' ')?;
            Some((name, tid.parse().ok()?))
        })
        .collect()
}

/// Of a line of a switch: the CPU, and what comes next.
fn switch_of(line: &str) -> Option<(&str, &str)> {
    let (front, to) = line.split_once(" -> ")?;
    Some((front.split_once(" cpu ")?.1.split(':').next()?, to))
}

/// The number in the summary before these words.
#[track_caller]
pub(crate) fn reported(ran: &Ran, words: &str) -> u64 {
    let (front, _) = ran.stderr.rsplit_once(words).unwrap_or_else(|| panic!("{}", ran.stderr));
    front.trim_end().rsplit([' ', '\n']).next().unwrap().parse().unwrap()
}

#[test]
fn the_command_is_drawn_and_others_without_their_names() {
    needs_root!();
    let (ran, timeline) =
        record(&[], &["sh", "-c", "sleep 0.05; /bin/true; echo hello; sleep 0.01; :"]);
    ran.is_good();
    assert_eq!(ran.stdout, "hello\n");
    assert_eq!(reported(&ran, "process"), 4, "{}", ran.stderr);
    assert!(timeline.lines[0].starts_with("Linux "), "{}", timeline.lines[0]);
    let shown = switched_to(&timeline);
    let known = ["sh", "sleep", "true", "triscope", "other", "CPU"];
    for (name, tid) in &shown {
        let idle = *tid == 0 && name.starts_with("swapper");
        assert!(idle || known.contains(name), "{name} {tid}: {}", timeline.text());
        assert_eq!(*name == "other", *tid >= 4 << 20, "{name} {tid}");
    }
    // What is too short is never switched to under its last name.
    for name in ["sh", "sleep"] {
        assert!(shown.iter().any(|(shown, _)| *shown == name), "{name}: {shown:?}");
    }
    assert!(timeline.lines.iter().any(|l| l == "track other tasks 4194304"));
    // Each has a track with the name that it had last, and ends there.
    for (name, processes) in [("sh", 1), ("sleep", 2), ("true", 1)] {
        let start = format!("track {name} ");
        let is_track = |l: &&String| l.starts_with(&start) && !l.ends_with("/Process");
        let tracks: BTreeSet<&String> = timeline.lines.iter().filter(is_track).collect();
        assert_eq!(tracks.len(), processes, "{tracks:?}");
    }
    assert_eq!(timeline.count(": instant exit"), 4, "{}", timeline.text());
    assert_eq!(timeline.count("Command: begin sh -c sleep 0.05; /bin/true; echo hello;"), 1);
    assert_eq!(timeline.count("Command: end ended with=exit status: 0"), 1);
    // By the end of a child; this kernel does not always report wake-ups by timers.
    assert!(timeline.count("wakes sh ") >= 1, "{}", timeline.text());
}

#[test]
fn all_tasks_are_drawn_by_name_if_wanted() {
    needs_root!();
    let (ran, timeline) = record(&["--all-tasks"], &["sleep", "0.3"]);
    ran.is_good();
    assert!(switched_to(&timeline).iter().all(|(name, tid)| *name != "other" && *tid < 4 << 20));
    let init = std::fs::read_to_string("/proc/1/comm").unwrap();
    let track = format!("track {} 1", init.trim());
    assert!(timeline.lines.contains(&track), "{track}");
    // The one that records has work to do every few milliseconds.
    assert!(switched_to(&timeline).iter().any(|(name, _)| *name == "triscope"));
    assert_eq!(reported(&ran, "process"), 1, "{}", ran.stderr);
    assert!(timeline.count(": instant exit") >= 1);
}

#[test]
fn the_recorder_is_realtime_on_request_and_the_command_is_not() {
    needs_root!();
    // Fields 40 and 41 of stat: realtime priority, and policy (1 is SCHED_FIFO). The recorder gets
    // its priority after it has started the command.
    let script = "until [ $(cut -d' ' -f41 /proc/$PPID/stat) = 1 ]; do sleep 0.01; done
        echo $(cut -d' ' -f40,41 /proc/$PPID/stat) $(cut -d' ' -f41 /proc/self/stat)";
    let (ran, _) = record(&["--realtime=7"], &["sh", "-c", script]);
    ran.is_good();
    assert_eq!(ran.stdout, "7 1 0\n");
    let (ran, _) = record(&["--realtime"], &["sh", "-c", script]);
    assert_eq!(ran.stdout, "1 1 0\n", "{}", ran.stderr);
    let refused = run(&["record", "-o", "out", "--realtime=100", "touch", "ran"]);
    assert!(refused.code == Some(2) && refused.stderr.contains("1..=99"), "{}", refused.stderr);
}

#[test]
fn processes_left_by_the_command_survive_the_recording() {
    needs_root!();
    // Started by a shell that has ended before, in a session of its own.
    let daemon = "(setsid sh -c 'sleep 0.1; /bin/uname > /dev/null; : > \"$0\"' \"$0\" &)
        while [ ! -e \"$0\" ]; do sleep 0.01; done";
    let dir = tempdir().unwrap();
    let done = dir.path().join("done");
    let (ran, timeline) = record(&[], &["sh", "-c", daemon, done.to_str().unwrap()]);
    ran.is_good();
    assert_eq!(timeline.count("track uname "), 3, "a process, its thread and its lifetime");
}

#[test]
fn threads_have_their_names() {
    needs_root!();
    let command = child("threads 5");
    let command: Vec<&str> = command.iter().map(|arg| &arg[..]).collect();
    let (ran, timeline) = record(&[], &command);
    ran.is_good();
    assert_eq!(reported(&ran, "process"), 1);
    for n in 0..5 {
        assert_eq!(timeline.count(&format!("track worker-{n} ")), 1, "{}", timeline.text());
        let exit = format!("worker-{n} ");
        let exits =
            timeline.lines.iter().filter(|l| l.contains(&exit) && l.ends_with(": instant exit"));
        assert_eq!(exits.count(), 1);
    }
}

#[test]
fn every_switch_is_drawn() {
    needs_root!();
    let role = child("ping-pong 5000");
    let mut command = vec!["taskset", "-c", "0"];
    command.extend(role.iter().map(|arg| &arg[..]));
    let (ran, timeline) = record(&[], &command);
    ran.is_good();
    assert!(!ran.stderr.contains("lost"), "{}", ran.stderr);
    // On one CPU each message takes a switch to each of the two. One that was preempted before it
    // slept is not woken.
    let pong = timeline.lines.iter().filter(|l| l.contains("cpu 0: ") && l.contains("-> pong "));
    let (pong, woken) = (pong.count(), timeline.count("wakes pong "));
    assert!(pong >= 4990, "{pong} switches");
    assert!(woken >= 100, "{woken} wake-ups");
    let switches = timeline.lines.iter().filter(|l| switch_of(l).is_some()).count();
    assert_eq!(reported(&ran, "context switch"), switches as u64);
}

#[test]
fn losses_are_marked_and_counted() {
    needs_root!();
    let command = child("ping-pong 100000");
    let command: Vec<&str> = command.iter().map(|arg| &arg[..]).collect();
    let dir = tempdir().unwrap();
    let kept = dir.path().join("kept");
    let kept = kept.to_str().unwrap();
    let (ran, timeline) = record(&["--pages", "1", "--keep", kept], &command);
    ran.is_good();
    let marks: Vec<u64> = timeline
        .lines
        .iter()
        .filter(|l| l.contains("Losses: instant lost: scheduler records of CPU "))
        .map(|l| l.rsplit_once("count=").unwrap().1.parse().unwrap())
        .collect();
    assert!(marks.len() > 1 && marks.iter().all(|count| *count > 0), "{marks:?}");
    assert_eq!(reported(&ran, "events lost"), marks.iter().sum::<u64>(), "{}", ran.stderr);
    assert!(ran.stderr.contains("events lost: use --pages 2048"), "{}", ran.stderr);
    // Starts, names and ends are not lost with the switches.
    assert_eq!(reported(&ran, "thread"), 3, "{}", ran.stderr);
    assert_eq!(timeline.count("track pong "), 1, "{}", ran.stderr);
    // What was kept has them all, with those at the end.
    let report = run_in(dir.path(), &["report", "--json", kept]);
    report.is_good();
    let report: serde_json::Value = serde_json::from_str(&report.stdout).unwrap();
    let losses = report["losses"].as_array().unwrap().iter();
    let kept: u64 = losses.map(|loss| loss["records"].as_u64().unwrap()).sum();
    assert_eq!(kept, reported(&ran, "events lost"), "{report}");
}

#[test]
fn a_failed_recording_leaves_no_file() {
    needs_root!();
    let dir = tempdir().unwrap();
    let run = |args: &[&str]| run_in(dir.path(), args);
    run(&["record", "-o", "out", "no-such-command"]).is_refused(127, &["command not found"]);
    run(&["record", "-o", "out", "/"]).is_refused(126, &["cannot be run"]);
    run(&["record", "-o", "no/such/out", "touch", "ran"])
        .is_refused(1, &["no/such/out: cannot be written"]);
    let own = dir.path().to_str().unwrap();
    run(&["record", "-o", own, "touch", "ran"]).is_refused(1, &["is a directory"]);
    run(&["record", "-o", "out", "--pages", "3", "touch", "ran"]).is_refused(1, &["power of two"]);
    run(&["record", "-o", "t", "--go-trace", "t", "touch", "ran"])
        .is_refused(1, &["the output needs another name"]);
    assert_eq!(names(dir.path()), [""; 0]);
    // What was there stays there.
    std::fs::write(dir.path().join("out"), "before").unwrap();
    run(&["record", "-o", "out", "no-such-command"]).is_refused(127, &["command not found"]);
    assert_eq!(names(dir.path()), ["out"]);
    assert_eq!(std::fs::read(dir.path().join("out")).unwrap(), b"before");
    // A disk that is full.
    let ran = run(&["record", "-o", "/dev/full", "true"]);
    ran.is_refused(1, &["/dev/full: cannot be written", "No space left"]);
}

/// The command is no part of what has failed.
#[test]
fn a_full_disk_does_not_end_the_command() {
    needs_root!();
    let dir = tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let go = path("go");
    // It ends with the directory if the test fails.
    let is_there = dir.path().display();
    let busy =
        format!("while [ -e {is_there} -a ! -e {go} ]; do /bin/true; done; echo complete; exit 5");
    let recorders: [&[&str]; 4] = [
        &["record", "--sched", "--uncompressed", "-o", &path("out")],
        &["perf", "record", "-e", "sched:sched_switch", "-a", "-o", &path("out.perf")],
        &["profile", "-F", "5000", "-o", &path("out.data")],
        &["perf", "stat", "-I", "1", "-o", "/dev/full", "-e", "page-faults"],
    ];
    for args in recorders {
        let log = path("log");
        for old in [&go, &log] {
            let _ = std::fs::remove_file(old); // of the recorder before
        }
        let mut command = Command::new("sh");
        // A limit of 256 KiB (dash) or 512 KiB (bash) for each file.
        let script = "ulimit -f 512; log=$1; shift; exec \"$@\" 2>\"$log\"";
        command.args(["-c", script, "sh", &log, env!("CARGO_BIN_EXE_triscope")]).args(args);
        command.args(["sh", "-c", &busy]).stdin(Stdio::null());
        let recorder = Running::start(&mut command);
        testkit::wait::until(&format!("{args:?}"), || {
            recorder.still_runs();
            std::fs::read_to_string(&log).is_ok_and(|log| log.contains("the command continues"))
        });
        std::fs::write(&go, "").unwrap();
        let ran = recorder.end();
        let log = std::fs::read_to_string(&log).unwrap();
        assert_eq!((ran.code, &*ran.stdout), (Some(1), "complete\n"), "{args:?}: {log}");
        let says = match args[..2] {
            ["record", _] => "out.partial has what was written",
            ["profile", _] => "out.data.partial has what was written",
            ["perf", "record"] => "out.perf.partial has what was written",
            _ => "No space left",
        };
        assert!(log.contains(says), "{args:?}: {log}");
    }
    assert!(
        dir.path().join("out.partial").exists() && dir.path().join("out.perf.partial").exists()
    );
}

/// A command that runs until a file is there, and then makes another one: its arguments, and the files.
fn patient(dir: &Path) -> ([String; 3], PathBuf, PathBuf) {
    let (go, complete) = (dir.join("go"), dir.join("complete"));
    // It ends with the directory if the test fails.
    let script = format!(
        "while [ -e {} -a ! -e {} ]; do /bin/true; done; : > {}; exit 5",
        dir.display(),
        go.display(),
        complete.display()
    );
    (["sh".to_owned(), "-c".to_owned(), script], go, complete)
}

/// Waits until a recorder has failed, and then for the end of its command. Returns the exit code and the log.
#[track_caller]
fn failed_beside(
    mut recorder: Command,
    dir: &Path,
    stdout: impl Into<Stdio>,
) -> (Option<i32>, String) {
    let (command, go, complete) = patient(dir);
    let log = dir.join("log");
    recorder.args(command).stdin(Stdio::null()).stdout(stdout);
    let recorder = Running::spawn(recorder.stderr(std::fs::File::create(&log).unwrap()));
    let said = || std::fs::read_to_string(&log).unwrap();
    let mut recorder = recorder;
    testkit::wait::until("the failure", || {
        recorder.still_runs();
        said().contains("the command continues")
    });
    assert!(!complete.exists());
    std::fs::write(go, "").unwrap();
    let code = recorder.child().wait().unwrap().code();
    assert!(complete.exists(), "{}", said());
    (code, said())
}

#[test]
fn an_output_that_is_full_or_closed_does_not_end_the_command() {
    needs_root!();
    let views: [&[&str]; 4] = [
        &["perf", "trace", "-e", "sched:sched_process_exit"],
        &["perf", "top", "--json", "--delay", "0.1"],
        &["perf", "top", "--delay", "0.1"],
        &["top", "--json", "--delay", "0.1"],
    ];
    for args in views {
        let dir = tempdir().unwrap();
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let (code, log) = failed_beside(triscope(args), dir.path(), full);
        assert!(code == Some(1) && log.contains("No space left"), "{args:?}: {code:?} {log}");
        let dir = tempdir().unwrap();
        let (closed, reader) = std::os::unix::net::UnixStream::pair().unwrap();
        drop(reader);
        let closed = std::os::fd::OwnedFd::from(closed);
        let (code, log) = failed_beside(triscope(args), dir.path(), closed);
        assert_eq!(code, Some(128 + 13), "{args:?}: {log}");
    }
}

#[test]
fn a_priority_that_is_refused_is_refused_before_the_command() {
    needs_root!();
    let dir = tempdir().unwrap();
    for args in [
        &["perf", "trace", "--realtime", "50", "-e", "sched:sched_process_exit"][..],
        &["perf", "record", "--realtime", "50", "-o", "out"],
        &["record", "--realtime=50", "-o", "out"],
    ] {
        let mut program = Command::new("setpriv");
        program.args(["--bounding-set", "-sys_nice", "--inh-caps", "-sys_nice"]);
        program.arg(env!("CARGO_BIN_EXE_triscope")).args(args).args(["--", "touch", "ran"]);
        let ran = program.current_dir(dir.path()).output().unwrap();
        let errors = String::from_utf8_lossy(&ran.stderr);
        assert_eq!(ran.status.code(), Some(1), "{args:?}: {errors}");
        assert!(errors.contains("SCHED_FIFO"), "{args:?}: {errors}");
        assert_eq!(names(dir.path()), [""; 0], "{args:?}: {errors}");
    }
}

/// A pipe in the place of the partial file, which nobody reads.
#[test]
fn a_pipe_instead_of_the_partial_file_is_refused_before_the_command() {
    let dir = tempdir().unwrap();
    let pipe = dir.path().join("out.partial");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let ran = run_in(dir.path(), &["record", "-o", "out", "touch", "ran"]);
    ran.is_refused(1, &["out: cannot be written", "out.partial is in the way"]);
    assert_eq!(names(dir.path()), ["out.partial"]);
}

/// The recording that is kept in this directory, and is named in the log, becomes a page.
#[track_caller]
fn is_kept(temporary: &Path, page: &Path, log: &str) {
    let [kept] = &names(temporary)[..] else { panic!("{:?}: {log}", names(temporary)) };
    let recording = temporary.join(kept).join("recording");
    let (recording, page) = (recording.display(), page.display());
    let command = format!("report {recording} --html {page}");
    let message = format!("triscope: the recording is kept in {recording}: triscope {command}\n");
    assert!(log.ends_with(&message), "{log}");
    let out = temporary.join("out.html");
    let recording = recording.to_string();
    run_in(temporary, &["report", &recording, "--html", "out.html"]).is_good();
    assert!(std::fs::read_to_string(out).unwrap().ends_with("</html>\n"));
}

#[test]
fn a_page_that_is_interrupted_leaves_the_recording() {
    needs_root!();
    let dir = tempdir().unwrap();
    let page = dir.path().join("page.html");
    assert!(Command::new("mkfifo").arg(&page).status().unwrap().success());
    // A page is longer than a pipe takes, and it is not read.
    let _reader = std::fs::File::options().read(true).write(true).open(&page).unwrap();
    let log = dir.path().join("log");
    let mut command = with_default_signals(&["record", "-o", page.to_str().unwrap(), "true"]);
    let temporary = dir.path().join("tmp");
    std::fs::create_dir(&temporary).unwrap();
    command.env("TMPDIR", &temporary).stderr(std::fs::File::create(&log).unwrap());
    let mut record = Running::spawn(&mut command);
    testkit::wait::until("the page", || {
        record.still_runs();
        std::fs::read_to_string(&log).unwrap().contains("recorded: ")
    });
    record.signal("INT");
    let status = record.child().wait().unwrap();
    let log = std::fs::read_to_string(&log).unwrap();
    assert_eq!(status.code(), Some(128 + 2), "{log}");
    is_kept(&temporary, &page, &log);
}

#[test]
fn a_page_that_cannot_be_written_leaves_the_recording() {
    needs_root!();
    let dir = tempdir().unwrap();
    let (page, temporary) = (dir.path().join("page.html"), dir.path().join("tmp"));
    std::os::unix::fs::symlink("/dev/full", &page).unwrap();
    std::fs::create_dir(&temporary).unwrap();
    let mut record = triscope(&["record", "-o", page.to_str().unwrap(), "true"]);
    let ran = Running::start(record.env("TMPDIR", &temporary)).end();
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    assert!(ran.stderr.contains("page.html: cannot be written"), "{}", ran.stderr);
    is_kept(&temporary, &page, &ran.stderr);
}

#[test]
fn the_directory_of_a_recording_that_cannot_begin_can_be_named_again() {
    needs_root!();
    let dir = tempdir().unwrap();
    for kept in ["kept", "new/kept"] {
        let ran = run_in(dir.path(), &["record", "--keep", kept, "./no-such-command"]);
        ran.is_refused(127, &["command not found"]);
        assert_eq!(names(dir.path()), [""; 0]);
    }
    run_in(dir.path(), &["record", "--keep", "kept", "true"]).is_good();
}

/// A directory where anybody may write.
pub(crate) fn open_directory() -> tempfile::TempDir {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    dir
}

#[test]
fn a_user_records_the_command_alone() {
    let dir = open_directory();
    let out = dir.path().join("out");
    let script = ["sh", "-c", "sleep 0.05; /bin/true; sleep 0.02; :"];
    let args = [&["record", "-o", out.to_str().unwrap()][..], &script[..]].concat();
    let ran: Ran = as_nobody(&args).output().unwrap().into();
    let remedies = ["mount -t tracefs", "mount -o remount", "perf_event_paranoid", "container"];
    let is_named = remedies.iter().any(|words| ran.stderr.contains(words));
    assert!(is_named, "{}", ran.stderr);
    if !users_may_count() {
        ran.is_refused(1, &["triscope: "]);
        return assert_eq!(names(dir.path()), [""; 0]);
    }
    ran.is_good();
    assert!(
        ran.stderr.contains("only on-CPU intervals of the command's own threads"),
        "{}",
        ran.stderr
    );
    assert_eq!(names(dir.path()), ["out"]);
    let timeline = read(&out);
    let shown = switched_to(&timeline);
    for (name, tid) in &shown {
        let known = ["sh", "sleep", "true", "triscope", "other"].contains(name);
        assert!(known, "{name} {tid}: {}", timeline.text());
    }
    assert!(shown.iter().any(|(name, _)| *name == "sleep"), "{}", timeline.text());
    assert_eq!((reported(&ran, "process"), reported(&ran, "wake-up")), (4, 0), "{}", ran.stderr);
    assert_eq!(timeline.count(": instant exit"), 4, "{}", timeline.text());
    assert_eq!(timeline.count("track sleep "), 6, "two processes, their threads and lifetimes");
    assert!(timeline.lines.iter().any(|l| l == "track other tasks, or idle 4194304"));
}

#[test]
fn a_user_is_refused_the_rest_with_the_remedy() {
    let dir = open_directory();
    let out = dir.path().join("out");
    let out = out.to_str().unwrap();
    let run = |options: &[&str]| -> Ran {
        let args = [&["record", "-o", out][..], options, &["true"]].concat();
        as_nobody(&args).output().unwrap().into()
    };
    let ran = run(&["--all-tasks"]);
    ran.is_refused(1, &["triscope: "]);
    let remedies = ["mount -t tracefs", "mount -o remount", "perf_event_paranoid", "container"];
    assert!(remedies.iter().any(|words| ran.stderr.contains(words)), "{}", ran.stderr);
    if users_may_count() {
        run(&["--pages", "3"]).is_refused(1, &["power of two"]);
        run(&["--pages", "1048576"]).is_refused(1, &["pages"]);
    }
    assert_eq!(names(dir.path()), [""; 0]);
}

#[test]
fn inside_of_a_container_the_command_alone_is_recorded() {
    needs_root!();
    let dir = tempdir().unwrap();
    // Process identifiers of its own, and a /proc that shows them.
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--mount-proc", env!("CARGO_BIN_EXE_triscope")]);
    command.args(["record", "-o", "out", "sh", "-c", "sleep 0.05; :"]).current_dir(dir.path());
    let ran = |command: &mut Command| Ran::from(command.output().unwrap());
    let first = ran(&mut command);
    first.is_good();
    assert!(first.stderr.contains("inside of a container"), "{}", first.stderr);
    let timeline = read(&dir.path().join("out"));
    // 1 is triscope, and numbers follow each other.
    let shown = switched_to(&timeline);
    let sleeps: Vec<_> = shown.iter().filter(|(name, _)| *name == "sleep").collect();
    assert!(sleeps.len() == 1 && sleeps[0].1 < 20, "{}", timeline.text());
    let mut all = Command::new("unshare");
    all.args(["--pid", "--fork", "--mount-proc", env!("CARGO_BIN_EXE_triscope")]);
    all.args(["record", "--all-tasks", "-o", "all", "true"]).current_dir(dir.path());
    ran(&mut all).is_refused(1, &["container"]);
    assert_eq!(names(dir.path()), ["out"]);
}

#[test]
fn capabilities_are_enough() {
    needs_root!();
    let dir = open_directory();
    let out = dir.path().join("out");
    let args = ["record", "--all-tasks", "-o", out.to_str().unwrap(), "sleep", "0.01"];
    if crate::support::paranoid() > -1 {
        as_nobody_with(WITH_TRACEFS, "+dac_read_search", &args)
            .is_refused(1, &["perf_event_paranoid", "CAP_PERFMON"]);
        assert_eq!(names(dir.path()), [""; 0]);
    }
    let little = format!("{WITH_TRACEFS}; ulimit -l 64");
    let ran = as_nobody_with(&little, "+dac_read_search,+perfmon", &args);
    ran.is_good();
    // All CPUs share the lockable memory; a smaller ring is reported.
    assert!(ran.stderr.contains("triscope: buffers of "), "{}", ran.stderr);
    assert!(read(&out).count(": instant exit") >= 1);
}

#[test]
fn the_time_can_be_limited() {
    needs_root!();
    let (ran, timeline) = record(&["--seconds", "0.3"], &["sleep", "100"]);
    assert_eq!(ran.code, Some(128 + 15), "{}", ran.stderr);
    assert_eq!(timeline.count("Command: end ended with=signal: 15"), 1);
    let ran = run(&["record", "--seconds", "x", "-o", "out", "true"]);
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
}

#[test]
fn a_running_process_is_recorded() {
    needs_root!();
    let dir = tempdir().unwrap();
    let mut shell = Command::new("sh");
    let mut shell = Running::start(shell.args(["-c", "echo ready; while :; do sleep 0.02; done"]));
    shell.wait_for("ready");
    let pid = shell.id().to_string();
    let record = ["record", "-o", "out", "--pid", &pid];
    let is_drawn = |end: &str| {
        let timeline = read(&dir.path().join("out"));
        assert!(timeline.count(&format!("track sh {pid}")) > 0, "{}", timeline.text());
        assert_eq!(timeline.count(&format!("Command: end ended with={end}")), 1);
        assert_eq!(timeline.count("Command: begin sh -c echo ready;"), 1);
        timeline
    };
    // For a while: the process continues.
    let ran = run_in(dir.path(), &[&record[..], &["--seconds", "0.5"]].concat());
    ran.is_good();
    assert!(reported(&ran, "process") > 1, "what it starts is its own: {}", ran.stderr);
    let timeline = is_drawn("the end of the recording");
    assert!(timeline.count("track sleep ") > 0, "{}", timeline.text());
    // Until a signal: the process continues. In the background of a script SIGINT is ignored from the start.
    let mut command = in_background(&[&record[..], &["--progress"]].concat());
    let logs = tempdir().unwrap();
    let begin = |command: &mut Command| {
        std::fs::remove_file(dir.path().join("out")).unwrap();
        begin_recording(command.current_dir(dir.path()), &logs.path().join("log"))
    };
    let recording = begin(&mut command);
    recording.signal("INT");
    recording.end().is_good();
    assert_eq!(names(dir.path()), ["out"]);
    is_drawn("the end of the recording");
    // Until it ends.
    let recording = begin(&mut command);
    shell.signal("TERM");
    drop(shell.end());
    recording.end().is_good();
    assert!(is_drawn("its end").count(": instant exit") > 0);
}

#[test]
fn a_timeline_on_standard_output_has_nothing_else_in_it() {
    needs_root!();
    let output = triscope(&["record", "-o", "-", "sh", "-c", "echo hello"]).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && errors.contains("hello\n"), "{errors}");
    assert_eq!(Timeline::read(&output.stdout).count("Command: end ended with=exit status: 0"), 1);
}

#[test]
fn missing_and_conflicting_targets_are_errors() {
    let pid = std::process::id().to_string();
    let refused = |args: &[&str], code, words: &[&str]| {
        let dir = tempdir().unwrap();
        let args = [&["record", "-o", "out"][..], args].concat();
        run_in(dir.path(), &args).is_refused(code, words);
        assert_eq!(names(dir.path()), [""; 0]);
    };
    refused(&[], 2, &["nothing to record: pass a COMMAND, --pid PID or --name NAME"]);
    refused(&["--pid", &pid, "true"], 2, &["either a COMMAND or a running process"]);
    refused(&["--pid", &pid, "--dotnet", "1"], 2, &["--pid and --dotnet name two processes"]);
    refused(&["--pid", "4194305"], 1, &["there is no process 4194305"]);
    refused(&["--dotnet", "4194305"], 1, &["there is no process 4194305"]);
    refused(&["--dotnet", &pid], 1, &[&pid]);
}

/// Nobody reads standard error, and it is full.
#[test]
fn a_full_standard_error_stops_no_recording() {
    use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
    use std::io::Write;
    let dir = tempdir().unwrap();
    let (_reader, mut full) = std::io::pipe().unwrap();
    let flags = fcntl_getfl(&full).unwrap();
    fcntl_setfl(&full, flags | OFlags::NONBLOCK).unwrap();
    while full.write(&[b'\n'; 4096]).is_ok() {}
    fcntl_setfl(&full, flags).unwrap();
    // There is a message before the command is started, and others at the end.
    std::fs::write(dir.path().join("out.partial"), "").unwrap();
    let script = "echo > started; exec sleep 100";
    let args = ["record", "--go-trace", "trace", "-o", "out", "sh", "-c", script];
    let mut command = with_default_signals(&args);
    let mut record = Running::spawn(command.current_dir(dir.path()).stderr(full));
    testkit::wait::until("the command", || dir.path().join("started").exists());
    record.signal("TERM");
    assert_eq!(code(&mut record), Some(128 + 15));
    assert_eq!(names(dir.path()), ["out", "started"]);
    read(&dir.path().join("out"));
}

#[test]
fn a_go_trace_that_became_a_pipe_is_not_waited_for() {
    let dir = tempdir().unwrap();
    let args = ["record", "--go-trace", "trace", "-o", "out", "mkfifo", "trace"];
    let mut record = Running::start(triscope(&args).current_dir(dir.path()));
    assert_eq!(code(&mut record), Some(1));
    let ran = record.end();
    assert!(ran.stderr.contains("trace: is not a regular file"), "{}", ran.stderr);
    assert!(ran.stderr.contains("no goroutines"), "{}", ran.stderr);
}

#[test]
fn a_go_trace_that_the_command_did_not_write_is_not_drawn() {
    needs_root!();
    let trace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../gotrace/tests/data/shop.trace");
    let dir = tempdir().unwrap();
    let record = |command: &[&str]| {
        let options = ["record", "--sched", "--go-trace", "go.trace", "-o", "out"];
        run_in(dir.path(), &[&options[..], command].concat())
    };
    // There is none, and then one of before: the rest is written all the same.
    for _ in 0..2 {
        let ran = record(&["true"]);
        assert_eq!(ran.code, Some(1), "{}", ran.stderr);
        assert!(ran.stderr.contains("go.trace: the command did not write it"), "{}", ran.stderr);
        assert!(ran.stderr.contains("no goroutines"), "{}", ran.stderr);
        let timeline = read(&dir.path().join("out"));
        assert_eq!(timeline.count("track true "), 3, "a process, its thread and its lifetime");
        std::fs::copy(&trace, dir.path().join("go.trace")).unwrap();
    }
    assert_eq!(std::fs::read(dir.path().join("go.trace")).unwrap(), std::fs::read(&trace).unwrap());
    // A command that writes it.
    let ran = record(&["cp", trace.to_str().unwrap(), "go.trace"]);
    ran.is_good();
    assert_eq!(reported(&ran, "goroutines"), 150, "{}", ran.stderr);
    // One that writes half of it.
    let ran = record(&["sh", "-c", &format!("head -c 20000 {} > go.trace", trace.display())]);
    assert!(ran.stderr.contains("the Go trace ends early"), "{}", ran.stderr);
    assert_eq!(names(dir.path()), ["go.trace", "out"]);
}

/// The packets of a timeline that is cut within one.
fn whole_packets(bytes: &[u8]) -> &[u8] {
    let mut end = 0;
    loop {
        // A key and a length, as varints.
        let varint = |at: usize| {
            let len = bytes.get(at..)?.iter().position(|byte| byte & 0x80 == 0)? + 1;
            let value = bytes[at..at + len].iter().rev();
            Some((at + len, value.fold(0, |n, byte| n << 7 | usize::from(byte & 0x7f))))
        };
        let next = varint(end).and_then(|(at, _)| varint(at)).map(|(at, len)| at + len);
        match next {
            Some(next) if next <= bytes.len() => end = next,
            _ => return &bytes[..end],
        }
    }
}

#[test]
fn a_recorder_that_is_killed_leaves_a_timeline_that_opens() {
    needs_root!();
    for options in [&[][..], &["--uncompressed"]] {
        let dir = tempdir().unwrap();
        let script = "echo $$ > pid; while [ ! -e end ]; do sleep 0.01; done; echo > ended";
        let args = [&["record", "-o", "out.pftrace"], options, &["sh", "-c", script]].concat();
        let recording = Running::start(triscope(&args).current_dir(dir.path()));
        let partial = dir.path().join("out.pftrace.partial");
        let has_switches = || {
            let bytes = std::fs::read(&partial).unwrap_or_default();
            let timeline = Timeline::read(whole_packets(&bytes));
            switched_to(&timeline).iter().any(|(name, _)| *name == "sleep")
        };
        // It is written while the command runs.
        testkit::wait::until("switches", || {
            recording.still_runs();
            has_switches()
        });
        recording.signal("KILL");
        // The command is not killed: it runs on, unrecorded.
        std::fs::write(dir.path().join("end"), "").unwrap();
        crate::support::wait_for(&dir.path().join("ended"));
        assert_eq!(recording.end().code, None);
        assert!(has_switches());
        assert_eq!(names(dir.path()), ["end", "ended", "out.pftrace.partial", "pid"]);
        // The next recording replaces what is left.
        let ran = run_in(dir.path(), &["record", "-o", "out.pftrace", "true"]);
        ran.is_good();
        assert!(ran.stderr.contains("replacing out.pftrace.partial"), "{}", ran.stderr);
        assert!(!partial.exists() && dir.path().join("out.pftrace").exists());
    }
}

#[test]
fn two_recordings_do_not_share_an_output() {
    needs_root!();
    let dir = tempdir().unwrap();
    let mut first = triscope(&["record", "-o", "out", "sh", "-c", "echo ready; read end"]);
    first.current_dir(dir.path()).stdin(Stdio::piped());
    let mut first = Running::start(&mut first);
    first.wait_for("ready");
    run_in(dir.path(), &["record", "-o", "out", "true"])
        .is_refused(1, &["out.partial is in use by another process"]);
    drop(first.0.as_mut().unwrap().stdin.take());
    drop(first.end());
    assert_eq!(names(dir.path()), ["out"]);
}

#[test]
fn a_full_disk_keeps_what_was_recorded() {
    needs_root!();
    let command = child("ping-pong 100000");
    for options in [&[][..], &["--uncompressed"]] {
        let dir = tempdir().unwrap();
        // Files of 128 KiB (dash) or 256 KiB (bash) at most: several bundles of switches.
        let mut shell = Command::new("sh");
        shell.args(["-c", "ulimit -f 256; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_triscope")]);
        shell.args(["record", "-o", "out"]).args(options).args(&command).current_dir(dir.path());
        let ran: Ran = shell.output().unwrap().into();
        assert_eq!(ran.code, Some(1), "{}", ran.stderr);
        for words in ["out: cannot be written: File too large", "out.partial has what was"] {
            assert!(ran.stderr.contains(words), "{words:?} is not in {}", ran.stderr);
        }
        assert_eq!(names(dir.path()), ["out.partial"]);
        let bytes = std::fs::read(dir.path().join("out.partial")).unwrap();
        let timeline = Timeline::read(whole_packets(&bytes));
        assert!(!switched_to(&timeline).is_empty());
    }
}

/// The reader of the output ends before the command does.
#[test]
fn a_recording_that_fails_leaves_sources_that_can_be_analysed() {
    needs_root!();
    let dir = tempdir().unwrap();
    let script = "\"$@\" | head -c 1000000 > part";
    let mut shell = Command::new("sh");
    shell.args(["-c", script, "sh", env!("CARGO_BIN_EXE_triscope")]).current_dir(dir.path());
    shell.args(["record", "--uncompressed", "-o", "-", "--keep", "raw"]);
    let ran: Ran = shell.args(child("ping-pong 100000")).output().unwrap().into();
    assert_eq!(
        std::fs::metadata(dir.path().join("part")).unwrap().len(),
        1_000_000,
        "{}",
        ran.stderr
    );
    let report = run_in(dir.path(), &["report", "--json", "raw"]);
    report.is_good();
    let report: serde_json::Value = serde_json::from_str(&report.stdout).unwrap();
    assert!(!report["notes"].to_string().contains("did not complete"), "{}", report["notes"]);
    let threads = report["threads"].as_array().unwrap();
    let pong = threads.iter().find(|thread| thread["name"] == "pong").expect("a thread");
    assert!(pong["times"]["on_cpu"].as_i64().unwrap() > 0, "{pong}");
}

#[test]
fn a_slow_output_is_reported() {
    needs_root!();
    let dir = tempdir().unwrap();
    let fifo = dir.path().join("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let role = child("ping-pong 20000");
    let mut args = vec!["record", "--uncompressed", "-o", fifo.to_str().unwrap()];
    args.extend(role.iter().map(|arg| &arg[..]));
    let recording = Running::start(&mut triscope(&args));
    let mut reader = std::fs::File::open(&fifo).unwrap();
    // It is blocked when what the pipe holds does not change any more.
    let waits = || {
        let call = std::fs::read_to_string(format!("/proc/{}/wchan", recording.id()));
        recording.still_runs();
        call.unwrap().contains("pipe_write")
    };
    testkit::wait::until("it waits for the reader", waits);
    // The time is tested: longer than a disk may take at times. A longer sleep changes nothing.
    std::thread::sleep(std::time::Duration::from_secs(1));
    let mut timeline = Vec::new();
    std::io::Read::read_to_end(&mut reader, &mut timeline).unwrap();
    let ran = recording.end();
    ran.is_good();
    assert!(ran.stderr.contains("the output is slow"), "{}", ran.stderr);
    assert!(switched_to(&Timeline::read(&timeline)).iter().any(|(name, _)| *name == "pong"));
}

/// Records a shell that computes and waits for a `sleep`. Returns the report of the shell's thread,
/// if it contains their waits.
fn keep_and_report(dir: &tempfile::TempDir) -> Option<serde_json::Value> {
    let script = "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; sleep 0.1; :";
    let ran =
        run_in(dir.path(), &["record", "-o", "out.pftrace", "--keep", "raw", "sh", "-c", script]);
    ran.is_good();
    assert_eq!(
        names(&dir.path().join("raw")),
        ["cpu.stat.txt", "kernel.perf.data", "processes.jsonl", "recording.json"]
    );

    let report = run_in(dir.path(), &["report", "--json", "raw"]);
    report.is_good();
    let report: serde_json::Value = serde_json::from_str(&report.stdout).unwrap();
    let threads = report["threads"].as_array().unwrap();
    let named = |name: &str| {
        let mut found = threads.iter().filter(|thread| thread["name"] == name);
        found.next().unwrap_or_else(|| panic!("{name}: {report}"))
    };
    let time = |thread: &serde_json::Value, what: &str| thread["times"][what].as_i64().unwrap();
    // Only the shell computed.
    let (sh, sleep) = (named("sh"), named("sleep"));
    // If a switch is missing, it is not known since when the shell ran.
    assert!(time(sh, "on_cpu") + time(sh, "unknown") > time(sleep, "on_cpu"), "{sh} {sleep}");
    let life = report["end"].as_i64().unwrap() - report["start"].as_i64().unwrap();
    for thread in threads {
        let times = thread["times"].as_object().unwrap();
        let sum: i64 = times.values().map(|nanos| nanos.as_i64().unwrap()).sum();
        assert!(sum <= life, "{thread}");
    }
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    assert_eq!(report["machine"]["kernel"], release.trim());
    let processes = report["processes"].as_array().unwrap();
    let process = |name: &str| processes.iter().find(|p| p["name"] == name).unwrap();
    let (parent, child) = (process("sh"), process("sleep"));
    assert_eq!(child["parent"], parent["pid"]);
    let time_of = |process: &serde_json::Value, what: &str| process[what].as_i64().unwrap();
    assert!(time_of(parent, "start") < time_of(child, "start"), "{parent} {child}");
    assert!(time_of(child, "start") < time_of(child, "end"), "{child}");
    assert_eq!(parent["command_line"], format!("sh -c '{script}'"));
    // On a busy machine it can end before it is read.
    let is_known = child["command_line"] == "sleep 0.1";
    assert!(is_known || child["command_line"].is_null(), "{child}");
    if is_known {
        assert!(child["executable"].as_str().unwrap().ends_with("/sleep"), "{child}");
    }
    // The sleep began to wait when it had a CPU, perhaps after its time had begun.
    let slept = time(sleep, "sleeping") + time(sleep, "unknown") >= 99_000_000;
    (slept && is_known && time(sh, "sleeping") > 0).then(|| sh.clone())
}

/// Threads that begin while the processes that run are listed are in the records that are kept, too.
#[test]
fn each_thread_of_a_running_process_is_known_in_what_is_kept() {
    needs_root!();
    let words = child("breed");
    let bred = Running::start(Command::new(&words[0]).args(&words[1..]));
    testkit::wait::until("many threads", || perf_monitor::threads(bred.id()).len() > 50);
    // A busy machine can lose records.
    testkit::wait::until("a recording without losses", || {
        let (known, seen, lost) = threads_of(bred.id());
        let unknown: Vec<_> = seen.difference(&known).collect();
        assert!(seen.len() > 50 && (lost > 0 || unknown.is_empty()), "{unknown:?}, {lost} lost");
        lost == 0
    });
}

/// Programs that are started while the processes that run are listed are read, too.
#[test]
fn each_program_that_starts_is_known_in_what_is_kept() {
    needs_root!();
    let mut shell = Command::new("sh");
    let mut shell = Running::start(shell.args(["-c", "echo ready; while :; do /bin/true; done"]));
    shell.wait_for("ready");
    // On a busy machine the recorder can be there first, when nothing is left of a program.
    let mut last = BTreeSet::new();
    let is_complete = (0..20).any(|_| {
        last = unread_programs(shell.id());
        last.is_empty()
    });
    assert!(is_complete, "{last:?}");
}

/// Records a shell that runs `true` again and again. Returns those that have a record of their `execve(2)` and nothing in
/// the file of the processes.
#[track_caller]
fn unread_programs(shell: u32) -> BTreeSet<u32> {
    let dir = tempdir().unwrap();
    let of = shell.to_string();
    let options = ["record", "--sched", "--pid", &of, "--seconds", "0.1", "--keep", "raw"];
    let ran = run_in(dir.path(), &[&options[..], &["-o", "out"]].concat());
    ran.is_good();
    let processes = std::fs::read_to_string(dir.path().join("raw/processes.jsonl")).unwrap();
    let lines = processes.lines().map(|line| serde_json::from_str(line).unwrap());
    let executed = lines.filter(|process: &serde_json::Value| !process["at"].is_null());
    let read: BTreeSet<u64> = executed.map(|process| process["pid"].as_u64().unwrap()).collect();
    let file = std::fs::File::open(dir.path().join("raw/kernel.perf.data")).unwrap();
    let mut reader = perf_data::Reader::new(file).unwrap();
    let mut begun = BTreeSet::new();
    while let Some(entry) = reader.next_record().unwrap() {
        if let Some(Ok(perf_monitor::Record::Comm(comm))) = entry.decode() {
            begun.extend(Some(comm.pid).filter(|_| comm.by_exec && comm.comm == b"true"));
        }
    }
    assert!(!begun.is_empty(), "{}", ran.stderr);
    begun.into_iter().filter(|pid| !read.contains(&u64::from(*pid))).collect()
}

/// Records a running process. Returns its threads that are known, those that are switched away from, and the number of
/// lost records.
#[track_caller]
fn threads_of(pid: u32) -> (BTreeSet<u32>, BTreeSet<u32>, u64) {
    let dir = tempdir().unwrap();
    let of = pid.to_string();
    let options = ["record", "--sched", "--pid", &of, "--seconds", "0.2", "--realtime"];
    run_in(dir.path(), &[&options[..], &["--keep", "raw", "-o", "out"]].concat()).is_good();
    let file = std::fs::File::open(dir.path().join("raw/kernel.perf.data")).unwrap();
    let mut reader = perf_data::Reader::new(file).unwrap();
    let (mut known, mut seen, mut lost) = (BTreeSet::new(), BTreeSet::new(), 0);
    while let Some(entry) = reader.next_record().unwrap() {
        match entry.decode() {
            Some(Ok(perf_monitor::Record::Fork(fork))) => drop(known.insert(fork.tid)),
            Some(Ok(perf_monitor::Record::Comm(comm))) => drop(known.insert(comm.tid)),
            Some(Ok(perf_monitor::Record::Lost(loss))) => lost += loss.lost,
            _ => {}
        }
        if entry.event().is_some_and(|event| event.name == "sched:sched_switch") {
            let ids = entry.layout().and_then(|layout| layout.pid_tid(entry.raw));
            // The last switch of a thread can be without its id.
            let is_of = |(of, tid): &(u32, u32)| *of == pid && *tid != u32::MAX;
            seen.extend(ids.filter(is_of).map(|(_, tid)| tid));
        }
    }
    (known, seen, lost)
}

/// Samples are on the file system of the output: that of temporary files can be a part of the memory.
#[test]
fn samples_and_pages_need_no_temporary_directory() {
    needs_root!();
    let dir = tempdir().unwrap();
    for output in ["out", "out.html"] {
        let mut command = triscope(&["record", "-F", "999", "-o", output, "true"]);
        let ran = command.env("TMPDIR", "/nonexistent").current_dir(dir.path()).output().unwrap();
        Ran::from(ran).is_good();
    }
    assert_eq!(names(dir.path()), ["out", "out.html"]);
}

/// `--keep` writes what `triscope report` and `triscope explain` read.
#[test]
fn kept_records_are_reported() {
    needs_root!();
    // Some kernels do not report all switches. If the switch is missing that began a wait, the
    // report cannot have the wait: record again.
    let (dir, sh) = (0..10)
        .find_map(|_| {
            let dir = tempdir().unwrap();
            keep_and_report(&dir).map(|sh| (dir, sh))
        })
        .expect("ten recordings without the waits of the shell and the sleep");

    // The shell waits for the sleep, which a timer ends.
    let tid = sh["tid"].as_i64().unwrap().to_string();
    let explained = run_in(dir.path(), &["explain", "--thread", &tid, "raw"]);
    explained.is_good();
    assert!(explained.stdout.contains(" sum of "), "{}", explained.stdout);

    // What is there is not overwritten.
    let again = run_in(dir.path(), &["record", "-o", "2.pftrace", "--keep", "raw", "true"]);
    assert_eq!(again.code, Some(1), "{}", again.stderr);
    assert!(again.stderr.contains("raw: the directory is not empty"), "{}", again.stderr);
}

/// The recorder draws the lifetimes of processes with their command lines, and so does `convert`.
#[test]
fn processes_are_drawn_with_their_command_lines() {
    needs_root!();
    // On a busy machine a process can end before its command line is read: record again.
    let is_drawn = || {
        let dir = tempdir().unwrap();
        let script = "sleep 0.1; :";
        let command = ["record", "-o", "out.pftrace", "--keep", "raw", "sh", "-c", script];
        let ran = run_in(dir.path(), &command);
        ran.is_good();
        run_in(dir.path(), &["convert", "raw", "-o", "kept.pftrace"]).is_good();
        let lost = ran.stderr.contains("without a command line");
        ["out.pftrace", "kept.pftrace"].into_iter().all(|file| {
            let timeline = read(&dir.path().join(file));
            let tree = timeline.lines.iter().find(|line| line.ends_with(": [\"sleep\", \"0.1\"]"));
            let slices = timeline.count("/Process: begin sleep 0.1 parent=");
            assert!(lost || (tree.is_some() && slices == 1), "{file}: {}", timeline.text());
            let exits = timeline.count(": instant exit");
            assert!(exits >= 2, "{file}: {exits}");
            !lost
        })
    };
    assert!((0..10).any(|_| is_drawn()), "ten recordings without the command line of the sleep");
}

/// `record -o FILE.html` writes the page, whatever the command returns, and leaves nothing else.
#[test]
fn a_recording_is_a_page() {
    needs_root!();
    let dir = tempdir().unwrap();
    let ran = run_in(dir.path(), &["record", "-o", "sh.html", "sh", "-c", "sleep 0.01; exit 7"]);
    assert_eq!(ran.code, Some(7), "{}", ran.stderr);
    assert_eq!(names(dir.path()), ["sh.html"]);
    let recorded = ran.stderr.lines().find(|line| line.starts_with("recorded: ")).unwrap();
    assert!(
        recorded.contains("context switches") && recorded.contains("2 processes"),
        "{recorded}"
    );
    assert!(reported(&ran, "intervals") > 0, "{}", ran.stderr);
    let page = std::fs::read_to_string(dir.path().join("sh.html")).unwrap();
    assert!(page.contains("<title>sh</title>") && page.ends_with("</html>\n"));

    // With the raw sources, from which the same page can be made.
    let command = ["record", "-o", "kept.html", "--keep", "raw", "/bin/true"];
    run_in(dir.path(), &command).is_good();
    assert_eq!(names(dir.path()), ["kept.html", "raw", "sh.html"]);
    run_in(dir.path(), &["convert", "raw", "-o", "raw.html"]).is_good();
    let refused = ["record", "-o", "missing/out.html", "touch", "ran"];
    run_in(dir.path(), &refused).is_refused(1, &["missing/out.html"]);
    assert!(!dir.path().join("ran").exists(), "refused before the command starts");
}

/// The files below a directory, with their content.
fn files(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    let mut dirs = vec![dir.to_owned()];
    while let Some(next) = dirs.pop() {
        for entry in std::fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                dirs.push(path);
            } else {
                let content = std::fs::read(&path).unwrap();
                files.insert(path.strip_prefix(dir).unwrap().to_owned(), content);
            }
        }
    }
    files
}

/// `record --dataset` adds what `export` makes of the raw sources, whatever the command returns.
#[test]
fn a_recording_is_added_to_a_dataset() {
    needs_root!();
    let dir = tempdir().unwrap();
    let script = "sleep 0.01; exit 7";
    let command = ["record", "--keep", "raw", "--dataset", "live", "sh", "-c", script];
    let ran = run_in(dir.path(), &command);
    assert_eq!(ran.code, Some(7), "{}", ran.stderr);
    assert!(ran.stderr.contains("next: triscope report raw"), "{}", ran.stderr);
    run_in(dir.path(), &["export", "raw", "-o", "exported"]).is_good();
    let live = files(&dir.path().join("live"));
    assert!(live == files(&dir.path().join("exported")), "{:?}", live.keys());
    assert_eq!(live.keys().filter(|path| path.starts_with("sched")).count(), 1);

    // Without the raw sources: nothing is left of them.
    let ran = run_in(dir.path(), &["record", "--dataset", "live", "true"]);
    ran.is_good();
    assert!(!ran.stderr.contains("next: triscope report"), "{}", ran.stderr);
    let grown = files(&dir.path().join("live"));
    assert_eq!(grown.len(), 2 * live.len());
    assert!(live.iter().all(|(path, content)| grown.get(path) == Some(content)));
    assert!(!names(&dir.path().join("live")).iter().any(|name| name.starts_with('.')));

    // Those that a killed recorder left are named.
    let left = dir.path().join("live/.recording-x/recording");
    std::fs::create_dir_all(&left).unwrap();
    std::fs::write(left.join("scheduler.perf.data"), "").unwrap();
    let ran = run_in(dir.path(), &["record", "--dataset", "live", "true"]);
    ran.is_good();
    for command in ["export live/.recording-x/recording -o live", "rm -r live/.recording-x"] {
        assert!(ran.stderr.contains(command), "{}", ran.stderr);
    }

    // An export that fails: a file is in the place of a table.
    std::fs::create_dir(dir.path().join("blocked")).unwrap();
    let table = dir.path().join("blocked/wakeups");
    std::fs::write(&table, "").unwrap();
    for (command, code) in [("true", 1), ("exit 7", 7)] {
        let ran = run_in(dir.path(), &["record", "--dataset", "blocked", "sh", "-c", command]);
        assert_eq!(ran.code, Some(code), "{}", ran.stderr);
        assert!(ran.stderr.contains("cannot be written"), "{}", ran.stderr);
        let (_, kept) = ran.stderr.split_once("the recording is kept in ").unwrap();
        let (kept, again) = kept.split_once(": triscope ").unwrap();
        std::fs::remove_file(&table).unwrap();
        let again: Vec<&str> = again.split_whitespace().collect();
        assert_eq!(again, ["export", kept, "-o", "blocked"]);
        run_in(dir.path(), &again).is_good();
        std::fs::remove_dir_all(dir.path().join("blocked/wakeups")).unwrap();
        std::fs::write(&table, "").unwrap();
    }

    std::fs::write(dir.path().join("file"), "").unwrap();
    let refused = ["record", "--dataset", "file", "touch", "ran"];
    run_in(dir.path(), &refused).is_refused(1, &["file: "]);
    assert!(!dir.path().join("ran").exists(), "refused before the command starts");
    let missing = ["record", "--dataset", "new/dataset", "./no-such-command"];
    run_in(dir.path(), &missing).is_refused(127, &["./no-such-command: command not found"]);
    assert!(!dir.path().join("new").exists(), "its directory is empty");
}

/// `flock DIR triscope record --dataset DIR …`: the lock is held until the recording ends.
#[test]
fn a_dataset_that_another_program_has_locked_is_recorded() {
    use rustix::fs::{FlockOperation, flock};
    needs_root!();
    let dir = tempdir().unwrap();
    let dataset = dir.path().join("dataset");
    std::fs::create_dir_all(dataset.join(".recording-x/recording")).unwrap();
    let locked = std::fs::File::open(&dataset).unwrap();
    flock(&locked, FlockOperation::NonBlockingLockExclusive).unwrap();
    let ran = run_in(dir.path(), &["record", "--dataset", "dataset", "true"]);
    ran.is_good();
    assert!(names(&dataset).iter().any(|name| name == "sched"), "{:?}", names(&dataset));
    // It can be in use.
    assert!(!ran.stderr.contains(".recording-x"), "{}", ran.stderr);
}

/// The scheduler on a timeline.
#[derive(Debug)]
struct Scheduling {
    /// Its lines in time order, with times since the first one and without names.
    lines: Vec<(u64, String)>,
    /// The numbers of marks.
    exits: usize,
    losses: usize,
    processes: usize,
}

impl Scheduling {
    fn of(timeline: &Timeline) -> Self {
        let parse = |line: &String| {
            let (at, rest) = line.split_once(" cpu ")?;
            let (cpu, rest) = rest.split_once(": ")?;
            let (kind, who, target) = match rest.strip_prefix("wakes ") {
                Some(rest) => {
                    rest.rsplit_once(" for ").map(|(who, target)| ("wakes", who, target))?
                }
                None => rest.rsplit_once(" -> ").map(|(from, who)| {
                    let (_, from) = from.rsplit_once(' ').unwrap_or(("", from));
                    (from, who, "")
                })?,
            };
            // A file is read some records ahead: a name in it can be the next one already.
            let (_, tid) = who.rsplit_once(' ')?;
            Some((at.parse::<u64>().ok()?, format!("{cpu}: {kind} {tid} {target}")))
        };
        let mut lines: Vec<_> = timeline.lines.iter().filter_map(parse).collect();
        lines.sort();
        let first = lines.first().map_or(0, |(at, _)| *at);
        lines.iter_mut().for_each(|(at, _)| *at -= first);
        // The CPUs of kept records are idle after the last one, as other traces can continue. Live, nothing is
        // drawn at their end. The last record can be one that has no line, after a switch to idle.
        let last = lines.last().map_or(0, |(at, _)| *at);
        let is_idle = |line: &str| line.ends_with(" 0 ");
        lines.retain(|(at, line)| *at < last || !is_idle(line));
        while lines.pop_if(|(_, line)| is_idle(line)).is_some() {}
        let [exits, losses, processes] =
            [": instant exit", "Losses: instant lost:", "/Process: begin "]
                .map(|mark| timeline.count(mark));
        Self { lines, exits, losses, processes }
    }
}

/// The picture of a live recording is that of its records.
#[test]
fn live_and_kept_records_are_drawn_alike() {
    needs_root!();
    let dir = tempdir().unwrap();
    let script = "for i in 1 2 3 4 5; do sleep 0.01; done; /bin/true & wait; :";
    for round in 0..10 {
        let (live, raw) = (format!("live{round}"), format!("raw{round}"));
        let record = ["record", "--all-tasks", "--keep", &raw, "-o", &live];
        let ran = run_in(dir.path(), &[&record[..], &["sh", "-c", script]].concat());
        ran.is_good();
        // A file is sorted; a record that comes late is drawn late.
        if ran.stderr.contains("out of order") {
            continue;
        }
        run_in(dir.path(), &["convert", &raw, "-o", "kept"]).is_good();
        let live = Scheduling::of(&read(&dir.path().join(live)));
        let kept = Scheduling::of(&read(&dir.path().join("kept")));
        assert!(live.lines.len() > 100, "{live:?}");
        let difference = live.lines.iter().zip(&kept.lines).find(|(a, b)| a != b);
        assert_eq!((difference, live.lines.len()), (None, kept.lines.len()));
        assert_eq!((live.losses, live.processes), (kept.losses, kept.processes));
        assert!(kept.exits > 5, "{kept:?}");
        // The process of a thread that begins while the file is begun is known live only, and one that ends then can be
        // known in the file only.
        if live.exits < kept.exits {
            continue;
        }
        return;
    }
    panic!("ten recordings with late records, or with more exits in the file");
}

/// What `record --keep` keeps becomes a timeline with a Go trace of another time, and with itself.
#[test]
fn kept_records_are_converted() {
    needs_root!();
    let dir = tempdir().unwrap();
    let script = "for i in 1 2 3; do sleep 0.01; done; :";
    run_in(dir.path(), &["record", "-o", "out.pftrace", "--keep", "raw", "sh", "-c", script])
        .is_good();
    let ran = run_in(dir.path(), &["convert", "raw", "-o", "kept.pftrace"]);
    ran.is_good();
    assert!(reported(&ran, "context switches") > 5, "{}", ran.stderr);
    let timeline = read(&dir.path().join("kept.pftrace"));
    assert!(timeline.lines[0].starts_with("Linux "), "{}", timeline.lines[0]);
    let shown = switched_to(&timeline);
    for name in ["sh", "sleep"] {
        assert!(shown.iter().any(|(shown, _)| *shown == name), "{name}: {shown:?}");
    }

    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../gotrace/tests/data");
    let (new, old) = (fixtures.join("shop.trace"), fixtures.join("go1.21-mixed.trace.gz"));
    let (new, old) = (new.to_str().unwrap(), old.to_str().unwrap());
    let kernel = "raw/kernel.perf.data";
    let ran = run_in(dir.path(), &["convert", kernel, new, "-o", "both.pftrace"]);
    ran.is_good();
    assert_eq!(reported(&ran, "goroutines"), 150);
    let timeline = read(&dir.path().join("both.pftrace"));
    assert_eq!(switched_to(&timeline), shown, "the same switches");
    // The scheduler was not recorded at the time of the trace: Ps show their goroutines.
    assert!(timeline.count(": begin Running") > 1000);

    // The clock of Go 1.21 cannot be related, except by an offset.
    let args = ["convert", kernel, old, "-o", "old.pftrace"];
    run_in(dir.path(), &args).is_refused(1, &["its clock cannot be related", "--offset"]);
    assert!(!dir.path().join("old.pftrace").exists());
    let offset = format!("{old}=12.5");
    run_in(dir.path(), &[&args[..], &["--offset", &offset]].concat()).is_good();
}
