//! Tasks that take turns on a machine, also those of several runs.

use std::fs::File;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use task_support::{Result, cache};

/// The turn of this process, while one of its tasks has it.
static OF_KERNEL: Mutex<Weak<File>> = Mutex::new(Weak::new());

/// Waits until no other process on this machine runs a task that uses the whole kernel: its tracefs, or
/// the setting `kernel.perf_event_paranoid`. Others wait until the result is dropped.
///
/// A task that is a part of another one has the turn already.
pub(crate) fn of_kernel() -> Result<Arc<File>> {
    let mut own = OF_KERNEL.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(turn) = own.upgrade() {
        return Ok(turn);
    }
    let turn = Arc::new(cache::lock(".kernel.lock", "a check of the kernel of this machine")?);
    *own = Arc::downgrade(&turn);
    Ok(turn)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_within_another_one_has_its_turn() {
        let turn = of_kernel().unwrap();
        let part = of_kernel().unwrap();
        assert!(Arc::ptr_eq(&turn, &part));
    }
}
