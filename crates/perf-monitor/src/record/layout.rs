use super::sample::Sample;
use super::sideband::{self, SampleId};
use super::{RawRecord, Record};
use crate::error::{DecodeError, DecodeErrorKind, Error};
use crate::flags::{BranchFlags, ReadFormat, SampleFlags};
use perf_sys::*;
use std::collections::HashMap;
use std::sync::Arc;
use trace_common::{ReadErrorKind, SeededState, Timestamp};

/// Sample fields of fixed size, in the order of the kernel, up to the first of variable size.
const FIXED: [SampleFlags; 9] = [
    SampleFlags::IDENTIFIER,
    SampleFlags::IP,
    SampleFlags::TID,
    SampleFlags::TIME,
    SampleFlags::ADDR,
    SampleFlags::ID,
    SampleFlags::STREAM_ID,
    SampleFlags::CPU,
    SampleFlags::PERIOD,
];

/// Fields of the sample id at the end of other records, in the order of the kernel.
const TRAILER: [SampleFlags; 6] = [
    SampleFlags::TID,
    SampleFlags::TIME,
    SampleFlags::ID,
    SampleFlags::STREAM_ID,
    SampleFlags::CPU,
    SampleFlags::IDENTIFIER,
];

/// The layout of the records of one event, computed once from its attribute.
///
/// The time, the id and the raw data are then found without decoding the rest: a reader can sort
/// records first, and decode only those that it needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordLayout {
    pub(super) sample: SampleFlags,
    pub(super) read_format: ReadFormat,
    pub(super) branches: BranchFlags,
    pub(super) regs_user: u64,
    pub(super) regs_intr: u64,
    /// Bytes of the sample id at the end of records that are not samples.
    trailer: usize,
    /// Offsets in a sample, from the start of the record.
    time_at: Option<usize>,
    id_at: Option<usize>,
    cpu_at: Option<usize>,
    tid_at: Option<usize>,
    /// Offset of the raw data's size, if nothing of variable size is before it.
    raw_at: Option<usize>,
    /// Whether a call chain precedes the raw data.
    has_chain: bool,
    /// Offsets in the sample id of other records, from its start.
    trailer_time: Option<usize>,
    trailer_id: Option<usize>,
    /// Offset of the id from the end of the record.
    id_from_end: Option<usize>,
}

/// `perf` itself writes records of types from 64; they have no sample id.
const FIRST_OF_PERF: u32 = 64;

impl RecordLayout {
    /// The layout of the records of an event with this attribute.
    pub fn new(attr: &perf_event_attr) -> Self {
        let sample = SampleFlags::from_bits_retain(attr.sample_type);
        let read_format = ReadFormat::from_bits_retain(attr.read_format);
        let at = |order: &[SampleFlags], wanted: SampleFlags| {
            let before = order.iter().take_while(|f| **f != wanted);
            let words = before.filter(|f| sample.contains(**f)).count();
            sample.contains(wanted).then_some(words * 8)
        };
        let in_sample = |wanted| at(&FIXED, wanted).map(|offset| offset + 8);
        let in_trailer = |wanted| if attr.sample_id_all() { at(&TRAILER, wanted) } else { None };
        let fixed = FIXED.iter().filter(|f| sample.contains(**f)).count() * 8;
        let trailer = TRAILER.iter().filter(|f| sample.contains(**f)).count() * 8;
        let trailer = if attr.sample_id_all() { trailer } else { 0 };
        let trailer_id = in_trailer(SampleFlags::IDENTIFIER).or(in_trailer(SampleFlags::ID));
        Self {
            sample,
            read_format,
            branches: BranchFlags::from_bits_retain(attr.branch_sample_type),
            regs_user: attr.sample_regs_user,
            regs_intr: attr.sample_regs_intr,
            trailer,
            time_at: in_sample(SampleFlags::TIME),
            id_at: in_sample(SampleFlags::IDENTIFIER).or(in_sample(SampleFlags::ID)),
            cpu_at: in_sample(SampleFlags::CPU),
            tid_at: in_sample(SampleFlags::TID),
            raw_at: (sample.contains(SampleFlags::RAW) && !sample.contains(SampleFlags::READ))
                .then_some(8 + fixed),
            has_chain: sample.contains(SampleFlags::CALLCHAIN),
            trailer_time: in_trailer(SampleFlags::TIME),
            trailer_id,
            id_from_end: trailer_id.map(|at| trailer - at),
        }
    }

    /// Offsets of the event id: in a sample, and from the end of other records.
    const fn id_places(&self) -> (Option<usize>, Option<usize>) {
        (self.id_at, self.id_from_end)
    }

    /// Bytes of the sample id at the end of records that are not samples; 0 without
    /// `sample_id_all`.
    pub const fn sample_id_size(&self) -> usize {
        self.trailer
    }

    /// The fields of a sample.
    pub const fn sample_flags(&self) -> SampleFlags {
        self.sample
    }

    /// The layout of counts.
    pub const fn read_format(&self) -> ReadFormat {
        self.read_format
    }

    #[inline]
    fn find(
        &self,
        raw: RawRecord<'_>,
        in_sample: Option<usize>,
        in_trailer: Option<usize>,
    ) -> Option<u64> {
        match raw.type_() {
            PERF_RECORD_SAMPLE => raw.word(in_sample?),
            1..FIRST_OF_PERF => {
                let start = raw.bytes().len().checked_sub(self.trailer)?;
                raw.word(start.max(8) + in_trailer?)
            }
            _ => None,
        }
    }

    /// The time of a record of any type, without decoding it. `None` if the event does not record
    /// the time, or only in samples (without `sample_id_all`).
    #[inline]
    pub fn time(&self, raw: RawRecord<'_>) -> Option<Timestamp> {
        let nanos = self.find(raw, self.time_at, self.trailer_time)?;
        Some(Timestamp::from_nanos(nanos as i64))
    }

    /// The id of the event of a record, without decoding it.
    #[inline]
    pub fn id(&self, raw: RawRecord<'_>) -> Option<u64> {
        self.find(raw, self.id_at, self.trailer_id)
    }

    /// Process and thread id of a sample, without decoding it.
    #[inline]
    pub fn pid_tid(&self, raw: RawRecord<'_>) -> Option<(u32, u32)> {
        let word = self.find(raw, self.tid_at, None)?;
        Some((word as u32, (word >> 32) as u32))
    }

    /// The CPU of a sample, without decoding it.
    #[inline]
    pub fn cpu(&self, raw: RawRecord<'_>) -> Option<u32> {
        self.find(raw, self.cpu_at, None).map(|word| word as u32)
    }

    /// The raw data of a sample (of a tracepoint), without decoding the rest. `None` if it has
    /// none, or if it follows counts ([`SampleFlags::READ`]). A call chain is skipped.
    #[inline]
    pub fn raw_data<'a>(&self, raw: RawRecord<'a>) -> Option<&'a [u8]> {
        let mut at = self.raw_at?;
        if raw.type_() != PERF_RECORD_SAMPLE {
            return None;
        }
        if self.has_chain {
            let frames = usize::try_from(raw.word(at)?).ok()?;
            at = frames.checked_add(1)?.checked_mul(8)?.checked_add(at)?;
        }
        let (size, data) = raw.bytes().get(at..)?.split_first_chunk()?;
        data.get(..u32::from_ne_bytes(*size) as usize)
    }

    /// Decodes a record.
    ///
    /// # Errors
    ///
    /// [`DecodeError`] if it is shorter than its layout.
    #[inline]
    pub fn decode<'a>(&self, raw: RawRecord<'a>) -> Result<Record<'a>, DecodeError> {
        if raw.type_() == PERF_RECORD_SAMPLE {
            let mut sample = Sample { misc: raw.misc(), ..Sample::default() };
            return match sample.fill(self, raw) {
                Ok(()) => Ok(Record::Sample(sample)),
                Err(error) => Err(error),
            };
        }
        sideband::decode(self, raw)
    }

    /// Whether branch stacks can begin with the index of the newest branch in the hardware.
    #[inline]
    pub(super) fn has_branch_index(&self) -> bool {
        self.sample.contains(SampleFlags::BRANCH_STACK)
            && self.branches.contains(BranchFlags::HW_INDEX)
    }

    /// Splits the bytes after the header into the body and the sample id.
    pub(super) fn split_trailer<'a>(
        &self,
        raw: RawRecord<'a>,
    ) -> Result<(&'a [u8], SampleId), DecodeError> {
        let body = raw.bytes().get(8..).unwrap_or_default();
        let short = DecodeError {
            what: "the sample id of a record",
            offset: raw.offset() + 8,
            kind: ReadErrorKind::UnexpectedEnd { wanted: self.trailer, left: body.len() }.into(),
        };
        let at = body.len().checked_sub(self.trailer).ok_or(short)?;
        let (body, trailer) = body.split_at(at);
        let mut words = trailer.chunks_exact(8).filter_map(|b| b.first_chunk().copied());
        let mut next = |flag: SampleFlags| {
            if self.trailer > 0 && self.sample.contains(flag) {
                words.next().map(u64::from_ne_bytes)
            } else {
                None
            }
        };
        let tid = next(SampleFlags::TID);
        let time = next(SampleFlags::TIME);
        let id = next(SampleFlags::ID);
        let stream_id = next(SampleFlags::STREAM_ID);
        let cpu = next(SampleFlags::CPU);
        let identifier = next(SampleFlags::IDENTIFIER);
        let sample_id = SampleId {
            pid: tid.map(|w| w as u32),
            tid: tid.map(|w| (w >> 32) as u32),
            time: time.map(|t| Timestamp::from_nanos(t as i64)),
            id: identifier.or(id),
            stream_id,
            cpu: cpu.map(|w| w as u32),
        };
        Ok((body, sample_id))
    }
}

/// Decodes the records of several events that share a ring or a file.
///
/// With one event, all records have its layout. With more, each record has the layout of the event
/// with its id.
#[derive(Clone, Debug)]
pub struct Decoder {
    first: Arc<RecordLayout>,
    /// Empty with one event.
    layouts: HashMap<u64, Arc<RecordLayout>, SeededState>,
    /// The different layouts, which events share.
    shared: HashMap<LayoutKey, Arc<RecordLayout>>,
}

/// The parts of an attribute that a layout is computed from.
type LayoutKey = ([u64; 5], bool);

const fn layout_key(attr: &perf_event_attr) -> LayoutKey {
    let words = [
        attr.sample_type,
        attr.read_format,
        attr.branch_sample_type,
        attr.sample_regs_user,
        attr.sample_regs_intr,
    ];
    (words, attr.sample_id_all())
}

impl Decoder {
    /// For one event.
    pub fn new(attr: &perf_event_attr) -> Self {
        let first = Arc::new(RecordLayout::new(attr));
        let shared = HashMap::from([(layout_key(attr), Arc::clone(&first))]);
        Self { first, layouts: HashMap::default(), shared }
    }

    /// Adds an event by its id ([`Counter::id`](crate::Counter::id)). An event can have several
    /// ids, one for each CPU. From the first call on, the event of [`new`](Self::new) also needs
    /// its id added.
    ///
    /// # Errors
    ///
    /// [`Error::NoCommonId`] if the records of this event have their id at another offset than
    /// those of the first event. With `SampleFlags::IDENTIFIER` and `sample_id_all` the offsets are
    /// always equal.
    pub fn add(&mut self, id: u64, attr: &perf_event_attr) -> Result<(), Error> {
        let key = layout_key(attr);
        let known = self.shared.get(&key).map(Arc::clone);
        let layout = known.unwrap_or_else(|| Arc::new(RecordLayout::new(attr)));
        if layout == self.first && layout.id_at.is_none() {
            return Ok(()); // a single event whose records have no id
        }
        if layout.id_at.is_none() || layout.id_places() != self.first.id_places() {
            return Err(Error::NoCommonId);
        }
        self.shared.entry(key).or_insert_with(|| Arc::clone(&layout));
        self.layouts.insert(id, layout);
        Ok(())
    }

    /// The id that identifies the event of this record.
    #[inline]
    fn id(&self, raw: RawRecord<'_>) -> Option<u64> {
        match raw.type_() {
            PERF_RECORD_SAMPLE => raw.word(self.first.id_at?),
            _ => {
                let from_end = self.first.id_from_end?;
                raw.word(raw.bytes().len().checked_sub(from_end).filter(|at| *at >= 8)?)
            }
        }
    }

    /// The layout of this record. `None` if it has the id of an event that was not added.
    ///
    /// Records without an id have the layout of the first event: those that `perf` itself writes
    /// into a file have none (types from 64) or 0, and without `sample_id_all` only samples have
    /// one.
    #[inline]
    pub fn layout(&self, raw: RawRecord<'_>) -> Option<&RecordLayout> {
        if self.layouts.is_empty() {
            return Some(&self.first);
        }
        let is_sample = raw.type_() == PERF_RECORD_SAMPLE;
        if raw.type_() >= FIRST_OF_PERF || !is_sample && self.first.id_from_end.is_none() {
            return Some(&self.first);
        }
        match self.id(raw)? {
            0 if !is_sample => Some(&self.first),
            id => self.layouts.get(&id).map(Arc::as_ref),
        }
    }

    /// Decodes a record: see [`RecordLayout::decode`].
    ///
    /// # Errors
    ///
    /// The errors of [`RecordLayout::decode`], and [`DecodeErrorKind::UnknownId`] for a record of
    /// an event that was not added.
    #[inline]
    pub fn decode<'a>(&self, raw: RawRecord<'a>) -> Result<Record<'a>, DecodeError> {
        match self.layout(raw) {
            Some(layout) => layout.decode(raw),
            None => Err(self.unknown(raw)),
        }
    }

    #[cold]
    fn unknown(&self, raw: RawRecord<'_>) -> DecodeError {
        let kind = match self.id(raw) {
            Some(id) => DecodeErrorKind::UnknownId(id),
            None => DecodeErrorKind::Read(ReadErrorKind::UnexpectedEnd {
                wanted: 8,
                left: raw.bytes().len().saturating_sub(8),
            }),
        };
        DecodeError { what: "the id of a record", offset: raw.offset(), kind }
    }

    /// The time of a record: see [`RecordLayout::time`]. Also `None` for records of events
    /// that were not added.
    #[inline]
    pub fn time(&self, raw: RawRecord<'_>) -> Option<Timestamp> {
        self.layout(raw)?.time(raw)
    }
}
