//! Events as JSON.

use super::events::frames;
use nettrace::{Event, MethodMap, Value};
use serde_json::{Map, json};

/// One event on one line, with its stack if there are `methods`. For traces recorded on Linux, times are
/// nanoseconds of CLOCK_MONOTONIC.
pub(crate) fn event(event: &Event<'_>, methods: Option<&MethodMap>) -> serde_json::Value {
    let mut fields = Map::new();
    let mut error = None;
    for field in event.fields() {
        match field {
            Ok((name, value)) => drop(fields.insert(name.to_owned(), self::value(value))),
            Err(e) => error = Some(e.to_string()),
        }
    }
    let mut object = json!({
        "time_ns": event.time().nanos(),
        "provider": event.provider(),
        "name": event.name(),
        "id": event.id(),
        "version": event.version(),
        "pid": event.pid(),
        "tid": event.tid(),
        "fields": fields,
    });
    let mut set = |key: &str, value: serde_json::Value| {
        if let Some(object) = object.as_object_mut() {
            object.insert(key.to_owned(), value);
        }
    };
    if let Some(id) = event.activity_id() {
        set("activity_id", id.to_string().into());
        if let Some(path) = event.activity_path() {
            set("activity_path", path.into());
        }
    }
    if let Some(id) = event.related_activity_id() {
        set("related_activity_id", id.to_string().into());
    }
    let undescribed = event.metadata().fields.is_empty() && !event.payload().is_empty();
    if undescribed || error.is_some() {
        set("payload", hex(event.payload()).into());
    }
    if let Some(error) = error {
        set("error", error.into());
    }
    if let Some(methods) = methods.filter(|_| !event.stack().is_empty()) {
        let frame = |(ip, method)| json!({ "ip": format!("{ip:#x}"), "method": method });
        set("stack", frames(event, methods).into_iter().map(frame).collect());
    }
    object
}

fn value(value: Value<'_>) -> serde_json::Value {
    match value {
        Value::Bool(v) => v.into(),
        Value::F32(v) => f64::from(v).into(),
        Value::F64(v) => v.into(),
        Value::Array(array) => array.map(self::value).collect(),
        Value::Object(fields) => {
            fields.map(|(name, v)| (name.to_owned(), self::value(v))).collect::<Map<_, _>>().into()
        }
        Value::Char(_) | Value::Pointer(_) => value.to_string().into(),
        other => match (other.as_u64(), other.as_i64()) {
            (Some(v), _) => v.into(),
            (None, Some(v)) => v.into(),
            (None, None) => other.to_string().into(),
        },
    }
}

/// Bytes as hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut out, byte| {
        let _ = write!(out, "{byte:02x}");
        out
    })
}
