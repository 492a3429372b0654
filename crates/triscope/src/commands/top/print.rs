//! An interval without a terminal.

use super::rows::{By, Interval, Row, Sort};
use crate::failure::Result;
use crate::io::stdout::Output;
use serde_json::{Value, json};
use std::io::Write as _;

/// Prints a table.
pub(super) fn table(interval: &Interval, by: By, filter: &str, most: usize) -> Result {
    let mut out = Output::new();
    // Writing to a vector does not fail.
    let _ = writeln!(out.buffer, "{}", summary(interval));
    let rows = interval.rows(by, Sort::Own, filter);
    let most = if most == 0 { rows.len() } else { most };
    let (first, last) = columns(by);
    let _ = writeln!(out.buffer, "    SELF    TOTAL  {first:<40}  {last}");
    for row in rows.iter().take(most) {
        let [own, total] = [row.own, row.total].map(percent);
        let _ = writeln!(out.buffer, "{own}  {total}  {:<40}  {}", label(row, by), row.detail);
    }
    out.finish()
}

/// Prints the rows with the text `filter`, by everything that is known.
pub(super) fn json(interval: &Interval, filter: &str) -> Result {
    let rows = |by| {
        let row = |row: Row| {
            let (own, total) = (row.own, row.total);
            match by {
                By::Function => {
                    json!({ "name": row.name, "file": row.detail, "self": own, "total": total })
                }
                _ => {
                    json!({ "id": row.id, "name": row.name, "share": own, "function": row.detail })
                }
            }
        };
        interval.rows(by, Sort::Own, filter).into_iter().map(row).collect::<Vec<Value>>()
    };
    let mut value = json!({
        "seconds": interval.duration.as_secs_f64(),
        "samples": interval.samples,
        "lost": interval.lost,
        "functions": rows(By::Function),
        "threads": rows(By::Thread),
        "processes": rows(By::Process),
    });
    if interval.has_goroutines {
        value["goroutines"] = rows(By::Goroutine).into();
    }
    let mut out = Output::new();
    let _ = writeln!(out.buffer, "{value:#}");
    out.finish()
}

/// The number of samples and losses.
pub(super) fn summary(interval: &Interval) -> String {
    let Interval { duration, samples, lost, .. } = interval;
    format!("{samples} samples in {:.1} s, {lost} lost", duration.as_secs_f64())
}

/// The titles of names and details.
pub(super) const fn columns(by: By) -> (&'static str, &'static str) {
    (by.title(), if matches!(by, By::Function) { "FILE" } else { "MOST IN" })
}

/// The name of a row, with its number.
pub(super) fn label(row: &Row, by: By) -> String {
    match (row.id, by) {
        (Some(id), By::Goroutine) => format!("{id} {}", row.name),
        (Some(id), _) => format!("{} ({id})", row.name),
        (None, _) => row.name.clone(),
    }
}

/// A share with a fixed width.
pub(super) fn percent(share: f64) -> String {
    format!("{:>6.2} %", share * 100.0)
}
