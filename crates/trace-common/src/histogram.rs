//! Durations by size.

/// A histogram of durations, for percentiles. Its buckets are at most 3.2 % wide. One of few durations needs
/// some bytes of each, one of any number at most 16 KiB.
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
    buckets: Buckets,
    count: u64,
    sum: u64,
    max: u64,
}

/// Each power of two has `1 << BITS` buckets.
const BITS: u32 = 5;

/// The numbers of durations by bucket.
#[derive(Clone, Debug)]
enum Buckets {
    /// Those of the buckets that have any, in order. Of many threads few durations are known.
    Few(Vec<(u16, u32)>),
    /// As many as the largest duration needs.
    All(Vec<u32>),
}

impl Default for Buckets {
    fn default() -> Self {
        Self::Few(Vec::new())
    }
}

impl PartialEq for Buckets {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for Buckets {}

impl Buckets {
    /// Maximum number of [`Buckets::Few`].
    const MAX_FEW: usize = 64;

    /// Those that have durations, in order, with their number.
    fn iter(&self) -> impl Iterator<Item = (u16, u32)> {
        let (few, all) = match self {
            Self::Few(few) => (few.as_slice(), &[][..]),
            Self::All(all) => (&[][..], all.as_slice()),
        };
        let all = (0_u16..).zip(all.iter().copied()).filter(|(_, count)| *count > 0);
        few.iter().copied().chain(all)
    }

    /// Adds a number of durations above 0.
    fn add(&mut self, bucket: u16, more: u32) {
        match self {
            Self::Few(few) => match few.binary_search_by_key(&bucket, |(bucket, _)| *bucket) {
                Ok(place) => {
                    if let Some((_, count)) = few.get_mut(place) {
                        *count = count.saturating_add(more);
                    }
                }
                Err(place) if few.len() < Self::MAX_FEW => few.insert(place, (bucket, more)),
                Err(_) => {
                    let mut all = Self::All(Vec::new());
                    few.iter().for_each(|(bucket, count)| all.add(*bucket, *count));
                    all.add(bucket, more);
                    *self = all;
                }
            },
            Self::All(all) => {
                let bucket = usize::from(bucket);
                if all.len() <= bucket {
                    all.resize(bucket + 1, 0);
                }
                if let Some(count) = all.get_mut(bucket) {
                    *count = count.saturating_add(more);
                }
            }
        }
    }

    /// Removes up to this number of durations. Returns whether there were any.
    fn remove(&mut self, bucket: u16, less: u32) -> bool {
        match self {
            Self::Few(few) => {
                let found = few.binary_search_by_key(&bucket, |(bucket, _)| *bucket);
                let Ok(place) = found else { return false };
                let Some((_, count)) = few.get_mut(place) else { return false };
                *count = count.saturating_sub(less);
                if *count == 0 {
                    few.remove(place);
                }
            }
            Self::All(all) => {
                let count = all.get_mut(usize::from(bucket)).filter(|count| **count > 0);
                let Some(count) = count else { return false };
                *count = count.saturating_sub(less);
            }
        }
        true
    }
}

impl Histogram {
    /// Adds a duration. A negative one counts as 0.
    pub fn add(&mut self, nanos: i64) {
        let value = u64::try_from(nanos).unwrap_or(0);
        self.buckets.add(bucket(value), 1);
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
        if self.buckets.remove(bucket(value), 1) {
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
        self.buckets.iter().map(|(bucket, count)| {
            let below = bucket.checked_sub(1).map(upper);
            (below.map_or(0, |below| below + 1), upper(bucket), u64::from(count))
        })
    }

    /// Adds the durations of another histogram.
    pub fn merge(&mut self, other: &Self) {
        for (bucket, more) in other.buckets.iter() {
            self.buckets.add(bucket, more);
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
        for (bucket, less) in other.buckets.iter() {
            self.buckets.remove(bucket, less);
        }
        self.count = self.count.saturating_sub(other.count);
        self.sum = self.sum.saturating_sub(other.sum);
        let last = self.buckets.iter().last();
        self.max = last.map_or(0, |(last, _)| upper(last).min(self.max));
    }

    /// The duration that `percent` of all durations do not exceed: the upper end of its bucket.
    pub fn percentile(&self, percent: f64) -> u64 {
        let rank = (self.count as f64 * percent / 100.0).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (bucket, count) in self.buckets.iter() {
            seen += u64::from(count);
            if seen >= rank {
                return upper(bucket).min(self.max);
            }
        }
        self.max
    }
}

const fn bucket(value: u64) -> u16 {
    let exponent = value.checked_ilog2();
    match exponent {
        Some(exponent) if exponent >= BITS => {
            let shift = exponent - BITS;
            (((shift as u64 + 1) << BITS) + ((value >> shift) - (1 << BITS))) as u16
        }
        _ => value as u16,
    }
}

/// The largest value of a bucket.
const fn upper(bucket: u16) -> u64 {
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

    proptest! {
        /// Few durations or many, which come and go, are those of a simple table.
        #[test]
        fn few_durations_and_many_are_as_in_a_table(
            steps in proptest::collection::vec((any::<bool>(), 0..40_u32, 0..64_u64), 0..400),
        ) {
            let (mut histogram, mut values) = (Histogram::default(), Vec::<u64>::new());
            for (grows, shift, low) in steps {
                let value = (64 + low) << shift;
                match values.last_mut().filter(|last| grows && **last < value) {
                    Some(last) => {
                        histogram.grow(*last as i64, value as i64);
                        *last = value;
                    }
                    None => {
                        histogram.add(value as i64);
                        values.push(value);
                    }
                }
            }
            let mut counts = vec![0_u64; 1 << 11];
            values.iter().for_each(|value| counts[usize::from(bucket(*value))] += 1);
            let found: Vec<_> = histogram.buckets().map(|(_, to, count)| (to, count)).collect();
            let used = (0..).zip(counts).filter(|(_, count)| *count > 0);
            let expected: Vec<_> = used.map(|(bucket, count)| (upper(bucket), count)).collect();
            prop_assert_eq!(found, expected);
            values.sort_unstable();
            for percent in [1.0, 50.0, 99.0, 100.0] {
                let rank = (values.len() as f64 * percent / 100.0).ceil() as usize;
                let value = values.get(rank.max(1) - 1).map_or(0, |value| upper(bucket(*value)));
                prop_assert_eq!(histogram.percentile(percent), value.min(histogram.max()));
            }
        }
    }

    /// Many threads have few latencies, of which each can be long.
    #[test]
    fn few_durations_take_little_memory() {
        let mut histogram = Histogram::default();
        let size = |histogram: &Histogram| match &histogram.buckets {
            Buckets::Few(few) => size_of_val(few.as_slice()),
            Buckets::All(all) => size_of_val(all.as_slice()),
        };
        (0..4).for_each(|n| histogram.add(1_000_000 << n));
        assert_eq!(size(&histogram), 32);
        // A wait that grows is one.
        let mut wait = Histogram::default();
        wait.add(1);
        (0..40).for_each(|n| wait.grow(1 << n, 2 << n));
        assert_eq!((size(&wait), wait.count()), (8, 1));
        (0..1 << 16).for_each(|n| histogram.add(n * n * n));
        assert!(size(&histogram) <= 8 << 10);
        let mut rest = histogram.clone();
        rest.subtract(&histogram);
        assert_eq!(rest, Histogram::default());
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
