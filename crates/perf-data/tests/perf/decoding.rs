//! Recordings of `perf`, decoded: every value is the one that `perf script` shows.

use crate::{assert_same, can, perf, words};
use perf_data::{FileWriter, Reader, RecordWriter as _, SortedReader};
use perf_monitor::{Record, Sample, Tracefs};
use std::fmt::Write as _;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Records with perf.
fn record(dir: &Path, args: &[&str], program: &[&str]) -> PathBuf {
    let path = dir.join("perf.data");
    let mut perf = Command::new("perf");
    perf.args(["record", "-q", "-o"]).arg(&path).args(args).arg("--").args(program);
    let output = testkit::perf::output(&mut perf);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    path
}

fn open(path: &Path) -> Reader<File> {
    Reader::new(File::open(path).unwrap()).unwrap()
}

/// Our line for each sample, by time.
fn lines(path: &Path, line: impl Fn(&Sample<'_>) -> String) -> Vec<String> {
    let mut reader = SortedReader::new(open(path));
    let mut lines = Vec::new();
    while let Some(entry) = reader.next_record().unwrap() {
        if let Record::Sample(sample) = entry.decode().unwrap().unwrap() {
            lines.push(line(&sample));
        }
    }
    lines
}

#[test]
fn samples_have_the_values_that_perf_shows() {
    if !can(false) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let args = ["-e", "page-faults", "-c", "1", "-d", "--sample-cpu", "-P", "-T"];
    let path = record(dir.path(), &args, &["true"]);
    let ours = lines(&path, |sample| {
        format!(
            "{}/{} [{:03}] {}: {} {:x} {:x}",
            sample.pid.unwrap(),
            sample.tid.unwrap(),
            sample.cpu.unwrap(),
            sample.time.unwrap(),
            sample.period.unwrap(),
            sample.addr.unwrap(),
            sample.ip.unwrap(),
        )
    });
    assert!(ours.len() > 20, "{}", ours.len());
    let fields = "pid,tid,cpu,time,period,ip,addr";
    assert_same(&words(&perf(&["script", "--ns", "-F", fields], &path)), &ours);

    // Sideband records: names and mappings.
    let dump = perf(&["script", "-D"], &path);
    let (mut comms, mut mappings) = (0, 0);
    let mut reader = open(&path);
    while let Some(entry) = reader.next_record().unwrap() {
        match entry.decode().transpose().unwrap() {
            Some(Record::Comm(c)) => {
                comms += 1;
                let name = String::from_utf8_lossy(c.comm);
                assert!(dump.contains(&format!("{name}:{}/{}", c.pid, c.tid)), "{c:?}");
            }
            Some(Record::Mmap(m)) if m.file.is_some() => {
                mappings += 1;
                let shown = format!("[{:#x}({:#x}) @", m.addr, m.len);
                assert!(dump.contains(&shown), "{m:?}");
                assert!(dump.contains(&*String::from_utf8_lossy(m.filename)), "{m:?}");
            }
            _ => {}
        }
    }
    assert!(comms > 0 && mappings > 0);
}

#[test]
fn fields_of_tracepoints_are_what_perf_prints() {
    if !can(true) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let args = ["-e", "raw_syscalls:sys_enter"];
    let path = record(dir.path(), &args, &["cat", "/proc/self/maps"]);
    let format = Tracefs::find().unwrap().format("raw_syscalls", "sys_enter").unwrap();
    let (id, args) = (format.field("id").unwrap(), format.field("args").unwrap());
    let ours = lines(&path, |sample| {
        let raw = sample.raw.unwrap();
        // "NR %ld (%lx, %lx, %lx, %lx, %lx, %lx)"
        let mut line = format!("{}: NR {} (", sample.time.unwrap(), id.i64(raw).unwrap());
        for (i, arg) in args.elements(raw).unwrap().iter().enumerate() {
            write!(line, "{}{arg:x}", if i == 0 { "" } else { ", " }).unwrap();
        }
        line + ")"
    });
    assert!(ours.len() > 20);
    assert_same(&words(&perf(&["script", "--ns", "-F", "time,trace"], &path)), &ours);
}

#[test]
fn recordings_that_we_write_again_look_the_same_to_perf() {
    if !can(true) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let tracepoints = ["-e", "sched:sched_switch", "-e", "raw_syscalls:sys_enter"];
    for args in [&["-e", "cpu-clock", "-g"][..], &tracepoints] {
        let script = "for i in 1 2 3 4 5; do true | cat; done";
        let path = record(dir.path(), args, &["sh", "-c", script]);
        let again = dir.path().join("again.data");
        let recorded = open(&path);
        let events = recorded.session().events().to_vec();
        let mut writer = FileWriter::new(File::create(&again).unwrap(), events).unwrap();
        let mut reader = open(&path);
        while let Some(entry) = reader.next_record().unwrap() {
            writer.record(entry.raw).unwrap();
        }
        writer.finish(recorded.session().features()).unwrap();
        let shown = perf(&["script"], &path);
        assert!(shown.lines().count() > 10, "{shown}");
        assert!(shown == perf(&["script"], &again), "{args:?}: perf script differs");
    }
}
