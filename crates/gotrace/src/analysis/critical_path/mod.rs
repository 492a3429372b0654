//! Critical paths: why a task, a region or a goroutine took as long as it did.

mod history;
mod regions;
mod requests;
mod walk;

use super::{Frame, Name, RangeKind};
use crate::event::Event;
use crate::id::{GoId, ProcId, TaskId};
use history::History;
pub use requests::{Request, RequestFilter, RequestKind, Requests};
use std::sync::Arc;
use std::time::Duration;
use trace_common::Timestamp;

/// Finds the critical paths of [`Request`]s.
///
/// It walks back from the end of a request. While its goroutine runs, is in a system call, or waits
/// for a P, that is the path. While it waits, the path is that of the goroutine that ended the wait,
/// but never before the wait began, and so on. The pieces of a path are consecutive and sum to the
/// duration of the request exactly.
///
/// A trace is read twice: first for the requests, then for the paths. Memory is used for live
/// goroutines, and for all goroutines within the time of the requests and their states: at most
/// [`CriticalPaths::MAX`] of them.
///
/// ```
/// use gotrace::Reader;
/// use gotrace::analysis::{CriticalPaths, RequestFilter, Requests};
///
/// # fn main() -> Result<(), gotrace::Error> {
/// # let file: &[u8] = include_bytes!("../../../tests/data/shop.trace");
/// let mut reader = Reader::new(file)?;
/// let mut requests = Requests::new(RequestFilter::All, 3); // the 3 longest tasks and regions
/// while let Some(event) = reader.next_event()? {
///     requests.push(event);
/// }
/// let mut reader = Reader::new(file)?;
/// let mut paths = CriticalPaths::new(requests.finish());
/// while let Some(event) = reader.next_event()? {
///     paths.push(event);
///     if paths.is_complete() {
///         break;
///     }
/// }
/// for path in paths.finish() {
///     println!("{} took {:?}", path.request.name, path.request.duration());
///     for piece in &path.pieces {
///         println!("{:>12?} {} {:?}", piece.duration(), piece.goroutine.entry, piece.what);
///     }
/// #   let sum: std::time::Duration = path.pieces.iter().map(|piece| piece.duration()).sum();
/// #   assert_eq!(sum, path.request.duration());
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct CriticalPaths {
    requests: Vec<Request>,
    history: History,
}

impl CriticalPaths {
    /// Maximum number of states, spans and samples within the time of the requests: about 500 MB. A goroutine
    /// counts as eight of them.
    pub const MAX: usize = 8 << 20;

    /// Prepares to find the paths of these requests.
    pub fn new(requests: Vec<Request>) -> Self {
        Self::with_max(requests, Self::MAX)
    }

    /// The same with another maximum number of states, spans and samples.
    pub fn with_max(requests: Vec<Request>, max: usize) -> Self {
        let windows = requests.iter().map(|request| (request.start, request.end));
        let history = History::new(windows, max);
        Self { requests, history }
    }

    /// Processes the next event, from the start of the trace on.
    pub fn push(&mut self, event: Event<'_>) {
        self.history.push(event);
    }

    /// A part of the trace is missing here: see [`Reader::recover`](crate::Reader::recover).
    pub fn loss(&mut self) {
        self.history.loss();
    }

    /// Whether all requests are over, or there was [more](Self::dropped) than the maximum: further events change
    /// nothing.
    pub fn is_complete(&self) -> bool {
        self.history.is_complete()
    }

    /// The number of goroutines, states, spans and samples that are missing because there were more than the
    /// maximum, and of the events after the first of them, which are ignored. If it is not 0, the paths are
    /// not right: make the time of the requests shorter.
    pub const fn dropped(&self) -> u64 {
        self.history.dropped()
    }

    /// The time of the first event of the trace, other than sync events.
    pub const fn first(&self) -> Option<Timestamp> {
        self.history.first()
    }

    /// The critical path of each request, in their order.
    pub fn finish(mut self) -> Vec<CriticalPath> {
        self.history.finish();
        let mut stacks = walk::Resolved::default();
        let path = |request| walk::path(&self.history, request, &mut stacks);
        self.requests.into_iter().map(path).collect()
    }
}

/// The critical path of a [`Request`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CriticalPath {
    /// The request.
    pub request: Request,
    /// Its goroutine.
    pub subject: PathGoroutine,
    /// The pieces, in time order. They partition the time of the request.
    pub pieces: Vec<PathPiece>,
}

/// A goroutine of a [`CriticalPath`].
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub struct PathGoroutine {
    /// Its id.
    pub id: GoId,
    /// Its entry function; empty if the trace has no stack of it.
    pub entry: Name,
}

/// A piece of a [`CriticalPath`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PathPiece {
    /// The start.
    pub start: Timestamp,
    /// The end.
    pub end: Timestamp,
    /// The goroutine whose time it is.
    pub goroutine: PathGoroutine,
    /// Its activity.
    pub what: PathState,
    /// The number of waits that lead from the subject to `goroutine`: 0 for the subject itself.
    pub depth: u32,
    /// The reason of a [wait](PathState::Waits), e.g. `chan receive`; empty if there is none.
    pub reason: Name,
    /// The stack at which `goroutine` stopped, innermost frame first. While it runs, the most
    /// frequent stack of its CPU samples; empty if the trace has none.
    pub stack: Arc<[Frame]>,
    /// The number of CPU samples in the piece, if `stack` is of a sample.
    pub samples: u32,
    /// The goroutine that waits for `goroutine` meanwhile.
    pub waiter: Option<PathGoroutine>,
    /// The reason for which that one waits.
    pub waiter_reason: Name,
    /// The stack at which that one stopped.
    pub waiter_stack: Arc<[Frame]>,
    /// The part of the garbage collector: an assist, or a stop of the world that holds it back.
    pub during: Option<RangeKind>,
    /// Another task that `goroutine` worked on, or that the one worked on which waits for it, with its type:
    /// context of the wait, not its cause. A part of the task of the request is no other one.
    pub context: Option<(TaskId, Name)>,
}

impl PathPiece {
    /// The duration.
    pub fn duration(&self) -> Duration {
        self.end - self.start
    }
}

/// The activity of the goroutine of a [`PathPiece`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PathState {
    /// Ran on a P.
    Running,
    /// In a system call.
    Syscall,
    /// Runnable: waited for a P.
    Runnable {
        /// The P on which it ran next.
        proc: Option<ProcId>,
        /// What that did meanwhile.
        occupant: Occupant,
    },
    /// Waited, and no goroutine ended the wait: the network poller, a timer, or the runtime.
    Waits,
    /// Not known: before the trace mentions the goroutine, or lost.
    Unknown,
}

/// The activity of a P while a goroutine waited for it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Occupant {
    /// It executed another goroutine.
    Goroutine(PathGoroutine),
    /// It was idle: the wake-up took that long.
    Idle,
    /// It was between two goroutines, or its state is not known.
    Scheduler,
}
