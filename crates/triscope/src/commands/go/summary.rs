use super::analysis::{self, Analysis, Document, Part, Span};
use super::groups::{Group, Groups, MERGED};
use super::summary_page;
use super::{goroutines, mmu, procs};
use crate::failure::{OneLine, Result};
use crate::sources::go::{Pass, Reading, Visitor};
use gotrace::analysis::{
    GcCycles, GcReport, GcTrigger, Histogram, MinimumUtilization, Name, Scheduling,
    SchedulingOptions, SchedulingReport, Summarizer, Utilization, UtilizationOptions,
};
use gotrace::parallel::Split;
use gotrace::{Error, Event, Loss, Timestamp};
use serde_json::{Value, json};
use std::io::{self, Write};
use std::path::PathBuf;
use std::thread::{self, Builder};
use std::time::Duration;

/// Summarize a trace on one page: goroutines, latency, processors, GC, tasks, regions, losses
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  triscope go summary trace.out
  triscope go summary trace.out --html summary.html     with plots, in one file
  triscope go summary --json trace.out | jq .latency.p99
  triscope go summary --csv trace.out > summary.csv     a line for each value")]
pub(crate) struct Args {
    #[command(flatten)]
    analysis: Analysis,
    #[command(flatten)]
    document: Document,
    /// Write a self-contained page with plots of MMU, processors, latency and pauses
    #[arg(long, value_name = "FILE", conflicts_with_all = ["json", "csv"])]
    html: Option<PathBuf>,
}

/// The results of all analyses.
pub(super) struct Summary {
    pub(super) reading: Reading,
    pub(super) span: Option<(Timestamp, Timestamp)>,
    pub(super) events: u64,
    /// By entry function.
    pub(super) goroutines: Vec<Group>,
    pub(super) regions: Vec<Group>,
    pub(super) tasks: Vec<Group>,
    /// The goroutines, regions and tasks that have no group of their name.
    merged: [u64; 3],
    pub(super) scheduling: SchedulingReport,
    pub(super) gc: GcReport,
    pub(super) utilization: MinimumUtilization,
}

pub(crate) fn run(args: &Args) -> Result {
    let summary = Summary::of(&args.analysis)?;
    if let Some(path) = &args.html {
        summary_page::write(&summary, path, &args.analysis.file)?;
    } else {
        args.document.print(|| summary.to_json(), |out| summary.print(out))?;
    }
    summary.reading.into_result()
}

/// Rows of a table of the text.
const ROWS: usize = 8;
/// Windows of which the text has the utilization.
const WINDOWS: [u64; 4] = [100_000, 1_000_000, 10_000_000, 100_000_000];

impl Summary {
    /// Runs all analyses, in one pass or in two at the same time.
    fn of(analysis: &Analysis) -> Result<Self> {
        Self::with(analysis, analysis.beside())
    }

    /// Runs all analyses, some of them in this second pass if there is one.
    fn with(analysis: &Analysis, beside: Option<Pass>) -> Result<Self> {
        let (mut goroutines, mut regions, mut tasks) =
            (Groups::default(), Groups::default(), Groups::default());
        let mut visit = |part: Part<'_>| match part {
            Part::Goroutine(goroutine) => {
                let times = &goroutine.times;
                goroutines.add(&goroutines::entry(goroutine), Some(times.total), Some(times));
            }
            Part::Region(region) if !region.inherited => {
                regions.add(&region.name, Some(region.times.total), Some(&region.times));
            }
            Part::Region(_) => {}
            Part::Task(task) => tasks.add_task(task),
        };
        let begin = || {
            let scheduling = Scheduling::new(SchedulingOptions::default());
            let garbage = (GcCycles::new(5), Utilization::new(UtilizationOptions::default()));
            (Span::default(), (scheduling, garbage))
        };
        // A summarizer cannot be divided, so it has a thread and a pass of its own, if one can be started.
        let both = beside.and_then(|pass| {
            thread::scope(|scope| {
                let others = || analysis.split_beside(&pass, begin());
                let others = Builder::new().spawn_scoped(scope, others).ok()?;
                let summarized = analysis.pass(Summarizer::returning_tasks(), &mut visit);
                Some((summarized, others.join()))
            })
        });
        let (rest, others, reading) = if let Some((summarized, others)) = both {
            let others = others.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            let (rest, reading) = summarized?;
            (rest, others?.0, reading)
        } else {
            let mut others = begin();
            let summarizer = Summarizer::returning_tasks();
            let mut beside = Beside(&mut others);
            let (rest, reading) = analysis.pass_beside(summarizer, &mut visit, &mut beside)?;
            (rest, others, reading)
        };
        let (span, (scheduling, (gc, utilization))) = others;
        rest.tasks.iter().for_each(|task| tasks.add_task(task));
        Ok(Self {
            span: span.times,
            events: span.events.saturating_sub(reading.repeated),
            merged: [goroutines.merged(), regions.merged(), tasks.merged()],
            goroutines: goroutines.sorted(|group| group.times.running),
            regions: regions.sorted(|group| group.times.total),
            tasks: tasks.sorted(|group| group.durations.sum()),
            reading,
            scheduling: scheduling.finish(),
            gc: gc.finish(),
            utilization: utilization.finish(),
        })
    }

    pub(super) fn duration(&self) -> Duration {
        self.span.map_or(Duration::ZERO, |(first, last)| last - first)
    }

    /// The number of goroutines.
    pub(super) fn goroutine_count(&self) -> u64 {
        self.goroutines.iter().map(|group| group.durations.count()).sum()
    }

    /// All stops of the world.
    pub(super) fn pauses(&self) -> Histogram {
        let mut all = Histogram::default();
        self.gc.pauses.iter().for_each(|(_, pauses)| all.merge(pauses));
        all
    }

    /// The number of GC cycles by cause.
    pub(super) fn triggers(&self) -> impl Iterator<Item = (GcTrigger, usize)> {
        let triggers =
            [GcTrigger::Allocation, GcTrigger::Explicit, GcTrigger::Periodic, GcTrigger::Unknown];
        let cycles = &self.gc.cycles;
        let count = |trigger| cycles.iter().filter(|cycle| cycle.trigger == trigger).count();
        triggers.into_iter().map(move |t| (t, count(t))).filter(|(_, count)| *count > 0)
    }

    /// What is missing, one text for each kind of loss.
    pub(super) fn losses(&self) -> Vec<String> {
        let reading = &self.reading;
        let mut losses: Vec<String> = Vec::new();
        if let Some(error) = &reading.error {
            let after =
                if reading.losses > 0 { "" } else { ": only the part before is summarized" };
            losses.push(format!("the trace is damaged: {error}{after}"));
        }
        let scheduling = &self.scheduling;
        let counts = [
            (reading.lost_bytes, "bytes lost at damaged places"),
            (reading.lost_events, "events lost that fit no state"),
            (reading.unresolved, "strings and stacks lost"),
            (reading.missing_generations, "generations missing"),
            (scheduling.cut, "waits that the trace cuts off"),
            (self.gc.cut, "stops of the world that the trace cuts off"),
            (self.gc.dropped, "GC cycles that are not listed"),
        ];
        let counts = counts.into_iter().filter(|(count, _)| *count > 0);
        losses.extend(counts.map(|(count, what)| format!("{count} {what}")));
        let merged = ["goroutines", "regions", "tasks"].into_iter().zip(self.merged);
        let merged = merged.filter(|(_, count)| *count > 0);
        losses.extend(merged.map(|(what, count)| format!("{count} {what} {MERGED}")));
        losses
    }

    fn to_json(&self) -> Value {
        let group = |group: &Group| {
            json!({
                "name": group.name.to_string(),
                "durations": analysis::histogram_json(&group.durations),
                "incomplete": group.incomplete,
                "times": analysis::times_json(&group.times),
            })
        };
        let groups = |groups: &[Group]| groups.iter().map(group).collect::<Value>();
        let named = |named: &[(Name, Histogram)]| -> Value {
            let row = |(name, times): &(Name, Histogram)| {
                json!({
                    "name": name.to_string(),
                    "durations": analysis::histogram_json(times),
                })
            };
            named.iter().map(row).collect()
        };
        let mmu = mmu::windows().map(|window| {
            let utilization = self.utilization.of(window);
            json!({ "window": analysis::nanos(window), "utilization": utilization })
        });
        let triggers: serde_json::Map<String, Value> = self
            .triggers()
            .map(|(trigger, count)| (trigger.name().to_owned(), count.into()))
            .collect();
        json!({
            "file": self.reading.name,
            "version": self.reading.version.to_string(),
            "start": self.span.map(|(first, _)| first.nanos()),
            "end": self.span.map(|(_, last)| last.nanos()),
            "events": self.events,
            "goroutines": groups(&self.goroutines),
            "latency": analysis::histogram_json(&self.scheduling.latency),
            "blocked": named(&self.scheduling.blocked),
            "processors": self
                .scheduling
                .mean()
                .map(|mean| procs::to_json(&mean, procs::has_procs(&mean))),
            "gcs": triggers,
            "assists": analysis::nanos(self.gc.assists),
            "sweep": analysis::nanos(self.gc.sweep),
            "pauses": named(&self.gc.pauses),
            "mmu": mmu.collect::<Vec<_>>(),
            "tasks": groups(&self.tasks),
            "regions": groups(&self.regions),
            "error": self.reading.error.as_ref().map(ToString::to_string),
            "losses": self.losses(),
        })
    }

    fn print(&self, out: &mut Vec<u8>) -> io::Result<()> {
        let (name, version) = (OneLine(&self.reading.name).to_string(), self.reading.version);
        let time = analysis::duration(self.duration());
        writeln!(out, "{name}: {version} trace, {time}, {} events", self.events)?;
        for loss in self.losses() {
            writeln!(out, "  {}", OneLine(&loss))?;
        }
        if let Some(mean) = self.scheduling.mean() {
            let (procs, runnable) = (mean.procs, mean.runnable);
            let used = [("running", mean.running), ("GC", mean.gc), ("system calls", mean.syscall)];
            let (count, parts) = if procs::has_procs(&mean) {
                let parts = used.into_iter().chain([("idle", mean.idle())]);
                let percent = |(what, ps)| format!("{what} {:.1} %", ps / procs * 100.0);
                (format!("{procs:.1} Ps"), parts.map(percent).collect::<Vec<_>>().join(", "))
            } else {
                let parts = used.map(|(what, ps)| format!("{what} {ps:.2}")).join(", ");
                ("unknown number of Ps".to_owned(), parts)
            };
            writeln!(out, "\nprocessors   {count}: {parts}; {runnable:.2} goroutines wait")?;
        }
        let line = |out: &mut Vec<u8>, name: &str, times: &Histogram| {
            writeln!(out, "{name:<10}{}", analysis::percentiles(times))
        };
        writeln!(out, "\n          {}", analysis::PERCENTILES)?;
        line(out, "latency", &self.scheduling.latency)?;
        line(out, "pauses", &self.pauses())?;
        let cycles = self.gc.cycles.len();
        let triggers =
            self.triggers().map(|(trigger, count)| format!("{count} {}", trigger.name()));
        let triggers = triggers.collect::<Vec<_>>().join(", ");
        let causes = if cycles > 0 { format!(" ({triggers})") } else { String::new() };
        let assists = analysis::duration(self.gc.assists);
        writeln!(out, "\ngc           {cycles} cycles{causes}, assists {assists}")?;
        let windows = WINDOWS.map(Duration::from_nanos).map(|window| {
            let (percent, window) =
                (self.utilization.of(window) * 100.0, analysis::duration(window));
            format!("{percent:.1} % in {window}")
        });
        writeln!(out, "MMU          {}", windows.join(", "))?;
        writeln!(out, "goroutines   {}", self.goroutine_count())?;
        groups("entry function", &self.goroutines, out)?;
        groups("task", &self.tasks, out)?;
        groups("region", &self.regions, out)
    }
}

/// Passes events and losses to the analyses that share the pass of the summarizer.
struct Beside<'a, A>(&'a mut A);

impl<A: Split> Visitor for Beside<'_, A> {
    fn push(&mut self, event: Event<'_>) -> Result {
        self.0.push(event);
        Ok(())
    }

    fn loss(&mut self, _error: &Error, _loss: &Loss) -> Result {
        self.0.loss();
        Ok(())
    }
}

fn groups(what: &str, groups: &[Group], out: &mut Vec<u8>) -> io::Result<()> {
    if groups.is_empty() {
        return Ok(());
    }
    writeln!(out, "\n   count     total       p50       p99{}  {what}", analysis::STATES)?;
    for group in groups.iter().take(ROWS) {
        let times = &group.durations;
        let columns = [times.sum(), times.percentile(50.0), times.percentile(99.0)];
        let columns =
            columns.map(|nanos| format!("{:>10}", analysis::duration(Duration::from_nanos(nanos))));
        let count = times.count() + group.incomplete;
        let (states, name) =
            (analysis::states(&group.times), analysis::name(&group.name, "(unknown)"));
        writeln!(out, "{count:>8}{}{states}  {name}", columns.concat())?;
    }
    if groups.len() > ROWS {
        writeln!(out, "  {} more: --json prints all", groups.len() - ROWS)?;
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that fails is to panic")]
mod tests {
    use super::*;
    use crate::io::test_data;
    use clap::Parser as _;
    use gotrace::Reader;

    #[derive(clap::Parser)]
    struct Cli {
        #[command(flatten)]
        analysis: Analysis,
    }

    /// The analyses of a damaged trace as their documentation asks for it.
    fn reference(trace: &[u8], has_losses: bool) -> (gotrace::analysis::Summary, SchedulingReport) {
        let mut summarizer = Summarizer::returning_tasks();
        let mut scheduling = Scheduling::new(SchedulingOptions::default());
        let mut reader = Reader::new(trace).unwrap();
        loop {
            match reader.next_event() {
                Ok(Some(event)) => {
                    summarizer.push(event);
                    scheduling.push(event);
                }
                Ok(None) => return (summarizer.finish(), scheduling.finish()),
                Err(_) => {
                    let loss = reader.recover().unwrap().unwrap();
                    // Reading continues in the same generation.
                    assert!(loss.partial);
                    if has_losses {
                        summarizer.loss();
                        scheduling.loss();
                    }
                }
            }
        }
    }

    #[test]
    fn states_end_at_a_loss_within_a_generation() {
        let Some(mut trace) = test_data::of_repository(test_data::SHOP) else { return };
        let middle = trace.len() / 2;
        trace.get_mut(middle..middle + 64).unwrap().fill(0xff);
        let (expected, scheduling) = reference(&trace, true);
        let (continued, other) = reference(&trace, false);
        assert_ne!(expected, continued);
        assert_ne!(scheduling.cut, other.cut);
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("damaged.trace");
        std::fs::write(&file, &trace).unwrap();
        let analysis = Cli::parse_from(["go", "--recover", file.to_str().unwrap()]).analysis;
        let (summary, _) = analysis.pass(Summarizer::returning_tasks(), &mut |_| {}).unwrap();
        assert_eq!(summary, expected);
        for pass in [None, analysis.beside()] {
            let summary = Summary::with(&analysis, pass).unwrap();
            assert_eq!(summary.scheduling.cut, scheduling.cut);
            assert_eq!(summary.reading.losses, 1);
        }
    }
}
