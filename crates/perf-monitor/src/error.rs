use crate::errno::{self, Errno};
use crate::files::{read_bytes, tracefs_mounts};
use crate::refusal::OpenErrorReason;
use std::fmt;
use std::path::{Path, PathBuf};
use trace_common::{ReadError, ReadErrorKind};

/// A result with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error, with a remedy where one is known.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// `perf_event_open(2)` failed.
    #[error("cannot open {event} on {target}: {reason} ({errno})")]
    Open {
        /// The event.
        event: String,
        /// The task and CPU to measure.
        target: String,
        /// The error number of the system call.
        errno: Errno,
        /// The reason, if it could be determined.
        reason: OpenErrorReason,
    },
    /// Mapping a ring failed.
    #[error("cannot map a ring of {pages} pages: {reason} ({errno})")]
    Map {
        /// Number of data pages.
        pages: usize,
        /// The error number of the system call.
        errno: Errno,
        /// The reason, if it could be determined.
        reason: OpenErrorReason,
    },
    /// The number of pages of a ring is not a power of two.
    #[error("the pages of a ring must be a power of two, not {0}")]
    RingPages(usize),
    /// An event with [`write_backward`](crate::EventBuilder::write_backward) was opened with a ring
    /// that is read forward, or the other way round.
    #[error("{event} {}", match is_backward {
        true => "is not opened with write_backward, as an OverwriteRing needs: read it with a Sampler",
        false => "is opened with write_backward: read it with an OverwriteRing",
    })]
    RingDirection {
        /// The event.
        event: String,
        /// Whether the ring is an [`OverwriteRing`](crate::OverwriteRing).
        is_backward: bool,
    },
    /// No event has this name.
    #[error("no event {name:?} here{}", NearMatches(.near))]
    UnknownEvent {
        /// The name.
        name: String,
        /// Similar names that exist.
        near: Vec<String>,
    },
    /// The PMU has no term with this name.
    #[error("PMU {pmu} has no term {term:?}{}", NearMatches(.near))]
    UnknownTerm {
        /// The PMU.
        pmu: String,
        /// The term.
        term: String,
        /// Similar terms that exist.
        near: Vec<String>,
    },
    /// The value of a term does not fit in its bits.
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
    /// This kernel cannot create probes together with their event.
    #[error(
        "this kernel has no PMU {pmu:?}, which probes need (Linux 4.17 with \
         CONFIG_{}_EVENTS)", pmu.to_uppercase()
    )]
    NoProbePmu {
        /// The PMU: `kprobe` or `uprobe`.
        pmu: &'static str,
    },
    /// This kernel cannot create probes through tracefs.
    #[error(
        "{}: this kernel has no such file (CONFIG_KPROBE_EVENTS, CONFIG_UPROBE_EVENTS)",
        path.display()
    )]
    NoProbeFile {
        /// The file: `kprobe_events` or `uprobe_events`.
        path: PathBuf,
    },
    /// A part of the definition of a probe cannot be written in the syntax of the kernel.
    #[error("cannot define a probe with {text:?}: {why} (at byte {offset})")]
    ProbeSyntax {
        /// The text.
        text: String,
        /// Offset of the problem in it, in bytes.
        offset: u64,
        /// The problem.
        why: &'static str,
    },
    /// The kernel refused the definition of a probe.
    #[error("the kernel refused the probe {definition:?} ({errno}){}{}", LogEntry(why, *offset),
        NearMatches(.near))]
    Probe {
        /// The line for `kprobe_events` or `uprobe_events`.
        definition: String,
        /// The error number of the write.
        errno: Errno,
        /// The explanation in the `error_log` of tracefs (Linux 5.2).
        why: Option<String>,
        /// The offset in `definition` to which the explanation refers, in bytes.
        offset: Option<u64>,
        /// Similar symbols, if the kernel has none with this name.
        near: Vec<String>,
    },
    /// An event with the name of a new probe exists.
    #[error("there is an event {name} already: choose another name, or delete that probe")]
    ProbeExists {
        /// Group and name.
        name: String,
    },
    /// The places of a USDT probe describe an argument with different types, and an event has one type.
    #[error(
        "the places of this probe have different types of the argument {name}, {first} and \
         {second}: give it a type, as in $arg1:u64"
    )]
    ProbeTypes {
        /// The name of the argument.
        name: String,
        /// The type at the first place.
        first: String,
        /// The type at another place.
        second: String,
    },
    /// A probe cannot be removed while a perf event or ftrace uses it.
    #[error("the probe {name} is in use: close its events first")]
    ProbeBusy {
        /// Group and name.
        name: String,
    },
    /// An object file is malformed, or is not one.
    #[error("{}: not a usable ELF file: {why}", path.display())]
    Elf {
        /// The file.
        path: PathBuf,
        /// The problem.
        why: String,
    },
    /// A file has no function or USDT probe with this name.
    #[error("{} has no {what} {name:?}{}", path.display(), NearMatches(.near))]
    UnknownSymbol {
        /// The file.
        path: PathBuf,
        /// `function` or `USDT probe`.
        what: &'static str,
        /// The name.
        name: String,
        /// Similar names in the file.
        near: Vec<String>,
    },
    /// Several functions of a file have this name.
    #[error("{} has {} functions {name:?}: choose one of {}", path.display(), candidates.len(),
        candidates.iter().take(8).map(|(symbol, offset)| format!("{symbol} ({offset:#x})"))
            .collect::<Vec<_>>().join(", "))]
    AmbiguousSymbol {
        /// The file.
        path: PathBuf,
        /// The name.
        name: String,
        /// Their symbols, and their offsets in the file.
        candidates: Vec<(String, u64)>,
    },
    /// A function of a file cannot be probed there.
    #[error("cannot probe {name:?} of {}: {why}", path.display())]
    UnusableSymbol {
        /// The file.
        path: PathBuf,
        /// The name.
        name: String,
        /// The problem.
        why: &'static str,
    },
    /// An argument of a USDT probe cannot be fetched by the kernel.
    #[error("argument {argument} of the USDT probe {probe}, {text:?}, cannot be fetched: {why}")]
    UsdtArgument {
        /// Provider and name of the probe.
        probe: String,
        /// Number of the argument, from 1.
        argument: u8,
        /// Its description in the file.
        text: String,
        /// The problem.
        why: &'static str,
    },
    /// The description of an event has a syntax error.
    #[error("syntax error in the event {text:?}: {why}")]
    EventSyntax {
        /// The description.
        text: String,
        /// The problem.
        why: &'static str,
    },
    /// The period is too short and would starve the machine.
    #[error(
        "a sample every {nanos} ns would starve the machine: use at least {min} ns, or \
         allow_short_period()"
    )]
    PeriodTooShort {
        /// The requested period, in nanoseconds.
        nanos: u64,
        /// The shortest accepted period, in nanoseconds.
        min: u64,
    },
    /// No tracefs is mounted.
    #[error(
        "no tracefs is mounted; as root: mount -t tracefs nodev /sys/kernel/tracing \
         (readable to a group: -o gid=GROUP,mode=0750)"
    )]
    NoTracefs,
    /// A file of procfs, sysfs or tracefs could not be read or written.
    #[error("{}: {source}{}", path.display(), PermissionHint(path, source))]
    File {
        /// The file.
        path: PathBuf,
        /// The error.
        source: std::io::Error,
    },
    /// A file of sysfs or tracefs is not in its documented form.
    #[error("{what} at byte {offset}: {why}")]
    Format {
        /// The kind of file.
        what: &'static str,
        /// Offset of the problem, in bytes.
        offset: u64,
        /// The problem.
        why: &'static str,
    },
    /// The kernel refused a filter.
    #[error("the kernel refused the filter {filter:?} of {event} ({errno}): {why}")]
    Filter {
        /// The event.
        event: String,
        /// The filter.
        filter: String,
        /// The error number of the system call.
        errno: Errno,
        /// The reason, if it is known.
        why: String,
    },
    /// An ioctl on an event failed.
    #[error("{operation} of {event} failed: {errno}{}", hint.map(|h| format!(" ({h})")).unwrap_or_default())]
    Control {
        /// The operation, by the name of the ioctl or the system call.
        operation: &'static str,
        /// The event.
        event: String,
        /// The error number of the system call.
        errno: Errno,
        /// Meaning of the error number for this operation.
        hint: Option<&'static str>,
    },
    /// A pinned event is not on the PMU: it does not count until it is disabled and enabled again.
    #[error("{event} is pinned but not on the PMU: disable and enable it to try again")]
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
    /// Events that share a ring or a file have their ids at different offsets, so their records
    /// cannot be distinguished.
    #[error(
        "events that share a ring or a file need their id at the same place of each record: give \
         each of them SampleFlags::IDENTIFIER and sample_id_all"
    )]
    NoCommonId,
    /// The set has no such event, or it is one that its rings belong to and cannot be removed.
    #[error("the set has no such event, or its rings depend on it")]
    UnknownSetEvent,
    /// Records can only be ordered by a clock that programs can read.
    #[error(
        "the clock {0:?} cannot be read by programs, so that records cannot be ordered by it: use \
         ClockDomain::Monotonic"
    )]
    UnreadableClock(trace_common::ClockDomain),
    /// The monitor has no event or group with this id.
    #[error("the monitor has no such event or group: it was never registered, or unregistered")]
    NotRegistered,
    /// Values can only be enqueued for external events.
    #[error("{name} is not an external event: its values come from the kernel")]
    NotExternal {
        /// The event.
        name: String,
    },
    /// External events have neither filters nor options: the kernel does not have them.
    #[error("{name} is an external event, not one of the kernel: it has no {what}")]
    NotOfKernel {
        /// The event.
        name: String,
        /// `filter` or `options`.
        what: &'static str,
    },
    /// A [declared](crate::Registration::field) field, or a value of it.
    #[error("field {field:?} of an external event: {why}")]
    ExternalField {
        /// The field.
        field: String,
        /// The reason.
        why: &'static str,
    },
    /// The monitor does not take more external events: it does not run, it is too slow, or the times
    /// of those that wait have not come.
    #[error(
        "{waiting} external events wait already: run the monitor, and give them times of its clock \
         ({clock}, as EventMonitor::now has) that are not far in the future"
    )]
    TooManyExternal {
        /// Number of events that wait.
        waiting: usize,
        /// The clock of the monitor.
        clock: trace_common::ClockDomain,
    },
    /// The monitor is running.
    #[error("the monitor is running: stop it first")]
    MonitorRuns,
    /// No hierarchy of cgroups is mounted.
    #[error(
        "no cgroup hierarchy is mounted; as root: mount -t cgroup2 none /sys/fs/cgroup \
         (or give its directory by perf_event_dir)"
    )]
    NoCgroups,
    /// A thread could not be started.
    #[error("cannot start the reading thread: {0}")]
    Thread(std::io::Error),
    /// The kernel refused a realtime priority.
    #[error(
        "cannot run this thread with SCHED_FIFO and priority {priority}: {errno} (this needs \
         CAP_SYS_NICE, or a sufficient RLIMIT_RTPRIO: ulimit -r)"
    )]
    Realtime {
        /// The priority.
        priority: u8,
        /// The error number of the system call.
        errno: Errno,
    },
    /// A record or a read is shorter than its layout, or belongs to an unknown event.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// Any other system call failed.
    #[error("{call} failed: {errno}")]
    System {
        /// The call.
        call: &'static str,
        /// The error number of the system call.
        errno: Errno,
    },
}

impl Error {
    pub(crate) fn file(path: impl Into<PathBuf>, source: std::io::Error) -> Self {
        Self::File { path: path.into(), source }
    }

    /// The error number of the failed system call, if any.
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Self::Open { errno, .. }
            | Self::Map { errno, .. }
            | Self::Filter { errno, .. }
            | Self::Control { errno, .. }
            | Self::Realtime { errno, .. }
            | Self::Probe { errno, .. }
            | Self::System { errno, .. } => Some(*errno),
            Self::File { source, .. } => errno::of(source),
            _ => None,
        }
    }

    /// The reason, if the kernel rejected an event or a ring.
    pub const fn reason(&self) -> Option<&OpenErrorReason> {
        match self {
            Self::Open { reason, .. } | Self::Map { reason, .. } => Some(reason),
            _ => None,
        }
    }
}

/// Bytes that could not be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {kind} at byte {offset}")]
#[non_exhaustive]
pub struct DecodeError {
    /// The item that was decoded.
    pub what: &'static str,
    /// Offset from the start of the input.
    pub offset: u64,
    /// The problem.
    pub kind: DecodeErrorKind,
}

impl DecodeError {
    pub(crate) fn read(what: &'static str, error: ReadError) -> Self {
        Self { what, offset: error.offset, kind: error.kind.into() }
    }
}

/// Why bytes could not be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeErrorKind {
    /// The input is too short.
    #[error(transparent)]
    Read(#[from] ReadErrorKind),
    /// The record has the id of an event that the [`Decoder`](crate::Decoder) does not know.
    #[error("no known event has the id {0}")]
    UnknownId(u64),
}

struct LogEntry<'a>(&'a Option<String>, Option<u64>);

impl fmt::Display for LogEntry<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Self(Some(why), offset) = self {
            write!(f, ": {why}")?;
            if let Some(offset) = offset {
                write!(f, " (at byte {offset})")?;
            }
        }
        Ok(())
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

/// Whether this crate reads a file of tracefs by such a path: it is below a mount of this text of `mountinfo`, or has the
/// names of the lists of probes, or of events below a `tracing` that is not mounted, or of a detached mount.
fn is_in_tracefs(path: &Path, mountinfo: &[u8]) -> bool {
    const LISTS: [&str; 4] = ["kprobe_events", "uprobe_events", "kprobe_profile", "uprobe_profile"];
    let is_detached = path.starts_with("/proc/self/fd");
    let events = if is_detached { "events" } else { "tracing/events" };
    LISTS.iter().any(|list| path.ends_with(list))
        || path.ancestors().any(|dir| dir.ends_with(events))
        || tracefs_mounts(mountinfo).iter().any(|point| path.starts_with(point))
}

struct PermissionHint<'a>(&'a Path, &'a std::io::Error);

impl fmt::Display for PermissionHint<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(path, error) = self;
        if error.kind() != std::io::ErrorKind::PermissionDenied {
            return Ok(());
        }
        let mountinfo = read_bytes("/proc/self/mountinfo").unwrap_or_default();
        if is_in_tracefs(path, &mountinfo) {
            f.write_str(
                " (by default only root may read tracefs: run as root, or mount it with \
                 -o remount,gid=GROUP,mode=0750)",
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_remedy_for_tracefs_is_of_its_files_alone() {
        let remedy = |path: &str, kind: std::io::ErrorKind| {
            Error::file(path, kind.into()).to_string().contains("only root may read tracefs")
        };
        for path in [
            "/sys/kernel/tracing/events/sched/sched_switch/id",
            "/sys/kernel/debug/tracing/uprobe_events",
            "/mnt/kprobe_profile",
            "/proc/self/fd/3/events/sched",
        ] {
            assert!(remedy(path, std::io::ErrorKind::PermissionDenied), "{path}");
            assert!(!remedy(path, std::io::ErrorKind::NotFound), "{path}");
        }
        for path in [
            "/root/app",
            "/srv/events/app",
            "/sys/bus/event_source/devices/cpu/events",
            "/sys/fs/cgroup/x",
            "/proc/1/root",
        ] {
            assert!(!remedy(path, std::io::ErrorKind::PermissionDenied), "{path}");
        }
    }

    #[test]
    fn the_remedy_for_tracefs_is_of_each_mount() {
        let mountinfo = b"25 1 0:23 / /srv rw - ext4 /dev/vda1 rw\n\
            31 25 0:9 / /srv/a\\040b rw - tracefs nodev rw\n";
        for path in ["/srv/a b/events", "/srv/a b/events/sched/sched_switch/id"] {
            assert!(is_in_tracefs(Path::new(path), mountinfo), "{path}");
            assert!(!is_in_tracefs(Path::new(path), b""), "{path}");
        }
        assert!(!is_in_tracefs(Path::new("/srv/a/events/sched/sched_switch/id"), mountinfo));
    }

    /// The kernel mounts a tracefs there, which is in `mountinfo` once it was looked at.
    #[test]
    fn the_remedy_for_tracefs_is_also_of_that_in_debugfs() {
        let root = std::env::temp_dir().join(format!("perf-debugfs-{}", std::process::id()));
        std::fs::create_dir_all(root.join("tracing/events")).unwrap();
        let mountinfo = format!("31 25 0:9 / {} rw - debugfs nodev rw\n", root.display());
        let is_there = |file: &str| is_in_tracefs(&root.join(file), mountinfo.as_bytes());
        let found = ["tracing/available_events", "sched/debug"].map(is_there);
        std::fs::remove_dir_all(&root).unwrap();
        assert_eq!(found, [true, false]);
    }
}
