//! .NET traces.

use super::file::OutputFile;
use super::{Args, Timeline};
use crate::failure::{Failure, OneLine, Result};
use crate::input::Input;
use crate::progress::Progress;
use nettrace::{ErrorKind, MethodMap, Reader};
use std::io::{Seek, SeekFrom};
use std::path::Path;
use trace_export::dotnet::{DotnetOptions, DotnetSource};

/// Puts a .NET trace on the timeline; what went wrong in it is the second result.
///
/// The names of methods come at the end of a trace, so it is read twice.
pub(super) fn convert(
    args: &Args,
    mut input: Input,
    path: &Path,
    sink: &mut Timeline,
    output: &OutputFile,
) -> Result<(String, Result)> {
    let name = input.name.clone();
    let mut methods = MethodMap::new();
    let mut again: Box<dyn std::io::Read> = if path == Path::new("-") {
        let fail = |e: std::io::Error| Failure::about("a temporary file", e);
        let mut spool = tempfile::tempfile().map_err(fail)?;
        std::io::copy(&mut input, &mut spool).map_err(fail)?;
        spool.seek(SeekFrom::Start(0)).map_err(fail)?;
        learn(&mut spool, &mut methods);
        spool.seek(SeekFrom::Start(0)).map_err(fail)?;
        Box::new(spool)
    } else {
        learn(&mut input, &mut methods);
        Box::new(Input::open(path, Progress::bytes())?)
    };
    let mut options = DotnetOptions::default();
    if let Some(name) = &args.name {
        options.process = name.clone().into_bytes();
    }
    let mut source = DotnetSource::new(options, methods);
    let mut reader = Reader::new(&mut again);
    let mut errors = 0;
    loop {
        match reader.next_item() {
            Ok(Some(item)) => source.item(&item, sink).map_err(|e| output.failure(&e))?,
            Ok(None) => break,
            Err(error) => {
                errors += 1;
                eprintln!("triscope: {}: {}", OneLine(&name), OneLine(&error.to_string()));
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
    let mut summary =
        format!("{} events of {seconds:.3} s, {} samples", stats.events, stats.samples);
    for (count, what) in [
        (stats.not_shown, "events of the runtime are not shown"),
        (stats.lost, "events were lost by the runtime"),
        (stats.activities_dropped, "starts and stops without their other half"),
    ] {
        if count > 0 {
            summary.push_str(&format!("; {count} {what}"));
        }
    }
    Ok((summary, if errors == 0 { Ok(()) } else { Err(Failure::Quiet(1)) }))
}

/// Damaged blocks after which a trace is given up.
const MAX_ERRORS: u32 = 1_000;

/// What methods and modules are called. What is wrong with the trace is told when it is read
/// again.
fn learn(source: &mut dyn std::io::Read, methods: &mut MethodMap) {
    let mut reader = Reader::new(source);
    for _ in 0..MAX_ERRORS {
        match reader.for_each(|event| {
            methods.observe(&event);
        }) {
            Err(error) if !matches!(error.kind, ErrorKind::Io(_)) => {}
            _ => break,
        }
    }
}
