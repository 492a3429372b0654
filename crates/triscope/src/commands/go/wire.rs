use crate::failure::{Failure, Result};
use crate::io::progress::Progress;
use crate::io::stdout::Output;
use crate::sources::go::Trace;
use gotrace::{Version, raw};
use std::path::PathBuf;

/// Print the wire events of a trace, in file order
///
/// The output is that of go tool trace -d=wire: one line per event with its arguments; the frames
/// of a stack and the data of a string are on separate lines. Nothing is ordered or resolved.
/// Traces of Go 1.22 and later have wire events.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  triscope go wire trace.out | head
  triscope go wire trace.out | grep -c ^GoCreate
  triscope go wire --header trace.out > trace.txt   text that triscope reads like a trace
  triscope go events trace.txt")]
pub(crate) struct Args {
    /// The trace; - is standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Begin with the header line "Trace Go1.N", so that the text can be parsed again
    #[arg(long)]
    header: bool,
}

/// The failure to read wire events; `other` is the command for traces that have none.
pub(super) fn failure(name: &str, version: Version, error: gotrace::Error, other: &str) -> Failure {
    if version.is_v1() {
        let hint = format!("is of {version}, whose format v1 has no such wire events: try {other}");
        return Failure::about(name, hint);
    }
    Failure::about(name, error)
}

pub(super) fn run(args: &Args) -> Result {
    let trace = Trace::open(&args.file, Progress::beside_output())?;
    let mut reader =
        raw::Reader::new(trace.bytes).map_err(|error| Failure::about(&trace.name, error))?;
    let version = reader.version();
    let mut output = Output::new();
    if args.header {
        let header = format!("Trace Go1.{}\n", version.minor());
        output.buffer.extend_from_slice(header.as_bytes());
    }
    let result = loop {
        match reader.next_event() {
            Ok(Some(event)) => {
                event.append_text(&mut output.buffer);
                output.buffer.push(b'\n');
                output.write_if_full()?;
            }
            Ok(None) => break Ok(()),
            Err(error) => break Err(failure(&trace.name, version, error, "go events")),
        }
    };
    output.finish()?;
    result
}
