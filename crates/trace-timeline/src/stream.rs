//! Several sources as one stream in time order.

use crate::event::{Event, EventKind};
use crate::tables::Tables;
use trace_common::{Merge, Timestamp};

/// A cause of a failed [`Stream`].
pub type Cause = Box<dyn std::error::Error + Send + Sync>;

/// A stream that ended early.
#[derive(Debug, thiserror::Error)]
#[error("stream {stream}: {cause}")]
pub struct StreamError {
    /// The number of the stream, in the order of [`Streams::add`].
    pub stream: usize,
    /// Why.
    #[source]
    pub cause: Cause,
}

/// A source with its reader: gives model events in time order.
pub trait Stream {
    /// Appends some of the next events. `false` at the end.
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
/// ```
/// use trace_timeline::{Entity, EntityKind, Event, EventKind, Streams, Tables, Timestamp};
///
/// let mut tables = Tables::new();
/// let cpu = tables.entity(Entity::new(EntityKind::Cpu, 0)).unwrap();
/// let at = |nanos| Event {
///     at: Timestamp::from_nanos(nanos),
///     kind: EventKind::Start { entity: cpu },
/// };
/// let (mut odd, mut even) = (vec![at(1), at(3)], vec![at(2)]);
/// let mut streams = Streams::new();
/// streams.add(|_: &mut Tables, out: &mut Vec<Event>| { out.append(&mut odd); Ok(false) });
/// streams.add(|_: &mut Tables, out: &mut Vec<Event>| { out.append(&mut even); Ok(false) });
/// let mut times = Vec::new();
/// while let Some(event) = streams.next(&mut tables)? {
///     times.push(event.at.nanos());
/// }
/// assert_eq!(times, [1, 2, 3]);
/// # Ok::<(), trace_timeline::StreamError>(())
/// ```
#[derive(Default)]
pub struct Streams<'a> {
    streams: Vec<One<'a>>,
    merge: Option<Merge<EventKind>>,
    buffer: Vec<Event>,
    last: Option<Timestamp>,
    late: u64,
}

struct One<'a> {
    /// `None` at the end.
    stream: Option<Box<dyn Stream + 'a>>,
    /// The time up to which it was read; `None` before its first event.
    newest: Option<Timestamp>,
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
        self.streams.push(One { stream: Some(Box::new(stream)), newest: None });
    }

    /// The next event; `None` at the end of all streams.
    ///
    /// An event that is earlier than one before it in its own stream gets the time of that one:
    /// times ascend.
    ///
    /// # Errors
    ///
    /// The error of a stream. The next call continues with the others.
    pub fn next(&mut self, tables: &mut Tables) -> Result<Option<Event>, StreamError> {
        let merge = self.merge.get_or_insert_with(|| Merge::new(0));
        loop {
            let behind = self
                .streams
                .iter()
                .enumerate()
                .filter(|(_, one)| one.stream.is_some())
                .min_by_key(|(_, one)| one.newest);
            let watermark = behind.map_or(Some(Timestamp::MAX), |(_, one)| one.newest);
            if let Some(merged) = watermark.and_then(|watermark| merge.pop(watermark)) {
                self.late += u64::from(merged.late);
                let at = merged.at.max(self.last.unwrap_or(merged.at));
                self.last = Some(at);
                return Ok(Some(Event { at, kind: merged.value }));
            }
            let Some((number, _)) = behind else { return Ok(None) };
            let Some(one) = self.streams.get_mut(number) else { return Ok(None) };
            let Some(stream) = &mut one.stream else { return Ok(None) };
            let result = stream.read(tables, &mut self.buffer);
            for event in self.buffer.drain(..) {
                one.newest = one.newest.max(Some(event.at));
                merge.push(number, event.at, event.kind);
            }
            match result {
                Ok(true) => {}
                Ok(false) => one.stream = None,
                Err(cause) => {
                    one.stream = None;
                    return Err(StreamError { stream: number, cause });
                }
            }
        }
    }

    /// Number of events that were out of order in their stream.
    pub const fn late(&self) -> u64 {
        self.late
    }
}
