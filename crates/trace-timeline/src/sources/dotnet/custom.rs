//! Events of event sources: counters, activities and instants.

use super::{DotnetSource, MAX_OPEN};
use crate::entity::{Entity, EntityId, EntityKind};
use crate::event::{EventKind, InstantKind, SpanKind, Value};
use crate::sources::pusher::{Begin, Pusher};
use crate::tables::{SpanId, Tables, TextId};
use nettrace::analysis::{ActivityStep, Counter, CounterKind};
use nettrace::{Event as NetEvent, Guid, Value as NetValue};

/// Maximum number of bytes of an undecodable payload that an event keeps.
const MAX_PAYLOAD: usize = 256;

/// Maximum number of time series of histograms whose quantiles are known, and of these quantiles. The
/// runtime reports three.
const MAX_HISTOGRAMS: usize = 1 << 12;
const MAX_QUANTILES: usize = 16;

/// Maximum number of names of counters of which it is known whether a meter has them.
const MAX_COUNTERS: usize = 1 << 14;

/// Maximum number of open activities of a thread without identifiers, within each other.
const MAX_NESTED: usize = 256;

/// The activities that are requests: those of ASP.NET Core, and of `HttpClient`.
const REQUESTS: [(&str, &str); 3] = [
    ("Microsoft.AspNetCore.Hosting", "Request"),
    ("Microsoft-AspNetCore-Hosting", "Request"),
    ("System.Net.Http", "Request"),
];

/// An activity without its end.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpenActivity {
    entity: EntityId,
    span: SpanId,
    id: Option<Guid>,
    /// The thread that began it.
    thread: EntityId,
}

impl DotnetSource {
    /// An event counter or a value of a meter. It has one name and one unit, independent of the
    /// values.
    pub(super) fn counter(
        &mut self,
        event: &NetEvent<'_>,
        process: EntityId,
        push: &mut Pusher<'_>,
    ) {
        // The beginning and end of a collection, and rates without a value yet, are no counters.
        let Some(counter) = self.counters.push(event) else { return self.skip(event) };
        let mut name = format!("{}/{}", counter.provider, counter.name);
        if !counter.tags.is_empty() {
            name.push_str(&format!(" {}", counter.tags));
        }
        if self.is_of_other_form(process, &name, counter.is_meter, push) {
            name.push_str(if counter.is_meter { " (meter)" } else { " (event counter)" });
        }
        let per_second = counter.per_second();
        let unit = match (&*counter.unit, per_second) {
            ("", Some(_)) => "1/s".to_owned(),
            (unit, Some(_)) => format!("{unit}/s"),
            ("By" | "bytes", None) => "B".to_owned(),
            (unit, None) => unit.to_owned(),
        };
        if matches!(counter.kind, CounterKind::Histogram | CounterKind::ExponentialHistogram) {
            for (quantile, value) in self.quantiles(process, &name, &counter, push) {
                let name = format!("{name} p{}", quantile * 100.0);
                push.counter(process, name.as_bytes(), unit.as_bytes(), value);
            }
            // The runtime does not report it.
            if counter.value.is_nan() {
                return;
            }
            name.push_str(" sum");
        }
        let value = per_second.unwrap_or(counter.value);
        push.counter(process, name.as_bytes(), unit.as_bytes(), value);
    }

    /// Whether the name is first that of an event counter, and this is a value of a meter, or the other way
    /// round: they are different numbers.
    fn is_of_other_form(
        &mut self,
        process: EntityId,
        name: &str,
        is_meter: bool,
        push: &mut Pusher<'_>,
    ) -> bool {
        let key = (process, push.tables.text(name.as_bytes()));
        if self.counter_forms.len() >= MAX_COUNTERS {
            return self.counter_forms.get(&key).is_some_and(|first| *first != is_meter);
        }
        *self.counter_forms.entry(key).or_insert(is_meter) != is_meter
    }

    /// The quantiles of a histogram. They are 0 in an interval without values, which has none, so that
    /// those of an earlier one do not last.
    fn quantiles(
        &mut self,
        process: EntityId,
        name: &str,
        counter: &Counter,
        push: &mut Pusher<'_>,
    ) -> Vec<(f64, f64)> {
        let key = (process, push.tables.text(name.as_bytes()));
        if !counter.quantiles.is_empty() {
            if self.histograms.len() >= MAX_HISTOGRAMS {
                self.histograms.clear();
            }
            let quantiles = counter.quantiles.iter().map(|(quantile, _)| *quantile);
            self.histograms.insert(key, quantiles.take(MAX_QUANTILES).collect());
            return counter.quantiles.clone();
        }
        // Otherwise they are not known.
        if counter.count != Some(0) {
            return Vec::new();
        }
        let known = self.histograms.get(&key).into_iter().flatten();
        known.map(|quantile| (*quantile, 0.0)).collect()
    }

    /// An event of an event source: an activity, or an instant.
    pub(super) fn custom(
        &mut self,
        event: &NetEvent<'_>,
        process: EntityId,
        thread: EntityId,
        push: &mut Pusher<'_>,
    ) {
        match self.activities.step(event) {
            Some(ActivityStep::Start(number)) => {
                self.start_activity(event, number, process, thread, push);
            }
            Some(ActivityStep::Stop(number, _)) => {
                let Some(activity) = self.open_activities.remove(&number) else { return };
                self.arguments(event, push);
                let OpenActivity { span, .. } = activity;
                push.event(EventKind::Finish { span, by: Some(thread), is_cut: false });
                self.end_activity(activity, push);
            }
            // It began before the trace, or too many are open.
            Some(_) => self.stats.unpaired += 1,
            None => {
                let name = format!("{}/{}", event.provider(), event.name());
                let name = push.tables.text(name.as_bytes());
                let (kind, stack) = (InstantKind::Other, self.stack(event, push));
                let of = self.activity_of(event);
                self.arguments(event, push);
                push.event(EventKind::Instant { entity: thread, kind, name, of, stack });
            }
        }
    }

    fn start_activity(
        &mut self,
        event: &NetEvent<'_>,
        number: u64,
        process: EntityId,
        thread: EntityId,
        push: &mut Pusher<'_>,
    ) {
        let Some(activity) = self.activities.get(number) else { return };
        let (id, parent) = (activity.id, activity.parent);
        let kinds = match REQUESTS.contains(&(&*activity.provider, &*activity.name)) {
            true => (EntityKind::Request, SpanKind::Request),
            false => (EntityKind::Activity, SpanKind::Activity),
        };
        let name = format!("{}/{}", activity.provider, activity.name);
        let text = push.tables.text(name.as_bytes());
        push.tables.set_short(text, activity.name.as_bytes());
        let parent = match id {
            Some(_) => parent.and_then(|parent| self.activity_ids.get(&parent)).copied(),
            None => self.outer_activity(thread, text, push.tables),
        };
        if self.open_activities.len() >= MAX_OPEN {
            self.stats.unpaired += 1;
            self.drop_oldest_activity(push);
        }
        let entity = Entity::new(kinds.0, i64::try_from(number).unwrap_or(-1));
        let entity = entity.child_of(Some(process)).name(text).start(push.at);
        let Some(entity) = push.start(entity) else { return };
        let stack = self.stack(event, push);
        self.arguments(event, push);
        let start = Begin::named(entity, kinds.1, text).by(Some(thread));
        let span = push.begin(start.of(parent).stack(stack));
        self.open_activities.insert(number, OpenActivity { entity, span, id, thread });
        match id {
            Some(id) => _ = self.activity_ids.insert(id, entity),
            None => {
                let open = self.nesting.entry(thread).or_default();
                if open.len() >= MAX_NESTED {
                    // Their stops were lost.
                    open.remove(0);
                }
                open.push(entity);
            }
        }
    }

    /// Without identifiers, an activity that a thread begins within another one is a part of it. If one with this name
    /// is open, the thread has left it, and what is within it: another thread continues.
    fn outer_activity(
        &mut self,
        thread: EntityId,
        name: TextId,
        tables: &Tables,
    ) -> Option<EntityId> {
        let open = self.nesting.get_mut(&thread)?;
        let has_name =
            |id: &EntityId| tables.entities.get(*id).is_some_and(|known| known.name == name);
        if let Some(place) = open.iter().position(has_name) {
            open.truncate(place);
        }
        open.last().copied()
    }

    /// Ends the oldest open activity: its stop was lost.
    fn drop_oldest_activity(&mut self, push: &mut Pusher<'_>) {
        // Numbers are consecutive: each is tried once.
        while !self.open_activities.is_empty() {
            let oldest = self.open_activities.remove(&self.oldest_activity);
            self.oldest_activity += 1;
            if let Some(activity) = oldest {
                push.cut(activity.span);
                return self.end_activity(activity, push);
            }
        }
    }

    fn end_activity(&mut self, activity: OpenActivity, push: &mut Pusher<'_>) {
        let OpenActivity { entity, id, thread, .. } = activity;
        match id {
            Some(id) if self.activity_ids.get(&id) == Some(&entity) => {
                self.activity_ids.remove(&id);
            }
            Some(_) => {}
            None => {
                if let Some(open) = self.nesting.get_mut(&thread) {
                    open.retain(|activity| *activity != entity);
                    if open.is_empty() {
                        self.nesting.remove(&thread);
                    }
                }
            }
        }
        push.end(entity);
    }

    /// The fields of an event.
    fn arguments(&mut self, event: &NetEvent<'_>, push: &mut Pusher<'_>) {
        for field in event.fields() {
            match field {
                Ok((name, value)) => {
                    let name = if name.is_empty() { "value" } else { name };
                    let value = argument(&value, push);
                    push.argument(name.as_bytes(), value);
                }
                Err(error) => {
                    self.stats.undecodable += 1;
                    push.text(b"error", error.to_string().as_bytes());
                    push.text(b"payload", hex(event.payload()).as_bytes());
                    return;
                }
            }
        }
    }

    /// An event whose fields cannot be decoded: an instant with the error and the payload.
    #[cold]
    pub(super) fn undecodable(
        &mut self,
        event: &NetEvent<'_>,
        thread: EntityId,
        error: &str,
        push: &mut Pusher<'_>,
    ) {
        self.stats.undecodable += 1;
        push.text(b"error", error.as_bytes());
        push.text(b"payload", hex(event.payload()).as_bytes());
        let name = format!("{}/{}", event.provider(), event.name());
        let name = push.tables.text(name.as_bytes());
        push.instant(thread, InstantKind::Other, name, None);
    }
}

fn argument(value: &NetValue<'_>, push: &mut Pusher<'_>) -> Value {
    if let NetValue::Bool(value) = *value {
        return Value::Bool(value);
    }
    let number = value.as_i64().map(Value::Int).or_else(|| value.as_u64().map(Value::Uint));
    let number = number.or_else(|| value.as_f64().map(Value::Double));
    number.unwrap_or_else(|| Value::Text(push.tables.text(value.to_string().as_bytes())))
}

/// The start of a payload.
fn hex(payload: &[u8]) -> String {
    payload.iter().take(MAX_PAYLOAD).map(|byte| format!("{byte:02x}")).collect()
}
