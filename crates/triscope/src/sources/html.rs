//! Traces as one HTML page.

use super::model::Traces;
use crate::failure::{Failure, OneLine, Result};
use crate::io::output_file::OutputFile;
use crate::timeline::{counted, size};
use std::cmp::Reverse;
use std::path::Path;
use trace_export::html::{HtmlOptions, HtmlTimeline};
use trace_timeline::answers::{
    CriticalPath, History, Report, Request, RequestFilter, Requests, critical_path,
};
use trace_timeline::{SpanKind, Tables};

/// Requests whose critical path is on the page.
const WORST: usize = 20;

/// Writes the page of these traces. An error within a trace is the second result: what is before it
/// is on the page.
pub(crate) fn write(traces: &Traces, path: &Path) -> Result<Result> {
    let mut output = OutputFile::create(path, traces.inputs())?;
    let mut tables = Tables::new();
    let mut report = Report::new();
    let kinds = [SpanKind::Task, SpanKind::Activity, SpanKind::Region];
    let mut requests = kinds.map(|kind| Requests::new(RequestFilter::of(kind), WORST));
    let mut options = HtmlOptions::default();
    options.process = traces.recorded();
    let mut html = HtmlTimeline::new(options);
    let outcome = traces.derive(&mut tables, &mut |derived, tables| {
        requests.iter_mut().for_each(|requests| requests.push(&derived));
        report.push(&derived, &tables.entities);
        html.push(&derived, tables);
    })?;
    let [mut worst, activities, regions] = requests.map(Requests::into_worst);
    worst.extend(activities);
    // Regions are parts of tasks.
    if worst.is_empty() {
        worst = regions;
    }
    worst.sort_by_key(|request| (Reverse(request.nanos()), request.begin));
    worst.truncate(WORST);
    let paths = critical_paths(traces, worst, tables.entities.len())?;
    let title = traces.title();
    let writer = std::io::BufWriter::with_capacity(1 << 20, output.writer()?);
    let written = html.write(&title, &tables, &report, &paths, writer);
    let stats = written.map_err(|error| output.failure(&error))?;
    let name = output.name();
    output.complete()?;
    let mut summary = format!("{name}: {}", counted(stats.items, "interval"));
    if !paths.is_empty() {
        summary.push_str(&format!(", {}", counted(paths.len() as u64, "explained request")));
    }
    summary.push_str(&format!(", {}", size(stats.bytes)));
    for (count, what) in [
        (stats.dropped, "intervals are not on it: there are too many"),
        (stats.folded, "goroutines or threads have no lane: there are too many"),
    ] {
        if count > 0 {
            summary.push_str(&format!("; {count} {what}"));
        }
    }
    eprintln!("{}", OneLine(&summary));
    Ok(outcome)
}

/// The critical paths of these requests, by a second pass.
fn critical_paths(
    traces: &Traces,
    requests: Vec<Request>,
    entities: usize,
) -> Result<Vec<(Request, CriticalPath)>> {
    let mut windows = requests.iter().map(|request| (request.begin, request.end));
    let Some((begin, end)) = windows.next() else { return Ok(Vec::new()) };
    let mut history = History::new(begin, end);
    windows.for_each(|(begin, end)| history.add_window(begin, end));
    let mut tables = Tables::new();
    // The first pass reported damage.
    let _ = traces.derive_again(&mut tables, &mut |derived, _| history.push(&derived))?;
    history.finish();
    if tables.entities.len() != entities {
        return Err(Failure::new("the traces changed while they were read"));
    }
    if history.dropped() > 0 {
        eprintln!(
            "triscope: the longest requests have too many events: their critical paths are missing"
        );
        return Ok(Vec::new());
    }
    let path = |r: Request| {
        (r, critical_path(&history, &tables.entities, r.subject, r.begin, r.end, r.task))
    };
    Ok(requests.into_iter().map(path).collect())
}
