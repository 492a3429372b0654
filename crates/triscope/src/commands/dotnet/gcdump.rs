use super::providers;
use super::source::{Source, seconds};
use crate::failure::{Failure, OneLine, Result};
use crate::io::progress::Progress;
use crate::io::stdout::Output;
use diag_ipc::{Rundown, TracingConfig};
use nettrace::Order;
use nettrace::derived::HeapSnapshot;
use serde_json::json;
use std::collections::BTreeMap;
use std::io::Write;
use std::time::Duration;

/// Print what is on the managed heap, by type
///
/// Makes the process collect and walk its heap once: it stands still meanwhile.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  triscope dotnet gcdump 1234
  triscope dotnet gcdump 1234 --top 20
  triscope dotnet gcdump heap.nettrace --json | jq '.types[0]'")]
pub(crate) struct Args {
    /// The id of a process, a trace with heap events, or - for standard input
    #[arg(value_name = "PID|FILE")]
    source: Source,
    /// Print only so many types
    #[arg(long, value_name = "N", default_value_t = usize::MAX, hide_default_value = true)]
    top: usize,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Give up a walk that takes longer than so many seconds
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = seconds)]
    timeout: Duration,
}

pub(super) fn run(args: &Args) -> Result {
    let config = TracingConfig::new([providers::heap_walk()]).rundown(Rundown::None);
    let progress = Progress::beside_output();
    let stream = args.source.open(&config, Some(args.timeout), Order::Time, progress)?;
    let live = matches!(args.source, Source::Process(_));
    let name = stream.name.clone();
    let mut heap = HeapSnapshot::new();
    let mut walked = false;
    let result = stream.read(|event| {
        heap.observe(event);
        // The walk of a live process is over: there is nothing more to wait for.
        if live && heap.is_complete() {
            walked = true;
            return Err(Failure::Quiet(0));
        }
        Ok(())
    });
    let reading = match result {
        Err(_) if walked => None,
        other => Some(other?),
    };
    if heap.nodes().is_empty() {
        return Err(Failure::about(&name, "no walk of the heap was seen"));
    }
    let histogram = heap.histogram();
    let mut roots: BTreeMap<String, u64> = BTreeMap::new();
    for root in heap.roots() {
        *roots.entry(root.kind.to_string()).or_default() += 1;
    }
    let mut output = Output::new();
    let out = &mut output.buffer;
    // Writing to a vector does not fail.
    if args.json {
        let types: Vec<_> = histogram
            .iter()
            .take(args.top)
            .map(|t| json!({ "type": t.name, "count": t.count, "size": t.size }))
            .collect();
        let value = json!({
            "complete": heap.is_complete(),
            "objects": heap.nodes().len(),
            "size": heap.total_size(),
            "references": heap.edge_count(),
            "roots": roots,
            "types": types,
        });
        let _ = writeln!(out, "{value:#}");
    } else {
        let _ = writeln!(out, "        size     count  type");
        for t in histogram.iter().take(args.top) {
            let _ = writeln!(out, "{:>12} {:>9}  {}", t.size, t.count, OneLine(&t.name));
        }
        let (objects, size) = (heap.nodes().len(), heap.total_size());
        let (references, roots) = (heap.edge_count(), heap.roots().len());
        let _ = writeln!(
            out,
            "\n{size} bytes in {objects} objects, {references} references, {roots} roots"
        );
    }
    output.finish()?;
    if !heap.is_complete() {
        let (chunks, dropped) = heap.missing();
        eprintln!(
            "triscope: {}: the walk is not complete: {chunks} parts lost, {dropped} items dropped",
            OneLine(&name)
        );
    }
    reading.map_or(Ok(()), super::source::Reading::into_result)
}
