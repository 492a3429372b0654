//! `triscope report`: where the time of processes, threads and goroutines went.

mod json;
mod print;

use crate::answers::html;
use crate::failure::{Failure, OneLine, Result};
use crate::io::stdout::Output;
use crate::run::stop::Listener;
use crate::sources::model::{Traces, name};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::path::PathBuf;
use trace_timeline::answers::{CpuTimes, Delay, Group, Histogram, Report, Throttled, Waker};
use trace_timeline::text;
use trace_timeline::{
    Attribute, Entity, EntityId, EntityKind, Occupant, Tables, TextId, Timestamp,
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
  triscope report --json recording/ | jq '.threads[0]'

perf.data is a recording of the scheduler on the clock of Go:
  perf record -k CLOCK_MONOTONIC -a -e sched:sched_switch,sched:sched_waking,sched:sched_wakeup_new
Times in JSON are nanoseconds.")]
pub(crate) struct Args {
    #[command(flatten)]
    traces: Traces,
    /// Only this process; may be repeated
    #[arg(long, value_name = "PID")]
    pid: Vec<i64>,
    /// Every process: without it, of a directory that triscope record --keep wrote, only the
    /// recorded process and its children
    #[arg(long, conflicts_with = "html")]
    all: bool,
    /// Show the goroutine with this id; may be repeated
    #[arg(long, value_name = "ID", conflicts_with = "html")]
    goroutine: Vec<i64>,
    /// Number of single goroutines, those with most scheduling latency first
    #[arg(long, value_name = "N", default_value_t = 10, conflicts_with = "html")]
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
        let _listener = Listener::exit()?;
        return html::write(&args.traces, path)?;
    }
    let mut tables = Tables::new();
    let mut report = Report::new();
    args.goroutine.iter().for_each(|id| report.keep_goroutine(*id));
    let (outcome, notes) = args.traces.derive_with_notes(&mut tables, &mut |derived, tables| {
        report.push(&derived, &tables.entities);
    })?;
    let recorded = args.traces.recorded().filter(|_| args.pid.is_empty() && !args.all);
    let family = recorded.map(|pid| family(pid, &tables));
    let pids = family.as_deref().unwrap_or(&args.pid);
    // Those that are given, otherwise the worst.
    let worst = if args.goroutine.is_empty() { args.worst } else { 0 };
    let goroutines = report.goroutines(worst, &tables.entities, |process| {
        worst == 0 || is_one_of(process, pids, &tables)
    });
    if let Some(id) = args.goroutine.iter().find(|id| {
        let is_it = |(goroutine, _): &(EntityId, &Group)| {
            tables.entities.get(*goroutine).is_some_and(|entity| entity.number == **id)
        };
        !goroutines.iter().any(is_it)
    }) {
        return Err(Failure::new(format_args!("goroutine {id} is not in the traces")));
    }
    if let Some(pid) = args.pid.iter().find(|pid| !has_process(**pid, &tables)) {
        return Err(missing_process(*pid, &report, &tables));
    }
    let view = View { report: &report, tables: &tables, goroutines, pids, recorded, notes: &notes };
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

/// Whether a process has one of these ids. Every one has if there are none.
fn is_one_of(process: Option<EntityId>, pids: &[i64], tables: &Tables) -> bool {
    let process = process.and_then(|process| tables.entities.get(process));
    pids.is_empty() || process.is_some_and(|process| pids.contains(&process.number))
}

fn has_process(pid: i64, tables: &Tables) -> bool {
    tables.entities.iter().any(|(_, e)| e.kind == EntityKind::Process && e.number == pid)
}

/// The failure if a process is not in the traces. It names some that are: those with most time of their
/// threads and goroutines on CPUs, or running.
fn missing_process(pid: i64, report: &Report, tables: &Tables) -> Failure {
    const SHOWN: usize = 5;
    let mut ran: BTreeMap<(i64, TextId), i64> = BTreeMap::new();
    let mut add = |process: Option<EntityId>, nanos: i64| {
        let known = process.and_then(|process| tables.entities.get(process));
        if let Some(known) = known.filter(|known| known.number >= 0) {
            *ran.entry((known.number, known.name)).or_default() += nanos;
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
    pids: &'a [i64],
    /// The process to which the report is limited, with its children.
    recorded: Option<i64>,
    /// What the traces have that is in no table.
    notes: &'a [String],
}

/// A process and its descendants.
fn family(pid: i64, tables: &Tables) -> Vec<i64> {
    let mut family = vec![pid];
    // A process is in the table after its parent.
    for (_, entity) in tables.entities.iter().filter(|(_, e)| e.kind == EntityKind::Process) {
        let parent = entity.parent.and_then(|parent| tables.entities.get(parent));
        if parent.is_some_and(|parent| family.contains(&parent.number)) {
            family.push(entity.number);
        }
    }
    family
}

impl View<'_> {
    fn is_shown(&self, process: Option<EntityId>) -> bool {
        is_one_of(process, self.pids, self.tables)
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
        let Report { begin, end, .. } = self.report;
        let nanos = begin.zip(*end).map_or(0, |(begin, end)| end.nanos_since(begin));
        nanos as f64 / 1e9
    }

    /// Whether the scheduler was recorded: otherwise threads are known of samples or wake-ups.
    fn has_scheduler(&self) -> bool {
        self.report.threads.values().any(|thread| thread.times.unknown < thread.times.total())
    }

    /// Single goroutines of the processes that are shown.
    fn goroutines(&self) -> impl Iterator<Item = (EntityId, &Group)> {
        let goroutines = self.goroutines.iter().copied();
        goroutines.filter(|(goroutine, _)| self.is_shown(self.process_of(*goroutine)))
    }

    fn delays(&self) -> impl Iterator<Item = &Delay> {
        self.report.longest_delays(|process| self.is_shown(process)).into_iter()
    }

    fn since_start(&self, at: Timestamp) -> i64 {
        self.report.begin.map_or(0, |begin| at.nanos_since(begin))
    }

    /// Throttled processes, as the kernel's records name them.
    fn throttled(&self) -> impl Iterator<Item = (EntityId, &Throttled)> {
        let entities = &self.tables.entities;
        let named = move |process: EntityId| {
            let number = entities.get(process).map(|process| process.number);
            let is_it = |e: &Entity| e.kind == EntityKind::Process && Some(e.number) == number;
            let mut all = entities.iter().filter(|(_, e)| is_it(e) && e.name != TextId::EMPTY);
            all.next().map_or(process, |(named, _)| named)
        };
        let shown = self.report.throttled.iter().filter(|(p, _)| self.is_shown(Some(**p)));
        shown.map(move |(process, throttled)| (named(*process), throttled))
    }

    /// What is in no table.
    fn notes(&self) -> impl Iterator<Item = String> {
        let goroutines = self.report.goroutines_dropped();
        let own = (goroutines > 0).then(|| {
            format!("{goroutines} goroutines have no times of their own: too many lived at once")
        });
        let dropped = text::dropped(self.tables.dropped());
        let dropped = dropped.map(|(count, what)| format!("{count} {what}"));
        self.notes.iter().cloned().chain(dropped).chain(own)
    }
}
