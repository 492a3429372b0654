//! `triscope report`: where the time of processes, threads and goroutines went.

use crate::failure::{OneLine, Result};
use crate::io::stdout::Output;
use crate::sources::html;
use crate::sources::model::{Traces, duration, name};
use serde_json::{Value, json};
use std::cmp::Reverse;
use std::io::{self, Write};
use std::path::PathBuf;
use trace_timeline::answers::{CpuTimes, Group, Histogram, Report, Waker};
use trace_timeline::{EntityId, EntityKind, LossKind, Occupant, Tables, TextId, Timestamp};

/// Report where the time of processes, threads and goroutines went
///
/// For each thread: time on a CPU, waiting for a CPU (preempted, or after a wake-up), sleeping,
/// blocked in the kernel, and the scheduling latency. For goroutines by entry function: running,
/// divided by what the kernel did with the thread; runnable; waiting, by reason. Further: who had
/// the CPUs that threads waited for, who woke them, GCs and stop-the-world pauses with who was
/// late, and what is not known.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  triscope report trace.out                    goroutines only
  triscope report trace.out perf.data          with the kernel's part
  triscope report recording/ --html report.html
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
    let outcome = args.traces.derive(&mut tables, &mut |derived, tables| {
        report.push(&derived, &tables.entities);
    })?;
    let recorded = args.traces.recorded().filter(|_| args.pid.is_empty() && !args.all);
    let family = recorded.map(|pid| family(pid, &tables));
    let pids = family.as_deref().unwrap_or(&args.pid);
    let view = View { report: &report, tables: &tables, pids, recorded };
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

struct View<'a> {
    report: &'a Report,
    tables: &'a Tables,
    pids: &'a [i64],
    /// The process to which the report is limited, with its children.
    recorded: Option<i64>,
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
        match occupant {
            Occupant::Thread(thread) => name(self.tables, thread),
            Occupant::Idle => "idle (CPU quota, cpuset, or wake-up of the CPU)".to_owned(),
            Occupant::Unrecorded => "a thread that was not recorded".to_owned(),
            Occupant::Unknown => "unknown".to_owned(),
        }
    }

    fn waker(&self, waker: Waker) -> String {
        match waker {
            Waker::Goroutines(_, entry) => format!("goroutines {}", self.text(entry)),
            Waker::Thread(thread) => name(self.tables, thread),
            Waker::HardIrq => "hardware interrupt".to_owned(),
            Waker::SoftIrq => "software interrupt (network, timers)".to_owned(),
            _ => "unknown".to_owned(),
        }
    }

    fn text(&self, id: TextId) -> String {
        let text = self.tables.str(id);
        if text.is_empty() { "(unknown)".to_owned() } else { OneLine(&text).to_string() }
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
        self.print_threads(out)?;
        self.print_groups(out)?;
        self.print_waits(out)?;
        self.print_others(out)?;
        self.print_pauses(out)?;
        self.print_losses(out)
    }

    fn print_threads(&self, out: &mut Vec<u8>) -> io::Result<()> {
        let threads = self.threads();
        if threads.is_empty() {
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
        writeln!(
            out,
            "\nGoroutines{:>10} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10}   latency {:>9} {:>9}",
            "on CPU",
            "no CPU",
            "in kernel",
            "running?",
            "syscall",
            "runnable",
            "waiting",
            "p50",
            "p99"
        )?;
        for (process, entry, g) in groups.iter().take(ROWS) {
            let t = |nanos| duration(nanos);
            let r = &g.running;
            writeln!(
                out,
                "{:>9} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10}           {:>9} {:>9}  {}, {}",
                g.count,
                t(r.on_cpu),
                t(r.preempted + r.woken),
                t(r.sleeping + r.blocked + r.stopped),
                t(r.unknown),
                t(g.syscall.total()),
                t(g.runnable),
                t(g.waiting + g.unknown),
                t(g.latency.percentile(50.0) as i64),
                t(g.latency.percentile(99.0) as i64),
                self.text(*entry),
                self.process(*process),
            )?;
        }
        more(out, groups.len())
    }

    fn print_waits(&self, out: &mut Vec<u8>) -> io::Result<()> {
        let waits = self.report.waits.iter().filter(|((process, _), _)| self.is_shown(*process));
        let mut waits: Vec<_> = waits.collect();
        if waits.is_empty() {
            return Ok(());
        }
        waits.sort_by_key(|(_, waits)| Reverse(waits.durations.sum()));
        writeln!(out, "\nWaits of goroutines {:>12} {:>10} {:>10}", "sum", "p50", "max")?;
        for ((process, reason), waits) in waits.iter().take(ROWS) {
            let d = &waits.durations;
            writeln!(
                out,
                "{:>12} waits {:>14} {:>10} {:>10}  {}, {}",
                d.count(),
                duration(d.sum() as i64),
                duration(d.percentile(50.0) as i64),
                duration(d.max() as i64),
                self.text(*reason),
                self.process(*process),
            )?;
        }
        more(out, waits.len())
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
        for (process, h) in self.report.collections.iter().filter(|(p, _)| shown(**p)) {
            writeln!(out, "\nGarbage collections")?;
            line(out, h, self.process(*process))?;
        }
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
            let took = duration(pause.end.nanos_since(pause.begin));
            write!(out, "  longest: {took} {}", self.text(pause.reason))?;
            match pause.stops.last() {
                Some(last) => {
                    let late = duration(last.at.nanos_since(pause.begin));
                    let who = last.holder.or(last.thread).unwrap_or(last.entity);
                    let who = name(self.tables, who);
                    write!(out, "; the last of {} to stop took {late}: {who}", pause.stops.len())?;
                    if last.runnable > 0 {
                        write!(out, ", {} of it without a CPU", duration(last.runnable))?;
                    }
                }
                None => write!(out, "; nobody else was running")?,
            }
            writeln!(out)?;
        }
        Ok(())
    }

    fn print_losses(&self, out: &mut Vec<u8>) -> io::Result<()> {
        writeln!(out, "\nNot known")?;
        let unknown: i64 = self.threads().iter().map(|(_, times, _)| times.unknown).sum();
        if self.report.threads.is_empty() {
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
            writeln!(out, "  {} times: {}{records}", losses.count, loss(*kind))?;
        }
        Ok(())
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
                json!({
                    "entry": t.str(entry),
                    "process": process(of),
                    "count": g.count,
                    "running": cpu_times(&g.running),
                    "syscall": cpu_times(&g.syscall),
                    "runnable": g.runnable,
                    "waiting": g.waiting,
                    "unknown": g.unknown,
                    "latency": histogram(&g.latency),
                })
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
        let preempters =
            report.preempters.iter().filter(|((p, _), _)| shown(p)).map(|((p, occupant), x)| {
                json!({
                    "process": process(*p),
                    "occupant": self.occupant(*occupant),
                    "tid": occupant.thread().and_then(number),
                    "preempted": x.preempted,
                    "woken": x.woken,
                    "count": x.count,
                })
            });
        let wakers = report.wakers.iter().filter(|((p, _), _)| shown(p)).map(|((p, w), count)| {
            json!({ "process": process(*p), "waker": self.waker(*w), "count": count })
        });
        let collections = report
            .collections
            .iter()
            .filter(|(p, _)| shown(p))
            .map(|(p, h)| json!({ "process": process(*p), "durations": histogram(h) }));
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
                "stops": stops,
            })
        });
        let losses = report.losses.iter().map(|(kind, losses)| {
            json!({ "what": loss(*kind), "count": losses.count, "records": losses.records })
        });
        let [on_cpu, off_cpu, unknown] = report.samples;
        json!({
            "begin": report.begin.map(Timestamp::nanos),
            "end": report.end.map(Timestamp::nanos),
            "threads": threads,
            "goroutines": groups,
            "waits": waits.collect::<Vec<_>>(),
            "preempters": preempters.collect::<Vec<_>>(),
            "wakers": wakers.collect::<Vec<_>>(),
            "collections": collections.collect::<Vec<_>>(),
            "pauses": pauses.collect::<Vec<_>>(),
            "longest_pauses": longest.collect::<Vec<_>>(),
            "samples": { "on_cpu": on_cpu, "off_cpu": off_cpu, "unknown": unknown },
            "losses": losses.collect::<Vec<_>>(),
        })
    }
}

fn more(out: &mut Vec<u8>, rows: usize) -> io::Result<()> {
    if rows > ROWS {
        writeln!(out, "  {} more: --json prints all", rows - ROWS)?;
    }
    Ok(())
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

fn histogram(histogram: &Histogram) -> Value {
    json!({
        "count": histogram.count(),
        "sum": histogram.sum(),
        "p50": histogram.percentile(50.0),
        "p90": histogram.percentile(90.0),
        "p99": histogram.percentile(99.0),
        "max": histogram.max(),
    })
}

const fn loss(kind: LossKind) -> &'static str {
    match kind {
        LossKind::SchedulerRecords => "records lost, the buffer of a CPU was full",
        LossKind::UnreportedSwitch => {
            "switches that the kernel did not report; states were repaired"
        }
        LossKind::GoTrace => "damaged parts of a Go trace",
        LossKind::DotnetEvents => "events lost, the buffers of the .NET runtime were full",
        _ => "other losses",
    }
}
