//! Which version of a command is sent: the newest that the target knows.

use crate::error::Result;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What is known of a target, by command.
#[derive(Debug, Default)]
pub(crate) struct Versions {
    pub(crate) dump: Version,
    pub(crate) tracing: Version,
    pub(crate) info: Version,
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
