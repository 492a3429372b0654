//! The newest values in Prometheus text format (exposition format 0.0.4).
//!
//! A metric is named after the event source or meter and the counter; characters that Prometheus
//! does not allow in a name become `_`. If a source and a meter have the same names, `_meter` follows that of
//! the meter. Rates are gauges whose names end in `_per_second`, because
//! the runtime reports differences, not totals. Histograms are summaries, with the sum and the number of
//! all values since the start.

use super::shown;
use nettrace::analysis::{Counter, CounterKind};
use std::collections::BTreeMap;
use std::fmt::Write;

/// Metric, whether it is of a meter, and labels.
type Key = (String, bool, String);

#[derive(Default)]
pub(super) struct Metrics {
    newest: BTreeMap<Key, Counter>,
    /// Sum and number of the values of each histogram: the runtime reports those of an interval, except of
    /// histograms with exponential buckets.
    totals: BTreeMap<Key, (f64, u64)>,
}

impl Metrics {
    pub(super) fn add(&mut self, counter: Counter) {
        let key = (metric(&counter), counter.is_meter, labels(&counter.tags));
        let (value, n) = (counter.value, counter.count.unwrap_or(0));
        match counter.kind {
            CounterKind::Histogram => {
                let (sum, count) = self.totals.entry(key.clone()).or_default();
                *sum += value;
                *count = count.saturating_add(n);
            }
            CounterKind::ExponentialHistogram => {
                self.totals.insert(key.clone(), (value, n));
            }
            _ => {}
        }
        self.newest.insert(key, counter);
    }

    pub(super) fn text(&self) -> String {
        let mut out = String::new();
        let mut last = None;
        // Writing to a string does not fail.
        for (key, counter) in &self.newest {
            let (metric, is_meter, labels) = key;
            let is_of_both = *is_meter && self.is_of_source(metric);
            let name = format!("{metric}{}", if is_of_both { "_meter" } else { "" });
            if last != Some((metric, is_meter)) {
                let kind = if self.totals.contains_key(key) { "summary" } else { "gauge" };
                let _ = writeln!(out, "# HELP {name} {}", help(counter));
                let _ = writeln!(out, "# TYPE {name} {kind}");
                last = Some((metric, is_meter));
            }
            let Some((sum, count)) = self.totals.get(key) else {
                let _ = writeln!(out, "{name}{} {}", braces(labels), shown(counter));
                continue;
            };
            for (quantile, value) in &counter.quantiles {
                let comma = if labels.is_empty() { "" } else { "," };
                let _ = writeln!(out, "{name}{{{labels}{comma}quantile=\"{quantile}\"}} {value}");
            }
            let _ = writeln!(out, "{name}_sum{} {sum}", braces(labels));
            let _ = writeln!(out, "{name}_count{} {count}", braces(labels));
        }
        out
    }

    /// Whether an event source has the metric.
    fn is_of_source(&self, metric: &str) -> bool {
        let first = (metric.to_owned(), false, String::new());
        self.newest
            .range(first..)
            .next()
            .is_some_and(|((name, is_meter, _), _)| name == metric && !is_meter)
    }
}

fn metric(counter: &Counter) -> String {
    let mut name = sanitized(&format!("{}_{}", counter.provider, counter.name));
    if counter.kind == CounterKind::Rate {
        name.push_str("_per_second");
    }
    name
}

/// `[a-zA-Z_][a-zA-Z0-9_]*`, in lower case, without runs of `_`.
fn sanitized(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            'a'..='z' | 'A'..='Z' => out.push(c.to_ascii_lowercase()),
            '0'..='9' if !out.is_empty() => out.push(c),
            _ if out.ends_with('_') => {}
            _ => out.push('_'),
        }
    }
    out
}

/// `key=value,…` as labels. A part without `=` belongs to the value before it.
fn labels(tags: &str) -> String {
    let mut pairs: Vec<(String, String)> = Vec::new();
    for part in tags.split(',').filter(|part| !part.is_empty()) {
        match (part.split_once('='), pairs.last_mut()) {
            (Some((key, value)), _) => pairs.push((sanitized(key), value.to_owned())),
            (None, Some((_, value))) => {
                value.push(',');
                value.push_str(part);
            }
            (None, None) => pairs.push(("tags".to_owned(), part.to_owned())),
        }
    }
    let pairs: Vec<_> =
        pairs.iter().map(|(key, value)| format!("{key}=\"{}\"", escaped(value, true))).collect();
    pairs.join(",")
}

fn braces(labels: &str) -> String {
    if labels.is_empty() { String::new() } else { format!("{{{labels}}}") }
}

fn help(counter: &Counter) -> String {
    let name = if counter.display_name.is_empty() { &counter.name } else { &counter.display_name };
    let unit = if counter.unit.is_empty() { String::new() } else { format!(" ({})", counter.unit) };
    escaped(&format!("{name}{unit} of {}", counter.provider), false)
}

fn escaped(text: &str, is_label: bool) -> String {
    let text = text.replace('\\', "\\\\").replace('\n', "\\n");
    if is_label { text.replace('"', "\\\"") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_labels_have_only_what_prometheus_allows() {
        assert_eq!(sanitized("System.Runtime_cpu-usage"), "system_runtime_cpu_usage");
        assert_eq!(sanitized("9lives"), "_lives");
        assert_eq!(labels("a.b=x \"y\"\\z,q,c=1"), r#"a_b="x \"y\"\\z,q",c="1""#);
        assert_eq!(labels("zone=eu,url=http://h/?a=b"), r#"zone="eu",url="http://h/?a=b""#);
        assert_eq!(labels(""), "");
        assert_eq!(labels("odd"), "tags=\"odd\"");
    }
}
