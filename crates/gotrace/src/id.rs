//! Identifiers of goroutines, procs, threads and tasks, and their states.

use std::fmt;

macro_rules! resource_id {
    ($(#[$doc:meta])* $name:ident, $none:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub i64);

        impl $name {
            #[doc = $none]
            pub const NONE: Self = Self(-1);

            /// Whether this is not [`Self::NONE`].
            #[inline]
            pub const fn is_some(self) -> bool {
                self.0 != -1
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

resource_id!(
    /// The runtime's `goid` of a goroutine (G), unique during the lifetime of a process.
    GoId,
    "Go's `NoGoroutine`: no goroutine in particular."
);
resource_id!(
    /// The runtime's number of a proc (P): below `GOMAXPROCS`.
    ProcId,
    "Go's `NoProc`: no proc in particular."
);
resource_id!(
    /// The operating system's identifier of a thread (M).
    ThreadId,
    "Go's `NoThread`: no thread in particular."
);

/// Identifier of a `runtime/trace` task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId(pub u64);

impl TaskId {
    /// Go's `NoTask`: no task.
    pub const NONE: Self = Self(u64::MAX);
    /// The task of regions and logs outside of any task.
    pub const BACKGROUND: Self = Self(0);
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The kind of resource of a [`ResourceId`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum ResourceKind {
    /// No resource.
    None,
    /// A goroutine (G).
    Goroutine,
    /// A proc (P).
    Proc,
    /// A thread (M).
    Thread,
}

impl fmt::Display for ResourceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "None",
            Self::Goroutine => "Goroutine",
            Self::Proc => "Proc",
            Self::Thread => "Thread",
        })
    }
}

/// A goroutine, proc or thread, or none of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum ResourceId {
    /// No resource: the scope of global ranges.
    None,
    /// A goroutine (G).
    Goroutine(GoId),
    /// A proc (P).
    Proc(ProcId),
    /// A thread (M).
    Thread(ThreadId),
}

impl ResourceId {
    /// The kind of the resource.
    pub const fn kind(self) -> ResourceKind {
        match self {
            Self::None => ResourceKind::None,
            Self::Goroutine(_) => ResourceKind::Goroutine,
            Self::Proc(_) => ResourceKind::Proc,
            Self::Thread(_) => ResourceKind::Thread,
        }
    }

    /// The goroutine, if the resource is one.
    pub const fn goroutine(self) -> Option<GoId> {
        match self {
            Self::Goroutine(id) => Some(id),
            _ => None,
        }
    }

    /// The proc, if the resource is one.
    pub const fn proc(self) -> Option<ProcId> {
        match self {
            Self::Proc(id) => Some(id),
            _ => None,
        }
    }

    /// The thread, if the resource is one.
    pub const fn thread(self) -> Option<ThreadId> {
        match self {
            Self::Thread(id) => Some(id),
            _ => None,
        }
    }
}

impl From<GoId> for ResourceId {
    fn from(id: GoId) -> Self {
        Self::Goroutine(id)
    }
}

impl From<ProcId> for ResourceId {
    fn from(id: ProcId) -> Self {
        Self::Proc(id)
    }
}

impl From<ThreadId> for ResourceId {
    fn from(id: ThreadId) -> Self {
        Self::Thread(id)
    }
}

impl fmt::Display for ResourceId {
    /// `Goroutine(7)`, or `None`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id = match self {
            Self::None => return f.write_str("None"),
            Self::Goroutine(GoId(id)) | Self::Proc(ProcId(id)) | Self::Thread(ThreadId(id)) => id,
        };
        write!(f, "{}({id})", self.kind())
    }
}

/// The state of a goroutine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum GoState {
    /// The state is not known yet.
    Undetermined,
    /// The goroutine does not exist yet, or no longer exists.
    NotExist,
    /// The goroutine is ready to run.
    Runnable,
    /// The goroutine is running.
    Running,
    /// The goroutine is blocked.
    Waiting,
    /// The goroutine is in a system call (or in C code).
    Syscall,
}

impl GoState {
    /// The name of the state, as Go prints it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Undetermined => "Undetermined",
            Self::NotExist => "NotExist",
            Self::Runnable => "Runnable",
            Self::Running => "Running",
            Self::Waiting => "Waiting",
            Self::Syscall => "Syscall",
        }
    }

    /// Whether the goroutine is bound to a thread: running or in a system call.
    pub const fn executing(self) -> bool {
        matches!(self, Self::Running | Self::Syscall)
    }
}

impl fmt::Display for GoState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The state of a proc.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum ProcState {
    /// The state is not known yet.
    Undetermined,
    /// The proc does not exist yet, or no longer exists.
    NotExist,
    /// The proc is bound to a thread and runs goroutines, or its goroutine is in a system call.
    Running,
    /// The proc is not bound to a thread.
    Idle,
}

impl ProcState {
    /// The name of the state, as Go prints it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Undetermined => "Undetermined",
            Self::NotExist => "NotExist",
            Self::Running => "Running",
            Self::Idle => "Idle",
        }
    }

    /// Whether the proc is bound to a thread.
    pub const fn executing(self) -> bool {
        matches!(self, Self::Running)
    }
}

impl fmt::Display for ProcState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
