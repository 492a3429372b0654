//! The generations that threads read, and the results that wait to be joined.

use crate::generations::GenerationSpan;
use std::collections::HashMap;
use std::mem;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use trace_common::Timestamp;

/// A generation to read.
#[derive(Clone, Copy)]
pub(super) struct Next {
    pub(super) number: usize,
    pub(super) span: GenerationSpan,
    /// The time of the last event before it.
    pub(super) before: Timestamp,
    /// The start of the trace.
    pub(super) start: Timestamp,
}

/// Generations to read, and their results.
pub(super) struct Queue<P> {
    state: Mutex<State<P>>,
    changed: Condvar,
    /// The number of generations that may be in memory.
    ahead: usize,
}

struct State<P> {
    /// Each with the time of the last event before it.
    spans: Vec<(GenerationSpan, Timestamp)>,
    /// Whether there will be no more.
    complete: bool,
    /// The number of generations that threads have taken, and that were joined.
    begun: usize,
    joined: usize,
    results: HashMap<usize, Option<P>>,
    /// Nobody waits for further results.
    ended: bool,
}

/// Ends the queue when it is dropped.
pub(super) struct Ending<'a, P> {
    queue: &'a Queue<P>,
    on_panic: bool,
}

impl<P> Queue<P> {
    pub(super) fn new(ahead: usize) -> Self {
        let state = State {
            spans: Vec::new(),
            complete: false,
            begun: 0,
            joined: 0,
            results: HashMap::new(),
            ended: false,
        };
        Self { state: Mutex::new(state), changed: Condvar::new(), ahead }
    }

    /// A thread that panics leaves a valid state.
    fn lock(&self) -> MutexGuard<'_, State<P>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut State<P>)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }

    fn wait<T>(&self, mut ready: impl FnMut(&mut State<P>) -> Option<T>) -> Option<T> {
        let mut state = self.lock();
        loop {
            if state.ended {
                return None;
            }
            if let Some(value) = ready(&mut state) {
                return Some(value);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    pub(super) fn add(&self, span: GenerationSpan) {
        self.change(|state| {
            let last = state.spans.last();
            let before = last.map_or(Timestamp::MIN, |(last, before)| last.last.max(*before));
            state.spans.push((span, before));
        });
    }

    pub(super) fn complete(&self) {
        self.change(|state| state.complete = true);
    }

    /// The next generation to read; `None` at the end.
    pub(super) fn next(&self) -> Option<Next> {
        let next = self.wait(|state| {
            let number = state.begun;
            match state.spans.get(number) {
                Some((span, before)) if number < state.joined + self.ahead => {
                    let start = state.spans.first().map_or(span.first, |(first, _)| first.first);
                    state.begun += 1;
                    Some(Some(Next { number, span: *span, before: *before, start }))
                }
                None if state.complete => Some(None),
                _ => None,
            }
        });
        next.flatten()
    }

    pub(super) fn done(&self, number: usize, result: Option<P>) {
        self.change(|state| {
            state.results.insert(number, result);
        });
    }

    /// The result of a generation, if it is there.
    pub(super) fn ready(&self, number: usize) -> Option<Option<P>> {
        let result = self.lock().results.remove(&number)?;
        self.change(|state| state.joined = number + 1);
        Some(result)
    }

    /// Waits for the result of a generation.
    pub(super) fn take(&self, number: usize) -> Option<P> {
        let result = self.wait(|state| state.results.remove(&number));
        self.change(|state| state.joined = number + 1);
        result.flatten()
    }

    /// Ends the threads when it is dropped.
    pub(super) const fn ending(&self) -> Ending<'_, P> {
        Ending { queue: self, on_panic: false }
    }

    /// Ends the others if this thread panics.
    pub(super) const fn ending_on_panic(&self) -> Ending<'_, P> {
        Ending { queue: self, on_panic: true }
    }
}

impl<P> Drop for Ending<'_, P> {
    fn drop(&mut self) {
        if !self.on_panic || std::thread::panicking() {
            self.queue.change(|state| {
                state.ended = true;
                mem::take(&mut state.results);
            });
        }
    }
}
