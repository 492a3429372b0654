//! `triscope record` without named sources, `triscope demo`, and reports of their recordings.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests may panic"
)]

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use trace_timeline::sources::cgroup::CpuStat;

struct Ran {
    stdout: String,
    stderr: String,
    is_good: bool,
}

fn run_in(dir: &Path, args: &[&str]) -> Ran {
    let mut command = Command::new(env!("CARGO_BIN_EXE_triscope"));
    let output = command.args(args).current_dir(dir).stdin(Stdio::null()).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ran {
        stdout: text(&output.stdout),
        stderr: text(&output.stderr),
        is_good: output.status.success(),
    }
}

/// Whether this user may record the scheduler, as `triscope doctor` found out.
fn has_scheduler(dir: &Path) -> bool {
    let doctor: Value = serde_json::from_str(&run_in(dir, &["doctor", "--json"]).stdout).unwrap();
    let checks = doctor["checks"].as_array().unwrap();
    let scheduler = checks.iter().find(|check| check["id"] == "scheduler").unwrap();
    testkit::skip::can(&format!("the scheduler: {scheduler}"), scheduler["works"] == "yes")
}

/// The command writes a Go trace to a file that its command line names.
#[test]
fn a_written_go_trace_is_found() {
    let dir = tempfile::tempdir().unwrap();
    if !has_scheduler(dir.path()) {
        return;
    }
    let shop = Path::new(env!("CARGO_MANIFEST_DIR")).join("../gotrace/tests/data/shop.trace");
    let shop = shop.to_str().unwrap();
    let ran = run_in(dir.path(), &["record", "cp", shop, "written.trace"]);
    assert!(ran.is_good, "{}", ran.stderr);
    assert!(ran.stderr.contains("150 goroutines"), "{}", ran.stderr);
    assert!(dir.path().join("timeline.pftrace").exists(), "the default output");
    // A trace that was there before is not one of this command.
    let ran = run_in(dir.path(), &["record", "ls", "written.trace"]);
    assert!(ran.is_good && !ran.stderr.contains("goroutine"), "{}", ran.stderr);
    // A named source is the only one.
    let ran = run_in(dir.path(), &["record", "--sched", "cp", shop, "other.trace"]);
    assert!(!ran.stderr.contains("goroutine"), "{}", ran.stderr);
}

/// A shell that is a program in Go for those who look at its file; `None` without binutils.
fn go_shell(dir: &Path) -> Option<PathBuf> {
    let (info, shell) = (dir.join("buildinfo"), dir.join("go-shell"));
    let version = b"\x06go1.26";
    let head = [&b"\xff Go buildinf:\x08\x02"[..], &[0; 16]].concat();
    std::fs::write(&info, [&head[..], version].concat()).unwrap();
    let mut objcopy = Command::new("objcopy");
    objcopy.arg("--add-section").arg(format!(".go.buildinfo={}", info.display()));
    let made = objcopy.arg(std::fs::canonicalize("/bin/sh").unwrap()).arg(&shell).status();
    made.is_ok_and(|status| status.success()).then_some(shell)
}

/// A filter of system calls refuses all events of the kernel, as in containers.
#[test]
#[cfg(target_arch = "x86_64")]
fn a_go_command_is_recorded_without_the_scheduler() {
    let dir = tempfile::tempdir().unwrap();
    let has_perl = Command::new("perl").arg("-v").output().is_ok();
    let shell = go_shell(dir.path());
    if !testkit::skip::can("perl and objcopy", has_perl && shell.is_some()) {
        return;
    }
    let shop = Path::new(env!("CARGO_MANIFEST_DIR")).join("../gotrace/tests/data/shop.trace");
    let record = |options: &[&str]| {
        let mut record = testkit::perf::filtered(env!("CARGO_BIN_EXE_triscope"));
        record.arg("record").args(options).arg(shell.as_ref().unwrap());
        record.args(["-c", "cat \"$1\" > \"$0\"", "written.trace"]).arg(&shop);
        let recorded = record.current_dir(dir.path()).stdin(Stdio::null()).output().unwrap();
        (recorded.status.success(), String::from_utf8(recorded.stderr).unwrap())
    };
    // Only the scheduler has what is asked for.
    for options in [&["--all-tasks"][..], &["--off-cpu"], &["-F", "99"]] {
        let (is_good, errors) = record(options);
        assert!(!is_good && !dir.path().join("written.trace").exists(), "{options:?}: {errors}");
    }
    let (is_good, errors) = record(&[]);
    assert!(is_good && errors.contains("the scheduler is not recorded"), "{errors}");
    assert!(errors.contains("150 goroutines"), "{errors}");
}

/// The name of the file is another one, or none, outside of the namespace.
#[test]
fn a_go_trace_in_another_mount_namespace_is_found() {
    let dir = tempfile::tempdir().unwrap();
    if !has_scheduler(dir.path()) {
        return;
    }
    let unshared = Command::new("unshare").args(["--mount", "true"]).status();
    let has_namespaces = unshared.is_ok_and(|status| status.success());
    let shell = go_shell(dir.path());
    if !testkit::skip::can("a mount namespace and objcopy", has_namespaces && shell.is_some()) {
        return;
    }
    let mount = dir.path().join("mount");
    std::fs::create_dir(&mount).unwrap();
    let shop = Path::new(env!("CARGO_MANIFEST_DIR")).join("../gotrace/tests/data/shop.trace");
    let mut record = Command::new(env!("CARGO_BIN_EXE_triscope"));
    record.args(["record", "unshare", "--mount", "sh", "-c"]).current_dir(dir.path());
    // The file stays open until the end of the input.
    let program = "exec 9>\"$0/written.trace\"; cat \"$1\" >&9; read line";
    record.arg("mount -t tmpfs none \"$0\" && exec \"$1\" -c \"$2\" \"$0\" \"$3\"");
    record.arg(&mount).arg(shell.unwrap()).arg(program).arg(&shop).stdin(Stdio::piped());
    let mut recorder = testkit::process::Running::start(&mut record);
    let files = format!("/proc/{}/fd", recorder.id());
    testkit::wait::until("the trace", || {
        let open = std::fs::read_dir(&files).unwrap();
        let targets = open.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
        targets.into_iter().any(|target| target.ends_with("written.trace"))
    });
    drop(recorder.child().stdin.take());
    let ran = recorder.end();
    assert!(ran.stderr.contains("150 goroutines"), "{}", ran.stderr);
    assert!(!mount.join("written.trace").exists());
}

/// Nothing of .NET can be recorded without a directory for the port: all else is.
#[test]
fn a_recording_needs_no_temporary_directory() {
    let dir = tempfile::tempdir().unwrap();
    if !has_scheduler(dir.path()) {
        return;
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_triscope"));
    let missing = dir.path().join("missing");
    command.env("TMPDIR", missing).env("XDG_RUNTIME_DIR", "").current_dir(dir.path());
    let recorded = command.args(["record", "--keep", "a b", "touch", "ran"]).output().unwrap();
    let errors = String::from_utf8(recorded.stderr).unwrap();
    assert!(recorded.status.success() && dir.path().join("ran").exists(), "{errors}");
    assert!(errors.contains(".NET runtimes of the command are not recorded"), "{errors}");
    assert!(errors.contains("next: triscope report 'a b' --html 'a b.html'"), "{errors}");
}

/// The kernel's own count of the time that a thread had a CPU.
#[test]
fn time_on_a_cpu_is_that_of_the_kernel() {
    let dir = tempfile::tempdir().unwrap();
    if !has_scheduler(dir.path()) {
        return;
    }
    // The kernel brings its count up to date when the shell leaves the CPU, and at each tick.
    let script = "i=0; while [ $i -lt 1000000 ]; do i=$((i+1)); done; sleep 0.01
                  read run wait slices < /proc/$$/schedstat; echo $$ $run";
    let ran = run_in(dir.path(), &["record", "--keep", "recording", "sh", "-c", script]);
    assert!(ran.is_good, "{}", ran.stderr);
    let mut counted = ran.stdout.split_whitespace().map(|word| word.parse::<i64>().unwrap());
    let (pid, nanos) = (counted.next().unwrap(), counted.next().unwrap());
    // Steal time is no part of the kernel's count (with CONFIG_PARAVIRT_TIME_ACCOUNTING). It is known
    // in units of 1/100 s, of all CPUs.
    let about = dir.path().join("recording/recording.json");
    let about: Value = serde_json::from_slice(&std::fs::read(about).unwrap()).unwrap();
    let steal = about["steal_nanos"].as_i64().unwrap() + 20_000_000;
    let report = run_in(dir.path(), &["report", "--json", "recording"]);
    let report: Value = serde_json::from_str(&report.stdout).unwrap();
    let threads = report["threads"].as_array().unwrap();
    let is_own = |thread: &Value| thread["process"]["pid"] == pid || thread["name"] == "sleep";
    assert!(threads.iter().all(is_own), "{threads:#?}");
    let times = &threads.iter().find(|t| t["tid"] == pid).unwrap()["times"];
    let [on_cpu, unknown] = ["on_cpu", "unknown"].map(|name| times[name].as_i64().unwrap());
    // Switches that the kernel leaves out make the time around them unknown.
    let (least, most) = (nanos - nanos / 100, nanos + nanos / 100 + steal);
    assert!(
        on_cpu <= most && least <= on_cpu + unknown,
        "recorded {on_cpu} ns and {unknown} ns that are unknown, the kernel counted {nanos} ns, \
         {steal} ns are steal time"
    );
    // Every process of the machine is in the recording.
    let all = run_in(dir.path(), &["report", "--json", "--all", "recording"]);
    let all: Value = serde_json::from_str(&all.stdout).unwrap();
    assert!(all["threads"].as_array().unwrap().len() > threads.len());
    let text = run_in(dir.path(), &["report", "recording"]).stdout;
    assert!(text.contains(&format!("process {pid} and its children")), "{text}");
    let about = format!("{{\"pid\": {pid}, \"command\": \"sh\", \"steal_nanos\": 50000000}}");
    std::fs::write(dir.path().join("recording/recording.json"), about).unwrap();
    let text = run_in(dir.path(), &["report", "recording"]).stdout;
    assert!(text.contains("\n  recording: 50.0 ms of steal time: "), "{text}");
}

/// A thread other than the main one calls `execve(2)`, as Go's `syscall.Exec` can.
#[test]
fn a_program_that_a_thread_executes_is_one_of_the_command() {
    let dir = tempfile::tempdir().unwrap();
    if !has_scheduler(dir.path()) {
        return;
    }
    let python = Command::new("python3").arg("-V").status();
    if !testkit::skip::can("python3", python.is_ok_and(|status| status.success())) {
        return;
    }
    let script = "import os, threading
threading.Thread(target=lambda: os.execv('/bin/sh', ['sh', '-c', 'sleep 0.01; echo $$'])).start()
threading.Event().wait()";
    let ran = run_in(dir.path(), &["record", "--sched", "--keep", "kept", "python3", "-c", script]);
    assert!(ran.is_good, "{}", ran.stderr);
    let pid: i64 = ran.stdout.trim().parse().unwrap();
    let report: Value =
        serde_json::from_str(&run_in(dir.path(), &["report", "--json", "kept"]).stdout).unwrap();
    let threads = report["threads"].as_array().unwrap();
    let of_shell = threads.iter().find(|thread| thread["name"] == "sh").unwrap();
    assert_eq!((&of_shell["tid"], &of_shell["process"]["pid"]), (&pid.into(), &pid.into()));
    assert!(of_shell["times"]["on_cpu"].as_i64().unwrap() > 0, "{of_shell}");
    let timeline = std::fs::read(dir.path().join("timeline.pftrace")).unwrap();
    let timeline = testkit::perfetto::Timeline::read(&timeline).lines.join("\n");
    assert!(timeline.contains(&format!(") -> sh {pid}")), "{timeline}");
    assert!(timeline.contains(") -> sleep "), "{timeline}");
}

/// The trace of a runtime is read before the records of the kernel that name the parent of its process.
#[test]
fn a_grandchild_with_a_trace_is_in_the_report() {
    let dir = tempfile::tempdir().unwrap();
    if !has_scheduler(dir.path()) {
        return;
    }
    let inner = "sh -c 'sleep 0.01; echo $$; :'; :";
    let command = ["record", "--sched", "--keep", "kept", "sh", "-c", "sh -c \"$0\"; :", inner];
    let ran = run_in(dir.path(), &command);
    assert!(ran.is_good, "{}", ran.stderr);
    let pid: i64 = ran.stdout.trim().parse().unwrap();
    let shop = Path::new(env!("CARGO_MANIFEST_DIR")).join("../gotrace/tests/data/shop.trace");
    std::fs::copy(shop, dir.path().join(format!("kept/go-{pid}.trace"))).unwrap();
    let report: Value =
        serde_json::from_str(&run_in(dir.path(), &["report", "--json", "kept"]).stdout).unwrap();
    let process = report["processes"].as_array().unwrap().iter().find(|p| p["pid"] == pid).unwrap();
    assert_eq!((&process["runtime"], process["parent"].is_i64()), (&"Go".into(), true));
    let goroutines = report["goroutines"].as_array().unwrap();
    assert!(goroutines.iter().any(|group| group["process"]["pid"] == pid), "{goroutines:#?}");
}

#[test]
fn the_demo_writes_a_timeline_and_a_page() {
    let dir = tempfile::tempdir().unwrap();
    if !has_scheduler(dir.path()) {
        return;
    }
    let ran = run_in(dir.path(), &["demo", "--no-go"]);
    assert!(ran.is_good, "{}", ran.stderr);
    let timeline = std::fs::read(dir.path().join("timeline.pftrace")).unwrap();
    let timeline = testkit::perfetto::Timeline::read(&timeline).lines.join("\n");
    for thread in ["producer", "consumer 2", "ticker"] {
        assert!(timeline.contains(thread), "{thread}: {}", ran.stderr);
    }
    let page = std::fs::read_to_string(dir.path().join("timeline.html")).unwrap();
    assert!(page.contains("<title>demo</title>") && page.ends_with("</html>\n"));
    assert!(!ran.stderr.contains("next:"), "{}", ran.stderr);
}

/// A cgroup with a CPU quota of 10 ms in 100 ms; `None` where this user or machine has none.
struct Quota(PathBuf);

impl Quota {
    fn create() -> Option<Self> {
        let own = perf_monitor::cgroup_dirs(std::process::id(), "cpu").unwrap();
        let root = own.last()?;
        let is_unified = root.join("cgroup.controllers").exists();
        if is_unified {
            let _ = std::fs::write(root.join("cgroup.subtree_control"), "+cpu"); // tried below
        }
        let dir = root.join(format!("triscope found {}", std::process::id()));
        std::fs::create_dir(&dir).ok()?;
        let this = Self(dir);
        let set = |name: &str, value: &str| std::fs::write(this.0.join(name), value).ok();
        if is_unified {
            set("cpu.max", "10000 100000")?;
        } else {
            set("cpu.cfs_period_us", "100000")?;
            set("cpu.cfs_quota_us", "10000")?;
        }
        Some(this)
    }
}

impl Drop for Quota {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// A child of the command moves to a cgroup with a CPU quota, and computes until the kernel has
/// throttled it in five periods.
#[test]
fn throttling_by_a_cpu_quota_is_recorded() {
    let dir = tempfile::tempdir().unwrap();
    if !has_scheduler(dir.path()) {
        return;
    }
    let Some(quota) = Quota::create() else {
        testkit::skip::can("a cgroup with a CPU quota", false);
        return;
    };
    let group = quota.0.to_str().unwrap();
    let spin = "echo $$; echo $$ > \"$0/cgroup.procs\"
        while :; do
            i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done
            while read name value; do
                if [ $name = nr_throttled ] && [ $value -ge 5 ]; then exit 0; fi
            done < \"$0/cpu.stat\"
        done";
    let command = ["sh", "-c", "sh -c \"$1\" \"$2\"; :", "sh", spin, group];
    let ran = run_in(dir.path(), &[&["record", "--keep", "recording"], &command[..]].concat());
    assert!(ran.is_good, "{}", ran.stderr);
    let summary = format!("by the CPU quota of {group}");
    assert!(
        ran.stderr.contains("throttled for ") && ran.stderr.contains(&summary),
        "{}",
        ran.stderr
    );
    let pid: i64 = ran.stdout.trim().parse().unwrap();
    let report = run_in(dir.path(), &["report", "--json", "recording"]);
    let report: Value = serde_json::from_str(&report.stdout).unwrap();
    let [throttled] = report["throttled"].as_array().unwrap().as_slice() else {
        panic!("{:#?}", report["throttled"]);
    };
    assert_eq!(throttled["process"]["pid"], pid);
    assert_eq!(throttled["process"]["name"], "sh", "as the kernel names it");
    // The kernel's counters at the end are those of this process alone.
    let stat = std::fs::read(quota.0.join("cpu.stat")).unwrap();
    let stat = CpuStat::parse(&stat).unwrap();
    let nanos = throttled["nanos"].as_u64().unwrap();
    let periods = throttled["periods"].as_u64().unwrap();
    assert!((1..=stat.periods).contains(&periods), "{periods} of {stat:?}");
    assert!((1..=stat.nanos).contains(&nanos), "{nanos} of {stat:?}");
    let text = run_in(dir.path(), &["report", "recording"]).stdout;
    assert!(text.contains("Throttled by the CPU quota of the cgroup"), "{text}");
    let timeline = std::fs::read(dir.path().join("timeline.pftrace")).unwrap();
    let timeline = testkit::perfetto::Timeline::read(&timeline);
    let counter = format!("throttled: {group}");
    assert!(timeline.lines.iter().any(|line| line.contains(&counter)), "{:#?}", timeline.lines);
}
