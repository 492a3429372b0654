use crate::failure::Result;
use crate::io::progress::Progress;
use crate::io::stdout::Output;
use crate::sources::go::{self, Recovery, TimeRange};
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
  triscope go events --from 1.5 --to 1.6 trace.out
  triscope go events --recover cut.out > events.txt    resume after damage
  curl -s http://localhost:6060/debug/pprof/trace?seconds=1 | triscope go events -
  triscope go events --follow trace.out                  a trace that is being written
  nc -l 7000 | triscope go events -                      a trace from a socket")]
pub(crate) struct Args {
    /// The trace: a file, a Unix socket that sends it, or - for standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
    #[command(flatten)]
    recovery: Recovery,
    #[command(flatten)]
    range: TimeRange,
    /// Wait for more at the end of the file, until its writer closes it or Ctrl-C
    #[arg(long, conflicts_with = "range")]
    follow: bool,
}

pub(super) fn run(args: &Args) -> Result {
    let mut formatter = TextFormatter::new();
    let mut output = Output::new();
    let mut visitor = |event: Event<'_>| {
        formatter.append(event, &mut output.buffer);
        output.buffer.push(b'\n');
        // Show the generations of a trace that is still being written as they arrive.
        if event.kind() == EventKind::Sync { output.write() } else { output.write_if_full() }
    };
    let progress = Progress::beside_output();
    let reading = if args.follow {
        go::follow(&args.file, progress, |opened| opened.filter(args.recovery, &mut visitor))?
    } else {
        // The first events of a generation depend on those before it.
        args.range.open_whole(&args.file, progress)?.filter(args.recovery, &mut visitor)?
    };
    output.finish()?;
    reading.into_result()
}
