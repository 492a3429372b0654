//! The timeline that `convert` and `record` write, and shared drawing code.

use crate::failure::{Failure, Result};
use crate::io::counting::{Count, Counted, Tally};
use crate::io::output_file::OutputFile;
use crate::sources::model::{self, Opened, dropped, missing};
use std::io::{self, Write};
use std::path::Path;
use std::time::{Duration, Instant};
use trace_export::timeline::TimelineSource;
use trace_export::{ClockDomain, Compressor, PerfettoSink, Sink, Timestamp};
use trace_timeline::{Event, EventKind, Tables, text};

/// The output of a timeline.
pub(crate) type Timeline = PerfettoSink<Box<dyn Write + Send>>;

/// Opens the output for a timeline on `CLOCK_MONOTONIC`.
pub(crate) fn open(output: &mut OutputFile, uncompressed: bool) -> Result<(Timeline, Written)> {
    const CHUNKS: usize = 2;
    open_with_queue(output, uncompressed, CHUNKS)
}

/// The same, with at most `queue` chunks that wait to be compressed.
pub(crate) fn open_with_queue(
    output: &mut OutputFile,
    uncompressed: bool,
    queue: usize,
) -> Result<(Timeline, Written)> {
    let written = Written::default();
    let file = Timed { inner: output.writer()?, time: written.nanos.clone() };
    let file = Counted::new(file, written.bytes.clone());
    let writer: Box<dyn Write + Send> = if uncompressed {
        Box::new(file)
    } else {
        Box::new(Compressor::with_queue(file, queue).map_err(|e| output.failure(&e))?)
    };
    Ok((PerfettoSink::new(writer, ClockDomain::Monotonic), written))
}

/// Statistics of the output so far.
#[derive(Clone, Default)]
pub(crate) struct Written {
    pub(crate) bytes: Count,
    /// Time spent writing, in nanoseconds.
    nanos: Count,
}

impl Written {
    /// A note if writing blocked a recording that took this `long`.
    pub(crate) fn stall(&self, long: Duration) -> Option<String> {
        /// The usual delay of a busy disk.
        const USUAL: Duration = Duration::from_millis(250);
        let time = Duration::from_nanos(self.nanos.get());
        let is_much = time > USUAL && time > long / 10;
        is_much.then(|| format!("writing took {:.1} s: the output is slow", time.as_secs_f64()))
    }
}

/// A writer that measures its time.
struct Timed<W> {
    inner: W,
    /// In nanoseconds.
    time: Count,
}

impl<W> Timed<W> {
    fn measure<T>(&mut self, act: impl FnOnce(&mut W) -> T) -> T {
        let start = Instant::now();
        let result = act(&mut self.inner);
        self.time.add(u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX));
        result
    }
}

impl<W: Write> Write for Timed<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.measure(|inner| inner.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.measure(Write::flush)
    }
}

/// Rejects the name of an output that belongs to another format. `others` are the endings of the
/// names with which the command writes something else.
pub(crate) fn check_format(path: &Path, others: &[&str]) -> Result {
    const EXTENSIONS: [&str; 3] = ["pftrace", "perfetto-trace", "perfetto"];
    match path.extension() {
        // Other names do not imply a format; devices have such names.
        None => Ok(()),
        Some(extension) if EXTENSIONS.iter().any(|known| extension == *known) => Ok(()),
        Some(extension) => {
            let message = format!(
                "unknown format .{}: timelines are written for Perfetto: .pftrace, .perfetto-trace or \
                 .perfetto; this command also writes {}; triscope export writes Parquet",
                extension.to_string_lossy(),
                others.join(", ")
            );
            Err(Failure::about(path.display(), message).with_code(2))
        }
    }
}

/// How to open the written timeline.
pub(crate) const NEXT_STEP: &str = "open it at https://ui.perfetto.dev (\"Open trace file\")";

/// How to open a page or a flame graph.
pub(crate) const OPEN_PAGE: &str = "open it in a browser";

/// Prints how to open the written timeline.
pub(crate) fn print_next_step() {
    message!("{NEXT_STEP}");
}

/// The current time of `CLOCK_MONOTONIC` as the records of the kernel have it: see [`read_clock`].
#[cfg(unix)]
pub(crate) fn now() -> io::Result<Timestamp> {
    read_clock(ClockDomain::Monotonic)
}

/// The current time of a clock of the system, without the offset of a time namespace: those of the kernel's records have
/// none.
#[cfg(unix)]
pub(crate) fn read_clock(clock: ClockDomain) -> io::Result<Timestamp> {
    perf_monitor::event_now(clock).ok_or_else(|| {
        io::Error::new(io::ErrorKind::Unsupported, format!("{clock} cannot be read"))
    })
}

/// A timeline of traces.
pub(crate) struct Drawn {
    /// What is damaged in the traces, or missing.
    pub(crate) failures: Vec<Failure>,
    /// The size of the timeline.
    pub(crate) bytes: u64,
    /// Values of counters that are not on it: see [`values_omitted`].
    pub(crate) values_omitted: u64,
}

/// Draws traces on a timeline of their own, and ends it.
pub(crate) fn draw(
    opened: &mut Opened,
    source: &mut TimelineSource,
    output: &mut OutputFile,
    uncompressed: bool,
) -> Result<Drawn> {
    let (mut sink, written) = open(output, uncompressed)?;
    sink.set_clock_domain(opened.domain);
    if let Some(release) = &opened.kernel {
        sink.kernel(release.as_bytes()).map_err(|error| output.failure(&error))?;
    }
    let mut failures = draw_traces(opened, source, true, &mut sink, output)?;
    sink.finish().map_err(|error| output.failure(&error))?;
    let stats = sink.stats();
    let early = stats.clamped_times;
    if early > 0 {
        let what = format!("{early} times before 0 of the clock are drawn at 0 on the timeline");
        failures.push(Failure::new(what));
    }
    Ok(Drawn { failures, bytes: written.bytes.get(), values_omitted: stats.values_omitted })
}

/// Draws traces. The result is what is damaged in them. `is_first` says that nothing relates the
/// clocks of the timeline yet.
pub(crate) fn draw_traces(
    opened: &mut Opened,
    source: &mut TimelineSource,
    is_first: bool,
    sink: &mut impl Sink,
    output: &OutputFile,
) -> Result<Vec<Failure>> {
    let mut tables = Tables::new();
    let (domain, mut is_unrelated) = (opened.domain, is_first && opened.needs_boottime());
    let mut failures = opened.read(&mut tables, &mut |event: &Event, tables: &mut Tables| {
        // Traces have no reading of this clock. The time that the viewer shows does not depend on
        // it.
        let related = match std::mem::take(&mut is_unrelated) {
            true => {
                sink.clock_snapshot(&[(domain, event.time), (ClockDomain::Boottime, event.time)])
            }
            false => Ok(()),
        };
        related
            .and_then(|()| source.push(event, tables, sink))
            .map_err(|error| output.failure(&error))?;
        // It is drawn: the memory does not grow with the length of the traces.
        if let EventKind::End { entity } = event.kind {
            tables.entities.forget(entity);
        }
        Ok(())
    })?;
    source.finish(&tables, sink).map_err(|error| output.failure(&error))?;
    let unrelated = source.unrelated().into_iter();
    opened.unrelated.extend(unrelated.map(|process| model::unrelated(process, &tables)));
    failures.extend(text::dropped(dropped(&tables)).map(missing));
    Ok(failures)
}

/// Draws the samples of a recording whose other events are on the timeline already: neither the
/// processes nor their names. The result is what is damaged in it.
pub(crate) fn draw_samples(
    opened: &mut Opened,
    source: &mut TimelineSource,
    sink: &mut impl Sink,
    output: &OutputFile,
) -> Result<Vec<Failure>> {
    let mut tables = Tables::new();
    let mut failures = opened.read(&mut tables, &mut |event: &Event, tables: &mut Tables| {
        match event.kind {
            EventKind::Sample { .. } => {
                source.push(event, tables, sink).map_err(|error| output.failure(&error))?;
            }
            EventKind::End { entity } => {
                tables.entities.forget(entity);
            }
            _ => {}
        }
        Ok(())
    })?;
    failures.extend(text::dropped(dropped(&tables)).map(missing));
    Ok(failures)
}

/// The non-zero counts, each as `; N …`: with a text for one, and one for several.
pub(crate) fn notes(counts: &[(u64, &str, &str)]) -> String {
    let present = counts.iter().filter(|(count, ..)| *count > 0);
    present
        .map(|(count, one, many)| format!("; {count} {}", if *count == 1 { one } else { many }))
        .collect()
}

/// The number of values of counters that a sink omitted, for [`notes`].
pub(crate) const fn values_omitted(count: u64) -> (u64, &'static str, &'static str) {
    (
        count,
        "value of a counter that is not finite omitted",
        "values of counters that are not finite omitted",
    )
}

/// A number with a noun, in the plural unless it is one.
pub(crate) fn counted(count: u64, what: &str) -> String {
    match count {
        1 => format!("1 {what}"),
        _ if what.ends_with(['s', 'h']) => format!("{count} {what}es"),
        _ => format!("{count} {what}s"),
    }
}

/// A number of bytes in readable form.
pub(crate) fn size(bytes: u64) -> String {
    match bytes {
        0..10_000 => counted(bytes, "byte"),
        10_000..10_000_000 => format!("{:.1} kB", bytes as f64 / 1e3),
        _ => format!("{:.1} MB", bytes as f64 / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unreadable_clock_is_an_error() {
        assert!(now().unwrap() > Timestamp::default());
        let error = read_clock(ClockDomain::Local(1)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::Unsupported);
    }
}
