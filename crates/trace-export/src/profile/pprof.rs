//! `profile.proto` of <https://github.com/google/pprof>.

use super::Unit;
use super::message::Message;
use super::symbols::{Symbols, address, line};
use super::view::{LabelText, Names, View};
use flate2::Compression;
use flate2::write::GzEncoder;
use std::io::{self, Write};
use trace_timeline::{Frame, MappingId};

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

pub(super) fn write(view: &View<'_>, out: &mut dyn Write) -> io::Result<()> {
    let measure = view.measure();
    let mut tables = Tables { symbols: Symbols::new(view), messages: Message::default() };
    let mut p = Message::default();
    let mut value_type = |field, kind: &str, unit: &str, strings: &mut Names| {
        let (kind, unit) = (strings.text(kind.into()), strings.text(unit.into()));
        p.message(field, |m| {
            m.int(1, kind.into());
            m.int(2, unit.into());
        });
    };
    let has_weight = measure.unit != Unit::Count;
    let strings = &mut tables.symbols.strings;
    value_type(SAMPLE_TYPE, &measure.events, "count", strings);
    if has_weight {
        value_type(SAMPLE_TYPE, &measure.weight, measure.unit.name(), strings);
    }
    if measure.period > 0 {
        value_type(PERIOD_TYPE, &measure.weight, measure.unit.name(), strings);
    }
    // Viewers take the first mapping for the program.
    if let Some(program) = view.program() {
        tables.mapping(program, view);
    }
    for sample in view.samples() {
        let locations: Vec<u64> =
            view.frames(sample.stack).iter().map(|frame| tables.location(frame, view)).collect();
        p.message(SAMPLE, |m| {
            m.packed(1, locations);
            m.packed(2, [sample.count].into_iter().chain(has_weight.then_some(sample.weight)));
            let strings = &mut tables.symbols.strings;
            for (key, value) in view.labels(sample.labels) {
                let key = strings.text(key);
                m.message(3, |label| {
                    label.int(1, key.into());
                    match value {
                        LabelText::Text(text) => label.int(2, strings.text(text).into()),
                        LabelText::Number(number) => label.int(3, number as u64),
                    }
                });
            }
        });
    }
    p.append(&tables.messages);
    for text in tables.symbols.strings.all() {
        p.bytes(STRING, text.as_bytes());
    }
    p.int(TIME, view.profile.start);
    p.int(DURATION, view.profile.duration);
    p.int(PERIOD, measure.period);
    let mut gz = GzEncoder::new(out, Compression::default());
    gz.write_all(p.as_slice())?;
    gz.finish().map(drop)
}

/// The tables of the file. Identifiers count from 1.
struct Tables {
    symbols: Symbols,
    messages: Message,
}

impl Tables {
    fn location(&mut self, frame: &Frame, view: &View<'_>) -> u64 {
        let (id, is_new) = self.symbols.locations.of(*frame);
        if is_new {
            let mapping = frame.mapping.map_or(0, |mapping| self.mapping(mapping, view));
            let function = self.function(frame, view);
            self.messages.message(LOCATION, |m| {
                m.int(1, id);
                m.int(2, mapping);
                m.int(3, address(frame, view));
                line(m, 4, function, frame);
            });
        }
        id
    }

    fn mapping(&mut self, mapping: MappingId, view: &View<'_>) -> u64 {
        let (id, is_new) = self.symbols.mappings.of(mapping);
        if is_new {
            // Viewers look for the names of functions of the others.
            let has_functions = self.symbols.has_functions(mapping);
            let mapping = self.symbols.mapping(mapping, view);
            let [path, build_id] = [mapping.path, mapping.build_id]
                .map(|text| self.symbols.strings.text(view.text(text)));
            self.messages.message(MAPPING, |m| {
                m.int(1, id);
                m.int(2, mapping.start);
                m.int(3, mapping.end);
                m.int(4, mapping.offset);
                m.int(5, path.into());
                m.int(6, build_id.into());
                m.int(7, has_functions.into());
            });
        }
        id
    }

    fn function(&mut self, frame: &Frame, view: &View<'_>) -> u64 {
        let (id, texts) = self.symbols.function(frame, view);
        if let Some([name, file]) = texts {
            self.messages.message(FUNCTION, |m| {
                m.int(1, id);
                m.int(2, name);
                m.int(3, name);
                m.int(4, file);
            });
        }
        id
    }
}
