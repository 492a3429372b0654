//! Changes of the machine that a dump must say: the wall clock is set, the machine sleeps, CPUs come and
//! go.

use crate::failure::{Failure, Result};
use crate::timeline::{now, read_clock};
use std::io;
use trace_common::ClockDomain;
use trace_flight::{ClockCause, ClockChange, Clocks, CpuGap, Reading, Timestamp};

pub(super) struct Machine {
    clocks: Clocks,
    gaps: Vec<CpuGap>,
    /// The last look at the CPUs.
    looked: Timestamp,
}

impl Machine {
    pub(super) fn start() -> Result<Self> {
        let (_, first) = read().map_err(Failure::new)?;
        Ok(Self { clocks: Clocks::new(first), gaps: Vec::new(), looked: first.monotonic })
    }

    /// Looks at the clocks.
    pub(super) fn look(&mut self) -> Result {
        /// A longer reading is a wrong one: the next round has another.
        const LONGEST: i64 = 2_000_000;
        let (took, reading) = read().map_err(Failure::new)?;
        if took > LONGEST {
            return Ok(());
        }
        for ClockChange { cause, by_nanos: by, .. } in self.clocks.look(reading) {
            let seconds = by as f64 / 1e9;
            match cause {
                ClockCause::Suspended => {
                    message!("triscope: the machine was suspended for {seconds:.1} s");
                }
                _ => message!("triscope: the wall clock was set by {seconds:+.1} s"),
            }
        }
        Ok(())
    }

    /// Notes CPUs that went offline or came online since the last look.
    pub(super) fn cpus(&mut self, gone: &[u32], opened: &[u32]) -> Result {
        let at = now().map_err(Failure::new)?;
        let before = std::mem::replace(&mut self.looked, at);
        CpuGap::add(&mut self.gaps, (before, at), gone, opened);
        for cpu in opened {
            message!("triscope: CPU {cpu} came online, and is recorded");
        }
        for cpu in gone.iter().filter(|cpu| !opened.contains(cpu)) {
            message!("triscope: CPU {cpu} went offline");
        }
        Ok(())
    }

    /// Notes that the events were opened on all CPUs that are online.
    pub(super) fn reopened(&mut self) -> Result {
        let online = perf_monitor::online_cpus();
        let is_back = |gap: &&CpuGap| gap.end.is_none() && online.contains(&gap.cpu);
        let back: Vec<u32> = self.gaps.iter().filter(is_back).map(|gap| gap.cpu).collect();
        self.cpus(&[], &back)
    }

    /// Forgets what was before the first segment.
    pub(super) fn forget(&mut self, before: Timestamp) {
        self.clocks.forget(before);
        CpuGap::forget(&mut self.gaps, before);
    }

    pub(super) fn clock_changes(&self) -> Vec<ClockChange> {
        self.clocks.since(Timestamp::MIN).copied().collect()
    }

    /// `CLOCK_REALTIME` less `CLOCK_MONOTONIC`, after these changes.
    pub(super) const fn wall_clock_offset_nanos(&self) -> i64 {
        self.clocks.wall_clock_offset_nanos()
    }

    pub(super) fn cpu_gaps(&self) -> Vec<CpuGap> {
        self.gaps.clone()
    }
}

/// Reads the clocks within a short time, if the machine permits it. Returns the nanoseconds that it took,
/// too.
fn read() -> io::Result<(i64, Reading)> {
    const TRIES: usize = 8;
    const SHORT: i64 = 100_000;
    let once = || -> io::Result<(i64, Reading)> {
        let monotonic = now()?;
        let realtime = read_clock(ClockDomain::Realtime)?;
        let boottime = read_clock(ClockDomain::Boottime)?;
        Ok((now()?.nanos_since(monotonic), Reading { monotonic, realtime, boottime }))
    };
    let mut best = once()?;
    for _ in 1..TRIES {
        if best.0 < SHORT {
            break;
        }
        let next = once()?;
        if next.0 < best.0 {
            best = next;
        }
    }
    Ok(best)
}
