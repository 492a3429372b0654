//! What each command answers on each runtime.

use super::*;
use diag_ipc::{
    Command, DumpCommand, DumpFlags, DumpType, Environment, Error, Guid, HResult, PerfMapType,
    ProcessInfo, ProcessInfoCommand, Provider, RejectedRequest, StartupHookError, TracingCommand,
    TracingConfig,
};
use std::path::Path;
use std::time::Duration;

/// What a command is expected to answer on .NET Core 3.1, 9 and 10.
type Row = (Command, [Answer; 3], fn(&Checked) -> Result<(), Error>);

#[derive(Clone, Copy, Debug, PartialEq)]
enum Answer {
    Ok,
    Code(HResult),
    /// Refused at this end.
    Refused,
}
use Answer::{Ok as OK, Refused};
const ENCODING: Answer = Answer::Code(HResult::BadEncoding);
const UNKNOWN: Answer = Answer::Code(HResult::UnknownCommand);
const NO_MODULE: Answer = Answer::Code(HResult::ModuleNotFound);

fn collect(target: &Checked, command: TracingCommand) -> Result<(), Error> {
    let config = TracingConfig::new([Provider::new("Triscope-Workload")]).buffer_mb(4);
    let end = target.client().collect_tracing_by(command, &config)?.stop();
    assert!(end.is_complete(), "{command}: {end:?}");
    Ok(())
}

fn dump(target: &Checked, command: DumpCommand, dump_type: DumpType) -> Result<(), Error> {
    let path = target.tmpdir().join("dump");
    let flags = DumpFlags::empty();
    target.client().create_core_dump_by(command, path.to_str().unwrap(), dump_type, flags)?;
    let dump = std::fs::read(&path).unwrap();
    assert!(dump.starts_with(b"\x7fELF"), "{command}: {} bytes", dump.len());
    std::fs::remove_file(path).unwrap();
    Ok(())
}

fn info(target: &Checked, command: ProcessInfoCommand) -> Result<(), Error> {
    let info = target.client().process_info_by(command)?;
    check_info(target, command, &info);
    Ok(())
}

fn check_info(target: &Checked, command: ProcessInfoCommand, info: &ProcessInfo) {
    assert_eq!(info.pid, u64::from(target.pid()));
    assert_ne!(info.cookie, Guid::default());
    assert_eq!((info.os.as_str(), info.arch.as_str()), ("Linux", "x64"));
    let assembly = match target.runtime() {
        Runtime::Net10 => "aspire-managed",
        _ => "Workload",
    };
    // A runtime that has just come up knows no arguments yet.
    assert!(info.command_line.contains(assembly), "{}", info.command_line);
    if command != ProcessInfoCommand::ProcessInfo {
        assert_eq!(info.entry_assembly.as_deref(), Some(assembly));
        let version = info.clr_version.as_deref().unwrap();
        assert!(version.starts_with(target.runtime().version()), "{version}");
    }
    let rid = (command == ProcessInfoCommand::ProcessInfo3).then_some("linux-x64");
    assert_eq!(info.portable_rid.as_deref(), rid);
}

const TABLE: &[Row] = &[
    (Command::CreateCoreDump, [OK, OK, Refused], |t| {
        dump(t, DumpCommand::CreateCoreDump, DumpType::Normal)
    }),
    (Command::CreateCoreDump2, [UNKNOWN, OK, Refused], |t| {
        dump(t, DumpCommand::CreateCoreDump2, DumpType::Triage)
    }),
    (Command::CreateCoreDump3, [UNKNOWN, OK, Refused], |t| {
        dump(t, DumpCommand::CreateCoreDump3, DumpType::WithHeap)
    }),
    (Command::StopTracing, [OK, OK, OK], |t| t.client().stop_tracing(42)),
    (Command::CollectTracing, [OK, OK, OK], |t| collect(t, TracingCommand::CollectTracing)),
    (Command::CollectTracing2, [OK, OK, OK], |t| collect(t, TracingCommand::CollectTracing2)),
    (Command::CollectTracing3, [UNKNOWN, OK, OK], |t| collect(t, TracingCommand::CollectTracing3)),
    (Command::CollectTracing4, [UNKNOWN, OK, OK], |t| collect(t, TracingCommand::CollectTracing4)),
    (Command::CollectTracing5, [UNKNOWN, UNKNOWN, OK], |t| {
        collect(t, TracingCommand::CollectTracing5)
    }),
    (Command::CollectTracing6, [UNKNOWN, UNKNOWN, UNKNOWN], |t| {
        collect(t, TracingCommand::CollectTracing6)
    }),
    (Command::AttachProfiler, [NO_MODULE, NO_MODULE, NO_MODULE], |t| {
        let timeout = Duration::from_secs(1);
        t.client().attach_profiler(timeout, Guid::from_u128(7), "/nowhere/profiler.so", b"data")
    }),
    // 3.1 takes it for an ill-formed AttachProfiler.
    (Command::StartupProfiler, [ENCODING, OK, OK], |t| {
        t.client().startup_profiler(Guid::from_u128(7), "/nowhere/profiler.so")
    }),
    (Command::ProcessInfo, [UNKNOWN, OK, OK], |t| info(t, ProcessInfoCommand::ProcessInfo)),
    (Command::ResumeRuntime, [UNKNOWN, OK, OK], |t| t.client().resume_runtime()),
    (Command::ProcessEnvironment, [UNKNOWN, OK, OK], |t| {
        let environment = t.client().process_environment()?;
        assert_eq!(environment.get("TMPDIR"), t.tmpdir().to_str());
        assert_eq!(environment.get("TRISCOPE_EMPTY"), Some(""));
        assert_eq!(environment.get("TRISCOPE_UNICODE"), Some("é😀"));
        Ok(())
    }),
    (Command::SetEnvironmentVariable, [UNKNOWN, OK, OK], |t| {
        let get = |e: &Environment| e.get("TRISCOPE_SET").map(str::to_owned);
        t.client().set_environment_variable("TRISCOPE_SET", Some("né😀"))?;
        assert_eq!(get(&t.client().process_environment()?).as_deref(), Some("né😀"));
        t.client().set_environment_variable("TRISCOPE_SET", None)?;
        assert_eq!(get(&t.client().process_environment()?), None);
        let absent = t.client().set_environment_variable("TRISCOPE_NEVER_SET", None).unwrap_err();
        assert_eq!(absent.code(), Some(HResult::EnvironmentVariableNotFound), "{absent}");
        Ok(())
    }),
    (Command::ProcessInfo2, [UNKNOWN, OK, OK], |t| info(t, ProcessInfoCommand::ProcessInfo2)),
    // The version is asked for first, and that is what 3.1 does not know.
    (Command::EnablePerfMap, [UNKNOWN, OK, OK], |t| {
        t.client().enable_perf_map(PerfMapType::PerfMap)?;
        let map = t.tmpdir().join(format!("perf-{}.map", t.pid()));
        assert!(map.exists(), "{}", map.display());
        Ok(())
    }),
    (Command::DisablePerfMap, [UNKNOWN, OK, OK], |t| t.client().disable_perf_map()),
    (Command::ApplyStartupHook, [UNKNOWN, OK, OK], |t| {
        let runs = |t: &Checked| t.output().matches("startup hook ran").count();
        let before = runs(t);
        t.client().apply_startup_hook(testkit::dotnet::assembly().to_str().unwrap())?;
        assert_eq!(runs(t), before + 1, "the hook has run when the reply comes");
        Ok(())
    }),
    (Command::ProcessInfo3, [UNKNOWN, OK, OK], |t| info(t, ProcessInfoCommand::ProcessInfo3)),
];

#[test]
#[ignore = "needs real runtimes: cargo xtask test-runtimes"]
fn every_command_on_every_runtime() {
    assert!(TABLE.iter().map(|row| row.0).eq(Command::ALL.iter().copied()), "one row each");
    let mut wrong = Vec::new();
    for (index, runtime) in Runtime::ALL.into_iter().enumerate() {
        let target = Target::of(runtime)
            .mode("idle")
            .env("TRISCOPE_EMPTY", "")
            .env("TRISCOPE_UNICODE", "é😀");
        let mut target = Checked::start(target);
        for (command, expected, ask) in TABLE {
            let answer = ask(&target);
            let found = match &answer {
                Ok(()) => OK,
                Err(Error::Runtime { code, .. }) => Answer::Code(*code),
                Err(Error::Rejected(_)) => Refused,
                Err(e) => {
                    // For the message: a target that ends does so after its connection.
                    let status = target.wait_for(Duration::from_secs(1));
                    panic!("{runtime:?} {command}: {e}\n{status:?}\n{}", target.output())
                }
            };
            println!("{runtime:?} {command}: {found:?}");
            if found != expected[index] {
                wrong.push(format!("{runtime:?} {command}: {answer:?}, not {:?}", expected[index]));
            }
            target.check();
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
#[ignore = "needs real runtimes: cargo xtask test-runtimes"]
fn the_newest_command_is_found() {
    for (runtime, collect) in [
        (Runtime::Core31, TracingCommand::CollectTracing2),
        (Runtime::Net9, TracingCommand::CollectTracing4),
        (Runtime::Net10, TracingCommand::CollectTracing5),
    ] {
        let target = Checked::start(Target::of(runtime));
        let client = target.client();
        let config = TracingConfig::new([Provider::new("Triscope-Workload")]);
        for _ in 0..2 {
            let session = client.collect_tracing(&config).unwrap();
            assert_eq!(session.command(), collect);
            assert!(session.stop().is_complete());
        }
        match client.process_info() {
            Ok(info) => check_info(&target, ProcessInfoCommand::ProcessInfo3, &info),
            Err(e) => assert!(runtime == Runtime::Core31 && e.is_unknown_command(), "{e}"),
        }
    }
}

#[test]
#[ignore = "needs real runtimes: cargo xtask test-runtimes"]
fn dumps_of_a_single_file_application() {
    let target = Checked::start(Target::of(Runtime::Net10));
    for dump_type in [DumpType::Normal, DumpType::WithHeap, DumpType::Triage] {
        let error = dump(&target, DumpCommand::CreateCoreDump3, dump_type).unwrap_err();
        assert!(matches!(error, Error::Rejected(RejectedRequest::SingleFile)), "{error}");
    }
    dump(&target, DumpCommand::CreateCoreDump3, DumpType::Full).unwrap();
}

#[test]
#[ignore = "needs real runtimes: cargo xtask test-runtimes"]
fn a_dump_that_cannot_be_written_says_why() {
    for runtime in [Runtime::Core31, Runtime::Net9] {
        let target = Checked::start(Target::of(runtime));
        let path = Path::new("/nowhere/at/all");
        let error = target
            .client()
            .create_core_dump(path.to_str().unwrap(), DumpType::Normal, DumpFlags::empty())
            .unwrap_err();
        let Error::Runtime { code, message, .. } = &error else { panic!("{error}") };
        assert_eq!(*code, HResult::Fail, "{error}");
        let explained = message.as_ref().is_some_and(|m| m.contains("/nowhere/at/all"));
        assert_eq!(explained, runtime != Runtime::Core31, "{error}");
    }
}

#[test]
#[ignore = "needs real runtimes: cargo xtask test-runtimes"]
fn an_option_that_an_old_runtime_lacks_is_refused() {
    let target = Checked::start(Target::of(Runtime::Core31));
    let client = target.client();
    let config = || TracingConfig::new([Provider::new("Triscope-Workload")]);
    let needs = |config: &TracingConfig| match client.collect_tracing(config) {
        Err(Error::Unsupported { needs, .. }) => Some(needs),
        other => panic!("{other:?}"),
    };
    assert_eq!(needs(&config().stacks(false)), Some(Command::CollectTracing3));
    let rundown = config().rundown(diag_ipc::Rundown::Keywords(0x40));
    assert_eq!(needs(&rundown), Some(Command::CollectTracing4));
    let filter = TracingConfig::new([Provider::new("A").filter(true, [1])]);
    assert_eq!(needs(&filter), Some(Command::CollectTracing5));
    let block = config().buffering(diag_ipc::BufferingMode::Block);
    assert_eq!(needs(&block), Some(Command::CollectTracing6));
    let dump = client.create_core_dump("/tmp/x", DumpType::Normal, DumpFlags::CRASH_REPORT);
    assert!(
        matches!(dump, Err(Error::Unsupported { needs: Command::CreateCoreDump2, .. })),
        "{dump:?}"
    );
}

#[test]
#[ignore = "needs real runtimes: cargo xtask test-runtimes"]
fn user_events_are_handed_over() {
    use diag_ipc::{Rundown, Tracepoints, UserEventsConfig, UserEventsProvider};
    use std::os::fd::AsFd as _;
    let tracepoints = Tracepoints::new("triscope_workload");
    let provider = UserEventsProvider::new(Provider::new("Triscope-Workload"), tracepoints);
    let config = UserEventsConfig::new([provider]).rundown(Rundown::None);
    // Where the kernel has no user_events, the runtime refuses what it is given instead.
    let real = Path::new("/sys/kernel/tracing/user_events_data");
    let (file, expected) = match std::fs::File::options().read(true).write(true).open(real) {
        Ok(file) => (file, None),
        Err(e) => {
            let needed = format!("{} of a kernel with user_events ({e})", real.display());
            testkit::skip::without(&needed);
            (std::fs::File::open("/dev/null").unwrap(), Some(HResult::Fail))
        }
    };
    let target = Checked::start(Target::of(Runtime::Net10));
    match (target.client().collect_user_events(&config, file.as_fd()), expected) {
        (Ok(session), None) => session.stop().unwrap(),
        (Err(e), Some(code)) => assert_eq!(e.code(), Some(code), "{e}"),
        (other, _) => panic!("{other:?}"),
    }
    for runtime in [Runtime::Core31, Runtime::Net9] {
        let target = Checked::start(Target::of(runtime));
        let error = target.client().collect_user_events(&config, file.as_fd()).unwrap_err();
        assert!(
            matches!(error, Error::Unsupported { needs: Command::CollectTracing5, .. }),
            "{error}"
        );
    }
}

#[test]
#[ignore = "needs real runtimes: cargo xtask test-runtimes"]
fn perf_maps_of_suspended_runtimes() {
    for runtime in [Runtime::Net9, Runtime::Net10] {
        let suspended =
            Target::of(runtime).env("DOTNET_DefaultDiagnosticPortSuspend", "1").suspended();
        let target = Checked::start(suspended);
        let client = target.client();
        assert_eq!(client.is_suspended().unwrap(), Some(true));
        match (runtime, client.enable_perf_map(PerfMapType::PerfMap)) {
            (Runtime::Net10, Ok(())) => {}
            (Runtime::Net9, Err(Error::Rejected(RejectedRequest::Suspended(version)))) => {
                assert!(version.starts_with("9."), "{version}");
            }
            (_, other) => panic!("{runtime:?}: {other:?}"),
        }
        let attach = client.attach_profiler(Duration::ZERO, Guid::default(), "/nowhere", b"");
        assert_eq!(attach.unwrap_err().code(), Some(HResult::NotYetAvailable));
        client.resume_runtime().unwrap();
        // Before it has started its threads.
        client.enable_perf_map(PerfMapType::All).unwrap();
        let mut target = target;
        target.await_workload();
        assert_eq!(client.is_suspended().unwrap(), Some(false));
        client.disable_perf_map().unwrap();
    }
}

#[test]
#[ignore = "needs real runtimes: cargo xtask test-runtimes"]
fn a_file_that_is_no_startup_hook_is_not_sent() {
    let framework = Runtime::Net9.program().with_file_name("System.Runtime.dll");
    let framework = framework.to_str().unwrap();
    for runtime in Runtime::ALL {
        let target = Checked::start(Target::of(runtime));
        for (path, expected) in [
            ("/nowhere/Hook.dll", StartupHookError::Unreadable(std::io::ErrorKind::NotFound)),
            ("Workload.dll", StartupHookError::RelativePath),
            ("Workload", StartupHookError::RelativePath),
            ("/a:b.dll", StartupHookError::Colon),
            (framework, StartupHookError::NoClass),
        ] {
            match target.client().apply_startup_hook(path) {
                Err(Error::Rejected(RejectedRequest::StartupHook { reason, .. })) => {
                    assert_eq!(reason, expected, "{runtime:?}: {path}");
                }
                other => panic!("{runtime:?}: {path}: {other:?}"),
            }
        }
        let error = target.client().apply_startup_hook("/etc/passwd").unwrap_err();
        assert!(error.to_string().contains("not a .NET assembly"), "{error}");
    }
}

#[test]
#[ignore = "needs real runtimes: cargo xtask test-runtimes"]
fn the_end_of_a_target_is_reported() {
    for runtime in [Runtime::Net9, Runtime::Net10] {
        let mut target = Target::of(runtime).start();
        let client = Client::new(target.socket());
        let pid = target.pid();
        match client.apply_startup_hook_unchecked("/nowhere/Hook.dll") {
            Err(Error::TargetEnded { pid: ended, command: Command::ApplyStartupHook }) => {
                assert_eq!(ended, pid);
            }
            other => panic!("{runtime:?}: {other:?}"),
        }
        assert!(!target.wait().success());
    }
}

#[test]
#[ignore = "needs real runtimes: cargo xtask test-runtimes"]
fn a_running_runtime_is_not_suspended() {
    for runtime in Runtime::ALL {
        let target = Checked::start(Target::of(runtime));
        assert_eq!(target.client().is_suspended().unwrap(), Some(false), "{runtime:?}");
    }
}

/// Calls a function of the client. What the target answers does not matter here.
type Call = Box<dyn Fn(&Client)>;

/// Every function of `Client` that sends something, with every command value, and with arguments
/// of which some are known to end runtimes when they are sent.
fn calls(target: &Target) -> Vec<(String, Call)> {
    let mut calls: Vec<(String, Call)> = Vec::new();
    let mut add = |name: String, call: Call| calls.push((name, call));
    add("process_info".into(), Box::new(|c| drop(c.process_info())));
    for command in ProcessInfoCommand::ALL {
        add(format!("{command}"), Box::new(move |c| drop(c.process_info_by(command))));
    }
    add("process_environment".into(), Box::new(|c| drop(c.process_environment())));
    for (name, value) in
        [("", None), ("A", None), ("A", Some("")), ("A\0", Some("b")), ("A", Some("b"))]
    {
        let call = move |c: &Client| drop(c.set_environment_variable(name, value));
        add(format!("set_environment_variable {name:?} {value:?}"), Box::new(call));
    }
    for map in [PerfMapType::All, PerfMapType::JitDump, PerfMapType::PerfMap] {
        add(format!("enable_perf_map {map:?}"), Box::new(move |c| drop(c.enable_perf_map(map))));
    }
    add("disable_perf_map".into(), Box::new(|c| drop(c.disable_perf_map())));
    add("is_suspended".into(), Box::new(|c| drop(c.is_suspended())));
    add("peer".into(), Box::new(|c| drop(c.peer())));

    let hook = testkit::dotnet::assembly().to_str().unwrap().to_owned();
    let paths =
        ["", "a\0", "Workload", "/nowhere/Hook.dll", "/a:b.dll", "/etc/passwd", "/proc", &hook];
    for path in paths {
        let path = path.to_owned();
        add(
            format!("apply_startup_hook {path:?}"),
            Box::new(move |c| drop(c.apply_startup_hook(&path))),
        );
    }
    for path in ["", "a\0", "/nowhere/profiler.so"] {
        for data in [&b""[..], &[0; 70_000]] {
            let call = move |c: &Client| {
                drop(c.attach_profiler(Duration::ZERO, Guid::default(), path, data));
            };
            add(format!("attach_profiler {path:?} {}", data.len()), Box::new(call));
        }
        let call = move |c: &Client| drop(c.startup_profiler(Guid::default(), path));
        add(format!("startup_profiler {path:?}"), Box::new(call));
    }

    let dump = target.tmpdir().join("dump").to_str().unwrap().to_owned();
    let dump_types = [DumpType::Normal, DumpType::WithHeap, DumpType::Triage];
    for path in ["", "a\0", "/nowhere/dump", &dump] {
        for (command, dump_type) in DumpCommand::ALL.into_iter().zip(dump_types) {
            let path = path.to_owned();
            let flags = DumpFlags::empty();
            add(
                format!("{command} {path:?} {dump_type:?}"),
                Box::new(move |c| drop(c.create_core_dump_by(command, &path, dump_type, flags))),
            );
        }
        let path = path.to_owned();
        let call = move |c: &Client| {
            drop(c.create_core_dump(&path, DumpType::Normal, DumpFlags::CRASH_REPORT));
        };
        add(format!("create_core_dump {dump:?}"), Box::new(call));
    }

    let provider = || Provider::new("Triscope-Workload");
    let one = || TracingConfig::new([provider()]).buffer_mb(1);
    for (name, config) in [
        ("plain", one()),
        ("no buffer", one().buffer_mb(0)),
        ("no providers", TracingConfig::new([])),
        ("1001 providers", TracingConfig::new(std::iter::repeat_with(provider).take(1001))),
        ("no name", TracingConfig::new([Provider::new("")])),
        ("a NUL", TracingConfig::new([provider().arguments("a\0b")])),
        ("too long", TracingConfig::new([provider().arguments("x".repeat(40_000))])),
        ("a filter", TracingConfig::new([provider().filter(true, [1])]).buffer_mb(1)),
        ("NetPerf", one().format(diag_ipc::Format::NetPerf)),
        ("no stacks", one().stacks(false)),
        ("rundown keywords", one().rundown(diag_ipc::Rundown::Keywords(0x40))),
        ("blocking", one().buffering(diag_ipc::BufferingMode::Block)),
    ] {
        for command in TracingCommand::ALL {
            let config = config.clone();
            let call = move |c: &Client| {
                if let Ok(session) = c.collect_tracing_by(command, &config) {
                    drop(session.stop());
                }
            };
            add(format!("{command} {name}"), Box::new(call));
        }
        let call = move |c: &Client| {
            if let Ok(session) = c.collect_tracing(&config) {
                drop(session.stop());
            }
        };
        add(format!("collect_tracing {name}"), Box::new(call));
    }
    for session in [0, 42, u64::MAX] {
        add(format!("stop_tracing {session}"), Box::new(move |c| drop(c.stop_tracing(session))));
    }
    calls
}

#[test]
#[ignore = "needs real runtimes: cargo xtask test-runtimes"]
fn no_function_ends_a_target() {
    let timeouts = diag_ipc::Timeouts::all(Duration::from_secs(60));
    for (runtime, suspended) in [
        (Runtime::Core31, false),
        (Runtime::Net9, false),
        (Runtime::Net9, true),
        (Runtime::Net10, false),
        (Runtime::Net10, true),
    ] {
        let mut target = Target::of(runtime);
        if suspended {
            target = target.env("DOTNET_DefaultDiagnosticPortSuspend", "1").suspended();
        }
        let mut target = Checked::start(target);
        let client = target.client().timeouts(timeouts);
        for (name, call) in calls(&target) {
            println!("{runtime:?} {}: {name}", if suspended { "suspended" } else { "running" });
            call(&client);
            assert!(target.exit_status().is_none(), "{name} ended it: {}", target.state());
        }
        if runtime != Runtime::Core31 {
            client.resume_runtime().unwrap();
        }
        target.await_workload();
        target.check();
    }
}
