mod burst;
mod filter;
mod newest;
mod prometheus;
mod reports;
mod rows;
mod table;

use super::source::SourceOrCommand;
use super::target::Target;
use crate::failure::{Failure, OneLine, Result};
use crate::io::in_place;
use crate::io::output_file::OutputFile;
use crate::io::progress::Progress;
use crate::io::stdout::Output;
use crate::run::duration::duration;
use burst::Bursts;
use diag_ipc::{Level, Provider, Rundown, TracingConfig};
use filter::Selection;
use nettrace::Order;
use nettrace::analysis::{Counter, CounterKind, CounterTracker};
use reports::Reports;
use std::hash::{BuildHasher as _, RandomState};
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Show the counters of a process or a trace
///
/// Prints a table that is redrawn on a terminal, and one line per value otherwise or with --format.
/// Rates are per second. A histogram has one value per percentile.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  triscope dotnet counters 1234
  triscope dotnet counters 1234 --counters 'System.Runtime[cpu-usage,gc-heap-size]' --interval 5
  triscope dotnet counters 1234 --meter MyCompany.Orders --format json
  triscope dotnet counters 1234 --duration 60 -o counters.csv
  triscope dotnet counters 1234 -o /var/lib/node_exporter/app.prom    rewritten every interval")]
pub(crate) struct Args {
    #[command(flatten)]
    source: SourceOrCommand,
    /// Event sources with counters, each with the names of its counters in brackets, separated by
    /// commas; without brackets, all of them [default: System.Runtime]
    #[arg(long, visible_alias = "provider", value_name = "LIST")]
    counters: Vec<Selection>,
    /// A meter, or METER\INSTRUMENT (.NET 8 and later)
    #[arg(short, long, value_name = "NAME")]
    meter: Vec<String>,
    /// Seconds between values [default: 1]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..))]
    interval: Option<u32>,
    /// Report at most N time series of meters; the runtime drops the others [default: 1000]
    #[arg(long, value_name = "N")]
    max_time_series: Option<u32>,
    /// Report at most N histograms of meters; the runtime drops the others [default: 10]
    #[arg(long, value_name = "N")]
    max_histograms: Option<u32>,
    /// Output format [default: by the name of the output file; a table on a terminal; else csv]
    #[arg(long, value_enum)]
    format: Option<Format>,
    /// Write to FILE: .csv, .json (one object per line) or .prom (Prometheus text format, replaced
    /// as a whole every interval); - is standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Stop after SECONDS; a COMMAND then gets SIGTERM
    #[arg(long, visible_alias = "seconds", value_name = "SECONDS", value_parser = duration)]
    duration: Option<Duration>,
}

/// The default of `--interval`.
const INTERVAL: u32 = 1;

/// The default of `--max-time-series`.
const MAX_TIME_SERIES: u32 = 1000;

/// The default of `--max-histograms`.
const MAX_HISTOGRAMS: u32 = 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    Table,
    Csv,
    Json,
    /// The newest values in Prometheus text format
    #[value(alias = "prom")]
    Prometheus,
}

pub(super) fn run(args: &Args) -> Result {
    args.source.check(&[
        ("--duration", args.duration.is_some()),
        ("--interval", args.interval.is_some()),
        ("--max-time-series", args.max_time_series.is_some()),
        ("--max-histograms", args.max_histograms.is_some()),
    ])?;
    let is_terminal = std::io::stdout().is_terminal();
    let output = args.output.as_deref().filter(|path| path.as_os_str() != "-");
    let format = format(args.format, output, is_terminal)?;
    let is_live = args.source.is_live();
    if let Some((output, input)) = output.zip(args.source.file()) {
        OutputFile::check_inputs(output, &[input.to_owned()])?;
    }
    // Do first what can fail for other reasons: a session must be stopped properly.
    let mut writer = Writer::new(output, format, is_live, is_terminal)?;
    // Values are rare and should appear at once: stream order does not wait for older events.
    let mut tracker = CounterTracker::new();
    let config = |target: &Target| -> Result<TracingConfig> {
        let mut providers = sources(args);
        if !args.meter.is_empty() {
            let session = MeterSession::of(target)?;
            providers.push(session.provider(args));
            tracker = CounterTracker::of_session(&session.id, &session.client);
        }
        Ok(TracingConfig::new(providers).rundown(Rundown::None).buffer_mb(10))
    };
    let progress = Progress::beside_output();
    let opened = args.source.open_for(config, args.duration, Order::Stream, progress);
    let mut stream = opened.inspect_err(|_| writer.discard())?;
    if let Err(failure) = writer.begin() {
        return Err(stream.leave(failure));
    }
    let mut shown = 0u64;
    let mut reports = Reports::default();
    let has_only_meters = args.counters.is_empty() && !args.meter.is_empty();
    let reading = stream.read(|event| {
        let Some(counter) = tracker.push(event) else {
            // It can be why nothing is shown, and the end of a live session may be far.
            if !is_live {
                return Ok(());
            }
            if has_only_meters && shown == 0 {
                if let Some(conflict) = reports::conflict(&tracker) {
                    return Err(Failure::new(conflict));
                }
            }
            return reports.first(&tracker).into_iter().try_for_each(|text| writer.note(text));
        };
        let is_selected = filter::is_selected(&args.counters, &args.meter, &counter);
        if !is_selected || is_of_unknown_interval(&counter) {
            return Ok(());
        }
        shown += 1;
        let utc = event.trace().map(|trace| trace.utc(counter.time).nanos());
        writer.add(counter.time.nanos(), utc, counter)
    })?;
    writer.finish()?;
    if shown == 0 {
        message!("triscope: there are no values of these counters");
    }
    for message in reports.rest(&tracker) {
        message!("triscope: {message}");
    }
    reading.into_result()
}

fn format(format: Option<Format>, output: Option<&Path>, is_terminal: bool) -> Result<Format> {
    if let Some(format) = format {
        return Ok(format);
    }
    let Some(path) = output else {
        return Ok(if is_terminal { Format::Table } else { Format::Csv });
    };
    match path.extension().and_then(|e| e.to_str()) {
        Some("csv") => Ok(Format::Csv),
        Some("json" | "jsonl" | "ndjson") => Ok(Format::Json),
        Some("prom") => Ok(Format::Prometheus),
        _ => {
            let hint = "unknown file name extension: use .csv, .json or .prom, or pass --format";
            Err(Failure::about(path.display(), hint).with_code(2))
        }
    }
}

/// The id of the session of meters that several clients can have (.NET 8).
const SHARED: &str = "SHARED";

/// A client of a session of meters.
struct MeterSession {
    id: String,
    client: String,
}

impl MeterSession {
    fn of(target: &Target) -> Result<Self> {
        /// The first version with sessions of several clients.
        const FIRST_SHARED: u32 = 8;
        // Before, a session that is refused is known by its id, which is not that of the running one.
        let is_shared = target.major_version()?.is_some_and(|major| major >= FIRST_SHARED);
        let id = if is_shared { SHARED.to_owned() } else { random_id() };
        Ok(Self { id, client: random_id() })
    }

    fn provider(&self, args: &Args) -> Provider {
        /// Time series values.
        const VALUES: u64 = 0x2;
        Provider::new("System.Diagnostics.Metrics").keywords(VALUES).arguments(format!(
            "SessionId={};Metrics={};RefreshInterval={};MaxTimeSeries={};MaxHistograms={};ClientId={}",
            self.id,
            args.meter.join(","),
            args.interval.unwrap_or(INTERVAL),
            args.max_time_series.unwrap_or(MAX_TIME_SERIES),
            args.max_histograms.unwrap_or(MAX_HISTOGRAMS),
            self.client,
        ))
    }
}

/// The id of a client or a session. The runtime counts clients with the same id once; those in two containers can
/// have the same process id.
fn random_id() -> String {
    format!("{:016x}", RandomState::new().hash_one(std::process::id()))
}

/// The event sources with counters. Their events have no keywords and are of every level, unlike most others of
/// these sources.
fn sources(args: &Args) -> Vec<Provider> {
    let interval = args.interval.unwrap_or(INTERVAL);
    let default = [Selection::all("System.Runtime")];
    let is_default = args.counters.is_empty() && args.meter.is_empty();
    let selections = if is_default { &default[..] } else { &args.counters };
    selections
        .iter()
        .flat_map(Selection::providers)
        .map(|name| Provider::new(name).keywords(0).level(Level::Informational))
        .map(|source| source.arguments(format!("EventCounterIntervalSec={interval}")))
        .collect()
}

/// Whether it is a rate without its time: the session began within a collection of another client, or its start was
/// lost. Nothing can be said per second then.
fn is_of_unknown_interval(counter: &Counter) -> bool {
    counter.kind == CounterKind::Rate && counter.per_second().is_none()
}

/// The value to print: per second for a rate, otherwise unchanged.
fn shown(counter: &Counter) -> f64 {
    counter.per_second().unwrap_or(counter.value)
}

/// Whether there is a value to print: a histogram of .NET 6 and 7 has only percentiles, if it has values.
const fn has_value(counter: &Counter) -> bool {
    !matches!(counter.kind, CounterKind::Histogram)
        || matches!(counter.count, Some(1..))
        || !counter.value.is_nan()
}

fn kind(counter: &Counter) -> &'static str {
    match counter.kind {
        CounterKind::Rate => "rate",
        CounterKind::Histogram | CounterKind::ExponentialHistogram => "histogram",
        _ => "gauge",
    }
}

/// Destination of the values.
enum Writer {
    Rows {
        format: rows::Format,
        to: To,
        is_live: bool,
    },
    Table {
        table: table::Table,
        output: Output,
    },
    Live(Bursts<table::Item>),
    Prometheus {
        metrics: prometheus::Metrics,
        path: Option<PathBuf>,
    },
    /// A file that is replaced at each interval.
    LivePrometheus {
        values: Bursts<Counter>,
        path: PathBuf,
        is_empty: bool,
    },
}

/// Standard output or a file.
enum To {
    Stdout(Output),
    File { path: PathBuf, is_new: bool, file: std::io::BufWriter<std::fs::File> },
}

impl To {
    /// Opens a file, which keeps its content for now.
    fn open(path: &Path) -> Result<Self> {
        let (file, is_new) = in_place::open(path).map_err(|e| Failure::about(path.display(), e))?;
        Ok(Self::File { path: path.to_owned(), is_new, file: std::io::BufWriter::new(file) })
    }

    fn empty(&self) -> Result {
        let Self::File { path, file, .. } = self else { return Ok(()) };
        in_place::empty(file.get_ref()).map_err(|e| Failure::about(path.display(), e))
    }

    fn write(&mut self, line: &[u8], is_live: bool) -> Result {
        match self {
            Self::Stdout(output) => {
                output.buffer.extend_from_slice(line);
                if is_live { output.write() } else { output.write_if_full() }
            }
            Self::File { path, file, .. } => file
                .write_all(line)
                .and_then(|()| if is_live { file.flush() } else { Ok(()) })
                .map_err(|e| Failure::about(path.display(), e)),
        }
    }
}

impl Writer {
    /// Without an output, it is standard output.
    fn new(
        output: Option<&Path>,
        format: Format,
        is_live: bool,
        is_terminal: bool,
    ) -> Result<Self> {
        let rows = |format: rows::Format| -> Result<Self> {
            let to = match output {
                None => To::Stdout(Output::new()),
                Some(path) => To::open(path)?,
            };
            Ok(Self::Rows { format, to, is_live })
        };
        match format {
            Format::Csv => rows(rows::Format::Csv),
            Format::Json => rows(rows::Format::Json),
            Format::Table if output.is_some() => {
                let hint = "a table goes to the terminal: pass --format csv with -o";
                Err(Failure::new(hint).with_code(2))
            }
            Format::Table if is_live && is_terminal => Ok(Self::Live(table::live()?)),
            Format::Table => {
                Ok(Self::Table { table: table::Table::default(), output: Output::new() })
            }
            Format::Prometheus => {
                let (mut metrics, path) =
                    (prometheus::Metrics::default(), output.map(Path::to_owned));
                path.as_deref().map_or(Ok(()), OutputFile::check)?;
                let Some(path) = path.clone().filter(|_| is_live) else {
                    return Ok(Self::Prometheus { metrics, path });
                };
                let file = path.clone();
                let values = Bursts::start(|| {
                    move |burst: Vec<Counter>| {
                        burst.into_iter().for_each(|counter| metrics.add(counter));
                        replace(&file, &mut metrics)
                    }
                })?;
                Ok(Self::LivePrometheus { values, path, is_empty: true })
            }
        }
    }

    /// There is a source: replaces the previous content of a file.
    fn begin(&mut self) -> Result {
        match self {
            Self::Rows { format, to, is_live } => {
                to.empty()?;
                to.write(format.header(), *is_live)
            }
            _ => Ok(()),
        }
    }

    /// There is no source: removes the file, if it is new.
    fn discard(&self) {
        if let Self::Rows { to: To::File { path, is_new: true, .. }, .. } = self {
            let _ = std::fs::remove_file(path); // it is empty
        }
    }

    fn add(&mut self, time: i64, utc: Option<i64>, counter: Counter) -> Result {
        match self {
            Self::Rows { format, to, is_live } => {
                to.write(&format.rows(time, utc, &counter), *is_live)
            }
            Self::Table { table, .. } => {
                table.add(counter);
                Ok(())
            }
            Self::Live(live) => live.add(table::Item::Counter(Box::new(counter))),
            Self::Prometheus { metrics, .. } => {
                metrics.add(counter);
                Ok(())
            }
            Self::LivePrometheus { values, is_empty, .. } => {
                *is_empty = false;
                values.add(counter)
            }
        }
    }

    /// Shows a message beside the values.
    fn note(&mut self, text: String) -> Result {
        match self {
            // A table on a terminal cannot be interrupted by a message.
            Self::Live(live) => live.add(table::Item::Note(text)),
            _ => {
                message!("triscope: {text}");
                Ok(())
            }
        }
    }

    fn finish(self) -> Result {
        match self {
            Self::Rows { to: To::Stdout(output), .. } => output.finish(),
            Self::Rows { to: To::File { path, mut file, .. }, .. } => {
                file.flush().map_err(|e| Failure::about(path.display(), e))
            }
            Self::Table { table, mut output } => {
                for line in table.lines(None) {
                    let _ = writeln!(output.buffer, "{line}"); // writing to a vector does not fail
                }
                output.finish()
            }
            Self::Live(live) => live.finish(),
            Self::LivePrometheus { values, path, is_empty } => {
                values.finish()?;
                // Not what an earlier run left.
                if is_empty { replace(&path, &mut prometheus::Metrics::default()) } else { Ok(()) }
            }
            Self::Prometheus { mut metrics, path: Some(path) } => replace(&path, &mut metrics),
            Self::Prometheus { mut metrics, path: None } => {
                let mut output = Output::new();
                output.buffer.extend_from_slice(metrics.text().as_bytes());
                output.finish()
            }
        }
    }
}

/// Replaces the whole file atomically, so that a scrape never reads a partial one.
fn replace(path: &Path, metrics: &mut prometheus::Metrics) -> Result {
    let mut file = OutputFile::create(path, &[])?;
    let mut to = file.writer()?;
    to.write_all(metrics.text().as_bytes()).map_err(|e| file.failure(&e))?;
    file.complete()
}
