//! The newest value of every counter, as a table.

use super::shown;
use crate::failure::OneLine;
use nettrace::analysis::{Counter, CounterKind};
use std::collections::BTreeMap;
use std::io::Write;

#[derive(Default)]
pub(super) struct Table {
    rows: BTreeMap<(String, String, String), Counter>,
    lines: usize,
    drawn_at: i64,
}

impl Table {
    pub(super) fn add(&mut self, now: i64, counter: Counter, is_live: bool, out: &mut Vec<u8>) {
        let key = (counter.provider.clone(), counter.name.clone(), counter.tags.clone());
        self.rows.insert(key, counter);
        // The values of one interval arrive together.
        if is_live && now - self.drawn_at > 200_000_000 {
            self.drawn_at = now;
            self.draw(true, out);
        }
    }

    pub(super) fn finish(mut self, is_live: bool, out: &mut Vec<u8>) {
        self.draw(is_live, out);
    }

    /// Draws the table, and replaces the previous one on the terminal if `over` is set.
    fn draw(&mut self, over: bool, out: &mut Vec<u8>) {
        // Writing to a vector does not fail.
        if over && self.lines > 0 {
            let _ = write!(out, "\x1b[{}A\x1b[J", self.lines);
        }
        let rows: Vec<_> = self.rows.values().flat_map(lines).collect();
        let width = rows.iter().map(|row| row.label.chars().count()).max().unwrap_or(0);
        let mut last = "";
        self.lines = rows.len();
        for Row { provider, label, value, unit } in &rows {
            if *provider != last {
                let _ = writeln!(out, "{}", OneLine(provider));
                self.lines += 1;
                last = provider;
            }
            let _ = writeln!(out, "    {label:<width$} {value:>16.3} {unit}");
        }
    }
}

struct Row<'a> {
    provider: &'a str,
    label: String,
    value: f64,
    unit: String,
}

/// A counter's line, or one for each percentile of a histogram.
fn lines(counter: &Counter) -> Vec<Row<'_>> {
    let Counter { provider, name, display_name, tags, .. } = counter;
    let name = if display_name.is_empty() { name } else { display_name };
    let label = if tags.is_empty() { name.clone() } else { format!("{name} [{tags}]") };
    let unit = OneLine(&counter.unit);
    let row =
        |label: &str, value, unit| Row { provider, label: OneLine(label).to_string(), value, unit };
    if counter.quantiles.is_empty() {
        let per = if counter.kind == CounterKind::Rate { "/s" } else { "" };
        return vec![row(&label, shown(counter), format!("{unit}{per}"))];
    }
    let percentiles = counter.quantiles.iter();
    percentiles
        .map(|(q, value)| row(&format!("{label} p{}", q * 100.0), *value, unit.to_string()))
        .collect()
}
