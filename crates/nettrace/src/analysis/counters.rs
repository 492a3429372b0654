use std::collections::HashMap;

use super::{number, text};
use crate::manifest::Provider;
use crate::{Event, Timestamp};

/// The meaning of a counter's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CounterKind {
    /// The current value, or the mean over the interval.
    Gauge,
    /// The increment during the interval.
    Rate,
    /// The distribution of values during the interval.
    Histogram,
    /// The distribution of values in buckets that grow exponentially, since the session began; during the
    /// interval, if the session asked for `reportDeltas`. The event does not say which.
    ExponentialHistogram,
}

/// One value of a counter.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Counter {
    /// Its time.
    pub time: Timestamp,
    /// Number of the collection of meters in its process in which the runtime read the value. The trace can begin
    /// with any; the first one that it has the start of is 1. `None` for an event counter.
    pub collection: Option<u64>,
    /// The operating system's id of the process.
    pub pid: u64,
    /// Name of the event source or the meter.
    pub provider: String,
    /// Whether it is of a meter: since .NET 9, `System.Runtime` is an event source and a meter.
    pub is_meter: bool,
    /// Version of the meter; empty if it has none.
    pub meter_version: String,
    /// Name of the counter or the instrument.
    pub name: String,
    /// The runtime's number of the instrument in its process, which distinguishes instruments of the same name (.NET
    /// 9).
    pub instrument_id: Option<u64>,
    /// Name to show; empty if there is none.
    pub display_name: String,
    /// Unit; empty if there is none.
    pub unit: String,
    /// Tags of the time series, then those of the instrument and of the meter (.NET 9), or the metadata of the
    /// event counter: `key=value,…`; empty if there are none. Commas within values are not marked.
    pub tags: String,
    /// Meaning of the value.
    pub kind: CounterKind,
    /// The value. For [`CounterKind::Rate`], the increment during the interval; for
    /// [`CounterKind::Histogram`], the sum (meters), which is NaN if the event has none (.NET 6 and 7); for
    /// [`CounterKind::ExponentialHistogram`], the sum.
    pub value: f64,
    /// Length of the interval in seconds, if the event has it.
    pub interval_seconds: Option<f64>,
    /// Number of values, if the event has it. Of a histogram of .NET 6 and 7, only 0 is known.
    pub count: Option<u64>,
    /// Smallest and greatest value, if there are values and the event has them.
    pub range: Option<(f64, f64)>,
    /// Quantiles and their values, for a meter's histogram. Those of
    /// [`CounterKind::ExponentialHistogram`] are computed here: each is the geometric middle of its bucket.
    pub quantiles: Vec<(f64, f64)>,
}

impl Counter {
    /// The increment per second, for a [`CounterKind::Rate`] with a known interval.
    pub fn per_second(&self) -> Option<f64> {
        match (self.kind, self.interval_seconds) {
            (CounterKind::Rate, Some(interval)) if interval > 0.0 => Some(self.value / interval),
            _ => None,
        }
    }
}

/// Reads values of `EventCounter`s (any event source, with the argument
/// `EventCounterIntervalSec`) and of meters (provider `System.Diagnostics.Metrics`, keyword
/// 0x2).
#[derive(Debug, Default)]
pub struct CounterTracker {
    /// The last collection of meters, by process.
    collections: HashMap<u64, Collection>,
    /// Tags of the instrument and its meter, by process and instrument.
    tags: HashMap<(u64, u64), Tags>,
    untagged: u64,
    errors: u64,
    first_error: Option<String>,
    limits: u64,
    conflicts: u64,
    exclusive: u64,
    undecodable: u64,
    /// The arguments `SessionId` and `ClientId` of this session.
    session: Option<(String, String)>,
}

/// A collection of the values of meters.
#[derive(Clone, Copy, Debug, Default)]
struct Collection {
    number: u64,
    /// Its interval in seconds.
    interval: Option<f64>,
}

/// The tags of an instrument and its meter.
#[derive(Debug)]
struct Tags {
    text: String,
    /// Whether the instrument reports no more. Its last values can be later in the stream.
    has_ended: bool,
}

/// Maximum number of characters of an error that are kept.
const MAX_MESSAGE: usize = 1 << 10;

/// Maximum number of processes whose last collection is kept.
const MAX_PROCESSES: usize = 1 << 12;

/// Maximum number of instruments whose tags are kept.
const MAX_INSTRUMENTS: usize = 1 << 12;

/// Maximum number of bytes of the tags of an instrument that are kept.
const MAX_TAGS: usize = 1 << 12;

impl CounterTracker {
    /// A tracker at the start of a stream.
    pub fn new() -> Self {
        Self::default()
    }

    /// A tracker of a session with these arguments `SessionId` and `ClientId` of
    /// `System.Diagnostics.Metrics`. The runtime reports errors, limits and conflicts to all sessions: those
    /// of others are ignored.
    pub fn of_session(session: &str, client: &str) -> Self {
        Self { session: Some((session.to_owned(), client.to_owned())), ..Self::default() }
    }

    /// Whether a report is of this session. Without its arguments, each is.
    fn is_of_session(&self, event: &Event<'_>) -> bool {
        let Some((session, _)) = &self.session else { return true };
        text(event, "sessionId").is_none_or(|id| id == *session)
    }

    /// Number of events in which `System.Diagnostics.Metrics` reported an error: of its own, or of the
    /// program's callback of an observable instrument.
    pub fn errors(&self) -> u64 {
        self.errors
    }

    /// The message of the first of the [`errors`](Self::errors), at most 4 KiB: an exception with its
    /// stack.
    pub fn first_error(&self) -> Option<&str> {
        self.first_error.as_deref()
    }

    /// Number of events in which `System.Diagnostics.Metrics` reported that it reached a limit on time
    /// series or histograms, and collects no further ones.
    pub fn limits(&self) -> u64 {
        self.limits
    }

    /// Number of events in which `System.Diagnostics.Metrics` reported that the meters of a session
    /// are ignored, because of another session: one with other settings (.NET 8 and later), or any.
    pub fn conflicts(&self) -> u64 {
        self.conflicts
    }

    /// Number of the [`conflicts`](Self::conflicts) with a session that is not shared, whatever the settings:
    /// its `SessionId` is not `SHARED`, or the runtime is older than .NET 8.
    pub fn exclusive(&self) -> u64 {
        self.exclusive
    }

    /// Number of instruments whose values lack the tags of the instrument and its meter: these tags are too long,
    /// or too many instruments have some.
    pub fn untagged(&self) -> u64 {
        self.untagged
    }

    /// Number of values of meters that were not decoded completely: of an unknown kind of instrument,
    /// or of an event that lacks a field or has a malformed one. .NET 6 and 7 write histograms without their
    /// sum and number of values: those with quantiles count as decoded.
    pub fn undecodable(&self) -> u64 {
        self.undecodable
    }

    /// Processes an event and returns the counter value that it contains, if any.
    pub fn push(&mut self, event: &Event<'_>) -> Option<Counter> {
        if event.known() == Some(Provider::Metrics) {
            return self.meter(event);
        }
        if event.name() == "EventCounters" { event_counter(event) } else { None }
    }

    fn error(&mut self, event: &Event<'_>) {
        self.errors += 1;
        if self.first_error.is_none() {
            self.first_error = event.field("errorMessage").and_then(|message| {
                let message = message.as_text()?.to_string();
                Some(message.chars().take(MAX_MESSAGE).collect())
            });
        }
    }

    /// Keeps the tags of an instrument that begins to report.
    fn begin(&mut self, event: &Event<'_>) {
        let Some(id) = number(event, "instrumentId") else { return };
        let text = joined(["instrumentTags", "meterTags"].map(|name| text(event, name)));
        let key = (event.pid(), id);
        self.tags.remove(&key);
        if text.is_empty() {
            return;
        }
        if self.tags.len() >= MAX_INSTRUMENTS {
            self.tags.retain(|_, tags| !tags.has_ended);
        }
        if text.len() > MAX_TAGS || self.tags.len() >= MAX_INSTRUMENTS {
            self.untagged += 1;
        } else {
            self.tags.insert(key, Tags { text, has_ended: false });
        }
    }

    fn end(&mut self, event: &Event<'_>) {
        let Some(id) = number(event, "instrumentId") else { return };
        if let Some(tags) = self.tags.get_mut(&(event.pid(), id)) {
            tags.has_ended = true;
        }
    }

    fn collection(&mut self, event: &Event<'_>) {
        let time = |name| match event.field(name) {
            Some(crate::Value::DateTime(time)) => Some(time.0),
            _ => None,
        };
        let times = time("intervalStartTime").zip(time("intervalEndTime"));
        let pid = event.pid();
        if self.collections.len() >= MAX_PROCESSES && !self.collections.contains_key(&pid) {
            self.collections.clear();
        }
        let last = self.collections.entry(pid).or_default();
        last.number += 1;
        if let Some((start, end)) = times {
            last.interval = Some(end.saturating_sub(start) as f64 / 1e7);
        }
    }

    fn meter(&mut self, event: &Event<'_>) -> Option<Counter> {
        let (kind, value) = match event.name() {
            "CollectionStart" => {
                self.collection(event);
                return None;
            }
            "BeginInstrumentReporting" => {
                self.begin(event);
                return None;
            }
            "EndInstrumentReporting" => {
                self.end(event);
                return None;
            }
            "Error" | "ObservableInstrumentCallbackError" => {
                if self.is_of_session(event) {
                    self.error(event);
                }
                return None;
            }
            "TimeSeriesLimitReached" | "HistogramLimitReached" => {
                self.limits += u64::from(self.is_of_session(event));
                return None;
            }
            // All sessions have the report that one was refused.
            "MultipleSessionsNotSupportedError" => {
                let running = text(event, "runningSessionId");
                if self.session.as_ref().is_none_or(|(own, _)| running.as_ref() != Some(own)) {
                    self.conflicts += 1;
                    self.exclusive += 1;
                }
                return None;
            }
            "MultipleSessionsConfiguredIncorrectlyError" => {
                let refused = text(event, "clientId");
                if self.session.as_ref().is_none_or(|(_, own)| refused.is_none_or(|id| id == *own))
                {
                    self.conflicts += 1;
                }
                return None;
            }
            "CounterRateValuePublished" => (CounterKind::Rate, "rate"),
            // An up-down counter reports its level, not a rate.
            "UpDownCounterRateValuePublished" => (CounterKind::Gauge, "value"),
            "GaugeValuePublished" => (CounterKind::Gauge, "lastValue"),
            "HistogramValuePublished" => (CounterKind::Histogram, "sum"),
            "Base2ExponentialHistogramValuePublished" => (CounterKind::ExponentialHistogram, "sum"),
            name => {
                self.undecodable += u64::from(name.ends_with("ValuePublished"));
                return None;
            }
        };
        let float = |name: &str| {
            let value = event.field(name)?;
            // Numbers are text, except those of a histogram.
            value.as_f64().or_else(|| value.as_text()?.to_string().parse().ok())
        };
        let reported = match kind {
            CounterKind::Histogram => text(event, "quantiles"),
            _ => None,
        };
        let has_value = event.metadata().field_index(value).is_some();
        // .NET 6 and 7 have no sum and no number of values: only the quantiles show that there were none.
        let is_idle = !has_value && reported.as_deref() == Some("");
        let count = match is_idle {
            true => Some(0),
            false => event.field("count").and_then(|v| v.as_u64()),
        };
        let range = float("minimum").zip(float("maximum")).filter(|_| count != Some(0));
        let of_histogram = parse_quantiles(&reported.unwrap_or_default());
        let value = match float(value) {
            Some(value) => value,
            None if !has_value && (is_idle || !of_histogram.is_empty()) => f64::NAN,
            None => {
                // The first report of a rate is empty, because there is no earlier value.
                let is_empty = text(event, value).is_some_and(|text| text.is_empty());
                self.undecodable += u64::from(!is_empty);
                return None;
            }
        };
        let quantiles = match kind {
            CounterKind::ExponentialHistogram => {
                let quantiles = exponential_quantiles(event, range);
                self.undecodable += u64::from(quantiles.is_none());
                quantiles.unwrap_or_default()
            }
            _ => of_histogram,
        };
        let pid = event.pid();
        let instrument_id = number(event, "instrumentId");
        let of_instrument = instrument_id.and_then(|id| self.tags.get(&(pid, id)));
        let of_instrument = of_instrument.map(|tags| tags.text.clone());
        let collection = self.collections.get(&pid).copied().unwrap_or_default();
        Some(Counter {
            time: event.time(),
            collection: Some(collection.number),
            pid,
            provider: text(event, "meterName").unwrap_or_default(),
            is_meter: true,
            meter_version: text(event, "meterVersion").unwrap_or_default(),
            name: text(event, "instrumentName").unwrap_or_default(),
            instrument_id,
            display_name: String::new(),
            unit: text(event, "unit").unwrap_or_default(),
            tags: joined([text(event, "tags"), of_instrument]),
            kind,
            value,
            interval_seconds: collection.interval,
            count,
            range,
            quantiles,
        })
    }
}

/// Lists of tags as one.
fn joined(lists: [Option<String>; 2]) -> String {
    let lists = lists.into_iter().flatten().filter(|tags| !tags.is_empty());
    lists.collect::<Vec<_>>().join(",")
}

/// `0.5=1.25;0.95=3`
fn parse_quantiles(text: &str) -> Vec<(f64, f64)> {
    text.split(';')
        .filter_map(|pair| pair.split_once('='))
        .filter_map(|(q, v)| Some((q.trim().parse().ok()?, v.trim().parse().ok()?)))
        .collect()
}

/// Quantiles of a histogram whose bucket `n` has the values in `(base^n, base^(n + 1)]`, for
/// `base = 2^(2^-scale)`. `range` is that of its values. `None` if the event is malformed.
fn exponential_quantiles(event: &Event<'_>, range: Option<(f64, f64)>) -> Option<Vec<(f64, f64)>> {
    /// Those that the runtime computes for other histograms.
    const QUANTILES: [f64; 3] = [0.5, 0.95, 0.99];
    let scale = event.field("scale")?.as_i64().filter(|scale| (-11..=20).contains(scale))?;
    let zeros = event.field("zeroCount")?.as_u64()?;
    let buckets = text(event, "buckets")?;
    let buckets = buckets.split(',').map(str::trim).filter(|count| !count.is_empty());
    let buckets: Vec<u64> = buckets.map(|count| count.parse().ok()).collect::<Option<_>>()?;
    let total = buckets.iter().try_fold(zeros, |sum, count| sum.checked_add(*count))?;
    if total == 0 {
        return Some(Vec::new());
    }
    let (min, max) = range.filter(|(min, max)| 0.0 <= *min && min <= max && max.is_finite())?;
    let buckets_per_doubling = f64::from(scale as i32).exp2();
    // The event has no number of its first bucket. The greatest value is in the last one with a count.
    let last = buckets.iter().rposition(|count| *count > 0).unwrap_or_default();
    let number_of_last = (max.log2() * buckets_per_doubling).ceil() - 1.0;
    let value_at = |rank: u64| {
        let mut below = zeros;
        let n = buckets.iter().position(|count| {
            below += count;
            rank <= below
        });
        let number = number_of_last - (last as f64 - n.unwrap_or(last) as f64);
        ((number + 0.5) / buckets_per_doubling).exp2().clamp(min, max)
    };
    let quantile = |q: f64| {
        let rank = (q * total as f64).ceil() as u64;
        (q, if rank <= zeros { 0.0 } else { value_at(rank) })
    };
    Some(QUANTILES.map(quantile).to_vec())
}

fn event_counter(event: &Event<'_>) -> Option<Counter> {
    // In an object or in the event itself, depending on the runtime's version.
    let payload = event.field("Payload").and_then(|v| v.as_object());
    let get = |name: &str| match &payload {
        Some(object) => object.get(name),
        None => event.field(name),
    };
    let text = |name: &str| {
        get(name).and_then(|v| v.as_text()).map_or_else(String::new, |t| t.to_string())
    };
    get("Name")?;
    let float = |name: &str| get(name).and_then(|v| v.as_f64());
    let (kind, value) = match float("Increment") {
        Some(increment) => (CounterKind::Rate, increment),
        None => (CounterKind::Gauge, float("Mean")?),
    };
    let count = get("Count").and_then(|v| v.as_u64());
    Some(Counter {
        time: event.time(),
        collection: None,
        pid: event.pid(),
        provider: event.provider().into(),
        is_meter: false,
        meter_version: String::new(),
        name: text("Name"),
        instrument_id: None,
        display_name: text("DisplayName"),
        unit: text("DisplayUnits"),
        tags: tags(&text("Metadata")),
        kind,
        value,
        interval_seconds: float("IntervalSec"),
        count,
        // Without values, the least is infinity and the greatest minus infinity.
        range: float("Min").zip(float("Max")).filter(|_| count != Some(0)),
        quantiles: Vec::new(),
    })
}

/// The metadata of an event counter, `key:value,…`, as the tags of meters are written. A part without `:`
/// belongs to the value before it.
fn tags(metadata: &str) -> String {
    let parts: Vec<_> = metadata.split(',').map(|part| part.replacen(':', "=", 1)).collect();
    parts.join(",")
}
