//! What the commands that analyse a trace share: arguments, passes over the events, texts.

use crate::failure::{OneLine, Result};
use crate::io::progress::Progress;
use crate::io::stdout::Output;
use crate::sources::go::{self, Reading, Recovery, Trace};
use gotrace::Event;
use gotrace::analysis::{Finished, Goroutine, Region, Summarizer, Task, Times};
use serde_json::{Map, Value, json};
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

/// The trace that is analysed.
#[derive(clap::Args)]
pub(super) struct Analysis {
    /// The trace; - is standard input
    #[arg(value_name = "FILE")]
    pub(super) file: PathBuf,
    #[command(flatten)]
    recovery: Recovery,
}

/// How the rows of a result are printed.
#[derive(clap::Args)]
pub(super) struct Rows {
    /// Print JSON: an array, times in nanoseconds
    #[arg(long)]
    json: bool,
}

/// A part of the summary of a trace.
pub(super) enum Part<'a> {
    Goroutine(&'a Goroutine),
    Region(&'a Region),
}

/// Passes on a goroutine, and the regions that were open when it ended.
fn pass_on(goroutine: &Goroutine, visit: &mut impl FnMut(Part<'_>)) {
    goroutine.open_regions.iter().for_each(|region| visit(Part::Region(region)));
    visit(Part::Goroutine(goroutine));
}

impl Analysis {
    /// Passes all events to an analysis.
    pub(super) fn read(&self, mut event: impl FnMut(Event<'_>)) -> Result<Reading> {
        let trace = Trace::open(&self.file, Progress::bytes())?;
        go::read(trace, self.recovery, &mut |each: Event<'_>| {
            event(each);
            Ok(())
        })
    }

    /// Summarizes the trace. Goroutines and regions are passed on when they end, or at the end of
    /// the trace.
    pub(super) fn summarize(
        &self,
        mut visit: impl FnMut(Part<'_>),
    ) -> Result<(Vec<Task>, Reading)> {
        let mut summarizer = Summarizer::new();
        let reading = self.read(|event| match summarizer.event(event) {
            Some(Finished::Goroutine(ended)) => pass_on(&ended, &mut visit),
            Some(Finished::Region(ended)) => visit(Part::Region(&ended)),
            _ => {}
        })?;
        let summary = summarizer.finish();
        summary.goroutines.iter().for_each(|goroutine| pass_on(goroutine, &mut visit));
        Ok((summary.tasks, reading))
    }
}

impl Rows {
    /// Prints rows as a JSON array, or as a table.
    pub(super) fn print<T>(
        &self,
        rows: &[T],
        to_json: impl Fn(&T) -> Value,
        table: impl FnOnce(&mut Vec<u8>) -> std::io::Result<()>,
    ) -> Result {
        let mut output = Output::new();
        if self.json {
            let rows: Vec<Value> = rows.iter().map(to_json).collect();
            let text = serde_json::to_string_pretty(&rows).unwrap_or_default();
            let _ = writeln!(output.buffer, "{text}"); // writing to a vector does not fail
        } else {
            let _ = table(&mut output.buffer);
        }
        output.finish()
    }
}

/// A duration with three or four significant digits.
pub(super) fn duration(time: Duration) -> String {
    trace_timeline::text::duration(i64::try_from(time.as_nanos()).unwrap_or(i64::MAX))
}

/// A name on one line; `none` if it is empty.
pub(super) fn name(name: &gotrace::bstr::BStr, none: &str) -> String {
    if name.is_empty() { none.to_owned() } else { OneLine(&name.to_string()).to_string() }
}

/// The names of the columns of [`times`].
pub(super) const TIMES: &str =
    "     total   running  runnable   blocked   syscall  syscall, no P  unknown";

/// The times of the states as columns.
pub(super) fn times(times: &Times) -> String {
    let columns =
        [times.total, times.running, times.runnable, times.blocked_total(), times.syscall];
    let columns: String = columns.map(|time| format!("{:>10}", duration(time))).concat();
    format!("{columns}{:>15}{:>9}", duration(times.syscall_blocked), duration(times.unknown()))
}

/// The times of the states, in nanoseconds.
pub(super) fn times_json(times: &Times) -> Value {
    let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let blocked: Map<String, Value> =
        times.blocked().map(|(reason, time)| (reason.to_string(), json!(nanos(time)))).collect();
    let ranges: Map<String, Value> =
        times.ranges().map(|(range, time)| (range.to_string(), json!(nanos(time)))).collect();
    json!({
        "total": nanos(times.total),
        "running": nanos(times.running),
        "runnable": nanos(times.runnable),
        "syscall": nanos(times.syscall),
        "syscall_blocked": nanos(times.syscall_blocked),
        "unknown": nanos(times.unknown()),
        "blocked": blocked,
        "ranges": ranges,
    })
}
