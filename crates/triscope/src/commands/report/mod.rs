//! `triscope report`: where the time of processes, threads and goroutines went.

mod json;
mod print;

use crate::answers::html;
use crate::failure::{Failure, OneLine, Result};
use crate::io::stdout::Output;
use crate::run::stop::Listener;
use crate::sources::model::{Traces, name, unrelated};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use trace_timeline::answers::{CpuTimes, Delay, Group, Histogram, Report, Throttled, Waker};
use trace_timeline::text;
use trace_timeline::{
    Attribute, Entities, Entity, EntityId, EntityKind, Occupant, Tables, TextId, Timestamp,
};

/// Report where the time of processes, threads and goroutines went
///
/// For each thread: time on a CPU, waiting for a CPU (preempted, or after a wake-up), sleeping,
/// blocked in the kernel, and the scheduling latency. For goroutines by entry function: running,
/// divided by what the kernel did with the thread; runnable; waiting; and the same for the single
/// goroutines with most scheduling latency. For .NET threads the same.
/// Further: time off the CPU by reason, the longest scheduling delays, who had the CPUs that threads
/// waited for, who woke them, GCs with their causes, stop-the-world pauses with who was late, and
/// what could not be measured and why.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  triscope report trace.out                    goroutines only
  triscope report trace.out perf.data          with the kernel's part
  triscope report recording/ --html report.html
  triscope report trace.out --goroutine 42     its times and scheduling latency
  curl -s http://localhost:6060/debug/pprof/trace?seconds=5 | triscope report -
  triscope report --json recording/ | jq '.threads[0]'

perf.data is a recording of the scheduler on the clock of Go:
  perf record -k CLOCK_MONOTONIC -a -e sched:sched_switch,sched:sched_waking,sched:sched_wakeup_new
Times in JSON are nanoseconds.")]
pub(crate) struct Args {
    #[command(flatten)]
    traces: Traces,
    /// Only this process; can be repeated
    #[arg(long, value_name = "PID")]
    pid: Vec<u32>,
    /// Every process: without it, of a directory that triscope record --keep wrote, only the
    /// recorded process and its children
    #[arg(long, conflicts_with = "html")]
    all: bool,
    /// Show the goroutine with this id; can be repeated
    #[arg(long, value_name = "ID", conflicts_with = "html")]
    goroutine: Vec<i64>,
    /// Number of single goroutines, those with most scheduling latency first
    #[arg(long, value_name = "N", default_value_t = 10, conflicts_with_all = ["html", "goroutine"])]
    worst: usize,
    /// Print JSON, with all threads
    #[arg(long, conflicts_with = "html")]
    json: bool,
    /// Write a page with the timeline, critical paths, flame graphs and the tables: one file that
    /// opens in a browser and loads nothing
    #[arg(long, value_name = "FILE", conflicts_with = "pid")]
    html: Option<PathBuf>,
}

/// Rows of each table of the text.
const ROWS: usize = 20;

pub(crate) fn run(args: &Args) -> Result {
    if let Some(path) = &args.html {
        let _listener = Listener::exit();
        return html::write(&args.traces, path)?;
    }
    let mut tables = Tables::new();
    let mut report = Report::new();
    args.goroutine.iter().for_each(|id| report.keep_goroutine(*id));
    let (outcome, mut notes) =
        args.traces.derive_with_notes(&mut tables, &mut |derived, tables| {
            report.push(&derived, &tables.entities);
        })?;
    let entities = &tables.entities;
    let recorded = args.traces.recorded().filter(|_| args.pid.is_empty() && !args.all);
    let shown = match recorded {
        Some(pid) => Some(entities.family(pid)),
        None => of_pids(&args.pid, entities),
    };
    let is_shown = |process| is_one_of(process, shown.as_ref());
    let hidden: Vec<String> = without_pid(entities, is_shown)
        .map(|process| {
            let name = name(&tables, process);
            format!("{name}: not shown, as its process id is not known: name the file go-PID.trace")
        })
        .collect();
    if let Some(pid) = args.pid.iter().find(|pid| !has_process(**pid, entities)) {
        // It may be one of those that have no process id, or are related to none of the kernel.
        let processes = entities.iter().filter(|(_, e)| e.kind == EntityKind::Process);
        let unrelated: BTreeSet<String> =
            processes.map(|(process, _)| unrelated(process, &tables)).collect();
        let about_ids = notes.iter().filter(|note| unrelated.contains(*note)).chain(&hidden);
        let failure = missing_process(*pid, &report, &tables);
        return Err(about_ids.fold(failure, Failure::and));
    }
    notes.extend(hidden);
    // Those that are given, otherwise the worst.
    let worst = if args.goroutine.is_empty() { args.worst } else { 0 };
    let goroutines = report.goroutines(worst, entities, is_shown);
    let number = |goroutine| entities.get(goroutine).map(|entity| entity.number);
    if let Some(id) = args
        .goroutine
        .iter()
        .find(|id| !goroutines.iter().any(|(goroutine, _)| number(*goroutine) == Some(**id)))
    {
        let all = report.goroutines(0, entities, |_| true);
        let others = all.iter().filter(|(goroutine, _)| number(*goroutine) == Some(*id));
        return Err(missing_goroutine(*id, others.map(|(goroutine, _)| *goroutine), &tables));
    }
    let left_out = match worst > Report::MAX_GOROUTINES {
        true => report.goroutines_left_out(is_shown),
        false => 0,
    };
    let notes = &notes;
    let view =
        View { report: &report, tables: &tables, goroutines, left_out, shown, recorded, notes };
    let mut output = Output::new();
    if args.json {
        let text = serde_json::to_string_pretty(&view.json()).unwrap_or_default();
        output.buffer.extend_from_slice(text.as_bytes());
        output.buffer.push(b'\n');
    } else {
        let _ = view.print(&mut output.buffer); // writing to a vector does not fail
    }
    output.finish()?;
    outcome
}

/// The processes with these ids; `None`, which is every process, if there are none.
fn of_pids(pids: &[u32], entities: &Entities) -> Option<BTreeSet<EntityId>> {
    let processes = entities.iter().filter(|(_, e)| e.kind == EntityKind::Process);
    let is_one = |process: &Entity| pids.iter().any(|pid| process.number == i64::from(*pid));
    let processes = processes.filter(|(_, process)| is_one(process));
    (!pids.is_empty()).then(|| processes.map(|(id, _)| id).collect())
}

/// Whether a process is one of these. Every one is if none were chosen.
fn is_one_of(process: Option<EntityId>, chosen: Option<&BTreeSet<EntityId>>) -> bool {
    chosen.is_none_or(|chosen| process.is_some_and(|process| chosen.contains(&process)))
}

/// The processes of Go traces that may be one of those that are shown: the traces do not record their process
/// ids, and no threads of the kernel say it.
fn without_pid(
    entities: &Entities,
    is_shown: impl Fn(Option<EntityId>) -> bool,
) -> impl Iterator<Item = EntityId> {
    let unknown = entities.iter().filter(|(_, e)| e.kind == EntityKind::Process && e.number < 0);
    unknown.map(|(process, _)| process).filter(move |process| !is_shown(Some(*process)))
}

fn has_process(pid: u32, entities: &Entities) -> bool {
    entities.iter().any(|(_, e)| e.kind == EntityKind::Process && e.number == i64::from(pid))
}

/// The failure if a goroutine is not in the traces, or only in processes that are not shown.
fn missing_goroutine(id: i64, others: impl Iterator<Item = EntityId>, tables: &Tables) -> Failure {
    let process = |goroutine| tables.entities.process_of(goroutine);
    let others: Vec<String> =
        others.filter_map(process).map(|process| name(tables, process)).collect();
    Failure::new(match others.is_empty() {
        true => format!("goroutine {id} is not in the traces"),
        false => {
            let of = others.join(", ");
            format!("goroutine {id} is not in the processes that are shown; it is in {of}")
        }
    })
}

/// The failure if a process is not in the traces. It names some that are: those with most time of their
/// threads and goroutines on CPUs, or running.
fn missing_process(pid: u32, report: &Report, tables: &Tables) -> Failure {
    const SHOWN: usize = 5;
    let mut ran: BTreeMap<(i64, TextId), i64> = BTreeMap::new();
    let mut add = |process: Option<EntityId>, nanos: i64| {
        let known = process.and_then(|process| tables.entities.get(process));
        if let Some(known) = known.filter(|known| known.number >= 0) {
            let sum = ran.entry((known.number, known.name)).or_default();
            *sum = sum.saturating_add(nanos);
        }
    };
    for (id, _) in tables.entities.iter().filter(|(_, e)| e.kind == EntityKind::Process) {
        add(Some(id), 0);
    }
    for (thread, times) in &report.threads {
        add(tables.entities.process_of(*thread), times.times.on_cpu);
    }
    for ((process, _), group) in &report.groups {
        add(*process, group.running.unknown);
    }
    let mut ran: Vec<((i64, TextId), i64)> = ran.into_iter().collect();
    ran.sort_by_key(|(_, nanos)| Reverse(*nanos));
    let shown =
        ran.iter().take(SHOWN).map(|((pid, name), _)| format!("{pid} ({})", tables.str(*name)));
    let mut there = match shown.collect::<Vec<_>>().join(", ") {
        none if none.is_empty() => "they name no process ids".to_owned(),
        some => format!("they have {some}"),
    };
    if let Some(more @ 1..) = ran.len().checked_sub(SHOWN) {
        there.push_str(&format!(", {more} more"));
    }
    Failure::new(OneLine(&format!("process {pid} is not in the traces; {there}")))
}

struct View<'a> {
    report: &'a Report,
    tables: &'a Tables,
    /// Single goroutines.
    goroutines: Vec<(EntityId, &'a Group)>,
    /// Goroutines that would be among them if their process had fewer.
    left_out: u64,
    /// The processes that are shown; `None` for all.
    shown: Option<BTreeSet<EntityId>>,
    /// The process to which the report is limited, with its children.
    recorded: Option<u32>,
    /// What the traces have that is in no table.
    notes: &'a [String],
}

impl View<'_> {
    fn is_shown(&self, process: Option<EntityId>) -> bool {
        is_one_of(process, self.shown.as_ref())
    }

    fn process(&self, process: Option<EntityId>) -> String {
        process.map_or("?".to_owned(), |process| name(self.tables, process))
    }

    fn process_of(&self, thread: EntityId) -> Option<EntityId> {
        self.tables.entities.get(thread).and_then(|thread| thread.parent)
    }

    /// Threads by time on a CPU, longest first.
    fn threads(&self) -> Vec<(EntityId, &CpuTimes, &Histogram)> {
        let mut threads: Vec<_> = self
            .report
            .threads
            .iter()
            .filter(|(thread, _)| self.is_shown(self.process_of(**thread)))
            .map(|(thread, report)| (*thread, &report.times, &report.latency))
            .collect();
        threads.sort_by_key(|(_, times, _)| Reverse(times.on_cpu));
        threads
    }

    /// Groups of goroutines by the time in which they were active.
    fn groups(&self) -> Vec<(Option<EntityId>, TextId, &Group)> {
        let groups = self.report.groups.iter().filter(|((process, _), _)| self.is_shown(*process));
        let mut groups: Vec<_> = groups.map(|((process, name), g)| (*process, *name, g)).collect();
        groups.sort_by_key(|(.., g)| Reverse(g.active()));
        groups
    }

    fn with_process(&self, id: EntityId) -> String {
        OneLine(&text::with_process(self.tables, id)).to_string()
    }

    fn occupant(&self, occupant: Occupant) -> String {
        OneLine(&text::occupant(occupant, self.tables)).to_string()
    }

    fn waker(&self, waker: Waker) -> String {
        OneLine(&text::waker(waker, self.tables)).to_string()
    }

    fn text(&self, id: TextId) -> String {
        let text = self.tables.str(id);
        if text.is_empty() { "(unknown)".to_owned() } else { OneLine(&text).to_string() }
    }

    /// The name of a group: an entry function, or .NET threads.
    fn entry(&self, entry: TextId, process: Option<EntityId>) -> String {
        let runtime =
            process.and_then(|process| self.tables.entities.attribute(process, Attribute::Runtime));
        let is_dotnet = runtime.is_some_and(|runtime| self.tables.get(runtime) == b".NET");
        if entry.is_empty() && is_dotnet { ".NET threads".to_owned() } else { self.text(entry) }
    }

    fn seconds(&self) -> f64 {
        let Report { start, end, .. } = self.report;
        let nanos = start.zip(*end).map_or(0, |(start, end)| end.nanos_since(start));
        nanos as f64 / 1e9
    }

    fn delays(&self) -> impl Iterator<Item = &Delay> {
        self.report.longest_delays(|process| self.is_shown(process)).into_iter()
    }

    fn since_start(&self, at: Timestamp) -> i64 {
        self.report.start.map_or(0, |start| at.nanos_since(start))
    }

    /// Throttled processes.
    fn throttled(&self) -> impl Iterator<Item = (EntityId, &Throttled)> {
        let throttled = self.report.throttled.iter();
        let throttled = throttled.map(|(process, throttled)| (*process, throttled));
        throttled.filter(|(process, _)| self.is_shown(Some(*process)))
    }

    /// What is in no table.
    fn notes(&self) -> impl Iterator<Item = String> {
        let goroutines = self.report.goroutines_dropped();
        let own = (goroutines > 0).then(|| {
            format!("{goroutines} goroutines have no times of their own: too many lived at once")
        });
        let left_out = (self.left_out > 0).then(|| {
            let (count, most) = (self.left_out, Report::MAX_GOROUTINES);
            format!(
                "{count} goroutines that ended are not among the single ones: of each process, those \
                 with most scheduling latency have times of their own, at least {most}"
            )
        });
        let own = own.into_iter().chain(left_out);
        let dropped = text::dropped(self.tables.dropped());
        let dropped = dropped.map(|(count, what)| format!("{count} {what}"));
        self.notes.iter().cloned().chain(dropped).chain(own)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trace_timeline::{Context, Correlator, Event, EventKind, FlowKind, State};

    /// Replicas of a program have goroutines with the same ids and entry functions.
    #[test]
    fn goroutines_of_several_processes_have_their_process() {
        let (mut tables, mut events) = (Tables::new(), Vec::new());
        let [serve, shop] = [&b"main.serve"[..], b"shop"].map(|name| tables.text(name));
        let mut entity = |kind, number, parent, name| {
            let entity = Entity::new(kind, number).child_of(parent).name(name);
            tables.entity(entity).unwrap()
        };
        let other = entity(EntityKind::Process, 30, None, TextId::EMPTY);
        let to = entity(EntityKind::Thread, 30, Some(other), TextId::EMPTY);
        events.push((0, EventKind::Start { entity: to }));
        for (pid, delay) in [(10, 10), (20, 20)] {
            let process = entity(EntityKind::Process, pid, None, shop);
            let goroutine = entity(EntityKind::Goroutine, 7, Some(process), serve);
            let state = |state| EventKind::State {
                entity: goroutine,
                state,
                on: None,
                reason: TextId::EMPTY,
                stack: None,
            };
            events.push((0, EventKind::Start { entity: goroutine }));
            events.push((0, state(State::Runnable)));
            events.push((delay, state(State::Running)));
            events.push((
                30,
                EventKind::Flow {
                    kind: FlowKind::Wakes,
                    from: Some(goroutine),
                    context: Context::Task,
                    on: None,
                    to,
                    cpu: None,
                    stack: None,
                },
            ));
        }
        events.sort_by_key(|(time, _)| *time);
        let (mut report, mut correlator) = (Report::new(), Correlator::new());
        let entities = &tables.entities;
        for (time, kind) in events {
            let event = Event { time: Timestamp::from_nanos(time), kind };
            correlator.push(&event, entities, &mut |derived| report.push(&derived, entities));
        }
        correlator.finish(&mut |derived| report.push(&derived, entities));
        let view = View {
            report: &report,
            tables: &tables,
            goroutines: Vec::new(),
            left_out: 0,
            shown: None,
            recorded: None,
            notes: &[],
        };
        let json = view.json();
        let delays: Vec<_> = json["longest_delays"]
            .as_array()
            .unwrap()
            .iter()
            .map(|delay| (&delay["who"], &delay["process"]["pid"], &delay["number"]))
            .map(|(who, pid, number)| (who.as_str().unwrap(), pid.as_i64(), number.as_i64()))
            .collect();
        let of_shop = |pid| format!("main.serve (G7) of shop ({pid})");
        let [of_10, of_20] = [10, 20].map(of_shop);
        assert_eq!(delays, [(&*of_20, Some(20), Some(7)), (&*of_10, Some(10), Some(7))]);
        let mut out = Vec::new();
        view.print(&mut out).unwrap();
        let out = String::from_utf8(out).unwrap();
        for pid in [10, 20] {
            let delay = format!("until 0.000000 s  {}\n", of_shop(pid));
            let wake = format!("goroutines main.serve of shop ({pid}); in process 30\n");
            assert!(out.contains(&delay) && out.contains(&wake), "{out}");
        }
    }
}
