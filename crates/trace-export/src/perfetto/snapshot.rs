//! Clock snapshots.

use super::PerfettoSink;
use super::field::{TRACE_PACKET, clock, packet};
use super::sequence::SEQUENCE;
use std::io::{self, Write};
use trace_common::{ClockDomain, Timestamp};

/// `CLOCK_BOOTTIME` in `BuiltinClock`.
const BOOTTIME: u64 = 6;
/// The clock of the trace file in `BuiltinClock`.
const TRACE_FILE: u64 = 11;

/// The number of a clock in `BuiltinClock`.
pub(super) const fn clock_id(domain: ClockDomain) -> u64 {
    match domain {
        ClockDomain::Realtime => 1,
        ClockDomain::Monotonic => 3,
        ClockDomain::MonotonicRaw => 5,
        ClockDomain::Boottime => BOOTTIME,
        _ => TRACE_FILE,
    }
}

impl<W: Write> PerfettoSink<W> {
    pub(super) fn write_clocks(&mut self, readings: &[(ClockDomain, Timestamp)]) -> io::Result<()> {
        let own = |domain| readings.iter().find(|(d, _)| *d == domain).map(|(_, at)| *at);
        let Some(at) = own(self.domain) else {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "a clock snapshot lacks the clock of the timeline",
            ));
        };
        if let Some(boottime) = own(ClockDomain::Boottime) {
            self.to_boottime = Some(boottime.nanos_since(at));
        }
        self.prepare()?;
        let mut numbered = Vec::with_capacity(readings.len() + 1);
        for (domain, at) in readings {
            // Clocks that the format cannot name are omitted, and so is a second reading.
            let id = clock_id(*domain);
            let named = *domain == self.domain || id != clock_id(ClockDomain::Local(0));
            if named && numbered.iter().all(|(other, _)| *other != id) {
                numbered.push((id, self.nanos(*at)));
            }
        }
        let at = self.nanos(at);
        if at < self.last_snapshot {
            self.stats.snapshots_skipped += 1;
            return Ok(());
        }
        self.snapshot(at, &mut numbered, false);
        Ok(())
    }

    /// Writes readings that were taken at `at`, the reading of the sink's clock; with those of the
    /// delta clock if it starts.
    pub(super) fn snapshot(&mut self, at: u64, readings: &mut Vec<(u64, u64)>, starts: bool) {
        let own = clock_id(self.domain);
        self.last_snapshot = at;
        let has_boottime = readings.iter().any(|(id, _)| *id == BOOTTIME);
        // Readers relate the primary clock of the file to all others themselves.
        if !self.is_related && !has_boottime && own != TRACE_FILE {
            readings.push((BOOTTIME, at));
        }
        self.is_related = true;
        let out = &mut self.out;
        let message = out.open(TRACE_PACKET);
        // The time of the packet itself, on a clock that needs no snapshot.
        out.varint(packet::TIMESTAMP, at);
        out.varint(packet::TRUSTED_PACKET_SEQUENCE_ID, SEQUENCE);
        out.varint(packet::TIMESTAMP_CLOCK_ID, own);
        let snapshot = out.open(packet::CLOCK_SNAPSHOT);
        for (id, at) in &*readings {
            let reading = out.open(clock::CLOCKS);
            out.varint(clock::CLOCK_ID, *id);
            out.varint(clock::TIMESTAMP, *at);
            out.close(reading);
        }
        if starts {
            self.clock.write_start(at, out);
        }
        out.varint(clock::PRIMARY_TRACE_CLOCK, own);
        out.close(snapshot);
        out.close(message);
    }
}
