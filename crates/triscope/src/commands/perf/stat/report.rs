//! The counts of `perf stat` as text, fields and JSON.

use super::counters::Sum;
use crate::sources::kernel::remedy::is_missing;
use perf_monitor::{Event, EventUnit, OpenErrorReason, Scaled, WithoutKernel};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::time::Duration;

/// How counts are printed.
#[derive(Clone, Copy)]
pub(super) enum Form<'a> {
    Text,
    /// With this separator.
    Fields(&'a str),
    Json,
}

impl Form<'_> {
    /// The line before the first interval.
    pub(super) const fn header(self) -> &'static str {
        match self {
            Self::Text => "#          time                count  event\n",
            Self::Fields(_) | Self::Json => "",
        }
    }
}

/// An event that is not counted.
#[derive(Clone)]
pub(super) struct LeftOut {
    name: String,
    cgroup: Option<String>,
    error: String,
    why: &'static str,
}

impl LeftOut {
    pub(super) fn new(name: &str, cgroup: Option<String>, error: &perf_monitor::Error) -> Self {
        let why = match error.reason() {
            Some(reason) if is_missing(reason) => "not permitted",
            Some(OpenErrorReason::NotOnCpu(_)) => "not on these CPUs",
            Some(OpenErrorReason::NoCounters | OpenErrorReason::Busy) => "no counter is free",
            _ => "not on this machine",
        };
        Self { name: name.to_owned(), cgroup, error: error.to_string(), why }
    }

    fn key(&self) -> Key<'_> {
        (&self.name, self.cgroup.as_deref())
    }
}

/// The count of an event.
pub(super) struct Row {
    name: String,
    unit: EventUnit,
    cgroup: Option<String>,
    /// A part of the event is not counted.
    user_only: bool,
    is_cpu_time: bool,
    /// CPUs that do not have the event.
    pub(super) not_on: Vec<u32>,
    /// The cores that alone count it, if a part of the time may have been on others.
    pub(super) cores: Option<String>,
    /// `None` if it was never counted.
    scaled: Option<Scaled>,
    /// Nanoseconds that it was counted.
    running: u64,
    /// The standard deviation of the mean, in per cent of it.
    deviation: Option<f64>,
}

impl Row {
    pub(super) fn new(event: &Event, sum: Sum, user_only: bool, cgroup: Option<String>) -> Self {
        let name = event.name().to_owned();
        let is_cpu_time = matches!(name.split(':').next(), Some("task-clock" | "cpu-clock"));
        let is_of_user = event.builder().attr().exclude_kernel();
        Self {
            unit: event.unit().clone(),
            cgroup,
            // Of time, and of an event of user space, nothing is missing.
            user_only: user_only
                && !is_of_user
                && event.without_kernel() != WithoutKernel::Everything,
            is_cpu_time,
            not_on: Vec::new(),
            cores: None,
            scaled: sum.scaled,
            running: sum.running,
            deviation: None,
            name,
        }
    }

    fn key(&self) -> Key<'_> {
        (&self.name, self.cgroup.as_deref())
    }

    /// The mean of the rows of an event in several runs.
    fn mean(mut rows: Vec<Self>) -> Option<Self> {
        let running = rows.iter().map(|row| row.running).sum::<u64>() / rows.len().max(1) as u64;
        let counted: Vec<Scaled> = rows.iter().filter_map(|row| row.scaled).collect();
        let cores = rows.iter().find_map(|row| row.cores.clone());
        let mut mean = rows.pop()?;
        (mean.running, mean.cores) = (running, cores);
        if let Some(mut scaled) = counted.last().copied() {
            let values: Vec<f64> = counted.iter().map(|one| one.value as f64).collect();
            let (average, deviation) = spread(&values);
            scaled.value = average.round() as u64;
            scaled.coverage =
                counted.iter().map(|one| one.coverage).sum::<f64>() / values.len() as f64;
            scaled.is_estimate = counted.iter().any(|one| one.is_estimate);
            (mean.scaled, mean.deviation) = (Some(scaled), Some(deviation));
        }
        Some(mean)
    }

    /// The name with what restricts it.
    fn label(&self) -> String {
        let cgroup = in_cgroup(self.cgroup.as_ref());
        let user = if self.user_only { " (user space only)" } else { "" };
        let not_on: Vec<String> = self.not_on.iter().map(u32::to_string).collect();
        let not_on = match not_on[..] {
            [] => String::new(),
            _ => format!(" (not on CPUs {})", not_on.join(",")),
        };
        format!("{}{cgroup}{user}{not_on}", self.name)
    }

    /// The cores that it was counted on, if it was also on others.
    fn only_on(&self) -> Option<&str> {
        let is_part = self.scaled.is_some_and(|scaled| scaled.coverage < 1.0);
        self.cores.as_deref().filter(|_| is_part)
    }

    /// The count in its unit, and the unit.
    fn value(&self, count: u64) -> (f64, &str) {
        match self.unit.scale {
            Some(scale) => (count as f64 * scale, &self.unit.name),
            None if self.unit.name == "ns" => (count as f64 / 1e6, "ms"),
            None => (count as f64, &self.unit.name),
        }
    }

    /// The count without a unit: a whole number, which `whole` prints, unless its scale is none.
    fn without_unit(&self, count: u64, whole: fn(u64) -> String) -> String {
        match self.unit.scale {
            None => whole(count),
            Some(scale) if scale >= 0.0 && scale.fract() == 0.0 => {
                whole(count.saturating_mul(scale as u64))
            }
            Some(scale) => format!("{:.2}", count as f64 * scale),
        }
    }

    /// Events per second of CPU time, or CPUs, and the unit.
    fn metric(&self, elapsed: Duration, cpu_time: Option<f64>) -> Option<(f64, &'static str)> {
        let scaled = self.scaled.as_ref()?;
        match cpu_time.filter(|time| *time > 0.0)? {
            time if self.is_cpu_time => Some((time / elapsed.as_secs_f64(), "CPUs utilized")),
            // A state has no rate, and that of a part of the time is not known.
            _ if self.unit.is_snapshot || self.only_on().is_some() => None,
            time if self.unit.scale.is_none() && self.unit.name.is_empty() => {
                Some(rate(scaled.value as f64 / time))
            }
            _ => None,
        }
    }
}

/// What rows of several runs have in common: the event and the cgroup.
type Key<'a> = (&'a str, Option<&'a str>);

/// Adds the rows of a run to those of the runs before. An event that is named twice has two rows.
fn join(each: &mut Vec<Vec<Row>>, rows: Vec<Row>) {
    let mut taken = vec![false; each.len()];
    for row in rows {
        let is_same = |rows: &[Row]| rows.first().is_some_and(|first| first.key() == row.key());
        let found =
            each.iter_mut().zip(&mut taken).find(|(rows, is_taken)| !**is_taken && is_same(rows));
        match found {
            Some((rows, is_taken)) => {
                rows.push(row);
                *is_taken = true;
            }
            // Not of this run.
            None => each.push(vec![row]),
        }
    }
}

/// All counts of a run or an interval.
pub(super) struct Report {
    pub(super) elapsed: Duration,
    /// The end of the interval, from the start.
    pub(super) at: Option<Duration>,
    /// The number of runs that it is the mean of, with `--repeat`.
    pub(super) runs: Option<usize>,
    pub(super) rows: Vec<Row>,
    pub(super) left_out: Vec<LeftOut>,
}

impl Report {
    /// The means of several runs; `None` of none. An event that could be opened in some of them only is
    /// the mean of these.
    pub(super) fn mean(runs: Vec<Self>) -> Option<Self> {
        let number = runs.len() as u32;
        let mut runs = runs.into_iter();
        let mut mean = runs.next()?;
        if number == 1 {
            return Some(mean);
        }
        let mut each: Vec<Vec<Row>> = mean.rows.drain(..).map(|row| vec![row]).collect();
        for run in runs {
            mean.elapsed += run.elapsed;
            mean.left_out.extend(run.left_out);
            join(&mut each, run.rows);
        }
        mean.elapsed /= number;
        mean.rows = each.into_iter().filter_map(Row::mean).collect();
        for left_out in std::mem::take(&mut mean.left_out) {
            let rows = mean.rows.iter().map(Row::key);
            let mut known = rows.chain(mean.left_out.iter().map(LeftOut::key));
            if known.all(|key| key != left_out.key()) {
                mean.left_out.push(left_out);
            }
        }
        Some(mean)
    }

    pub(super) fn print(&self, form: Form<'_>) -> String {
        match form {
            Form::Text => self.text(),
            Form::Fields(separator) => self.fields(separator),
            Form::Json if self.at.is_some() => format!("{}\n", self.json()),
            Form::Json => format!("{:#}\n", self.json()),
        }
    }

    /// The CPU time in seconds that a count is compared with, if it was counted: of the same cgroup.
    fn cpu_time(&self, of: &Row) -> Option<f64> {
        let is_of = |row: &&Row| row.is_cpu_time && row.cgroup == of.cgroup;
        let row = if of.is_cpu_time { of } else { self.rows.iter().find(is_of)? };
        Some(row.scaled?.value as f64 / 1e9)
    }

    // Writing to a string does not fail.

    fn text(&self) -> String {
        let mut text = String::new();
        let time = self.at.map_or_else(String::new, |at| format!("{:>15.9} ", at.as_secs_f64()));
        for row in &self.rows {
            let _ = writeln!(text, "{time}{}", self.line(row));
        }
        for LeftOut { name, cgroup, why, .. } in &self.left_out {
            let _ = writeln!(text, "{time}{why:>20}  {name}{}", in_cgroup(cgroup.as_ref()));
        }
        if self.at.is_none() {
            let _ = writeln!(text, "{:>20.6}  seconds", self.elapsed.as_secs_f64());
        }
        text
    }

    fn line(&self, row: &Row) -> String {
        let label = row.label();
        let Some(scaled) = &row.scaled else { return format!("{:>20}  {label}", "not counted") };
        let value = match row.value(scaled.value) {
            (_, "") => row.without_unit(scaled.value, grouped),
            (value, unit) => format!("{value:.2} {unit}"),
        };
        let metric = match row.metric(self.elapsed, self.cpu_time(row)) {
            Some((value, unit)) => format!("{value:.3} {unit}"),
            None => String::new(),
        };
        let deviation =
            row.deviation.map_or_else(String::new, |percent| format!(" (+- {percent:.2} %)"));
        let percent = scaled.coverage * 100.0;
        let estimated = if scaled.is_estimate { "estimated: " } else { "" };
        let estimate = match row.only_on() {
            Some(cores) => format!(
                " ({estimated}counted {percent:.1} % of the time, on the cores of {cores} only)"
            ),
            None if scaled.is_estimate => {
                format!(" ({estimated}counted {percent:.1} % of the time)")
            }
            None => String::new(),
        };
        format!("{value:>20}  {label:<36} {metric:>19}{deviation}{estimate}").trim_end().to_owned()
    }

    /// The fields of `perf stat -x`.
    fn fields(&self, separator: &str) -> String {
        let mut text = String::new();
        let mut line = |fields: &[String]| {
            let _ = writeln!(text, "{}", fields.join(separator));
        };
        let time = self.at.map(|at| format!("{:.9}", at.as_secs_f64()));
        // All lines have the same columns.
        let has_cgroups = self.rows.iter().any(|row| row.cgroup.is_some());
        let of_event = |cgroup: Option<&String>, deviation: Option<f64>| {
            let cgroup = has_cgroups.then(|| cgroup.cloned().unwrap_or_default());
            let percent = deviation.map_or_else(String::new, |percent| format!("{percent:.2}%"));
            cgroup.into_iter().chain(self.runs.map(|_| percent))
        };
        for row in &self.rows {
            let mut fields: Vec<String> = time.clone().into_iter().collect();
            let (value, unit) = match &row.scaled {
                None => ("<not counted>".to_owned(), ""),
                Some(scaled) => match row.value(scaled.value) {
                    (_, "") => (row.without_unit(scaled.value, |count| count.to_string()), ""),
                    // perf's name of the unit.
                    (value, "ms") => (format!("{value:.2}"), "msec"),
                    (value, unit) => (format!("{value:.2}"), unit),
                },
            };
            let user = if row.user_only { ":u" } else { "" };
            fields.extend([value, unit.to_owned(), format!("{}{user}", row.name)]);
            fields.extend(of_event(row.cgroup.as_ref(), row.deviation));
            let coverage = row.scaled.as_ref().map_or(0.0, |scaled| scaled.coverage * 100.0);
            fields.extend([row.running.to_string(), format!("{coverage:.2}")]);
            fields.extend(match row.metric(self.elapsed, self.cpu_time(row)) {
                Some((value, unit)) => [format!("{value:.3}"), unit.to_owned()],
                None => [String::new(), String::new()],
            });
            line(&fields);
        }
        for LeftOut { name, cgroup, .. } in &self.left_out {
            let mut fields: Vec<String> = time.clone().into_iter().collect();
            fields.extend(["<not supported>", "", name].map(str::to_owned));
            fields.extend(of_event(cgroup.as_ref(), None));
            fields.extend(["0", "100.00", "", ""].map(str::to_owned));
            line(&fields);
        }
        text
    }

    /// A count that was extrapolated has `coverage` below 1. One with `only_on_cores` was not for the time on others.
    fn json(&self) -> Value {
        let event = |row: &Row| {
            let mut event = json!({
                "event": row.name,
                "count": row.scaled.as_ref().map(|scaled| scaled.value),
                "coverage": row.scaled.as_ref().map(|scaled| scaled.coverage),
                "scale": row.unit.scale,
                "unit": row.unit.name,
                "user_only": row.user_only,
            });
            if let Some(cgroup) = &row.cgroup {
                event["cgroup"] = cgroup.as_str().into();
            }
            if !row.not_on.is_empty() {
                event["not_on_cpus"] = row.not_on.as_slice().into();
            }
            if let Some(cores) = row.only_on() {
                event["only_on_cores"] = cores.into();
            }
            if let Some(deviation) = row.deviation {
                event["deviation_percent"] = deviation.into();
            }
            event
        };
        let events: Vec<Value> = self.rows.iter().map(event).collect();
        let left_out = self.left_out.iter();
        let not_counted = left_out.map(|left_out| {
            let mut event = json!({ "event": left_out.name, "error": left_out.error });
            if let Some(cgroup) = &left_out.cgroup {
                event["cgroup"] = cgroup.as_str().into();
            }
            event
        });
        let not_counted: Vec<Value> = not_counted.collect();
        let mut all = json!({
            "seconds": self.elapsed.as_secs_f64(),
            "events": events,
            "not_counted": not_counted,
        });
        if let Some(at) = self.at {
            all["time"] = at.as_secs_f64().into();
        }
        if let Some(runs) = self.runs {
            all["runs"] = runs.into();
        }
        all
    }
}

/// The cgroup of an event, after its name.
fn in_cgroup(cgroup: Option<&String>) -> String {
    cgroup.map_or_else(String::new, |name| format!(" in {name}"))
}

/// The mean of several values, and the standard deviation of that mean in per cent of it.
fn spread(values: &[f64]) -> (f64, f64) {
    let number = values.len() as f64;
    let mean = values.iter().sum::<f64>() / number;
    if values.len() < 2 || mean == 0.0 {
        return (mean, 0.0);
    }
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    let variance = squares / (number - 1.0);
    (mean, 100.0 * (variance / number).sqrt() / mean)
}

/// A frequency and its unit.
fn rate(per_second: f64) -> (f64, &'static str) {
    [(1e9, "G/s"), (1e6, "M/s"), (1e3, "K/s")]
        .into_iter()
        .find(|(size, _)| per_second >= *size)
        .map_or((per_second, "/s"), |(size, unit)| (per_second / size, unit))
}

/// A number with its digits in groups of three.
fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(' ');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use perf_monitor::Count;

    #[test]
    fn a_count_is_compared_with_the_cpu_time_of_its_cgroup() {
        let row = |event: Event, nanos_or_count, cgroup: &str| {
            let mut count = Count::default();
            count.value = nanos_or_count;
            Row::new(&event, Sum::of([count]), false, Some(cgroup.to_owned()))
        };
        let clock = || Event::software(perf_monitor::Software::TaskClock);
        let faults = || Event::software(perf_monitor::Software::PageFaults);
        let second = 1_000_000_000;
        let report = Report {
            elapsed: Duration::from_secs(1),
            at: None,
            runs: None,
            rows: vec![
                row(clock(), second, "a"),
                row(clock(), second / 2, "b"),
                row(faults(), 100, "b"),
                row(faults(), 100, "c"),
            ],
            left_out: Vec::new(),
        };
        let metrics: Vec<_> = report
            .rows
            .iter()
            .map(|row| row.metric(report.elapsed, report.cpu_time(row)))
            .collect();
        let (cpus, rate) = ("CPUs utilized", "/s");
        assert_eq!(metrics, [Some((1.0, cpus)), Some((0.5, cpus)), Some((200.0, rate)), None]);
    }

    /// A run with one count, which was counted for `running` of 10 nanoseconds.
    fn run(value: u64, running: u64) -> Report {
        let event = Event::software(perf_monitor::Software::PageFaults);
        let mut count = Count::default();
        (count.value, count.time_enabled, count.time_running) = (value, Some(10), Some(running));
        let row = Row::new(&event, Sum::of([count]), false, None);
        let (elapsed, left_out) = (Duration::from_secs(1), Vec::new());
        Report { elapsed, at: None, runs: Some(3), rows: vec![row], left_out }
    }

    #[test]
    fn means_are_of_all_runs_that_counted() {
        let mean = |runs: [(u64, u64); 3]| {
            let runs = runs.map(|(value, running)| run(value, running));
            Report::mean(runs.into()).unwrap().rows.remove(0)
        };
        let scaled = mean([(1, 10), (1, 10), (3, 10)]).scaled.unwrap();
        assert_eq!((scaled.value, scaled.is_estimate), (2, false), "1.67");
        let scaled = mean([(1, 5), (2, 10), (0, 0)]).scaled.unwrap();
        assert_eq!((scaled.value, scaled.is_estimate, scaled.coverage), (2, true, 0.75));
        assert!(mean([(0, 0); 3]).scaled.is_none());
    }

    #[test]
    fn means_are_of_the_same_event() {
        let row = |name: &str, value| {
            let mut count = Count::default();
            (count.value, count.time_enabled, count.time_running) = (value, Some(10), Some(10));
            Row::new(&Event::tracepoint_id(name, 1), Sum::of([count]), false, None)
        };
        let report = |rows: Vec<Row>, left_out: &[&str]| {
            let error = perf_monitor::Error::UnknownSetEvent;
            let left_out = left_out.iter().map(|name| LeftOut::new(name, None, &error)).collect();
            Report { elapsed: Duration::from_secs(1), at: None, runs: Some(2), rows, left_out }
        };
        let values = |runs: Vec<Report>| {
            let mean = Report::mean(runs).unwrap();
            let rows =
                mean.rows.iter().map(|row| format!("{} {}", row.name, row.scaled.unwrap().value));
            let left_out = mean.left_out.iter().map(|left_out| format!("no {}", left_out.name));
            rows.chain(left_out).collect::<Vec<_>>()
        };
        // One of the runs could not open an event.
        let both = || report(vec![row("a", 10), row("b", 100)], &["c"]);
        let one = || report(vec![row("b", 200)], &["a", "c"]);
        assert_eq!(values(vec![both(), one()]), ["a 10", "b 150", "no c"]);
        assert_eq!(values(vec![one(), both()]), ["b 150", "a 10", "no c"]);
        // An event can be named twice.
        let twice = |n| report(vec![row("a", n), row("a", n + 2)], &[]);
        assert_eq!(values(vec![twice(10), twice(20)]), ["a 15", "a 17"]);
    }

    #[test]
    fn what_could_not_be_read_is_not_in_the_mean() {
        let mut unread = run(0, 0);
        let event = Event::software(perf_monitor::Software::PageFaults);
        unread.rows = vec![Row::new(&event, Sum::default(), false, None)];
        assert!(unread.print(Form::Text).contains("not counted  page-faults"));
        let mean = Report::mean(vec![run(4, 10), run(6, 10), unread]).unwrap();
        assert_eq!(mean.rows[0].scaled.map(|scaled| scaled.value), Some(5));
    }

    #[test]
    fn all_lines_have_the_same_columns() {
        let mut report = run(4, 10);
        let mut in_cgroup = run(5, 10).rows.remove(0);
        in_cgroup.cgroup = Some("a".to_owned());
        in_cgroup.deviation = Some(1.5);
        in_cgroup.user_only = true;
        report.rows.push(in_cgroup);
        report.rows.push(run(0, 0).rows.remove(0));
        let error = perf_monitor::Error::UnknownSetEvent;
        report.left_out.push(LeftOut::new("cycles", Some("a".to_owned()), &error));
        assert_eq!(
            report.print(Form::Fields(";")),
            "4;;page-faults;;;10;100.00;;\n\
             5;;page-faults:u;a;1.50%;10;100.00;;\n\
             <not counted>;;page-faults;;;0;0.00;;\n\
             <not supported>;;cycles;a;;0;100.00;;\n"
        );
        // The others name it, too.
        let text = report.print(Form::Text);
        assert!(text.contains(" not on this machine  cycles in a\n"), "{text}");
        assert_eq!(report.json()["not_counted"][0]["cgroup"], "a");
    }

    /// A group is opened as a whole: one of its events can be that of user space alone.
    #[test]
    fn user_space_is_named_once() {
        let labels = ["page-faults", "page-faults:u", "task-clock"].map(|name| {
            let event = Event::parse(name).unwrap();
            Row::new(&event, Sum::default(), true, None).label()
        });
        assert_eq!(labels, ["page-faults (user space only)", "page-faults:u", "task-clock"]);
    }

    #[test]
    fn counts_without_a_unit_are_scaled() {
        let printed = |count, scale| {
            let mut report = run(count, 10);
            report.runs = None;
            report.rows[0].unit.scale = scale;
            let text = report.print(Form::Text);
            let fields = report.print(Form::Fields(";"));
            let first =
                |text: &str, separator: &str| text.split(separator).next().unwrap().to_owned();
            [first(text.trim_start(), "  page-faults"), first(&fields, ";")]
        };
        // As cpu/topdown-total-slots/ of processors with 4 slots.
        assert_eq!(printed(10, Some(4.0)), ["40", "40"]);
        assert_eq!(printed(1000, Some(4.0)), ["4 000", "4000"]);
        assert_eq!(printed(10, Some(0.25)), ["2.50", "2.50"]);
        assert_eq!(
            printed(1 << 60, Some(1.0)),
            ["1 152 921 504 606 846 976", "1152921504606846976"]
        );
        assert_eq!(printed(1234, None), ["1 234", "1234"]);
    }

    #[test]
    fn cpus_without_the_event_are_named() {
        let mut report = run(4, 10);
        report.rows[0].not_on = vec![8, 9];
        let text = report.print(Form::Text);
        assert!(text.contains("4  page-faults (not on CPUs 8,9)"), "{text}");
        assert_eq!(report.json()["events"][0]["not_on_cpus"], json!([8, 9]));
    }

    #[test]
    fn counts_of_some_cores_are_marked() {
        let mut report = run(4, 10);
        report.rows[0].cores = Some("cpu_core".to_owned());
        assert!(!report.print(Form::Text).contains("cpu_core"), "it was on no others");
        let mut report = run(4, 5);
        report.rows[0].cores = Some("cpu_core".to_owned());
        assert_eq!(report.json()["events"][0]["only_on_cores"], "cpu_core");
        assert!(report.print(Form::Text).contains("on the cores of cpu_core only"));
        let metric = |row: &Row| row.metric(Duration::from_secs(1), Some(1.0));
        assert_eq!(metric(&report.rows[0]), None);
        report.rows[0].cores = None;
        assert!(metric(&report.rows[0]).is_some());
    }

    #[test]
    fn rates_are_short() {
        let text = |per_second| {
            let (value, unit) = rate(per_second);
            format!("{value:.3} {unit}")
        };
        assert_eq!([text(0.0), text(1234.5), text(2e9)], ["0.000 /s", "1.234 K/s", "2.000 G/s"]);
    }

    #[test]
    fn digits_are_grouped() {
        assert_eq!([grouped(0), grouped(999), grouped(1_234_567)], ["0", "999", "1 234 567"]);
    }

    #[test]
    fn the_deviation_is_that_of_the_mean() {
        // perf's example: the sample deviation is 1, of a mean of 3 values 1/√3.
        let (mean, deviation) = spread(&[9.0, 10.0, 11.0]);
        assert_eq!(mean, 10.0);
        assert!((deviation - 10.0 / 3f64.sqrt()).abs() < 1e-9, "{deviation}");
        assert_eq!(spread(&[5.0]), (5.0, 0.0));
        assert_eq!(spread(&[0.0, 0.0]), (0.0, 0.0));
    }
}
