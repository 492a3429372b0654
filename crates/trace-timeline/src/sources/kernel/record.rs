//! Records of the scheduler, decoded.

use super::DEFAULT_PRIO;
use crate::event::ThreadState;
use crate::tables::{SampledEventId, StackId};

/// The thread that a record names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "callers construct and match it")]
pub enum ThreadRef {
    /// The thread with this id; 0 is the idle thread.
    Tid(u32),
    /// Any thread that is not of interest: it has no entity.
    Other,
}

impl ThreadRef {
    /// The thread id, if it is of interest.
    #[inline]
    pub const fn tid(self) -> Option<u32> {
        match self {
            Self::Tid(tid) => Some(tid),
            Self::Other => None,
        }
    }
}

/// A thread in a tracepoint of the scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Task<'a> {
    /// The thread (`pid` in the tracepoint).
    pub thread: ThreadRef,
    /// The name.
    pub comm: &'a [u8],
    /// The kernel's priority: 120 is a nice value of 0.
    pub prio: i32,
}

impl<'a> Task<'a> {
    /// Any thread that is not of interest.
    pub const OTHER: Self = Self { thread: ThreadRef::Other, comm: b"", prio: DEFAULT_PRIO as i32 };

    /// Makes one: a thread id, a name and a priority of the kernel.
    pub const fn new(tid: u32, comm: &'a [u8], prio: i32) -> Self {
        Self { thread: ThreadRef::Tid(tid), comm, prio }
    }
}

/// Attributes of a process; empty ones are not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "callers construct it")]
pub struct ProcessAttributes<'a> {
    /// The command line.
    pub command_line: &'a [u8],
    /// The path of the executable.
    pub executable: &'a [u8],
    /// The build id of the executable.
    pub build_id: &'a [u8],
    /// The path of the cgroup.
    pub cgroup: &'a [u8],
    /// The identifier of the container.
    pub container: &'a [u8],
}

/// A decoded record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Record<'a> {
    /// `sched:sched_switch`.
    Switch {
        /// The CPU.
        cpu: u32,
        /// The thread that leaves it.
        prev: Task<'a>,
        /// The state of that thread, with the bits of the tracepoint.
        prev_state: i64,
        /// The thread that gets it.
        next: Task<'a>,
    },
    /// `sched:sched_waking`, or `sched:sched_wakeup_new`.
    Waking {
        /// The CPU of the waker.
        cpu: u32,
        /// The thread that runs there (`common_pid` of the tracepoint), if it is known; 0 is the
        /// idle thread. In an interrupt it did not wake anybody.
        by: Option<ThreadRef>,
        /// `common_flags` of the tracepoint: bit 3 is a hard interrupt, bit 4 a software
        /// interrupt. `None` if they were not recorded.
        flags: Option<u8>,
        /// The thread that is woken.
        task: Task<'a>,
        /// The CPU that it last ran on; of a new thread, the one whose queue it is in.
        target_cpu: u32,
        /// Whether it is a new thread: `sched_wakeup_new`.
        is_new: bool,
        /// The call chain of the waker.
        stack: Option<StackId>,
    },
    /// `sched:sched_migrate_task`, or `sched:sched_wakeup`, which follows the choice of a CPU: a thread that waits is
    /// in the queue of a CPU.
    Queue {
        /// The CPU of the record.
        cpu: u32,
        /// The thread.
        task: Task<'a>,
        /// The CPU from which it is moved (`orig_cpu`); `None` of `sched_wakeup`.
        from: Option<u32>,
        /// The CPU whose queue it is in (`dest_cpu`, `target_cpu`).
        to: u32,
    },
    /// `PERF_RECORD_SWITCH` in: a thread gets a CPU.
    In {
        /// The CPU.
        cpu: u32,
        /// The thread.
        tid: u32,
    },
    /// `PERF_RECORD_SWITCH` out: a thread leaves a CPU.
    Out {
        /// The CPU.
        cpu: u32,
        /// The thread.
        tid: u32,
        /// `PERF_RECORD_MISC_SWITCH_OUT_PREEMPT`.
        preempted: bool,
    },
    /// `PERF_RECORD_SWITCH_CPU_WIDE` in, of a recording with `sched_switch`: a thread runs on a CPU. It
    /// comes after the `sched_switch`, which can be missing.
    Runs {
        /// The CPU.
        cpu: u32,
        /// The thread.
        thread: ThreadRef,
        /// The thread that left the CPU. `None` if it has ended.
        prev: Option<ThreadRef>,
    },
    /// `PERF_RECORD_FORK`, or a thread that exists already (`is_new` is not set).
    Thread {
        /// The process id.
        pid: u32,
        /// The thread id.
        tid: u32,
        /// The process id and thread id of the creator, if they are known.
        parent: Option<(u32, u32)>,
        /// The name, if it is known. A new thread has the name of its creator.
        comm: &'a [u8],
        /// Whether it is created now.
        is_new: bool,
    },
    /// `PERF_RECORD_COMM`: a new name.
    Comm {
        /// The thread.
        tid: u32,
        /// Its name.
        comm: &'a [u8],
        /// Whether `execve(2)` set it: the process has another program now, of which nothing is
        /// known yet.
        by_exec: bool,
    },
    /// `PERF_RECORD_EXIT`.
    Exit {
        /// The thread.
        tid: u32,
    },
    /// Properties of a process beside its name, from `PERF_RECORD_MMAP2`, `PERF_RECORD_CGROUP` or
    /// `/proc`.
    Process {
        /// The process id.
        pid: u32,
        /// What is known of it. The rest stays as it is.
        attributes: ProcessAttributes<'a>,
    },
    /// The machine. It comes before other records.
    Machine {
        /// The host name.
        name: &'a [u8],
        /// The release of the kernel, as `uname -r` prints it.
        release: &'a [u8],
        /// The architecture, as `uname -m` prints it.
        architecture: &'a [u8],
    },
    /// `PERF_RECORD_SAMPLE` of an event that is not of the scheduler.
    Sample {
        /// The CPU, if it was recorded.
        cpu: Option<u32>,
        /// The process id.
        pid: u32,
        /// The thread id. 0 is the idle thread: the sample is one of the CPU.
        tid: u32,
        /// The event.
        event: SampledEventId,
        /// The call chain, or the address of the instruction.
        stack: Option<StackId>,
        /// The number of events since the last sample.
        weight: u64,
    },
    /// A thread is back on a CPU: a sample of the time since it left the CPU.
    OffCpu {
        /// The process id.
        pid: u32,
        /// The thread id.
        tid: u32,
        /// The event.
        event: SampledEventId,
        /// Where it left.
        stack: Option<StackId>,
        /// How long it was away.
        nanos: u64,
    },
    /// `PERF_RECORD_LOST` of the buffer of a CPU: records of the scheduler can be among the lost ones.
    Lost {
        /// The CPU.
        cpu: u32,
        /// The number of lost records; 0 if it is not known.
        count: u64,
    },
    /// A CPU went offline: the state of the thread that ran there is not known from its last record on.
    Offline {
        /// The CPU.
        cpu: u32,
    },
    /// `PERF_RECORD_LOST_SAMPLES`, or `PERF_RECORD_LOST` of a recording without context switches: no state of a thread
    /// depends on what is lost.
    LostSamples {
        /// The CPU.
        cpu: u32,
        /// The number of lost records.
        count: u64,
    },
}

/// The state of a thread that leaves a CPU, of `prev_state`.
///
/// The low eight bits are `TASK_REPORT`. A higher bit alone is preemption: which one depends on the
/// kernel (`0x100` since Linux 4.14).
pub(super) const fn left(prev_state: i64) -> ThreadState {
    match prev_state & 0xff {
        0 => ThreadState::Preempted,
        bits if bits & 0x30 != 0 => ThreadState::Dead,
        bits if bits & 0x0c != 0 => ThreadState::Stopped,
        bits if bits & 0x02 != 0 => ThreadState::Blocked,
        _ => ThreadState::Sleeping,
    }
}
