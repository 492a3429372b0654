//! The summary of a trace as a page with plots.

use super::analysis;
use super::groups::Group;
use super::procs::has_procs;
use super::summary::Summary;
use crate::failure::{OneLine, Result};
use crate::io::output_file::OutputFile;
use crate::run::stop::Listener;
use crate::timeline::size;
use gotrace::analysis::{Frame, GcCycle, Histogram, Name, ProcessorUse, Stall};
use std::path::Path;
use std::time::Duration;
use trace_export::html::{Document, Form, Plot, Scale};

/// Rows of a table of the page.
const ROWS: usize = 100;

/// Writes the page.
pub(super) fn write(summary: &Summary, path: &Path, input: &Path) -> Result {
    let mut output = OutputFile::create(path, &[input.to_owned()])?;
    let _listener = Listener::exit();
    let name = &summary.reading.name;
    let title = Path::new(name).file_name().map_or(name.as_str().into(), |n| n.to_string_lossy());
    let mut document = Document::new(&title);
    fill(summary, &mut document);
    let writer = std::io::BufWriter::new(output.writer()?);
    let bytes = document.write(writer).map_err(|error| output.failure(&error))?;
    let name = output.name();
    output.complete()?;
    message!("{}", OneLine(&format!("{name}: {}", size(bytes))));
    Ok(())
}

fn fill(summary: &Summary, document: &mut Document) {
    let (version, time) = (summary.reading.version, analysis::duration(summary.duration()));
    let (events, goroutines) = (summary.events, summary.goroutine_count());
    let cycles = summary.gc.cycles.len();
    document.summary(&format!(
        "{version} · {time} · {events} events · {goroutines} goroutines · {cycles} GC cycles"
    ));
    summary.losses().iter().for_each(|loss| document.warning(loss));

    document.heading("Processors and mutator utilization");
    document.plots(&[processors(summary), mmu(summary)]);
    document.heading("Latency");
    document.plots(&[
        sizes("waits for a P (runnable to running)", &summary.scheduling.latency),
        sizes("stops of the world", &summary.pauses()),
    ]);
    named(document, "cause", &causes(summary));
    document.heading("Time blocked, by reason");
    named(document, "reason", &summary.scheduling.blocked);
    document.heading("Latency by entry function");
    named(document, "entry function", &summary.scheduling.by_entry);
    document.heading("Longest waits for a P");
    stalls(document, summary, &summary.scheduling.delays);
    document.heading("Longest times blocked");
    stalls(document, summary, &summary.scheduling.blocks);

    document.heading("Stops of the world, by reason");
    named(document, "reason", &summary.gc.pauses);
    for pause in &summary.gc.longest {
        let (reason, time) = (&pause.reason, analysis::duration(pause.duration));
        let at = summary.reading.at(pause.start);
        document.details(&format!("{time} {reason} at {at}"), &frames(&pause.stack));
    }
    document.heading("GC cycles");
    gc(document, summary);
    document.heading("Goroutines");
    groups(document, "entry function", &summary.goroutines);
    for (heading, what, of) in
        [("Tasks", "type", &summary.tasks), ("Regions", "type", &summary.regions)]
    {
        if of.is_empty() {
            continue;
        }
        document.heading(heading);
        let plots: Vec<Plot> = of
            .iter()
            .filter(|group| group.durations.count() > 1)
            .take(4)
            .map(|group| sizes(&format!("{} by duration", group.name), &group.durations))
            .collect();
        document.plots(&plots);
        groups(document, what, of);
    }
}

/// A round time in seconds, for an axis. The start of the trace can be far from it.
fn seconds(value: f64) -> String {
    format!("{} s", (value * 1e9).round() / 1e9)
}

/// A round duration in nanoseconds, for an axis.
fn nanos(value: f64) -> String {
    let units = [(1e9, "s"), (1e6, "ms"), (1e3, "us"), (1.0, "ns")];
    let Some((size, unit)) = units.into_iter().find(|(size, _)| value >= *size) else {
        return "0".to_owned();
    };
    format!("{} {unit}", (value / size * 100.0).round() / 100.0)
}

fn number(value: f64) -> String {
    format!("{value}")
}

fn percent(value: f64) -> String {
    format!("{:.0} %", value * 100.0)
}

fn processors(summary: &Summary) -> Plot {
    let mut plot = Plot::new("Ps over time", Form::Areas, Scale::Linear);
    let rows = &summary.scheduling.processors;
    let start = summary.reading.start.unwrap_or_default();
    let at = |row: &ProcessorUse| (row.start - start).as_secs_f64();
    plot.x_text = seconds;
    plot.y_text = number;
    plot.end = summary.span.map_or(0.0, |(_, last)| (last - start).as_secs_f64());
    plot.top = rows.iter().map(|row| row.procs).fold(0.0, f64::max);
    let mut add = |name, value: fn(&ProcessorUse) -> f64| {
        plot.add(name, rows.iter().map(|row| (at(row), value(row))));
    };
    add("running", |row| row.running);
    add("GC", |row| row.gc);
    add("system call", |row| row.syscall);
    if summary.scheduling.mean().as_ref().is_some_and(has_procs) {
        add("idle", ProcessorUse::idle);
    }
    plot
}

/// Windows per power of ten.
const STEPS: u32 = 8;

fn mmu(summary: &Summary) -> Plot {
    let mut plot = Plot::new(
        "minimum mutator utilization, by length of the window",
        Form::Lines,
        Scale::Logarithmic,
    );
    plot.x_text = nanos;
    plot.y_text = percent;
    plot.top = 1.0;
    let longest = summary.duration().as_nanos() as f64;
    let windows = (0..=7 * STEPS).map(|step| 10_f64.powf(3.0 + f64::from(step) / f64::from(STEPS)));
    let windows = windows.take_while(|window| *window <= longest);
    let value = |window: f64| summary.utilization.of(Duration::from_nanos(window as u64));
    plot.add("all", windows.map(|window| (window, value(window))));
    plot
}

/// A histogram with four columns for each power of two.
fn sizes(title: &str, histogram: &Histogram) -> Plot {
    let mut plot = Plot::new(title, Form::Columns, Scale::Logarithmic);
    plot.x_text = nanos;
    plot.y_text = number;
    let mut columns: std::collections::BTreeMap<u64, u64> = std::collections::BTreeMap::new();
    for (from, _, count) in histogram.buckets() {
        let power = from.max(1).ilog2();
        let quarter = if power >= 2 { from >> (power - 2) & 3 } else { 0 };
        *columns.entry(u64::from(power) * 4 + quarter).or_default() += count;
    }
    let from = |column: u64| 2_f64.powi((column / 4) as i32) * (1.0 + (column % 4) as f64 / 4.0);
    if let (Some(first), Some(last)) =
        (columns.keys().next().copied(), columns.keys().next_back().copied())
    {
        let count = |column: u64| columns.get(&column).copied().unwrap_or(0) as f64;
        plot.end = from(last + 1);
        plot.add(title, (first..=last).map(|column| (from(column), count(column))));
    }
    plot
}

fn causes(summary: &Summary) -> Vec<(Name, Histogram)> {
    let causes = summary.scheduling.by_cause.iter().filter(|(_, times)| times.count() > 0);
    causes.map(|(cause, times)| (Name::from(cause.name()), times.clone())).collect()
}

fn columns(times: &Histogram) -> Vec<String> {
    let of = |percent| times.percentile(percent);
    let nanos = [times.sum(), of(50.0), of(90.0), of(99.0), times.max()];
    let texts = nanos.map(|nanos| analysis::duration(Duration::from_nanos(nanos)));
    std::iter::once(times.count().to_string()).chain(texts).collect()
}

fn text(name: &Name) -> String {
    analysis::name(name, "(unknown)")
}

fn named(document: &mut Document, what: &str, rows: &[(Name, Histogram)]) {
    let header = ["count", "total", "p50", "p90", "p99", "max", what];
    let shown = rows.get(..rows.len().min(ROWS)).unwrap_or_default();
    document.table(&header, shown, |(name, times)| {
        let mut row = columns(times);
        row.push(text(name));
        row
    });
    more(document, rows.len());
}

fn more(document: &mut Document, rows: usize) {
    if rows > ROWS {
        document.text(&format!("{} more are not listed", rows - ROWS));
    }
}

fn groups(document: &mut Document, what: &str, groups: &[Group]) {
    let header = [
        "count",
        "total",
        "p50",
        "p90",
        "p99",
        "max",
        "running",
        "runnable",
        "blocked",
        "syscall",
        "syscall, no P",
        "incomplete",
        what,
    ];
    let shown = groups.get(..groups.len().min(ROWS)).unwrap_or_default();
    document.table(&header, shown, |group| {
        let times = &group.times;
        let states = [
            times.running,
            times.runnable,
            times.blocked_total(),
            times.syscall,
            times.syscall_blocked,
        ];
        let mut row = columns(&group.durations);
        row.extend(states.map(analysis::duration));
        row.extend([group.incomplete.to_string(), text(&group.name)]);
        row
    });
    more(document, groups.len());
}

fn frames(stack: &[Frame]) -> Vec<String> {
    let frame = |frame: &Frame| format!("{} {}:{}", frame.function, frame.file, frame.line);
    stack.iter().map(frame).collect()
}

fn stalls(document: &mut Document, summary: &Summary, stalls: &[Stall]) {
    for stall in stalls {
        let (time, entry) = (analysis::duration(stall.duration), text(&stall.entry));
        let at = summary.reading.at(stall.start);
        let mut line = format!("{time} {entry} (G{}) at {at}", stall.goroutine);
        if !stall.reason.is_empty() {
            line.push_str(&format!(": {}", text(&stall.reason)));
        }
        let mut list = frames(&stall.stack);
        if let Some(by) = &stall.by {
            let entry = text(&by.entry);
            line.push_str(&format!("; made runnable by {entry} (G{})", by.goroutine));
            list.push(format!("— made runnable by {entry} (G{}) —", by.goroutine));
            list.extend(frames(&by.stack));
        }
        document.details(&line, &list);
    }
}

fn gc(document: &mut Document, summary: &Summary) {
    let header = [
        "start",
        "mark",
        "pauses",
        "assists",
        "sweep",
        "heap before",
        "heap after",
        "goal",
        "cause",
    ];
    let cycles = &summary.gc.cycles;
    let shown = cycles.get(..cycles.len().min(ROWS)).unwrap_or_default();
    let bytes = |bytes: Option<u64>| bytes.map_or("–".to_owned(), size);
    document.table(&header, shown, |cycle: &GcCycle| {
        let mark = cycle.end.zip(cycle.start).map(|(end, start)| analysis::duration(end - start));
        vec![
            cycle.start.map_or("–".to_owned(), |start| summary.reading.at(start)),
            mark.unwrap_or_else(|| "–".to_owned()),
            analysis::duration(cycle.pauses),
            analysis::duration(cycle.assists),
            analysis::duration(cycle.sweep),
            bytes(cycle.heap_before),
            bytes(cycle.heap_after),
            bytes(cycle.goal),
            cycle.trigger.name().to_owned(),
        ]
    });
    more(document, cycles.len());
}
