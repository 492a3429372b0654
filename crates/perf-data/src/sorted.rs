//! Records in time order.

use crate::error::{Error, Result};
use crate::layout::record_type;
use crate::reader::{Entry, Reader, Session};
use perf_monitor::{RawRecord, Timestamp};
use std::io::Read;
use std::ops::ControlFlow;

/// Reads a recording in time order, by the rounds of its recorder.
///
/// A recorder reads its rings one after another, so that the records of a round are in order within
/// each ring only. But when a round ends, everything up to the latest time of the round *before* it
/// has been read:
///
/// ```text
/// ring 1   1 2 4 5    │ 7 9      │ 10      at the end of round 2, all up to 6 (the latest of
/// ring 2   3 6        │ 8        │ 11      round 1) is returned: 1 2 3 4 5 6; then 7 8 9, then
///          round 1      round 2    end     the rest
/// ```
///
/// In compressed recordings, the end of a round comes before the last records of the round, which the decoder holds
/// back: it waits for them. Rounds that end meanwhile are a part of the next one.
///
/// Records without a time are returned at once. At most
/// [`max_buffer`](trace_common::Limits::max_buffer) bytes of records wait: beyond that the earlier
/// half of them is returned, and records that come too late for it are out of order and counted by
/// [`late`](Self::late).
#[derive(Debug)]
pub struct SortedReader<R> {
    reader: Reader<R>,
    max_buffer: usize,
    /// Bytes of the waiting records.
    arena: Vec<u8>,
    /// Waiting records, the first `ready` of them sorted and to be returned.
    waiting: Vec<Waiting>,
    /// The place in the arena of a record without a time that was returned, behind those that wait.
    timeless: Option<usize>,
    ready: usize,
    /// Number of ready records that were returned.
    returned: usize,
    /// The latest time of the current and of the previous round.
    latest: Timestamp,
    latest_before: Timestamp,
    /// The end of a round that waits for its records.
    end: Option<RoundEnd>,
    /// The latest time that was returned.
    returned_up_to: Timestamp,
    late: u64,
    at_end: bool,
    /// An error that comes after the records before it.
    failed: Option<Error>,
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    time: Timestamp,
    /// In the arena.
    from: usize,
    /// In the input.
    offset: u64,
}

/// The end of a round.
#[derive(Clone, Copy, Debug)]
struct RoundEnd {
    /// The number of decompressed bytes that are returned when its records are.
    inflated: u64,
    /// The latest time of the previous round, as far as it was returned when that ended.
    limit: Timestamp,
}

const EARLIEST: Timestamp = Timestamp::from_nanos(i64::MIN);

impl<R: Read> SortedReader<R> {
    /// Sorts the records of a reader, with the limits of the reader.
    pub fn new(reader: Reader<R>) -> Self {
        Self {
            max_buffer: reader.limits().max_buffer,
            reader,
            arena: Vec::new(),
            waiting: Vec::new(),
            timeless: None,
            ready: 0,
            returned: 0,
            latest: EARLIEST,
            latest_before: EARLIEST,
            end: None,
            returned_up_to: EARLIEST,
            late: 0,
            at_end: false,
            failed: None,
        }
    }

    /// Events and features, as far as they were read.
    pub const fn session(&self) -> &Session {
        self.reader.session()
    }

    /// The reader of the records.
    pub const fn reader(&self) -> &Reader<R> {
        &self.reader
    }

    /// Number of records that were returned after later ones.
    pub const fn late(&self) -> u64 {
        self.late
    }

    /// The next record in time order. `None` at the end. A truncated last record is the end of a
    /// file that is not [complete](Reader::is_complete), and an error in one that is
    /// [truncated](Reader::is_truncated).
    ///
    /// # Errors
    ///
    /// Those of [`Reader::next_record`], after all records before the damage.
    pub fn next_record(&mut self) -> Result<Option<Entry<'_>>> {
        let place = match self.waiting.get(self.returned).filter(|_| self.returned < self.ready) {
            Some(next) => {
                self.returned += 1;
                Some(*next)
            }
            None => self.fill()?,
        };
        let Some(Waiting { time, from, offset }) = place else { return Ok(None) };
        if time < self.returned_up_to && time != EARLIEST {
            self.late += 1;
        }
        self.returned_up_to = self.returned_up_to.max(time);
        let bytes = self.arena.get(from..).unwrap_or_default();
        let session = self.reader.session();
        Ok(RawRecord::split_first(bytes, offset).map(|(raw, _)| Entry { raw, session }))
    }

    /// Calls `each` with every remaining record, in time order. [`SortedReader::try_for_each`] can stop
    /// early.
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

    /// Calls `each` with the remaining records, in time order, until it returns
    /// [`ControlFlow::Break`]. Reading can continue after that.
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

    /// Reads on until a record can be returned, and returns it.
    fn fill(&mut self) -> Result<Option<Waiting>> {
        if let Some(from) = self.timeless.take() {
            self.arena.truncate(from);
        }
        self.forget_returned();
        while !self.at_end {
            let entry = match self.reader.next_record() {
                Ok(Some(entry)) => entry,
                Ok(None) => {
                    self.at_end = true;
                    self.make_ready(Timestamp::MAX);
                    break;
                }
                Err(error) => {
                    self.at_end = true;
                    let is_end = matches!(error, Error::Truncated { .. });
                    self.failed = Some(error).filter(|_| !is_end || self.reader.is_complete());
                    self.make_ready(Timestamp::MAX);
                    break;
                }
            };
            if entry.raw.type_() == record_type::FINISHED_ROUND {
                if self.end.is_none() {
                    let limit = std::mem::replace(&mut self.latest_before, self.latest);
                    self.end = Some(RoundEnd { inflated: self.reader.inflated_so_far(), limit });
                }
            } else {
                let time = entry.time();
                let place = Waiting {
                    time: time.unwrap_or(EARLIEST),
                    from: self.arena.len(),
                    offset: entry.raw.offset(),
                };
                self.arena.extend_from_slice(entry.raw.bytes());
                let Some(time) = time else {
                    self.timeless = Some(place.from);
                    return Ok(Some(place));
                };
                self.latest = self.latest.max(time);
                self.waiting.push(place);
                if self.arena.len() > self.max_buffer {
                    self.waiting.sort_by_key(|waiting| waiting.time);
                    let middle = self.waiting.get(self.waiting.len() / 2);
                    let middle = middle.map_or(Timestamp::MAX, |waiting| waiting.time);
                    self.make_ready(middle);
                }
            }
            if let Some(end) = self.end.filter(|end| end.inflated <= self.reader.inflated()) {
                self.end = None;
                self.make_ready(end.limit);
            }
            if self.ready > 0 {
                break;
            }
        }
        if self.ready == 0 {
            return self.failed.take().map_or(Ok(None), Err);
        }
        self.returned = 1;
        Ok(self.waiting.first().copied())
    }

    /// Makes the records up to this time ready, too.
    fn make_ready(&mut self, limit: Timestamp) {
        // Stable: records of the same time stay in the order of the file, as in perf.
        self.waiting.sort_by_key(|waiting| waiting.time);
        let ready = self.waiting.partition_point(|waiting| waiting.time <= limit);
        self.ready = self.ready.max(ready);
    }

    /// Drops the records that were returned, with their bytes.
    fn forget_returned(&mut self) {
        if self.returned == 0 {
            return;
        }
        self.waiting.drain(..self.returned.min(self.waiting.len()));
        (self.ready, self.returned) = (0, 0);
        let mut kept = Vec::new();
        for waiting in &mut self.waiting {
            let bytes = self.arena.get(waiting.from..).unwrap_or_default();
            let from = std::mem::replace(&mut waiting.from, kept.len());
            if let Some((raw, _)) = RawRecord::split_first(bytes, from as u64) {
                kept.extend_from_slice(raw.bytes());
            }
        }
        self.arena = kept;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Features, FileWriter, RecordWriter, RecordedEvent};
    use perf_sys::{PERF_RECORD_COMM, PERF_RECORD_SAMPLE, PERF_SAMPLE_TIME, perf_event_attr};
    use std::io::Cursor;

    #[test]
    fn records_without_a_time_do_not_wait() {
        let attr = perf_event_attr { sample_type: PERF_SAMPLE_TIME, ..perf_event_attr::new(1, 0) };
        let event = RecordedEvent { name: "cpu-clock".into(), attr, ids: vec![1] };
        let mut writer = FileWriter::new(Cursor::new(Vec::new()), vec![event]).unwrap();
        let mut put = |type_: u32, words: &[u64]| {
            let size = (8 + 8 * words.len()) as u16;
            let header = [&type_.to_ne_bytes()[..], &[0; 2], &size.to_ne_bytes()].concat();
            let body = words.iter().flat_map(|word| word.to_ne_bytes());
            let bytes: Vec<u8> = header.into_iter().chain(body).collect();
            writer.record(RawRecord::split_first(&bytes, 0).unwrap().0).unwrap();
        };
        put(PERF_RECORD_SAMPLE, &[7]);
        for pid in 0..100 {
            put(PERF_RECORD_COMM, &[pid, 0]);
        }
        put(PERF_RECORD_SAMPLE, &[5]);
        let bytes = writer.finish(&Features::default()).unwrap().into_inner();
        let reader = Reader::new(Cursor::new(bytes)).unwrap();
        let mut sorted = SortedReader::new(reader);
        let mut next = || {
            let entry = sorted.next_record().unwrap()?;
            let word = entry.raw.bytes()[8..16].try_into().unwrap();
            let is_sample = entry.raw.type_() == PERF_RECORD_SAMPLE;
            Some((is_sample, u64::from_ne_bytes(word), sorted.arena.len()))
        };
        const BYTES: usize = 16 + 24;
        for pid in 0..100 {
            assert_eq!(next(), Some((false, pid, BYTES)));
        }
        assert_eq!([next(), next(), next()], [Some((true, 5, 32)), Some((true, 7, 32)), None]);
    }
}
