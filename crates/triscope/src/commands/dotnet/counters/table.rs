//! The newest value of every counter, as a table.

use super::burst::Bursts;
use super::newest::Newest;
use super::{kind, shown};
use crate::failure::{OneLine, Result};
use crate::io::stdout::Output;
use crate::io::terminal::{self, Size};
use nettrace::analysis::{Counter, CounterKind};
use std::io::Write;

/// By provider, whether it is a meter, name and tags.
#[derive(Default)]
pub(super) struct Table(Newest<(String, bool, String, String)>);

impl Table {
    pub(super) fn add(&mut self, counter: Counter) {
        let Counter { provider, is_meter, name, tags, .. } = &counter;
        let key = (provider.clone(), *is_meter, name.clone(), tags.clone());
        self.0.add(key, counter);
    }

    /// The lines of the table. With a size, those that fit.
    pub(super) fn lines(&self, size: Option<Size>) -> Vec<String> {
        let newest = self.0.iter();
        let rows = newest.flat_map(|(_, series, apart)| rows(&series.counter, &series.tags(apart)));
        lines(&rows.collect::<Vec<_>>(), size)
    }
}

/// Columns of a line without its label and its unit.
const FIXED: usize = "    ".len() + " ".len() + VALUE + " ".len();

/// Columns of a value.
const VALUE: usize = 16;

/// Columns that a label has, whatever the unit is.
const LABEL: usize = 20;

/// The lines of these rows, each of one row of the terminal. The last row is that of the cursor.
fn lines(rows: &[Row<'_>], size: Option<Size>) -> Vec<String> {
    let (columns, height) =
        size.map_or((usize::MAX, usize::MAX), |size| (size.columns, size.rows.saturating_sub(1)));
    let height = height.max(1);
    let unit = rows.iter().map(|row| terminal::columns(&row.unit)).max().unwrap_or(0);
    let label = rows.iter().map(|row| terminal::columns(&row.label)).max().unwrap_or(0);
    // The values of long labels are visible, too.
    let width = label.min(columns.saturating_sub(FIXED + unit).max(LABEL));
    // With the number of values in them.
    let mut lines: Vec<(String, usize)> = Vec::new();
    let mut last = "";
    for Row { provider, label, value, unit } in rows {
        if *provider != last {
            lines.push((OneLine(provider).to_string(), 0));
            last = provider;
        }
        let label = match terminal::columns(label) > width {
            true => format!("{}…", terminal::cut(label, width.saturating_sub(1))),
            false => label.clone(),
        };
        let fill = width.saturating_sub(terminal::columns(&label));
        let value = value.map_or("no values".to_owned(), |value| format!("{value:.3}"));
        lines.push((format!("    {label}{:fill$} {value:>VALUE$} {unit}", ""), 1));
    }
    if lines.len() > height {
        let more: usize = lines.drain(height - 1..).map(|(_, values)| values).sum();
        lines.push((format!("… {more} more"), 0));
    }
    lines.into_iter().map(|(line, _)| terminal::cut(&line, columns).to_owned()).collect()
}

/// Lines on a terminal that are replaced.
#[derive(Default)]
struct Area {
    drawn: usize,
}

impl Area {
    /// Replaces the lines. Those of `above` stay, above all later ones.
    fn replace(&mut self, above: &[String], lines: &[String], out: &mut Vec<u8>) {
        // Writing to a vector does not fail.
        if self.drawn > 0 {
            let _ = write!(out, "\x1b[{}A\x1b[J", self.drawn);
        }
        self.drawn = lines.len();
        for line in above.iter().chain(lines) {
            let _ = writeln!(out, "{line}");
        }
    }
}

/// What is shown on a terminal.
pub(super) enum Item {
    Counter(Box<Counter>),
    /// A message, which stays above the table.
    Note(String),
}

/// A table on a terminal.
pub(super) fn live() -> Result<Bursts<Item>> {
    Bursts::start(|| {
        let (mut table, mut area) = (Table::default(), Area::default());
        let mut output = Output::new();
        move |burst: Vec<Item>| {
            let mut notes = Vec::new();
            for item in burst {
                match item {
                    Item::Counter(counter) => table.add(*counter),
                    Item::Note(text) => notes.push(format!("triscope: {text}")),
                }
            }
            area.replace(&notes, &table.lines(terminal::size()), &mut output.buffer);
            output.write()
        }
    })
}

struct Row<'a> {
    provider: &'a str,
    label: String,
    /// `None` for a histogram without values.
    value: Option<f64>,
    unit: String,
}

/// A counter's row, or one for each percentile of a histogram.
fn rows<'a>(counter: &'a Counter, tags: &str) -> Vec<Row<'a>> {
    let Counter { provider, name, display_name, .. } = counter;
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

    fn row(label: &str) -> Row<'_> {
        Row { provider: "Shop", label: label.to_owned(), value: Some(1.5), unit: "MB".to_owned() }
    }

    #[test]
    fn a_table_fits_into_the_terminal() {
        let size = Some(Size { columns: 80, rows: 24 });
        let long = "時".repeat(100);
        let labels: Vec<String> = (0..40).map(|n| format!("{n:02} {long}")).collect();
        let rows: Vec<Row<'_>> = labels.iter().map(|label| row(label)).collect();
        let table = lines(&rows, size);
        assert_eq!(table.len(), 23);
        assert!(table.iter().all(|line| terminal::columns(line) <= 80), "{table:#?}");
        assert_eq!((&*table[0], &*table[22]), ("Shop", "… 19 more"));
        // Values are below each other.
        let value = format!("… {:>16} MB", "1.500");
        assert!(table[1..22].iter().all(|line| line.ends_with(&value)), "{table:#?}");
        let (mut area, mut out) = (Area::default(), Vec::new());
        area.replace(&[], &table, &mut out);
        assert_eq!(String::from_utf8(std::mem::take(&mut out)).unwrap(), table.join("\n") + "\n");
        area.replace(&["note".to_owned()], &lines(&rows[..2], size), &mut out);
        assert!(out.starts_with(b"\x1b[23A\x1b[Jnote\nShop\n"));
        out.clear();
        // The note stays.
        area.replace(&[], &table, &mut out);
        assert!(out.starts_with(b"\x1b[3A\x1b[JShop\n"));
    }

    #[test]
    fn a_table_of_all_rows_fits_exactly() {
        let rows: Vec<Row<'_>> = (0..22).map(|_| row("size")).collect();
        let table = lines(&rows, Some(Size { columns: 80, rows: 24 }));
        assert_eq!(table.len(), 23);
        assert_eq!(table[22], format!("    size {:>16} MB", "1.500"));
        assert_eq!(lines(&rows, Some(Size { columns: 10, rows: 1 })), ["… 22 more"]);
        // Without a terminal, everything is printed.
        let long = "x".repeat(500);
        let table = lines(&[row(&long)], None);
        assert!(table[1].contains(&long), "{table:?}");
    }
}
