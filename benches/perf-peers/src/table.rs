//! What is printed.

use crate::Outcome;
use crate::flood::Speed;

/// One reader over all rounds.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) failed: bool,
    rounds: Vec<(Outcome, Speed)>,
}

impl Row {
    pub(crate) const fn new(name: &'static str) -> Self {
        Self { name, failed: false, rounds: Vec::new() }
    }

    pub(crate) fn add(&mut self, outcome: Outcome, speed: Speed) {
        self.rounds.push((outcome, speed));
    }

    /// Something of each round, side by side.
    fn each(&self, show: impl Fn(&Outcome, &Speed) -> String) -> String {
        let cells: Vec<String> = self.rounds.iter().map(|(o, s)| show(o, s)).collect();
        cells.join(" ")
    }
}

/// Nanoseconds of the reader for each record.
fn cost(outcome: &Outcome) -> f64 {
    outcome.cpu_nanos as f64 / outcome.read.max(1) as f64
}

fn lost_percent(outcome: &Outcome) -> f64 {
    outcome.lost as f64 * 100.0 / (outcome.read + outcome.lost).max(1) as f64
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Prints a table. Each reader should have read at least the calls of the flood.
pub(crate) fn print(what: &str, rows: &[Row]) {
    println!(
        "| {what} | CPU ns/record, median | each round | read | lost | lost %, median | \
         silently missing | flood: M records/s | ns of CPU each |"
    );
    println!("| --- | --: | --- | --- | --- | --: | --- | --- | --- |");
    for row in rows.iter().filter(|row| !row.rounds.is_empty()) {
        println!(
            "| {} | {:.1} | {} | {} | {} | {:.1} | {} | {} | {} |",
            row.name,
            median(row.rounds.iter().map(|(outcome, _)| cost(outcome)).collect()),
            row.each(|outcome, _| format!("{:.1}", cost(outcome))),
            row.each(|outcome, _| outcome.read.to_string()),
            row.each(|outcome, _| outcome.lost.to_string()),
            median(row.rounds.iter().map(|(outcome, _)| lost_percent(outcome)).collect()),
            row.each(|outcome, speed| {
                speed.calls.saturating_sub(outcome.read + outcome.lost).to_string()
            }),
            row.each(|_, speed| format!("{:.2}", 1e3 / speed.nanos)),
            row.each(|_, speed| format!("{:.0}", speed.cpu_nanos)),
        );
    }
}
