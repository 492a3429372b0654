//! Options of a monitor.

use super::run::Runs;
use super::runner::{RecordDecoder, Runner, RunnerOptions};
use super::{DefaultOptions, EventMonitor, Inbox, Inner, RecordView, Registry, TallySum};
use crate::builder::EventBuilder;
use crate::error::{Error, Result};
use crate::files::read_bytes;
use crate::ring_set::{Alarm, RingSet, RingSetBuilder, SetStats, Waker};
use crate::tracefs::Tracefs;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use trace_common::{CgroupVersion, ClockDomain, Mount};

/// Options of an [`EventMonitor`]: [`EventMonitor::builder`].
#[must_use]
pub struct EventMonitorBuilder<T> {
    set: RingSetBuilder,
    clock: ClockDomain,
    cgroups: Vec<PathBuf>,
    processes: Vec<u32>,
    perf_event_dir: Option<PathBuf>,
    tracing_dir: Option<PathBuf>,
    default_options: Option<DefaultOptions>,
    records: Option<RecordDecoder<T>>,
    runner: RunnerOptions,
}

impl<T> std::fmt::Debug for EventMonitorBuilder<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EventMonitorBuilder")
            .field("set", &self.set)
            .field("cgroups", &self.cgroups)
            .field("processes", &self.processes)
            .finish_non_exhaustive()
    }
}

impl<T> EventMonitorBuilder<T> {
    pub(super) fn new() -> Self {
        Self {
            set: RingSet::builder(),
            clock: ClockDomain::Monotonic,
            cgroups: Vec::new(),
            processes: Vec::new(),
            perf_event_dir: None,
            tracing_dir: None,
            default_options: None,
            records: None,
            runner: RunnerOptions {
                poll_interval: Duration::from_millis(10),
                batch: 256,
                realtime: None,
            },
        }
    }

    /// Changes the options of the set of rings: CPUs, threads, pages, slack, wake-up watermark,
    /// flags of `perf_event_open(2)` and sideband.
    fn set(mut self, change: impl FnOnce(RingSetBuilder) -> RingSetBuilder) -> Self {
        self.set = change(self.set);
        self
    }

    /// Also monitors a process: an event has all threads that run when it is registered. Threads and
    /// processes that these start later are included if the event [inherits](EventBuilder::inherit).
    /// Processes that were started before are not.
    pub fn pid(mut self, pid: u32) -> Self {
        self.processes.push(pid);
        self
    }

    /// Also monitors these processes.
    pub fn pids(mut self, pids: impl IntoIterator<Item = u32>) -> Self {
        self.processes.extend(pids);
        self
    }

    /// Also monitors a thread; 0 is the calling one.
    pub fn thread(self, tid: u32) -> Self {
        self.set(|set| set.thread(tid))
    }

    /// Also monitors the tasks of a cgroup, by its path from the root of the hierarchy:
    /// [`perf_event_dir`](Self::perf_event_dir).
    pub fn cgroup(mut self, path: impl Into<PathBuf>) -> Self {
        self.cgroups.push(path.into());
        self
    }

    /// Also monitors the tasks of these cgroups.
    pub fn cgroups(mut self, paths: impl IntoIterator<Item = impl Into<PathBuf>>) -> Self {
        self.cgroups.extend(paths.into_iter().map(Into::into));
        self
    }

    /// Monitors on these CPUs only: [`RingSetBuilder::cpus`].
    pub fn cpus(self, cpus: impl IntoIterator<Item = u32>) -> Self {
        self.set(|set| set.cpus(cpus))
    }

    /// The directory of the cgroup hierarchy. The default is the mounted `perf_event` hierarchy of
    /// cgroup v1, else that of cgroup v2.
    pub fn perf_event_dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.perf_event_dir = Some(dir.into());
        self
    }

    /// The directory of the tracefs. The default is [`Tracefs::find`], else [`Tracefs::detached`].
    pub fn tracing_dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.tracing_dir = Some(dir.into());
        self
    }

    /// Options of all events of the kernel that are registered, before those of the
    /// [registration](super::Registration::options).
    pub fn default_options(
        mut self,
        options: impl Fn(EventBuilder) -> EventBuilder + Send + Sync + 'static,
    ) -> Self {
        self.default_options = Some(Box::new(options));
        self
    }

    /// Adds flags of `perf_event_open(2)`: [`RingSetBuilder::flags`].
    pub fn flags(self, flags: u64) -> Self {
        self.set(|set| set.flags(flags))
    }

    /// Data pages of the ring of each CPU: [`RingSetBuilder::pages`].
    pub fn pages(self, pages: usize) -> Self {
        self.set(|set| set.pages(pages))
    }

    /// The clock of all samples and external events: [`RingSetBuilder::clock`].
    pub fn clock(mut self, clock: ClockDomain) -> Self {
        self.clock = clock;
        self.set(|set| set.clock(clock))
    }

    /// How long samples wait for older ones: [`RingSetBuilder::slack`].
    pub fn slack(self, slack: Duration) -> Self {
        self.set(|set| set.slack(slack))
    }

    /// Bytes in a ring that wake the reader before its next round:
    /// [`RingSetBuilder::wakeup_watermark`].
    pub fn wakeup_watermark(self, bytes: u32) -> Self {
        self.set(|set| set.wakeup_watermark(bytes))
    }

    /// Time between rounds while the rings are not full. The default is 10 ms.
    pub const fn poll_interval(mut self, interval: Duration) -> Self {
        self.runner.poll_interval = interval;
        self
    }

    /// Maximum number of samples in a batch. The default is 256: a batch stays in the first-level cache.
    pub const fn batch(mut self, samples: usize) -> Self {
        self.runner.batch = samples;
        self
    }

    /// Runs the reading thread with `SCHED_FIFO`: [`RealtimeThread`](crate::RealtimeThread). If that
    /// is refused, running is an error.
    pub const fn realtime(mut self, priority: u8) -> Self {
        self.runner.realtime = Some(priority);
        self
    }

    /// Also records forks, exits, names, mappings and so on by an event such as
    /// [`Software::Dummy`](crate::Software::Dummy), in rings of their own of `pages` pages. They are
    /// passed to the decoder of [`records`](Self::records). It is enabled while the monitor runs.
    pub fn sideband(self, event: &EventBuilder, pages: usize) -> Self {
        self.set(|set| set.sideband_ring(&event.clone().disabled(false), pages))
    }

    /// The decoder of records that are not samples: losses, throttling, sideband. Without it they
    /// are counted ([`MonitorStats::set`](super::MonitorStats::set)) and not delivered.
    pub fn records(
        mut self,
        decoder: impl FnMut(&RecordView<'_>) -> Option<T> + Send + 'static,
    ) -> Self {
        self.records = Some(Box::new(decoder));
        self
    }

    /// Opens the rings.
    ///
    /// # Errors
    ///
    /// Those of [`RingSetBuilder::open`]; [`Error::File`] if a process or a cgroup does not exist.
    pub fn build(self) -> Result<EventMonitor<T>> {
        let Self { mut set, cgroups, processes, perf_event_dir, .. } = self;
        for pid in processes {
            set = set.process(pid)?;
        }
        if !cgroups.is_empty() {
            let root = perf_event_dir.or_else(cgroup_root).ok_or(Error::NoCgroups)?;
            for path in cgroups {
                // An absolute path would replace the root.
                let path = path.strip_prefix("/").unwrap_or(&path);
                set = set.cgroup_at(root.join(path))?;
            }
        }
        let (mut control, reader) = set.open_parts()?;
        control.pause()?;
        let alarm = Alarm::new(&control)?;
        let waker = Waker::new(Arc::clone(control.epoll()));
        let runner = Runner::new(reader, waker, self.runner, self.records);
        let registry = Registry {
            control,
            events: BTreeMap::new(),
            groups: BTreeMap::new(),
            next_id: 0,
            tracefs: self.tracing_dir.map(Tracefs::at),
            unregistered: TallySum::default(),
            waiting: Vec::new(),
        };
        let inner = Inner {
            registry: Mutex::new(registry),
            inbox: Inbox::default(),
            runner: Mutex::new(Some(runner)),
            runs: Runs::new(alarm),
            stats: Mutex::new(SetStats::default()),
            default_options: self.default_options,
            clock: self.clock,
        };
        Ok(EventMonitor { inner: Arc::new(inner) })
    }
}

/// Where the hierarchy of cgroups for perf events is mounted.
fn cgroup_root() -> Option<PathBuf> {
    root_in(&read_bytes("/proc/self/mountinfo").ok()?)
}

/// The mount of the whole hierarchy, if there is one: paths of cgroups are from there.
fn root_in(mountinfo: &[u8]) -> Option<PathBuf> {
    let mounts = |version| {
        let mounts = Mount::all(mountinfo).filter(move |m| m.is_hierarchy(version, "perf_event"));
        mounts.min_by_key(|mount| mount.root != Path::new("/"))
    };
    let mount = mounts(CgroupVersion::One).or_else(|| mounts(CgroupVersion::Two));
    mount.map(|mount| mount.point)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hierarchy_of_perf_events_is_found() {
        let v2 = "30 25 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";
        let root_in = |mountinfo: &str| root_in(mountinfo.as_bytes());
        assert_eq!(root_in(v2), Some(PathBuf::from("/sys/fs/cgroup")));
        // A part of it is mounted before, at a path with a space.
        let part = "29 25 0:26 /pod /mnt/a\\040pod rw - cgroup2 none rw\n";
        assert_eq!(root_in(&format!("{part}{v2}")), Some(PathBuf::from("/sys/fs/cgroup")));
        assert_eq!(root_in(part), Some(PathBuf::from("/mnt/a pod")), "as in a container");
        let v1 = "31 25 0:27 / /sys/fs/cgroup/perf rw - cgroup none rw,perf_event\n\
            32 25 0:28 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n";
        assert_eq!(root_in(&format!("{v2}{v1}")), Some(PathBuf::from("/sys/fs/cgroup/perf")));
        assert_eq!(root_in("garbage\n1 - cgroup2\n"), None);
    }
}
