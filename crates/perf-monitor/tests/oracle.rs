//! `perf` is the judge: what we record, `perf script` shows as we see it; what `perf record`
//! records, we decode as `perf script` shows it.
//!
//! Needs root and the `perf` command; the tracepoint needs a mounted tracefs. A test that cannot
//! run says so, and fails with `PERF_TEST_STRICT`.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that fails is to panic"
)]

use perf_monitor::{
    Decoder, Event, RawRecord, Record, Sample, SampleFlags, Software, Target, Tracefs,
    TracepointFormat,
};
use perf_sys::perf_event_attr;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use zerocopy::{FromBytes, IntoBytes};

/// A file of `perf record`: the header of 104 bytes, attributes with their ids, records, and the
/// sections of features. `tools/perf/Documentation/perf.data-file-format.txt` describes it.
struct PerfData {
    attrs: Vec<(perf_event_attr, Vec<u64>)>,
    records: Vec<u8>,
    /// Number and bytes of each feature.
    features: Vec<(u32, Vec<u8>)>,
}

const MAGIC: &[u8; 8] = b"PERFILE2";
const HEADER: usize = 104;
const TRACING_DATA: u32 = 1;

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap())
}

impl PerfData {
    fn read(path: &Path) -> Self {
        let file = std::fs::read(path).unwrap();
        assert_eq!(&file[..8], MAGIC);
        let section = |at: usize| {
            let (offset, size) = (word(&file, at) as usize, word(&file, at + 8) as usize);
            &file[offset..offset + size]
        };
        let entry = word(&file, 16) as usize; // an attribute and the section of its ids
        let attrs = section(24)
            .chunks_exact(entry)
            .map(|chunk| {
                let mut attr = [0; size_of::<perf_event_attr>()];
                let known = (entry - 16).min(attr.len());
                attr[..known].copy_from_slice(&chunk[..known]);
                let (offset, size) = (word(chunk, entry - 16), word(chunk, entry - 8));
                let ids = &file[offset as usize..(offset + size) as usize];
                let ids = ids.chunks_exact(8).map(|id| word(id, 0)).collect();
                (perf_event_attr::read_from_bytes(&attr).unwrap(), ids)
            })
            .collect();
        let mut at = (word(&file, 40) + word(&file, 48)) as usize;
        let mut features = Vec::new();
        for feature in 0..256 {
            if word(&file, 72 + feature / 64 * 8) >> (feature % 64) & 1 != 0 {
                features.push((feature as u32, section(at).to_vec()));
                at += 16;
            }
        }
        Self { attrs, records: section(40).to_vec(), features }
    }

    fn write(&self, path: &Path) {
        // The size that a perf of Linux 6.1 knows; what is newer is not used here.
        let size = perf_sys::PERF_ATTR_SIZE_VER7 as usize;
        let entry = size + 16;
        let mut out = vec![0; HEADER];
        let mut places = Vec::new();
        for (_, ids) in &self.attrs {
            places.push((out.len() as u64, ids.len() as u64 * 8));
            out.extend(ids.iter().flat_map(|id| id.to_ne_bytes()));
        }
        let attrs = out.len() as u64;
        for ((attr, _), (offset, len)) in self.attrs.iter().zip(places) {
            let attr = perf_event_attr { size: size as u32, ..*attr };
            assert!(attr.config3 == 0 && attr.config4 == 0);
            out.extend_from_slice(&attr.as_bytes()[..size]);
            out.extend([offset, len].iter().flat_map(|w| w.to_ne_bytes()));
        }
        let data = out.len() as u64;
        out.extend_from_slice(&self.records);
        let mut place = out.len() as u64 + 16 * self.features.len() as u64;
        let mut bits = [0u64; 4];
        for (number, bytes) in &self.features {
            bits[*number as usize / 64] |= 1 << (number % 64);
            out.extend([place, bytes.len() as u64].iter().flat_map(|w| w.to_ne_bytes()));
            place += bytes.len() as u64;
        }
        self.features.iter().for_each(|(_, bytes)| out.extend_from_slice(bytes));
        let mut header = MAGIC.to_vec();
        let words = [
            HEADER as u64,
            entry as u64,
            attrs,
            (entry * self.attrs.len()) as u64,
            data,
            self.records.len() as u64,
            0,
            0,
            bits[0],
            bits[1],
            bits[2],
            bits[3],
        ];
        header.extend(words.iter().flat_map(|w| w.to_ne_bytes()));
        out[..HEADER].copy_from_slice(&header);
        std::fs::write(path, out).unwrap();
    }

    fn raw(&self) -> impl Iterator<Item = RawRecord<'_>> {
        let mut rest = &self.records[..];
        std::iter::from_fn(move || {
            let offset = (self.records.len() - rest.len()) as u64;
            let (record, after) = RawRecord::split_first(rest, offset)?;
            rest = after;
            Some(record)
        })
    }

    fn decoder(&self) -> Decoder {
        let mut decoder = Decoder::new(&self.attrs[0].0);
        for (attr, ids) in self.attrs.iter().filter(|_| self.attrs.len() > 1) {
            ids.iter().for_each(|id| decoder.add(*id, attr).unwrap());
        }
        decoder
    }

    /// Our line for each sample, by time.
    fn lines(&self, line: impl Fn(&Sample<'_>) -> String) -> Vec<String> {
        let decoder = self.decoder();
        let mut lines = Vec::new();
        for raw in self.raw() {
            if let Record::Sample(sample) = decoder.decode(raw).unwrap() {
                lines.push((sample.time, line(&sample)));
            }
        }
        lines.sort_by_key(|(time, _)| *time);
        lines.into_iter().map(|(_, line)| line).collect()
    }
}

/// A directory that goes with the test; `None` if it cannot run here.
fn scratch(name: &str, tracefs: bool) -> Option<PathBuf> {
    let cannot = |why: &str| {
        assert!(std::env::var_os("PERF_TEST_STRICT").is_none(), "{name} must run here: {why}");
        // `eprintln!` is captured by the test harness, and a skip that nobody sees passes for a test.
        let _ = std::io::Write::write_fmt(
            &mut std::io::stderr(),
            format_args!("SKIPPED\t{name}\t{why}\n"),
        );
    };
    if !rustix::process::geteuid().is_root() {
        cannot("needs root");
        return None;
    }
    if Command::new("perf").arg("--version").output().is_err() {
        cannot("needs the perf command (linux-perf)");
        return None;
    }
    if tracefs && Tracefs::find().is_err() {
        cannot("needs a mounted tracefs");
        return None;
    }
    let dir = std::env::temp_dir().join(format!("perf-oracle-{}-{name}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    Some(dir)
}

fn perf(args: &[&str], file: &Path) -> String {
    let output = Command::new("perf").args(args).arg("-i").arg(file).output().unwrap();
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The words of each line: `perf` pads its columns.
fn words(text: &str) -> Vec<String> {
    let line = |l: &str| l.split_whitespace().collect::<Vec<_>>().join(" ");
    text.lines().map(line).filter(|l| !l.is_empty()).collect()
}

fn seconds(sample: &Sample<'_>) -> String {
    format!("{}:", sample.time.unwrap())
}

const FIELDS: &str = "pid,tid,cpu,time,period,ip,addr";

/// A sample as `perf script --ns -F pid,tid,cpu,time,period,addr,ip` shows it.
fn shown(sample: &Sample<'_>) -> String {
    format!(
        "{}/{} [{:03}] {} {} {:x} {:x}",
        sample.pid.unwrap(),
        sample.tid.unwrap(),
        sample.cpu.unwrap(),
        seconds(sample),
        sample.period.unwrap(),
        sample.addr.unwrap(),
        sample.ip.unwrap(),
    )
}

#[test]
fn perf_shows_our_recording_as_we_see_it() {
    let Some(dir) = scratch("ours", false) else { return };
    let fields = SampleFlags::IDENTIFIER
        | SampleFlags::IP
        | SampleFlags::TID
        | SampleFlags::TIME
        | SampleFlags::ADDR
        | SampleFlags::CPU
        | SampleFlags::PERIOD;
    let builder = Event::software(Software::PageFaults)
        .builder()
        .sample_period(1)
        .sample(fields)
        .comm(true)
        .task(true)
        .mmap(true)
        .mmap2(true);
    let mut sampler = builder.open_sampler(Target::ThisThread, 64).unwrap();
    sampler.counter().enable().unwrap();
    let page = rustix::param::page_size();
    let mut map = memmap2::MmapMut::map_anon(200 * page).unwrap();
    map.iter_mut().step_by(page).for_each(|b| *b = 1);
    std::thread::spawn(|| ()).join().unwrap();
    sampler.counter().disable().unwrap();
    let mut records = Vec::new();
    let (mut batch, _) = sampler.batch();
    while let Some(raw) = batch.next_record() {
        records.extend_from_slice(raw.bytes());
    }
    drop(batch);
    let attrs = vec![(*sampler.counter().attr(), vec![sampler.counter().id().unwrap()])];
    let ours = PerfData { attrs, records, features: Vec::new() };
    let file = dir.join("perf.data");
    ours.write(&file);

    let theirs = words(&perf(&["script", "--ns", "-F", FIELDS], &file));
    let lines = ours.lines(shown);
    assert!(lines.len() >= 200, "{}", lines.len());
    assert_eq!(theirs, lines);
    // Every record, of whatever kind, is one to perf too.
    let dump = perf(&["script", "-D"], &file);
    let theirs = dump.lines().filter(|l| l.contains(": PERF_RECORD_")).count();
    assert_eq!(theirs, ours.raw().count());
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn we_decode_recordings_of_perf_as_perf_does() {
    let Some(dir) = scratch("theirs", false) else { return };
    let file = dir.join("perf.data");
    let status = Command::new("perf")
        .args([
            "record",
            "-q",
            "-e",
            "page-faults",
            "-c",
            "1",
            "-d",
            "--sample-cpu",
            "-P",
            "-T",
            "-o",
        ])
        .arg(&file)
        .args(["--", "true"])
        .status()
        .unwrap();
    assert!(status.success());
    let theirs = PerfData::read(&file);
    let lines = theirs.lines(shown);
    assert!(lines.len() > 20, "{}", lines.len());
    assert_eq!(words(&perf(&["script", "--ns", "-F", FIELDS], &file)), lines);

    // Side-band records: names and mappings.
    let decoder = theirs.decoder();
    let dump = perf(&["script", "-D"], &file);
    let mut comms = 0;
    for raw in theirs.raw() {
        match decoder.decode(raw).unwrap() {
            Record::Comm(c) => {
                comms += 1;
                let name = String::from_utf8_lossy(c.comm);
                assert!(dump.contains(&format!("{name}:{}/{}", c.pid, c.tid)), "{c:?}");
            }
            Record::Mmap(m) if m.file.is_some() => {
                let shown = format!("[{:#x}({:#x}) @", m.addr, m.len);
                assert!(dump.contains(&shown), "{m:?}");
                assert!(dump.contains(&*String::from_utf8_lossy(m.filename)), "{m:?}");
            }
            _ => {}
        }
    }
    assert!(comms > 0);
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn files_that_we_write_again_look_the_same_to_perf() {
    let Some(dir) = scratch("again", true) else { return };
    for (name, args, keep) in [
        ("timer", &["-e", "cpu-clock", "-g"][..], None),
        (
            "tracepoints",
            &["-e", "sched:sched_switch", "-e", "raw_syscalls:sys_enter"][..],
            Some(TRACING_DATA),
        ),
    ] {
        let (file, again) = (dir.join(name), dir.join(format!("{name}-again")));
        let status = Command::new("perf")
            .args(["record", "-q", "-o"])
            .arg(&file)
            .args(args)
            .args(["--", "sh", "-c", "for i in 1 2 3 4 5; do true | cat; done"])
            .status()
            .unwrap();
        assert!(status.success());
        let mut data = PerfData::read(&file);
        let records: Vec<u8> = data.raw().flat_map(|r| r.bytes().to_vec()).collect();
        assert_eq!(records.len(), data.records.len(), "every byte is a record's");
        data.features.retain(|(number, _)| Some(*number) == keep);
        data.write(&again);
        let shown = perf(&["script"], &file);
        assert!(shown.lines().count() > 10, "{shown}");
        assert!(shown == perf(&["script"], &again), "{name}: perf script differs");
    }
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn fields_of_tracepoints_are_what_perf_prints() {
    let Some(dir) = scratch("fields", true) else { return };
    let file = dir.join("perf.data");
    let status = Command::new("perf")
        .args(["record", "-q", "-e", "raw_syscalls:sys_enter", "-o"])
        .arg(&file)
        .args(["--", "cat", "/proc/self/maps"])
        .stdout(std::process::Stdio::null())
        .status()
        .unwrap();
    assert!(status.success());
    let format: TracepointFormat =
        Tracefs::find().unwrap().format("raw_syscalls", "sys_enter").unwrap();
    let (id, args) = (format.field("id").unwrap(), format.field("args").unwrap());
    let lines = PerfData::read(&file).lines(|sample| {
        let raw = sample.raw.unwrap();
        // "NR %ld (%lx, %lx, %lx, %lx, %lx, %lx)"
        let mut line = format!("{} NR {} (", seconds(sample), id.i64(raw).unwrap());
        for (i, arg) in args.elements(raw).unwrap().iter().enumerate() {
            write!(line, "{}{arg:x}", if i == 0 { "" } else { ", " }).unwrap();
        }
        line + ")"
    });
    assert!(lines.len() > 20);
    assert_eq!(words(&perf(&["script", "--ns", "-F", "time,trace"], &file)), lines);
    std::fs::remove_dir_all(dir).unwrap();
}
