use super::providers;
use super::source::SourceArgs;
use crate::failure::{Failure, OneLine, Result};
use crate::io::progress::Progress;
use crate::io::stdout::Output;
use crate::run::procfs;
use diag_ipc::TracingConfig;
use nettrace::{Order, ProfileSums, SampleKind};
use serde_json::json;
use std::collections::{BTreeMap, HashMap};
use std::io::Write;
use std::time::Duration;

/// Print the current stack of every managed thread of a process
///
/// Innermost frame first. Threads of a running process have their names.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  triscope dotnet stack 1234
  triscope dotnet stack 1234 --json | jq 'select(.name == \".NET TP Worker\")'
  triscope dotnet stack app.nettrace       the last sample of each thread in a trace

Native frames, and threads that never run managed code, are shown by triscope profile.")]
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
    let (name, process) = (stream.name.clone(), stream.process());
    let mut sums = ProfileSums::new();
    let reading = stream.read(|event| {
        sums.push(event);
        Ok(())
    })?;
    let mut last = BTreeMap::new();
    for total in sums.totals() {
        let newest = last.entry((total.pid, total.tid)).or_insert(total);
        if total.last >= newest.last {
            *newest = total;
        }
    }
    if last.is_empty() {
        return Err(reading.failed(Failure::about(&name, "no thread was sampled")));
    }
    let names = process.map(thread_names).unwrap_or_default();
    let mut output = Output::new();
    for ((_, thread), sample) in last {
        let thread_name = names.get(&thread);
        let state = match sample.kind {
            SampleKind::Managed => "in managed code",
            SampleKind::External => "outside managed code",
            SampleKind::Running => "running",
            _ => "",
        };
        // Writing to a vector does not fail.
        if args.json {
            let frames: Vec<String> = sums.frames(&sample).map(|frame| frame.to_string()).collect();
            let mut line = json!({ "tid": thread, "state": state, "frames": frames });
            if let (Some(name), Some(line)) = (thread_name, line.as_object_mut()) {
                line.insert("name".to_owned(), name.as_str().into());
            }
            let _ = writeln!(output.buffer, "{line}");
            continue;
        }
        let _ = match thread_name {
            Some(name) => writeln!(output.buffer, "thread {thread} ({})  {state}", OneLine(name)),
            None => writeln!(output.buffer, "thread {thread}  {state}"),
        };
        for frame in sums.frames(&sample) {
            let _ = writeln!(output.buffer, "    {}", OneLine(&frame.to_string()));
        }
        output.buffer.push(b'\n');
    }
    output.finish()?;
    reading.into_result()
}

/// The names of the threads of a process, by the thread ids that the process sees.
fn thread_names(pid: u32) -> HashMap<u64, String> {
    let named = |tid: u32| {
        let status = std::fs::read(format!("/proc/{pid}/task/{tid}/status")).ok()?;
        let name = procfs::comm(pid, tid);
        let name = String::from_utf8_lossy(&name).into_owned();
        let id = trace_common::innermost_pid(&status).unwrap_or(tid);
        (!name.is_empty()).then_some((id.into(), name))
    };
    perf_monitor::threads(pid).into_iter().filter_map(named).collect()
}
