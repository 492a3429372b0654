//! Texts, mappings, functions and locations that a profile refers to by numbers.

use super::message::Message;
use super::view::{Names, View};
use std::collections::HashMap;
use std::hash::Hash;
use trace_timeline::{Frame, MappingId, TextId};

/// Numbers of keys, from 1 on: 0 stands for none.
#[derive(Debug)]
pub(super) struct Numbers<K>(HashMap<K, u64>);

impl<K> Default for Numbers<K> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<K: Eq + Hash> Numbers<K> {
    /// The number of a key, and whether it is new.
    pub(super) fn of(&mut self, key: K) -> (u64, bool) {
        let next = self.0.len() as u64 + 1;
        let number = *self.0.entry(key).or_insert(next);
        (number, number == next)
    }
}

/// The numbers of a profile.
#[derive(Debug)]
pub(super) struct Symbols {
    pub(super) strings: Names,
    pub(super) mappings: Numbers<MappingId>,
    pub(super) locations: Numbers<Frame>,
    functions: Numbers<(TextId, TextId, Option<MappingId>)>,
}

impl Symbols {
    pub(super) fn new() -> Self {
        let mut strings = Names::default();
        strings.text("".into()); // number 0
        Self {
            strings,
            mappings: Numbers::default(),
            locations: Numbers::default(),
            functions: Numbers::default(),
        }
    }

    /// The number of the function of a frame, which is 0 without a name, and of a new one the name and the
    /// file.
    pub(super) fn function(&mut self, frame: &Frame, view: &View<'_>) -> (u64, Option<[u64; 2]>) {
        if frame.function.is_empty() {
            return (0, None);
        }
        let (number, is_new) = self.functions.of((frame.function, frame.file, frame.mapping));
        let texts = is_new.then(|| {
            let name = self.strings.text(view.name(frame));
            [name, self.strings.text(view.text(frame.file))].map(u64::from)
        });
        (number, texts)
    }
}

/// The address of a frame in memory.
pub(super) fn address(frame: &Frame, view: &View<'_>) -> u64 {
    let start = frame.mapping.map_or(0, |mapping| view.tables.mapping(mapping).start);
    start.saturating_add(frame.address)
}

/// Adds the line of a location. Without a function, viewers show the address.
pub(super) fn line(location: &mut Message, field: u32, function: u64, frame: &Frame) {
    if function != 0 {
        location.message(field, |line| {
            line.int(1, function);
            line.int(2, frame.line.into());
        });
    }
}
