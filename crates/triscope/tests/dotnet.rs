//! `triscope dotnet` with real processes.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used, reason = "these are tests")]

use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use testkit::dotnet::{Runtime, Target};
use testkit::process::Running;

/// The program, with ports in the temporary directory, and without those of the user.
fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_triscope"));
    command.env_remove("XDG_RUNTIME_DIR").env_remove("DOTNET_DiagnosticPorts");
    command.arg("dotnet").args(args).stdin(Stdio::null());
    command
}

fn run(args: &[&str]) -> Output {
    command(args).output().unwrap()
}

/// What a command prints that has to succeed.
fn ok(args: &[&str]) -> String {
    let output = run(args);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {}\n{errors}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

/// What a command complains about that has to fail.
fn fails(args: &[&str], code: i32) -> String {
    let output = run(args);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{args:?}\n{errors}");
    errors
}

/// Reads a trace, which has to be complete, and returns how many events each provider has.
fn read(path: &Path) -> std::collections::HashMap<String, u64> {
    let mut reader = nettrace::Reader::new(std::fs::File::open(path).unwrap());
    let mut providers = std::collections::HashMap::new();
    reader.for_each(|e| *providers.entry(e.provider().to_string()).or_default() += 1).unwrap();
    assert_eq!(reader.stats().truncated_at, None, "{}", path.display());
    providers
}

#[test]
#[ignore = "needs real runtimes: cargo xtask test-runtimes"]
fn questions_and_orders() {
    for runtime in Runtime::ALL {
        let target = Target::of(runtime).start();
        let pid = &target.pid().to_string();
        let list: Value = serde_json::from_str(&ok(&["ps", "--json"])).unwrap();
        let found = list["processes"].as_array().unwrap();
        let found = found.iter().find(|p| p["pid"] == target.pid()).expect("it is listed");
        assert_eq!(found["socket"].as_str(), target.socket().to_str());
        assert!(ok(&["ps"]).contains(pid));
        let file = |name: &str| target.tmpdir().join(name).to_str().unwrap().to_owned();

        let core = file("core");
        ok(&["dump", pid, "-o", &core, "--type", "full"]);
        assert!(std::fs::read(&core).unwrap().starts_with(b"\x7fELF"));
        std::fs::remove_file(core).unwrap();
        if runtime == Runtime::Core31 {
            let info = ok(&["info", pid]);
            assert!(info.contains(pid) && info.contains("Workload.dll"), "{info}");
            assert!(info.contains(".NET 5") && info.contains("running"), "{info}");
            assert!(fails(&["dump", pid, "-o", "/tmp/x", "--crash-report"], 1).contains(".NET 6"));
            continue;
        }
        let info: Value = serde_json::from_str(&ok(&["info", pid, "--json"])).unwrap();
        assert_eq!(info["pid"], target.pid());
        assert_eq!(info["suspended"], false);
        assert!(info["clr_version"].as_str().unwrap().starts_with(runtime.version()));
        let socket = format!("{},connect", target.socket().display());
        assert!(ok(&["info", "--port", &socket]).contains(runtime.version()));

        ok(&["set-env", pid, "TRISCOPE_A=b=c", "TRISCOPE_D=e"]);
        let environment = ok(&["env", pid]);
        assert!(environment.lines().any(|l| l == "TRISCOPE_A=b=c"));
        ok(&["set-env", "-p", pid, "TRISCOPE_A"]);
        assert!(!ok(&["env", pid]).contains("TRISCOPE_A"));
        ok(&["set-env", pid, "TRISCOPE_NEVER_SET"]);
        assert!(fails(&["set-env", pid, "TRISCOPE_D="], 2).contains("empty value"));

        ok(&["perf-map", "on", pid, "--type", "perfmap"]);
        assert!(target.tmpdir().join(format!("perf-{pid}.map")).exists());
        ok(&["perf-map", "off", pid]);
        let hook = testkit::dotnet::assembly();
        ok(&["startup-hook", pid, "--assembly", hook.to_str().unwrap()]);
        assert!(target.output().contains("startup hook ran"));
    }
    assert!(fails(&["info", "999999999"], 1).contains("no such process"));
    assert!(fails(&["info"], 2).contains("no process: pass a PID"));
}

#[test]
#[ignore = "needs real runtimes: cargo xtask test-runtimes"]
fn traces_end_by_time_and_by_signal() {
    for runtime in Runtime::ALL {
        let target = Target::of(runtime).mode("mix").start();
        let pid = &target.pid().to_string();
        let path = target.tmpdir().join("a.nettrace");
        let out = path.to_str().unwrap();
        let errors = run(&["collect", pid, "-o", out, "--duration", "1"]).stderr;
        let errors = String::from_utf8_lossy(&errors);
        assert!(errors.contains("none lost, complete"), "{runtime:?}: {errors}");
        let events = read(&path);
        assert!(events["Microsoft-DotNETCore-SampleProfiler"] > 10, "{events:?}");
        assert!(events["Microsoft-Windows-DotNETRuntimeRundown"] > 10, "{events:?}");

        let options = ["--providers", "Triscope-Workload:0x3,System.Runtime", "--rundown", "false"];
        let child = Running::start(command(&["collect", pid, "-o", out]).args(options));
        let text: Vec<u8> = "héllo-".encode_utf16().flat_map(u16::to_le_bytes).collect();
        testkit::wait::until("events of the workload are in the file", || {
            let bytes = std::fs::read(&path).unwrap();
            bytes.windows(text.len()).filter(|window| *window == text).count() > 10
        });
        child.signal("INT");
        let ran = child.end();
        ran.is_good();
        assert!(ran.stderr.contains("complete"), "{}", ran.stderr);
        let events = read(&path);
        assert!(events["Triscope-Workload"] > 10, "{events:?}");
        assert!(!events.contains_key("Microsoft-Windows-DotNETRuntimeRundown"), "{events:?}");

        if runtime != Runtime::Core31 {
            // The modules, without the methods.
            let options = ["--providers", "System.Runtime", "--rundown-keywords", "0x8"];
            ok(&[&["collect", pid, "-o", out, "--duration", "1"], &options[..]].concat());
            let rundown = read(&path)["Microsoft-Windows-DotNETRuntimeRundown"];
            assert!((2..100).contains(&rundown), "{runtime:?}: {rundown}");
        }

        // A profile that wants a part of the rundown gets none where there are no parts.
        ok(&["collect", pid, "-o", out, "--duration", "1", "--profile", "gc-collect"]);
        let stream = run(&["collect", pid, "-o", "-", "--duration", "1"]).stdout;
        assert!(stream.starts_with(b"Nettrace") && stream.ends_with(&[6, 1]));
    }
}

#[test]
#[ignore = "needs real runtimes: cargo xtask test-runtimes"]
fn a_program_is_traced_from_its_start() {
    for runtime in [Runtime::Net9, Runtime::Net10] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.nettrace");
        let program = runtime.program();
        let collect = |seconds: &str| {
            command(&["collect", "-o", path.to_str().unwrap(), "--providers"])
                .args(["Triscope-Workload,Microsoft-Windows-DotNETRuntime:8", "--"])
                .arg(&program)
                .env("TMPDIR", dir.path())
                .env("WORKLOAD_MODE", "mix")
                .env("WORKLOAD_SECONDS", seconds)
                .output()
                .unwrap()
        };
        let output = collect("1");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && errors.contains("complete"), "{errors}");
        let events = read(&path);
        assert!(events["Triscope-Workload"] > 10, "{events:?}");
    }
    // A program that starts others, which would all wait for the port.
    let dir = tempfile::tempdir().unwrap();
    let output =
        command(&["collect", "-o", "/dev/null", "--", "sh", "-c", "\"$0\" & \"$0\"; wait; exit 3"])
            .arg(Runtime::Net9.program())
            .env("TMPDIR", dir.path())
            .env("WORKLOAD_SECONDS", "1")
            .output()
            .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "the program's own code: {errors}");
    assert!(errors.contains("is not traced") && errors.contains("complete"), "{errors}");

    let output = run(&["collect", "-o", "/dev/null", "--", "sh", "-c", "exit 7"]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && errors.contains("before its runtime came up"), "{errors}");
}

#[test]
#[ignore = "needs real runtimes: cargo xtask test-runtimes"]
fn a_suspended_runtime_is_resumed() {
    let mut target = Target::of(Runtime::Net9)
        .env("DOTNET_DefaultDiagnosticPortSuspend", "1")
        .suspended()
        .start();
    let pid = &target.pid().to_string();
    assert!(ok(&["info", pid]).contains("suspended at startup"));
    assert!(fails(&["perf-map", "on", pid], 1).contains("suspended"));
    ok(&["resume", pid]);
    target.await_workload();

    // A recording resumes it, too.
    for runtime in [Runtime::Net9, Runtime::Net10] {
        let mut target =
            Target::of(runtime).env("DOTNET_DefaultDiagnosticPortSuspend", "1").suspended().start();
        let path = target.tmpdir().join("a.nettrace");
        let (pid, out) = (&target.pid().to_string(), path.to_str().unwrap());
        ok(&["collect", pid, "-o", out, "--duration", "1"]);
        assert!(read(&path)["Microsoft-Windows-DotNETRuntime"] > 10, "{runtime:?}");
        target.await_workload();
    }

    // One that waits for a port is resumed there alone.
    let dir = tempfile::tempdir().unwrap();
    let port = dir.path().join("port");
    let mut target =
        Target::of(Runtime::Net10).env("DOTNET_DiagnosticPorts", &port).suspended().start();
    assert!(fails(&["resume", &target.pid().to_string()], 1).contains("that port"));
    ok(&["resume", "--diagnostic-port", port.to_str().unwrap()]);
    target.await_workload();
}

#[test]
#[ignore = "needs real runtimes: cargo xtask test-runtimes"]
fn a_startup_hook_is_checked_before_it_is_sent() {
    for runtime in [Runtime::Net9, Runtime::Net10] {
        let mut target = Target::of(runtime).start();
        let pid = &target.pid().to_string();
        for assembly in ["/nowhere/Hook.dll", "/etc/passwd", "Workload"] {
            let errors = fails(&["startup-hook", pid, "--assembly", assembly], 1);
            assert!(errors.contains("--force"), "{errors}");
        }
        target.assert_alive();
        let forced = ["startup-hook", pid, "--force", "--assembly", "/nowhere/Hook.dll"];
        assert!(fails(&forced, 1).contains("ended"));
        assert!(!target.wait().success());
    }
}

#[test]
#[ignore = "needs real runtimes: cargo xtask test-runtimes"]
fn a_command_on_an_old_runtime_is_an_error() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let program = Runtime::Core31.program();
    let program = program.to_str().unwrap();
    let errors = fails(&["collect", "-o", file.path().to_str().unwrap(), "--", program], 1);
    assert!(errors.contains(".NET 5"), "{errors}");
}

#[test]
#[ignore = "needs real runtimes: cargo xtask test-runtimes"]
fn a_refused_recording_leaves_the_output_as_it_was() {
    let target = Target::of(Runtime::Core31).mode("mix").start();
    let path = target.tmpdir().join("a.nettrace");
    let out = path.to_str().unwrap();
    let refused = || fails(&["collect", &target.pid().to_string(), "-o", out, "--no-stacks"], 1);
    let errors = refused();
    assert!(errors.contains(".NET 9"), "{errors}");
    assert!(!path.exists(), "an empty file");
    std::fs::write(&path, "earlier").unwrap();
    refused();
    assert_eq!(std::fs::read(&path).unwrap(), b"earlier");
}

#[test]
#[ignore = "needs real runtimes: cargo xtask test-runtimes"]
fn a_diagnostic_port_is_removed_at_the_end() {
    let directory = tempfile::tempdir().unwrap();
    let port = directory.path().join("port");
    let trace = directory.path().join("trace.nettrace");
    let collect = |more: &[&str]| {
        let (port, trace) = (port.to_str().unwrap(), trace.to_str().unwrap());
        let mut collect = command(&["collect", "--port", port, "-o", trace]);
        let mut child = Running::spawn(collect.args(more).stderr(Stdio::piped()));
        let mut errors = std::io::BufReader::new(child.child().stderr.take().unwrap());
        let mut line = String::new();
        std::io::BufRead::read_line(&mut errors, &mut line).unwrap();
        assert!(line.contains("waiting"), "{line}");
        (child, errors)
    };
    // A signal before a runtime has connected.
    for signal in ["INT", "TERM"] {
        let (mut child, _errors) = collect(&[]);
        assert!(port.exists());
        child.signal(signal);
        assert!(!child.child().wait().unwrap().success());
        assert!(!port.exists(), "{signal}");
    }
    // The end of the duration.
    let (mut child, mut errors) = collect(&["--duration", "1"]);
    let target = Target::of(Runtime::Net9).mode("mix").env("DOTNET_DiagnosticPorts", &port);
    let _target = target.start();
    let mut rest = String::new();
    std::io::Read::read_to_string(&mut errors, &mut rest).unwrap();
    assert!(child.child().wait().unwrap().success(), "{rest}");
    assert!(!port.exists());
}

/// A profiler that requests no events. Each of its interfaces has the same methods, which succeed.
const PROFILER: &str = r#"
#include <string.h>
#include <unistd.h>

static void print(const char *text) { if (write(2, text, strlen(text)) < 0) _exit(1); }
static int ok(void) { return 0; }
static int count(void) { return 1; }
static int query(void *self, void *iid, void **out) { *out = self; return 0; }
static int initialize(void) { print("profiler initialized\n"); return 0; }
static void *methods[200];
static void **profiler = methods;
static int create(void *self, void *outer, void *iid, void **out) { *out = &profiler; return 0; }
static void *factory_methods[] = {query, count, count, create, ok};
static void **factory = factory_methods;

int DllGetClassObject(void *class, void *iid, void **out) {
    for (int i = 0; i < 200; i++) methods[i] = ok;
    methods[0] = query;
    methods[1] = methods[2] = count;
    methods[3] = initialize; // at startup only
    print("profiler loaded\n");
    *out = &factory;
    return 0;
}
"#;

#[test]
#[ignore = "needs real runtimes: cargo xtask test-runtimes"]
fn a_profiler_is_loaded() {
    if !testkit::skip::can("a C compiler", Command::new("cc").arg("--version").output().is_ok()) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (source, library) = (dir.path().join("profiler.c"), dir.path().join("profiler.so"));
    std::fs::write(&source, PROFILER).unwrap();
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-o"]).args([&library, &source]);
    assert!(cc.status().unwrap().success());
    let library = library.to_str().unwrap();
    let class = "cf0d821e-299b-5307-a3d8-b283c03916dd";

    for runtime in Runtime::ALL {
        let mut target = Target::of(runtime).start();
        let pid = &target.pid().to_string();
        let startup = fails(&["profiler", "startup", class, library, pid], 1);
        assert!(startup.contains("is not suspended"), "{runtime:?}: {startup}");
        assert!(!target.output().contains("profiler"));
        ok(&["profiler", "attach", class, library, pid]);
        assert!(target.output().contains("profiler loaded"), "{}", target.output());
        assert!(!target.output().contains("profiler initialized"), "{}", target.output());
        let second = fails(&["profiler", "attach", class, library, pid], 1);
        assert!(second.contains("PROFILER_ALREADY_ACTIVE"), "{runtime:?}: {second}");
        target.assert_alive();
    }
    for runtime in [Runtime::Net9, Runtime::Net10] {
        let builder = Target::of(runtime).env("DOTNET_DefaultDiagnosticPortSuspend", "1");
        let mut target = builder.suspended().start();
        let pid = &target.pid().to_string();
        let attach = fails(&["profiler", "attach", class, library, pid], 1);
        assert!(attach.contains("NOT_YET_AVAILABLE"), "{runtime:?}: {attach}");
        ok(&["profiler", "startup", class, library, pid]);
        assert!(!target.output().contains("profiler"));
        ok(&["resume", pid]);
        target.await_workload();
        assert!(target.output().contains("profiler initialized"), "{}", target.output());
    }
}

/// Its program has another name. Other tests have processes with this assembly, so it has a PID namespace.
#[test]
#[ignore = "needs real runtimes: cargo xtask test-runtimes"]
fn a_process_is_found_by_its_entry_assembly() {
    const UNSHARE: [&str; 6] =
        ["--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc"];
    let possible = Command::new("unshare").args(UNSHARE).arg("true").output();
    if !testkit::skip::can("a PID namespace", possible.is_ok_and(|ran| ran.status.success())) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let program = Runtime::Net9.program().parent().unwrap().join("Workload");
    let renamed = dir.path().join("Renamed");
    std::os::unix::fs::symlink(program, &renamed).unwrap();
    // Until the runtime listens, nothing has the name.
    let script = r#""$0" > "$TMPDIR/log" 2>&1 &
        while kill -0 $!; do
            "$1" dotnet info --json -n Workload 2> "$TMPDIR/errors" &&
                cat /proc/$!/cmdline > "$TMPDIR/words" && exit
            sleep 0.1
        done
        cat "$TMPDIR/log" "$TMPDIR/errors" >&2
        exit 1"#;
    let mut command = Command::new("unshare");
    command.args(UNSHARE).args(["sh", "-c", script]).arg(&renamed);
    command.arg(env!("CARGO_BIN_EXE_triscope")).env_remove("DOTNET_DiagnosticPorts");
    command.env("TMPDIR", dir.path()).env("WORKLOAD_MODE", "idle").stdin(Stdio::null());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let info: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(info["entry_assembly"], "Workload");
    let words = std::fs::read_to_string(dir.path().join("words")).unwrap();
    assert_eq!(words.trim_end_matches('\0'), renamed.to_str().unwrap());
}
