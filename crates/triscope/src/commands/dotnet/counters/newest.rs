//! The newest value of every counter.

use nettrace::analysis::{Counter, CounterKind};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Maximum number of instruments with the same key.
const MAX_SERIES: usize = 64;

/// The newest values, by a key that need not be unique: instruments of different versions of a meter can have
/// the same names and tags.
///
/// Instruments are kept apart if they report at the same time. One that only begins after another, such as that of a
/// meter that was made again, replaces it.
pub(super) struct Newest<K>(BTreeMap<K, Vec<Series>>);

/// The values of an instrument with these tags.
pub(super) struct Series {
    pub(super) counter: Counter,
    /// Sum and number of the values of a histogram: the runtime reports those of an interval, except of
    /// histograms with exponential buckets.
    pub(super) total: (f64, u64),
    /// Whether no other one has begun since its newest value.
    is_current: bool,
}

impl<K> Default for Newest<K> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Ord> Newest<K> {
    pub(super) fn add(&mut self, key: K, counter: Counter) {
        let all = self.0.entry(key).or_default();
        if let Some(known) = all.iter_mut().find(|series| series.is_of(&counter)) {
            let since = known.counter.timestamp.min(counter.timestamp);
            known.update(counter);
            // The others had no value in a whole interval.
            all.retain(|series| series.counter.timestamp >= since);
            return;
        }
        if all.len() >= MAX_SERIES {
            all.remove(0);
        }
        all.iter_mut().for_each(|series| series.is_current = false);
        all.push(Series::new(counter));
    }

    /// The values in the order of their keys, each with whether its key is also that of another one.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&K, &Series, bool)> {
        self.0.iter().flat_map(|(key, all)| {
            let current = move || all.iter().filter(|series| series.is_current);
            let is_repeated = current().nth(1).is_some();
            current().map(move |series| (key, series, is_repeated))
        })
    }
}

impl Series {
    fn new(counter: Counter) -> Self {
        let total = (counter.value, counter.count.unwrap_or(0));
        Self { counter, total, is_current: true }
    }

    fn is_of(&self, counter: &Counter) -> bool {
        let instrument = |counter: &Counter| (counter.process_id, counter.instrument_id);
        instrument(&self.counter) == instrument(counter)
            && self.counter.meter_version == counter.meter_version
    }

    fn update(&mut self, counter: Counter) {
        let (sum, count) = self.total;
        let new = Self::new(counter);
        let total = match new.counter.kind {
            CounterKind::Histogram => (sum + new.total.0, count.saturating_add(new.total.1)),
            _ => new.total,
        };
        *self = Self { total, ..new };
    }

    /// The tags, with the version and the number of the instrument if others have the same tags.
    pub(super) fn tags(&self, is_repeated: bool) -> Cow<'_, str> {
        let Counter { tags, meter_version, instrument_id, .. } = &self.counter;
        if !is_repeated {
            return tags.into();
        }
        let mut all = tags.clone();
        // Writing to a string does not fail.
        if !meter_version.is_empty() {
            let _ = write!(all, ",meter_version={meter_version}");
        }
        if let Some(id) = instrument_id {
            let _ = write!(all, ",instrument_id={id}");
        }
        all.trim_start_matches(',').to_owned().into()
    }
}
