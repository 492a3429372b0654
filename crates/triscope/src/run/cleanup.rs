//! Actions to run when a signal ends the program at once.
//!
//! Values clean up when they are dropped, but a signal that ends the program drops nothing. Each
//! value with a file in the file system registers an action here.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

type Action = Box<dyn Fn() + Send>;

static ACTIONS: Mutex<BTreeMap<u64, Action>> = Mutex::new(BTreeMap::new());

fn actions() -> MutexGuard<'static, BTreeMap<u64, Action>> {
    ACTIONS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A registered action; dropping this unregisters it.
pub(crate) struct Guard(u64);

impl Drop for Guard {
    fn drop(&mut self) {
        actions().remove(&self.0);
    }
}

/// Registers an action to run before a signal ends the program.
pub(crate) fn on_exit(action: impl Fn() + Send + 'static) -> Guard {
    add(&mut actions(), action)
}

/// Creates something, and registers the action that removes it: a signal leaves nothing. As it waits meanwhile, `create`
/// must not wait for others.
pub(crate) fn create<T, E, A: Fn() + Send + 'static>(
    create: impl FnOnce() -> Result<(T, A), E>,
) -> Result<(T, Guard), E> {
    let mut actions = actions();
    let (created, action) = create()?;
    Ok((created, add(&mut actions, action)))
}

fn add(actions: &mut BTreeMap<u64, Action>, action: impl Fn() + Send + 'static) -> Guard {
    let key = actions.last_key_value().map_or(0, |(last, _)| last + 1);
    actions.insert(key, Box::new(action));
    Guard(key)
}

/// Runs all actions, the last one first: as values are dropped. From then on, nothing with an action is created
/// any more: the program ends.
pub(super) fn run() {
    let actions = actions();
    for action in actions.values().rev() {
        action();
    }
    std::mem::forget(actions);
}
