use super::providers;
use super::source::SourceArgs;
use crate::failure::{Failure, OneLine, Result};
use crate::io::progress::Progress;
use crate::io::stdout::Output;
use diag_ipc::TracingConfig;
use nettrace::{Order, Profile, SampleKind};
use serde_json::json;
use std::collections::BTreeMap;
use std::io::Write;
use std::time::Duration;

/// Print the current stack of every managed thread of a process
///
/// Innermost frame first.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  triscope dotnet stack 1234
  triscope dotnet stack app.nettrace       the last sample of each thread in a trace")]
pub(crate) struct Args {
    #[command(flatten)]
    source: SourceArgs,
    /// Print JSON, one object per thread
    #[arg(long)]
    json: bool,
}

/// Sampling time: the sampler visits all threads about every millisecond.
const ENOUGH: Duration = Duration::from_millis(100);

pub(super) fn run(args: &Args) -> Result {
    let config = TracingConfig::new(providers::samples());
    let progress = Progress::beside_output();
    let stream = args.source.open(&config, Some(ENOUGH), Order::Time, progress)?;
    let name = stream.name.clone();
    let mut profile = Profile::new();
    let reading = stream.read(|event| {
        profile.observe(event);
        Ok(())
    })?;
    let mut last = BTreeMap::new();
    for sample in profile.samples() {
        last.insert((sample.process_id, sample.thread_id), *sample);
    }
    if last.is_empty() {
        return Err(Failure::about(&name, "no thread was sampled"));
    }
    let mut output = Output::new();
    for ((_, thread), sample) in last {
        let state = match sample.kind {
            SampleKind::Managed => "in managed code",
            SampleKind::External => "outside managed code",
            SampleKind::Running => "running",
            _ => "",
        };
        // Writing to a vector does not fail.
        if args.json {
            let frames: Vec<String> =
                profile.frames(&sample).map(|frame| frame.to_string()).collect();
            let line = json!({ "tid": thread, "state": state, "frames": frames });
            let _ = writeln!(output.buffer, "{line}");
            continue;
        }
        let _ = writeln!(output.buffer, "thread {thread}  {state}");
        for frame in profile.frames(&sample) {
            let _ = writeln!(output.buffer, "    {}", OneLine(&frame.to_string()));
        }
        output.buffer.push(b'\n');
    }
    output.finish()?;
    reading.into_result()
}
