use crate::failure::Result;
use crate::io::progress::Progress;
use crate::io::stdout::Output;
use crate::sources::go::{self, Recovery, Trace};
use gotrace::{Event, EventKind, TextFormatter};
use std::path::PathBuf;

/// Print every event of a trace as text, in order
///
/// The output is byte for byte that of go tool trace -d=parsed: one line per event, followed by its
/// stacks. Wall clocks are printed in UTC. Events before an error are printed too.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  triscope go events trace.out | less
  triscope go events trace.out | grep 'GoID=18 '       the life of one goroutine
  triscope go events trace.out | grep -A8 ' StackSample '
  triscope go events --recover cut.out > events.txt    resume after damage
  curl -s http://localhost:6060/debug/pprof/trace?seconds=1 | triscope go events -")]
pub(crate) struct Args {
    /// The trace; - is standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
    #[command(flatten)]
    recovery: Recovery,
}

pub(super) fn run(args: &Args) -> Result {
    let trace = Trace::open(&args.file, Progress::beside_output())?;
    let mut formatter = TextFormatter::new();
    let mut output = Output::new();
    let reading = go::read(trace, args.recovery, &mut |event: Event<'_>| {
        formatter.append(event, &mut output.buffer);
        output.buffer.push(b'\n');
        // Show the generations of a trace that is still being written as they arrive.
        if event.kind() == EventKind::Sync { output.write() } else { output.write_if_full() }
    })?;
    output.finish()?;
    reading.into_result()
}
