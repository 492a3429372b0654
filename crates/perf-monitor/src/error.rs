use rustix::io::Errno;
use std::fmt;
use std::path::PathBuf;
use trace_common::{ReadError, ReadErrorKind};

/// A result with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, and what the user can do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// `perf_event_open(2)` refused.
    #[error("cannot open {event} on {target}: {reason} ({errno})")]
    Open {
        /// The event.
        event: String,
        /// Whom and where it was to measure.
        target: String,
        /// The kernel's answer.
        errno: Errno,
        /// What was found out about the reason.
        reason: OpenErrorReason,
    },
    /// Mapping a ring refused.
    #[error("cannot map a ring of {pages} pages: {reason} ({errno})")]
    Map {
        /// Data pages asked for.
        pages: usize,
        /// The kernel's answer.
        errno: Errno,
        /// What was found out about the reason.
        reason: OpenErrorReason,
    },
    /// A ring has a power of two of pages.
    #[error("a ring has a power of two of pages, at least 1, not {0}")]
    RingPages(usize),
    /// No event has this name.
    #[error("no event {name:?} here{}", NearMatches(.near))]
    UnknownEvent {
        /// The name.
        name: String,
        /// Names like it that exist.
        near: Vec<String>,
    },
    /// A term of a dynamic PMU's event that the PMU does not have.
    #[error("PMU {pmu} has no term {term:?}{}", NearMatches(.near))]
    UnknownTerm {
        /// The PMU.
        pmu: String,
        /// The term.
        term: String,
        /// Terms like it that exist.
        near: Vec<String>,
    },
    /// The value of a term does not fit in the bits that the PMU has for it.
    #[error("the value {value:#x} of {term:?} does not fit in the {bits} bits of PMU {pmu}")]
    TermValue {
        /// The PMU.
        pmu: String,
        /// The term.
        term: String,
        /// The value.
        value: u64,
        /// Bits of the term.
        bits: u32,
    },
    /// This kernel cannot make probes with their event.
    #[error(
        "this kernel has no PMU {pmu:?}, which probes need (Linux 4.17 with \
         CONFIG_{}_EVENTS)", pmu.to_uppercase()
    )]
    NoProbePmu {
        /// The PMU: `kprobe` or `uprobe`.
        pmu: &'static str,
    },
    /// The description of an event cannot be read.
    #[error("cannot read the event {text:?}: {why}")]
    EventSyntax {
        /// The description.
        text: String,
        /// What is wrong.
        why: &'static str,
    },
    /// The period would starve the machine.
    #[error(
        "a sample every {nanos} ns leaves the CPU no time for anything else: use at least \
         {min} ns, or allow_short_period()"
    )]
    PeriodTooShort {
        /// The period asked for.
        nanos: u64,
        /// The shortest that is accepted.
        min: u64,
    },
    /// No tracefs is mounted.
    #[error(
        "no tracefs is mounted; as root: mount -t tracefs nodev /sys/kernel/tracing \
         (readable to a group: -o gid=GROUP,mode=0750)"
    )]
    NoTracefs,
    /// A file of procfs, sysfs or tracefs could not be read or written.
    #[error("{}: {source}{}", path.display(), PermissionHint(source))]
    File {
        /// The file.
        path: PathBuf,
        /// What happened.
        source: std::io::Error,
    },
    /// A file of sysfs or tracefs is not in the form that it is documented to have.
    #[error("{what} at byte {offset}: {why}")]
    Format {
        /// What was parsed.
        what: &'static str,
        /// Where it went wrong.
        offset: usize,
        /// What is wrong.
        why: &'static str,
    },
    /// The kernel did not accept a filter.
    #[error("the kernel refused the filter {filter:?} of {event} ({errno}): {why}")]
    Filter {
        /// The event.
        event: String,
        /// The filter.
        filter: String,
        /// The kernel's answer.
        errno: Errno,
        /// What is known of the reason.
        why: String,
    },
    /// An ioctl on an event failed.
    #[error("{operation} of {event} failed: {errno}{}", hint.map(|h| format!(" ({h})")).unwrap_or_default())]
    Control {
        /// The operation, by the name of the ioctl or the system call.
        operation: &'static str,
        /// The event.
        event: String,
        /// The kernel's answer.
        errno: Errno,
        /// What this errno means here.
        hint: Option<&'static str>,
    },
    /// A pinned event lost its counter: it counts no more until it is disabled and enabled again.
    #[error("{event} is pinned and its counter was taken: disable and enable it to try again")]
    PinnedOut {
        /// The event.
        event: String,
    },
    /// From Linux 6.18 a tracepoint whose REFRESH ran out cannot be enabled again.
    #[error(
        "{event} was limited by refresh(), and this kernel never restarts such an event: open a \
         new one"
    )]
    RefreshIsFinal {
        /// The event.
        event: String,
    },
    /// Events that share a ring or a file do not have their ids at the same place, so that their
    /// records cannot be told apart.
    #[error(
        "events that share a ring or a file need their id at the same place of each record: give \
         each of them SampleFlags::IDENTIFIER and sample_id_all"
    )]
    NoCommonId,
    /// A record or a read is shorter than its layout, or of an unknown event.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// Any other system call failed.
    #[error("{call} failed: {errno}")]
    System {
        /// The call.
        call: &'static str,
        /// The kernel's answer.
        errno: Errno,
    },
}

impl Error {
    pub(crate) fn file(path: impl Into<PathBuf>, source: std::io::Error) -> Self {
        Self::File { path: path.into(), source }
    }

    /// The kernel's answer, where a system call failed.
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Self::Open { errno, .. }
            | Self::Map { errno, .. }
            | Self::Filter { errno, .. }
            | Self::Control { errno, .. }
            | Self::System { errno, .. } => Some(*errno),
            Self::File { source, .. } => Errno::from_io_error(source),
            _ => None,
        }
    }

    /// What was found out about the reason, where the kernel refused an event or a ring.
    pub const fn reason(&self) -> Option<&OpenErrorReason> {
        match self {
            Self::Open { reason, .. } | Self::Map { reason, .. } => Some(reason),
            _ => None,
        }
    }
}

/// Bytes that could not be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {why} at byte {offset}")]
#[non_exhaustive]
pub struct DecodeError {
    /// What was decoded.
    pub what: &'static str,
    /// Offset from the start of the input.
    pub offset: u64,
    /// What was wrong.
    pub why: DecodeErrorKind,
}

impl DecodeError {
    pub(crate) fn read(what: &'static str, error: ReadError) -> Self {
        Self { what, offset: error.offset, why: error.kind.into() }
    }
}

/// Why bytes could not be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeErrorKind {
    /// They are too short.
    #[error(transparent)]
    Read(#[from] ReadErrorKind),
    /// The record has the id of an event that the [`Decoder`](crate::Decoder) does not know.
    #[error("no known event has the id {0}")]
    UnknownId(u64),
}

/// Why the kernel refused, as far as it can be found out.
///
/// For `EINVAL`, `E2BIG` and `EOPNOTSUPP`, which name nothing, the event is tried again without
/// each of its newer fields.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OpenErrorReason {
    /// This kernel, or the PMU, does not take these fields of the attribute: without them the
    /// event would open.
    Fields(Vec<Field>),
    /// The user may not.
    Privilege {
        /// `kernel.perf_event_paranoid` now.
        paranoid: Option<i64>,
        /// The highest level at which this is allowed without `CAP_PERFMON`; `None`: at none.
        allowed_at: Option<i64>,
        /// The event would open with `exclude_kernel` and count user space: see
        /// [`Event::without_kernel`](crate::Event::without_kernel).
        user_space_alone_is_allowed: bool,
    },
    /// The thread is of another user, whatever `kernel.perf_event_paranoid` is.
    OtherUser {
        /// The thread.
        tid: u32,
        /// Its user.
        uid: u32,
    },
    /// The frequency is above `kernel.perf_event_max_sample_rate`.
    SampleRate {
        /// The frequency.
        asked: u64,
        /// The limit.
        max: i64,
    },
    /// This machine has no such event (a virtual machine often has no hardware PMU).
    NoSuchEvent,
    /// There is no such function or file to probe.
    NoSuchProbePoint,
    /// The offset of a uprobe is not in its file.
    ProbeOffset {
        /// The offset, in bytes.
        offset: u64,
        /// Size of the file, in bytes.
        size: u64,
    },
    /// The thread does not exist, or not any more.
    NoSuchThread(u32),
    /// The CPU does not exist.
    NoSuchCpu(u32),
    /// The CPU is offline.
    OfflineCpu(u32),
    /// Too many open files.
    OpenFiles {
        /// The soft limit (`ulimit -n`).
        limit: Option<u64>,
    },
    /// No room for another counter or breakpoint, or the group is bigger than the PMU.
    NoCounters,
    /// Another process has exclusive access to the PMU.
    Busy,
    /// A cgroup of which perf events know nothing.
    Cgroup,
    /// More locked memory than is allowed.
    LockedMemory {
        /// `RLIMIT_MEMLOCK`, in bytes.
        memlock: Option<u64>,
        /// `kernel.perf_event_mlock_kb`.
        mlock_kb: Option<i64>,
    },
    /// The kernel has not that much memory in one piece.
    OutOfMemory,
    /// An inheriting event that follows a thread over all CPUs cannot have a ring.
    InheritNeedsCpu,
    /// The event follows other rules for its group: see `perf_event_open(2)`.
    Group,
    /// Nothing could be found out.
    Unknown,
}

/// A field of `perf_event_attr`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Field {
    /// The field or bit, by the kernel's name.
    pub name: &'static str,
    /// The release of Linux that brought it; empty if it is older than 4.0 or depends on the PMU.
    pub since: &'static str,
}

impl fmt::Display for OpenErrorReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fields(fields) => {
                f.write_str("this kernel or its PMU does not take ")?;
                for (i, field) in fields.iter().enumerate() {
                    f.write_str(if i == 0 { "" } else { ", " })?;
                    f.write_str(field.name)?;
                    if !field.since.is_empty() {
                        write!(f, " (Linux {})", field.since)?;
                    }
                }
                Ok(())
            }
            Self::Privilege { paranoid, allowed_at, user_space_alone_is_allowed } => {
                f.write_str("not permitted")?;
                if let Some(level) = paranoid {
                    write!(f, ": kernel.perf_event_paranoid is {level}")?;
                }
                match allowed_at {
                    Some(level) => write!(
                        f,
                        ", this needs {level} or less (as root: sysctl \
                         kernel.perf_event_paranoid={level}) or CAP_PERFMON"
                    )?,
                    None => f.write_str(", this needs CAP_PERFMON (probes: CAP_SYS_ADMIN)")?,
                }
                if *user_space_alone_is_allowed {
                    f.write_str("; user space alone is allowed: exclude_kernel")?;
                }
                Ok(())
            }
            Self::OtherUser { tid, uid } => {
                write!(f, "thread {tid} is of user {uid}: be that user, or have CAP_PERFMON")
            }
            Self::SampleRate { asked, max } => write!(
                f,
                "{asked} samples per second are above kernel.perf_event_max_sample_rate, {max}"
            ),
            Self::NoSuchEvent => f.write_str(
                "this machine does not have the event (virtual machines often have no hardware \
                 counters)",
            ),
            Self::NoSuchProbePoint => f.write_str("there is no such function or file to probe"),
            Self::ProbeOffset { offset, size } => {
                write!(f, "the offset {offset:#x} is not in the file, which has {size:#x} bytes")
            }
            Self::NoSuchThread(tid) => write!(f, "there is no thread {tid}"),
            Self::NoSuchCpu(cpu) => write!(f, "there is no CPU {cpu}"),
            Self::OfflineCpu(cpu) => write!(f, "CPU {cpu} is offline"),
            Self::OpenFiles { limit } => {
                f.write_str("too many open files: each event on each CPU needs one")?;
                match limit {
                    Some(limit) => write!(f, ", the limit is {limit} (ulimit -n)"),
                    None => Ok(()),
                }
            }
            Self::NoCounters => f.write_str("no free counter or breakpoint register is left"),
            Self::Busy => f.write_str("another process has exclusive access to the PMU"),
            Self::Cgroup => f.write_str(
                "not a cgroup with perf events: in cgroup2 it must be below the root, with a \
                 controller active in cgroup.subtree_control of its parent",
            ),
            Self::LockedMemory { memlock, mlock_kb } => {
                f.write_str("more locked memory than this user may have: ")?;
                match mlock_kb {
                    Some(kb) => write!(f, "kernel.perf_event_mlock_kb is {kb} per CPU")?,
                    None => f.write_str("kernel.perf_event_mlock_kb")?,
                }
                if let Some(bytes) = memlock {
                    write!(f, ", RLIMIT_MEMLOCK {} KiB", bytes / 1024)?;
                }
                f.write_str("; use fewer pages, raise one of the two or have CAP_IPC_LOCK")
            }
            Self::OutOfMemory => f.write_str("the kernel cannot allocate so much memory"),
            Self::InheritNeedsCpu => f.write_str(
                "an inheriting event needs a CPU to have a ring: open one per CPU \
                 (Target::ThreadOnCpu)",
            ),
            Self::Group => f.write_str("the event cannot join this group"),
            Self::Unknown => f.write_str("the kernel gave no reason"),
        }
    }
}

struct NearMatches<'a>(&'a [String]);

impl fmt::Display for NearMatches<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, name) in self.0.iter().enumerate() {
            f.write_str(if i == 0 { "; did you mean " } else { ", " })?;
            f.write_str(name)?;
        }
        f.write_str(if self.0.is_empty() { "" } else { "?" })
    }
}

struct PermissionHint<'a>(&'a std::io::Error);

impl fmt::Display for PermissionHint<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.kind() == std::io::ErrorKind::PermissionDenied {
            f.write_str(
                " (tracefs is root's alone by default: be root, or mount it with \
                 -o gid=GROUP,mode=0750)",
            )?;
        }
        Ok(())
    }
}
