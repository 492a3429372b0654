//! Everything that can be done with an input: what fuzz targets and property tests call.

use std::fmt::Write as _;

use trace_common::Limits;

use nettrace::analysis::{
    ActivityTracker, CounterTracker, GcTracker, HeapSnapshot, RuntimeTracker,
};
use nettrace::{Item, Options, Order, Parser, Profile, ProfileSums};

/// Limits that a test can reach.
pub const LIMITS: Limits = Limits {
    max_buffer: 1 << 20,
    max_string: 1 << 16,
    max_entries: 1 << 12,
    max_depth: 16,
    max_work_per_byte: 16,
};

/// Reads `input` in chunks of `chunk` bytes and does with every item all that can be done.
/// Gives the number of events and errors.
pub fn read_everything(input: &[u8], chunk: usize, order: Order) -> (u64, u64) {
    let options = Options::new().order(order).limits(LIMITS).max_reorder_bytes(1 << 16);
    let mut parser = Parser::new(options);
    let mut sink = Sink { profile: Profile::new(), ..Sink::default() };
    let mut errors = 0;
    let mut chunks = input.chunks(chunk.max(1));
    loop {
        let more = match chunks.next() {
            Some(bytes) => {
                parser.push(bytes);
                true
            }
            None => {
                parser.finish();
                false
            }
        };
        loop {
            match parser.next_item() {
                Ok(Some(item)) => sink.take(&item),
                Ok(None) => break,
                Err(e) => {
                    assert!(e.offset <= input.len() as u64, "{e} beyond {}", input.len());
                    errors += 1;
                }
            }
        }
        if !more {
            break;
        }
    }
    let end = parser.next_item();
    assert!(matches!(end, Ok(None)), "an end is an end: {end:?}");
    sink.finish();
    assert!(parser.stats().bytes <= input.len() as u64);
    (sink.events, errors)
}

#[derive(Default)]
struct Sink {
    events: u64,
    text: String,
    profile: Profile,
    sums: ProfileSums,
    gc: GcTracker,
    runtime: RuntimeTracker,
    counters: CounterTracker,
    activities: ActivityTracker,
    heap: HeapSnapshot,
}

impl Sink {
    fn take(&mut self, item: &Item<'_>) {
        self.text.clear();
        let Item::Event(event) = item else {
            let _ = write!(self.text, "{item:?}");
            return;
        };
        self.events += 1;
        // Some values are small and hold much: an array of empty objects, say.
        for field in event.fields().take(64) {
            match field {
                Ok((name, value)) if event.payload().len() < 4_096 => {
                    let _ = write!(self.text, "{name}={value}");
                }
                Ok(_) => {}
                Err(error) => {
                    assert!(error.offset <= event.payload().len() as u64, "{error}");
                    let _ = write!(self.text, "{error}");
                }
            }
        }
        for index in 0..event.metadata().fields.len().min(64) {
            let _ = event.field_at(index);
        }
        let _ = (event.time(), event.tid(), event.pid(), event.version());
        let _ = event.activity_id().and_then(|id| nettrace::activity_path(id, None));
        let _ = event.labels().count();
        let _ = event.stack().instruction_pointers().take(64).fold(0u64, u64::wrapping_add);
        self.profile.push(event);
        self.sums.push(event);
        let _ = self.gc.push(event);
        while self.gc.next_gc().is_some() {}
        let _ = self.runtime.push(event);
        let _ = self.counters.push(event);
        let _ = self.activities.push(event);
        self.heap.push(event);
    }

    fn finish(&mut self) {
        for sample in self.profile.samples().iter().take(64) {
            for frame in self.profile.frames(sample).take(64) {
                let _ = write!(self.text, "{frame}");
            }
        }
        let totals = self.sums.totals();
        let count = totals.iter().map(|total| total.count).sum::<u64>();
        assert_eq!(count, self.profile.samples().len() as u64);
        for total in totals.iter().take(64) {
            let _ = self
                .sums
                .frames(total)
                .take(64)
                .map(|frame| frame.address)
                .fold(0, u64::wrapping_add);
        }
        for node in self.heap.nodes().iter().take(64) {
            let _ = self.heap.edges(node).len();
        }
        let _ = self.heap.histogram();
    }
}
