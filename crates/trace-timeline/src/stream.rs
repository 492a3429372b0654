//! Several sources as one stream in time order.

use crate::event::{Event, EventKind};
use crate::tables::Tables;
use trace_common::{Merge, Timestamp, Tournament};

/// A cause of a failed [`Stream`].
pub type Cause = Box<dyn std::error::Error + Send + Sync>;

/// A stream that ended early.
#[derive(Debug, thiserror::Error)]
#[error("stream {stream}: {source}")]
#[non_exhaustive]
pub struct StreamError {
    /// The number of the stream, in the order of [`Streams::add`].
    pub stream: usize,
    /// The last time that was read of it; `None` if it had no event.
    pub newest: Option<Timestamp>,
    /// Why.
    pub source: Cause,
}

/// A source with its reader: gives model events in time order.
///
/// It is for recordings, which can be read at once.
pub trait Stream {
    /// Appends some of the next events. `false` at the end.
    ///
    /// Without an event, as of a record that makes none, it is read again at once, and the events of the
    /// other streams wait. A stream whose data comes later blocks here.
    ///
    /// # Errors
    ///
    /// Errors of the reader. The stream has ended then.
    fn read(&mut self, tables: &mut Tables, out: &mut Vec<Event>) -> Result<bool, Cause>;
}

impl<F: FnMut(&mut Tables, &mut Vec<Event>) -> Result<bool, Cause>> Stream for F {
    fn read(&mut self, tables: &mut Tables, out: &mut Vec<Event>) -> Result<bool, Cause> {
        self(tables, out)
    }
}

/// Merges streams in time order. It reads each stream only as far as it must.
///
/// The next event is known when each stream has a later one or has ended. Live sources would wait for the
/// one that is quiet: order their events with a [`Merge`] up to the time up to which all have been read.
///
/// ```
/// use trace_timeline::{Entity, EntityKind, Event, EventKind, Streams, Tables, Timestamp};
///
/// let mut tables = Tables::new();
/// let cpu = tables.entity(Entity::new(EntityKind::Cpu, 0)).unwrap();
/// let at = |nanos| Event {
///     time: Timestamp::from_nanos(nanos),
///     kind: EventKind::Start { entity: cpu },
/// };
/// let (mut odd, mut even) = (vec![at(1), at(3)], vec![at(2)]);
/// let mut streams = Streams::new();
/// streams.add(|_: &mut Tables, out: &mut Vec<Event>| { out.append(&mut odd); Ok(false) });
/// streams.add(|_: &mut Tables, out: &mut Vec<Event>| { out.append(&mut even); Ok(false) });
/// let mut times = Vec::new();
/// while let Some(event) = streams.next_event(&mut tables)? {
///     times.push(event.time.nanos());
/// }
/// assert_eq!(times, [1, 2, 3]);
/// # Ok::<(), trace_timeline::StreamError>(())
/// ```
#[derive(Default)]
pub struct Streams<'a> {
    streams: Vec<One<'a>>,
    /// Up to when each of them is known that has not ended: the one that is behind is read next.
    reached: Tournament,
    merge: Option<Merge<EventKind>>,
    /// Events of a read.
    buffer: Vec<Event>,
    /// The only stream that is left, and the position in `buffer` of its next event: there is
    /// nothing to merge.
    only: Option<(usize, usize)>,
    /// The last event of several streams.
    merged: Option<Event>,
    last: Option<Timestamp>,
    late: u64,
}

struct One<'a> {
    /// `None` at the end.
    stream: Option<Box<dyn Stream + 'a>>,
    /// The time up to which it was read; `None` before its first event.
    newest: Option<Timestamp>,
    /// It has no event before this time.
    start: Option<Timestamp>,
}

impl One<'_> {
    /// All of its events up to this time are known: [`Timestamp::MIN`] if none are, and `None` at its end.
    fn reached(&self) -> Option<Timestamp> {
        let reached = self.newest.max(self.start);
        self.stream.as_ref().map(|_| reached.unwrap_or(Timestamp::MIN))
    }

    /// It was read: at an error it has ended.
    fn read(&mut self, stream: usize, result: Result<bool, Cause>) -> Result<(), StreamError> {
        if !matches!(result, Ok(true)) {
            self.stream = None;
        }
        result.map(drop).map_err(|source| StreamError { stream, newest: self.newest, source })
    }
}

impl std::fmt::Debug for Streams<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Streams").field("streams", &self.streams.len()).finish_non_exhaustive()
    }
}

impl<'a> Streams<'a> {
    /// Makes a merge without streams.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a stream.
    pub fn add(&mut self, stream: impl Stream + 'a) {
        self.add_one(Box::new(stream), None);
    }

    /// Adds a stream without an event before `start`: it is not read before the others have come there, or have
    /// ended.
    ///
    /// Of two traces of one process, the later one then continues with the goroutines and threads that the earlier
    /// one has left at its end, if both were added so.
    pub fn add_from(&mut self, start: Timestamp, stream: impl Stream + 'a) {
        self.add_one(Box::new(stream), Some(start));
    }

    fn add_one(&mut self, stream: Box<dyn Stream + 'a>, start: Option<Timestamp>) {
        if let Some((number, next)) = self.only.take() {
            let merge = self.merge.get_or_insert_with(|| Merge::new(0));
            for event in self.buffer.drain(..).skip(next) {
                merge.push(number, event.time, event.kind);
            }
        }
        let number = self.streams.len();
        let one = One { stream: Some(stream), newest: None, start };
        self.reached.grow(number + 1);
        self.reached.set(number, one.reached());
        self.streams.push(one);
    }

    /// The next event; `None` at the end of all streams.
    ///
    /// An event that is earlier than one before it in its own stream gets the time of that one:
    /// times ascend.
    ///
    /// # Errors
    ///
    /// The error of a stream. The next call continues with the others.
    pub fn next_event(&mut self, tables: &mut Tables) -> Result<Option<&Event>, StreamError> {
        if !self.advance_only() && !self.advance(tables)? {
            return Ok(None);
        }
        Ok(match self.only {
            Some((_, next)) => self.buffer.get(next.wrapping_sub(1)),
            None => self.merged.as_ref(),
        })
    }

    /// Goes to the next event that was read of the only stream.
    #[inline]
    fn advance_only(&mut self) -> bool {
        let Some((_, next)) = &mut self.only else { return false };
        let Some(event) = self.buffer.get_mut(*next) else { return false };
        *next += 1;
        let last = self.last.unwrap_or(event.time);
        self.late += u64::from(event.time < last);
        event.time = event.time.max(last);
        self.last = Some(event.time);
        true
    }

    /// Goes to the next event of those that have to be read; `false` at the end.
    fn advance(&mut self, tables: &mut Tables) -> Result<bool, StreamError> {
        if let Some((number, _)) = self.only {
            return self.read_only(number, tables);
        }
        let merge = self.merge.get_or_insert_with(|| Merge::new(0));
        if merge.is_empty() {
            let mut left = self.streams.iter().enumerate().filter(|(_, one)| one.stream.is_some());
            if let (Some((number, _)), None) = (left.next(), left.next()) {
                return self.read_only(number, tables);
            }
        }
        loop {
            let behind = self.reached.first();
            let watermark = behind.map_or(Timestamp::MAX, |(_, reached)| reached);
            let is_known = watermark > Timestamp::MIN;
            if let Some(merged) = is_known.then(|| merge.pop(watermark)).flatten() {
                self.late += u64::from(merged.late);
                let at = merged.time.max(self.last.unwrap_or(merged.time));
                self.last = Some(at);
                self.merged = Some(Event { time: at, kind: merged.value });
                return Ok(true);
            }
            let Some((number, _)) = behind else { return Ok(false) };
            let Some(one) = self.streams.get_mut(number) else { return Ok(false) };
            let Some(stream) = &mut one.stream else { return Ok(false) };
            let result = stream.read(tables, &mut self.buffer);
            for event in self.buffer.drain(..) {
                one.newest = one.newest.max(Some(event.time));
                merge.push(number, event.time, event.kind);
            }
            let result = one.read(number, result);
            self.reached.set(number, one.reached());
            result?;
        }
    }

    /// Reads the only stream.
    fn read_only(&mut self, number: usize, tables: &mut Tables) -> Result<bool, StreamError> {
        loop {
            self.buffer.clear();
            self.only = Some((number, 0));
            let Some(one) = self.streams.get_mut(number) else { return Ok(false) };
            let Some(stream) = &mut one.stream else { return Ok(false) };
            let result = stream.read(tables, &mut self.buffer);
            if let Some(last) = self.buffer.last() {
                one.newest = one.newest.max(Some(last.time));
            }
            let result = one.read(number, result);
            self.reached.set(number, one.reached());
            result?;
            if self.advance_only() {
                return Ok(true);
            }
        }
    }

    /// Number of events that were out of order in their stream.
    pub const fn late(&self) -> u64 {
        self.late
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entity::{Entity, EntityKind};
    use std::cell::RefCell;

    /// Of events with the same time, that of the stream that was added first comes first.
    #[test]
    fn many_streams_are_merged_in_order() {
        const STREAMS: i64 = 50;
        let mut tables = Tables::new();
        let at = Timestamp::from_nanos;
        let (mut streams, mut expected) = (Streams::new(), Vec::new());
        for number in 0..STREAMS {
            let entity = tables.entity(Entity::new(EntityKind::Cpu, number)).unwrap();
            // Some are empty, and most have times of others.
            let times =
                (0..number % 5).map(move |place| number * 7 % 10 + place * (1 + number % 3));
            expected.extend(times.clone().map(|time| (time, entity)));
            let mut rest = times;
            streams.add(move |_: &mut Tables, out: &mut Vec<Event>| {
                let Some(time) = rest.next() else { return Ok(false) };
                out.push(Event { time: at(time), kind: EventKind::Start { entity } });
                Ok(true)
            });
        }
        // The identifiers of entities ascend, and the order of equal ones stays.
        expected.sort();
        let mut found = Vec::new();
        while let Some(event) = streams.next_event(&mut tables).unwrap() {
            let EventKind::Start { entity } = event.kind else { continue };
            found.push((event.time.nanos(), entity));
        }
        assert_eq!(found, expected);
        assert_eq!(streams.late(), 0);
    }

    #[test]
    fn a_stream_is_not_read_before_the_others_have_come_to_its_start() {
        const TIMES: [&[i64]; 3] = [&[20, 30], &[1, 9, 20, 21], &[5, 40]];
        let mut tables = Tables::new();
        let entity = tables.entity(Entity::new(EntityKind::Cpu, 0)).unwrap();
        let at = Timestamp::from_nanos;
        let read = RefCell::new(Vec::new());
        let log = &read;
        let mut streams = Streams::new();
        for (number, times) in TIMES.into_iter().enumerate() {
            let mut rest = times.iter();
            streams.add_from(at(times[0]), move |_: &mut Tables, out: &mut Vec<Event>| {
                let Some(time) = rest.next() else { return Ok(false) };
                log.borrow_mut().push((number, *time));
                out.push(Event { time: at(*time), kind: EventKind::Start { entity } });
                Ok(true)
            });
        }
        let mut times = Vec::new();
        while let Some(event) = streams.next_event(&mut tables).unwrap() {
            times.push(event.time.nanos());
        }
        assert_eq!(times, [1, 5, 9, 20, 20, 21, 30, 40]);
        assert_eq!(streams.late(), 0);
        let read = read.borrow();
        let place = |event| read.iter().position(|read| *read == event).unwrap();
        assert!(place((0, 20)) > place((1, 20)), "{read:?}");
    }
}
