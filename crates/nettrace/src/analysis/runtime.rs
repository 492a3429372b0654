use super::contention::{Waited, Waits};
use super::jit::OpenCompilations;
use super::number;
use super::runtime_event::RuntimeEvent;
use crate::method_map::OptimizationTier;
use crate::{Event, Timestamp};

/// A method that was compiled.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct JitCompilation {
    /// `Namespace.Type.Method`.
    pub method: String,
    /// Signature, as the runtime writes it.
    pub signature: String,
    /// Thread that compiled it.
    pub tid: u64,
    /// Start of the compilation; `None` if only its end was seen.
    pub start: Option<Timestamp>,
    /// End.
    pub end: Timestamp,
    /// Bytes of IL; `None` if only the end was seen.
    pub il_size: Option<u32>,
    /// Bytes of code.
    pub code_size: u32,
    /// Optimization tier.
    pub tier: OptimizationTier,
}

/// An exception that was thrown.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Exception {
    /// Its time.
    pub time: Timestamp,
    /// Thread that threw it.
    pub tid: u64,
    /// Type, `System.InvalidOperationException`.
    pub type_name: String,
    /// Message.
    pub message: String,
    /// HRESULT.
    pub hresult: u32,
    /// 1 has an inner exception, 2 nested, 4 rethrown, 8 corrupted state, 16 CLS-compliant.
    pub flags: u16,
}

/// A wait for a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Contention {
    /// Thread that waited.
    pub tid: u64,
    /// Start. It is before the first event of a stream that begins during the wait (.NET Core 3.0).
    pub start: Timestamp,
    /// End.
    pub end: Timestamp,
    /// The lock (.NET 8); `None` also if the stream does not have the start of the wait.
    pub lock_id: Option<u64>,
    /// Operating system id of the thread that owned the lock (.NET 8); 0 if it is unknown, `None` also if the
    /// stream does not have the start of the wait.
    pub owner_tid: Option<u64>,
    /// Whether it was a managed lock, not a lock of the runtime.
    pub managed: bool,
}

/// A change in the thread pool.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum ThreadPool {
    /// The number of active worker threads changed.
    Workers {
        /// Time of the change.
        time: Timestamp,
        /// Active worker threads.
        active: u32,
    },
    /// The thread pool changed its target number of threads.
    Adjustment {
        /// Time of the change.
        time: Timestamp,
        /// Target number of threads.
        workers: u32,
        /// Completed work items per second.
        throughput: f64,
        /// 0 warm-up, 1 initialising, 2 random move, 3 climbing move, 4 change point,
        /// 5 stabilising, 6 starvation, 7 thread timed out, 8 cooperative blocking.
        reason: u32,
    },
}

/// An allocation sample: one about every 100 kB.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Allocation {
    /// Its time.
    pub time: Timestamp,
    /// Thread that allocated.
    pub tid: u64,
    /// Type of the object that was allocated when the sample was due, if the runtime reports it.
    pub type_name: Option<String>,
    /// Bytes that the sample stands for: see [`RuntimeEvent::Allocation`].
    pub amount: u64,
    /// Bytes of the object, if the runtime reports it.
    pub object_size: Option<u64>,
    /// Whether it is on the large object heap (1) or pinned (2).
    pub kind: u32,
}

/// A record of the runtime.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum RuntimeRecord {
    /// A method was compiled: keyword `Jit` (0x10), level 5. At level 4 there are no records:
    /// starts are missing, and ends do not name the method.
    JitCompilation(JitCompilation),
    /// An exception was thrown: keyword `Exception` (0x8000), level 2.
    Exception(Exception),
    /// A thread waited for a lock: keyword `Contention` (0x4000), level 4.
    Contention(Contention),
    /// The thread pool changed: keyword `Threading` (0x10000), level 4.
    ThreadPool(ThreadPool),
    /// Memory was allocated: keyword `GC` (0x1), level 5; from .NET 10 on also keyword
    /// `AllocationSampling` (0x80000000000), level 4.
    Allocation(Allocation),
}

/// Tracks compilations, exceptions, lock waits, the thread pool and allocations.
#[derive(Debug, Default)]
pub struct RuntimeTracker {
    compilations: OpenCompilations,
    waiting: Waits<Contention>,
    undecodable: u64,
    dropped: u64,
}

/// Maximum number of open waits. Only lost end events can lead to more.
const MAX_OPEN: usize = 1 << 16;

impl RuntimeTracker {
    /// A tracker at the start of a stream.
    pub fn new() -> Self {
        Self::default()
    }

    /// Processes an event and returns the record that it completes, if any.
    pub fn push(&mut self, event: &Event<'_>) -> Option<RuntimeRecord> {
        self.waiting.pass(event);
        match RuntimeEvent::decode(event) {
            Ok(Some(RuntimeEvent::ContentionStop)) => self.stop(event),
            Ok(decoded) => self.event(event, decoded?),
            Err(_) => {
                self.undecodable += 1;
                None
            }
        }
    }

    /// Number of events that were ignored because they cannot be decoded: see
    /// [`RuntimeEvent::decode`].
    pub const fn undecodable(&self) -> u64 {
        self.undecodable
    }

    /// Number of starts of waits and compilations that were ignored because too many were open, and of ends of
    /// waits that have neither a start nor a duration. The ends of those starts complete no record, or one without
    /// what only the start has.
    pub const fn dropped(&self) -> u64 {
        self.dropped
    }

    /// The wait that ends on a thread.
    fn stop(&mut self, event: &Event<'_>) -> Option<RuntimeRecord> {
        let waited = Waited::of(event);
        let started = self.waiting.end(event);
        // The start can be that of an earlier wait.
        let own = started.filter(|wait| waited.is_none_or(|waited| waited.is_of(wait)));
        Some(RuntimeRecord::Contention(match (own, waited) {
            (Some(wait), _) => Contention { end: event.time(), ..wait.of },
            (None, Some(waited)) => Contention {
                tid: event.tid(),
                start: waited.start,
                end: event.time(),
                lock_id: None,
                owner_tid: None,
                managed: number(event, "ContentionFlags") == Some(0),
            },
            (None, None) => {
                self.dropped += 1;
                return None;
            }
        }))
    }

    fn event(&mut self, event: &Event<'_>, decoded: RuntimeEvent<'_>) -> Option<RuntimeRecord> {
        let (tid, time) = (event.tid(), event.time());
        Some(match decoded {
            RuntimeEvent::Allocation { type_name, amount, object_size, kind } => {
                let type_name = type_name.map(|name| name.to_string());
                RuntimeRecord::Allocation(Allocation {
                    time,
                    tid,
                    type_name,
                    amount,
                    object_size,
                    kind,
                })
            }
            RuntimeEvent::Workers { active } => {
                RuntimeRecord::ThreadPool(ThreadPool::Workers { time, active })
            }
            RuntimeEvent::Adjustment { workers, throughput, reason } => {
                RuntimeRecord::ThreadPool(ThreadPool::Adjustment {
                    time,
                    workers,
                    throughput,
                    reason,
                })
            }
            RuntimeEvent::Exception { type_name, message, hresult, flags } => {
                RuntimeRecord::Exception(Exception {
                    time,
                    tid,
                    type_name: type_name.to_string(),
                    message: message.to_string(),
                    hresult,
                    flags,
                })
            }
            RuntimeEvent::ContentionStart { lock_id, owner_tid, managed } => {
                if self.waiting.len() < MAX_OPEN {
                    let (start, end) = (time, time);
                    let wait = Contention { tid, start, end, lock_id, owner_tid, managed };
                    self.waiting.begin(event, wait);
                } else {
                    self.dropped += 1;
                }
                return None;
            }
            // For ends of waits, see `stop`.
            RuntimeEvent::ContentionStop
            | RuntimeEvent::HandleWaitStart { .. }
            | RuntimeEvent::HandleWaitStop
            | RuntimeEvent::FinalizersStart
            | RuntimeEvent::FinalizersStop { .. }
            | RuntimeEvent::TypeLoadStart { .. }
            | RuntimeEvent::TypeLoadStop { .. }
            | RuntimeEvent::TieredCompilationStart { .. }
            | RuntimeEvent::TieredCompilationStop { .. } => return None,
            RuntimeEvent::MethodJittingStarted { id, il_size, name } => {
                let fits = self.compilations.start(tid, id, time, il_size, name);
                self.dropped += u64::from(!fits);
                return None;
            }
            RuntimeEvent::MethodLoad { id, size, flags, name } => {
                const JITTED: u32 = 8;
                let started = self.compilations.end(tid, id);
                // Precompiled methods also have load events.
                if started.is_none() && flags & JITTED == 0 {
                    return None;
                }
                let (start, il_size) = started.as_ref().map(|s| (s.start, s.il_size)).unzip();
                let (method, signature) = match name {
                    Some(name) => (name.to_string(), name.signature.to_string()),
                    None => started.map(|started| (started.method, started.signature))?,
                };
                RuntimeRecord::JitCompilation(JitCompilation {
                    method,
                    signature,
                    tid,
                    start,
                    end: time,
                    il_size,
                    code_size: size,
                    tier: OptimizationTier::of_flags(flags),
                })
            }
        })
    }
}
