//! .NET traces on the timeline.

use super::{Part, counted, notes};
use crate::failure::{Failure, OneLine, Result};
use crate::io::input::Input;
use crate::io::output_file::OutputFile;
use crate::io::progress::Progress;
use nettrace::{ErrorKind, MethodMap, Reader};
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use trace_export::Sink;
use trace_export::dotnet::{DotnetOptions, DotnetSource};

/// Puts a .NET trace on the timeline; what went wrong in it is the second result.
///
/// The names of methods come at the end of a trace, so it is read twice.
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
    let methods = collect_methods(input);
    draw(&name, Input::open(path, Progress::bytes())?, methods, options, sink, output)
}

/// Puts the trace in a file on the timeline.
pub(crate) fn draw_file(
    name: &str,
    mut file: std::fs::File,
    options: DotnetOptions,
    sink: &mut impl Sink,
    output: &OutputFile,
) -> Result<(Part, Result)> {
    let fail = |e: std::io::Error| Failure::about(name, e);
    file.seek(SeekFrom::Start(0)).map_err(fail)?;
    let methods = collect_methods(&mut file);
    file.seek(SeekFrom::Start(0)).map_err(fail)?;
    draw(name, file, methods, options, sink, output)
}

/// Damaged blocks after which a trace is given up.
const MAX_ERRORS: u32 = 1_000;

/// Collects the names of methods and modules. Errors of the trace are reported when it is read
/// again.
fn collect_methods(source: impl Read) -> MethodMap {
    let mut methods = MethodMap::new();
    let mut reader = Reader::new(source);
    for _ in 0..MAX_ERRORS {
        let result = reader.for_each(|event| {
            methods.observe(&event);
        });
        match result {
            Err(error) if !matches!(error.kind, ErrorKind::Io(_)) => {}
            _ => break,
        }
    }
    methods
}

fn draw(
    name: &str,
    trace: impl Read,
    methods: MethodMap,
    options: DotnetOptions,
    sink: &mut impl Sink,
    output: &OutputFile,
) -> Result<(Part, Result)> {
    let mut source = DotnetSource::new(options, methods);
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
        what: format!(
            "{} of {seconds:.3} s, {}",
            counted(stats.events, "event"),
            counted(stats.samples, "sample")
        ),
        notes: notes(&[
            (stats.not_shown, "runtime event not shown", "runtime events not shown"),
            (stats.lost, "event lost by the runtime", "events lost by the runtime"),
            (
                stats.activities_dropped,
                "activity without its start or stop",
                "activities without their start or stop",
            ),
        ]),
    };
    Ok((part, if errors == 0 { Ok(()) } else { Err(Failure::Quiet(1)) }))
}
