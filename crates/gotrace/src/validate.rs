//! A check of event streams, for the tests of programs that write, filter or convert traces.
//!
//! The rules are those of Go's `internal/trace/testtrace.Validator` (1.27): what holds for the
//! events of every trace of Go ≥ 1.22. The [`Reader`](crate::Reader) itself checks what the order
//! of the events needs; traces of earlier versions are converted, and may violate some rules.
//!
//! ```
//! use gotrace::Reader;
//! use gotrace::validate::Validator;
//!
//! # fn main() -> Result<(), gotrace::Error> {
//! # let file: &[u8] = include_bytes!("../tests/data/shop.trace");
//! let mut reader = Reader::new(file)?;
//! let mut validator = Validator::new(reader.version());
//! while let Some(event) = reader.next_event()? {
//!     for violation in validator.push(event) {
//!         panic!("{}: {violation}", event.time());
//!     }
//! }
//! # Ok(())
//! # }
//! ```

use crate::event::{Event, EventKind, RangeName, Stack, StateTransition};
use crate::id::{GoId, GoState, ProcId, ProcState, ResourceId, TaskId, ThreadId};
use crate::table::ClockSnapshot;
use crate::version::Version;
use bstr::BString;
use std::collections::{HashMap, HashSet};
use trace_common::{SeededState, Timestamp};

/// A rule that an event violates.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Violation {
    /// The time is not after that of the previous event.
    #[error("the time {time} is not after {previous}")]
    Time {
        /// Of this event.
        time: Timestamp,
        /// Of the previous one.
        previous: Timestamp,
    },
    /// Sync events are numbered from 1.
    #[error("sync event {found} follows number {previous}")]
    SyncNumber {
        /// Of this event.
        found: u64,
        /// Of the previous one.
        previous: u64,
    },
    /// A sync event of Go ≥ 1.25 has no clock snapshot, and is not the last one.
    #[error("sync event {0} has no clock snapshot")]
    NoClockSnapshot(u64),
    /// A clock of a snapshot is 0, or not after the previous snapshot.
    #[error("the {clock} clock of sync event {n} does not advance")]
    Clock {
        /// `trace`, `monotonic` or `wall`.
        clock: &'static str,
        /// The number of the sync event.
        n: u64,
    },
    /// A frame of a stack, other than the innermost, has no function, file, line or program counter.
    #[error("frame {0} of a stack is incomplete")]
    Frame(usize),
    /// The label is empty.
    #[error("the label is empty")]
    EmptyLabel,
    /// The event is about a resource that no event has mentioned.
    #[error("{0} has no state")]
    UnknownResource(ResourceId),
    /// The resource goes to the undetermined state.
    #[error("{0} goes to an undetermined state")]
    ToUndetermined(ResourceId),
    /// The state is undetermined, but all states are known after the first generation.
    #[error("the state of {0} is undetermined after the first generation")]
    FromUndetermined(ResourceId),
    /// The resource ends within a range.
    #[error("{0} ends within a range")]
    EndsWithinRange(ResourceId),
    /// The resource is in another state.
    #[error("{resource} goes from {from}, but is {state}")]
    State {
        /// The goroutine or proc.
        resource: ResourceId,
        /// The state that the transition names.
        from: &'static str,
        /// The state that it is in.
        state: &'static str,
    },
    /// The thread already executes another goroutine or proc.
    #[error("{thread} executes {resource}, but still {other}")]
    Occupied {
        /// The thread.
        thread: ThreadId,
        /// The goroutine or proc that starts.
        resource: ResourceId,
        /// The one that has not stopped.
        other: ResourceId,
    },
    /// The resource stops, but no thread executes it.
    #[error("{0} stops, but no thread executes it")]
    NotExecuting(ResourceId),
    /// The event of a goroutine that stops has another stack than its transition.
    #[error("the stack of the event is not that of the transition")]
    Stacks,
    /// The event needs a thread.
    #[error("the event has no thread")]
    NoThread,
    /// A range begins that is active.
    #[error("the range {name:?} of {scope} begins again")]
    RangeBegins {
        /// The name of the range.
        name: String,
        /// Its scope.
        scope: ResourceId,
    },
    /// A range ends that is not active.
    #[error("the range {name:?} of {scope} ends, but is not active")]
    RangeEnds {
        /// The name of the range.
        name: String,
        /// Its scope.
        scope: ResourceId,
    },
    /// A task begins with the identifier of none, or of the background task, or is its child.
    #[error("the identifier or parent of the task {0} is reserved")]
    TaskId(TaskId),
    /// A task ends with another type than it began with.
    #[error("the task {0} ends with another type")]
    TaskType(TaskId),
}

/// A goroutine or proc.
#[derive(Debug)]
struct Resource<S> {
    state: S,
    /// The thread that executes it.
    thread: Option<ThreadId>,
}

/// What a thread executes.
#[derive(Debug, Default)]
struct Thread {
    goroutine: Option<GoId>,
    proc: Option<ProcId>,
}

/// Checks events in order: see the [module](self).
///
/// Memory is used for goroutines and tasks that have not ended.
#[derive(Debug)]
pub struct Validator {
    version: Version,
    last: Option<Timestamp>,
    sync: u64,
    clocks: Option<ClockSnapshot>,
    goroutines: HashMap<GoId, Resource<GoState>, SeededState>,
    procs: HashMap<ProcId, Resource<ProcState>, SeededState>,
    threads: HashMap<ThreadId, Thread, SeededState>,
    ranges: HashMap<ResourceId, HashSet<String>, SeededState>,
    tasks: HashMap<TaskId, BString, SeededState>,
}

impl Validator {
    /// Makes a validator of a trace of this version.
    pub fn new(version: Version) -> Self {
        Self {
            version,
            last: None,
            sync: 0,
            clocks: None,
            goroutines: HashMap::default(),
            procs: HashMap::default(),
            threads: HashMap::default(),
            ranges: HashMap::default(),
            tasks: HashMap::default(),
        }
    }

    /// Checks the next event; returns the rules that it violates.
    pub fn push(&mut self, event: Event<'_>) -> Vec<Violation> {
        let mut found = Vec::new();
        let time = event.time();
        match self.last {
            Some(previous) if time <= previous => found.push(Violation::Time { time, previous }),
            _ => self.last = Some(time),
        }
        check_stack(event.stack(), &mut found);
        match event.kind() {
            EventKind::Sync => self.sync(event, &mut found),
            EventKind::Label => self.label(event, &mut found),
            EventKind::StateTransition => self.transition(event, &mut found),
            EventKind::RangeBegin | EventKind::RangeActive | EventKind::RangeEnd => {
                self.range(event, &mut found);
            }
            EventKind::TaskBegin | EventKind::TaskEnd => self.task(event, &mut found),
            _ => {}
        }
        found
    }

    fn sync(&mut self, event: Event<'_>, found: &mut Vec<Violation>) {
        let Some(sync) = event.sync() else { return };
        let n = sync.n();
        if n != self.sync + 1 {
            found.push(Violation::SyncNumber { found: n, previous: self.sync });
        }
        self.sync = n;
        if self.version < Version::Go125 {
            return;
        }
        let Some(clocks) = sync.clock_snapshot() else {
            // The last sync event has none.
            if n <= 1 {
                found.push(Violation::NoClockSnapshot(n));
            }
            return;
        };
        let wall = |clocks: &ClockSnapshot| (clocks.wall_seconds, clocks.wall_nanos);
        let before = self.clocks.replace(clocks);
        let advance = |is_zero: bool, advances: &dyn Fn(&ClockSnapshot) -> bool| {
            !is_zero && before.as_ref().is_none_or(advances)
        };
        let checks = [
            ("trace", advance(clocks.trace.nanos() == 0, &|b| clocks.trace > b.trace)),
            ("monotonic", advance(clocks.mono == 0, &|b| clocks.mono > b.mono)),
            ("wall", advance(wall(&clocks) == (0, 0), &|b| wall(&clocks) > wall(b))),
        ];
        let bad = checks.into_iter().filter(|(_, advances)| !advances);
        found.extend(bad.map(|(clock, _)| Violation::Clock { clock, n }));
    }

    fn label(&self, event: Event<'_>, found: &mut Vec<Violation>) {
        let Some(label) = event.label() else { return };
        if label.label.is_empty() {
            found.push(Violation::EmptyLabel);
        }
        let is_known = match label.resource {
            ResourceId::None => false,
            ResourceId::Goroutine(id) => self.goroutines.contains_key(&id),
            ResourceId::Proc(id) => self.procs.contains_key(&id),
            ResourceId::Thread(id) => self.threads.contains_key(&id),
        };
        if !is_known {
            found.push(Violation::UnknownResource(label.resource));
        }
    }

    fn transition(&mut self, event: Event<'_>, found: &mut Vec<Violation>) {
        let Some(transition) = event.state_transition() else { return };
        check_stack(transition.stack(), found);
        match transition.resource() {
            ResourceId::Goroutine(id) => self.goroutine(event, id, &transition, found),
            ResourceId::Proc(id) => self.proc(event, id, &transition, found),
            _ => {}
        }
    }

    /// What goroutines and procs have in common.
    fn states(
        &self,
        resource: ResourceId,
        [from_undetermined, to_undetermined, ends]: [bool; 3],
        found: &mut Vec<Violation>,
    ) {
        if to_undetermined {
            found.push(Violation::ToUndetermined(resource));
        }
        if self.sync > 1 && from_undetermined {
            found.push(Violation::FromUndetermined(resource));
        }
        if ends && self.ranges.get(&resource).is_some_and(|ranges| !ranges.is_empty()) {
            found.push(Violation::EndsWithinRange(resource));
        }
    }

    fn goroutine(
        &mut self,
        event: Event<'_>,
        id: GoId,
        transition: &StateTransition<'_>,
        found: &mut Vec<Violation>,
    ) {
        let Some((from, to)) = transition.goroutine() else { return };
        let resource = id.into();
        let (undetermined, none) = (GoState::Undetermined, GoState::NotExist);
        let kinds = [from == undetermined, to == undetermined, to == none];
        self.states(resource, kinds, found);
        let known = self.goroutines.get(&id).map(|known| known.state);
        if !known.map_or(from == undetermined || from == none, |state| state == from) {
            let state = known.unwrap_or(none).name();
            found.push(Violation::State { resource, from: from.name(), state });
        }
        let goroutine = self.goroutines.entry(id).or_insert(Resource { state: to, thread: None });
        goroutine.state = to;
        if to.executing() {
            let is_converted =
                self.version.is_v1() && (from, to) == (undetermined, GoState::Syscall);
            if !event.thread().is_some() {
                // v1 traces do not have the threads of system calls.
                found.extend((!is_converted).then_some(Violation::NoThread));
                return;
            }
            let thread = self.threads.entry(event.thread()).or_default();
            if let Some(other) = thread.goroutine.replace(id).filter(|other| *other != id) {
                let (thread, other) = (event.thread(), other.into());
                found.push(Violation::Occupied { thread, resource, other });
            }
            goroutine.thread = Some(event.thread());
        } else if from.executing() {
            if transition.stack() != event.stack() {
                found.push(Violation::Stacks);
            }
            let thread = goroutine.thread.take();
            // It has no thread if it began before a v1 trace.
            let is_converted = self.version.is_v1() && from == GoState::Syscall && thread.is_none();
            let thread = thread.and_then(|thread| self.threads.get_mut(&thread));
            match thread.filter(|thread| thread.goroutine == Some(id)) {
                Some(thread) => thread.goroutine = None,
                None => found.extend((!is_converted).then_some(Violation::NotExecuting(resource))),
            }
        }
        if to == none {
            self.goroutines.remove(&id);
            self.ranges.remove(&resource);
        }
    }

    fn proc(
        &mut self,
        event: Event<'_>,
        id: ProcId,
        transition: &StateTransition<'_>,
        found: &mut Vec<Violation>,
    ) {
        let Some((from, to)) = transition.proc() else { return };
        let resource = id.into();
        let (undetermined, none) = (ProcState::Undetermined, ProcState::NotExist);
        let kinds = [from == undetermined, to == undetermined, to == none];
        self.states(resource, kinds, found);
        let known = self.procs.get(&id).map(|known| known.state);
        if !known.map_or(from == undetermined || from == none, |state| state == from) {
            let state = known.unwrap_or(none).name();
            found.push(Violation::State { resource, from: from.name(), state });
        }
        let proc = self.procs.entry(id).or_insert(Resource { state: to, thread: None });
        proc.state = to;
        if to.executing() {
            if !event.thread().is_some() {
                found.push(Violation::NoThread);
                return;
            }
            let thread = self.threads.entry(event.thread()).or_default();
            if let Some(other) = thread.proc.replace(id).filter(|other| *other != id) {
                let (thread, other) = (event.thread(), other.into());
                found.push(Violation::Occupied { thread, resource, other });
            }
            proc.thread = Some(event.thread());
        } else if from.executing() {
            let thread = proc.thread.take().and_then(|thread| self.threads.get_mut(&thread));
            match thread.filter(|thread| thread.proc == Some(id)) {
                Some(thread) => thread.proc = None,
                None => found.push(Violation::NotExecuting(resource)),
            }
        }
    }

    fn range(&mut self, event: Event<'_>, found: &mut Vec<Violation>) {
        let Some(range) = event.range() else { return };
        let (scope, name) = (range.scope, name_of(range.name));
        let active = self.ranges.entry(scope).or_default();
        match event.kind() {
            EventKind::RangeBegin => {
                if !active.insert(name.clone()) {
                    found.push(Violation::RangeBegins { name, scope });
                }
            }
            EventKind::RangeActive => {
                active.insert(name);
            }
            _ => {
                if !active.remove(&name) {
                    found.push(Violation::RangeEnds { name, scope });
                }
            }
        }
    }

    fn task(&mut self, event: Event<'_>, found: &mut Vec<Violation>) {
        let Some(task) = event.task() else { return };
        if event.kind() == EventKind::TaskBegin {
            let is_reserved = matches!(task.id, TaskId::NONE | TaskId::BACKGROUND);
            if is_reserved || task.parent == TaskId::BACKGROUND {
                found.push(Violation::TaskId(task.id));
            }
            self.tasks.insert(task.id, task.name.to_owned());
        } else if self.tasks.remove(&task.id).is_some_and(|name| name != task.name) {
            // Without its begin, the type of a task is not known.
            found.push(Violation::TaskType(task.id));
        }
    }
}

fn name_of(name: RangeName<'_>) -> String {
    name.to_string()
}

/// The innermost frame may be empty: the runtime writes one where it has no stack.
fn check_stack(stack: Option<Stack<'_>>, found: &mut Vec<Violation>) {
    for (number, frame) in stack.iter().flat_map(Stack::frames).enumerate().skip(1) {
        let is_complete = !frame.function.is_empty()
            && !frame.file.is_empty()
            && frame.pc != 0
            && frame.line != 0;
        if !is_complete {
            found.push(Violation::Frame(number));
        }
    }
}
