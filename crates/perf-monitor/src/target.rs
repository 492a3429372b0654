use rustix::fd::{AsRawFd, BorrowedFd};
use std::fmt;

/// The task and CPU that an event measures: `pid` and `cpu` of `perf_event_open(2)`.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Target<'a> {
    /// The calling thread, on any CPU. With `inherit`, also the threads that it starts.
    ThisThread,
    /// A thread by its id, on any CPU. A process id means its main thread.
    Thread(u32),
    /// Everything on one CPU. Needs `perf_event_paranoid` 0 or `CAP_PERFMON`.
    ///
    /// When the CPU goes offline the event stops permanently, without an error or a hang-up: it
    /// does not count when the CPU is back and the event is enabled again. Its ring can still be
    /// read. Watch [`online_cpus`](crate::online_cpus) and open a new event.
    Cpu(u32),
    /// A thread, while it is on one CPU. Inheriting events with rings need one event per CPU.
    ///
    /// The event counts again when the CPU was offline and is back.
    ThreadOnCpu {
        /// The thread; 0 is the calling one.
        tid: u32,
        /// The CPU.
        cpu: u32,
    },
    /// The tasks of a cgroup, on one CPU. Needs the privileges of [`Target::Cpu`].
    ///
    /// Mounting the `perf_event` hierarchy of cgroup v1 disables perf events of cgroup v2 for as long
    /// as that hierarchy has children.
    Cgroup {
        /// Directory of the cgroup: in cgroup2, of a child of the root whose controllers are
        /// active, or in the `perf_event` hierarchy of cgroup v1.
        dir: BorrowedFd<'a>,
        /// The CPU.
        cpu: u32,
    },
}

impl Target<'_> {
    /// Converts it to arguments of `perf_event_open(2)`, with the flag for a cgroup.
    pub(crate) fn to_sys(self) -> (perf_sys::Target, u64) {
        // Ids and CPUs beyond i32 do not exist: the kernel rejects i32::MAX.
        let id = |n: u32| i32::try_from(n).unwrap_or(i32::MAX);
        match self {
            Self::ThisThread => (perf_sys::Target::THIS_THREAD, 0),
            Self::Thread(tid) => (perf_sys::Target { pid: id(tid), cpu: -1 }, 0),
            Self::Cpu(cpu) => (perf_sys::Target { pid: -1, cpu: id(cpu) }, 0),
            Self::ThreadOnCpu { tid, cpu } => (perf_sys::Target { pid: id(tid), cpu: id(cpu) }, 0),
            Self::Cgroup { dir, cpu } => (
                perf_sys::Target { pid: dir.as_raw_fd(), cpu: id(cpu) },
                perf_sys::PERF_FLAG_PID_CGROUP,
            ),
        }
    }

    pub(crate) fn cpu(self) -> Option<u32> {
        match self {
            Self::ThisThread | Self::Thread(_) => None,
            Self::Cpu(cpu) | Self::ThreadOnCpu { cpu, .. } | Self::Cgroup { cpu, .. } => Some(cpu),
        }
    }

    pub(crate) fn tid(self) -> Option<u32> {
        match self {
            Self::Thread(tid) | Self::ThreadOnCpu { tid, .. } => Some(tid),
            _ => None,
        }
    }

    pub(crate) const fn is_cpu_wide(self) -> bool {
        matches!(self, Self::Cpu(_) | Self::Cgroup { .. })
    }
}

impl fmt::Display for Target<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ThisThread => f.write_str("the calling thread"),
            Self::Thread(tid) => write!(f, "thread {tid}"),
            Self::Cpu(cpu) => write!(f, "CPU {cpu}"),
            Self::ThreadOnCpu { tid, cpu } => write!(f, "thread {tid} on CPU {cpu}"),
            Self::Cgroup { cpu, .. } => write!(f, "a cgroup on CPU {cpu}"),
        }
    }
}
