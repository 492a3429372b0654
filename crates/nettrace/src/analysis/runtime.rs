use std::collections::HashMap;

use super::{number, text};
use crate::Event;
use crate::manifest::Provider;
use crate::symbols::OptimizationTier;

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
    /// Bytes of IL.
    pub il_size: u32,
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
    /// The lock; 0 before .NET 8, which does not report it.
    pub lock_id: u64,
    /// Operating system id of the thread that owned the lock; 0 if the runtime does not report it.
    pub owner_thread_id: u64,
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
        let timestamp = event.header().timestamp;
        let thread_id = event.thread_id();
        match event.id() {
            // GCAllocationTick
            10 => {
                let amount = match event.field("AllocationAmount64").and_then(|v| v.as_u64()) {
                    Some(amount) => amount,
                    None => number(event, "AllocationAmount"),
                };
                Some(RuntimeRecord::Allocation(Allocation {
                    timestamp,
                    thread_id,
                    type_name: text(event, "TypeName"),
                    amount,
                    object_size: event.field("ObjectSize").and_then(|v| v.as_u64()),
                    kind: number(event, "AllocationKind") as u32,
                }))
            }
            // AllocationSampled
            303 => Some(RuntimeRecord::Allocation(Allocation {
                timestamp,
                thread_id,
                type_name: text(event, "TypeName"),
                amount: number(event, "ObjectSize"),
                object_size: event.field("ObjectSize").and_then(|v| v.as_u64()),
                kind: number(event, "AllocationKind") as u32,
            })),
            // Worker threads start, stop, wait
            50 | 51 | 57 => Some(RuntimeRecord::ThreadPool(ThreadPool::Workers {
                timestamp,
                active: number(event, "ActiveWorkerThreadCount") as u32,
            })),
            // ThreadPoolWorkerThreadAdjustmentAdjustment
            55 => Some(RuntimeRecord::ThreadPool(ThreadPool::Adjustment {
                timestamp,
                workers: number(event, "NewWorkerThreadCount") as u32,
                throughput: event
                    .field("AverageThroughput")
                    .and_then(|v| v.as_f64())
                    .unwrap_or(0.0),
                reason: number(event, "Reason") as u32,
            })),
            // ExceptionThrown
            80 => Some(RuntimeRecord::Exception(Exception {
                timestamp,
                thread_id,
                type_name: text(event, "ExceptionType"),
                message: text(event, "ExceptionMessage"),
                hresult: number(event, "ExceptionHRESULT") as u32,
                flags: number(event, "ExceptionFlags") as u16,
            })),
            // ContentionStart
            81 => {
                if self.waiting.len() < MAX_OPEN {
                    self.waiting.insert(
                        thread_id,
                        Contention {
                            thread_id,
                            start: timestamp,
                            end: timestamp,
                            lock_id: number(event, "LockID"),
                            owner_thread_id: number(event, "LockOwnerThreadID"),
                            managed: number(event, "ContentionFlags") == 0,
                        },
                    );
                }
                None
            }
            // ContentionStop
            91 => {
                let wait = self.waiting.remove(&thread_id)?;
                Some(RuntimeRecord::Contention(Contention { end: timestamp, ..wait }))
            }
            // MethodJittingStarted
            145 => {
                if self.jitting.len() < MAX_OPEN {
                    let key = (thread_id, number(event, "MethodID"));
                    let il_size = number(event, "MethodILSize") as u32;
                    self.jitting.insert(key, (timestamp, il_size));
                }
                None
            }
            // MethodLoadVerbose
            143 => self.loaded(event),
            _ => None,
        }
    }

    fn loaded(&mut self, event: &Event<'_>) -> Option<RuntimeRecord> {
        const JITTED: u64 = 8;
        let flags = number(event, "MethodFlags");
        let thread_id = event.thread_id();
        let started = self.jitting.remove(&(thread_id, number(event, "MethodID")));
        // Precompiled methods also have load events.
        if started.is_none() && flags & JITTED == 0 {
            return None;
        }
        let mut method = text(event, "MethodNamespace");
        if !method.is_empty() {
            method.push('.');
        }
        method.push_str(&text(event, "MethodName"));
        Some(RuntimeRecord::JitCompilation(JitCompilation {
            method,
            signature: text(event, "MethodSignature"),
            thread_id,
            start: started.map(|(start, _)| start),
            end: event.header().timestamp,
            il_size: started.map_or(0, |(_, size)| size),
            code_size: number(event, "MethodSize") as u32,
            tier: OptimizationTier::of_flags(flags as u32),
        }))
    }
}
