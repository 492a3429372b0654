//! Tracks that are reused after their content has ended.

use crate::intern::TextId;
use crate::model::{DebugAnnotation, Sink, Track, TrackEvent, TrackId};
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
    inner: Option<TrackId>,
    pub(crate) nest: Nest,
}

impl Lanes {
    pub(crate) const fn new(group: TrackId) -> Self {
        Self { group, lanes: Vec::new(), free: BinaryHeap::new() }
    }

    /// Returns the first free lane, or a new one if none is free.
    pub(crate) fn acquire(&mut self, sink: &mut impl Sink) -> io::Result<u32> {
        match self.free.pop() {
            Some(Reverse(lane)) => Ok(lane),
            None => self.add(sink),
        }
    }

    /// Adds a new, empty lane.
    pub(crate) fn add(&mut self, sink: &mut impl Sink) -> io::Result<u32> {
        let index = self.lanes.len() as u32;
        let name = format!("#{}", index + 1);
        let track = Track::custom(name.as_bytes()).child_of(self.group).rank(index as i32 + 1);
        let track = sink.track(&track)?;
        self.lanes.push(Lane { track, inner: None, nest: Nest::default() });
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

    /// Ends the open slices of the track below.
    pub(crate) fn end_inner(&mut self, at: Timestamp, sink: &mut impl Sink) -> io::Result<()> {
        match self.inner {
            Some(track) => self.nest.end_all(at, track, sink),
            None => Ok(()),
        }
    }
}

/// Slices of one track that may end in any order.
///
/// In traces of real programs they nest. Where they do not, a slice inside the one that ends is
/// split in two there.
#[derive(Debug, Default)]
pub(crate) struct Nest {
    open: Vec<(Key, TextId)>,
}

/// The kind of a slice. Of several open slices of the same kind, the innermost one ends first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Key {
    Region,
    MarkAssist,
    Mark,
    StopTheWorld(i64),
    Sweep,
    /// A slice of a .NET thread, identified by its kind and number.
    Dotnet(&'static str, u64),
}

impl Nest {
    pub(crate) fn is_open(&self, key: Key) -> bool {
        self.open.iter().any(|(k, _)| *k == key)
    }

    pub(crate) fn begin(
        &mut self,
        key: Key,
        name: TextId,
        at: Timestamp,
        on: TrackId,
        entry: &TrackEvent<'_>,
        sink: &mut impl Sink,
    ) -> io::Result<()> {
        self.open.push((key, name));
        sink.begin(at, on, entry)
    }

    /// Ends the innermost slice of `key`; `false` if none is open.
    pub(crate) fn end(
        &mut self,
        key: Key,
        at: Timestamp,
        on: TrackId,
        args: &[DebugAnnotation<'_>],
        sink: &mut impl Sink,
    ) -> io::Result<bool> {
        let Some(index) = self.open.iter().rposition(|(k, _)| *k == key) else { return Ok(false) };
        for _ in index + 1..self.open.len() {
            sink.end(at, on, &[])?;
        }
        sink.end(at, on, args)?;
        self.open.remove(index);
        for (_, name) in &self.open[index..] {
            sink.begin(at, on, &TrackEvent::new(*name))?;
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
