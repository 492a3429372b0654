//! What holds for any timeline: intervals partition lives, and pieces partition what they explain.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests may panic"
)]

#[expect(dead_code, reason = "other tests use more of it")]
mod common;

use common::{World, at};
use proptest::prelude::*;
use std::collections::{BTreeMap, HashMap};
use trace_timeline::answers::{Report, critical_path};
use trace_timeline::{
    Context, Correlator, CorrelatorOptions, Derived, EntityId, EntityKind, EventKind, FlowKind,
    InstantKind, Interval, Kernel, LossKind, Occupant, SpanId, SpanKind, State, TextId,
    ThreadState,
};

/// Something that happens to the entities of a small machine; indexes are taken modulo their number.
#[derive(Clone, Debug)]
enum Step {
    Pass(i64),
    Switch { cpu: usize, prev: Option<usize>, left: usize, next: Option<usize>, unknown: bool },
    Flow { kind: usize, from: Option<usize>, context: usize, to: usize, cpu: Option<usize> },
    Queue { thread: usize, from: Option<usize>, cpu: usize },
    State { entity: usize, state: usize, on: Option<usize> },
    Lost { cpu: usize, kind: bool, since: i64 },
    Begin { entity: usize, kind: usize, by: Option<usize>, of: Option<usize> },
    Finish { span: usize, by: Option<usize> },
    Stopped,
    Starved,
    Throttle { since: i64, nanos: i64 },
    End { entity: usize },
    Goroutine,
}

fn step() -> impl Strategy<Value = Step> {
    let n = 0..64usize;
    let maybe = || proptest::option::of(0..64usize);
    prop_oneof![
        4 => prop_oneof![39 => 0..60i64, 1 => 100_000..200_000i64].prop_map(Step::Pass),
        6 => (n.clone(), maybe(), n.clone(), maybe(), any::<bool>()).prop_map(
            |(cpu, prev, left, next, unknown)| Step::Switch { cpu, prev, left, next, unknown }
        ),
        4 => (n.clone(), maybe(), n.clone(), n.clone(), maybe()).prop_map(
            |(kind, from, context, to, cpu)| Step::Flow { kind, from, context, to, cpu }
        ),
        1 => (n.clone(), maybe(), n.clone())
            .prop_map(|(thread, from, cpu)| Step::Queue { thread, from, cpu }),
        6 => (n.clone(), n.clone(), maybe())
            .prop_map(|(entity, state, on)| Step::State { entity, state, on }),
        1 => (n.clone(), any::<bool>(), 0..100i64)
            .prop_map(|(cpu, kind, since)| Step::Lost { cpu, kind, since }),
        2 => (n.clone(), n.clone(), maybe(), maybe())
            .prop_map(|(entity, kind, by, of)| Step::Begin { entity, kind, by, of }),
        2 => (n.clone(), maybe()).prop_map(|(span, by)| Step::Finish { span, by }),
        1 => Just(Step::Stopped),
        1 => Just(Step::Starved),
        1 => (0..100i64, 0..200i64).prop_map(|(since, nanos)| Step::Throttle { since, nanos }),
        1 => n.prop_map(|entity| Step::End { entity }),
        1 => Just(Step::Goroutine),
    ]
}

const LEFT: [ThreadState; 6] = [
    ThreadState::Unknown,
    ThreadState::Preempted,
    ThreadState::Sleeping,
    ThreadState::Blocked,
    ThreadState::Stopped,
    ThreadState::Dead,
];
const CONTEXTS: [Context; 4] =
    [Context::Unknown, Context::Task, Context::HardIrq, Context::SoftIrq];
const STATES: [State; 6] =
    [State::Unknown, State::Running, State::Runnable, State::Waiting, State::Syscall, State::Idle];
const FLOWS: [FlowKind; 3] = [FlowKind::Wakes, FlowKind::Creates, FlowKind::HandsOver];
const SPANS: [SpanKind; 8] = [
    SpanKind::Task,
    SpanKind::Region,
    SpanKind::Gc,
    SpanKind::GcAssist,
    SpanKind::StopTheWorld,
    SpanKind::Jit,
    SpanKind::LockWait,
    SpanKind::Queued,
];

/// The machine after these steps.
fn world(steps: &[Step]) -> World {
    let mut w = World::default();
    let process = w.entity(EntityKind::Process, 10, None);
    let cpus = [0, 1].map(|n| w.entity(EntityKind::Cpu, n, None));
    let threads = [10, 11, 12, 13].map(|n| w.entity(EntityKind::Thread, n, Some(process)));
    let ms = [10, 11].map(|n| w.entity(EntityKind::GoThread, n, Some(process)));
    let mut subjects: Vec<EntityId> = threads.to_vec();
    subjects.extend([12, 13].map(|n| w.entity(EntityKind::DotnetThread, n, Some(process))));
    subjects.extend([0, 1].map(|n| w.entity(EntityKind::Proc, n, Some(process))));
    subjects.extend([1, 2, 3].map(|n| w.entity(EntityKind::Goroutine, n, Some(process))));
    let mut spans: Vec<SpanId> = Vec::new();
    for step in steps {
        let subject = |n: usize| subjects[n % subjects.len()];
        let thread = |n: usize| threads[n % threads.len()];
        let cpu = |n: usize| cpus[n % cpus.len()];
        let m = |n: usize| ms[n % ms.len()];
        let now = w.now;
        match *step {
            Step::Pass(nanos) => {
                w.at(now + nanos);
            }
            Step::Switch { cpu: on, prev, left, next, unknown } => {
                w.push(EventKind::Switch {
                    cpu: cpu(on),
                    prev: prev.map(thread),
                    left: LEFT[left % LEFT.len()],
                    next: next.map(thread),
                    is_next_unknown: unknown && next.is_none(),
                    prio: 120,
                });
            }
            Step::Flow { kind, from, context, to, cpu: on } => {
                // An M can be the cause, too.
                let from = from.map(|n| if n % 5 == 0 { m(n) } else { subject(n) });
                w.push(EventKind::Flow {
                    kind: FLOWS[kind % FLOWS.len()],
                    from,
                    context: CONTEXTS[context % CONTEXTS.len()],
                    on: None,
                    to: subject(to),
                    cpu: on.map(cpu),
                    stack: None,
                });
            }
            Step::Queue { thread: of, from, cpu: to } => {
                let (thread, from, cpu) = (thread(of), from.map(cpu), cpu(to));
                w.push(EventKind::Queue { thread, from, cpu });
            }
            Step::State { entity, state, on } => {
                // Kernel threads have no runtime state.
                let runtime = &subjects[threads.len()..];
                let entity = runtime[entity % runtime.len()];
                let is_dotnet = w.tables.entities.kind(entity) == Some(EntityKind::DotnetThread);
                let on = on.filter(|_| !is_dotnet).map(m);
                w.push(EventKind::State {
                    entity,
                    state: STATES[state % STATES.len()],
                    on,
                    reason: TextId::EMPTY,
                    stack: None,
                });
            }
            Step::Lost { cpu: on, kind, since } => {
                let kind =
                    if kind { LossKind::SchedulerRecords } else { LossKind::UnreportedSwitch };
                w.lost(cpu(on), kind, now - since);
            }
            Step::Begin { entity, kind, by, of } => {
                let kind = SPANS[kind % SPANS.len()];
                let is_global = matches!(kind, SpanKind::StopTheWorld | SpanKind::Queued);
                let entity = if is_global { process } else { subject(entity) };
                spans.push(w.begin(entity, kind, "span", by.map(subject), of.map(subject)));
            }
            Step::Finish { span, by } => {
                if !spans.is_empty() {
                    let span = spans.swap_remove(span % spans.len());
                    w.finish(span, by.map(subject));
                }
            }
            Step::Stopped | Step::Starved => {
                let is_stop = matches!(step, Step::Stopped);
                let kind = if is_stop { InstantKind::Stopped } else { InstantKind::Starvation };
                let name = TextId::EMPTY;
                w.push(EventKind::Instant { entity: process, kind, name, of: None, stack: None });
            }
            Step::Throttle { since, nanos } => {
                let since = at(now - since);
                let cgroup = TextId::EMPTY;
                w.push(EventKind::Throttle { process, cgroup, since, nanos, periods: 1 });
            }
            Step::End { entity } => {
                w.push(EventKind::End { entity: subject(entity) });
            }
            Step::Goroutine => {
                let number = i64::try_from(subjects.len()).unwrap();
                subjects.push(w.entity(EntityKind::Goroutine, number, Some(process)));
            }
        }
    }
    w
}

fn intervals(w: &World, options: CorrelatorOptions) -> Vec<Interval> {
    let mut intervals = Vec::new();
    let mut correlator = Correlator::with_options(options);
    let mut each = |derived: Derived<'_>| {
        if let Derived::Interval(interval) = derived {
            intervals.push(interval);
        }
    };
    for event in &w.events {
        correlator.push(event, &w.tables.entities, &mut each);
    }
    correlator.finish(&mut each);
    intervals
}

/// By subject, without the occupants of CPUs: neighbours that differ in nothing else are one.
fn joined(intervals: &[Interval]) -> BTreeMap<EntityId, Vec<Interval>> {
    let mut joined: BTreeMap<EntityId, Vec<Interval>> = BTreeMap::new();
    for interval in intervals {
        let mut next = *interval;
        if let Kernel::Runnable { occupant, .. } = &mut next.kernel {
            *occupant = Occupant::Unknown;
        }
        let of_subject = joined.entry(next.subject).or_default();
        let is_same = |last: &&mut Interval| {
            let mut same = next;
            (same.start, same.end) = (last.start, last.end);
            **last == same
        };
        match of_subject.last_mut().filter(is_same) {
            Some(last) => last.end = next.end,
            None => of_subject.push(next),
        }
    }
    joined
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    /// From its first mention to its end every subject has intervals without gaps and overlaps,
    /// and the times of a report sum to the same.
    #[test]
    fn intervals_partition_lives(steps in proptest::collection::vec(step(), 0..200)) {
        let w = world(&steps);
        let entities = &w.tables.entities;
        let over = w.events.last().unwrap().time.nanos();
        let mut lives: HashMap<EntityId, (i64, i64)> = HashMap::new();
        for event in &w.events {
            match event.kind {
                EventKind::Start { entity } => {
                    lives.insert(entity, (event.time.nanos(), over));
                }
                EventKind::End { entity } => {
                    let life = lives.get_mut(&entity).unwrap();
                    life.1 = life.1.min(event.time.nanos());
                }
                _ => {}
            }
        }
        let mut intervals: HashMap<EntityId, Vec<Interval>> = HashMap::new();
        let mut report = Report::new();
        let mut correlator = Correlator::new();
        let mut each = |derived: Derived<'_>| {
            report.push(&derived, entities);
            if let Derived::Interval(interval) = derived {
                intervals.entry(interval.subject).or_default().push(interval);
            }
        };
        for event in &w.events {
            correlator.push(event, entities, &mut each);
        }
        correlator.finish(&mut each);
        for (id, (start, end)) in lives {
            let has_intervals = matches!(
                entities.kind(id),
                Some(
                    EntityKind::Thread
                        | EntityKind::DotnetThread
                        | EntityKind::Proc
                        | EntityKind::Goroutine
                )
            );
            let of = intervals.remove(&id).unwrap_or_default();
            if !has_intervals {
                prop_assert!(of.is_empty());
                continue;
            }
            let mut time = start;
            for interval in &of {
                prop_assert_eq!(interval.start.nanos(), time);
                prop_assert!(interval.nanos() > 0);
                time = interval.end.nanos();
            }
            prop_assert_eq!(time, end);
            if entities.kind(id) == Some(EntityKind::Thread) {
                let times = report.threads.get(&id).map_or(0, |thread| thread.times.total());
                prop_assert_eq!(times, end - start);
            }
        }
    }

    /// Options leave out data and change none of the rest.
    #[test]
    fn options_leave_out(steps in proptest::collection::vec(step(), 0..200)) {
        let mut options = CorrelatorOptions::default();
        options.occupants = false;
        // A loss makes the open interval doubtful from its start: how much that is depends on the
        // intervals. So does a thread that leaves another CPU than it had.
        let is_certain = |step: &&Step| !matches!(step, Step::Lost { .. });
        let mut certain: Vec<Step> = steps.iter().filter(is_certain).cloned().collect();
        let mut running: [Option<usize>; 2] = [None; 2];
        for step in &mut certain {
            if let Step::Switch { cpu, prev, next, .. } = step {
                *next = next.map(|next| next % 4);
                // It is on one CPU.
                running[(*cpu + 1) % 2].take_if(|other| Some(*other) == *next);
                *prev = std::mem::replace(&mut running[*cpu % 2], *next);
            }
        }
        let w = world(&certain);
        let all = intervals(&w, CorrelatorOptions::default());
        prop_assert_eq!(joined(&all), joined(&intervals(&w, options)));
        let w = world(&steps);
        let whole = intervals(&w, options);
        options.threads = false;
        let runtimes = intervals(&w, options);
        let is_thread = |interval: &&Interval| {
            w.tables.entities.kind(interval.subject) == Some(EntityKind::Thread)
        };
        let rest: Vec<Interval> = whole.iter().filter(|i| !is_thread(i)).copied().collect();
        prop_assert_eq!(runtimes, rest);
    }

    /// The pieces of any interval of any subject partition it.
    #[test]
    fn pieces_partition_what_they_explain(
        steps in proptest::collection::vec(step(), 0..200),
        start in 0..1000i64,
        nanos in 0..3000i64,
    ) {
        let w = world(&steps);
        let history = w.history();
        let tasks = [None, w.tables.entities.iter().next().map(|(id, _)| id)];
        for subject in history.subjects() {
            for task in tasks {
                let end = start + nanos;
                let entities = &w.tables.entities;
                let path = critical_path(&history, entities, subject, at(start), at(end), task);
                let mut time = start;
                for piece in &path.pieces {
                    prop_assert_eq!(piece.start.nanos(), time);
                    prop_assert!(piece.nanos() > 0);
                    time = piece.end.nanos();
                }
                prop_assert_eq!(time, end);
            }
        }
    }

    /// `cpu.stat` is text of a file: any bytes.
    #[test]
    fn any_cpu_stat_is_read(
        texts in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..64), 0..4),
        periods in any::<u64>(),
        nanos in any::<u64>(),
    ) {
        use trace_timeline::sources::cgroup::{CgroupSource, CpuStat};
        let (mut w, mut source) = (World::default(), CgroupSource::new(1));
        for text in &texts {
            source.push(at(1), text, &mut w.tables, &mut w.events);
        }
        let text = format!("nr_throttled {periods}\nthrottled_time {nanos}\n");
        let stat = CpuStat::parse(text.as_bytes()).unwrap();
        prop_assert_eq!((stat.periods, stat.nanos), (periods, nanos));
    }
}
