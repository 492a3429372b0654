use super::text;
use crate::Event;
use crate::manifest::Provider;

/// How a counter's value is to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CounterKind {
    /// The value at the time, or the mean over the interval.
    Gauge,
    /// How much was added during the interval.
    Rate,
    /// The distribution of values during the interval.
    Histogram,
}

/// A value of a counter.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Counter {
    /// Ticks of the event clock.
    pub timestamp: i64,
    /// The event source, or the meter.
    pub provider: String,
    /// The counter's, or the instrument's, name.
    pub name: String,
    /// Name to show; empty if there is none.
    pub display_name: String,
    /// Unit; empty if there is none.
    pub unit: String,
    /// Tags of the instrument's time series, `key=value,…`; empty if there are none.
    pub tags: String,
    /// How the value is to be read.
    pub kind: CounterKind,
    /// The value: for [`CounterKind::Rate`] what was added during the interval, for
    /// [`CounterKind::Histogram`] the sum (of a meter) or the mean.
    pub value: f64,
    /// Seconds that the value is about, if the event says.
    pub interval_seconds: Option<f64>,
    /// Number of values, if the event says.
    pub count: Option<u64>,
    /// Smallest and greatest value, if the event says.
    pub range: Option<(f64, f64)>,
    /// Quantiles and their values, of a meter's histogram.
    pub quantiles: Vec<(f64, f64)>,
}

impl Counter {
    /// What was added per second, for a [`CounterKind::Rate`] whose interval is known.
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
    /// Seconds of the interval that the meters' values are about.
    interval: Option<f64>,
    errors: u64,
}

impl CounterTracker {
    /// A tracker at the start of a stream.
    pub fn new() -> Self {
        Self::default()
    }

    /// Events by which `System.Diagnostics.Metrics` said that it does not collect everything:
    /// limits on time series or histograms, or an error.
    pub fn errors(&self) -> u64 {
        self.errors
    }

    /// Takes in an event; gives a value if it has one.
    pub fn observe(&mut self, event: &Event<'_>) -> Option<Counter> {
        if event.known() == Some(Provider::Metrics) {
            return self.meter(event);
        }
        if event.name() == "EventCounters" { event_counter(event) } else { None }
    }

    fn meter(&mut self, event: &Event<'_>) -> Option<Counter> {
        let (kind, value) = match event.name() {
            "CollectionStart" => {
                let time = |name| match event.field(name) {
                    Some(crate::Value::DateTime(time)) => Some(time.0),
                    _ => None,
                };
                if let (Some(start), Some(end)) =
                    (time("intervalStartTime"), time("intervalEndTime"))
                {
                    self.interval = Some((end - start) as f64 / 1e7);
                }
                return None;
            }
            "Error"
            | "TimeSeriesLimitReached"
            | "HistogramLimitReached"
            | "ObservableInstrumentCallbackError"
            | "MultipleSessionsNotSupportedError" => {
                self.errors += 1;
                return None;
            }
            "CounterRateValuePublished" => (CounterKind::Rate, "rate"),
            // An up-down counter says how much it is, not how fast it goes.
            "UpDownCounterRateValuePublished" => (CounterKind::Gauge, "value"),
            "GaugeValuePublished" => (CounterKind::Gauge, "lastValue"),
            "HistogramValuePublished" => (CounterKind::Histogram, "sum"),
            _ => return None,
        };
        // The first report of a rate is empty: there is nothing yet that it is relative to.
        let value = event.field(value)?;
        // Numbers are text, but for the sum of a histogram.
        let value = match value.as_f64() {
            Some(value) => value,
            None => value.as_text()?.to_string().parse().ok()?,
        };
        let quantiles = match kind {
            CounterKind::Histogram => parse_quantiles(&text(event, "quantiles")),
            _ => Vec::new(),
        };
        Some(Counter {
            timestamp: event.header().timestamp,
            provider: text(event, "meterName"),
            name: text(event, "instrumentName"),
            display_name: String::new(),
            unit: text(event, "unit"),
            tags: text(event, "tags"),
            kind,
            value,
            interval_seconds: self.interval,
            count: event.field("count").and_then(|v| v.as_u64()),
            range: None,
            quantiles,
        })
    }
}

/// `0.5=1.25;0.95=3`
fn parse_quantiles(text: &str) -> Vec<(f64, f64)> {
    text.split(';')
        .filter_map(|pair| pair.split_once('='))
        .filter_map(|(q, v)| Some((q.trim().parse().ok()?, v.trim().parse().ok()?)))
        .collect()
}

fn event_counter(event: &Event<'_>) -> Option<Counter> {
    // In an object, or in the event itself, by the runtime's version.
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
    Some(Counter {
        timestamp: event.header().timestamp,
        provider: event.provider().into(),
        name: text("Name"),
        display_name: text("DisplayName"),
        unit: text("DisplayUnits"),
        tags: text("Metadata"),
        kind,
        value,
        interval_seconds: float("IntervalSec"),
        count: get("Count").and_then(|v| v.as_u64()),
        range: float("Min").zip(float("Max")),
        quantiles: Vec::new(),
    })
}
