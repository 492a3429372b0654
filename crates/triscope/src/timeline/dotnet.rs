//! .NET traces on the timeline.

use super::{Part, counted, notes};
use crate::failure::{Failure, OneLine, Result};
use crate::io::input::Input;
use crate::io::output_file::OutputFile;
use crate::io::progress::Progress;
use nettrace::{ErrorKind, Reader};
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use trace_export::Sink;
use trace_export::dotnet::{DotnetNames, DotnetOptions, DotnetSource, DotnetStats};

/// Draws a .NET trace on the timeline; the second result is the error in it, if any.
///
/// The rundown with the names of methods is at the end of a trace, so it is read twice.
pub(crate) fn draw_input(
    mut input: Input,
    path: &Path,
    options: DotnetOptions,
    sink: &mut impl Sink,
    output: &OutputFile,
) -> Result<(Part, Result)> {
    let name = input.name.clone();
    if path == Path::new("-") {
        let fail = |e: std::io::Error| Failure::about("a temporary file", e);
        let mut spool = tempfile::tempfile().map_err(fail)?;
        std::io::copy(&mut input, &mut spool).map_err(fail)?;
        return draw_file(&name, spool, options, sink, output);
    }
    let names = collect_names(input);
    draw(&name, Input::open(path, Progress::bytes())?, names, options, sink, output)
}

/// Draws the trace in a file on the timeline.
pub(crate) fn draw_file(
    name: &str,
    mut file: std::fs::File,
    options: DotnetOptions,
    sink: &mut impl Sink,
    output: &OutputFile,
) -> Result<(Part, Result)> {
    let fail = |e: std::io::Error| Failure::about(name, e);
    file.seek(SeekFrom::Start(0)).map_err(fail)?;
    let names = collect_names(&mut file);
    file.seek(SeekFrom::Start(0)).map_err(fail)?;
    draw(name, file, names, options, sink, output)
}

/// Maximum number of damaged blocks before a trace is given up.
const MAX_ERRORS: u32 = 1_000;

/// Collects the names of methods, processes and threads. The second pass reports errors.
fn collect_names(source: impl Read) -> DotnetNames {
    let mut names = DotnetNames::new();
    let mut reader = Reader::new(source);
    for _ in 0..MAX_ERRORS {
        let result = reader.for_each(|event| {
            names.observe(&event);
        });
        match result {
            Err(error) if !matches!(error.kind, ErrorKind::Io(_)) => {}
            _ => break,
        }
    }
    names
}

fn draw(
    name: &str,
    trace: impl Read,
    names: DotnetNames,
    options: DotnetOptions,
    sink: &mut impl Sink,
    output: &OutputFile,
) -> Result<(Part, Result)> {
    let mut source = DotnetSource::new(options, names);
    let mut reader = Reader::new(trace);
    let mut errors = 0;
    loop {
        match reader.next_item() {
            Ok(Some(item)) => source.push(&item, sink).map_err(|e| output.failure(&e))?,
            Ok(None) => break,
            Err(error) => {
                errors += 1;
                eprintln!("triscope: {}: {}", OneLine(name), OneLine(&error.to_string()));
                if matches!(error.kind, ErrorKind::Io(_)) || errors >= MAX_ERRORS {
                    break;
                }
            }
        }
    }
    source.finish(sink).map_err(|e| output.failure(&e))?;
    let stats = source.stats();
    let seconds = match (stats.first, stats.last) {
        (Some(first), Some(last)) => last.nanos_since(first) as f64 / 1e9,
        _ => 0.0,
    };
    let part = Part {
        what: format!("{} of {seconds:.3} s, {}", counted(stats.events, "event"), samples(&stats)),
        notes: format!(
            "{}{}",
            not_shown(&source),
            notes(&[
                (stats.undecodable, "event could not be decoded", "events could not be decoded"),
                (stats.lost, "event lost by the runtime", "events lost by the runtime"),
                (
                    stats.activities_dropped,
                    "activity without its start or stop",
                    "activities without their start or stop",
                ),
            ])
        ),
    };
    let is_empty = stats.shown == 0 && stats.events > 0;
    if is_empty {
        let why = format!("nothing of the trace can be shown{}", not_shown(&source));
        return Ok((part, Err(Failure::about(name, why))));
    }
    Ok((part, if errors == 0 { Ok(()) } else { Err(Failure::Quiet(1)) }))
}

/// Summary of the samples, by the state of their threads.
fn samples(stats: &DotnetStats) -> String {
    let text = counted(stats.samples, "sample");
    match (stats.samples_on_cpu, stats.samples_off_cpu) {
        (0, 0) => text,
        (on, off) => format!("{text} ({on} on CPU, {off} off CPU)"),
    }
}

/// Summary of the events that are not shown, most frequent first.
fn not_shown(source: &DotnetSource) -> String {
    /// Number of event types that are named.
    const MOST: usize = 3;
    let kinds = source.not_shown();
    let all: u64 = kinds.iter().map(|(.., count)| count).sum();
    if all == 0 {
        return String::new();
    }
    let mut named: Vec<String> = kinds
        .iter()
        .take(MOST)
        .map(|(provider, event, count)| {
            let provider = provider.rsplit('-').next().unwrap_or(provider);
            format!("{count} {provider}/{event}")
        })
        .collect();
    if kinds.len() > MOST {
        named.push(format!("{} more kinds", kinds.len() - MOST));
    }
    format!("; {} not shown: {}", counted(all, "event"), named.join(", "))
}
