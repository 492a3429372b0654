use crate::needs_root;
use crate::support::{
    Ran, Running, WITH_TRACEFS, as_nobody, as_nobody_with, dead_pid, run, triscope, wait_for,
};

const SWITCH: &str = "sched:sched_switch";

/// Whether a user without any privilege can read a directory.
fn is_readable_by_nobody(path: &std::path::Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    let mode = std::fs::metadata(path).map_or(0, |metadata| metadata.permissions().mode());
    mode & 0o005 == 0o005
}

#[test]
fn missing_privilege_names_the_remedy() {
    let ran: Ran = as_nobody(&["perf", "trace", "-e", SWITCH, "-a"]).output().unwrap().into();
    assert_eq!(ran.code, Some(1));
    // Which one depends on what the user can read here.
    let tracefs = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"].map(std::path::Path::new);
    let mounted = tracefs.iter().find(|path| path.join("events").exists());
    let remedy = match mounted.map(|path| is_readable_by_nobody(path)) {
        None => "mount -t tracefs",
        Some(false) => "mount it with -o remount,gid=GROUP",
        Some(true) => "perf_event_paranoid",
    };
    assert!(ran.stderr.contains(remedy), "{remedy:?} is not in {}", ran.stderr);
    assert_eq!(ran.stderr.lines().count(), 1, "{}", ran.stderr);
}

#[test]
fn each_missing_privilege_is_named() {
    needs_root!();
    let args = ["perf", "trace", "-e", SWITCH, "sleep", "0.01"];
    as_nobody_with(WITH_TRACEFS, "-all", &args)
        .is_refused(1, &["only root may read tracefs", "gid=GROUP"]);
    if crate::support::paranoid() > -1 {
        as_nobody_with(WITH_TRACEFS, "+dac_read_search", &args)
            .is_refused(1, &[SWITCH, "perf_event_paranoid", "CAP_PERFMON"]);
    }
    // And with both it works, though not root's.
    let ran = as_nobody_with(WITH_TRACEFS, "+dac_read_search,+perfmon", &args);
    ran.is_good();
    assert!(ran.stdout.contains("next_comm="), "{}{}", ran.stdout, ran.stderr);
}

#[test]
fn bad_arguments_name_the_remedy() {
    needs_root!();
    run(&["perf", "trace", "-e", "sched:sched_swich", "true"])
        .is_refused(1, &["did you mean", SWITCH]);
    run(&["perf", "trace", "-e", "page-faults", "true"])
        .is_refused(2, &["page-faults", "not a tracepoint"]);
    run(&["perf", "trace", "-e", SWITCH, "--filter", "nofield == 1", "true"])
        .is_refused(1, &["nofield", "the fields are prev_comm"]);
    run(&["perf", "trace", "-e", SWITCH, "--filter", "prev_pid ==", "true"])
        .is_refused(1, &["prev_pid =="]);
    for pages in ["0", "3", "1000"] {
        run(&["perf", "trace", "-e", SWITCH, "--pages", pages, "true"])
            .is_refused(1, &["power of two", pages]);
    }
    let pid = dead_pid().to_string();
    run(&["perf", "trace", "-e", SWITCH, "-p", &pid]).is_refused(1, &["no process", &pid]);
    run(&["perf", "trace", "-e", SWITCH, "no-such-command"]).is_refused(127, &["not found"]);
}

#[test]
fn fields_have_the_values_that_are_known() {
    needs_root!();
    let events = ["perf", "trace", "-e", "sched:sched_process_exec"];
    let script = ["sh", "-c", "/bin/true; /bin/echo out; exit 5"];
    let ran = run(&[&events[..], &script[..]].concat());
    assert_eq!(ran.code, Some(5), "{}", ran.stderr);
    // The output of the command is not in the trace.
    assert!(ran.stderr.lines().any(|line| line == "out"), "{}", ran.stderr);
    let lines: Vec<&str> = ran.stdout.lines().collect();
    let files: Vec<&str> = lines
        .iter()
        .map(|line| line.split("filename=").nth(1).unwrap().split(' ').next().unwrap())
        .collect();
    assert_eq!(files.len(), 3, "{}", ran.stdout);
    assert!(files[0].ends_with("/sh"), "{files:?}");
    assert_eq!(files[1..], ["/bin/true", "/bin/echo"]);
    // time cpu thread event fields, the thread as the field says; in the order of time.
    let mut last = 0.0;
    for line in lines {
        let words: Vec<&str> = line.split_whitespace().collect();
        let time: f64 = words[0].parse().unwrap();
        assert!(time > last, "{}", ran.stdout);
        last = time;
        assert_eq!(words[3], "sched:sched_process_exec");
        assert_eq!(format!("pid={}", words[2]), words[5]);
    }
}

#[test]
fn a_filter_leaves_out_what_does_not_match() {
    needs_root!();
    let (number, nobody_calls) = if cfg!(target_arch = "x86_64") { (110, 134) } else { (173, 58) };
    let trace = |id: i32| {
        let filter = format!("id == {id}");
        run(&[
            "perf",
            "trace",
            "-e",
            "raw_syscalls:sys_enter",
            "--filter",
            &filter,
            "sh",
            "-c",
            "true",
        ])
    };
    // A shell asks for its parent's number.
    let asked = trace(number);
    asked.is_good();
    assert!(asked.stdout.lines().all(|line| line.contains(&format!(" id={number} args=["))));
    assert!(!asked.stdout.is_empty());
    let none = trace(nobody_calls);
    none.is_good();
    assert_eq!(none.stdout, "");
}

#[test]
fn threads_and_children_that_come_later_are_seen() {
    needs_root!();
    let mut child = std::process::Command::new("sh");
    child.args(["-c", "read go; /bin/true; sh -c '/bin/true; /bin/true'"]);
    let mut child = Running::spawn(child.stdin(std::process::Stdio::piped()));
    let pid = child.id().to_string();
    let trace = Running::start(&mut triscope(&[
        "perf",
        "trace",
        "-e",
        "sched:sched_process_exec",
        "-p",
        &pid,
    ]));
    trace.wait_until_it_watches();
    use std::io::Write;
    child.child().stdin.take().unwrap().write_all(b"go\n").unwrap();
    child.end();
    let ran = trace.end();
    ran.is_good();
    assert_eq!(ran.stdout.matches("filename=/bin/true").count(), 3, "{}", ran.stdout);
}

#[test]
fn control_characters_of_a_name_do_not_reach_the_terminal() {
    needs_root!();
    let dir = tempfile::tempdir().unwrap();
    let evil = dir.path().join("a b\x1b[31m");
    std::os::unix::fs::symlink("/bin/true", &evil).unwrap();
    let evil = evil.to_str().unwrap();
    let ran = run(&["perf", "trace", "-e", "sched:sched_process_exec", evil]);
    ran.is_good();
    assert!(!ran.stdout.contains('\x1b'), "{:?}", ran.stdout);
    assert!(ran.stdout.contains("a b\\u{1b}[31m\" pid="), "{:?}", ran.stdout);
}

#[test]
fn losses_are_reported_where_events_are_missing() {
    needs_root!();
    let flood = ["dd", "if=/dev/zero", "of=/dev/null", "bs=1", "count=200000", "status=none"];
    let events = ["perf", "trace", "-e", "raw_syscalls:sys_enter", "--pages", "1"];
    let ran = run(&[&events[..], &flood[..]].concat());
    ran.is_good();
    let reported: u64 = ran
        .stdout
        .lines()
        .filter_map(|line| {
            line.strip_suffix(" events lost")?.rsplit(' ').next()?.parse::<u64>().ok()
        })
        .sum();
    let seen = ran.stdout.lines().filter(|line| line.contains(" id=")).count() as u64;
    assert!(reported > 0 && seen > 0, "{reported} lost, {seen} seen");
    let all = ran.stderr.strip_prefix("triscope: ").and_then(|line| line.split(' ').next());
    let all: u64 = all.unwrap().parse().unwrap();
    // Losses at the very end are counted, though no record reports them.
    assert!(all >= reported, "{}", ran.stderr);
    let sum = all + seen;
    assert!((400_000..401_000).contains(&sum), "{sum}: a read and a write each, and a few more");
}

/// The events of the time in which it reads the running processes would fill the buffers, which nothing empties.
#[test]
fn tracing_begins_when_the_running_processes_are_known() {
    needs_root!();
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("stock-taker");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_triscope"), &program).unwrap();
    let mut trace = std::process::Command::new(&program);
    // It lists directories in that time only.
    trace.args(["perf", "trace", "-a", "-g", "-e", "syscalls:sys_enter_getdents64"]);
    let ran: Ran = trace.args(["--comm", "stock-taker", "sh", "-c", ":"]).output().unwrap().into();
    ran.is_good();
    assert_eq!(ran.stdout, "", "{}", ran.stderr);
}

#[test]
fn the_same_as_perf_shows() {
    needs_root!();
    if !testkit::perf::is_installed() {
        return;
    }
    // Both watch the same command at once.
    let dir = tempfile::tempdir().unwrap();
    let script = format!(
        "mountpoint -q /sys/kernel/tracing || mount -t tracefs nodev /sys/kernel/tracing\n\
         cd {dir}\n\
         perf record -q -k CLOCK_MONOTONIC -e sched:sched_process_exec -o perf.data -- \
         {triscope} perf trace -e sched:sched_process_exec \
         sh -c '/bin/true; /bin/sleep 0.01; /bin/true' > ours\n\
         perf script --ns -i perf.data -F tid,cpu,time,trace > perfs",
        dir = dir.path().display(),
        triscope = env!("CARGO_BIN_EXE_triscope"),
    );
    let mut command = std::process::Command::new("unshare");
    let output = command.args(["--mount", "sh", "-ec", &script]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let read = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap();
    // perf: `TID [CPU] TIME: filename=… pid=… old_pid=…`
    let perfs: Vec<String> = read("perfs")
        .lines()
        .map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let cpu = words[1].trim_matches(['[', ']']);
            format!("{cpu} {} {}", words[0], words[3..].join(" "))
        })
        .collect();
    let ours: Vec<String> = read("ours")
        .lines()
        .map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            format!("{} {} {}", words[1], words[2], words[4..].join(" "))
        })
        .collect();
    assert_eq!(ours.len(), 4, "{ours:?}");
    // perf sees the start of triscope, too.
    assert_eq!(perfs[perfs.len() - ours.len()..], ours);
    let times = |text: &str, place: usize| -> Vec<f64> {
        let word = |l: &str| l.split_whitespace().nth(place).unwrap().trim_matches(':').parse();
        text.lines().map(|l| word(l).unwrap()).collect()
    };
    let (perfs, ours) = (times(&read("perfs"), 2), times(&read("ours"), 0));
    let perfs = &perfs[perfs.len() - ours.len()..];
    // One call of the kernel has both events, before the next call has any.
    for at in 1..ours.len() {
        let earlier = perfs[at - 1].max(ours[at - 1]);
        assert!(earlier < perfs[at].min(ours[at]), "{perfs:?} {ours:?}");
    }
    // The clock is the same. A CPU can be taken from the kernel between two events, but not each time.
    let nearest = perfs.iter().zip(&ours).map(|(perfs, ours)| (perfs - ours).abs());
    assert!(nearest.fold(f64::MAX, f64::min) < 1e-4, "{perfs:?} {ours:?}");
}

#[test]
fn patterns_trace_all_tracepoints_that_match() {
    needs_root!();
    let args = ["perf", "trace", "-e", "sched:sched_process_f*,sched:sched_process_exec"];
    let ran = run(&[&args[..], &["sh", "-c", "/bin/true; :"]].concat());
    ran.is_good();
    for event in [" sched:sched_process_fork ", " sched:sched_process_exec "] {
        assert!(ran.stdout.contains(event), "{event}: {}", ran.stdout);
    }
    run(&["perf", "trace", "-e", "sched:nothing*", "true"]).is_refused(1, &["sched:nothing*"]);
}

#[test]
fn chosen_cpus_are_traced_while_the_command_runs() {
    needs_root!();
    let args = ["perf", "trace", "-C", "0", "-e", SWITCH, "sleep", "0.05"];
    let ran = run(&args);
    ran.is_good();
    let cpus: Vec<&str> =
        ran.stdout.lines().filter_map(|line| line.split_whitespace().nth(1)).collect();
    assert!(!cpus.is_empty() && cpus.iter().all(|cpu| *cpu == "000"), "{}", ran.stdout);
}

/// The lines of the output as JSON.
fn json_lines(ran: &Ran) -> Vec<serde_json::Value> {
    ran.is_good();
    ran.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn json_has_the_fields_with_their_types() {
    needs_root!();
    let args = ["perf", "trace", "--json", "-e", "sched:sched_process_exec"];
    let lines = json_lines(&run(&[&args[..], &["sh", "-c", "/bin/true; :"]].concat()));
    assert_eq!(lines.len(), 2, "{lines:?}");
    let line = &lines[1];
    assert_eq!(line["event"], "sched:sched_process_exec");
    assert_eq!(line["fields"]["filename"], "/bin/true");
    assert_eq!(line["fields"]["pid"], line["tid"]);
    assert!(line["time_ns"].as_u64() > lines[0]["time_ns"].as_u64(), "{lines:?}");
    assert!(line["cpu"].is_u64() && line["callchain"].is_null(), "{line}");
}

#[test]
fn threads_are_selected_by_name() {
    needs_root!();
    let traced = |comm: &str, more: &[&str]| {
        let args = ["perf", "trace", "--json", "-e", "syscalls:sys_enter_exit_group", "--comm"];
        let script = ["sh", "-c", "/bin/sleep 0; /bin/true; :"];
        json_lines(&run(&[&args[..], &[comm], more, &script[..]].concat())).len()
    };
    assert_eq!(traced("sleep", &[]), 1);
    assert_eq!(traced("s*", &[]), 2);
    assert_eq!(traced("nothing", &[]), 0);
    assert_eq!(traced("*", &["--filter", "error_code == 0"]), 3);
    assert_eq!(traced("*", &["--filter", "error_code == 1 || error_code == 2"]), 0);
    let ran = run(&["perf", "trace", "-e", SWITCH, "--comm", "a\"b", "true"]);
    assert!(ran.code == Some(2) && ran.stderr.contains("without quotes"), "{}", ran.stderr);
}

/// In a PID namespace, all threads outside of it have the number 0.
#[test]
fn calls_of_threads_outside_of_the_pid_namespace_are_not_mistaken() {
    use std::io::Write;
    use std::os::unix::process::CommandExt as _;
    use std::process::{Command, Stdio};
    needs_root!();
    let dir = tempfile::tempdir().unwrap();
    let reader = dir.path().join("outside-reader");
    std::os::unix::fs::symlink("/bin/cat", &reader).unwrap();
    let mut trace = Command::new("unshare");
    trace.args(["--pid", "--fork", "--mount-proc", env!("CARGO_BIN_EXE_triscope")]);
    trace.args(["perf", "trace", "--json", "-a", "-e", "syscalls:sys_*_read"]);
    trace.args(["--comm", "outside-reader", "sh", "-c", "touch ready; read go; :"]);
    trace.current_dir(dir.path()).stdin(Stdio::piped());
    let trace = Running::start(&mut trace);
    wait_for(&dir.path().join("ready"));
    let mut readers = [(); 2].map(|()| {
        let mut command = Command::new(&reader);
        // Where many programs are one file, it goes by this name.
        command.arg0("cat");
        Running::spawn(command.stdin(Stdio::piped()).stdout(Stdio::piped()))
    });
    // After that, each is in a call that ends later.
    for reader in &mut readers {
        reader.child().stdin.as_mut().unwrap().write_all(b"here\n").unwrap();
        reader.wait_for("here");
    }
    for reader in readers {
        reader.end().is_good();
    }
    let ran = trace.end();
    let calls = json_lines(&ran);
    let lines = calls.iter().filter(|call| call["result"] == "here\n".len());
    assert_eq!(lines.count(), 2, "{calls:?}");
    assert!(calls.iter().all(|call| call["duration_ns"].is_u64()), "{calls:?}");
    assert!(ran.stderr.contains("outside of this PID namespace"), "{}", ran.stderr);
}

#[test]
fn system_calls_are_shown_with_arguments_and_result() {
    needs_root!();
    let events = "syscalls:sys_*_chdir,syscalls:sys_*_exit_group,syscalls:sys_enter_execve";
    let script = ["sh", "-c", "cd /; cd /no-such-directory 2> /dev/null; exit 5"];
    let ran = run(&[&["perf", "trace", "-e", events][..], &script].concat());
    assert_eq!(ran.code, Some(5), "{}", ran.stderr);
    let calls: Vec<&str> = ran.stdout.lines().filter(|line| line.contains("chdir(")).collect();
    assert_eq!(calls.len(), 2, "{}", ran.stdout);
    assert!(calls[0].contains(" chdir(filename: 0x") && calls[0].contains(") = 0 <0."));
    assert!(calls[1].contains(") = -2 (No such file or directory) <0."), "{}", ran.stdout);
    // A call that does not return, after all others.
    assert!(ran.stdout.trim_end().ends_with(" exit_group(error_code: 5) = ?"), "{}", ran.stdout);

    let ran = run(&[&["perf", "trace", "--json", "-e", events][..], &script].concat());
    let lines: Vec<serde_json::Value> =
        ran.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let results: Vec<_> = lines
        .iter()
        .filter(|line| line["syscall"] == "chdir")
        .map(|line| &line["result"])
        .collect();
    assert_eq!(results, [0, -2]);
    let last = lines.last().unwrap();
    assert_eq!((&last["syscall"], &last["args"]["error_code"]), (&"exit_group".into(), &5.into()));
    assert!(last["result"].is_null() && last["duration_ns"].is_null(), "{last}");
}

#[test]
fn a_return_from_a_signal_is_shown_at_its_time() {
    needs_root!();
    let events = "syscalls:sys_*_rt_sigreturn,sched:sched_process_exec";
    let script = ["sh", "-c", "trap : USR1; kill -USR1 $$; /bin/true; :"];
    let ran = run(&[&["perf", "trace", "-e", events][..], &script].concat());
    ran.is_good();
    let place = |text| ran.stdout.lines().position(|line| line.contains(text));
    let (back, next) = (place(" rt_sigreturn() = ?"), place("filename=/bin/true"));
    assert!(back.is_some() && back < next, "{}", ran.stdout);
}

#[test]
fn a_program_that_a_thread_executes_is_one_call() {
    needs_root!();
    let child = crate::support::child("executes");
    let args = ["perf", "trace", "-e", "syscalls:sys_*_execve,syscalls:sys_*_futex"];
    let child: Vec<&str> = child.iter().map(String::as_str).collect();
    let ran = run(&[&args[..], &child].concat());
    ran.is_good();
    let calls: Vec<&str> = ran.stdout.lines().filter(|line| line.contains(" execve(")).collect();
    let executed = |line: &&&str| line.contains(" execve(filename: 0x") && line.contains(" = 0 <");
    // The start of the first one is before the trace: then the test's, and that of its thread.
    assert_eq!((calls.len(), calls.iter().filter(executed).count()), (3, 2), "{}", ran.stdout);
    assert!(!calls.iter().any(|line| line.ends_with(" = ?")), "{}", ran.stdout);
    // The main thread waits for the thread, and is no more.
    let last = ran.stdout.lines().last().unwrap();
    assert!(last.contains(" execve("), "{}", ran.stdout);
}

#[test]
fn threads_without_a_number_any_more_are_minus_one() {
    needs_root!();
    let child = crate::support::child("threads 20");
    let child: Vec<&str> = child.iter().map(String::as_str).collect();
    for (json, number) in [(&[][..], " -1 sched:sched_switch "), (&["--json"], "\"tid\":-1")] {
        let args = ["perf", "trace", "-a", "-e", SWITCH];
        let ran = run(&[&args[..], json, &child].concat());
        ran.is_good();
        assert!(ran.stdout.contains(number), "{number}");
        assert!(!ran.stdout.contains("4294967295"), "{number}");
    }
}

#[test]
fn one_tracepoint_of_a_call_is_an_event_like_others() {
    needs_root!();
    let ran = run(&["perf", "trace", "-e", "syscalls:sys_enter_exit_group", "sh", "-c", "exit 5"]);
    assert_eq!(ran.code, Some(5), "{}", ran.stderr);
    assert!(ran.stdout.contains(" syscalls:sys_enter_exit_group __syscall_nr="), "{}", ran.stdout);
}

#[test]
fn call_chains_have_places_in_the_program_and_the_kernel() {
    needs_root!();
    let args = ["perf", "trace", "-g", "-e", "sched:sched_process_exec"];
    let script = ["sh", "-c", ":"];
    let ran = run(&[&args[..], &script].concat());
    ran.is_good();
    let mut lines = ran.stdout.lines();
    assert!(lines.next().unwrap().contains("sched:sched_process_exec filename="), "{}", ran.stdout);
    let frames: Vec<&str> = lines.take_while(|line| !line.is_empty()).collect();
    assert!(frames.iter().all(|line| line.starts_with('\t')), "{frames:?}");
    let is_kernel = |line: &&str| line.ends_with("([kernel.kallsyms])") && line.contains("+0x");
    let is_program = |line: &&str| line.contains("(/");
    assert!(frames.iter().any(is_kernel), "{frames:?}");
    assert!(frames.iter().any(is_program), "{frames:?}");

    let line = &json_lines(&run(&[&args[..], &["--json"], &script].concat()))[0];
    let frames = line["callchain"].as_array().unwrap();
    assert!(frames.iter().any(|f| f["file"] == "[kernel.kallsyms]" && f["symbol"].is_string()));
    assert!(frames.iter().any(|f| f["file"].as_str().is_some_and(|name| name.starts_with('/'))));
}
