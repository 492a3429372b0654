//! The CPU quota of a cgroup: `cpu.stat`, read now and then.
//!
//! A thread whose cgroup has used up its quota is runnable, and no record of the scheduler says why
//! it gets no CPU. The counters of the cgroup do: see *CPU Interface Files* in the kernel's
//! `Documentation/admin-guide/cgroup-v2.rst` and `Documentation/scheduler/sched-bwc.rst`.
//!
//! ```
//! use trace_timeline::sources::cgroup::CgroupSource;
//! use trace_timeline::{EventKind, Tables, Timestamp};
//!
//! let (mut tables, mut events) = (Tables::new(), Vec::new());
//! let mut source = CgroupSource::new(4321); // a process of the cgroup
//! let read = |periods, usec| format!("nr_throttled {periods}\nthrottled_usec {usec}\n");
//! let at = Timestamp::from_nanos;
//! source.push(at(1_000_000), read(0, 0).as_bytes(), &mut tables, &mut events);
//! source.push(at(9_000_000), read(1, 5000).as_bytes(), &mut tables, &mut events);
//! let found = events.iter().find_map(|event| match event.kind {
//!     EventKind::Throttle { nanos, periods, .. } => Some((nanos, periods)),
//!     _ => None,
//! });
//! assert_eq!(found, Some((5_000_000, 1)));
//! ```

use super::pusher::Pusher;
use crate::entity::{Entity, EntityId};
use crate::event::{Event, EventKind};
use crate::tables::{Tables, TextId};
use trace_common::Timestamp;

/// The throttling counters of a `cpu.stat` file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CpuStat {
    /// Periods in which the cgroup was throttled: `nr_throttled`.
    pub periods: u64,
    /// Nanoseconds of throttling, summed over CPUs: `throttled_usec` of cgroup v2,
    /// `throttled_time` of v1. The kernel adds to it when a throttling ends.
    pub nanos: u64,
}

impl CpuStat {
    /// Makes one: throttled periods, and nanoseconds of throttling.
    pub const fn new(periods: u64, nanos: u64) -> Self {
        Self { periods, nanos }
    }

    /// Reads the text of a `cpu.stat` file of cgroup v1 or v2. `None` without these counters: the
    /// cgroup has no CPU controller.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let (mut periods, mut nanos) = (None, None);
        for line in text.split(|byte| *byte == b'\n') {
            let Some(space) = line.iter().position(|byte| *byte == b' ') else { continue };
            let (name, value) = line.split_at(space);
            let value = std::str::from_utf8(value).ok().and_then(|v| v.trim().parse::<u64>().ok());
            match name {
                b"nr_throttled" => periods = value,
                b"throttled_time" => nanos = value,
                b"throttled_usec" => nanos = value.map(|usec| usec.saturating_mul(1000)),
                _ => {}
            }
        }
        Some(Self { periods: periods?, nanos: nanos? })
    }
}

/// Makes model events of readings of `cpu.stat`: see the [module](self).
#[derive(Debug)]
pub struct CgroupSource {
    pid: u32,
    cgroup: TextId,
    process: Option<EntityId>,
    last: Option<(Timestamp, CpuStat)>,
    throttled: CpuStat,
    unreadable: u64,
}

impl CgroupSource {
    /// Makes a source for the cgroup of a process. The process id is that of the kernel's records.
    pub const fn new(pid: u32) -> Self {
        let throttled = CpuStat::new(0, 0);
        let cgroup = TextId::EMPTY;
        Self { pid, cgroup, process: None, last: None, throttled, unreadable: 0 }
    }

    /// Sets the directory of the cgroup whose counters are read. A process has a source for each of the
    /// cgroups that contain it: their readings differ by this.
    #[must_use]
    pub const fn named(self, cgroup: TextId) -> Self {
        Self { cgroup, ..self }
    }

    /// The throttling since the first reading.
    pub const fn throttled(&self) -> CpuStat {
        self.throttled
    }

    /// Number of readings without the counters.
    pub const fn unreadable(&self) -> u64 {
        self.unreadable
    }

    /// Appends the model events of the next reading: the text of `cpu.stat`, and when it was read.
    /// The first reading is the origin.
    pub fn push(&mut self, at: Timestamp, text: &[u8], tables: &mut Tables, out: &mut Vec<Event>) {
        match CpuStat::parse(text) {
            Some(stat) => self.push_stat(at, stat, tables, out),
            None => self.unreadable += 1,
        }
    }

    /// Appends the model events of the next reading, as [`push`](Self::push) does.
    pub fn push_stat(
        &mut self,
        at: Timestamp,
        stat: CpuStat,
        tables: &mut Tables,
        out: &mut Vec<Event>,
    ) {
        let Some((since, before)) = self.last.replace((at, stat)) else { return };
        let periods = stat.periods.saturating_sub(before.periods);
        let nanos = stat.nanos.saturating_sub(before.nanos);
        if nanos == 0 {
            // The kernel counts a period at the begin of its throttling, and the time at its end.
            if periods > 0 {
                self.last = Some((since, before));
            }
            return;
        }
        self.throttled.periods = self.throttled.periods.saturating_add(periods);
        self.throttled.nanos = self.throttled.nanos.saturating_add(nanos);
        let push = &mut Pusher { at, tables, out };
        if self.process.is_none() {
            // A process that has ended since the earlier reading was throttled before its end.
            let entities = &push.tables.entities;
            let existed = |process: &Entity| process.end.is_none_or(|end| end >= since);
            let known = entities.process(self.pid);
            self.process = known
                .filter(|id| entities.get(*id).is_some_and(existed))
                .or_else(|| push.process(Some(self.pid), b""));
        }
        let Some(process) = self.process else { return };
        let nanos = i64::try_from(nanos).unwrap_or(i64::MAX);
        let periods = u32::try_from(periods).unwrap_or(u32::MAX);
        let cgroup = self.cgroup;
        push.event(EventKind::Throttle { process, cgroup, since, nanos, periods });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_are_read() {
        let v1 = b"nr_periods 15\nnr_throttled 10\nthrottled_time 234842711\nnr_bursts 0\n";
        assert_eq!(CpuStat::parse(v1), Some(CpuStat { periods: 10, nanos: 234_842_711 }));
        let v2 = b"usage_usec 7\nnr_periods 15\nnr_throttled 2\nthrottled_usec 30\n";
        assert_eq!(CpuStat::parse(v2), Some(CpuStat { periods: 2, nanos: 30_000 }));
        assert_eq!(CpuStat::parse(b"usage_usec 7\n"), None);
        assert_eq!(CpuStat::parse(b"nr_throttled -1\nthrottled_usec x\n"), None);
    }

    /// A reading between the begin and the end of a throttling.
    #[test]
    fn a_period_belongs_to_the_time_that_is_counted_later() {
        let (mut tables, mut out) = (Tables::new(), Vec::new());
        let mut source = CgroupSource::new(1);
        let at = Timestamp::from_nanos;
        for (time, periods, nanos) in [(10, 0, 0), (20, 0, 0), (30, 1, 0), (40, 1, 5), (50, 2, 9)] {
            source.push_stat(at(time), CpuStat { periods, nanos }, &mut tables, &mut out);
        }
        assert_eq!(source.throttled(), CpuStat { periods: 2, nanos: 9 });
        let throttled = |event: &Event| match event.kind {
            EventKind::Throttle { since, nanos, periods, .. } => {
                Some((since, event.time, nanos, periods))
            }
            _ => None,
        };
        let all: Vec<_> = out.iter().filter_map(throttled).collect();
        assert_eq!(all, [(at(20), at(40), 5, 1), (at(40), at(50), 4, 1)]);
    }

    /// The last reading of a process can come after its end.
    #[test]
    fn a_process_that_has_ended_is_the_same_one() {
        use crate::entity::EntityKind;
        let (mut tables, mut out) = (Tables::new(), Vec::new());
        let at = Timestamp::from_nanos;
        let process = tables.entity(Entity::new(EntityKind::Process, 7)).unwrap();
        tables.entities.get_mut(process).unwrap().end = Some(at(25));
        let mut throttled = |before: i64, after: i64| {
            let mut source = CgroupSource::new(7);
            for (time, nanos) in [(before, 0), (after, 5)] {
                let stat = CpuStat { periods: nanos, nanos };
                source.push_stat(at(time), stat, &mut tables, &mut out);
            }
            source.process.unwrap()
        };
        assert_eq!(throttled(20, 30), process);
        assert_ne!(throttled(30, 40), process, "its process id is used again");
    }

    #[test]
    fn readings_without_counters_are_counted() {
        let (mut tables, mut out) = (Tables::new(), Vec::new());
        let mut source = CgroupSource::new(1);
        source.push(Timestamp::default(), b"usage_usec 7\n", &mut tables, &mut out);
        assert_eq!((source.unreadable(), out.len()), (1, 0));
    }
}
