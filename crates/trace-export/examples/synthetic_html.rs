//! Writes a page of a made-up program, to test viewers: two CPUs, goroutines that pass messages,
//! and, on request, hostile names.
//!
//! Usage: `synthetic_html INTERVALS OUT.html [NAME]`

use std::fs::File;
use std::io::BufWriter;
use trace_export::html::{HtmlOptions, HtmlTimeline};
use trace_timeline::answers::Report;
use trace_timeline::{
    Context, Correlator, Derived, Entity, EntityId, EntityKind, Event, EventKind, FlowKind,
    InstantKind, LossKind, SpanKind, State, Tables, TextId, ThreadState, Timestamp,
};

const CPUS: i64 = 4;
const GOROUTINES: usize = 64;

/// More than the page lists.
const LOSSES: u64 = 501;

/// Requests without critical paths.
const MISSING: u64 = 3;

struct Program {
    tables: Tables,
    correlator: Correlator,
    html: HtmlTimeline,
    report: Report,
    intervals: u64,
    at: i64,
}

impl Program {
    fn push(&mut self, kind: EventKind) {
        let event = Event { time: Timestamp::from_nanos(self.at), kind };
        let Self { tables, correlator, html, report, intervals, .. } = self;
        let tables = &*tables;
        correlator.push(&event, &tables.entities, &mut |derived| {
            *intervals += u64::from(matches!(derived, Derived::Interval(_)));
            report.push(&derived, &tables.entities);
            html.push(&derived, tables);
        });
    }

    fn entity(&mut self, entity: Entity) -> Result<EntityId, &'static str> {
        let id = self.tables.entity(entity).ok_or("the tables are full")?;
        self.push(EventKind::Start { entity: id });
        Ok(id)
    }
}

const fn switch(
    cpu: EntityId,
    prev: Option<EntityId>,
    left: ThreadState,
    next: Option<EntityId>,
) -> EventKind {
    EventKind::Switch { cpu, prev, left, next, is_next_unknown: false, prio: 120 }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(wanted), Some(out)) = (args.next(), args.next()) else {
        return Err("usage: synthetic_html INTERVALS OUT.html [NAME]".into());
    };
    let wanted: u64 = wanted.parse()?;
    let name = args.next().unwrap_or_else(|| "synthetic".to_owned());
    let mut program = Program {
        tables: Tables::new(),
        correlator: Correlator::new(),
        html: HtmlTimeline::new(HtmlOptions::default()),
        report: Report::new(),
        intervals: 0,
        at: 1_000,
    };
    let text = program.tables.text(name.as_bytes());
    let process = program.entity(Entity::new(EntityKind::Process, 100).name(text))?;
    let mut threads = Vec::new();
    for number in 0..CPUS {
        let cpu = program.entity(Entity::new(EntityKind::Cpu, number))?;
        let of = |kind| Entity::new(kind, 100 + number).child_of(Some(process)).name(text);
        let thread = program.entity(of(EntityKind::Thread))?;
        let m = program.entity(of(EntityKind::GoThread))?;
        threads.push((cpu, thread, m));
    }
    let intruder = Entity::new(EntityKind::Thread, 99).child_of(Some(process)).name(text);
    let intruder = program.entity(intruder)?;
    // The same thread, as its runtime describes it.
    let managed = Entity::new(EntityKind::DotnetThread, 99).child_of(Some(process)).name(text);
    let managed = program.entity(managed)?;
    for _ in 0..LOSSES {
        let (kind, since) = (LossKind::DotnetEvents, Timestamp::from_nanos(program.at));
        program.push(EventKind::Loss { entity: None, kind, since, count: None });
    }
    // Two processes with one process id, one after the other.
    for _ in 0..2 {
        let start = Timestamp::from_nanos(program.at);
        let child = Entity::new(EntityKind::Process, 7).name(text).start(start);
        let process = program.entity(child.child_of(Some(process)))?;
        let (span, kind, by, of) = (program.tables.new_span(), SpanKind::Gc, None, None);
        let (entity, name, stack) = (process, text, None);
        program.push(EventKind::Begin { span, entity, kind, name, by, of, stack });
        program.at += 1_000;
        program.push(EventKind::Finish { span, by, is_cut: false });
        if let Some(ended) = program.tables.entities.get_mut(process) {
            ended.end = Some(Timestamp::from_nanos(program.at));
        }
        program.push(EventKind::End { entity: process });
        program.at += 1_000;
    }
    let gc = program.entity(Entity::new(EntityKind::Gc, 3).child_of(Some(process)))?;
    let (span, kind) = (program.tables.new_span(), SpanKind::StopTheWorld);
    let (entity, by, of, stack) = (process, None, Some(gc), None);
    program.push(EventKind::Begin { span, entity, kind, name: text, by, of, stack });
    program.at += 1_000;
    program.push(EventKind::Finish { span, by, is_cut: false });
    let load = program.tables.text(b"load");
    for (value, long) in [(9.0, 1_000), (0.0, 10_000), (5.0, 2_000), (f64::NAN, 0), (1.0, 1_000)] {
        program.push(EventKind::Counter { entity, name: load, unit: TextId::EMPTY, value });
        program.at += long;
    }
    let mut goroutines = Vec::new();
    for (number, function) in
        (1..).zip(["main.worker", "main.serve", &name].iter().cycle()).take(GOROUTINES)
    {
        let entry = program.tables.text(function.as_bytes());
        let entity = Entity::new(EntityKind::Goroutine, number).child_of(Some(process));
        goroutines.push(program.entity(entity.name(entry))?);
    }
    let (span, kind, by) = (program.tables.new_span(), SpanKind::LockWait, None);
    let (entity, of) = (threads[0].1, Some(intruder));
    program.push(EventKind::Begin { span, entity, kind, name: text, by, of, stack: None });
    program.at += 1_000;
    program.push(EventKind::Finish { span, by, is_cut: false });
    // A generator of Knuth's: the same file each time.
    let mut seed = 42_u64;
    let mut random = move |below: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize % below
    };
    let mut running = [None; CPUS as usize];
    while program.intervals < wanted {
        program.at += 500 + random(4_000) as i64;
        let lane = random(CPUS as usize);
        let (cpu, thread, m) = threads[lane];
        match running[lane].take() {
            Some(goroutine) => {
                let state = State::Waiting;
                let (on, stack) = (None, None);
                if random(100) == 0 {
                    // Another thread takes the CPU during a system call.
                    let (state, on) = (State::Syscall, Some(m));
                    program.push(EventKind::State {
                        entity: goroutine,
                        state,
                        on,
                        reason: TextId::EMPTY,
                        stack,
                    });
                    program.at += 500;
                    program.push(switch(cpu, Some(thread), ThreadState::Preempted, Some(intruder)));
                    program.at += 1_000;
                    program.push(switch(cpu, Some(intruder), ThreadState::Sleeping, Some(thread)));
                }
                program.push(EventKind::State {
                    entity: goroutine,
                    state,
                    on,
                    reason: text,
                    stack,
                });
                program.push(switch(cpu, Some(thread), ThreadState::Sleeping, None));
            }
            None => {
                let goroutine = goroutines[random(GOROUTINES)];
                if running.contains(&Some(goroutine)) {
                    continue;
                }
                let waker = goroutines[random(GOROUTINES)];
                let flow = |to, from| EventKind::Flow {
                    kind: FlowKind::Wakes,
                    from: Some(from),
                    context: Context::Task,
                    on: None,
                    to,
                    cpu: None,
                    stack: None,
                };
                program.push(flow(thread, if random(100) == 0 { managed } else { waker }));
                program.push(flow(goroutine, waker));
                let of = |state, on| EventKind::State {
                    entity: goroutine,
                    state,
                    on,
                    reason: TextId::EMPTY,
                    stack: None,
                };
                program.push(of(State::Runnable, None));
                program.at += 200 + random(2_000) as i64;
                program.push(switch(cpu, None, ThreadState::Unknown, Some(thread)));
                program.push(of(State::Running, Some(m)));
                running[lane] = Some(goroutine);
                if random(50) == 0 {
                    let kind = InstantKind::Log;
                    program.push(EventKind::Instant {
                        entity: goroutine,
                        kind,
                        name: text,
                        of: None,
                        stack: None,
                    });
                }
                if random(200) == 0 {
                    let span = program.tables.new_span();
                    let (kind, by, of) = (SpanKind::Gc, None, None);
                    program.push(EventKind::Begin {
                        span,
                        entity: process,
                        kind,
                        name: text,
                        by,
                        of,
                        stack: None,
                    });
                    program.at += 50_000;
                    program.push(EventKind::Finish { span, by: None, is_cut: false });
                }
            }
        }
    }
    let Program { tables, mut correlator, mut html, mut report, .. } = program;
    correlator.finish(&mut |derived| {
        report.push(&derived, &tables.entities);
        html.push(&derived, &tables);
    });
    html.note(name.clone());
    // As of requests with too many events.
    html.omit_paths(MISSING);
    let stats = html.write(&name, &tables, &report, &[], BufWriter::new(File::create(out)?))?;
    println!("{} intervals, {} bytes", stats.items, stats.bytes);
    Ok(())
}
