//! Tasks of a user that take turns on a machine, also those of several runs.

use std::fs::File;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use task_support::{Result, cache};

/// The turn of this process, while one of its tasks has it.
static OF_KERNEL: Mutex<Weak<File>> = Mutex::new(Weak::new());

/// Waits until no other process of this user runs a task that uses the whole kernel: its tracefs, or
/// the setting `kernel.perf_event_paranoid`. Others wait until the result is dropped.
///
/// A task that is a part of another one has the turn already.
pub(crate) fn of_kernel() -> Result<Arc<File>> {
    take(&OF_KERNEL, || cache::lock(".kernel.lock", "a check of the kernel of this machine"))
}

fn take(own: &Mutex<Weak<File>>, lock: impl FnOnce() -> Result<File>) -> Result<Arc<File>> {
    let mut own = own.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(turn) = own.upgrade() {
        return Ok(turn);
    }
    let turn = Arc::new(lock()?);
    *own = Arc::downgrade(&turn);
    Ok(turn)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_within_another_one_has_its_turn() {
        let own = Mutex::new(Weak::new());
        let turn = take(&own, || Ok(tempfile::tempfile()?)).unwrap();
        let part = take(&own, || Err("it has no turn".into())).unwrap();
        assert!(Arc::ptr_eq(&turn, &part));
        drop((turn, part));
        assert!(take(&own, || Err("another run has it".into())).is_err());
    }
}
