use super::source::{SourceOrCommand, Stream};
use super::{json, providers};
use crate::failure::{OneLine, Result};
use crate::io::input;
use crate::io::progress::Progress;
use crate::io::stdout::Output;
use crate::run::duration::duration;
use crate::run::runtimes;
use diag_ipc::{Provider, Rundown, TracingConfig};
use nettrace::{Event, MethodMap, Order};
use std::io::Write;
use std::path::Path;
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
    /// Only this provider; for a process `NAME[:KEYWORDS[:LEVEL[:ARGUMENTS]]]` [default for a process: GCs,
    /// exceptions, lock waits and threads of the runtime]
    #[arg(long, value_name = "PROVIDER")]
    provider: Vec<Provider>,
    /// Only events with this name
    #[arg(long, value_name = "NAME")]
    event: Vec<String>,
    /// Print JSON, one object per line
    #[arg(long)]
    json: bool,
    /// Print each event's stack: addresses, with the methods that the trace names (of a process or
    /// standard input those that it has named before)
    #[arg(long)]
    stacks: bool,
    /// Stop after SECONDS (live session); a COMMAND then gets SIGTERM
    #[arg(long, visible_alias = "seconds", value_name = "SECONDS", value_parser = duration)]
    duration: Option<Duration>,
}

pub(super) fn run(args: &Args) -> Result {
    args.source.check(&[("--duration", args.duration.is_some())])?;
    let live = args.source.is_live();
    let config = TracingConfig::new(match &args.provider[..] {
        [] => vec![providers::runtime_default()],
        providers if live => runtimes::merged(providers)?,
        _ => Vec::new(),
    })
    .rundown(Rundown::None);
    let file = args.source.file().filter(|path| args.stacks && input::is_file(path));
    let mut methods = args.stacks.then(MethodMap::new);
    if let Some((path, methods)) = file.zip(methods.as_mut()) {
        observe_all(path, methods)?;
    }
    let stream =
        args.source.open(&config, args.duration, Order::Time, Progress::beside_output())?;
    let mut output = Output::new();
    let reading = stream.read(|event| {
        if let Some(methods) = methods.as_mut().filter(|_| file.is_none()) {
            methods.push(event);
        }
        let wanted = (live
            || args.provider.is_empty()
            || args.provider.iter().any(|p| p.name.eq_ignore_ascii_case(event.provider())))
            && (args.event.is_empty() || args.event.iter().any(|n| n == event.name()));
        if !wanted {
            return Ok(());
        }
        if args.json {
            let line = json::event(event, methods.as_ref());
            let _ = writeln!(output.buffer, "{line}"); // writing to a vector does not fail
        } else {
            text(event, methods.as_ref(), &mut output.buffer);
        }
        // Live output must appear at once.
        if live { output.write() } else { output.write_if_full() }
    })?;
    output.finish()?;
    reading.into_result()
}

/// Reads the names of all methods, which are at the end of a trace. Damage is reported when the events
/// are printed.
fn observe_all(path: &Path, methods: &mut MethodMap) -> Result {
    let stream = Stream::of_file(path, Order::Stream, Progress::beside_output())?;
    let read = stream.read(|event| {
        methods.push(event);
        Ok(())
    });
    read.map(drop)
}

/// The frames of an event's stack, innermost first: addresses and methods.
pub(super) fn frames(event: &Event<'_>, methods: &MethodMap) -> Vec<(u64, Option<String>)> {
    let (process, at) = (event.pid(), event.time());
    let frame = |(depth, ip): (usize, u64)| {
        // A return address may be behind its method.
        let call = ip.wrapping_sub(u64::from(depth > 0));
        let frame = methods.resolve(process, call, at);
        let name = frame.method.map(|method| match frame.module {
            Some(module) => format!("{}!{method}", module.name()),
            None => method.to_string(),
        });
        (ip, name)
    };
    event.stack().instruction_pointers().enumerate().map(frame).collect()
}

fn text(event: &Event<'_>, methods: Option<&MethodMap>, out: &mut Vec<u8>) {
    // Writing to a vector does not fail.
    let _ = write!(
        out,
        "{} {:>7} {}/{}",
        event.time(),
        event.tid(),
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
        let path = event.activity_path();
        let _ = write!(out, " activity={}", path.unwrap_or_else(|| id.to_string()));
    }
    for (ip, method) in methods.into_iter().flat_map(|methods| frames(event, methods)) {
        let _ = write!(out, "\n        {ip:#x}");
        if let Some(method) = method {
            let _ = write!(out, " {}", OneLine(&method));
        }
    }
    out.push(b'\n');
}
