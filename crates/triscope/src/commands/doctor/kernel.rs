//! What the kernel lets this user record. Everything is tried.

use super::machine::Machine;
use super::{Check, Works};
use crate::run::procfs::is_in_container;
use crate::sources::kernel;
use object::{Object, ObjectSegment, ReadCache};
use perf_monitor::{
    Error, Event, EventBuilder, Hardware, OpenErrorReason, Record, RingSet, SampleFlags, Software,
    Target, default_ring_pages, is_privileged, online_cpus,
};
use std::fs::File;

/// Grants this program what `perf_event_paranoid` withholds.
const SETCAP: &str = "sudo setcap cap_perfmon,cap_sys_ptrace,cap_syslog+ep $(command -v triscope)";

const MOUNT: &str = "sudo mount -t tracefs nodev /sys/kernel/tracing -o gid=$(id -g),mode=0750";

type Tried = Result<String, Error>;

pub(super) fn checks(machine: &Machine) -> Vec<Check> {
    let check = |id, what, tried: Tried| match tried {
        Ok(note) => Check::yes(id, what, note),
        Err(error) => Check::no(id, what, reason(&error), fix(&error)),
    };
    let mut checks = vec![scheduler()];
    if checks.iter().all(|check| check.works != Works::Yes) {
        let own = check("own-switches", "on-CPU times of a command", own_switches());
        checks.push(if own.works == Works::Yes { own.partly() } else { own });
    }
    checks.extend([
        rings(),
        check("kernel-events", "kernel side of own threads", this_thread(true)),
        check("user-events", "user side of own threads", this_thread(false)),
        check("cpu-wide", "all threads of a CPU", cpu_wide()),
        check("hardware", "hardware counters", hardware()),
        check("callchains", "call chains", callchains()),
        check("user-stacks", "user stacks for DWARF", user_stacks()),
        kernel_symbols(machine),
        check("kprobes", "kprobes", kprobe()),
        check("uprobes", "uprobes", uprobe()),
    ]);
    checks
}

fn reason(error: &Error) -> String {
    match error {
        Error::NoTracefs => "no tracefs is mounted".to_owned(),
        Error::File { path, source } => format!("{}: {source}", path.display()),
        Error::Open { reason: OpenErrorReason::Unknown, errno, .. } => errno.to_string(),
        Error::Open { reason: OpenErrorReason::Privilege { paranoid, allowed_at, .. }, .. } => {
            let level = paranoid.map_or("?".to_owned(), |level| level.to_string());
            let needed = match allowed_at {
                Some(needed) => format!("{needed} or less, or CAP_PERFMON"),
                None => "CAP_SYS_ADMIN".to_owned(),
            };
            format!("kernel.perf_event_paranoid is {level}; this needs {needed}")
        }
        Error::Open { reason, .. } | Error::Map { reason, .. } => reason.to_string(),
        other => other.to_string(),
    }
}

fn fix(error: &Error) -> Option<String> {
    // Raw data of tracepoints needs a privilege, too.
    let setcap = if is_privileged() { String::new() } else { format!(", and {SETCAP}") };
    match error {
        Error::NoTracefs => Some(format!("{MOUNT}{setcap}")),
        Error::File { source, .. } if source.kind() == std::io::ErrorKind::PermissionDenied => {
            Some(format!("{MOUNT}{setcap}"))
        }
        other => match other.reason()? {
            OpenErrorReason::Privilege { allowed_at: Some(level), .. } => {
                Some(format!("sudo sysctl kernel.perf_event_paranoid={level}, or {SETCAP}"))
            }
            OpenErrorReason::Privilege { allowed_at: None, .. } => {
                Some("sudo triscope …".to_owned())
            }
            OpenErrorReason::LockedMemory { .. } => {
                Some("sudo sysctl kernel.perf_event_mlock_kb=8192".to_owned())
            }
            OpenErrorReason::OpenFiles { .. } => Some("ulimit -n 65536".to_owned()),
            _ => None,
        },
    }
}

/// What `triscope record` opens first.
fn scheduler() -> Check {
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
        Err(error) => Check::no(id, what, reason(&error), fix(&error)),
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
        Ok(set) if set.pages() >= USUAL.min(default_ring_pages(1)) => {
            Check::yes(id, what, format!("{} pages on each of {cpus} CPUs", set.pages()))
        }
        Ok(set) => {
            let note = format!(
                "{} pages on each of {cpus} CPUs instead of {USUAL}: events can be lost",
                set.pages()
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

/// Samples of this program until one has a call chain.
fn callchains() -> Tried {
    const ATTEMPTS: u32 = 200;
    let clock = user_space(Event::software(Software::TaskClock)).sample_period(200_000);
    let mut sampler = clock.sample(SampleFlags::CALLCHAIN).open_sampler(Target::ThisThread, 8)?;
    sampler.enable()?;
    let mut most = 0;
    for _ in 0..ATTEMPTS {
        spin();
        sampler.drain(|record| {
            if let Record::Sample(sample) = record {
                let frames = sample.callchain.map_or(0, |chain| chain.frames().count());
                most = most.max(frames);
            }
        })?;
        if most > 0 {
            let of_kernel = Event::software(Software::TaskClock)
                .builder()
                .sample_period(1_000_000_000)
                .sample(SampleFlags::CALLCHAIN)
                .open(Target::ThisThread);
            let side = if of_kernel.is_ok() { "kernel and user space" } else { "user space only" };
            return Ok(format!("by frame pointers, {side}"));
        }
    }
    Ok("the event opens, no sample came".to_owned())
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
    let kptr = machine.kptr_restrict.map_or("?".to_owned(), |level| level.to_string());
    let note = format!("/proc/kallsyms shows no addresses: kernel.kptr_restrict is {kptr}");
    let fix = "sudo sysctl kernel.kptr_restrict=0 kernel.perf_event_paranoid=1, or CAP_SYSLOG";
    Check::no(id, what, note, Some(fix.to_owned()))
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
