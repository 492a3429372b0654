//! What the kernel lets this user record. Everything is tried.

use super::machine::Machine;
use super::{Check, Works};
use crate::run::procfs::is_in_container;
use crate::sources::kernel::remedy::{
    LOCKED_DOWN, MOUNT, UNLOCK, is_above_perfmon, missing_for_tracepoints, privilege, readable,
    tracepoint_privilege,
};
use crate::sources::kernel::sampling::{Rate, Scope, THIS_THREAD};
use crate::sources::kernel::{self, CONFIDENTIALITY};
use object::{Object, ObjectSegment, ReadCache};
use perf_monitor::{
    Error, Event, EventBuilder, Hardware, OpenErrorReason, Record, RingSet, SampleFlags, Software,
    Target, is_privileged, online_cpus, paranoid_level,
};
use std::fs::File;
use std::path::PathBuf;
use trace_timeline::sources::cgroup::CpuStat;

type Tried = Result<String, Error>;

pub(super) fn checks(machine: &Machine) -> Vec<Check> {
    let is_confidential = machine.lockdown.as_deref() == Some(CONFIDENTIALITY);
    let check = |id, what, tried: Tried| match tried {
        Ok(note) => Check::yes(id, what, note),
        Err(error) if is_confidential && is_privileged() && is_refused(&error) => {
            Check::no(id, what, LOCKED_DOWN, Some(UNLOCK.to_owned()))
        }
        Err(error) => Check::no(id, what, reason(&error), fix(&error)),
    };
    let mut checks = vec![scheduler(machine)];
    if checks.iter().all(|check| check.works != Works::Yes) {
        let own = check("own-switches", "on-CPU times of a command", own_switches());
        checks.push(if own.works == Works::Yes { own.partly() } else { own });
    }
    checks.extend([
        rings(),
        quotas(),
        check("kernel-events", "kernel side of own threads", this_thread(true)),
        check("user-events", "user side of own threads", this_thread(false)),
        check("cpu-wide", "all threads of a CPU", cpu_wide()),
        check("hardware", "hardware counters", hardware()),
        profiling(),
        check("user-stacks", "user stacks for DWARF", user_stacks()),
        kernel_symbols(machine),
        check("kprobes", "kprobes", kprobe()),
        check("uprobes", "uprobes", uprobe()),
    ]);
    checks
}

/// Whether a privilege is missing, whatever the level of `perf_event_paranoid` is.
fn is_refused(error: &Error) -> bool {
    matches!(error.reason(), Some(OpenErrorReason::Privilege { allowed_at: None, .. }))
}

fn reason(error: &Error) -> String {
    match error {
        Error::NoTracefs => "no tracefs is mounted".to_owned(),
        Error::File { path, source } => format!("{}: {source}", path.display()),
        Error::Open { reason: OpenErrorReason::Unknown, errno, .. } => errno.to_string(),
        Error::Open {
            reason: OpenErrorReason::Privilege { paranoid, allowed_at, held_in_user_namespace, .. },
            ..
        } => {
            let needed = allowed_at.map_or(String::new(), |level| format!("{level} or less, or "));
            let capability = if is_above_perfmon(*paranoid) || allowed_at.is_none() {
                "CAP_SYS_ADMIN"
            } else {
                "CAP_PERFMON"
            };
            let place = if *held_in_user_namespace { " in the initial user namespace" } else { "" };
            let level = paranoid.map_or("?".to_owned(), |level| level.to_string());
            format!("kernel.perf_event_paranoid is {level}; this needs {needed}{capability}{place}")
        }
        Error::Open { reason: OpenErrorReason::SystemCallFiltered, .. } => {
            "a seccomp filter blocks perf_event_open(2)".to_owned()
        }
        Error::Open { reason, .. } | Error::Map { reason, .. } => reason.to_string(),
        other => other.to_string(),
    }
}

fn fix(error: &Error) -> Option<String> {
    // Raw data of tracepoints needs a privilege, too.
    let privileged = match is_privileged() {
        true => String::new(),
        false => format!(", and {}", tracepoint_privilege(paranoid_level())),
    };
    match error {
        Error::NoTracefs => Some(format!("{MOUNT}{privileged}")),
        Error::File { path, source } if source.kind() == std::io::ErrorKind::PermissionDenied => {
            Some(format!("{}{privileged}", readable(path)))
        }
        other => match other.reason()? {
            OpenErrorReason::Privilege { allowed_at, held_in_user_namespace: true, .. } => {
                let level = allowed_at.map(|level| {
                    format!("sudo sysctl kernel.perf_event_paranoid={level} on the host, or ")
                });
                Some(format!("{}{}", level.unwrap_or_default(), privilege()))
            }
            OpenErrorReason::Privilege { paranoid, allowed_at: Some(level), .. }
                if is_above_perfmon(*paranoid) =>
            {
                Some(format!("sudo sysctl kernel.perf_event_paranoid={level}"))
            }
            OpenErrorReason::Privilege { allowed_at: Some(level), .. } => {
                let privilege = privilege();
                Some(format!("sudo sysctl kernel.perf_event_paranoid={level}, or {privilege}"))
            }
            OpenErrorReason::Privilege { allowed_at: None, .. } => {
                Some("sudo triscope …".to_owned())
            }
            OpenErrorReason::SystemCallFiltered => Some(
                "docker run --cap-add PERFMON …, or --security-opt seccomp=unconfined".to_owned(),
            ),
            OpenErrorReason::LockedMemory { .. } => {
                Some("sudo sysctl kernel.perf_event_mlock_kb=8192".to_owned())
            }
            OpenErrorReason::OpenFiles { .. } => Some("ulimit -n 65536".to_owned()),
            _ => None,
        },
    }
}

/// What `triscope record` opens first.
fn scheduler(machine: &Machine) -> Check {
    let (id, what) = ("scheduler", "scheduler of the machine");
    if is_in_container() {
        let why = "its tracepoints identify threads by numbers of the initial PID namespace";
        let fix = "run in the PID namespace of the host: docker run --pid=host --privileged";
        return Check::no(id, what, why, Some(fix.to_owned()));
    }
    let tried = || -> Tried {
        let tracefs = kernel::tracefs()?;
        let mut set = RingSet::builder().pages(8).open()?;
        for name in ["sched_switch", "sched_waking", "sched_wakeup_new"] {
            let event = tracefs.event("sched", name)?;
            tracefs.format("sched", name)?;
            set.add(&event.builder().sample_period(1).sample(SampleFlags::RAW))?;
        }
        set.enable()?;
        let count = set.cpus().count();
        Ok(format!("sched_switch, sched_waking and sched_wakeup_new on {count} CPUs"))
    };
    match tried() {
        Ok(note) => Check::yes(id, what, note),
        Err(error) => {
            let lockdown = machine.lockdown.as_deref();
            let (why, fixes) =
                missing_for_tracepoints(lockdown, &machine.features, is_privileged());
            // Such a kernel has no tracepoints.
            let found = reason(&error);
            let found = (!matches!(error, Error::UnknownEvent { .. })).then_some(found);
            let reason = found.into_iter().chain(why).collect::<Vec<_>>().join("; ");
            let reason = if reason.is_empty() { error.to_string() } else { reason };
            let fix = (!fixes.is_empty()).then(|| fixes.join(", and ")).or_else(|| fix(&error));
            Check::no(id, what, reason, fix)
        }
    }
}

/// The counters of CPU quotas.
fn quotas() -> Check {
    let (id, what) = ("cpu-quotas", "CPU quotas of cgroups");
    let dirs = match perf_monitor::cgroup_dirs(std::process::id(), "cpu") {
        Ok(dirs) => dirs,
        Err(error) => return Check::no(id, what, error, None),
    };
    let is_readable = |dir: &&PathBuf| {
        std::fs::read(dir.join("cpu.stat")).is_ok_and(|text| CpuStat::parse(&text).is_some())
    };
    let counted = dirs.iter().filter(is_readable).count();
    match (dirs.first(), counted) {
        (None, _) => Check::no(id, what, "no cgroups with the CPU controller are mounted", None),
        // The root of cgroup v2 has no quota.
        (Some(dir), 0) => Check::yes(id, what, format!("none applies to {}", dir.display())),
        (Some(dir), _) => Check::yes(id, what, format!("{}", dir.join("cpu.stat").display())),
    }
}

fn user_space(event: Event) -> EventBuilder {
    event.builder().exclude_kernel(true).exclude_hv(true)
}

fn dummy() -> EventBuilder {
    user_space(Event::software(Software::Dummy))
}

/// What `triscope record` opens without privileges.
fn own_switches() -> Tried {
    dummy().context_switch(true).task(true).comm(true).open_sampler(Target::ThisThread, 1)?;
    Ok("when each thread of a command had a CPU; no wake-ups, no other threads".to_owned())
}

/// Rings on all CPUs, of the usual size.
fn rings() -> Check {
    const USUAL: usize = 1024;
    let (id, what) = ("rings", "ring buffers");
    let cpus = online_cpus().len();
    let side = dummy().context_switch(true).inherit(true);
    let set = RingSet::builder().max_pages(USUAL).thread(0).sideband(&side).open();
    match set {
        Ok(set) if set.pages() >= set.unlimited_pages() => {
            Check::yes(id, what, format!("{} pages on each of {cpus} CPUs", set.pages()))
        }
        Ok(set) => {
            let note = format!(
                "{} pages on each of {cpus} CPUs instead of {}: events can be lost",
                set.pages(),
                set.unlimited_pages()
            );
            let fix = "sudo sysctl kernel.perf_event_mlock_kb=8192, or ulimit -l unlimited";
            Check::no(id, what, note, Some(fix.to_owned())).partly()
        }
        Err(error) => Check::no(id, what, reason(&error), fix(&error)),
    }
}

fn this_thread(with_kernel: bool) -> Tried {
    let event = Event::software(Software::TaskClock);
    let builder = if with_kernel { event.builder() } else { user_space(event) };
    builder.open(Target::ThisThread)?;
    Ok("task-clock opens".to_owned())
}

fn cpu_wide() -> Tried {
    let cpus = online_cpus();
    for cpu in &cpus {
        Event::software(Software::CpuClock).builder().open(Target::Cpu(*cpu))?;
    }
    Ok(format!("cpu-clock opens on {} CPUs", cpus.len()))
}

fn hardware() -> Tried {
    let counter = user_space(Event::hardware(Hardware::CpuCycles)).open(Target::ThisThread)?;
    counter.enable()?;
    spin();
    let cycles = counter.read()?.value;
    Ok(format!("cycles: {cycles} counted"))
}

/// Some work in user space.
fn spin() {
    let mut sum = 0_u64;
    for n in 0..1_000_000_u64 {
        sum = std::hint::black_box(sum.wrapping_add(n));
    }
}

/// What `triscope profile` opens for a command.
fn profiling() -> Check {
    let (id, what) = ("profiling", "profiles of own programs");
    let event = match kernel::usual_event() {
        Ok(event) => event,
        Err(error) => return Check::no(id, what, reason(&error), fix(&error)),
    };
    let name = event.name();
    let is_clock = name == "cpu-clock";
    let clock = if is_clock { ", as cycles cannot be counted on all CPUs" } else { "" };
    match sampled(&event, true) {
        Ok(found) => Check::yes(id, what, format!("{name}{clock}: kernel and user stacks{found}")),
        Err(error) => match sampled(&event, false) {
            Ok(found) => {
                let why = reason(&error);
                let note = format!("{name}{clock}: user stacks only{found}: {why}");
                Check::no(id, what, note, fix(&error)).partly()
            }
            Err(error) => Check::no(id, what, reason(&error), fix(&error)),
        },
    }
}

/// Samples this program until a sample has a call chain. Returns a remark if none had.
fn sampled(event: &Event, with_kernel: bool) -> Result<&'static str, Error> {
    const ATTEMPTS: u32 = 200;
    const HERTZ: u64 = 999;
    let scope = Scope { tids: vec![THIS_THREAD], ..Scope::default() };
    let builder = scope.chains(event, Rate::Usual(HERTZ), !with_kernel);
    let mut sampler = builder.open_sampler(Target::ThisThread, 8)?;
    sampler.enable()?;
    let mut has_chain = false;
    for _ in 0..ATTEMPTS {
        spin();
        sampler.drain(|record| {
            if let Record::Sample(sample) = record {
                has_chain |= sample.callchain.is_some_and(|chain| chain.frames().count() > 0);
            }
            Ok::<(), Error>(())
        })?;
        if has_chain {
            return Ok("");
        }
    }
    Ok(" (the event opens, no sample came)")
}

fn user_stacks() -> Tried {
    let clock = user_space(Event::software(Software::TaskClock)).sample_period(1_000_000_000);
    clock
        .sample(SampleFlags::REGS_USER | SampleFlags::STACK_USER)
        .sample_regs_user(1)
        .sample_stack_user(8192)
        .open_sampler(Target::ThisThread, 1)?;
    Ok("registers and 8 KiB of the stack with each sample".to_owned())
}

/// The kernel shows addresses, or zeros.
fn kernel_symbols(machine: &Machine) -> Check {
    let (id, what) = ("kernel-symbols", "names of kernel functions");
    let symbols = match std::fs::read_to_string("/proc/kallsyms") {
        Ok(symbols) => symbols,
        Err(error) => return Check::no(id, what, format!("/proc/kallsyms: {error}"), None),
    };
    let is_address =
        |line: &&str| line.split(' ').next().is_some_and(|a| a.bytes().any(|b| b != b'0'));
    let count = symbols.lines().filter(is_address).count();
    if count > 0 {
        return Check::yes(id, what, format!("{count} symbols in /proc/kallsyms"));
    }
    let level = |level: Option<i64>| level.map_or("?".to_owned(), |level| level.to_string());
    let why = match machine.kptr_restrict {
        // Then `kallsyms_show_value()` asks for CAP_SYSLOG, or a low level of perf.
        Some(0) => {
            let paranoid = machine.features.paranoid;
            format!("kernel.perf_event_paranoid is {}, and CAP_SYSLOG is missing", level(paranoid))
        }
        kptr => format!("kernel.kptr_restrict is {}", level(kptr)),
    };
    let note = format!("/proc/kallsyms shows no addresses: {why}");
    let level = "sudo sysctl kernel.kptr_restrict=0 kernel.perf_event_paranoid=1";
    // At 2, nobody sees them.
    let or = match machine.kptr_restrict {
        Some(2..) => String::new(),
        _ => format!(", or {}", privilege()),
    };
    Check::no(id, what, note, Some(format!("{level}{or}")))
}

fn kprobe() -> Tried {
    Event::kprobe("vfs_read", 0)?.builder().open(Target::ThisThread)?;
    Ok("a probe of vfs_read opens".to_owned())
}

fn uprobe() -> Tried {
    const SELF: &str = "/proc/self/exe";
    // The entry point of this program, which is not executed again.
    let offset = File::open(SELF).ok().and_then(|file| {
        let cache = ReadCache::new(file);
        let file = object::File::parse(&cache).ok()?;
        let entry = file.entry();
        let mut segments = file.segments();
        segments.find_map(|segment| {
            let into = entry.checked_sub(segment.address())?;
            (into < segment.size()).then(|| segment.file_range().0 + into)
        })
    });
    let path = std::fs::read_link(SELF).unwrap_or_else(|_| SELF.into());
    Event::uprobe(path, offset.unwrap_or(0))?.builder().open(Target::ThisThread)?;
    Ok("a probe of this program opens".to_owned())
}
