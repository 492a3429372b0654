//! Reading recordings.

use crate::build_id::BuildIdEntry;
use crate::bytes::{Section, text};
#[cfg(feature = "zstd")]
use crate::compressed::Inflater;
use crate::error::{Error, Result};
use crate::event::{self, PlacesById, RecordedEvent};
use crate::features::Features;
use crate::layout::{
    FEATURE_BITS, FILE_HEADER, Feature, MAGIC, MAGIC_SWAPPED, PIPE_HEADER, SECTION, event_update,
    record_type,
};
use crate::tracing::TracingData;
use perf_monitor::{DecodeError, Decoder, RawRecord, Record, RecordLayout, Timestamp};
use perf_sys::{PERF_TYPE_TRACEPOINT, perf_event_attr};
use std::collections::{HashMap, VecDeque};
use std::io::{BufRead as _, BufReader, Read, Seek, SeekFrom};
use std::ops::ControlFlow;
use trace_common::{ClockDomain, Cursor, Limits};

/// What a recording says beside its records: its events and features.
///
/// In pipe mode it grows while records are read.
#[derive(Debug, Default)]
pub struct Session {
    events: Vec<RecordedEvent>,
    features: Features,
    decoder: Option<Decoder>,
    /// Places in `events`.
    by_id: PlacesById,
    /// Places of tracepoints, by their number, that are not named after their format yet.
    tracepoints: HashMap<u64, Vec<usize>>,
}

impl Session {
    /// The description of a recording that is in no file: of records that are read from the rings of
    /// the kernel.
    ///
    /// # Errors
    ///
    /// [`Error::Events`] if the records of several events cannot be distinguished: all need
    /// `PERF_SAMPLE_IDENTIFIER`, or the id at the same place.
    pub fn new(
        events: impl IntoIterator<Item = RecordedEvent>,
        features: Features,
    ) -> Result<Self> {
        let mut this = Self { features, ..Self::default() };
        events.into_iter().try_for_each(|event| this.add(event))?;
        Ok(this)
    }

    /// The events.
    pub fn events(&self) -> &[RecordedEvent] {
        &self.events
    }

    /// The features.
    pub const fn features(&self) -> &Features {
        &self.features
    }

    /// The clock of the records. `None` if it is that of perf, as without `-k` of `perf record`, or if events
    /// have different ones.
    pub fn clock_domain(&self) -> Option<ClockDomain> {
        let mut clocks = self.events.iter().map(|event| event::clock_of(&event.attr));
        let first = clocks.next()??;
        clocks.all(|clock| clock == Some(first)).then_some(first)
    }

    /// The decoder of the records. `None` in pipe mode before the first event.
    pub const fn decoder(&self) -> Option<&Decoder> {
        self.decoder.as_ref()
    }

    /// Index of the event of a record in [`events`](Self::events). `None` for records that `perf` wrote, and
    /// for unknown events.
    pub fn event_of(&self, record: RawRecord<'_>) -> Option<usize> {
        if record.type_() >= record_type::HEADER_ATTR {
            return None;
        }
        if self.events.len() == 1 {
            return Some(0);
        }
        self.event_of_id(self.decoder()?.layout(record)?.id(record)?)
    }

    /// Index of the event with this id in [`events`](Self::events), such as a member of a group in
    /// [`Sample::read`](perf_monitor::Sample::read).
    pub fn event_of_id(&self, id: u64) -> Option<usize> {
        self.by_id.get(&id).copied()
    }

    /// Adds ids of the events, in the order of [`events`](Self::events): they have more when they are opened
    /// on a CPU that came online.
    ///
    /// # Errors
    ///
    /// Those of [`new`](Self::new).
    pub fn add_ids(&mut self, ids: impl IntoIterator<Item = Vec<u64>>) -> Result<()> {
        let is_single = self.events.len() == 1;
        for (place, (event, ids)) in self.events.iter_mut().zip(ids).enumerate() {
            for id in ids {
                if self.by_id.insert(id, place).is_some() {
                    continue;
                }
                event.ids.push(id);
                // Records of a single event need no id.
                if let Some(decoder) = self.decoder.as_mut().filter(|_| !is_single) {
                    decoder.add(id, &event.attr)?;
                }
            }
        }
        Ok(())
    }

    fn add(&mut self, event: RecordedEvent) -> Result<()> {
        let place = self.events.len();
        self.by_id.extend(event.ids.iter().map(|id| (*id, place)));
        if event.attr.type_ == PERF_TYPE_TRACEPOINT {
            self.tracepoints.entry(event.attr.config).or_default().push(place);
        }
        self.events.push(event);
        match (&mut self.decoder, self.events.as_slice()) {
            (None, [first, ..]) => self.decoder = Some(Decoder::new(&first.attr)),
            // Records of a single event need no id; those of several have one at the same place.
            (Some(decoder), [first, second]) => {
                add_to(decoder, first)?;
                add_to(decoder, second)?;
            }
            (Some(decoder), [.., last]) => add_to(decoder, last)?,
            (_, []) => {}
        }
        Ok(())
    }

    /// Names events after the tracepoints of the recording, where no other section names them.
    fn name_tracepoints(&mut self) {
        let Self { events, features, tracepoints, .. } = self;
        let Some(tracing) = features.tracing.as_ref().filter(|_| !tracepoints.is_empty()) else {
            return;
        };
        for format in tracing.formats() {
            for place in tracepoints.remove(&format.id()).into_iter().flatten() {
                let Some(event) = events.get_mut(place) else { continue };
                if event.name == event::name_of(&event.attr) {
                    event.name = format!("{}:{}", format.system(), format.name());
                }
            }
        }
    }
}

fn add_to(decoder: &mut Decoder, event: &RecordedEvent) -> Result<()> {
    Ok(event.ids.iter().try_for_each(|id| decoder.add(*id, &event.attr))?)
}

/// A record with the recording that it is from.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Entry<'a> {
    /// The record.
    pub raw: RawRecord<'a>,
    /// The recording.
    pub session: &'a Session,
}

impl<'a> Entry<'a> {
    /// A record of a recording, such as one that was read from a ring of the kernel.
    pub const fn new(raw: RawRecord<'a>, session: &'a Session) -> Self {
        Self { raw, session }
    }

    /// Its event. `None` for records that `perf` wrote, and for unknown events.
    pub fn event(&self) -> Option<&'a RecordedEvent> {
        self.session.events.get(self.session.event_of(self.raw)?)
    }

    /// Its layout. `None` for a record of an unknown event.
    pub fn layout(&self) -> Option<&'a RecordLayout> {
        self.session.decoder()?.layout(self.raw)
    }

    /// Its time. `None` without one; records that `perf` wrote at the start have none.
    pub fn time(&self) -> Option<Timestamp> {
        self.layout()?.time(self.raw).filter(|time| time.nanos() != 0)
    }

    /// Decodes the record. `None` before the first event.
    ///
    /// # Errors
    ///
    /// Those of [`Decoder::decode`].
    pub fn decode(&self) -> Option<Result<Record<'a>, DecodeError>> {
        Some(self.session.decoder()?.decode(self.raw))
    }
}

/// Reads a recording, of file or pipe mode, record by record in the order of the file.
///
/// Sections that are read before the records are in [`session`](Self::session); in pipe mode events
/// and features are between the records, and are added when they are read: [`new`](Self::new) reads
/// those before the first record of the kernel. Compressed records are decompressed. Records are in time
/// order within the rounds of the recorder only: see [`SortedReader`](crate::SortedReader).
#[derive(Debug)]
pub struct Reader<R> {
    input: BufReader<R>,
    /// Offset of the input.
    at: u64,
    /// Offset of the end of the records; `None` if they end with the input.
    end: Option<u64>,
    /// Offset and size of the records by the header, if the input ends before they do.
    cut: Option<(u64, u64)>,
    limits: Limits,
    session: Session,
    /// About the bytes that `session` keeps of records for readers.
    kept: u64,
    /// The last record that was read from the input.
    record: Vec<u8>,
    /// Records that were read for the description before them, with their offsets.
    held: VecDeque<Result<(u64, Vec<u8>)>>,
    /// Decompressed records.
    inflated: Inflated,
    is_pipe: bool,
    is_complete: bool,
    /// An error that comes after the decompressed records.
    failed: Option<Error>,
}

/// Decompressed records that were not returned yet.
#[derive(Debug, Default)]
struct Inflated {
    #[cfg(feature = "zstd")]
    inflater: Option<Inflater>,
    bytes: Vec<u8>,
    /// Bytes of `bytes` that were returned.
    at: usize,
    /// Bytes that were returned of the whole recording.
    returned: u64,
    /// Offset of the record with the compressed data.
    offset: u64,
}

impl Inflated {
    /// At most how many bytes the data so far stands for that were not returned yet.
    fn left(&self) -> u64 {
        let left = self.bytes.len().saturating_sub(self.at) as u64;
        left.saturating_add(self.held_back())
    }

    #[cfg(feature = "zstd")]
    fn held_back(&self) -> u64 {
        self.inflater.as_ref().map_or(0, Inflater::held_back)
    }

    #[cfg(not(feature = "zstd"))]
    const fn held_back(&self) -> u64 {
        0
    }
}

impl<R: Read + Seek> Reader<R> {
    /// Reads the description of a recording in file or pipe mode that begins at the start of `input`,
    /// with the default [`Limits`].
    ///
    /// # Errors
    ///
    /// [`Error::NotPerfData`], [`Error::BigEndian`], and the errors of damaged events. Damaged
    /// features are no error: they are listed in [`Features::damaged`]. Damage in pipe mode is an error
    /// of [`next_record`](Self::next_record), after the records before it.
    pub fn new(input: R) -> Result<Self> {
        Self::with_limits(input, Limits::default())
    }

    /// As [`Reader::new`] with custom `limits` on memory.
    ///
    /// # Errors
    ///
    /// As [`Reader::new`].
    pub fn with_limits(input: R, limits: Limits) -> Result<Self> {
        let mut this = Self::start(input, limits)?;
        if this.is_pipe {
            this.read_description();
            return Ok(this);
        }
        let len = this.input.seek(SeekFrom::End(0)).map_err(Error::io("find the end", 0))?;
        this.seek(PIPE_HEADER)?;
        let header = this.take("the header", FILE_HEADER - PIPE_HEADER)?;
        let mut s = section("the header", &header, PIPE_HEADER, limits);
        let entry = s.u64()?;
        let attrs = (s.u64()?, s.u64()?);
        let (data, size) = (s.u64()?, s.u64()?);
        let _event_types = (s.u64()?, s.u64()?);
        let mut features = Vec::new();
        for word in 0..FEATURE_BITS / 64 {
            let bits = s.u64()?;
            features.extend((0..64).filter(|bit| bits >> bit & 1 == 1).map(|bit| word * 64 + bit));
        }
        this.read_events(attrs, entry)?;
        // A recorder that was killed has not completed the header; perf writes which features there will
        // be at the start.
        let is_open = size == 0 && !this.has_features(data, features.len());
        let end = if is_open { len } else { data.saturating_add(size) };
        this.is_complete = !(is_open && data < len);
        this.cut = (end > len).then_some((data, size));
        if !is_open && end <= len {
            this.read_features(end, &features, len);
        }
        this.session.name_tracepoints();
        this.seek(data)?;
        this.end = Some(end.min(len));
        Ok(this)
    }

    fn seek(&mut self, to: u64) -> Result<()> {
        // The number of the system's error would differ.
        if i64::try_from(to).is_err() {
            let why = "is beyond the end of any file";
            return Err(Error::Malformed { what: "a section", offset: to, why });
        }
        self.input.seek(SeekFrom::Start(to)).map_err(Error::io("seek", to))?;
        self.at = to;
        Ok(())
    }

    fn read_events(&mut self, (offset, size): (u64, u64), entry: u64) -> Result<()> {
        const WHAT: &str = "the events";
        let malformed = |why| Error::Malformed { what: WHAT, offset, why };
        self.seek(offset)?;
        let bytes = self.take(WHAT, size)?;
        let least = perf_sys::PERF_ATTR_SIZE_VER0 as usize + SECTION;
        let entry = usize::try_from(entry).ok().filter(|entry| *entry >= least);
        let entry = entry.ok_or(malformed("an attribute is too short"))?;
        if bytes.len() / entry > self.limits.max_entries {
            let limit = self.limits.max_entries as u64;
            return Err(Error::Limit { what: WHAT, offset, value: size, limit });
        }
        for chunk in bytes.chunks_exact(entry) {
            const IDS: &str = "the ids of the events";
            let (attr, ids) = chunk.split_at(entry - SECTION);
            let mut s = section(WHAT, ids, offset, self.limits);
            let (offset, size) = (s.u64()?, s.u64()?);
            // Events can share a section.
            self.keep(size.saturating_add(entry as u64), offset)?;
            let ids = words(&self.take_at(IDS, (offset, size))?);
            let attr = event::from_bytes(attr);
            self.session.add(RecordedEvent { name: event::name_of(&attr), attr, ids })?;
        }
        if self.session.events.is_empty() {
            return Err(malformed("there are none"));
        }
        Ok(())
    }

    /// Whether there is a table of features: the first section follows it.
    fn has_features(&mut self, table: u64, count: usize) -> bool {
        let is_read = count > 0 && self.seek(table).is_ok();
        let first = is_read.then(|| self.take("the table of features", SECTION as u64).ok());
        let first = first.flatten().and_then(|section| words(&section).first().copied());
        first == Some(table.saturating_add((count * SECTION) as u64))
    }

    /// Reads a section that may be anywhere.
    fn take_at(&mut self, what: &'static str, (offset, size): (u64, u64)) -> Result<Vec<u8>> {
        self.seek(offset)?;
        self.take(what, size)
    }

    /// Reads the features, whose table is at `table`, of an input with `len` bytes.
    fn read_features(&mut self, table: u64, features: &[u32], len: u64) {
        let place = (table, (features.len() * SECTION) as u64);
        let table = match self.take_at("the table of features", place) {
            Ok(table) => words(&table),
            Err(error) => {
                self.session.features.damaged.push((0, error));
                return;
            }
        };
        // Sections that share bytes would take memory for each.
        let mut all = 0_u64;
        for (number, place) in features.iter().zip(table.chunks_exact(2)) {
            let [offset, size] = *place else { continue };
            let Some(sum) = all.checked_add(size).filter(|sum| *sum <= len) else {
                let (what, why) =
                    ("a feature section", "the sections have more bytes than the file");
                let error = Error::Malformed { what, offset, why };
                self.session.features.damaged.push((*number, error));
                continue;
            };
            all = sum;
            match self.take_at("a feature section", (offset, size)) {
                Ok(bytes) => self.read_feature(*number, &bytes, offset),
                Err(error) => self.session.features.damaged.push((*number, error)),
            }
        }
    }
}

impl<R: Read> Reader<R> {
    /// Reads the header of a recording in pipe mode, from any reader, with the default [`Limits`].
    ///
    /// # Errors
    ///
    /// [`Error::NotPerfData`], [`Error::BigEndian`], and [`Error::NeedsSeek`] for a recording in
    /// file mode.
    pub fn of_pipe(input: R) -> Result<Self> {
        Self::of_pipe_with_limits(input, Limits::default())
    }

    /// As [`Reader::of_pipe`] with custom `limits` on memory.
    ///
    /// # Errors
    ///
    /// As [`Reader::of_pipe`].
    pub fn of_pipe_with_limits(input: R, limits: Limits) -> Result<Self> {
        let this = Self::start(input, limits)?;
        if this.is_pipe { Ok(this) } else { Err(Error::NeedsSeek) }
    }

    /// Reads what the headers of both modes begin with.
    fn start(input: R, limits: Limits) -> Result<Self> {
        let mut this = Self {
            input: BufReader::with_capacity(128 << 10, input),
            at: 0,
            end: None,
            cut: None,
            limits,
            session: Session::default(),
            kept: 0,
            record: Vec::new(),
            held: VecDeque::new(),
            inflated: Inflated::default(),
            is_pipe: true,
            is_complete: true,
            failed: None,
        };
        let header = this.take("the header", PIPE_HEADER)?;
        let (magic, size) = header.split_first_chunk::<8>().unwrap_or((MAGIC, &[]));
        if magic == MAGIC_SWAPPED {
            return Err(Error::BigEndian);
        }
        if magic != MAGIC {
            return Err(Error::NotPerfData(*magic));
        }
        this.is_pipe = match words(size).first() {
            Some(&PIPE_HEADER) => true,
            Some(&FILE_HEADER) => false,
            _ => {
                let why = "neither of file nor of pipe mode";
                return Err(Error::Malformed { what: "the header", offset: 8, why });
            }
        };
        Ok(this)
    }

    /// Events and features, as far as they were read.
    pub const fn session(&self) -> &Session {
        &self.session
    }

    /// Whether the recording is in pipe mode.
    pub const fn is_pipe(&self) -> bool {
        self.is_pipe
    }

    /// Whether the recorder completed the file. If not, it has no features, and its last records can be
    /// missing.
    pub const fn is_complete(&self) -> bool {
        self.is_complete
    }

    pub(crate) const fn limits(&self) -> Limits {
        self.limits
    }

    /// Bytes of decompressed records that were returned.
    pub(crate) const fn inflated(&self) -> u64 {
        self.inflated.returned
    }

    /// The most that [`inflated`](Self::inflated) is when all compressed records before the last record of the
    /// input were returned.
    pub(crate) fn inflated_so_far(&self) -> u64 {
        self.inflated.returned.saturating_add(self.inflated.left())
    }

    /// Whether the file is shorter than its header says: then it has no features, and after its last record
    /// [`next_record`](Self::next_record) fails with [`Error::Truncated`].
    pub const fn is_truncated(&self) -> bool {
        self.cut.is_some()
    }

    /// Reads this many bytes. Memory grows with what is really there.
    fn take(&mut self, what: &'static str, size: u64) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.take_into(what, size, &mut bytes)?;
        Ok(bytes)
    }

    fn take_into(&mut self, what: &'static str, size: u64, bytes: &mut Vec<u8>) -> Result<()> {
        let (offset, limit) = (self.at, self.limits.max_buffer as u64);
        if size > limit {
            return Err(Error::Limit { what, offset, value: size, limit });
        }
        let read = (&mut self.input).take(size).read_to_end(bytes);
        let left = read.map_err(Error::io("read", offset))? as u64;
        self.at += left;
        if left < size {
            return Err(Error::Truncated { what, offset, wanted: size, left });
        }
        Ok(())
    }

    /// The next record. `None` at the end.
    ///
    /// # Errors
    ///
    /// [`Error::Io`]; [`Error::Truncated`] and [`Error::Malformed`] with the offset of the damage,
    /// after which nothing more can be read; [`Error::Decompress`]; [`Error::Compressed`].
    pub fn next_record(&mut self) -> Result<Option<Entry<'_>>> {
        Ok(match self.advance()? {
            None => None,
            Some(Place::Input(offset)) => self.lend(&self.record, offset),
            Some(Place::Inflated(from)) => {
                self.lend(self.inflated.bytes.get(from..).unwrap_or_default(), self.inflated.offset)
            }
        })
    }

    /// Calls `each` with every remaining record. [`Reader::try_for_each`] can stop early.
    ///
    /// # Errors
    ///
    /// Those of [`Reader::next_record`]; `each` has been called with the records before.
    pub fn for_each(&mut self, mut each: impl FnMut(Entry<'_>)) -> Result<()> {
        while let Some(entry) = self.next_record()? {
            each(entry);
        }
        Ok(())
    }

    /// Calls `each` with the remaining records until it returns [`ControlFlow::Break`]. Reading can
    /// continue after that.
    ///
    /// # Errors
    ///
    /// Those of [`Reader::next_record`]; `each` has been called with the records before.
    pub fn try_for_each<B>(
        &mut self,
        mut each: impl FnMut(Entry<'_>) -> ControlFlow<B>,
    ) -> Result<ControlFlow<B>> {
        while let Some(entry) = self.next_record()? {
            if let ControlFlow::Break(value) = each(entry) {
                return Ok(ControlFlow::Break(value));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    fn lend<'a>(&'a self, bytes: &'a [u8], offset: u64) -> Option<Entry<'a>> {
        let (raw, _) = RawRecord::split_first(bytes, offset)?;
        Some(Entry { raw, session: &self.session })
    }

    /// Reads the events and features before the first record of the kernel. The records of the recorder
    /// between them are held back, and that one; an error comes after them.
    fn read_description(&mut self) {
        /// Recorders write a few.
        const MAX_HELD: usize = 1 << 10;
        let mut held = VecDeque::new();
        loop {
            let (record, is_last) = match self.next_record() {
                Ok(Some(Entry { raw, .. })) => {
                    let is_last = raw.type_() < record_type::HEADER_ATTR;
                    (Ok((raw.offset(), raw.bytes().to_vec())), is_last)
                }
                Ok(None) => break,
                Err(error) => (Err(error), true),
            };
            held.push_back(record);
            if is_last || held.len() == MAX_HELD {
                break;
            }
        }
        self.held = held;
    }

    /// Finds the next record that is not for the reader itself.
    fn advance(&mut self) -> Result<Option<Place>> {
        if let Some(held) = self.held.pop_front() {
            let (offset, record) = held?;
            self.record = record;
            return Ok(Some(Place::Input(offset)));
        }
        loop {
            if let Some(place) = self.next_inflated()? {
                return Ok(Some(place));
            }
            let offset = self.at;
            let is_end = self.failed.is_some() || self.end.is_some_and(|end| offset >= end);
            if is_end || self.is_at_end() {
                if self.end_inflating()? {
                    continue;
                }
                if let Some(error) = self.failed.take() {
                    return Err(error);
                }
                if let Some((offset, wanted)) = self.cut {
                    let left = self.at.saturating_sub(offset);
                    return Err(Error::Truncated {
                        what: "the data section",
                        offset,
                        wanted,
                        left,
                    });
                }
                self.session.name_tracepoints();
                return Ok(None);
            }
            self.record.clear();
            let mut record = std::mem::take(&mut self.record);
            let read = self.read_record(offset, &mut record);
            self.record = record;
            if let Err(error) = read {
                // What was decompressed before is returned first.
                self.failed = Some(error);
                continue;
            }
            let Some((raw, _)) = RawRecord::split_first(&self.record, offset) else {
                let why = "smaller than its header";
                return Err(Error::Malformed { what: "a record", offset, why });
            };
            let (type_, misc) = (raw.type_(), raw.misc());
            if type_ < record_type::HEADER_ATTR {
                return Ok(Some(Place::Input(offset)));
            }
            let record = std::mem::take(&mut self.record);
            let is_own = self.own_record(type_, misc, record.get(8..).unwrap_or_default(), offset);
            self.record = record;
            match is_own {
                Ok(true) => {}
                Ok(false) => return Ok(Some(Place::Input(offset))),
                Err(error) => self.failed = Some(error),
            }
        }
    }

    /// Whether the input has ended or failed.
    fn is_at_end(&mut self) -> bool {
        match self.input.fill_buf() {
            Ok(buffer) => buffer.is_empty(),
            Err(error) => {
                self.failed = Some(Error::io("read a record", self.at)(error));
                true
            }
        }
    }

    fn read_record(&mut self, offset: u64, record: &mut Vec<u8>) -> Result<()> {
        const WHAT: &str = "a record";
        self.take_into(WHAT, 8, record)?;
        let size = record.get(6..8).and_then(|size| size.first_chunk());
        let size = u64::from(size.map_or(0, |size| u16::from_le_bytes(*size)));
        let Some(rest) = size.checked_sub(8) else {
            return Err(Error::Malformed { what: WHAT, offset, why: "smaller than its header" });
        };
        if self.end.is_some_and(|end| offset + size > end) {
            let left = self.end.unwrap_or(0) - offset;
            return Err(Error::Truncated { what: WHAT, offset, wanted: size, left });
        }
        self.take_into(WHAT, rest, record)
    }

    /// Handles a record for readers. Returns whether it was one.
    fn own_record(&mut self, type_: u32, misc: u16, body: &[u8], offset: u64) -> Result<bool> {
        let limits = self.limits;
        let mut s = section("a record", body, offset + 8, limits);
        if KEPT.contains(&type_) {
            self.keep(body.len() as u64, offset)?;
        }
        match type_ {
            record_type::HEADER_ATTR => {
                let size = section("an event", body.get(4..).unwrap_or_default(), offset, limits)
                    .u32()?
                    .max(perf_sys::PERF_ATTR_SIZE_VER0);
                let attr: perf_event_attr = event::from_bytes(s.bytes(size.into())?);
                let ids = words(s.cursor.rest());
                self.session.add(RecordedEvent { name: event::name_of(&attr), attr, ids })?;
            }
            record_type::HEADER_FEATURE => {
                let number = s.u64()?;
                let (bytes, offset) = (s.cursor.rest(), s.cursor.offset());
                self.read_feature(u32::try_from(number).unwrap_or(u32::MAX), bytes, offset);
            }
            record_type::HEADER_TRACING_DATA => {
                let size = s.u32()?;
                let at = self.at;
                let bytes = self.take("tracing data", size.into())?;
                match TracingData::parse(&bytes, at, limits) {
                    Ok(tracing) => self.session.features.tracing = Some(tracing),
                    Err(error) => {
                        let number = Feature::TracingData.number();
                        self.session.features.damaged.push((number, error));
                    }
                }
                self.session.name_tracepoints();
            }
            record_type::HEADER_BUILD_ID => {
                let mut record = record_header_of(type_, misc, body.len());
                record.extend_from_slice(body);
                let mut s = section("a build id", &record, offset, limits);
                self.session.features.build_ids.extend(BuildIdEntry::parse_next(&mut s)?);
            }
            record_type::EVENT_UPDATE => {
                let (kind, id) = (s.u64()?, s.u64()?);
                let place = self.session.by_id.get(&id).copied();
                let event = place.and_then(|place| self.session.events.get_mut(place));
                if let (event_update::NAME, Some(event)) = (kind, event) {
                    event.name = text(s.cursor.rest());
                }
            }
            record_type::AUXTRACE => {
                // The data of the AUX area is after the record, and is not read.
                let size = s.u64()?;
                let skipped =
                    std::io::copy(&mut (&mut self.input).take(size), &mut std::io::sink());
                let left = skipped.map_err(Error::io("skip AUX data", self.at))?;
                if left < size {
                    let what = "AUX data";
                    return Err(Error::Truncated { what, offset: self.at, wanted: size, left });
                }
                self.at += size;
                return Ok(false);
            }
            record_type::COMPRESSED => self.inflate(body, offset)?,
            record_type::COMPRESSED2 => {
                let size = s.u64()?;
                let data = s.bytes(size)?;
                self.inflate(data, offset)?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Counts the memory for something of this size that the session keeps: in pipe mode there can be any
    /// number of such records, and a few compressed bytes can stand for many.
    fn keep(&mut self, size: u64, offset: u64) -> Result<()> {
        /// An event, a build id or a damaged section, with the entries of the tables that refer to it.
        const ENTRY: u64 = 512;
        /// An id of 8 bytes is in the list of its event and in two tables.
        const FACTOR: u64 = 12;
        self.kept = self.kept.saturating_add(size.saturating_mul(FACTOR)).saturating_add(ENTRY);
        let (size, limit) = (self.kept, self.limits.max_buffer as u64);
        if size > limit {
            let what = "the description of the recording";
            return Err(Error::Limit { what, offset, value: size, limit });
        }
        Ok(())
    }

    fn read_feature(&mut self, number: u32, bytes: &[u8], offset: u64) {
        let Session { features, events, by_id, .. } = &mut self.session;
        features.read(number, bytes, offset, self.limits, events, by_id);
    }

    #[cfg(feature = "zstd")]
    fn inflate(&mut self, data: &[u8], offset: u64) -> Result<()> {
        self.inflated.offset = offset;
        self.inflated.inflater.get_or_insert_with(Inflater::new).feed(data);
        Ok(())
    }

    #[cfg(not(feature = "zstd"))]
    fn inflate(&mut self, _: &[u8], _: u64) -> Result<()> {
        Err(Error::Compressed)
    }

    /// The next decompressed record, if there is a whole one.
    fn next_inflated(&mut self) -> Result<Option<Place>> {
        loop {
            let rest = self.inflated.bytes.get(self.inflated.at..).unwrap_or_default();
            if let Some((raw, _)) = RawRecord::split_first(rest, 0) {
                let (from, size) = (self.inflated.at, raw.bytes().len());
                let (type_, misc) = (raw.type_(), raw.misc());
                self.inflated.at += size;
                self.inflated.returned += size as u64;
                if type_ < record_type::HEADER_ATTR {
                    return Ok(Some(Place::Inflated(from)));
                }
                if matches!(type_, record_type::COMPRESSED | record_type::COMPRESSED2) {
                    let why = "compressed data in compressed data".to_owned();
                    return Err(Error::Decompress { offset: self.inflated.offset, why });
                }
                let body = self.inflated.bytes.get(from + 8..from + size);
                let body = body.unwrap_or_default().to_vec();
                if !self.own_record(type_, misc, &body, self.inflated.offset)? {
                    return Ok(Some(Place::Inflated(from)));
                }
                continue;
            }
            if rest.first_chunk::<8>().is_some_and(|header| header[6] < 8 && header[7] == 0) {
                let (what, why) = ("a decompressed record", "smaller than its header");
                return Err(Error::Malformed { what, offset: self.inflated.offset, why });
            }
            match self.inflate_more() {
                Ok(true) => {}
                Ok(false) => return Ok(None),
                Err(error) => {
                    // The decoder holds records before it back.
                    self.failed = Some(error);
                    return Ok(None);
                }
            }
        }
    }

    /// Decompresses a block. Returns whether there was one.
    #[cfg(feature = "zstd")]
    fn inflate_more(&mut self) -> Result<bool> {
        let Inflated { inflater: Some(inflater), bytes, at, offset, .. } = &mut self.inflated
        else {
            return Ok(false);
        };
        bytes.drain(..*at);
        *at = 0;
        inflater.step(*offset, bytes)
    }

    #[cfg(not(feature = "zstd"))]
    fn inflate_more(&mut self) -> Result<bool> {
        Ok(false)
    }

    /// Ends the compressed data. Returns whether records can follow.
    #[cfg(feature = "zstd")]
    fn end_inflating(&mut self) -> Result<bool> {
        let offset = self.inflated.offset;
        let Some(mut inflater) = self.inflated.inflater.take() else {
            let left = (self.inflated.bytes.len() - self.inflated.at) as u64;
            self.inflated.bytes.clear();
            self.inflated.at = 0;
            if left > 0 && self.failed.is_none() {
                let what = "a decompressed record";
                return Err(Error::Truncated { what, offset, wanted: left + 1, left });
            }
            return Ok(false);
        };
        let is_truncated = inflater.end();
        let ended = loop {
            match inflater.step(offset, &mut self.inflated.bytes) {
                Ok(true) => {}
                Ok(false) => break None,
                Err(error) => break Some(error),
            }
        };
        if self.failed.is_none() {
            let why = "the last block is truncated".to_owned();
            self.failed = ended.or(is_truncated.then_some(Error::Decompress { offset, why }));
        }
        Ok(true)
    }

    #[cfg(not(feature = "zstd"))]
    fn end_inflating(&mut self) -> Result<bool> {
        Ok(false)
    }
}

/// Records that the session keeps something of. Of the tracing data it keeps the last only, which has a
/// limit of its own; those that are damaged are counted by their record.
const KEPT: [u32; 5] = [
    record_type::HEADER_ATTR,
    record_type::HEADER_TRACING_DATA,
    record_type::HEADER_BUILD_ID,
    record_type::HEADER_FEATURE,
    record_type::EVENT_UPDATE,
];

/// Where the bytes of a record are.
enum Place {
    /// In `record`, from this offset of the input.
    Input(u64),
    /// In `inflated`, from this byte.
    Inflated(usize),
}

fn section<'a>(what: &'static str, bytes: &'a [u8], offset: u64, limits: Limits) -> Section<'a> {
    Section { what, cursor: Cursor::with_base(bytes, offset), limits }
}

/// The header of a record whose body was split off.
fn record_header_of(type_: u32, misc: u16, body: usize) -> Vec<u8> {
    let size = (body + 8) as u16; // it was in a record
    let words = [u32::from(misc) | u32::from(size) << 16];
    type_.to_le_bytes().into_iter().chain(words.iter().flat_map(|w| w.to_le_bytes())).collect()
}

/// Words of 8 bytes; a rest is dropped.
fn words(bytes: &[u8]) -> Vec<u64> {
    let words = bytes.chunks_exact(8).filter_map(|word| word.first_chunk());
    words.map(|word| u64::from_le_bytes(*word)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use perf_sys::{PERF_RECORD_SAMPLE, PERF_SAMPLE_IDENTIFIER, perf_event_attr};

    #[test]
    fn a_recording_has_the_clock_of_all_events() {
        let clock = |ids: &[Option<i32>]| {
            let events = (1..).zip(ids).map(|(id, clock)| {
                let mut attr = perf_event_attr::new(1, 0);
                attr.sample_type = PERF_SAMPLE_IDENTIFIER;
                attr.set_use_clockid(clock.is_some());
                attr.clockid = clock.unwrap_or(0);
                RecordedEvent { name: "cpu-clock".into(), attr, ids: vec![id] }
            });
            Session::new(events, Features::default()).unwrap().clock_domain()
        };
        assert_eq!(clock(&[Some(1), Some(1)]), Some(ClockDomain::Monotonic));
        assert_eq!(clock(&[Some(4)]), Some(ClockDomain::MonotonicRaw));
        for others in [&[][..], &[None], &[Some(1), None], &[None, Some(1)], &[Some(1), Some(0)]] {
            assert_eq!(clock(others), None, "{others:?}");
        }
    }

    #[test]
    fn records_of_the_recorder_are_of_no_event() {
        let attr = perf_event_attr::new(1, 0);
        let event = RecordedEvent { name: "cpu-clock".into(), attr, ids: vec![1] };
        let session = Session::new([event], Features::default()).unwrap();
        let event_of = |type_: u32| {
            let bytes = [&type_.to_ne_bytes()[..], &[0, 0], &8_u16.to_ne_bytes()].concat();
            session.event_of(RawRecord::split_first(&bytes, 0).unwrap().0)
        };
        assert_eq!(event_of(PERF_RECORD_SAMPLE), Some(0));
        assert_eq!(event_of(record_type::HEADER_ATTR), None);
    }

    #[test]
    fn records_of_added_ids_are_of_their_event() {
        let mut attr = perf_event_attr::new(1, 0);
        attr.sample_type = PERF_SAMPLE_IDENTIFIER;
        let event = |name: &str, id| RecordedEvent { name: name.into(), attr, ids: vec![id] };
        let events = [event("cpu-clock", 1), event("dummy:u", 2)];
        let mut session = Session::new(events, Features::default()).unwrap();
        let of_id = |session: &Session, id: u64| {
            let type_ = PERF_RECORD_SAMPLE.to_ne_bytes();
            let size = 16_u16.to_ne_bytes();
            let bytes = [&type_[..], &[0, 0], &size, &id.to_ne_bytes()].concat();
            let (raw, _) = RawRecord::split_first(&bytes, 0).unwrap();
            let decoded = session.decoder().unwrap().decode(raw);
            (session.event_of(raw), decoded.is_ok())
        };
        assert_eq!(of_id(&session, 3), (None, false));
        // The second CPU of both came online.
        session.add_ids([vec![1, 3], vec![2, 4]]).unwrap();
        for (id, place) in [(1, 0), (2, 1), (3, 0), (4, 1)] {
            assert_eq!(of_id(&session, id), (Some(place), true), "{id}");
        }
        assert_eq!(session.events()[0].ids, [1, 3]);
        // One event is that of all records.
        let mut single = Session::new([event("cpu-clock", 1)], Features::default()).unwrap();
        single.add_ids([vec![1, 3]]).unwrap();
        assert_eq!(of_id(&single, 3), (Some(0), true));
    }
}
