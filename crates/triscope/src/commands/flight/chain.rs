//! Switches that the kernel neither wrote nor counted: see `docs/timeline.md`, *Gaps*.

use perf_data::TracingData;
use perf_monitor::FieldFormat;
use std::collections::HashMap;

/// The field of a tracepoint of the scheduler.
pub(super) fn field(tracing: &TracingData, event: &str, name: &str) -> Option<FieldFormat> {
    let mut formats = tracing.formats();
    formats.find(|f| f.system() == "sched" && f.name() == event)?.field(name).cloned()
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
    /// Switches before which at least one is missing.
    pub(super) gaps: u64,
}

impl Chain {
    /// `None` without the format of `sched_switch`.
    pub(super) fn new(tracing: &TracingData) -> Option<Self> {
        let field = |name| field(tracing, "sched_switch", name);
        Some(Self {
            prev: field("prev_pid")?,
            next: field("next_pid")?,
            on: HashMap::new(),
            gaps: 0,
        })
    }

    /// Takes a switch. Returns the thread that leaves the CPU, and the one that comes.
    pub(super) fn switch(&mut self, cpu: u32, data: &[u8]) -> Option<(u32, u32)> {
        let (prev, next) = (tid(&self.prev, data)?, tid(&self.next, data)?);
        let before = self.on.insert(cpu, next);
        self.gaps += u64::from(before.is_some_and(|before| before != prev));
        Some((prev, next))
    }

    /// Forgets where threads are: what follows is of a later time.
    pub(super) fn forget(&mut self) {
        self.on.clear();
    }
}
