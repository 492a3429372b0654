//! The newest values in Prometheus text format (exposition format 0.0.4).
//!
//! A metric is named after the event source or meter and the counter; characters that Prometheus
//! does not allow in a name become `_`. If a source and a meter have the same names, `_meter` follows that of
//! the meter. Other names that become the same, of metrics or of the labels of a time series, get a number,
//! in the order in which they appear.
//! Rates are gauges whose names end in `_per_second`, because
//! the runtime reports differences, not totals. Histograms are summaries, with the sum and the number of
//! all values since the start, if the runtime reports them (.NET 8).

use super::newest::Newest;
use super::{has_value, shown};
use nettrace::analysis::{Counter, CounterKind};
use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::fmt::Write;

/// The time series of a counter.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Metric {
    /// Its name, if no other metric has it.
    name: String,
    is_meter: bool,
    provider: String,
    counter: String,
    is_summary: bool,
}

impl Metric {
    fn of(counter: &Counter) -> Self {
        let mut name = sanitized(&format!("{}_{}", counter.provider, counter.name));
        if counter.kind == CounterKind::Rate {
            name.push_str("_per_second");
        }
        Self {
            name,
            is_meter: counter.is_meter,
            provider: counter.provider.clone(),
            counter: counter.name.clone(),
            is_summary: matches!(
                counter.kind,
                CounterKind::Histogram | CounterKind::ExponentialHistogram
            ),
        }
    }

    /// What its names end in.
    fn parts(&self) -> &'static [&'static str] {
        if self.is_summary { &["", "_sum", "_count"] } else { &[""] }
    }
}

#[derive(Default)]
pub(super) struct Metrics {
    /// By metric and labels.
    values: Newest<(Metric, String)>,
    names: MetricNames,
}

impl Metrics {
    pub(super) fn add(&mut self, counter: Counter) {
        let metric = Metric::of(&counter);
        let labels = labels(&counter.tags, metric.is_summary);
        self.values.add((metric, labels), counter);
    }

    pub(super) fn text(&mut self) -> String {
        let mut out = String::new();
        let (mut last, mut name) = (None, String::new());
        // Writing to a string does not fail.
        for ((metric, labels), series, apart) in self.values.iter() {
            let counter = &series.counter;
            let apart = match series.tags(apart) {
                Cow::Borrowed(_) => None,
                Cow::Owned(tags) => Some(self::labels(&tags, metric.is_summary)),
            };
            let labels = apart.as_ref().unwrap_or(labels);
            if last != Some(metric) {
                last = Some(metric);
                name = self.names.of(metric);
                let kind = if metric.is_summary { "summary" } else { "gauge" };
                let _ = writeln!(out, "# HELP {name} {}", help(counter));
                let _ = writeln!(out, "# TYPE {name} {kind}");
            }
            if !metric.is_summary {
                let _ = writeln!(out, "{name}{} {}", braces(labels), shown(counter));
                continue;
            }
            let (sum, count) = series.total;
            for (quantile, value) in &counter.quantiles {
                let comma = if labels.is_empty() { "" } else { "," };
                let _ = writeln!(out, "{name}{{{labels}{comma}quantile=\"{quantile}\"}} {value}");
            }
            if has_value(counter) {
                let _ = writeln!(out, "{name}_sum{} {sum}", braces(labels));
                let _ = writeln!(out, "{name}_count{} {count}", braces(labels));
            }
        }
        out
    }
}

/// The names of metrics. A file that is replaced every interval has the same ones each time.
#[derive(Default)]
struct MetricNames {
    assigned: HashMap<Metric, String>,
    /// Names of the metrics of event sources.
    sources: HashSet<String>,
    names: Names,
}

impl MetricNames {
    fn of(&mut self, metric: &Metric) -> String {
        if let Some(name) = self.assigned.get(metric) {
            return name.clone();
        }
        if !metric.is_meter {
            self.sources.insert(metric.name.clone());
        }
        let is_of_both = metric.is_meter && self.sources.contains(&metric.name);
        let suffix = if is_of_both { "_meter" } else { "" };
        let name = self.names.take(&format!("{}{suffix}", metric.name), metric.parts());
        self.assigned.insert(metric.clone(), name.clone());
        name
    }
}

/// Names that may occur once.
#[derive(Default)]
struct Names {
    taken: HashSet<String>,
    /// The last number behind each name.
    last: HashMap<String, u32>,
}

impl Names {
    /// Takes `name`, or `name_2` and so on, with each of the parts behind it.
    fn take(&mut self, name: &str, parts: &[&str]) -> String {
        let mut free = name.to_owned();
        while parts.iter().any(|part| self.taken.contains(&format!("{free}{part}"))) {
            let last = self.last.entry(name.to_owned()).or_insert(1);
            *last = last.saturating_add(1);
            free = format!("{name}_{last}");
        }
        self.taken.extend(parts.iter().map(|part| format!("{free}{part}")));
        free
    }
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
    if out.is_empty() { "_".to_owned() } else { out }
}

/// `key=value,…` as labels. A part without `=` belongs to the value before it.
fn labels(tags: &str, is_summary: bool) -> String {
    let mut names = Names::default();
    if is_summary {
        names.take("quantile", &[""]);
    }
    let mut pairs: Vec<(String, String)> = Vec::new();
    for part in tags.split(',').filter(|part| !part.is_empty()) {
        let (key, value) = match (part.split_once('='), pairs.last_mut()) {
            (Some((key, value)), _) => (sanitized(key), value),
            (None, Some((_, value))) => {
                value.push(',');
                value.push_str(part);
                continue;
            }
            (None, None) => ("tags".to_owned(), part),
        };
        pairs.push((names.take(&key, &[""]), value.to_owned()));
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
        let labels = |tags| labels(tags, false);
        assert_eq!(labels("a.b=x \"y\"\\z,q,c=1"), r#"a_b="x \"y\"\\z,q",c="1""#);
        assert_eq!(labels("zone=eu,url=http://h/?a=b"), r#"zone="eu",url="http://h/?a=b""#);
        assert_eq!(labels(""), "");
        assert_eq!(labels("odd"), "tags=\"odd\"");
        assert_eq!(labels("=x"), "_=\"x\"");
    }

    /// Otherwise the values of one counter would continue as those of another.
    #[test]
    fn metrics_keep_their_names() {
        let metric = |counter: &str, is_meter| Metric {
            name: "shop_queue_size".to_owned(),
            is_meter,
            provider: "Shop".to_owned(),
            counter: counter.to_owned(),
            is_summary: false,
        };
        let all = [("queue.size", false), ("queue-size", false), ("queue-size", true)];
        let all = all.map(|(counter, is_meter)| metric(counter, is_meter));
        let mut names = MetricNames::default();
        assert_eq!(names.of(&all[0]), "shop_queue_size");
        // The others have begun; the first two are in the other order now.
        for _ in 0..2 {
            assert_eq!(names.of(&all[1]), "shop_queue_size_2");
            assert_eq!(names.of(&all[0]), "shop_queue_size");
            assert_eq!(names.of(&all[2]), "shop_queue_size_meter");
        }
    }

    /// A file in which a name occurs twice is refused as a whole.
    #[test]
    fn names_of_labels_are_unique() {
        let all = "http.method=a,http_method=b,Http-Method=c,http_method_2=d";
        let expected = r#"http_method="a",http_method_2="b",http_method_3="c",http_method_2_2="d""#;
        assert_eq!(labels(all, false), expected);
        assert_eq!(labels("quantile=x", false), "quantile=\"x\"");
        assert_eq!(labels("quantile=x", true), "quantile_2=\"x\"");
    }
}
