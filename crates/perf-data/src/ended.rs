//! Processes that have ended, as far as records of the kernel say.

use std::collections::VecDeque;

/// The processes whose first thread has ended.
///
/// Other threads can outlive the first one, so what a reader of a recording knows of a process is kept then, but
/// not of all processes of a long recording.
#[derive(Clone, Debug, Default)]
pub(crate) struct EndedProcesses {
    /// Earliest first.
    pids: VecDeque<u32>,
}

impl EndedProcesses {
    /// Number of processes that are kept.
    pub(crate) const MAX: usize = 1 << 10;

    /// The first thread of a process has ended. Returns the process that is to be forgotten, if there are
    /// more than [`MAX`](Self::MAX).
    pub(crate) fn end(&mut self, pid: u32) -> Option<u32> {
        // It can have ended twice: the record of the fork in between can be lost.
        self.revive(pid);
        self.pids.push_back(pid);
        if self.pids.len() > Self::MAX { self.pids.pop_front() } else { None }
    }

    /// Whether the first thread of a process has ended, and the process is not to be forgotten yet.
    pub(crate) fn has(&self, pid: u32) -> bool {
        self.pids.contains(&pid)
    }

    /// A process runs: it is another one with the same number, or one whose other thread executes a program.
    /// Returns whether its first thread had ended.
    pub(crate) fn revive(&mut self, pid: u32) -> bool {
        let at = self.pids.iter().position(|ended| *ended == pid);
        at.is_some_and(|at| self.pids.remove(at).is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_earliest_process_is_forgotten() {
        let mut ended = EndedProcesses::default();
        let most = u32::try_from(EndedProcesses::MAX).unwrap();
        assert!((0..most).all(|pid| ended.end(pid).is_none()));
        assert!(ended.has(0) && ended.revive(0) && !ended.has(0) && !ended.revive(0));
        assert_eq!([most, most + 1].map(|pid| ended.end(pid)), [None, Some(1)]);
    }

    #[test]
    fn a_process_that_ends_twice_is_kept_from_its_last_end() {
        let mut ended = EndedProcesses::default();
        let most = u32::try_from(EndedProcesses::MAX).unwrap();
        assert!((0..most).all(|pid| ended.end(pid).is_none()));
        assert_eq!([0, most].map(|pid| ended.end(pid)), [None, Some(1)]);
    }
}
