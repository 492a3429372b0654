//! Go's `slices.SortFunc`, to the permutation.
//!
//! The sort is not stable, so the order of equal elements depends on every choice of the algorithm.
//! Go's reader sorts events by time with it, and the order of events with equal times is visible in
//! its output. So the same choices are made here: those of pattern-defeating quicksort (Orson
//! Peters, 2021) with the constants of Go's `slices` package, which have not changed since Go 1.19.
//!
//! ```text
//!  ≤ 12 elements          insertion sort (stable: ties stay in order)
//!  else                   pivot: median of 3, or of 3 medians of 3 from 50 elements on
//!    samples in order     try a few insertions; mostly-sorted input is done
//!    samples reversed     reverse the range first
//!    pivot = left border  split off everything equal to it
//!    lopsided split       shuffle three elements; too often: heap sort
//! ```

use std::ops::Range;

/// Ranges up to this length are sorted by insertion.
const INSERTION_MAX: usize = 12;
/// From this length on, the pivot is a median of medians, and repair by insertion may be tried.
const LONG: usize = 50;
/// Number of out-of-order pairs that are repaired before a range counts as not "mostly sorted".
const REPAIRS: usize = 5;

/// Sorts `v` by `less`, a strict weak order, with the same result as Go's `slices.SortFunc`
/// (and `sort.Slice`, which makes the same choices) on a 64-bit machine.
pub(crate) fn sort_by<T>(v: &mut [T], less: impl FnMut(&T, &T) -> bool) {
    let all = 0..v.len();
    let shuffles = usize::BITS - v.len().leading_zeros();
    Sorter { v, less }.quick_sort(all, shuffles);
}

/// The trend of a range, as seen in the samples for the pivot.
#[derive(PartialEq, Eq)]
enum Trend {
    Rising,
    Falling,
    Unknown,
}

struct Sorter<'a, T, F> {
    v: &'a mut [T],
    less: F,
}

impl<T, F: FnMut(&T, &T) -> bool> Sorter<'_, T, F> {
    #[expect(
        clippy::indexing_slicing,
        reason = "as in the algorithm, both are in the range that is sorted, whatever `less` answers; tests sort nonsense"
    )]
    fn less(&mut self, a: usize, b: usize) -> bool {
        (self.less)(&self.v[a], &self.v[b])
    }

    /// Sorts a range none of whose elements is less than those to its left. `shuffles` is the
    /// number of lopsided splits that are still allowed.
    fn quick_sort(&mut self, mut range: Range<usize>, mut shuffles: u32) {
        let mut balanced = true;
        let mut partitioned = true;
        loop {
            let len = range.len();
            if len <= INSERTION_MAX {
                return self.insertion_sort(range);
            }
            if shuffles == 0 {
                return self.heap_sort(range);
            }
            if !balanced {
                self.shuffle(range.clone());
                shuffles -= 1;
            }
            let (mut pivot, mut trend) = self.choose_pivot(&range);
            if trend == Trend::Falling {
                #[expect(clippy::indexing_slicing, reason = "the range is one of the slice")]
                self.v[range.clone()].reverse();
                pivot = range.end - 1 - (pivot - range.start);
                trend = Trend::Rising;
            }
            if balanced && partitioned && trend == Trend::Rising && self.repair(&range) {
                return;
            }
            if range.start > 0 && !self.less(range.start - 1, pivot) {
                // The pivot equals the element to the left of the range: nothing in the range is
                // less.
                range.start = self.split_off_equal(&range, pivot);
                continue;
            }
            let middle;
            (middle, partitioned) = self.partition(&range, pivot);
            let (left, right) = (range.start..middle, middle + 1..range.end);
            // The element at `middle` counts as part of the right side here.
            if left.len() < range.end - middle {
                balanced = left.len() >= len / 8;
                self.quick_sort(left, shuffles);
                range = right;
            } else {
                balanced = range.end - middle >= len / 8;
                self.quick_sort(right, shuffles);
                range = left;
            }
        }
    }

    fn insertion_sort(&mut self, range: Range<usize>) {
        for i in range.start + 1..range.end {
            self.sink(i, range.start);
        }
    }

    /// Moves the element at `i` to the left past all greater elements, but not past `first`.
    fn sink(&mut self, mut i: usize, first: usize) {
        while i > first && self.less(i, i - 1) {
            self.v.swap(i, i - 1);
            i -= 1;
        }
    }

    fn heap_sort(&mut self, range: Range<usize>) {
        let first = range.start;
        for root in (0..=(range.len() - 1) / 2).rev() {
            self.sift_down(first, root, range.len());
        }
        for len in (0..range.len()).rev() {
            self.v.swap(first, first + len);
            self.sift_down(first, 0, len);
        }
    }

    /// Restores the heap property below `root` in the heap of `len` elements at `first`; the
    /// greatest element is on top.
    fn sift_down(&mut self, first: usize, mut root: usize, len: usize) {
        loop {
            let mut child = 2 * root + 1;
            if child >= len {
                return;
            }
            if child + 1 < len && self.less(first + child, first + child + 1) {
                child += 1;
            }
            if !self.less(first + root, first + child) {
                return;
            }
            self.v.swap(first + root, first + child);
            root = child;
        }
    }

    /// Swaps three elements of the middle with others. A generator seeded with the length chooses
    /// them, which breaks patterns that lead to lopsided splits.
    fn shuffle(&mut self, range: Range<usize>) {
        let len = range.len();
        let mask = u64::MAX >> (len as u64).leading_zeros();
        let mut random = len as u64;
        let middle = range.start + len / 4 * 2;
        for i in middle - 1..=middle + 1 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let other = (random & mask) as usize;
            let other = if other >= len { other - len } else { other };
            self.v.swap(i, range.start + other);
        }
    }

    /// Returns an index whose element is likely to be near the median of a range of more than
    /// [`INSERTION_MAX`] elements.
    fn choose_pivot(&mut self, range: &Range<usize>) -> (usize, Trend) {
        let quarter = range.len() / 4;
        let mut samples = [1, 2, 3].map(|i| range.start + i * quarter);
        let mut swaps = 0;
        if range.len() >= LONG {
            samples = samples.map(|i| self.median([i - 1, i, i + 1], &mut swaps));
        }
        let pivot = self.median(samples, &mut swaps);
        let trend = match swaps {
            0 => Trend::Rising,
            12 => Trend::Falling, // every pair of all four medians
            _ => Trend::Unknown,
        };
        (pivot, trend)
    }

    /// Returns the index, of three, that has the median; counts the out-of-order pairs.
    #[expect(clippy::indexing_slicing, reason = "constant indexes of three")]
    fn median(&mut self, mut at: [usize; 3], swaps: &mut u32) -> usize {
        for pair in [0, 1, 0] {
            if self.less(at[pair + 1], at[pair]) {
                at.swap(pair, pair + 1);
                *swaps += 1;
            }
        }
        at[1]
    }

    /// Repairs a few out-of-order pairs; returns whether the range is sorted afterwards.
    fn repair(&mut self, range: &Range<usize>) -> bool {
        let mut i = range.start + 1;
        for _ in 0..REPAIRS {
            while i < range.end && !self.less(i, i - 1) {
                i += 1;
            }
            if i == range.end {
                return true;
            }
            if range.len() < LONG {
                return false;
            }
            self.v.swap(i, i - 1);
            if i - range.start >= 2 {
                self.sink(i - 1, 0); // the element to the left of the range stops it
            }
            let mut up = i + 1;
            while up < range.end && self.less(up, up - 1) {
                self.v.swap(up, up - 1);
                up += 1;
            }
        }
        false
    }

    /// Moves the elements less than the one at `pivot` before it and the rest after it. Returns its
    /// new index and whether all elements but the pivot were in place already.
    fn partition(&mut self, range: &Range<usize>, pivot: usize) -> (usize, bool) {
        let first = range.start;
        self.v.swap(first, pivot);
        let (mut left, mut right) = (first + 1, range.end - 1);
        let mut in_place = true;
        loop {
            while left <= right && self.less(left, first) {
                left += 1;
            }
            while left <= right && !self.less(right, first) {
                right -= 1;
            }
            if left > right {
                self.v.swap(right, first);
                return (right, in_place);
            }
            in_place = false;
            self.v.swap(left, right);
            left += 1;
            right -= 1;
        }
    }

    /// Moves the elements that equal the one at `pivot`, the least of the range, to the front.
    /// Returns the index of the first greater element.
    fn split_off_equal(&mut self, range: &Range<usize>, pivot: usize) -> usize {
        let first = range.start;
        self.v.swap(first, pivot);
        let (mut left, mut right) = (first + 1, range.end - 1);
        loop {
            while left <= right && !self.less(first, left) {
                left += 1;
            }
            while left <= right && self.less(first, right) {
                right -= 1;
            }
            if left > right {
                return left;
            }
            self.v.swap(left, right);
            left += 1;
            right -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Generated by `tests/data/gosort/main.go` with Go 1.27.3, which has the same patterns: hashes
    /// of the permutations of all lengths in each of [`GROUPS`].
    #[rustfmt::skip]
    const GOLDEN: [(&str, [u64; GROUPS.len()]); 17] = [
        ("equal", [0x501e7e4ddbad3c77, 0xc6a7a3bc4624ca8d, 0x3c40e8272a6b453d, 0x67d7bc7d6b13f3ff, 0xbcdc1ec5b36248a2]),
        ("two values", [0xeeb182116b3f078b, 0x503b22546cdcc1bf, 0x6abcaee633aec767, 0x3f64a4409498ed39, 0x984dd669f9dae6e8]),
        ("three values", [0xa65c56e9512081b5, 0x8bb8f330d468b477, 0xd6a08c2b3ffafd4b, 0x7a65aa0bf4444079, 0xd14eafc1813d7a34]),
        ("ten values", [0x2347975268aba1, 0xd7a81c30eabac35d, 0x1232c7008ee5bdcb, 0x2135523b8117f4f3, 0x970c38a639bc36cc]),
        ("hundred values", [0xfa709ee270f4807, 0x9a20bf2ed0f27a95, 0x4a134651896c3851, 0x464b1351000b6b35, 0x8a96eb9994288a46]),
        ("many values", [0xf32324db2e51067, 0x83fb1563d8da5ff1, 0x1c7ee50a5701f22f, 0x9d0f8a8fe7622301, 0xa6515a6dd057ecda]),
        ("few ties", [0x848e53e923d1080b, 0xbe0d762c21dded13, 0x9df331603d46a9, 0x57269e9cdafee4d1, 0x5a02c18755278b8c]),
        ("rising", [0x501e7e4ddbad3c77, 0xc6a7a3bc4624ca8d, 0x3c40e8272a6b453d, 0x67d7bc7d6b13f3ff, 0xbcdc1ec5b36248a2]),
        ("rising ties", [0x501e7e4ddbad3c77, 0xc6a7a3bc4624ca8d, 0x3c40e8272a6b453d, 0x67d7bc7d6b13f3ff, 0xbcdc1ec5b36248a2]),
        ("falling", [0xeb6ecc55dd560f55, 0x9e1a2e0ebf29bae7, 0xd8f5ca16e25b15c3, 0x3cf2578a040c19bf, 0x7347d7ede300d6ec]),
        ("falling ties", [0x8ac43d717124d62b, 0xeeda0bfab2a4a3ff, 0x531d8fb5ee02ce91, 0x88449ec2afbfd061, 0xc2459d0e7730bca2]),
        ("organ pipe", [0xf50c47b1c2ac4cc9, 0x29de964477f0f97f, 0x1ffdf2e2f3c8fe5, 0xbf279ee42291c71, 0x5af924d9d15c2956]),
        ("sawtooth", [0x501e7e4ddbad3c77, 0x43d30da972357123, 0x46f1bd37fcfee35, 0x3395ab021cb95985, 0x1b771a011e59e88e]),
        ("interleaved", [0xe70cd62c9e8cbebf, 0x5fed67a4f5f5b651, 0x8d4687b9c88b54a5, 0xde9aa45f3639d38f, 0xf967beb8501df4e6]),
        ("nearly sorted", [0xcea41bfaa80fe0f7, 0x51ea7c02f2aac55, 0x8dede908bb3bec89, 0x21750208c6c3e295, 0x2cc88dcda6d93d0a]),
        ("one swap", [0x2ebee6e8b1104dd3, 0x9f1daf17fb4e6cc1, 0x5176f1ea0efa1439, 0x1a6de5602f99b8b7, 0x1fb6a43016016d2e]),
        ("adversary", [0x501e7e4ddbad3c77, 0xa2d51cfc970a88c3, 0xd44f79337d25bbf9, 0x62eba2d57e5cdbcb, 0xff238cfbc5585c60]),
    ];

    const GROUPS: [(u64, u64, usize); 5] =
        [(0, 13, 1), (13, 50, 1), (50, 301, 1), (301, 1500, 47), (1500, 5001, 250)];

    fn splitmix64(state: &mut u64) -> u64 {
        *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = *state;
        let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn key(pattern: &str, i: u64, n: u64, random: &mut u64) -> u64 {
        match pattern {
            "equal" => 7,
            "two values" => splitmix64(random) % 2,
            "three values" => splitmix64(random) % 3,
            "ten values" => splitmix64(random) % 10,
            "hundred values" => splitmix64(random) % 100,
            "many values" => splitmix64(random) % (1 << 40),
            "few ties" => splitmix64(random) % (n * 4 + 1),
            "rising" => i,
            "rising ties" => i / 7,
            "falling" => n - i,
            "falling ties" => (n - i) / 5,
            "organ pipe" => i.min(n - i),
            "sawtooth" => i % 17,
            "interleaved" => i % 2 * n + i / 3,
            "nearly sorted" if splitmix64(random) % 64 == 0 => splitmix64(random) % (n + 1),
            "nearly sorted" => i,
            "one swap" if i == n / 3 => n,
            "one swap" => i / 2,
            _ => unreachable!("{pattern}"),
        }
    }

    fn sort_pattern(pattern: &str, n: u64) -> Vec<u64> {
        let mut random = n;
        let mut items: Vec<(u64, u64)> =
            (0..n).map(|i| (key(pattern, i, n, &mut random), i)).collect();
        sort_by(&mut items, |a, b| a.0 < b.0);
        assert!(items.is_sorted_by_key(|item| item.0));
        items.into_iter().map(|item| item.1).collect()
    }

    /// McIlroy's "killer adversary": it decides the order on demand such that every pivot is bad.
    /// The result is the same only if the sequence of comparisons is the same.
    fn sort_adversary(n: u64) -> Vec<u64> {
        let mut value = vec![n; n as usize];
        let (mut solid, mut candidate) = (0, 0);
        let mut items: Vec<u64> = (0..n).collect();
        sort_by(&mut items, |&a, &b| {
            let (x, y) = (a as usize, b as usize);
            if value[x] == n && value[y] == n {
                value[if x == candidate { x } else { y }] = solid;
                solid += 1;
            }
            if value[x] == n {
                candidate = x;
            } else if value[y] == n {
                candidate = y;
            }
            value[x] < value[y]
        });
        items
    }

    #[test]
    fn ties_end_up_where_go_puts_them() {
        for (pattern, golden) in GOLDEN {
            for ((start, end, step), golden) in GROUPS.into_iter().zip(golden) {
                let mut hash = 0xcbf2_9ce4_8422_2325u64;
                for n in (start..end).step_by(step) {
                    let order = match pattern {
                        "adversary" => sort_adversary(n),
                        _ => sort_pattern(pattern, n),
                    };
                    for index in order {
                        hash = (hash ^ index).wrapping_mul(0x100_0000_01b3);
                    }
                }
                assert_eq!(hash, golden, "{pattern}, lengths {start}..{end}");
            }
        }
    }

    proptest! {
        #[test]
        fn sorts(mut v: Vec<u8>) {
            let mut expected = v.clone();
            expected.sort_unstable();
            sort_by(&mut v, |a, b| a < b);
            prop_assert_eq!(v, expected);
        }

        /// An inconsistent order still terminates with a permutation.
        #[test]
        fn survives_nonsense(len in 0usize..600, seed: u64) {
            let mut random = seed;
            let mut v: Vec<usize> = (0..len).collect();
            sort_by(&mut v, |_, _| splitmix64(&mut random) % 2 == 0);
            v.sort_unstable();
            prop_assert!(v.into_iter().eq(0..len));
        }
    }
}
