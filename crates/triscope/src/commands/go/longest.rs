//! The longest goroutines or tasks.

use crate::failure::OneLine;
use crate::sources::go::Reading;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

/// Number of rows unless an option says otherwise.
const DEFAULT: usize = 1000;

/// How many are listed.
#[derive(clap::Args)]
pub(super) struct Limit {
    /// Only the N longest [default: 1000]
    #[arg(long, value_name = "N")]
    worst: Option<usize>,
}

impl Limit {
    /// This number, or the default.
    pub(super) const fn of(worst: Option<usize>) -> Self {
        Self { worst }
    }

    pub(super) fn count(&self) -> usize {
        self.worst.unwrap_or(DEFAULT)
    }

    /// Reports the number of rows that the default leaves out.
    pub(super) fn note(&self, reading: &Reading, omitted: u64, what: &str) {
        if self.worst.is_none() && omitted > 0 {
            let name = OneLine(&reading.name);
            message!("triscope: {name}: {omitted} shorter {what} are not listed: see --worst");
        }
    }
}

/// The longest of many.
pub(super) struct Longest<T> {
    /// Longest first; of equal ones the earlier.
    items: BTreeMap<(Reverse<Duration>, u64), T>,
    count: usize,
    added: u64,
}

impl<T> Longest<T> {
    pub(super) const fn new(count: usize) -> Self {
        Self { items: BTreeMap::new(), count, added: 0 }
    }

    pub(super) fn add(&mut self, duration: Duration, item: impl FnOnce() -> T) {
        let key = (Reverse(duration), self.added);
        self.added += 1;
        let is_full = self.items.len() >= self.count;
        if is_full && self.items.last_key_value().is_none_or(|(last, _)| *last < key) {
            return;
        }
        self.items.insert(key, item());
        if is_full {
            self.items.pop_last();
        }
    }

    /// The items, longest first, and the number of those left out.
    pub(super) fn finish(self) -> (Vec<T>, u64) {
        let omitted = self.added - self.items.len() as u64;
        (self.items.into_values().collect(), omitted)
    }
}
