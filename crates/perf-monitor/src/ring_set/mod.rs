//! Events on many CPUs, tasks and cgroups, and their records in time order.

#[cfg(feature = "tokio")]
mod asynchronous;
mod control;
mod reader;
mod source;
mod table;
mod targets;

#[cfg(feature = "tokio")]
pub use asynchronous::AsyncRingSet;
pub use control::{CpuChanges, EventCounts};
pub use reader::{SetChunk, SetRecord, SetStats};
pub use table::SetEvent;

pub(crate) use control::{Control, Lane};
pub(crate) use reader::{Reader, Visitor};

use crate::builder::EventBuilder;
use crate::clock;
use crate::error::{Error, Result};
use crate::event::Event;
use crate::generalized::Software;
use crate::ring::RingStats;
use crate::ring_size::{RingLimits, RingPages, power_of_two_in};
use crate::sampler::Readiness;
use perf_sys::perf_event_attr;
use rustix::event::{self as eventfd, PollFd, PollFlags, Timespec, epoll, poll};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use targets::Targets;
use trace_common::ClockDomain;

/// Events on CPUs × (everything, threads, cgroups), with one ring for each CPU.
///
/// Events can be added and removed at any time. Records of all rings are read in rounds and passed
/// on in time order.
///
/// ```no_run
/// use perf_monitor::{RingSet, SampleFlags, Tracefs};
/// use std::time::Duration;
///
/// let tracefs = Tracefs::find()?;
/// let exec = tracefs.event("sched", "sched_process_exec")?;
/// let filename = tracefs.format("sched", "sched_process_exec")?.field("filename").cloned();
/// let mut set = RingSet::builder().open()?; // everything on all CPUs
/// set.add(&exec.builder().sample_period(1).sample(SampleFlags::TID | SampleFlags::RAW))?;
/// set.enable()?;
/// loop {
///     set.wait(Some(Duration::from_millis(10)))?;
///     set.round(|record| {
///         if let (Some(data), Some(field)) = (record.layout.raw_data(record.raw), &filename) {
///             println!("{:?} {:?}", record.time, field.value(data));
///         }
///         Ok::<(), perf_monitor::Error>(())
///     })?;
/// }
/// # #[expect(unreachable_code, reason = "the example runs forever")]
/// # Ok::<(), perf_monitor::Error>(())
/// ```
///
/// # Order
///
/// A round looks at what the rings contain at its start. It passes on the records that are older
/// than the start of the *previous* round, that are not newer than all that the previous round
/// found, and that are older than the [slack](RingSetBuilder::slack): then records that a CPU
/// committed late are there too. A record that is even later is passed on at once, with
/// [`SetRecord::late`], and counted in [`SetStats::late`].
///
/// The delay is thus the time between two rounds plus the slack. Records wait in their rings, of
/// which at least three quarters are free after a round: what is more is moved to other memory. That
/// is bounded: when 64 MiB of records wait there, those that the previous round found are passed on,
/// whatever slack and clock say ([`SetStats::waived_slack`]).
///
/// # Losses
///
/// [`finish`](Self::finish) accounts for every sample: [`EventCounts`] of an event have
/// `count == delivered + lost` if its sample period is 1 and the kernel counts losses (Linux 6.0).
/// Some kernels (6.18 is one) count, but neither write nor report as lost, a sample that a CPU takes
/// while its event is being disabled or removed: at most one for each CPU.
///
/// Older kernels report losses by ring only, because a `PERF_RECORD_LOST` has the id of the event
/// that writes next, not that of the lost samples.
///
/// # CPU hotplug
///
/// The kernel ends the events of a CPU, and those of cgroups on it, when the CPU goes offline, and never
/// revives them. [`check_cpus`](Self::check_cpus) opens them again on a CPU that came back. Events of
/// threads continue there, also those that other threads and processes inherited.
///
/// On a CPU that was offline when the set was opened, `check_cpus` opens the events for the threads of
/// the set, and not for the threads and processes that these started before.
#[derive(Debug)]
pub struct RingSet {
    control: Control,
    reader: Reader,
    waker: Waker,
}

/// Options of a [`RingSet`].
#[derive(Clone, Debug)]
pub(crate) struct SetOptions {
    pub(crate) pages: Option<usize>,
    /// The maximum if `pages` is `None`.
    pub(crate) max_pages: usize,
    pub(crate) clock: ClockDomain,
    /// In nanoseconds.
    pub(crate) slack: i64,
    pub(crate) watermark: u32,
    /// The watermark is this part of the ring, if it is not given in bytes.
    pub(crate) watermark_part: u32,
    pub(crate) flags: u64,
    pub(crate) sideband: Option<EventBuilder>,
    pub(crate) sideband_ring: Option<(EventBuilder, usize)>,
}

impl SetOptions {
    /// The pages of the main rings of each of `cpus` CPUs without a limit of locked memory, and the pages
    /// of all rings within the limits.
    pub(crate) fn ring_pages(&self, limits: &RingLimits, cpus: usize) -> (usize, RingPages) {
        let side = self.sideband_ring.as_ref().map_or(0, |(_, pages)| *pages);
        if let Some(main) = self.pages {
            return (main, RingPages { main, side });
        }
        let RingPages { main, side } = limits.unlimited(cpus, side);
        let main = main.min(power_of_two_in(self.max_pages));
        (main, limits.fit(RingPages { main, side }, cpus))
    }

    /// The event that the rings are mapped with.
    pub(crate) fn anchor(&self, is_inherited: bool, pages: usize) -> EventBuilder {
        let anchor = match &self.sideband {
            Some(sideband) => sideband.clone(),
            None => Event::software(Software::Dummy)
                .builder()
                .exclude_kernel(true)
                .exclude_hv(true)
                .inherit(is_inherited),
        };
        let size = pages.saturating_mul(rustix::param::page_size());
        let part = size.checked_div(self.watermark_part as usize).unwrap_or(0);
        let watermark = match self.watermark {
            0 => u32::try_from(part).unwrap_or(u32::MAX),
            bytes => bytes,
        };
        anchor.wakeup_watermark(watermark).with_watermark_in(pages)
    }
}

/// Options of a [`RingSet`]: [`RingSet::builder`].
#[derive(Clone, Debug)]
#[must_use]
pub struct RingSetBuilder {
    targets: Targets,
    options: SetOptions,
}

/// The default of [`RingSetBuilder::slack`].
const SLACK: Duration = Duration::from_millis(5);

impl Default for RingSetBuilder {
    fn default() -> Self {
        Self {
            targets: Targets::default(),
            options: SetOptions {
                pages: None,
                max_pages: usize::MAX,
                clock: ClockDomain::Monotonic,
                slack: nanos(SLACK),
                watermark: 0,
                watermark_part: 0,
                flags: 0,
                sideband: None,
                sideband_ring: None,
            },
        }
    }
}

fn nanos(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
}

impl RingSetBuilder {
    /// Measures on these CPUs. The default is all CPUs, also those that come online later. CPUs that
    /// are offline are skipped.
    pub fn cpus(mut self, cpus: impl IntoIterator<Item = u32>) -> Self {
        self.targets.cpus = Some(cpus.into_iter().collect());
        self
    }

    /// Also measures this thread; 0 is the calling one. The default is everything on the CPUs.
    /// Threads that have exited are skipped, unless all have. A thread that gets the id of one that has
    /// exited since this call is not measured, if `/proc` is mounted.
    pub fn thread(mut self, tid: u32) -> Self {
        let tid = match tid {
            0 => rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs(),
            tid => tid,
        };
        self.targets.add_thread(tid);
        self
    }

    /// Also measures the threads of a process: those that it has when an event is added.
    pub(crate) fn process(mut self, pid: u32) -> Result<Self> {
        self.targets.add_process(pid)?;
        Ok(self)
    }

    /// Also measures the tasks of a cgroup, once if its directory is given twice: see
    /// [`Target::Cgroup`](crate::Target::Cgroup).
    pub fn cgroup(mut self, dir: OwnedFd) -> Self {
        self.targets.add_cgroup(dir);
        self
    }

    /// Also measures the tasks of the cgroup with this directory.
    ///
    /// # Errors
    ///
    /// [`Error::File`].
    pub fn cgroup_at(self, dir: impl AsRef<Path>) -> Result<Self> {
        let dir = dir.as_ref();
        let file = std::fs::File::open(dir).map_err(|error| Error::file(dir, error))?;
        Ok(self.cgroup(file.into()))
    }

    /// Data pages of each ring, a power of two. The default is
    /// [`default_ring_pages`](crate::default_ring_pages) beside the [sideband](Self::sideband_ring), or less
    /// if this user cannot map that much: see [`RingSet::pages`].
    pub const fn pages(mut self, pages: usize) -> Self {
        self.options.pages = Some(pages);
        self
    }

    /// Maximum of the default of [`pages`](Self::pages), for sets that need fewer: a power of two, or the
    /// next one below.
    pub const fn max_pages(mut self, pages: usize) -> Self {
        self.options.max_pages = pages;
        self
    }

    /// The clock of all events. The default is [`ClockDomain::Monotonic`].
    ///
    /// [`ClockDomain::Realtime`] and [`ClockDomain::Tai`] can be set. When they are set back, the records
    /// before wait until the clock shows their time again, or until there are [too many](RingSet#order);
    /// those after that are late.
    pub const fn clock(mut self, clock: ClockDomain) -> Self {
        self.options.clock = clock;
        self
    }

    /// How long records wait for older ones, at least. The default is 5 ms: a virtual CPU can be
    /// descheduled between taking the time of a record and writing it.
    pub fn slack(mut self, slack: Duration) -> Self {
        self.options.slack = nanos(slack);
        self
    }

    /// Bytes in a ring that wake [`RingSet::wait`]. 0, the default, is half the ring, and so is all
    /// above it.
    pub const fn wakeup_watermark(mut self, bytes: u32) -> Self {
        self.options.watermark = bytes;
        self
    }

    /// Wakes [`RingSet::wait`] when a ring is filled to 1 / `part`, whatever its size; at half at the
    /// latest. With a higher number, more of the ring is left until the reader gets the CPU.
    pub const fn wakeup_part(mut self, part: u32) -> Self {
        self.options.watermark_part = part;
        self
    }

    /// Adds flags of `perf_event_open(2)`. `PERF_FLAG_FD_CLOEXEC` is always set, and
    /// `PERF_FLAG_PID_CGROUP` where it is needed.
    pub const fn flags(mut self, flags: u64) -> Self {
        self.options.flags = flags;
        self
    }

    /// An event for sideband records (forks, names, mappings, switches), in the rings of the other
    /// events: [`RingSet::sideband`].
    pub fn sideband(mut self, event: &EventBuilder) -> Self {
        self.options.sideband = Some(event.clone());
        self
    }

    /// An event for sideband records in a ring of its own, of `pages` pages, on each CPU: when
    /// samples are lost, forks and names are not. If this user may not lock that much memory, it has
    /// [fewer](RingSet::sideband_pages), but at least 32 KiB, unless the number of [`pages`](Self::pages) is
    /// given.
    pub fn sideband_ring(mut self, event: &EventBuilder, pages: usize) -> Self {
        self.options.sideband_ring = Some((event.clone(), pages));
        self
    }

    /// Opens the rings.
    ///
    /// # Errors
    ///
    /// [`Error::Open`], [`Error::RingPages`], [`Error::Map`] and [`Error::UnreadableClock`];
    /// [`Error::RingDirection`] for a sideband event with
    /// [`write_backward`](EventBuilder::write_backward).
    pub fn open(self) -> Result<RingSet> {
        let (control, reader) = self.open_parts()?;
        let waker = Waker::new(Arc::clone(control.epoll()));
        Ok(RingSet { control, reader, waker })
    }

    pub(crate) fn open_parts(self) -> Result<(Control, Reader)> {
        if clock::now(self.options.clock).is_none() {
            return Err(Error::UnreadableClock(self.options.clock));
        }
        Control::open(self.targets, self.options)
    }
}

impl RingSet {
    /// Options of a set, which measures everything on all CPUs by default.
    pub fn builder() -> RingSetBuilder {
        RingSetBuilder::default()
    }

    /// Data pages of each ring.
    pub const fn pages(&self) -> usize {
        self.control.pages()
    }

    /// Data pages that each ring would have if this user could lock any amount of memory. With fewer
    /// [`pages`](Self::pages), the limits are `kernel.perf_event_mlock_kb` and `RLIMIT_MEMLOCK`.
    pub const fn unlimited_pages(&self) -> usize {
        self.control.unlimited_pages()
    }

    /// Data pages of each ring of [`RingSetBuilder::sideband_ring`]; `None` without these.
    pub fn sideband_pages(&self) -> Option<usize> {
        self.control.sideband_pages()
    }

    /// The CPUs with a ring. One that is offline can have a ring for the events of threads.
    pub fn cpus(&self) -> impl Iterator<Item = u32> + '_ {
        self.control.cpus()
    }

    /// The event of [`RingSetBuilder::sideband_ring`], else that of [`RingSetBuilder::sideband`].
    pub fn sideband(&self) -> Option<SetEvent> {
        self.control.anchor(Lane::Sideband).or_else(|| self.control.anchor(Lane::Main))
    }

    /// Opens an event on all CPUs, threads and cgroups; if its PMU is that of some CPUs, on
    /// [those](Event::cpus). `SampleFlags::IDENTIFIER`,
    /// `SampleFlags::TIME`, `sample_id_all` and the clock are set for it. It is disabled, unless its
    /// builder says [`disabled(false)`](EventBuilder::disabled): then it is enabled when it is open
    /// everywhere.
    ///
    /// # Errors
    ///
    /// [`Error::Open`], and [`Error::Control`].
    pub fn add(&mut self, event: &EventBuilder) -> Result<SetEvent> {
        Ok(self.control.add(event, Vec::new(), None, None)?.0)
    }

    /// Opens a group of counters, which are read with each sample of the first: that needs
    /// `SampleFlags::READ`, if it is inherited also `SampleFlags::TID` (Linux 6.12), and its read format
    /// becomes that of a group.
    ///
    /// # Errors
    ///
    /// Those of [`add`](Self::add).
    pub fn add_group(
        &mut self,
        leader: &EventBuilder,
        members: &[EventBuilder],
    ) -> Result<SetEvent> {
        Ok(self.control.add(&leader.in_group(), members.to_vec(), None, None)?.0)
    }

    /// Opens an event on the tasks of a cgroup instead of the targets of the set, on all its CPUs;
    /// with members as in [`add_group`](Self::add_group). See
    /// [`Target::Cgroup`](crate::Target::Cgroup).
    ///
    /// # Errors
    ///
    /// Those of [`add`](Self::add).
    pub fn add_in_cgroup(
        &mut self,
        leader: &EventBuilder,
        members: &[EventBuilder],
        dir: OwnedFd,
    ) -> Result<SetEvent> {
        let leader = if members.is_empty() { leader.clone() } else { leader.in_group() };
        Ok(self.control.add(&leader, members.to_vec(), Some(Arc::new(dir)), None)?.0)
    }

    /// Removes an event. Its records in the rings are still passed on. Returns its counts without
    /// those.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownSetEvent`], and [`Error::Control`] if the event cannot be disabled or read on a CPU.
    /// Then it is removed all the same, and the counts of all events lack those that cannot be read.
    pub fn remove(&mut self, event: SetEvent) -> Result<EventCounts> {
        self.control.remove(event)
    }

    /// Enables all events.
    ///
    /// # Errors
    ///
    /// [`Error::Control`].
    pub fn enable(&mut self) -> Result<()> {
        self.control.set_all_enabled(true)
    }

    /// Disables all events.
    ///
    /// # Errors
    ///
    /// [`Error::Control`].
    pub fn disable(&mut self) -> Result<()> {
        self.control.set_all_enabled(false)
    }

    /// Enables an event.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownSetEvent`] and [`Error::Control`].
    pub fn enable_event(&mut self, event: SetEvent) -> Result<()> {
        self.control.set_enabled(event, true)
    }

    /// Disables an event.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownSetEvent`] and [`Error::Control`].
    pub fn disable_event(&mut self, event: SetEvent) -> Result<()> {
        self.control.set_enabled(event, false)
    }

    /// Sets the kernel's filter of a tracepoint: [`Counter::set_filter`](crate::Counter::set_filter).
    ///
    /// The kernel cannot change a filter. An event that has one is opened again: it misses what
    /// happens in the microseconds between, and tasks that inherited it are not followed any more.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownSetEvent`] and [`Error::Filter`].
    pub fn set_filter(&mut self, event: SetEvent, filter: &str) -> Result<()> {
        self.control.set_filter(event, filter)
    }

    /// Changes the [slack](RingSetBuilder::slack).
    pub fn set_slack(&mut self, slack: Duration) {
        self.reader.set_slack(nanos(slack));
    }

    /// Waits until a ring contains the watermark, all threads of the set exited, or `timeout` expired
    /// (`None`: no timeout). A wake-up is reported once.
    ///
    /// # Errors
    ///
    /// [`Error::System`].
    pub fn wait(&mut self, timeout: Option<Duration>) -> Result<Readiness> {
        let Self { waker, control, .. } = self;
        waker.wait(timeout, |hung_up| control.have_all_ended(hung_up))
    }

    /// Passes on the records of the rings that are old enough, in time order: see
    /// [Order](Self#order). Returns their number.
    ///
    /// # Errors
    ///
    /// The first error of `f`: the next round resumes after that record, as after a panic of `f`.
    pub fn round<E>(
        &mut self,
        mut f: impl FnMut(SetRecord<'_>) -> Result<(), E>,
    ) -> Result<usize, E> {
        self.reader.round(&mut f)
    }

    /// Passes on what the rings contain now, each ring for itself, in the order in which it was
    /// written there. Returns the number of records.
    ///
    /// # Errors
    ///
    /// The first error of `f`: the next call resumes after that record, as after a panic of `f`.
    pub fn read_unordered<E>(
        &mut self,
        f: impl FnMut(SetRecord<'_>) -> Result<(), E>,
    ) -> Result<usize, E> {
        self.reader.read_unordered(f)
    }

    /// Whether records wait for their turn in a later [`round`](Self::round).
    pub const fn has_pending(&self) -> bool {
        !self.reader.is_empty()
    }

    /// Reads everything and passes it on in time order. Call this when the events are disabled:
    /// [`finish`](Self::finish) does both, and completes the counts.
    ///
    /// # Errors
    ///
    /// The first error of `f`.
    pub fn drain<E>(
        &mut self,
        mut f: impl FnMut(SetRecord<'_>) -> Result<(), E>,
    ) -> Result<usize, E> {
        self.reader.drain(&mut f)
    }

    /// Disables all events, passes on all remaining records in time order, and completes the counts
    /// of losses with those that no record reported. The set can be enabled again.
    ///
    /// # Errors
    ///
    /// Those of `f`, [`Error::Control`] and [`Error::Decode`].
    pub fn finish<E: From<Error>>(
        &mut self,
        mut f: impl FnMut(SetRecord<'_>) -> Result<(), E>,
    ) -> Result<SetStats, E> {
        self.disable()?;
        self.reader.drain(&mut f)?;
        self.count_losses()?;
        Ok(self.stats())
    }

    /// Completes the counts of losses: see [`Sampler::count_losses`](crate::Sampler::count_losses).
    /// Call this when the events are disabled and everything was read.
    ///
    /// # Errors
    ///
    /// [`Error::Control`] if an event cannot be read on a CPU.
    pub fn count_losses(&mut self) -> Result<()> {
        count_losses(&self.control, &mut self.reader)
    }

    /// Statistics so far. Those of a ring have the records that were passed on, and a few KiB of
    /// those that wait.
    pub fn stats(&self) -> SetStats {
        self.reader.stats()
    }

    /// Statistics of each open ring so far, with its CPU.
    pub fn rings(&self) -> impl Iterator<Item = (u32, RingStats)> + '_ {
        self.reader.rings()
    }

    /// Counts of an event so far.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownSetEvent`], and [`Error::Control`] if the event cannot be read on a CPU.
    pub fn counts(&self, event: SetEvent) -> Result<EventCounts> {
        self.control.counts(event)
    }

    /// The attribute that an event was opened with, for recordings.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownSetEvent`].
    pub fn attr(&self, event: SetEvent) -> Result<perf_event_attr> {
        self.control.attr(event)
    }

    /// The ids that the records of an event have, for recordings: one for each CPU and target that it
    /// is open on. [`check_cpus`](Self::check_cpus) can add some.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownSetEvent`].
    pub fn ids(&self, event: SetEvent) -> Result<Vec<u64>> {
        self.control.ids(event)
    }

    /// The attributes of the members of a [group](Self::add_group) and their ids in its samples, for
    /// recordings.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownSetEvent`], and those of [`Counter::id`](crate::Counter::id).
    pub fn members(&self, event: SetEvent) -> Result<Vec<(perf_event_attr, Vec<u64>)>> {
        self.control.members(event)
    }

    /// Sums of the counts of all removed events.
    pub fn removed_counts(&self) -> EventCounts {
        self.control.removed_counts()
    }

    /// Opens the events on CPUs that came online, and closes those of CPUs that went offline, except
    /// those of threads: see [CPU hotplug](Self#cpu-hotplug). This reads a file of sysfs: call it about
    /// once a second.
    ///
    /// When all threads of the set have exited, it opens no events on a CPU without a ring, also not
    /// those of [`add_in_cgroup`](Self::add_in_cgroup): the rings belong to the threads.
    ///
    /// # Errors
    ///
    /// Those of [`RingSetBuilder::open`], [`Error::Filter`] and [`Error::Control`], for a CPU that came
    /// online. Its events are closed, and the next call tries again. Changes of other CPUs are returned
    /// first, and the error by the next call if it persists.
    pub fn check_cpus(&mut self) -> Result<CpuChanges> {
        self.control.check_cpus()
    }

    /// The CPUs that went offline since their events were opened, also those that came back: the next
    /// [`check_cpus`](Self::check_cpus) closes their events. What follows on them is in no ring.
    pub fn gone_cpus(&self) -> Vec<u32> {
        self.control.gone_cpus()
    }
}

/// Completes the losses of each ring by those that no record reported.
pub(crate) fn count_losses(control: &Control, reader: &mut Reader) -> Result<()> {
    let losses = control.losses()?;
    reader.set_kernel_losses(|ring| losses.get(&ring).copied().flatten());
    Ok(())
}

impl AsFd for RingSet {
    /// An epoll descriptor of all rings, for other event loops.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.control.epoll().as_fd()
    }
}

impl AsRawFd for RingSet {
    fn as_raw_fd(&self) -> RawFd {
        self.control.epoll().as_raw_fd()
    }
}

/// The epoll data of what is not an event.
const ALARM: u64 = u64::MAX;

/// Ends [`Waker::wait`] from another thread.
#[derive(Debug)]
pub(crate) struct Alarm(OwnedFd);

impl Alarm {
    pub(crate) fn new(control: &Control) -> Result<Self> {
        let flags = eventfd::EventfdFlags::CLOEXEC | eventfd::EventfdFlags::NONBLOCK;
        let fd =
            eventfd::eventfd(0, flags).map_err(|errno| Error::System { call: "eventfd", errno })?;
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&**control.epoll(), &fd, epoll::EventData::new_u64(ALARM), flags)
            .map_err(|errno| Error::System { call: "epoll_ctl", errno })?;
        Ok(Self(fd))
    }

    /// One that ends no wait.
    #[cfg(test)]
    pub(crate) fn idle() -> Result<Self, Errno> {
        eventfd::eventfd(0, eventfd::EventfdFlags::NONBLOCK).map(Self)
    }

    pub(crate) fn ring(&self) {
        // It fails if it rings already.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }
}

/// Waits for the rings of a set.
#[derive(Debug)]
pub(crate) struct Waker {
    epoll: Arc<OwnedFd>,
    /// Ids of events whose thread exited.
    hung_up: BTreeSet<u64>,
}

impl Waker {
    pub(crate) const fn new(epoll: Arc<OwnedFd>) -> Self {
        Self { epoll, hung_up: BTreeSet::new() }
    }

    pub(crate) fn wait(
        &mut self,
        timeout: Option<Duration>,
        have_all_ended: impl FnOnce(&BTreeSet<u64>) -> bool,
    ) -> Result<Readiness> {
        // `epoll_wait` rounds to milliseconds.
        let timeout = timeout.and_then(|t| Timespec::try_from(t).ok());
        let mut fds = [PollFd::new(&*self.epoll, PollFlags::IN)];
        let is_ready = match poll(&mut fds, timeout.as_ref()) {
            Ok(ready) => ready > 0,
            Err(Errno::INTR) => false,
            Err(errno) => return Err(Error::System { call: "poll", errno }),
        };
        if is_ready {
            return self.woken(have_all_ended);
        }
        let hung_up = !self.hung_up.is_empty() && have_all_ended(&self.hung_up);
        Ok(Readiness { readable: false, hung_up })
    }

    /// Collects the reports of the rings, after the epoll descriptor was reported as readable.
    ///
    /// The kernel reports a wake-up of a ring once, and the poll of the epoll descriptor has
    /// consumed it: it can be missing here. Hence a ring is readable unless a thread hung up.
    pub(crate) fn woken(
        &mut self,
        have_all_ended: impl FnOnce(&BTreeSet<u64>) -> bool,
    ) -> Result<Readiness> {
        let before = self.hung_up.len();
        let readable = self.collect()? || self.hung_up.len() == before;
        let hung_up = !self.hung_up.is_empty() && have_all_ended(&self.hung_up);
        Ok(Readiness { readable, hung_up })
    }

    /// Collects the reports of the rings: all of them, as one that is left wakes nobody again. Returns
    /// whether a ring is readable.
    fn collect(&mut self) -> Result<bool> {
        let (mut is_readable, mut room) = (false, 64);
        loop {
            let mut events = Vec::with_capacity(room);
            let buffer = rustix::buffer::spare_capacity(&mut events);
            match epoll::wait(&*self.epoll, buffer, Some(&Timespec::default())) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(Error::System { call: "epoll_wait", errno }),
            }
            let is_full = events.len() == events.capacity();
            for event in events {
                let (flags, data) = (event.flags, event.data);
                is_readable |= flags.contains(epoll::EventFlags::IN);
                if flags.intersects(epoll::EventFlags::HUP | epoll::EventFlags::ERR) {
                    self.hung_up.insert(data.u64());
                }
            }
            if !is_full {
                return Ok(is_readable);
            }
            // A call has one report of each event. This ends, however often rings wake meanwhile.
            room *= 2;
        }
    }
}

#[cfg(test)]
mod tests;
