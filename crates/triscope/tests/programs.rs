//! `triscope record` of real Go and .NET programs, without named sources.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests may panic"
)]

use rustix::process::Signal;
use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use testkit::dotnet::Runtime;
use testkit::process::Running;

/// The programs: `served`, which is built with pprof, and `worker` with two names.
fn build(dir: &Path) -> [PathBuf; 3] {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs");
    let names = ["served", "writer", "idle"].map(|name| dir.join(name));
    let [served, writer, idle] = &names;
    for (source, program) in [("served", served), ("worker", writer)] {
        testkit::go::build(&sources.join(source), program);
    }
    testkit::program::copy(writer, idle);
    names
}

fn record(dir: &Path, args: &[&OsStr]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_triscope"));
    command.arg("record").args(args).current_dir(dir).stdin(Stdio::piped());
    // Not a pipe: processes that the recorder leaves running keep it open.
    let errors = std::fs::File::create(dir.join("errors")).unwrap();
    command.stderr(errors).stdout(Stdio::null());
    // Ports of runtimes are in the temporary directory, not in that of the user.
    command.env_remove("XDG_RUNTIME_DIR").env_remove("DOTNET_DiagnosticPorts");
    command
}

/// Waits for the end of a recorder, while its standard input is open. Its status is that of the command,
/// unless it fails. Its messages, and the input.
fn finish(dir: &Path, mut recorder: Running, expected: i32) -> (String, Option<ChildStdin>) {
    let input = recorder.child().stdin.take();
    let status = recorder.child().wait().unwrap();
    let errors = std::fs::read_to_string(dir.join("errors")).unwrap();
    assert_eq!(status.code(), Some(expected), "{errors}");
    (errors, input)
}

/// Number of events of a kept Go trace, which has to be complete.
fn events(dir: &Path, pid: &str) -> u64 {
    let file = std::fs::File::open(dir.join(format!("raw/go-{pid}.trace"))).unwrap();
    let mut reader = gotrace::Reader::new(file).unwrap();
    let mut events = 0;
    while reader.next_event().unwrap().is_some() {
        events += 1;
    }
    events
}

/// The process id in parentheses after a name.
fn pid_of<'a>(errors: &'a str, name: &str) -> &'a str {
    let (_, after) = errors.split_once(&format!("{name} (")).unwrap_or_else(|| panic!("{errors}"));
    after.split_once(')').unwrap().0
}

#[test]
#[ignore = "needs a Go toolchain: cargo xtask test-record"]
fn go_traces_of_children_are_found() {
    let dir = tempfile::tempdir().unwrap();
    let [served, writer, idle] = build(dir.path());
    // The shell is the command, and ends by the signal at the time limit; the others follow when
    // their input ends.
    let script = "\"$0\" \"$@\" <&0; :";
    let args: [&OsStr; 9] = [
        "--keep".as_ref(),
        "raw".as_ref(),
        "--seconds".as_ref(),
        "4".as_ref(),
        "--".as_ref(),
        "sh".as_ref(),
        "-c".as_ref(),
        script.as_ref(),
        served.as_os_str(),
    ];
    let mut command = record(dir.path(), &args);
    let recorder = Running::spawn(command.args([&writer, &idle]));
    let ended_by_signal = 128 + Signal::TERM.as_raw();
    let (errors, input) = finish(dir.path(), recorder, ended_by_signal);
    drop(input);
    assert!(errors.contains("the Go trace of served ("), "{errors}");
    assert!(errors.contains("idle (go1."), "{errors}");
    assert!(errors.contains("no execution trace of it was seen"), "{errors}");
    assert!(errors.contains("goroutines of writer ("), "{errors}");
    assert!(errors.contains("goroutines of served ("), "{errors}");
    assert!(!errors.contains("ends early"), "{errors}");
    let (served, writer) = (pid_of(&errors, "served"), pid_of(&errors, "goroutines of writer"));
    assert_ne!(served, writer);
    assert!(events(dir.path(), served) > 100, "{errors}");
    assert!(events(dir.path(), writer) > 20, "{errors}");
}

#[test]
#[ignore = "needs a Go toolchain: cargo xtask test-record"]
fn the_served_trace_of_a_running_process_is_complete() {
    let dir = tempfile::tempdir().unwrap();
    let [served, ..] = build(dir.path());
    let server = Running::spawn(Command::new(served).stdin(Stdio::piped()));
    let pid = server.id().to_string();
    // The program starts to listen in this time.
    let args = ["--pid", &pid, "--seconds", "5", "--keep", "raw"].map(OsStr::new);
    let recorder = Running::spawn(&mut record(dir.path(), &args));
    let (errors, _) = finish(dir.path(), recorder, 0);
    server.end().is_good();
    assert!(errors.contains("/debug/pprof") && errors.contains(" goroutines"), "{errors}");
    assert!(!errors.contains("ends early"), "{errors}");
    assert!(events(dir.path(), &pid) > 100, "{errors}");
}

/// `http.Server.Shutdown` waits for all requests: that for the trace has no end of its own.
#[test]
#[ignore = "needs a Go toolchain: cargo xtask test-record"]
fn a_go_program_shuts_down_while_it_is_recorded() {
    let dir = tempfile::tempdir().unwrap();
    let [served, ..] = build(dir.path());
    let mut server = Running::spawn(Command::new(served).stdin(Stdio::piped()));
    let pid = server.id().to_string();
    let args = ["--pid", &pid, "--keep", "raw"].map(OsStr::new);
    let recorder = Running::spawn(&mut record(dir.path(), &args));
    let errors = || std::fs::read_to_string(dir.path().join("errors")).unwrap();
    testkit::wait::until("its trace", || errors().contains("/debug/pprof"));
    drop(server.child().stdin.take());
    // It fails if the shutdown does not end within its time limit.
    assert!(server.child().wait().unwrap().success(), "the shutdown has failed");
    let (errors, _) = finish(dir.path(), recorder, 0);
    assert!(!errors.contains("ends early"), "{errors}");
    assert!(events(dir.path(), &pid) > 0, "{errors}");
}

#[test]
#[ignore = "needs real runtimes: cargo xtask test-record"]
fn a_dotnet_host_is_found() {
    for runtime in [Runtime::Core31, Runtime::Net9] {
        let dir = tempfile::tempdir().unwrap();
        // The host itself: a shell script starts it.
        let script = std::fs::read_to_string(runtime.program()).unwrap();
        let start = script.lines().find_map(|line| line.strip_prefix("exec ")).unwrap();
        let home = runtime.program().parent().unwrap().to_str().unwrap().to_owned();
        let start = start.replace("$HERE", &home).replace(['"', '\''], "");
        let mut args: Vec<&OsStr> = vec!["--keep".as_ref(), "raw".as_ref(), "--".as_ref()];
        args.extend(start.split(' ').map(OsStr::new));
        let mut command = record(dir.path(), &args);
        command.env("TMPDIR", dir.path()).env("WORKLOAD_MODE", "mix").env("WORKLOAD_SECONDS", "2");
        let (errors, _) = finish(dir.path(), Running::spawn(&mut command), 0);
        assert_eq!(dotnet_traces(dir.path()), 1, "{runtime:?}: {errors}");
        assert!(errors.contains("GC"), "{runtime:?}: {errors}");
    }
}

/// The .NET traces that a recording kept.
fn dotnet_traces(dir: &Path) -> usize {
    let kept = std::fs::read_dir(dir.join("raw")).unwrap();
    let names = kept.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.ends_with(".nettrace")).count()
}

/// Records a shell that runs a script, whose first argument is the workload of a runtime.
fn record_script(dir: &Path, runtime: Runtime, script: &str) -> String {
    let mut command = record(dir, &["--keep", "raw", "--", "sh", "-c", script].map(OsStr::new));
    command.arg(runtime.program()).env("TMPDIR", dir);
    command.env("WORKLOAD_MODE", "mix").env("WORKLOAD_SECONDS", "2");
    finish(dir, Running::spawn(&mut command), 0).0
}

#[test]
#[ignore = "needs real runtimes: cargo xtask test-record"]
fn dotnet_children_are_found() {
    for runtime in Runtime::ALL {
        // The second child has another environment, and is found by its socket.
        for environment in ["", "env -u DOTNET_DiagnosticPorts"] {
            let dir = tempfile::tempdir().unwrap();
            let script = format!("{environment} \"$0\"; :");
            let errors = record_script(dir.path(), runtime, &script);
            assert_eq!(dotnet_traces(dir.path()), 1, "{runtime:?} {environment}: {errors}");
            assert!(errors.contains("GC"), "{runtime:?} {environment}: {errors}");
            let left = std::fs::read_dir(dir.path()).unwrap();
            let left = left.map(|entry| entry.unwrap().file_name().into_string().unwrap());
            let left: Vec<_> = left.filter(|name| name.starts_with("triscope-")).collect();
            assert!(left.is_empty(), "{left:?}");
        }
    }
}

/// It cannot reach the port, does not wait for it, and is found by the socket below its own root.
#[test]
#[ignore = "needs real runtimes: cargo xtask test-record"]
fn a_dotnet_child_in_a_mount_namespace_is_found() {
    let private = ["--mount", "sh", "-c", "mount -t tmpfs nodev /tmp"];
    let status = Command::new("unshare").args(private).status();
    if !testkit::skip::can("mount namespaces", status.is_ok_and(|status| status.success())) {
        return;
    }
    for runtime in [Runtime::Core31, Runtime::Net9] {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let script =
            "unshare --mount sh -c 'mount -t tmpfs nodev /tmp; unset TMPDIR; \"$0\"; :' \"$0\"";
        let errors = record_script(dir.path(), runtime, script);
        assert_eq!(dotnet_traces(dir.path()), 1, "{runtime:?}: {errors}");
    }
}

/// What `record --dotnet` keeps is enough for `explain`: a request queues a work item while all workers of
/// the thread pool are blocked.
#[test]
#[ignore = "needs real runtimes: cargo xtask test-record"]
fn a_starved_work_item_is_explained() {
    let dir = tempfile::tempdir().unwrap();
    let options = ["--sched", "--dotnet", "--provider", "Triscope-Answers", "--keep", "raw", "--"];
    let mut command = record(dir.path(), &options.map(OsStr::new));
    command.arg(Runtime::Core31.program()).stdout(Stdio::piped());
    command.env("TMPDIR", dir.path()).env("WORKLOAD_MODE", "answers:starve");
    let mut recorder = Running::spawn(&mut command);
    let output = BufReader::new(recorder.child().stdout.take().unwrap()).lines();
    let printed: Vec<_> = output.map(Result::unwrap).take_while(|line| line != "done").collect();
    // The program ends with its input.
    drop(recorder.child().stdin.take());
    let errors = finish(dir.path(), recorder, 0).0;
    let mut explain = Command::new(env!("CARGO_BIN_EXE_triscope"));
    let explain = explain.args(["explain", "--json", "raw"]).current_dir(dir.path()).output();
    let paths: serde_json::Value = serde_json::from_slice(&explain.unwrap().stdout).unwrap();
    let path = &paths[0];
    assert_eq!(path["name"], "Triscope-Answers/Starve", "{errors}");
    let pieces = path["pieces"].as_array().unwrap();
    let nanos = |of: &serde_json::Value| of["nanos"].as_i64().unwrap();
    assert_eq!(pieces.iter().map(nanos).sum::<i64>(), nanos(path), "{path}");
    // When the item was queued and when it began, by the program's own clock.
    let times = printed.iter().find_map(|line| line.strip_prefix("queued ")).unwrap();
    let (queued, began) = times.split_once(' ').unwrap();
    let waited = began.parse::<i64>().unwrap() - queued.parse::<i64>().unwrap();
    let queued: Vec<_> = pieces.iter().filter(|piece| piece["what"] == "queued").collect();
    let found: i64 = queued.iter().map(|piece| nanos(piece)).sum();
    assert!((found - waited).abs() * 20 <= waited, "{found} of {waited}: {path}");
    let is_starved = |piece: &&&serde_json::Value| {
        piece["text"].as_str().unwrap().contains("thread-pool starvation")
    };
    assert!(queued.iter().any(|piece| is_starved(&piece)), "{path}");
}

/// The installation of .NET Core 3.1 among the targets.
fn core31() -> PathBuf {
    let script = std::fs::read_to_string(Runtime::Core31.program()).unwrap();
    let host = script.lines().find_map(|line| line.strip_prefix("exec '")).unwrap();
    Path::new(host.split_once('\'').unwrap().0).parent().unwrap().to_owned()
}

#[test]
#[ignore = "needs real programs: cargo xtask test-record"]
fn the_demo_has_go_and_dotnet() {
    let dir = tempfile::tempdir().unwrap();
    let path = std::env::join_paths(
        std::env::split_paths(&std::env::var_os("PATH").unwrap())
            .chain([testkit::go::command().parent().unwrap().to_owned()]),
    );
    let mut command = Command::new(env!("CARGO_BIN_EXE_triscope"));
    command.arg("demo").env("PATH", path.unwrap()).env("DOTNET_ROOT", core31());
    let output = command.current_dir(dir.path()).stdin(Stdio::null()).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{errors}");
    assert!(errors.contains(" goroutines of shop (") && errors.contains(" samples ("), "{errors}");
    assert!(!errors.contains("without"), "{errors}");
    assert!(dir.path().join("timeline.html").exists());
}

/// The compiler stamps each assembly with a time and an identifier of its own: what two compilations
/// have in common, the bundled one has, too. `cargo xtask update-golden --record` writes it.
#[test]
#[ignore = "needs a C# compiler: cargo xtask test-record"]
fn the_assembly_of_the_demo_is_that_of_its_source() {
    const REFERENCES: [&str; 10] = [
        "System.Private.CoreLib",
        "System.Runtime",
        "System.Runtime.Extensions",
        "System.Collections",
        "System.Collections.NonGeneric",
        "System.ComponentModel.Primitives",
        "System.Diagnostics.Process",
        "System.Threading",
        "System.Threading.Tasks",
        "System.Threading.Thread",
    ];
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/commands/demo");
    let framework = core31().join("shared/Microsoft.NETCore.App").join(Runtime::Core31.version());
    let compile = || {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("orders.dll");
        let mut mcs = Command::new("mcs");
        mcs.args(["-nologo", "-langversion:7.2", "-nostdlib", "-noconfig", "-optimize+"]);
        for name in REFERENCES {
            mcs.arg(format!("-r:{}", framework.join(format!("{name}.dll")).display()));
        }
        let output =
            mcs.arg(format!("-out:{}", out.display())).arg(demo.join("Orders.cs")).output();
        let output = output.unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        std::fs::read(out).unwrap()
    };
    let (one, two) = (compile(), compile());
    let bundled = demo.join("orders.dll");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&bundled, &one).unwrap();
    }
    let bundled = std::fs::read(bundled).unwrap();
    assert_eq!((one.len(), two.len()), (bundled.len(), bundled.len()));
    let differences = (0..one.len()).filter(|n| one[*n] == two[*n] && one[*n] != bundled[*n]);
    assert_eq!(differences.count(), 0, "cargo xtask update-golden --record");
    let stamps = (0..one.len()).filter(|n| one[*n] != two[*n]).count();
    assert!(stamps <= 20, "a time and an identifier");
}
