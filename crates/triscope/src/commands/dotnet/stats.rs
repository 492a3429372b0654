use super::source::Stream;
use crate::failure::{OneLine, Result};
use crate::io::progress::Progress;
use crate::io::stdout::Output;
use nettrace::{Event, Order, Stats, Summary, Trace};
use serde_json::{Value as Json, json};
use std::collections::HashMap;
use std::io::Write;
use std::path::PathBuf;

/// Summarize a trace: process, time, events by type, losses
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  triscope dotnet stats app.nettrace
  triscope dotnet stats app.nettrace --json | jq '.lost'
  triscope dotnet stats app.nettrace --json | jq '.by_event[] | select(.count > 1000)'")]
pub(crate) struct Args {
    /// The trace; - is standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result {
    let stream = Stream::of_file(&args.file, Order::Stream, Progress::bytes())?;
    let mut found = Found::default();
    let reading = stream.read(|event| {
        found.add(event);
        Ok(())
    })?;
    let mut output = Output::new();
    let out = &mut output.buffer;
    if args.json {
        let value = json(&found.summary, &reading.stats, reading.trace.as_ref());
        let _ = writeln!(out, "{value:#}"); // writing to a vector does not fail
    } else {
        let _ = writeln!(out, "{}: {} bytes", OneLine(&reading.name), reading.stats.bytes);
        let _ = print(out, &found, &reading.stats, reading.trace.as_ref());
    }
    output.finish()?;
    reading.into_result()
}

/// What the events of a trace add up to.
#[derive(Default)]
struct Found {
    summary: Summary,
    /// By provider and id.
    names: HashMap<(String, u32), String>,
    /// The earliest and the latest time, in nanoseconds.
    time: Option<(i64, i64)>,
    /// Provider and id of the last event.
    last: Option<(String, u32)>,
}

impl Found {
    fn add(&mut self, event: &Event<'_>) {
        self.summary.push(event);
        let now = event.time().nanos();
        let time = self.time.map_or((now, now), |(first, last)| (first.min(now), last.max(now)));
        self.time = Some(time);
        // Not by the id of the metadata, which has another meaning after a flush in version 6.
        let is_last =
            |(provider, id): &(String, u32)| provider == event.provider() && *id == event.id();
        if !self.last.as_ref().is_some_and(is_last) {
            let kind = (event.provider().to_owned(), event.id());
            self.names.entry(kind.clone()).or_insert_with(|| event.name().to_owned());
            self.last = Some(kind);
        }
    }
}

fn json(summary: &Summary, stats: &Stats, trace: Option<&Trace>) -> Json {
    let by_event: Vec<_> = summary
        .iter()
        .map(|(provider, id, version, count)| {
            json!({ "provider": provider, "id": id, "version": version, "count": count })
        })
        .collect();
    let mut value = json!({
        "events": stats.events,
        "metadata": stats.metadata,
        "stacks": stats.stacks,
        "sequence_points": stats.sequence_points,
        "lost": stats.lost,
        "sync_time_qpc": trace.map(|t| t.sync_time_qpc),
        "pid": trace.map(|t| t.pid),
        "by_event": by_event,
    });
    // Only counts of problems are added to the counts of every trace.
    let amiss = [
        ("truncated_at", stats.truncated_at),
        ("damaged_blocks", Some(stats.damaged_blocks).filter(|n| *n > 0)),
        ("unknown_blocks", Some(stats.unknown_blocks).filter(|n| *n > 0)),
        ("unreadable_metadata", Some(stats.unreadable_metadata).filter(|n| *n > 0)),
        ("events_without_metadata", Some(stats.events_without_metadata).filter(|n| *n > 0)),
    ];
    if let Some(object) = value.as_object_mut() {
        for (key, count) in amiss {
            if let Some(count) = count {
                object.insert(key.to_owned(), count.into());
            }
        }
    }
    value
}

fn print(
    out: &mut Vec<u8>,
    found: &Found,
    stats: &Stats,
    trace: Option<&Trace>,
) -> std::io::Result<()> {
    if let Some(t) = trace {
        let seconds = t.sync_time_utc.nanos() as f64 / 1e9;
        writeln!(
            out,
            "\nformat           version {}, {}-bit\nprocess          {}\n\
             begin            {} s, {seconds:.3} s since 1970",
            t.version,
            t.pointer_size * 8,
            t.pid,
            t.sync_time(),
        )?;
    }
    if let Some((first, last)) = found.time {
        writeln!(out, "events over      {:.6} s", last.saturating_sub(first) as f64 / 1e9)?;
    }
    for (label, count) in [
        ("events", stats.events),
        ("lost", stats.lost),
        ("event types", stats.metadata),
        ("stacks", stats.stacks),
        ("sequence points", stats.sequence_points),
        ("blocks", stats.blocks),
    ] {
        writeln!(out, "{label:<16} {count}")?;
    }
    if let Some(at) = stats.truncated_at {
        writeln!(out, "truncated        at {at}")?;
    }
    writeln!(out, "\n       count  event")?;
    let mut rows: Vec<_> = found.summary.iter().collect();
    rows.sort_by_key(|(_, _, _, count)| std::cmp::Reverse(*count));
    for (provider, id, version, count) in rows {
        let name = found.names.get(&(provider.to_owned(), id)).map_or("", String::as_str);
        let (provider, name) = (OneLine(provider), OneLine(name));
        writeln!(out, "{count:>12}  {provider}/{name} ({id} v{version})")?;
    }
    Ok(())
}
