//! Values as lines of CSV or JSON.

use super::{has_value, kind, shown};
use nettrace::analysis::Counter;
use serde_json::json;
use std::io::Write;

#[derive(Clone, Copy)]
pub(super) enum Format {
    Csv,
    Json,
}

impl Format {
    pub(super) const fn header(self) -> &'static [u8] {
        match self {
            Self::Csv => b"time_utc,time_s,provider,counter,tags,kind,value,unit\n",
            Self::Json => b"",
        }
    }

    /// A counter's value; in CSV each percentile of a histogram has a separate line.
    pub(super) fn rows(self, time: i64, utc: Option<i64>, counter: &Counter) -> Vec<u8> {
        let utc = utc.map(wall_clock);
        let mut out = Vec::new();
        // Writing to a vector does not fail.
        match self {
            Self::Csv => {
                let utc = utc.unwrap_or_default();
                let mut line = |tags: &str, kind: &str, value: f64| {
                    let _ = writeln!(
                        out,
                        "{utc},{}.{:09},{},{},{},{kind},{value},{}",
                        time / 1_000_000_000,
                        time % 1_000_000_000,
                        quoted(&counter.provider),
                        quoted(&counter.name),
                        quoted(tags),
                        quoted(&counter.unit),
                    );
                };
                if has_value(counter) {
                    line(&counter.tags, kind(counter), shown(counter));
                }
                for (quantile, value) in &counter.quantiles {
                    let comma = if counter.tags.is_empty() { "" } else { "," };
                    let tags = format!("{}{comma}Percentile={}", counter.tags, quantile * 100.0);
                    line(&tags, "percentile", *value);
                }
            }
            Self::Json => {
                let line = json!({
                    "time_utc": utc,
                    "time_ns": time,
                    "provider": counter.provider,
                    "meter_version": counter.meter_version,
                    "name": counter.name,
                    "instrument_id": counter.instrument_id,
                    "display_name": counter.display_name,
                    "tags": counter.tags,
                    "unit": counter.unit,
                    "kind": kind(counter),
                    "value": shown(counter),
                    "interval_s": counter.interval_seconds,
                    "count": counter.count,
                    "range": counter.range,
                    "quantiles": counter.quantiles,
                });
                let _ = writeln!(out, "{line}");
            }
        }
        out
    }
}

/// RFC 3339 with milliseconds, the resolution of the trace.
fn wall_clock(nanos: i64) -> String {
    jiff::Timestamp::from_nanosecond(nanos.into())
        .map_or_else(|_| String::new(), |time| format!("{time:.3}"))
}

/// A field of CSV, quoted if necessary.
fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::quoted;

    #[test]
    fn fields_are_quoted_where_csv_needs_it() {
        assert_eq!(quoted("a=b"), "a=b");
        assert_eq!(quoted("a=b,c=\"d\""), "\"a=b,c=\"\"d\"\"\"");
    }
}
