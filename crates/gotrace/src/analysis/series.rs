//! Time spent in each of some kinds, over time.

use trace_common::Timestamp;

/// Sums of `N` kinds in intervals of time of one width. The width doubles when the trace is longer
/// than they cover, so that their number is bounded.
#[derive(Clone, Debug)]
pub(super) struct Series<const N: usize> {
    start: Option<Timestamp>,
    /// The logarithm of the width in nanoseconds.
    shift: u32,
    bins: Vec<[u64; N]>,
    max: usize,
}

impl<const N: usize> Series<N> {
    /// At most `max` intervals, which is made even.
    pub(super) fn new(max: usize) -> Self {
        Self { start: None, shift: 10, bins: Vec::new(), max: max.max(2).next_multiple_of(2) }
    }

    /// The start of the first interval is that of the first call.
    pub(super) fn begin(&mut self, at: Timestamp) {
        self.start.get_or_insert(at);
    }

    /// The start of the first interval is another one: nothing has been added yet.
    pub(super) fn restart(&mut self, at: Timestamp) {
        self.start = Some(at);
    }

    /// Adds the time from `from` to `to`, `count` times. The part before the start does not count.
    pub(super) fn add(&mut self, kind: usize, from: Timestamp, to: Timestamp, count: u64) {
        let start = *self.start.get_or_insert(from);
        let from = from.nanos_since(start).max(0).unsigned_abs();
        let to = to.nanos_since(start).max(0).unsigned_abs();
        if to <= from || count == 0 {
            return;
        }
        while (to - 1) >> self.shift >= self.max as u64 {
            self.double();
        }
        let (first, last) = (from >> self.shift, (to - 1) >> self.shift);
        if self.bins.len() as u64 <= last {
            self.bins.resize(last as usize + 1, [0; N]);
        }
        for bin in first..=last {
            let begin = from.max(bin << self.shift);
            let end = to.min((bin + 1).saturating_mul(self.width()));
            if let Some(sum) = self.bins.get_mut(bin as usize).and_then(|bin| bin.get_mut(kind)) {
                *sum = sum.saturating_add((end - begin).saturating_mul(count));
            }
        }
    }

    /// Adds the sums of another series with the same start and the same maximum number of intervals.
    pub(super) fn merge(&mut self, mut other: Self) {
        self.start = self.start.or(other.start);
        while self.shift < other.shift {
            self.double();
        }
        while other.shift < self.shift {
            other.double();
        }
        if self.bins.len() < other.bins.len() {
            self.bins.resize(other.bins.len(), [0; N]);
        }
        for (bin, other) in self.bins.iter_mut().zip(&other.bins) {
            add(bin, other);
        }
    }

    fn double(&mut self) {
        self.shift += 1;
        self.bins = self
            .bins
            .chunks(2)
            .map(|pair| {
                let mut sum = [0_u64; N];
                pair.iter().for_each(|bin| add(&mut sum, bin));
                sum
            })
            .collect();
    }

    pub(super) const fn start(&self) -> Option<Timestamp> {
        self.start
    }

    /// The width of the intervals in nanoseconds.
    pub(super) const fn width(&self) -> u64 {
        1 << self.shift
    }

    /// Start and sums of each interval.
    pub(super) fn iter(&self) -> impl ExactSizeIterator<Item = (Timestamp, &[u64; N])> {
        let start = self.start.unwrap_or_default();
        self.bins.iter().enumerate().map(move |(number, bin)| {
            let offset = i64::try_from((number as u64) << self.shift).unwrap_or(i64::MAX);
            (start.saturating_add_nanos(offset), bin)
        })
    }
}

fn add<const N: usize>(sums: &mut [u64; N], other: &[u64; N]) {
    sums.iter_mut().zip(other).for_each(|(sum, n)| *sum = sum.saturating_add(*n));
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn nothing_is_lost(
            intervals in proptest::collection::vec((0_usize..2, 0_i64..1 << 40, 0_i64..1 << 40), 0..40),
            max in 2_usize..20,
        ) {
            let mut series = Series::<2>::new(max);
            series.begin(Timestamp::from_nanos(0));
            let mut sums = [0_u64; 2];
            for (kind, from, length) in intervals {
                let from = Timestamp::from_nanos(from);
                series.add(kind, from, from.saturating_add_nanos(length), 1);
                sums[kind] += length as u64;
            }
            prop_assert!(series.iter().len() <= max.next_multiple_of(2));
            for (kind, sum) in sums.into_iter().enumerate() {
                prop_assert_eq!(series.iter().map(|(_, bin)| bin[kind]).sum::<u64>(), sum);
            }
            for (_, bin) in series.iter() {
                prop_assert!(bin.iter().sum::<u64>() <= 40 * series.width());
            }
        }
    }

    #[test]
    fn the_end_of_time() {
        let mut series = Series::<1>::new(4);
        series.begin(Timestamp::MIN);
        series.add(0, Timestamp::MIN, Timestamp::MAX, 3);
        assert!(series.iter().len() <= 4);
    }
}
