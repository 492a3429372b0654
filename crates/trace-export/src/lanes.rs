//! Tracks that are reused after their content has ended.

use crate::intern::TextId;
use crate::model::{Category, DebugAnnotation, Sink, Track, TrackEvent, TrackId};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use trace_common::Timestamp;

/// Tracks of short-lived items: as many as the maximum number of simultaneous items.
#[derive(Debug)]
pub(crate) struct Lanes {
    /// The parent group of the lanes.
    pub(crate) group: TrackId,
    pub(crate) lanes: Vec<Lane>,
    free: BinaryHeap<Reverse<u32>>,
}

/// A track, and one below it for slices that do not nest with the states of the first.
#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) track: TrackId,
    pub(crate) inner: Option<TrackId>,
}

impl Lanes {
    pub(crate) const fn new(group: TrackId) -> Self {
        Self { group, lanes: Vec::new(), free: BinaryHeap::new() }
    }

    /// Lanes of items that seldom overlap: the first one is the group itself.
    pub(crate) fn on(group: TrackId) -> Self {
        let first = Lane { track: group, inner: None };
        Self { group, lanes: vec![first], free: BinaryHeap::from([Reverse(0)]) }
    }

    /// Returns the first free lane, or a new one if none is free.
    pub(crate) fn acquire(&mut self, sink: &mut impl Sink) -> io::Result<u32> {
        match self.free.pop() {
            Some(Reverse(lane)) => Ok(lane),
            None => self.add(sink),
        }
    }

    /// As [`Lanes::acquire`]; `None` if as many as this are in use.
    pub(crate) fn acquire_below(
        &mut self,
        limit: usize,
        sink: &mut impl Sink,
    ) -> io::Result<Option<u32>> {
        if self.free.is_empty() && self.lanes.len() >= limit {
            return Ok(None);
        }
        self.acquire(sink).map(Some)
    }

    /// Adds a new, empty lane.
    pub(crate) fn add(&mut self, sink: &mut impl Sink) -> io::Result<u32> {
        let index = self.lanes.len() as u32;
        let name = format!("#{}", index + 1);
        let track = Track::custom(name.as_bytes()).child_of(self.group).rank(index as i32 + 1);
        let track = sink.track(&track)?;
        self.lanes.push(Lane { track, inner: None });
        Ok(index)
    }

    pub(crate) fn release(&mut self, lane: u32) {
        self.free.push(Reverse(lane));
    }
}

impl Lane {
    /// Returns the track below, which has the name `name`.
    pub(crate) fn inner(&mut self, name: &[u8], sink: &mut impl Sink) -> io::Result<TrackId> {
        if let Some(track) = self.inner {
            return Ok(track);
        }
        let track = sink.track(&Track::custom(name).child_of(self.track))?;
        Ok(*self.inner.insert(track))
    }
}

/// Slices of one track that may end in any order.
///
/// In traces of real programs they nest. Where they do not, a slice inside the one that ends is
/// split in two there.
#[derive(Debug)]
pub(crate) struct Nest<K> {
    open: Vec<Open<K>>,
}

/// Maximum number of open slices: the end of one can split all of them.
const MAX_OPEN: usize = 256;

/// An open slice.
#[derive(Debug)]
struct Open<K> {
    key: K,
    name: TextId,
    category: Option<Category>,
}

impl<K> Default for Nest<K> {
    fn default() -> Self {
        Self { open: Vec::new() }
    }
}

impl<K: PartialEq> Nest<K> {
    /// Begins a slice; `false` if too many are open.
    pub(crate) fn begin(
        &mut self,
        key: K,
        name: TextId,
        at: Timestamp,
        on: TrackId,
        entry: &TrackEvent<'_>,
        sink: &mut impl Sink,
    ) -> io::Result<bool> {
        if self.open.len() >= MAX_OPEN {
            return Ok(false);
        }
        self.open.push(Open { key, name, category: entry.category });
        sink.begin(at, on, entry)?;
        Ok(true)
    }

    /// Ends the innermost slice of `key`; `false` if none is open.
    #[expect(
        clippy::indexing_slicing,
        reason = "an entry was removed at this index, so that it is not beyond the end"
    )]
    pub(crate) fn end(
        &mut self,
        key: K,
        at: Timestamp,
        on: TrackId,
        args: &[DebugAnnotation<'_>],
        sink: &mut impl Sink,
    ) -> io::Result<bool> {
        let Some(index) = self.open.iter().rposition(|open| open.key == key) else {
            return Ok(false);
        };
        for _ in index + 1..self.open.len() {
            sink.end(at, on, &[])?;
        }
        sink.end(at, on, args)?;
        self.open.remove(index);
        for open in &self.open[index..] {
            let entry = TrackEvent { category: open.category, ..TrackEvent::new(open.name) };
            sink.begin(at, on, &entry)?;
        }
        Ok(true)
    }

    pub(crate) fn end_all(
        &mut self,
        at: Timestamp,
        on: TrackId,
        sink: &mut impl Sink,
    ) -> io::Result<()> {
        while self.open.pop().is_some() {
            sink.end(at, on, &[])?;
        }
        Ok(())
    }
}
