use super::providers;
use super::source::SourceOrCommand;
use crate::failure::Result;
use crate::io::progress::Progress;
use crate::io::stdout::Output;
use crate::run::duration::duration;
use crate::timeline::counted;
use diag_ipc::{Rundown, TracingConfig};
use nettrace::Order;
use nettrace::analysis::{GarbageCollection, GcTracker};
use serde_json::json;
use std::io::Write;
use std::time::Duration;

/// List GCs with reason, pause time and heap size
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  triscope dotnet gc app.nettrace
  triscope dotnet gc 1234                       as they happen
  triscope dotnet gc 1234 --duration 30 --json | jq -s 'map(.pause_ms) | max'")]
pub(crate) struct Args {
    #[command(flatten)]
    source: SourceOrCommand,
    /// Print JSON, one object per GC
    #[arg(long)]
    json: bool,
    /// Stop after SECONDS (live session); a COMMAND then gets SIGTERM
    #[arg(long, visible_alias = "seconds", value_name = "SECONDS", value_parser = duration)]
    duration: Option<Duration>,
}

#[derive(Default)]
struct Totals {
    count: u64,
    by_generation: [u64; 3],
    pause: f64,
    /// GCs whose pause began before the trace.
    unknown: u64,
    longest: f64,
    suspended: f64,
}

pub(super) fn run(args: &Args) -> Result {
    args.source.check(&[("--duration", args.duration.is_some())])?;
    let config = TracingConfig::new([providers::gc()]).rundown(Rundown::None).stacks(true);
    let stream =
        args.source.open(&config, args.duration, Order::Time, Progress::beside_output())?;
    let live = args.source.is_live();
    let mut output = Output::new();
    let mut tracker = GcTracker::new();
    let mut totals = Totals::default();
    if !args.json {
        output.buffer.extend_from_slice(
            b"          time s      #  gen  kind           reason             pause ms  total ms    \
              heap MB   gen0   gen1   gen2    LOH    POH  pinned\n",
        );
    }
    let reading = stream.read(|event| {
        let suspension = tracker.push(event);
        if let Some(suspension) = suspension {
            totals.suspended += milliseconds(suspension.end - suspension.start);
        }
        while let Some(gc) = tracker.next_gc() {
            totals.add(&gc);
            if args.json {
                let _ = writeln!(output.buffer, "{}", to_json(&gc));
            } else {
                print(&gc, &mut output.buffer);
            }
            if live {
                output.write()?;
            }
        }
        output.write_if_full()
    })?;
    if !args.json {
        let Totals { count, by_generation: [gen0, gen1, gen2], .. } = totals;
        let _ = writeln!(
            output.buffer,
            "\n{count} GCs ({gen0} of generation 0, {gen1} of 1, {gen2} of 2); \
             paused {:.3} ms in all, at most {:.3} ms; \
             managed threads suspended {:.3} ms for any reason",
            totals.pause, totals.longest, totals.suspended,
        );
        if totals.unknown > 0 {
            let _ = writeln!(
                output.buffer,
                "the pauses marked ? began before the trace and are not included"
            );
        }
    }
    if totals.count == 0 && !live {
        message!(
            "triscope: the trace has no GC (was it collected with the keyword GC of \
             Microsoft-Windows-DotNETRuntime, 0x1?)"
        );
    }
    if tracker.undecodable() > 0 {
        let events = counted(tracker.undecodable(), "event");
        message!("triscope: {events} of GCs lack a field and are not shown");
    }
    output.finish()?;
    reading.into_result()
}

impl Totals {
    fn add(&mut self, gc: &GarbageCollection) {
        self.count += 1;
        match gc.pause.map(milliseconds) {
            Some(pause) => {
                self.pause += pause;
                self.longest = self.longest.max(pause);
            }
            None => self.unknown += 1,
        }
        if let Some(count) = self.by_generation.get_mut(gc.generation as usize) {
            *count += 1;
        }
    }
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_nanos() as f64 / 1e6
}

// Writing to a vector does not fail.
fn print(gc: &GarbageCollection, out: &mut Vec<u8>) {
    let _ = write!(
        out,
        "{:>16} {:>6} {:>4}  {:<13}  {:<17} {:>9} {:>9.3}",
        gc.start.to_string(),
        gc.number,
        gc.generation,
        gc.kind.to_string(),
        gc.reason.to_string(),
        gc.pause.map_or("?".to_owned(), |pause| format!("{:.3}", milliseconds(pause))),
        milliseconds(gc.end - gc.start),
    );
    if let Some(heap) = &gc.heap {
        let mb = |bytes: u64| bytes as f64 / 1e6;
        let _ = write!(out, "  {:>9.3}", mb(heap.total()));
        for size in heap.generation_sizes {
            let _ = write!(out, " {:>6.2}", mb(size));
        }
        let _ = write!(out, " {:>7}", heap.pinned_objects);
    }
    out.push(b'\n');
}

fn to_json(gc: &GarbageCollection) -> serde_json::Value {
    json!({
        "time_ns": gc.start.nanos(),
        "end_ns": gc.end.nanos(),
        "number": gc.number,
        "generation": gc.generation,
        "kind": gc.kind.to_string(),
        "reason": gc.reason.to_string(),
        "tid": gc.tid,
        "pause_ms": gc.pause.map(milliseconds),
        "heap": gc.heap.map(|h| json!({
            "total": h.total(),
            "generation_sizes": h.generation_sizes,
            "promoted": h.promoted,
            "pinned_objects": h.pinned_objects,
            "handles": h.handles,
            "finalization_promoted": h.finalization_promoted_count,
        })),
    })
}
