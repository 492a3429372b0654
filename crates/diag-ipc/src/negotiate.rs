//! What the clients of a target know of it. Of commands with several versions, the newest that the target
//! knows is sent.

use crate::error::Result;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// What is known of a target.
#[derive(Debug, Default)]
pub(crate) struct Known {
    pub(crate) dump: Version,
    pub(crate) tracing: Version,
    pub(crate) info: Version,
    resumed: Mutex<Option<Instant>>,
}

impl Known {
    /// The target has answered that it is resumed.
    pub(crate) fn set_resumed(&self) {
        *self.resumed.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// When the target has answered that it is resumed.
    pub(crate) fn resumed(&self) -> Option<Instant> {
        *self.resumed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The number of the newest versions of a command that the target does not know, so that each is tried
/// only once.
#[derive(Debug, Default)]
pub(crate) struct Version(AtomicUsize);

impl Version {
    /// Attempts the newest version of the command that the target knows. `versions` is in order of age,
    /// without `oldest`.
    pub(crate) fn newest<V: Copy, T>(
        &self,
        versions: &[V],
        oldest: V,
        attempt: impl Fn(V) -> Result<T>,
    ) -> Result<T> {
        let known = versions.len().saturating_sub(self.0.load(Ordering::Relaxed));
        for (index, version) in versions.iter().enumerate().take(known).rev() {
            match attempt(*version) {
                Err(e) if e.is_unknown_command() => {
                    self.0.fetch_max(versions.len() - index, Ordering::Relaxed);
                }
                other => return other,
            }
        }
        attempt(oldest)
    }
}
