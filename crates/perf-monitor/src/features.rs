//! Features of the running kernel, detected by trial.

use crate::diagnose::Attempt;
use crate::flags::{ReadFormat, SampleFlags};
use crate::system::{self, KernelVersion};
use crate::tracefs::Tracefs;
use crate::{Pmu, Target};
use perf_sys::*;
use rustix::io::Errno;
use std::sync::OnceLock;

/// The features of the running kernel for this user.
///
/// Versions are not sufficient, because distributions backport: Debian's 5.10 has
/// `PERF_FORMAT_LOST` of 6.0. So each feature is tried, with events on the calling thread that are
/// closed at once.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct KernelFeatures {
    /// The version, for messages.
    pub version: KernelVersion,
    /// Size of the kernel's `perf_event_attr`, in bytes; `None` if the user may not open events.
    pub attr_size: Option<u32>,
    /// One-bit fields of `perf_event_attr` that the kernel accepts, by name.
    pub flags: Vec<&'static str>,
    /// Sample fields that the kernel accepts for a software event.
    pub sample: SampleFlags,
    /// Read formats that the kernel accepts.
    pub read_format: ReadFormat,
    /// Whether `inherit` and `SampleFlags::READ` may be combined (Linux 6.12).
    pub inherit_sample_read: bool,
    /// Names of the PMUs.
    pub pmus: Vec<String>,
    /// Whether a hardware PMU counts cycles.
    pub hardware: bool,
    /// The tracefs, if one is mounted.
    pub tracefs: Option<Tracefs>,
    /// Whether this user may read its events.
    pub tracefs_readable: bool,
    /// `kernel.perf_event_paranoid`.
    pub paranoid: Option<i64>,
    /// `CAP_PERFMON` or `CAP_SYS_ADMIN`, in the initial user namespace.
    pub privileged: bool,
    /// `kernel.perf_event_max_sample_rate`.
    pub max_sample_rate: Option<i64>,
    /// `kernel.perf_event_mlock_kb`.
    pub mlock_kb: Option<i64>,
    /// Soft limit of open files.
    pub open_files: Option<u64>,
    /// The error number of opening the simplest event, if the user may not. No other feature could
    /// be tried then.
    pub refused: Option<Errno>,
}

fn opens(change: impl FnOnce(&mut perf_event_attr)) -> Result<(), Errno> {
    let mut attr = perf_event_attr::new(PERF_TYPE_SOFTWARE, PERF_COUNT_SW_DUMMY);
    attr.set_disabled(true);
    attr.set_exclude_kernel(true);
    attr.set_exclude_hv(true);
    change(&mut attr);
    let target = Target::ThisThread;
    Attempt { attr, path: None, target, group: None, flags: 0 }.open().map(drop)
}

/// Sets a bit, and the bits that it requires.
fn set_flag(attr: &mut perf_event_attr, name: &str, bit: u32) {
    let sets: &[fn(&mut perf_event_attr, bool)] = match name {
        "sigtrap" => &[perf_event_attr::set_remove_on_exec],
        "inherit_thread" | "inherit_stat" => &[perf_event_attr::set_inherit],
        "build_id" => &[perf_event_attr::set_mmap, perf_event_attr::set_mmap2],
        _ => &[],
    };
    for set in sets {
        set(attr, true);
    }
    if name == "defer_callchain" {
        attr.sample_type |= PERF_SAMPLE_CALLCHAIN;
    }
    if cfg!(target_endian = "big") {
        attr.flags |= 1 << (63 - bit);
    } else {
        attr.flags |= 1 << bit;
    }
}

impl KernelFeatures {
    /// Tries all features with about a hundred system calls: less than a millisecond on hardware.
    pub fn probe() -> Self {
        let tracefs = Tracefs::find().ok();
        let mut this = Self {
            version: KernelVersion::current(),
            attr_size: attr_size_of_kernel().ok(),
            flags: Vec::new(),
            sample: SampleFlags::empty(),
            read_format: ReadFormat::empty(),
            inherit_sample_read: false,
            pmus: Pmu::names().unwrap_or_default(),
            hardware: false,
            tracefs_readable: tracefs.as_ref().is_some_and(|t| t.systems().is_ok()),
            tracefs,
            paranoid: system::paranoid_level(),
            privileged: system::is_privileged(),
            max_sample_rate: system::max_sample_rate(),
            mlock_kb: system::mlock_kb(),
            open_files: system::open_file_limit(),
            refused: opens(|_| {}).err(),
        };
        if this.refused.is_some() {
            return this;
        }
        this.flags = perf_event_attr::FLAG_NAMES
            .iter()
            .filter(|(name, bit)| opens(|a| set_flag(a, name, *bit)).is_ok())
            .map(|(name, _)| *name)
            .collect();
        let clock = |a: &mut perf_event_attr| {
            a.config = PERF_COUNT_SW_CPU_CLOCK;
            a.sample_period = 1_000_000_000;
        };
        this.sample = SampleFlags::all()
            .iter_names()
            .filter(|(_, flag)| {
                opens(|a| {
                    clock(a);
                    a.sample_type = flag.bits();
                    a.sample_regs_user = 1;
                    a.sample_regs_intr = 1;
                    a.sample_stack_user = 64;
                    a.branch_sample_type = PERF_SAMPLE_BRANCH_ANY;
                })
                .is_ok()
            })
            .fold(SampleFlags::empty(), |set, (_, flag)| set | flag);
        this.read_format = ReadFormat::all()
            .iter_names()
            .filter(|(_, flag)| opens(|a| a.read_format = flag.bits()).is_ok())
            .fold(ReadFormat::empty(), |set, (_, flag)| set | flag);
        this.inherit_sample_read = opens(|a| {
            clock(a);
            a.sample_type = PERF_SAMPLE_READ | PERF_SAMPLE_TID;
            a.read_format = PERF_FORMAT_ID;
            a.set_inherit(true);
        })
        .is_ok();
        this.hardware = opens(|a| {
            a.type_ = PERF_TYPE_HARDWARE;
            a.config = PERF_COUNT_HW_CPU_CYCLES;
        })
        .is_ok();
        this
    }

    /// Whether the kernel accepts the one-bit field `name` of `perf_event_attr`.
    pub fn has_flag(&self, name: &str) -> bool {
        self.flags.contains(&name)
    }

    /// Whether a tracepoint that used up its [`refresh`](crate::Counter::refresh) can be enabled
    /// again: true up to Linux 6.17. Other events always can. Tried once
    /// per process; again after a failure, such as too many open files, for which this is true.
    pub fn refresh_restarts() -> bool {
        static ANSWER: OnceLock<bool> = OnceLock::new();
        // A feature that cannot be tried is not rejected in advance.
        answer_once(&ANSWER, || try_refresh().ok()).unwrap_or(true)
    }

    /// Whether the kernel counts the losses of each event (`ReadFormat::LOST`, Linux 6.0). Tried once
    /// per process; again after a failure for another reason, such as too many open files, for which
    /// this is false.
    pub fn has_lost_counts() -> bool {
        static ANSWER: OnceLock<bool> = OnceLock::new();
        accepts(&ANSWER, |a| a.read_format = PERF_FORMAT_LOST)
    }

    /// Whether the kernel reports its new functions ([`EventBuilder::ksymbol`](crate::EventBuilder::ksymbol),
    /// Linux 5.1). Tried as [`has_lost_counts`](Self::has_lost_counts) is.
    pub fn has_ksymbols() -> bool {
        static ANSWER: OnceLock<bool> = OnceLock::new();
        accepts(&ANSWER, |a| a.set_ksymbol(true))
    }
}

/// Whether the kernel accepts an attribute with this change.
fn accepts(known: &OnceLock<bool>, change: impl FnOnce(&mut perf_event_attr)) -> bool {
    let answer = || match opens(change) {
        Ok(()) => Some(true),
        Err(Errno::INVAL) => Some(false),
        Err(_) => None,
    };
    answer_once(known, answer).unwrap_or(false)
}

/// The first answer of `ask`, which is called until it has one.
fn answer_once(known: &OnceLock<bool>, ask: impl FnOnce() -> Option<bool>) -> Option<bool> {
    known.get().copied().or_else(|| ask().map(|answer| *known.get_or_init(|| answer)))
}

/// Uses up the refresh of a tracepoint, enables it, and checks whether it samples.
fn try_refresh() -> crate::Result<bool> {
    let event = crate::Event::tracepoint("raw_syscalls", "sys_enter")?.builder();
    let mut sampler =
        event.sample_period(1).sample(SampleFlags::TID).open_sampler(Target::ThisThread, 1)?;
    let samples = |sampler: &mut crate::Sampler| {
        let _ = rustix::process::getppid();
        let _ = rustix::process::getppid();
        sampler.drain(|_| Ok::<(), crate::Error>(()))
    };
    let control = |errno| crate::Error::System { call: "PERF_EVENT_IOC_REFRESH", errno };
    ioctl_refresh(sampler.counter(), 1).map_err(control)?;
    samples(&mut sampler)?;
    ioctl_enable(sampler.counter(), 0).map_err(control)?;
    Ok(samples(&mut sampler)? > 0)
}
