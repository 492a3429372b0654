//! The CPUs, tasks and cgroups of a set.

use crate::error::{Error, Result};
use crate::refusal::OpenErrorReason;
use crate::{Target, system};
use rustix::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// What a set measures on each CPU. Everything, if there are neither tasks nor cgroups.
#[derive(Clone, Debug, Default)]
pub(crate) struct Targets {
    /// `None`: all CPUs that are online.
    pub(crate) cpus: Option<Vec<u32>>,
    pub(crate) threads: Vec<u32>,
    pub(crate) cgroups: Vec<Arc<OwnedFd>>,
}

impl Targets {
    /// The CPUs that the set wants and that are online.
    pub(crate) fn online(&self) -> Vec<u32> {
        let mut cpus = system::online_cpus();
        if let Some(wanted) = &self.cpus {
            cpus.retain(|cpu| wanted.contains(cpu));
        }
        cpus
    }

    /// Opens something for each target on a CPU. Threads that have ended are skipped, unless there
    /// is nothing else.
    pub(crate) fn open<T>(
        &self,
        cpu: u32,
        mut open: impl FnMut(Target<'_>) -> Result<T>,
    ) -> Result<Vec<T>> {
        if self.threads.is_empty() && self.cgroups.is_empty() {
            return Ok(vec![open(Target::Cpu(cpu))?]);
        }
        let mut opened = Vec::new();
        for dir in &self.cgroups {
            opened.push(open(Target::Cgroup { dir: dir.as_fd(), cpu })?);
        }
        let mut ended = None;
        for &tid in &self.threads {
            match open(Target::ThreadOnCpu { tid, cpu }) {
                Ok(one) => opened.push(one),
                Err(error) if is_of_ended_thread(&error) => ended = Some(error),
                Err(error) => return Err(error),
            }
        }
        match ended {
            Some(error) if opened.is_empty() => Err(error),
            _ => Ok(opened),
        }
    }
}

fn is_of_ended_thread(error: &Error) -> bool {
    matches!(error.reason(), Some(OpenErrorReason::NoSuchThread(_)))
}

/// Whether the CPU went offline in the meantime.
pub(crate) fn is_offline(error: &Error) -> bool {
    matches!(error.reason(), Some(OpenErrorReason::OfflineCpu(_)))
}

/// Whether fewer pages can help.
pub(crate) fn is_short_of_memory(error: &Error) -> bool {
    matches!(
        error.reason(),
        Some(OpenErrorReason::LockedMemory { .. } | OpenErrorReason::OutOfMemory)
    )
}
