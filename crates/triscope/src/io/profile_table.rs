//! A profile as a table of its functions.

use super::stdout::Output;
use crate::failure::{OneLine, Result};
use serde_json::json;
use std::cmp::Reverse;
use std::io::{self, Write as _};
use trace_export::profile::{FunctionWeight, Profile, Unit};
use trace_timeline::Tables;

/// The options of a table, which is printed unless there is an `output`.
#[derive(clap::Args)]
pub(crate) struct TableArgs {
    /// The order of the functions of the table
    #[arg(
        long,
        value_enum,
        value_name = "COLUMN",
        default_value = "self",
        conflicts_with = "output"
    )]
    sort: Sort,
    /// Maximum number of functions of the table; 0 for all
    #[arg(long, value_name = "N", default_value_t = 20, conflicts_with_all = ["output", "json"])]
    rows: usize,
    /// Print all functions as JSON
    #[arg(long, conflicts_with = "output")]
    json: bool,
}

/// Largest share first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Sort {
    /// Samples in the function itself
    #[value(name = "self")]
    Own,
    /// Samples in the function and in what it calls
    Total,
}

impl TableArgs {
    /// Prints the profile of the trace `name`, with a remark.
    pub(crate) fn print(
        &self,
        profile: &Profile,
        tables: &Tables,
        name: &str,
        remark: &str,
    ) -> Result {
        let mut functions = profile.functions(tables);
        if self.sort == Sort::Total {
            functions.sort_by_key(|function| Reverse((function.total, function.own)));
        }
        let mut output = Output::new();
        if self.json {
            let value = as_json(profile, &functions, name);
            let _ = writeln!(output.buffer, "{value:#}"); // writing to a vector does not fail
        } else {
            self.text(profile, &functions, (name, remark), &mut output.buffer);
        }
        output.finish()
    }

    /// Writing to a vector does not fail.
    fn text(
        &self,
        profile: &Profile,
        functions: &[FunctionWeight],
        (name, remark): (&str, &str),
        out: &mut Vec<u8>,
    ) {
        let (measure, all) = (profile.measure(), profile.weight());
        let unit = measure.unit;
        let (name, events, weight) = (OneLine(name), &measure.events, unit.show(all));
        let _ = match unit {
            Unit::Count => writeln!(out, "{name}: {weight} {events}{remark}"),
            _ => {
                let (count, of) = (profile.count(), &measure.weight);
                writeln!(out, "{name}: {count} {events} of {of}, {weight}{remark}")
            }
        };
        let cells =
            |weight: u64| [format!("{:.2} %", share(weight, all) * 100.0), unit.show(weight)];
        let rows = functions.iter().map(|function| {
            let ([a, b], [c, d]) = (cells(function.own), cells(function.total));
            (&*function.name, [a, b, c, d])
        });
        let _ = write_functions(out, ["SELF", "", "TOTAL", ""], rows, self.rows);
    }
}

/// Writes a table of functions: their names with cells before them. At most `most` rows; 0 for all.
pub(crate) fn write_functions<'a, const N: usize>(
    out: &mut Vec<u8>,
    titles: [&str; N],
    functions: impl ExactSizeIterator<Item = (&'a str, [String; N])>,
    most: usize,
) -> io::Result<()> {
    let all = functions.len();
    let rows = if most == 0 { all } else { most };
    let mut table = vec![("FUNCTION", titles.map(str::to_owned))];
    table.extend(functions.take(rows));
    let mut widths = [0; N];
    for (_, row) in &table {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.chars().count().max(*width);
        }
    }
    for (name, row) in &table {
        for (cell, width) in row.iter().zip(widths) {
            write!(out, "{cell:>width$}  ")?;
        }
        writeln!(out, "{}", OneLine(name))?;
    }
    let left = all.saturating_sub(rows);
    if left > 0 {
        let s = if left == 1 { "" } else { "s" };
        writeln!(out, "{left} more function{s}: --rows 0 prints all")?;
    }
    Ok(())
}

/// From 0 to 1; 0 of nothing.
fn share(weight: u64, all: u64) -> f64 {
    weight as f64 / all.max(1) as f64
}

fn as_json(profile: &Profile, functions: &[FunctionWeight], name: &str) -> serde_json::Value {
    let (measure, all) = (profile.measure(), profile.weight());
    let function = |function: &FunctionWeight| {
        json!({
            "name": function.name,
            "self": function.own,
            "self_share": share(function.own, all),
            "total": function.total,
            "total_share": share(function.total, all),
        })
    };
    json!({
        "trace": name,
        "samples": profile.count(),
        "events": measure.events,
        "weight": measure.weight,
        "unit": measure.unit.name(),
        "total": all,
        "functions": functions.iter().map(function).collect::<Vec<_>>(),
    })
}
