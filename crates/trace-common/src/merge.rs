//! Merging several sources in time order into one stream.

use crate::{Lateness, Timestamp, Tournament};

/// Merges the items of several sources into one stream in time order, up to a watermark before
/// which no more items can arrive.
///
/// Each source pushes items as they arrive, normally in order. An item that is out of order in its
/// source is still sorted in, unless it is earlier than an item that was already released. Items up
/// to the watermark are released in time order. Of items with the same time, the one of the lower
/// source comes first, and within a source the one that was pushed first.
///
/// ```text
///  source 0   ──1────4─────────9──▶
///  source 1   ────2──────6────────▶      watermark 6: 1 2 4 6 are released, in this order;
///                        ▲               9 waits.
/// ```
///
/// An item that is earlier than a released one is late: it is released next and marked, never
/// dropped. Late items are counted.
///
/// ```
/// use trace_common::{Merge, Timestamp};
///
/// let ns = Timestamp::from_nanos;
/// let mut merge = Merge::new(2);
/// merge.push(0, ns(1), 'a');
/// merge.push(0, ns(9), 'd');
/// merge.push(1, ns(6), 'c');
/// merge.push(1, ns(2), 'b'); // out of order in its source, but in time
/// let mut out = String::new();
/// while let Some(item) = merge.pop(ns(6)) {
///     out.push(item.value);
/// }
/// assert_eq!(out, "abc");
///
/// merge.push(1, ns(5), 'x');
/// let late = merge.pop(ns(6)).expect("it is released");
/// assert!(late.late && merge.late() == 1);
/// assert_eq!(merge.pop(Timestamp::MAX).map(|i| i.value), Some('d'));
/// ```
///
/// # Cost
///
/// Items stay where their source pushed them until they are released, so `T` should be small: large
/// records stay in the buffers they were read into, and `T` is their position. A release compares
/// the first items of the sources in a [`Tournament`], which takes log₂(sources) comparisons. When
/// one source leads for several items, its items are compared with the runner-up alone.
#[derive(Clone, Debug)]
pub struct Merge<T> {
    sources: Vec<Source<T>>,
    tournament: Tournament,
    /// Until when the source of the last item leads, while its place in the tree is out of date.
    lead: Option<Lead>,
    /// Items in a row from one source.
    wins: u32,
    len: usize,
    lateness: Lateness,
}

/// The items of a source. Those before `next` were released.
#[derive(Clone, Debug)]
struct Source<T> {
    items: Vec<(Timestamp, T)>,
    next: usize,
}

#[derive(Clone, Copy, Debug)]
struct Lead {
    source: usize,
    until: Timestamp,
}

/// Items in a row from one source after which it is expected to lead for longer.
const GALLOP: u32 = 4;

/// Smallest number of released items of a source that are removed together.
const MIN_BATCH: usize = 1024;

/// An item that [`Merge::pop`] released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Merged<T> {
    /// The number of its source.
    pub source: usize,
    /// The time of the item.
    pub time: Timestamp,
    /// The item.
    pub value: T,
    /// Whether a later item was released before.
    pub late: bool,
}

impl<T: Copy> Source<T> {
    #[inline]
    fn first(&self) -> Option<Timestamp> {
        self.items.get(self.next).map(|(at, _)| *at)
    }

    /// Adds an item; returns whether it is the first now.
    #[inline]
    fn push(&mut self, at: Timestamp, value: T) -> bool {
        if self.next == self.items.len() {
            self.items.clear();
            self.next = 0;
        } else if self.next >= MIN_BATCH && self.next * 2 >= self.items.len() {
            // At most one item moves for each that was released.
            self.items.drain(..self.next);
            self.next = 0;
        }
        match self.items.last() {
            Some((last, _)) if *last > at => self.insert(at, value),
            _ => {
                self.items.push((at, value));
                self.items.len() - self.next == 1
            }
        }
    }

    /// Adds an item before later ones.
    #[cold]
    fn insert(&mut self, at: Timestamp, value: T) -> bool {
        let waiting = self.items.get(self.next..).unwrap_or_default();
        let place = self.next + waiting.partition_point(|(t, _)| *t <= at);
        self.items.insert(place, (at, value));
        place == self.next
    }
}

impl<T: Copy> Merge<T> {
    /// Makes a merge of `sources` sources, numbered from 0. More can be added.
    pub fn new(sources: usize) -> Self {
        let mut this = Self {
            sources: Vec::new(),
            tournament: Tournament::new(sources),
            lead: None,
            wins: 0,
            len: 0,
            lateness: Lateness::default(),
        };
        for _ in 0..sources {
            this.add_source();
        }
        this
    }

    /// Adds a source and returns its number.
    pub fn add_source(&mut self) -> usize {
        self.sources.push(Source { items: Vec::new(), next: 0 });
        self.tournament.grow(self.sources.len());
        self.sources.len() - 1
    }

    /// Adds an item of a source.
    ///
    /// If the source does not exist yet, it is added, together with the sources before it.
    #[inline]
    pub fn push(&mut self, source: usize, at: Timestamp, value: T) {
        while source >= self.sources.len() {
            self.add_source();
        }
        self.len += 1;
        if self.sources.get_mut(source).is_some_and(|s| s.push(at, value)) {
            self.first_changed(source);
        }
    }

    /// A push gave a source another first item.
    fn first_changed(&mut self, source: usize) {
        if let Some(lead) = self.lead.take() {
            self.replay_of(lead.source);
        }
        self.replay_of(source);
    }

    fn replay_of(&mut self, source: usize) {
        let first = self.sources.get(source).and_then(Source::first);
        self.tournament.set(source, first);
    }

    /// Releases the earliest item, if it is not after the watermark.
    ///
    /// The watermark is the time up to which all sources have pushed all items; [`Timestamp::MAX`]
    /// at the end of all sources.
    #[inline]
    pub fn pop(&mut self, watermark: Timestamp) -> Option<Merged<T>> {
        let number = match self.lead {
            Some(lead) => lead.source,
            None => self.tournament.first()?.0,
        };
        let source = self.sources.get_mut(number)?;
        let (at, value) = *source.items.get(source.next)?;
        if at > watermark {
            return None;
        }
        source.next += 1;
        self.len -= 1;
        let next = source.first();
        match (self.lead, next) {
            (Some(lead), Some(next)) if next <= lead.until => {}
            _ => self.next_round(number, next),
        }
        let late = self.lateness.release(at);
        Some(Merged { source: number, time: at, value, late })
    }

    /// Finds the source of the next item, after one of `source` was released and `first` came.
    #[inline]
    fn next_round(&mut self, source: usize, first: Option<Timestamp>) {
        self.lead = None;
        self.tournament.set(source, first);
        if self.tournament.first().is_none_or(|(winner, _)| winner != source) {
            self.wins = 0;
            return;
        }
        self.wins += 1;
        if self.wins >= GALLOP {
            self.lead = Some(Lead { source, until: self.tournament.leads_until(source) });
        }
    }

    /// Number of items that are not released yet.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether all items have been released.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The time of the last unreleased item of a source, up to which the source has pushed.
    pub fn newest_of(&self, source: usize) -> Option<Timestamp> {
        let source = self.sources.get(source)?;
        source.items.get(source.next..)?.last().map(|(at, _)| *at)
    }

    /// Number of items that were released late so far.
    pub const fn late(&self) -> u64 {
        self.lateness.late()
    }

    /// Maximum lateness of the late items, in nanoseconds.
    pub const fn latest_by_nanos(&self) -> i64 {
        self.lateness.latest_by_nanos()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const fn ns(n: i64) -> Timestamp {
        Timestamp::from_nanos(n)
    }

    fn drain<T: Copy>(merge: &mut Merge<T>, watermark: i64) -> Vec<Merged<T>> {
        std::iter::from_fn(|| merge.pop(ns(watermark))).collect()
    }

    #[test]
    fn equal_times_keep_the_order_of_sources_and_of_pushes() {
        let mut merge = Merge::new(2);
        for (source, value) in [(1, 'c'), (0, 'a'), (0, 'b'), (1, 'd')] {
            merge.push(source, ns(5), value);
        }
        let values: String = drain(&mut merge, 5).iter().map(|m| m.value).collect();
        assert_eq!(values, "abcd");
    }

    #[test]
    fn late_items_are_marked_and_counted() {
        let mut merge = Merge::new(1);
        merge.push(0, ns(10), ());
        assert_eq!(drain(&mut merge, 10).len(), 1);
        for at in [10, 7, 3, 11] {
            merge.push(0, ns(at), ());
        }
        let late: Vec<_> = drain(&mut merge, 20).iter().map(|m| (m.time.nanos(), m.late)).collect();
        assert_eq!(late, [(3, true), (7, true), (10, false), (11, false)]);
        assert_eq!((merge.late(), merge.latest_by_nanos()), (2, 7));
    }

    #[test]
    fn sources_are_added_as_they_come() {
        let mut merge = Merge::new(0);
        assert_eq!(merge.pop(Timestamp::MAX), None::<Merged<char>>);
        merge.push(3, ns(1), 'x');
        assert_eq!(merge.newest_of(3), Some(ns(1)));
        assert_eq!(merge.add_source(), 4);
        assert_eq!((merge.len(), merge.newest_of(9)), (1, None));
    }

    #[test]
    fn the_ends_of_time_are_times() {
        let mut merge = Merge::new(3);
        merge.push(2, ns(i64::MAX), 'd');
        merge.push(1, ns(i64::MAX), 'c');
        merge.push(1, ns(i64::MIN), 'b');
        merge.push(0, ns(i64::MIN), 'a');
        let values: String = drain(&mut merge, i64::MAX).iter().map(|m| m.value).collect();
        assert_eq!(values, "abcd");
    }

    #[test]
    fn a_push_ends_the_lead_of_another_source() {
        let mut merge = Merge::new(2);
        for at in 0..20 {
            merge.push(1, ns(at), at);
        }
        merge.push(0, ns(100), 100);
        assert_eq!(drain(&mut merge, 9).len(), 10, "source 1 leads");
        merge.push(0, ns(10), -1);
        merge.push(0, ns(12), -2);
        let values: Vec<_> = drain(&mut merge, 13).iter().map(|m| m.value).collect();
        assert_eq!(values, [-1, 10, 11, -2, 12, 13]);
    }

    /// What the documentation of [`Merge`] says, in the simplest form.
    #[derive(Default)]
    struct Model {
        waiting: Vec<(i64, usize, usize)>,
        released: Option<i64>,
        late: u64,
        latest_by: i64,
    }

    impl Model {
        fn pop(&mut self, watermark: i64) -> Option<Merged<usize>> {
            let first = *self.waiting.iter().min()?;
            let (at, source, value) = first;
            if at > watermark {
                return None;
            }
            self.waiting.retain(|item| *item != first);
            let late = self.released.is_some_and(|released| at < released);
            if late {
                self.late += 1;
                self.latest_by = self.latest_by.max(self.released.unwrap_or(at) - at);
            }
            self.released = self.released.max(Some(at));
            Some(Merged { source, time: ns(at), value, late })
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Push {
            source: usize,
            at: i64,
        },
        /// A source that leads.
        PushRun {
            source: usize,
            at: i64,
            count: i64,
        },
        Pop {
            watermark: i64,
            count: usize,
        },
        Drain {
            watermark: i64,
        },
    }

    /// Few times, so that many are equal.
    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let at = -20i64..60;
        let step = prop_oneof![
            6 => (0usize..9, at.clone()).prop_map(|(source, at)| Step::Push { source, at }),
            2 => (0usize..9, at.clone(), 1i64..30)
                .prop_map(|(source, at, count)| Step::PushRun { source, at, count }),
            3 => (at.clone(), 1usize..12).prop_map(|(watermark, count)| Step::Pop { watermark, count }),
            1 => at.prop_map(|watermark| Step::Drain { watermark }),
        ];
        proptest::collection::vec(step, 0..80)
    }

    proptest! {
        /// Order, ties, lateness and counters are those of the model, also after the source of the
        /// first item changed in the middle of a lead.
        #[test]
        fn the_merge_is_the_model(steps in steps(), sources in 0usize..9) {
            let (mut merge, mut model) = (Merge::new(sources), Model::default());
            let mut pushed = 0;
            let mut push = |merge: &mut Merge<usize>, model: &mut Model, source, at| {
                merge.push(source, ns(at), pushed);
                model.waiting.push((at, source, pushed));
                pushed += 1;
            };
            for step in steps {
                match step {
                    Step::Push { source, at } => push(&mut merge, &mut model, source, at),
                    Step::PushRun { source, at, count } => {
                        for i in 0..count {
                            push(&mut merge, &mut model, source, at + i / 2);
                        }
                    }
                    Step::Pop { watermark, count } => for _ in 0..count {
                        prop_assert_eq!(merge.pop(ns(watermark)), model.pop(watermark));
                    },
                    Step::Drain { watermark } => while let Some(item) = model.pop(watermark) {
                        prop_assert_eq!(merge.pop(ns(watermark)), Some(item));
                    },
                }
                prop_assert_eq!(merge.len(), model.waiting.len());
                prop_assert_eq!(merge.is_empty(), model.waiting.is_empty());
            }
            while let Some(item) = model.pop(i64::MAX) {
                prop_assert_eq!(merge.pop(Timestamp::MAX), Some(item));
            }
            prop_assert_eq!(merge.pop(Timestamp::MAX), None);
            prop_assert_eq!(merge.late(), model.late);
            prop_assert_eq!(merge.latest_by_nanos(), model.latest_by);
        }
    }

    #[test]
    fn released_items_are_forgotten() {
        let mut merge = Merge::new(1);
        for at in 0..1_000_000 {
            merge.push(0, ns(at), ());
            if at >= 10 {
                assert!(merge.pop(ns(at - 10)).is_some());
            }
        }
        assert!(merge.sources[0].items.capacity() <= 4 * MIN_BATCH);
    }
}
