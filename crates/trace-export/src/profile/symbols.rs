//! Texts, mappings, functions and locations that a profile refers to by numbers.

use super::message::Message;
use super::view::{Names, View};
use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use trace_timeline::{Frame, Mapping, MappingId, TextId};

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
    /// The first and the last address of the frames of each mapping.
    used: HashMap<MappingId, (u64, u64)>,
    /// Mappings of frames without a function.
    nameless: HashSet<MappingId>,
}

impl Symbols {
    pub(super) fn new(view: &View<'_>) -> Self {
        let mut strings = Names::default();
        strings.text("".into()); // number 0
        let (mut used, mut nameless) = (HashMap::new(), HashSet::new());
        for frame in view.samples().iter().flat_map(|sample| view.frames(sample.stack)) {
            let Some(mapping) = frame.mapping else { continue };
            if frame.function.is_empty() {
                nameless.insert(mapping);
            }
            let at @ 1.. = address(frame, view) else { continue };
            let (first, last) = used.entry(mapping).or_insert((at, at));
            (*first, *last) = (at.min(*first), at.max(*last));
        }
        Self {
            used,
            nameless,
            strings,
            mappings: Numbers::default(),
            locations: Numbers::default(),
            functions: Numbers::default(),
        }
    }

    /// Whether all frames of a mapping have functions.
    pub(super) fn has_functions(&self, id: MappingId) -> bool {
        !self.nameless.contains(&id)
    }

    /// A mapping that has the addresses of all its frames: the program may have mapped more of the file
    /// than is known. One without a place in memory is as it is.
    pub(super) fn mapping(&self, id: MappingId, view: &View<'_>) -> Mapping {
        const PAGE: u64 = 0xfff;
        let mut mapping = view.tables.mapping(id);
        let is_placed = mapping.end > 0 || mapping.is_kernel;
        let Some((first, last)) = self.used.get(&id).filter(|_| is_placed) else {
            return mapping;
        };
        // Positions in the kernel are addresses.
        if mapping.end == 0 {
            (mapping.start, mapping.offset) = (first & !PAGE, first & !PAGE);
        }
        let missing = mapping.start.saturating_sub(first & !PAGE).min(mapping.offset);
        mapping.start -= missing;
        mapping.offset -= missing;
        if *last >= mapping.end {
            mapping.end = (last | PAGE).saturating_add(1);
        }
        mapping
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

/// The address of a frame in memory. 0 if it is unknown.
pub(super) fn address(frame: &Frame, view: &View<'_>) -> u64 {
    match frame.mapping.map(|mapping| view.tables.mapping(mapping)) {
        Some(mapping) if frame.address > 0 => {
            mapping.start.wrapping_sub(mapping.offset).wrapping_add(frame.address)
        }
        _ => frame.address,
    }
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
