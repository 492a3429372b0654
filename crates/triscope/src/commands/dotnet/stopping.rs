//! The event that ends a recording.

use nettrace::{Event, Value};
use std::fmt::{self, Write as _};

/// An event with a name, and values of its fields: `PROVIDER/EVENT[,FIELD:VALUE…]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StoppingEvent {
    pub(super) provider: String,
    /// Its name, or its number if the trace has no name of it.
    event: String,
    fields: Vec<(String, String)>,
}

impl StoppingEvent {
    /// Parses the value of the option.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let mut parts = text.split(',');
        let event = parts.next().and_then(|event| event.split_once('/'));
        let (provider, event) = event
            .filter(|(provider, event)| !provider.is_empty() && !event.is_empty())
            .ok_or("expected PROVIDER/EVENT, such as Microsoft-Windows-DotNETRuntime/GCStart")?;
        let field = |text: &str| {
            let field = text.split_once(':').filter(|(name, _)| !name.is_empty());
            let (name, value) = field.ok_or_else(|| format!("{text:?} is not FIELD:VALUE"))?;
            Ok((name.to_owned(), value.to_owned()))
        };
        let fields = parts.map(field).collect::<Result<_, String>>()?;
        Ok(Self { provider: provider.to_owned(), event: event.to_owned(), fields })
    }

    /// Whether it is this event. A field that the event lacks has no value.
    pub(super) fn is(&self, event: &Event<'_>) -> bool {
        let has = |(name, text): &(String, String)| {
            event.field(name).is_some_and(|value| is_shown_as(&value, text))
        };
        self.provider.eq_ignore_ascii_case(event.provider())
            && self.is_named(event.name(), event.id())
            && self.fields.iter().all(has)
    }

    fn is_named(&self, name: &str, id: u32) -> bool {
        if name.is_empty() { is_shown_as(&Value::U32(id), &self.event) } else { self.event == name }
    }
}

impl fmt::Display for StoppingEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.provider, self.event)?;
        self.fields.iter().try_for_each(|(name, value)| write!(f, ",{name}:{value}"))
    }
}

/// Whether a value has this text, without making one of it.
fn is_shown_as(value: &Value<'_>, text: &str) -> bool {
    struct Rest<'a>(&'a str);
    impl fmt::Write for Rest<'_> {
        fn write_str(&mut self, part: &str) -> fmt::Result {
            self.0 = self.0.strip_prefix(part).ok_or(fmt::Error)?;
            Ok(())
        }
    }
    let mut rest = Rest(text);
    write!(rest, "{value}").is_ok() && rest.0.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_and_its_fields() {
        let parse = StoppingEvent::parse;
        let event = parse("Own.Source/Request/Start,path:/a:b,code:").unwrap();
        assert_eq!((&*event.provider, &*event.event), ("Own.Source", "Request/Start"));
        let fields = [("path", "/a:b"), ("code", "")].map(|(n, v)| (n.to_owned(), v.to_owned()));
        assert_eq!(event.fields, fields);
        assert_eq!(event.to_string(), "Own.Source/Request/Start,path:/a:b,code:");
        for bad in ["", "Own", "/Event", "Own/", "Own/Event,", "Own/Event,a", "Own/Event,:a"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
        assert!(event.is_named("Request/Start", 1) && !event.is_named("Request", 1));
        let event = parse("Own/17").unwrap();
        assert!(event.is_named("", 17) && !event.is_named("", 1) && !event.is_named("Other", 17));
    }

    #[test]
    fn values_are_compared_as_they_are_shown() {
        let is = |value: Value<'_>, text| is_shown_as(&value, text);
        assert!(is(Value::U32(12), "12") && is(Value::Bool(true), "true"));
        assert!(is(Value::Pointer(16), "0x10"));
        for other in ["", "1", "123", " 12"] {
            assert!(!is(Value::U32(12), other), "{other}");
        }
    }
}
