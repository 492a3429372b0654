//! Durations by size.

/// A histogram of durations, for percentiles. Its buckets are at most 3.2 % wide and it needs at
/// most 8 KiB.
///
/// ```
/// use trace_common::Histogram;
///
/// let mut latencies = Histogram::default();
/// (1..=100).for_each(|n| latencies.add(n * 1_000));
/// assert_eq!(latencies.max(), 100_000);
/// let median = latencies.percentile(50.0);
/// assert!((50_000..52_000).contains(&median), "{median}");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    /// As many as the largest duration needs.
    buckets: Vec<u32>,
    count: u64,
    sum: u64,
    max: u64,
}

/// Each power of two has `1 << BITS` buckets.
const BITS: u32 = 5;

impl Histogram {
    /// Adds a duration. A negative one counts as 0.
    pub fn add(&mut self, nanos: i64) {
        let value = u64::try_from(nanos).unwrap_or(0);
        let bucket = bucket(value);
        if self.buckets.len() <= bucket {
            self.buckets.resize(bucket + 1, 0);
        }
        if let Some(count) = self.buckets.get_mut(bucket) {
            *count = count.saturating_add(1);
        }
        self.count += 1;
        self.sum = self.sum.saturating_add(value);
        self.max = self.max.max(value);
    }

    /// Replaces a duration that was added by a longer one: it had not ended.
    ///
    /// ```
    /// let mut waits = trace_common::Histogram::default();
    /// waits.add(10);
    /// waits.grow(10, 25);
    /// assert_eq!((waits.count(), waits.sum(), waits.max()), (1, 25, 25));
    /// ```
    pub fn grow(&mut self, from: i64, to: i64) {
        let value = u64::try_from(from).unwrap_or(0);
        if let Some(count) = self.buckets.get_mut(bucket(value)).filter(|count| **count > 0) {
            *count -= 1;
            self.count -= 1;
            self.sum = self.sum.saturating_sub(value);
        }
        self.add(to);
    }

    /// Number of durations.
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// Sum of all durations.
    pub const fn sum(&self) -> u64 {
        self.sum
    }

    /// The largest duration; 0 if there is none.
    pub const fn max(&self) -> u64 {
        self.max
    }

    /// The ranges that contain durations, in ascending order: the smallest and the largest duration
    /// of the range in nanoseconds, and the number of durations in it.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64, u64)> {
        let buckets = self.buckets.iter().enumerate().filter(|(_, count)| **count > 0);
        buckets.map(|(bucket, count)| {
            let below = bucket.checked_sub(1).map(upper);
            (below.map_or(0, |below| below + 1), upper(bucket), u64::from(*count))
        })
    }

    /// Adds the durations of another histogram.
    pub fn merge(&mut self, other: &Self) {
        if self.buckets.len() < other.buckets.len() {
            self.buckets.resize(other.buckets.len(), 0);
        }
        for (own, more) in self.buckets.iter_mut().zip(&other.buckets) {
            *own = own.saturating_add(*more);
        }
        self.count += other.count;
        self.sum = self.sum.saturating_add(other.sum);
        self.max = self.max.max(other.max);
    }

    /// Removes the durations of another histogram, all of which were added. The largest one that is left is
    /// then known as the upper end of its bucket.
    ///
    /// ```
    /// use trace_common::Histogram;
    ///
    /// let (mut all, mut some) = (Histogram::default(), Histogram::default());
    /// all.add(10);
    /// some.add(20);
    /// all.merge(&some);
    /// all.subtract(&some);
    /// assert_eq!((all.count(), all.sum(), all.max()), (1, 10, 10));
    /// ```
    pub fn subtract(&mut self, other: &Self) {
        for (own, less) in self.buckets.iter_mut().zip(&other.buckets) {
            *own = own.saturating_sub(*less);
        }
        self.count = self.count.saturating_sub(other.count);
        self.sum = self.sum.saturating_sub(other.sum);
        let last = self.buckets.iter().rposition(|count| *count > 0);
        self.buckets.truncate(last.map_or(0, |last| last + 1));
        self.max = last.map_or(0, |last| upper(last).min(self.max));
    }

    /// The duration that `percent` of all durations do not exceed: the upper end of its bucket.
    pub fn percentile(&self, percent: f64) -> u64 {
        let rank = (self.count as f64 * percent / 100.0).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (bucket, count) in self.buckets.iter().enumerate() {
            seen += u64::from(*count);
            if seen >= rank {
                return upper(bucket).min(self.max);
            }
        }
        self.max
    }
}

const fn bucket(value: u64) -> usize {
    let exponent = value.checked_ilog2();
    match exponent {
        Some(exponent) if exponent >= BITS => {
            let shift = exponent - BITS;
            (((shift as u64 + 1) << BITS) + ((value >> shift) - (1 << BITS))) as usize
        }
        _ => value as usize,
    }
}

/// The largest value of a bucket.
const fn upper(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < 1 << BITS {
        return bucket;
    }
    let shift = (bucket >> BITS) - 1;
    let first = (1 << BITS) + (bucket & ((1 << BITS) - 1));
    (first << shift) + ((1 << shift) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_bucket_contains_its_values(value: u64) {
            let bucket = bucket(value);
            prop_assert!(value <= upper(bucket));
            prop_assert!(bucket == 0 || value > upper(bucket - 1));
            prop_assert!((upper(bucket) - value) as f64 <= value as f64 / 32.0);
        }
    }

    proptest! {
        #[test]
        fn merged_histograms_are_one(a: Vec<i64>, b: Vec<i64>) {
            let of = |values: &[i64]| {
                let mut histogram = Histogram::default();
                values.iter().for_each(|value| histogram.add(*value));
                histogram
            };
            let mut merged = of(&a);
            merged.merge(&of(&b));
            prop_assert_eq!(&merged, &of(&[a, b].concat()));
            let mut last = None;
            for (from, to, _) in merged.buckets() {
                prop_assert!(last.is_none_or(|last| last < from) && from <= to);
                last = Some(to);
            }
            let counted: u64 = merged.buckets().map(|(.., count)| count).sum();
            prop_assert_eq!(counted, merged.count());
        }
    }

    proptest! {
        #[test]
        fn subtracted_histograms_are_gone(
            a in proptest::collection::vec(0..100_000i64, 0..50),
            b in proptest::collection::vec(0..100_000i64, 0..50),
        ) {
            let of = |values: &[i64]| {
                let mut histogram = Histogram::default();
                values.iter().for_each(|value| histogram.add(*value));
                histogram
            };
            let (mut rest, expected) = (of(&[&a[..], &b[..]].concat()), of(&a));
            rest.subtract(&of(&b));
            prop_assert_eq!((rest.count(), rest.sum()), (expected.count(), expected.sum()));
            prop_assert!(rest.buckets().eq(expected.buckets()));
            prop_assert!(rest.max() >= expected.max());
            prop_assert_eq!(bucket(rest.max()), bucket(expected.max()));
        }
    }

    #[test]
    fn percentiles_of_none_and_one() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.percentile(99.0), 0);
        histogram.add(-5);
        assert_eq!((histogram.percentile(99.0), histogram.count()), (0, 1));
        histogram.add(1_000_003);
        assert_eq!(histogram.percentile(100.0), 1_000_003);
    }
}
