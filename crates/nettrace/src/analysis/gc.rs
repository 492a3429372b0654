use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::time::Duration;

use super::GcEvent;
use crate::{Event, Timestamp};

macro_rules! names {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $code:literal => $variant:ident),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum $name {
            $($(#[$vdoc])* $variant,)*
            /// A code that this crate does not know.
            Unknown(u32),
        }

        impl $name {
            /// The meaning of the runtime's code.
            pub const fn from_code(code: u32) -> Self {
                match code {
                    $($code => Self::$variant,)*
                    other => Self::Unknown(other),
                }
            }

            /// The name; `None` for a code that this crate does not know.
            pub const fn name(self) -> Option<&'static str> {
                match self {
                    $(Self::$variant => Some(stringify!($variant)),)*
                    Self::Unknown(_) => None,
                }
            }
        }

        impl fmt::Display for $name {
            /// The name, or the number of an unknown code.
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match *self {
                    Self::Unknown(code) => write!(f, "{code}"),
                    known => f.write_str(known.name().unwrap_or_default()),
                }
            }
        }
    };
}

names! {
    /// Why a GC started.
    GcReason {
        /// Allocation of small objects.
        0 => AllocSmall,
        /// `GC.Collect`.
        1 => Induced,
        /// The machine is low on memory.
        2 => LowMemory,
        /// Nothing to do.
        3 => Empty,
        /// Allocation of large objects.
        4 => AllocLarge,
        /// No space for small objects.
        5 => OutOfSpaceSoh,
        /// No space for large objects.
        6 => OutOfSpaceLoh,
        /// `GC.Collect` that leaves the decision to the GC.
        7 => InducedNotForced,
        /// A stress test of the runtime.
        8 => Internal,
        /// Induced, low on memory.
        9 => InducedLowMemory,
        /// Induced, compacting.
        10 => InducedCompacting,
        /// The host reports low memory.
        11 => LowMemoryHost,
        /// Full GC of provisional mode.
        12 => PmFullGc,
        /// The host reports low memory; blocking.
        13 => LowMemoryHostBlocking,
        /// Tuning of background GCs, small objects.
        14 => BgcTuningSoh,
        /// Tuning of background GCs, large objects.
        15 => BgcTuningLoh,
        /// Stepping of background GCs.
        16 => BgcStepping,
        /// `GC.Collect` in aggressive mode.
        17 => InducedAggressive,
    }
}

names! {
    /// How a GC runs relative to the program.
    GcKind {
        /// Managed threads are suspended during the whole GC.
        0 => NonConcurrent,
        /// Managed threads run during most of the GC.
        1 => Background,
        /// A blocking GC during a background GC.
        2 => Foreground,
    }
}

names! {
    /// Why managed threads were suspended.
    SuspendReason {
        /// Another reason.
        0 => Other,
        /// A GC.
        1 => Gc,
        /// Shutdown of an application domain.
        2 => AppDomainShutdown,
        /// Discarding of code.
        3 => CodePitching,
        /// Shutdown.
        4 => Shutdown,
        /// A debugger.
        5 => Debugger,
        /// Preparation of a GC.
        6 => GcPrep,
        /// A debugger's sweep.
        7 => DebuggerSweep,
    }
}

/// The heap after a GC, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HeapStats {
    /// Size of generations 0, 1 and 2, of the large object heap (3) and of the pinned object heap
    /// (4).
    pub generation_sizes: [u64; 5],
    /// Promoted bytes of each generation.
    pub promoted: [u64; 5],
    /// Bytes that finalization kept alive.
    pub finalization_promoted_size: u64,
    /// Number of objects that finalization kept alive.
    pub finalization_promoted_count: u64,
    /// Number of pinned objects.
    pub pinned_objects: u32,
    /// Number of GC handles.
    pub handles: u32,
}

impl HeapStats {
    /// Size of the heap.
    pub fn total(&self) -> u64 {
        self.generation_sizes.iter().fold(0, |sum, size| sum.saturating_add(*size))
    }
}

/// One garbage collection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GarbageCollection {
    /// Number of the GC since the process started.
    pub number: u32,
    /// Oldest generation that is collected. All younger ones are collected too.
    pub generation: u32,
    /// Reason.
    pub reason: GcReason,
    /// Blocking, background or foreground.
    pub kind: GcKind,
    /// The operating system's id of the process.
    pub pid: u64,
    /// Thread that started the GC.
    pub tid: u64,
    /// Start.
    pub start: Timestamp,
    /// End.
    pub end: Timestamp,
    /// Total time that managed threads were suspended for this GC. `None` if the suspension began
    /// before the first event, as it can for the first GC of a session, or if its begin or its end was lost.
    pub pause: Option<Duration>,
    /// Heap statistics after the GC.
    pub heap: Option<HeapStats>,
}

impl GarbageCollection {
    /// Whether it can have begun in the suspension in which an earlier one ended: a background GC after one of
    /// the younger generations, or a full GC that the earlier one asked for.
    const fn follows(&self, earlier: &Self) -> bool {
        let is_next = self.number == earlier.number.wrapping_add(1);
        is_next
            && matches!((self.kind, self.reason), (GcKind::Background, _) | (_, GcReason::PmFullGc))
    }
}

/// A period in which managed threads were suspended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Suspension {
    /// Reason.
    pub reason: SuspendReason,
    /// The operating system's id of the process.
    pub pid: u64,
    /// Thread that suspends the others.
    pub tid: u64,
    /// The suspension begins.
    pub start: Timestamp,
    /// All managed threads are suspended.
    pub suspended: Option<Timestamp>,
    /// All managed threads have resumed.
    pub end: Timestamp,
    /// Number of a GC that started during the suspension.
    pub gc: Option<u32>,
}

/// Tracks GCs and suspensions, of each process by itself.
///
/// Needs keyword `GC` (0x1) at level 4, which also includes heap sizes. The events of each thread come in
/// order of time. In the order of the stream, a suspension that lasts beyond a flush of the runtime's buffers
/// can be lost, and a GC that another thread started can lack its pause.
#[derive(Debug, Default)]
pub struct GcTracker {
    processes: HashMap<u64, Process>,
    done: VecDeque<GarbageCollection>,
    undecodable: u64,
}

/// The GCs and suspensions of a process that have not ended.
#[derive(Debug, Default)]
struct Process {
    /// By suspending thread: the sampler and the GC can suspend at the same time.
    suspensions: Vec<Suspension>,
    open: Vec<OpenGc>,
}

/// A GC that is not completed.
#[derive(Clone, Copy, Debug)]
struct OpenGc {
    gc: GarbageCollection,
    /// Its end was read, and a suspension of a GC still lasts.
    has_ended: bool,
}

/// Maximum number of processes. Beyond it, those without open GCs and suspensions make room, or all.
const MAX_PROCESSES: usize = 1 << 12;

/// Maximum number of open GCs: a background GC and the foreground GCs during it. Only lost end
/// events can lead to more.
const MAX_OPEN: usize = 16;

const fn is_for_gc(suspension: &Suspension) -> bool {
    matches!(suspension.reason, SuspendReason::Gc | SuspendReason::GcPrep)
}

impl GcTracker {
    /// A tracker at the start of a stream.
    pub fn new() -> Self {
        Self::default()
    }

    /// Processes an event and returns the suspension that it ends, if any.
    pub fn push(&mut self, event: &Event<'_>) -> Option<Suspension> {
        match GcEvent::decode(event) {
            Ok(decoded) => {
                let decoded = decoded?;
                let pid = event.pid();
                if self.processes.len() >= MAX_PROCESSES && !self.processes.contains_key(&pid) {
                    self.processes.retain(|_, process| !process.is_idle());
                    if self.processes.len() >= MAX_PROCESSES {
                        self.processes.clear();
                    }
                }
                let from = Origin { pid, tid: event.tid(), now: event.time() };
                let process = self.processes.entry(pid).or_default();
                process.event(decoded, from, &mut self.done)
            }
            Err(_) => {
                self.undecodable += 1;
                None
            }
        }
    }

    /// Number of events that were ignored because they cannot be decoded: see [`GcEvent::decode`].
    pub const fn undecodable(&self) -> u64 {
        self.undecodable
    }

    /// Returns the next completed GC. Call it until it returns `None`.
    pub fn next_gc(&mut self) -> Option<GarbageCollection> {
        self.done.pop_front()
    }
}

/// Where and when an event was written.
#[derive(Clone, Copy)]
struct Origin {
    pid: u64,
    tid: u64,
    now: Timestamp,
}

/// The completed GCs.
type Done = VecDeque<GarbageCollection>;

impl Process {
    fn is_idle(&self) -> bool {
        self.suspensions.is_empty() && self.open.is_empty()
    }

    fn event(&mut self, event: GcEvent, from: Origin, done: &mut Done) -> Option<Suspension> {
        let Origin { pid, tid, now } = from;
        match event {
            GcEvent::Start { number, generation, reason, kind } => {
                if self.open.len() >= MAX_OPEN {
                    let oldest = self.open.remove(0);
                    done.extend(oldest.has_ended.then_some(oldest.gc));
                }
                let mut gc = GarbageCollection {
                    number,
                    generation,
                    reason,
                    kind,
                    pid,
                    tid,
                    start: now,
                    end: now,
                    pause: None,
                    heap: None,
                };
                // That of an earlier GC of this thread, whose end was lost.
                let open = &self.open;
                let is_over = |s: &Suspension| {
                    let earlier = open.iter().find(|earlier| s.gc == Some(earlier.gc.number));
                    s.tid == tid && earlier.is_some_and(|e| e.has_ended && !gc.follows(&e.gc))
                };
                if self.suspensions.iter().any(is_over) {
                    self.lose(|s| s.tid == tid, done);
                }
                // A stream that is not in order of time has later ones of other threads.
                let begun = self.suspensions.iter_mut().filter(|s| is_for_gc(s) && s.start <= now);
                // The others still wait for it.
                let own = begun.max_by_key(|s| (s.tid == tid, s.suspended));
                if let Some(suspension) = own {
                    suspension.gc = Some(gc.number);
                    gc.pause = Some(Duration::ZERO);
                }
                self.open.push(OpenGc { gc, has_ended: false });
            }
            GcEvent::End { number } => {
                let is_it = |open: &&mut OpenGc| open.gc.number == number && !open.has_ended;
                if let Some(open) = self.open.iter_mut().find(is_it) {
                    (open.gc.end, open.has_ended) = (now, true);
                    return None;
                }
                // Its start was lost. A suspension of this thread for an earlier GC, which is over, ended before.
                let open = &self.open;
                let is_over = |s: &Suspension| {
                    let is_of = |OpenGc { gc, has_ended }: &OpenGc| {
                        s.gc == Some(gc.number) && gc.number != number && *has_ended
                    };
                    s.tid == tid && open.iter().any(is_of)
                };
                if self.suspensions.iter().any(is_over) {
                    self.lose(|s| s.tid == tid, done);
                }
            }
            GcEvent::RestartEnd => return self.resume(tid, now, done),
            // Of the GC that ended last.
            GcEvent::HeapStats { heap, .. } => {
                if let Some(ended) = self.open.iter_mut().rev().find(|open| open.has_ended) {
                    ended.gc.heap = Some(heap);
                }
                // A blocking GC is complete when its suspension ends.
                self.close_between_suspensions(done);
            }
            GcEvent::SuspendEnd => {
                // One thread at a time suspends the others: the ends of the others' were lost, unless
                // they began later, in a stream that is not in order of time.
                let other = |s: &Suspension| {
                    s.tid != tid && s.start <= now && (s.suspended.is_some() || s.gc.is_some())
                };
                self.lose(other, done);
                // A suspension has one: the end of this one and the begin of the next one were lost.
                self.lose(|s| s.tid == tid && s.suspended.is_some(), done);
                if let Some(s) = self.suspensions.iter_mut().find(|s| s.tid == tid) {
                    s.suspended = Some(now);
                }
            }
            GcEvent::SuspendBegin { reason } => {
                self.lose(|s| s.tid == tid, done); // its end was lost
                if self.suspensions.len() >= MAX_OPEN {
                    self.suspensions.remove(0);
                }
                self.suspensions.push(Suspension {
                    reason,
                    pid,
                    tid,
                    start: now,
                    suspended: None,
                    end: now,
                    gc: None,
                });
            }
        }
        None
    }

    /// Ends suspensions whose end was lost: how long they lasted is unknown.
    fn lose(&mut self, is_lost: impl Fn(&Suspension) -> bool, done: &mut Done) {
        let before = self.suspensions.len();
        let open = &mut self.open;
        self.suspensions.retain(|s| {
            let is_lost = is_lost(s);
            let own = open.iter_mut().find(|open| is_lost && s.gc == Some(open.gc.number));
            if let Some(OpenGc { gc, .. }) = own {
                gc.pause = None;
            }
            !is_lost
        });
        if self.suspensions.len() < before {
            self.close_between_suspensions(done);
        }
    }

    fn resume(&mut self, thread: u64, now: Timestamp, done: &mut Done) -> Option<Suspension> {
        let Some(index) = self.suspensions.iter().position(|s| s.tid == thread) else {
            // It began before the first event.
            self.close_between_suspensions(done);
            return None;
        };
        let mut suspension = self.suspensions.swap_remove(index);
        suspension.end = now;
        if is_for_gc(&suspension) {
            // The pause of a foreground GC does not count for the background GC that runs at the
            // same time.
            let during =
                self.open.iter_mut().map(|open| &mut open.gc).find(|gc| match suspension.gc {
                    Some(number) => gc.number == number,
                    None => gc.kind == GcKind::Background,
                });
            if let Some(gc) = during {
                let lasted = now - suspension.start;
                gc.pause = gc.pause.map(|pause| pause.saturating_add(lasted));
            }
        }
        self.close_between_suspensions(done);
        Some(suspension)
    }

    /// Completes the GCs that have ended, unless a suspension of a GC still lasts.
    fn close_between_suspensions(&mut self, done: &mut Done) {
        if self.suspensions.iter().any(|s| s.gc.is_some()) {
            return;
        }
        self.open.retain(|open| {
            if open.has_ended {
                done.push_back(open.gc);
            }
            !open.has_ended
        });
    }
}
