//! `triscope go`: Go execution traces.

mod wire;

use crate::failure::Result;
use crate::input::{Format, Input};
use crate::progress::Progress;
use gotrace::raw::{TestFile, TextToWire};
use std::io::{Cursor, Read};
use std::path::Path;

/// The commands of the group.
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// Print the wire events of a trace, in the order of the file
    Wire(wire::Args),
}

impl Command {
    pub(crate) fn run(self) -> Result {
        match self {
            Self::Wire(args) => wire::run(&args),
        }
    }
}

/// A Go execution trace: its name for messages, and its bytes.
pub(crate) struct Trace {
    pub(crate) name: String,
    pub(crate) bytes: Box<dyn Read + Send>,
}

impl Trace {
    /// Opens a trace, be it binary or text, or says what the file is instead.
    pub(crate) fn open(path: &Path, progress: Progress) -> Result<Self> {
        let mut input = Input::open(path, progress)?;
        let name = input.name.clone();
        let bytes: Box<dyn Read + Send> = match input.format {
            Format::GoTrace => Box::new(input),
            Format::GoText => Box::new(TextToWire::new(input).map_err(|e| failure(&name, e))?),
            Format::GoTest => {
                let mut file = Vec::new();
                input
                    .by_ref()
                    .take(MAX_TEST)
                    .read_to_end(&mut file)
                    .map_err(|e| input.failure(e))?;
                if file.len() as u64 == MAX_TEST {
                    return Err(input.failure("is too large for a test of a trace"));
                }
                let test = TestFile::parse(&file).map_err(|e| input.failure(e))?;
                let mut wire = Vec::new();
                // A test is small: its text is checked as a whole first, as Go does.
                test.to_wire()
                    .map_err(|e| input.failure(e))?
                    .read_to_end(&mut wire)
                    .map_err(|e| input.failure(e))?;
                Box::new(Cursor::new(wire))
            }
            other => return Err(input.failure(not_a_trace(other))),
        };
        Ok(Self { name, bytes })
    }
}

const MAX_TEST: u64 = 256 << 20;

fn failure(name: &str, message: impl std::fmt::Display) -> crate::failure::Failure {
    crate::failure::Failure::about(name, message)
}

/// What to say of an input that is something else.
fn not_a_trace(format: Format) -> String {
    let Some(description) = format.description() else {
        return "is not a Go execution trace: those begin with \"go 1.\"; they are made by \
                runtime/trace, go test -trace or /debug/pprof/trace"
            .to_owned();
    };
    let hint = match format {
        Format::Pprof => {
            "open it with go tool pprof; traces are made by go test -trace, \
                          runtime/trace or /debug/pprof/trace"
        }
        Format::PerfData => "open it with perf report",
        _ => "this command reads Go execution traces",
    };
    format!("looks like {description}, not a Go execution trace: {hint}")
}
