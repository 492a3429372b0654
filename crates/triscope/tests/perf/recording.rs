//! `perf record`, `perf script` and `perf report`, with `perf` as the judge where it is installed.

use crate::needs_root;
use crate::support::{
    Cgroup, Ran, Running, as_nobody, begin_recording, can, dead_pid, empty_cgroup, in_background,
    is_able, is_root, nobody, run, run_in, triscope, users_may_count,
};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// Some processes, system calls and page faults.
const WORK: [&str; 3] = ["sh", "-c", "for i in 1 2 3 4 5 6 7 8; do true | cat; done"];

#[track_caller]
fn perf_in(dir: &Path, args: &[&str]) -> String {
    let output = testkit::perf::output(Command::new("perf").current_dir(dir).args(args));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {stderr}");
    assert!(!stderr.contains("expected type"), "the formats are not whole: {stderr}");
    String::from_utf8(output.stdout).unwrap()
}

/// The words of each line that has any: columns are padded.
fn lines(text: &str) -> Vec<String> {
    let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    text.lines().map(words).filter(|line| !line.is_empty()).collect()
}

#[track_caller]
fn assert_same(theirs: &str, ours: &str) {
    let (theirs, ours) = (lines(theirs), lines(ours));
    for (n, (theirs, ours)) in theirs.iter().zip(&ours).enumerate() {
        // perf invents symbols of procedure linkage tables, some without a name, keeps mappings of
        // the old program after execve(2), and takes the symbols of its own vDSO.
        let mut words = theirs.split(' ');
        let is_left_out = words
            .any(|word| word.contains("@plt+") || word.contains("execve+") || word == "([vdso])");
        if is_left_out && ours.contains("[unknown]") {
            continue;
        }
        assert_eq!(theirs, ours, "line {n}");
    }
    assert_eq!(theirs.len(), ours.len());
}

/// The number of samples in the summary of a recording.
#[track_caller]
fn samples(ran: &Ran) -> usize {
    let line = ran.stderr.lines().find(|line| line.contains(" lost")).unwrap_or_default();
    let count = line.split(": ").nth(2).and_then(|rest| rest.split(' ').next()?.parse().ok());
    count.unwrap_or_else(|| panic!("{}", ran.stderr))
}

/// Nothing else is reported than frames of programs of this machine without a function: those may have no
/// symbols.
fn assert_only_nameless(errors: &str) {
    let other = errors.lines().find(|line| !line.contains(" without a function"));
    assert_eq!(other, None, "{errors}");
}

#[test]
fn recordings_are_read_by_perf_line_by_line() {
    needs_root!();
    let dir = tempfile::tempdir().unwrap();
    for (options, name) in [
        (&["-e", "page-faults", "-c", "1"][..], "faults"),
        (&["-e", "sched:sched_process_*,raw_syscalls:sys_enter", "-e", "page-faults"], "many"),
        (&["-e", "sched:sched_switch,irq:softirq_entry,cpu-clock", "-g"], "chains"),
    ] {
        let record = [&["perf", "record", "-o", name], options, &["--"], &WORK].concat();
        let ran = run_in(dir.path(), &record);
        ran.is_good();
        assert!(ran.stderr.contains(&format!("triscope: {name}: ")), "{}", ran.stderr);
        assert!(ran.stderr.contains(" 0 lost"), "{}", ran.stderr);
        let ours = run_in(dir.path(), &["perf", "script", "--no-demangle", "-i", name]);
        ours.is_good();
        assert_only_nameless(&ours.stderr);
        let is_first_line = |line: &&str| !line.starts_with('\t') && !line.is_empty();
        assert_eq!(ours.stdout.lines().filter(is_first_line).count(), samples(&ran));
        assert!(samples(&ran) > 0, "{}", ran.stderr);
        if testkit::perf::is_installed() {
            assert_same(
                &perf_in(dir.path(), &["script", "--no-demangle", "-i", name]),
                &ours.stdout,
            );
        }
    }
    assert_eq!(crate::support::names(dir.path()), ["chains", "faults", "many"]);
}

#[test]
fn a_sample_is_taken_every_n_events() {
    needs_root!();
    let dir = tempfile::tempdir().unwrap();
    let work = ["dd", "if=/dev/zero", "of=/dev/null", "bs=1", "count=1", "status=none"];
    let record = |count: &str| {
        let record = ["perf", "record", "-e", "page-faults:u", "-o", "faults", "-c", count, "--"];
        let ran = run_in(dir.path(), &[&record[..], &work].concat());
        ran.is_good();
        samples(&ran)
    };
    let (all, some) = (record("1"), record("10"));
    assert!(all > 50 && some.abs_diff(all / 10) <= all / 50 + 2, "{all} and {some}");
    let shown = run_in(dir.path(), &["perf", "script", "-i", "faults"]).stdout;
    assert!(shown.lines().all(|line| line.contains(" 10 ")), "{shown}");
}

#[test]
fn recordings_of_perf_are_printed_as_perf_prints_them() {
    needs_root!();
    if !testkit::perf::is_installed() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    for (options, name) in [
        (&["-e", "page-faults", "-c", "1"][..], "faults"),
        (&["-e", "sched:sched_switch", "-e", "cpu-clock", "-g"], "chains"),
        (&["-e", "page-faults", "-c", "1", "-z"], "compressed"),
    ] {
        let record =
            [&["record", "-q", "-N", "-m", "512", "-o", name], options, &["--"], &WORK].concat();
        perf_in(dir.path(), &record);
        let ours = run_in(dir.path(), &["perf", "script", "--no-demangle", "-i", name]);
        ours.is_good();
        assert_same(&perf_in(dir.path(), &["script", "--no-demangle", "-i", name]), &ours.stdout);
    }
}

#[test]
fn streams_go_through_pipes() {
    needs_root!();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("stream");
    let record = [
        &["perf", "record", "-e", "page-faults", "-c", "1", "-o", "-"][..],
        &["--", "sh", "-c", "echo said; true"],
    ]
    .concat();
    let output = triscope(&record).stdout(std::fs::File::create(&file).unwrap()).output().unwrap();
    let ran = Ran::from(output);
    ran.is_good();
    assert!(ran.stderr.contains("said\n"), "the output of the command is not in the recording");
    let read = |program: &mut Command| -> String {
        let stdin = std::fs::File::open(&file).unwrap();
        let output = program.stdin(stdin).stderr(Stdio::inherit()).output().unwrap();
        assert!(output.status.success());
        String::from_utf8(output.stdout).unwrap()
    };
    let ours = read(&mut triscope(&["perf", "script", "-i", "-"]));
    assert_eq!(ours.lines().count(), samples(&ran));
    if testkit::perf::is_installed() {
        assert_same(&read(Command::new("perf").args(["script", "-i", "-"])), &ours);
    }
    // Also from a file.
    let again = run(&["perf", "script", "-i", file.to_str().unwrap()]);
    assert_eq!(again.stdout, ours);
}

#[test]
fn options_select_tasks_and_cpus() {
    needs_root!();
    let dir = tempfile::tempdir().unwrap();
    let script = |name: &str| {
        let ran = run_in(dir.path(), &["perf", "script", "--no-demangle", "-i", name]);
        ran.is_good();
        ran.stdout
    };
    // A CPU, while a command runs.
    let ran = run_in(
        dir.path(),
        &["perf", "record", "-e", "sched:sched_switch", "-C", "0", "-o", "cpu", "sleep", "0.1"],
    );
    ran.is_good();
    let shown = script("cpu");
    assert!(samples(&ran) > 0);
    assert!(shown.lines().all(|line| line.contains(" [000] ")), "{shown}");

    // A running process, until it ends.
    let mut child = Command::new("sh");
    child.args(["-c", "read line; for i in 1 2 3; do /bin/true; done"]);
    let mut child = Running::spawn(child.stdin(Stdio::piped()));
    let pid = child.id().to_string();
    let args = ["perf", "record", "-e", "sched:sched_process_fork", "-p", &pid, "-o", "pid"];
    let args = [&args[..], &["--progress"]].concat();
    let log = dir.path().join("log");
    let recorder = begin_recording(in_background(&args).current_dir(dir.path()), &log);
    std::io::Write::write_all(child.child().stdin.as_mut().unwrap(), b"\n").unwrap();
    child.end().is_good();
    let ran = recorder.end();
    ran.is_good();
    let log = std::fs::read_to_string(&log).unwrap();
    let ran = Ran { stderr: log.lines().last().unwrap().to_owned(), ..ran };
    assert_eq!(samples(&ran), 3, "{log}");
    assert!(script("pid").lines().all(|line| line.contains("comm=sh")));

    // A filter, and the exit status of the command.
    let filter = ["--filter", "id == 60 || id == 231"];
    let record = ["perf", "record", "-e", "raw_syscalls:sys_enter", "-o", "filter"];
    let ran = run_in(dir.path(), &[&record[..], &filter, &["sh", "-c", "exit 3"]].concat());
    assert_eq!(ran.code, Some(3), "{}", ran.stderr);
    if cfg!(target_arch = "x86_64") {
        assert_eq!(samples(&ran), 1, "{}", ran.stderr);
        assert!(script("filter").contains("NR 231"));
    }
}

/// The shell that is stopped in its place ignores SIGTERM, too.
#[test]
fn a_command_is_not_run_without_its_recording_where_sigterm_is_ignored() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' TERM; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_triscope")]);
    command.args(["perf", "record", "-o", "out", "-e", "{cpu-clock,cpu-clock}:S"]);
    command.args(["-e", "{cpu-clock,page-faults}", "touch", "ran"]);
    // Its output ends with the last process that has it.
    let ran = Ran::from(command.current_dir(dir.path()).output().unwrap());
    ran.is_refused(1, &["only groups with :S are recorded"]);
    assert_eq!(crate::support::names(dir.path()), [""; 0]);
}

#[test]
fn a_command_that_is_not_found_leaves_the_recording_before() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("out"), "old").unwrap();
    let record = ["perf", "record", "-o", "out", "-e", "{cpu-clock,page-faults}:S"];
    for command in ["/nonexistent", "triscope-no-such-command"] {
        let ran = run_in(dir.path(), &[&record[..], &[command]].concat());
        ran.is_refused(127, &[command, "command not found"]);
    }
    assert_eq!(crate::support::names(dir.path()), ["out"]);
    assert_eq!(std::fs::read_to_string(dir.path().join("out")).unwrap(), "old");
}

#[test]
fn a_command_that_may_not_be_executed_leaves_the_recording_before() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("out"), "old").unwrap();
    // Without the permission to execute it.
    std::fs::write(dir.path().join("script"), "#!/bin/sh\n").unwrap();
    let record = ["perf", "record", "-o", "out", "-e", "{cpu-clock,page-faults}:S"];
    for command in ["./script", "/"] {
        let ran = run_in(dir.path(), &[&record[..], &[command]].concat());
        ran.is_refused(126, &[command, "cannot be run: Permission denied"]);
    }
    assert_eq!(crate::support::names(dir.path()), ["out", "script"]);
    assert_eq!(std::fs::read_to_string(dir.path().join("out")).unwrap(), "old");
}

/// Only the kernel knows, when the recording has begun.
#[test]
fn a_command_without_an_interpreter_leaves_the_recording_before() {
    if !can("perf events of own processes", is_able() || users_may_count()) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("out"), "old").unwrap();
    testkit::program::script(dir.path().join("script"), "#!/nonexistent/interpreter\n");
    let record = ["perf", "record", "-o", "out", "-e", "{cpu-clock,page-faults}:S", "./script"];
    let ran = run_in(dir.path(), &record);
    let ended = "triscope: the command ended with exit status: ";
    assert!(matches!(ran.code, Some(126 | 127)) && ran.stderr.contains(ended), "{}", ran.stderr);
    assert_eq!(crate::support::names(dir.path()), ["out", "script"]);
    assert_eq!(std::fs::read_to_string(dir.path().join("out")).unwrap(), "old");
}

/// By the default of `execvp(3)`. Where this user may not record, that is the error.
#[test]
fn a_command_is_found_without_a_search_path() {
    let dir = tempfile::tempdir().unwrap();
    let record = ["perf", "record", "-o", "out", "-e", "{cpu-clock,page-faults}:S"];
    let mut record = triscope(&[&record[..], &["sh", "-c", ":"]].concat());
    let ran = Ran::from(record.env_remove("PATH").current_dir(dir.path()).output().unwrap());
    assert_ne!(ran.code, Some(127), "{}", ran.stderr);
}

#[test]
fn a_cgroup_is_recorded_alone() {
    needs_root!();
    let root = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"].map(Path::new);
    let root = root.into_iter().find(|root| root.join("cgroup.controllers").exists());
    let Some(root) = root.filter(|_| can("cgroup2", root.is_some())) else { return };
    let name = format!("triscope-test-{}", std::process::id());
    let group = root.join(&name);
    std::fs::create_dir(&group).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let work = format!("echo $$ > {}/cgroup.procs; exec true", group.display());
    let record = ["perf", "record", "-e", "sched:sched_process_exec", "-G", &name, "-o", "cgroup"];
    let ran = run_in(dir.path(), &[&record[..], &["--", "sh", "-c", &work]].concat());
    // A task that has ended may leave it a moment later.
    testkit::wait::until("the cgroup is removed", || std::fs::remove_dir(&group).is_ok());
    if ran.stderr.contains("not a cgroup with perf events") {
        can("a cgroup2 hierarchy with perf events", false);
        return;
    }
    ran.is_good();
    // The exec of the shell itself was before it was in the cgroup.
    assert_eq!(samples(&ran), 1, "{}", ran.stderr);
    let shown = run_in(dir.path(), &["perf", "script", "-i", "cgroup"]).stdout;
    assert!(shown.contains("/true"), "{shown}");
}

#[test]
fn cgroups_are_of_single_events() {
    needs_root!();
    let Some(group) = empty_cgroup().filter(Cgroup::is_unified) else {
        can("a writable cgroup2 hierarchy", false);
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let work = format!("true; echo $$ > {}; exec true", group.procs().display());
    let event = "sched:sched_process_exec";
    let name = format!("{},", group.name);
    let record = ["perf", "record", "-e", event, "-e", "sched:sched_process_exit", "-G", &name];
    let ran = run_in(dir.path(), &[&record[..], &["-o", "c", "--", "sh", "-c", &work]].concat());
    if ran.stderr.contains("not a cgroup with perf events") {
        can("a cgroup2 hierarchy with perf events", false);
        return;
    }
    ran.is_good();
    let shown = run_in(dir.path(), &["perf", "script", "-i", "c"]).stdout;
    // The first event is that of the cgroup, the second that of all tasks.
    let count = |word: &str| shown.lines().filter(|line| line.contains(word)).count();
    assert_eq!(count("sched_process_exec"), 1, "{shown}");
    assert!(count("sched_process_exit:") >= 2, "{shown}");
}

#[test]
fn groups_are_sampled_by_their_leader() {
    needs_root!();
    let dir = tempfile::tempdir().unwrap();
    let group = "{page-faults,minor-faults}:S";
    let record = ["perf", "record", "-e", group, "-c", "3", "-e", "context-switches", "-o", "ours"];
    let ran = run_in(dir.path(), &[&record[..], &["--"], &WORK].concat());
    ran.is_good();
    let script = |name: &str| {
        let ran = run_in(dir.path(), &["perf", "script", "--no-demangle", "-i", name]);
        ran.is_good();
        assert_only_nameless(&ran.stderr);
        ran.stdout
    };
    // Each sample is shown for each of its counters.
    let shown = script("ours");
    let periods = |event: &str| -> Vec<u64> {
        let of_event = shown.lines().filter_map(|line| line.split_once(&format!(" {event}:")));
        of_event
            .map(|(front, _)| front.rsplit(' ').find(|w| !w.is_empty()).unwrap().parse().unwrap())
            .collect()
    };
    let faults = periods("page-faults");
    assert!(faults.len() > 10 && faults.iter().all(|period| *period == 3), "{shown}");
    // Major faults are the rest.
    assert!(!periods("minor-faults").is_empty(), "{shown}");
    assert!(periods("minor-faults").iter().sum::<u64>() <= 3 * faults.len() as u64, "{shown}");
    if testkit::perf::is_installed() {
        assert_same(&perf_in(dir.path(), &["script", "--no-demangle", "-i", "ours"]), &shown);
        let header = perf_in(dir.path(), &["report", "--header-only", "-i", "ours"]);
        assert!(header.contains("# group: {page-faults,minor-faults}"), "{header}");
        let record =
            ["record", "-q", "-N", "-m", "64", "-e", group, "-c", "3", "-o", "theirs", "--"];
        perf_in(dir.path(), &[&record[..], &WORK].concat());
        assert_same(
            &perf_in(dir.path(), &["script", "--no-demangle", "-i", "theirs"]),
            &script("theirs"),
        );
    }
    // A command that cannot be opened on leaves no stopped process behind.
    let bad = ["perf", "record", "-e", "{cs,cs}:S", "-m", "3", "--", "sleep", "1000"];
    run_in(dir.path(), &bad).is_refused(1, &["power of two"]);
    run_in(dir.path(), &["perf", "record", "-e", "{cs,cs}:S", "sh", "-c", "exit 4"]);
    let ran = run_in(dir.path(), &["perf", "record", "-e", "{cs,cs}:S", "sh", "-c", "exit 4"]);
    assert_eq!(ran.code, Some(4), "{}", ran.stderr);
}

#[test]
fn the_reader_can_be_realtime() {
    needs_root!();
    let record = ["record", "-o", "rt", "-e", "cs"];
    for command in [&record[..], &["trace", "-e", "sched:sched_process_exec"]] {
        is_realtime(command);
    }
}

fn is_realtime(verb: &[&str]) {
    let dir = tempfile::tempdir().unwrap();
    let mut command = triscope(&[&["perf"], verb, &["-r", "3", "--"]].concat());
    command.args(["sh", "-c", "read end"]).stdin(Stdio::piped()).current_dir(dir.path());
    let mut recorder = Running::start(&mut command);
    // The priority and the policy.
    let is_fifo = |pid: u32| {
        let stat = std::fs::read(format!("/proc/{pid}/stat")).unwrap();
        [18, 41].map(|number| trace_common::stat_field(&stat, number).unwrap()) == ["-4", "1"]
    };
    testkit::wait::until("it is realtime", || {
        recorder.still_runs();
        is_fifo(recorder.id())
    });
    let children = format!("/proc/{0}/task/{0}/children", recorder.id());
    let children = std::fs::read_to_string(children).unwrap();
    let command: u32 = children.trim().parse().unwrap();
    assert!(!is_fifo(command), "the command is not realtime");
    drop(recorder.0.as_mut().unwrap().stdin.take());
    assert_eq!(recorder.end().code, Some(1), "read fails at the end of its input");
}

#[test]
fn a_report_adds_up() {
    needs_root!();
    let dir = tempfile::tempdir().unwrap();
    let record = ["perf", "record", "-e", "page-faults", "-c", "1", "-o", "perf.data", "--"];
    let ran = run_in(dir.path(), &[&record[..], &WORK].concat());
    ran.is_good();
    let report = |args: &[&str]| {
        let ran = run_in(dir.path(), &[&["perf", "report"], args].concat());
        ran.is_good();
        ran.stdout
    };
    let whole = report(&[]);
    assert!(whole.contains(&format!("# Samples: {} of event 'page-faults'", samples(&ran))));
    let share = |line: &str| line.trim().split_once('%')?.0.parse::<f64>().ok();
    let sum: f64 = whole.lines().filter_map(share).sum();
    assert!((sum - 100.0).abs() < 1.0, "{sum}\n{whole}");
    assert!(whole.contains("[k] ") && whole.contains("[kernel.kallsyms]"), "{whole}");
    let rows = |text: &str| -> Vec<String> {
        let mut rows = lines(text);
        rows.retain(|line| !line.starts_with('#'));
        rows.sort();
        rows
    };
    let json: serde_json::Value = serde_json::from_str(&report(&["--json"])).unwrap();
    let event = &json["events"][0];
    assert_eq!((&event["event"], &json["lost"]), (&"page-faults".into(), &0.into()), "{json}");
    let table = event["rows"].as_array().unwrap();
    let sum = |name: &str| table.iter().map(|row| row[name].as_u64().unwrap()).sum::<u64>();
    let count = samples(&ran) as u64;
    assert_eq!((&event["samples"], sum("samples"), sum("periods")), (&count.into(), count, count));
    assert_eq!(table.len(), rows(&whole).iter().filter(|line| !line.is_empty()).count());
    assert!(table.iter().any(|row| row["dso"] == "[kernel.kallsyms]"), "{json}");
    if testkit::perf::is_installed() {
        let args = ["report", "--stdio", "--sort", "comm,dso"];
        assert_eq!(rows(&report(&["-s", "comm,dso"])), rows(&perf_in(dir.path(), &args)));
    }
}

#[test]
fn a_recording_that_cannot_be_renamed_stays() {
    if !can("perf events of own processes", is_able() || users_may_count()) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let args = ["perf", "record", "-e", "page-faults", "-c", "1", "-o", "out", "mkdir", "out"];
    let ran = run_in(dir.path(), &args);
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    for words in ["out: cannot be written: ", "out.partial has what was written"] {
        assert!(ran.stderr.contains(words), "{}", ran.stderr);
    }
    run_in(dir.path(), &["perf", "script", "-i", "out.partial"]).is_good();
}

#[test]
fn users_record_their_own_user_space() {
    if !can("users that may record their processes", users_may_count()) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    std::os::unix::fs::chown(dir.path(), Some(nobody()), Some(nobody())).ok();
    let file = dir.path().join("own");
    let args =
        ["perf", "record", "-e", "page-faults", "-c", "1", "-o", file.to_str().unwrap(), "true"];
    let ran: Ran = as_nobody(&args).output().unwrap().into();
    ran.is_good();
    assert!(samples(&ran) > 10, "{}", ran.stderr);
    let mode = std::fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    if crate::support::paranoid() == 2 && is_root() {
        assert!(ran.stderr.contains("of user space only"), "{}", ran.stderr);
    }
    let shown = run(&["perf", "script", "-i", file.to_str().unwrap()]);
    shown.is_good();
    assert_eq!(shown.stdout.lines().count(), samples(&ran));
}

#[test]
fn mistakes_name_the_remedy() {
    if !can("perf events", users_may_count() || is_root()) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("x");
    let record =
        |args: &[&str]| run_in(dir.path(), &[&["perf", "record", "-o", "new"], args].concat());
    record(&[]).is_refused(2, &["nothing to record", "-p PID"]);
    record(&["-e", "{cs,faults}", "true"])
        .is_refused(1, &["{context-switches,page-faults}", "groups with :S"]);
    record(&["-e", "cs", "-G", "a,b", "true"]).is_refused(2, &["2 names for 1 events"]);
    assert_eq!(record(&["-e", "cs", "-r", "0", "true"]).code, Some(2));
    record(&["-e", "page-fualts", "true"]).is_refused(1, &["did you mean page-faults"]);
    record(&["-e", "cs", "-m", "3", "true"]).is_refused(1, &["power of two"]);
    record(&["-e", "page-faults", "no-such-command"]).is_refused(127, &["not found"]);
    let pid = dead_pid().to_string();
    record(&["-e", "page-faults", "-p", &pid]).is_refused(1, &["no process", &pid]);
    assert_eq!(crate::support::names(dir.path()), [""; 0], "nothing is left");

    let path = file.to_str().unwrap();
    for command in ["script", "report"] {
        let read = || run(&["perf", command, "-i", path]);
        let _ = std::fs::remove_file(&file);
        read().is_refused(1, &[path, "no such file"]);
        std::fs::write(&file, "text, not a recording").unwrap();
        read().is_refused(1, &[path, "not a perf.data recording"]);
        std::fs::write(&file, "PERFILE2").unwrap();
        read().is_refused(1, &["truncated", "byte"]);
    }
}

#[test]
fn a_live_table_names_what_runs() {
    needs_root!();
    let script = "while :; do :; done";
    let busy = Running::spawn(Command::new("sh").args(["-c", script]));
    let pid = busy.id().to_string();
    testkit::wait::until("its name", || {
        std::fs::read(format!("/proc/{pid}/comm")).unwrap() == b"sh\n"
    });
    // A table at least; what follows depends on how busy the machine is.
    let ran = run(&["perf", "top", "-e", "cpu-clock", "-p", &pid, "-d", "0.5", "--seconds", "1"]);
    drop(busy);
    ran.is_good();
    let first = ran.stdout.lines().next().unwrap_or_default();
    let samples: u64 = first.split(' ').next().unwrap().parse().unwrap();
    assert!(samples > 0 && first.ends_with(" samples of cpu-clock, 0 lost"), "{}", ran.stdout);
    let rows = ran.stdout.lines().filter(|line| line.contains('%'));
    let mut names = rows.filter_map(|line| line.split_whitespace().nth(1));
    assert!(names.all(|name| name == "sh"), "{}", ran.stdout);
    let pid = dead_pid().to_string();
    run(&["perf", "top", "-p", &pid]).is_refused(1, &["no process", &pid]);
}

/// A process by its name, and the samples of a command.
#[test]
fn live_tables_are_json_on_request() {
    use std::os::unix::process::CommandExt;
    needs_root!();
    let name = format!("busy-{}", std::process::id());
    let spin = || ["-c", "while :; do :; done"];
    let start = || Running::spawn(Command::new("sh").arg0(&name).args(spin()));
    let busy = [start(), start()];
    for process in &busy {
        // A new program has its name only after execve(2) has closed the files of the old one.
        let file = format!("/proc/{}/cmdline", process.id());
        testkit::wait::until("the process has its name", || {
            std::fs::read(&file).unwrap().starts_with(name.as_bytes())
        });
    }
    let top = ["perf", "top", "--json", "-e", "cpu-clock", "-d", "0.5", "--seconds", "1"];
    let named = [&top[..], &["--name", &name]].concat();
    let two = run(&named);
    let [first, second] = busy;
    drop(second);
    let one = run(&named);
    drop(first);
    for (ran, what) in [(two, "more than one process called"), (run(&named), "no process called")] {
        assert_eq!((ran.code, &*ran.stdout), (Some(2), ""), "{}", ran.stderr);
        assert!(ran.stderr.contains(&format!("there is {what} {name}")), "{}", ran.stderr);
    }
    let command = run(&[&top[..], &["--", "sh"], &spin()].concat());
    assert_eq!(command.code, Some(143), "SIGTERM at the time limit: {}", command.stderr);
    one.is_good();
    for ran in [one, command] {
        let line = ran.stdout.lines().next().unwrap();
        let table: serde_json::Value = serde_json::from_str(line).unwrap();
        let rows = table["rows"].as_array().unwrap();
        let samples: u64 = rows.iter().map(|row| row["samples"].as_u64().unwrap()).sum();
        assert_eq!(Some(samples), table["samples"].as_u64(), "{table:#}");
        assert!(rows.iter().all(|row| row["comm"] == "sh"), "{table:#}");
        assert_eq!((&table["event"], &table["lost"]), (&"cpu-clock".into(), &0.into()));
    }
}

#[test]
fn a_recording_says_how_far_it_is() {
    use std::io::{BufRead, BufReader};
    needs_root!();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("perf.data");
    let args = ["perf", "record", "--progress", "-e", "cpu-clock", "-o", file.to_str().unwrap()];
    let mut command = triscope(&[&args[..], &["sh", "-c", "while :; do :; done"]].concat());
    let mut recording = Running::spawn(command.stderr(Stdio::piped()));
    let stderr = recording.child().stderr.take().unwrap();
    let mut lines = BufReader::new(stderr).lines().map(Result::unwrap);
    let status = lines.find(|line| line.ends_with(" lost")).unwrap();
    recording.signal("TERM");
    let summary = format!("triscope: {}: ", file.display());
    assert!(lines.any(|line| line.starts_with(&summary)));
    lines.for_each(drop);
    assert_eq!(recording.end().code, Some(128 + 15));
    let words: Vec<&str> = status.split(' ').collect();
    let ["triscope:", seconds, "s:", samples, "samples,", _, _, "0", "lost"] = words[..] else {
        panic!("{status}")
    };
    assert!(
        seconds.parse::<u64>().unwrap() >= 1 && samples.parse::<u64>().unwrap() > 0,
        "{status}"
    );
}

#[test]
fn losses_are_counted_and_recorded() {
    needs_root!();
    let dir = tempfile::tempdir().unwrap();
    // Two system calls for each byte; a buffer of 4 KiB is too small for them.
    let record = ["perf", "record", "-e", "raw_syscalls:*", "-m", "1", "-o", "flood", "--"];
    let work = ["dd", "if=/dev/zero", "of=/dev/null", "bs=1", "count=50000", "status=none"];
    let ran = run_in(dir.path(), &[&record[..], &work].concat());
    ran.is_good();
    let lost = ran.stderr.split(" lost").next().and_then(|text| text.rsplit(' ').next());
    let lost: usize = lost.unwrap().parse().unwrap_or_else(|_| panic!("{}", ran.stderr));
    assert!(lost > 0 && ran.stderr.contains("use more -m"), "{}", ran.stderr);
    let features = run(&["perf", "list", "--features"]).stdout;
    let formats = features.lines().find(|line| line.starts_with("read formats")).unwrap();
    // Since Linux 6.0 the kernel counts them: every system call is a sample or lost.
    if formats.contains("lost") {
        let all = samples(&ran) + lost;
        assert!((200_000..205_000).contains(&all), "{}", ran.stderr);
    }
    let shown = run_in(dir.path(), &["perf", "script", "-i", "flood"]);
    shown.is_good();
    assert_eq!(shown.stdout.lines().count(), samples(&ran));
    let note = format!("{lost} samples or records were lost when it was recorded");
    assert!(shown.stderr.contains(&note), "{}{}", ran.stderr, shown.stderr);
    if !formats.contains("lost") || !testkit::perf::is_installed() {
        return;
    }
    // As perf counts them, and in the recordings of perf.
    let counted_by_perf = |name: &str| -> usize {
        let stats = perf_in(dir.path(), &["report", "--stats", "-i", name]);
        // The first section counts records.
        let after = stats.split_once("raw_syscalls:").unwrap().1;
        after
            .lines()
            .filter_map(|line| line.trim().strip_prefix("LOST_SAMPLES events:"))
            .map(|count| count.trim().parse::<usize>().unwrap())
            .sum()
    };
    assert_eq!(counted_by_perf("flood"), lost);
    let record = ["record", "-q", "-N", "-e", "raw_syscalls:*", "-m", "1", "-o", "theirs", "--"];
    perf_in(dir.path(), &[&record[..], &work].concat());
    let counted = counted_by_perf("theirs");
    assert!(counted > 0);
    // The records of the buffer can count one more than perf has read from its events.
    let records = perf_in(dir.path(), &["script", "--show-lost-events", "-i", "theirs"]);
    let reported: usize = records
        .lines()
        .filter_map(|line| line.split_once("PERF_RECORD_LOST lost "))
        .map(|(_, count)| count.trim().parse::<usize>().unwrap())
        .sum();
    let lost = counted.max(reported);
    let shown = run_in(dir.path(), &["perf", "script", "-i", "theirs"]);
    let note = format!(": {lost} samples or records were lost");
    assert!(shown.stderr.contains(&note), "{counted} {reported}: {}", shown.stderr);
}

#[test]
fn a_flood_does_not_lose_the_records_about_tasks() {
    needs_root!();
    let dir = tempfile::tempdir().unwrap();
    let record = ["perf", "record", "-e", "raw_syscalls:*", "-m", "1", "-o", "flood", "--"];
    let script = "dd if=/dev/zero of=/dev/null bs=1 count=50000 status=none &\n\
        for i in $(seq 40); do env true; done; wait";
    let ran = run_in(dir.path(), &[&record[..], &["sh", "-c", script]].concat());
    ran.is_good();
    assert!(!ran.stderr.contains(" 0 lost"), "{}", ran.stderr);
    let file = std::fs::File::open(dir.path().join("flood")).unwrap();
    let mut reader = perf_data::Reader::new(file).unwrap();
    let (mut names, mut forks, mut exits) = (Vec::new(), 0, 0);
    while let Some(entry) = reader.next_record().unwrap() {
        match entry.decode().unwrap().unwrap() {
            perf_monitor::Record::Comm(comm) if comm.by_exec => {
                names.push(String::from_utf8_lossy(comm.comm).into_owned());
            }
            perf_monitor::Record::Fork(_) => forks += 1,
            perf_monitor::Record::Exit(_) => exits += 1,
            _ => {}
        }
    }
    let count = |name: &str| names.iter().filter(|n| *n == name).count();
    assert_eq!(
        (count("env"), count("true"), count("seq"), count("dd")),
        (40, 40, 1, 1),
        "{names:?}"
    );
    // The shell, what it started, and its subshell for `seq`, if it has one.
    assert!(forks >= 42 && exits == forks + 1, "{forks} forks, {exits} exits");
}

/// No recording has the kernel write build ids: it would mark the records of all other recorders
/// falsely. Mappings have them nevertheless.
#[test]
fn other_recorders_are_not_disturbed() {
    needs_root!();
    let dir = tempfile::tempdir().unwrap();
    let program = std::fs::canonicalize("/bin/true").unwrap();
    let program = program.to_str().unwrap();
    let id = trace_symbols::build_id::of_file(program).unwrap();
    for args in [
        &["perf", "record", "-e", "page-faults", "-c", "1", "-o", "x.data", "--"][..],
        &["profile", "-e", "page-faults", "-c", "1", "-o", "y.data", "--"],
        &["record", "--freq", "99", "--keep", "raw", "-o", "z.pftrace", "--"],
    ] {
        run_in(dir.path(), &[args, &[program]].concat()).is_good();
    }
    for name in ["x.data", "y.data", "raw/kernel.perf.data"] {
        let file = std::fs::File::open(dir.path().join(name)).unwrap();
        let mut reader = perf_data::Reader::new(file).unwrap();
        let attrs: Vec<_> = reader.session().events().iter().map(|event| event.attr).collect();
        assert!(!attrs.is_empty() && attrs.iter().all(|attr| !attr.build_id()), "{name}");
        let mut is_found = false;
        while let Some(entry) = reader.next_record().unwrap() {
            if let Some(Ok(perf_monitor::Record::Mmap(mmap))) = entry.decode() {
                is_found |= mmap.filename == program.as_bytes()
                    && mmap.file == Some(perf_monitor::FileId::BuildId(id.as_bytes()));
            }
        }
        assert!(is_found, "{name}");
    }
}

/// `/proc/kallsyms` has those that are there at the end alone.
#[test]
fn functions_that_the_kernel_adds_are_recorded() {
    needs_root!();
    let dir = tempfile::tempdir().unwrap();
    run_in(dir.path(), &["perf", "record", "-a", "-o", "x.data", "--", "true"]).is_good();
    let file = std::fs::File::open(dir.path().join("x.data")).unwrap();
    let reader = perf_data::Reader::new(file).unwrap();
    let is_asked = reader.session().events().iter().any(|event| event.attr.ksymbol());
    assert_eq!(is_asked, perf_monitor::KernelFeatures::has_ksymbols());
}
