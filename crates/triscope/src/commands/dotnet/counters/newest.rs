//! The newest value of every counter.

use nettrace::analysis::{Counter, CounterKind};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Maximum number of instruments of a process with the same key.
const MAX_SERIES: usize = 64;

/// The newest values, by a key that need not be unique: several processes can have the same counters, and
/// instruments of different versions of a meter the same names and tags.
///
/// The runtime reads all instruments in a collection. One that is in no collection any more, such as that of a meter
/// that was made again, is replaced by those that are.
pub(super) struct Newest<K> {
    /// By key and process.
    all: BTreeMap<K, BTreeMap<u64, Vec<Series>>>,
    /// Whether an instrument had no room.
    is_full: bool,
}

/// The values of an instrument with these tags.
pub(super) struct Series {
    pub(super) counter: Counter,
    /// Sum and number of the values of a histogram: the runtime reports those of an interval, except of
    /// histograms with exponential buckets.
    pub(super) total: (f64, u64),
    /// Number of the collection of its first value.
    first: u64,
}

/// What distinguishes a series from others with the same key.
#[derive(Clone, Copy)]
pub(super) struct Apart {
    is_by_process: bool,
    is_by_instrument: bool,
}

impl<K> Default for Newest<K> {
    fn default() -> Self {
        Self { all: BTreeMap::new(), is_full: false }
    }
}

impl<K: Ord> Newest<K> {
    pub(super) fn add(&mut self, key: K, counter: Counter) {
        let now = collection(&counter);
        let all = self.all.entry(key).or_default().entry(counter.pid).or_default();
        match all.iter_mut().find(|series| series.is_of(&counter)) {
            Some(known) => known.update(counter),
            None => all.push(Series::new(counter)),
        }
        remove_replaced(all, now);
        if all.len() > MAX_SERIES {
            all.truncate(MAX_SERIES);
            self.is_full = true;
        }
    }

    /// The values in the order of their keys, each with what distinguishes it from others with its key.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&K, &Series, Apart)> {
        self.all.iter().flat_map(|(key, processes)| {
            let is_by_process = processes.len() > 1;
            processes.values().flat_map(move |all| {
                let apart = Apart { is_by_process, is_by_instrument: all.len() > 1 };
                all.iter().map(move |series| (key, series, apart))
            })
        })
    }
}

impl<K> Drop for Newest<K> {
    /// A table on a terminal cannot be interrupted by a message.
    fn drop(&mut self) {
        if self.is_full {
            message!(
                "triscope: only {MAX_SERIES} instruments of the same name and tags are shown; \
                 --format json has all"
            );
        }
    }
}

fn collection(counter: &Counter) -> u64 {
    counter.collection.unwrap_or_default()
}

/// Removes those that were not in a whole collection after the first value of another one, which was. `now` is the
/// number of the current collection.
fn remove_replaced(all: &mut Vec<Series>, now: u64) {
    let is_followed = |number: u64| number.saturating_add(1) < now;
    let others = all.iter().filter(|series| is_followed(series.first));
    let Some(last) = others.map(Series::last).max() else { return };
    all.retain(|series| !is_followed(series.last()) || series.last() >= last);
}

impl Series {
    fn new(counter: Counter) -> Self {
        let total = (counter.value, counter.count.unwrap_or(0));
        Self { first: collection(&counter), counter, total }
    }

    /// Number of the collection of its newest value.
    fn last(&self) -> u64 {
        collection(&self.counter)
    }

    /// Whether it is the series of this value of the same process.
    fn is_of(&self, counter: &Counter) -> bool {
        self.counter.instrument_id == counter.instrument_id
            && self.counter.meter_version == counter.meter_version
    }

    fn update(&mut self, counter: Counter) {
        let (sum, count) = self.total;
        let new = Self::new(counter);
        let total = match new.counter.kind {
            CounterKind::Histogram => (sum + new.total.0, count.saturating_add(new.total.1)),
            _ => new.total,
        };
        *self = Self { total, first: self.first, ..new };
    }

    /// The tags, with the version and the number of the instrument and the process if others have the same tags.
    pub(super) fn tags(&self, apart: Apart) -> Cow<'_, str> {
        let Counter { tags, meter_version, instrument_id, pid, .. } = &self.counter;
        let Apart { is_by_process, is_by_instrument } = apart;
        if !is_by_process && !is_by_instrument {
            return tags.into();
        }
        let mut all = tags.clone();
        // Writing to a string does not fail.
        if is_by_instrument && !meter_version.is_empty() {
            let _ = write!(all, ",meter_version={meter_version}");
        }
        if let Some(id) = instrument_id.filter(|_| is_by_instrument) {
            let _ = write!(all, ",instrument_id={id}");
        }
        if is_by_process {
            let _ = write!(all, ",pid={pid}");
        }
        all.trim_start_matches(',').to_owned().into()
    }
}
