//! A process, whose id another one can have later.

use super::procfs::{is_running, start_time};

/// A process that was found by its id.
#[derive(Clone, Copy)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    started: Option<u64>,
}

impl Process {
    /// That with this id now.
    pub(crate) fn read(pid: u32) -> Self {
        Self { pid, started: start_time(pid) }
    }

    pub(crate) fn is_running(&self) -> bool {
        is_running(self.pid) && start_time(self.pid) == self.started
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_process_with_the_same_id_is_another_one() {
        let own = Process::read(std::process::id());
        assert!(own.started.is_some() && own.is_running());
        let before = Process { started: own.started.map(|ticks| ticks - 1), ..own };
        assert!(!before.is_running());
    }
}
