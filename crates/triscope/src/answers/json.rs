//! Parts of JSON that several commands print.

use serde_json::{Value, json};
use trace_timeline::answers::Histogram;

/// Percentiles of durations in nanoseconds.
pub(crate) fn histogram(histogram: &Histogram) -> Value {
    json!({
        "count": histogram.count(),
        "sum": histogram.sum(),
        "p50": histogram.percentile(50.0),
        "p90": histogram.percentile(90.0),
        "p99": histogram.percentile(99.0),
        "max": histogram.max(),
    })
}
