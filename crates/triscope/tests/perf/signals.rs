//! Signals that end a command: the watched process ends, and the results so far are printed.

use crate::needs_root;
use crate::support::{
    Running, can, in_background, is_root, names, users_may_count, wait_for, with_default_signals,
};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

/// Says that it is ready, and of some signals only that it got them.
fn stubborn(signals: &str) -> String {
    format!("trap 'echo got' {signals}; echo ready; while :; do sleep 0.05; done")
}

fn stat(script: &str) -> Running {
    let args = ["perf", "stat", "-e", "task-clock", "sh", "-c", script];
    let mut stat = Running::start(&mut with_default_signals(&args));
    stat.wait_for("ready");
    stat
}

#[test]
fn signals_are_passed_on_and_counts_are_printed() {
    if !can("perf events", users_may_count() || is_root()) {
        return;
    }
    for (signal, number) in [("TERM", 15), ("HUP", 1)] {
        let stat = stat("echo ready; exec sleep 100");
        stat.signal(signal);
        let ran = stat.end();
        assert_eq!(ran.code, Some(128 + number), "{}", ran.stderr);
        assert!(ran.stderr.contains("task-clock") && ran.stderr.contains("seconds"));
    }
    // The command may do what it wants with a signal.
    let stat = stat("trap 'exit 7' INT TERM; echo ready; while :; do sleep 0.05; done");
    stat.signal("TERM");
    assert_eq!(stat.end().code, Some(7));
}

#[test]
fn a_run_that_is_interrupted_is_the_last_one() {
    if !can("perf events", users_may_count() || is_root()) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mark = dir.path().join("mark");
    // The second run waits, and ends with 0 at a signal.
    let script = format!(
        "if mkdir {} 2>/dev/null; then exit; fi; \
         trap exit INT TERM; echo ready; while :; do sleep 0.05; done",
        mark.display()
    );
    let args =
        ["perf", "stat", "-r", "5", "--json", "-e", "task-clock", "sh", "-c", script.as_str()];
    let mut stat = Running::start(&mut with_default_signals(&args));
    stat.wait_for("ready");
    stat.signal("TERM");
    let ran = stat.end();
    assert_eq!(ran.stdout, "\n", "no other run is ready");
    assert!(ran.stderr.contains("the means are of 1 of 5 runs"), "{}", ran.stderr);
    assert!(ran.stderr.contains("\"runs\": 1"), "{}", ran.stderr);
}

#[test]
fn asking_again_is_asking_harder() {
    if !can("perf events", users_may_count() || is_root()) {
        return;
    }
    let mut second = stat(&stubborn("HUP"));
    second.signal("HUP");
    second.wait_for("got");
    second.signal("HUP");
    assert_eq!(second.end().code, Some(128 + 15), "the second one is SIGTERM");
    let mut third = stat(&stubborn("HUP TERM"));
    for _ in 0..2 {
        third.signal("HUP");
        third.wait_for("got");
    }
    third.signal("HUP");
    let ran = third.end();
    assert_eq!(ran.code, Some(128 + 9), "the third one is SIGKILL: {}", ran.stderr);
    assert!(ran.stderr.contains("task-clock"), "{}", ran.stderr);
}

#[test]
fn signals_ignored_from_the_start_stay_ignored() {
    if !can("perf events", users_may_count() || is_root()) {
        return;
    }
    let program = env!("CARGO_BIN_EXE_triscope");
    // What nohup does.
    let script = format!(
        "trap '' HUP; exec {program} perf stat -e task-clock sh -c 'echo ready; read end; :'"
    );
    let mut stat = Command::new("sh");
    let mut stat = Running::start(stat.args(["-c", &script]).stdin(Stdio::piped()));
    stat.wait_for("ready");
    stat.signal("HUP");
    drop(stat.0.as_mut().unwrap().stdin.take());
    let ran = stat.end();
    ran.is_good();
    assert!(ran.stderr.contains("task-clock"), "{}", ran.stderr);
}

#[test]
fn a_command_has_its_exit_status_where_sigchld_was_ignored() {
    if !can("perf events", users_may_count() || is_root()) {
        return;
    }
    let mut stat = Command::new("env");
    stat.args(["--ignore-signal=CHLD", env!("CARGO_BIN_EXE_triscope")]);
    stat.args(["perf", "stat", "-e", "task-clock", "sh", "-c", "exit 7"]);
    let ran = Running::start(&mut stat).end();
    assert_eq!(ran.code, Some(7), "{}", ran.stderr);
    assert!(ran.stderr.contains("task-clock"), "{}", ran.stderr);
}

#[test]
fn sigint_ends_what_a_script_has_started_in_the_background() {
    if !can("perf events", users_may_count() || is_root()) {
        return;
    }
    let pid = std::process::id().to_string();
    let args = ["perf", "stat", "-e", "task-clock", "-p", &pid];
    let stat = Running::start(&mut in_background(&args));
    stat.wait_until_it_watches();
    stat.signal("INT");
    let ran = stat.end();
    ran.is_good();
    assert!(ran.stderr.contains("task-clock"), "{}", ran.stderr);
    // A command gets it, too.
    let args = ["perf", "stat", "-e", "task-clock", "sh", "-c", "echo ready; exec sleep 100"];
    let mut stat = Running::start(&mut in_background(&args));
    stat.wait_for("ready");
    stat.signal("INT");
    assert_eq!(stat.end().code, Some(128 + 2));
}

#[test]
fn a_recording_is_complete_when_it_is_ended() {
    needs_root!();
    for (signal, number) in [("TERM", 15), ("INT", 2), ("HUP", 1)] {
        let dir = tempfile::tempdir().unwrap();
        let script = ["sh", "-c", "echo > started; echo ready; exec sleep 100"];
        let args = [&["record", "-o", "out.pftrace", "--uncompressed"][..], &script[..]].concat();
        // A group of its own is not in the foreground of a terminal: SIGINT is passed on, too.
        let mut command = in_background(&args);
        command.current_dir(dir.path()).process_group(0);
        let mut record = Running::start(&mut command);
        record.wait_for("ready");
        wait_for(&dir.path().join("started"));
        record.signal(signal);
        let ran = record.end();
        assert_eq!(ran.code, Some(128 + number), "{}", ran.stderr);
        assert!(ran.stderr.contains("out.pftrace: "), "{}", ran.stderr);
        assert_eq!(names(dir.path()), ["out.pftrace", "started"], "nothing else is left");
        let timeline = crate::record::read(&dir.path().join("out.pftrace"));
        assert!(timeline.count("Command: end ended with=signal") == 1, "{}", timeline.text());
    }
}

#[test]
fn ctrl_c_reaches_the_command_once() {
    needs_root!();
    if !can("script of util-linux", Command::new("script").arg("--version").output().is_ok()) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let program = env!("CARGO_BIN_EXE_triscope");
    // The command says how often it was interrupted, when it gets SIGTERM.
    // Which signal triscope sees first is open: SIGHUP has no effect.
    let command = "trap : HUP; trap 'n=$((n+1)); echo > got' INT; trap 'echo interrupted $n times; exit' TERM; \
        echo $PPID > pid; mv pid started; while :; do sleep 0.05; done";
    std::fs::write(dir.path().join("command"), command).unwrap();
    let record = format!("env --default-signal=HUP,INT {program} record -o out.pftrace sh command");
    let mut terminal = Command::new("script");
    terminal.args(["--quiet", "--return", "--command", &record, "/dev/null"]);
    let mut terminal = Running::start(terminal.current_dir(dir.path()).stdin(Stdio::piped()));
    wait_for(&dir.path().join("started"));
    use std::io::Write;
    let mut keyboard = terminal.child().stdin.take().unwrap();
    keyboard.write_all(b"\x03").unwrap();
    keyboard.flush().unwrap();
    wait_for(&dir.path().join("got"));
    // The second signal becomes SIGTERM.
    let pid = std::fs::read_to_string(dir.path().join("started")).unwrap();
    crate::support::kill("HUP", pid.trim().parse().unwrap());
    let shown = terminal.end().stdout;
    drop(keyboard);
    assert!(shown.contains("interrupted 1 times"), "{shown}");
    assert!(shown.contains("out.pftrace: "), "{shown}");
    assert_eq!(names(dir.path()), ["command", "got", "out.pftrace", "started"]);
}

/// Runs a script by `record` in the foreground of a terminal. Calls `interrupt` when it has made the file `started`,
/// which has the id of the recorder: the script ends at SIGINT.
fn in_terminal(command: &str, interrupt: impl FnOnce(&mut Running, u32)) {
    if !can("script of util-linux", Command::new("script").arg("--version").output().is_ok()) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let script = "trap 'echo > got; exit' INT; echo $PPID > pid; mv pid started; \
        while :; do sleep 0.05; done";
    std::fs::write(dir.path().join("command"), script).unwrap();
    let program = env!("CARGO_BIN_EXE_triscope");
    // No privilege is needed for it.
    let record = format!("{program} record --go-trace trace -o out {command} sh command");
    let mut terminal = Command::new("script");
    let record = format!("env --default-signal=INT {record}");
    terminal.args(["--quiet", "--return", "--command", &record, "/dev/null"]);
    let mut terminal = Running::start(terminal.current_dir(dir.path()).stdin(Stdio::piped()));
    wait_for(&dir.path().join("started"));
    let pid = std::fs::read_to_string(dir.path().join("started")).unwrap();
    interrupt(&mut terminal, pid.trim().parse().unwrap());
    wait_for(&dir.path().join("got"));
    terminal.end();
}

#[test]
fn sigint_of_another_process_is_passed_on_in_a_terminal() {
    in_terminal("", |_, recorder| crate::support::kill("INT", recorder));
}

#[test]
fn ctrl_c_is_passed_on_to_a_command_in_another_session() {
    // The keyboard is open until the end of the script.
    let mut keyboard = None;
    in_terminal("setsid", |terminal, _| {
        use std::io::Write;
        let mut keys = terminal.child().stdin.take().unwrap();
        keys.write_all(b"\x03").unwrap();
        keys.flush().unwrap();
        keyboard = Some(keys);
    });
    drop(keyboard);
}

#[test]
fn a_signal_before_a_recording_begins_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    assert!(Command::new("mkfifo").arg(dir.path().join("out")).status().unwrap().success());
    for (signal, number) in [("TERM", 15), ("INT", 2)] {
        let args = ["record", "--go-trace", "x", "--keep", "kept", "-o", "out", "touch", "ran"];
        let mut record = with_default_signals(&args);
        // It waits for a reader of its output.
        let record = Running::start(record.current_dir(dir.path()));
        wait_for(&dir.path().join("kept"));
        record.signal(signal);
        let ran = record.end();
        assert_eq!(ran.code, Some(128 + number), "{}", ran.stderr);
        assert_eq!(names(dir.path()), ["out"]);
    }
}

#[test]
fn a_conversion_that_is_interrupted_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = in_background(&["convert", "-", "-o", "out.pftrace"]);
    let mut convert = Running::spawn(command.current_dir(dir.path()).stdin(Stdio::piped()));
    // It waits for more of the trace, with its output open.
    use std::io::Write;
    let trace = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let trace = std::fs::read(trace.join("../gotrace/tests/data/shop.trace")).unwrap();
    let mut pipe = convert.child().stdin.take().unwrap();
    pipe.write_all(&trace[..trace.len() / 2]).unwrap();
    // Signals are caught before the output is created.
    wait_for(&dir.path().join("out.pftrace.partial"));
    convert.signal("INT");
    assert_eq!(convert.end().code, Some(128 + 2));
    assert_eq!(names(dir.path()), [""; 0]);
}
