//! Traces as one HTML page.

use super::explain;
use crate::failure::{OneLine, Result};
use crate::io::output_file::OutputFile;
use crate::sources::model::Traces;
use crate::timeline::{OPEN_PAGE, counted, size};
use std::cmp::Reverse;
use std::io::{BufWriter, Write};
use std::path::Path;
use trace_export::html::{HtmlOptions, HtmlTimeline};
use trace_timeline::answers::{Report, RequestFilter, Requests};
use trace_timeline::{SpanKind, Tables};

/// Requests whose critical path is on the page.
const WORST: usize = 20;

/// Writes the page of these traces. An error within a trace is the second result: what is before it
/// is on the page.
pub(crate) fn write(traces: &Traces, path: &Path) -> Result<Result> {
    let mut output = OutputFile::create(path, traces.inputs())?;
    let writer = output.writer()?;
    let outcome = write_to(traces, output, writer)?;
    if path != Path::new("-") {
        message!("{OPEN_PAGE}");
    }
    Ok(outcome)
}

/// The same, to a file that is open already. How to open it in a browser is not printed.
pub(crate) fn write_to(
    traces: &Traces,
    output: OutputFile,
    writer: Box<dyn Write + Send>,
) -> Result<Result> {
    traces.check_twice()?;
    let mut tables = Tables::new();
    let mut report = Report::new();
    let kinds = [SpanKind::Task, SpanKind::Activity, SpanKind::Region];
    let mut requests = kinds.map(|kind| Requests::new(RequestFilter::of(kind), WORST));
    let mut options = HtmlOptions::default();
    options.process = traces.recorded();
    let mut html = HtmlTimeline::new(options);
    let (outcome, notes) = traces.derive_with_notes(&mut tables, &mut |derived, tables| {
        requests.iter_mut().for_each(|requests| requests.push(&derived));
        report.push(&derived, &tables.entities);
        html.push(&derived, tables);
    })?;
    notes.into_iter().for_each(|note| html.note(note));
    let [mut worst, activities, regions] = requests.map(Requests::into_worst);
    worst.extend(activities);
    // Regions are parts of tasks.
    if worst.is_empty() {
        worst = regions;
    }
    worst.sort_by_key(|request| (Reverse(request.nanos()), request.start));
    worst.truncate(WORST);
    let requests = worst.len() as u64;
    let paths = explain::paths_of(traces, worst, &tables)?.unwrap_or_else(|| {
        let what = "the longest requests have too many events: their critical paths are missing";
        message!("triscope: {what}");
        html.omit_paths(requests);
        Vec::new()
    });
    let title = traces.title();
    let writer = BufWriter::with_capacity(1 << 20, writer);
    let written = html.write(&title, &tables, &report, &paths, writer);
    let stats = written.map_err(|error| output.failure(&error))?;
    // A file without a name gets the title of the page.
    let name = Some(output.name()).filter(|name| !name.is_empty()).unwrap_or(title);
    output.complete()?;
    let mut summary = format!("{name}: {}", counted(stats.items, "interval"));
    if !paths.is_empty() {
        summary.push_str(&format!(", {}", counted(paths.len() as u64, "explained request")));
    }
    summary.push_str(&format!(", {}", size(stats.bytes)));
    let since = stats.missing_since.unwrap_or_default() as f64 / 1e9;
    let missing = format!("intervals from {since:.3} s on are not on it: there are too many");
    for (count, what) in [
        (stats.dropped, &*missing),
        (stats.summarized, "intervals of other processes are shown on the CPUs only"),
        (stats.folded, "goroutines or threads have no lane: there are too many"),
        (stats.values_omitted, "values of counters are not finite and not on it"),
        (stats.stacks_cut, "stacks have only their outermost frames in the flame graphs"),
    ] {
        if count > 0 {
            summary.push_str(&format!("; {count} {what}"));
        }
    }
    message!("{}", OneLine(&summary));
    Ok(outcome)
}
