//! A walk back in time along waits: what all critical paths have in common.

use crate::Timestamp;

/// An entity (a thread, a goroutine) that a [`Walk`] follows back in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Step<E, L> {
    /// The entity.
    pub entity: E,
    /// It is followed back to this time: the begin of the wait that led to it, or of the whole.
    pub lower: Timestamp,
    /// The link that led to it.
    pub link: L,
    /// Whether too many steps did not go back in time: the rest is to be
    /// [explained](Walk::explain) at once.
    pub is_stuck: bool,
    /// The time at which it was reached.
    reached: Timestamp,
}

/// A walk back in time from the end of an interval to its begin.
///
/// It starts with one entity. Each [`Walk::next_step`] names the entity that is followed, and the
/// caller, who has its history, either [explains](Walk::explain) the time that precedes
/// [`Walk::at`], or continues with another entity: [`Walk::follow`] with the one that ended a wait,
/// until the time at which the wait began; [`Walk::turn`] with one that replaces it, such as its
/// creator. What was explained are consecutive intervals, latest first: they sum to the whole.
///
/// It ends with any history. Each entity is followed at most once at a time, chains are limited
/// to [`Walk::MAX_DEPTH`], and a history that leads nowhere is [given up](Step::is_stuck).
///
/// ```
/// use trace_common::{Timestamp, Walk};
///
/// // `A` waits from 20 to 70, until `B` wakes it.
/// let at = Timestamp::from_nanos;
/// let mut walk = Walk::new('A', (), at(0), at(100));
/// let mut pieces = Vec::new();
/// while let Some(step) = walk.next_step() {
///     if step.entity == 'A' && walk.at() == at(70) && walk.follow('B', at(20), ()) {
///         continue;
///     }
///     let end = walk.at();
///     let begin = if step.entity == 'A' && end == at(100) { at(70) } else { step.lower };
///     walk.explain(begin);
///     pieces.push((step.entity, end.nanos_since(begin)));
/// }
/// assert_eq!(pieces, [('A', 30), ('B', 50), ('A', 20)]);
/// ```
#[derive(Clone, Debug)]
pub struct Walk<E, L> {
    steps: Vec<Step<E, L>>,
    at: Timestamp,
    /// `at` at the last step.
    before: Timestamp,
    /// Steps that did not go back in time.
    still: usize,
}

impl<E: Copy + Eq, L: Copy> Walk<E, L> {
    /// Waits that lead from one entity to the next.
    pub const MAX_DEPTH: usize = 1 << 10;

    /// Makes a walk of `subject` from `end` back to `begin`.
    pub fn new(subject: E, link: L, begin: Timestamp, end: Timestamp) -> Self {
        let first = Step { entity: subject, lower: begin, link, is_stuck: false, reached: end };
        Self { steps: vec![first], at: end, before: end, still: 0 }
    }

    /// The time up to which nothing is explained yet.
    pub const fn at(&self) -> Timestamp {
        self.at
    }

    /// The number of waits that lead from the subject to the entity that is followed.
    pub fn depth(&self) -> u32 {
        u32::try_from(self.steps.len().saturating_sub(1)).unwrap_or(u32::MAX)
    }

    /// The entity that is followed, or `None` at the end of the walk.
    pub fn next_step(&mut self) -> Option<Step<E, L>> {
        while self.steps.last().is_some_and(|step| self.at <= step.lower) {
            self.steps.pop();
        }
        self.still = if self.at < self.before { 0 } else { self.still + 1 };
        self.before = self.at;
        let is_stuck = self.still > 2 * Self::MAX_DEPTH;
        self.steps.last().map(|step| Step { is_stuck, ..*step })
    }

    /// The time back to `begin` is explained. A time after [`Walk::at`] changes nothing.
    pub fn explain(&mut self, begin: Timestamp) {
        self.at = self.at.min(begin);
    }

    /// Continues with the entity that ended a wait, back to the `begin` of the wait. Returns `false`
    /// if that leads nowhere: it is followed at this time already, or the chain is too long.
    pub fn follow(&mut self, entity: E, begin: Timestamp, link: L) -> bool {
        let is_possible = self.steps.len() < Self::MAX_DEPTH && !self.is_followed(entity);
        if is_possible {
            let lower = self.steps.last().map_or(begin, |step| step.lower.max(begin));
            let reached = self.at;
            self.steps.push(Step { entity, lower, link, is_stuck: false, reached });
        }
        is_possible
    }

    /// Continues with another entity in place of the one that is followed.
    pub fn turn(&mut self, entity: E, change: impl FnOnce(&mut L)) {
        if let Some(last) = self.steps.last_mut() {
            (last.entity, last.reached) = (entity, self.at);
            change(&mut last.link);
        }
    }

    /// Whether an entity is followed without having gone back in time since.
    pub fn is_followed(&self, entity: E) -> bool {
        let mut now = self.steps.iter().rev().take_while(|step| step.reached == self.at);
        now.any(|step| step.entity == entity)
            || self.steps.last().is_some_and(|step| step.entity == entity)
    }
}

/// Divides the time from `begin` to `end` where spans begin or end.
///
/// ```
/// use trace_common::{Timestamp, divide};
///
/// let at = Timestamp::from_nanos;
/// let parts: Vec<_> = divide(at(0), at(10), [at(7), at(3), at(20), at(3)]).collect();
/// assert_eq!(parts, [(at(0), at(3)), (at(3), at(7)), (at(7), at(10))]);
/// ```
pub fn divide(
    begin: Timestamp,
    end: Timestamp,
    bounds: impl IntoIterator<Item = Timestamp>,
) -> impl Iterator<Item = (Timestamp, Timestamp)> {
    let within = bounds.into_iter().filter(|at| *at > begin && *at < end);
    let mut cuts: Vec<Timestamp> = within.chain([end]).collect();
    cuts.sort_unstable();
    cuts.dedup();
    cuts.into_iter().scan(begin, |begin, end| Some((std::mem::replace(begin, end), end)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Whatever a history says, the walk ends, and the pieces are the whole.
        #[test]
        fn pieces_are_consecutive(
            answers in proptest::collection::vec((0_u8..4, 0_u8..4, 0_i64..110), 1..40),
        ) {
            let at = Timestamp::from_nanos;
            let mut walk = Walk::new(0_u8, (), at(0), at(100));
            let (mut end, mut answers) = (at(100), answers.iter().cycle());
            while let Some(step) = walk.next_step() {
                prop_assert!(step.lower < walk.at());
                let (kind, entity, time) = *answers.next().unwrap();
                match kind {
                    _ if step.is_stuck => walk.explain(step.lower),
                    0 => walk.explain(at(time).max(step.lower)),
                    1 => walk.turn(entity, |()| ()),
                    _ => { walk.follow(entity, at(time), ()); }
                }
                prop_assert!(walk.at() <= end);
                end = walk.at();
            }
            prop_assert_eq!(walk.at(), at(0));
        }
    }

    #[test]
    fn chains_end() {
        let at = Timestamp::from_nanos;
        let mut walk = Walk::new(0, (), at(0), at(10));
        while let Some(step) = walk.next_step() {
            if !walk.follow(step.entity + 1, at(0), ()) {
                break;
            }
        }
        assert_eq!(walk.depth() as usize, Walk::<i32, ()>::MAX_DEPTH - 1);
    }
}
