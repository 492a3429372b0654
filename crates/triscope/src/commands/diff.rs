//! `triscope diff`.

use crate::failure::{Failure, OneLine, Result};
use crate::io::output_file::OutputFile;
use crate::io::profile_table::write_functions;
use crate::io::stdout::Output;
use crate::run::stop::Listener;
use crate::sources::profile::{Loaded, load};
use serde_json::json;
use std::cmp::Reverse;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use trace_export::profile::{Change, Difference, FunctionChange, Unit};

/// Compare two profiles: the functions whose share has changed, and a flame graph of the difference
///
/// Reads pprof files (.pb.gz), folded stacks, speedscope files, and traces with samples: perf.data, Go
/// and .NET traces. Functions are the same if they have the same name, so that two builds of a program
/// can be compared.
///
/// SELF is the share of samples in a function itself, TOTAL that of samples in it and in what it calls.
/// Both are parts of their own profile, so that profiles of different lengths can be compared; the
/// difference is in points. --absolute compares weights instead.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  triscope diff old.pb.gz new.pb.gz
  triscope diff old.pb.gz new.pb.gz --sort total --rows 10
  triscope diff old.data new.data -o difference.svg    a flame graph: red has grown, blue shrunk
  triscope diff old.pb.gz new.pb.gz -o difference.folded
  triscope diff old.pb.gz new.pb.gz --json | jq '.functions[0]'")]
pub(crate) struct Args {
    /// The profile before the change; - is standard input
    #[arg(value_name = "BEFORE")]
    before: PathBuf,
    /// The profile after the change
    #[arg(value_name = "AFTER")]
    after: PathBuf,
    /// Write the stacks of both, by the name of the file: .svg (a flame graph), or .folded (lines with
    /// both weights)
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// The samples to compare: a sample type of pprof files, an event of traces; FILE=NAME for one of the
    /// files [default: the default of a pprof file, the event with most samples of a trace]
    #[arg(long, value_name = "[FILE=]NAME")]
    samples: Vec<String>,
    /// Compare weights instead of shares
    #[arg(long)]
    absolute: bool,
    /// The order of the functions
    #[arg(long, value_name = "COLUMN", default_value = "self")]
    sort: Sort,
    /// Maximum number of functions; 0 for all
    #[arg(long, value_name = "N", default_value_t = 30, conflicts_with = "json")]
    rows: usize,
    /// Print all functions as JSON
    #[arg(long)]
    json: bool,
}

/// Largest change first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Sort {
    /// By the change of SELF
    #[value(name = "self")]
    Own,
    /// By the change of TOTAL
    Total,
    /// By name
    Name,
}

/// The format of the output.
#[derive(Clone, Copy)]
enum Format {
    FlameGraph,
    Folded,
}

impl Format {
    fn of(path: &Path) -> Result<Self> {
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("svg") => Ok(Self::FlameGraph),
            Some("folded") => Ok(Self::Folded),
            _ => {
                let what = "the name must end in .svg or .folded";
                Err(Failure::about(path.display(), what).with_code(2))
            }
        }
    }
}

pub(crate) fn run(args: &Args) -> Result {
    let format = args.output.as_deref().map(Format::of).transpose()?;
    if [&args.before, &args.after].iter().all(|path| path.as_os_str() == "-") {
        return Err(Failure::new("only one of the profiles can be standard input").with_code(2));
    }
    let _listener = args.output.as_ref().and_then(|_| Listener::exit());
    let load = |path: &Path| load(path, args.wanted(path));
    let (before, after) = (load(&args.before)?, load(&args.after)?);
    let side = |loaded: &Loaded| Side {
        count: loaded.profile.count(),
        events: loaded.profile.measure().events.clone().into_owned(),
        weight: loaded.name.clone(),
    };
    let sides = [side(&before), side(&after)];
    let difference =
        Difference::new((&before.profile, &before.tables), (&after.profile, &after.tables));
    let difference = difference.map_err(|error| {
        let failure = Failure::new(error);
        match (&before.others[..], &after.others[..]) {
            ([], []) => failure,
            _ => failure.and(OneLine(&choice(args, &before, &after))),
        }
    })?;
    drop((before, after));
    if difference.totals() == Change::default() {
        return Err(Failure::new("both profiles are empty"));
    }
    if let (Some(path), Some(format)) = (&args.output, format) {
        write(args, path, format, &difference)?;
    }
    let mut out = Output::new();
    if args.json {
        let text = as_json(args, &difference, &sides);
        // Writing to a vector does not fail.
        let _ = writeln!(out.buffer, "{text:#}");
    } else {
        let _ = print(args, &difference, &sides, &mut out.buffer);
    }
    out.finish()
}

impl Args {
    /// The samples of a file: those of it alone, or those of both. Names of events can have a `=`.
    fn wanted(&self, path: &Path) -> Option<&str> {
        let is_of_one =
            |value: &str| [&self.before, &self.after].iter().any(|file| of(file, value).is_some());
        let values = || self.samples.iter().map(String::as_str);
        let own = values().filter_map(|value| of(path, value)).next_back();
        own.or_else(|| values().rfind(|value| !is_of_one(value)))
    }
}

/// The name in `FILE=NAME`, if it is of this file.
fn of<'a>(file: &Path, value: &'a str) -> Option<&'a str> {
    value.strip_prefix(file.to_str()?)?.strip_prefix('=')
}

/// What there is to choose of the files, if their weights cannot be compared.
fn choice(args: &Args, before: &Loaded, after: &Loaded) -> String {
    let there = |path: &Path, loaded: &Loaded| {
        let names = [&loaded.name].into_iter().chain(&loaded.others);
        let names: Vec<&str> = names.map(String::as_str).collect();
        format!("{} has {}", path.display(), names.join(", "))
    };
    let files = [there(&args.before, before), there(&args.after, after)].join("; ");
    format!("choose with --samples FILE=NAME: {files}")
}

/// Writes the flame graph or the lines.
fn write(args: &Args, path: &Path, format: Format, difference: &Difference) -> Result {
    let inputs = [args.before.clone(), args.after.clone()];
    let mut file = OutputFile::create(path, &inputs)?;
    let mut out = BufWriter::new(file.writer()?);
    let written = match format {
        Format::Folded => difference.write_folded(&mut out),
        Format::FlameGraph => {
            let title = format!("{} → {}", args.before.display(), args.after.display());
            difference.write_flame_graph(&title, &mut out)
        }
    };
    written.and_then(|()| out.flush()).map_err(|error| file.failure(&error))?;
    drop(out);
    file.complete()
}

/// The functions in their order.
fn sorted<'a>(args: &Args, difference: &'a Difference) -> Vec<FunctionChange<'a>> {
    let mut functions: Vec<_> = difference.functions().collect();
    let size = |change: &Change| match args.absolute {
        true => change.difference().unsigned_abs(),
        // Shares have a denominator in common, and are compared without rounding of the same amount.
        false => (points(*change, difference).abs() * 1e12) as u128,
    };
    functions.sort_by_cached_key(|function| {
        let by = match args.sort {
            Sort::Own => (size(&function.own), size(&function.total)),
            Sort::Total => (size(&function.total), size(&function.own)),
            Sort::Name => (0, 0),
        };
        (Reverse(by), function.name)
    });
    functions
}

/// The difference of the shares, in points.
fn points(change: Change, difference: &Difference) -> f64 {
    let (before, after) = change.shares(difference.totals());
    // Not a negative zero.
    (after - before) * 100.0 + 0.0
}

/// What a profile has.
struct Side {
    /// The number of its events.
    count: u64,
    /// Their name, plural: those of a file are not always samples.
    events: String,
    /// The name of their weight.
    weight: String,
}

fn print(
    args: &Args,
    difference: &Difference,
    sides: &[Side; 2],
    out: &mut Vec<u8>,
) -> io::Result<()> {
    let (totals, unit) = (difference.totals(), difference.unit());
    let weights = [("before", &args.before, totals.before), ("after", &args.after, totals.after)];
    for ((when, path, total), Side { count, events, weight: name }) in
        weights.into_iter().zip(sides)
    {
        let path = path.display().to_string();
        let (path, events, name) = (OneLine(&path), OneLine(events), OneLine(name));
        // Events that are counted have their own name.
        let of = if events.0 == name.0 { String::new() } else { format!(" of {name}") };
        // Each event can be one of what is counted.
        let weight = match unit {
            Unit::Count if total == *count => String::new(),
            _ => format!(", {}", unit.show(total)),
        };
        writeln!(out, "{when}: {path}: {count} {events}{of}{weight}")?;
    }
    let functions = sorted(args, difference);
    let cells = |change: Change| match args.absolute {
        true => {
            let sign = if change.difference() < 0 { '-' } else { '+' };
            let size = u64::try_from(change.difference().unsigned_abs()).unwrap_or(u64::MAX);
            [
                unit.show(change.before),
                unit.show(change.after),
                format!("{sign}{}", unit.show(size)),
            ]
        }
        false => {
            let (before, after) = change.shares(totals);
            let points = format!("{:+.2}", points(change, difference));
            [format!("{:.2} %", before * 100.0), format!("{:.2} %", after * 100.0), points]
        }
    };
    let titles = ["SELF BEFORE", "AFTER", "CHANGE", "TOTAL BEFORE", "AFTER", "CHANGE"];
    let rows = functions.iter().map(|function| {
        let ([a, b, c], [d, e, f]) = (cells(function.own), cells(function.total));
        (function.name, [a, b, c, d, e, f])
    });
    write_functions(out, titles, rows, args.rows)
}

fn as_json(args: &Args, difference: &Difference, sides: &[Side; 2]) -> serde_json::Value {
    let totals = difference.totals();
    let weights = |change: Change| {
        let (before, after) = change.shares(totals);
        json!({
            "before": change.before,
            "after": change.after,
            "before_share": before,
            "after_share": after,
            "points": points(change, difference),
        })
    };
    let functions = sorted(args, difference).into_iter().map(|function| {
        json!({
            "name": function.name,
            "self": weights(function.own),
            "total": weights(function.total),
        })
    });
    let [before, after] = sides;
    let side = |path: &Path, Side { count, events, weight }: &Side, total| {
        let file = path.display().to_string();
        json!({ "file": file, "samples": count, "events": events, "weight": weight, "total": total })
    };
    json!({
        "unit": difference.unit().name(),
        "before": side(&args.before, before, totals.before),
        "after": side(&args.after, after, totals.after),
        "functions": functions.collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;

    #[derive(clap::Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn samples_of_one_file_are_not_those_of_both() {
        for samples in [["b=x", "y"], ["y", "b=x"]] {
            let options = ["diff", "a", "b", "--samples", samples[0], "--samples", samples[1]];
            let args = Cli::parse_from(options).args;
            let wanted = [&args.before, &args.after].map(|path| args.wanted(path));
            assert_eq!(wanted, [Some("y"), Some("x")], "{samples:?}");
        }
    }
}
