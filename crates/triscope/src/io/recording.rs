//! A recording of perf events: a perf.data file, or a stream.

use super::output_file::OutputFile;
use crate::failure::{Failure, Result};
use perf_data::{
    BuildId, BuildIdEntry, BuildIds, Error, Features, FileWriter, PipeWriter, RecordWriter,
    RecordedEvent, Synthesizer, perf_event_attr,
};
use perf_monitor::{FileId, RawRecord, Record, RecordLayout, SetChunk, Timestamp};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};

/// Buffer of the output. Larger chunks are written from the ring.
const CAPACITY: usize = 1 << 16;

/// Maximum number of files whose build id is kept.
const MAX_FILES: usize = 1 << 16;

/// A recording that is being written.
pub(crate) struct Recording {
    writer: Writer,
    features: Features,
    attr: perf_event_attr,
    layout: RecordLayout,
    mapped: BuildIds,
    /// Build ids of mapped files, by name. `None` if not all mappings of the name have the same one.
    build_ids: BTreeMap<Vec<u8>, Option<BuildId>>,
    /// Times of the first and the last sample.
    times: Option<(Timestamp, Timestamp)>,
    name: String,
    is_stdout: bool,
}

enum Writer {
    File(FileWriter<BufWriter<File>>),
    Pipe(PipeWriter<BufWriter<Box<dyn Write + Send>>>),
}

impl Recording {
    /// Starts a recording: of file mode if the output is a file, otherwise of pipe mode.
    pub(crate) fn start(
        output: &mut OutputFile,
        events: Vec<RecordedEvent>,
        features: Features,
    ) -> Result<Self> {
        let attr = events.first().map(|event| event.attr).unwrap_or_default();
        let (name, is_stdout) = (output.name(), output.is_stdout());
        let writer = match output.file()? {
            Some(file) => {
                FileWriter::new(BufWriter::with_capacity(CAPACITY, file), events).map(Writer::File)
            }
            None => {
                let out = BufWriter::with_capacity(CAPACITY, output.writer()?);
                PipeWriter::new(out, &events, &features).map(Writer::Pipe)
            }
        };
        let layout = RecordLayout::new(&attr);
        match writer {
            Ok(writer) => Ok(Self {
                writer,
                features,
                attr,
                layout,
                mapped: BuildIds::new(&attr),
                build_ids: BTreeMap::new(),
                times: None,
                name,
                is_stdout,
            }),
            Err(error) => Err(failed(&name, is_stdout, error)),
        }
    }

    pub(crate) const fn attr(&self) -> &perf_event_attr {
        &self.attr
    }

    /// Whether events can get ids that are not those of the start.
    pub(crate) const fn takes_ids(&self) -> bool {
        matches!(self.writer, Writer::File(_))
    }

    /// Adds ids of the events, in their order. Those of a stream are written at its start.
    pub(crate) fn add_ids(&mut self, ids: Vec<Vec<u64>>) {
        if let Writer::File(writer) = &mut self.writer {
            writer.add_ids(ids);
        }
    }

    pub(crate) fn failure(&self, error: Error) -> Failure {
        failed(&self.name, self.is_stdout, error)
    }

    /// Writes the records of a ring as they are.
    pub(crate) fn chunk(&mut self, chunk: &SetChunk<'_>) -> Result {
        let records = &chunk.records;
        // The rings of samples have no mappings.
        let result = if records.record_count() > records.sample_count() {
            records.records().try_for_each(|record| self.record(record))
        } else {
            records.slices().into_iter().try_for_each(|bytes| match &mut self.writer {
                Writer::File(writer) => writer.records(bytes),
                Writer::Pipe(writer) => writer.records(bytes),
            })
        };
        result.map_err(|error| self.failure(error))?;
        // The fields up to the time are the same in all events. Within a ring samples are in time
        // order, except for those that an NMI took while another was written.
        let ends = records.first_sample().into_iter().chain(records.last_sample());
        for time in ends.filter_map(|sample| self.layout.time(sample)) {
            let (first, last) = self.times.unwrap_or((time, time));
            self.times = Some((first.min(time), last.max(time)));
        }
        Ok(())
    }

    /// Ends a round. A stream is passed on to its reader.
    pub(crate) fn finish_round(&mut self) -> Result {
        RecordWriter::finish_round(self).map_err(|error| self.failure(error))
    }

    /// Notes the losses that the kernel counted for an event.
    pub(crate) fn lost(&mut self, id: u64, count: u64) -> Result {
        if count == 0 {
            return Ok(());
        }
        let mut synthesizer = Synthesizer::new(&self.attr, false);
        synthesizer.lost(id, count, self).map_err(|error| self.failure(error))
    }

    /// Completes the recording. Returns the number of bytes of its records.
    pub(crate) fn finish(self) -> Result<u64> {
        let Self { writer, mut features, build_ids, times, name, is_stdout, .. } = self;
        let entry = |(file, id): (Vec<u8>, Option<BuildId>)| {
            Some(BuildIdEntry::new(id?, String::from_utf8_lossy(&file).into_owned(), false))
        };
        let kernel = trace_symbols::build_id::of_kernel()
            .map(|id| BuildIdEntry::new(id, "[kernel.kallsyms]".to_owned(), true));
        features.build_ids =
            kernel.into_iter().chain(build_ids.into_iter().filter_map(entry)).collect();
        features.sample_time = times;
        let finished = match writer {
            Writer::File(writer) => {
                let bytes = writer.bytes();
                writer.finish(&features).map(|_| bytes)
            }
            Writer::Pipe(writer) => {
                let bytes = writer.bytes();
                // Those of files are in the records of their mappings.
                let kernel = features.build_ids.get(..1).unwrap_or_default();
                writer.finish(kernel).map(|_| bytes)
            }
        };
        finished.map_err(|error| failed(&name, is_stdout, error))
    }
}

/// Notes the build id of a mapped file. A file whose name others had, too, has none: readers use those of
/// the description for all mappings of the name.
fn note_build_id(
    layout: &RecordLayout,
    record: RawRecord<'_>,
    build_ids: &mut BTreeMap<Vec<u8>, Option<BuildId>>,
) {
    const MMAP2: u32 = 10;
    if record.type_() != MMAP2 || build_ids.len() >= MAX_FILES {
        return;
    }
    if let Ok(Record::Mmap(mmap)) = layout.decode(record) {
        if mmap.filename.starts_with(b"/") {
            let id = match mmap.file {
                Some(FileId::BuildId(id)) => BuildId::new(id),
                _ => None,
            };
            let known = build_ids.entry(mmap.filename.to_vec()).or_insert(id);
            *known = known.filter(|known| Some(*known) == id);
        }
    }
}

impl RecordWriter for Recording {
    fn record(&mut self, record: RawRecord<'_>) -> perf_data::Result<()> {
        let Self { writer, layout, mapped, build_ids, .. } = self;
        let record = mapped.apply(layout, record);
        note_build_id(layout, record, build_ids);
        match writer {
            Writer::File(writer) => writer.record(record),
            Writer::Pipe(writer) => writer.record(record),
        }
    }

    fn finish_round(&mut self) -> perf_data::Result<()> {
        match &mut self.writer {
            Writer::File(writer) => writer.finish_round(),
            Writer::Pipe(writer) => {
                writer.finish_round()?;
                writer.flush()
            }
        }
    }

    fn bytes(&self) -> u64 {
        match &self.writer {
            Writer::File(writer) => writer.bytes(),
            Writer::Pipe(writer) => writer.bytes(),
        }
    }
}

fn failed(name: &str, is_stdout: bool, error: Error) -> Failure {
    match error {
        Error::Io { source, .. } if is_stdout => Failure::output(&source),
        Error::Io { source, .. } if source.kind() == io::ErrorKind::BrokenPipe => {
            Failure::output(&source)
        }
        error => Failure::about(name, error),
    }
}
