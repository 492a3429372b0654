//! The timeline model: kernel, Go and .NET traces that were merged into one stream.
//!
//! ```
//! use trace_export::timeline::TimelineSource;
//! use trace_export::{ClockDomain, PerfettoSink, Sink};
//! use trace_timeline::{Event, Tables};
//!
//! # fn f(events: &[Event], tables: &Tables) -> std::io::Result<()> {
//! let mut sink = PerfettoSink::new(std::fs::File::create("trace.pftrace")?, ClockDomain::Monotonic);
//! let mut source = TimelineSource::new(Default::default());
//! for event in events {
//!     source.push(event, tables, &mut sink)?;
//! }
//! source.finish(tables, &mut sink)?;
//! sink.finish()
//! # }
//! ```
//!
//! | model | timeline |
//! | --- | --- |
//! | context switches, wake-ups of threads | CPUs and states of threads, drawn by the viewer |
//! | goroutines | lanes by process and entry function: a slice for each, its states inside |
//! | Ps | the goroutine that each executes |
//! | Ms and .NET threads | the goroutine that each executes; compilations and lock waits |
//! | garbage collections, stop-the-world, tasks, activities, queued work | tracks of the process |
//! | regions, mark assists, sweeps | below the lane of the goroutine, or the P |
//! | wake-ups and creations of goroutines | arrows |
//! | logs, labels, exceptions, counters, samples, losses | instants, counters, samples, marks |
//!
//! Where the records of a CPU end, some are missing ([`LossKind::SchedulerRecords`](trace_timeline::LossKind)), or it
//! goes offline, the CPU is drawn as idle until its next switch, and its thread as asleep.
//!
//! Context switches need the offset of `CLOCK_BOOTTIME`: see [`PerfettoSink`](crate::PerfettoSink).
//!
//! A state says more if the kernel's scheduler was recorded too: a goroutine that its runtime
//! calls running is `Running` only while its thread has a CPU, otherwise `Preempted`, `Waits for a
//! CPU` or `Thread blocked`.

mod counter;
mod executor;
mod goroutine;
mod losses;
mod names;
mod process;
mod sample;
mod scheduler;
mod spans;

use crate::cpu::CpuIntervals;
use crate::model::{Sink, TrackId};
use counter::{Counter, Counters};
use executor::Executors;
use goroutine::Goroutines;
use hashbrown::HashMap;
use losses::Losses;
use names::Names;
use process::Processes;
use scheduler::{Scheduler, TASK_REPORT_MAX, TASK_RUNNING};
use spans::Spans;
use std::io;
use std::sync::Arc;
use trace_common::Timestamp;
use trace_timeline::{
    Correlator, CorrelatorOptions, Derived, EntityId, EntityKind, Event, EventKind, FlowKind,
    Interval, Kernel, LossKind, Tables, TextId, Value,
};

/// Options of a [`TimelineSource`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TimelineOptions {
    /// Whether to draw arrows from where a goroutine is unblocked or created to where it runs.
    pub arrows: bool,
    /// Goroutines of one entry function that have a lane at the same time. Further ones are a
    /// counter.
    pub lanes: usize,
    /// When threads had a CPU, if the events of the kernel's scheduler are not among those of the
    /// timeline: they mark managed samples as on or off CPU.
    pub cpus: Option<Arc<CpuIntervals>>,
    /// Whether switches to the idle thread are recorded, also if there is none: otherwise a CPU that
    /// has left the recorded threads is with another thread or idle.
    pub has_idle: bool,
    /// Whether the timeline is of the kernel's scheduler alone: layers are not correlated, which takes a
    /// fifth of the time. States and samples are not drawn, but [counted](TimelineStats::uncorrelated).
    pub scheduler_only: bool,
    /// The state of preempted threads, as in `sched_switch`.
    preempted: i64,
}

impl TimelineOptions {
    /// Sets the release of the kernel that the sink was given, such as `6.12.48-cloud-amd64`.
    ///
    /// Viewers read the states of threads by it. Before Linux 4.14, and without a release,
    /// preempted threads are drawn as runnable.
    pub fn set_kernel(&mut self, release: &str) {
        let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
        let (Some(Ok(major)), Some(Ok(minor))) = (numbers.next(), numbers.next()) else { return };
        let is_reported = (major, minor) >= (4, 14);
        self.preempted = if is_reported { TASK_REPORT_MAX } else { TASK_RUNNING };
    }
}

impl Default for TimelineOptions {
    /// Arrows, and 256 lanes.
    fn default() -> Self {
        let (has_idle, scheduler_only, preempted) = (false, false, TASK_RUNNING);
        Self { arrows: true, lanes: 256, cpus: None, has_idle, scheduler_only, preempted }
    }
}

/// Numbers of the drawn items of a [`TimelineSource`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TimelineStats {
    /// Events of the model.
    pub events: u64,
    /// The time of the first event.
    pub first: Option<Timestamp>,
    /// The time of the last event.
    pub last: Option<Timestamp>,
    /// Context switches. Those by which a CPU is drawn as idle where its records end, or some are missing, are
    /// not among them.
    pub switches: u64,
    /// Wake-ups of threads.
    pub wakings: u64,
    /// Switches and wake-ups on an unknown CPU, which are not drawn.
    pub without_cpu: u64,
    /// Goroutines.
    pub goroutines: u64,
    /// Goroutines without a lane: see [`TimelineOptions::lanes`].
    pub goroutines_without_lane: u64,
    /// Spans above the limit of simultaneous ones, which are not drawn.
    pub spans_without_lane: u64,
    /// Instants of goroutines without a lane, which are not drawn.
    pub instants_without_lane: u64,
    /// Samples of threads.
    pub samples: u64,
    /// Managed samples of a thread that had a CPU.
    pub samples_on_cpu: u64,
    /// Managed samples of a thread that had no CPU. For the other ones it is not known.
    pub samples_off_cpu: u64,
    /// Samples of threads that are not known, drawn as instants.
    pub samples_without_thread: u64,
    /// Losses. Switches that the kernel did not report are marked together, those of a CPU within 1 ms.
    pub losses: u64,
    /// States and samples that are not drawn because of [`TimelineOptions::scheduler_only`].
    pub uncorrelated: u64,
}

/// Draws the events of the timeline model: see the [module](self).
///
/// A Go process without a process id is drawn as that of the kernel with the same threads, among those that are in the
/// tables at its first event.
#[derive(Debug)]
pub struct TimelineSource {
    /// `None` with [`TimelineOptions::scheduler_only`].
    correlator: Option<Correlator>,
    drawing: Drawing,
}

/// What is drawn, apart from the relations of the layers.
#[derive(Debug)]
struct Drawing {
    options: TimelineOptions,
    stats: TimelineStats,
    names: Names,
    scheduler: Scheduler,
    processes: Processes,
    goroutines: Goroutines,
    executors: Executors,
    spans: Spans,
    counters: Counters,
    losses: Losses,
    /// The last start of a state: at the same time it may be refined.
    pending: Option<Interval>,
    /// Process ids on the timeline.
    pids: HashMap<EntityId, u32>,
    /// The arguments of the next event.
    args: Vec<(TextId, Value)>,
    /// Whether processes and threads have their names.
    is_declared: bool,
    /// The ends of threads, with their tracks.
    exits: Vec<(Timestamp, TrackId)>,
}

impl Default for TimelineSource {
    fn default() -> Self {
        Self::new(TimelineOptions::default())
    }
}

impl TimelineSource {
    /// Makes a source with these options.
    pub fn new(options: TimelineOptions) -> Self {
        let mut derive = CorrelatorOptions::default();
        // The viewer derives the states of kernel threads from the switches.
        (derive.occupants, derive.threads) = (false, false);
        (derive.starts, derive.intervals) = (true, false);
        let correlator = (!options.scheduler_only).then(|| Correlator::with_options(derive));
        let scheduler = Scheduler::new(options.preempted, options.has_idle);
        let drawing = Drawing {
            options,
            stats: TimelineStats::default(),
            names: Names::default(),
            scheduler,
            processes: Processes::default(),
            goroutines: Goroutines::default(),
            executors: Executors::default(),
            spans: Spans::default(),
            counters: Counters::default(),
            losses: Losses::default(),
            pending: None,
            pids: HashMap::new(),
            args: Vec::new(),
            is_declared: false,
            exits: Vec::new(),
        };
        Self { correlator, drawing }
    }

    /// Numbers of drawn items so far.
    pub const fn stats(&self) -> TimelineStats {
        self.drawing.stats
    }

    /// The processes whose threads are related to none of the kernel: see [`Correlator::unrelated`].
    pub fn unrelated(&self) -> Vec<EntityId> {
        self.correlator.as_ref().map_or_else(Vec::new, Correlator::unrelated)
    }

    /// Draws the next event. Events come in time order.
    ///
    /// # Errors
    ///
    /// Errors of the sink.
    pub fn push(&mut self, event: &Event, tables: &Tables, sink: &mut impl Sink) -> io::Result<()> {
        let Self { correlator, drawing } = self;
        drawing.stats.events += 1;
        drawing.stats.first.get_or_insert(event.time);
        drawing.stats.last = Some(event.time);
        // Apart from the others: there are millions a second, and a large function begins and ends
        // with as many instructions as a switch takes.
        // A context each: one for all would be in memory.
        let at = event.time;
        if !drawing.scheduling(event, &mut Context { at, tables, sink })? {
            drawing.event(event, &mut Context { at, tables, sink })?;
        }
        if let Some(correlator) = correlator {
            let mut result = Ok(());
            correlator.push(event, &tables.entities, &mut |derived| {
                if result.is_ok() {
                    result = drawing.derived(&derived, &mut Context { at, tables, sink });
                }
            });
            result?;
        } else if matches!(event.kind, EventKind::State { .. } | EventKind::Sample { .. }) {
            drawing.stats.uncorrelated += 1;
        }
        if !matches!(event.kind, EventKind::Argument { .. }) {
            drawing.args.clear();
        }
        match event.kind {
            EventKind::End { entity } => drawing.end(entity, &mut Context { at, tables, sink }),
            _ => Ok(()),
        }
    }

    /// Names and describes processes and threads of the kernel, which are complete: other sources of
    /// the same sink that are drawn after it may have names for them. [`TimelineSource::finish`] does
    /// it, too.
    ///
    /// # Errors
    ///
    /// Errors of the sink.
    pub fn declare(&mut self, tables: &Tables, sink: &mut impl Sink) -> io::Result<()> {
        let at = self.drawing.stats.last.unwrap_or_default();
        let cx = &mut Context { at, tables, sink };
        // Later sources have later marks on the same track.
        self.drawing.finish_losses(cx)?;
        self.drawing.declare(cx)
    }

    /// Draws the rest, names processes and threads, and draws the ends of threads.
    ///
    /// # Errors
    ///
    /// Errors of the sink.
    pub fn finish(&mut self, tables: &Tables, sink: &mut impl Sink) -> io::Result<()> {
        let drawing = &mut self.drawing;
        let at = drawing.stats.last.unwrap_or_default();
        let cx = &mut Context { at, tables, sink };
        drawing.flush(cx)?;
        drawing.draw_pending(cx)?;
        drawing.finish_losses(cx)?;
        drawing.processes.finish(cx)?;
        drawing.declare(cx)?;
        drawing.draw_exits(cx)
    }
}

/// The time at which something is drawn, the tables that it refers to, and the sink.
struct Context<'a, S> {
    at: Timestamp,
    tables: &'a Tables,
    sink: &'a mut S,
}

impl<S> Context<'_, S> {
    /// The same at another time.
    #[inline]
    const fn at(&mut self, at: Timestamp) -> Context<'_, S> {
        Context { at, tables: self.tables, sink: self.sink }
    }
}

impl Drawing {
    /// Draws an event of the kernel's scheduler. `false` if it is another one.
    #[inline]
    fn scheduling(&mut self, event: &Event, cx: &mut Context<'_, impl Sink>) -> io::Result<bool> {
        let (tables, stats) = (cx.tables, &mut self.stats);
        match event.kind {
            EventKind::Switch { cpu, prev, left, next, is_next_unknown, prio } => {
                let switch = scheduler::Switch { cpu, prev, left, next, is_next_unknown, prio };
                self.scheduler.switch(&switch, stats, cx)?;
            }
            EventKind::Flow {
                kind: FlowKind::Wakes | FlowKind::Creates,
                context,
                on,
                to,
                cpu,
                ..
            } => {
                let thread = tables.entities.get(to).filter(|to| to.kind == EntityKind::Thread);
                if let Some(to) = thread {
                    let interrupt = scheduler::interrupt_of(context);
                    let waking = scheduler::Waking { on, interrupt, to, target: cpu };
                    self.scheduler.waking(&waking, stats, cx)?;
                }
            }
            EventKind::State { .. } => {}
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Draws an event that says all by itself; for the others see [`Drawing::derived`].
    #[inline(never)]
    fn event(&mut self, event: &Event, cx: &mut Context<'_, impl Sink>) -> io::Result<()> {
        let Context { at, tables, .. } = *cx;
        match event.kind {
            EventKind::Argument { name, value } => {
                self.args.push((name, value));
                Ok(())
            }
            EventKind::Begin { span, entity, kind, name, by, of, stack } => {
                self.flush(cx)?;
                let span = spans::Begin { span, entity, kind, name, by, of, stack };
                self.begin(&span, cx)
            }
            EventKind::Finish { span, .. } => self.finish_span(span, cx),
            EventKind::Instant { entity, kind, name, stack, of } => {
                self.flush(cx)?;
                let instant = spans::Instant { entity, kind, name, stack, of };
                self.instant(&instant, cx)
            }
            EventKind::Counter { entity, name, unit, value } => {
                self.counter(&Counter { entity, name, unit, value }, cx)
            }
            EventKind::Throttle { process, since, nanos, periods, .. } => {
                self.throttle((since, at), process, nanos, periods, cx)
            }
            EventKind::Loss { entity, kind, since, count } => {
                let ends = matches!(kind, LossKind::SchedulerRecords | LossKind::CpuOffline);
                if let Some(cpu) = entity.filter(|_| ends) {
                    self.scheduler.interrupt(cpu, since, cx)?;
                }
                self.loss(entity, kind, count, cx)
            }
            EventKind::Clock { time, domain, reading } => {
                // The clock of a trace is that of the timeline with coarser ticks.
                if domain == cx.sink.clock_domain() {
                    return Ok(());
                }
                cx.sink.clock_snapshot(&[(cx.sink.clock_domain(), time), (domain, reading)])
            }
            EventKind::Start { entity } => {
                let is_goroutine = tables.entities.kind(entity) == Some(EntityKind::Goroutine);
                self.stats.goroutines += u64::from(is_goroutine);
                self.thread_starts(entity, tables);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn derived(
        &mut self,
        derived: &Derived<'_>,
        cx: &mut Context<'_, impl Sink>,
    ) -> io::Result<()> {
        match derived {
            Derived::Start(state) => self.state(state, cx),
            Derived::Flow(flow) => self.arrow(flow, &mut cx.at(flow.time)),
            Derived::Sample(sample) => self.sample(sample, &mut cx.at(sample.time)),
            _ => Ok(()),
        }
    }

    /// A state of a goroutine or P begins.
    #[inline]
    fn state(&mut self, state: &Interval, cx: &mut Context<'_, impl Sink>) -> io::Result<()> {
        // Without the kernel's part there is nothing to refine.
        if matches!(state.kernel, Kernel::Unknown | Kernel::Absent) {
            self.flush(cx)?;
            return self.draw_state(state, cx);
        }
        let is_refined = |p: &Interval| {
            (p.subject, p.start, p.state) == (state.subject, state.start, state.state)
                && (p.reason, p.stack) == (state.reason, state.stack)
        };
        if !self.pending.as_ref().is_some_and(is_refined) {
            self.flush(cx)?;
        }
        self.pending = Some(*state);
        Ok(())
    }

    /// Draws the last state.
    #[inline]
    fn flush(&mut self, cx: &mut Context<'_, impl Sink>) -> io::Result<()> {
        if self.pending.is_none() { Ok(()) } else { self.draw_last(cx) }
    }

    #[inline(never)]
    fn draw_last(&mut self, cx: &mut Context<'_, impl Sink>) -> io::Result<()> {
        match self.pending.take() {
            Some(state) => self.draw_state(&state, cx),
            None => Ok(()),
        }
    }

    fn draw_state(&mut self, state: &Interval, cx: &mut Context<'_, impl Sink>) -> io::Result<()> {
        let cx = &mut cx.at(state.start);
        match state.kind {
            EntityKind::Goroutine => self.goroutine_state(state, cx),
            EntityKind::Proc => self.proc_state(state, cx),
            // What a .NET thread does is drawn as spans.
            _ => Ok(()),
        }
    }

    /// An entity ends.
    fn end(&mut self, id: EntityId, cx: &mut Context<'_, impl Sink>) -> io::Result<()> {
        match cx.tables.entities.kind(id) {
            Some(EntityKind::Goroutine) => {
                self.flush(cx)?;
                self.end_goroutine(id, cx)?;
            }
            Some(EntityKind::Thread | EntityKind::GoThread) => {
                self.flush(cx)?;
                self.end_thread(id, cx)?;
            }
            Some(EntityKind::Task) => self.end_task(id, cx.sink),
            // Its records end, and others of the timeline may continue.
            Some(EntityKind::Cpu) => self.scheduler.interrupt(id, cx.at, cx)?,
            _ => {}
        }
        self.names.forget(id);
        Ok(())
    }
}
