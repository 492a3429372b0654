//! Streams: complete or truncated, and never a deadlock.

use super::*;
use diag_ipc::{
    Error, HResult, Level, Operation, Provider, Rundown, Timeouts, TracingConfig, TruncationReason,
};
use std::io::Read as _;
use std::time::Duration;

fn workload() -> TracingConfig {
    TracingConfig::new([Provider::new("Triscope-Workload")]).buffer_mb(16)
}

/// Keeps a stream, and calls a function when it holds all of some texts.
struct Awaits<'a, F> {
    stream: Vec<u8>,
    texts: &'a [&'a str],
    /// How much of the stream does not hold the first of them.
    searched: usize,
    call: Option<F>,
}

impl<'a, F: FnOnce()> Awaits<'a, F> {
    fn new(texts: &'a [&'a str], call: F) -> Self {
        Self { stream: Vec::new(), texts, searched: 0, call: Some(call) }
    }
}

impl<F: FnOnce()> std::io::Write for Awaits<'_, F> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.stream.extend(bytes);
        while let [text, rest @ ..] = self.texts {
            if !holds(&self.stream[self.searched..], text) {
                // The text may begin at the end of what there is, and has at most 2 bytes a byte.
                self.searched = self.stream.len().saturating_sub(2 * text.len());
                return Ok(bytes.len());
            }
            self.texts = rest;
            self.searched = 0;
        }
        if let Some(call) = self.call.take() {
            call();
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
#[ignore = "needs real runtimes: cargo xtask test-runtimes"]
fn a_session_is_stopped_from_another_thread() {
    for runtime in Runtime::ALL {
        let target = Checked::start(Target::of(runtime).mode("mix"));
        let session = target.client().collect_tracing(&workload()).unwrap();
        let stop_handle = session.stop_handle();
        let (seen, wait) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            wait.recv().unwrap();
            stop_handle.stop().unwrap();
            stop_handle.stop().unwrap(); // once is enough, twice is no harm
            stop_handle
        });
        let mut out = Awaits::new(&["héllo-😀-"], || seen.send(()).unwrap());
        let end = session.record(&mut out);
        let stream = out.stream;
        assert!(end.is_complete(), "{runtime:?}: {end}");
        assert!(matches!(end.stop, Some(Ok(()))), "{runtime:?}: {end:?}");
        assert_eq!(end.bytes, stream.len() as u64);
        assert!(stream.starts_with(b"Nettrace"));
        assert!(holds(&stream, "héllo-😀-"), "{runtime:?}");
        // The rundown names what the stacks point at.
        assert!(holds(&stream, "Burn"), "{runtime:?}");
        // What has ended is not stopped again: its number may be another session's.
        thread.join().unwrap().stop().unwrap();
    }
}

#[test]
#[ignore = "needs real runtimes: cargo xtask test-runtimes"]
fn stopping_before_reading_cannot_deadlock() {
    for runtime in Runtime::ALL {
        let target = Checked::start(Target::of(runtime).mode("flood:2:2000:0"));
        let flood = TracingConfig::new([Provider::new("Triscope-Workload")]).buffer_mb(64);
        let session = target.client().collect_tracing(&flood).unwrap();
        // A block of the runtime is larger than what the socket holds: a writer that has filled most
        // of it waits for a reader.
        testkit::wait::until("the runtime fills the socket", || {
            rustix::io::ioctl_fionread(session.as_fd().unwrap()).unwrap() > 1 << 16
        });
        // The trap: a reply that only comes when the stream has been read. It is bounded.
        let timeouts = Timeouts::default().reply(Duration::from_millis(500));
        match target.client().timeouts(timeouts).stop_tracing(session.id()) {
            Err(Error::Timeout { operation: Operation::Reply, .. }) => {}
            other => panic!("{runtime:?}: {other:?}"),
        }
        let mut stream = Vec::new();
        let end = session.stop_into(&mut stream);
        assert!(end.is_complete(), "{runtime:?}: {end:?}");
        // More than the socket holds, so that somebody had to read.
        assert!(stream.len() > 1 << 18, "{runtime:?}: {} bytes", stream.len());
    }
}

#[test]
#[ignore = "needs real runtimes: cargo xtask test-runtimes"]
fn sessions_in_parallel() {
    for runtime in Runtime::ALL {
        let target = Checked::start(Target::of(runtime).mode("mix"));
        let sources: [(&str, &[&str]); 4] = [
            ("Triscope-Workload", &["Primitives", "Strings", "Empty"]),
            ("Triscope-SelfDescribing", &["IntArray", "WithOpcode"]),
            ("Microsoft-Windows-DotNETRuntime", &["boom-"]),
            // Names and several providers as some clients cannot write them.
            ("Ünknown-Prövider-😀", &[]),
        ];
        std::thread::scope(|scope| {
            for (name, texts) in sources {
                let client = target.client();
                scope.spawn(move || {
                    let config = TracingConfig::new([
                        Provider::new(name),
                        Provider::new("Nobody-1").keywords(0),
                        Provider::new("Nobody-2").arguments("ключ=значение"),
                    ])
                    .rundown(Rundown::None);
                    let session = client.collect_tracing(&config).unwrap();
                    let stop_handle = session.stop_handle();
                    let mut out = Awaits::new(texts, || stop_handle.stop().unwrap());
                    let end = session.record(&mut out);
                    assert!(end.is_complete(), "{runtime:?} {name}: {end}");
                });
            }
        });
    }
}

#[test]
#[ignore = "needs real runtimes: cargo xtask test-runtimes"]
fn the_65th_session_is_an_error() {
    for runtime in Runtime::ALL {
        let target = Checked::start(Target::of(runtime));
        let client = target.client();
        let config = workload().buffer_mb(1).rundown(Rundown::None);
        let mut sessions: Vec<_> =
            (0..64).map(|_| client.collect_tracing(&config).unwrap()).collect();
        let error = client.collect_tracing(&config).unwrap_err();
        assert_eq!(error.code(), Some(HResult::Fail), "{runtime:?}: {error}");
        // One that is stopped makes room.
        assert!(sessions.pop().unwrap().stop().is_complete());
        sessions.push(client.collect_tracing(&config).unwrap());
        // Sessions that are dropped end too.
        drop(sessions);
        let room = (0..600).find_map(|_| {
            // The pause between attempts: the runtime ends sessions on its own threads.
            std::thread::sleep(Duration::from_millis(50));
            client.collect_tracing(&config).ok()
        });
        assert!(room.expect("room for a session").stop().is_complete(), "{runtime:?}");
    }
}

/// Stopping a session can end .NET Core 3.1, and hang it if the session has a rundown, whatever
/// the client does (`docs/dotnet-ipc.md`). So its sessions have none here, and a few of its targets
/// may fail. No other runtime may.
#[test]
#[ignore = "needs real runtimes: cargo xtask test-runtimes"]
fn abandoned_sessions_do_not_harm_the_target() {
    for runtime in Runtime::ALL {
        let targets = if runtime == Runtime::Core31 { 4 } else { 1 };
        let mut failures = Vec::new();
        while let Err(failure) = abandon_sessions(runtime) {
            eprintln!("\n==== {failure}\n");
            failures.push(failure);
            assert!(failures.len() < targets, "{} targets failed: {failures:#?}", failures.len());
        }
    }
}

fn abandon_sessions(runtime: Runtime) -> Result<(), String> {
    let mut target = Target::of(runtime).mode("mix").start();
    let client = Client::new(target.socket());
    let config = match runtime {
        Runtime::Core31 => workload().rundown(Rundown::None),
        _ => workload(),
    };
    for round in 0..45 {
        let result = client.collect_tracing(&config).and_then(|session| {
            match round % 3 {
                0 => drop(session),
                1 => drop(session.finish()),
                _ => session.stop_handle().stop()?, // and then dropped
            }
            Ok(())
        });
        if let Err(error) = result {
            // The connection of a process that crashes breaks off a moment before its end.
            let _ = target.wait_for(Duration::from_secs(5));
            return Err(format!("round {round}: {error}; {}", target.state()));
        }
    }
    Checked(target).check();
    Ok(())
}

#[test]
#[ignore = "needs real runtimes: cargo xtask test-runtimes"]
fn a_killed_target_truncates_its_stream() {
    for runtime in Runtime::ALL {
        let mut target = Target::of(runtime).mode("flood:1:1000:0").start();
        let client = Client::new(target.socket());
        let mut session = client.collect_tracing(&workload()).unwrap();
        session.read_exact(&mut [0; 4096]).unwrap();
        target.kill();
        let mut stream = Vec::new();
        let end = session.record(&mut stream);
        assert!(
            matches!(end.truncation, Some(TruncationReason::Closed | TruncationReason::Io(_))),
            "{runtime:?}: {end:?}"
        );
        assert!(end.stop.is_none());
    }
}

#[test]
#[ignore = "needs real runtimes: cargo xtask test-runtimes"]
fn a_target_that_ends_completes_its_stream() {
    for runtime in Runtime::ALL {
        let mut target = Target::of(runtime).mode("mix").seconds(2).start();
        let session = Client::new(target.socket()).collect_tracing(&workload()).unwrap();
        let stop_handle = session.stop_handle();
        let mut stream = Vec::new();
        let end = session.record(&mut stream);
        assert!(end.is_complete(), "{runtime:?}: {end:?}");
        assert!(end.stop.is_none(), "nobody asked");
        assert!(holds(&stream, "Burn"), "{runtime:?}: the rundown is there");
        assert_eq!(target.wait().code(), Some(0));
        stop_handle.stop().unwrap(); // long gone: not an error
    }
}

#[test]
#[ignore = "needs real runtimes: cargo xtask test-runtimes"]
fn an_unread_session_is_truncated() {
    let target = Checked::start(Target::of(Runtime::Net9).mode("mix"));
    let mut session = target.client().collect_tracing(&workload()).unwrap();
    session.read_exact(&mut [0; 100]).unwrap();
    let end = session.finish();
    assert!(matches!(end.truncation, Some(TruncationReason::Abandoned)), "{end:?}");
    assert_eq!(end.bytes, 100);

    struct Full;
    impl std::io::Write for Full {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(std::io::ErrorKind::StorageFull.into())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let session = target.client().collect_tracing(&workload()).unwrap();
    let end = session.stop_into(&mut Full);
    assert!(matches!(end.truncation, Some(TruncationReason::Output(_))), "{end:?}");
}

#[test]
#[ignore = "needs real runtimes: cargo xtask test-runtimes"]
fn options_of_newer_commands() {
    // Until the stream holds this text.
    let record = |target: &Checked, config: &TracingConfig, text: &str| {
        let session = target.client().collect_tracing(config).unwrap();
        let stop_handle = session.stop_handle();
        let texts = [text];
        let mut out = Awaits::new(&texts, || stop_handle.stop().unwrap());
        assert!(session.record(&mut out).is_complete());
        out.stream
    };
    let none = |config: TracingConfig| config.rundown(Rundown::None);
    for runtime in Runtime::ALL {
        let target = Checked::start(Target::of(runtime).mode("mix"));
        let source = || Provider::new("Triscope-Workload");
        let with = record(&target, &TracingConfig::new([source()]), "héllo");
        let without = record(&target, &none(TracingConfig::new([source()])), "héllo");
        assert!(holds(&with, "Burn") && !holds(&without, "Burn"), "{runtime:?}: rundown");
        if runtime == Runtime::Core31 {
            continue;
        }
        let runtime_info = TracingConfig::new([source()]).rundown(Rundown::Keywords(0x40));
        let stream = record(&target, &runtime_info, "héllo");
        assert!(stream.len() < with.len() && !holds(&stream, "Burn"), "{runtime:?}: keywords");
        let level = TracingConfig::new([source().level(Level::Error)]);
        let stream = record(&target, &none(level).stacks(false), "Empty");
        assert!(holds(&stream, "Empty") && !holds(&stream, "Strings"), "{runtime:?}: level");
        if runtime == Runtime::Net9 {
            continue;
        }
        let only = |provider, text| record(&target, &none(TracingConfig::new([provider])), text);
        let stream = only(source().filter(true, [1, 7]), "Primitives");
        assert!(holds(&stream, "Primitives") && !holds(&stream, "héllo"), "only two");
        let stream = only(source().filter(false, [1]), "héllo");
        assert!(!holds(&stream, "Primitives") && holds(&stream, "héllo"), "all but one");
    }
}
