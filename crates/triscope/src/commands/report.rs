//! `triscope report`: where the time of processes, threads and goroutines went.

use crate::answers::html;
use crate::answers::json::histogram;
use crate::failure::{Failure, OneLine, Result};
use crate::io::stdout::Output;
use crate::sources::model::{Traces, duration, name};
use serde_json::{Value, json};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::PathBuf;
use trace_timeline::answers::{CpuTimes, Delay, Group, Histogram, Report, Throttled, Waker};
use trace_timeline::text;
use trace_timeline::{
    Attribute, Entity, EntityId, EntityKind, Occupant, Requester, RequesterTimes, Tables, TextId,
    Timestamp,
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
    #[arg(long)]
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
    let goroutines = report.goroutines(worst, &tables.entities);
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
        self.pids.is_empty()
            || process
                .and_then(|process| self.tables.entities.get(process))
                .is_some_and(|process| self.pids.contains(&process.number))
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

    /// Groups of goroutines by their time other than waiting.
    fn groups(&self) -> Vec<(Option<EntityId>, TextId, &Group)> {
        let groups = self.report.groups.iter().filter(|((process, _), _)| self.is_shown(*process));
        let mut groups: Vec<_> = groups.map(|((process, name), g)| (*process, *name, g)).collect();
        groups.sort_by_key(|(.., g)| Reverse(g.total() - g.waiting));
        groups
    }

    fn occupant(&self, occupant: Occupant) -> String {
        OneLine(&text::occupant(occupant, self.tables)).to_string()
    }

    fn waker(&self, waker: Waker) -> String {
        OneLine(&text::waker(waker, self.tables)).to_string()
    }

    fn requester(&self, requester: &Requester) -> Value {
        let times =
            |times: RequesterTimes| json!({ "on_cpu": times.on_cpu, "runnable": times.runnable });
        let entities = &self.tables.entities;
        let number = |id: EntityId| entities.get(id).map(|entity| entity.number);
        let occupants = requester.occupants.iter().map(|(occupant, nanos)| {
            let thread = occupant.thread();
            json!({
                "occupant": self.occupant(*occupant),
                "tid": thread.and_then(number),
                "pid": thread.and_then(|thread| entities.process_of(thread)).and_then(number),
                "nanos": nanos,
            })
        });
        json!({
            "tid": number(requester.thread),
            "until_stopped": times(requester.stopping),
            "after": times(requester.stopped),
            "occupants": occupants.collect::<Vec<_>>(),
        })
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

    fn print(&self, out: &mut Vec<u8>) -> io::Result<()> {
        write!(out, "{:.3} s", self.seconds())?;
        if let Some(pid) = self.recorded {
            write!(out, ", process {pid} and its children (--all: every process)")?;
        }
        writeln!(out)?;
        self.print_processes(out)?;
        self.print_threads(out)?;
        self.print_groups(out)?;
        self.print_goroutines(out)?;
        self.print_off_cpu(out)?;
        self.print_delays(out)?;
        self.print_others(out)?;
        self.print_throttled(out)?;
        self.print_pauses(out)?;
        self.print_losses(out)
    }

    /// Processes that are shown and of which more than the name is known.
    fn print_processes(&self, out: &mut Vec<u8>) -> io::Result<()> {
        let entities = &self.tables.entities;
        let line = |id| entities.attribute(id, Attribute::CommandLine);
        let mut processes: Vec<_> = entities
            .iter()
            .filter(|(id, e)| e.kind == EntityKind::Process && self.is_shown(Some(*id)))
            .filter(|(id, e)| e.number > 0 && (e.start.is_some() || line(*id).is_some()))
            .collect();
        if processes.is_empty() {
            return Ok(());
        }
        // Those that started first: the others are their descendants.
        processes.sort_by_key(|(_, e)| (e.start, e.number));
        writeln!(out, "\nProcesses{:>10} {:>10} {:>10}   command line", "parent", "start", "end")?;
        for (id, e) in processes.iter().take(ROWS) {
            let parent = e.parent.and_then(|parent| entities.get(parent));
            let at = |at: Option<Timestamp>| {
                let nanos = at.zip(self.report.begin).map(|(at, begin)| at.nanos_since(begin));
                nanos.map_or_else(|| "-".to_owned(), duration)
            };
            let container = entities.attribute(*id, Attribute::Container);
            let container = container.map_or_else(String::new, |container| {
                let id = self.text(container);
                // As container engines print it.
                format!(" [container {}]", id.get(..12).unwrap_or(&id))
            });
            writeln!(
                out,
                "{:>9} {:>9} {:>10} {:>10}   {}{container}",
                e.number,
                parent.map_or_else(|| "-".to_owned(), |parent| parent.number.to_string()),
                at(e.start),
                at(e.end),
                self.text(line(*id).unwrap_or(e.name)),
            )?;
        }
        more(out, processes.len())
    }

    /// Whether the scheduler was recorded: otherwise threads are known of samples or wake-ups.
    fn has_scheduler(&self) -> bool {
        self.report.threads.values().any(|thread| thread.times.unknown < thread.times.total())
    }

    fn print_threads(&self, out: &mut Vec<u8>) -> io::Result<()> {
        let threads = self.threads();
        if threads.is_empty() || !self.has_scheduler() {
            return Ok(());
        }
        writeln!(
            out,
            "\nThreads{:>27} {:>10} {:>10} {:>10} {:>10} {:>10}   latency {:>9} {:>9}",
            "on CPU", "preempted", "woken", "sleeping", "blocked", "unknown", "p50", "p99"
        )?;
        for (thread, times, latency) in threads.iter().take(ROWS) {
            let t = |nanos| duration(nanos);
            let unknown = times.unknown + times.stopped;
            writeln!(
                out,
                "{:<23} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10}           {:>9} {:>9}  {}",
                name(self.tables, *thread),
                t(times.on_cpu),
                t(times.preempted),
                t(times.woken),
                t(times.sleeping),
                t(times.blocked),
                t(unknown),
                t(latency.percentile(50.0) as i64),
                t(latency.percentile(99.0) as i64),
                self.process(self.process_of(*thread)),
            )?;
        }
        more(out, threads.len())
    }

    fn print_groups(&self, out: &mut Vec<u8>) -> io::Result<()> {
        let groups = self.groups();
        if groups.is_empty() {
            return Ok(());
        }
        writeln!(out, "\nGoroutines and .NET threads\n    count{GROUP_COLUMNS}")?;
        for (process, entry, g) in groups.iter().take(ROWS) {
            let (entry, process) = (self.entry(*entry, *process), self.process(*process));
            writeln!(out, "{:>9} {}  {entry}, {process}", g.count, group_columns(g))?;
        }
        more(out, groups.len())
    }

    /// Single goroutines of the processes that are shown.
    fn goroutines(&self) -> impl Iterator<Item = (EntityId, &Group)> {
        let goroutines = self.goroutines.iter().copied();
        goroutines.filter(|(goroutine, _)| self.is_shown(self.process_of(*goroutine)))
    }

    fn print_goroutines(&self, out: &mut Vec<u8>) -> io::Result<()> {
        if self.goroutines().next().is_none() {
            return Ok(());
        }
        writeln!(
            out,
            "\nSingle goroutines, most scheduling latency first\n     runs{GROUP_COLUMNS}"
        )?;
        for (goroutine, g) in self.goroutines() {
            let process = self.process(self.process_of(goroutine));
            let (runs, goroutine) = (g.latency.count(), name(self.tables, goroutine));
            writeln!(out, "{runs:>9} {}  {goroutine}, {process}", group_columns(g))?;
        }
        Ok(())
    }

    fn print_off_cpu(&self, out: &mut Vec<u8>) -> io::Result<()> {
        let off_cpu = self.report.off_cpu.iter().filter(|((p, _), _)| self.is_shown(*p));
        let mut off_cpu: Vec<_> = off_cpu.collect();
        if off_cpu.is_empty() {
            return Ok(());
        }
        off_cpu.sort_by_key(|(_, times)| Reverse(times.nanos));
        writeln!(out, "\nOff CPU by reason {:>17} {:>10}", "sum", "longest")?;
        for ((process, reason), times) in off_cpu.iter().take(ROWS) {
            let (_, text) = text::off_cpu(*reason, self.tables);
            writeln!(
                out,
                "{:>12} times {:>16} {:>10}  {}; {}",
                times.count,
                duration(times.nanos),
                duration(times.longest),
                OneLine(&text),
                self.process(*process),
            )?;
        }
        more(out, off_cpu.len())
    }

    fn print_delays(&self, out: &mut Vec<u8>) -> io::Result<()> {
        let delays: Vec<_> = self.delays().collect();
        if delays.is_empty() {
            return Ok(());
        }
        writeln!(out, "\nLongest scheduling delays")?;
        for delay in delays {
            let at = self.since_start(delay.end) as f64 / 1e9;
            let (took, subject) = (duration(delay.nanos), name(self.tables, delay.subject));
            write!(out, "{took:>12} until {at:.6} s  {subject}")?;
            match delay.occupant {
                Occupant::Unknown => writeln!(out)?,
                occupant => writeln!(out, "; CPU: {}", self.occupant(occupant))?,
            }
        }
        Ok(())
    }

    fn delays(&self) -> impl Iterator<Item = &Delay> {
        self.report.longest_delays.iter().filter(|delay| {
            let process = self.tables.entities.process_of(delay.subject);
            delay.nanos > 0 && self.is_shown(process)
        })
    }

    fn since_start(&self, at: Timestamp) -> i64 {
        self.report.begin.map_or(0, |begin| at.nanos_since(begin))
    }

    fn print_others(&self, out: &mut Vec<u8>) -> io::Result<()> {
        let shown = self.report.preempters.iter().filter(|((p, _), _)| self.is_shown(*p));
        let mut preempters: Vec<_> = shown.collect();
        preempters.sort_by_key(|(_, p)| Reverse(p.preempted + p.woken));
        if !preempters.is_empty() {
            writeln!(out, "\nWho had the CPU that threads waited for   preempted      woken")?;
            for ((process, occupant), p) in preempters.iter().take(ROWS) {
                let (preempted, woken) = (duration(p.preempted), duration(p.woken));
                let (occupant, process) = (self.occupant(*occupant), self.process(*process));
                writeln!(out, "{preempted:>51} {woken:>10}  {occupant}; for {process}")?;
            }
            more(out, preempters.len())?;
        }
        let shown = self.report.wakers.iter().filter(|((p, _), _)| self.is_shown(*p));
        let mut wakers: Vec<_> = shown.collect();
        wakers.sort_by_key(|(_, count)| Reverse(**count));
        if !wakers.is_empty() {
            writeln!(out, "\nWho woke")?;
            for ((process, waker), count) in wakers.iter().take(ROWS) {
                let (waker, process) = (self.waker(*waker), self.process(*process));
                writeln!(out, "{count:>9}  {waker}; in {process}")?;
            }
            more(out, wakers.len())?;
        }
        Ok(())
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

    fn print_throttled(&self, out: &mut Vec<u8>) -> io::Result<()> {
        let mut rows: Vec<_> = self.throttled().collect();
        if rows.is_empty() {
            return Ok(());
        }
        rows.sort_by_key(|(_, throttled)| Reverse(throttled.nanos));
        writeln!(out, "\nThrottled by the CPU quota of the cgroup    time    periods")?;
        for (process, t) in rows.iter().take(ROWS) {
            let process = self.process(Some(*process));
            writeln!(out, "{:>47} {:>10}  {process}", duration(t.nanos), t.periods)?;
        }
        more(out, rows.len())
    }

    fn print_pauses(&self, out: &mut Vec<u8>) -> io::Result<()> {
        let line = |out: &mut Vec<u8>, h: &Histogram, what: String| {
            let (sum, max) = (duration(h.sum() as i64), duration(h.max() as i64));
            let median = duration(h.percentile(50.0) as i64);
            writeln!(
                out,
                "{:>9}  sum {sum:>10}  p50 {median:>10}  max {max:>10}  {what}",
                h.count()
            )
        };
        let shown = |process| self.is_shown(process);
        let gcs = self.report.gcs.iter().filter(|((p, _), _)| shown(*p));
        let mut gcs: Vec<_> = gcs.collect();
        gcs.sort_by_key(|(_, h)| Reverse(h.sum()));
        if !gcs.is_empty() {
            writeln!(out, "\nGarbage gcs")?;
        }
        for ((process, name), h) in gcs.iter().take(ROWS) {
            line(out, h, format!("{}, {}", self.text(*name), self.process(*process)))?;
        }
        more(out, gcs.len())?;
        let pauses: Vec<_> =
            self.report.pauses.iter().filter(|((p, _), _)| shown(Some(*p))).collect();
        if pauses.is_empty() {
            return Ok(());
        }
        writeln!(out, "\nStop-the-world pauses")?;
        for ((process, reason), h) in pauses {
            let what = format!("{}, {}", self.text(*reason), self.process(Some(*process)));
            line(out, h, what)?;
        }
        let longest = self.report.longest_pauses.iter().filter(|p| shown(Some(p.process)));
        for pause in longest.take(3) {
            let took = pause.end.nanos_since(pause.begin);
            let at = self.since_start(pause.begin) as f64 / 1e9;
            let reason = self.text(pause.reason);
            write!(out, "  longest: {} {reason} at {at:.6} s", duration(took))?;
            if let Some(stopped) = pause.stopped {
                let stopping = duration(stopped.nanos_since(pause.begin));
                let rest = duration(pause.end.nanos_since(stopped));
                write!(out, ": {stopping} until all had stopped, {rest} stopped")?;
            }
            writeln!(out)?;
            if let Some(requester) = text::requester(pause, self.tables) {
                writeln!(out, "    requester: {}", OneLine(&requester))?;
            }
            for stop in pause.late().take(3) {
                writeln!(out, "    late: {}", OneLine(&text::late(pause, stop, self.tables)))?;
            }
        }
        Ok(())
    }

    fn print_losses(&self, out: &mut Vec<u8>) -> io::Result<()> {
        writeln!(out, "\nNot known")?;
        let unknown: i64 = self.threads().iter().map(|(_, times, _)| times.unknown).sum();
        if !self.has_scheduler() {
            writeln!(out, "  The kernel's scheduler was not recorded: running is not on a CPU.")?;
        } else {
            let unknown = duration(unknown);
            writeln!(out, "  {unknown} of threads: before their first switch, or after a loss.")?;
        }
        for (kind, losses) in &self.report.losses {
            let records = match losses.records {
                0 => String::new(),
                records => format!(", {records} records"),
            };
            writeln!(out, "  {} times: {}{records}", losses.count, text::loss(*kind))?;
        }
        let [.., samples] = self.report.samples;
        if samples > 0 {
            writeln!(out, "  {samples} samples: whether their thread had a CPU is not recorded.")?;
        }
        for note in self.notes() {
            writeln!(out, "  {}", OneLine(&note))?;
        }
        Ok(())
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

    fn json(&self) -> Value {
        let t = self.tables;
        let number = |id: EntityId| t.entities.get(id).map(|e| e.number);
        let process = |id: Option<EntityId>| {
            json!({
                "pid": id.and_then(number).filter(|pid| *pid >= 0),
                "name": id.and_then(|id| t.entities.get(id)).map(|e| t.str(e.name)),
            })
        };
        let threads: Vec<Value> = self
            .threads()
            .into_iter()
            .map(|(thread, times, latency)| {
                let entity = t.entities.get(thread);
                json!({
                    "tid": number(thread),
                    "name": entity.map(|e| t.str(e.name)),
                    "process": process(self.process_of(thread)),
                    "times": cpu_times(times),
                    "latency": histogram(latency),
                })
            })
            .collect();
        let groups: Vec<Value> = self
            .groups()
            .into_iter()
            .map(|(of, entry, g)| {
                let of = json!({
                    "entry": t.str(entry),
                    "process": process(of),
                    "count": g.count,
                });
                with(of, group_json(g))
            })
            .collect();
        let goroutines: Vec<Value> = self
            .goroutines()
            .map(|(goroutine, g)| {
                let of = json!({
                    "goroutine": number(goroutine),
                    "entry": t.entities.get(goroutine).map(|entity| t.str(entity.name)),
                    "process": process(self.process_of(goroutine)),
                });
                with(of, group_json(g))
            })
            .collect();
        let shown = |process: &Option<EntityId>| self.is_shown(*process);
        let report = self.report;
        let waits = report.waits.iter().filter(|((p, _), _)| shown(p)).map(|((p, reason), w)| {
            json!({
                "process": process(*p),
                "reason": t.str(*reason),
                "durations": histogram(&w.durations),
            })
        });
        let off_cpu = report.off_cpu.iter().filter(|((p, _), _)| shown(p));
        let off_cpu = off_cpu.map(|((p, reason), times)| {
            let (what, text) = text::off_cpu(*reason, t);
            json!({
                "process": process(*p),
                "what": what,
                "text": text,
                "nanos": times.nanos,
                "count": times.count,
                "longest": times.longest,
            })
        });
        let delays = self.delays().map(|delay| {
            json!({
                "who": name(t, delay.subject),
                "end": delay.end.nanos(),
                "nanos": delay.nanos,
                "occupant": self.occupant(delay.occupant),
            })
        });
        let preempters =
            report.preempters.iter().filter(|((p, _), _)| shown(p)).map(|((p, occupant), x)| {
                json!({
                    "process": process(*p),
                    "occupant": self.occupant(*occupant),
                    "tid": occupant.thread().and_then(number),
                    "pid": occupant.thread().and_then(|id| t.entities.process_of(id)).and_then(number),
                    "preempted": x.preempted,
                    "woken": x.woken,
                    "count": x.count,
                })
            });
        let wakers = report.wakers.iter().filter(|((p, _), _)| shown(p)).map(|((p, w), count)| {
            json!({ "process": process(*p), "waker": self.waker(*w), "count": count })
        });
        let gcs = report
            .gcs
            .iter()
            .filter(|((p, _), _)| shown(p))
            .map(|((p, name), h)| {
                json!({ "process": process(*p), "name": t.str(*name), "durations": histogram(h) })
            });
        let pauses = report.pauses.iter().filter(|((p, _), _)| shown(&Some(*p)));
        let pauses = pauses.map(|((p, reason), h)| {
            json!({
                "process": process(Some(*p)),
                "reason": t.str(*reason),
                "durations": histogram(h),
            })
        });
        let longest = report.longest_pauses.iter().filter(|p| shown(&Some(p.process))).map(|p| {
            let stops: Vec<Value> = p
                .stops
                .iter()
                .map(|stop| {
                    json!({
                        "who": name(t, stop.entity),
                        "holder": stop.holder.map(|holder| name(t, holder)),
                        "tid": stop.thread.and_then(number),
                        "took": stop.at.nanos_since(p.begin),
                        "on_cpu": stop.on_cpu,
                        "runnable": stop.runnable,
                    })
                })
                .collect();
            json!({
                "process": process(Some(p.process)),
                "reason": t.str(p.reason),
                "begin": p.begin.nanos(),
                "stopped": p.stopped.map(Timestamp::nanos),
                "end": p.end.nanos(),
                "by": p.by.map(|by| name(t, by)),
                "requester": p.requester.as_ref().map(|requester| self.requester(requester)),
                "stops": stops,
            })
        });
        let throttled = self.throttled().map(|(p, throttled)| {
            json!({
                "process": process(Some(p)),
                "nanos": throttled.nanos,
                "periods": throttled.periods,
            })
        });
        let losses = report.losses.iter().map(|(kind, losses)| {
            json!({ "what": text::loss(*kind), "count": losses.count, "records": losses.records })
        });
        let processes = t
            .entities
            .iter()
            .filter(|(id, e)| e.kind == EntityKind::Process && self.is_shown(Some(*id)));
        let processes = processes.map(|(id, e)| {
            let attribute = |attribute| t.entities.attribute(id, attribute).map(|text| t.str(text));
            json!({
                "pid": Some(e.number).filter(|pid| *pid >= 0),
                "name": t.str(e.name),
                "parent": e.parent.and_then(number),
                "start": e.start.map(Timestamp::nanos),
                "end": e.end.map(Timestamp::nanos),
                "runtime": attribute(Attribute::Runtime),
                "command_line": attribute(Attribute::CommandLine),
                "executable": attribute(Attribute::Executable),
                "build_id": attribute(Attribute::BuildId),
                "cgroup": attribute(Attribute::Cgroup),
                "container": attribute(Attribute::Container),
            })
        });
        let machine = t.entities.iter().find(|(_, e)| e.kind == EntityKind::Machine);
        let machine = machine.map(|(id, e)| {
            let attribute = |attribute| t.entities.attribute(id, attribute).map(|text| t.str(text));
            json!({
                "name": t.str(e.name),
                "kernel": attribute(Attribute::KernelRelease),
                "architecture": attribute(Attribute::Architecture),
            })
        });
        let [sampled_on, sampled_off, unknown] = report.samples;
        json!({
            "begin": report.begin.map(Timestamp::nanos),
            "end": report.end.map(Timestamp::nanos),
            "machine": machine,
            "processes": processes.collect::<Vec<_>>(),
            "threads": threads,
            "goroutines": groups,
            "single_goroutines": goroutines,
            "waits": waits.collect::<Vec<_>>(),
            "off_cpu": off_cpu.collect::<Vec<_>>(),
            "longest_delays": delays.collect::<Vec<_>>(),
            "preempters": preempters.collect::<Vec<_>>(),
            "wakers": wakers.collect::<Vec<_>>(),
            "gcs": gcs.collect::<Vec<_>>(),
            "pauses": pauses.collect::<Vec<_>>(),
            "longest_pauses": longest.collect::<Vec<_>>(),
            "throttled": throttled.collect::<Vec<_>>(),
            "samples": { "on_cpu": sampled_on, "off_cpu": sampled_off, "unknown": unknown },
            "losses": losses.collect::<Vec<_>>(),
            "notes": self.notes().collect::<Vec<_>>(),
        })
    }
}

fn more(out: &mut Vec<u8>, rows: usize) -> io::Result<()> {
    if rows > ROWS {
        writeln!(out, "  {} more: --json prints all", rows - ROWS)?;
    }
    Ok(())
}

/// The names of [`group_columns`].
const GROUP_COLUMNS: &str = "     on CPU     no CPU  in kernel   running?    syscall   runnable    \
                             waiting   latency       p50       p99";

/// The times of goroutines.
fn group_columns(g: &Group) -> String {
    let r = &g.running;
    let times = [
        r.on_cpu,
        r.preempted + r.woken,
        r.sleeping + r.blocked + r.stopped,
        r.unknown,
        g.syscall.total(),
        g.runnable,
        g.waiting + g.unknown,
    ];
    let times = times.map(|nanos| format!("{:>10}", duration(nanos))).join(" ");
    let [p50, p99] = [50.0, 99.0].map(|percent| duration(g.latency.percentile(percent) as i64));
    format!("{times}           {p50:>9} {p99:>9}")
}

fn group_json(g: &Group) -> Value {
    json!({
        "running": cpu_times(&g.running),
        "syscall": cpu_times(&g.syscall),
        "runnable": g.runnable,
        "waiting": g.waiting,
        "unknown": g.unknown,
        "latency": histogram(&g.latency),
    })
}

/// An object with the fields of another one, too.
fn with(mut object: Value, more: Value) -> Value {
    if let (Value::Object(object), Value::Object(more)) = (&mut object, more) {
        object.extend(more);
    }
    object
}

fn cpu_times(times: &CpuTimes) -> Value {
    json!({
        "on_cpu": times.on_cpu,
        "preempted": times.preempted,
        "woken": times.woken,
        "sleeping": times.sleeping,
        "blocked": times.blocked,
        "stopped": times.stopped,
        "unknown": times.unknown,
    })
}
