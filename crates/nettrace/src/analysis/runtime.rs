use std::collections::HashMap;

use super::{number, text};
use crate::Event;
use crate::manifest::Provider;
use crate::method_map::OptimizationTier;

/// A method that was compiled. Times are ticks of the event clock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct JitCompilation {
    /// `Namespace.Type.Method`.
    pub method: String,
    /// Signature, as the runtime writes it.
    pub signature: String,
    /// Thread that compiled it.
    pub thread_id: u64,
    /// Start of the compilation; `None` if only its end was seen.
    pub start: Option<i64>,
    /// End.
    pub end: i64,
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
    /// Ticks of the event clock.
    pub timestamp: i64,
    /// Thread that threw it.
    pub thread_id: u64,
    /// Type, `System.InvalidOperationException`.
    pub type_name: String,
    /// Message.
    pub message: String,
    /// HRESULT.
    pub hresult: u32,
    /// 1 has an inner exception, 2 nested, 4 rethrown, 8 corrupted state, 16 CLS-compliant.
    pub flags: u16,
}

/// A wait for a lock. Times are ticks of the event clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Contention {
    /// Thread that waited.
    pub thread_id: u64,
    /// Start.
    pub start: i64,
    /// End.
    pub end: i64,
    /// The lock (.NET 8).
    pub lock_id: Option<u64>,
    /// Operating system id of the thread that owned the lock (.NET 8); 0 if it is unknown.
    pub owner_thread_id: Option<u64>,
    /// Whether it was a managed lock, not a lock of the runtime.
    pub managed: bool,
}

/// A change in the thread pool.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum ThreadPool {
    /// The number of active worker threads changed.
    Workers {
        /// Ticks of the event clock.
        timestamp: i64,
        /// Active worker threads.
        active: u32,
    },
    /// The thread pool changed its target number of threads.
    Adjustment {
        /// Ticks of the event clock.
        timestamp: i64,
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
    /// Ticks of the event clock.
    pub timestamp: i64,
    /// Thread that allocated.
    pub thread_id: u64,
    /// Type of the object that was allocated when the sample was due.
    pub type_name: String,
    /// Bytes allocated since the last sample.
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
    /// A method was compiled: keyword `Jit` (0x10), level 5.
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
    jitting: HashMap<(u64, u64), (i64, u32)>,
    waiting: HashMap<u64, Contention>,
    incomplete: u64,
}

/// Maximum number of open compilations and waits. Only lost end events can lead to more.
const MAX_OPEN: usize = 1 << 16;

impl RuntimeTracker {
    /// A tracker at the start of a stream.
    pub fn new() -> Self {
        Self::default()
    }

    /// Processes an event and returns the record that it completes, if any.
    pub fn observe(&mut self, event: &Event<'_>) -> Option<RuntimeRecord> {
        if event.known() != Some(Provider::Runtime) {
            return None;
        }
        // A size of 0 or a thread without a name would be a guess.
        let record = self.event(event);
        if record.is_none() {
            self.incomplete += 1;
        }
        record.flatten()
    }

    /// Number of events that were ignored because a field is missing or has another type.
    pub const fn incomplete(&self) -> u64 {
        self.incomplete
    }

    /// Processes an event; `None` if it lacks a field.
    fn event(&mut self, event: &Event<'_>) -> Option<Option<RuntimeRecord>> {
        let timestamp = event.header().timestamp;
        let thread_id = event.thread_id();
        let number = |name| number(event, name);
        let text = |name| text(event, name);
        Some(Some(match event.id() {
            // GCAllocationTick
            10 => RuntimeRecord::Allocation(Allocation {
                timestamp,
                thread_id,
                type_name: text("TypeName")?,
                amount: number("AllocationAmount64").or_else(|| number("AllocationAmount"))?,
                object_size: number("ObjectSize"),
                kind: number("AllocationKind")? as u32,
            }),
            // AllocationSampled
            303 => {
                let size = number("ObjectSize")?;
                RuntimeRecord::Allocation(Allocation {
                    timestamp,
                    thread_id,
                    type_name: text("TypeName")?,
                    amount: size,
                    object_size: Some(size),
                    kind: number("AllocationKind")? as u32,
                })
            }
            // Worker threads start, stop, wait
            50 | 51 | 57 => RuntimeRecord::ThreadPool(ThreadPool::Workers {
                timestamp,
                active: number("ActiveWorkerThreadCount")? as u32,
            }),
            // ThreadPoolWorkerThreadAdjustmentAdjustment
            55 => RuntimeRecord::ThreadPool(ThreadPool::Adjustment {
                timestamp,
                workers: number("NewWorkerThreadCount")? as u32,
                throughput: event.field("AverageThroughput")?.as_f64()?,
                reason: number("Reason")? as u32,
            }),
            // ExceptionThrown
            80 => RuntimeRecord::Exception(Exception {
                timestamp,
                thread_id,
                type_name: text("ExceptionType")?,
                message: text("ExceptionMessage")?,
                hresult: number("ExceptionHRESULT")? as u32,
                flags: number("ExceptionFlags")? as u16,
            }),
            // ContentionStart
            81 => {
                let wait = Contention {
                    thread_id,
                    start: timestamp,
                    end: timestamp,
                    lock_id: number("LockID"),
                    owner_thread_id: number("LockOwnerThreadID"),
                    managed: number("ContentionFlags")? == 0,
                };
                if self.waiting.len() < MAX_OPEN {
                    self.waiting.insert(thread_id, wait);
                }
                return Some(None);
            }
            // ContentionStop
            91 => {
                let Some(wait) = self.waiting.remove(&thread_id) else { return Some(None) };
                RuntimeRecord::Contention(Contention { end: timestamp, ..wait })
            }
            // MethodJittingStarted
            145 => {
                let key = (thread_id, number("MethodID")?);
                let il_size = number("MethodILSize")? as u32;
                if self.jitting.len() < MAX_OPEN {
                    self.jitting.insert(key, (timestamp, il_size));
                }
                return Some(None);
            }
            // MethodLoadVerbose
            143 => return self.loaded(event),
            _ => return Some(None),
        }))
    }

    /// Processes the end of a compilation; `None` if the event lacks a field.
    fn loaded(&mut self, event: &Event<'_>) -> Option<Option<RuntimeRecord>> {
        const JITTED: u64 = 8;
        let (number, text) = (|name| number(event, name), |name| text(event, name));
        let flags = number("MethodFlags")?;
        let thread_id = event.thread_id();
        let started = self.jitting.remove(&(thread_id, number("MethodID")?));
        // Precompiled methods also have load events.
        if started.is_none() && flags & JITTED == 0 {
            return Some(None);
        }
        let mut method = text("MethodNamespace")?;
        if !method.is_empty() {
            method.push('.');
        }
        method.push_str(&text("MethodName")?);
        Some(Some(RuntimeRecord::JitCompilation(JitCompilation {
            method,
            signature: text("MethodSignature")?,
            thread_id,
            start: started.map(|(start, _)| start),
            end: event.header().timestamp,
            il_size: started.map(|(_, size)| size),
            code_size: number("MethodSize")? as u32,
            tier: OptimizationTier::of_flags(flags as u32),
        })))
    }
}
