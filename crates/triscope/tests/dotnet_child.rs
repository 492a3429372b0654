//! `triscope dotnet` with commands and servers that are no runtime.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used, reason = "these are tests")]

use diag_ipc::message::{Advertise, Command as Ipc, Header, Reply, Request};
use diag_ipc::{Guid, HResult};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use testkit::nettrace;
use testkit::process::{Running, kill, stop};

/// The program, with ports in the temporary directory, and without those of the user.
fn triscope(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_triscope"));
    command.env_remove("XDG_RUNTIME_DIR").env_remove("DOTNET_DiagnosticPorts");
    command.arg("dotnet").args(args).stdin(Stdio::null());
    command
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn wait_for(path: &Path) {
    testkit::wait::until(&path.display().to_string(), || path.exists());
}

#[test]
fn a_command_that_cannot_be_started_has_the_exit_code_of_shells() {
    for (command, code, why) in
        [("no-such-command", 127, "command not found"), ("/etc/passwd", 126, "cannot be run")]
    {
        let output = triscope(&["collect", "-o", "/dev/null", "--", command]).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{}", errors(&output));
        assert!(errors(&output).contains(why), "{}", errors(&output));
    }
}

#[test]
fn a_signal_reaches_a_command_that_is_no_runtime() {
    let dir = tempfile::tempdir().unwrap();
    let (up, down) = (dir.path().join("up"), dir.path().join("down"));
    let script = "trap 'touch \"$2\"; exit 9' TERM; touch \"$1\"; while :; do sleep 0.01; done";
    let mut child = triscope(&["collect", "-o", "/dev/null", "--", "sh", "-c", script, "sh"]);
    let child = Running::start(child.args([&up, &down]).env("TMPDIR", dir.path()));
    wait_for(&up);
    child.signal("TERM");
    let ran = child.end();
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    assert!(ran.stderr.contains("exit status: 9"), "{}", ran.stderr);
    assert!(down.exists(), "the command was not asked to end");
}

/// The directories of ports in this one.
fn ports(dir: &Path) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let is_port = |path: &std::path::PathBuf| {
        path.file_name().unwrap().to_str().unwrap().starts_with("triscope-")
    };
    entries.filter(is_port).collect()
}

/// A process whose number is in a file, which is killed at the end.
struct Numbered<'a>(&'a Path);

impl Drop for Numbered<'_> {
    fn drop(&mut self) {
        if let Ok(pid) = std::fs::read_to_string(self.0) {
            // The test may have failed already.
            let _ = Command::new("kill").args(["-KILL", pid.trim()]).status();
        }
    }
}

/// A runtime connects to its port for as long as it lives: nobody else may create it meanwhile.
#[test]
fn a_port_keeps_its_name_while_a_process_has_it() {
    let dir = tempfile::tempdir().unwrap();
    let (pid, go) = (dir.path().join("pid"), dir.path().join("go"));
    // The command ends before a runtime has come up, and leaves another process.
    let script = "sleep 1000 >/dev/null 2>&1 & echo $! > \"$1.part\"; mv \"$1.part\" \"$1\"; \
                  while ! [ -e \"$2\" ]; do sleep 0.01; done";
    let mut collect = triscope(&["collect", "-o", "/dev/null", "--", "sh", "-c", script, "sh"]);
    let left = Numbered(&pid);
    let collect = Running::start(collect.args([&pid, &go]).env("TMPDIR", dir.path()));
    wait_for(&pid);
    let [port] = &ports(dir.path())[..] else { panic!("no port") };
    // While it is open, no other one gets its number.
    let directory = std::fs::File::open(port).unwrap();
    std::fs::write(&go, "").unwrap();
    let ran = collect.end();
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    // The rescue process binds the port again in the same directory.
    wait_for(&port.join("port"));
    let found = std::fs::symlink_metadata(port).unwrap();
    let was = directory.metadata().unwrap();
    assert_eq!((found.dev(), found.ino()), (was.dev(), was.ino()), "it was free meanwhile");
    assert_eq!(found.mode() & 0o777, 0o700);
    drop(left);
    testkit::wait::until("the end of the port", || ports(dir.path()).is_empty());
}

/// The port of a command whose runtimes do not wait for it.
#[test]
fn a_port_that_nothing_waits_for_keeps_its_name() {
    let dir = tempfile::tempdir().unwrap();
    let directory = dir.path().join("triscope-x");
    std::fs::DirBuilder::new().mode(0o700).create(&directory).unwrap();
    let port = directory.join("port");
    let variable = format!("{},nosuspend", port.display());
    let mut sleep = Command::new("sleep");
    let sleep = Running::spawn(sleep.arg("1000").env("DOTNET_DiagnosticPorts", variable));
    let mut rescue = Command::new(env!("CARGO_BIN_EXE_triscope"));
    rescue.arg("rescue-runtimes").arg(&port).arg("--nosuspend").stdin(Stdio::null());
    let rescue = Running::spawn(&mut rescue);
    // It sleeps between its looks for a process with the port. One that finds none sleeps once, and ends.
    let (mut looks, mut before) = (0, None);
    testkit::wait::until("some looks", || {
        rescue.still_runs();
        let found = switches(rescue.id());
        looks += u32::from(before.replace(found) != Some(found));
        looks > 5
    });
    assert!(directory.exists());
    drop(sleep); // kills it
    rescue.end().is_good();
    assert!(!directory.exists());
}

/// How often a process has gone to sleep.
fn switches(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let found = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    found.unwrap().trim().parse().unwrap()
}

#[test]
fn a_port_is_removed_at_the_end_and_is_in_the_directory_of_the_user() {
    let dir = tempfile::tempdir().unwrap();
    let runtime = dir.path().join("runtime");
    std::fs::DirBuilder::new().mode(0o700).create(&runtime).unwrap();
    let value = dir.path().join("value");
    let script = "echo \"$DOTNET_DiagnosticPorts\" > \"$1\"";
    let mut collect = triscope(&["collect", "-o", "/dev/null", "--", "sh", "-c", script, "sh"]);
    let output = collect.arg(&value).env("XDG_RUNTIME_DIR", &runtime).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", errors(&output));
    let value = std::fs::read_to_string(value).unwrap();
    assert!(Path::new(&value).starts_with(&runtime), "{value}");
    assert!(ports(&runtime).is_empty());
}

/// Reads a request.
fn request(stream: &mut UnixStream) -> Ipc {
    next_request(stream).unwrap()
}

/// `None` if the connection is closed instead.
fn next_request(stream: &mut UnixStream) -> Option<Ipc> {
    let mut header = [0; Header::LEN];
    stream.read_exact(&mut header).ok()?;
    let mut message = header.to_vec();
    message.resize(usize::from(Header::decode(&header).unwrap().size), 0);
    stream.read_exact(&mut message[Header::LEN..]).unwrap();
    Some(Request::decode(&message).unwrap().command())
}

/// The variable with the directory of a [`runtime`], which is this program as a COMMAND.
const RUNTIME: &str = "TRISCOPE_TEST_RUNTIME";

/// Not a test: a program of the others that is suspended at a diagnostic port. With the file `cut`, its
/// session breaks off when it is resumed, and it ends with 5. Otherwise the session lasts until it is
/// stopped, and the program until there is the file `end`, or SIGTERM. With the file `both`, it ends with its session,
/// with 3.
#[test]
fn runtime() {
    let Some(dir) = std::env::var_os(RUNTIME) else { return };
    let dir = Path::new(&dir);
    let asked = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(signal_hook::consts::SIGTERM, Arc::clone(&asked)).unwrap();
    let advertise = Advertise { cookie: Guid::EMPTY, pid: std::process::id().into() }.encode();
    let mut session = None;
    loop {
        // Each request has a connection of its own.
        let mut stream =
            UnixStream::connect(std::env::var("DOTNET_DiagnosticPorts").unwrap()).unwrap();
        stream.write_all(&advertise).unwrap();
        let command = request(&mut stream);
        let reply = match command {
            Ipc::ResumeRuntime => Reply::Ok(&0u32.to_le_bytes()).encode(),
            _ => Reply::Ok(&7u64.to_le_bytes()).encode(),
        };
        stream.write_all(&reply.unwrap()).unwrap();
        match command {
            Ipc::ResumeRuntime if dir.join("cut").exists() => {
                drop(session.take());
                std::process::exit(5);
            }
            Ipc::ResumeRuntime => {}
            Ipc::StopTracing if dir.join("both").exists() => std::process::exit(3),
            Ipc::StopTracing => {
                drop(session.take());
                let is_asked = || asked.load(Ordering::Relaxed);
                testkit::wait::until("the end", || is_asked() || dir.join("end").exists());
                std::process::exit(if is_asked() { 6 } else { 0 });
            }
            _ => session = Some(stream),
        }
    }
}

/// `triscope dotnet` with a [`runtime`] as its COMMAND.
fn with_runtime(dir: &Path, args: &[&str]) -> Command {
    let mut command = triscope(args);
    command.arg("--").arg(std::env::current_exe().unwrap());
    command.args(["--exact", "runtime", "--test-threads=1"]).env(RUNTIME, dir);
    command.env("TMPDIR", dir);
    command
}

/// The variable with the directory of [`two_runtimes`], which are this program as a COMMAND.
const TWO_RUNTIMES: &str = "TRISCOPE_TEST_TWO_RUNTIMES";

/// Not a test: a program of the next one with two runtimes at its diagnostic port. The first one never
/// replies; the file `resumed` says whether it still has its request when the second one is resumed.
#[test]
fn two_runtimes() {
    let Some(dir) = std::env::var_os(TWO_RUNTIMES) else { return };
    let connect = |runtime: u128| {
        let path = std::env::var("DOTNET_DiagnosticPorts").unwrap();
        let mut stream = UnixStream::connect(path).unwrap();
        let advertise =
            Advertise { cookie: Guid::from_u128(runtime), pid: std::process::id().into() };
        stream.write_all(&advertise.encode()).unwrap();
        let command = request(&mut stream);
        (stream, command)
    };
    let (mut hung, _) = connect(1);
    // Keeps its session.
    let mut streams = Vec::new();
    loop {
        let (mut stream, command) = connect(2);
        let reply = Reply::Ok(&7u64.to_le_bytes()).encode().unwrap();
        stream.write_all(&reply).unwrap();
        streams.push(stream);
        if command == Ipc::ResumeRuntime {
            break;
        }
    }
    hung.set_nonblocking(true).unwrap();
    let is_open = hung.read(&mut [0]).is_err_and(|e| e.kind() == std::io::ErrorKind::WouldBlock);
    std::fs::write(Path::new(&dir).join("resumed"), if is_open { "in time" } else { "late" })
        .unwrap();
}

/// Runtimes of a recorded command wait for their port. One of them hangs.
#[test]
fn a_runtime_that_hangs_delays_no_other_of_a_recording() {
    let dir = tempfile::tempdir().unwrap();
    let mut record = Command::new(env!("CARGO_BIN_EXE_triscope"));
    record.env_remove("XDG_RUNTIME_DIR").env_remove("DOTNET_DiagnosticPorts");
    record.args(["record", "--dotnet", "-o", "out.pftrace", "--"]).current_dir(dir.path());
    record.arg(std::env::current_exe().unwrap());
    record.args(["--exact", "two_runtimes", "--test-threads=1"]).env(TWO_RUNTIMES, dir.path());
    let output = record.env("TMPDIR", dir.path()).stdin(Stdio::null()).output().unwrap();
    let resumed = std::fs::read_to_string(dir.path().join("resumed"));
    assert_eq!(resumed.unwrap(), "in time", "{}", errors(&output));
}

#[test]
fn a_command_whose_trace_is_cut_has_its_own_exit_code() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("cut"), "").unwrap();
    let output = with_runtime(dir.path(), &["collect", "-o", "/dev/null"]).output().unwrap();
    let errors = errors(&output);
    assert_eq!(output.status.code(), Some(5), "{errors}");
    assert!(errors.contains("triscope: /dev/null: "), "the failure is named: {errors}");
}

/// It is not ended by triscope, which has stopped the recording.
#[test]
fn a_command_that_ends_with_its_stopped_recording_has_its_own_exit_code() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("both"), "").unwrap();
    let args = ["collect", "-o", "/dev/null", "--duration", "1"];
    let output = with_runtime(dir.path(), &args).output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{}", errors(&output));
}

#[test]
fn a_command_continues_if_nothing_can_be_written() {
    let dir = tempfile::tempdir().unwrap();
    let args = ["counters", "-o", "/dev/full", "--format", "csv"];
    let log = dir.path().join("errors");
    let errors = || std::fs::read_to_string(&log).unwrap();
    let mut command = with_runtime(dir.path(), &args);
    command.stdout(Stdio::null()).stderr(std::fs::File::create(&log).unwrap());
    let child = Running::spawn(&mut command);
    testkit::wait::until("the failure", || errors().contains("the command continues"));
    child.still_runs();
    std::fs::write(dir.path().join("end"), "").unwrap();
    assert_eq!(child.end().code, Some(1), "{}", errors());
}

/// The runtime that a port waited for does not answer.
#[test]
fn a_signal_ends_a_request_at_a_port() {
    let dir = tempfile::tempdir().unwrap();
    let port = dir.path().join("port");
    let args = ["env", "--diagnostic-port", port.to_str().unwrap()];
    let child = Running::spawn(&mut triscope(&args));
    wait_for(&port);
    let connect = || {
        let mut stream = UnixStream::connect(&port).ok()?;
        stream.write_all(&Advertise { cookie: Guid::EMPTY, pid: 1 }.encode()).ok()?;
        Some(stream)
    };
    let mut stream = None;
    testkit::wait::until("the port", || {
        stream = connect();
        stream.is_some()
    });
    let mut stream = stream.unwrap();
    assert_eq!(request(&mut stream), Ipc::ProcessEnvironment);
    ends_by_sigterm(child);
    drop(stream);
}

/// A runtime that is suspended at the port of this command, and refuses sessions. Returns its requests.
fn suspended(args: &[&str]) -> (Vec<Ipc>, String) {
    let dir = tempfile::tempdir().unwrap();
    let (port, log) = (dir.path().join("port"), dir.path().join("log"));
    let mut command = triscope(args);
    command.args(["--diagnostic-port", port.to_str().unwrap()]).current_dir(dir.path());
    command.stdout(Stdio::null()).stderr(std::fs::File::create(&log).unwrap());
    let mut child = Running::spawn(&mut command);
    let mut requests = Vec::new();
    testkit::wait::until("the end", || {
        let advertise = Advertise { cookie: Guid::EMPTY, pid: 1 }.encode();
        let connected = UnixStream::connect(&port)
            .and_then(|mut stream| stream.write_all(&advertise).map(|()| stream));
        if let Ok(mut stream) = connected {
            if let Some(request) = next_request(&mut stream) {
                let reply = match request {
                    Ipc::ResumeRuntime => Reply::Ok(&0u32.to_le_bytes()),
                    _ => Reply::Error { code: HResult::Fail, message: None },
                };
                stream.write_all(&reply.encode().unwrap()).unwrap();
                requests.push(request);
            }
        }
        child.child().try_wait().unwrap().is_some()
    });
    assert_eq!(child.end().code, Some(1));
    (requests, std::fs::read_to_string(&log).unwrap())
}

#[test]
fn a_suspended_runtime_is_resumed_if_its_session_cannot_begin() {
    let resumes = |args: &[&str]| {
        let (requests, errors) = suspended(args);
        assert!(errors.contains("triscope: process "), "{errors}");
        requests.iter().position(|request| *request == Ipc::ResumeRuntime) == Some(1)
            && requests.len() == 2
    };
    assert!(resumes(&["collect", "-o", "out.nettrace"]));
    assert!(resumes(&["events"]));
    let (requests, _) = suspended(&["collect", "-o", "out.nettrace", "--resume-runtime", "false"]);
    assert_eq!(requests.len(), 1, "{requests:?}");
    assert_ne!(requests, [Ipc::ResumeRuntime]);
}

/// A runtime that connects would wait for a trace that nobody writes.
#[test]
fn an_output_that_cannot_be_written_is_an_error_before_a_runtime_connects() {
    let dir = tempfile::tempdir().unwrap();
    let port = dir.path().join("port");
    let run = |args: &[&str]| {
        let output = triscope(args).current_dir(dir.path()).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{}", errors(&output));
        errors(&output)
    };
    for output in ["missing/out.nettrace", "."] {
        let args = ["collect", "-o", output, "--diagnostic-port", port.to_str().unwrap()];
        let errors = run(&args);
        assert!(errors.starts_with(&format!("triscope: {output}: ")), "{errors}");
    }
    run(&["collect", "-o", "missing/out.nettrace", "--", "touch", "ran"]);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

/// The output of a session is more than a pipe holds.
#[test]
fn a_signal_ends_the_output_after_a_session() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("socket");
    let listener = UnixListener::bind(&socket).unwrap();
    let types = [("Microsoft-DotNETCore-SampleProfiler", 0, 0)];
    let sample = |thread| nettrace::event(1, 2000, thread, &[&[2, 0, 0, 0]]);
    let trace = nettrace::trace(&types, &(1..5000).map(sample).collect::<Vec<_>>());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut first = [0; 1];
            // A connection without a request asks who listens.
            if stream.read(&mut first).unwrap() == 0 {
                continue;
            }
            let mut rest = vec![0; 1 << 16];
            let size = stream.read(&mut rest).unwrap();
            // The header alone: the request to resume.
            if size + first.len() == Header::LEN {
                let reply = Reply::Error { code: HResult::UnknownCommand, message: None };
                stream.write_all(&reply.encode().unwrap()).unwrap();
                continue;
            }
            let reply = Reply::Ok(&7u64.to_le_bytes()).encode().unwrap();
            let bytes = [reply, trace.clone()].concat();
            // Meanwhile the client sends other requests, and it may go.
            std::thread::spawn(move || stream.write_all(&bytes));
        }
    });
    let port = format!("{},connect", socket.display());
    let mut stack = triscope(&["stack", "--json", "--diagnostic-port", &port]);
    let mut child = Running::spawn(stack.stdout(Stdio::piped()));
    // The output begins after the session. Nobody reads the rest.
    let mut output = child.child().stdout.take().unwrap();
    output.read_exact(&mut [0]).unwrap();
    ends_by_sigterm(child);
    drop(output);
}

/// Sends SIGTERM to a process, which ends with the exit code of that.
fn ends_by_sigterm(mut child: Running) {
    child.signal("TERM");
    let mut status = None;
    testkit::wait::until("the end", || {
        status = child.child().try_wait().unwrap();
        status.is_some()
    });
    assert_eq!(status.unwrap().code(), Some(128 + 15));
}

/// The variable with the socket of a [`server`], which is this program as a child.
const SOCKET: &str = "TRISCOPE_TEST_SERVER";

/// Not a test: the server of the others.
#[test]
fn server() {
    let Some(path) = std::env::var_os(SOCKET) else { return };
    let path = Path::new(&path);
    let listener = UnixListener::bind(path).unwrap();
    std::fs::write(path.with_extension("up"), "").unwrap();
    // Its first session is the empty one that makes old runtimes describe their types. It stops
    // itself in the second one, when it is resumed.
    let (mut session, mut sessions) = (None, 0);
    for stream in listener.incoming() {
        let mut stream = stream.unwrap();
        let command = request(&mut stream);
        if matches!(command, Ipc::ProcessInfo | Ipc::ProcessInfo2 | Ipc::ProcessInfo3) {
            let reply = Reply::Error { code: HResult::UnknownCommand, message: None };
            stream.write_all(&reply.encode().unwrap()).unwrap();
            continue;
        }
        if command == Ipc::ResumeRuntime {
            stream.write_all(&Reply::Ok(&0u32.to_le_bytes()).encode().unwrap()).unwrap();
            if sessions == 2 {
                kill("STOP", std::process::id());
            }
            continue;
        }
        let reply = Reply::Ok(&7u64.to_le_bytes()).encode().unwrap();
        stream.write_all(&reply).unwrap();
        if command == Ipc::StopTracing {
            std::fs::write(path.with_extension("stopped"), "").unwrap();
            drop(session.take());
            continue;
        }
        let _ = session.insert(stream);
        sessions += 1;
        std::fs::write(path.with_extension("session"), "").unwrap();
    }
}

/// A server as a process of its own, which is killed at the end.
struct Server {
    child: Running,
    dir: tempfile::TempDir,
}

impl Server {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("socket");
        let mut server = Command::new(std::env::current_exe().unwrap());
        server.args(["--exact", "server", "--test-threads=1"]).env(SOCKET, &socket);
        let child = Running::spawn(server.stdout(Stdio::null()));
        wait_for(&socket.with_extension("up"));
        Self { child, dir }
    }

    fn run(&self, verb: &str, args: &[&str]) -> Output {
        let port = format!("{},connect", self.dir.path().join("socket").display());
        triscope(&[verb, "--diagnostic-port", &port]).args(args).output().unwrap()
    }

    fn gcdump(&self, timeout: &str) -> Output {
        self.run("gcdump", &["--timeout", timeout])
    }

    /// Whether this has happened: a session, or its end on request.
    fn has(&self, what: &str) -> bool {
        self.dir.path().join("socket").with_extension(what).exists()
    }
}

#[test]
fn a_heap_dump_of_a_stopped_process_ends_at_the_timeout() {
    let server = Server::start();
    stop(server.child.id());
    let output = server.gcdump("0.5");
    let errors = errors(&output);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    let expected = format!("process {} is stopped", server.child.id());
    assert!(errors.contains(&expected) && errors.contains("within 500ms"), "{errors}");
}

#[test]
fn a_heap_dump_of_a_process_that_stops_meanwhile_ends_at_the_timeout() {
    let server = Server::start();
    // It bounds each reply before that, too.
    let output = server.gcdump("10");
    let errors = errors(&output);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    let expected = format!("process {} is stopped", server.child.id());
    assert!(errors.contains(&expected) && errors.contains("for 10s"), "{errors}");
    assert!(!errors.contains("no heap dump"), "{errors}");
}

#[test]
fn counters_that_cannot_be_written_start_no_session() {
    let server = Server::start();
    for file in ["/nowhere/counters.csv", "/nowhere/counters.prom"] {
        let output = server.run("counters", &["-o", file, "--duration", "0.1"]);
        assert_eq!(output.status.code(), Some(1), "{}", errors(&output));
        assert!(!server.has("session"), "{}", errors(&output));
    }
}

#[test]
fn a_session_is_stopped_if_its_first_line_cannot_be_written() {
    let server = Server::start();
    let output = server.run("counters", &["-o", "/dev/full", "--format", "csv"]);
    assert_eq!(output.status.code(), Some(1), "{}", errors(&output));
    assert!(server.has("session") && server.has("stopped"), "{}", errors(&output));
}

#[test]
fn a_refused_session_leaves_the_file_of_counters_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("counters.csv");
    std::fs::write(&file, "earlier").unwrap();
    let port = dir.path().join("no-socket,connect");
    let mut counters = triscope(&["counters", "--diagnostic-port"]);
    counters.arg(&port).arg("-o").arg(&file);
    let mut is_refused = || {
        let output = counters.output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{}", errors(&output));
    };
    is_refused();
    assert_eq!(std::fs::read(&file).unwrap(), b"earlier");
    std::fs::remove_file(&file).unwrap();
    is_refused();
    assert!(!file.exists(), "it would be empty");
}

#[test]
fn a_heap_that_cannot_be_written_is_not_dumped() {
    let server = Server::start();
    let output = server.run("gcdump", &["-o", "/nowhere/heap.gcdump"]);
    assert_eq!(output.status.code(), Some(1), "{}", errors(&output));
    assert!(!server.has("session"), "{}", errors(&output));
}
