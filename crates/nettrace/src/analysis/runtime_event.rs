use std::fmt;

use super::decode::{Decoded, Payload, RuntimeEventError, decode};
use crate::{Event, Text};

/// The name of a method, in the encoding of the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MethodName<'a> {
    /// Namespace and type, `A.B.Type`; empty if it has none.
    pub namespace: Text<'a>,
    /// Method name.
    pub name: Text<'a>,
    /// Signature, as the runtime writes it.
    pub signature: Text<'a>,
}

impl fmt::Display for MethodName<'_> {
    /// `Namespace.Type.Method`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.namespace.is_empty() {
            write!(f, "{}.", self.namespace)?;
        }
        self.name.fmt(f)
    }
}

/// An event of the runtime, decoded. [`GcEvent`](super::GcEvent) has those about GCs.
///
/// What earlier versions of an event do not have is `None`.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum RuntimeEvent<'a> {
    /// `GCAllocationTick` or `AllocationSampled`: an allocation sample.
    Allocation {
        /// Type of the object that was allocated when the sample was due.
        type_name: Option<Text<'a>>,
        /// Bytes that the sample stands for, so that the sum estimates all allocated bytes: those
        /// allocated since the last sample. Of `AllocationSampled`, the bytes of the object, divided by
        /// the probability that an object of this size is sampled.
        ///
        /// A stream can have both events for the same allocations: add up only one of them.
        amount: u64,
        /// Bytes of the object.
        object_size: Option<u64>,
        /// Whether it is on the large object heap (1) or pinned (2).
        kind: u32,
    },
    /// The number of worker threads of the thread pool changed, or one of them waits.
    Workers {
        /// Active worker threads.
        active: u32,
    },
    /// `ThreadPoolWorkerThreadAdjustmentAdjustment`: the thread pool changed its target number of
    /// threads.
    Adjustment {
        /// Target number of threads.
        workers: u32,
        /// Completed work items per second.
        throughput: f64,
        /// As in [`ThreadPool::Adjustment`](super::ThreadPool::Adjustment).
        reason: u32,
    },
    /// `ExceptionThrown`: an exception was thrown.
    Exception {
        /// Type, `System.InvalidOperationException`.
        type_name: Text<'a>,
        /// Message.
        message: Text<'a>,
        /// HRESULT.
        hresult: u32,
        /// As in [`Exception::flags`](super::Exception::flags).
        flags: u16,
    },
    /// `ContentionStart`: the thread begins to wait for a lock.
    ContentionStart {
        /// The lock (.NET 8).
        lock_id: Option<u64>,
        /// Operating system id of the thread that owns the lock (.NET 8); 0 if it is unknown.
        owner_tid: Option<u64>,
        /// Whether it is a managed lock, not a lock of the runtime.
        managed: bool,
    },
    /// `ContentionStop`: the thread no longer waits for a lock.
    ContentionStop,
    /// `WaitHandleWaitStart`: the thread begins to wait for a wait handle, such as an event, a semaphore or a
    /// thread that ends: keyword `WaitHandle` (0x40000000000), level 5 (.NET 9).
    HandleWaitStart {
        /// Whether it waits in `Monitor.Wait`.
        is_monitor: bool,
        /// Address of the object for which it waits, or 0. The garbage collector can move it.
        object_id: u64,
    },
    /// `WaitHandleWaitStop`: the thread no longer waits for a wait handle.
    HandleWaitStop,
    /// `MethodJittingStarted`: the thread begins to compile a method.
    MethodJittingStarted {
        /// The runtime's id of the method.
        id: u64,
        /// Bytes of IL.
        il_size: u32,
        /// Name.
        name: MethodName<'a>,
    },
    /// `MethodLoad` or `MethodLoadVerbose`: the code of a method is ready.
    MethodLoad {
        /// The runtime's id of the method.
        id: u64,
        /// Bytes of code.
        size: u32,
        /// As in [`Method::flags`](crate::Method::flags).
        flags: u32,
        /// Name; `None` in `MethodLoad`.
        name: Option<MethodName<'a>>,
    },
    /// `GCFinalizersBegin`: the thread begins to run finalizers: keyword `GC` (0x1), level 4.
    FinalizersStart,
    /// `GCFinalizersEnd`: it has run those that were due.
    FinalizersStop {
        /// Number of finalizers that it ran.
        count: u32,
    },
    /// `TypeLoadStart`: the thread begins to load a type: keyword `TypeDiagnostic` (0x8000000000), level 4
    /// (.NET 5). Within that, it can load others.
    TypeLoadStart {
        /// Number of this load, which its end repeats.
        id: u32,
    },
    /// `TypeLoadStop`: the load with this number has ended.
    TypeLoadStop {
        /// Number of the load.
        id: u32,
        /// The runtime's load level: a type is loaded up to one level at a time.
        level: u16,
        /// Name of the type.
        type_name: Text<'a>,
    },
    /// `TieredCompilationBackgroundJitStart`: the thread begins to compile methods that are called often: keyword
    /// `Compilation` (0x1000000000), level 4 (.NET Core 3.0).
    TieredCompilationStart {
        /// Methods that wait for it.
        pending: u32,
    },
    /// `TieredCompilationBackgroundJitStop`: it has compiled some of them.
    TieredCompilationStop {
        /// Methods that still wait.
        pending: u32,
        /// Methods that it compiled.
        compiled: u32,
    },
}

impl<'a> RuntimeEvent<'a> {
    /// Decodes an event; `None` if it is not one of these.
    ///
    /// # Errors
    ///
    /// [`RuntimeEventError`] if the payload lacks a field of its version, or does not match its
    /// metadata.
    pub fn decode(event: &Event<'a>) -> Result<Option<Self>, RuntimeEventError> {
        decode(event, Self::read)
    }

    fn read(payload: Payload<'_, 'a>) -> Decoded<Option<Self>> {
        Ok(Some(match payload.id() {
            // GCAllocationTick
            10 => Self::Allocation {
                type_name: payload.added("TypeName", Payload::text)?,
                // 64 bits since version 2.
                amount: match payload.added("AllocationAmount64", Payload::u64)? {
                    Some(amount) => amount,
                    None => payload.u64("AllocationAmount")?,
                },
                object_size: payload.added("ObjectSize", Payload::u64)?,
                kind: payload.u32("AllocationKind")?,
            },
            // AllocationSampled
            303 => {
                let size = payload.u64("ObjectSize")?;
                Self::Allocation {
                    type_name: Some(payload.text("TypeName")?),
                    amount: represented_by(size),
                    object_size: Some(size),
                    kind: payload.u32("AllocationKind")?,
                }
            }
            // GCFinalizersEnd, GCFinalizersBegin
            13 => Self::FinalizersStop { count: payload.u32("Count")? },
            14 => Self::FinalizersStart,
            // TypeLoadStart, TypeLoadStop
            73 => Self::TypeLoadStart { id: payload.u32("TypeLoadStartID")? },
            74 => Self::TypeLoadStop {
                id: payload.u32("TypeLoadStartID")?,
                level: payload.u16("LoadLevel")?,
                type_name: payload.text("TypeName")?,
            },
            // TieredCompilationBackgroundJitStart, TieredCompilationBackgroundJitStop
            283 => Self::TieredCompilationStart { pending: payload.u32("PendingMethodCount")? },
            284 => Self::TieredCompilationStop {
                pending: payload.u32("PendingMethodCount")?,
                compiled: payload.u32("JittedMethodCount")?,
            },
            // Worker threads start, stop, wait
            50 | 51 | 57 => Self::Workers { active: payload.u32("ActiveWorkerThreadCount")? },
            // ThreadPoolWorkerThreadAdjustmentAdjustment
            55 => Self::Adjustment {
                workers: payload.u32("NewWorkerThreadCount")?,
                throughput: payload.f64("AverageThroughput")?,
                reason: payload.u32("Reason")?,
            },
            // ExceptionThrown
            80 => Self::Exception {
                type_name: payload.text("ExceptionType")?,
                message: payload.text("ExceptionMessage")?,
                hresult: payload.u32("ExceptionHRESULT")?,
                flags: payload.u16("ExceptionFlags")?,
            },
            // ContentionStart
            81 => Self::ContentionStart {
                lock_id: payload.added("LockID", Payload::u64)?,
                owner_tid: payload.added("LockOwnerThreadID", Payload::u64)?,
                managed: payload.u64("ContentionFlags")? == 0,
            },
            // ContentionStop
            91 => Self::ContentionStop,
            // WaitHandleWaitStart, WaitHandleWaitStop
            301 => Self::HandleWaitStart {
                is_monitor: payload.u64("WaitSource")? == 1,
                object_id: payload.u64("AssociatedObjectID")?,
            },
            302 => Self::HandleWaitStop,
            // MethodLoad, MethodLoadVerbose
            id @ (141 | 143) => Self::MethodLoad {
                id: payload.u64("MethodID")?,
                size: payload.u32("MethodSize")?,
                flags: payload.u32("MethodFlags")?,
                name: if id == 143 { Some(method_name(payload)?) } else { None },
            },
            // MethodJittingStarted
            145 => Self::MethodJittingStarted {
                id: payload.u64("MethodID")?,
                il_size: payload.u32("MethodILSize")?,
                name: method_name(payload)?,
            },
            _ => return Ok(None),
        }))
    }
}

/// Bytes of allocations that a sampled object of this size stands for. Each byte is sampled with a
/// probability of 1/102400, and an object once at most.
fn represented_by(size: u64) -> u64 {
    const PROBABILITY: f64 = 1.0 / 102_400.0;
    let size = size as f64;
    let is_sampled = -(size * (-PROBABILITY).ln_1p()).exp_m1();
    (size / is_sampled).round() as u64
}

fn method_name<'a>(payload: Payload<'_, 'a>) -> Decoded<MethodName<'a>> {
    Ok(MethodName {
        namespace: payload.text("MethodNamespace")?,
        name: payload.text("MethodName")?,
        signature: payload.text("MethodSignature")?,
    })
}
