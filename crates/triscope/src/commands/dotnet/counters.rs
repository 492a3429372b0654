use super::source::Source;
use crate::failure::{OneLine, Result};
use crate::io::progress::Progress;
use crate::io::stdout::Output;
use crate::run::duration::duration;
use diag_ipc::{Provider, Rundown, TracingConfig};
use nettrace::Order;
use nettrace::derived::{Counter, CounterKind, CounterTracker};
use serde_json::json;
use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::time::Duration;

/// Show counters of a live process, or those in a trace
///
/// On a terminal a table that renews itself; otherwise, or with --format, one line per value.
/// Rates are per second.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  triscope dotnet counters 1234
  triscope dotnet counters 1234 -p System.Runtime -p Microsoft.AspNetCore.Hosting --interval 5
  triscope dotnet counters 1234 --meter MyCompany.Orders --format json
  triscope dotnet counters 1234 --duration 60 --format csv > counters.csv")]
pub(crate) struct Args {
    /// The id of a process, a trace, or - for standard input
    #[arg(value_name = "PID|FILE")]
    source: Source,
    /// An event source with counters [default: System.Runtime]
    #[arg(short, long, value_name = "NAME")]
    provider: Vec<String>,
    /// A meter, or METER\INSTRUMENT (.NET 8 and later)
    #[arg(short, long, value_name = "NAME")]
    meter: Vec<String>,
    /// Seconds between values
    #[arg(long, value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    interval: u32,
    /// How to print them [default: a table on a terminal, otherwise csv]
    #[arg(long, value_enum)]
    format: Option<Format>,
    /// End after so many seconds
    #[arg(long, value_name = "SECONDS", value_parser = duration)]
    duration: Option<Duration>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    Table,
    Csv,
    Json,
}

pub(super) fn run(args: &Args) -> Result {
    let terminal = std::io::stdout().is_terminal();
    let format = args.format.unwrap_or(if terminal { Format::Table } else { Format::Csv });
    let config = TracingConfig::new(providers(args)).rundown(Rundown::None).buffer_mb(10);
    // Values are few and wanted at once: no waiting for what may be older.
    let stream =
        args.source.open(&config, args.duration, Order::Stream, Progress::beside_output())?;
    let live = matches!(args.source, Source::Process(_));
    let mut output = Output::new();
    let mut tracker = CounterTracker::new();
    let mut table = Table::default();
    if format == Format::Csv {
        output.buffer.extend_from_slice(b"time_s,provider,counter,tags,kind,value,unit\n");
    }
    let reading = stream.read(|event| {
        let Some(counter) = tracker.observe(event) else { return Ok(()) };
        let time = event.timestamp();
        let out = &mut output.buffer;
        // Writing to a vector does not fail.
        let _ = match format {
            Format::Csv => writeln!(
                out,
                "{time},{},{},{},{},{},{}",
                csv(&counter.provider),
                csv(&counter.name),
                csv(&counter.tags),
                kind(&counter),
                shown(&counter),
                csv(&counter.unit),
            ),
            Format::Json => writeln!(
                out,
                "{}",
                json!({
                    "time_ns": time.nanos(),
                    "provider": counter.provider,
                    "name": counter.name,
                    "display_name": counter.display_name,
                    "tags": counter.tags,
                    "unit": counter.unit,
                    "kind": kind(&counter),
                    "value": shown(&counter),
                    "interval_s": counter.interval_seconds,
                    "count": counter.count,
                    "range": counter.range,
                    "quantiles": counter.quantiles,
                })
            ),
            Format::Table => {
                table.add(time.nanos(), counter, live && terminal, out);
                Ok(())
            }
        };
        if live { output.write() } else { output.write_if_full() }
    })?;
    if format == Format::Table {
        table.draw(live && terminal, &mut output.buffer);
    }
    output.finish()?;
    if tracker.errors() > 0 {
        let n = tracker.errors();
        eprintln!("triscope: the process says {n} times that it does not collect everything");
    }
    reading.into_result()
}

fn providers(args: &Args) -> Vec<Provider> {
    let interval = args.interval;
    let default = args.provider.is_empty() && args.meter.is_empty();
    let names = if default { vec!["System.Runtime".to_owned()] } else { args.provider.clone() };
    let mut providers: Vec<Provider> = names
        .into_iter()
        .map(|n| Provider::new(n).arguments(format!("EventCounterIntervalSec={interval}")))
        .collect();
    if !args.meter.is_empty() {
        /// Time series values.
        const VALUES: u64 = 0x2;
        let meters = args.meter.join(",");
        providers.push(Provider::new("System.Diagnostics.Metrics").keywords(VALUES).arguments(
            format!(
                "SessionId=SHARED;Metrics={meters};RefreshInterval={interval};\
                 MaxTimeSeries=1000;MaxHistograms=10;ClientId={}",
                std::process::id()
            ),
        ));
    }
    providers
}

/// A rate per second, anything else as it is.
fn shown(counter: &Counter) -> f64 {
    counter.per_second().unwrap_or(counter.value)
}

fn kind(counter: &Counter) -> &'static str {
    match counter.kind {
        CounterKind::Rate => "rate",
        CounterKind::Histogram => "histogram",
        _ => "gauge",
    }
}

/// A field of CSV: quoted where it has to be.
fn csv(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

/// The newest value of every counter.
#[derive(Default)]
struct Table {
    rows: BTreeMap<(String, String, String), Counter>,
    lines: usize,
    drawn_at: i64,
}

impl Table {
    fn add(&mut self, now: i64, counter: Counter, live: bool, out: &mut Vec<u8>) {
        let key = (counter.provider.clone(), counter.name.clone(), counter.tags.clone());
        self.rows.insert(key, counter);
        // The values of one interval come in a row.
        if live && now - self.drawn_at > 200_000_000 {
            self.drawn_at = now;
            self.draw(true, out);
        }
    }

    /// Draws the table, over the last one if that is on the terminal.
    fn draw(&mut self, over: bool, out: &mut Vec<u8>) {
        // Writing to a vector does not fail.
        if over && self.lines > 0 {
            let _ = write!(out, "\x1b[{}A\x1b[J", self.lines);
        }
        self.lines = 0;
        let mut last = "";
        for ((provider, name, tags), counter) in &self.rows {
            if provider != last {
                let _ = writeln!(out, "{}", OneLine(provider));
                self.lines += 1;
                last = provider;
            }
            let label = if counter.display_name.is_empty() { name } else { &counter.display_name };
            let tags = if tags.is_empty() { String::new() } else { format!(" [{tags}]") };
            let per = if counter.kind == CounterKind::Rate { "/s" } else { "" };
            let label = format!("{label}{tags}");
            let _ = writeln!(
                out,
                "    {:<56} {:>16.3} {}{per}",
                OneLine(&label).to_string(),
                shown(counter),
                OneLine(&counter.unit),
            );
            self.lines += 1;
        }
    }
}
