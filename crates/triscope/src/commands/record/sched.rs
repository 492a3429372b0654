//! The kernel's scheduler events on the timeline.

use super::execs::Execs;
use super::lane::Lane;
use super::raw::{Existing, RawRecords};
use super::samples::{Samples, Sampling, Wanted};
use super::tasks::{Comm, Counts, Tasks, comm, text};
use crate::failure::Failure;
use crate::io::output_file::OutputFile;
use crate::sources::kernel;
use crate::sources::kernel::sampling::{Scope, THIS_THREAD, max_depth};
use crate::sources::processes::ProcessWriter;
use crate::sources::symbols;
use crate::timeline::{Timeline, now};
use perf_monitor::{
    Event, EventBuilder, FieldFormat, ProcessInfo, Record, RingSet, SampleFlags, SetEvent,
    SetRecord, Software, Tracefs,
};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::path::Path;
use trace_export::{
    Category, CpuIntervals, Loss, SchedSwitch, SchedWaking, Sink, Task, Timestamp, TrackEvent,
    TrackId,
};

/// Fewer pages than this are reported: 4 MiB hold more than a million events per second between two
/// rounds.
const FEW_PAGES: usize = 1024;

/// Pages of a CPU's sideband buffer, for forks, exits and names of threads: if switches are lost,
/// their threads are still known.
const SIDE_PAGES: usize = 16;

/// Pages if only the command is recorded, for a user who can lock little memory.
const OWN_PAGES: usize = 64;

/// An error of the kernel, or of the output. Small, as each event returns one or none.
pub(super) enum Error {
    Perf(Box<perf_monitor::Error>),
    Output(io::Error),
    /// Of the raw records that are kept.
    Raw(Box<perf_data::Error>),
    /// Of another file that is kept.
    Kept(Box<Failure>),
}

impl Error {
    pub(super) fn into_failure(self, output: &OutputFile) -> Failure {
        match self {
            Self::Perf(error) => kernel::failure(*error),
            Self::Output(error) => output.failure(&error),
            Self::Raw(error) => Failure::about("the kept records", *error),
            Self::Kept(failure) => *failure,
        }
    }
}

fn kept(processes: &ProcessWriter, error: &io::Error) -> Error {
    Error::Kept(Box::new(Failure::about(processes.path().display(), error)))
}

impl From<perf_monitor::Error> for Error {
    fn from(error: perf_monitor::Error) -> Self {
        Self::Perf(Box::new(error))
    }
}

impl From<perf_data::Error> for Error {
    fn from(error: perf_data::Error) -> Self {
        Self::Raw(Box::new(error))
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

/// Statistics of the recording.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Stats {
    /// Number of drawn switches.
    pub(super) switches: u64,
    /// Number of drawn wake-ups.
    pub(super) wakings: u64,
    pub(super) lost: u64,
    pub(super) late: u64,
    /// Switches that the kernel neither reported nor counted as lost.
    pub(super) gaps: u64,
    /// CPU time in which it is therefore unknown which thread ran, in nanoseconds, at most.
    pub(super) unknown: u64,
    /// Records of an unknown layout.
    pub(super) undecodable: u64,
    /// Pages of the buffer of a CPU.
    pub(super) pages: usize,
}

/// Rounds between looks for CPUs that came online.
const ROUNDS_PER_CPU_CHECK: u32 = 64;

/// An event to draw.
#[derive(Clone, Copy)]
pub(super) enum Item<'a> {
    Switch {
        prev: Task<'a>,
        prev_state: i64,
        next: Task<'a>,
    },
    Waking {
        task: Task<'a>,
        target_cpu: u32,
    },
    Comm {
        tid: u32,
        comm: Comm,
        by_exec: bool,
    },
    Fork {
        parent: u32,
        parent_thread: u32,
        pid: u32,
        tid: u32,
    },
    Exit {
        tid: u32,
    },
    /// A thread of the command gets the CPU, or leaves it.
    In {
        tid: u32,
    },
    Out {
        tid: u32,
        preempted: bool,
    },
    Lost {
        count: u64,
    },
}

/// A nice value of 0.
const DEFAULT_PRIO: i32 = 120;

/// A thread outside the command, or the idle thread.
const UNKNOWN: Task<'static> = Task::new(-1, b"", DEFAULT_PRIO);

/// The tracepoints.
pub(super) const TRACEPOINTS: [&str; 3] = ["sched_switch", "sched_waking", "sched_wakeup_new"];

/// The fields of the tracepoints, and the layout of their samples.
struct Fields {
    prev: [FieldFormat; 3],
    prev_state: FieldFormat,
    next: [FieldFormat; 3],
    waking: Woken,
    new: Woken,
}

/// The fields of a wake-up tracepoint.
struct Woken {
    who: [FieldFormat; 3],
    target_cpu: FieldFormat,
}

impl Fields {
    fn find(tracefs: &Tracefs) -> perf_monitor::Result<Self> {
        let [switch, waking, new] = TRACEPOINTS.map(|name| tracefs.format("sched", name));
        let switch = switch?;
        let get = |format: &perf_monitor::TracepointFormat, name: &str| {
            format.field(name).cloned().ok_or_else(|| perf_monitor::Error::UnknownEvent {
                name: format!("{}.{name}", format.name()),
                near: Vec::new(),
            })
        };
        let who = |format, prefix: &str| -> perf_monitor::Result<_> {
            Ok([
                get(format, &format!("{prefix}pid"))?,
                get(format, &format!("{prefix}prio"))?,
                get(format, &format!("{prefix}comm"))?,
            ])
        };
        let woken = |format| -> perf_monitor::Result<_> {
            Ok(Woken { who: who(format, "")?, target_cpu: get(format, "target_cpu")? })
        };
        Ok(Self {
            prev: who(&switch, "prev_")?,
            prev_state: get(&switch, "prev_state")?,
            next: who(&switch, "next_")?,
            waking: woken(&waking?)?,
            new: woken(&new?)?,
        })
    }
}

#[inline]
fn who<'a>(fields: &[FieldFormat; 3], raw: &'a [u8]) -> Option<Task<'a>> {
    let [tid, prio, name] = fields;
    Some(Task::new(tid.i64(raw)? as i32, name.str(raw)?, prio.i64(raw)? as i32))
}

/// The tracepoints that are recorded.
pub(super) struct Tracepoints {
    switch: SetEvent,
    waking: SetEvent,
    new: SetEvent,
    fields: Fields,
}

/// Records switches, wake-ups, forks, exits and names on all CPUs.
pub(super) struct Scheduler {
    set: RingSet,
    /// `None` if only the command is recorded.
    tracepoints: Option<Tracepoints>,
    drawing: Drawing,
    rounds: u32,
    /// The raw records, if they are kept.
    raw: Option<RawRecords>,
    /// The events with stacks.
    sampling: Option<Sampling>,
    samples: Option<Samples>,
}

/// A recording that has ended.
pub(super) struct Finished {
    pub(super) stats: Stats,
    pub(super) intervals: Option<CpuIntervals>,
    pub(super) samples: Option<Sampled>,
    tasks: Tasks,
    is_of_all: bool,
}

/// The samples of a recording.
pub(super) struct Sampled {
    pub(super) file: File,
    /// The number of samples of the CPU, and the name of their event.
    pub(super) of_cpu: Option<(u64, String)>,
}

/// What is drawn of the events.
struct Drawing {
    lanes: BTreeMap<u32, Lane>,
    /// Whether more than the command is recorded.
    is_of_all: bool,
    tasks: Tasks,
    /// The intervals in which threads had a CPU, if they are kept.
    intervals: Option<CpuIntervals>,
    /// What is read of all processes, if it is kept.
    processes: Option<ProcessWriter>,
    /// The programs that start.
    execs: Option<Execs>,
    stats: Stats,
}

/// Sample fields of all events. The CPU is for raw records that are kept: it is known from the ring.
const COMMON: SampleFlags = SampleFlags::TID.union(SampleFlags::CPU);

/// The sideband event: forks, exits and names of threads; with stacks also mappings.
fn sideband(wanted: Wanted) -> EventBuilder {
    let dummy = Event::software(Software::Dummy).builder().sample(COMMON);
    match wanted.is_any() {
        true => symbols::live::sideband(&dummy),
        false => dummy.comm(true).comm_exec(true).task(true),
    }
}

impl Scheduler {
    /// Opens the events, with buffers of `pages` pages, or of the default size.
    pub(super) fn open(
        pages: Option<usize>,
        all_tasks: bool,
        wanted: Wanted,
    ) -> perf_monitor::Result<Self> {
        let tracefs = kernel::tracefs()?;
        // By default, `perf_monitor::default_ring_pages`.
        let rings = pages.map_or(RingSet::builder(), |pages| RingSet::builder().pages(pages));
        let mut set = rings.sideband_ring(&sideband(wanted), SIDE_PAGES).open()?;
        if pages.is_none() {
            kernel::report_small_rings(&set, FEW_PAGES);
        }
        let mut add = |name| {
            let event = tracefs.event("sched", name)?;
            let builder = event.builder().sample_period(1);
            set.add(&match wanted.off_cpu {
                true => builder
                    .sample(COMMON | SampleFlags::RAW | SampleFlags::CALLCHAIN)
                    .sample_max_stack(max_depth()),
                false => builder.sample(COMMON | SampleFlags::RAW),
            })
        };
        let [switch, waking, new] = TRACEPOINTS.map(&mut add);
        let (switch, waking, new) = (switch?, waking?, new?);
        let fields = Fields::find(&tracefs)?;
        let tracepoints = Tracepoints { switch, waking, new, fields };
        let sampling = Sampling::open(wanted, &Scope::default(), &mut set)?;
        Ok(Self::of(set, Some(tracepoints), Tasks::new(all_tasks), sampling))
    }

    /// Opens the events that need no privilege while `kernel.perf_event_paranoid` is 2 or less:
    /// context switches, forks, exits and names of the command's threads. This thread must start
    /// the command.
    pub(super) fn open_own(pages: Option<usize>, wanted: Wanted) -> perf_monitor::Result<Self> {
        let side = sideband(wanted)
            .exclude_kernel(true)
            .exclude_hv(true)
            .context_switch(true)
            .inherit(true)
            .enable_on_exec(true);
        let rings = kernel::rings(pages, OWN_PAGES).thread(THIS_THREAD);
        let mut set = rings.sideband(&side).open()?;
        if pages.is_none() {
            kernel::report_small_rings(&set, OWN_PAGES);
        }
        let tids = vec![THIS_THREAD];
        let scope = Scope { tids, inherit: true, on_exec: true, ..Scope::default() };
        let sampling = Sampling::open(wanted, &scope, &mut set)?;
        Ok(Self::of(set, None, Tasks::new(false), sampling))
    }

    fn of(
        set: RingSet,
        tracepoints: Option<Tracepoints>,
        tasks: Tasks,
        sampling: Option<Sampling>,
    ) -> Self {
        let drawing = Drawing {
            lanes: set.cpus().map(|cpu| (cpu, Lane::default())).collect(),
            is_of_all: tracepoints.is_some(),
            tasks,
            intervals: None,
            processes: None,
            execs: None,
            stats: Stats::default(),
        };
        Self { set, tracepoints, drawing, rounds: 0, raw: None, sampling, samples: None }
    }

    /// Statistics of the recording so far.
    pub(super) fn stats(&self) -> Stats {
        let of_set = self.set.stats();
        let stats = self.drawing.stats;
        let undecodable = stats.undecodable + of_set.undecodable + of_set.rings.unknown_ids;
        Stats { late: of_set.late, undecodable, pages: self.set.pages(), ..stats }
    }

    pub(super) fn enable(&mut self) -> perf_monitor::Result<()> {
        // If only the command is recorded, its events begin with its start.
        if self.drawing.is_of_all {
            // Without it, programs are read when their records are.
            self.drawing.execs = Execs::start().ok();
            self.set.enable()?;
            self.drawing.tasks.scan();
        }
        Ok(())
    }

    /// Sets the process of the command, which is recorded with its children.
    pub(super) fn follow(&mut self, pid: u32) {
        self.drawing.tasks.follow(pid);
    }

    /// Sets the running process to record, with its future children.
    pub(super) fn follow_running(&mut self, pid: u32) {
        self.drawing.tasks.follow_running(pid);
    }

    /// Starts the file of the samples, if there are any: of a process that runs already, or of a
    /// command. Call this after the events were enabled, and before the command is started.
    pub(super) fn start_samples(&mut self, running: Option<u32>) -> Result<(), Error> {
        let Some(sampling) = &self.sampling else { return Ok(()) };
        let existing = match running {
            _ if self.drawing.tasks.are_all() => Existing::All,
            Some(pid) => Existing::Process(pid),
            None => Existing::None,
        };
        let tracefs = self.tracepoints.as_ref().map(|_| kernel::tracefs()).transpose()?;
        let of_scheduler = self.tracepoints.as_ref().map(Tracepoints::events).unwrap_or_default();
        let samples = sampling.start(tracefs.as_ref(), &self.set, of_scheduler, existing)?;
        self.samples = Some(samples);
        Ok(())
    }

    /// The processes of the command that run.
    pub(super) fn processes(&self) -> BTreeSet<u32> {
        self.drawing.tasks.processes()
    }

    /// Writes the raw records to a `perf.data` file too. Without tracepoints there is nothing that
    /// could be analysed, and this returns `false`.
    pub(super) fn keep_raw(&mut self, path: &Path) -> Result<bool, Error> {
        let (Some(tracepoints), Some(side)) = (&self.tracepoints, self.set.sideband()) else {
            return Ok(false);
        };
        let mut events = vec![("dummy:u".to_owned(), side)];
        events.extend(tracepoints.events());
        events.extend(self.sampling.iter().flat_map(|sampling| sampling.sampled.clone()));
        let file = File::create(path).map_err(|source| perf_data::Error::Io {
            operation: "create the recording",
            offset: 0,
            source,
        })?;
        let (tracefs, has_stacks) = (kernel::tracefs()?, self.sampling.is_some());
        let existing = Existing::All;
        let raw =
            RawRecords::create(file, Some(&tracefs), &self.set, &events, existing, has_stacks)?;
        self.raw = Some(raw);
        Ok(true)
    }

    /// Whether the raw records are kept.
    pub(super) const fn is_kept(&self) -> bool {
        self.raw.is_some()
    }

    /// Writes what `/proc` shows of processes to a file: now, and when they execute a program. Call
    /// this after the events were enabled, so that none is missed in between.
    pub(super) fn keep_processes(&mut self, mut file: ProcessWriter) -> Result<(), Error> {
        for process in perf_monitor::processes().into_iter().filter_map(ProcessInfo::read) {
            file.write(None, &process).map_err(|error| kept(&file, &error))?;
        }
        self.drawing.processes = Some(file);
        Ok(())
    }

    /// Keeps the intervals in which threads had a CPU, for the samples of their runtimes.
    pub(super) fn keep_intervals(&mut self) {
        self.drawing.intervals = Some(CpuIntervals::new());
    }

    /// Reads the available events, and draws those that no earlier event can precede.
    pub(super) fn round(&mut self, sink: &mut Timeline) -> Result<(), Error> {
        let Self { set, tracepoints, drawing, rounds, raw, samples, .. } = self;
        *rounds += 1;
        // The events of a command can only be opened by the thread that starts it.
        if drawing.is_of_all && *rounds % ROUNDS_PER_CPU_CHECK == 0 {
            for cpu in set.check_cpus()?.opened {
                drawing.lanes.insert(cpu, Lane::default());
            }
        }
        set.round(|record| {
            if let Some(raw) = raw {
                raw.record(record.raw)?;
            }
            if let Some(samples) = samples {
                samples.push(&record, tracepoints.as_ref(), &drawing.tasks)?;
            }
            drawing.record(&record, tracepoints.as_ref(), sink)
        })?;
        if let Some(raw) = raw {
            raw.finish_round()?;
        }
        if let Some(samples) = samples {
            samples.finish_round()?;
        }
        Ok(())
    }

    /// Reads and draws the rest, except names and the [ends](ThreadExits) of threads.
    pub(super) fn finish(mut self, sink: &mut Timeline) -> Result<Finished, Error> {
        let Self { set, tracepoints, drawing, raw, samples, .. } = &mut self;
        set.disable()?;
        let end = now()?;
        set.drain(|record| {
            if let Some(raw) = raw {
                raw.record(record.raw)?;
            }
            if let Some(samples) = samples {
                samples.push(&record, tracepoints.as_ref(), &drawing.tasks)?;
            }
            drawing.record(&record, tracepoints.as_ref(), sink)
        })?;
        if let Some(raw) = raw.take() {
            raw.finish()?;
        }
        set.count_losses()?;
        // Losses that no record reported.
        for (cpu, ring) in set.rings() {
            let lost = ring.lost_at_end.unwrap_or(0); // unknown before Linux 6.0
            if lost > 0 {
                drawing.lost(end, cpu, lost, sink)?;
            }
        }
        if let Some(processes) = &mut drawing.processes {
            processes.flush().map_err(|error| kept(processes, &error))?;
        }
        let stats = self.stats();
        let samples = match self.samples {
            Some(samples) => {
                let (file, count) = samples.finish()?;
                let sampled = self.sampling.and_then(|sampling| sampling.sampled);
                Some(Sampled { file, of_cpu: sampled.map(|(name, _)| (count, name)) })
            }
            None => None,
        };
        let Drawing { tasks, is_of_all, intervals, .. } = self.drawing;
        Ok(Finished { stats, intervals, samples, tasks, is_of_all })
    }
}

impl Finished {
    /// Names the processes and threads, after everything else that is drawn of them but their ends.
    /// Returns their numbers.
    pub(super) fn declare(self, sink: &mut Timeline) -> io::Result<(Counts, ThreadExits)> {
        let (counts, exits) = self.tasks.declare(self.is_of_all, sink)?;
        Ok((counts, ThreadExits(exits)))
    }
}

impl Drawing {
    // Inlined, so that the record is never in memory: to load it in larger parts than it was stored
    // in takes more time than all that is done here.
    #[inline(always)]
    fn record(
        &mut self,
        record: &SetRecord<'_>,
        tracepoints: Option<&Tracepoints>,
        sink: &mut Timeline,
    ) -> Result<(), Error> {
        let item = match tracepoints.zip(record.layout.raw_data(record.raw)) {
            Some((tracepoints, data)) => {
                return self.sample(record.time, record.cpu, tracepoints, record.event, data, sink);
            }
            None => {
                sideband_item(record.layout.decode(record.raw).map_err(perf_monitor::Error::from)?)
            }
        };
        match item {
            Some(item) => self.draw(record.time, record.cpu, item, sink),
            None => Ok(()),
        }
    }

    /// Draws an event of a tracepoint.
    fn sample(
        &mut self,
        at: Timestamp,
        cpu: u32,
        tracepoints: &Tracepoints,
        event: SetEvent,
        data: &[u8],
        sink: &mut Timeline,
    ) -> Result<(), Error> {
        let Some(item) = tracepoints.item(event, data) else {
            self.stats.undecodable += 1;
            return Ok(());
        };
        self.draw(at, cpu, item, sink)
    }

    #[inline]
    fn draw(
        &mut self,
        at: Timestamp,
        cpu: u32,
        item: Item<'_>,
        sink: &mut Timeline,
    ) -> Result<(), Error> {
        match item {
            Item::Switch { prev, prev_state, next } => {
                self.switch(at, cpu, &prev, prev_state, &next, sink)?;
            }
            Item::Waking { task, target_cpu } => {
                if self.tasks.is_named(task.tid) {
                    self.stats.wakings += 1;
                    sink.sched_waking(at, &SchedWaking::new(cpu, task, target_cpu))?;
                }
            }
            Item::Fork { parent, parent_thread, pid, tid } => {
                self.tasks.fork(at, (parent, parent_thread), (pid, tid));
            }
            Item::Comm { tid, comm, by_exec } => {
                self.tasks.rename(tid, comm);
                if by_exec {
                    self.exec(at, tid)?;
                }
                // A thread that renames itself is running: no switch reports the command's
                // start.
                if !self.is_of_all && self.drawn_on(cpu).is_none() {
                    self.gets_cpu(at, cpu, tid, sink)?;
                }
            }
            Item::In { tid } => self.gets_cpu(at, cpu, tid, sink)?,
            Item::Out { tid, preempted } => {
                // TASK_RUNNING, EXIT_DEAD, TASK_INTERRUPTIBLE: the reason for the sleep is
                // unknown.
                let ended = self.tasks.has_ended(tid);
                let state = if preempted {
                    0
                } else if ended {
                    16
                } else {
                    1
                };
                let comm = self.tasks.comm(tid);
                let who = Task::new(tid as i32, text(&comm), DEFAULT_PRIO);
                self.switch(at, cpu, &who, state, &UNKNOWN, sink)?;
            }
            Item::Exit { tid } => self.tasks.exit(tid, at),
            Item::Lost { count } => self.lost(at, cpu, count, sink)?,
        }
        Ok(())
    }

    /// A process executes a program. Its calling thread is the main thread now.
    fn exec(&mut self, at: Timestamp, pid: u32) -> Result<(), Error> {
        let is_drawn = i32::try_from(pid).is_ok_and(|pid| self.tasks.is_named(pid));
        if !is_drawn && self.processes.is_none() {
            return Ok(());
        }
        let read = self.execs.as_mut().and_then(|execs| execs.take(pid, at));
        let program = read.or_else(|| ProcessInfo::read(pid));
        if let (Some(processes), Some(program)) = (&mut self.processes, &program) {
            processes.write(Some(at), program).map_err(|error| kept(processes, &error))?;
        }
        if is_drawn {
            self.tasks.exec(pid, program);
        }
        Ok(())
    }

    fn drawn_on(&self, cpu: u32) -> Option<i32> {
        self.lanes.get(&cpu).and_then(|lane| lane.drawn)
    }

    fn gets_cpu(
        &mut self,
        at: Timestamp,
        cpu: u32,
        tid: u32,
        sink: &mut Timeline,
    ) -> io::Result<()> {
        let comm = self.tasks.comm(tid);
        let who = Task::new(tid as i32, text(&comm), DEFAULT_PRIO);
        self.switch(at, cpu, &UNKNOWN, 1, &who, sink)
    }

    fn switch(
        &mut self,
        at: Timestamp,
        cpu: u32,
        prev: &Task<'_>,
        prev_state: i64,
        next: &Task<'_>,
        sink: &mut Timeline,
    ) -> io::Result<()> {
        let before = self.tasks.drawn(*prev, cpu);
        let after = self.tasks.drawn(*next, cpu);
        let Some(lane) = self.lanes.get_mut(&cpu) else { return Ok(()) };
        let step = lane.switch(at, (prev.tid, before.tid), (next.tid, after.tid));
        if let Some(unknown) = step.gap.filter(|_| self.is_of_all) {
            self.stats.gaps += 1;
            self.stats.unknown += unknown;
            self.gap(at, cpu, sink)?;
        }
        // Draw other threads as asleep, not as waiting for the CPU, while they are off it.
        const ASLEEP: i64 = 1;
        if let Some(tid) = step.left_unseen {
            // The time of the switch to this thread is unknown: now is the latest possible one.
            let left = Task::new(tid, b"", DEFAULT_PRIO);
            let switch = SchedSwitch::new(cpu, left, ASLEEP, before);
            sink.sched_switch(at, &switch)?;
            self.stats.switches += 1;
        }
        if step.is_nothing {
            return Ok(());
        }
        let prev_state = if before.tid == prev.tid { prev_state } else { ASLEEP };
        self.stats.switches += 1;
        let switch = SchedSwitch::new(cpu, before, prev_state, after);
        if let Some(intervals) = &mut self.intervals {
            intervals.switch(at, &switch);
        }
        sink.sched_switch(at, &switch)
    }

    /// Marks switches of which the kernel delivered no record.
    fn gap(&mut self, at: Timestamp, cpu: u32, sink: &mut Timeline) -> io::Result<()> {
        if let Some(intervals) = &mut self.intervals {
            intervals.lost(at, cpu);
        }
        let what = format!("context switches of CPU {cpu}");
        let why =
            b"the kernel delivered no record of them: another thread leaves the CPU than came";
        sink.lost(at, None, &Loss::new(what.as_bytes()).why(why))
    }

    fn lost(&mut self, at: Timestamp, cpu: u32, count: u64, sink: &mut Timeline) -> io::Result<()> {
        self.stats.lost += count;
        if let Some(lane) = self.lanes.get_mut(&cpu) {
            lane.lost();
        }
        if let Some(intervals) = &mut self.intervals {
            intervals.lost(at, cpu);
        }
        let what = format!("scheduler events of CPU {cpu}");
        let why =
            b"the buffer of the CPU was full, before this moment: use --realtime or more --pages";
        let loss = Loss::new(what.as_bytes()).count(count).why(why);
        sink.lost(at, None, &loss)
    }
}

/// The ends of the command's threads. Their tracks can also belong to a runtime, so these are drawn
/// after all its events.
pub(super) struct ThreadExits(Vec<(Timestamp, TrackId)>);

impl ThreadExits {
    pub(super) fn draw(self, sink: &mut Timeline) -> io::Result<()> {
        for (at, track) in self.0 {
            let name = sink.text(b"exit");
            sink.instant(at, track, &TrackEvent::new(name).category(Category::Process))?;
        }
        Ok(())
    }
}

impl Tracepoints {
    /// Their names.
    fn events(&self) -> Vec<(String, SetEvent)> {
        let events = [self.switch, self.waking, self.new];
        let named = TRACEPOINTS.iter().zip(events);
        named.map(|(name, event)| (format!("sched:{name}"), event)).collect()
    }

    #[inline]
    pub(super) fn item<'a>(&self, event: SetEvent, data: &'a [u8]) -> Option<Item<'a>> {
        let fields = &self.fields;
        if event == self.switch {
            Some(Item::Switch {
                prev: who(&fields.prev, data)?,
                prev_state: fields.prev_state.i64(data)?,
                next: who(&fields.next, data)?,
            })
        } else if event == self.waking {
            fields.waking.item(data)
        } else if event == self.new {
            fields.new.item(data)
        } else {
            None
        }
    }
}

impl Woken {
    #[inline]
    fn item<'a>(&self, data: &'a [u8]) -> Option<Item<'a>> {
        let target_cpu = self.target_cpu.u64(data)? as u32;
        Some(Item::Waking { task: who(&self.who, data)?, target_cpu })
    }
}

fn sideband_item(record: Record<'_>) -> Option<Item<'static>> {
    Some(match record {
        Record::Comm(c) => Item::Comm { tid: c.tid, comm: comm(c.comm), by_exec: c.by_exec },
        Record::Switch(s) => {
            let tid = s.sample_id.tid?;
            if s.out { Item::Out { tid, preempted: s.preempted } } else { Item::In { tid } }
        }
        Record::Fork(f) => {
            Item::Fork { parent: f.ppid, parent_thread: f.ptid, pid: f.pid, tid: f.tid }
        }
        Record::Exit(e) => Item::Exit { tid: e.tid },
        Record::Lost(l) | Record::LostSamples(l) => Item::Lost { count: l.lost },
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timeline::Timeline;
    use std::io::{Read, Seek, Write};
    use trace_export::{ClockDomain, PerfettoSink, PerfettoStats};

    fn thread(tid: i32) -> Task<'static> {
        Task::new(tid, b"thread", DEFAULT_PRIO)
    }

    fn switch(prev: i32, next: i32) -> Item<'static> {
        Item::Switch { prev: thread(prev), prev_state: 1, next: thread(next) }
    }

    /// Draws items of CPU 0, each with its time. Returns the file and the counts of both sides.
    fn drawn(items: &[(i64, Item<'_>)]) -> (String, PerfettoStats, Stats) {
        let mut file = tempfile::tempfile().unwrap();
        let writer: Box<dyn Write + Send> = Box::new(file.try_clone().unwrap());
        let mut sink: Timeline = PerfettoSink::new(writer, ClockDomain::Boottime);
        let mut drawing = Drawing {
            lanes: BTreeMap::from([(0, Lane::default())]),
            is_of_all: true,
            tasks: Tasks::new(true),
            intervals: Some(CpuIntervals::new()),
            processes: None,
            execs: None,
            stats: Stats::default(),
        };
        for (at, item) in items {
            let drawn = drawing.draw(Timestamp::from_nanos(*at), 0, *item, &mut sink);
            assert!(drawn.is_ok());
        }
        sink.finish().unwrap();
        let mut trace = Vec::new();
        file.rewind().unwrap();
        file.read_to_end(&mut trace).unwrap();
        (String::from_utf8_lossy(&trace).into_owned(), sink.stats(), drawing.stats)
    }

    #[test]
    fn switches_that_the_kernel_did_not_report_are_marked_and_repaired() {
        let complete = [(10, switch(0, 5)), (20, switch(5, 6)), (30, switch(6, 7))];
        let (trace, written, stats) = drawn(&complete);
        assert_eq!((stats.gaps, stats.switches, written.sched, written.losses), (0, 3, 3, 0));
        assert!(!trace.contains("lost:"));
        // 6 left the CPU for 0 without a record: it is drawn as leaving when 0 does.
        let gap = [(10, switch(0, 5)), (20, switch(5, 6)), (30, switch(0, 7))];
        let (trace, written, stats) = drawn(&gap);
        assert_eq!((stats.gaps, stats.unknown, stats.switches, stats.lost), (1, 10, 4, 0));
        assert_eq!((written.sched, written.losses), (4, 1));
        assert_eq!(trace.matches("lost: context switches of CPU 0").count(), 1);
        assert!(trace.contains("the kernel delivered no record of them"));
    }

    #[test]
    fn switches_after_a_counted_loss_are_no_gap() {
        let (trace, written, stats) = drawn(&[
            (10, switch(0, 5)),
            (20, Item::Lost { count: 3 }),
            (30, switch(8, 9)),
            (40, switch(9, 0)),
        ]);
        assert_eq!((stats.gaps, stats.unknown, stats.lost, written.losses), (0, 0, 3, 1));
        assert_eq!(trace.matches("lost: scheduler events of CPU 0").count(), 1);
        assert!(!trace.contains("lost: context switches"));
    }
}
