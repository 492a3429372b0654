use super::analysis::{self, Analysis, Rows};
use crate::failure::{Failure, Result};
use crate::sources::go::{Reading, Visitor};
use gotrace::analysis::{Allocations, AllocationsReport, HeapObjects, TypeAllocations};
use gotrace::{Error, Event, Loss, Timestamp};
use serde_json::{Value, json};
use std::cmp::Reverse;
use std::io::{self, Write};

/// List heap objects by type, from a trace with GODEBUG=traceallocfree=1 (Go 1.23 and later)
///
/// Sizes are those of the allocator's slots. The objects of an array or slice have the type of its
/// elements. With --from, objects that are live then are existing ones.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  GODEBUG=traceallocfree=1 ./program && triscope go allocs trace.out
  triscope go allocs --over-time --csv trace.out > heap.csv")]
pub(crate) struct Args {
    #[command(flatten)]
    analysis: Analysis,
    #[command(flatten)]
    rows: Rows,
    /// Print the live objects of each type over time
    #[arg(long)]
    over_time: bool,
}

/// Counts in a range of time. It needs the events before it: they are those of existing objects.
struct Counting {
    allocations: Allocations,
    from: Timestamp,
    to: Timestamp,
    /// Whether no event is in the range or after it.
    is_before: bool,
    /// Whether an event is after the range.
    is_over: bool,
}

impl Counting {
    fn between(from: Timestamp, to: Timestamp) -> Self {
        let is_before = from > Timestamp::MIN;
        Self { allocations: Allocations::new(), from, to, is_before, is_over: false }
    }
}

impl Visitor for Counting {
    fn push(&mut self, event: Event<'_>) -> Result {
        if self.is_before && event.time() >= self.from {
            self.allocations.count_from_here();
            self.is_before = false;
        }
        self.is_over |= event.time() > self.to;
        if !self.is_over {
            self.allocations.push(event);
        }
        Ok(())
    }

    fn loss(&mut self, _error: &Error, _loss: &Loss) -> Result {
        self.allocations.loss();
        Ok(())
    }

    fn is_complete(&self) -> bool {
        self.is_over
    }
}

pub(super) fn run(args: &Args) -> Result {
    let (from, to) = args.analysis.bounds()?;
    let mut counting = Counting::between(from, to);
    let reading = args.analysis.visit(&mut counting)?;
    let Counting { allocations, is_before, .. } = counting;
    let report = allocations.finish();
    if !report.is_recorded {
        // Damage may be the reason.
        let name = reading.name.clone();
        reading.into_result()?;
        let message = "the trace has no allocations: the program must run with \
                       GODEBUG=traceallocfree=1 (Go 1.23 or later)";
        return Err(Failure::about(name, message));
    }
    if is_before {
        let failure = reading.no_events();
        reading.into_result()?;
        return Err(failure);
    }
    if args.over_time {
        over_time(args, &report, &reading)?;
    } else {
        types(args, &report)?;
    }
    let counts = [
        (report.dropped, "objects are not counted: too many are live"),
        (report.dropped_spans, "spans of the heap are not known: there are too many"),
        (report.unknown_frees, "freed objects whose allocation is not in the trace"),
        (
            report.unknown_spans,
            "objects whose slot is not known, counted with the size of their type",
        ),
        (report.damaged_batches, "batches of types that cannot be decoded"),
        (
            report.uncertain.objects,
            "of the live objects may have been freed where the trace is damaged",
        ),
    ];
    for (count, what) in counts.into_iter().filter(|(count, _)| *count > 0) {
        Failure::about(&reading.name, format_args!("{count} {what}")).print();
    }
    reading.into_result()
}

fn count_json(count: HeapObjects) -> Value {
    json!({ "objects": count.objects, "bytes": count.bytes })
}

fn type_name(ty: &TypeAllocations) -> String {
    analysis::name(&ty.name, "(no type)")
}

fn types(args: &Args, report: &AllocationsReport) -> Result {
    let mut types: Vec<&TypeAllocations> = report.types.iter().collect();
    types.retain(|ty| ty.existing.objects > 0 || ty.allocated.objects > 0);
    types.sort_by_key(|ty| (Reverse(ty.live.bytes), Reverse(ty.allocated.bytes), ty.name.clone()));
    args.rows.print(
        &types,
        |ty| {
            json!({
                "type": ty.name.to_string(),
                "existing": count_json(ty.existing),
                "allocated": count_json(ty.allocated),
                "freed": count_json(ty.freed),
                "live": count_json(ty.live),
            })
        },
        |out| {
            writeln!(out, "                live            allocated                freed")?;
            writeln!(
                out,
                " objects       bytes   objects       bytes   objects       bytes  type"
            )?;
            for ty in &types {
                for HeapObjects { objects, bytes, .. } in [ty.live, ty.allocated, ty.freed] {
                    write!(out, "{objects:>8}{bytes:>12}  ")?;
                }
                writeln!(out, "{}", type_name(ty))?;
            }
            Ok(())
        },
    )
}

fn over_time(args: &Args, report: &AllocationsReport, reading: &Reading) -> Result {
    let rows: Vec<_> = report
        .snapshots
        .iter()
        .flat_map(|snapshot| {
            let types = report.types.iter().zip(&snapshot.types);
            let types = types.filter(|(_, count)| count.objects > 0);
            types.map(|(ty, count)| (snapshot.time, ty, *count))
        })
        .collect();
    args.rows.print(
        &rows,
        |(time, ty, count)| {
            json!({
                "time": time.nanos(),
                "type": ty.name.to_string(),
                "objects": count.objects,
                "bytes": count.bytes,
            })
        },
        |out| totals(report, reading, out),
    )
}

/// Snapshots of the whole heap: the types would not fit on a line.
fn totals(report: &AllocationsReport, reading: &Reading, out: &mut Vec<u8>) -> io::Result<()> {
    /// Types that are named in each line.
    const LARGEST: usize = 3;
    writeln!(out, "           time   objects       bytes  largest types")?;
    for snapshot in &report.snapshots {
        let total = snapshot.total();
        let mut types: Vec<_> = report.types.iter().zip(&snapshot.types).collect();
        types.sort_by_key(|(ty, count)| (Reverse(count.bytes), ty.name.clone()));
        let largest = types.iter().take(LARGEST).filter(|(_, count)| count.bytes > 0);
        let largest: Vec<String> =
            largest.map(|(ty, count)| format!("{} {}", type_name(ty), count.bytes)).collect();
        let (time, largest) = (reading.at(snapshot.time), largest.join(", "));
        writeln!(out, "{time:>15}{:>10}{:>12}  {largest}", total.objects, total.bytes)?;
    }
    Ok(())
}
