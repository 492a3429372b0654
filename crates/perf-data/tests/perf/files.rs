//! Files and pipes: `perf` and `linux-perf-data` read ours, and we read those of `perf`.

use crate::{assert_same, can, perf, words};
use perf_data::{
    BuildIdEntry, Features, FileWriter, PipeWriter, Reader, RecordWriter, RecordedEvent,
    SortedReader, Synthesizer, TracingData, perf_event_attr,
};
use perf_monitor::{
    Event, RawRecord, Record, Sample, SampleFlags, Sampler, Software, Target, Tracefs,
};
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::Path;
use std::process::Command;

/// What `perf script` shows of every event.
const FIELDS: &str = "comm,pid,tid,cpu,time,event,ip";

fn shown(comm: &str, event: &str, sample: &Sample<'_>) -> String {
    let ip = sample.ip.map_or(String::new(), |ip| format!(" {ip:x}"));
    format!(
        "{comm} {}/{} [{:03}] {}: {event}:{ip}",
        sample.pid.unwrap() as i32,
        sample.tid.unwrap() as i32,
        sample.cpu.unwrap(),
        sample.time.unwrap(),
    )
}

/// The samples of a recording as `perf script --ns -F FIELDS` shows them.
fn lines(reader: Reader<impl std::io::Read>) -> Vec<String> {
    let mut comms = std::collections::HashMap::new();
    let mut lines = Vec::new();
    let mut reader = SortedReader::new(reader);
    while let Some(entry) = reader.next_record().unwrap() {
        match entry.decode().unwrap().unwrap() {
            Record::Comm(c) => {
                comms.insert(c.tid, String::from_utf8_lossy(c.comm).into_owned());
            }
            Record::Fork(f) => {
                if let Some(comm) = comms.get(&f.ptid).cloned() {
                    comms.insert(f.tid, comm);
                }
            }
            Record::Sample(s) => {
                let comm = match s.tid.unwrap() {
                    0 => "swapper",
                    tid => &*comms.entry(tid).or_insert_with(|| format!(":{}", tid as i32)),
                };
                lines.push(shown(comm, &entry.event().unwrap().name, &s));
            }
            _ => {}
        }
    }
    assert_eq!(reader.late(), 0);
    lines
}

/// A recording of this process: page faults and, if wanted, system calls.
struct Recorded {
    samplers: Vec<Sampler>,
    events: Vec<RecordedEvent>,
    features: Features,
}

impl Recorded {
    fn start(tracepoint: bool) -> Self {
        let fields = SampleFlags::IDENTIFIER
            | SampleFlags::IP
            | SampleFlags::TID
            | SampleFlags::TIME
            | SampleFlags::CPU
            | SampleFlags::PERIOD;
        let faults = Event::software(Software::PageFaults)
            .builder()
            .sample_period(1)
            .sample(fields)
            .comm(true)
            .task(true)
            .mmap(true)
            .mmap2(true);
        let mut sampler = faults.open_sampler(Target::ThisThread, 64).unwrap();
        let mut features = Features::of_this_machine();
        features.version = Some("test".into());
        if tracepoint {
            let tracefs = Tracefs::find().unwrap();
            let event = tracefs.event("raw_syscalls", "sys_enter").unwrap();
            let builder = event.builder().sample_period(1).sample(fields | SampleFlags::RAW);
            sampler.add(&builder, Target::ThisThread).unwrap();
            let events = [("raw_syscalls", "sys_enter")];
            features.tracing = Some(TracingData::of_this_kernel(&tracefs, events).unwrap());
        }
        let event = |counter: &perf_monitor::Counter| RecordedEvent {
            name: counter.event().name().to_owned(),
            attr: *counter.attr(),
            ids: vec![counter.id().unwrap()],
        };
        let events = sampler.counters().map(event).collect();
        if let Some(id) = trace_symbols::build_id::of_kernel() {
            features.build_ids.push(BuildIdEntry::new(id, "[kernel.kallsyms]".into(), true));
        }
        sampler.enable().unwrap();
        Self { samplers: vec![sampler], events, features }
    }

    /// Does what is recorded, and writes it.
    fn write(&mut self, out: &mut impl RecordWriter, build_ids: bool) {
        let page = rustix::param::page_size();
        let mut touched = vec![0u8; 200 * page];
        touched.iter_mut().step_by(page).for_each(|b| *b = 1);
        std::fs::read("/proc/self/comm").unwrap();
        let mut synthesizer = Synthesizer::new(&self.events[0].attr, build_ids);
        synthesizer.kernel(out).unwrap();
        synthesizer.process(std::process::id(), out).unwrap();
        for sampler in &mut self.samplers {
            sampler.disable().unwrap();
            sampler.drain_raw(|_, raw| out.record(raw)).unwrap();
            out.finish_round().unwrap();
        }
    }
}

#[test]
fn perf_reads_our_files() {
    if !can(true) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("perf.data");
    let mut recorded = Recorded::start(true);
    let file = BufWriter::new(File::create(&path).unwrap());
    let mut writer = FileWriter::new(file, recorded.events.clone()).unwrap();
    recorded.write(&mut writer, false);
    writer.finish(&recorded.features).unwrap();

    let ours = lines(Reader::new(File::open(&path).unwrap()).unwrap());
    assert!(ours.len() > 200, "{}", ours.len());
    let theirs = perf(&["script", "--ns", "-F", FIELDS], &path);
    assert_same(&words(&theirs), &ours);

    // Every record, of whatever kind, is one to perf too.
    let dump = perf(&["script", "-D"], &path);
    let theirs = dump.lines().filter(|l| l.contains(": PERF_RECORD_")).count();
    let mut reader = Reader::new(File::open(&path).unwrap()).unwrap();
    let mut count = 0;
    while reader.next_record().unwrap().is_some() {
        count += 1;
    }
    assert_eq!(theirs, count);

    // The features.
    let header = perf(&["report", "--header-only"], &path);
    let features = &recorded.features;
    for line in [
        format!("# hostname : {}", features.hostname.as_ref().unwrap()),
        format!("# os release : {}", features.os_release.as_ref().unwrap()),
        "# perf version : test".to_owned(),
        format!("# nrcpus online : {}", features.cpus.unwrap().online),
        format!("# total memory : {} kB", features.total_memory_kib.unwrap()),
        "# event : name = page-faults, ".to_owned(),
        "# event : name = raw_syscalls:sys_enter, ".to_owned(),
    ] {
        assert!(header.contains(&line), "{line:?} is not in {header}");
    }
    let ids = perf(&["buildid-list"], &path);
    let kernel = trace_symbols::build_id::of_kernel().unwrap();
    assert_eq!(ids.trim(), format!("{kernel} [kernel.kallsyms]"));
    let report = perf(&["report", "--stdio", "--sort", "comm,dso"], &path);
    assert!(report.contains("of event 'page-faults'"), "{report}");
}

#[test]
fn perf_reads_our_pipes() {
    if !can(true) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pipe.data");
    let mut recorded = Recorded::start(true);
    let file = BufWriter::new(File::create(&path).unwrap());
    let mut writer = PipeWriter::new(file, &recorded.events, &recorded.features).unwrap();
    recorded.write(&mut writer, true);
    writer.finish(&recorded.features.build_ids).unwrap();
    let ours = lines(Reader::of_pipe(File::open(&path).unwrap()).unwrap());
    assert!(ours.len() > 200, "{}", ours.len());
    // As perf reads it from a pipe.
    let output = Command::new("perf")
        .args(["script", "--ns", "-F", FIELDS, "-i", "-"])
        .stdin(File::open(&path).unwrap())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_same(&words(&String::from_utf8_lossy(&output.stdout)), &ours);

    // The mappings have the build ids of their files.
    let dump = perf(&["script", "--show-mmap-events"], &path);
    let own = std::fs::read_to_string("/proc/self/maps").unwrap();
    let libc =
        own.lines().find_map(|l| l.split_whitespace().nth(5).filter(|n| n.contains("libc.so")));
    let libc = libc.expect("the test uses libc");
    let id = trace_symbols::build_id::of_file(libc).unwrap();
    let mapping = dump.lines().find(|line| line.ends_with(libc)).expect(libc);
    assert!(mapping.contains(&format!("<{id}>")), "{mapping}");
}

#[test]
fn perf_reads_the_names_of_many_events_from_our_pipes() {
    if !can(false) {
        return;
    }
    let mut attr = perf_event_attr::new(1, 9);
    attr.sample_type = (SampleFlags::IDENTIFIER | SampleFlags::TID | SampleFlags::TIME).bits();
    attr.set_sample_id_all(true);
    let event = |n: u64| RecordedEvent { name: format!("event-{n}"), attr, ids: vec![n] };
    // Their description does not fit in a record.
    let events: Vec<_> = (1..=1000).map(event).collect();
    let mut writer = PipeWriter::new(Vec::new(), &events, &Features::default()).unwrap();
    let sampled = || (1..=1000u64).step_by(111);
    for (n, time) in sampled().zip(1u64..) {
        let header = 9 | 32 << 48; // PERF_RECORD_SAMPLE of 32 bytes
        let words = [header, n, 1 | 1 << 32, time];
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        writer.record(RawRecord::split_first(&bytes, 0).unwrap().0).unwrap();
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pipe.data");
    std::fs::write(&path, writer.finish(&[]).unwrap()).unwrap();
    let output = Command::new("perf")
        .args(["script", "-F", "event", "-i", "-"])
        .stdin(File::open(&path).unwrap())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let expected: Vec<String> = sampled().map(|n| format!("event-{n}:")).collect();
    assert_same(&words(&String::from_utf8_lossy(&output.stdout)), &expected);
}

#[test]
fn linux_perf_data_reads_our_files() {
    use linux_perf_data::{AttributeDescription, PerfFileReader, PerfFileRecord};
    if !can(false) {
        return;
    }
    let mut recorded = Recorded::start(false);
    let mut writer =
        FileWriter::new(std::io::Cursor::new(Vec::new()), recorded.events.clone()).unwrap();
    recorded.write(&mut writer, false);
    let mut file = writer.finish(&recorded.features).unwrap();
    file.set_position(0);
    let ours = Reader::new(file.clone()).unwrap();
    let mut samples = 0;
    let mut sorted = SortedReader::new(ours);
    let mut times = Vec::new();
    while let Some(entry) = sorted.next_record().unwrap() {
        if let Record::Sample(s) = entry.decode().unwrap().unwrap() {
            samples += 1;
            times.push(s.time.unwrap().nanos() as u64);
        }
    }
    assert!(samples >= 200);

    let PerfFileReader { mut perf_file, mut record_iter } =
        PerfFileReader::parse_file(file).unwrap();
    let names: Vec<_> =
        perf_file.event_attributes().iter().filter_map(AttributeDescription::name).collect();
    assert_eq!(names, ["page-faults"]);
    assert_eq!(perf_file.hostname().unwrap(), recorded.features.hostname.as_deref());
    assert_eq!(perf_file.arch().unwrap(), recorded.features.arch.as_deref());
    let ids = perf_file.build_ids().unwrap();
    let kernel = trace_symbols::build_id::of_kernel().unwrap();
    assert!(ids.values().any(|id| id.build_id == kernel.as_bytes()));
    let mut theirs = Vec::new();
    while let Some(record) = record_iter.next_record(&mut perf_file).unwrap() {
        if let PerfFileRecord::EventRecord { record, .. } = record {
            if record.record_type.is_builtin_type() {
                if let linux_perf_data::linux_perf_event_reader::EventRecord::Sample(s) =
                    record.parse().unwrap()
                {
                    theirs.push(s.timestamp.unwrap());
                }
            }
        }
    }
    assert_eq!(theirs, times);
}

/// Records a known command with perf, and compares.
fn theirs(args: &[&str], piped: bool) -> usize {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("perf.data");
    let mut command = Command::new("perf");
    command.args(["record", "-q", "--sample-cpu", "-T", "-m", "512"]).args(args).arg("-o");
    command.arg(if piped { Path::new("-") } else { &path });
    let script = "for i in 1 2 3 4 5; do true | cat; done";
    let output = testkit::perf::output(command.args(["--", "sh", "-c", script]));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    if piped {
        std::fs::write(&path, output.stdout).unwrap();
    }
    let file = File::open(&path).unwrap();
    let ours = if piped {
        lines(Reader::of_pipe(file).unwrap())
    } else {
        let reader = Reader::new(file).unwrap();
        let features = reader.session().features();
        assert!(features.damaged.is_empty(), "{:?}", features.damaged);
        let version = features.version.as_deref().unwrap();
        let header = perf(&["report", "--header-only"], &path);
        assert!(header.contains(&format!("# perf version : {version}")), "{header}");
        lines(reader)
    };
    let shown = perf(&["script", "--ns", "-F", FIELDS], &path);
    assert_same(&words(&shown), &ours);
    ours.len()
}

#[test]
fn we_read_files_of_perf() {
    if can(true) {
        assert!(theirs(&["-e", "page-faults", "-c", "1"], false) > 100);
        assert!(theirs(&["-a", "-e", "sched:sched_switch", "-e", "cpu-clock"], false) > 10);
    }
}

#[test]
fn we_read_pipes_of_perf() {
    if can(true) {
        assert!(theirs(&["-e", "page-faults", "-c", "1"], true) > 100);
        assert!(theirs(&["-e", "sched:sched_switch", "-e", "page-faults"], true) > 10);
    }
}

#[test]
#[cfg(feature = "zstd")]
fn we_read_compressed_recordings_of_perf() {
    if !can(false) {
        return;
    }
    let options = Command::new("perf").args(["version", "--build-options"]).output().unwrap();
    let options = String::from_utf8_lossy(&options.stdout).into_owned();
    let has_zstd = options.lines().any(|line| line.contains("zstd") && line.contains("[ on"));
    if !has_zstd {
        let _ = writeln!(std::io::stderr(), "SKIPPED\tcompressed recordings\tperf without zstd");
        return;
    }
    for level in ["-z", "--compression-level=9"] {
        assert!(theirs(&["-e", "page-faults", "-c", "1", level], false) > 100);
    }
    assert!(theirs(&["-e", "page-faults", "-c", "1", "-z"], true) > 100);
}

/// What a reader of the records of several kinds needs: each is as long as it says.
#[test]
fn records_of_perf_fill_the_file() {
    if !can(false) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("perf.data");
    let mut perf = Command::new("perf");
    perf.args(["record", "-q", "-e", "page-faults", "-o"]).arg(&path).args(["--", "true"]);
    let output = testkit::perf::output(&mut perf);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let bytes = std::fs::read(&path).unwrap();
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    let mut reader = Reader::new(std::io::Cursor::new(&bytes)).unwrap();
    let mut at = word(40);
    while let Some(entry) = reader.next_record().unwrap() {
        let raw: RawRecord<'_> = entry.raw;
        assert_eq!(raw.offset(), at);
        at += raw.bytes().len() as u64;
    }
    assert_eq!(at, word(40) + word(48));
}
