use super::source::SourceOrCommand;
use super::{json, providers};
use crate::failure::{OneLine, Result};
use crate::io::progress::Progress;
use crate::io::stdout::Output;
use crate::run::duration::duration;
use diag_ipc::{Provider, Rundown, TracingConfig};
use nettrace::{Event, Order};
use std::io::Write;
use std::time::Duration;

/// Print events of a trace or of a live process, in time order
///
/// One line per event: time in seconds (of CLOCK_MONOTONIC), thread, provider/event, fields.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  triscope dotnet events app.nettrace | less
  triscope dotnet events app.nettrace --json | jq 'select(.name == \"GCHeapStats\")'
  triscope dotnet events 1234 --provider Microsoft-Windows-DotNETRuntime:0x8000:2
  triscope dotnet events -n MyApp --provider System.Net.Http --duration 10
  triscope dotnet events --provider MyCompany-MyEvents -- ./MyApp --its-options")]
pub(crate) struct Args {
    #[command(flatten)]
    source: SourceOrCommand,
    /// Only this provider; for a process `NAME[:KEYWORDS[:LEVEL[:ARGUMENTS]]]`
    #[arg(long, value_name = "PROVIDER")]
    provider: Vec<Provider>,
    /// Only events with this name
    #[arg(long, value_name = "NAME")]
    event: Vec<String>,
    /// Print JSON, one object per line
    #[arg(long)]
    json: bool,
    /// Print the addresses of each event's stack
    #[arg(long)]
    stacks: bool,
    /// Stop after SECONDS (live session)
    #[arg(long, visible_alias = "seconds", value_name = "SECONDS", value_parser = duration)]
    duration: Option<Duration>,
}

pub(super) fn run(args: &Args) -> Result {
    let config = TracingConfig::new(if args.provider.is_empty() {
        vec![providers::runtime_default()]
    } else {
        args.provider.clone()
    })
    .rundown(Rundown::None);
    let live = args.source.is_live();
    let stream =
        args.source.open(&config, args.duration, Order::Time, Progress::beside_output())?;
    let mut output = Output::new();
    let reading = stream.read(|event| {
        let wanted = (live
            || args.provider.is_empty()
            || args.provider.iter().any(|p| p.name == event.provider()))
            && (args.event.is_empty() || args.event.iter().any(|n| n == event.name()));
        if !wanted {
            return Ok(());
        }
        if args.json {
            let line = json::event(event, args.stacks);
            let _ = writeln!(output.buffer, "{line}"); // writing to a vector does not fail
        } else {
            text(event, args.stacks, &mut output.buffer);
        }
        // Live output must appear at once.
        if live { output.write() } else { output.write_if_full() }
    })?;
    output.finish()?;
    reading.into_result()
}

fn text(event: &Event<'_>, stacks: bool, out: &mut Vec<u8>) {
    // Writing to a vector does not fail.
    let _ = write!(
        out,
        "{} {:>7} {}/{}",
        event.timestamp(),
        event.thread_id(),
        OneLine(event.provider()),
        OneLine(event.name()),
    );
    if event.name().is_empty() {
        let _ = write!(out, "{}", event.id());
    }
    let mut undecoded = event.metadata().fields.is_empty() && !event.payload().is_empty();
    for field in event.fields() {
        let (name, value) = match field {
            Ok((name, value)) => (name, value.to_string()),
            Err(error) => {
                undecoded = true;
                ("error", error.to_string())
            }
        };
        let quote = if value.is_empty() || value.contains(' ') { "\"" } else { "" };
        let _ = write!(out, " {}={quote}{}{quote}", OneLine(name), OneLine(&value));
    }
    if undecoded {
        let _ = write!(out, " payload={}", json::hex(event.payload()));
    }
    if let Some(id) = event.activity_id() {
        let path = nettrace::activity_path(id, u32::try_from(event.process_id()).ok());
        let _ = write!(out, " activity={}", path.unwrap_or_else(|| id.to_string()));
    }
    if stacks {
        for ip in event.stack().instruction_pointers() {
            let _ = write!(out, "\n        {ip:#x}");
        }
    }
    out.push(b'\n');
}
