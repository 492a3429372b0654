//! What the commands that analyse a trace share: arguments, passes over the events, texts.

use super::csv;
use super::groups::Groups;
use crate::answers::{explain, json};
use crate::failure::{Failure, OneLine, Result};
use crate::io::input;
use crate::io::progress::Progress;
use crate::io::stdout::Output;
use crate::sources::go::{self, Pass, Reading, Recovery, TimeRange, Trace, Visitor};
use gotrace::analysis::{
    Finished, Frame, Goroutine, Histogram, Region, Summarizer, Summary, Task, Times,
};
use gotrace::parallel::Split;
use gotrace::{Error, Event, Loss, TaskId, Timestamp};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::fmt::Display;
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
    pub(super) recovery: Recovery,
    #[command(flatten)]
    pub(super) range: TimeRange,
    /// Whether to read all before the range, too.
    #[arg(skip)]
    reads_all: bool,
}

/// How the rows of a result are printed.
#[derive(clap::Args)]
pub(super) struct Rows {
    /// Print JSON: an array, times in nanoseconds
    #[arg(long)]
    json: bool,
    /// Print comma-separated values (RFC 4180): the fields of the JSON, those of nested objects as
    /// OUTER.INNER
    #[arg(long, conflicts_with = "json")]
    csv: bool,
}

/// How a result that is not rows of one table is printed.
#[derive(clap::Args)]
pub(super) struct Document {
    /// Print JSON: an object, times in nanoseconds
    #[arg(long)]
    json: bool,
    /// Print comma-separated values (RFC 4180): a line for each value of the JSON, with its table,
    /// the row's name, its field and the value
    #[arg(long, conflicts_with = "json")]
    csv: bool,
}

/// A part of the summary of a trace.
pub(super) enum Part<'a> {
    Goroutine(&'a Goroutine),
    Region(&'a Region),
    Task(&'a Task),
}

impl Analysis {
    /// The same trace without the restriction to a range.
    pub(super) fn whole(&self) -> Self {
        Self { range: TimeRange::default(), ..self.reading_all() }
    }

    /// The same for what depends on generations before the range.
    pub(super) fn reading_all(&self) -> Self {
        let Self { file, recovery, range, .. } = self;
        Self { file: file.clone(), recovery: *recovery, range: *range, reads_all: true }
    }

    /// Passes the events of the range, and the states at its start, to another pass, which does not
    /// report damage again.
    pub(super) fn read_again(&self, mut event: impl FnMut(Event<'_>)) -> Result<Reading> {
        let mut visitor = |each: Event<'_>| {
            event(each);
            Ok(())
        };
        self.clip(Progress::again(), &mut visitor)
    }

    /// Passes the events of the range to an analysis that depends on earlier events: it learns of
    /// losses, too.
    fn clip(&self, progress: Progress, visitor: &mut impl Visitor) -> Result<Reading> {
        let opened = match self.reads_all {
            true => self.range.open_whole(&self.file, progress)?,
            false => self.range.open(&self.file, progress, self.recovery)?,
        };
        opened.clip(self.recovery, visitor)
    }

    /// Analyses the range, on several threads if possible. The start of the trace is known then.
    pub(super) fn split<A: Split>(&self, analysis: A) -> Result<(A, Reading)> {
        let timed = (Span::default(), analysis);
        let ((span, analysis), mut reading) =
            self.range.analyse(&self.file, &Pass::only(), self.recovery, timed)?;
        reading.start = reading.start.or(span.times.map(|(first, _)| first));
        Ok((analysis, reading))
    }

    /// A pass beside another one, if two at the same time are faster than one.
    pub(super) fn beside(&self) -> Option<Pass> {
        Pass::beside().filter(|_| input::is_file(&self.file))
    }

    /// The same in such a pass.
    pub(super) fn split_beside<A: Split>(&self, pass: &Pass, analysis: A) -> Result<(A, Reading)> {
        self.range.analyse(&self.file, pass, self.recovery, analysis)
    }

    /// The range as times of the trace, which is read twice.
    pub(super) fn bounds(&self) -> Result<(Timestamp, Timestamp)> {
        self.range.bounds_in(&self.file, self.recovery)
    }

    /// Passes all events to an analysis that knows the range.
    pub(super) fn visit(&self, visitor: &mut impl Visitor) -> Result<Reading> {
        go::read(Trace::open(&self.file, Progress::bytes())?, self.recovery, visitor)
    }

    /// The same on several threads, if possible. `is_again` says that an earlier pass has reported
    /// damage.
    pub(super) fn visit_split(&self, is_again: bool, analysis: &mut impl Split) -> Result<Reading> {
        let pass = if is_again { Pass::again() } else { Pass::only() };
        go::read_split(&self.file, &pass, self.recovery, analysis)
    }

    /// The same for another pass, which does not report damage again.
    pub(super) fn visit_again(&self, visitor: &mut impl Visitor) -> Result<Reading> {
        go::read(Trace::open(&self.file, Progress::again())?, self.recovery, visitor)
    }

    /// Summarizes the trace. Goroutines, regions and tasks are passed on when they end, or at the
    /// end of the trace.
    pub(super) fn summarize(&self, visit: impl FnMut(Part<'_>)) -> Result<Reading> {
        let mut visit = visit;
        let (summary, reading) = self.pass(Summarizer::returning_tasks(), &mut visit)?;
        summary.tasks.iter().for_each(|task| visit(Part::Task(task)));
        Ok(reading)
    }

    /// The failure that a trace, or its range, has nothing of what was asked for. Damage may be the
    /// reason, and is reported first.
    pub(super) fn lacks(&self, reading: Reading, what: impl Display) -> Failure {
        let name = reading.name.clone();
        let is_whole = reading.into_result().inspect_err(Failure::print).is_ok();
        let place = match (is_whole, self.range.is_given()) {
            (false, _) => "what could be read of the trace",
            (true, true) => "the range",
            (true, false) => "the trace",
        };
        Failure::about(name, format_args!("{place} contains {what}"))
    }

    /// The names that exist, as the end of a message, those of most first. `add` adds a part of the
    /// trace to those of its name.
    pub(super) fn names(&self, what: &str, add: impl Fn(&mut Groups, Part<'_>)) -> String {
        if !input::is_file(&self.file) {
            return String::new();
        }
        let mut groups = Groups::default();
        let mut visit = |part: Part<'_>| add(&mut groups, part);
        let mut beside = |_: Event<'_>| Ok(());
        let mut summarizing =
            Summarizing::new(Summarizer::returning_tasks(), &mut visit, &mut beside);
        summarizing.knows_tasks = self.reads_all;
        // The first pass has reported damage.
        let Ok(reading) = self.clip(Progress::again(), &mut summarizing) else {
            return String::new();
        };
        let summary = summarizing.finish(&reading);
        summary.tasks.iter().for_each(|task| visit(Part::Task(task)));
        let groups = groups.sorted(|group| group.durations.count() + group.incomplete);
        let names = groups.iter().map(|group| group.name.to_string());
        let names: Vec<String> = names.filter(|name| !name.is_empty()).collect();
        format!("; it has {}", explain::there(what, &names))
    }

    /// The [`names`](Self::names) of tasks.
    pub(super) fn task_types(&self) -> String {
        self.reading_all().names("task type", |groups, part| match part {
            Part::Task(task) if task.id != TaskId::BACKGROUND => groups.add_task(task),
            _ => {}
        })
    }

    /// Passes on what the summarizer returns, and the goroutines that outlive the trace.
    pub(super) fn pass(
        &self,
        summarizer: Summarizer,
        visit: &mut impl FnMut(Part<'_>),
    ) -> Result<(Summary, Reading)> {
        self.pass_beside(summarizer, visit, &mut |_: Event<'_>| Ok(()))
    }

    /// The same, with another analysis of the events.
    pub(super) fn pass_beside(
        &self,
        summarizer: Summarizer,
        visit: &mut impl FnMut(Part<'_>),
        beside: &mut impl Visitor,
    ) -> Result<(Summary, Reading)> {
        let mut summarizing = Summarizing::new(summarizer, visit, beside);
        // Of some generations before the range, only some of the open tasks are known.
        summarizing.knows_tasks = self.reads_all;
        let reading = self.clip(Progress::bytes(), &mut summarizing)?;
        Ok((summarizing.finish(&reading), reading))
    }

    /// The same for regions and tasks that the range is within, too: it reads all of the trace.
    pub(super) fn pass_all(
        &self,
        summarizer: Summarizer,
        visit: &mut impl FnMut(Part<'_>),
        beside: &mut impl Visitor,
    ) -> Result<(Summary, Reading)> {
        self.range.check()?;
        let mut summarizing = Summarizing::new(summarizer, visit, beside);
        summarizing.range = Some(self.range);
        let reading = self.visit(&mut summarizing)?;
        self.range.check_begun(summarizing.has_begun, &reading)?;
        Ok((summarizing.finish(&reading), reading))
    }
}

/// Passes events and losses to a summarizer and another analysis.
struct Summarizing<'a, V, B> {
    summarizer: Summarizer,
    visit: &'a mut V,
    beside: &'a mut B,
    /// The range, until an event says where the trace starts.
    range: Option<TimeRange>,
    bounds: (Timestamp, Timestamp),
    /// Whether an event is in the range or after it.
    has_begun: bool,
    /// Whether an event is after the range.
    is_over: bool,
    /// Whether damage after the range ends the pass.
    is_complete: bool,
    /// Whether tasks that are open where the range begins are in the summary, if no event of it
    /// mentions them, too.
    knows_tasks: bool,
}

impl<'a, V: FnMut(Part<'_>), B: Visitor> Summarizing<'a, V, B> {
    const fn new(summarizer: Summarizer, visit: &'a mut V, beside: &'a mut B) -> Self {
        let bounds = (Timestamp::MIN, Timestamp::MAX);
        let (range, [has_begun, is_over, is_complete, knows_tasks]) = (None, [false; 4]);
        Self {
            summarizer,
            visit,
            beside,
            range,
            bounds,
            has_begun,
            is_over,
            is_complete,
            knows_tasks,
        }
    }

    fn finish(self, reading: &Reading) -> Summary {
        let mut summary = self.summarizer.finish();
        let limits = [
            (summary.ignored_regions, "regions are left out: too many are open"),
            (summary.unmeasured_tasks, "tasks have no times of their own: too many are open"),
        ];
        for (count, what) in limits.into_iter().filter(|(count, _)| *count > 0) {
            message!("triscope: {}: {count} {what}", OneLine(&reading.name));
        }
        for goroutine in &summary.goroutines {
            pass_on(goroutine, self.bounds, self.visit);
        }
        summary.tasks.retain(|task| is_within(task.start, task.end, self.bounds));
        summary
    }
}

/// Passes on a goroutine, and the regions that were open when it ended.
fn pass_on(
    goroutine: &Goroutine,
    bounds: (Timestamp, Timestamp),
    visit: &mut impl FnMut(Part<'_>),
) {
    for region in &goroutine.open_regions {
        if is_within(region.start, region.end, bounds) {
            visit(Part::Region(region));
        }
    }
    visit(Part::Goroutine(goroutine));
}

/// Whether a part of an interval is in a range of time. Its start and end are moved into the range:
/// one that is outside starts and ends at a bound.
fn is_within(
    start: Option<Timestamp>,
    end: Option<Timestamp>,
    (from, to): (Timestamp, Timestamp),
) -> bool {
    start.is_none_or(|start| start < to) && end.is_none_or(|end| from < end)
}

impl<V: FnMut(Part<'_>), B: Visitor> Visitor for Summarizing<'_, V, B> {
    fn push(&mut self, event: Event<'_>) -> Result {
        if self.is_complete {
            return Ok(());
        }
        if let Some(range) = self.range.take() {
            let (from, to) = range.bounds(event.time());
            self.summarizer = std::mem::take(&mut self.summarizer).between(from, to);
            self.bounds = (from, to);
        }
        self.has_begun |= self.bounds.0 <= event.time();
        self.is_over |= self.bounds.1 < event.time();
        self.beside.push(event)?;
        let finished = self.summarizer.push(event);
        let is_within = |start, end| is_within(start, end, self.bounds);
        match finished {
            Some(Finished::Goroutine(ended)) => pass_on(&ended, self.bounds, self.visit),
            Some(Finished::Region(ended)) if is_within(ended.start, ended.end) => {
                (self.visit)(Part::Region(&ended));
            }
            Some(Finished::Task(ended)) if is_within(ended.start, ended.end) => {
                (self.visit)(Part::Task(&ended));
            }
            _ => {}
        }
        Ok(())
    }

    fn before(&mut self, event: Event<'_>) -> Result {
        if self.knows_tasks {
            self.summarizer.before(event);
        }
        Ok(())
    }

    fn loss(&mut self, error: &Error, loss: &Loss) -> Result {
        // What is known then of the range stays.
        self.is_complete |= self.is_over;
        if self.is_complete {
            return Ok(());
        }
        self.summarizer.loss();
        self.beside.loss(error, loss)
    }

    fn is_complete(&self) -> bool {
        self.is_complete
    }
}

/// The number of events, and the times of the first and the last.
#[derive(Default)]
pub(super) struct Span {
    pub(super) times: Option<(Timestamp, Timestamp)>,
    pub(super) events: u64,
}

impl Split for Span {
    fn push(&mut self, event: Event<'_>) {
        self.events += 1;
        self.times = Some((self.times.map_or(event.time(), |(first, _)| first), event.time()));
    }

    fn part(&self, _start: Timestamp) -> Self {
        Self::default()
    }

    fn join(&mut self, part: Self) {
        self.events += part.events;
        self.times = match (self.times, part.times) {
            (Some((first, _)), Some((_, last))) => Some((first, last)),
            (times, None) | (None, times) => times,
        };
    }
}

impl Rows {
    pub(super) const fn is_csv(&self) -> bool {
        self.csv
    }

    /// Whether they are printed as JSON or CSV.
    pub(super) const fn is_data(&self) -> bool {
        self.json || self.csv
    }

    /// Prints rows as a JSON array, as CSV, or as a table.
    pub(super) fn print<T>(
        &self,
        rows: &[T],
        to_json: impl Fn(&T) -> Value,
        table: impl FnOnce(&mut Vec<u8>) -> std::io::Result<()>,
    ) -> Result {
        if self.is_data() {
            return self.print_data(&rows.iter().map(to_json).collect::<Vec<_>>());
        }
        let mut output = Output::new();
        let _ = table(&mut output.buffer); // writing to a vector does not fail
        output.finish()
    }

    /// Prints rows as a JSON array or as CSV.
    pub(super) fn print_data(&self, rows: &[Value]) -> Result {
        let mut output = Output::new();
        if self.csv {
            csv::write(rows, &mut output.buffer);
        } else {
            let text = serde_json::to_string_pretty(rows).unwrap_or_default();
            let _ = writeln!(output.buffer, "{text}"); // writing to a vector does not fail
        }
        output.finish()
    }
}

impl Document {
    /// Prints a result as JSON, as CSV, or as text.
    pub(super) fn print(
        &self,
        to_json: impl FnOnce() -> Value,
        text: impl FnOnce(&mut Vec<u8>) -> std::io::Result<()>,
    ) -> Result {
        let mut output = Output::new();
        if self.csv {
            csv::write_document(&to_json(), &mut output.buffer);
        } else if self.json {
            let text = serde_json::to_string_pretty(&to_json()).unwrap_or_default();
            let _ = writeln!(output.buffer, "{text}"); // writing to a vector does not fail
        } else {
            let _ = text(&mut output.buffer);
        }
        output.finish()
    }
}

/// A histogram: percentiles, and the number of durations by size, in nanoseconds.
pub(super) fn histogram_json(histogram: &Histogram) -> Value {
    let buckets = histogram.buckets().map(|(from, to, count)| json!([from, to, count]));
    let buckets: Value = buckets.collect();
    let mut value = json::histogram(histogram);
    if let Some(fields) = value.as_object_mut() {
        fields.insert("histogram".to_owned(), buckets);
    }
    value
}

/// The names of the columns of [`percentiles`].
pub(super) const PERCENTILES: &str = "   count     total       p50       p90       p99       max";

/// A histogram as columns.
pub(super) fn percentiles(histogram: &Histogram) -> String {
    let of = |percent| histogram.percentile(percent);
    let values = [histogram.sum(), of(50.0), of(90.0), of(99.0), histogram.max()];
    let columns = values.map(|nanos| format!("{:>10}", duration(Duration::from_nanos(nanos))));
    format!("{:>8}{}", histogram.count(), columns.concat())
}

/// Prints a row of a table: the percentiles of durations, further columns, and a name. `has_bars`
/// prints the number of durations by size below it.
pub(super) fn distribution(
    durations: &Histogram,
    columns: &str,
    name: &str,
    has_bars: bool,
    out: &mut Vec<u8>,
) -> std::io::Result<()> {
    writeln!(out, "{}{columns}  {name}", percentiles(durations))?;
    if has_bars { bars(durations, out) } else { Ok(()) }
}

/// Prints a histogram: one line for each power of two.
fn bars(histogram: &Histogram, out: &mut Vec<u8>) -> std::io::Result<()> {
    const WIDTH: u64 = 50;
    let mut powers: BTreeMap<u32, u64> = BTreeMap::new();
    for (from, _, count) in histogram.buckets() {
        *powers.entry(from.max(1).ilog2()).or_default() += count;
    }
    let most = powers.values().copied().max().unwrap_or(1).max(1);
    let (first, last) = (powers.keys().next().copied(), powers.keys().next_back().copied());
    for power in first.unwrap_or(1)..=last.unwrap_or(0) {
        let count = powers.get(&power).copied().unwrap_or(0);
        let from = duration(Duration::from_nanos(1 << power));
        let bar = "#".repeat((count * WIDTH).div_ceil(most) as usize);
        writeln!(out, "{from:>20} {count:>9}  {bar}")?;
    }
    Ok(())
}

/// Prints a stack, innermost frame first.
pub(super) fn stack(frames: &[Frame], out: &mut Vec<u8>) -> std::io::Result<()> {
    for frame in frames {
        let (function, file) = (name(&frame.function, "?"), name(&frame.file, "?"));
        writeln!(out, "            {function}  {file}:{}", frame.line)?;
    }
    Ok(())
}

/// The functions of a stack, innermost first.
pub(super) fn stack_json(frames: &[Frame]) -> Value {
    let frame = |frame: &Frame| {
        json!({
            "function": frame.function.to_string(),
            "file": frame.file.to_string(),
            "line": frame.line,
        })
    };
    frames.iter().map(frame).collect()
}

/// A duration with three or four significant digits.
pub(super) fn duration(time: Duration) -> String {
    trace_timeline::text::duration(i64::try_from(time.as_nanos()).unwrap_or(i64::MAX))
}

/// A name on one line, cut to a length for a table; `none` if it is empty.
pub(super) fn name(name: &gotrace::bstr::BStr, none: &str) -> String {
    const MAX: usize = 100;
    if name.is_empty() {
        return none.to_owned();
    }
    // Of a name of any length, not more than the characters that are shown and one more.
    let begin = gotrace::bstr::BStr::new(name.get(..4 * (MAX + 1)).unwrap_or(name));
    let mut name = OneLine(&begin.to_string()).to_string();
    if let Some((end, _)) = name.char_indices().nth(MAX) {
        name.truncate(end);
        name.push('…');
    }
    name
}

/// The names of the columns of [`states`].
pub(super) const STATES: &str = "   running  runnable   blocked   syscall  syscall, no P  unknown";

/// The times of the states as columns.
pub(super) fn states(times: &Times) -> String {
    let columns = [times.running, times.runnable, times.blocked_total(), times.syscall];
    let columns: String = columns.map(|time| format!("{:>10}", duration(time))).concat();
    format!("{columns}{:>15}{:>9}", duration(times.syscall_blocked), duration(times.unknown()))
}

/// The total time, and the times of the states, as columns.
pub(super) fn times(times: &Times) -> String {
    format!("{:>10}{}", duration(times.total), states(times))
}

/// Nanoseconds.
pub(super) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// The times of the states, in nanoseconds.
pub(super) fn times_json(times: &Times) -> Value {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sources::go::tests::{damage, region};

    /// In a pass over all of the trace, too.
    #[test]
    fn damage_after_the_range_changes_nothing_in_it() {
        let Some((error, loss)) = damage() else { return };
        let times = |is_damaged: bool| {
            let mut regions = Vec::new();
            let mut goroutines = Vec::new();
            let mut visit = |part: Part<'_>| match part {
                Part::Region(region) => regions.push(region.times.total.as_nanos()),
                Part::Goroutine(goroutine) => goroutines.push(goroutine.times.total.as_nanos()),
                Part::Task(_) => {}
            };
            let mut beside = |_: Event<'_>| Ok(());
            let summarizer = Summarizer::returning_tasks();
            let mut pass = Summarizing::new(summarizer, &mut visit, &mut beside);
            pass.range = Some(TimeRange { from: None, to: Some(300) });
            let (before, after) = region(is_damaged);
            before.iter().for_each(|event| pass.push(event.as_event()).unwrap());
            if is_damaged {
                pass.loss(&error, &loss).unwrap();
            }
            after.iter().for_each(|event| pass.push(event.as_event()).unwrap());
            assert_eq!(pass.is_complete(), is_damaged);
            let summary = pass.summarizer.finish();
            summary.goroutines.iter().for_each(|one| pass_on(one, pass.bounds, &mut visit));
            (goroutines, regions)
        };
        assert_eq!(times(false), (vec![300], vec![200]));
        assert_eq!(times(true), times(false));
    }

    #[test]
    fn a_name_of_any_length_is_cut_to_its_begin() {
        for part in ["x", "\u{1f600}", "\u{7}", "é"] {
            let all = part.repeat(10_000);
            let all = name(all.as_str().into(), "");
            assert_eq!(all.chars().count(), 101, "{all}");
            assert!(all.ends_with('…') && !all.contains('\u{fffd}'), "{all}");
            let short = part.repeat(15);
            assert_eq!(name(short.as_str().into(), ""), OneLine(&short).to_string());
        }
    }
}
