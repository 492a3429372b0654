//! The timeline that `convert` and `record` write, and shared drawing code.

pub(crate) mod clock;
pub(crate) mod dotnet;
pub(crate) mod go;

use crate::failure::{Failure, Result};
use crate::io::counting::{Count, Counted, Tally};
use crate::io::output_file::OutputFile;
use std::io::{self, Write};
use std::path::Path;
use std::time::{Duration, Instant};
use trace_export::{ClockDomain, Compressor, PerfettoSink, Timestamp};

/// The output of a timeline.
pub(crate) type Timeline = PerfettoSink<Box<dyn Write + Send>>;

/// Opens the output for a timeline on `CLOCK_MONOTONIC`.
pub(crate) fn open(output: &mut OutputFile, uncompressed: bool) -> Result<(Timeline, Written)> {
    let written = Written::default();
    let file = Timed { inner: output.writer()?, time: written.nanos.clone() };
    let file = Counted::new(file, written.bytes.clone());
    let writer: Box<dyn Write + Send> = if uncompressed {
        Box::new(file)
    } else {
        Box::new(Compressor::new(file).map_err(|e| output.failure(&e))?)
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

/// Rejects the name of an output that belongs to another format.
pub(crate) fn check_format(path: &Path) -> Result {
    const EXTENSIONS: [&str; 3] = ["pftrace", "perfetto-trace", "perfetto"];
    match path.extension() {
        // Other names do not imply a format; devices have such names.
        None => Ok(()),
        Some(extension) if EXTENSIONS.iter().any(|known| extension == *known) => Ok(()),
        Some(extension) => {
            let message = format!(
                "unknown format .{}: timelines are written for Perfetto: .pftrace, \
                 .perfetto-trace or .perfetto (triscope convert also writes .html; triscope dotnet \
                 profile writes .svg, .folded, .pb.gz and .speedscope.json)",
                extension.to_string_lossy()
            );
            Err(Failure::about(path.display(), message))
        }
    }
}

/// Prints how to open the written timeline.
pub(crate) fn print_next_step() {
    eprintln!("open it at https://ui.perfetto.dev (\"Open trace file\")");
}

/// The current time of `CLOCK_MONOTONIC`.
pub(crate) fn now() -> io::Result<Timestamp> {
    read_clock(ClockDomain::Monotonic)
}

/// The current time of a clock of the system.
pub(crate) fn read_clock(clock: ClockDomain) -> io::Result<Timestamp> {
    perf_monitor::now(clock).ok_or_else(|| {
        io::Error::new(io::ErrorKind::Unsupported, format!("{clock} cannot be read"))
    })
}

/// Summary of one trace on the timeline.
pub(crate) struct Part {
    /// Counts of the items on the timeline.
    pub(crate) what: String,
    /// Counts of the items that are not on it: `; …; …`.
    pub(crate) notes: String,
}

/// The non-zero counts, each as `; N …`: with a text for one, and one for several.
fn notes(counts: &[(u64, &str, &str)]) -> String {
    let present = counts.iter().filter(|(count, ..)| *count > 0);
    present
        .map(|(count, one, many)| format!("; {count} {}", if *count == 1 { one } else { many }))
        .collect()
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
