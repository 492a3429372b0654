//! The requests of `triscope dotnet`, as a server that is no runtime gets them.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used, reason = "these are tests")]

use diag_ipc::message::{Command as Ipc, Header, Reply, Request};
use diag_ipc::{EventFilter, HResult, Rundown};
use serde_json::Value;
use std::io::{Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex, mpsc};
use testkit::nettrace::{self, assemble};
use testkit::process::Running;

/// A server in this process.
struct Server {
    dir: tempfile::TempDir,
    requests: Arc<Mutex<Vec<Request>>>,
    /// The size of each reply, and whether all of it was written.
    written: mpsc::Receiver<(usize, bool)>,
}

impl Server {
    /// Replies to each request by `answer`.
    fn start(answer: impl Fn(&Request) -> Vec<u8> + Send + 'static) -> Self {
        let (sender, written) = mpsc::channel();
        let server = Self::serve(move |request, mut stream| {
            let (reply, sender) = (answer(&request), sender.clone());
            // Meanwhile the client can send other requests.
            std::thread::spawn(move || {
                let is_whole = stream.write_all(&reply).is_ok();
                drop(stream);
                let _ = sender.send((reply.len(), is_whole));
            });
        });
        Self { written, ..server }
    }

    /// A server whose sessions begin with `first` and last until they are stopped. Then they have `last`.
    fn lasting(first: Vec<u8>, last: &'static [u8]) -> Self {
        let mut open = None;
        let process = described("10.0.0");
        Self::serve(move |request, mut stream| match request.command() {
            Ipc::CollectTracing | Ipc::CollectTracing2 | Ipc::CollectTracing3 => {
                stream.write_all(&session(&first)).unwrap();
                open = Some(stream);
            }
            Ipc::StopTracing => {
                if let Some(mut session) = open.take() {
                    session.write_all(last).unwrap();
                }
                let reply = Reply::Ok(&7u64.to_le_bytes()).encode().unwrap();
                let _ = stream.write_all(&reply); // a client that fails does not wait for it
            }
            Ipc::ProcessInfo2 => stream.write_all(&process).unwrap(),
            _ => stream.write_all(&unknown()).unwrap(),
        })
    }

    /// Calls `each` with each request and its connection.
    fn serve(mut each: impl FnMut(Request, UnixStream) + Send + 'static) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(dir.path().join("socket")).unwrap();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let received = Arc::clone(&requests);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                // A connection without a request asks who listens.
                let Some(request) = request(&mut stream) else { continue };
                received.lock().unwrap().push(request.clone());
                each(request, stream);
            }
        });
        Self { dir, requests, written: mpsc::channel().1 }
    }

    /// A command with this server as its target, in the server's directory.
    fn command(&self, args: &[&str]) -> Command {
        let port = format!("{},connect", self.dir.path().join("socket").display());
        let mut command = Command::new(env!("CARGO_BIN_EXE_triscope"));
        command.arg("dotnet").args(args).args(["--diagnostic-port", &port]);
        command.current_dir(self.dir.path()).stdin(Stdio::null());
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// The standard output of a command that succeeds.
    fn ok(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert!(output.status.success(), "{args:?}: {}", errors(&output));
        String::from_utf8(output.stdout).unwrap()
    }

    /// The errors of a command that fails.
    fn fails(&self, args: &[&str], code: i32) -> String {
        let output = self.run(args);
        let errors = errors(&output);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {errors}");
        errors
    }

    /// The requests since the last call.
    fn requests(&self) -> Vec<Request> {
        std::mem::take(&mut *self.requests.lock().unwrap())
    }
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn request(stream: &mut UnixStream) -> Option<Request> {
    let mut message = vec![0; Header::LEN];
    stream.read_exact(&mut message).ok()?;
    let header = Header::decode(message[..].try_into().unwrap()).unwrap();
    message.resize(usize::from(header.size), 0);
    stream.read_exact(&mut message[Header::LEN..]).unwrap();
    Some(Request::decode(&message).unwrap())
}

/// The reply to a request whose result is `S_OK`.
fn done() -> Vec<u8> {
    Reply::Ok(&0u32.to_le_bytes()).encode().unwrap()
}

/// The reply to a request that the runtime is too old for.
fn unknown() -> Vec<u8> {
    Reply::Error { code: HResult::UnknownCommand, message: None }.encode().unwrap()
}

/// The reply to `ProcessInfo2` of a runtime of this version.
fn described(version: &str) -> Vec<u8> {
    process(&["app", "Linux", "x64", "app", version])
}

/// The reply to `ProcessInfo2` with a command line, system, architecture, entry assembly and version.
fn process(texts: &[&str]) -> Vec<u8> {
    let mut process = 1u64.to_le_bytes().to_vec();
    process.extend([0; 16]);
    for text in texts {
        process.extend((text.len() as u32 + 1).to_le_bytes());
        process.extend(nettrace::utf16(text));
    }
    Reply::Ok(&process).encode().unwrap()
}

fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// The rest of a name after the beginning and the process id of a server, whose digits are zeros.
fn form(name: &str, beginning: &str) -> String {
    let rest = name.strip_prefix(&format!("{beginning}{}_", std::process::id()));
    let rest = rest.unwrap_or_else(|| panic!("{name}"));
    rest.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect()
}

#[test]
fn a_trace_has_a_default_name_with_the_process() {
    let server = Server::start(|request| match request {
        Request::CollectTracing { .. } => session(&samples(&[1])),
        _ => unknown(),
    });
    server.ok(&["collect"]);
    let files = names(server.dir.path());
    let trace = files.iter().find(|name| *name != "socket").expect("a trace");
    assert_eq!(form(trace, "trace_"), "00000000_000000.nettrace");
}

#[test]
fn a_dump_has_a_default_name_in_this_directory() {
    let server = Server::start(|request| {
        let Request::CreateCoreDump { path, .. } = request else { return unknown() };
        std::fs::write(path, "core").unwrap();
        done()
    });
    let output = server.run(&["dump"]);
    assert!(output.status.success(), "{}", errors(&output));
    let files = names(server.dir.path());
    let core = files.iter().find(|name| *name != "socket").expect("a dump");
    assert_eq!(form(core, "core_"), "00000000_000000");
    let path = server.dir.path().join(core);
    assert!(errors(&output).contains(&format!("{}: 4 bytes", path.display())), "{output:?}");
    let [Request::CreateCoreDump { path: sent, .. }] = &server.requests()[..] else { panic!() };
    assert_eq!(Path::new(sent), path);

    server.ok(&["dump", "-o", "named"]);
    assert_eq!(std::fs::read(server.dir.path().join("named")).unwrap(), b"core");
}

/// The process is not informed that nobody waits any more.
#[test]
fn a_dump_may_still_be_written_after_its_command() {
    let server = || {
        let (end, wait) = mpsc::channel::<()>();
        let server = Server::start(move |request| match request {
            Request::CreateCoreDump { .. } => {
                let _ = wait.recv(); // until the end of the test
                Vec::new()
            }
            _ => unknown(),
        });
        (server, end)
    };
    const NOTE: &str = "the process may still write the dump";
    let (waits, _end) = server();
    let errors = waits.fails(&["dump", "-o", "core", "--timeout", "0.5"], 1);
    assert!(errors.contains("waiting for the reply took longer than 500ms"), "{errors}");
    assert!(errors.contains(NOTE), "{errors}");

    let (waits, _end) = server();
    let child = Running::start(&mut waits.command(&["dump", "-o", "core"]));
    child.wait_until_it_watches();
    child.signal("INT");
    let ran = child.end();
    assert_eq!(ran.code, Some(128 + 2), "{}", ran.stderr);
    assert!(ran.stderr.contains(NOTE), "{}", ran.stderr);
}

/// The trace of a session with these threads, sampled in managed code.
fn samples(threads: &[u64]) -> Vec<u8> {
    let types = [("Microsoft-DotNETCore-SampleProfiler", 0, 0)];
    let sample = |(at, thread): (i64, &u64)| nettrace::event(1, at, *thread, &[&[2, 0, 0, 0]]);
    nettrace::trace(&types, &(2000..).zip(threads).map(sample).collect::<Vec<_>>())
}

/// The reply to a request for a session, and all of its stream.
fn session(trace: &[u8]) -> Vec<u8> {
    [&Reply::Ok(&7u64.to_le_bytes()).encode().unwrap()[..], trace].concat()
}

/// A runtime whose session is closed before its end can crash.
#[test]
fn a_stream_that_is_no_trace_is_read_to_its_end() {
    let server = Server::start(|request| match request {
        // More than the buffers of a socket hold.
        Request::CollectTracing { .. } => session(&vec![b'x'; 8 << 20]),
        Request::StopTracing { session: 7 } => Reply::Ok(&7u64.to_le_bytes()).encode().unwrap(),
        _ => unknown(),
    });
    let errors = server.fails(&["events"], 1);
    assert!(errors.contains("at byte 0"), "{errors}");
    assert!(server.requests().contains(&Request::StopTracing { session: 7 }));
    // Nobody waits for the other reply.
    let stream = server.written.iter().find(|(size, _)| *size > 8 << 20);
    assert_eq!(stream.map(|(_, is_whole)| is_whole), Some(true));
}

/// What has ended is not stopped: its number may be that of another session.
#[test]
fn a_session_that_has_ended_is_not_stopped() {
    let server = Server::start(|request| match request {
        Request::CollectTracing { .. } => {
            let trace = samples(&[1]);
            session(&trace[..trace.len() - 1])
        }
        _ => done(),
    });
    for args in [&["events"][..], &["profile", "-o", "out.folded", "--duration", "3600"]] {
        let errors = server.fails(args, 1);
        assert!(errors.contains("truncated"), "{errors}");
        let requests = server.requests();
        assert!(!requests.contains(&Request::StopTracing { session: 7 }), "{requests:?}");
    }
}

/// Errors of the stream are why nothing is in it.
#[test]
fn commands_that_find_nothing_report_the_errors_of_the_stream() {
    let server = Server::start(|request| match request {
        Request::CollectTracing { .. } => session(b"not a trace"),
        _ => done(),
    });
    let expected = server.fails(&["events"], 1);
    assert!(expected.contains("at byte 0"), "{expected}");
    for args in [&["profile", "-o", "out.folded"][..], &["stack"]] {
        assert_eq!(server.fails(args, 1), expected, "{args:?}");
    }
}

#[test]
fn stacks_have_the_names_of_their_threads() {
    // A thread with a hostile name, as long as the test.
    let (sender, receiver) = mpsc::channel();
    let (_end, wait) = mpsc::channel::<()>();
    let thread = std::thread::Builder::new().name("a\x1b[31m) b".to_owned());
    let body = move || {
        let link = std::fs::read_link("/proc/thread-self").unwrap();
        let id: u64 = link.file_name().unwrap().to_str().unwrap().parse().unwrap();
        sender.send(id).unwrap();
        let _ = wait.recv();
    };
    let _thread = thread.spawn(body).unwrap();
    let named = receiver.recv().unwrap();
    let ended = u64::from(u32::MAX);
    let server = Server::start(move |request| match request {
        Request::CollectTracing { .. } => session(&samples(&[named, ended])),
        _ => done(),
    });
    let text = server.ok(&["stack"]);
    let expected = format!(
        "thread {named} (a\\u{{1b}}[31m) b)  in managed code\n\n\
         thread {ended}  in managed code\n\n"
    );
    assert_eq!(text, expected);

    let json = server.ok(&["stack", "--json"]);
    let threads: Vec<Value> =
        json.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(threads[0]["name"], "a\x1b[31m) b");
    assert_eq!((&threads[1]["tid"], threads[1].get("name")), (&ended.into(), None));
}

/// The process id in the events is another one than that of the socket.
#[test]
fn a_heap_dump_has_the_name_of_the_process_in_a_container() {
    // The first part of the objects: one object.
    let numbers = [0u32, 1].map(u32::to_le_bytes).concat();
    let object = [0x200u64, 24, 1, 0].map(u64::to_le_bytes).concat();
    let nodes = nettrace::event(1, 2000, 1, &[&numbers, &[7, 0], &object]);
    let trace = nettrace::trace(&[("Microsoft-Windows-DotNETRuntime", 18, 0)], &[nodes]);
    let server = Server::start(move |request| match request {
        Request::CollectTracing { .. } => session(&trace),
        _ => unknown(),
    });
    // The heap is incomplete.
    server.fails(&["gcdump", "-o", "heap.gcdump"], 1);
    let file = std::fs::read(server.dir.path().join("heap.gcdump")).unwrap();
    let info = ::nettrace::gcdump::HeapGraph::parse(&file).unwrap().info;
    let own = std::fs::read_to_string("/proc/self/comm").unwrap();
    assert_eq!((info.pid, info.process_name.as_deref()), (42, Some(own.trim_end())));
}

/// All parts of the objects are there. The last part of the roots can be what was lost.
#[test]
fn a_heap_dump_with_losses_is_incomplete() {
    let runtime = "Microsoft-Windows-DotNETRuntime";
    let types = [(runtime, 1, 2), (runtime, 15, 0), (runtime, 18, 0), (runtime, 2, 1)];
    let numbers =
        |numbers: &[u32]| numbers.iter().flat_map(|n| n.to_le_bytes()).collect::<Vec<_>>();
    let described = [&7u64.to_le_bytes()[..], &[0; 17], &nettrace::utf16("Own"), &[0; 4]].concat();
    let object = [0x200u64, 24, 7, 0].map(u64::to_le_bytes).concat();
    let mut events = vec![
        nettrace::event(1, 2000, 1, &[&numbers(&[1, 2, 0, 0]), &[0; 10]]),
        nettrace::event(2, 2001, 1, &[&numbers(&[1]), &[0; 2], &described]),
        nettrace::event(3, 2002, 1, &[&numbers(&[0, 1]), &[0; 2], &object]),
        nettrace::event(4, 2003, 1, &[&numbers(&[1, 2]), &[0; 2]]),
    ];
    let run = |events: &[nettrace::Written]| {
        let trace = nettrace::trace(&types, events);
        let server = Server::start(move |request| match request {
            Request::CollectTracing { .. } => session(&trace),
            _ => unknown(),
        });
        let output = server.run(&["gcdump", "--json"]);
        let value: Value = serde_json::from_slice(&output.stdout).unwrap();
        (output.status.code(), value["complete"].clone(), errors(&output))
    };
    let (code, complete, said) = run(&events);
    assert_eq!((code, complete, said.as_str()), (Some(0), true.into(), ""));
    // One between the objects and the end of the GC.
    events[3].lost = 1;
    let (code, complete, said) = run(&events);
    assert_eq!((code, complete), (Some(1), false.into()), "{said}");
    assert!(said.contains("1 events were lost by the runtime"), "{said}");
    assert!(said.contains("the heap may be incomplete"), "{said}");
}

/// Its references are those after the ones of the objects that are missing.
#[test]
fn references_after_missing_objects_are_unknown() {
    let runtime = "Microsoft-Windows-DotNETRuntime";
    let types = [(runtime, 1, 2), (runtime, 18, 0), (runtime, 19, 0), (runtime, 2, 1)];
    let numbers =
        |numbers: &[u32]| numbers.iter().flat_map(|n| n.to_le_bytes()).collect::<Vec<_>>();
    let object = |address: u64| [address, 24, 7, 1].map(u64::to_le_bytes).concat();
    let references =
        [0x200u64, 0x300, 0x400].map(|to| [&to.to_le_bytes()[..], &[0; 4]].concat()).concat();
    let events = [
        nettrace::event(1, 2000, 1, &[&numbers(&[1, 2, 0, 0]), &[0; 10]]),
        // Parts 0 and 2 of the objects.
        nettrace::event(2, 2001, 1, &[&numbers(&[0, 1]), &[0; 2], &object(0x200)]),
        nettrace::event(2, 2002, 1, &[&numbers(&[2, 1]), &[0; 2], &object(0x400)]),
        nettrace::event(3, 2003, 1, &[&numbers(&[0, 3]), &[0; 2], &references]),
        nettrace::event(4, 2004, 1, &[&numbers(&[1, 2]), &[0; 2]]),
    ];
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), nettrace::trace(&types, &events)).unwrap();
    let mut triscope = Command::new(env!("CARGO_BIN_EXE_triscope"));
    let output = triscope.args(["dotnet", "gcdump"]).arg(file.path()).output().unwrap();
    let errors = errors(&output);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(errors.contains("1 parts lost"), "{errors}");
    assert!(errors.contains(": the references of 1 object are unknown\n"), "{errors}");
}

/// No root leads to it: it was garbage.
#[test]
fn an_object_that_is_not_reachable_is_shown() {
    let runtime = "Microsoft-Windows-DotNETRuntime";
    let types = [(runtime, 1, 2), (runtime, 15, 0), (runtime, 18, 0), (runtime, 2, 1)];
    let numbers =
        |numbers: &[u32]| numbers.iter().flat_map(|n| n.to_le_bytes()).collect::<Vec<_>>();
    let described = [&7u64.to_le_bytes()[..], &[0; 17], &nettrace::utf16("Own"), &[0; 4]].concat();
    let object = [0x200u64, 24, 7, 0].map(u64::to_le_bytes).concat();
    let events = [
        nettrace::event(1, 2000, 1, &[&numbers(&[1, 2, 0, 0]), &[0; 10]]),
        nettrace::event(2, 2001, 1, &[&numbers(&[1]), &[0; 2], &described]),
        nettrace::event(3, 2002, 1, &[&numbers(&[0, 1]), &[0; 2], &object]),
        nettrace::event(4, 2003, 1, &[&numbers(&[1, 2]), &[0; 2]]),
    ];
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), nettrace::trace(&types, &events)).unwrap();
    let run = |args: &[&str]| {
        let mut triscope = Command::new(env!("CARGO_BIN_EXE_triscope"));
        let triscope = triscope.args(["dotnet", "gcdump", "--roots", "Own"]).args(args);
        let output = triscope.arg(file.path()).output().unwrap();
        assert!(output.status.success(), "{}", errors(&output));
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(run(&[]), "Own @ 0x200, 24 bytes (not reachable from a root)\n\n");
    let value: Value = serde_json::from_str(&run(&["--json"])).unwrap();
    let step = serde_json::json!({ "address": 0x200, "type": "Own", "size": 24 });
    assert_eq!(value, serde_json::json!({ "paths": [[step]] }));
    assert_eq!(run(&["--top", "0"]), "");
}

/// Its type can be one without a name.
#[test]
fn an_object_that_is_not_found_can_be_missing() {
    let runtime = "Microsoft-Windows-DotNETRuntime";
    let types = [(runtime, 1, 2), (runtime, 18, 0), (runtime, 2, 1)];
    let numbers =
        |numbers: &[u32]| numbers.iter().flat_map(|n| n.to_le_bytes()).collect::<Vec<_>>();
    let object = [0x200u64, 24, 7, 0].map(u64::to_le_bytes).concat();
    let events = [
        nettrace::event(1, 2000, 1, &[&numbers(&[1, 2, 0, 0]), &[0; 10]]),
        nettrace::event(2, 2001, 1, &[&numbers(&[0, 1]), &[0; 2], &object]),
        nettrace::event(3, 2002, 1, &[&numbers(&[1, 2]), &[0; 2]]),
    ];
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), nettrace::trace(&types, &events)).unwrap();
    let mut triscope = Command::new(env!("CARGO_BIN_EXE_triscope"));
    let triscope = triscope.args(["dotnet", "gcdump", "--roots", "Own"]).arg(file.path());
    let output = triscope.output().unwrap();
    let errors = errors(&output);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(errors.contains("the heap has no object of type Own\n"), "{errors}");
    assert!(errors.contains("the heap walk is incomplete"), "{errors}");
}

#[test]
fn a_heap_does_not_replace_its_trace() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut triscope = Command::new(env!("CARGO_BIN_EXE_triscope"));
    let triscope = triscope.args(["dotnet", "gcdump"]).arg(file.path());
    let output = triscope.arg("-o").arg(file.path()).output().unwrap();
    let errors = errors(&output);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(errors.contains("is the input"), "{errors}");
}

/// The runtime performs the GC before it replies.
#[test]
fn a_heap_dump_whose_gc_takes_too_long_names_the_option() {
    let (_end, wait) = mpsc::channel::<()>();
    // It describes its types in each session.
    let process = described("10.0.0");
    let server = Server::start(move |request| match request.command() {
        Ipc::ProcessInfo2 => process.clone(),
        Ipc::CollectTracing | Ipc::CollectTracing2 | Ipc::CollectTracing3 => {
            let _ = wait.recv(); // until the end of the test
            Vec::new()
        }
        _ => unknown(),
    });
    // Other requests have the same limit.
    let errors = server.fails(&["gcdump", "--timeout", "8"], 1);
    assert!(errors.contains("waiting for the reply took longer than 8s"), "{errors}");
    assert!(errors.contains("raise --timeout"), "{errors}");
}

/// Nothing took too long.
#[test]
fn a_heap_dump_that_is_interrupted_says_so() {
    let trace = samples(&[1]);
    let (last, first) = trace.split_last().unwrap();
    assert_eq!(*last, 1, "the end of a stream");
    let server = Server::lasting(first.to_vec(), &[1]);
    let child = Running::start(&mut server.command(&["gcdump"]));
    child.wait_until_it_watches();
    child.signal("INT");
    let ran = child.end();
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    assert!(ran.stderr.contains("interrupted before the runtime sent the heap"), "{}", ran.stderr);
    assert!(!ran.stderr.contains("--timeout"), "{}", ran.stderr);
}

/// A runtime that is not resumed records nothing.
#[test]
fn a_recording_that_cannot_begin_leaves_no_file() {
    let server = Server::start(|request| match request {
        Request::CollectTracing { .. } => session(&samples(&[1])),
        Request::ResumeRuntime => {
            Reply::Error { code: HResult::Fail, message: None }.encode().unwrap()
        }
        _ => unknown(),
    });
    for args in [&["collect"][..], &["collect", "-o", "new"]] {
        server.fails(args, 1);
        assert_eq!(names(server.dir.path()), ["socket"], "{args:?}");
    }
}

#[test]
fn the_rundown_has_the_keywords_of_the_option() {
    let server = Server::start(|request| match request {
        Request::CollectTracing { .. } => session(&samples(&[1])),
        _ => unknown(),
    });
    let sent = |options: &[&str]| {
        server.ok(&[&["collect", "-o", "trace"], options].concat());
        let requests = server.requests();
        let config = requests.iter().find_map(|request| match request {
            Request::CollectTracing { config, .. } => Some(config.rundown),
            _ => None,
        });
        config.expect("a session")
    };
    assert_eq!(sent(&[]), Rundown::Default);
    assert_eq!(sent(&["--rundown-keywords", "0x118"]), Rundown::Keywords(0x118));
    assert_eq!(sent(&["--rundown-keywords", "8", "--rundown"]), Rundown::Keywords(8));
    let profile = sent(&["--rundown-keywords", "A8", "--profile", "gc-collect"]);
    assert_eq!(profile, Rundown::Keywords(0xa8));

    for bad in ["", "0x", "xyz", "+8", "-8", "10000000000000000", "0x0x8"] {
        let option = format!("--rundown-keywords={bad}");
        let errors = server.fails(&["collect", "-o", "trace", &option], 2);
        assert!(errors.contains("expected a hexadecimal number"), "{errors}");
    }
    let both = ["collect", "-o", "trace", "--rundown-keywords", "8", "--rundown", "false"];
    assert!(server.fails(&both, 2).contains("--rundown false records none"));
    assert_eq!(server.requests(), []);
}

/// Keywords that a runtime does not support are an error, and not another rundown.
#[test]
fn keywords_of_the_rundown_are_not_dropped() {
    let server = Server::start(|request| match request.command() {
        Ipc::CollectTracing | Ipc::CollectTracing2 | Ipc::CollectTracing3 => {
            session(&samples(&[1]))
        }
        _ => unknown(),
    });
    let errors = server.fails(&["collect", "-o", "trace", "--rundown-keywords", "8"], 1);
    assert!(errors.contains("a rundown keyword") && errors.contains(".NET 9"), "{errors}");
    // Those of a profile are.
    server.ok(&["collect", "-o", "trace", "--profile", "gc-collect"]);
}

/// As dotnet-trace does. Nothing is known about the process at the other end of a port.
#[test]
fn a_runtime_that_listens_at_a_port_is_resumed() {
    let server = Server::start(|request| match request {
        Request::CollectTracing { .. } => session(&samples(&[1])),
        Request::ResumeRuntime => done(),
        _ => unknown(),
    });
    let position = |is: fn(&Request) -> bool, requests: &[Request]| requests.iter().position(is);
    for args in [&["collect", "-o", "trace"][..], &["events"], &["counters", "-o", "values.csv"]] {
        server.ok(args);
        let requests = server.requests();
        let session = position(|r| matches!(r, Request::CollectTracing { .. }), &requests);
        let resume = position(|r| *r == Request::ResumeRuntime, &requests);
        assert!(session.is_some() && session < resume, "{args:?}: {requests:?}");
    }
    server.ok(&["collect", "-o", "trace", "--resume-runtime", "false"]);
    assert!(!server.requests().contains(&Request::ResumeRuntime));
}

/// Those of counters have no keywords. A session with all others slows the program.
#[test]
fn a_source_of_counters_is_enabled_without_its_other_events() {
    let server = Server::start(|request| match request {
        Request::CollectTracing { .. } => session(&samples(&[1])),
        _ => unknown(),
    });
    for (args, expected) in [
        (&[][..], &["System.Runtime:0x0:4:EventCounterIntervalSec=1"][..]),
        (
            &["--counters", "App[a],Other", "--interval", "5"],
            &["App:0x0:4:EventCounterIntervalSec=5", "Other:0x0:4:EventCounterIntervalSec=5"],
        ),
    ] {
        server.ok(&[&["counters", "-o", "values.csv"], args].concat());
        let requests = server.requests();
        let config = requests.iter().find_map(|request| match request {
            Request::CollectTracing { config, .. } => Some(config),
            _ => None,
        });
        let sent = config.expect("a session").providers.iter().map(ToString::to_string);
        assert_eq!(sent.collect::<Vec<_>>(), expected);
    }
}

/// A stream with these events of `System.Diagnostics.Metrics`, without its end.
fn reports(names: &[&str]) -> Vec<u8> {
    let (mut types, mut events) = (Vec::new(), Vec::new());
    for (number, name) in (1u8..).zip(names) {
        let provider = "System.Diagnostics.Metrics";
        let mut ty = assemble::metadata(provider, number.into(), 0, name, 0, &[0; 4]);
        ty[0] = number;
        types.extend(assemble::blob(&[0x80, 0], &ty));
        events.extend(assemble::blob(&[0xc7, number, 0, 9, 0, 9, 5], &[]));
    }
    let stream = assemble::Stream::v4().compressed("MetadataBlock", &types);
    stream.compressed("EventBlock", &events).0
}

const CONFLICT: &str = "MultipleSessionsConfiguredIncorrectlyError";

/// There will be no values, and the session has no end.
#[test]
fn meters_that_another_session_has_are_an_error_at_once() {
    let server = Server::lasting(reports(&[CONFLICT]), &[1]);
    let errors = server.fails(&["counters", "--meter", "Shop", "-o", "values.csv"], 1);
    assert!(errors.contains("another session has other meters or settings"), "{errors}");
    assert!(server.requests().contains(&Request::StopTracing { session: 7 }), "{errors}");
}

#[test]
fn reports_of_the_runtime_are_shown_when_they_come() {
    let server = Server::lasting(reports(&[CONFLICT, "TimeSeriesLimitReached", "Error"]), &[1]);
    let log = server.dir.path().join("errors");
    let errors = || std::fs::read_to_string(&log).unwrap();
    let args = ["counters", "--meter", "Shop", "--counters", "App", "-o", "values.csv"];
    let mut command = server.command(&args);
    command.stdout(Stdio::null()).stderr(std::fs::File::create(&log).unwrap());
    let child = Running::spawn(&mut command);
    let said = [
        "another session has other meters or settings",
        "does not collect all time series",
        "reported 1 error of meters",
    ];
    testkit::wait::until("the reports", || said.iter().all(|said| errors().contains(said)));
    child.wait_until_it_watches();
    child.signal("INT");
    assert_eq!(child.end().code, Some(0), "{}", errors());
    for said in said {
        assert_eq!(errors().matches(said).count(), 1, "{}", errors());
    }
}

/// A stream with one GC, without its end. Only the first event is marked as sorted, as in a batch of one thread.
fn one_gc() -> Vec<u8> {
    let numbered = |size: usize| [&1u32.to_le_bytes()[..], &vec![0; size]].concat();
    // Its start, its end, and the sizes of the heap.
    let written = [(1, 2, numbered(22)), (2, 1, numbered(6)), (4, 1, vec![0; 94])];
    let (mut types, mut events) = (Vec::new(), Vec::new());
    for (number, (event, version, payload)) in (1u8..).zip(&written) {
        let runtime = "Microsoft-Windows-DotNETRuntime";
        let mut ty = assemble::metadata(runtime, *event, *version, "", 0, &[0; 4]);
        ty[0] = number;
        types.extend(assemble::blob(&[0x80, 0], &ty));
        let flags = if number == 1 { 0xc7 } else { 0x87 };
        events.extend(assemble::blob(&[flags, number, 0, 9, 0, 9, 5], payload));
    }
    let stream = assemble::Stream::v4().compressed("MetadataBlock", &types);
    stream.compressed("EventBlock", &events).0
}

/// Its runtime writes nothing more until it has another event.
#[test]
fn a_gc_of_an_idle_process_is_printed() {
    let server = Server::lasting(one_gc(), &[1]);
    let printed = server.dir.path().join("gcs");
    let errors = server.dir.path().join("errors");
    let read = |path: &Path| std::fs::read_to_string(path).unwrap();
    let mut command = server.command(&["gc", "--json"]);
    command.stdout(std::fs::File::create(&printed).unwrap());
    command.stderr(std::fs::File::create(&errors).unwrap());
    let child = Running::spawn(&mut command);
    testkit::wait::until("the GC", || read(&printed).contains(r#""number":1"#));
    child.wait_until_it_watches();
    child.signal("INT");
    assert_eq!(child.end().code, Some(0), "{}", read(&errors));
    assert_eq!((read(&printed).lines().count(), read(&errors)), (1, String::new()));
}

/// The arguments of the provider of meters that were sent.
fn meters(requests: &[Request]) -> std::collections::HashMap<String, String> {
    let provider = requests.iter().find_map(|request| match request {
        Request::CollectTracing { config, .. } => {
            config.providers.iter().find(|p| p.name == "System.Diagnostics.Metrics")
        }
        _ => None,
    });
    let pairs = provider.expect("meters").arguments.split(';');
    pairs.map(|pair| pair.split_once('=').unwrap()).map(|(k, v)| (k.into(), v.into())).collect()
}

/// The runtime counts a client once, and processes in two containers can have the same id.
#[test]
fn clients_of_meters_have_different_ids() {
    let server = Server::start(|request| match request {
        Request::CollectTracing { .. } => session(&samples(&[1])),
        _ => unknown(),
    });
    let ids = [(); 2].map(|()| {
        server.ok(&["counters", "--meter", "Shop", "-o", "values.csv"]);
        let id = meters(&server.requests())["ClientId"].clone();
        assert!(id.len() == 16 && id.chars().all(|c| c.is_ascii_hexdigit()), "{id}");
        id
    });
    assert_ne!(ids[0], ids[1]);
}

/// Before .NET 8, a session with the id of the running one is refused as others are, and nothing shows it.
#[test]
fn meters_have_a_shared_session_where_there_are_any() {
    for (version, is_shared) in
        [(None, false), (Some("7.0.20"), false), (Some("8.0.0"), true), (Some("10.0.1"), true)]
    {
        let described = version.map_or_else(unknown, described);
        let server = Server::start(move |request| match request.command() {
            Ipc::ProcessInfo2 => described.clone(),
            Ipc::CollectTracing2 => session(&samples(&[1])),
            _ => unknown(),
        });
        server.ok(&["counters", "--meter", "Shop", "-o", "values.csv"]);
        let sent = meters(&server.requests());
        assert_eq!(sent["SessionId"] == "SHARED", is_shared, "{version:?}: {sent:?}");
        assert_eq!((&*sent["Metrics"], &*sent["RefreshInterval"]), ("Shop", "1"));
    }
}

/// A short program ends before it is asked whether it runs.
#[test]
fn a_program_that_has_ended_was_resumed() {
    let server = Server::start(|request| match request {
        Request::ResumeRuntime => done(),
        // The connection is closed.
        _ => Vec::new(),
    });
    assert_eq!(server.ok(&["resume"]), "");
    let requests = server.requests();
    assert_eq!(requests.first(), Some(&Request::ResumeRuntime));
    assert!(requests.len() > 1, "{requests:?}");

    // One that was not resumed fails.
    let server = Server::start(|_| Vec::new());
    server.fails(&["resume"], 1);
}

/// Runtimes refuse it with this code. The variable is as it should be, and the others are set.
#[test]
fn a_variable_that_is_not_set_can_be_unset() {
    let server = Server::start(|request| match request {
        Request::SetEnvironmentVariable { name, .. } if name == "ABSENT" => {
            let code = HResult::from(0x8007_00cb);
            Reply::Error { code, message: None }.encode().unwrap()
        }
        Request::SetEnvironmentVariable { .. } => done(),
        _ => unknown(),
    });
    let output = server.run(&["set-env", "ABSENT", "OTHER=1"]);
    assert!(output.status.success(), "{}", errors(&output));
    assert!(errors(&output).contains("ABSENT is not set"), "{}", errors(&output));
    let set = |name: &str, value: &str| Request::SetEnvironmentVariable {
        name: name.to_owned(),
        value: value.to_owned(),
    };
    assert_eq!(server.requests(), [set("ABSENT", ""), set("OTHER", "1")]);
    // One that cannot be set is a failure.
    server.fails(&["set-env", "ABSENT=1"], 1);
}

const CLASS: &str = "cf0d821e-299b-5307-a3d8-b283c03916dd";

#[test]
fn a_profiler_is_attached_by_its_class_and_path() {
    let server = Server::start(|_| done());
    let library = server.dir.path().join("profiler.so");
    std::fs::write(&library, "").unwrap();
    let path = library.to_str().unwrap();
    server.ok(&["profiler", "attach", CLASS, path]);
    server.ok(&["profiler", "attach", CLASS, path, "--timeout", "0.5"]);
    let attach = |timeout_ms| Request::AttachProfiler {
        timeout_ms,
        clsid: CLASS.parse().unwrap(),
        path: path.to_owned(),
        client_data: Vec::new(),
    };
    assert_eq!(server.requests(), [attach(10_000), attach(500)]);
}

#[test]
fn a_profiler_is_refused_before_a_request() {
    let server = Server::start(|_| done());
    std::fs::write(server.dir.path().join("profiler.so"), "").unwrap();
    for command in ["attach", "startup"] {
        let fails = |class, path: &str, code| {
            let errors = server.fails(&["profiler", command, class, path], code);
            assert_eq!(server.requests(), [], "{errors}");
            errors
        };
        assert!(fails(CLASS, "profiler.so", 2).contains("expected an absolute path"));
        assert!(fails("Profiler", "/profiler.so", 2).contains("not a GUID"));
        assert!(fails(CLASS, "/nowhere/profiler.so", 1).contains("has no such file"));
        let directory = server.dir.path().to_str().unwrap();
        assert!(fails(CLASS, directory, 1).contains("is not a regular file"));
    }
}

#[test]
fn a_startup_profiler_needs_a_suspended_runtime() {
    let library = tempfile::NamedTempFile::new().unwrap();
    let path = library.path().to_str().unwrap();
    let command = ["profiler", "startup", CLASS, path];

    // .NET Core 3.1, which cannot be suspended.
    let server = Server::start(|request| match request {
        Request::StartupProfiler { .. } => done(),
        _ => unknown(),
    });
    assert!(server.fails(&command, 1).contains("is not suspended at startup"));
    let is_sent = |request: &Request| matches!(request, Request::StartupProfiler { .. });
    assert!(!server.requests().iter().any(is_sent));

    // Nothing shows whether this process is a runtime that runs.
    let process = described("10.0.0");
    let server = Server::start(move |request| match request.command() {
        Ipc::ProcessInfo2 => process.clone(),
        Ipc::StartupProfiler => done(),
        _ => unknown(),
    });
    server.ok(&command);
    let startup = Request::StartupProfiler { clsid: CLASS.parse().unwrap(), path: path.to_owned() };
    assert_eq!(server.requests().last(), Some(&startup));
}

/// A container that shares a temporary directory with others has their sockets, and no process of them.
#[test]
fn sockets_of_processes_that_are_not_visible_are_listed() {
    let dir = tempfile::tempdir().unwrap();
    let socket = |pid: u32| dir.path().join(format!("dotnet-diagnostic-{pid}-1-socket"));
    let (listens, refuses) = (socket(999_999), socket(999_998));
    let _listener = UnixListener::bind(&listens).unwrap();
    drop(UnixListener::bind(&refuses).unwrap());
    let ps = |command: &mut Command| {
        let command = command.env("TMPDIR", dir.path()).stdin(Stdio::null());
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", errors(&output));
        output
    };
    let triscope = env!("CARGO_BIN_EXE_triscope");
    let output = ps(Command::new(triscope).args(["dotnet", "ps", "--json"]));
    let list: Value = serde_json::from_slice(&output.stdout).unwrap();
    let unseen = list["unseen_sockets"].as_array().unwrap();
    assert_eq!(unseen.len(), 1, "{list}");
    assert_eq!(unseen[0]["socket"].as_str(), listens.to_str());
    assert_eq!(unseen[0]["listener_pid"], std::process::id());
    assert_eq!(list["stale_sockets"], serde_json::json!([refuses]));
    let said = errors(&output);
    let of = format!("{} (of process {})", listens.display(), std::process::id());
    assert!(
        said.contains("processes that are not in the list: 1: use --diagnostic-port"),
        "{said}"
    );
    assert!(said.contains(&of), "{said}");

    // In a PID namespace of its own.
    const UNSHARE: [&str; 6] =
        ["--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc"];
    let possible = Command::new("unshare").args(UNSHARE).arg("true").output();
    if !testkit::skip::can("a PID namespace", possible.is_ok_and(|ran| ran.status.success())) {
        return;
    }
    let command = [triscope, "dotnet", "ps", "--json"];
    let output = ps(Command::new("unshare").args(UNSHARE).args(command));
    let list: Value = serde_json::from_slice(&output.stdout).unwrap();
    let unseen = &list["unseen_sockets"];
    assert_eq!(unseen[0]["socket"].as_str(), listens.to_str(), "{list}");
    assert_eq!((&unseen[0]["listener_pid"], unseen.get(1)), (&Value::Null, None), "{list}");
    let said = errors(&output);
    assert!(
        said.contains("sockets of processes in another PID namespace: 1: use --diagnostic-port"),
        "{said}"
    );
}

#[test]
fn a_list_of_sockets_that_is_cut_off_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let listen = |pid: u32| {
        let name = format!("dotnet-diagnostic-{pid}-1-socket");
        UnixListener::bind(dir.path().join(name)).unwrap()
    };
    let mut listeners: Vec<_> = (999_001..).take(256).map(listen).collect();
    let ps = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_triscope"));
        command.args(["dotnet", "ps", "--json"]).env("TMPDIR", dir.path()).stdin(Stdio::null());
        let output = command.output().unwrap();
        let list: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(list["unseen_sockets"].as_array().unwrap().len(), 256, "{list}");
        (list["more_unseen_sockets"].as_bool().unwrap(), errors(&output))
    };
    let (more, said) = ps();
    assert!(!more && !said.contains("more such sockets"), "{said}");
    listeners.push(listen(999_999));
    let (more, said) = ps();
    assert!(more && said.contains("there may be more such sockets"), "{said}");
}

/// The variable that makes the next test a process with a diagnostic server: the name of its assembly.
const ASSEMBLY: &str = "TRISCOPE_TEST_ASSEMBLY";

/// The name is that of no program.
#[test]
fn a_process_is_found_by_its_entry_assembly() {
    if let Some(assembly) = std::env::var_os(ASSEMBLY) {
        return serve_as(assembly.to_str().unwrap());
    }
    let dir = tempfile::tempdir().unwrap();
    let assembly = format!("Own.App{}", std::process::id());
    let mut child = Running::start(
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "a_process_is_found_by_its_entry_assembly", "--nocapture"])
            .env("TMPDIR", dir.path())
            .env(ASSEMBLY, &assembly)
            .stdin(Stdio::null()),
    );
    child.wait_for("it listens");
    let info = |name: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_triscope"));
        let command = command.args(["dotnet", "info", "--json", "-n", name]).stdin(Stdio::null());
        command.output().unwrap()
    };
    // Its reply has a short time limit, which a loaded machine can exceed.
    let mut output = info(&assembly);
    testkit::wait::until("a reply of the process", || {
        if !output.status.success() {
            output = info(&assembly);
        }
        output.status.success()
    });
    let info_of: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(info_of["entry_assembly"], assembly);
    // Not by a part of its name.
    let output = info("Own");
    assert!(errors(&output).contains("there is no .NET process called Own"), "{output:?}");
}

/// Serves as the runtime of this process, whose temporary directory is that of its environment, until it is killed.
fn serve_as(assembly: &str) {
    let read = |name: &str| std::fs::read(format!("/proc/self/{name}")).unwrap();
    let pid = trace_common::innermost_pid(&read("status")).unwrap();
    let key = trace_common::start_ticks(&read("stat")).unwrap();
    let name = format!("dotnet-diagnostic-{pid}-{key}-socket");
    let listener = UnixListener::bind(std::env::temp_dir().join(name)).unwrap();
    println!("it listens");
    let info = process(&["app", "Linux", "x64", assembly, "10.0.0"]);
    for stream in listener.incoming() {
        let mut stream = stream.unwrap();
        let Some(request) = request(&mut stream) else { continue };
        let reply = match request.command() {
            Ipc::ProcessInfo2 => info.clone(),
            _ => unknown(),
        };
        let _ = stream.write_all(&reply); // nobody may wait for it
    }
}

/// The session lasts until it is stopped.
#[test]
fn a_recording_ends_at_its_event() {
    const PROVIDER: &str = "System.Diagnostics.Metrics";
    let (first, last) = (reports(&["Before", "Request/Stop", "After"]), b"\x01");
    let server = Server::lasting(first.clone(), last);
    let event = format!("{PROVIDER}/Request/Stop");
    let args = ["collect", "-o", "trace", "--providers", PROVIDER, "--stopping-event", &event];
    let output = server.run(&args);
    let said = errors(&output);
    assert!(output.status.success(), "{said}");
    assert!(said.contains(&format!(", stopped by {event}")), "{said}");
    assert!(server.requests().contains(&Request::StopTracing { session: 7 }), "{said}");
    let trace = std::fs::read(server.dir.path().join("trace")).unwrap();
    assert_eq!(trace, [&first[..], last].concat());

    for (event, expected) in [
        ("Other/Stop", "the provider Other is not enabled"),
        ("Other", "expected PROVIDER/EVENT"),
        ("Other/Stop,a", "is not FIELD:VALUE"),
    ] {
        let errors = server.fails(&[&args[..6], &[event]].concat(), 2);
        assert!(errors.contains(expected), "{errors}");
    }
    assert_eq!(server.requests(), []);
}

/// The event is in what the runtime sends after the end was requested.
#[test]
fn an_event_after_the_time_limit_has_not_stopped_the_recording() {
    const PROVIDER: &str = "System.Diagnostics.Metrics";
    let mut first = reports(&["Before", "Request/Stop"]);
    let end = first.split_off(first.len() - 5);
    let server = Server::lasting(first, [&end[..], b"\x01"].concat().leak());
    let event = format!("{PROVIDER}/Request/Stop");
    let args = ["collect", "-o", "trace", "--providers", PROVIDER, "--duration", "1"];
    let output = server.run(&[&args[..], &["--stopping-event", &event]].concat());
    let said = errors(&output);
    assert!(output.status.success(), "{said}");
    assert!(said.contains(&format!(", with {event}")), "{said}");
}

#[test]
fn a_stopping_event_has_the_values_of_its_fields() {
    let runtime = "Microsoft-Windows-DotNETRuntime";
    // The GC of generation 2 with the number 1.
    let numbers = [1u32, 2, 0, 0].map(u32::to_le_bytes).concat();
    let start = nettrace::event(1, 2000, 1, &[&numbers, &[0; 10]]);
    let trace = nettrace::trace(&[(runtime, 1, 2)], &[start]);
    let said = |stream: &[u8], event: &str| {
        let reply = session(stream);
        let server = Server::start(move |request| match request {
            Request::CollectTracing { .. } => reply.clone(),
            _ => unknown(),
        });
        let event = format!("{runtime}/{event}");
        let profile = ["collect", "-o", "trace", "--profile", "gc-collect"];
        let output = server.run(&[&profile[..], &["--stopping-event", &event]].concat());
        assert_eq!(std::fs::read(server.dir.path().join("trace")).unwrap(), stream, "{event}");
        errors(&output)
    };
    for event in ["GCStart", "GCStart,Depth:2", "GCStart,Count:1,Depth:2"] {
        let said = said(&trace, event);
        // The session ends at once: whether the request to stop comes first is open.
        let is_there = ["stopped by", "with"]
            .map(|how| format!(", complete, {how} {runtime}/{event}"))
            .iter()
            .any(|note| said.contains(note));
        assert!(is_there, "{said}");
    }
    for event in ["GCEnd", "GCStart,Depth:1", "GCStart,Depth:20", "GCStart,Other:2"] {
        let said = said(&trace, event);
        assert!(said.contains(&format!(", complete, without {runtime}/{event}")), "{said}");
    }
    // What cannot be parsed is recorded.
    let said = said(&[b'x'; 1000], "GCStart");
    assert!(said.contains("GCStart not found: 1 error in the stream"), "{said}");
}

#[test]
fn ids_of_events_are_sent_to_the_runtime() {
    let server = Server::start(|request| match request.command() {
        Ipc::CollectTracing5 => session(&samples(&[1])),
        _ => unknown(),
    });
    let own = ["collect", "-o", "trace", "--providers", "Own,Other"];
    let filters = |ids: &[&str]| {
        let ids = ids.iter().flat_map(|ids| ["--event-ids", ids]);
        server.ok(&own.iter().copied().chain(ids).collect::<Vec<_>>());
        let requests = server.requests();
        let sent = requests.iter().rev().find_map(|request| match request {
            Request::CollectTracing { config, .. } => Some((request.command(), config)),
            _ => None,
        });
        let (command, config) = sent.expect("a session");
        assert_eq!(command, Ipc::CollectTracing5);
        config.providers.iter().map(|provider| provider.filter.clone()).collect::<Vec<_>>()
    };
    let filter = |enable, ids: &[u32]| Some(EventFilter::new(enable, ids));
    assert_eq!(filters(&["own=1,2"]), [filter(true, &[1, 2]), None]);
    assert_eq!(filters(&["Other=-7", "Own=1"]), [filter(true, &[1]), filter(false, &[7])]);

    for (ids, expected) in [
        (&["Unknown=1"][..], "the provider Unknown is not enabled"),
        (&["Own=1", "own=2"], "the provider own has ids twice"),
        (&["Own"], "expected PROVIDER=IDS"),
        (&["Own=x"], "is not the id of an event"),
    ] {
        let ids = ids.iter().flat_map(|ids| ["--event-ids", ids]);
        let errors = server.fails(&own.iter().copied().chain(ids).collect::<Vec<_>>(), 2);
        assert!(errors.contains(expected), "{errors}");
    }
    assert_eq!(server.requests(), []);

    let server = Server::start(|request| match request.command() {
        Ipc::CollectTracing4 => session(&samples(&[1])),
        _ => unknown(),
    });
    let errors = server.fails(&[&own[..], &["--event-ids", "Own=1"]].concat(), 1);
    assert!(errors.contains("an event filter") && errors.contains(".NET 10"), "{errors}");
}
