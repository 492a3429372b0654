//! Finds the meaning of an errno of `perf_event_open(2)` or `mmap(2)` with further calls.

use crate::event::{Event, WithoutKernel};
use crate::refusal::{Field, OpenErrorReason};
use crate::{Pmu, Target, pmu, system};
use perf_sys::*;
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::ffi::{CStr, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;

/// One call of `perf_event_open(2)`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attempt<'a> {
    pub(crate) attr: perf_event_attr,
    pub(crate) path: Option<&'a CStr>,
    pub(crate) target: Target<'a>,
    pub(crate) group: Option<BorrowedFd<'a>>,
    pub(crate) flags: u64,
}

impl Attempt<'_> {
    pub(crate) fn open(&self) -> Result<OwnedFd, Errno> {
        let (target, flag) = self.target.to_sys();
        let flags = self.flags | flag | PERF_FLAG_FD_CLOEXEC;
        match self.path {
            Some(path) => perf_event_open_path(&self.attr, path, target, self.group, flags),
            None => perf_event_open(&self.attr, target, self.group, flags),
        }
    }

    fn opens_with(&self, change: impl FnOnce(&mut perf_event_attr)) -> bool {
        let mut changed = *self;
        changed.attr.set_disabled(true);
        changed.attr.set_enable_on_exec(false);
        change(&mut changed.attr);
        changed.open().is_ok()
    }
}

/// A field that can be removed from an attribute.
struct Removable {
    field: Field,
    is_set: fn(&perf_event_attr) -> bool,
    remove: fn(&mut perf_event_attr),
}

macro_rules! removable {
    ($(
        $kind:ident $name:ident $($other:ident)? $since:literal;
    )*) => {
        &[$(removable!(@ $kind $name $($other)? $since)),*]
    };
    (@ flag $get:ident $set:ident $since:literal) => {
        Removable {
            field: Field { name: stringify!($get), since: $since },
            is_set: perf_event_attr::$get,
            remove: |a| a.$set(false),
        }
    };
    (@ sample $bit:ident $since:literal) => {
        Removable {
            field: Field { name: stringify!($bit), since: $since },
            is_set: |a| a.sample_type & $bit != 0,
            remove: |a| a.sample_type &= !$bit,
        }
    };
    (@ read $bit:ident $since:literal) => {
        Removable {
            field: Field { name: stringify!($bit), since: $since },
            is_set: |a| a.read_format & $bit != 0,
            remove: |a| a.read_format &= !$bit,
        }
    };
    (@ branch $bit:ident $since:literal) => {
        Removable {
            field: Field { name: stringify!($bit), since: $since },
            is_set: |a| a.branch_sample_type & $bit != 0,
            remove: |a| a.branch_sample_type &= !$bit,
        }
    };
    (@ word $name:ident $since:literal) => {
        Removable {
            field: Field { name: stringify!($name), since: $since },
            is_set: |a| a.$name != 0,
            remove: |a| a.$name = 0,
        }
    };
}

const TOO_MANY_FRAMES: Field =
    Field { name: "sample_max_stack above kernel.perf_event_max_stack", since: "" };

/// Newest first: if several fields cause the error, the newest are reported.
const REMOVABLE: &[Removable] = removable! {
    word config4 "7.2";
    flag defer_output set_defer_output "6.19";
    flag defer_callchain set_defer_callchain "6.19";
    word aux_action "6.13";
    branch PERF_SAMPLE_BRANCH_COUNTERS "6.8";
    word config3 "6.3";
    branch PERF_SAMPLE_BRANCH_PRIV_SAVE "6.1";
    read PERF_FORMAT_LOST "6.0";
    word sig_data "5.13";
    flag sigtrap set_sigtrap "5.13";
    flag remove_on_exec set_remove_on_exec "5.13";
    flag inherit_thread set_inherit_thread "5.13";
    flag build_id set_build_id "5.12";
    sample PERF_SAMPLE_WEIGHT_STRUCT "5.12";
    sample PERF_SAMPLE_CODE_PAGE_SIZE "5.11";
    sample PERF_SAMPLE_DATA_PAGE_SIZE "5.11";
    flag text_poke set_text_poke "5.8";
    flag cgroup set_cgroup "5.7";
    sample PERF_SAMPLE_CGROUP "5.7";
    branch PERF_SAMPLE_BRANCH_HW_INDEX "5.7";
    word aux_sample_size "5.5";
    sample PERF_SAMPLE_AUX "5.5";
    flag aux_output set_aux_output "5.4";
    flag bpf_event set_bpf_event "5.1";
    flag ksymbol set_ksymbol "5.1";
    sample PERF_SAMPLE_PHYS_ADDR "4.14";
    flag namespaces set_namespaces "4.12";
    flag write_backward set_write_backward "4.7";
    flag context_switch set_context_switch "4.3";
    flag use_clockid set_use_clockid "4.1";
    sample PERF_SAMPLE_REGS_INTR "";
    sample PERF_SAMPLE_TRANSACTION "";
    sample PERF_SAMPLE_DATA_SRC "";
    sample PERF_SAMPLE_WEIGHT "";
    sample PERF_SAMPLE_STACK_USER "";
    sample PERF_SAMPLE_REGS_USER "";
    sample PERF_SAMPLE_BRANCH_STACK "";
    sample PERF_SAMPLE_READ "6.12 with inherit and PERF_SAMPLE_TID";
    read PERF_FORMAT_GROUP "";
    flag exclude_idle set_exclude_idle "";
    flag exclude_guest set_exclude_guest "";
    flag exclude_host set_exclude_host "";
    flag exclude_hv set_exclude_hv "";
    flag exclude_kernel set_exclude_kernel "";
    flag exclude_user set_exclude_user "";
    flag inherit set_inherit "";
    flag pinned set_pinned "";
    flag exclusive set_exclusive "";
    word sample_period "";
};

/// The fields without which the event opens.
fn refused_fields(attempt: &Attempt<'_>) -> Option<Vec<Field>> {
    let attr = &attempt.attr;
    let precise = Field { name: "precise_ip", since: "" };
    if attr.precise_ip() > 0 && attempt.opens_with(|a| a.set_precise_ip(0)) {
        return Some(vec![precise]);
    }
    let set: Vec<&Removable> = REMOVABLE.iter().filter(|r| (r.is_set)(attr)).collect();
    for candidate in &set {
        if attempt.opens_with(|a| (candidate.remove)(a)) {
            return Some(vec![candidate.field]);
        }
    }
    // More than one: remove them one by one, then check which of them were necessary.
    let mut removed: Vec<&Removable> = Vec::new();
    for candidate in set {
        removed.push(candidate);
        if attempt.opens_with(|a| removed.iter().for_each(|r| (r.remove)(a))) {
            let guilty = removed.iter().enumerate().filter(|(i, _)| {
                let without = |a: &mut perf_event_attr| {
                    for (j, r) in removed.iter().enumerate() {
                        if j != *i {
                            (r.remove)(a);
                        }
                    }
                };
                !attempt.opens_with(without)
            });
            return Some(guilty.map(|(_, r)| r.field).collect());
        }
    }
    None
}

fn user_space_only(attr: &mut perf_event_attr) {
    attr.set_exclude_kernel(true);
    attr.set_exclude_hv(true);
}

/// The event without any option, in user space of this thread: permitted for every user, up to
/// `perf_event_paranoid` 2.
fn open_plain(attempt: &Attempt<'_>) -> Result<OwnedFd, Errno> {
    open_plain_on(attempt, Target::ThisThread)
}

fn open_plain_on(attempt: &Attempt<'_>, target: Target<'_>) -> Result<OwnedFd, Errno> {
    let mut attr = perf_event_attr::new(attempt.attr.type_, attempt.attr.config);
    attr.config1 = attempt.attr.config1;
    attr.config2 = attempt.attr.config2;
    attr.bp_type = attempt.attr.bp_type;
    attr.set_disabled(true);
    user_space_only(&mut attr);
    Attempt { attr, path: attempt.path, target, group: None, flags: 0 }.open()
}

/// Whether this thread can be measured on some CPUs, and not on this one: `x86_pmu_event_init` on
/// machines with two kinds of cores, and `armpmu_event_init`.
fn is_of_other_cpus(attempt: &Attempt<'_>, cpu: u32) -> bool {
    let on_cpu = open_plain_on(attempt, Target::ThreadOnCpu { tid: 0, cpu });
    matches!(on_cpu, Err(Errno::NOENT)) && open_plain(attempt).is_ok()
}

/// Whether the machine has the event, as far as this user can determine. The kernel checks
/// privileges first: more privileges do not help if the event does not exist.
fn exists(attempt: &Attempt<'_>) -> bool {
    !matches!(open_plain(attempt), Err(Errno::NOENT | Errno::NODEV | Errno::OPNOTSUPP))
}

/// Whether this is a combination of cache, operation and result that the CPU cannot count. x86
/// has two errors for it: `ENOENT` for one that no event counts, and `EINVAL` for one that makes
/// no sense, as stores to an instruction cache (`set_ext_hw_attr` in arch/x86/events/core.c).
fn is_impossible_cache_event(attempt: &Attempt<'_>) -> bool {
    attempt.attr.type_ == PERF_TYPE_HW_CACHE && matches!(open_plain(attempt), Err(Errno::INVAL))
}

/// Whether this is an event of a PMU that CPUs share, for a task or a cgroup: such a PMU has no context
/// of tasks (`perf_invalid_context`).
fn is_of_cpus_alone(errno: Errno, target: Target<'_>, is_shared: impl FnOnce() -> bool) -> bool {
    errno == Errno::INVAL && !matches!(target, Target::Cpu(_)) && is_shared()
}

/// A uprobe beyond the end of its file.
fn probe_offset(attempt: &Attempt<'_>) -> Option<OpenErrorReason> {
    let uprobe = Pmu::open("uprobe").ok()?;
    let path = attempt.path.filter(|_| attempt.attr.type_ == uprobe.type_())?;
    let size = std::fs::metadata(OsStr::from_bytes(path.to_bytes())).ok()?.len();
    let offset = attempt.attr.config2;
    (offset > size).then_some(OpenErrorReason::ProbeOffset { offset, size })
}

/// The highest `perf_event_paranoid` at which the kernel allows this without capabilities.
fn allowed_at(attempt: &Attempt<'_>, event: &Event) -> Option<i64> {
    let attr = &attempt.attr;
    let is_cpu_wide = attempt.target.is_cpu_wide();
    let raw_tracepoint = attr.type_ == PERF_TYPE_TRACEPOINT
        && attr.sample_type & PERF_SAMPLE_RAW != 0
        && (is_cpu_wide || !event.has_raw_data_of_user_space());
    // A kprobe at an address has no path.
    let is_kprobe = || Pmu::open("kprobe").is_ok_and(|pmu| pmu.type_() == attr.type_);
    if attempt.path.is_some() || attr.namespaces() || is_kprobe() {
        None
    } else if raw_tracepoint {
        Some(-1)
    } else if is_cpu_wide {
        Some(0)
    } else if has_kernel(attr) {
        Some(1)
    } else {
        Some(2)
    }
}

/// Whether an event counts the kernel, or its samples show it: `perf_allow_kernel` in
/// kernel/events/core.c.
fn has_kernel(attr: &perf_event_attr) -> bool {
    let levels = attr.branch_sample_type & PERF_SAMPLE_BRANCH_PLM_ALL;
    let has_branches = match levels {
        // The branches of the levels of the event.
        0 => !attr.exclude_hv(),
        _ => levels != PERF_SAMPLE_BRANCH_USER,
    };
    !attr.exclude_kernel()
        || attr.sample_type & PERF_SAMPLE_PHYS_ADDR != 0
        || (attr.sample_type & PERF_SAMPLE_BRANCH_STACK != 0 && has_branches)
}

/// The user of a thread, if it differs from this thread's user and this thread may not monitor
/// other users' threads.
fn other_user(target: Target<'_>) -> Option<OpenErrorReason> {
    let tid = target.tid().filter(|tid| *tid != 0)?;
    let uid = std::fs::metadata(format!("/proc/{tid}")).ok()?.uid();
    let is_other = uid != rustix::process::geteuid().as_raw() && !system::may_look_at(tid);
    is_other.then(|| match system::is_privileged_in_vain() {
        // The number of a user outside of the namespace is not shown.
        true => OpenErrorReason::Privilege {
            paranoid: system::paranoid_level(),
            allowed_at: None,
            user_space_alone_is_allowed: false,
            held_in_user_namespace: true,
        },
        false => OpenErrorReason::OtherUser { tid, uid },
    })
}

/// Whether calls do not reach the kernel's implementation, which rejects unknown flags with `EINVAL`
/// before it checks anything else.
fn is_blocked() -> Option<OpenErrorReason> {
    let attr = perf_event_attr::new(PERF_TYPE_SOFTWARE, PERF_COUNT_SW_DUMMY);
    let (target, _) = Target::ThisThread.to_sys();
    match perf_event_open(&attr, target, None, u64::MAX) {
        // The sysctl exists in every kernel with perf events.
        Err(Errno::NOSYS) if system::paranoid_level().is_none() => {
            Some(OpenErrorReason::NoPerfEvents)
        }
        Err(Errno::INVAL) | Ok(_) => None,
        Err(_) => Some(OpenErrorReason::SystemCallFiltered),
    }
}

pub(crate) fn open(attempt: &Attempt<'_>, event: &Event, errno: Errno) -> OpenErrorReason {
    let attr = &attempt.attr;
    let cpu = attempt.target.cpu();
    if matches!(errno, Errno::ACCESS | Errno::PERM | Errno::NOSYS) {
        if let Some(reason) = is_blocked() {
            return reason;
        }
        // Where all events are refused, the user of the thread is not the reason.
        let other = || other_user(attempt.target);
        if let Some(reason) = (!system::is_refused_everything()).then(other).flatten() {
            return reason;
        }
    }
    if errno == Errno::NOENT {
        if let Some(cpu) = cpu.filter(|cpu| is_of_other_cpus(attempt, *cpu)) {
            return OpenErrorReason::NotOnCpu(cpu);
        }
    }
    let is_of_cgroup = matches!(attempt.target, Target::Cgroup { .. });
    match errno {
        Errno::ACCESS | Errno::PERM if !exists(attempt) => OpenErrorReason::NoSuchEvent,
        Errno::ACCESS | Errno::PERM => {
            // An event of the kernel alone would count nothing.
            let user_space_alone_is_allowed = !attr.exclude_kernel()
                && !attr.exclude_user()
                && event.without_kernel() != WithoutKernel::Nothing
                && attempt.opens_with(user_space_only);
            OpenErrorReason::Privilege {
                paranoid: system::paranoid_level(),
                allowed_at: allowed_at(attempt, event),
                user_space_alone_is_allowed,
                held_in_user_namespace: system::is_privileged_in_vain(),
            }
        }
        Errno::SRCH => {
            attempt.target.tid().map_or(OpenErrorReason::Unknown, OpenErrorReason::NoSuchThread)
        }
        Errno::MFILE | Errno::NFILE => {
            OpenErrorReason::OpenFiles { limit: system::open_file_limit() }
        }
        Errno::NOSPC => OpenErrorReason::NoCounters,
        // Only kprobes: `create_local_trace_kprobe` in kernel/trace/trace_kprobe.c.
        Errno::ADDRNOTAVAIL => OpenErrorReason::AmbiguousProbePoint,
        Errno::BUSY => OpenErrorReason::Busy,
        // Only this: `get_callchain_buffers` in kernel/events/callchain.c.
        Errno::OVERFLOW => OpenErrorReason::Fields(vec![TOO_MANY_FRAMES]),
        // Also that of an event that the machine lacks, which the kernel looks up first.
        Errno::NOENT if is_of_cgroup && exists(attempt) => OpenErrorReason::Cgroup,
        Errno::BADF if is_of_cgroup => OpenErrorReason::Cgroup,
        Errno::NODEV => match cpu {
            Some(cpu) if !system::online_cpus().contains(&cpu) => OpenErrorReason::OfflineCpu(cpu),
            _ => OpenErrorReason::NoSuchEvent,
        },
        Errno::INVAL | Errno::TOOBIG | Errno::OPNOTSUPP | Errno::NOENT => {
            not_supported(attempt, errno)
        }
        _ => OpenErrorReason::Unknown,
    }
}

/// The meaning of an errno that the kernel has for an event that it does not support.
fn not_supported(attempt: &Attempt<'_>, errno: Errno) -> OpenErrorReason {
    let attr = &attempt.attr;
    if let Some(cpu) = attempt.target.cpu().filter(|cpu| !system::is_possible_cpu(*cpu)) {
        return OpenErrorReason::NoSuchCpu(cpu);
    }
    if is_of_cpus_alone(errno, attempt.target, || pmu::is_shared(attr.type_)) {
        return OpenErrorReason::NotOnTasks;
    }
    if attr.freq() {
        if let Some(max) = system::max_sample_rate() {
            if i128::from(attr.sample_period) > i128::from(max) {
                return OpenErrorReason::SampleRate { asked: attr.sample_period, max };
            }
        }
    }
    if attempt.group.is_some() {
        let alone = Attempt { group: None, flags: 0, ..*attempt };
        if alone.opens_with(|_| {}) {
            return OpenErrorReason::Group;
        }
    }
    if errno == Errno::NOENT {
        return match attempt.path {
            Some(_) => OpenErrorReason::NoSuchProbePoint,
            None => OpenErrorReason::NoSuchEvent,
        };
    }
    if let Some(reason) = probe_offset(attempt) {
        return reason;
    }
    if is_impossible_cache_event(attempt) {
        return OpenErrorReason::NoSuchEvent;
    }
    refused_fields(attempt).map_or(OpenErrorReason::Unknown, OpenErrorReason::Fields)
}

pub(crate) fn map(attr: &perf_event_attr, follows_thread: bool, errno: Errno) -> OpenErrorReason {
    match errno {
        Errno::PERM => OpenErrorReason::LockedMemory {
            memlock: system::memlock_limit(),
            mlock_kb: system::mlock_kb(),
        },
        Errno::NOMEM => OpenErrorReason::OutOfMemory,
        Errno::INVAL if attr.inherit() && follows_thread => OpenErrorReason::InheritNeedsCpu,
        _ => OpenErrorReason::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_that_cpus_share_are_not_for_tasks() {
        let is_reason = |errno, target, is_shared| is_of_cpus_alone(errno, target, || is_shared);
        let on_cpu = Target::ThreadOnCpu { tid: 0, cpu: 0 };
        for target in [Target::ThisThread, Target::Thread(1), on_cpu] {
            assert!(is_reason(Errno::INVAL, target, true), "{target}");
            assert!(!is_reason(Errno::INVAL, target, false), "{target}");
            assert!(!is_reason(Errno::NOENT, target, true), "{target}");
        }
        assert!(!is_reason(Errno::INVAL, Target::Cpu(0), true));
    }
}
