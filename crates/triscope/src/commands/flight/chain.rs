//! Switches that the kernel neither wrote nor counted: see `docs/timeline.md`, *Gaps*.

use crate::sources::kernel::switch_records::Arrival;
use perf_data::TracingData;
use perf_monitor::FieldFormat;
use std::collections::HashMap;

/// The field of a tracepoint of the scheduler.
pub(super) fn field(tracing: &TracingData, event: &str, name: &str) -> Option<FieldFormat> {
    let (system, event) = event.split_once(':')?;
    let mut formats = tracing.formats();
    formats.find(|f| f.system() == system && f.name() == event)?.field(name).cloned()
}

/// The thread of this field.
pub(super) fn tid(field: &FieldFormat, data: &[u8]) -> Option<u32> {
    field.i64(data).and_then(|tid| u32::try_from(tid).ok())
}

/// The switches of each CPU: each one is away from the thread that the one before was to.
#[derive(Debug)]
pub(super) struct Chain {
    prev: FieldFormat,
    next: FieldFormat,
    on: HashMap<u32, u32>,
    pub(super) switches: u64,
    /// Switches before which at least one is missing.
    pub(super) gaps: u64,
    /// Switches that are only in a `PERF_RECORD_SWITCH_CPU_WIDE`.
    pub(super) recovered: u64,
}

impl Chain {
    /// `None` without the format of `sched_switch`.
    pub(super) fn new(tracing: &TracingData) -> Option<Self> {
        let field = |name| field(tracing, "sched:sched_switch", name);
        Some(Self {
            prev: field("prev_pid")?,
            next: field("next_pid")?,
            on: HashMap::new(),
            switches: 0,
            gaps: 0,
            recovered: 0,
        })
    }

    /// Takes a switch. Returns the thread that leaves the CPU, and the one that comes.
    pub(super) fn switch(&mut self, cpu: u32, data: &[u8]) -> Option<(u32, u32)> {
        let (prev, next) = (tid(&self.prev, data)?, tid(&self.next, data)?);
        let before = self.on.insert(cpu, next);
        self.switches += 1;
        self.gaps += u64::from(before.is_some_and(|before| before != prev));
        Some((prev, next))
    }

    /// Takes a `PERF_RECORD_SWITCH_CPU_WIDE`. Returns the thread that left the CPU, if no other record
    /// reports that.
    pub(super) fn arrive(&mut self, arrival: &Arrival) -> Option<u32> {
        let before = self.on.insert(arrival.cpu, arrival.tid)?;
        if before == arrival.tid {
            return None;
        }
        // The idle thread does not end.
        if arrival.left.map_or(before != 0, |left| left == before) {
            self.recovered += 1;
            return Some(before);
        }
        self.gaps += 1;
        None
    }

    /// Forgets which thread is on a CPU: it went offline.
    pub(super) fn forget_cpu(&mut self, cpu: u32) {
        self.on.remove(&cpu);
    }

    /// Forgets where threads are: what follows is of a later time.
    pub(super) fn forget(&mut self) {
        self.on.clear();
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use perf_monitor::TracepointFormat;

    pub(in super::super) fn chain() -> Chain {
        let format = "name: sched_switch\nID: 3\nformat:\n\
            \tfield:pid_t prev_pid;\toffset:0;\tsize:4;\tsigned:1;\n\
            \tfield:pid_t next_pid;\toffset:4;\tsize:4;\tsigned:1;\n";
        let format = TracepointFormat::parse("sched", format).unwrap();
        let field = |name| format.field(name).cloned().unwrap();
        let (prev, next) = (field("prev_pid"), field("next_pid"));
        Chain { prev, next, on: HashMap::new(), switches: 0, gaps: 0, recovered: 0 }
    }

    /// Takes a switch of CPU 1.
    pub(in super::super) fn switch(chain: &mut Chain, prev: u32, next: u32) {
        let data = [prev.to_ne_bytes(), next.to_ne_bytes()].concat();
        chain.switch(1, &data);
    }

    #[test]
    fn a_cpu_that_comes_back_has_no_gap() {
        let mut chain = chain();
        switch(&mut chain, 5, 6);
        chain.forget_cpu(1);
        switch(&mut chain, 0, 7);
        assert_eq!((chain.switches, chain.gaps), (2, 0));
    }

    #[test]
    fn a_switch_that_another_record_shows_is_no_gap() {
        let mut chain = chain();
        let arrive = |chain: &mut Chain, tid, left| chain.arrive(&Arrival { cpu: 1, tid, left });
        assert_eq!(arrive(&mut chain, 5, Some(4)), None, "the first record");
        switch(&mut chain, 5, 0);
        assert_eq!(arrive(&mut chain, 0, Some(5)), None);
        assert_eq!(arrive(&mut chain, 6, Some(0)), Some(0));
        switch(&mut chain, 6, 7);
        assert_eq!(arrive(&mut chain, 8, None), Some(7), "it has ended");
        assert_eq!((chain.switches, chain.recovered, chain.gaps), (2, 2, 0));
        assert_eq!(arrive(&mut chain, 9, Some(7)), None);
        switch(&mut chain, 9, 0);
        assert_eq!(arrive(&mut chain, 9, None), None, "another one has ended");
        switch(&mut chain, 3, 0);
        assert_eq!((chain.switches, chain.recovered, chain.gaps), (4, 2, 3));
    }
}
