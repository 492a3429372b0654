//! The goroutines in system calls that may lose their procs.

use crate::id::{GoId, ProcId};
use trace_common::IdMap;

/// The goroutine in a system call on each proc, until the proc becomes idle.
#[derive(Debug, Default)]
pub(super) struct Syscalls {
    goroutines: IdMap<i64>,
    /// In a part of a trace: the procs whose goroutine does not depend on the events before it.
    known: Option<IdMap<()>>,
}

impl Syscalls {
    /// Those of a part of a trace.
    pub(super) fn part() -> Self {
        Self { goroutines: IdMap::default(), known: Some(IdMap::default()) }
    }

    pub(super) fn begin(&mut self, proc: ProcId, goroutine: GoId) {
        *self.goroutines.insert(proc.0) = goroutine.0;
        if let Some(known) = &mut self.known {
            known.insert(proc.0);
        }
    }

    /// The goroutine has left the system call that it began on the proc. Another one may be in a
    /// system call there, if the proc was taken away from this one.
    pub(super) fn end(&mut self, proc: ProcId, goroutine: GoId) {
        if self.goroutines.get(proc.0) == Some(&goroutine.0) {
            self.goroutines.remove(proc.0);
        }
    }

    /// The same, but whichever goroutine is in a system call on the proc is forgotten: the rule of
    /// Go's summarizer.
    pub(super) fn end_any(&mut self, proc: ProcId) {
        self.goroutines.remove(proc.0);
    }

    /// The proc has become idle: returns the goroutine that loses it.
    #[inline]
    pub(super) fn lose(&mut self, proc: ProcId) -> Option<GoId> {
        self.goroutines.remove(proc.0).copied().map(GoId)
    }

    /// Whether the goroutine of a proc that becomes idle depends on the events before the part. From
    /// here on it does not.
    #[inline]
    pub(super) fn resolve(&mut self, proc: ProcId) -> bool {
        let Some(known) = &mut self.known else { return false };
        let is_unknown = !known.contains(proc.0);
        if is_unknown {
            known.insert(proc.0);
        }
        is_unknown
    }

    /// A system call begins on the proc that is not in the part, but processed when it is joined.
    pub(super) fn forget(&mut self, proc: ProcId) {
        if let Some(known) = &mut self.known {
            known.remove(proc.0);
            self.goroutines.remove(proc.0);
        }
    }

    /// Adds the system calls of the part that follows.
    pub(super) fn join(&mut self, part: &Self) {
        for proc in part.known.iter().flat_map(IdMap::ids) {
            match part.goroutines.get(proc) {
                Some(goroutine) => *self.goroutines.insert(proc) = *goroutine,
                None => _ = self.goroutines.remove(proc),
            }
        }
    }
}
