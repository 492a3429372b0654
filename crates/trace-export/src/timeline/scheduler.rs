//! Context switches and wake-ups, processes and threads.

use super::{Context, Drawing, TimelineStats};
use crate::model::{Category, Interrupt, SchedSwitch, SchedWaking, Sink, Task, Track, TrackEvent};
use crate::pids;
use crate::process::Process;
use std::io;
use trace_common::Timestamp;
use trace_timeline::{Attribute, Entity, EntityId, EntityKind, Tables, TextId, ThreadState};

/// A switch of the model.
pub(super) struct Switch {
    pub(super) cpu: EntityId,
    pub(super) prev: Option<EntityId>,
    pub(super) left: ThreadState,
    pub(super) next: Option<EntityId>,
    pub(super) is_next_unknown: bool,
    pub(super) prio: i16,
}

/// A wake-up of the model.
pub(super) struct Waking<'a> {
    /// The CPU of the waker.
    pub(super) on: Option<EntityId>,
    pub(super) interrupt: Option<Interrupt>,
    pub(super) to: &'a Entity,
    /// The CPU of the thread that is woken.
    pub(super) target: Option<EntityId>,
}

/// The interrupt of a context, if it is one.
#[inline]
pub(super) const fn interrupt_of(context: trace_timeline::Context) -> Option<Interrupt> {
    match context {
        trace_timeline::Context::HardIrq => Some(Interrupt::Hard),
        trace_timeline::Context::SoftIrq => Some(Interrupt::Soft),
        _ => None,
    }
}

/// The threads that are drawn on CPUs.
#[derive(Debug)]
pub(super) struct Scheduler {
    /// The state of preempted threads.
    preempted: i64,
    /// By the position of the CPU's entity: its number, and the thread that is drawn there.
    cpus: Vec<Option<Cpu>>,
    /// Whether the idle thread is recorded.
    has_idle: bool,
}

#[derive(Clone, Copy, Debug)]
struct Cpu {
    number: u32,
    /// Whether a thread that was not recorded is drawn on it.
    has_others: bool,
    drawn: Option<Drawn>,
    /// The thread that is drawn, by its name then.
    label: Label,
    /// The last switch.
    last: Timestamp,
}

/// A thread with its name; without one an idle thread, or others.
#[derive(Clone, Copy, Debug)]
struct Label {
    tid: u32,
    name: Option<TextId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Drawn {
    Idle,
    /// A thread that was not recorded.
    Other,
    Thread(EntityId),
}

/// All threads of CPU 0 that were not recorded are drawn as the thread with this id, those of CPU 1
/// as the next one, and so on. No thread has these ids: the first one is the kernel's limit for
/// process ids (`PID_MAX_LIMIT`).
const OTHERS: u32 = 4 << 20;

/// More CPUs than any kernel supports.
const MAX_CPUS: u32 = 1 << 16;

/// A nice value of 0.
const DEFAULT_PRIO: i16 = 120;

/// States in the form of the tracepoint.
pub(super) const TASK_RUNNING: i64 = 0;
/// The thread was preempted, since Linux 4.14.
pub(super) const TASK_REPORT_MAX: i64 = 0x100;
const TASK_INTERRUPTIBLE: i64 = 1;
const TASK_UNINTERRUPTIBLE: i64 = 2;
const TASK_STOPPED: i64 = 4;
const EXIT_DEAD: i64 = 16;

impl Label {
    const IDLE: Self = Self { tid: 0, name: None };

    #[inline]
    fn new(drawn: Drawn, cpu: u32, tables: &Tables) -> Self {
        let known = match drawn {
            Drawn::Idle => return Self::IDLE,
            Drawn::Other => None,
            Drawn::Thread(thread) => tables.entities.get(thread),
        };
        known.and_then(Self::of).unwrap_or_else(|| Self { tid: other(cpu), name: None })
    }

    #[inline]
    fn of(thread: &Entity) -> Option<Self> {
        Some(Self { tid: pids::of(thread)?, name: Some(thread.name) })
    }

    #[inline]
    fn task(self, prio: i16, tables: &Tables) -> Task<'_> {
        let name = match self.name {
            Some(name) => tables.get(name),
            None if self.tid == 0 => b"swapper",
            None => b"other",
        };
        Task::new(self.tid, name, prio.into())
    }
}

const fn other(cpu: u32) -> u32 {
    OTHERS.saturating_add(cpu)
}

impl Scheduler {
    pub(super) const fn new(preempted: i64, has_idle: bool) -> Self {
        Self { preempted, cpus: Vec::new(), has_idle }
    }

    #[inline]
    fn cpu(&mut self, id: EntityId, tables: &Tables) -> Option<&mut Cpu> {
        let index = id.index();
        if !matches!(self.cpus.get(index), Some(Some(_))) {
            self.add_cpu(id, tables)?;
        }
        self.cpus.get_mut(index)?.as_mut()
    }

    #[cold]
    fn add_cpu(&mut self, id: EntityId, tables: &Tables) -> Option<()> {
        let entity = tables.entities.get(id).filter(|cpu| cpu.kind == EntityKind::Cpu)?;
        let number = u32::try_from(entity.number).ok().filter(|n| *n < MAX_CPUS)?;
        if id.index() >= self.cpus.len() {
            self.cpus.resize(id.index() + 1, None);
        }
        let (has_others, drawn, label, last) = (false, None, Label::IDLE, Timestamp::default());
        *self.cpus.get_mut(id.index())? = Some(Cpu { number, has_others, drawn, label, last });
        Some(())
    }

    pub(super) fn switch(
        &mut self,
        switch: &Switch,
        stats: &mut TimelineStats,
        cx: &mut Context<'_, impl Sink>,
    ) -> io::Result<()> {
        let Context { at, tables, .. } = *cx;
        let preempted = self.preempted;
        self.has_idle |= switch.next.is_none() && !switch.is_next_unknown;
        let Some(cpu) = self.cpu(switch.cpu, tables) else {
            stats.without_cpu += 1;
            return Ok(());
        };
        let number = cpu.number;
        let next = match switch.next {
            Some(next) => Drawn::Thread(next),
            None if switch.is_next_unknown => Drawn::Other,
            None => Drawn::Idle,
        };
        cpu.has_others |= next == Drawn::Other;
        cpu.last = at;
        let drawn = cpu.drawn.replace(next);
        let mut left = std::mem::replace(&mut cpu.label, Label::new(next, number, tables));
        let came = cpu.label;
        let prev = match (switch.prev, drawn) {
            (Some(prev), _) => Drawn::Thread(prev),
            // The idle thread, or one that was not recorded.
            (None, Some(drawn @ (Drawn::Idle | Drawn::Other))) => drawn,
            // A record of another kind shows that the idle thread runs.
            (None, Some(_)) if next == Drawn::Idle => Drawn::Idle,
            (None, _) if switch.left == ThreadState::Unknown => Drawn::Other,
            (None, _) => Drawn::Idle,
        };
        cpu.has_others |= prev == Drawn::Other;
        if drawn != Some(prev) {
            let label = Label::new(prev, number, tables);
            let unseen = std::mem::replace(&mut left, label);
            if drawn.is_some() {
                // The time of the switch to the previous thread is unknown: now is the latest
                // possible one.
                let task = |label: Label| label.task(DEFAULT_PRIO, tables);
                let is_idle = drawn == Some(Drawn::Idle);
                let state = if is_idle { TASK_RUNNING } else { TASK_INTERRUPTIBLE };
                let switch = SchedSwitch::new(number, task(unseen), state, task(label));
                cx.sink.sched_switch(at, &switch)?;
                stats.switches += 1;
            }
        }
        // A thread that is still there: its records were lost.
        if prev == next && drawn.is_some() {
            return Ok(());
        }
        stats.switches += 1;
        let state = match switch.left {
            ThreadState::Preempted => preempted,
            ThreadState::Blocked => TASK_UNINTERRUPTIBLE,
            ThreadState::Stopped => TASK_STOPPED,
            ThreadState::Dead => EXIT_DEAD,
            _ if prev == Drawn::Idle => TASK_RUNNING,
            _ => TASK_INTERRUPTIBLE,
        };
        let (prev, next) = (left.task(DEFAULT_PRIO, tables), came.task(switch.prio, tables));
        cx.sink.sched_switch(at, &SchedSwitch::new(number, prev, state, next))
    }

    /// The thread on a CPU is not known from `since` on: its records end, or some are missing. It has left, and
    /// the CPU is drawn as idle until its next switch.
    #[cold]
    pub(super) fn interrupt(
        &mut self,
        id: EntityId,
        since: Timestamp,
        cx: &mut Context<'_, impl Sink>,
    ) -> io::Result<()> {
        let Context { at, tables, .. } = *cx;
        let Some(Some(cpu)) = self.cpus.get_mut(id.index()) else { return Ok(()) };
        let since = match cpu.drawn {
            None | Some(Drawn::Idle) => return Ok(()),
            // The records before do not have the switches from one of these to another.
            Some(Drawn::Other) => at,
            Some(Drawn::Thread(_)) => since.min(at),
        };
        cpu.last = since.max(cpu.last);
        cpu.drawn = Some(Drawn::Idle);
        let left = std::mem::replace(&mut cpu.label, Label::IDLE);
        let [prev, next] = [left, Label::IDLE].map(|label| label.task(DEFAULT_PRIO, tables));
        // As that of other threads whose state is not known.
        let switch = SchedSwitch::new(cpu.number, prev, TASK_INTERRUPTIBLE, next);
        cx.sink.sched_switch(cpu.last, &switch)
    }

    /// Names the tracks of threads that were not recorded.
    fn declare_others(&self, cx: &mut Context<'_, impl Sink>) -> io::Result<()> {
        let cpus = || self.cpus.iter().flatten().filter(|cpu| cpu.has_others);
        let mut numbers: Vec<u32> = cpus().map(|cpu| cpu.number).collect();
        if numbers.is_empty() {
            return Ok(());
        }
        let name: &[u8] = if self.has_idle { b"other tasks" } else { b"other tasks, or idle" };
        cx.sink.track(&Track::process(other(0), name))?;
        numbers.sort_unstable();
        for cpu in numbers {
            let name = format!("others on CPU {cpu}");
            cx.sink.track(&Track::thread(other(0), other(cpu), name.as_bytes()))?;
        }
        Ok(())
    }

    pub(super) fn waking(
        &mut self,
        waking: &Waking<'_>,
        stats: &mut TimelineStats,
        cx: &mut Context<'_, impl Sink>,
    ) -> io::Result<()> {
        let Context { at, tables, .. } = *cx;
        let Waking { on, interrupt, to, target } = *waking;
        let known = on.and_then(|id| Some((id, self.cpu(id, tables)?.number)));
        let Some((on_id, on)) = known else {
            stats.without_cpu += 1;
            return Ok(());
        };
        let target = match target {
            Some(target) if target != on_id => {
                self.cpu(target, tables).map_or(on, |cpu| cpu.number)
            }
            _ => on,
        };
        let Some(label) = Label::of(to) else { return Ok(()) };
        stats.wakings += 1;
        let task = label.task(DEFAULT_PRIO, tables);
        cx.sink.sched_waking(at, &SchedWaking::new(on, task, target).interrupt(interrupt))
    }
}

impl Drawing {
    /// The process id of a process on the timeline.
    pub(super) fn pid(&mut self, process: Option<EntityId>, tables: &Tables) -> u32 {
        let Some(id) = process else { return pids::UNKNOWN };
        let of_kernel = || pids::pid(pids::of_kernel(id, tables), tables);
        *self.pids.entry(id).or_insert_with(of_kernel)
    }

    /// Names and describes processes and threads of the kernel: a track has one name, the last one.
    pub(super) fn declare(&mut self, cx: &mut Context<'_, impl Sink>) -> io::Result<()> {
        if std::mem::replace(&mut self.is_declared, true) {
            return Ok(());
        }
        let tables = cx.tables;
        for (id, entity) in tables.entities.iter() {
            let name = tables.get(entity.name);
            match entity.kind {
                // One without a name is known only as a parent, or by threads other than its main thread.
                EntityKind::Process if !name.is_empty() => {
                    let Some(pid) = pids::of(entity) else { continue };
                    cx.sink.track(&Track::process(pid, name).ordered())?;
                    describe(id, pid, entity, tables).draw(cx.sink)?;
                }
                EntityKind::Thread => {
                    if let (Some(process), Some(tid)) = (entity.parent, pids::of(entity)) {
                        let pid = self.pid(Some(process), tables);
                        let track = cx.sink.track(&Track::thread(pid, tid, name))?;
                        self.exits.extend(entity.end.map(|end| (end, track)));
                    }
                }
                _ => {}
            }
        }
        self.scheduler.declare_others(cx)
    }

    /// Draws the ends of threads.
    pub(super) fn draw_exits(&mut self, cx: &mut Context<'_, impl Sink>) -> io::Result<()> {
        let mut ends = std::mem::take(&mut self.exits);
        ends.sort_by_key(|(end, _)| *end);
        let exit = cx.sink.text(b"exit");
        let exit = TrackEvent::new(exit).category(Category::Process);
        ends.into_iter().try_for_each(|(at, track)| cx.sink.instant(at, track, &exit))
    }
}

fn describe<'a>(id: EntityId, pid: u32, process: &Entity, tables: &'a Tables) -> Process<'a> {
    let text = |attribute| {
        let value = tables.entities.attribute(id, attribute);
        value.map_or(&b""[..], |value| tables.get(value))
    };
    let parent = process.parent.and_then(|parent| tables.entities.get(parent));
    Process::new(pid, tables.get(process.name))
        .parent(parent.and_then(pids::of))
        .command_line(text(Attribute::CommandLine))
        .executable(text(Attribute::Executable))
        .cgroup(text(Attribute::Cgroup), text(Attribute::Container))
        .start(process.start)
        .end(process.end)
}
