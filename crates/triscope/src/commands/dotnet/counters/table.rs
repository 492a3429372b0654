//! The newest value of every counter, as a table.

use super::{kind, shown};
use crate::failure::{OneLine, Result};
use crate::io::stdout::Output;
use crossbeam_channel::{Receiver, Sender, unbounded};
use nettrace::analysis::{Counter, CounterKind};
use std::collections::BTreeMap;
use std::io::Write;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

#[derive(Default)]
pub(super) struct Table {
    /// By provider, whether it is a meter, name and tags.
    rows: BTreeMap<(String, bool, String, String), Counter>,
    lines: usize,
}

impl Table {
    pub(super) fn add(&mut self, counter: Counter) {
        let Counter { provider, is_meter, name, tags, .. } = &counter;
        let key = (provider.clone(), *is_meter, name.clone(), tags.clone());
        self.rows.insert(key, counter);
    }

    /// Draws the table, and replaces the previous one on the terminal if `over` is set.
    pub(super) fn draw(&mut self, over: bool, out: &mut Vec<u8>) {
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
            let value = value.map_or("no values".to_owned(), |value| format!("{value:.3}"));
            let _ = writeln!(out, "    {label:<width$} {value:>16} {unit}");
        }
    }
}

/// Time without a value after which the values of an interval are complete: they arrive together.
const QUIET: Duration = Duration::from_millis(100);

/// Longest time until a value is drawn.
const LATEST: Duration = Duration::from_millis(500);

/// A table on a terminal. A thread draws it, because the reader waits for the next value.
pub(super) struct Live {
    counters: Sender<Counter>,
    /// Until its result is known.
    drawing: Option<JoinHandle<Result>>,
}

impl Live {
    pub(super) fn start() -> Self {
        let (counters, received) = unbounded();
        let drawing = std::thread::spawn(move || {
            let (mut table, mut output) = (Table::default(), Output::new());
            each_burst(&received, |burst| {
                burst.into_iter().for_each(|counter| table.add(counter));
                table.draw(true, &mut output.buffer);
                output.write()
            })
        });
        Self { counters, drawing: Some(drawing) }
    }

    pub(super) fn add(&mut self, counter: Counter) -> Result {
        // The thread ends before its values do if it cannot write.
        let Err(_) = self.counters.send(counter) else { return Ok(()) };
        joined(self.drawing.take())
    }

    pub(super) fn finish(self) -> Result {
        drop(self.counters);
        joined(self.drawing)
    }
}

fn joined(drawing: Option<JoinHandle<Result>>) -> Result {
    drawing.and_then(|drawing| drawing.join().ok()).unwrap_or(Ok(()))
}

/// Calls `draw` with the values that arrive together.
fn each_burst<T>(values: &Receiver<T>, mut draw: impl FnMut(Vec<T>) -> Result) -> Result {
    while let Ok(first) = values.recv() {
        let (mut burst, deadline) = (vec![first], Instant::now() + LATEST);
        while Instant::now() < deadline {
            let Ok(value) = values.recv_timeout(QUIET) else { break };
            burst.push(value);
        }
        draw(burst)?;
    }
    Ok(())
}

struct Row<'a> {
    provider: &'a str,
    label: String,
    /// `None` for a histogram without values.
    value: Option<f64>,
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
    if kind(counter) == "histogram" && counter.count == Some(0) {
        return vec![row(&label, None, unit.to_string())];
    }
    if counter.quantiles.is_empty() {
        let per = if counter.kind == CounterKind::Rate { "/s" } else { "" };
        return vec![row(&label, Some(shown(counter)), format!("{unit}{per}"))];
    }
    let percentiles = counter.quantiles.iter();
    percentiles
        .map(|(q, value)| row(&format!("{label} p{}", q * 100.0), Some(*value), unit.to_string()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_drawn_with_its_last_value_before_the_next_one() {
        let (values, received) = unbounded();
        let (drawn, draws) = unbounded();
        let drawing = std::thread::spawn(move || {
            each_burst(&received, |burst| drawn.send(burst).map_err(crate::failure::Failure::new))
        });
        for interval in 0..2 {
            let burst = [interval, 10 + interval, 20 + interval];
            burst.iter().for_each(|value| values.send(*value).unwrap_or_default());
            // The next value has not been sent.
            let mut found = Vec::new();
            while found.len() < burst.len() {
                found.extend(draws.recv().unwrap_or_default());
            }
            assert_eq!(found, burst);
        }
        drop(values);
        assert!(drawing.join().is_ok_and(|result| result.is_ok()));
    }
}
