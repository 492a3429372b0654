//! The budgets of `triscope flight`, and the numbers that it serves.

use crate::flight::{Recorder, manifest};
use crate::needs_root;
use crate::support::{Running, is_able, run};
use perf_data::Reader;
use perf_monitor::Record;
use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use testkit::process::stop;
use testkit::wait::until;

/// The numbers of a reply by name. It must be valid text for Prometheus: each number has a help text and a
/// type before it, and no name comes twice.
#[track_caller]
fn numbers(text: &str) -> BTreeMap<String, f64> {
    let mut numbers = BTreeMap::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let name = line.strip_prefix("# HELP ").unwrap().split(' ').next().unwrap();
        let is_name = |c: char| c.is_ascii_lowercase() || c == '_';
        assert!(name.starts_with("triscope_flight_") && name.chars().all(is_name), "{line}");
        let kind = if name.ends_with("_total") { "counter" } else { "gauge" };
        assert_eq!(lines.next(), Some(&*format!("# TYPE {name} {kind}")));
        let line = lines.next().unwrap();
        let value = line.strip_prefix(name).unwrap().strip_prefix(' ').unwrap();
        let value: f64 = value.parse().unwrap();
        assert!(value.is_finite() && value >= 0.0, "{line}");
        assert_eq!(numbers.insert(name["triscope_flight_".len()..].to_owned(), value), None);
    }
    assert!(text.ends_with('\n'));
    numbers
}

/// The head and the body of the reply to a request.
fn ask(mut stream: impl Read + Write, request: &str) -> (String, String) {
    write!(stream, "{request} HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    let (head, body) = reply.split_once("\r\n\r\n").unwrap();
    (head.to_owned(), body.to_owned())
}

fn status(dir: &Path) -> BTreeMap<String, f64> {
    let ran = run(&["flight", "status", "-d", dir.to_str().unwrap()]);
    ran.is_good();
    numbers(&ran.stdout)
}

/// Two threads switch now and then until the condition holds: the budget is looked at every few seconds.
fn switch_until(what: &str, mut holds: impl FnMut() -> bool) {
    until(what, || {
        crate::flight::ping_pong(500);
        std::thread::sleep(Duration::from_millis(200));
        holds()
    });
}

#[test]
fn above_the_cpu_budget_sources_are_stopped() {
    needs_root!(beside others);
    let base = tempfile::tempdir().unwrap();
    // Less than any recorder needs.
    let options = ["--cpu", "0.01", "-F", "997", "--back", "1m", "--forward", "200ms"];
    let recorder = Recorder::start(base.path(), &options);
    let dir = base.path().join("flight");
    let sources = ["samples", "wake-ups", "switches"];
    for source in sources {
        let message =
            format!(" % of a CPU was used instead of 0.01 %: {source} are not recorded any more");
        switch_until(&message, || recorder.log().contains(&message));
    }
    // Before them, where the kernel leaves out switches.
    let has_others = recorder.log().contains("switches outside of sched_switch are not recorded");
    assert_eq!(status(&dir)["stopped_sources"], 3.0 + f64::from(has_others));
    // None of them is recorded: of 500 round trips there would be 1000 switches.
    let mut before = status(&dir)["records_total"];
    switch_until("no more records", || {
        let now = status(&dir)["records_total"];
        now - std::mem::replace(&mut before, now) < 500.0
    });
    let dump = recorder.dump("above its budget");
    // What a thread did after the last switch is not known.
    let mut reader = Reader::new(fs::File::open(dump.join("kernel.perf.data")).unwrap()).unwrap();
    let (mut switches, mut ends) = (BTreeMap::new(), BTreeMap::new());
    while let Some(entry) = reader.next_record().unwrap() {
        let is_switch = entry.event().is_some_and(|event| event.name == "sched:sched_switch");
        let cpu = entry.layout().and_then(|layout| layout.cpu(entry.raw));
        if let Some(Ok(Record::Lost(lost))) = entry.decode() {
            assert_eq!(lost.lost, 0);
            ends.insert(lost.sample_id.cpu.unwrap(), entry.time().unwrap());
        } else if is_switch {
            let time: &mut _ = switches.entry(cpu.unwrap()).or_insert(entry.time().unwrap());
            *time = entry.time().unwrap().max(*time);
        }
    }
    assert!(!switches.is_empty());
    for (cpu, last) in switches {
        assert!(ends.get(&cpu).is_some_and(|end| *end >= last), "CPU {cpu}: {last:?}, {ends:?}");
    }
    let manifest = manifest(&dump);
    assert_eq!(manifest["complete"], false);
    let missing = manifest["missing"].to_string();
    for source in sources {
        let why = format!("{source}: not recorded any more, as the CPU budget was exceeded");
        assert!(missing.contains(&why), "{missing}");
    }
    // In the order of their value.
    let log = recorder.end("TERM");
    let at = |source: &str| log.find(&format!("{source} are not recorded")).unwrap();
    assert!(at("samples") < at("wake-ups") && at("wake-ups") < at("switches"), "{log}");
}

/// A trigger whose event comes with each system call: nothing else is stopped for its sake.
#[test]
fn the_event_of_a_trigger_that_floods_is_stopped_first() {
    needs_root!();
    let base = tempfile::tempdir().unwrap();
    let trigger = "event=raw_syscalls:sys_enter";
    let options = ["--cpu", "5", "--trigger", trigger, "--cooldown", "1h", "--back", "1s"];
    let recorder = Recorder::start(base.path(), &options);
    // A part of the time, which is enough to be far above the budget.
    let calls =
        "while dd if=/dev/zero of=/dev/null bs=1 count=30000 2>/dev/null; do sleep 0.2; done";
    let load = Running::spawn(Command::new("sh").args(["-c", calls]));
    recorder.wait_for("are not recorded any more");
    let log = recorder.log();
    let message = format!("records of the trigger {trigger} are not recorded any more");
    assert!(log.contains(&message), "{log}");
    assert_eq!(log.matches("not recorded any more").count(), 1, "{log}");
    // It is stopped: there are few other records.
    let dir = base.path().join("flight");
    let mut before = status(&dir)["records_total"];
    switch_until("the rest", || {
        let now = status(&dir)["records_total"];
        now - std::mem::replace(&mut before, now) < 100_000.0
    });
    drop(load);
    recorder.end("TERM");
}

#[test]
fn a_recorder_that_is_stopped_keeps_nobody_waiting() {
    needs_root!(beside others);
    let base = tempfile::tempdir().unwrap();
    let recorder = Recorder::start(base.path(), &["--forward", "200ms"]);
    stop(recorder.running.id());
    for request in ["status", "dump"] {
        let ran = run(&["flight", request, "-d", recorder.dir.to_str().unwrap()]);
        ran.is_refused(1, &["control.sock", "no reply within 10 s"]);
    }
    recorder.running.signal("CONT");
    recorder.dump("it continues");
    recorder.end("TERM");
}

#[test]
fn metrics_are_served_on_loopback_and_on_the_socket() {
    needs_root!();
    let base = tempfile::tempdir().unwrap();
    let options = ["--metrics", "127.0.0.1:0", "--back", "1s", "--forward", "200ms"];
    let recorder = Recorder::start(base.path(), &options);
    let dir = base.path().join("flight");
    let log = recorder.log();
    let address = log.split("triscope: metrics: http://").nth(1).unwrap();
    let (address, _) = address.split_once("/metrics\n").unwrap();
    crate::flight::ping_pong(2000);
    let manifest = manifest(&recorder.dump("for the numbers"));
    let tcp = || TcpStream::connect(address).unwrap();
    let socket = || UnixStream::connect(dir.join("control.sock")).unwrap();
    let (head, over_tcp) = ask(tcp(), "GET /metrics");
    assert!(head.starts_with("HTTP/1.0 200 OK\r\n"), "{head}");
    assert!(head.contains("Content-Type: text/plain; version=0.0.4"), "{head}");
    assert!(head.ends_with(&format!("Content-Length: {}", over_tcp.len())), "{head}");
    let length = |head: &str| head.rsplit_once(": ").unwrap().1.parse::<usize>().unwrap();
    assert!(ask(tcp(), "GET /metrics?name=x").0.starts_with("HTTP/1.0 200 OK\r\n"));
    let (head, body) = ask(tcp(), "HEAD /metrics");
    assert!(head.starts_with("HTTP/1.0 200 OK\r\n") && length(&head) > 1000, "{head}");
    assert_eq!(body, "");
    let over_tcp = numbers(&over_tcp);
    let over_socket = numbers(&ask(socket(), "GET /metrics").1);
    let by_status = status(&dir);
    let names = |numbers: &BTreeMap<String, f64>| numbers.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&over_tcp), names(&over_socket));
    assert_eq!(names(&over_tcp), names(&by_status));
    for name in over_tcp.keys().filter(|name| name.ends_with("_total")) {
        let all = [&over_tcp, &over_socket, &by_status].map(|numbers| numbers[name]);
        assert!(all.is_sorted(), "{name}: {all:?}");
    }
    // They agree with the dump, and with the process.
    assert_eq!(over_tcp["dumps_total"], 1.0);
    assert_eq!(over_tcp["failed_dumps_total"], 0.0);
    assert_eq!(over_tcp["triggers_total"], manifest["fired"].as_f64().unwrap());
    assert_eq!(over_tcp["suppressed_triggers_total"], manifest["suppressed"].as_f64().unwrap());
    assert!(over_tcp["lost_records_total"] >= manifest["lost"].as_f64().unwrap());
    assert!(over_tcp["switch_gaps_total"] >= manifest["switch_gaps"].as_f64().unwrap());
    assert!(over_tcp["records_total"] > 4000.0, "those of the round trips");
    let files = manifest["files"].as_array().unwrap().iter();
    let bytes: f64 = files.map(|file| file["bytes"].as_f64().unwrap()).sum();
    let manifests = fs::metadata(path_of(&dir).join("manifest.json")).unwrap().len();
    assert_eq!(over_tcp["dump_bytes"], bytes + manifests as f64);
    assert_eq!(over_tcp["segment_budget_bytes"], 100e6);
    assert!(over_tcp["segment_bytes"] <= 100e6);
    let pid = recorder.running.id();
    let threads = perf_monitor::processes().len() as f64;
    assert!(over_tcp["threads"] >= threads / 2.0, "{threads} processes");
    let stat = fs::read(format!("/proc/{pid}/stat")).unwrap();
    // In user mode and in the kernel.
    let ticks = [14, 15].map(|number| trace_common::stat_field(&stat, number).unwrap());
    let ticks: f64 = ticks.iter().map(|ticks| ticks.parse::<f64>().unwrap()).sum();
    let used = over_tcp["cpu_seconds_total"];
    assert!(used > 0.0 && used <= ticks / 100.0 + 0.05, "{used} s, {ticks} ticks");
    // Nothing else is served, and no dump is made over the network.
    for request in ["POST /dump", "GET /dump", "GET /", "GET /metricsx", "nonsense"] {
        assert!(ask(tcp(), request).0.starts_with("HTTP/1.0 404 "), "{request}");
    }
    assert_eq!(status(&dir)["dumps_total"], 1.0);
    recorder.end("TERM");
}

/// The dump of a directory that has one.
fn path_of(dir: &Path) -> std::path::PathBuf {
    let dumps = dir.join("dumps");
    dumps.join(&crate::support::names(&dumps)[0])
}

#[test]
fn buffers_are_within_the_memory_budget() {
    needs_root!();
    for (option, bytes) in [("2MB", 2e6), ("8MB", 8e6), ("64MB", 64e6)] {
        let base = tempfile::tempdir().unwrap();
        let recorder = Recorder::start(base.path(), &["--memory", option]);
        let maps = fs::read_to_string(format!("/proc/{}/maps", recorder.running.id())).unwrap();
        let of_perf = maps.lines().filter(|line| line.ends_with("[perf_event]"));
        let sizes: Vec<u64> = of_perf
            .map(|line| {
                let (from, rest) = line.split_once('-').unwrap();
                let number = |text| u64::from_str_radix(text, 16).unwrap();
                number(rest.split(' ').next().unwrap()) - number(from)
            })
            .collect();
        let sum: u64 = sizes.iter().sum();
        assert!(sum > 0 && sum as f64 <= bytes / 2.0, "{option}: {sizes:?}");
        crate::flight::are_accounted_for(&recorder.end("TERM"));
    }
}

#[test]
fn memory_that_no_buffers_fit_in_is_refused() {
    if !crate::support::can("root, with tracepoints", is_able()) {
        return;
    }
    let base = tempfile::tempdir().unwrap();
    let dir = base.path().join("flight");
    let ran = run(&["flight", "-d", dir.to_str().unwrap(), "--memory", "10kB"]);
    ran.is_refused(1, &["--memory: the buffers of ", " need at least ", " bytes"]);
}

/// `CapEff` and `NoNewPrivs` of the threads of a process.
fn privileges(pid: u32) -> Vec<(u64, bool)> {
    let of = |tid: u32| {
        // It may have ended.
        let status = fs::read_to_string(format!("/proc/{pid}/task/{tid}/status")).ok()?;
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.unwrap().trim().to_owned()
        };
        let effective = u64::from_str_radix(&field("CapEff:"), 16).unwrap();
        Some((effective, field("NoNewPrivs:") == "1"))
    };
    perf_monitor::threads(pid).into_iter().filter_map(of).collect()
}

#[test]
fn no_thread_keeps_what_it_does_not_need() {
    needs_root!();
    const fn bit(capability: u32) -> u64 {
        1 << capability
    }
    // Numbers of linux/capability.h.
    let (kill, ipc_lock, sys_admin, perfmon) = (bit(5), bit(14), bit(21), bit(38));
    let of_sources = bit(1) | bit(2) | bit(19);
    let config = tempfile::NamedTempFile::new().unwrap();
    for (options, more) in [
        (&[][..], vec![]),
        (&["--config", config.path().to_str().unwrap()], vec![bit(2)]),
        (&["--", "sleep", "1000"], vec![kill]),
        (&["--dotnet", "--go"], vec![of_sources]),
    ] {
        let base = tempfile::tempdir().unwrap();
        let recorder = Recorder::start(base.path(), options);
        // A kernel that does not take CAP_PERFMON.
        let keeps = recorder.log().contains("CAP_SYS_ADMIN is kept");
        let of_events = ipc_lock | perfmon | if keeps { sys_admin } else { 0 };
        let allowed =
            |effective: u64| more.iter().chain([&of_events]).any(|sets| effective & !sets == 0);
        let mut found = Vec::new();
        // A thread drops them when it has begun.
        until("no more privileges than needed", || {
            found = privileges(recorder.running.id());
            found.iter().all(|(effective, is_set)| *is_set && allowed(*effective))
        });
        assert!(found.len() >= 2, "{found:?}");
        // COMMAND has those of the start.
        let children = children(recorder.running.id());
        assert_eq!(children.len(), usize::from(options.contains(&"--")), "{children:?}");
        for child in children {
            let all = privileges(std::process::id())[0];
            assert_eq!(privileges(child), [all], "of the command");
            crate::support::kill("TERM", child);
        }
        if !options.contains(&"--") {
            recorder.end("TERM");
        }
    }
}

/// The children of a process.
fn children(pid: u32) -> Vec<u32> {
    let of = |tid: u32| fs::read_to_string(format!("/proc/{pid}/task/{tid}/children"));
    let lists = perf_monitor::threads(pid).into_iter().filter_map(|tid| of(tid).ok());
    lists
        .flat_map(|l| l.split_whitespace().map(|p| p.parse().unwrap()).collect::<Vec<u32>>())
        .collect()
}
