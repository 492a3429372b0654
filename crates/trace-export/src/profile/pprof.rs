//! `profile.proto` of <https://github.com/google/pprof>.

use super::{LabelValue, Profile, Unit};
use flate2::Compression;
use flate2::write::GzEncoder;
use std::collections::HashMap;
use std::io::{self, Write};

// Fields of `Profile`.
const SAMPLE_TYPE: u32 = 1;
const SAMPLE: u32 = 2;
const MAPPING: u32 = 3;
const LOCATION: u32 = 4;
const FUNCTION: u32 = 5;
const STRING: u32 = 6;
const TIME: u32 = 9;
const DURATION: u32 = 10;
const PERIOD_TYPE: u32 = 11;
const PERIOD: u32 = 12;

pub(super) fn write(profile: &Profile, out: &mut dyn Write) -> io::Result<()> {
    let measure = profile.measure;
    // Further strings follow those of the profile.
    let names = [measure.events, "count", measure.weight, measure.unit.name()];
    let texts = profile.texts.values.len() as u64;
    let (count_type, weight_type) = ((texts, texts + 1), (texts + 2, texts + 3));
    let has_weight = measure.unit != Unit::Count;
    let mut p = Message::default();
    let mut value_type = |field, (kind, unit): (u64, u64)| {
        p.message(field, |m| {
            m.int(1, kind);
            m.int(2, unit);
        });
    };
    value_type(SAMPLE_TYPE, count_type);
    if has_weight {
        value_type(SAMPLE_TYPE, weight_type);
    }
    if measure.period > 0 {
        value_type(PERIOD_TYPE, weight_type);
    }
    for sample in &profile.samples {
        p.message(SAMPLE, |m| {
            m.packed(1, profile.frames_of(sample.stack).iter().map(|f| u64::from(*f) + 1));
            m.packed(2, [sample.count].into_iter().chain(has_weight.then_some(sample.weight)));
            for (key, value) in profile.labels_of(sample.labels) {
                m.message(3, |label| {
                    label.int(1, (*key).into());
                    match value {
                        LabelValue::Text(text) => label.int(2, (*text).into()),
                        LabelValue::Number(number) => label.int(3, *number as u64),
                    }
                });
            }
        });
    }
    // Identifiers count from 1.
    let mut mappings: HashMap<u32, u64> = HashMap::new();
    let mut functions: HashMap<(u32, u32), u64> = HashMap::new();
    for (id, frame) in (1..).zip(&profile.frames.values) {
        let next = mappings.len() as u64 + 1;
        let mapping = match frame.module {
            0 => 0,
            module => *mappings.entry(module).or_insert(next),
        };
        if mapping == next {
            p.message(MAPPING, |m| {
                m.int(1, mapping);
                m.int(5, frame.module.into());
                m.int(7, 1); // has functions
            });
        }
        let next = functions.len() as u64 + 1;
        let function = *functions.entry((frame.function, frame.file)).or_insert(next);
        if function == next {
            p.message(FUNCTION, |m| {
                m.int(1, function);
                m.int(2, frame.function.into());
                m.int(3, frame.function.into());
                m.int(4, frame.file.into());
            });
        }
        p.message(LOCATION, |m| {
            m.int(1, id);
            m.int(2, mapping);
            m.int(3, frame.pc);
            m.message(4, |line| {
                line.int(1, function);
                line.int(2, frame.line.into());
            });
        });
    }
    for text in profile.texts.values.iter().map(|text| &**text).chain(names) {
        p.bytes(STRING, text.as_bytes());
    }
    p.int(TIME, profile.start);
    p.int(DURATION, profile.duration);
    p.int(PERIOD, measure.period);
    let mut gz = GzEncoder::new(out, Compression::default());
    gz.write_all(&p.0)?;
    gz.finish().map(drop)
}

/// A protobuf message.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn int(&mut self, field: u32, value: u64) {
        if value != 0 {
            self.varint(u64::from(field) << 3);
            self.varint(value);
        }
    }

    fn bytes(&mut self, field: u32, bytes: &[u8]) {
        self.varint(u64::from(field) << 3 | 2);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    fn message(&mut self, field: u32, fill: impl FnOnce(&mut Self)) {
        let mut inner = Self::default();
        fill(&mut inner);
        self.bytes(field, &inner.0);
    }

    fn packed(&mut self, field: u32, values: impl IntoIterator<Item = u64>) {
        let mut inner = Self::default();
        values.into_iter().for_each(|value| inner.varint(value));
        self.bytes(field, &inner.0);
    }
}
