use super::providers;
use super::source::{Reading, Source, SourceArgs, Stream};
use super::target::Target;
use crate::failure::{Failure, OneLine, Result};
use crate::io::output_file::OutputFile;
use crate::io::progress::Progress;
use crate::io::stdout::Output;
use crate::run::duration::duration;
use crate::run::stop::Listener;
use crate::timeline::counted;
use diag_ipc::{Rundown, Timeouts, TracingConfig};
use nettrace::Order;
use nettrace::analysis::{HeapSnapshot, TypeTotal};
use nettrace::gcdump::{DumpInfo, HeapGraph, TypeDelta, difference};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::slice;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use trace_common::{Limits, Timestamp};

/// Show the contents of the managed heap by type
///
/// For a process, the runtime performs a full GC and dumps its heap once. All managed threads are
/// suspended meanwhile.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  triscope dotnet gcdump 1234
  triscope dotnet gcdump 1234 -o before.gcdump          for Visual Studio, PerfView, or later
  triscope dotnet gcdump 1234 --baseline before.gcdump  what has grown since
  triscope dotnet gcdump before.gcdump --roots System.String
  triscope dotnet gcdump heap.nettrace --json | jq '.types[0]'")]
pub(crate) struct Args {
    #[command(flatten)]
    source: SourceArgs,
    /// Write the heap to a .gcdump file, for Visual Studio and PerfView
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Show the difference from an earlier heap: a .gcdump file or a trace
    #[arg(long, value_name = "FILE", conflicts_with = "roots")]
    baseline: Option<PathBuf>,
    /// Show the shortest paths from the roots to the largest objects of a type, those that are reachable first
    #[arg(long, value_name = "TYPE")]
    roots: Option<String>,
    /// Print at most N types, or objects with --roots [default: all types, 3 objects]
    #[arg(long, value_name = "N")]
    top: Option<usize>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Give up a heap dump after SECONDS; other steps of the exchange with the process have their usual limits, none
    /// longer than this one [default: 60]
    #[arg(long, value_name = "SECONDS", value_parser = duration)]
    timeout: Option<Duration>,
}

pub(super) fn run(args: &Args) -> Result {
    args.source.check(&[("--timeout", args.timeout.is_some())])?;
    // The baseline first: an unreadable file must not cost the process a full GC.
    let baseline = args.baseline.as_deref().map(heap_of_file).transpose()?;
    // So must an output that cannot be written.
    let input = match args.source.source() {
        Some(Source::File(path)) => Some(path),
        _ => None,
    };
    let inputs = input.map_or(&[][..], slice::from_ref);
    let file = args.output.as_deref().map(|path| OutputFile::create(path, inputs)).transpose()?;
    let _listener = file.as_ref().and(input).and_then(|_| Listener::exit());
    let heap = match input {
        Some(path) => heap_of_file(path)?,
        None => heap_of_process(args)?,
    };
    if let Some(file) = file {
        write(file, &heap.graph)?;
    }
    let mut output = Output::new();
    let printed = print(args, baseline.as_ref(), &heap, &mut output.buffer);
    output.finish()?;
    // What was not found can be in the part that is missing.
    if let Err(failure) = &printed {
        failure.print();
    }
    for heap in baseline.into_iter().chain([heap]) {
        heap.into_result()?;
    }
    printed.map_err(Failure::printed)
}

/// A heap and its source.
struct Heap {
    name: String,
    graph: HeapGraph,
    /// The heap dump, if it came as events.
    walk: Option<HeapSnapshot>,
    /// How reading the events went, if it came as events.
    reading: Option<Reading>,
}

fn heap_of_file(path: &Path) -> Result<Heap> {
    if let Some(bytes) = gcdump_file(path)? {
        let name = path.display().to_string();
        let graph = HeapGraph::parse(&bytes).map_err(|e| Failure::about(&name, e))?;
        return Ok(Heap { name, graph, walk: None, reading: None });
    }
    heap_of_stream(Stream::of_file(path, Order::Time, Progress::beside_output())?, false)
}

/// Time limit of a heap dump.
const TIMEOUT: Duration = Duration::from_secs(60);

fn heap_of_process(args: &Args) -> Result<Heap> {
    let mut target = args.source.target()?;
    let timeout = args.timeout.unwrap_or(TIMEOUT);
    target.client = target.client.clone().timeouts(within(timeout));
    if target.server.is_none() {
        describe_types_again(&target)?;
    }
    let config = TracingConfig::new([providers::heap_walk()]).rundown(Rundown::None);
    let late =
        "the runtime performs a GC first, which takes long with a large heap: raise --timeout";
    let stream = Stream::of_process(target, &config, timeout, Order::Time, late)?;
    heap_of_stream(stream, true)
}

/// The usual limits, none longer than `limit`. That of the session, which begins with a GC, is `limit`.
fn within(limit: Duration) -> Timeouts {
    let usual = Timeouts::default();
    usual
        .dump(limit)
        .connect(usual.connect.min(limit))
        .send(usual.send.min(limit))
        .reply(usual.reply.min(limit))
        .drain(usual.drain.min(limit))
}

/// Makes a runtime describe its types again.
///
/// .NET Core 3.1 describes a type once, and again only after its provider was enabled without the
/// keyword `Type` (observed on 3.1.23). .NET 9 and 10 describe types in every session. It is also
/// done for the versions between, which were not tested: an empty session has almost no cost.
fn describe_types_again(target: &Target) -> Result {
    const FIRST_WITHOUT: u32 = 9;
    if target.major_version()?.is_some_and(|major| major >= FIRST_WITHOUT) {
        return Ok(());
    }
    let config = TracingConfig::new([providers::gc()]).rundown(Rundown::None);
    let session = target.client.collect_tracing(&config).map_err(target.failure())?;
    // A failure at its end also occurs in the following session.
    let _ = session.stop();
    Ok(())
}

fn heap_of_stream(stream: Stream, is_live: bool) -> Result<Heap> {
    let (name, process) = (stream.name.clone(), stream.process());
    let mut walk = HeapSnapshot::with_limits(limits());
    let mut info = DumpInfo::default();
    let reading = stream.read_while(|event| {
        walk.push(event);
        let time = event.time();
        if walk.time() == Some(time) {
            info.collected = event.trace().map(|trace| trace.utc(time)).and_then(system_time);
        }
        // The rest of the stream of a live process is not needed, or does not fit.
        let (_, dropped) = walk.missing();
        let is_enough = is_live && (walk.is_complete() || dropped > 0);
        Ok(if is_enough { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    })?;
    if walk.nodes().is_empty() {
        let is_interrupted = reading.is_interrupted();
        // A stream that failed is the reason.
        if reading.has_errors() {
            reading.into_result()?;
        }
        let why = if is_interrupted {
            "interrupted before the runtime sent the heap"
        } else if is_live {
            "the runtime sent no heap dump in time: raise --timeout"
        } else {
            "the stream contains no heap dump (was it collected with the GCHeapDump keywords?)"
        };
        return Err(Failure::about(&name, why));
    }
    // The process id in the events is that in the namespace of the process.
    info.pid = walk.pid().and_then(|pid| pid.try_into().ok()).unwrap_or_default();
    info.tool = Some(concat!("triscope ", env!("CARGO_PKG_VERSION")).to_owned());
    if is_live {
        let name =
            process.and_then(|pid| std::fs::read_to_string(format!("/proc/{pid}/comm")).ok());
        info.process_name = name.map(|name| name.trim_end().to_owned());
        info.machine = Some(rustix::system::uname().nodename().to_string_lossy().into_owned());
    }
    Ok(Heap {
        name,
        graph: HeapGraph::from_snapshot(&walk, info),
        walk: Some(walk),
        reading: Some(reading),
    })
}

/// Room for the largest heap whose graph also fits into the available memory.
fn limits() -> Limits {
    let available = trace_common::available_memory();
    let available = available.and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(0);
    let usual = Limits::default();
    Limits { max_buffer: usual.max_buffer.max(available / 3), ..usual }
}

/// The bytes of a `.gcdump` file; `None` if the file has another format.
fn gcdump_file(path: &Path) -> Result<Option<Vec<u8>>> {
    let fail = |e: std::io::Error| Failure::about(path.display(), e);
    if path == Path::new("-") || !path.is_file() {
        return Ok(None);
    }
    // Opening it as a trace reports the error.
    let Ok(mut file) = File::open(path) else { return Ok(None) };
    let mut bytes = Vec::new();
    (&mut file).take(HeapGraph::PREFIX as u64).read_to_end(&mut bytes).map_err(fail)?;
    if !HeapGraph::is_gcdump(&bytes) {
        return Ok(None);
    }
    file.read_to_end(&mut bytes).map_err(fail)?;
    Ok(Some(bytes))
}

fn system_time(utc: Timestamp) -> Option<SystemTime> {
    let nanos = u64::try_from(utc.nanos()).ok()?;
    UNIX_EPOCH.checked_add(Duration::from_nanos(nanos))
}

fn write(mut file: OutputFile, graph: &HeapGraph) -> Result {
    let to = file.writer()?;
    graph.write(to).map_err(|e| file.failure(&e))?;
    let (name, size, objects) = (file.name(), graph.total_size(), graph.object_count());
    file.complete()?;
    message!("{}: {objects} objects, {size} bytes", OneLine(&name));
    let oversized = graph.oversized();
    if oversized > 0 {
        let objects = counted(oversized as u64, "object");
        message!(
            "triscope: {}: {objects} of more than 2 GiB: written with 2 GiB, the limit of the format",
            OneLine(&name)
        );
    }
    Ok(())
}

// Writing to a vector does not fail.

fn print(args: &Args, baseline: Option<&Heap>, heap: &Heap, out: &mut Vec<u8>) -> Result {
    match (baseline, &args.roots) {
        (Some(before), _) => print_difference(args, before, heap, out),
        (None, Some(name)) => print_roots(args, name, heap, out)?,
        // With an output file, print the table only if JSON is requested.
        (None, None) if args.output.is_some() && !args.json => {}
        (None, None) => print_totals(args, heap, out),
    }
    Ok(())
}

fn print_totals(args: &Args, heap: &Heap, out: &mut Vec<u8>) {
    let totals = heap.graph.totals();
    let shown = totals.iter().take(args.top.unwrap_or(usize::MAX));
    let (objects, size) = (heap.graph.object_count(), heap.graph.total_size());
    if args.json {
        let types: Vec<Value> = shown.map(total_json).collect();
        let mut value = json!({ "objects": objects, "size": size, "types": types });
        if let Some(walk) = &heap.walk {
            let mut roots: BTreeMap<String, u64> = BTreeMap::new();
            for root in walk.roots() {
                *roots.entry(root.kind.to_string()).or_default() += 1;
            }
            value["complete"] = (walk.is_complete() && heap.lost() == 0).into();
            value["references"] = walk.edge_count().into();
            value["roots"] = json!(roots);
        }
        let _ = writeln!(out, "{value:#}");
        return;
    }
    let _ = writeln!(out, "        size     count  type");
    for t in shown {
        let _ = writeln!(out, "{:>12} {:>9}  {}", t.size, t.count, OneLine(&t.name));
    }
    let _ = writeln!(out, "\n{size} bytes in {objects} objects");
}

fn total_json(total: &TypeTotal) -> Value {
    json!({ "type": total.name, "count": total.count, "size": total.size })
}

fn print_difference(args: &Args, before: &Heap, after: &Heap, out: &mut Vec<u8>) {
    let deltas = difference(&before.graph.totals(), &after.graph.totals());
    let shown = deltas.iter().take(args.top.unwrap_or(usize::MAX));
    let sizes = (before.graph.total_size(), after.graph.total_size());
    let counts = (before.graph.object_count(), after.graph.object_count());
    if args.json {
        let types: Vec<Value> = shown.map(delta_json).collect();
        let value = json!({
            "objects_before": counts.0, "objects": counts.1,
            "size_before": sizes.0, "size": sizes.1,
            "types": types,
        });
        let _ = writeln!(out, "{value:#}");
        return;
    }
    let _ = writeln!(out, "        size     count  type");
    for d in shown {
        let (size, count) = (d.size_change(), d.count_change());
        let _ = writeln!(out, "{size:>+12} {count:>+9}  {}", OneLine(&d.name));
    }
    let size = sizes.1.wrapping_sub(sizes.0) as i64;
    let count = counts.1 as i64 - counts.0 as i64;
    let name = OneLine(&before.name);
    let _ = writeln!(out, "\n{size:+} bytes in {count:+} objects since {name}");
}

fn delta_json(delta: &TypeDelta) -> Value {
    json!({
        "type": delta.name,
        "count_before": delta.count.0, "count": delta.count.1,
        "size_before": delta.size.0, "size": delta.size.1,
    })
}

fn print_roots(args: &Args, name: &str, heap: &Heap, out: &mut Vec<u8>) -> Result {
    let most = args.top.unwrap_or(3);
    let mut paths = heap.graph.paths_to(name, most.max(1));
    if paths.is_empty() {
        return Err(Failure::about(&heap.name, format!("the heap has no object of type {name}")));
    }
    paths.truncate(most);
    if args.json {
        let paths: Vec<Vec<Value>> = paths
            .iter()
            .map(|path| {
                path.iter()
                    .map(|s| json!({ "address": s.address, "type": s.name, "size": s.size }))
                    .collect()
            })
            .collect();
        let _ = writeln!(out, "{:#}", json!({ "paths": paths }));
        return Ok(());
    }
    for path in &paths {
        for (depth, step) in path.iter().enumerate() {
            let indent = 2 * depth;
            let _ = write!(out, "{:indent$}{}", "", OneLine(&step.name));
            if step.address != 0 {
                let _ = write!(out, " @ {:#x}, {} bytes", step.address, step.size);
            }
            if path.len() == 1 {
                let _ = write!(out, " (not reachable from a root)");
            }
            out.push(b'\n');
        }
        out.push(b'\n');
    }
    Ok(())
}

impl Heap {
    /// Number of lost events, which may be the last part of the roots: nothing else shows that it is missing.
    fn lost(&self) -> u64 {
        self.reading.as_ref().map_or(0, |reading| reading.stats.lost)
    }

    fn into_result(self) -> Result {
        let lost = self.lost();
        let incomplete = self.walk.filter(|walk| !walk.is_complete());
        let is_incomplete = incomplete.is_some() || lost > 0;
        if let Some(walk) = incomplete {
            let (chunks, dropped) = walk.missing();
            let name = OneLine(&self.name);
            message!(
                "triscope: {name}: the heap walk is incomplete, as are the totals: {chunks} parts lost, {dropped} items \
                 dropped, {} types without a name",
                walk.undescribed_types()
            );
            let unknown = walk.unknown_references();
            if unknown > 0 {
                let objects = counted(unknown as u64, "object");
                message!("triscope: {name}: the references of {objects} are unknown");
            }
        } else if lost > 0 {
            message!("triscope: {}: the heap may be incomplete", OneLine(&self.name));
        }
        self.reading.map_or(Ok(()), Reading::into_result)?;
        if is_incomplete { Err(Failure::Quiet(1)) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gc_before_a_heap_dump_may_take_all_of_the_time() {
        for seconds in [1, 60, 3600].map(Duration::from_secs) {
            let limits = within(seconds);
            assert_eq!(limits.dump, seconds);
            assert!(limits.reply <= seconds && limits.reply <= Timeouts::default().reply);
        }
    }

    #[test]
    fn a_heap_may_take_a_share_of_the_available_memory() {
        let (real, usual) = (limits().max_buffer, Limits::default().max_buffer);
        assert!(real >= usual, "{real}");
    }
}
