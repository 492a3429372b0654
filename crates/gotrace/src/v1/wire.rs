//! The wire format of v1 events: types, arguments and framing.
//!
//! ```text
//! event   = byte (type | n << 6), n < 3: n + 1 arguments; n = 3: length in bytes, arguments
//! Batch   = arguments: P, ticks                   what follows was emitted on that P
//! String  = arguments: identifier, length; bytes
//! UserLog = as any other event, then: length, bytes
//! ```
//!
//! The first argument of most events is the time since the previous event, in ticks. The last one
//! is the stack, if the type has one.
//!
//! Source: `src/runtime/trace.go` of Go 1.11 to 1.21.

use crate::error::{Error, ErrorKind};
use crate::version::Version;
use trace_common::Cursor;

/// The type of a v1 event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Type(pub(super) u8);

/// The specification of a [`Type`].
#[derive(Clone, Copy)]
pub(super) struct Spec {
    /// Name of the type in Go's sources.
    pub(super) name: &'static str,
    /// Number of arguments, including the time and the stack.
    pub(super) args: u8,
    /// Whether the last argument is a stack.
    pub(super) stack: bool,
}

macro_rules! types {
    ($($number:literal $constant:ident $name:literal $args:literal $($stack:ident)?;)*) => {
        impl Type {
            $(
                #[allow(dead_code, reason = "the table is complete")]
                pub(super) const $constant: Self = Self($number);
            )*
        }

        static SPECS: [Spec; 64] = {
            let mut specs = [Spec { name: "", args: 0, stack: false }; 64];
            $(
                specs[$number] = Spec { name: $name, args: $args, stack: false };
                $(specs[$number].$stack = true;)?
            )*
            specs
        };
    };
}

types! {
    // Framing and tables; the number of arguments of stacks and strings varies.
    1 BATCH "Batch" 2;
    2 FREQUENCY "Frequency" 1;
    3 STACK "Stack" 0;
    35 TIMER_GOROUTINE "TimerGoroutine" 1;
    37 STRING "String" 2;
    // Procs and the garbage collector.
    4 GOMAXPROCS "Gomaxprocs" 3 stack;
    5 PROC_START "ProcStart" 2;
    6 PROC_STOP "ProcStop" 1;
    7 GC_START "GCStart" 3 stack;
    8 GC_DONE "GCDone" 1;
    9 STW_START "GCSTWStart" 2;
    10 STW_DONE "GCSTWDone" 1;
    11 GC_SWEEP_START "GCSweepStart" 2 stack;
    12 GC_SWEEP_DONE "GCSweepDone" 3;
    33 HEAP_ALLOC "HeapAlloc" 2;
    34 HEAP_GOAL "HeapGoal" 2;
    43 GC_MARK_ASSIST_START "GCMarkAssistStart" 2 stack;
    44 GC_MARK_ASSIST_DONE "GCMarkAssistDone" 1;
    // Goroutines. The "local" types follow an event of the same P that they depend on.
    13 GO_CREATE "GoCreate" 4 stack;
    14 GO_START "GoStart" 3;
    15 GO_END "GoEnd" 1;
    16 GO_STOP "GoStop" 2 stack;
    17 GO_SCHED "GoSched" 2 stack;
    18 GO_PREEMPT "GoPreempt" 2 stack;
    19 GO_SLEEP "GoSleep" 2 stack;
    20 GO_BLOCK "GoBlock" 2 stack;
    21 GO_UNBLOCK "GoUnblock" 4 stack;
    22 GO_BLOCK_SEND "GoBlockSend" 2 stack;
    23 GO_BLOCK_RECV "GoBlockRecv" 2 stack;
    24 GO_BLOCK_SELECT "GoBlockSelect" 2 stack;
    25 GO_BLOCK_SYNC "GoBlockSync" 2 stack;
    26 GO_BLOCK_COND "GoBlockCond" 2 stack;
    27 GO_BLOCK_NET "GoBlockNet" 2 stack;
    28 GO_SYSCALL "GoSysCall" 2 stack;
    29 GO_SYSCALL_EXIT "GoSysExit" 4;
    30 GO_SYSCALL_BLOCK "GoSysBlock" 1;
    31 GO_WAITING "GoWaiting" 2;
    32 GO_IN_SYSCALL "GoInSyscall" 2;
    36 FUTILE_WAKEUP "FutileWakeup" 1;
    38 GO_START_LOCAL "GoStartLocal" 2;
    39 GO_UNBLOCK_LOCAL "GoUnblockLocal" 3 stack;
    40 GO_SYSCALL_EXIT_LOCAL "GoSysExitLocal" 3;
    41 GO_START_LABEL "GoStartLabel" 4;
    42 GO_BLOCK_GC "GoBlockGC" 2 stack;
    // Annotations by the program, samples of the profiler.
    45 USER_TASK_CREATE "UserTaskCreate" 5 stack;
    46 USER_TASK_END "UserTaskEnd" 3 stack;
    47 USER_REGION "UserRegion" 5 stack;
    48 USER_LOG "UserLog" 4 stack;
    49 CPU_SAMPLE "CPUSample" 5 stack;
}

impl Type {
    /// The specification of the type; empty for types that this crate does not return.
    #[expect(clippy::indexing_slicing, reason = "a table of 64, and an index of six bits")]
    pub(super) fn spec(self) -> Spec {
        SPECS[usize::from(self.0 & 0x3f)]
    }

    /// Whether traces of this version may have events of the type.
    fn exists_in(self, version: Version) -> bool {
        !self.spec().name.is_empty() && (self != Self::CPU_SAMPLE || version >= Version::Go119)
    }
}

/// Maximum number of arguments of an event.
pub(super) const MAX_ARGS: usize = 5;

/// Maximum number of bytes for the arguments of one event. Runtimes write at most about 500.
const MAX_ARG_BYTES: u64 = 2048;

/// Maximum number of bytes of a string.
pub(super) const MAX_STRING: u64 = 1_000_000;

/// The start of an event: its type, and the number of arguments if there are fewer than four.
#[derive(Clone, Copy)]
pub(super) struct Lead(u8);

impl Lead {
    /// Reads the next event; `None` at the end.
    #[inline]
    pub(super) fn read(c: &mut Cursor<'_>) -> Option<Self> {
        c.u8().ok().map(Self)
    }

    #[inline]
    pub(super) fn ty(self) -> Type {
        Type(self.0 & 0x3f)
    }

    /// Returns the type, if it exists in this version.
    pub(super) fn known_type(self, version: Version, offset: u64) -> Result<Type, Error> {
        let ty = self.ty();
        if ty.exists_in(version) {
            Ok(ty)
        } else {
            Err(Error::at(offset, ErrorKind::InvalidEvent(ty.0)))
        }
    }

    /// Number of arguments, if the first byte contains it.
    #[inline]
    pub(super) fn inline_args(self) -> Option<usize> {
        let n = usize::from(self.0 >> 6);
        (n < 3).then_some(n + 1)
    }

    /// Reads the arguments and returns their number; those beyond [`MAX_ARGS`] are only counted.
    #[inline]
    pub(super) fn args(
        self,
        c: &mut Cursor<'_>,
        args: &mut [u64; MAX_ARGS],
    ) -> Result<usize, Error> {
        if let Some(count) = self.inline_args() {
            for arg in args.iter_mut().take(count) {
                *arg = uvarint(c, "argument")?;
            }
            return Ok(count);
        }
        let mut rest = self.arg_bytes(c)?;
        let mut count = 0;
        while !rest.is_empty() {
            let value = uvarint(&mut rest, "argument")?;
            if let Some(arg) = args.get_mut(count) {
                *arg = value;
            }
            count += 1;
        }
        Ok(count)
    }

    /// Returns the bytes of arguments whose number is not in the first byte.
    pub(super) fn arg_bytes<'a>(self, c: &mut Cursor<'a>) -> Result<Cursor<'a>, Error> {
        let offset = c.offset();
        let size = uvarint(c, "length of the arguments")?;
        if size > MAX_ARG_BYTES {
            let what = "arguments";
            return Err(Error::at(
                offset,
                ErrorKind::TooLarge { what, value: size, limit: MAX_ARG_BYTES },
            ));
        }
        malformed(c.sub(size as usize), "arguments")
    }

    /// Skips the arguments.
    #[inline]
    pub(super) fn skip_args(self, c: &mut Cursor<'_>) -> Result<(), Error> {
        match self.inline_args() {
            Some(count) => (0..count).try_for_each(|_| uvarint(c, "argument").map(drop)),
            None => self.arg_bytes(c).map(drop),
        }
    }
}

#[inline]
pub(super) fn uvarint(c: &mut Cursor<'_>, what: &'static str) -> Result<u64, Error> {
    malformed(c.uvarint(), what)
}

#[inline]
fn malformed<T>(
    result: Result<T, trace_common::ReadError>,
    what: &'static str,
) -> Result<T, Error> {
    result.map_err(|e| Error::at(e.offset, ErrorKind::Malformed { what, cause: e.kind }))
}

/// Reads `size` bytes of a string.
pub(super) fn string<'a>(c: &mut Cursor<'a>, size: u64) -> Result<&'a [u8], Error> {
    let size = usize::try_from(size).unwrap_or(usize::MAX);
    malformed(c.bytes(size), "string")
}

/// Converts the identifier of a P in a batch; -1 is none.
pub(super) fn proc(c: &mut Cursor<'_>) -> Result<i32, Error> {
    let offset = c.offset();
    let id = uvarint(c, "P of a batch")?;
    if id == u64::MAX {
        return Ok(-1);
    }
    i32::try_from(id).map_err(|_| {
        let max = i32::MAX as u64;
        Error::at(offset, ErrorKind::TooLarge { what: "identifier of a P", value: id, limit: max })
    })
}
