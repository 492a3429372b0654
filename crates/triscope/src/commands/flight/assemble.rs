//! One recording out of segments.

use super::chain::Chain;
use super::kernel::TRACEPOINTS;
use crate::sources::kernel::sideband_record::Sideband;
use crate::sources::kernel::switch_records::Arrival;
use perf_data::{
    BuildIdEntry, Entry, Features, FileWriter, Mappings, Reader, RecordWriter, RecordedEvent,
    TracingData, record_type,
};
use perf_monitor::{Record, SampleFlags, Timestamp, TracepointFormat};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufWriter};
use std::time::Duration;
use trace_flight::Segment;

/// A segment, open for reading.
pub(super) struct Input {
    pub(super) segment: Segment,
    pub(super) file: File,
}

/// What is known of events beside the segments.
#[derive(Default)]
pub(super) struct Known {
    pub(super) tracing: Option<TracingData>,
    /// A recording without records, of the recorder that was last here.
    pub(super) events: Option<File>,
}

/// What the recording has.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Assembled {
    /// Segments whose end could not be read.
    pub(super) torn: u64,
    /// Bytes that could not be read.
    pub(super) truncated: u64,
    /// Records whose time is not one of their segment.
    pub(super) misplaced: u64,
    /// Switches before which one is missing.
    pub(super) gaps: u64,
    /// Whether it has records of tracepoints, and nothing says what their fields are.
    pub(super) lacks_formats: bool,
    /// The release of the kernel.
    pub(super) release: Option<String>,
    /// `CLOCK_REALTIME` less the clock of the records, at the end of the last segment that has a reading.
    pub(super) wall_clock_offset: Option<i64>,
}

/// Before the start of a segment: the first one has what was recorded while the processes that ran were read.
const BEFORE: Duration = Duration::from_secs(10);

/// After the end of a segment.
const AFTER: Duration = Duration::from_millis(10);

/// Whether a record of a segment with these times can have this time: others are damaged.
pub(super) fn is_within(start: Timestamp, end: Timestamp, time: Timestamp) -> bool {
    time >= start - BEFORE && time <= end + AFTER
}

/// What a segment says about this machine, its kernel and its recorder.
pub(super) fn features_of_segment() -> Features {
    let mut features = features(false);
    features.build_ids = trace_symbols::build_id::of_kernel()
        .map(|id| BuildIdEntry::new(id, Mappings::KERNEL.to_owned(), true))
        .into_iter()
        .collect();
    features
}

/// What a recording says about this machine and its recorder.
fn features(command_lines: bool) -> Features {
    let mut features = Features::of_this_machine();
    features.version = Some(concat!("triscope ", env!("CARGO_PKG_VERSION")).to_owned());
    if !command_lines {
        // The command that is recorded has its arguments there.
        features.command_line.truncate(1);
    }
    features
}

/// Writes the records of segments as one recording. Segments have events of the same names, with other
/// ids if they are of several recorders. `known` is for segments that were not sealed.
///
/// Each segment begins with the tasks of its start. They are left out of one that continues the
/// segment before. Before any other, each CPU has a `PERF_RECORD_LOST` of no records, at the time of
/// the last record: what the threads did since then is not known.
pub(super) fn assemble(
    inputs: Vec<Input>,
    known: Known,
    command_lines: bool,
    out: &File,
) -> io::Result<Assembled> {
    const BUFFER: usize = 1 << 20;
    let mut this = Assembled::default();
    let mut features = features(command_lines);
    let mut readers = Vec::new();
    let mut events: Vec<RecordedEvent> = Vec::new();
    let kept = known.events.and_then(|file| Reader::new(file).ok());
    features.clock = kept.as_ref().and_then(|kept| kept.session().features().clock);
    for Input { segment, file } in inputs {
        let Ok(reader) = Reader::new(file) else {
            this.torn += 1;
            this.truncated += segment.bytes;
            continue;
        };
        let of = reader.session().features();
        // The wall clock may have been set: the last reading is that of the dump.
        features.clock = of.clock.or(features.clock);
        if features.tracing.is_none() {
            features.tracing.clone_from(&of.tracing);
            if of.os_release.is_some() {
                features.os_release.clone_from(&of.os_release);
            }
            features.build_ids.clone_from(&of.build_ids);
        }
        readers.push((segment, reader));
    }
    // Those of sealed segments have names, and those that were kept.
    let (torn, sealed): (Vec<_>, Vec<_>) =
        readers.iter().map(|(_, reader)| reader).partition(|reader| has_no_features(reader));
    let kept = kept.as_ref().filter(|_| !torn.is_empty());
    for reader in sealed.into_iter().chain(kept).chain(torn) {
        add(&mut events, reader.session().events());
    }
    features.tracing = features.tracing.or(known.tracing);
    if let Some(kept) = kept.filter(|_| features.tracing.is_none()) {
        let of = kept.session().features();
        features.tracing.clone_from(&of.tracing);
        features.os_release.clone_from(&of.os_release);
        features.build_ids.clone_from(&of.build_ids);
    }
    this.lacks_formats = features.tracing.is_none() && events.iter().any(is_tracepoint);
    this.wall_clock_offset = features.clock.map(|clock| clock.offset_nanos());
    this.release.clone_from(&features.os_release);
    let mut chain = features.tracing.as_ref().and_then(Chain::new);
    let always = features.tracing.as_ref().map(always_recorded).unwrap_or_default();
    let sideband = sideband(&events);
    let mut cpus = BTreeSet::new();
    // Of the events of the segment before.
    let mut ids = BTreeSet::new();
    let mut writer =
        FileWriter::new(BufWriter::with_capacity(BUFFER, out), events).map_err(io::Error::other)?;
    // The end of the segment before, if all of it could be read.
    let mut end = None;
    let mut times: Option<(Timestamp, Timestamp)> = None;
    for (segment, mut reader) in readers {
        let continues = end == Some(segment.start);
        end = Some(segment.end);
        let copies = copies(reader.session().events(), &always);
        let of: BTreeSet<u64> =
            reader.session().events().iter().flat_map(|event| event.ids.iter().copied()).collect();
        // Events that were opened again have records of before the end of the others.
        let is_reopened = ids.is_disjoint(&of);
        ids = of;
        if let Some(chain) = chain.as_mut().filter(|_| !continues || is_reopened) {
            chain.forget();
        }
        if let (false, Some(sideband), Some((_, last))) = (continues, sideband, times) {
            for cpu in &cpus {
                sideband.write_lost(last, *cpu, 0, &mut writer).map_err(io::Error::other)?;
            }
        }
        let mut is_start = true;
        let mut at = 0;
        loop {
            match reader.next_record() {
                Ok(Some(entry)) => {
                    at = entry.raw.offset() + entry.raw.bytes().len() as u64;
                    let is_round = entry.raw.type_() == record_type::FINISHED_ROUND;
                    if is_start && continues {
                        is_start = !is_round;
                        continue;
                    }
                    is_start = false;
                    let is_misplaced = |time| !is_within(segment.start, segment.end, time);
                    if entry.time().is_some_and(is_misplaced) {
                        this.misplaced += 1;
                        continue;
                    }
                    if is_sample_of(&entry, &copies) {
                        continue;
                    }
                    note_time(&entry, &mut times);
                    cpus.extend(entry.layout().and_then(|layout| layout.cpu(entry.raw)));
                    if let Some(chain) = &mut chain {
                        follow(chain, &entry);
                    }
                    let written = match is_round {
                        true => writer.finish_round(),
                        false => writer.record(entry.raw),
                    };
                    written.map_err(io::Error::other)?;
                }
                Ok(None) => break,
                Err(_) => {
                    this.torn += 1;
                    this.truncated += segment.bytes.saturating_sub(at);
                    end = None;
                    break;
                }
            }
        }
        writer.finish_round().map_err(io::Error::other)?;
    }
    features.sample_time = times;
    let out = writer.finish(&features).map_err(io::Error::other)?;
    out.into_inner().map_err(io::IntoInnerError::into_error)?;
    this.gaps = chain.map_or(0, |chain| chain.gaps);
    Ok(this)
}

/// Whether the end of a segment, which has the names of its events, is missing.
const fn has_no_features(reader: &Reader<File>) -> bool {
    !reader.is_complete() || reader.is_truncated()
}

fn is_tracepoint(event: &RecordedEvent) -> bool {
    const PERF_TYPE_TRACEPOINT: u32 = 2;
    event.attr.type_ == PERF_TYPE_TRACEPOINT
}

/// The numbers of the tracepoints that are recorded always.
fn always_recorded(tracing: &TracingData) -> BTreeSet<u64> {
    let is_one = |format: &TracepointFormat| {
        format.system() == "sched" && TRACEPOINTS.contains(&format.name())
    };
    tracing.formats().filter(is_one).map(|format| format.id()).collect()
}

/// The places of the events of triggers on tracepoints that are recorded always: a recorder of an earlier version has
/// written their samples, which the event before has, too.
fn copies(events: &[RecordedEvent], always: &BTreeSet<u64>) -> BTreeSet<usize> {
    let mut seen = BTreeSet::new();
    let mut copies = BTreeSet::new();
    for (place, event) in events.iter().enumerate() {
        let config = event.attr.config;
        if is_tracepoint(event) && always.contains(&config) && !seen.insert(config) {
            copies.insert(place);
        }
    }
    copies
}

/// Whether it is a sample of one of these events. Other records, such as those of losses, can have any event.
fn is_sample_of(entry: &Entry<'_>, events: &BTreeSet<usize>) -> bool {
    !events.is_empty()
        && entry.session.event_of(entry.raw).is_some_and(|place| events.contains(&place))
        && entry.layout().is_some_and(|layout| layout.raw_data(entry.raw).is_some())
}

/// Adds events, or the ids of those that are there.
fn add(events: &mut Vec<RecordedEvent>, others: &[RecordedEvent]) {
    for other in others {
        match events.iter_mut().find(|event| event.attr == other.attr) {
            Some(event) => {
                let new = other.ids.iter().filter(|id| !event.ids.contains(id));
                let new: Vec<u64> = new.copied().collect();
                event.ids.extend(new);
            }
            None => events.push(other.clone()),
        }
    }
}

/// The event whose records have the fields that say where and when they are.
pub(super) fn sideband(events: &[RecordedEvent]) -> Option<Sideband> {
    let needed = SampleFlags::TIME | SampleFlags::CPU;
    events.iter().find_map(|RecordedEvent { attr, ids, .. }| {
        let has = SampleFlags::from_bits_retain(attr.sample_type).contains(needed);
        let id = ids.first().filter(|_| attr.sample_id_all() && has)?;
        Some(Sideband { attr: *attr, id: *id })
    })
}

pub(super) fn follow(chain: &mut Chain, entry: &Entry<'_>) {
    const PERF_RECORD_LOST: u32 = 2;
    if entry.raw.type_() == PERF_RECORD_LOST {
        match entry.decode() {
            // The recorder marks so that a CPU went offline. Others are gaps, too.
            Some(Ok(Record::Lost(lost))) if lost.lost == 0 => {
                lost.sample_id.cpu.into_iter().for_each(|cpu| chain.forget_cpu(cpu));
            }
            _ => {}
        }
        return;
    }
    if let Some(arrival) = entry.layout().and_then(|layout| Arrival::of(layout, entry.raw)) {
        chain.arrive(&arrival);
        return;
    }
    let event = entry.event().filter(|event| event.name == "sched:sched_switch");
    let layout = event.and_then(|_| entry.layout());
    let of = layout.and_then(|layout| layout.cpu(entry.raw).zip(layout.raw_data(entry.raw)));
    if let Some((cpu, data)) = of {
        chain.switch(cpu, data);
    }
}

fn note_time(entry: &Entry<'_>, times: &mut Option<(Timestamp, Timestamp)>) {
    if let Some(time) = entry.time() {
        let (first, last) = times.unwrap_or((time, time));
        *times = Some((first.min(time), last.max(time)));
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use perf_data::{BuildId, perf_event_attr};
    use perf_monitor::RawRecord;
    use proptest::prelude::*;
    use std::path::Path;

    /// Bytes of a sample that has its time alone.
    pub(in super::super) const SAMPLE: usize = 16;

    /// A segment in progress with samples at these times.
    pub(in super::super) fn samples(path: &Path, times: &[u64]) -> FileWriter<File> {
        let attr = perf_event_attr { sample_type: 1 << 2, ..perf_event_attr::new(1, 0) };
        let event = RecordedEvent { name: "cpu-clock".into(), attr, ids: vec![1] };
        let mut writer = FileWriter::new(File::create(path).unwrap(), vec![event]).unwrap();
        for time in times {
            let size = (SAMPLE as u16).to_ne_bytes();
            let header = [&9_u32.to_ne_bytes()[..], &[0, 0], &size].concat();
            let bytes = [header, time.to_ne_bytes().to_vec()].concat();
            let (raw, _) = RawRecord::split_first(&bytes, 0).unwrap();
            writer.record(raw).unwrap();
        }
        writer
    }

    const START: u64 = 0x1234_5678_9abc;
    const RECORDS: u64 = 50;

    /// A segment of [`RECORDS`] samples in its second, and the offset of the first one.
    fn sealed(dir: &Path) -> (Vec<u8>, usize) {
        let path = dir.join("sealed");
        let times: Vec<u64> = (0..RECORDS).map(|n| START + n * 1000).collect();
        samples(&path, &times).finish(&Features::default()).unwrap();
        let bytes = std::fs::read(path).unwrap();
        let first = START.to_ne_bytes();
        let at = bytes.windows(8).position(|window| window == first).unwrap();
        (bytes, at - 8)
    }

    /// Assembles it. Returns the times in the dump, too.
    fn assembled(dir: &Path, bytes: &[u8]) -> (Assembled, Vec<i64>) {
        let path = dir.join("segment");
        std::fs::write(&path, bytes).unwrap();
        let start = Timestamp::from_nanos(START as i64);
        let (end, bytes) = (start + Duration::from_secs(1), bytes.len() as u64);
        let segment = Segment { id: 0, start, end, bytes, lost: 0 };
        let input = Input { segment, file: File::open(&path).unwrap() };
        let out = dir.join("out");
        let this =
            assemble(vec![input], Known::default(), false, &File::create(&out).unwrap()).unwrap();
        let mut times = Vec::new();
        if let Ok(mut reader) = Reader::new(File::open(out).unwrap()) {
            while let Ok(Some(entry)) = reader.next_record() {
                times.extend(entry.time().map(Timestamp::nanos));
            }
        }
        (this, times)
    }

    #[test]
    fn a_record_of_another_time_is_counted_and_left_out() {
        let dir = tempfile::tempdir().unwrap();
        let (bytes, first) = sealed(dir.path());
        let (whole, times) = assembled(dir.path(), &bytes);
        assert_eq!((whole.misplaced, whole.torn, times.len() as u64), (0, 0, RECORDS));
        for record in [0, 20, 49] {
            // The seconds of its time, and the sign.
            for byte in [5, 6, 7] {
                let mut damaged = bytes.clone();
                damaged[first + record * SAMPLE + 8 + byte] ^= 0x80;
                let (this, times) = assembled(dir.path(), &damaged);
                assert_eq!((this.misplaced, this.torn), (1, 0), "{record} {byte}");
                assert_eq!(times.len() as u64, RECORDS - 1);
            }
        }
    }

    /// A segment that begins at this second, with a sample of each of two CPUs.
    fn of_two_cpus(dir: &Path, second: i64) -> Input {
        let start = Timestamp::from_nanos(second * 1_000_000_000);
        let mut attr = perf_event_attr::new(1, 0);
        attr.sample_type = (SampleFlags::TIME | SampleFlags::CPU).bits();
        attr.set_sample_id_all(true);
        let event = RecordedEvent { name: "cpu-clock".into(), attr, ids: vec![7] };
        let path = dir.join(second.to_string());
        let mut writer = FileWriter::new(File::create(&path).unwrap(), vec![event]).unwrap();
        let sample = |writer: &mut FileWriter<File>, cpu| {
            let words = [9 | 24 << 48, start.nanos() as u64 + 1 + cpu, cpu];
            let bytes = words.map(u64::to_ne_bytes).concat();
            let (raw, _) = RawRecord::split_first(&bytes, 0).unwrap();
            writer.record(raw).unwrap();
        };
        // In place of the tasks, which end with the first round.
        sample(&mut writer, 0);
        writer.finish_round().unwrap();
        [0, 3].into_iter().for_each(|cpu| sample(&mut writer, cpu));
        writer.finish_round().unwrap();
        writer.finish(&Features::default()).unwrap();
        let bytes = std::fs::metadata(&path).unwrap().len();
        let end = start + Duration::from_secs(1);
        let segment = Segment { id: 0, start, end, bytes, lost: 0 };
        Input { segment, file: File::open(path).unwrap() }
    }

    #[test]
    fn states_do_not_cross_a_missing_segment() {
        let dir = tempfile::tempdir().unwrap();
        let inputs = [1, 2, 4].map(|second| of_two_cpus(dir.path(), second));
        let out = dir.path().join("out");
        assemble(inputs.into(), Known::default(), false, &File::create(&out).unwrap()).unwrap();
        let mut reader = Reader::new(File::open(out).unwrap()).unwrap();
        let mut losses = Vec::new();
        while let Some(entry) = reader.next_record().unwrap() {
            if let Some(Ok(Record::Lost(lost))) = entry.decode() {
                losses.push((entry.time().unwrap().nanos(), lost.sample_id.cpu, lost.lost));
            }
        }
        let last = 2_000_000_000 + 1 + 3;
        assert_eq!(losses, [(last, Some(0), 0), (last, Some(3), 0)]);
    }

    /// A sample of a switch on CPU 0, with identifier, time, CPU and data.
    fn switch_sample(id: u64, time: u64, prev: u64, next: u64) -> Vec<u8> {
        const SIZE: u64 = 48;
        // The data are two numbers of threads, and four bytes that fill up the last word.
        let words = [9 | SIZE << 48, id, time, 0, 12 | prev << 32, next];
        words.map(u64::to_ne_bytes).concat()
    }

    /// A recorder of an earlier version has written the switch for its own event and for that of a trigger.
    #[test]
    fn a_switch_that_a_trigger_has_too_is_one() {
        const FORMAT: &str = "name: sched_switch\nID: 3\nformat:\n\
            \tfield:pid_t prev_pid;\toffset:0;\tsize:4;\tsigned:1;\n\
            \tfield:pid_t next_pid;\toffset:4;\tsize:4;\tsigned:1;\n";
        const PERF_RECORD_LOST: u64 = 2;
        let dir = tempfile::tempdir().unwrap();
        let mut tracing = TracingData::default();
        tracing.events.push(("sched".to_owned(), FORMAT.into()));
        let mut features = Features::default();
        features.tracing = Some(tracing);
        let mut attr = perf_event_attr::new(2, 3);
        let flags = SampleFlags::IDENTIFIER | SampleFlags::TIME | SampleFlags::CPU;
        attr.sample_type = (flags | SampleFlags::RAW).bits();
        attr.set_sample_id_all(true);
        let event = |id| RecordedEvent { name: "sched:sched_switch".into(), attr, ids: vec![id] };
        let path = dir.path().join("segment");
        let mut writer =
            FileWriter::new(File::create(&path).unwrap(), vec![event(1), event(2)]).unwrap();
        // A loss has the event that writes next: that of the trigger.
        let lost = [PERF_RECORD_LOST | 48 << 48, 2, 7, START + 5, 0, 2];
        for bytes in [
            lost.map(u64::to_ne_bytes).concat(),
            switch_sample(1, START + 10, 0, 5),
            switch_sample(2, START + 10, 0, 5),
        ] {
            writer.record(RawRecord::split_first(&bytes, 0).unwrap().0).unwrap();
        }
        writer.finish(&features).unwrap();
        let start = Timestamp::from_nanos(START as i64);
        let bytes = std::fs::metadata(&path).unwrap().len();
        let segment = Segment { id: 0, start, end: start + Duration::from_secs(1), bytes, lost: 7 };
        let input = Input { segment, file: File::open(&path).unwrap() };
        let out = dir.path().join("out");
        let assembled =
            assemble(vec![input], Known::default(), false, &File::create(&out).unwrap()).unwrap();
        assert_eq!((assembled.gaps, assembled.torn, assembled.misplaced), (0, 0, 0));
        let mut reader = Reader::new(File::open(out).unwrap()).unwrap();
        let (mut switches, mut losses) = (0, 0);
        while let Some(entry) = reader.next_record().unwrap() {
            match entry.decode() {
                Some(Ok(Record::Sample(_))) => switches += 1,
                Some(Ok(Record::Lost(lost))) => losses += lost.lost,
                _ => {}
            }
        }
        assert_eq!((switches, losses), (1, 7));
    }

    /// The symbols of the running kernel are not those of the kernel before.
    #[test]
    fn a_dump_has_the_build_id_of_the_kernel_of_its_segments() {
        let dir = tempfile::tempdir().unwrap();
        for id in [BuildId::new(&[7; 20]), None] {
            let path = dir.path().join("segment");
            let mut features = Features::default();
            features.tracing = Some(TracingData::default());
            features.os_release = Some("of another boot".to_owned());
            let entry = |id| BuildIdEntry::new(id, Mappings::KERNEL.to_owned(), true);
            features.build_ids = id.map(entry).into_iter().collect();
            samples(&path, &[START]).finish(&features).unwrap();
            assembled(dir.path(), &std::fs::read(&path).unwrap());
            let dump = Reader::new(File::open(dir.path().join("out")).unwrap()).unwrap();
            let of = dump.session().features();
            assert_eq!(of.build_id(Mappings::KERNEL), id);
            assert_eq!(of.os_release.as_deref(), Some("of another boot"));
        }
    }

    proptest! {
        /// Bytes that are wrong anywhere: all that a dump has is of its segment.
        #[test]
        fn damage_moves_no_record(at in 0usize..4096, value in any::<u8>()) {
            let dir = tempfile::tempdir().unwrap();
            let (mut bytes, _) = sealed(dir.path());
            let length = bytes.len();
            bytes[at % length] = value;
            let (_, times) = assembled(dir.path(), &bytes);
            let (start, end) = (START as i64 - 10_000_000_000, START as i64 + 1_010_000_000);
            prop_assert!(times.iter().all(|time| (start..=end).contains(time)));
        }
    }
}
