use crate::needs_root;
use crate::support::{
    Ran, Running, WITH_TRACEFS, WITHOUT_TRACEFS, as_nobody, as_nobody_with, can, dead_pid, is_root,
    names, run, run_in, triscope, users_may_count,
};
use std::process::Command;

/// The count in the line of an event.
#[track_caller]
fn count(ran: &Ran, event: &str) -> u64 {
    let line = |line: &str| {
        let (number, rest) = line.trim_start().split_once("  ")?;
        (rest.split_whitespace().next() == Some(event)).then(|| number.to_owned())
    };
    let found = ran.stderr.lines().find_map(line).unwrap_or_else(|| panic!("{}", ran.stderr));
    found.replace(' ', "").parse().unwrap()
}

#[test]
fn a_user_counts_own_commands() {
    let ran: Ran = as_nobody(&["perf", "stat", "sh", "-c", "echo hello"]).output().unwrap().into();
    if crate::support::paranoid() > 2 {
        return ran.is_refused(1, &["perf_event_paranoid", "CAP_PERFMON"]);
    }
    if !can("perf events", users_may_count()) {
        return;
    }
    ran.is_good();
    assert_eq!(ran.stdout, "hello\n");
    assert!(count(&ran, "page-faults") > 10);
    for word in ["task-clock", "CPUs utilized", "cpu-migrations", "/s", "seconds"] {
        assert!(ran.stderr.contains(word), "{word}: {}", ran.stderr);
    }
    if crate::support::paranoid() == 2 {
        assert!(ran.stderr.contains("page-faults (user space only)"), "{}", ran.stderr);
        assert!(!ran.stderr.contains("task-clock (user space only)"), "{}", ran.stderr);
    }
}

#[test]
fn a_missing_privilege_is_refused_with_the_remedy() {
    if crate::support::paranoid() < 1 {
        assert!(!can("kernel.perf_event_paranoid of 1 or more", false));
        return;
    }
    let ran: Ran = as_nobody(&["perf", "stat", "-a", "--seconds", "0.1"]).output().unwrap().into();
    ran.is_refused(
        1,
        &["CPU 0", "not permitted", "sysctl kernel.perf_event_paranoid", "CAP_PERFMON"],
    );
    let ran: Ran =
        as_nobody(&["perf", "stat", "-p", "1", "--seconds", "0.1"]).output().unwrap().into();
    ran.is_refused(1, &["thread 1", "CAP_PERFMON"]);
}

/// The command has the soft limit of this program's start.
#[test]
fn the_limit_of_open_files_is_raised_up_to_the_hard_one() {
    if !can("perf events", users_may_count() || is_root()) {
        return;
    }
    let script = "ulimit -Sn 24; exec \"$@\"";
    let events = vec!["page-faults"; 40].join(",");
    let args = ["perf", "stat", "-r", "2", "-x", ",", "-e", &events, "sh", "-c", "ulimit -Sn"];
    let mut shell = Command::new("sh");
    shell.args(["-c", script, "sh", env!("CARGO_BIN_EXE_triscope")]).args(args);
    let ran: Ran = shell.output().unwrap().into();
    ran.is_good();
    assert_eq!(ran.stdout, "24\n24\n");
    assert_eq!(ran.stderr.lines().count(), 40, "{}", ran.stderr);
}

/// One more for each event of each thread or CPU.
#[test]
fn too_many_open_files_are_an_error() {
    if !can("perf events", users_may_count() || is_root()) {
        return;
    }
    let mut refused = 0;
    for limit in 5..40 {
        let mut shell = Command::new("sh");
        let script = format!("ulimit -n {limit}; exec \"$@\"");
        shell.args(["-c", &script, "sh", env!("CARGO_BIN_EXE_triscope"), "perf", "stat", "true"]);
        let ran: Ran = shell.output().unwrap().into();
        if ran.code == Some(0) {
            // Each machine has this one.
            count(&ran, "page-faults");
        } else {
            refused += u32::from(ran.stderr.contains("too many open files"));
        }
    }
    assert!(refused > 1, "{refused}");
}

#[test]
fn unknown_events_have_near_matches() {
    for (name, near) in [
        ("page-fault", "page-faults"),
        ("context-switchs", "context-switches"),
        ("cpucycles", "cpu-cycles"),
    ] {
        run(&["perf", "stat", "-e", name, "true"]).is_refused(1, &[name, "did you mean", near]);
    }
    run(&["perf", "stat", "-e", "nosuchpmu/x/", "true"]).is_refused(1, &["nosuchpmu"]);
    run(&["perf", "stat", "-e", "mem:zzz", "true"]).is_refused(1, &["mem:zzz"]);
}

#[test]
fn arguments_that_make_no_sense_are_refused() {
    for args in [
        &["perf", "stat"][..],
        &["perf", "stat", "-p", "x"],
        &["perf", "stat", "-a", "-p", "1"],
        &["perf", "stat", "-p", "1", "true"],
        &["perf", "stat", "-p", "1", "-n", "sh"],
        &["perf", "stat", "-n", "no program has this name"],
        &["perf", "stat", "-C", "x"],
        &["perf", "stat", "-C", "0", "-p", "1"],
        &["perf", "stat", "-r", "0", "true"],
        &["perf", "stat", "-a", "-r", "2", "--seconds", "1"],
        &["perf", "stat", "-I", "0", "true"],
        &["perf", "stat", "-x", ",", "--json", "true"],
        &["perf", "stat", "--append", "true"],
        &["perf", "stat", "-a", "--seconds", "0"],
        &["perf", "stat", "-a", "--seconds", "-1"],
        &["perf", "stat", "-a", "--seconds", "1e99"],
        &["perf", "trace", "-a"],
        &["perf", "trace", "-e", "sched:sched_switch"],
    ] {
        let ran = run(args);
        assert_eq!((ran.code, &*ran.stdout), (Some(2), ""), "{args:?}: {}", ran.stderr);
        assert!(ran.stderr.contains("error: "), "{}", ran.stderr);
    }
}

#[test]
fn missing_pid_is_an_error() {
    let pid = dead_pid().to_string();
    run(&["perf", "stat", "-p", &pid]).is_refused(1, &["there is no process", &pid]);
    run(&["perf", "stat", "-p", "4294967295"]).is_refused(1, &["there is no process 4294967295"]);
}

#[test]
fn commands_that_cannot_be_started_have_the_status_of_a_shell() {
    let dir = tempfile::tempdir().unwrap();
    let (plain, script) = (dir.path().join("plain"), dir.path().join("script"));
    std::fs::write(&plain, "nothing").unwrap();
    testkit::program::script(&script, "#!/nonexistent/interpreter\n");
    if !can("perf events", users_may_count() || is_root()) {
        return;
    }
    let (plain, script) = (plain.to_str().unwrap(), script.to_str().unwrap());
    run(&["perf", "stat", "no-such-command"]).is_refused(127, &["no-such-command", "not found"]);
    run(&["perf", "stat", script]).is_refused(127, &[script, "interpreter"]);
    run(&["perf", "stat", plain]).is_refused(126, &[plain, "cannot be run"]);
}

#[test]
fn the_end_of_the_command_is_that_of_the_program() {
    if !can("perf events", users_may_count() || is_root()) {
        return;
    }
    for (script, code, words) in
        [("exit 3", 3, "exit status: 3"), ("kill -9 $$", 137, "SIGKILL"), ("true", 0, "seconds")]
    {
        let ran = run(&["perf", "stat", "-e", "task-clock", "sh", "-c", script]);
        assert_eq!(ran.code, Some(code), "{}", ran.stderr);
        assert!(ran.stderr.contains(words) && ran.stderr.contains("task-clock"), "{}", ran.stderr);
    }
    let ran = run(&["perf", "stat", "--seconds", "0.2", "sleep", "100"]);
    assert_eq!(ran.code, Some(128 + 15), "{}", ran.stderr);
    assert!(ran.stderr.contains("task-clock"), "{}", ran.stderr);
}

#[test]
fn a_process_is_counted_until_it_ends() {
    if !can("perf events", users_may_count() || is_root()) {
        return;
    }
    let script = "read go; for i in 1 2 3 4 5 6 7 8 9 10; do /bin/true; done";
    let mut child = Command::new("sh");
    let mut child = Running::spawn(child.args(["-c", script]).stdin(std::process::Stdio::piped()));
    let pid = child.id().to_string();
    let stat = Running::start(&mut triscope(&["perf", "stat", "-e", "page-faults", "-p", &pid]));
    stat.wait_until_it_watches();
    use std::io::Write;
    child.child().stdin.take().unwrap().write_all(b"go\n").unwrap();
    child.end();
    let ran = stat.end();
    ran.is_good();
    assert!(count(&ran, "page-faults") > 100, "with its children: {}", ran.stderr);
}

#[test]
fn tracepoints_count_what_the_software_event_counts() {
    needs_root!();
    let events = "context-switches,sched:sched_switch,sched:sched_process_exec";
    let script = "sleep 0.01; sleep 0.01; sleep 0.01";
    let ran = run(&["perf", "stat", "-e", events, "sh", "-c", script]);
    ran.is_good();
    assert_eq!(
        count(&ran, "context-switches"),
        count(&ran, "sched:sched_switch"),
        "{}",
        ran.stderr
    );
    assert!(count(&ran, "context-switches") >= 6, "each sleep, and waiting for each");
    // The shell may become the last one.
    assert_eq!(count(&ran, "sched:sched_process_exec"), 4, "{}", ran.stderr);
}

#[test]
fn the_whole_machine_is_counted() {
    needs_root!();
    let ran = run(&["perf", "stat", "-a", "-e", "cpu-clock", "--seconds", "0.2"]);
    ran.is_good();
    let cpus = perf_monitor::online_cpus().len() as f64;
    let busy = ran.stderr.split_whitespace().zip(ran.stderr.split_whitespace().skip(1));
    let busy = busy.filter(|(_, next)| *next == "CPUs").map(|(n, _)| n.parse::<f64>().unwrap());
    let busy: Vec<f64> = busy.collect();
    // The clock of a CPU runs whether it is idle or not.
    assert!(busy.len() == 1 && busy[0] > 0.5 && busy[0] < cpus * 4.0, "{}", ran.stderr);
}

#[test]
fn the_same_as_perf_counts() {
    needs_root!();
    if !can("perf", Command::new("perf").arg("--version").output().is_ok()) {
        return;
    }
    // Not a shell: what it does varies less.
    let command = ["dd", "if=/dev/zero", "of=/dev/null", "bs=1M", "count=200"];
    let events = ["page-faults", "raw_syscalls:sys_enter", "minor-faults"];
    let ours = |event: &str| {
        let ran = run(&[&["perf", "stat", "-e", event][..], &command[..]].concat());
        ran.is_good();
        count(&ran, event)
    };
    let perfs = |event: &str| -> u64 {
        // perf takes tracepoints from a mounted tracefs only.
        let script = format!(
            "mountpoint -q /sys/kernel/tracing || mount -t tracefs nodev /sys/kernel/tracing\n\
             exec perf stat -x, -e {event} {}",
            command.join(" ")
        );
        let mut perf = Command::new("unshare");
        let output = testkit::perf::output(perf.args(["--mount", "sh", "-ec", &script]));
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{text}");
        let line = text.lines().find(|line| line.contains(event));
        let number = line.and_then(|line| line.split(',').next()?.parse().ok());
        number.unwrap_or_else(|| panic!("no {event}: {text}"))
    };
    for event in events {
        let (ours, perfs) = (ours(event), perfs(event));
        let allowed = perfs / 50 + 3;
        assert!(ours.abs_diff(perfs) <= allowed, "{event}: {ours}, perf counts {perfs}");
    }
}

#[test]
fn without_a_tracefs_the_remedy_is_named() {
    needs_root!();
    for args in [
        &["perf", "stat", "-e", "sched:sched_switch", "true"][..],
        &["perf", "trace", "-e", "sched:sched_switch", "true"],
        &["record", "--all-tasks", "-o", "/dev/null", "true"],
    ] {
        let ran = as_nobody_with(WITHOUT_TRACEFS, "-all", args);
        ran.is_refused(1, &["mount -t tracefs nodev /sys/kernel/tracing"]);
    }
}

#[test]
fn counts_are_printed_as_json() {
    if !can("perf events", users_may_count() || is_root()) {
        return;
    }
    let ran = run(&["perf", "stat", "--json", "-e", "task-clock,page-faults", "true"]);
    ran.is_good();
    let value: serde_json::Value = serde_json::from_str(&ran.stderr).unwrap();
    assert_eq!(value["events"][0]["event"], "task-clock");
    assert_eq!(value["events"][0]["user_only"], false, "time has no mode");
    assert!(value["events"][1]["count"].as_u64().unwrap() > 0, "{value}");
    assert!(value["seconds"].as_f64().unwrap() > 0.0);
}

#[test]
fn an_unknown_event_names_the_command_that_lists_them() {
    run(&["perf", "stat", "-e", "nosuch", "true"]).is_refused(1, &["nosuch", "triscope perf list"]);
}

#[test]
fn fields_are_those_of_perf() {
    if !can("perf events", users_may_count() || is_root()) {
        return;
    }
    let ran = run(&["perf", "stat", "-x", ";", "-e", "task-clock,page-faults:u", "true"]);
    ran.is_good();
    let lines: Vec<Vec<&str>> = ran.stderr.lines().map(|line| line.split(';').collect()).collect();
    assert_eq!(lines.len(), 2, "{}", ran.stderr);
    for (line, (unit, event)) in lines.iter().zip([("msec", "task-clock"), ("", "page-faults:u")]) {
        assert_eq!((line.len(), line[1], line[2]), (7, unit, event), "{}", ran.stderr);
        assert!(line[0].parse::<f64>().unwrap() > 0.0, "{}", ran.stderr);
        assert!(line[3].parse::<u64>().unwrap() > 0, "{}", ran.stderr);
        assert_eq!(line[4], "100.00");
    }
    assert_eq!(lines[0][6], "CPUs utilized");
    assert!(lines[1][6].ends_with("/s"), "{}", ran.stderr);
}

#[test]
fn counts_are_written_and_appended_to_a_file() {
    if !can("perf events", users_may_count() || is_root()) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("counts");
    let name = file.to_str().unwrap();
    for (option, lines) in [("--", 1), ("--append", 2), ("--", 1)] {
        let mut args = vec!["perf", "stat", "-x", ",", "-e", "task-clock", "-o", name];
        args.extend([option, "true"]);
        let ran = run(&args);
        ran.is_good();
        assert_eq!(ran.stderr, "");
        let text = std::fs::read_to_string(&file).unwrap();
        assert_eq!(text.lines().count(), lines, "{option}: {text}");
        assert!(text.lines().all(|line| line.contains("msec,task-clock,")), "{text}");
    }
    // Without new counts, those of before stay.
    let before = std::fs::read(&file).unwrap();
    run(&["perf", "stat", "-o", name, "no-such-command"]).is_refused(127, &["not found"]);
    assert_eq!(std::fs::read(&file).unwrap(), before);
    // As for perf.
    let args = ["perf", "stat", "-x", "\\t", "-e", "task-clock", "-o", "-", "true"];
    let ran = run_in(dir.path(), &args);
    ran.is_good();
    assert!(ran.stderr.contains("\tmsec\ttask-clock\t"), "{}", ran.stderr);
    assert_eq!((&*ran.stdout, names(dir.path())), ("", vec!["counts".to_owned()]));
    let missing = dir.path().join("no/counts");
    run(&["perf", "stat", "-o", missing.to_str().unwrap(), "true"]).is_refused(1, &["no/counts"]);
}

#[test]
fn repeated_runs_are_averaged() {
    if !can("perf events", users_may_count() || is_root()) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("runs");
    let script = format!("echo run >> {}", log.display());
    let args = ["perf", "stat", "-r", "3", "--json", "-e", "page-faults", "sh", "-c", &script];
    let ran = run(&args);
    ran.is_good();
    assert_eq!(std::fs::read_to_string(&log).unwrap(), "run\nrun\nrun\n");
    let value: serde_json::Value = serde_json::from_str(&ran.stderr).unwrap();
    assert!(value["events"][0]["deviation_percent"].as_f64().unwrap() >= 0.0, "{value}");
    let faults = value["events"][0]["count"].as_u64().unwrap();
    let once = count(&run(&["perf", "stat", "-e", "page-faults", "true"]), "page-faults");
    assert!(faults > 10 && faults < 20 * once, "a mean: {faults}, one run of true: {once}");
    let ran = run(&["perf", "stat", "-r", "2", "-e", "page-faults", "true"]);
    assert!(ran.stderr.contains("(+- "), "{}", ran.stderr);
    // A run that fails is the last one.
    let ran = run(&["perf", "stat", "-r", "9", "-e", "page-faults", "sh", "-c", "exit 4"]);
    assert_eq!(ran.code, Some(4));
}

#[test]
fn intervals_add_up_to_the_whole() {
    if !can("perf events", users_may_count() || is_root()) {
        return;
    }
    // It ends with its own count, and that of its children: minor and major faults.
    let script = "for i in 1 2 3 4 5; do sleep 0.05; done
        read -r _ _ _ _ _ _ _ _ _ a b c d _ < /proc/$$/stat; echo $((a + b + c + d))";
    let events = "{context-switches,page-faults}";
    let args = ["perf", "stat", "-I", "20", "--json", "-e", events, "sh", "-c", script];
    let ran = run(&args);
    ran.is_good();
    let parts: Vec<serde_json::Value> =
        ran.stderr.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(parts.len() > 2, "{}", ran.stderr);
    let times: Vec<f64> = parts.iter().map(|part| part["time"].as_f64().unwrap()).collect();
    assert!(times.is_sorted(), "{times:?}");
    let faults: Vec<u64> =
        parts.iter().map(|part| part["events"][1]["count"].as_u64().unwrap_or(0)).collect();
    let sum: u64 = faults.iter().sum();
    let whole: u64 = ran.stdout.trim().parse().unwrap();
    // Those before `execve(2)` are only in its own count, those of its end only in ours.
    assert!(sum.abs_diff(whole) <= whole / 5 + 20, "{faults:?} of {whole}");
}

#[test]
fn members_of_a_group_are_counted_at_the_same_times() {
    if !can("perf events", users_may_count() || is_root()) {
        return;
    }
    let events = "{task-clock,page-faults}:u,page-faults";
    let ran = run(&["perf", "stat", "-x", ",", "-e", events, "sh", "-c", "/bin/true"]);
    ran.is_good();
    let fields: Vec<Vec<&str>> = ran.stderr.lines().map(|line| line.split(',').collect()).collect();
    let names: Vec<&str> = fields.iter().map(|line| line[2]).collect();
    assert_eq!(names, ["task-clock:u", "page-faults:u", "page-faults"]);
    assert_eq!(fields[0][3], fields[1][3], "the same time: {}", ran.stderr);
    assert!(fields[1][0].parse::<u64>().unwrap() > 10, "{}", ran.stderr);
    for wrong in ["{task-clock", "{}", "{task-clock}u"] {
        run(&["perf", "stat", "-e", wrong, "true"]).is_refused(1, &[wrong]);
    }
}

#[test]
fn patterns_are_all_tracepoints_that_match() {
    needs_root!();
    let ran = run(&[
        "perf",
        "stat",
        "-x",
        ",",
        "-e",
        "sched:sched_process_f*,cs",
        "sh",
        "-c",
        "/bin/true; :",
    ]);
    ran.is_good();
    assert!(
        ran.stderr.lines().next().unwrap().contains("sched:sched_process_fork"),
        "{}",
        ran.stderr
    );
    assert!(ran.stderr.starts_with("1,"), "one fork: {}", ran.stderr);
    run(&["perf", "stat", "-e", "sched:nothing*", "true"]).is_refused(1, &["sched:nothing*"]);
    let why = ["sched:sched_process_fork:x", "modifier"];
    run(&["perf", "stat", "-e", "sched:sched_process_f*:x", "true"]).is_refused(1, &why);
}

#[test]
fn chosen_cpus_are_counted_while_the_command_runs() {
    needs_root!();
    let args = ["perf", "stat", "-C", "0", "-x", ",", "-e", "cpu-clock", "sleep", "0.1"];
    let ran = run(&args);
    ran.is_good();
    let fields: Vec<&str> = ran.stderr.trim_end().split(',').collect();
    let counted: f64 = fields[0].parse().unwrap();
    let running = fields[3].parse::<f64>().unwrap() / 1e6;
    assert!(counted >= 99.0, "one CPU for all of the sleep: {}", ran.stderr);
    assert!((counted - running).abs() < running / 10.0 + 5.0, "one CPU: {}", ran.stderr);
    run(&["perf", "stat", "-C", "65535", "true"]).is_refused(1, &["CPU 65535"]);
}

#[test]
fn a_cgroup_is_counted_alone() {
    needs_root!();
    let run_in = |name: &str| {
        run(&["perf", "stat", "-a", "-G", name, "-x", ",", "-e", "page-faults", "sleep", "0.01"])
    };
    run_in("no/such/cgroup").is_refused(1, &["no/such/cgroup"]);
    let ran = run(&["perf", "stat", "-G", "x", "-e", "cs", "true"]);
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    let Some(cgroup) = crate::support::empty_cgroup() else {
        assert!(!can("a cgroup hierarchy with perf events", false));
        return;
    };
    let ran = run_in(&cgroup.name);
    ran.is_good();
    let fields: Vec<&str> = ran.stderr.trim_end().split(',').collect();
    assert_eq!(fields[2..4], ["page-faults", &*cgroup.name], "{}", ran.stderr);
    assert!(matches!(fields[0], "0" | "<not counted>"), "no task is in it: {}", ran.stderr);
    // Events that the machine lacks are not supported there, either.
    let ran = run(&["perf", "stat", "-a", "-G", &cgroup.name, "-x", ",", "true"]);
    ran.is_good();
    let cycles = ran.stderr.lines().find(|line| line.contains(",cycles,"));
    assert!(cycles.is_some_and(|line| line.contains(&cgroup.name)), "{}", ran.stderr);
}

#[test]
fn events_of_the_kernel_alone_are_refused_without_a_privilege() {
    if crate::support::paranoid() != 2 {
        assert!(!can("kernel.perf_event_paranoid of 2", false));
        return;
    }
    let args = ["perf", "stat", "-e", "page-faults:k", "true"];
    let ran: Ran = as_nobody(&args).output().unwrap().into();
    ran.is_refused(1, &["page-faults:k", "kernel.perf_event_paranoid", "CAP_PERFMON"]);
    assert!(!ran.stderr.contains("user space alone"), "{}", ran.stderr);
}

/// Without the kernel, tracepoints count nothing, but those of system calls.
#[test]
fn tracepoints_are_refused_without_a_privilege() {
    needs_root!();
    if crate::support::paranoid() != 2 {
        assert!(!can("kernel.perf_event_paranoid of 2", false));
        return;
    }
    let count = |event: &str| {
        let args = ["perf", "stat", "-x", ",", "-e", event, "sh", "-c", "sleep 0.01; :"];
        as_nobody_with(WITH_TRACEFS, "+dac_read_search", &args)
    };
    let refused = count("sched:sched_switch");
    refused.is_refused(
        1,
        &["sched:sched_switch", "sysctl kernel.perf_event_paranoid=1", "CAP_PERFMON"],
    );
    assert!(!refused.stderr.contains("user space alone"), "{}", refused.stderr);
    count("{page-faults,sched:sched_switch}").is_refused(1, &["CAP_PERFMON"]);
    let ran = count("syscalls:sys_enter_openat");
    ran.is_good();
    let fields: Vec<&str> = ran.stderr.trim_end().split(',').collect();
    assert_eq!(fields[2], "syscalls:sys_enter_openat", "nothing is missing: {}", ran.stderr);
    assert!(fields[0].parse::<u64>().unwrap() > 0, "{}", ran.stderr);
}

#[test]
fn runs_that_end_at_the_time_limit_are_repeated() {
    if !can("perf events", users_may_count() || is_root()) {
        return;
    }
    let args = ["perf", "stat", "-r", "2", "--seconds", "0.1", "--json", "-e", "page-faults"];
    let ran = run(&[&args[..], &["sleep", "60"]].concat());
    assert_eq!(ran.code, Some(128 + 15), "{}", ran.stderr);
    assert!(ran.stderr.contains("\"runs\": 2"), "{}", ran.stderr);
    let ran = run(&[&args[..], &["sh", "-c", "kill -INT $$"]].concat());
    assert!(ran.stderr.contains("1 of 2 runs"), "{}", ran.stderr);
    assert!(ran.stderr.contains("\"runs\": 1"), "{}", ran.stderr);
}

#[test]
fn events_that_the_machine_lacks_are_left_out() {
    if !can("perf events", users_may_count() || is_root()) {
        return;
    }
    // No CPU stores to its instruction cache.
    let lacking = "L1-icache-stores";
    let args = ["perf", "stat", "-x", ";", "-e"];
    let ran = run(&[&args[..], &[&format!("{lacking},page-faults"), "true"]].concat());
    ran.is_good();
    assert!(ran.stderr.contains(&format!("<not supported>;;{lacking};")), "{}", ran.stderr);
    assert!(ran.stderr.contains(";page-faults"), "{}", ran.stderr);
    run(&[&args[..], &[lacking, "true"]].concat()).is_refused(1, &[lacking]);
}

#[test]
fn a_full_standard_error_is_no_crash() {
    if !can("perf events", users_may_count() || is_root()) {
        return;
    }
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let args = ["perf", "stat", "-e", "page-faults", "true"];
    let status = triscope(&args).stderr(full).status().unwrap();
    assert_eq!(status.code(), Some(1));
}
