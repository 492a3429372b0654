use super::sample::Sample;
use super::sideband::{self, SampleId};
use super::{RawRecord, Record};
use crate::error::DecodeError;
use crate::flags::{BranchFlags, ReadFormat, SampleFlags};
use perf_sys::*;
use std::collections::HashMap;
use std::sync::Arc;
use trace_common::{ReadErrorKind, Timestamp};

/// Sample fields that have a fixed size, in the order of the kernel, up to the first that has not.
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

/// The layout of the records of one event, worked out once.
///
/// The time, the id and the raw data are then found without decoding the rest: a reader can put
/// records in order first and decode what it wants.
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
    /// Offsets in the sample id of other records, from its start.
    trailer_time: Option<usize>,
    trailer_id: Option<usize>,
}

impl RecordLayout {
    /// The layout that this attribute leads to.
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
        let variable = SampleFlags::CALLCHAIN.union(SampleFlags::READ);
        let trailer = TRAILER.iter().filter(|f| sample.contains(**f)).count() * 8;
        Self {
            sample,
            read_format,
            branches: BranchFlags::from_bits_retain(attr.branch_sample_type),
            regs_user: attr.sample_regs_user,
            regs_intr: attr.sample_regs_intr,
            trailer: if attr.sample_id_all() { trailer } else { 0 },
            time_at: in_sample(SampleFlags::TIME),
            id_at: in_sample(SampleFlags::IDENTIFIER).or(in_sample(SampleFlags::ID)),
            cpu_at: in_sample(SampleFlags::CPU),
            tid_at: in_sample(SampleFlags::TID),
            raw_at: (sample.contains(SampleFlags::RAW) && !sample.intersects(variable))
                .then_some(8 + fixed),
            trailer_time: in_trailer(SampleFlags::TIME),
            trailer_id: in_trailer(SampleFlags::IDENTIFIER).or(in_trailer(SampleFlags::ID)),
        }
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
            // perf itself writes types from 64; they have no sample id.
            1..=63 => {
                let start = raw.bytes().len().checked_sub(self.trailer)?;
                raw.word(start.max(8) + in_trailer?)
            }
            _ => None,
        }
    }

    /// The time of a record, of any type, without decoding it. `None` if the event does not
    /// record the time, or not in records other than samples (`sample_id_all`).
    #[inline]
    pub fn timestamp(&self, raw: RawRecord<'_>) -> Option<Timestamp> {
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
    pub fn tid(&self, raw: RawRecord<'_>) -> Option<(u32, u32)> {
        let word = self.find(raw, self.tid_at, None)?;
        Some((word as u32, (word >> 32) as u32))
    }

    /// The CPU of a sample, without decoding it.
    #[inline]
    pub fn cpu(&self, raw: RawRecord<'_>) -> Option<u32> {
        self.find(raw, self.cpu_at, None).map(|word| word as u32)
    }

    /// The raw data of a sample (of a tracepoint), without decoding the rest of it. `None` if it
    /// has none, or fields of variable size before it.
    #[inline]
    pub fn raw_data<'a>(&self, raw: RawRecord<'a>) -> Option<&'a [u8]> {
        let at = self.raw_at?;
        if raw.type_() != PERF_RECORD_SAMPLE {
            return None;
        }
        let (size, data) = raw.bytes().get(at..)?.split_first_chunk()?;
        data.get(..u32::from_ne_bytes(*size) as usize)
    }

    /// Decodes a record.
    ///
    /// # Errors
    ///
    /// If it is shorter than its layout.
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

    /// Whether branch stacks may begin with the index of the newest branch in the hardware.
    #[inline]
    pub(super) fn has_branch_index(&self) -> bool {
        self.sample.contains(SampleFlags::BRANCH_STACK)
            && self.branches.contains(BranchFlags::HW_INDEX)
    }

    /// Splits the bytes after the header in the body and the sample id.
    pub(super) fn split_trailer<'a>(
        &self,
        raw: RawRecord<'a>,
    ) -> Result<(&'a [u8], SampleId), DecodeError> {
        let body = raw.bytes().get(8..).unwrap_or_default();
        let short = DecodeError {
            what: "the sample id of a record",
            offset: raw.offset() + 8,
            why: ReadErrorKind::UnexpectedEnd { wanted: self.trailer, left: body.len() },
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
/// With one event, all records are in its layout. With more, each record's id tells whose it is;
/// for that every event needs `SampleFlags::IDENTIFIER` and `sample_id_all`.
#[derive(Clone, Debug)]
pub struct Decoder {
    layouts: HashMap<u64, Arc<RecordLayout>>,
    default: Arc<RecordLayout>,
}

impl Decoder {
    /// For one event.
    pub fn new(attr: &perf_event_attr) -> Self {
        Self { layouts: HashMap::new(), default: Arc::new(RecordLayout::new(attr)) }
    }

    /// Adds an event by its id ([`Counter::id`](crate::Counter::id)); one event may have several
    /// ids, one for each CPU.
    pub fn add(&mut self, id: u64, attr: &perf_event_attr) {
        let layout = RecordLayout::new(attr);
        let same = self.layouts.values().chain([&self.default]).find(|p| ***p == layout).cloned();
        self.layouts.insert(id, same.unwrap_or_else(|| Arc::new(layout)));
    }

    /// The layout of this record. Records of ids that were not added are taken to be in the
    /// layout of the first event.
    #[inline]
    pub fn layout(&self, raw: RawRecord<'_>) -> &RecordLayout {
        if self.layouts.is_empty() {
            return &self.default;
        }
        let identifier = match raw.type_() {
            PERF_RECORD_SAMPLE => raw.word(8),
            _ => raw.bytes().len().checked_sub(8).and_then(|at| raw.word(at)),
        };
        identifier.and_then(|id| self.layouts.get(&id)).unwrap_or(&self.default)
    }

    /// Decodes a record: see [`RecordLayout::decode`].
    #[inline]
    pub fn decode<'a>(&self, raw: RawRecord<'a>) -> Result<Record<'a>, DecodeError> {
        self.layout(raw).decode(raw)
    }

    /// The time of a record: see [`RecordLayout::timestamp`].
    #[inline]
    pub fn timestamp(&self, raw: RawRecord<'_>) -> Option<Timestamp> {
        self.layout(raw).timestamp(raw)
    }
}
