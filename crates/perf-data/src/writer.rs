//! Writing recordings.

use crate::build_id::BuildIdEntry;
use crate::error::{Error, Result};
use crate::event::{self, RecordedEvent};
use crate::features::Features;
use crate::layout::{
    FEATURE_BITS, FILE_HEADER, Feature, MAGIC, PIPE_HEADER, SECTION, event_update, record_type,
};
use perf_monitor::RawRecord;
use perf_sys::perf_event_header;
use std::collections::HashSet;
use std::io::{Seek, SeekFrom, Write};
use zerocopy::IntoBytes;

/// A recording that records are appended to.
///
/// A reader sorts the records of one round by time, and needs each round's records to be no older
/// than the round before the last: read every ring once, write what was in it, then end the round.
pub trait RecordWriter {
    /// Appends a record as the kernel wrote it.
    ///
    /// # Errors
    ///
    /// [`Error::Io`].
    fn record(&mut self, record: RawRecord<'_>) -> Result<()>;

    /// Ends a round: every ring was read once since the last call. Nothing is written if the round
    /// had no records.
    ///
    /// # Errors
    ///
    /// [`Error::Io`].
    fn finish_round(&mut self) -> Result<()>;

    /// Number of bytes of records so far.
    fn bytes(&self) -> u64;
}

/// The output, with the number of bytes written.
#[derive(Debug)]
struct Output<W> {
    out: W,
    at: u64,
    /// Whether the round has records.
    is_open: bool,
}

impl<W: Write> Output<W> {
    fn put(&mut self, operation: &'static str, bytes: &[u8]) -> Result<()> {
        self.out.write_all(bytes).map_err(Error::io(operation, self.at))?;
        self.at += bytes.len() as u64;
        Ok(())
    }

    fn records(&mut self, bytes: &[u8]) -> Result<()> {
        self.is_open |= !bytes.is_empty();
        self.put("write records", bytes)
    }

    fn finish_round(&mut self) -> Result<()> {
        if !std::mem::take(&mut self.is_open) {
            return Ok(());
        }
        let header = record_header(record_type::FINISHED_ROUND, 0, 0);
        self.put("write a record", &header)
    }

    fn flush(&mut self) -> Result<()> {
        self.out.flush().map_err(Error::io("flush the recording", self.at))
    }
}

/// Maximum number of bytes after the header of a record.
const MAX_BODY: usize = u16::MAX as usize - size_of::<perf_event_header>();

/// The header of a record with this many bytes after it, of at most [`u16::MAX`] with the header.
fn record_header(type_: u32, misc: u16, body: usize) -> [u8; 8] {
    let size = (size_of::<perf_event_header>() + body).min(usize::from(u16::MAX)) as u16;
    let mut bytes = [0; 8];
    for (to, from) in bytes.iter_mut().zip(perf_event_header { type_, misc, size }.as_bytes()) {
        *to = *from;
    }
    bytes
}

/// Writes a recording in file mode. Its header is completed by [`finish`](Self::finish): the file
/// of a recorder that was killed has all records that were written, but no features.
///
/// Writes are small: use a [`BufWriter`](std::io::BufWriter).
#[derive(Debug)]
pub struct FileWriter<W> {
    output: Output<W>,
    events: Vec<RecordedEvent>,
    /// Size of an attribute.
    attr_size: u32,
    /// Offset of the attributes.
    attrs: u64,
    /// Offset of the first record.
    data: u64,
    /// Whether events have other ids than at the start.
    has_other_ids: bool,
}

impl<W: Write + Seek> FileWriter<W> {
    /// Starts a recording of these events at the start of `out`.
    ///
    /// # Errors
    ///
    /// [`Error::Io`].
    pub fn new(out: W, events: Vec<RecordedEvent>) -> Result<Self> {
        const WHAT: &str = "write the header";
        let attr_size = event::common_size(events.iter().map(|event| &event.attr));
        let ids: usize = events.iter().map(|event| event.ids.len() * 8).sum();
        let attrs = FILE_HEADER + ids as u64;
        let data = attrs + (events.len() * (attr_size as usize + SECTION)) as u64;
        let output = Output { out, at: 0, is_open: false };
        let mut this = Self { output, events, attr_size, attrs, data, has_other_ids: false };
        let header = this.header(0, &[]);
        this.output.put(WHAT, &header)?;
        let bytes = [this.ids(), this.attributes(FILE_HEADER)].concat();
        this.output.put(WHAT, &bytes)?;
        Ok(this)
    }

    /// The ids of all events.
    fn ids(&self) -> Vec<u8> {
        self.events.iter().flat_map(|event| &event.ids).flat_map(|id| id.to_le_bytes()).collect()
    }

    /// The attributes, with the places of the ids, which begin at this offset.
    fn attributes(&self, ids: u64) -> Vec<u8> {
        let (mut bytes, mut place) = (Vec::new(), ids);
        for event in &self.events {
            bytes.extend(event::to_bytes(&event.attr, self.attr_size));
            let size = event.ids.len() as u64 * 8;
            bytes.extend(place.to_le_bytes());
            bytes.extend(size.to_le_bytes());
            place += size;
        }
        bytes
    }

    /// Adds ids of the events, in the order of the events: they have more when they were opened on a CPU that
    /// came online. Those that an event has are kept, and no id is there twice. [`finish`](Self::finish) writes
    /// them; the file of a recorder that was killed has those of the start.
    pub fn add_ids(&mut self, ids: impl IntoIterator<Item = Vec<u64>>) {
        for (event, ids) in self.events.iter_mut().zip(ids) {
            let mut known: HashSet<u64> = event.ids.iter().copied().collect();
            let before = event.ids.len();
            event.ids.extend(ids.into_iter().filter(|id| known.insert(*id)));
            self.has_other_ids |= event.ids.len() > before;
        }
    }

    /// The header of a file with this many bytes of records and these features.
    fn header(&self, size: u64, features: &[Feature]) -> Vec<u8> {
        let entry = u64::from(self.attr_size) + SECTION as u64;
        let attrs = (self.attrs, entry * self.events.len() as u64);
        let mut bits = [0u64; FEATURE_BITS as usize / 64];
        for feature in features {
            let number = feature.number();
            if let Some(word) = bits.get_mut(number as usize / 64) {
                *word |= 1 << (number % 64);
            }
        }
        let no_event_types = (0, 0);
        let mut bytes = MAGIC.to_vec();
        let mut put = |word: u64| bytes.extend(word.to_le_bytes());
        put(FILE_HEADER);
        put(entry);
        for (offset, size) in [attrs, (self.data, size), no_event_types] {
            put(offset);
            put(size);
        }
        bits.into_iter().for_each(put);
        bytes
    }

    /// Appends whole records as the kernel wrote them, such as the slices of a
    /// [`RingChunk`](perf_monitor::RingChunk). The last record can be continued by the next call.
    ///
    /// # Errors
    ///
    /// [`Error::Io`].
    pub fn records(&mut self, bytes: &[u8]) -> Result<()> {
        self.output.records(bytes)
    }

    /// Passes what was written so far to the output: a reader of the file has it even if the recorder
    /// is killed.
    ///
    /// # Errors
    ///
    /// [`Error::Io`].
    pub fn flush(&mut self) -> Result<()> {
        self.output.flush()
    }

    fn seek(&mut self, to: u64) -> Result<()> {
        let reached = self.output.out.seek(SeekFrom::Start(to));
        self.output.at = reached.map_err(Error::io("seek to the header", self.output.at))?;
        Ok(())
    }

    /// Writes the features and completes the header. Returns the output, at its start.
    ///
    /// # Errors
    ///
    /// [`Error::Io`].
    pub fn finish(mut self, features: &Features) -> Result<W> {
        const WHAT: &str = "write the features";
        let size = self.output.at - self.data;
        let mut sections = features.sections(&self.events);
        if !features.build_ids.is_empty() {
            let mut bytes = Vec::new();
            features.build_ids.iter().for_each(|entry| entry.put(&mut bytes));
            sections.push((Feature::BuildId, bytes));
        }
        if let Some(tracing) = &features.tracing {
            sections.push((Feature::TracingData, tracing.to_bytes()));
        }
        sections.sort_by_key(|(feature, _)| *feature);
        let mut table = Vec::new();
        let mut place = self.output.at + (sections.len() * SECTION) as u64;
        for (_, bytes) in &sections {
            table.extend(place.to_le_bytes());
            table.extend((bytes.len() as u64).to_le_bytes());
            place += bytes.len() as u64;
        }
        self.output.put(WHAT, &table)?;
        for (_, bytes) in &sections {
            self.output.put(WHAT, bytes)?;
        }
        let present: Vec<Feature> = sections.iter().map(|(feature, _)| *feature).collect();
        let ids = self.output.at;
        if self.has_other_ids {
            self.output.put(WHAT, &self.ids())?;
        }
        let header = self.header(size, &present);
        self.seek(0)?;
        self.output.put("write the header", &header)?;
        if self.has_other_ids {
            self.seek(self.attrs)?;
            self.output.put("write the header", &self.attributes(ids))?;
        }
        self.output.flush()?;
        self.seek(0)?;
        Ok(self.output.out)
    }
}

impl<W: Write> RecordWriter for FileWriter<W> {
    fn record(&mut self, record: RawRecord<'_>) -> Result<()> {
        self.output.records(record.bytes())
    }

    fn finish_round(&mut self) -> Result<()> {
        self.output.finish_round()
    }

    fn bytes(&self) -> u64 {
        self.output.at - self.data
    }
}

/// Writes a recording in pipe mode, as `perf record -o -` does: it needs no seeking, and a reader
/// can follow it.
#[derive(Debug)]
pub struct PipeWriter<W> {
    output: Output<W>,
    start: u64,
}

impl<W: Write> PipeWriter<W> {
    /// Starts a recording of these events. Build ids belong in the `PERF_RECORD_MMAP2` records, or
    /// in [`finish`](Self::finish). Features other than the names of events are left out if they do not fit in a
    /// record of 64 KiB.
    ///
    /// # Errors
    ///
    /// [`Error::Io`], and [`Error::Limit`] if the ids of an event (about 8000) or its name do not fit in a
    /// record, the names of events without ids do not fit in one together, or the formats of tracepoints
    /// have 4 GiB.
    pub fn new(out: W, events: &[RecordedEvent], features: &Features) -> Result<Self> {
        const WHAT: &str = "write the header";
        let mut this = Self { output: Output { out, at: 0, is_open: false }, start: 0 };
        this.output.put(WHAT, MAGIC)?;
        this.output.put(WHAT, &PIPE_HEADER.to_le_bytes())?;
        for event in events {
            let size = event::common_size([&event.attr]);
            let mut body = event::to_bytes(&event.attr, size);
            event.ids.iter().for_each(|id| body.extend(id.to_le_bytes()));
            if body.len() > MAX_BODY {
                return Err(Error::Limit {
                    what: "the ids of an event",
                    offset: this.output.at,
                    value: body.len() as u64,
                    limit: MAX_BODY as u64,
                });
            }
            this.put(WHAT, record_type::HEADER_ATTR, &body)?;
        }
        for (feature, section) in features.sections(events) {
            let mut body = u64::from(feature.number()).to_le_bytes().to_vec();
            body.extend(section);
            if body.len() <= MAX_BODY {
                this.put(WHAT, record_type::HEADER_FEATURE, &body)?;
            } else if feature == Feature::EventDesc {
                this.names(events, body.len())?;
            }
        }
        if let Some(tracing) = &features.tracing {
            let mut bytes = tracing.to_bytes();
            bytes.resize(bytes.len().next_multiple_of(8), 0);
            let size = u32::try_from(bytes.len()).map_err(|_| Error::Limit {
                what: "the formats of tracepoints",
                offset: this.output.at,
                value: bytes.len() as u64,
                limit: u32::MAX.into(),
            })?;
            this.put(WHAT, record_type::HEADER_TRACING_DATA, &size.to_le_bytes())?;
            this.output.put(WHAT, &bytes)?;
        }
        this.start = this.output.at;
        Ok(this)
    }

    /// Appends whole records as the kernel wrote them, such as the slices of a
    /// [`RingChunk`](perf_monitor::RingChunk). The last record can be continued by the next call.
    ///
    /// # Errors
    ///
    /// [`Error::Io`].
    pub fn records(&mut self, bytes: &[u8]) -> Result<()> {
        self.output.records(bytes)
    }

    /// Writes the names of events in a record for each, as `perf record -o -` does. The section with all
    /// of them has `size` bytes, and does not fit in a record.
    fn names(&mut self, events: &[RecordedEvent], size: usize) -> Result<()> {
        let too_large = |size: usize, offset| Error::Limit {
            what: "the names of the events",
            offset,
            value: size as u64,
            limit: MAX_BODY as u64,
        };
        for event in events {
            // Without an id, only the place in the section says which event it is.
            let id = event.ids.first().ok_or_else(|| too_large(size, self.output.at))?;
            let mut body = event_update::NAME.to_le_bytes().to_vec();
            body.extend(id.to_le_bytes());
            body.extend(event.name.as_bytes());
            body.resize((body.len() + 1).next_multiple_of(8), 0);
            if body.len() > MAX_BODY {
                return Err(too_large(body.len(), self.output.at));
            }
            self.put("write the names of the events", record_type::EVENT_UPDATE, &body)?;
        }
        Ok(())
    }

    fn put(&mut self, operation: &'static str, type_: u32, body: &[u8]) -> Result<()> {
        self.output.put(operation, &record_header(type_, 0, body.len()))?;
        self.output.put(operation, body)
    }

    /// Passes what was written so far to the reader.
    ///
    /// # Errors
    ///
    /// [`Error::Io`].
    pub fn flush(&mut self) -> Result<()> {
        self.output.flush()
    }

    /// Writes build ids that no mapping of the recording has, and ends the recording. Returns the
    /// output.
    ///
    /// # Errors
    ///
    /// [`Error::Io`].
    pub fn finish(mut self, build_ids: &[BuildIdEntry]) -> Result<W> {
        let mut bytes = Vec::new();
        build_ids.iter().for_each(|entry| entry.put(&mut bytes));
        self.output.put("write the build ids", &bytes)?;
        self.output.flush()?;
        Ok(self.output.out)
    }
}

impl<W: Write> RecordWriter for PipeWriter<W> {
    fn record(&mut self, record: RawRecord<'_>) -> Result<()> {
        self.output.records(record.bytes())
    }

    fn finish_round(&mut self) -> Result<()> {
        self.output.finish_round()
    }

    fn bytes(&self) -> u64 {
        self.output.at - self.start
    }
}
