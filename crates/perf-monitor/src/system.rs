//! Limits, CPUs and versions from procfs and sysfs.

pub(crate) use crate::files::read_text;

use rustix::process::{Resource, getrlimit};
use std::fmt;

fn read_number(path: &str) -> Option<i64> {
    read_text(path).ok()?.trim().parse().ok()
}

/// `kernel.perf_event_paranoid`: the limits of users without `CAP_PERFMON`.
///
/// -1: no restrictions; 0: no raw tracepoints; 1: no CPU-wide events; 2: no kernel events; 3 and
/// more (a patch of Debian and others): no events, also with `CAP_PERFMON`; only with
/// `CAP_SYS_ADMIN`.
pub fn paranoid_level() -> Option<i64> {
    read_number("/proc/sys/kernel/perf_event_paranoid")
}

/// Whether the kernel refuses this thread all events, before it looks at them.
pub(crate) fn is_refused_everything() -> bool {
    paranoid_level().is_some_and(|level| level > crate::refusal::MAX_PARANOID_FOR_PERFMON)
        && !has_capability(CAP_SYS_ADMIN)
}

/// `kernel.perf_event_mlock_kb`: KiB of rings that each user may map per CPU on top of
/// `RLIMIT_MEMLOCK`.
pub fn mlock_kb() -> Option<i64> {
    read_number("/proc/sys/kernel/perf_event_mlock_kb")
}

/// `kernel.perf_event_max_sample_rate`: samples per second and CPU above which the kernel
/// throttles.
pub fn max_sample_rate() -> Option<i64> {
    read_number("/proc/sys/kernel/perf_event_max_sample_rate")
}

/// `kernel.perf_event_max_stack`: maximum number of frames of a callchain.
pub fn max_stack() -> Option<i64> {
    read_number("/proc/sys/kernel/perf_event_max_stack")
}

/// The soft limit of open files.
pub(crate) fn open_file_limit() -> Option<u64> {
    getrlimit(Resource::Nofile).current
}

/// The soft limit of locked memory, in bytes; `None` if unlimited.
pub(crate) fn memlock_limit() -> Option<u64> {
    getrlimit(Resource::Memlock).current
}

/// Numbers of a list in the format of sysfs, such as `0-3,8`. Ranges are bounded by `u16`.
pub(crate) fn parse_cpu_list(text: &str) -> Vec<u32> {
    let mut cpus = Vec::new();
    for part in text.trim().split(',').filter(|p| !p.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(first), Ok(last)) = (first.parse::<u16>(), last.parse::<u16>()) {
            cpus.extend(u32::from(first)..=u32::from(last));
        }
    }
    cpus
}

/// The numbers of the online CPUs. They can have gaps.
///
/// Without sysfs, as in some sandboxes, these are the CPUs of `/proc/stat`; without that, the first ones,
/// as many as this process may use.
pub fn online_cpus() -> Vec<u32> {
    let online = read_text("/sys/devices/system/cpu/online").ok();
    // That file is long.
    let stat = if online.is_none() { read_text("/proc/stat").ok() } else { None };
    cpus_in(online.as_deref(), stat.as_deref()).unwrap_or_else(|| {
        let count = std::thread::available_parallelism().map_or(1, usize::from);
        (0..count as u32).collect()
    })
}

/// The online CPUs by the text of sysfs, otherwise by that of `/proc/stat`. `None` if neither has any.
fn cpus_in(online: Option<&str>, stat: Option<&str>) -> Option<Vec<u32>> {
    let of_sysfs = online.map(parse_cpu_list).filter(|cpus| !cpus.is_empty());
    of_sysfs.or_else(|| stat.map(cpus_of_stat).filter(|cpus| !cpus.is_empty()))
}

/// The CPUs of the lines `cpuN` of `/proc/stat`: those that are online.
fn cpus_of_stat(text: &str) -> Vec<u32> {
    let lines = text.lines().map_while(|line| line.strip_prefix("cpu"));
    // The first line has the sums, and no number.
    lines.filter_map(|rest| rest.split(' ').next()?.parse().ok()).collect()
}

/// The numbers of the CPUs of the machine, also of those that are offline.
pub(crate) fn present_cpus() -> Vec<u32> {
    let text = read_text("/sys/devices/system/cpu/present");
    text.map_or_else(|_| online_cpus(), |text| parse_cpu_list(&text))
}

/// A number that changes each time a CPU goes offline and comes back: the kernel then makes its
/// directory of the topology again, with a new inode. 0 if there is none.
pub(crate) fn cpu_instance(cpu: u32) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let dir = format!("/sys/devices/system/cpu/cpu{cpu}/topology");
    std::fs::metadata(dir).map_or(0, |metadata| metadata.ino())
}

/// Whether a CPU with this number can ever be online. Without sysfs, that is not excluded.
pub(crate) fn is_possible_cpu(cpu: u32) -> bool {
    let possible = read_text("/sys/devices/system/cpu/possible").ok();
    may_have(possible.as_deref(), cpu)
}

fn may_have(possible: Option<&str>, cpu: u32) -> bool {
    possible.is_none_or(|text| parse_cpu_list(text).contains(&cpu))
}

/// Major and minor version of a kernel.
///
/// For messages and tests. Distributions backport: use [`KernelFeatures`](crate::KernelFeatures) to
/// detect support.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KernelVersion(pub u32, pub u32);

impl KernelVersion {
    /// The version of the running kernel; 0.0 if it cannot be parsed.
    pub fn current() -> Self {
        Self::parse(&rustix::system::uname().release().to_string_lossy())
    }

    fn parse(release: &str) -> Self {
        let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse().ok());
        Self(numbers.next().flatten().unwrap_or(0), numbers.next().flatten().unwrap_or(0))
    }
}

impl fmt::Display for KernelVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

const CAP_SYS_ADMIN: u32 = 21;

const CAP_PERFMON: u32 = 38;

/// Whether the effective capabilities of this thread include number `cap`, in its user namespace.
fn has_namespaced_capability(cap: u32) -> bool {
    let Ok(status) = read_text("/proc/thread-self/status") else { return false };
    status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok())
        .is_some_and(|set| set >> cap & 1 != 0)
}

/// Whether this thread has a capability where the kernel asks for it (`capable()`): in the initial
/// user namespace.
pub(crate) fn has_capability(cap: u32) -> bool {
    has_namespaced_capability(cap) && is_initial_user_namespace()
}

/// The inode of a file in `/proc/…/ns`, which identifies the user namespace.
fn user_namespace(dir: &str) -> std::io::Result<u64> {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(format!("{dir}/ns/user")).map(|metadata| metadata.ino())
}

/// Whether this thread is in the initial user namespace (`user_namespaces(7)`).
///
/// Capabilities of another one, as in rootless containers, have no effect on perf events, whatever
/// `/proc/self/status` shows. Without `/proc`, this is true.
pub fn is_initial_user_namespace() -> bool {
    /// `PROC_USER_INIT_INO` of the kernel.
    const INITIAL: u64 = 0xefff_fffd;
    user_namespace("/proc/thread-self").map_or(true, |namespace| namespace == INITIAL)
}

/// `CAP_PERFMON` (Linux 5.8) or `CAP_SYS_ADMIN`, in the initial user namespace.
pub fn is_privileged() -> bool {
    has_capability(CAP_PERFMON) || has_capability(CAP_SYS_ADMIN)
}

/// Whether this thread has the capabilities of [`is_privileged`] only in another user namespace.
pub(crate) fn is_privileged_in_vain() -> bool {
    (has_namespaced_capability(CAP_PERFMON) || has_namespaced_capability(CAP_SYS_ADMIN))
        && !is_initial_user_namespace()
}

/// Whether a thread of another user may be measured. The kernel asks for `CAP_SYS_PTRACE` in the user
/// namespace of that thread.
pub(crate) fn may_look_at(tid: u32) -> bool {
    const CAP_SYS_PTRACE: u32 = 19;
    let namespace = || {
        let other = user_namespace(&format!("/proc/{tid}")).ok()?;
        Some(other == user_namespace("/proc/thread-self").ok()?)
    };
    is_privileged()
        || (has_namespaced_capability(CAP_SYS_PTRACE)
            && (is_initial_user_namespace() || namespace() == Some(true)))
}

/// The `max` names nearest to `name`, best first, none of which differs in more than a third.
pub(crate) fn near_matches<'a>(
    name: &str,
    candidates: impl IntoIterator<Item = &'a str>,
    max: usize,
) -> Vec<String> {
    let allowed = name.len() / 3 + 1;
    let mut near: Vec<(usize, &str)> = candidates
        .into_iter()
        .filter(|c| c.len().abs_diff(name.len()) <= allowed || c.contains(name))
        .map(|c| (if c.contains(name) { 1 } else { distance(name, c) }, c))
        .filter(|(d, _)| *d <= allowed)
        .collect();
    near.sort_unstable();
    near.truncate(max);
    near.into_iter().map(|(_, c)| c.to_owned()).collect()
}

/// Levenshtein distance in bytes.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = i;
        let mut left = i + 1;
        if let Some(first) = row.first_mut() {
            *first = left;
        }
        for (cell, y) in row.iter_mut().skip(1).zip(b.bytes()) {
            let next = (diagonal + usize::from(x != y)).min(left + 1).min(*cell + 1);
            diagonal = *cell;
            *cell = next;
            left = next;
        }
    }
    row.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_lists_with_gaps_parse() {
        assert_eq!(parse_cpu_list("0-3,8\n"), [0, 1, 2, 3, 8]);
        assert_eq!(parse_cpu_list("\n"), [] as [u32; 0]);
        assert_eq!(parse_cpu_list("0-99999999999,x,3-1"), [] as [u32; 0]);
    }

    #[test]
    fn online_cpus_are_those_of_proc_without_sysfs() {
        const STAT: &str = "cpu  1 2 3\ncpu0 1 2 3\ncpu8 0 0 0\nintr 5 cpu9 1\ncpu7 1\n";
        assert_eq!(cpus_of_stat(STAT), [0, 8]);
        assert_eq!(cpus_of_stat("cpu 1\ncpux 1\ncpu3\n\n"), [3]);
        assert_eq!(cpus_in(Some("0-1,4\n"), Some(STAT)), Some(vec![0, 1, 4]));
        assert_eq!(cpus_in(None, Some(STAT)), Some(vec![0, 8]));
        assert_eq!(cpus_in(Some("\n"), Some(STAT)), Some(vec![0, 8]));
        assert_eq!(cpus_in(None, Some("")), None);
        assert_eq!(cpus_in(None, None), None);
        let stat = read_text("/proc/stat").unwrap_or_default();
        assert!(cpus_of_stat(&stat).is_sorted());
    }

    #[test]
    fn a_cpu_is_only_excluded_by_a_list() {
        assert!(may_have(Some("0-3\n"), 3) && !may_have(Some("0-3\n"), 4));
        assert!(may_have(None, 4));
    }

    #[test]
    fn versions_parse() {
        assert_eq!(KernelVersion::parse("6.12.117+deb13-cloud-amd64"), KernelVersion(6, 12));
        assert_eq!(KernelVersion::parse("garbage"), KernelVersion(0, 0));
        assert!(KernelVersion(7, 2) > KernelVersion(6, 18));
    }

    #[test]
    fn near_matches_are_near() {
        let names = ["sched_switch", "sched_wakeup", "sys_enter", "sched_switch_idle"];
        assert_eq!(near_matches("sched_swich", names, 3)[0], "sched_switch");
        assert_eq!(near_matches("qqqqq", names, 3), [] as [String; 0]);
        assert_eq!(near_matches("", names, 1).len(), 1);
    }
}
