//! Linux kernel events as the commands open them.

pub(crate) mod events;
pub(crate) mod hotplug;
pub(crate) mod remedy;
pub(crate) mod sampling;
pub(crate) mod sideband_record;
pub(crate) mod switch_records;

use crate::failure::{Failure, Result};
use crate::run::open_files;
use crate::run::procfs::is_in_container;
use perf_monitor::{
    Error, Event, EventBuilder, Hardware, MAX_DEFAULT_RING_BYTES, OpenErrorReason, RealtimeThread,
    RingSet, Target, Tracefs, online_cpus,
};

/// Whether threads can have this realtime priority: it is needed after a command is started, and what can
/// fail is done before.
pub(crate) fn check_realtime(priority: Option<u8>) -> Result {
    priority.map(RealtimeThread::begin).transpose().map(drop).map_err(failure)
}

/// Converts an error of perf events to a failure.
pub(crate) fn failure(error: Error) -> Failure {
    // The event of the records about tasks is none that the user named.
    if let Error::Open { event, target, errno, reason } = &error {
        if event == "dummy" {
            let what = format!("cannot record tasks and mappings on {target}");
            return Failure::new(format_args!("{what}: {reason} ({errno})"));
        }
    }
    let remedy = match (&error, error.reason()) {
        (Error::UnknownEvent { .. }, _) => Some("triscope perf list shows the events"),
        (_, Some(OpenErrorReason::NotOnTasks)) => Some("use -a or -C, without cgroups"),
        _ => None,
    };
    let failure = Failure::new(error);
    match remedy {
        Some(remedy) => failure.and(remedy),
        None => failure,
    }
}

/// The mounted tracefs, otherwise a private one.
pub(crate) fn tracefs() -> perf_monitor::Result<Tracefs> {
    Tracefs::find_or_detached()
}

/// Whether more privileges would avoid this error.
pub(crate) fn is_privilege(error: &Error) -> bool {
    match error {
        Error::NoTracefs | Error::File { .. } => true,
        other => {
            let refusal = other.reason();
            refusal.is_some_and(remedy::is_missing)
                || matches!(
                    refusal,
                    Some(
                        OpenErrorReason::SystemCallFiltered | OpenErrorReason::LockedMemory { .. }
                    )
                )
        }
    }
}

/// The mode of the kernel's lockdown: `none`, `integrity` or `confidentiality`. `None` if it cannot be
/// read. Source: `kernel_lockdown(7)`.
pub(crate) fn lockdown() -> Option<String> {
    let of_securityfs = || {
        let text = std::fs::read_to_string("/sys/kernel/security/lockdown").ok()?;
        let (_, rest) = text.split_once('[')?;
        rest.split_once(']').map(|(mode, _)| mode.to_owned())
    };
    // Without securityfs, only a mode that was set at boot is known.
    of_securityfs().or_else(|| lockdown_at_boot(&std::fs::read_to_string("/proc/cmdline").ok()?))
}

fn lockdown_at_boot(command_line: &str) -> Option<String> {
    let mut words = command_line.split_whitespace();
    words.find_map(|word| word.strip_prefix("lockdown=")).map(str::to_owned)
}

/// Whether nobody may read the kernel: it then has no tracepoints and no kprobes.
pub(crate) fn is_confidential() -> bool {
    lockdown().as_deref() == Some(CONFIDENTIALITY)
}

/// The strictest mode of the kernel's lockdown.
pub(crate) const CONFIDENTIALITY: &str = "confidentiality";

/// Parses the description of an event.
pub(crate) fn event(text: &str) -> perf_monitor::Result<Event> {
    match Event::parse(text) {
        Err(Error::NoTracefs) => Event::parse_in(text, &tracefs()?),
        other => other,
    }
}

/// The pages of a ring of this size: at least one.
pub(crate) fn pages_of(bytes: usize) -> usize {
    (bytes / rustix::param::page_size()).max(1)
}

/// Why the buffers are smaller than usual.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Small {
    /// This user may not lock more memory.
    ByLimit,
    /// The machine has little memory.
    ByMemory,
}

/// The usual numbers of pages are of this size; those of the machine can be bigger.
const USUAL_PAGE: usize = 4 << 10;

/// Why buffers of `pages` pages of `page` bytes are smaller than the usual ones, if they are. They would
/// have `unlimited` pages if this user could lock any amount of memory.
fn why_small(pages: usize, unlimited: usize, usual: usize, page: usize) -> Option<Small> {
    let usual = ((usual * USUAL_PAGE) as u64).min(MAX_DEFAULT_RING_BYTES);
    let is_smaller = ((pages * page) as u64) < usual;
    let why = if pages < unlimited { Small::ByLimit } else { Small::ByMemory };
    is_smaller.then_some(why)
}

/// Reports that the rings are smaller than `usual` pages of 4 KiB, and why. `-m` chooses another size.
pub(crate) fn report_small_rings(set: &RingSet, usual: usize) {
    report_small_rings_of(set, usual, Some("-m"));
}

/// The same, with the option that chooses another size, if there is one.
pub(crate) fn report_small_rings_of(set: &RingSet, usual: usize, option: Option<&str>) {
    const LIMIT: &str =
        "this user may not lock more memory (ulimit -l, kernel.perf_event_mlock_kb)";
    let (pages, unlimited, page) = (set.pages(), set.unlimited_pages(), rustix::param::page_size());
    let Some(why) = why_small(pages, unlimited, usual, page) else { return };
    let usual = usual * USUAL_PAGE;
    let (wanted, why) = match why {
        Small::ByLimit => (usual.min(unlimited * page), LIMIT.to_owned()),
        Small::ByMemory => {
            let option =
                option.map_or_else(String::new, |name| format!(" ({name} chooses a size)"));
            (usual, format!("all of them together have 1/64 of the memory{option}"))
        }
    };
    let (size, wanted) = ((pages * page) >> 10, wanted >> 10);
    message!("triscope: buffers of {size} KiB for each CPU instead of {wanted} KiB, as {why}");
}

/// Reports that the threads of the machine are not all known by a number, if so.
pub(crate) fn report_namespace(is_system_wide: bool) {
    if is_system_wide && is_in_container() {
        message!(
            "triscope: in this PID namespace, all threads outside of it have the number 0, as idle \
             CPUs have: they are not distinguished"
        );
    }
}

/// Options of a set of rings with the requested number of pages; without a request, at most `usual`. The
/// limit of open files is raised for them.
pub(crate) fn rings(asked: Option<usize>, usual: usize) -> perf_monitor::RingSetBuilder {
    open_files::raise();
    match asked {
        Some(pages) => RingSet::builder().pages(pages),
        None => RingSet::builder().max_pages(usual),
    }
}

/// The event to sample without a request: cycles, or cpu-clock on machines that do not count them on all
/// CPUs.
pub(crate) fn usual_event() -> perf_monitor::Result<Event> {
    usual_event_on(&online_cpus(), |cycles, target| cycles.open(target).map(drop))
}

/// On machines with two kinds of cores, cycles without a PMU are those of one kind: the kernel opens them
/// for a thread on any CPU, and not on the CPUs of the other kind.
fn usual_event_on(
    cpus: &[u32],
    open: impl Fn(&EventBuilder, Target<'_>) -> perf_monitor::Result<()>,
) -> perf_monitor::Result<Event> {
    let cycles = Event::hardware(Hardware::CpuCycles);
    let without_kernel = cycles.builder().exclude_kernel(true).exclude_hv(true);
    let is_on = |cpu: &u32| match open(&without_kernel, Target::ThreadOnCpu { tid: 0, cpu: *cpu }) {
        Ok(()) => true,
        Err(error) => matches!(error.reason(), Some(OpenErrorReason::OfflineCpu(_))),
    };
    if cpus.iter().all(is_on) { Ok(cycles) } else { event("cpu-clock") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cycles_are_the_default_if_all_cpus_have_them() {
        let usual = |refused: &[(u32, OpenErrorReason)]| {
            let event = usual_event_on(&[0, 1, 2], |builder, target| {
                let refused = refused.iter().find(|(cpu, _)| match target {
                    Target::ThreadOnCpu { tid: 0, cpu: on } => on == *cpu,
                    other => panic!("{other}"),
                });
                refused.map_or(Ok(()), |(_, reason)| {
                    Err(Error::Open {
                        event: builder.event().to_string(),
                        target: target.to_string(),
                        errno: rustix::io::Errno::NOENT,
                        reason: reason.clone(),
                    })
                })
            });
            event.unwrap().to_string()
        };
        assert_eq!(usual(&[]), "cycles");
        assert_eq!(usual(&[(1, OpenErrorReason::NotOnCpu(1))]), "cpu-clock");
        assert_eq!(usual(&[(1, OpenErrorReason::NoSuchEvent)]), "cpu-clock");
        assert_eq!(usual(&[(2, OpenErrorReason::OfflineCpu(2))]), "cycles");
    }

    #[test]
    fn events_of_cpus_are_refused_for_tasks_with_a_remedy() {
        let failure = failure(Error::Open {
            event: "power/energy-pkg/".to_owned(),
            target: Target::ThisThread.to_string(),
            errno: rustix::io::Errno::INVAL,
            reason: OpenErrorReason::NotOnTasks,
        });
        let text = failure.message();
        assert!(text.contains("not for tasks") && text.contains("use -a or -C"), "{text}");
    }

    #[test]
    fn the_limit_of_locked_memory_is_not_blamed_for_other_limits() {
        const PAGE: usize = 4 << 10;
        assert_eq!(why_small(64, 1024, 1024, PAGE), Some(Small::ByLimit));
        // A machine with 1 GiB and 16 CPUs, as root.
        assert_eq!(why_small(256, 256, 1024, PAGE), Some(Small::ByMemory));
        assert_eq!(why_small(128, 256, 1024, PAGE), Some(Small::ByLimit));
        assert_eq!(why_small(1024, 2048, 1024, PAGE), None);
        // The 8 MiB that no ring exceeds, in pages of 64 KiB.
        assert_eq!(why_small(128, 128, 1024, 64 << 10), None);
        assert_eq!(why_small(128, 128, 4096, 64 << 10), None);
        assert_eq!(why_small(4, 128, 1024, 64 << 10), Some(Small::ByLimit));
    }

    #[test]
    fn the_mode_of_the_lockdown_can_be_set_at_boot() {
        let mode = |line| lockdown_at_boot(line);
        assert_eq!(mode("quiet lockdown=confidentiality x=1\n").as_deref(), Some(CONFIDENTIALITY));
        assert_eq!(mode("quiet xlockdown=integrity"), None);
    }
}
