//! The kernel's scheduler events on the timeline.

use super::lane::Lane;
use super::tasks::{Comm, Counts, Tasks, comm, text};
use crate::failure::Failure;
use crate::io::output_file::OutputFile;
use crate::sources::kernel;
use crate::sources::kernel::ring::{Ring, with_pages};
use crate::timeline::{Timeline, now};
use perf_monitor::{
    Event, EventBuilder, FieldFormat, Record, RecordLayout, SampleFlags, Software, Target, Tracefs,
    online_cpus,
};
use std::io;
use trace_common::Merge;
use trace_export::{
    ClockDomain, CpuIntervals, Loss, SchedSwitch, SchedWaking, Sink, Task, Timestamp, TrackEvent,
    TrackId,
};

/// How long events wait for earlier ones of other CPUs, in nanoseconds.
const SLACK: i64 = 5_000_000;

/// Default number of pages of a CPU's buffer: 4 MiB hold more than a million events per second
/// between two rounds.
const PAGES: usize = 1024;

/// Pages of a CPU's sideband buffer, for forks, exits and names of threads: if switches are lost,
/// their threads are still known.
const SIDE_PAGES: usize = 16;

/// Pages if only the command is recorded, for a user who can lock little memory.
const OWN_PAGES: usize = 64;

/// An error of the kernel, or of the output.
pub(super) enum Error {
    Perf(perf_monitor::Error),
    Output(io::Error),
}

impl Error {
    pub(super) fn into_failure(self, output: &OutputFile) -> Failure {
        match self {
            Self::Perf(error) => kernel::failure(error),
            Self::Output(error) => output.failure(&error),
        }
    }
}

impl From<perf_monitor::Error> for Error {
    fn from(error: perf_monitor::Error) -> Self {
        Self::Perf(error)
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
    /// Threads and processes of the command.
    pub(super) command: Counts,
    pub(super) lost: u64,
    pub(super) late: u64,
    /// Switches that the kernel neither reported nor counted as lost.
    pub(super) gaps: u64,
    /// Records of an unknown layout.
    pub(super) undecodable: u64,
}

/// An event that waits to be drawn; small and without allocations.
#[derive(Clone, Copy)]
enum Item {
    Switch {
        cpu: u32,
        prev: TaskInfo,
        prev_state: i64,
        next: TaskInfo,
    },
    Waking {
        cpu: u32,
        task: TaskInfo,
        target_cpu: u32,
    },
    Comm {
        cpu: u32,
        tid: u32,
        comm: Comm,
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
        cpu: u32,
        tid: u32,
    },
    Out {
        cpu: u32,
        tid: u32,
        preempted: bool,
    },
    Lost {
        cpu: u32,
        count: u64,
    },
}

#[derive(Clone, Copy)]
struct TaskInfo {
    tid: i32,
    prio: i32,
    comm: Comm,
}

impl TaskInfo {
    fn task(&self) -> Task<'_> {
        Task { tid: self.tid, comm: text(&self.comm), prio: self.prio }
    }
}

/// A nice value of 0.
const DEFAULT_PRIO: i32 = 120;

/// A thread outside the command, or the idle thread.
const UNKNOWN: TaskInfo = TaskInfo { tid: -1, prio: DEFAULT_PRIO, comm: [0; 16] };

/// The tracepoints.
const TRACEPOINTS: [&str; 3] = ["sched_switch", "sched_waking", "sched_wakeup_new"];

/// The fields of the tracepoints, and the layout of their samples.
struct Fields {
    plan: RecordLayout,
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
    fn find(tracefs: &Tracefs, plan: RecordLayout) -> perf_monitor::Result<Self> {
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
            plan,
            prev: who(&switch, "prev_")?,
            prev_state: get(&switch, "prev_state")?,
            next: who(&switch, "next_")?,
            waking: woken(&waking?)?,
            new: woken(&new?)?,
        })
    }
}

fn who(fields: &[FieldFormat; 3], raw: &[u8]) -> Option<TaskInfo> {
    let [tid, prio, name] = fields;
    Some(TaskInfo {
        tid: tid.i64(raw)? as i32,
        prio: prio.i64(raw)? as i32,
        comm: comm(name.str(raw)?),
    })
}

/// The rings of one CPU.
struct Cpu {
    number: u32,
    /// The tracepoints, with their ids.
    events: Option<(Ring, [u64; 3])>,
    /// Sideband: forks, exits and names of threads; without tracepoints also context switches.
    side: Ring,
    lane: Lane,
}

impl Cpu {
    fn rings(&self) -> impl Iterator<Item = &Ring> {
        std::iter::once(&self.side).chain(self.events.as_ref().map(|(ring, _)| ring))
    }
}

/// Records switches, wake-ups, forks, exits and names on all CPUs.
pub(super) struct Scheduler {
    cpus: Vec<Cpu>,
    /// `None` without tracepoints.
    fields: Option<Fields>,
    merge: Merge<Item>,
    /// Start of the last round: all earlier events were read in it.
    watermark: Timestamp,
    tasks: Tasks,
    /// The intervals in which threads had a CPU, if they are kept.
    intervals: Option<CpuIntervals>,
    stats: Stats,
}

/// Sample fields of all events.
const COMMON: SampleFlags =
    SampleFlags::IDENTIFIER.union(SampleFlags::TID).union(SampleFlags::TIME);

/// The sideband event: forks, exits and names of threads.
fn sideband() -> EventBuilder {
    Event::software(Software::Dummy)
        .builder()
        .clock(ClockDomain::Monotonic)
        .sample(COMMON)
        .comm(true)
        .comm_exec(true)
        .task(true)
}

impl Scheduler {
    /// Opens the events, with buffers of `pages` pages, or of the default size.
    pub(super) fn open(pages: Option<usize>, all_tasks: bool) -> perf_monitor::Result<Self> {
        let tracefs = kernel::tracefs()?;
        let side = sideband();
        let [switch, waking, new] = TRACEPOINTS.map(|name| -> perf_monitor::Result<_> {
            Ok(tracefs
                .event("sched", name)?
                .builder()
                .clock(ClockDomain::Monotonic)
                .sample_period(1)
                .sample(COMMON | SampleFlags::RAW)
                .wakeup_watermark(u32::MAX))
        });
        let (switch, waking, new) = (switch?, waking?, new?);
        let fields = Fields::find(&tracefs, RecordLayout::new(switch.attr()))?;
        let open = |number, pages| -> perf_monitor::Result<_> {
            let target = Target::Cpu(number);
            let side = Ring::open(&side, target, SIDE_PAGES)?;
            let mut events = Ring::open(&switch, target, pages)?;
            let ids = [
                events.sampler.counter().id()?,
                events.add(&waking, target)?.id()?,
                events.add(&new, target)?.id()?,
            ];
            Ok(Cpu { number, events: Some((events, ids)), side, lane: Lane::default() })
        };
        let cpus = with_pages(pages, PAGES, |pages| {
            online_cpus().into_iter().map(|number| open(number, pages)).collect()
        })?;
        Ok(Self::of(cpus, Some(fields), Tasks::new(all_tasks)))
    }

    /// Opens the events that need no privilege while `kernel.perf_event_paranoid` is 2 or less:
    /// context switches, forks, exits and names of the command's threads. This thread must start
    /// the command.
    pub(super) fn open_own(pages: Option<usize>) -> perf_monitor::Result<Self> {
        let side = sideband()
            .exclude_kernel(true)
            .exclude_hv(true)
            .context_switch(true)
            .inherit(true)
            .enable_on_exec(true);
        let open = |number, pages| -> perf_monitor::Result<_> {
            let target = Target::ThreadOnCpu { tid: 0, cpu: number };
            let side = Ring::open(&side, target, pages)?;
            Ok(Cpu { number, events: None, side, lane: Lane::default() })
        };
        let cpus = with_pages(pages, OWN_PAGES, |pages| {
            online_cpus().into_iter().map(|number| open(number, pages)).collect()
        })?;
        Ok(Self::of(cpus, None, Tasks::new(false)))
    }

    fn of(cpus: Vec<Cpu>, fields: Option<Fields>, tasks: Tasks) -> Self {
        Self {
            merge: Merge::new(2 * cpus.len()),
            cpus,
            fields,
            watermark: Timestamp::default(),
            tasks,
            intervals: None,
            stats: Stats::default(),
        }
    }

    /// Whether it records more than the command.
    const fn is_of_all(&self) -> bool {
        self.fields.is_some()
    }

    /// Statistics of the recording so far.
    pub(super) const fn stats(&self) -> Stats {
        self.stats
    }

    pub(super) fn enable(&mut self) -> perf_monitor::Result<()> {
        // If only the command is recorded, its events begin with its start.
        if self.is_of_all() {
            self.cpus.iter().flat_map(Cpu::rings).try_for_each(Ring::enable)?;
            self.tasks.scan();
        }
        Ok(())
    }

    /// Sets the process of the command, which is recorded with its children.
    pub(super) fn follow(&mut self, pid: u32) {
        self.tasks.follow(pid);
    }

    /// Sets the running process to record, with its future children.
    pub(super) fn follow_running(&mut self, pid: u32) {
        self.tasks.follow_running(pid);
    }

    /// Keeps the intervals in which threads had a CPU, for the samples of their runtimes.
    pub(super) fn keep_intervals(&mut self) {
        self.intervals = Some(CpuIntervals::new());
    }

    /// Reads the available events, and draws those that no earlier event can precede.
    pub(super) fn round(&mut self, sink: &mut Timeline) -> Result<(), Error> {
        let begin = now();
        self.take()?;
        self.write(self.watermark.saturating_add_nanos(-SLACK), sink)?;
        self.watermark = begin;
        Ok(())
    }

    /// Reads and draws the rest, except the [ends](ThreadExits) of threads.
    pub(super) fn finish(
        mut self,
        sink: &mut Timeline,
    ) -> Result<(Stats, ThreadExits, Option<CpuIntervals>), Error> {
        self.cpus.iter().flat_map(Cpu::rings).try_for_each(Ring::disable)?;
        let end = now();
        self.take()?;
        self.write(Timestamp::MAX, sink)?;
        for number in 0..self.cpus.len() {
            let Some(cpu) = self.cpus.get_mut(number) else { break };
            let mut lost = cpu.side.lost_at_the_end()?;
            if let Some((ring, _)) = &mut cpu.events {
                lost += ring.lost_at_the_end()?;
            }
            if lost > 0 {
                let cpu = cpu.number;
                self.lost(end, cpu, lost, sink)?;
            }
        }
        let is_idle_known = self.is_of_all();
        let (command, exits) = self.tasks.declare(is_idle_known, sink)?;
        let stats = Stats { command, late: self.merge.late(), ..self.stats };
        Ok((stats, ThreadExits(exits), self.intervals))
    }

    fn take(&mut self) -> Result<(), Error> {
        let Self { cpus, fields, merge, stats, .. } = self;
        for (place, cpu) in cpus.iter_mut().enumerate() {
            let Cpu { number, events, side, .. } = cpu;
            if let (Some(fields), Some((ring, ids))) = (&*fields, events) {
                ring.take(|decoder, raw, at| {
                    // Use the common layout of samples, without decoding more.
                    let item = match fields.plan.raw_data(raw) {
                        Some(data) => {
                            let id = fields.plan.id(raw);
                            let item = match ids.iter().position(|known| Some(*known) == id) {
                                Some(0) => switch(fields, *number, data),
                                Some(1) => waking(&fields.waking, *number, data),
                                Some(_) => waking(&fields.new, *number, data),
                                None => None,
                            };
                            stats.undecodable += u64::from(item.is_none());
                            item
                        }
                        None => sideband_item(decoder.decode(raw)?, *number),
                    };
                    if let Some(item) = item {
                        merge.push(2 * place, at, item);
                    }
                    Ok(())
                })?;
            }
            side.take(|decoder, raw, at| {
                if let Some(item) = sideband_item(decoder.decode(raw)?, *number) {
                    merge.push(2 * place + 1, at, item);
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    fn write(&mut self, watermark: Timestamp, sink: &mut Timeline) -> Result<(), Error> {
        while let Some(merged) = self.merge.pop(watermark) {
            let at = merged.at;
            match merged.value {
                Item::Switch { cpu, prev, prev_state, next } => {
                    self.switch(at, cpu, &prev, prev_state, &next, sink)?;
                }
                Item::Waking { cpu, task, target_cpu } => {
                    if self.tasks.is_named(task.tid) {
                        self.stats.wakings += 1;
                        let task = task.task();
                        sink.sched_waking(at, &SchedWaking { cpu, task, target_cpu })?;
                    }
                }
                Item::Fork { parent, parent_thread, pid, tid } => {
                    self.tasks.fork(parent, parent_thread, pid, tid);
                }
                Item::Comm { cpu, tid, comm } => {
                    self.tasks.rename(tid, comm);
                    // A thread that renames itself is running: no switch reports the command's
                    // start.
                    if !self.is_of_all() && self.drawn_on(cpu).is_none() {
                        self.gets_cpu(at, cpu, tid, sink)?;
                    }
                }
                Item::In { cpu, tid } => self.gets_cpu(at, cpu, tid, sink)?,
                Item::Out { cpu, tid, preempted } => {
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
                    let who = TaskInfo { tid: tid as i32, prio: DEFAULT_PRIO, comm };
                    self.switch(at, cpu, &who, state, &UNKNOWN, sink)?;
                }
                Item::Exit { tid } => self.tasks.exit(tid, at),
                Item::Lost { cpu, count } => self.lost(at, cpu, count, sink)?,
            }
        }
        Ok(())
    }

    fn drawn_on(&self, cpu: u32) -> Option<i32> {
        self.cpus.iter().find(|c| c.number == cpu).and_then(|c| c.lane.drawn)
    }

    fn gets_cpu(
        &mut self,
        at: Timestamp,
        cpu: u32,
        tid: u32,
        sink: &mut Timeline,
    ) -> io::Result<()> {
        let who = TaskInfo { tid: tid as i32, prio: DEFAULT_PRIO, comm: self.tasks.comm(tid) };
        self.switch(at, cpu, &UNKNOWN, 1, &who, sink)
    }

    fn switch(
        &mut self,
        at: Timestamp,
        cpu: u32,
        prev: &TaskInfo,
        prev_state: i64,
        next: &TaskInfo,
        sink: &mut Timeline,
    ) -> io::Result<()> {
        let before = self.tasks.drawn(prev.task(), cpu);
        let after = self.tasks.drawn(next.task(), cpu);
        let Some(place) = self.cpus.iter_mut().find(|c| c.number == cpu) else { return Ok(()) };
        let step = place.lane.switch(prev.tid, next.tid, before.tid, after.tid);
        if step.is_behind_a_gap && self.fields.is_some() {
            self.stats.gaps += 1;
            self.gap(at, cpu, sink)?;
        }
        // Draw other threads as asleep, not as waiting for the CPU, while they are off it.
        const ASLEEP: i64 = 1;
        if let Some(tid) = step.left_unseen {
            // The time of the switch to this thread is unknown: now is the latest possible one.
            let left = Task { tid, comm: b"", prio: DEFAULT_PRIO };
            let switch = SchedSwitch { cpu, prev: left, prev_state: ASLEEP, next: before };
            sink.sched_switch(at, &switch)?;
            self.stats.switches += 1;
        }
        if step.is_nothing {
            return Ok(());
        }
        let prev_state = if before.tid == prev.tid { prev_state } else { ASLEEP };
        self.stats.switches += 1;
        let switch = SchedSwitch { cpu, prev: before, prev_state, next: after };
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
        sink.lost(at, None, &Loss { what: what.as_bytes(), count: None, why })
    }

    fn lost(&mut self, at: Timestamp, cpu: u32, count: u64, sink: &mut Timeline) -> io::Result<()> {
        self.stats.lost += count;
        if let Some(place) = self.cpus.iter_mut().find(|c| c.number == cpu) {
            place.lane.lost();
        }
        if let Some(intervals) = &mut self.intervals {
            intervals.lost(at, cpu);
        }
        let what = format!("scheduler events of CPU {cpu}");
        let why = b"the buffer of the CPU was full, before this moment: use more --pages";
        let loss = Loss { what: what.as_bytes(), count: Some(count), why };
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
            sink.instant(at, track, &TrackEvent::new(name))?;
        }
        Ok(())
    }
}

fn switch(fields: &Fields, cpu: u32, raw: &[u8]) -> Option<Item> {
    Some(Item::Switch {
        cpu,
        prev: who(&fields.prev, raw)?,
        prev_state: fields.prev_state.i64(raw)?,
        next: who(&fields.next, raw)?,
    })
}

fn waking(fields: &Woken, cpu: u32, raw: &[u8]) -> Option<Item> {
    let target_cpu = fields.target_cpu.u64(raw)? as u32;
    Some(Item::Waking { cpu, task: who(&fields.who, raw)?, target_cpu })
}

fn sideband_item(record: Record<'_>, cpu: u32) -> Option<Item> {
    Some(match record {
        Record::Comm(c) => Item::Comm { cpu, tid: c.tid, comm: comm(c.comm) },
        Record::Switch(s) => {
            let tid = s.sample_id.tid?;
            if s.out {
                Item::Out { cpu, tid, preempted: s.preempted }
            } else {
                Item::In { cpu, tid }
            }
        }
        Record::Fork(f) => {
            Item::Fork { parent: f.ppid, parent_thread: f.ptid, pid: f.pid, tid: f.tid }
        }
        Record::Exit(e) => Item::Exit { tid: e.tid },
        Record::Lost(l) | Record::LostSamples(l) => Item::Lost { cpu, count: l.lost },
        _ => return None,
    })
}
