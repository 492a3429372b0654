//! Puts events of several threads in the order of time.
//!
//! The writer goes through its buffers thread by thread, so the stream is made of *runs*, each
//! in the order of time, that overlap:
//!
//! ```text
//! stream:  A10 A15 A20 | B12 B13 B14 B30 | C25 …        | = an event marked as sorted
//! given:   A10 B12 B13 B14 A15 A20 …                    B30 waits until a mark says so
//! ```
//!
//! An event that is marked as sorted promises that nothing after it in the stream is older. So
//! whatever is not younger than it can be given, by merging the runs. What is held is the bytes
//! of the blocks that still have events to give, and one decoded event per run: events are
//! decoded a second time when they are given, and never copied.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use trace_common::Cursor;

use crate::event::{Decoded, Layout, decode};
use crate::input::Input;
use crate::metadata::MetadataTable;

#[derive(Clone, Copy, Debug)]
struct Run {
    /// The next event to give.
    next: Decoded,
    /// Offset of the event after it.
    position: u64,
    /// Offset where the run ends.
    end: u64,
    layout: Layout,
}

/// Time of the next event, place of the run in the stream, slot.
type Key = (i64, u64, u32);

#[derive(Debug, Default)]
pub(crate) struct Merge {
    slots: Vec<Run>,
    free: Vec<u32>,
    heap: BinaryHeap<Reverse<Key>>,
    /// The run that gave the last event, and the place in the heap where it stands now.
    active: Option<(u32, u64)>,
    started: u64,
    /// No event that is yet to come is older than this.
    watermark: Option<i64>,
    /// Everything is given, whatever the watermark.
    draining: bool,
}

impl Merge {
    /// Bytes that a run takes besides its block.
    pub(crate) const RUN_SIZE: usize = size_of::<Run>();

    /// Adds a run that starts with `next`, which ends at `position`.
    pub(crate) fn start(&mut self, next: Decoded, position: u64, layout: Layout) -> u32 {
        let run = Run { next, position, end: position, layout };
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => {
                self.slots.push(run);
                self.slots.len() as u32 - 1
            }
        };
        if let Some(place) = self.slots.get_mut(slot as usize) {
            *place = run;
        }
        self.heap.push(Reverse((next.header.timestamp, self.started, slot)));
        self.started += 1;
        slot
    }

    /// The run in `slot` goes on up to the offset `end`.
    pub(crate) fn extend(&mut self, slot: u32, end: u64) {
        if let Some(run) = self.slots.get_mut(slot as usize) {
            run.end = end;
        }
    }

    pub(crate) fn raise(&mut self, watermark: i64) {
        self.watermark = self.watermark.max(Some(watermark));
    }

    /// Gives everything that is held, in order among itself.
    pub(crate) fn drain(&mut self) {
        self.draining = true;
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.heap.is_empty() && self.active.is_none()
    }

    pub(crate) fn runs(&self) -> usize {
        self.heap.len() + usize::from(self.active.is_some())
    }

    /// Offset of the oldest byte that is still needed.
    pub(crate) fn keep(&self) -> Option<u64> {
        let active = self.active.map(|(slot, _)| slot);
        self.heap
            .iter()
            .map(|Reverse((_, _, slot))| *slot)
            .chain(active)
            .filter_map(|slot| self.slots.get(slot as usize))
            .map(|run| run.next.payload)
            .min()
    }

    /// The event that [`Merge::next`] went to.
    #[inline]
    pub(crate) fn event(&self) -> Option<&Decoded> {
        self.active.and_then(|(slot, _)| self.slots.get(slot as usize)).map(|run| &run.next)
    }

    /// Goes to the next event in the order of time; `false` if it is not certain that none
    /// before it is to come, or there is none.
    ///
    /// Runs that go on for many events are the rule, so the run that gave the last event stays
    /// out of the heap while it is the first.
    #[inline]
    pub(crate) fn next(&mut self, input: &Input, metadata: &MetadataTable) -> bool {
        if let Some((slot, order)) = self.active.take() {
            // The event that was given last is done with: go to the next one of its run.
            if let Some(run) = self.slots.get_mut(slot as usize) {
                if run.position < run.end {
                    let data = input.slice(run.position, run.end);
                    let mut c = Cursor::with_base(data, run.position);
                    // It was decoded once when the block came: it does not fail now.
                    if let Ok(changes) = decode(&mut c, &mut run.next, run.layout) {
                        run.position = c.offset();
                        if changes.metadata {
                            run.next.metadata = metadata.index(run.next.header.metadata_id);
                        }
                        let key = (run.next.header.timestamp, order, slot);
                        let first = self.heap.peek().is_none_or(|Reverse(top)| key < *top);
                        if first && (self.draining || Some(key.0) <= self.watermark) {
                            self.active = Some((slot, order));
                            return true;
                        }
                        self.heap.push(Reverse(key));
                    } else {
                        self.free.push(slot);
                    }
                } else {
                    self.free.push(slot);
                }
            }
        }
        let Some(Reverse((timestamp, order, slot))) = self.heap.peek().copied() else {
            self.draining = false;
            return false;
        };
        if !self.draining && Some(timestamp) > self.watermark {
            return false;
        }
        self.heap.pop();
        self.active = Some((slot, order));
        true
    }
}
