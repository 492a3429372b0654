//! Profiles of OTLP, the protocol of OpenTelemetry: `opentelemetry.proto.profiles.v1development`, in
//! alpha.
//!
//! Source: `profiles.proto`, `profiles_service.proto`, `common.proto` and `resource.proto` of
//! <https://github.com/open-telemetry/opentelemetry-proto>; attributes as in the semantic conventions.

use super::Unit;
use super::message::Message;
use super::origin::Origin;
use super::symbols::{Numbers, Symbols, address, line};
use super::view::{LabelText, View};
use std::collections::HashSet;
use std::io::{self, Write};
use trace_timeline::{Frame, MappingId, StackId};

// Fields of `ProfilesDictionary`.
const MAPPINGS: u32 = 1;
const LOCATIONS: u32 = 2;
const FUNCTIONS: u32 = 3;
const LINKS: u32 = 4;
const STRINGS: u32 = 5;
const ATTRIBUTES: u32 = 6;
const STACKS: u32 = 7;

// Fields of `Profile`.
const SAMPLE_TYPE: u32 = 1;
const SAMPLES: u32 = 2;
const TIME: u32 = 3;
const DURATION: u32 = 4;
const PERIOD_TYPE: u32 = 5;
const PERIOD: u32 = 6;

pub(super) fn write(
    view: &View<'_>,
    resource: &[(&str, &str)],
    out: &mut dyn Write,
) -> io::Result<()> {
    let mut dictionary = Dictionary::new(view);
    let samples: Vec<Sample> = view
        .samples()
        .iter()
        .map(|sample| {
            let mut labels = view.labels(sample.labels);
            // A key occurs once: the first one is of what was sampled.
            let mut known = HashSet::new();
            labels.retain(|(key, _)| known.insert(key.clone()));
            let labels = labels.iter();
            let attributes =
                labels.map(|(key, value)| dictionary.attribute(attribute_name(key), value));
            let attributes = attributes.collect();
            let stack = sample.stack.map_or(0, |stack| dictionary.stack(stack, view));
            Sample { stack, attributes, count: sample.count, weight: sample.weight }
        })
        .collect();
    let measure = view.measure();
    let mut profiles = Message::default();
    let mut profile = |name: &str, unit: &str, value: fn(&Sample) -> u64| {
        let sample_type = dictionary.value_type(name, unit);
        let period = (measure.period > 0)
            .then(|| dictionary.value_type(&measure.weight, measure.unit.name()));
        profiles.message(2, |profile| {
            profile.bytes(SAMPLE_TYPE, &sample_type);
            for sample in &samples {
                profile.message(SAMPLES, |m| {
                    m.int(1, sample.stack);
                    m.packed(2, sample.attributes.iter().copied());
                    m.packed(4, [value(sample)]);
                });
            }
            profile.fixed64(TIME, view.profile.start);
            profile.int(DURATION, view.profile.duration);
            if let Some(period) = period {
                profile.bytes(PERIOD_TYPE, &period);
                profile.int(PERIOD, measure.period);
            }
        });
    };
    // Viewers show the first one by default.
    if measure.unit != Unit::Count {
        profile(&measure.weight, measure.unit.name(), |sample| sample.weight);
    }
    profile(&measure.events, "count", |sample| sample.count);

    let mut request = Message::default();
    request.message(1, |of_resource| {
        of_resource.message(1, |m| {
            for (key, value) in resource {
                m.message(1, |attribute| {
                    attribute.bytes(1, key.as_bytes());
                    attribute.message(2, |any| any.bytes(1, value.as_bytes()));
                });
            }
        });
        of_resource.message(2, |scope| {
            scope.message(1, |m| {
                m.bytes(1, b"triscope");
                m.bytes(2, env!("CARGO_PKG_VERSION").as_bytes());
            });
            scope.append(&profiles);
        });
    });
    request.bytes(2, dictionary.finish().as_slice());
    out.write_all(request.as_slice())
}

/// A sample with indexes of the dictionary.
struct Sample {
    stack: u64,
    attributes: Vec<u64>,
    count: u64,
    weight: u64,
}

/// The name of a label in the semantic conventions.
fn attribute_name(label: &str) -> &str {
    match label {
        "pid" => "process.pid",
        "process" => "process.executable.name",
        "thread" => "thread.id",
        "comm" => "thread.name",
        "container" => "container.id",
        "goroutine" => "go.goroutine.id",
        label => label,
    }
}

/// The tables that profiles refer to by index. The first entry of each is empty: it stands for none.
struct Dictionary {
    symbols: Symbols,
    stacks: Numbers<StackId>,
    attributes: Numbers<Vec<u8>>,
    messages: Message,
}

impl Dictionary {
    fn new(view: &View<'_>) -> Self {
        let mut this = Self {
            symbols: Symbols::new(view),
            stacks: Numbers::default(),
            attributes: Numbers::default(),
            messages: Message::default(),
        };
        for table in [MAPPINGS, LOCATIONS, FUNCTIONS, LINKS, ATTRIBUTES, STACKS] {
            this.messages.bytes(table, b"");
        }
        this
    }

    /// The message `ProfilesDictionary`.
    fn finish(mut self) -> Message {
        for text in self.symbols.strings.all() {
            self.messages.bytes(STRINGS, text.as_bytes());
        }
        self.messages
    }

    fn value_type(&mut self, name: &str, unit: &str) -> Vec<u8> {
        let mut message = Message::default();
        message.int(1, self.symbols.strings.text(name.into()).into());
        message.int(2, self.symbols.strings.text(unit.into()).into());
        message.into_bytes()
    }

    fn attribute(&mut self, key: &str, value: &LabelText<'_>) -> u64 {
        let mut message = Message::default();
        message.int(1, self.symbols.strings.text(key.into()).into());
        message.message(2, |any| match value {
            LabelText::Text(text) => any.bytes(1, text.as_bytes()),
            LabelText::Number(number) => any.present_int(3, *number as u64),
        });
        let (index, is_new) = self.attributes.of(message.as_slice().to_owned());
        if is_new {
            self.messages.bytes(ATTRIBUTES, message.as_slice());
        }
        index
    }

    fn stack(&mut self, stack: StackId, view: &View<'_>) -> u64 {
        let (index, is_new) = self.stacks.of(stack);
        if is_new {
            let frames = view.frames(Some(stack)).iter();
            let locations: Vec<u64> = frames.map(|frame| self.location(frame, view)).collect();
            self.messages.message(STACKS, |m| m.packed(1, locations));
        }
        index
    }

    fn location(&mut self, frame: &Frame, view: &View<'_>) -> u64 {
        let (index, is_new) = self.symbols.locations.of(*frame);
        if is_new {
            let mapping = frame.mapping.map_or(0, |mapping| self.mapping(mapping, view));
            let function = self.function(frame, view);
            let kind = match Origin::of(frame, view.tables) {
                Origin::Other => None,
                Origin::Kernel => Some("kernel"),
                Origin::Native => Some("native"),
                Origin::Go => Some("go"),
                Origin::Dotnet => Some("dotnet"),
            };
            let kind = kind
                .map(|kind| self.attribute("profile.frame.type", &LabelText::Text(kind.into())));
            self.messages.message(LOCATIONS, |m| {
                m.int(1, mapping);
                m.int(2, address(frame, view));
                line(m, 3, function, frame);
                if kind.is_some() {
                    m.packed(4, kind);
                }
            });
        }
        index
    }

    fn mapping(&mut self, mapping: MappingId, view: &View<'_>) -> u64 {
        let (index, is_new) = self.symbols.mappings.of(mapping);
        if is_new {
            let mapping = self.symbols.mapping(mapping, view);
            let path = self.symbols.strings.text(view.text(mapping.path));
            let build_id = (!mapping.build_id.is_empty()).then(|| {
                let text = LabelText::Text(view.text(mapping.build_id));
                self.attribute("process.executable.build_id.gnu", &text)
            });
            self.messages.message(MAPPINGS, |m| {
                m.int(1, mapping.start);
                m.int(2, mapping.end);
                m.int(3, mapping.offset);
                m.int(4, path.into());
                if build_id.is_some() {
                    m.packed(5, build_id);
                }
            });
        }
        index
    }

    fn function(&mut self, frame: &Frame, view: &View<'_>) -> u64 {
        let (index, texts) = self.symbols.function(frame, view);
        if let Some([name, file]) = texts {
            self.messages.message(FUNCTIONS, |m| {
                m.int(1, name);
                m.int(3, file);
            });
        }
        index
    }
}

#[cfg(test)]
mod tests {
    use crate::profile::{Label, Measure, Profile, Unit};
    use trace_timeline::{Frame, Tables};

    #[test]
    fn tables_begin_with_an_empty_entry_and_have_each_entry_once() {
        let mut tables = Tables::new();
        let name = tables.text(b"f");
        let stack = tables.stack(&[Frame { function: name, line: 7, ..Frame::default() }]);
        let key = tables.text(b"pid");
        let mut profile = Profile::new(Measure {
            events: "s".into(),
            weight: "w".into(),
            unit: Unit::Bytes,
            period: 0,
        });
        let labels = profile.labels(&[(key, Label::Number(0))]);
        profile.add(stack, labels, 2, 3);
        profile.add(None, Default::default(), 1, 4);
        let mut request = Vec::new();
        profile.write_otlp(&[("a", "b")], &tables, &mut request).unwrap();
        let version = env!("CARGO_PKG_VERSION").as_bytes();
        let scope = [&b"\x0a\x08triscope\x12"[..], &[version.len() as u8], version].concat();
        let profiles = [
            // The type is "w" in "bytes", or "s" in "count"; samples have stack, attributes and value.
            &b"\x12\x17\x0a\x04\x08\x03\x10\x04\x12\x08\x08\x01\x12\x01\x01\x22\x01\x03\x12\x05\x12\x00\x22\x01\x04"[..],
            b"\x12\x17\x0a\x04\x08\x05\x10\x06\x12\x08\x08\x01\x12\x01\x01\x22\x01\x02\x12\x05\x12\x00\x22\x01\x01",
        ]
        .concat();
        let scope = [&[0x0a, scope.len() as u8], &scope[..], &profiles].concat();
        let resource = b"\x0a\x0a\x0a\x08\x0a\x01a\x12\x03\x0a\x01b";
        let resource = [&resource[..], &[0x12, scope.len() as u8], &scope].concat();
        let dictionary = [
            // An empty entry of each table.
            &b"\x0a\x00\x12\x00\x1a\x00\x22\x00\x32\x00\x3a\x00"[..],
            // The attribute process.pid = 0, the function, its location with line 7, the stack.
            b"\x32\x06\x08\x01\x12\x02\x18\x00",
            b"\x1a\x02\x08\x02",
            b"\x12\x06\x1a\x04\x08\x01\x10\x07",
            b"\x3a\x03\x0a\x01\x01",
            b"\x2a\x00\x2a\x0bprocess.pid\x2a\x01f\x2a\x01w\x2a\x05bytes\x2a\x01s\x2a\x05count",
        ]
        .concat();
        let expected = [
            &[0x0a, resource.len() as u8],
            &resource[..],
            &[0x12, dictionary.len() as u8],
            &dictionary[..],
        ]
        .concat();
        assert_eq!(request, expected, "{}", request.escape_ascii());
    }
}
