//! Why the kernel refused to open an event or to map its ring, and what would change that.

use std::fmt;

/// Why the kernel rejected an event or a ring.
///
/// `EINVAL`, `E2BIG` and `EOPNOTSUPP` do not identify the cause: the event is opened again without
/// each of its newer fields to find the one that was rejected.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OpenErrorReason {
    /// This kernel, or the PMU, rejects these fields of the attribute. Without them the event
    /// opens.
    Fields(Vec<Field>),
    /// The user lacks a privilege.
    Privilege {
        /// The current value of `kernel.perf_event_paranoid`.
        paranoid: Option<i64>,
        /// The highest level at which this is permitted without `CAP_PERFMON`; `None` if there is
        /// none. Above level 2, which a patch of Debian and others adds, `CAP_SYS_ADMIN` is needed
        /// in its place.
        allowed_at: Option<i64>,
        /// Whether the event opens with `exclude_kernel` and then counts user space: see
        /// [`Event::without_kernel`](crate::Event::without_kernel).
        user_space_alone_is_allowed: bool,
        /// Whether the user has the privilege in another user namespace than the initial one, as in a
        /// rootless container. There it has no effect on perf events.
        held_in_user_namespace: bool,
    },
    /// A filter of system calls (`seccomp(2)`) blocks `perf_event_open(2)` for this process, whatever
    /// its event: the default profiles of Docker, Podman and containerd do so without `CAP_PERFMON`.
    SystemCallFiltered,
    /// The kernel was built without perf events (`CONFIG_PERF_EVENTS`).
    NoPerfEvents,
    /// The thread belongs to another user. `kernel.perf_event_paranoid` is irrelevant.
    OtherUser {
        /// The thread.
        tid: u32,
        /// Its user id.
        uid: u32,
    },
    /// The frequency is above `kernel.perf_event_max_sample_rate`.
    SampleRate {
        /// The requested frequency, in samples per second.
        asked: u64,
        /// The limit.
        max: i64,
    },
    /// This machine does not have the event. Many virtual machines have no hardware PMU.
    NoSuchEvent,
    /// Other CPUs have the event, and this one does not: machines with two kinds of cores have a PMU for
    /// each, and a generalised event without the name of a PMU can be that of one kind.
    NotOnCpu(u32),
    /// CPUs share the PMU, such as that of a memory controller or an energy counter: its events are
    /// counted on CPUs, and not for tasks or cgroups. See [`Target::Cpu`](crate::Target::Cpu).
    NotOnTasks,
    /// The function or file to probe does not exist.
    NoSuchProbePoint,
    /// Several functions of the kernel have the name of a kprobe: see
    /// [`Event::kprobe_address`](crate::Event::kprobe_address).
    AmbiguousProbePoint,
    /// The offset of a uprobe is beyond the end of its file.
    ProbeOffset {
        /// The offset, in bytes.
        offset: u64,
        /// Size of the file, in bytes.
        size: u64,
    },
    /// The thread does not exist.
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
    /// No counter or breakpoint is free, or the group has more events than the PMU has counters.
    NoCounters,
    /// Another process has exclusive access to the PMU.
    Busy,
    /// The directory is not a cgroup with perf events.
    Cgroup,
    /// The limit of locked memory.
    LockedMemory {
        /// `RLIMIT_MEMLOCK`, in bytes.
        memlock: Option<u64>,
        /// `kernel.perf_event_mlock_kb`.
        mlock_kb: Option<i64>,
    },
    /// The kernel cannot allocate the memory.
    OutOfMemory,
    /// An inheriting event that follows a thread over all CPUs cannot have a ring.
    InheritNeedsCpu,
    /// The event cannot join this group: see `perf_event_open(2)`.
    Group,
    /// Unknown.
    Unknown,
}

/// A field of `perf_event_attr`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Field {
    /// The field or bit, by the kernel's name, and the limit that it is above, if there is one; `an AUX area` of
    /// [`Sampler::map_aux`](crate::Sampler::map_aux).
    pub name: &'static str,
    /// The first Linux release that supports it; empty if it is before 4.0 or depends on the PMU.
    pub since: &'static str,
}

/// The highest level of `kernel.perf_event_paranoid` at which `CAP_PERFMON` has an effect.
pub(crate) const MAX_PARANOID_FOR_PERFMON: i64 = 2;

impl fmt::Display for OpenErrorReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fields(fields) => {
                f.write_str("this kernel or its PMU does not support ")?;
                for (i, field) in fields.iter().enumerate() {
                    f.write_str(if i == 0 { "" } else { ", " })?;
                    f.write_str(field.name)?;
                    if !field.since.is_empty() {
                        write!(f, " (Linux {})", field.since)?;
                    }
                }
                Ok(())
            }
            Self::Privilege {
                paranoid,
                allowed_at,
                user_space_alone_is_allowed,
                held_in_user_namespace,
            } => {
                let place = if *held_in_user_namespace {
                    " in the initial user namespace: this process has capabilities only in another \
                     one, as in a rootless container"
                } else {
                    ""
                };
                privilege(f, *paranoid, *allowed_at, place, *user_space_alone_is_allowed)
            }
            Self::SystemCallFiltered => f.write_str(
                "a seccomp filter blocks perf_event_open(2), as in containers: add CAP_PERFMON \
                 (docker run --cap-add PERFMON) or run without the filter (--security-opt \
                 seccomp=unconfined)",
            ),
            Self::NoPerfEvents => {
                f.write_str("this kernel has no perf events (CONFIG_PERF_EVENTS)")
            }
            Self::OtherUser { tid, uid } => {
                write!(
                    f,
                    "thread {tid} belongs to user {uid}: run as that user or with CAP_PERFMON"
                )
            }
            Self::SampleRate { asked, max } => write!(
                f,
                "{asked} samples per second exceed kernel.perf_event_max_sample_rate, which is {max}"
            ),
            Self::NoSuchEvent => f.write_str(
                "this machine does not have the event (virtual machines often have no hardware \
                 counters)",
            ),
            Self::NotOnCpu(cpu) => write!(
                f,
                "CPU {cpu} does not have the event, other CPUs do (one of a PMU, as cpu_core/cycles/, is \
                 opened on the CPUs of the PMU)"
            ),
            Self::NotOnTasks => f.write_str(
                "the event is counted on CPUs, which share its PMU, and not for tasks or cgroups",
            ),
            Self::NoSuchProbePoint => f.write_str("there is no such function or file to probe"),
            Self::AmbiguousProbePoint => {
                f.write_str("several functions have this name: use the address")
            }
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
                f.write_str("the limit of locked memory is reached: ")?;
                match mlock_kb {
                    Some(kb) => write!(f, "kernel.perf_event_mlock_kb is {kb} per CPU")?,
                    None => f.write_str("kernel.perf_event_mlock_kb")?,
                }
                if let Some(bytes) = memlock {
                    write!(f, ", RLIMIT_MEMLOCK {} KiB", bytes / 1024)?;
                }
                f.write_str("; use fewer pages, raise one of the two or get CAP_IPC_LOCK")
            }
            Self::OutOfMemory => f.write_str("the kernel cannot allocate the memory"),
            Self::InheritNeedsCpu => f.write_str(
                "an inheriting event needs a CPU to have a ring: open one per CPU \
                 (Target::ThreadOnCpu)",
            ),
            Self::Group => f.write_str("the event cannot join this group"),
            Self::Unknown => f.write_str("the kernel gave no reason"),
        }
    }
}

/// The privilege that is needed, and in which user namespace.
fn privilege(
    f: &mut fmt::Formatter<'_>,
    paranoid: Option<i64>,
    allowed_at: Option<i64>,
    place: &str,
    user_space_alone_is_allowed: bool,
) -> fmt::Result {
    f.write_str("not permitted")?;
    if let Some(level) = paranoid {
        write!(f, ": kernel.perf_event_paranoid is {level}")?;
    }
    f.write_str(", this needs ")?;
    if let Some(level) = allowed_at {
        write!(f, "{level} or less (as root: sysctl kernel.perf_event_paranoid={level}) or ")?;
    }
    let (capability, remark) = match (paranoid, allowed_at) {
        (Some(level), _) if level > MAX_PARANOID_FOR_PERFMON => {
            ("CAP_SYS_ADMIN", "; above level 2, CAP_PERFMON does not suffice")
        }
        (_, Some(_)) => ("CAP_PERFMON", ""),
        (_, None) => ("CAP_PERFMON (uprobes: CAP_SYS_ADMIN)", ""),
    };
    write!(f, "{capability}{place}{remark}")?;
    if user_space_alone_is_allowed {
        f.write_str("; user space alone may be measured: exclude_kernel")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_of_cpus_are_named_as_such() {
        let text = OpenErrorReason::NotOnTasks.to_string();
        assert!(text.contains("counted on CPUs") && text.contains("not for tasks"), "{text}");
    }

    #[test]
    fn the_remedy_depends_on_the_level() {
        let reason = |paranoid, allowed_at, held_in_user_namespace| OpenErrorReason::Privilege {
            paranoid,
            allowed_at,
            user_space_alone_is_allowed: false,
            held_in_user_namespace,
        };
        let text = |paranoid, allowed_at| reason(paranoid, allowed_at, false).to_string();
        assert_eq!(
            text(Some(2), Some(1)),
            "not permitted: kernel.perf_event_paranoid is 2, this needs 1 or less (as root: sysctl \
             kernel.perf_event_paranoid=1) or CAP_PERFMON"
        );
        assert_eq!(
            text(Some(3), Some(2)),
            "not permitted: kernel.perf_event_paranoid is 3, this needs 2 or less (as root: sysctl \
             kernel.perf_event_paranoid=2) or CAP_SYS_ADMIN; above level 2, CAP_PERFMON does not \
             suffice"
        );
        assert_eq!(
            text(None, None),
            "not permitted, this needs CAP_PERFMON (uprobes: CAP_SYS_ADMIN)"
        );
        assert_eq!(
            text(Some(4), None),
            "not permitted: kernel.perf_event_paranoid is 4, this needs CAP_SYS_ADMIN; above level \
             2, CAP_PERFMON does not suffice"
        );
        assert_eq!(
            reason(Some(2), None, true).to_string(),
            "not permitted: kernel.perf_event_paranoid is 2, this needs CAP_PERFMON (uprobes: \
             CAP_SYS_ADMIN) in the initial user namespace: this process has capabilities only in \
             another one, as in a rootless container"
        );
    }
}
