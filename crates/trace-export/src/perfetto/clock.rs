//! The incremental clock of the packets: their times are relative to the packet before.

use super::field::{clock, packet};
use crate::proto::Buffer;

/// A clock of the sequence in units of [`TICK`], which most Go traces have: a time takes a byte
/// less.
const COARSE: u64 = 64;
/// One in nanoseconds.
const FINE: u64 = 65;
/// The unit of times in Go traces (`traceTimeDiv` of the runtime), in nanoseconds.
const TICK: u64 = 64;

/// A time relative to the last packet on the same clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Delta {
    pub(super) value: u64,
    /// Whether it is on the fine clock, where packets are on the coarse one: the packet says so.
    pub(super) is_exception: bool,
}

/// The clocks of the packets. They are on the coarse one, with few exceptions: Go's readers move
/// events of the same time apart by a nanosecond. Where there are many, all are on the fine one from
/// then on.
#[derive(Debug)]
pub(super) struct DeltaClock {
    /// The time of the last packet on the clock that packets are on, in nanoseconds; `None` before the
    /// first one.
    last: Option<u64>,
    /// That of the fine clock.
    last_fine: u64,
    /// The unit as a number of bits, and the bits that are 0 in each of its multiples.
    shift: u32,
    rest: u64,
    /// Packets since the last exception, and exceptions that are allowed, in packets.
    since: u64,
    credit: u64,
}

/// Packets that an exception must save: naming the clock takes three bytes, and the time more.
const COST: u64 = 6;
/// Exceptions in a row.
const MOST: u64 = 64;

impl Default for DeltaClock {
    fn default() -> Self {
        let (shift, rest) = (TICK.ilog2(), TICK - 1);
        Self { last: None, last_fine: 0, shift, rest, since: 0, credit: COST * MOST }
    }
}

impl DeltaClock {
    pub(super) const fn last(&self) -> Option<u64> {
        self.last
    }

    const fn is_coarse(&self) -> bool {
        self.rest != 0
    }

    /// Starts at this time, the first one or again. Returns whether it must be refined for it.
    pub(super) fn start(&mut self, at: u64) -> bool {
        let before = self.last.replace(at).unwrap_or(at);
        self.last_fine = at;
        at.wrapping_sub(before) & self.rest != 0
    }

    /// Uses the fine clock from now on.
    pub(super) fn refine(&mut self) {
        (self.shift, self.rest) = (0, 0);
        self.last = Some(self.last_fine);
    }

    /// The time of the next packet; `None` if the clock must be refined before.
    #[inline]
    pub(super) fn delta(&mut self, at: u64) -> Option<Delta> {
        let delta = at.wrapping_sub(self.last.unwrap_or_default());
        if delta & self.rest != 0 {
            return self.exception(at);
        }
        self.last = Some(at);
        self.since += 1;
        Some(Delta { value: (delta as i64 >> self.shift) as u64, is_exception: false })
    }

    /// The next packet has the same time as the one before, which was no exception.
    #[inline]
    pub(super) fn repeat(&mut self) {
        self.since += 1;
    }

    #[cold]
    fn exception(&mut self, at: u64) -> Option<Delta> {
        let credit = (self.credit + std::mem::take(&mut self.since)).min(COST * MOST);
        self.credit = credit.checked_sub(COST)?;
        let value = at.wrapping_sub(std::mem::replace(&mut self.last_fine, at));
        Some(Delta { value, is_exception: true })
    }

    /// Names the fine clock in a packet.
    #[cold]
    pub(super) fn write_exception(out: &mut Buffer) {
        out.varint(packet::TIMESTAMP_CLOCK_ID, FINE);
    }

    /// Writes the field of a packet that names the clock of the packets after it.
    pub(super) fn write_default(&self, out: &mut Buffer) {
        let defaults = out.open(packet::TRACE_PACKET_DEFAULTS);
        out.varint(packet::TIMESTAMP_CLOCK_ID, if self.is_coarse() { COARSE } else { FINE });
        out.close(defaults);
    }

    /// Writes the readings at `at` of the clocks that may be used, within a snapshot. Those of the
    /// coarse clock are all too small by the same part of a unit.
    pub(super) fn write_start(&self, at: u64, out: &mut Buffer) {
        let clocks = [(COARSE, TICK), (FINE, 1)];
        for (id, unit) in clocks.into_iter().filter(|(id, _)| *id == FINE || self.is_coarse()) {
            let reading = out.open(clock::CLOCKS);
            out.varint(clock::CLOCK_ID, id);
            out.varint(clock::TIMESTAMP, at / unit);
            out.varint(clock::IS_INCREMENTAL, 1);
            if unit != 1 {
                out.varint(clock::UNIT_MULTIPLIER_NS, unit);
            }
            out.close(reading);
        }
    }
}
