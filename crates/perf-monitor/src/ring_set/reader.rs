//! The reading side of a set: rounds over all rings, and their records in time order.
//!
//! The rings are merged in place: a [`Tournament`] finds the ring with the earliest record, which
//! passes on all that it has before the first of the other rings.

mod chunks;

pub use chunks::SetChunk;

use super::Lane;
use super::source::{Index, Run, SetRing};
use super::table::{Published, Retiring, RingNumber, SetEvent, Shared, Table};
use crate::clock;
use crate::record::{RawRecord, RecordLayout};
use crate::ring::RingStats;
use std::collections::BTreeSet;
use std::sync::Arc;
use trace_common::{ClockDomain, Lateness, Timestamp, Tournament};

/// A record of a [`RingSet`](super::RingSet), undecoded.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct SetRecord<'a> {
    /// Its event.
    pub event: SetEvent,
    /// The CPU that it was written on.
    pub cpu: u32,
    /// Its time.
    pub time: Timestamp,
    /// Whether a later record was passed on before.
    pub late: bool,
    /// Its layout.
    pub layout: &'a RecordLayout,
    /// The record.
    pub raw: RawRecord<'a>,
    /// Place of the event among those of the set.
    pub(crate) place: u32,
}

/// What a set passes its records on to.
pub(crate) trait Visitor<E> {
    fn record(&mut self, record: SetRecord<'_>) -> Result<(), E>;

    /// An [external](Reader::push_external) event.
    fn external(&mut self, _token: u64, _time: Timestamp, _late: bool) -> Result<(), E> {
        Ok(())
    }
}

impl<E, F: FnMut(SetRecord<'_>) -> Result<(), E>> Visitor<E> for F {
    #[inline]
    fn record(&mut self, record: SetRecord<'_>) -> Result<(), E> {
        self(record)
    }
}

/// Records in a row from one ring after which it is expected to lead for longer.
const GALLOP: u32 = 3;

/// Bytes of all windows together: they stay in a second-level cache.
const WINDOWS: usize = 512 << 10;

/// Bytes of half a window.
const HALF_WINDOW: std::ops::RangeInclusive<usize> = 2 << 10..=16 << 10;

/// Bytes that were moved out of the rings. With more, neither slack nor clock hold records back.
const MAX_HELD: usize = 64 << 20;

/// Statistics of a [`RingSet`](super::RingSet).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SetStats {
    /// The sums of all rings, also of those of CPUs that went offline.
    pub rings: RingStats,
    /// The part of the losses of `rings` in those of
    /// [`RingSetBuilder::sideband_ring`](super::RingSetBuilder::sideband_ring): more
    /// [`pages`](super::RingSetBuilder::pages) do not avoid them.
    pub sideband_lost: u64,
    /// Records that were passed on after a later one.
    pub late: u64,
    /// Maximum lateness, in nanoseconds.
    pub latest_by_nanos: i64,
    /// Records with an earlier time than one before in the same ring. They are sorted in, and only
    /// late if that one was passed on: 2 to 16 KiB of a ring are sorted at a time.
    pub inversions: u64,
    /// Records without a time: they are shorter than their layout. They are skipped.
    pub undecodable: u64,
    /// Rounds in which the records that waited outside of the rings reached a limit, and were passed on
    /// without slack, whatever the time.
    pub waived_slack: u64,
}

impl SetStats {
    fn add(&mut self, lane: Lane, ring: RingStats) {
        self.rings.add(ring);
        if lane == Lane::Sideband {
            self.sideband_lost = self.sideband_lost.saturating_add(ring.lost);
        }
    }
}

/// See [`RingSet`](super::RingSet).
#[derive(Debug)]
pub(crate) struct Reader {
    shared: Arc<Shared>,
    version: u64,
    table: Arc<Table>,
    /// By source of the tournament.
    rings: Vec<Option<SetRing>>,
    tournament: Tournament,
    /// External events that wait. They come before records of the same time.
    externals: BTreeSet<(Timestamp, u64)>,
    lateness: Lateness,
    clock: ClockDomain,
    slack: i64,
    /// Start of the previous round.
    previous: Option<Timestamp>,
    /// Removed events, with the time until which records of them can exist. It is `None` until a
    /// round began after their removal.
    retiring: Vec<(Retiring, Option<Timestamp>)>,
    /// Events that were removed, and of which no record is left, with their places.
    forgotten: Vec<(SetEvent, u32)>,
    is_empty: bool,
    /// Statistics except those of the rings that are open.
    stats: SetStats,
}

impl Reader {
    pub(crate) fn new(shared: Arc<Shared>, clock: ClockDomain, slack_nanos: i64) -> Self {
        Self {
            shared,
            version: 0,
            table: Arc::default(),
            rings: Vec::new(),
            tournament: Tournament::new(1),
            externals: BTreeSet::new(),
            lateness: Lateness::default(),
            clock,
            slack: slack_nanos,
            previous: None,
            retiring: Vec::new(),
            forgotten: Vec::new(),
            is_empty: true,
            stats: SetStats::default(),
        }
    }

    /// A reader without rings.
    #[cfg(test)]
    pub(crate) fn idle() -> Self {
        Self::new(Arc::default(), ClockDomain::Monotonic, 0)
    }

    pub(crate) const fn set_slack(&mut self, nanos: i64) {
        self.slack = nanos;
    }

    /// Takes over changes by registration.
    #[inline]
    fn synchronize(&mut self) {
        let version = self.shared.version();
        if version != self.version {
            self.version = version;
            self.take_over();
        }
    }

    #[cold]
    fn take_over(&mut self) {
        let shared = Arc::clone(&self.shared);
        let mut published = shared.lock();
        let Published { table, new_rings, ended_rings, retiring } = &mut *published;
        self.table = Arc::clone(table);
        self.retiring.extend(retiring.drain(..).map(|retiring| (retiring, None)));
        for new in new_rings.drain(..) {
            let mut free = self.rings.iter().enumerate();
            let source = match free.find(|(_, ring)| ring.is_none()) {
                Some((source, _)) => source,
                None => {
                    self.rings.push(None);
                    self.rings.len() - 1
                }
            };
            if let Some(place) = self.rings.get_mut(source) {
                *place = Some(SetRing::new(new));
            }
        }
        self.tournament.grow(self.rings.len());
        for ended in ended_rings.drain(..) {
            if let Some(ring) = self.rings.iter_mut().flatten().find(|r| r.number == ended.number) {
                ring.ended = Some(ended);
            }
        }
    }

    fn now(&self) -> Timestamp {
        clock::event_now(self.clock).unwrap_or(Timestamp::MAX)
    }

    /// Passes on the records that no record of the next round can precede.
    pub(crate) fn round<E>(&mut self, f: &mut impl Visitor<E>) -> Result<usize, E> {
        let start = self.now();
        let had_new = self.rings.iter_mut().flatten().fold(false, |any, r| r.start_round() | any);
        self.look();
        let end = self.now();
        self.set_end_of_retiring(end);
        // Records of the time before the previous round were in the rings at its start or before.
        // If one was committed late, it is probably there by now: hence nothing newer than what the
        // previous round found. The slack is for those that come even later.
        let limit = self.previous.replace(start).unwrap_or(Timestamp::MIN);
        let with_slack = limit.min(end.saturating_add_nanos(-self.slack));
        let mut held = 0;
        for ring in self.rings.iter_mut().flatten() {
            // A ring that fills up gets room before anything is passed on.
            ring.relieve(2, 4);
            held += ring.held();
        }
        if held <= MAX_HELD {
            return self.release(with_slack, had_new, f);
        }
        self.stats.waived_slack += 1;
        // All that the previous round found: the clock can have been set back, so that it says nothing.
        self.release(Timestamp::MAX, true, f)
    }

    /// Adds an event from outside of the kernel, which is passed on at its time.
    pub(crate) fn push_external(&mut self, time: Timestamp, token: u64) {
        self.externals.insert((time, token));
        self.is_empty = false;
    }

    /// Passes on everything. The events are disabled.
    pub(crate) fn drain<E>(&mut self, f: &mut impl Visitor<E>) -> Result<usize, E> {
        self.look();
        let end = self.now();
        self.set_end_of_retiring(end);
        self.release(Timestamp::MAX, false, f)
    }

    /// Forgets removed events of which no record is left, while nothing is read.
    pub(crate) fn settle(&mut self) {
        self.synchronize();
        // External events that wait are of no ring.
        let has_records = |ring: &SetRing| !ring.is_empty() || ring.buffer.available() > 0;
        if !self.rings.iter().flatten().any(has_records) {
            let now = self.now();
            self.set_end_of_retiring(now);
            self.forget_ended(Timestamp::MAX);
        }
    }

    /// Records of removed events are not later than this.
    fn set_end_of_retiring(&mut self, end: Timestamp) {
        for (_, until) in self.retiring.iter_mut().filter(|(_, until)| until.is_none()) {
            *until = Some(end);
        }
    }

    /// Events that were forgotten, and their places, which others can have by now.
    pub(crate) fn take_forgotten(&mut self) -> std::vec::Drain<'_, (SetEvent, u32)> {
        self.forgotten.drain(..)
    }

    /// Takes note of the bytes in each ring: what is written meanwhile is left for the next round,
    /// as a flood of one ring must not hold up the others. Afterwards the events of all of them are
    /// known: an event is published before it is enabled, so that the table is taken over after the
    /// bytes were counted.
    fn look(&mut self) {
        loop {
            self.rings.iter_mut().flatten().for_each(SetRing::look);
            let before = self.version;
            self.synchronize();
            if self.version == before {
                break;
            }
        }
    }

    /// Passes on what is not later than `limit`; with `only_old`, nor later than all records that
    /// were there at the start of the previous round.
    fn release<E>(
        &mut self,
        mut limit: Timestamp,
        only_old: bool,
        f: &mut impl Visitor<E>,
    ) -> Result<usize, E> {
        // Records can wait after a panic of `f`.
        self.is_empty = false;
        let Self { tournament, rings, table, stats, lateness, externals, .. } = self;
        let count_of_rings = rings.iter().flatten().count().max(1);
        let half = (WINDOWS / 2 / count_of_rings).clamp(*HALF_WINDOW.start(), *HALF_WINDOW.end());
        let mut index = Index { table, stats, half };
        let mut old = 0u64;
        for (source, ring) in rings.iter_mut().enumerate() {
            let first = ring.as_mut().and_then(|ring| {
                ring.refill(&mut index);
                old += u64::from(ring.has_old());
                ring.ready().first().map(|entry| entry.time)
            });
            tournament.set(source, first);
        }
        if only_old && old == 0 {
            limit = limit.min(lateness.released());
        }
        let mut external = externals.first().copied();
        let (mut count, mut last, mut wins) = (0, usize::MAX, 0u32);
        let mut result = Ok(());
        loop {
            let first = tournament.first();
            let before = first.map_or(limit, |(_, time)| time.min(limit));
            if let Some(item) = external.filter(|(time, _)| *time <= before) {
                let (time, token) = item;
                externals.remove(&item);
                external = externals.first().copied();
                result = f.external(token, time, lateness.release(time));
                if result.is_err() {
                    break;
                }
                continue;
            }
            let Some((source, first)) = first.filter(|(_, first)| *first <= limit) else { break };
            let Some(ring) = rings.get_mut(source).and_then(Option::as_mut) else { break };
            // A source that was first several times is expected to lead for longer.
            wins = if source == last { wins + 1 } else { 0 };
            last = source;
            let until = if wins < GALLOP {
                first
            } else {
                let external = external.map_or(Timestamp::MAX, |(time, _)| time);
                let until = limit.min(external.saturating_add_nanos(-1));
                until.min(tournament.leads_until(source)).max(first)
            };
            let mut run = Run { ring, passed: 0 };
            for entry in run.ring.ready() {
                if entry.time > until {
                    break;
                }
                run.passed += 1;
                let late = lateness.release(entry.time);
                let record = run.ring.record(*entry);
                let (Some(raw), Some(slot)) = (record, table.at(entry.place)) else {
                    continue; // never so: both stay while a record waits
                };
                slot.deliver(raw);
                result = f.record(SetRecord {
                    event: slot.event,
                    cpu: run.ring.cpu,
                    time: entry.time,
                    late,
                    layout: &slot.layout,
                    raw,
                    place: slot.place,
                });
                if result.is_err() {
                    break;
                }
            }
            let passed = std::mem::take(&mut run.passed);
            count += passed;
            if run.ring.advance(passed, &mut index) {
                old -= 1;
                if only_old && old == 0 {
                    limit = limit.min(lateness.released());
                }
            }
            tournament.set(source, run.ring.ready().first().map(|entry| entry.time));
            if result.is_err() {
                break;
            }
        }
        stats.late = lateness.late();
        stats.latest_by_nanos = lateness.latest_by_nanos();
        self.is_empty = tournament.first().is_none() && external.is_none();
        for ring in rings.iter_mut().flatten() {
            // Nor does it wait for the next round so full.
            ring.relieve(4, 4);
        }
        if result.is_ok() {
            self.forget_ended(limit);
        }
        result.map(|()| count)
    }

    /// Forgets events and rings of which no records are left.
    fn forget_ended(&mut self, limit: Timestamp) {
        let is_empty = self.is_empty;
        if !self.retiring.is_empty() {
            let Self { shared, forgotten, .. } = self;
            self.retiring.retain(|(retiring, until)| {
                let is_over = until.is_some_and(|until| is_empty || until < limit);
                if is_over {
                    shared.forget(retiring);
                    forgotten.extend(retiring.removed);
                }
                !is_over
            });
        }
        for place in &mut self.rings {
            let is_over = place.as_ref().is_some_and(|ring| {
                ring.ended.is_some() && ring.buffer.available() == 0 && ring.is_empty()
            });
            if let Some(mut ring) = place.take_if(|_| is_over) {
                // All losses that a record reports were read.
                ring.set_kernel_losses(ring.ended.and_then(|ended| ended.lost));
                self.stats.add(ring.lane, ring.buffer.stats());
            }
        }
    }

    /// Whether records wait for their turn.
    pub(crate) const fn is_empty(&self) -> bool {
        self.is_empty
    }

    pub(crate) fn stats(&self) -> SetStats {
        let mut stats = self.stats;
        for ring in self.rings.iter().flatten() {
            stats.add(ring.lane, ring.buffer.stats());
        }
        stats
    }

    pub(crate) fn rings(&self) -> impl Iterator<Item = (u32, RingStats)> + '_ {
        self.rings.iter().flatten().map(|ring| (ring.cpu, ring.buffer.stats()))
    }

    /// Sets what the kernel counted as lost for each open ring, if it counts that.
    pub(crate) fn set_kernel_losses(&mut self, lost: impl Fn(RingNumber) -> Option<u64>) {
        for ring in self.rings.iter_mut().flatten() {
            ring.set_kernel_losses(match ring.ended {
                Some(ended) => ended.lost,
                None => lost(ring.number),
            });
        }
    }

    /// Passes on what the rings contain now, each ring for itself.
    pub(crate) fn read_unordered<E>(
        &mut self,
        mut f: impl FnMut(SetRecord<'_>) -> Result<(), E>,
    ) -> Result<usize, E> {
        let mut count = self.release(Timestamp::MAX, false, &mut f)?;
        self.look();
        let Self { rings, table, stats, .. } = self;
        for ring in rings.iter_mut().flatten() {
            count += ring.read_unordered(table, stats, &mut f)?;
        }
        let now = self.now();
        self.set_end_of_retiring(now);
        self.forget_ended(Timestamp::MAX);
        Ok(count)
    }
}
