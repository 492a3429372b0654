//! Options of an event: `perf_event_attr`.

use crate::clock::clock_id;
use crate::counter::Counter;
use crate::diagnose::{self, Attempt};
use crate::error::{Error, Result};
use crate::event::Event;
use crate::features::KernelFeatures;
use crate::flags::{BranchFlags, ReadFormat, SampleFlags};
use crate::sampler::Sampler;
use crate::{Target, system};
use perf_sys::*;
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use trace_common::ClockDomain;

/// Minimum period of a timer event, in nanoseconds, without [`EventBuilder::allow_short_period`]. A
/// period of 1 µs starves the machine.
const MIN_CLOCK_PERIOD: u64 = 10_000;

/// Options for counting or sampling an [`Event`]: the fields of `perf_event_attr`.
///
/// ```no_run
/// use perf_monitor::{Event, SampleFlags, Software, Target};
///
/// // Where is process 1234 spending its time? 999 samples per second of CPU time.
/// let mut sampler = Event::software(Software::CpuClock)
///     .builder()
///     .sample_freq(999)
///     .sample(SampleFlags::IP | SampleFlags::TID | SampleFlags::TIME)
///     .open_sampler(Target::Thread(1234), 64)?;
/// # Ok::<(), perf_monitor::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct EventBuilder {
    event: Event,
    attr: perf_event_attr,
    allow_short_period: bool,
}

macro_rules! flags {
    ($($(#[$doc:meta])* $name:ident $set:ident;)*) => {$(
        $(#[$doc])*
        #[must_use]
        pub fn $name(mut self, on: bool) -> Self {
            self.attr.$set(on);
            self
        }
    )*};
}

macro_rules! words {
    ($($(#[$doc:meta])* $name:ident: $ty:ty;)*) => {$(
        $(#[$doc])*
        #[must_use]
        pub fn $name(mut self, value: $ty) -> Self {
            self.attr.$name = value;
            self
        }
    )*};
}

impl EventBuilder {
    pub(crate) fn new(event: Event) -> Self {
        let [config, config1, config2, config3, config4] = event.config;
        let mut attr = perf_event_attr::new(event.type_, config);
        attr.config1 = config1;
        attr.config2 = config2;
        attr.config3 = config3;
        attr.config4 = config4;
        attr.bp_type = event.bp_type;
        attr.flags = event.flags;
        attr.set_disabled(true);
        let times = ReadFormat::TOTAL_TIME_ENABLED | ReadFormat::TOTAL_TIME_RUNNING;
        attr.read_format = times.bits();
        Self { event, attr, allow_short_period: false }
    }

    /// The event.
    pub const fn event(&self) -> &Event {
        &self.event
    }

    /// The attribute.
    pub const fn attr(&self) -> &perf_event_attr {
        &self.attr
    }

    /// The attribute, for fields without a method here.
    pub const fn attr_mut(&mut self) -> &mut perf_event_attr {
        &mut self.attr
    }

    /// Takes a sample every `period` events. For clocks the period is in nanoseconds, and the
    /// kernel rounds it to the resolution of its timers.
    #[must_use]
    pub fn sample_period(mut self, period: u64) -> Self {
        self.attr.sample_period = period;
        self.attr.set_freq(false);
        self
    }

    /// Takes `hertz` samples per second: the kernel adapts the period. The maximum is
    /// `kernel.perf_event_max_sample_rate`.
    #[must_use]
    pub fn sample_freq(mut self, hertz: u64) -> Self {
        self.attr.sample_period = hertz;
        self.attr.set_freq(true);
        self
    }

    /// Accepts clock periods below 10 µs, which can starve the machine.
    #[must_use]
    pub fn allow_short_period(mut self) -> Self {
        self.allow_short_period = true;
        self
    }

    /// The fields of a sample.
    #[must_use]
    pub fn sample(mut self, fields: SampleFlags) -> Self {
        self.attr.sample_type = fields.bits();
        self
    }

    /// Adds fields of a sample.
    pub(crate) fn with_sample(mut self, fields: SampleFlags) -> Self {
        self.attr.sample_type |= fields.bits();
        self
    }

    /// The values that reading returns. The default is the count and both times, so that the count
    /// can be [scaled](crate::Count::scaled).
    #[must_use]
    pub fn read_format(mut self, format: ReadFormat) -> Self {
        self.attr.read_format = format.bits();
        self
    }

    /// Wakes readers every `samples` samples.
    #[must_use]
    pub fn wakeup_events(mut self, samples: u32) -> Self {
        self.attr.wakeup_events = samples;
        self.attr.set_watermark(false);
        self
    }

    /// Wakes readers every `bytes` bytes. A value above half the ring is reduced to half the ring,
    /// because the kernel never wakes readers above the ring's size. 0, the default, is half the
    /// ring.
    #[must_use]
    pub fn wakeup_watermark(mut self, bytes: u32) -> Self {
        self.attr.wakeup_events = bytes;
        self.attr.set_watermark(true);
        self
    }

    /// The clock of all timestamps (Linux 4.1). The default is the perf clock of the kernel, which
    /// is close to `CLOCK_MONOTONIC` but not equal.
    ///
    /// Clocks that cannot be read in a non-maskable interrupt (`REALTIME`, `BOOTTIME`, `TAI`) are
    /// only for software events and breakpoints; tracepoints and hardware events support
    /// `MONOTONIC` and `MONOTONIC_RAW`. [`ClockDomain::Local`] is the perf clock.
    #[must_use]
    pub fn clock(mut self, clock: ClockDomain) -> Self {
        self.attr.set_use_clockid(clock_id(clock).is_some());
        self.attr.clockid = clock_id(clock).unwrap_or(0);
        self
    }

    /// The branches that `SampleFlags::BRANCH_STACK` records. Without a level (`USER`, `KERNEL`,
    /// `HV`) the levels of the event apply.
    #[must_use]
    pub fn branches(mut self, branches: BranchFlags) -> Self {
        self.attr.branch_sample_type = branches.bits();
        self
    }

    /// Permitted skid between the event and the address of its sample: 0 (any) to 3 (none). With the
    /// modifier `P` of the event, lower levels are tried, too.
    #[must_use]
    pub fn precise_ip(mut self, level: u8) -> Self {
        self.attr.set_precise_ip(level);
        self
    }

    words! {
        /// Registers for `SampleFlags::REGS_USER`: bits of [`perf_sys::regs`].
        sample_regs_user: u64;
        /// Registers for `SampleFlags::REGS_INTR`: bits of [`perf_sys::regs`].
        sample_regs_intr: u64;
        /// Bytes for `SampleFlags::STACK_USER`, a multiple of 8.
        sample_stack_user: u32;
        /// Maximum number of frames of a callchain; 0 is `kernel.perf_event_max_stack`.
        sample_max_stack: u16;
        /// Bytes of AUX data until readers are woken.
        aux_watermark: u32;
        /// Bytes for `SampleFlags::AUX`.
        aux_sample_size: u32;
        /// Whether samples pause or resume the AUX event of the group (Linux 6.13).
        aux_action: u32;
        /// `si_perf_data` of the signal of [`sigtrap`](Self::sigtrap): [`SigtrapInfo::sig_data`](crate::SigtrapInfo::sig_data).
        sig_data: u64;
    }

    flags! {
        /// Starts disabled, until [`Counter::enable`]. This is the default.
        disabled set_disabled;
        /// Includes the threads and processes that the thread starts after opening.
        inherit set_inherit;
        /// Inherits to threads only, not to processes (Linux 5.13).
        inherit_thread set_inherit_thread;
        /// Must always be on the PMU: see [`Error::PinnedOut`].
        pinned set_pinned;
        /// Its group has exclusive use of the PMU.
        exclusive set_exclusive;
        /// Does not count user space.
        exclude_user set_exclude_user;
        /// Does not count the kernel.
        exclude_kernel set_exclude_kernel;
        /// Does not count the hypervisor.
        exclude_hv set_exclude_hv;
        /// Does not count when the CPU is idle.
        exclude_idle set_exclude_idle;
        /// Does not count the host of virtual machines.
        exclude_host set_exclude_host;
        /// Does not count virtual machines.
        exclude_guest set_exclude_guest;
        /// Leaves the kernel out of callchains.
        exclude_callchain_kernel set_exclude_callchain_kernel;
        /// Leaves user space out of callchains.
        exclude_callchain_user set_exclude_callchain_user;
        /// Records executable mappings.
        mmap set_mmap;
        /// Records mappings that are not executable.
        mmap_data set_mmap_data;
        /// Mappings name their file: [`Mmap::file`](crate::Mmap::file).
        mmap2 set_mmap2;
        /// Mappings have build ids (Linux 5.12).
        build_id set_build_id;
        /// Records names of threads.
        comm set_comm;
        /// Marks names that come from `execve(2)`.
        comm_exec set_comm_exec;
        /// Records forks and exits.
        task set_task;
        /// Records context switches (Linux 4.3).
        context_switch set_context_switch;
        /// Records namespaces (Linux 4.12).
        namespaces set_namespaces;
        /// Records registered and unregistered kernel symbols (Linux 5.1).
        ksymbol set_ksymbol;
        /// Records BPF programs (Linux 5.1).
        bpf_event set_bpf_event;
        /// Records cgroups (Linux 5.7). On a CPU-wide event it needs one of `task`, `comm`, `mmap`.
        cgroup set_cgroup;
        /// Records changes to kernel text (Linux 5.8).
        text_poke set_text_poke;
        /// Ends every record with a sample id: its event, time and place.
        /// [`open_sampler`](Self::open_sampler) sets it.
        sample_id_all set_sample_id_all;
        /// Records the counts of each task at its exit: [`Record::Read`](crate::Record::Read).
        /// Linux 6.1 and 6.12 do not write them.
        inherit_stat set_inherit_stat;
        /// The next `execve(2)` of the thread enables it.
        enable_on_exec set_enable_on_exec;
        /// An `execve(2)` of the thread removes it (Linux 5.13).
        remove_on_exec set_remove_on_exec;
        /// Sends `SIGTRAP` to the thread at each sample, synchronously (Linux 5.13). The signal
        /// ends the process if there is neither a handler nor a
        /// [`SigtrapReceiver`](crate::SigtrapReceiver). Needs `remove_on_exec`. On arm64 a trapping
        /// breakpoint stops before the access, and again when the access is repeated, endlessly
        /// unless the handler disables the event.
        sigtrap set_sigtrap;
        /// Overwrites the ring from its end to its start (Linux 4.7): see
        /// [`OverwriteRing`](crate::OverwriteRing).
        write_backward set_write_backward;
        /// The output goes to the AUX area of the group (Linux 5.4).
        aux_output set_aux_output;
        /// Takes user callchains on the return to user space (Linux 6.19).
        defer_callchain set_defer_callchain;
        /// Records the deferred callchains (Linux 6.19).
        defer_output set_defer_output;
    }

    /// Opens the event as a counter.
    ///
    /// # Errors
    ///
    /// [`Error::Open`] with the rejected field and a remedy; [`Error::PeriodTooShort`]; [`Error::File`] for a
    /// [`Probe`](crate::probe::Probe) whose file was replaced since.
    pub fn open(&self, target: Target<'_>) -> Result<Counter> {
        self.open_in(target, None, 0)
    }

    pub(crate) fn open_in(
        &self,
        target: Target<'_>,
        group: Option<BorrowedFd<'_>>,
        flags: u64,
    ) -> Result<Counter> {
        self.check_period()?;
        self.event.check_file()?;
        let mut attempt =
            Attempt { attr: self.attr, path: self.event.path.as_deref(), target, group, flags };
        let opened = if self.event.is_most_precise {
            most_precise(&mut attempt, Attempt::open)
        } else {
            attempt.open()
        };
        // Otherwise it is closed: it may be in another file.
        self.event.check_file()?;
        match opened {
            Ok(fd) => Ok(Counter::new(fd, attempt.attr, self.event.clone(), target)),
            Err(errno) => Err(Error::Open {
                event: self.event.name.clone(),
                target: target.to_string(),
                errno,
                reason: diagnose::open(&attempt, &self.event, errno),
            }),
        }
    }

    /// Opens the event with a ring of `pages` pages (a power of two) for its samples.
    ///
    /// Sets `sample_id_all` and, if the kernel supports it, `ReadFormat::LOST`: see
    /// [`Sampler::count_losses`].
    ///
    /// # Errors
    ///
    /// [`Error::Open`], [`Error::RingDirection`] with [`write_backward`](Self::write_backward),
    /// [`Error::RingPages`] and [`Error::Map`], with the exceeded limit.
    pub fn open_sampler(&self, target: Target<'_>, pages: usize) -> Result<Sampler> {
        self.clone().for_ring(pages)?.open(target)?.into_sampler(pages)
    }

    /// Sets the options that every event with a ring needs.
    fn for_records(mut self) -> Self {
        self.attr.set_sample_id_all(true);
        if KernelFeatures::has_lost_counts() {
            self.attr.read_format |= PERF_FORMAT_LOST;
        }
        self
    }

    /// The event for the ring of another one, with the event id in its records.
    pub(crate) fn for_shared_ring(&self) -> Self {
        let mut this = self.clone().for_records();
        this.attr.sample_type |= PERF_SAMPLE_IDENTIFIER;
        this
    }

    /// The event as the leader or a member of a group, all of whose counts are read together.
    pub(crate) fn in_group(&self) -> Self {
        let format = ReadFormat::from_bits_retain(self.attr.read_format)
            | ReadFormat::GROUP
            | ReadFormat::ID
            | ReadFormat::TOTAL_TIME_ENABLED
            | ReadFormat::TOTAL_TIME_RUNNING;
        self.clone().read_format(format)
    }

    /// The event for a set of rings, whose records have an id and a time on the clock of the set.
    pub(crate) fn for_set(&self, clock: ClockDomain) -> Self {
        let mut this = self.for_shared_ring().clock(clock);
        this.attr.sample_type |= PERF_SAMPLE_TIME;
        this
    }

    fn for_ring(self, pages: usize) -> Result<Self> {
        if !pages.is_power_of_two() {
            return Err(Error::RingPages(pages));
        }
        Ok(self.for_records().with_watermark_in(pages))
    }

    /// Reduces a watermark above half of a ring of `pages` pages to that.
    pub(crate) fn with_watermark_in(mut self, pages: usize) -> Self {
        if self.attr.watermark() {
            let half = pages.saturating_mul(rustix::param::page_size()) / 2;
            let half = u32::try_from(half).unwrap_or(u32::MAX);
            self.attr.wakeup_events = self.attr.wakeup_events.min(half);
        }
        self
    }

    fn check_period(&self) -> Result<()> {
        let clock = self.attr.type_ == PERF_TYPE_SOFTWARE
            && matches!(self.attr.config, PERF_COUNT_SW_CPU_CLOCK | PERF_COUNT_SW_TASK_CLOCK);
        let period = self.attr.sample_period;
        let nanos =
            if self.attr.freq() { 1_000_000_000u64.checked_div(period) } else { Some(period) };
        match nanos {
            Some(nanos)
                if clock && period != 0 && nanos < MIN_CLOCK_PERIOD && !self.allow_short_period =>
            {
                // The kernel rejects a frequency above its limit.
                let over = system::max_sample_rate()
                    .is_some_and(|max| i128::from(period) > i128::from(max));
                if self.attr.freq() && over {
                    return Ok(());
                }
                Err(Error::PeriodTooShort { nanos, min: MIN_CLOCK_PERIOD })
            }
            _ => Ok(()),
        }
    }
}

/// Opens an event with the highest `precise_ip` that is accepted, from that of its attribute down.
fn most_precise<'a, T>(
    attempt: &mut Attempt<'a>,
    open: impl Fn(&Attempt<'a>) -> Result<T, Errno>,
) -> Result<T, Errno> {
    loop {
        let level = attempt.attr.precise_ip();
        match open(attempt) {
            // A level that the PMU lacks has one of these.
            Err(Errno::INVAL | Errno::OPNOTSUPP | Errno::NOENT | Errno::NODEV) if level > 0 => {
                attempt.attr.set_precise_ip(level - 1);
            }
            result => return result,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_precise_level_that_opens_is_taken() {
        let event = Event::parse("cycles:P").unwrap();
        let opened = |accepted: u8, errno: Errno| {
            let (attr, target) = (*event.builder().attr(), Target::ThisThread);
            let mut attempt = Attempt { attr, path: None, target, group: None, flags: 0 };
            let result = most_precise(&mut attempt, |attempt| {
                if attempt.attr.precise_ip() <= accepted { Ok(()) } else { Err(errno) }
            });
            result.map(|()| attempt.attr.precise_ip())
        };
        assert_eq!(opened(3, Errno::OPNOTSUPP), Ok(3));
        assert_eq!(opened(1, Errno::OPNOTSUPP), Ok(1));
        assert_eq!(opened(0, Errno::INVAL), Ok(0));
        assert_eq!(opened(0, Errno::ACCESS), Err(Errno::ACCESS), "no level changes that");
    }
}
