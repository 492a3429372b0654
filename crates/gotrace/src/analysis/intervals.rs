//! The intervals that goroutines spend in their states, for the analyses of the scheduler.

use super::generation::Generation;
use super::step::{Change, Step};
use super::syscalls::Syscalls;
use crate::event::Event;
use crate::id::{GoId, GoState, ProcId, ProcState};
use trace_common::{IdMap, Timestamp};

/// An interval of a goroutine in one state, when it ends.
pub(super) struct Interval<T> {
    pub(super) goroutine: GoId,
    pub(super) state: GoState,
    pub(super) start: Timestamp,
    pub(super) end: Timestamp,
    /// The proc is no longer with the system call since this time.
    pub(super) no_proc: Option<Timestamp>,
    /// Whether the state began before the trace, or before the goroutine is first mentioned.
    pub(super) is_cut: bool,
    /// The data of the analysis that was given when the state began.
    pub(super) data: T,
}

#[derive(Debug)]
struct Open<T> {
    state: GoState,
    start: Timestamp,
    proc: ProcId,
    no_proc: Option<Timestamp>,
    is_cut: bool,
    data: T,
}

/// Follows the states of goroutines.
#[derive(Debug)]
pub(super) struct Intervals<T> {
    open: IdMap<Option<Open<T>>>,
    pub(super) syscalls: Syscalls,
    generation: Generation,
    /// Whether there was a loss.
    is_resumed: bool,
}

impl<T> Default for Intervals<T> {
    fn default() -> Self {
        Self {
            open: IdMap::default(),
            syscalls: Syscalls::default(),
            generation: Generation::default(),
            is_resumed: false,
        }
    }
}

impl<T: Default> Intervals<T> {
    /// Processes the next event, and its change. If a goroutine changes its state, `data` is called
    /// for the new one, with the data of the previous one, and the result is the interval of that.
    #[inline]
    pub(super) fn push(
        &mut self,
        event: Event<'_>,
        change: Option<Change>,
        data: impl FnOnce(&Step, Option<&T>) -> T,
    ) -> Option<Interval<T>> {
        let now = event.time();
        self.generation.push(event);
        match change {
            // The runtime repeats all states when a generation starts.
            Some(Change::Goroutine(step)) if step.from != step.to => {
                self.goroutine(event, &step, data)
            }
            // After a loss, that may be the first mention.
            Some(Change::Goroutine(step)) if self.is_resumed && !self.contains(step.id) => {
                let step = Step { from: GoState::Undetermined, ..step };
                self.goroutine(event, &step, data)
            }
            Some(Change::Proc(id, from, to)) if from != to && to == ProcState::Idle => {
                let goroutine = self.syscalls.lose(id);
                let open = goroutine.and_then(|id| self.open.get_mut(id.0));
                if let Some(open) = open.and_then(Option::as_mut) {
                    open.no_proc = Some(now);
                }
                None
            }
            _ => None,
        }
    }

    #[inline]
    fn goroutine(
        &mut self,
        event: Event<'_>,
        step: &Step,
        data: impl FnOnce(&Step, Option<&T>) -> T,
    ) -> Option<Interval<T>> {
        let Step { id, from, to, .. } = *step;
        let (now, mut proc) = (event.time(), event.proc());
        if to == GoState::Syscall && event.generation() == 0 && event.record.is_of_v1_start() {
            // Tracing starts while the world is stopped, which takes the Ps of system calls away.
            proc = ProcId::NONE;
        }
        let generation = self.generation.start(event);
        let mut slot = self.open.get_mut(id.0);
        let known = slot.as_mut().and_then(|slot| slot.take());
        let before = match from {
            GoState::NotExist => None,
            GoState::Undetermined => None, // the first mention: in this state since then
            _ => known.or_else(|| {
                let (data, no_proc) = (T::default(), None);
                Some(Open { state: from, start: generation, proc, no_proc, is_cut: true, data })
            }),
        };
        if let Some(before) = before.as_ref().filter(|open| open.state == GoState::Syscall) {
            self.syscalls.end(before.proc, id);
        }
        if to == GoState::NotExist {
            self.open.remove(id.0);
        } else {
            let is_first = from == GoState::Undetermined;
            let start = if is_first { generation } else { now };
            let no_proc = (to == GoState::Syscall && !proc.is_some()).then_some(start);
            let data = data(step, before.as_ref().map(|open| &open.data));
            let open = Open { state: to, start, proc, no_proc, is_cut: is_first, data };
            match slot {
                Some(slot) => *slot = Some(open),
                None => *self.open.insert(id.0) = Some(open),
            }
            if to == GoState::Syscall && proc.is_some() {
                self.syscalls.begin(proc, id);
            }
        }
        before.map(|open| open.close(id, now))
    }

    /// Intervals of a part of a trace.
    pub(super) fn part() -> Self {
        Self { syscalls: Syscalls::part(), ..Self::default() }
    }

    /// Whether the state of a goroutine is known.
    #[inline]
    pub(super) fn contains(&self, id: GoId) -> bool {
        self.open.contains(id.0)
    }

    /// Forgets the state of a goroutine.
    pub(super) fn remove(&mut self, id: GoId) {
        self.open.remove(id.0);
    }

    /// Replaces the data of each state.
    pub(super) fn map(&mut self, data: impl Fn(T) -> T) {
        for id in self.open.ids().collect::<Vec<_>>() {
            if let Some(open) = self.open.get_mut(id).and_then(Option::as_mut) {
                open.data = data(std::mem::take(&mut open.data));
            }
        }
    }

    /// Adds the states at the end of the part that follows.
    pub(super) fn join(&mut self, mut part: Self) {
        self.syscalls.join(&part.syscalls);
        for id in part.open.ids().collect::<Vec<_>>() {
            *self.open.insert(id) = part.open.remove(id).and_then(Option::take);
        }
    }

    /// The data of the state of a goroutine.
    pub(super) fn data_mut(&mut self, id: GoId) -> Option<&mut T> {
        self.open.get_mut(id.0)?.as_mut().map(|open| &mut open.data)
    }

    /// All states are lost since `last`: the intervals that this cuts off.
    pub(super) fn loss(&mut self, last: Timestamp) -> impl Iterator<Item = Interval<T>> + use<T> {
        let lost = std::mem::replace(self, Self { is_resumed: true, ..Self::default() });
        lost.finish(last)
    }

    /// The intervals that the end of the trace cuts off.
    pub(super) fn finish(mut self, last: Timestamp) -> impl Iterator<Item = Interval<T>> {
        let ids: Vec<i64> = self.open.ids().collect();
        ids.into_iter()
            .filter_map(move |id| Some(self.open.remove(id)?.take()?.close(GoId(id), last)))
    }
}

impl<T> Open<T> {
    fn close(self, goroutine: GoId, end: Timestamp) -> Interval<T> {
        let Self { state, start, no_proc, is_cut, data, .. } = self;
        Interval { goroutine, state, start, end, no_proc, is_cut, data }
    }
}
