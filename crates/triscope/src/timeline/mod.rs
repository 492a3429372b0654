//! The timeline that `convert` and `record` write, and what they draw on it alike.

pub(crate) mod dotnet;
pub(crate) mod go;

use crate::failure::Result;
use crate::io::counting::{Counted, Written};
use crate::io::output_file::OutputFile;
use std::io::Write;
use trace_export::{ClockDomain, Compressor, PerfettoSink};

/// What timelines are written to.
pub(crate) type Timeline = PerfettoSink<Box<dyn Write + Send>>;

/// Opens the output for a timeline on `CLOCK_MONOTONIC`.
pub(crate) fn open(output: &OutputFile, uncompressed: bool) -> Result<(Timeline, Written)> {
    let (file, written) = Counted::new(output.writer()?);
    let writer: Box<dyn Write + Send> = if uncompressed {
        Box::new(file)
    } else {
        Box::new(Compressor::new(file).map_err(|e| output.failure(&e))?)
    };
    Ok((PerfettoSink::new(writer, ClockDomain::Monotonic), written))
}

/// Summary of one trace on the timeline.
pub(crate) struct Part {
    /// How much of what is on the timeline.
    pub(crate) what: String,
    /// What is not on it: `; …; …`.
    pub(crate) notes: String,
}

/// Those that there are any of.
fn notes(counts: &[(u64, &str)]) -> String {
    let there = counts.iter().filter(|(count, _)| *count > 0);
    there.map(|(count, what)| format!("; {count} {what}")).collect()
}

/// A number of bytes, for people.
pub(crate) fn size(bytes: u64) -> String {
    match bytes {
        0..10_000 => format!("{bytes} bytes"),
        10_000..10_000_000 => format!("{:.1} kB", bytes as f64 / 1e3),
        _ => format!("{:.1} MB", bytes as f64 / 1e6),
    }
}
