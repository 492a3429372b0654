//! `triscope flight` on a machine whose clock is set, that is suspended, and whose CPUs come and go.
//!
//! This changes the machine: it runs in a virtual one, by `cargo xtask test-flight`.

use crate::flight::{Recorder, are_accounted_for, manifest, script};
use crate::support::turn;
use perf_monitor::now;
use rustix::thread::{CpuSet, gettid, sched_setaffinity};
use rustix::time::{ClockId, Timespec, clock_gettime, clock_settime};
use serde_json::Value;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::sync::mpsc;
use trace_common::ClockDomain::{Boottime, Monotonic, Realtime};

/// Whether this is a virtual machine of the tests.
fn is_guest() -> bool {
    std::env::var_os("PERF_TEST_GUEST").is_some()
}

/// Ends the test on a machine that is not the tests' alone.
macro_rules! needs_guest {
    () => {
        if !is_guest() {
            // Not `can`: strict runs on other machines leave these out, too.
            let why = "needs a virtual machine: cargo xtask test-flight";
            let _ = writeln!(std::io::stderr(), "\n==== SKIPPED: {why}");
            return;
        }
        let _turn = turn();
    };
}

const SECOND: i64 = 1_000_000_000;
/// All since the start, also where an emulated CPU is slow.
const ALL: [&str; 6] = ["--back", "1m", "--forward", "200ms", "--cpu", "1000"];

/// The second CPU.
const CPU: &str = "/sys/devices/system/cpu/cpu1/online";

/// The difference of two clocks.
fn offset(one: trace_common::ClockDomain, other: trace_common::ClockDomain) -> i64 {
    now(one).unwrap().nanos_since(now(other).unwrap())
}

/// Sets the wall clock forward, or back.
fn set_clock(seconds: i64) {
    let now = clock_gettime(ClockId::Realtime);
    let then = Timespec { tv_sec: now.tv_sec + seconds, tv_nsec: now.tv_nsec };
    clock_settime(ClockId::Realtime, then).unwrap();
}

/// A thread on the second CPU that sleeps and wakes. Returns its number.
fn work_on_cpu_1() -> u32 {
    let (ask, asked) = mpsc::channel();
    let (reply, replies) = mpsc::channel();
    let worker = std::thread::spawn(move || {
        let mut cpus = CpuSet::new();
        cpus.set(1);
        sched_setaffinity(None, &cpus).unwrap();
        for () in asked {
            reply.send(gettid().as_raw_nonzero().get() as u32).unwrap();
        }
    });
    let mut tid = 0;
    for _ in 0..50 {
        ask.send(()).unwrap();
        tid = replies.recv().unwrap();
    }
    drop(ask);
    worker.join().unwrap();
    tid
}

/// Whether a dump has switches to this thread on the second CPU.
fn has_on_cpu_1(dump: &Path, tid: u32) -> bool {
    let is_switch = |line: &str| line.contains(&format!("next_pid={tid} "));
    script(dump).lines().any(|line| line.contains("[001]") && is_switch(line))
}

/// The changes of the wall clock in a manifest.
fn changes<'a>(manifest: &'a Value, cause: &str) -> Vec<&'a Value> {
    let changes = manifest["clock"]["changes"].as_array().unwrap().iter();
    changes.filter(|change| change["cause"] == cause).collect()
}

#[track_caller]
fn is_near(nanos: &Value, expected: i64) {
    let error = nanos.as_i64().unwrap() - expected;
    assert!(error.abs() < SECOND / 10, "{nanos} and not {expected}");
}

#[test]
fn a_clock_that_is_set_is_in_the_manifest() {
    needs_guest!();
    let base = tempfile::tempdir().unwrap();
    let recorder =
        Recorder::start(base.path(), &["--back", "1h", "--forward", "200ms", "--disk", "2MB"]);
    let first = recorder.dump("before");
    let before = manifest(&first);
    is_near(&before["clock"]["realtime_offset"], offset(Realtime, Monotonic));
    assert_eq!(before["clock"]["changes"].as_array().unwrap().len(), 0);
    for (seconds, words) in [(-7200, "was set by -7200.0 s"), (3600, "was set by +3600.0 s")] {
        set_clock(seconds);
        recorder.wait_for(words);
    }
    let dump = recorder.dump("after");
    let after = manifest(&dump);
    is_near(&after["clock"]["realtime_offset"], offset(Realtime, Monotonic));
    let [back, forward] = changes(&after, "set")[..] else { panic!("{after}") };
    is_near(&back["by"], -7200 * SECOND);
    is_near(&forward["by"], 3600 * SECOND);
    // The time of the records continues: no gap, and the same begin.
    assert_eq!(after["gaps"].as_array().unwrap().len(), 0, "{after}");
    assert_eq!(after["covered"]["start"], before["covered"]["start"]);
    assert!(changes(&after, "suspended").is_empty(), "{after}");
    // The dumps since then have names of an earlier time. The first one is removed first.
    while !recorder.log().contains("removed, as the disk budget is used up") {
        recorder.dump("again");
    }
    let log = recorder.log();
    let removed = log.lines().find(|line| line.contains("removed, as")).unwrap();
    assert!(removed.contains(first.to_str().unwrap()), "{removed}");
    are_accounted_for(&recorder.end("TERM"));
}

#[test]
fn a_cpu_that_goes_and_comes_back_is_recorded() {
    needs_guest!();
    let base = tempfile::tempdir().unwrap();
    let recorder = Recorder::start(base.path(), &ALL);
    let before = work_on_cpu_1();
    fs::write(CPU, "0").unwrap();
    recorder.wait_for("CPU 1 went offline");
    let dump = recorder.dump("offline");
    assert!(has_on_cpu_1(&dump, before));
    let offline = manifest(&dump);
    let [gap] = offline["cpus"].as_array().unwrap().as_slice() else { panic!("{offline}") };
    assert_eq!((&gap["cpu"], &gap["end"]), (&1.into(), &Value::Null));
    fs::write(CPU, "1").unwrap();
    let back = now(Monotonic).unwrap().nanos();
    recorder.wait_for("CPU 1 came online");
    let after = work_on_cpu_1();
    let dump = recorder.dump("online");
    assert!(has_on_cpu_1(&dump, after));
    let online = manifest(&dump);
    let [gap] = online["cpus"].as_array().unwrap().as_slice() else { panic!("{online}") };
    // The rest of the machine has no gap.
    assert!(gap["end"].as_i64().unwrap() > back, "{gap}");
    assert_eq!(online["gaps"].as_array().unwrap().len(), 0, "{online}");
    are_accounted_for(&recorder.end("TERM"));
}

#[test]
fn a_machine_that_was_suspended_continues() {
    needs_guest!();
    let base = tempfile::tempdir().unwrap();
    let recorder = Recorder::start(base.path(), &ALL);
    let before = work_on_cpu_1();
    let slept = offset(Boottime, Monotonic);
    // To memory, until the clock of the hardware wakes it.
    fs::write("/sys/class/rtc/rtc0/wakealarm", "+4").unwrap();
    fs::write("/sys/power/state", "mem").unwrap();
    let slept = offset(Boottime, Monotonic) - slept;
    assert!(slept > SECOND / 10, "the machine slept for {slept} ns");
    recorder.wait_for("the machine was suspended for");
    // The kernel takes all CPUs but the first one offline before.
    recorder.wait_for("CPU 1 came online");
    let after = work_on_cpu_1();
    let dump = recorder.dump("awake");
    assert!(has_on_cpu_1(&dump, before) && has_on_cpu_1(&dump, after));
    let manifest = manifest(&dump);
    let [change] = changes(&manifest, "suspended")[..] else { panic!("{manifest}") };
    is_near(&change["by"], slept);
    assert!(changes(&manifest, "set").is_empty(), "{manifest}");
    is_near(&manifest["clock"]["realtime_offset"], offset(Realtime, Monotonic));
    // The clock of the records stood still: nothing is missing but the begin of the second CPU.
    assert_eq!(manifest["gaps"].as_array().unwrap().len(), 0, "{manifest}");
    assert_eq!(manifest["cpus"][0]["cpu"], 1);
    are_accounted_for(&recorder.end("TERM"));
}
