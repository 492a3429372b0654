//! The sink that writes Perfetto's trace format.

mod clock;
#[cfg(feature = "compress")]
mod compress;
mod descriptor;
mod event;
mod field;
mod interned;
mod sched;
mod sequence;
mod sink;
mod snapshot;

#[cfg(feature = "compress")]
pub use compress::Compressor;

use crate::intern::Interner;
use crate::model::TrackId;
use crate::proto::{Buffer, Packed};
use clock::DeltaClock;
use hashbrown::{HashMap, HashSet};
use interned::Written;
use sched::Bundle;
use std::io::{self, Write};
use trace_common::{ClockDomain, Timestamp};

/// Size at which the buffer is written out, in bytes.
const FLUSH_AT: usize = 256 << 10;

/// Writes a timeline as a [Perfetto](https://perfetto.dev) trace, for <https://ui.perfetto.dev>
/// and its trace processor.
///
/// The format is a sequence of packets: memory does not grow with the trace, a truncated file is
/// readable up to its end, and the output is deterministic. States are drawn as slices, which every
/// version of the viewer supports. Names and stacks are written once and referred to by number;
/// when the tables get too large, writer and reader reset them.
///
/// The format can express everything in [`Sink`](crate::Sink). Times before 0 are moved to 0 and counted. An end
/// without a begin and values of counters that are not finite are omitted and counted: see [`PerfettoStats`].
///
/// # Clocks
///
/// Perfetto orders events by `CLOCK_BOOTTIME` and reports an import error for a clock that no
/// snapshot relates to it. So the first snapshot of the file always has `CLOCK_BOOTTIME`: the
/// reading passed to [`Sink::clock_snapshot`](crate::Sink::clock_snapshot), if that was called with one before the first event,
/// as live recordings do. Without one, as when a recorded trace is converted, the sink assumes that
/// the machine was never suspended: `CLOCK_BOOTTIME` equals the timeline's clock. Times that the
/// viewer shows do not depend on it, because the timeline's clock is the primary clock of the file.
/// Scheduler events require the real offset and are an error without it.
#[derive(Debug)]
pub struct PerfettoSink<W> {
    writer: W,
    out: Buffer,
    domain: ClockDomain,
    names: Interner,
    /// The part of `names` that was written since the table was last reset.
    written: Written,
    clock: DeltaClock,
    /// The time of the last snapshot: readers reject snapshots that go back.
    last_snapshot: u64,
    /// Whether a snapshot relates `domain` to `CLOCK_BOOTTIME`.
    is_related: bool,
    tracks: Vec<TrackState>,
    by_tid: HashMap<(u32, Option<u32>), Named>,
    /// The processes of the process tree.
    tree: HashSet<u32>,
    losses: Option<TrackId>,
    flows: u64,
    cpus: Vec<Bundle>,
    /// The offset from a time to `CLOCK_BOOTTIME`.
    to_boottime: Option<i64>,
    stats: PerfettoStats,
}

/// Numbers of items that a [`PerfettoSink`] has written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PerfettoStats {
    /// Bytes, including unflushed ones.
    pub bytes: u64,
    /// Tracks.
    pub tracks: u64,
    /// Slices, including states.
    pub slices: u64,
    /// Instants.
    pub instants: u64,
    /// Values of counters.
    pub counters: u64,
    /// Samples.
    pub samples: u64,
    /// Switches and wake-ups of the kernel's scheduler.
    pub sched: u64,
    /// Marks of losses.
    pub losses: u64,
    /// Values of counters that are not finite, omitted.
    pub values_omitted: u64,
    /// Ends of slices that had not begun, omitted.
    pub unmatched_ends: u64,
    /// Times before 0, moved to 0.
    pub clamped_times: u64,
    /// Names and stacks that were used after they were evicted from the table.
    pub stale_ids: u64,
    /// Clock snapshots that were omitted because they were older than the previous one: Perfetto
    /// accepts ascending snapshots only.
    pub snapshots_skipped: u64,
}

/// The track of a process or thread, and its last name.
#[derive(Debug)]
struct Named {
    id: TrackId,
    name: Box<[u8]>,
}

#[derive(Clone, Copy, Debug)]
struct TrackState {
    uuid: Packed,
    /// Number of open slices, without a state.
    depth: u32,
    in_state: bool,
}

impl<W: Write> PerfettoSink<W> {
    /// Makes a sink that writes to `writer` in large pieces; all times are on the clock `domain`.
    ///
    /// A clock that belongs to the trace ([`ClockDomain::Local`], `CLOCK_TAI`) becomes the clock of
    /// the file.
    pub fn new(writer: W, domain: ClockDomain) -> Self {
        Self::with_limit(writer, domain, Interner::DEFAULT_LIMIT)
    }

    /// As [`PerfettoSink::new`], with a limit for the [tables of names](Interner::with_limit), in
    /// bytes.
    pub fn with_limit(writer: W, domain: ClockDomain, limit: usize) -> Self {
        Self {
            writer,
            out: Buffer::with_capacity(FLUSH_AT + (64 << 10)),
            domain,
            names: Interner::with_limit(limit),
            written: Written::default(),
            clock: DeltaClock::default(),
            last_snapshot: 0,
            is_related: false,
            tracks: Vec::new(),
            by_tid: HashMap::new(),
            tree: HashSet::new(),
            losses: None,
            flows: 0,
            cpus: Vec::new(),
            to_boottime: (domain == ClockDomain::Boottime).then_some(0),
            stats: PerfettoStats::default(),
        }
    }

    /// Sets the clock of the timeline. Call it before anything is written: it does not convert
    /// times that are already written.
    pub fn set_clock_domain(&mut self, domain: ClockDomain) {
        self.domain = domain;
        self.to_boottime = (domain == ClockDomain::Boottime).then_some(0);
    }

    /// Returns the numbers of written items so far.
    pub fn stats(&self) -> PerfettoStats {
        PerfettoStats { bytes: self.stats.bytes + self.out.len() as u64, ..self.stats }
    }

    /// Returns the writer. Call [`Sink::finish`](crate::Sink::finish) first.
    pub fn into_inner(self) -> W {
        self.writer
    }

    /// Writes out buffered data, so that a file that ends here contains everything up to now.
    ///
    /// Recorders call this about once a second, so that their output is usable even if they are
    /// killed.
    ///
    /// # Errors
    ///
    /// Errors of the writer.
    pub fn write_out(&mut self) -> io::Result<()> {
        for cpu in 0..self.cpus.len() {
            self.write_bundle(cpu)?;
        }
        self.flush()
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.write_all(self.out.as_slice())?;
        self.stats.bytes += self.out.len() as u64;
        self.out.clear();
        Ok(())
    }

    /// Converts a time to that of the format: never below 0.
    #[inline]
    fn nanos(&mut self, at: Timestamp) -> u64 {
        u64::try_from(at.nanos()).unwrap_or_else(|_| {
            self.stats.clamped_times += 1;
            0
        })
    }

    #[inline]
    fn track_state(&mut self, track: TrackId) -> io::Result<&mut TrackState> {
        self.tracks
            .get_mut(track.index())
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "the track is unknown"))
    }
}
