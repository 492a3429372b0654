use super::Recording;
use crate::failure::{Failure, OneLine, Result};
use crate::io::stdout::Output;
use crate::sources::recording::read;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::Write as _;

/// Summarize a recording by thread name, file and symbol, as perf report does
///
/// The overhead is the share of the event's periods. An address without a known symbol is shown as
/// its offset in its file: a symbol is never guessed.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  triscope perf report                       perf.data
  triscope perf report other.data -s dso
  triscope perf report --json | jq '.events[0].rows[0]'")]
pub(crate) struct Args {
    #[command(flatten)]
    recording: Recording,
    /// Columns to group by, separated by commas
    #[arg(
        short,
        long,
        value_name = "COLUMNS",
        value_delimiter = ',',
        default_value = "comm,dso,symbol"
    )]
    sort: Vec<Column>,
    /// Print JSON
    #[arg(short, long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Column {
    /// Name of the thread
    Comm,
    /// Process id
    Pid,
    /// Thread id
    Tid,
    /// File, kernel or module
    Dso,
    /// Function
    #[value(alias = "sym")]
    Symbol,
    /// CPU
    Cpu,
}

impl Column {
    const fn title(self) -> &'static str {
        match self {
            Self::Comm => "Command",
            Self::Pid => "Pid",
            Self::Tid => "Tid",
            Self::Dso => "Shared Object",
            Self::Symbol => "Symbol",
            Self::Cpu => "CPU",
        }
    }

    const fn key(self) -> &'static str {
        match self {
            Self::Comm => "comm",
            Self::Pid => "pid",
            Self::Tid => "tid",
            Self::Dso => "dso",
            Self::Symbol => "symbol",
            Self::Cpu => "cpu",
        }
    }

    /// A cell in JSON: ids are numbers, or null if they were not recorded.
    fn json(self, text: &str) -> Value {
        match self {
            Self::Pid | Self::Tid | Self::Cpu => json!(text.parse::<i64>().ok()),
            Self::Comm | Self::Dso | Self::Symbol => json!(text),
        }
    }
}

#[derive(Default)]
struct Summary {
    name: String,
    samples: u64,
    periods: u64,
    rows: BTreeMap<Vec<String>, Row>,
}

impl Summary {
    /// The rows, those with the largest share first.
    fn sorted(&self) -> Vec<(&Vec<String>, &Row)> {
        let mut rows: Vec<_> = self.rows.iter().collect();
        rows.sort_by_key(|(key, row)| (std::cmp::Reverse(row.periods), *key));
        rows
    }
}

#[derive(Clone, Copy, Default)]
struct Row {
    samples: u64,
    periods: u64,
}

pub(crate) fn run(args: &Args) -> Result {
    let mut summaries: BTreeMap<usize, Summary> = BTreeMap::new();
    let state = read(args.recording.path(), |of, state| {
        let sample = of.sample;
        let place = state
            .symbols
            .as_ref()
            .zip(sample.ip)
            .map(|(symbols, ip)| symbols.at(sample.pid.unwrap_or(0), ip, of.mode));
        let key = args.sort.iter().map(|column| match column {
            Column::Comm => of.comm(state),
            Column::Pid => sample.pid.map_or_else(String::new, |pid| (pid as i32).to_string()),
            Column::Tid => sample.tid.map_or_else(String::new, |tid| (tid as i32).to_string()),
            Column::Cpu => sample.cpu.map_or_else(String::new, |cpu| format!("{cpu:03}")),
            Column::Dso => short(place.as_ref().and_then(|place| place.file)),
            Column::Symbol => place.as_ref().map_or_else(String::new, |place| {
                let level = place.level();
                match &place.symbol {
                    Some(symbol) => format!("{level} {}", symbol.name),
                    None => format!("{level} {:#018x}", place.address),
                }
            }),
        });
        let key: Vec<String> = key.collect();
        let attr = of.session.events().get(of.event).map(|event| event.attr).unwrap_or_default();
        let period =
            sample.period.unwrap_or(if attr.freq() { 1 } else { attr.sample_period }).max(1);
        let summary = summaries.entry(of.event).or_default();
        if summary.samples == 0 {
            summary.name = of.event_name().to_owned();
        }
        summary.samples += 1;
        summary.periods = summary.periods.saturating_add(period);
        let row = summary.rows.entry(key).or_default();
        row.samples += 1;
        row.periods = row.periods.saturating_add(period);
        Ok(())
    })?;
    if summaries.is_empty() {
        state.outcome()?;
        return Err(Failure::about(
            args.recording.path().display(),
            "the recording has no samples",
        ));
    }
    let mut out = Output::new();
    if args.json {
        let events = summaries.values().map(|summary| as_json(args, summary));
        let events: Vec<Value> = events.collect();
        let text = json!({ "lost": state.lost(), "events": events }).to_string();
        out.buffer.extend_from_slice(text.as_bytes());
        out.buffer.push(b'\n');
        return out.finish().and(state.outcome());
    }
    for summary in summaries.values() {
        print(args, summary, state.lost(), &mut out);
        out.write_if_full()?;
    }
    out.finish().and(state.outcome())
}

/// The name of a file without its directory, as perf shows it.
fn short(file: Option<&str>) -> String {
    let file = file.unwrap_or("[unknown]");
    let map = file.strip_prefix("/tmp/perf-").and_then(|name| name.strip_suffix(".map"));
    match map.and_then(|pid| pid.parse::<u32>().ok()) {
        // Code of a just-in-time compiler.
        Some(pid) => format!("[JIT] tid {pid}"),
        None => file.rsplit('/').next().unwrap_or(file).to_owned(),
    }
}

fn as_json(args: &Args, summary: &Summary) -> Value {
    let rows = summary.sorted().into_iter().map(|(key, row)| {
        let columns =
            args.sort.iter().zip(key).map(|(column, text)| (column.key(), column.json(text)));
        let numbers = [("samples", json!(row.samples)), ("periods", json!(row.periods))];
        let cells = columns.chain(numbers).map(|(key, value)| (key.to_owned(), value));
        Value::Object(cells.collect())
    });
    json!({
        "event": summary.name,
        "samples": summary.samples,
        "periods": summary.periods,
        "rows": rows.collect::<Vec<Value>>(),
    })
}

/// Prints the rows of an event. Writing to a vector does not fail.
fn print(args: &Args, summary: &Summary, lost: u64, out: &mut Output) {
    let out = &mut out.buffer;
    let _ = writeln!(out, "# Total Lost Samples: {lost}\n#");
    let _ = writeln!(out, "# Samples: {} of event '{}'", summary.samples, OneLine(&summary.name));
    let _ = writeln!(out, "# Event count (approx.): {}\n#", summary.periods);
    let rows = summary.sorted();
    let shown = |text: &String| OneLine(text).to_string();
    let widths: Vec<usize> = args
        .sort
        .iter()
        .enumerate()
        .map(|(n, column)| {
            let widest =
                rows.iter().filter_map(|(key, _)| key.get(n)).map(|t| shown(t).chars().count());
            widest.max().unwrap_or(0).max(column.title().len())
        })
        .collect();
    let titles = args.sort.iter().map(|column| column.title().to_owned());
    let lines = widths.iter().map(|width| ".".repeat(*width));
    let _ = writeln!(out, "{}", row("# Overhead", titles, &widths));
    let _ = writeln!(out, "{}\n#", row("# ........", lines, &widths));
    for (key, Row { periods, .. }) in rows {
        let share = *periods as f64 * 100.0 / summary.periods as f64;
        let _ = writeln!(out, "{}", row(&format!("{share:>9.2}%"), key.iter().map(shown), &widths));
    }
    out.push(b'\n');
}

/// The cells of a row in their widths.
fn row(first: &str, cells: impl Iterator<Item = String>, widths: &[usize]) -> String {
    let mut line = format!("{first:<10}");
    for (cell, width) in cells.zip(widths) {
        line.push_str(&format!("  {cell:<width$}"));
    }
    line.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_have_the_names_of_perf() {
        let names = [
            "[unknown]",
            "[kernel.kallsyms]",
            "libc.so.6",
            "[JIT] tid 4711",
            "perf-x.map",
            "perf-1.map",
        ];
        let files = [
            "[kernel.kallsyms]",
            "/lib/libc.so.6",
            "/tmp/perf-4711.map",
            "/tmp/perf-x.map",
            "/var/tmp/perf-1.map",
        ];
        let files = [None].into_iter().chain(files.map(Some));
        assert_eq!(files.map(short).collect::<Vec<_>>(), names);
    }

    #[test]
    fn ids_are_numbers() {
        assert_eq!(Column::Cpu.json("003"), json!(3));
        assert_eq!(Column::Pid.json("-1"), json!(-1));
        assert_eq!(Column::Tid.json(""), Value::Null);
        assert_eq!(Column::Comm.json("12"), json!("12"));
    }
}
