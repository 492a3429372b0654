//! Sorts the events of several threads by time.
//!
//! The writer flushes its buffers thread by thread, so the stream consists of overlapping *runs*,
//! each in time order:
//!
//! ```text
//! stream:  A10 A15 A20 | B12 B13 B14 B30 | C25 …        | = an event marked as sorted
//! given:   A10 B12 B13 B14 A15 A20 …                    B30 waits until a mark says so
//! ```
//!
//! An event that is marked as sorted guarantees that no later event in the stream is older. All
//! events that are not newer can then be returned, by merging the runs. Memory holds the bytes of
//! the blocks with events that were not returned yet, and one decoded event per run. When a block
//! arrives, the ends of its runs are found without decoding the events that differ from the
//! previous one in time and payload only. Events are decoded when they are returned, and never
//! copied.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use trace_common::Cursor;

use crate::event_header::{Decoded, Layout, decode, decode_alike};
use crate::input::Input;
use crate::metadata::MetadataTable;

#[derive(Clone, Copy, Debug)]
struct Run {
    /// The next event to return.
    next: Decoded,
    /// Offset of the event after it.
    position: u64,
    /// Offset of the end of the run.
    end: u64,
    layout: Layout,
}

/// Time of the next event, position of the run in the stream, slot.
type Key = (i64, u64, u32);

#[derive(Debug, Default)]
pub(crate) struct Merge {
    slots: Vec<Run>,
    free: Vec<u32>,
    heap: BinaryHeap<Reverse<Key>>,
    /// The run of the last returned event, and its current position in the heap.
    active: Option<(u32, u64)>,
    /// Events of the active run up to this time are returned without comparing with other runs.
    limit: i64,
    started: u64,
    /// No event that is still to come is older than this.
    watermark: Option<i64>,
    /// All events are returned, regardless of the watermark.
    draining: bool,
    /// Whether that is so although the writer may still write older ones.
    is_flush: bool,
    /// The time of the last event that was returned so.
    flushed: Option<i64>,
}

impl Merge {
    /// Bytes that a run takes in addition to its block.
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
        self.heap.push(Reverse((next.header.ticks, self.started, slot)));
        self.started += 1;
        self.limit = i64::MIN;
        slot
    }

    /// Extends the run in `slot` up to the offset `end`.
    pub(crate) fn extend(&mut self, slot: u32, end: u64) {
        if let Some(run) = self.slots.get_mut(slot as usize) {
            run.end = end;
        }
    }

    pub(crate) fn raise(&mut self, watermark: i64) {
        self.watermark = self.watermark.max(Some(watermark));
        self.limit = i64::MIN;
    }

    /// Returns all held events, in order among themselves.
    pub(crate) fn drain(&mut self) {
        self.draining = true;
        self.limit = i64::MIN;
    }

    /// Returns all held events as [`Merge::drain`], although older ones may come.
    pub(crate) fn flush(&mut self) {
        self.is_flush = true;
        self.drain();
    }

    /// Whether an event of this time is older than one that a flush has returned. Each flush counts once.
    pub(crate) fn is_late(&mut self, ticks: i64) -> bool {
        self.flushed.take_if(|last| ticks < *last).is_some()
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

    /// The event that [`Merge::next`] moved to.
    #[inline]
    pub(crate) fn event(&self) -> Option<&Decoded> {
        self.active.and_then(|(slot, _)| self.slots.get(slot as usize)).map(|run| &run.next)
    }

    /// Moves to the next event in time order; `false` if there is none, or if an older event may
    /// still come.
    ///
    /// Runs usually contain many events, so the run of the last event stays out of the heap while
    /// it is the first.
    #[inline]
    pub(crate) fn next(&mut self, input: &Input, metadata: &MetadataTable) -> bool {
        let mut behind = None;
        if let Some((slot, order)) = self.active {
            // The last returned event is complete: move to the next one of its run.
            match self.advance(slot, input, metadata) {
                Some(ticks) => {
                    if self.limit == i64::MIN {
                        self.limit = self.limit_of(order);
                    }
                    if ticks <= self.limit {
                        return true;
                    }
                    behind = Some((ticks, order, slot));
                }
                None => self.end(slot),
            }
            self.active = None;
        }
        self.next_run(behind)
    }

    /// Moves to the first event of another run than the active one, whose next event is `behind`.
    fn next_run(&mut self, behind: Option<Key>) -> bool {
        let first = match (self.heap.peek_mut(), behind) {
            (Some(mut top), Some(key)) if top.0 < key => std::mem::replace(&mut top.0, key),
            (Some(top), None) => top.0,
            (_, Some(key)) => key,
            (None, None) => {
                (self.draining, self.is_flush) = (false, false);
                return false;
            }
        };
        let (ticks, order, slot) = first;
        let certain = self.draining || Some(ticks) <= self.watermark;
        match behind {
            // The active run is in the heap, in the place of `first`, or is `first`.
            Some(_) if certain => {}
            Some(_) => self.heap.push(Reverse(first)),
            None if certain => drop(self.heap.pop()),
            None => {}
        }
        if certain {
            self.active = Some((slot, order));
            self.limit = self.limit_of(order);
        }
        certain
    }

    /// The last event of a run was returned.
    fn end(&mut self, slot: u32) {
        self.free.push(slot);
        if self.is_flush {
            let last = self.slots.get(slot as usize).map(|run| run.next.header.ticks);
            self.flushed = self.flushed.max(last);
        }
    }

    /// Decodes the next event of a run and returns its time.
    #[inline]
    fn advance(&mut self, slot: u32, input: &Input, metadata: &MetadataTable) -> Option<i64> {
        let run = self.slots.get_mut(slot as usize).filter(|run| run.position < run.end)?;
        let data = input.slice(run.position, run.end);
        let mut c = Cursor::with_base(data, run.position);
        if !decode_alike(&mut c, &mut run.next, run.layout) {
            // It was decoded once when the block arrived, so it does not fail here.
            let changes = decode(&mut c, &mut run.next, run.layout).ok()?;
            if changes.metadata {
                run.next.metadata = metadata.index(run.next.header.metadata_id);
            }
        }
        run.position = c.offset();
        Some(run.next.header.ticks)
    }

    /// The last time at which events of the run `order` precede those of all other runs and those
    /// that are still to come.
    fn limit_of(&self, order: u64) -> i64 {
        let others = match self.heap.peek() {
            // Of two events with the same time, the one of the earlier run is first.
            Some(Reverse((ticks, other, _))) => ticks.saturating_sub(i64::from(order > *other)),
            None => i64::MAX,
        };
        match self.watermark {
            _ if self.draining => others,
            Some(watermark) => others.min(watermark),
            None => i64::MIN,
        }
    }
}
