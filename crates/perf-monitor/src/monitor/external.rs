//! External events: their values, or their fields as a sample of the kernel has them.

use super::registration::{Decoder, Tally};
use super::{DecoderError, EventId, SampleView, lock};
use crate::declared;
use crate::error::{Error, Result};
use crate::flags::SampleFlags;
use crate::format::{FieldValue, TracepointFormat};
use crate::record::{RawRecord, RecordLayout};
use crate::ring_set::{Reader, SetEvent, SetRecord};
use perf_sys::{PERF_RECORD_SAMPLE, PERF_TYPE_TRACEPOINT, perf_event_attr};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use trace_common::{ClockDomain, Timestamp};

/// External events that wait, for the reader or for their time.
const MAX_EXTERNAL: usize = 1 << 20;

/// Fields of the record of an external event.
const FLAGS: SampleFlags = SampleFlags::IDENTIFIER
    .union(SampleFlags::TID)
    .union(SampleFlags::TIME)
    .union(SampleFlags::RAW);

/// The longest data of a record: its size has 16 bits.
const MAX_DATA: usize = u16::MAX as usize - 64;

/// An external event that waits.
pub(super) struct External<T> {
    pub(super) event: EventId,
    pub(super) time: Timestamp,
    pub(super) payload: Payload<T>,
}

pub(super) enum Payload<T> {
    Value(T),
    /// A record with its fields.
    Record(Vec<u8>),
}

impl<T> Payload<T> {
    /// A record with these values, of the calling thread.
    pub(super) fn of_fields(
        format: &TracepointFormat,
        time: Timestamp,
        values: &[(&str, FieldValue<'_>)],
    ) -> Result<Self> {
        let data = declared::encode(format, values)?;
        if data.len() > MAX_DATA {
            let field = values.last().map_or("", |(name, _)| *name).to_owned();
            return Err(Error::ExternalField { field, why: "the data is longer than a record" });
        }
        // As in the kernel: the size and the data of a sample end at a multiple of 8 bytes.
        let size = (4 + data.len()).next_multiple_of(8) - 4;
        let pid = rustix::process::getpid().as_raw_nonzero().get();
        let tid = rustix::thread::gettid().as_raw_nonzero().get();
        let mut record = Vec::with_capacity(36 + size);
        record.extend(PERF_RECORD_SAMPLE.to_ne_bytes());
        record.extend(0u16.to_ne_bytes());
        record.extend((36 + size as u16).to_ne_bytes());
        record.extend(0u64.to_ne_bytes());
        record.extend(pid.to_ne_bytes());
        record.extend(tid.to_ne_bytes());
        record.extend(time.nanos().to_ne_bytes());
        record.extend((size as u32).to_ne_bytes());
        record.extend(&data);
        record.resize(36 + size, 0);
        Ok(Self::Record(record))
    }
}

/// The decoder of the fields of an external event.
pub(super) struct ExternalHandler<T> {
    pub(super) format: Arc<TracepointFormat>,
    pub(super) decoder: Option<Decoder<T>>,
    pub(super) tally: Arc<Tally>,
}

/// What other threads leave for the reader.
pub(super) struct ExternalInbox<T> {
    has_new: AtomicBool,
    left: Mutex<Left<T>>,
    /// Events here, and those that the reader took and that are not delivered.
    waiting: AtomicUsize,
    most: usize,
}

struct Left<T> {
    events: Vec<External<T>>,
    /// `None`: unregistered.
    handlers: Vec<(EventId, Option<ExternalHandler<T>>)>,
}

impl<T> Default for Left<T> {
    fn default() -> Self {
        Self { events: Vec::new(), handlers: Vec::new() }
    }
}

impl<T> Default for ExternalInbox<T> {
    fn default() -> Self {
        Self {
            has_new: AtomicBool::new(false),
            left: Mutex::default(),
            waiting: AtomicUsize::new(0),
            most: MAX_EXTERNAL,
        }
    }
}

impl<T> ExternalInbox<T> {
    /// Adds an event that is registered, with a time of this clock.
    pub(super) fn push(&self, external: External<T>, clock: ClockDomain) -> Result<()> {
        let mut left = lock(&self.left);
        // The lock keeps others from adding; what the reader subtracts meanwhile is only room.
        let waiting = self.waiting.load(Ordering::Relaxed);
        if waiting >= self.most {
            return Err(Error::TooManyExternal { waiting, clock });
        }
        self.waiting.fetch_add(1, Ordering::Relaxed);
        left.events.push(external);
        self.has_new.store(true, Ordering::Release);
        Ok(())
    }

    /// Adds the handler of an event, or that it is unregistered.
    pub(super) fn set_handler(&self, event: EventId, handler: Option<ExternalHandler<T>>) {
        lock(&self.left).handlers.push((event, handler));
        self.has_new.store(true, Ordering::Release);
    }

    fn take(&self) -> Left<T> {
        match self.has_new.swap(false, Ordering::Acquire) {
            true => std::mem::take(&mut *lock(&self.left)),
            false => Left::default(),
        }
    }
}

/// An event that the reader knows.
struct Registered<T> {
    handler: ExternalHandler<T>,
    /// How many of it wait. Looking for one among all that wait takes too long for each round.
    waiting: usize,
}

/// The external events that the reader has.
pub(super) struct Externals<T> {
    waiting: HashMap<u64, External<T>>,
    next: u64,
    handlers: HashMap<EventId, Registered<T>>,
    unregistered: Vec<EventId>,
    layout: RecordLayout,
}

impl<T> Default for Externals<T> {
    fn default() -> Self {
        let mut attr = perf_event_attr::new(PERF_TYPE_TRACEPOINT, 0);
        attr.sample_type = FLAGS.bits();
        Self {
            waiting: HashMap::new(),
            next: 0,
            handlers: HashMap::new(),
            unregistered: Vec::new(),
            layout: RecordLayout::new(&attr),
        }
    }
}

impl<T> Externals<T> {
    /// Takes what other threads left, and queues the events at their time. Returns the decoders of
    /// unregistered events of which none waits.
    pub(super) fn take(
        &mut self,
        inbox: &ExternalInbox<T>,
        reader: &mut Reader,
    ) -> Vec<ExternalHandler<T>> {
        // Events are pushed between the registration of theirs and its end.
        let Left { events, handlers } = inbox.take();
        for (event, handler) in handlers {
            match handler {
                Some(handler) => {
                    self.handlers.insert(event, Registered { handler, waiting: 0 });
                }
                None => self.unregistered.push(event),
            }
        }
        for external in events {
            if let Some(registered) = self.handlers.get_mut(&external.event) {
                registered.waiting += 1;
            }
            reader.push_external(external.time, self.next);
            self.waiting.insert(self.next, external);
            self.next += 1;
        }
        self.forget_unregistered()
    }

    fn forget_unregistered(&mut self) -> Vec<ExternalHandler<T>> {
        let Self { handlers, unregistered, .. } = self;
        let mut forgotten = Vec::new();
        unregistered.retain(|event| {
            let waits = handlers.get(event).is_some_and(|registered| registered.waiting > 0);
            if !waits {
                forgotten.extend(handlers.remove(event).map(|registered| registered.handler));
            }
            waits
        });
        forgotten
    }

    /// The value of an event whose turn it is. `None` if its decoder drops it.
    pub(super) fn decode(
        &mut self,
        inbox: &ExternalInbox<T>,
        token: u64,
        late: bool,
    ) -> Option<(EventId, Result<T, DecoderError>)> {
        let External { event, time, payload } = self.waiting.remove(&token)?;
        inbox.waiting.fetch_sub(1, Ordering::Relaxed);
        let Registered { handler, waiting } = self.handlers.get_mut(&event)?;
        *waiting = waiting.saturating_sub(1);
        let tally = &handler.tally;
        tally.external.add(1);
        tally.late.add(u64::from(late));
        let record = match payload {
            Payload::Value(value) => return Some((event, Ok(value))),
            Payload::Record(record) => record,
        };
        let record = SetRecord {
            event: SetEvent(u64::MAX),
            cpu: u32::MAX,
            time,
            late,
            layout: &self.layout,
            raw: RawRecord::new(&record, 0),
            place: u32::MAX,
        };
        let view = SampleView { event, record: &record, format: Some(&handler.format) };
        match handler.decoder.as_mut().map_or(Ok(None), |decoder| decoder(&view)) {
            Ok(Some(value)) => Some((event, Ok(value))),
            Ok(None) => {
                tally.dropped.add(1);
                None
            }
            Err(error) => {
                tally.errors.add(1);
                Some((event, Err(error)))
            }
        }
    }

    /// Counts events that the sink did not take.
    pub(super) fn count_overflow(&self, event: EventId, count: u64) {
        if let Some(Registered { handler, .. }) = self.handlers.get(&event) {
            handler.tally.overflow.add(count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_whose_time_has_not_come_count_as_waiting() {
        let inbox = ExternalInbox { most: 3, ..ExternalInbox::default() };
        let (mut reader, mut externals) = (Reader::idle(), Externals::default());
        let format = Arc::new(declared::declare("an event", &[]).unwrap());
        let event = EventId(1);
        let tally = Arc::<Tally>::default();
        inbox.set_handler(event, Some(ExternalHandler { format, decoder: None, tally }));
        let push = |value| {
            let payload = Payload::Value(value);
            inbox.push(External { event, time: Timestamp::MAX, payload }, ClockDomain::Monotonic)
        };
        push(0).unwrap();
        push(1).unwrap();
        // The reader takes them, and they wait there.
        externals.take(&inbox, &mut reader);
        push(2).unwrap();
        for _ in 0..2 {
            let error = push(3).unwrap_err();
            assert!(matches!(error, Error::TooManyExternal { waiting: 3, .. }), "{error}");
            assert!(error.to_string().contains("CLOCK_MONOTONIC"), "{error}");
            externals.take(&inbox, &mut reader);
        }
        let (of, value) = externals.decode(&inbox, 0, false).unwrap();
        assert_eq!((of, value.unwrap()), (event, 0));
        push(4).unwrap();
        assert!(push(5).is_err());
    }

    #[test]
    fn a_decoder_stays_until_no_value_of_its_event_waits() {
        let inbox = ExternalInbox::default();
        let (mut reader, mut externals) = (Reader::idle(), Externals::default());
        let events = [EventId(1), EventId(2)];
        for event in events {
            let format = Arc::new(declared::declare("an event", &[]).unwrap());
            let tally = Arc::<Tally>::default();
            inbox.set_handler(event, Some(ExternalHandler { format, decoder: None, tally }));
        }
        for (value, event) in [events[0], events[1], events[0]].into_iter().enumerate() {
            let payload = Payload::Value(value);
            let external = External { event, time: Timestamp::MAX, payload };
            inbox.push(external, ClockDomain::Monotonic).unwrap();
        }
        inbox.set_handler(events[0], None);
        let mut left = |externals: &mut Externals<usize>| {
            externals.take(&inbox, &mut reader);
            externals.take(&inbox, &mut reader);
            let mut left: Vec<EventId> = externals.handlers.keys().copied().collect();
            left.sort_unstable();
            left
        };
        assert_eq!(left(&mut externals), events);
        for token in [0, 2] {
            assert_eq!(left(&mut externals), events);
            let (event, value) = externals.decode(&inbox, token, false).unwrap();
            assert_eq!((event, value.unwrap()), (events[0], token as usize));
        }
        assert_eq!(left(&mut externals), [events[1]]);
        inbox.set_handler(events[1], None);
        assert_eq!(left(&mut externals), [events[1]]);
        assert!(externals.decode(&inbox, 1, false).is_some());
        assert!(left(&mut externals).is_empty());
    }
}
