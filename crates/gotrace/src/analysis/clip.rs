//! Analyses of a range of time.

use super::kept::{Kept, Own, StackOf};
use super::step::{Change, Step};
use crate::event::{Event, EventKind, RangeName, Record, State};
use crate::id::{GoId, GoState, ProcId, ProcState, ResourceId};
use crate::parallel::Split;
use crate::spec::EventType;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use trace_common::{SeededState, Timestamp};

/// Restricts the events for an analysis to a range of time, as if tracing had started and stopped
/// there.
///
/// It is fed with the events of the trace, or of the generations of an [`Index`](crate::Index) that
/// overlap the range. At the start of the range it passes on a sync event and the states of then,
/// as the runtime reports them when tracing starts: goroutines with the reasons and stacks of their
/// waits, Ps, activities of the GC, metrics. Then it passes on the events of the range, and last a
/// sync event at its end. So states count with the part within the range: for [`Summarizer`],
/// [`Scheduling`], [`GcCycles`] and [`Utilization`] the results of consecutive ranges sum to
/// those of all of them. Tasks and regions that began before the range end without a begin:
/// [`Summarizer::before`] is for the tasks. CPU samples, logs and other instants are those of the
/// range.
///
/// [`Summarizer`]: super::Summarizer
/// [`Summarizer::before`]: super::Summarizer::before
/// [`Scheduling`]: super::Scheduling
/// [`GcCycles`]: super::GcCycles
/// [`Utilization`]: super::Utilization
///
/// Until the range begins, memory is used for the states of live goroutines and Ps.
///
/// ```
/// use gotrace::analysis::{Clip, Summarizer};
/// use gotrace::{Reader, Timestamp};
///
/// # fn main() -> Result<(), gotrace::Error> {
/// # let file: &[u8] = include_bytes!("../../tests/data/shop.trace");
/// let mut reader = Reader::new(file)?;
/// let start = reader.next_event()?.map_or(Timestamp::MIN, |event| event.time());
/// let at = |millis: i64| start.saturating_add_nanos(millis * 1_000_000);
/// let mut clip = Clip::new(at(5), at(15));
/// let mut summarizer = Summarizer::new();
/// let mut reader = Reader::new(file)?;
/// while let Some(event) = reader.next_event()? {
///     clip.push(event, &mut |event| _ = summarizer.push(event));
///     if clip.is_complete() {
///         break;
///     }
/// }
/// clip.finish(&mut |event| _ = summarizer.push(event));
/// for goroutine in summarizer.finish().goroutines {
///     assert!(goroutine.times.total.as_millis() <= 10);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Clip {
    from: Timestamp,
    to: Timestamp,
    phase: Phase,
    /// The number of events that were passed on for states, and are not those of the range.
    repeated: u64,
    /// Whether there was a loss in this generation, or just before it: what exists may be mentioned as it
    /// is for the first time.
    is_resumed: bool,
    /// There was no event since the last loss.
    is_lost: bool,
    /// After a loss, the goroutines of events after the range.
    mentioned: HashSet<GoId, SeededState>,
    /// The first event after the range.
    end: Option<Kept>,
    sync: Option<Kept>,
    metrics: Vec<Kept>,
    procs: BTreeMap<ProcId, Kept>,
    goroutines: BTreeMap<GoId, Live>,
    /// The goroutine in a system call on each proc, until the proc becomes idle.
    syscalls: HashMap<ProcId, GoId, SeededState>,
    mark: Option<Kept>,
    /// Stops of the world and GC assists by goroutine, sweeping by proc.
    stops: BTreeMap<GoId, Kept>,
    assists: BTreeMap<GoId, Kept>,
    sweeps: BTreeMap<ProcId, Kept>,
    /// The events of this generation, and others that are not kept any more.
    recent: Vec<Slot>,
    /// What those of earlier generations refer to.
    own: Own,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Before,
    Within,
    /// In the rest of this generation: goroutines that do nothing are mentioned at its end. `None` after a loss,
    /// which makes the others unknown.
    Rest(Option<u64>),
    After,
}

/// What the events go to, where they are few: this code is compiled once, and not for each analysis.
type Each<'a> = &'a mut dyn FnMut(Event<'_>);

/// A goroutine before the range.
#[derive(Debug)]
struct Live {
    state: Kept,
    /// A stack of it, which names its entry function.
    stack: Option<StackOf>,
    /// The P that it executes on.
    proc: ProcId,
    /// The P that was taken away from its system call.
    lost: Option<ProcId>,
    label: Option<Kept>,
    /// Whether it is in [`Clip::recent`].
    is_recent: bool,
}

/// The place of an event that is kept.
#[derive(Clone, Copy, Debug)]
enum Slot {
    Goroutine(GoId),
    Stop(GoId),
    Assist(GoId),
    Sweep(ProcId),
}

impl Live {
    fn adopt(&mut self, own: &mut Own) {
        own.adopt(&mut self.state);
        self.label.iter_mut().for_each(|label| own.adopt(label));
        self.stack.iter_mut().for_each(|stack| own.adopt_stack(stack));
    }
}

impl Clip {
    /// Restricts events to the time from `from` to `to`, inclusive.
    pub fn new(from: Timestamp, to: Timestamp) -> Self {
        Self {
            from,
            to,
            phase: Phase::Before,
            repeated: 0,
            is_resumed: false,
            is_lost: false,
            mentioned: HashSet::default(),
            end: None,
            sync: None,
            metrics: Vec::new(),
            procs: BTreeMap::new(),
            goroutines: BTreeMap::new(),
            syscalls: HashMap::default(),
            mark: None,
            stops: BTreeMap::new(),
            assists: BTreeMap::new(),
            sweeps: BTreeMap::new(),
            recent: Vec::new(),
            own: Own::default(),
        }
    }

    /// Whether the range is over, so that further events are not in it.
    pub fn is_complete(&self) -> bool {
        self.phase == Phase::After
    }

    /// Whether the range has begun and is not over: a [`loss`](Self::loss) concerns its analysis.
    pub fn is_within(&self) -> bool {
        self.phase == Phase::Within
    }

    /// The number of events passed on that report the states at the start and the end of the range.
    /// All others are the events of the trace in the range.
    pub const fn repeated(&self) -> u64 {
        self.repeated
    }

    /// Processes the next event of the trace, and passes on those of the range.
    pub fn push(&mut self, event: Event<'_>, each: &mut impl FnMut(Event<'_>)) {
        if self.phase == Phase::Before {
            if event.time() < self.from {
                return self.keep(event);
            }
            self.begin(event.time().min(self.to), each);
        }
        if self.phase == Phase::Within {
            if event.time() <= self.to {
                return each(event);
            }
            if event.kind() == EventKind::Sync {
                // What follows mentions the states of a later generation.
                self.end = Some(Kept::of(event));
                return self.finish(each);
            }
            self.phase = Phase::Rest(Some(event.generation()));
        }
        if let Phase::Rest(generation) = self.phase {
            if generation == Some(event.generation()) {
                self.mention(event, each);
            } else {
                self.finish(each);
            }
        }
    }

    /// Completes the range after the last event of the trace.
    pub fn finish(&mut self, each: &mut impl FnMut(Event<'_>)) {
        if self.phase == Phase::Before {
            self.begin(self.from, each);
        }
        if let Some(mut end) = self.end.take() {
            let is_lost = end.record.restarts();
            end.record = Record::sync(0, 0, false);
            if is_lost {
                end.record.restart(); // what was after the last event of the range is unknown
            }
            end.pass(self.to, None, each);
            self.repeated += 1;
        }
        self.phase = Phase::After;
    }

    /// Passes on what is mentioned for the first time after the range: the state of a goroutine, an
    /// assist, sweeping.
    fn mention(&mut self, event: Event<'_>, each: Each<'_>) {
        if self.end.is_none() {
            self.end = Some(Kept::of(event));
        }
        let is_state = match Step::of(event) {
            // After a loss, a goroutine that does something may be mentioned as it is later.
            Some(Step { id, from, to, .. }) if self.is_resumed => {
                self.mentioned.insert(id) && (from == GoState::Undetermined || from == to)
            }
            Some(Step { from, .. }) => from == GoState::Undetermined,
            None if event.kind() == EventKind::RangeActive => {
                event.range().is_some_and(|range| range.name != RangeName::GcMark)
            }
            None => false,
        };
        if is_state {
            Kept::of(event).pass(self.to, None, each);
            self.repeated += 1;
        }
    }

    /// A part of the trace is missing here: see [`Reader::recover`](crate::Reader::recover). Before the
    /// range, the states are lost, except for `GOMAXPROCS`. [Within](Self::is_within) it, the analysis has
    /// to know of the loss, too. After it, the clip is complete with the next event: goroutines that are
    /// mentioned for the first time after the loss are left out.
    pub fn loss(&mut self) {
        match self.phase {
            Phase::Before => {
                // The generation may continue, and it mentions the number of Ps at its start only.
                let (sync, own) = (self.sync.take(), std::mem::take(&mut self.own));
                let mut metrics = std::mem::take(&mut self.metrics);
                metrics.retain(|kept| kept.record.ty == EventType::PROCS_CHANGE);
                let new = Self::new(self.from, self.to);
                *self = Self { sync, own, metrics, is_resumed: true, is_lost: true, ..new };
            }
            Phase::Within => self.is_resumed = true,
            Phase::Rest(_) => self.phase = Phase::Rest(None),
            Phase::After => {}
        }
    }

    /// Whether the range has not begun, and there was a loss and no generation: nothing that is passed on
    /// at its start says so.
    const fn is_lost_before_all(&self) -> bool {
        matches!(self.phase, Phase::Before) && self.is_resumed && self.sync.is_none()
    }

    /// Remembers the states before the range.
    fn keep(&mut self, event: Event<'_>) {
        if event.kind() == EventKind::Sync && event.record.restarts() {
            self.loss();
        }
        let was_lost = std::mem::take(&mut self.is_lost);
        match event.kind() {
            EventKind::Sync => {
                self.is_resumed &= was_lost;
                if self.sync.as_ref().is_some_and(|sync| !sync.is_of(event.table)) {
                    self.leave_generation();
                }
                self.sync = Some(Kept::of(event));
            }
            EventKind::Metric => {
                self.metrics.retain(|kept| kept.record.ty != event.record.ty);
                self.metrics.push(Kept::of(event));
            }
            EventKind::Label => {
                if let Some(live) = self.goroutines.get_mut(&event.goroutine()) {
                    live.label = Some(Kept::of(event));
                    if !std::mem::replace(&mut live.is_recent, true) {
                        self.recent.push(Slot::Goroutine(event.goroutine()));
                    }
                }
            }
            EventKind::RangeBegin | EventKind::RangeActive | EventKind::RangeEnd => {
                self.range(event);
            }
            EventKind::StateTransition => match Change::of(event) {
                Some(Change::Goroutine(step)) => self.goroutine(event, step),
                Some(Change::Proc(id, _, to)) => self.proc(event, id, to),
                None => {}
            },
            _ => {}
        }
    }

    /// The tables of a generation are not needed any more: its events that are kept get their own.
    fn leave_generation(&mut self) {
        let Self { own, goroutines, stops, assists, sweeps, .. } = self;
        own.begin();
        for slot in std::mem::take(&mut self.recent) {
            match slot {
                Slot::Goroutine(id) => {
                    if let Some(live) = goroutines.get_mut(&id) {
                        live.is_recent = false;
                        live.adopt(own);
                    }
                }
                Slot::Stop(id) => stops.get_mut(&id).into_iter().for_each(|kept| own.adopt(kept)),
                Slot::Assist(id) => {
                    assists.get_mut(&id).into_iter().for_each(|kept| own.adopt(kept));
                }
                Slot::Sweep(id) => sweeps.get_mut(&id).into_iter().for_each(|kept| own.adopt(kept)),
            }
        }
        self.metrics.iter_mut().chain(&mut self.mark).for_each(|kept| own.adopt(kept));
        if own.is_large() {
            // Most of it is of states that ended.
            own.renew();
            goroutines.values_mut().for_each(|live| live.adopt(own));
            let ranges = stops.values_mut().chain(assists.values_mut()).chain(sweeps.values_mut());
            let others = self.metrics.iter_mut().chain(&mut self.mark);
            ranges.chain(others).for_each(|kept| own.adopt(kept));
            own.renewed();
        }
    }

    fn range(&mut self, event: Event<'_>) {
        let Some(range) = event.range() else { return };
        let kept = (event.kind() != EventKind::RangeEnd).then(|| Kept::of(event));
        let slot = match (range.name, range.scope) {
            (RangeName::StopTheWorld(_), ResourceId::Goroutine(id)) => Some(Slot::Stop(id)),
            (RangeName::GcMarkAssist, ResourceId::Goroutine(id)) => Some(Slot::Assist(id)),
            (RangeName::GcSweep, ResourceId::Proc(id)) => Some(Slot::Sweep(id)),
            _ => None,
        };
        self.recent.extend(slot.filter(|_| kept.is_some()));
        match (range.name, range.scope) {
            (RangeName::GcMark, _) => self.mark = kept,
            (RangeName::StopTheWorld(_), ResourceId::Goroutine(id)) => {
                replace(&mut self.stops, id, kept);
            }
            (RangeName::GcMarkAssist, ResourceId::Goroutine(id)) => {
                replace(&mut self.assists, id, kept);
            }
            (RangeName::GcSweep, ResourceId::Proc(id)) => replace(&mut self.sweeps, id, kept),
            _ => {}
        }
    }

    fn goroutine(&mut self, event: Event<'_>, step: Step) {
        let Step { id, from, to, .. } = step;
        if to == GoState::NotExist {
            self.goroutines.remove(&id);
            self.assists.remove(&id);
            return;
        }
        let live = self.goroutines.get(&id);
        // The runtime repeats all states when a generation starts.
        if from == to && live.is_some() {
            return;
        }
        let known = live.filter(|_| from != GoState::NotExist);
        let before = known.and_then(|live| live.stack.clone());
        let own = (step.stack != 0).then(|| (step.stack, Some(Arc::clone(event.table))));
        let stack = own.or(before);
        let label = known.and_then(|live| live.label.clone());
        let state = state_of(event, step, stack.as_ref());
        let is_executing = matches!(to, GoState::Running | GoState::Syscall);
        let proc = if is_executing { event.proc() } else { ProcId::NONE };
        if to == GoState::Syscall && proc.is_some() {
            self.syscalls.insert(proc, id);
        }
        if !live.is_some_and(|live| live.is_recent) {
            self.recent.push(Slot::Goroutine(id));
        }
        self.goroutines.insert(id, Live { state, stack, proc, lost: None, label, is_recent: true });
    }

    /// A proc that becomes idle was taken away from the system call on it.
    fn proc(&mut self, event: Event<'_>, id: ProcId, to: ProcState) {
        let mut kept = Kept::of(event);
        kept.record = status(&kept.record, id, (ProcState::Undetermined, to));
        kept.table = None; // it refers to nothing
        self.procs.insert(id, kept);
        if to != ProcState::Idle {
            return;
        }
        let goroutine = self.syscalls.remove(&id).and_then(|id| self.goroutines.get_mut(&id));
        let is_there = |live: &&mut Live| {
            live.proc == id && live.state.record.to == State::Go(GoState::Syscall)
        };
        if let Some(live) = goroutine.filter(is_there) {
            live.proc = ProcId::NONE;
            live.lost = Some(id);
        }
    }

    /// Passes on the states at the start of the range. `next` is the time of the next event in it.
    fn begin(&mut self, next: Timestamp, each: Each<'_>) {
        self.phase = Phase::Within;
        let at = self.from;
        let Some(sync) = self.sync.take() else { return };
        let own = std::mem::take(&mut self.own).into_table(sync.generation());
        let own = Some(&own);
        let repeated = &mut self.repeated;
        let each: Each<'_> = &mut |event: Event<'_>| {
            *repeated += 1;
            each(event);
        };
        let restart = self.is_resumed.then(|| {
            let mut restart = sync.clone();
            restart.record.restart();
            restart
        });
        sync.pass(at, own, each);
        // After a loss, the number of Ps alone is that from before it: the others are of what follows.
        let is_before =
            |kept: &Kept| restart.is_none() || kept.record.ty == EventType::PROCS_CHANGE;
        let (before, metrics): (Vec<Kept>, Vec<Kept>) =
            std::mem::take(&mut self.metrics).into_iter().partition(is_before);
        before.into_iter().for_each(|kept| kept.pass(at, own, each));
        if let Some(restart) = restart {
            // The time up to the first event after a loss is lost for the range, too.
            restart.pass(if self.is_lost { next } else { at }, own, each);
        }
        metrics.into_iter().for_each(|kept| kept.pass(at, own, each));
        let mut goroutines = std::mem::take(&mut self.goroutines);
        // They lose their Ps again: each as it did, before that P does something else.
        goroutines.retain(|_, live| {
            let Some(proc) = live.lost else { return true };
            let states = (ProcState::Running, ProcState::Idle);
            let mut loss = live.state.clone();
            loss.record = status(&loss.record, proc, states);
            live.state.clone().pass(at, own, each);
            loss.pass(at, own, each);
            false
        });
        std::mem::take(&mut self.procs).into_values().for_each(|kept| kept.pass(at, own, each));
        let mut labels = Vec::new();
        let mut procs: HashMap<GoId, ProcId> = HashMap::new();
        for (id, live) in goroutines {
            live.state.pass(at, own, each);
            if live.proc.is_some() {
                procs.insert(id, live.proc);
                labels.extend(live.label.map(|label| (label, live.proc)));
            }
        }
        if let Some(mut mark) = self.mark.take() {
            mark.record.ty = EventType::GC_ACTIVE;
            mark.pass(at, own, each);
        }
        for mut kept in std::mem::take(&mut self.stops).into_values() {
            kept.record.set_began_before();
            kept.pass(at, own, each);
        }
        // An activity of which a later generation says that it is active begins here, too.
        for (proc, mut kept) in std::mem::take(&mut self.sweeps) {
            if kept.record.ty == EventType::GC_SWEEP_ACTIVE {
                let Record { g, m, .. } = kept.record;
                kept.record = Record::new(EventType::GC_SWEEP_BEGIN, 0, [0; 4]);
                (kept.record.g, kept.record.p, kept.record.m) = (g, proc, m);
            }
            kept.pass(at, own, each);
        }
        let assists = std::mem::take(&mut self.assists).into_iter().map(|(id, mut kept)| {
            if kept.record.ty == EventType::GC_MARK_ASSIST_ACTIVE {
                let Record { m, .. } = kept.record;
                kept.record = Record::new(EventType::GC_MARK_ASSIST_BEGIN, 0, [0; 4]);
                (kept.record.g, kept.record.m) = (id, m);
            }
            (kept, procs.get(&id).copied().unwrap_or(ProcId::NONE))
        });
        for (mut kept, proc) in assists.chain(labels) {
            kept.record.p = proc;
            kept.pass(at, own, each);
        }
        self.syscalls.clear();
    }
}

/// An analysis of a range of time: a [`Clip`] and its analysis, for
/// [`Parallel`](crate::parallel::Parallel).
///
/// ```
/// # fn main() -> Result<(), gotrace::Error> {
/// use gotrace::analysis::{Clipped, Scheduling, SchedulingOptions};
/// use gotrace::parallel::{Parallel, Split};
/// use gotrace::{Reader, Timestamp};
/// use std::fs::File;
///
/// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/shop.trace");
/// # let file: &[u8] = include_bytes!("../../tests/data/shop.trace");
/// let start = Reader::new(file)?.next_event()?.map_or(Timestamp::MIN, |event| event.time());
/// let at = |millis: i64| start.saturating_add_nanos(millis * 1_000_000);
/// let scheduling = Scheduling::new(SchedulingOptions::default());
/// let mut clipped = Clipped::new(at(5), at(15), scheduling);
/// let mut rest = Parallel::available().read(|| File::open(path), &mut clipped)?;
/// while let Some(event) = rest.next_event()? {
///     clipped.push(event);
///     if clipped.is_complete() {
///         break;
///     }
/// }
/// let report = clipped.finish().finish();
/// println!("{} waits for a P", report.latency.count());
/// # assert!(report.latency.count() > 10);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Clipped<A> {
    range: (Timestamp, Timestamp),
    /// `None` before the first event or loss.
    clip: Option<Clip>,
    begins: Begin,
    analysis: A,
}

/// Where the events of a [`Clipped`] begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Begin {
    /// With the trace.
    Trace,
    /// Not known yet, in a part of a trace.
    Unknown,
    /// Before the range, but not with the trace.
    Before,
    /// Within the range, or after it.
    Within,
}

impl<A: Split> Clipped<A> {
    /// Restricts an analysis to the time from `from` to `to`, inclusive.
    pub const fn new(from: Timestamp, to: Timestamp, analysis: A) -> Self {
        Self { range: (from, to), clip: None, begins: Begin::Trace, analysis }
    }

    /// Whether the range is over, so that further events are not in it.
    pub fn is_complete(&self) -> bool {
        self.clip.as_ref().is_some_and(Clip::is_complete)
    }

    /// A part of the trace is missing here: see [`Reader::recover`](crate::Reader::recover).
    pub fn loss(&mut self) {
        let (from, to) = self.range;
        self.clip.get_or_insert_with(|| Clip::new(from, to)).loss();
        if self.is_within() {
            self.analysis.loss();
        }
    }

    /// Completes the range after the last event of the trace, and returns the analysis.
    pub fn finish(mut self) -> A {
        if let Some(clip) = &mut self.clip {
            clip.finish(&mut |event| self.analysis.push(event));
        }
        self.analysis
    }

    fn is_within(&self) -> bool {
        self.clip.as_ref().is_some_and(Clip::is_within)
    }
}

impl<A: Split> Split for Clipped<A> {
    fn push(&mut self, event: Event<'_>) {
        let Self { range: (from, to), clip, begins, analysis } = self;
        let clip = clip.get_or_insert_with(|| {
            if *begins == Begin::Unknown {
                *begins = match event.sync() {
                    Some(sync) if sync.n() == 1 => Begin::Trace,
                    _ if *from <= event.time() => Begin::Within,
                    _ => Begin::Before,
                };
            }
            let mut clip = Clip::new(*from, *to);
            if *begins == Begin::Within {
                clip.phase = Phase::Within; // it needs no states before the range
            }
            clip
        });
        if clip.is_lost_before_all() && *from <= event.time() {
            analysis.loss();
        }
        clip.push(event, &mut |event| analysis.push(event));
    }

    fn part(&self, start: Timestamp) -> Self {
        let (from, to) = self.range;
        Self { begins: Begin::Unknown, ..Self::new(from, to, self.analysis.part(start.max(from))) }
    }

    fn is_continued_by(&self, part: &Self) -> bool {
        let fits = match part.begins {
            Begin::Trace => self.clip.is_none(),
            Begin::Unknown => true, // it has no events
            Begin::Before => false,
            Begin::Within => self.is_within(),
        };
        fits && self.analysis.is_continued_by(&part.analysis)
    }

    fn join(&mut self, part: Self) {
        self.analysis.join(part.analysis);
        match (&mut self.clip, part.clip) {
            (_, None) => {}
            (Some(clip), Some(part)) => {
                (clip.phase, clip.end) = (part.phase, part.end);
                clip.repeated += part.repeated;
            }
            (clip, part) => *clip = part,
        }
    }

    fn loss(&mut self) {
        self.loss();
    }
}

fn replace<K: Ord>(open: &mut BTreeMap<K, Kept>, key: K, kept: Option<Kept>) {
    match kept {
        Some(kept) => _ = open.insert(key, kept),
        None => _ = open.remove(&key),
    }
}

/// An event about the state of a proc, on the same thread as another one.
fn status(of: &Record, id: ProcId, (from, to): (ProcState, ProcState)) -> Record {
    let mut record = Record::new(EventType::PROC_STATUS, 0, [id.0 as u64, 0, 0, 0]);
    (record.from, record.to) = (State::Proc(from), State::Proc(to));
    (record.g, record.p, record.m) = (of.g, of.p, of.m);
    record
}

/// An event that reports the state that a transition leads to, from no known state.
fn state_of(event: Event<'_>, step: Step, stack: Option<&StackOf>) -> Kept {
    use EventType as T;
    let mut kept = Kept::of(event);
    // Others have no stack, and no reason.
    let has_details = matches!(
        event.record.ty,
        T::GO_BLOCK | T::GO_STOP | T::GO_SYSCALL_BEGIN | T::GO_CREATE | T::GO_CREATE_BLOCKED
    );
    if !has_details {
        let (ty, id) = match stack {
            Some((id, table)) => {
                kept.table.clone_from(table);
                (T::GO_STATUS_STACK, *id)
            }
            None => (T::GO_STATUS, 0),
        };
        let Record { g, p, m, .. } = *event.record;
        kept.record = Record { g, p, m, ..Record::new(ty, 0, [step.id.0 as u64, 0, 0, id]) };
        if event.record.is_of_v1_start() {
            kept.record.set_status_thread(event.record.status_thread());
        }
    }
    kept.record.from = State::Go(GoState::Undetermined);
    kept.record.to = State::Go(step.to);
    kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::{Frame, Span, Table};
    use std::sync::Arc;

    /// The tables of a generation with a reason, and a stack.
    fn table(number: u64, reason: &str) -> Arc<Table> {
        let mut table = Table::new(number);
        // Identifiers differ between generations.
        let (first, stack) = (10 * number, 3 * number);
        table.strings.insert(first, reason.as_bytes().into());
        table.strings.insert(first + 1, (*b"main.f").into());
        table.push_frame(Frame { pc: 7, func: first + 1, file: 0, line: number });
        table.stacks.insert(stack, Span { start: 0, len: 1 });
        Arc::new(table)
    }

    /// A generation in which a goroutine blocks.
    fn generation(clip: &mut Clip, number: u64, goroutine: u64) -> Arc<Table> {
        let table = table(number, &format!("reason {number}"));
        let time = 10 * number as i64;
        let sync = Record::sync(time, number, true);
        let args = [10 * number, 3 * number, 0, 0];
        let g = GoId(goroutine as i64);
        let blocks = Record { g, ..Record::new(EventType::GO_BLOCK, time + 1, args) };
        for record in [&sync, &blocks] {
            clip.push(Event { table: &table, record }, &mut |_| panic!("before the range"));
        }
        table
    }

    #[test]
    fn idle_goroutines_need_no_tables_of_their_generations() {
        const COUNT: u64 = 50;
        let mut clip = Clip::new(Timestamp::from_nanos(100_000), Timestamp::MAX);
        let tables: Vec<_> = (1..=COUNT).map(|n| generation(&mut clip, n, n)).collect();
        let needed = tables.iter().filter(|table| Arc::strong_count(table) > 1);
        assert_eq!(needed.count(), 1, "the last one");
        let mut found = 0;
        clip.finish(&mut |event| {
            let Some(transition) = event.state_transition() else { return };
            let goroutine = transition.resource().goroutine().unwrap();
            assert_eq!(transition.reason().to_string(), format!("reason {goroutine}"));
            assert_eq!(event.generation(), COUNT);
            let frame = transition.stack().unwrap().frames().next().unwrap();
            assert_eq!(
                (frame.function.to_string(), frame.line),
                ("main.f".to_owned(), goroutine.0 as u64)
            );
            found += 1;
        });
        assert_eq!(found, COUNT);
    }

    /// What is stated after a loss says nothing of the range that is over.
    #[test]
    fn a_loss_after_the_range_ends_it() {
        let mut clip = Clip::new(Timestamp::from_nanos(0), Timestamp::from_nanos(100));
        assert!(!clip.is_within());
        let table = table(1, "reason");
        let mut times = Vec::new();
        let mut each = |clip: &mut Clip, time, goroutine| {
            let mut record = Record::new(EventType::GO_STATUS, time, [goroutine, 0, 0, 0]);
            record.from = State::Go(GoState::Undetermined);
            record.to = State::Go(GoState::Waiting);
            let event = Event { table: &table, record: &record };
            clip.push(event, &mut |event| times.push((event.kind(), event.time().nanos())));
        };
        each(&mut clip, 10, 1);
        assert!(clip.is_within());
        each(&mut clip, 110, 2);
        assert!(!clip.is_within());
        clip.loss();
        each(&mut clip, 120, 3);
        assert!(clip.is_complete());
        let states = times.iter().filter(|(kind, _)| *kind == EventKind::StateTransition);
        assert_eq!(states.map(|(_, time)| *time).collect::<Vec<_>>(), [10, 100]);
        assert_eq!(times.last(), Some(&(EventKind::Sync, 100)));
    }

    /// A generation that the reader lost has no event between the last one of the range and the next.
    #[test]
    fn a_lost_end_of_a_generation_counts_as_in_the_whole() {
        let table = table(1, "reason");
        let mut status = Record::new(EventType::GO_STATUS, 10, [7, 0, 0, 0]);
        (status.from, status.to) = (State::Go(GoState::Undetermined), State::Go(GoState::Running));
        let mut resumed = Record::sync(500, 2, true);
        resumed.restart();
        let running = |from, to| {
            let mut clip = Clip::new(Timestamp::from_nanos(from), Timestamp::from_nanos(to));
            let mut summarizer = crate::analysis::Summarizer::new();
            for record in [&Record::sync(0, 1, true), &status, &resumed] {
                clip.push(Event { table: &table, record }, &mut |event| {
                    _ = summarizer.push(event);
                });
            }
            clip.finish(&mut |event| _ = summarizer.push(event));
            summarizer.finish().goroutines.iter().map(|each| each.times.running.as_nanos()).sum()
        };
        let (whole, before, after): (u128, u128, u128) =
            (running(0, 900), running(0, 100), running(100, 900));
        assert_eq!((whole, before, after), (10, 10, 0));
    }

    #[test]
    fn states_that_ended_need_no_memory() {
        let mut clip = Clip::new(Timestamp::MAX, Timestamp::MAX);
        for number in 1..=20_000 {
            generation(&mut clip, number, number % 100);
            assert!(clip.own.len() < 10_000, "{} in {number}", clip.own.len());
            assert!(clip.recent.len() < 100);
        }
    }
}
