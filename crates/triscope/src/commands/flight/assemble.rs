//! One recording out of segments.

use super::chain::Chain;
use perf_data::{
    BuildIdEntry, Entry, Features, FileWriter, Limits, Reader, RecordWriter, RecordedEvent,
    TracingData, record_type,
};
use perf_monitor::Timestamp;
use std::fs::File;
use std::io::{self, BufWriter};
use trace_flight::Segment;

/// A segment, open for reading.
pub(super) struct Input {
    pub(super) segment: Segment,
    pub(super) file: File,
}

/// What the recording has.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Assembled {
    /// Segments whose end could not be read.
    pub(super) torn: u64,
    /// Bytes that could not be read.
    pub(super) truncated: u64,
    /// Switches before which one is missing.
    pub(super) gaps: u64,
    /// The release of the kernel.
    pub(super) release: Option<String>,
    /// `CLOCK_REALTIME` less the clock of the records, at the end of the last segment that has a reading.
    pub(super) wall_clock_offset: Option<i64>,
}

/// Writes the records of segments as one recording. Segments have events of the same names, with other
/// ids if they are of several recorders. `tracing` is for segments that were not sealed.
///
/// Each segment begins with the tasks of its start. They are left out of one that continues the
/// segment before.
pub(super) fn assemble(
    inputs: Vec<Input>,
    tracing: Option<TracingData>,
    out: &File,
) -> io::Result<Assembled> {
    const BUFFER: usize = 1 << 20;
    let mut this = Assembled::default();
    let mut features = Features::of_this_machine();
    features.version = Some(concat!("triscope ", env!("CARGO_PKG_VERSION")).to_owned());
    let mut readers = Vec::new();
    let mut events: Vec<RecordedEvent> = Vec::new();
    for Input { segment, file } in inputs {
        let Ok(reader) = Reader::open(file, Limits::default()) else {
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
        }
        readers.push((segment, reader));
    }
    // Those of sealed segments have names.
    for is_torn in [false, true] {
        let of = readers.iter().filter(|(_, reader)| reader.is_incomplete() == is_torn);
        of.for_each(|(_, reader)| add(&mut events, reader.session().events()));
    }
    features.tracing = features.tracing.or(tracing);
    this.wall_clock_offset = features
        .clock
        .and_then(|read| i64::try_from(i128::from(read.realtime) - i128::from(read.clock)).ok());
    this.release.clone_from(&features.os_release);
    let mut chain = features.tracing.as_ref().and_then(Chain::new);
    let mut writer =
        FileWriter::new(BufWriter::with_capacity(BUFFER, out), events).map_err(io::Error::other)?;
    let (mut end, mut times) = (None, None);
    for (segment, mut reader) in readers {
        let continues = end == Some(segment.start);
        end = Some(segment.end);
        if let Some(chain) = chain.as_mut().filter(|_| !continues) {
            chain.forget();
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
                    note_time(&entry, &mut times);
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
                    break;
                }
            }
        }
        writer.finish_round().map_err(io::Error::other)?;
    }
    features.sample_time = times;
    features.build_ids = trace_symbols::build_id::of_kernel()
        .map(|id| BuildIdEntry::new(id, "[kernel.kallsyms]".to_owned(), true))
        .into_iter()
        .collect();
    let out = writer.finish(&features).map_err(io::Error::other)?;
    out.into_inner().map_err(io::IntoInnerError::into_error)?;
    this.gaps = chain.map_or(0, |chain| chain.gaps);
    Ok(this)
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

fn follow(chain: &mut Chain, entry: &Entry<'_>) {
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
