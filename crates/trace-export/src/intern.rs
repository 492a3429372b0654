//! Interning of names and stacks.

use hashbrown::{DefaultHashBuilder, HashTable};
use std::hash::{BuildHasher, Hash};
use std::num::NonZeroU64;

/// The identifier of a text in an [`Interner`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TextId(Place);

/// The identifier of a stack in an [`Interner`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StackId(Place);

/// The number of a table and an index in it, plus one: events that have it are copied, and a single
/// number stays in a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Place(NonZeroU64);

impl Place {
    #[inline]
    const fn new(epoch: u32, index: u32) -> Self {
        Self(NonZeroU64::MIN.saturating_add((epoch as u64) << 32 | index as u64))
    }

    #[inline]
    const fn epoch(self) -> u32 {
        ((self.0.get() - 1) >> 32) as u32
    }

    #[inline]
    const fn index(self) -> u32 {
        (self.0.get() - 1) as u32
    }
}

/// One frame of a stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Frame<'a> {
    /// The name of the function; empty if unknown.
    pub function: &'a [u8],
    /// The path of the source file; empty if unknown.
    pub file: &'a [u8],
    /// The line in the source file, from 1; 0 if unknown.
    pub line: u32,
    /// The program or library; empty if unknown.
    pub module: &'a [u8],
    /// The address, relative to the start of the module; 0 if unknown.
    pub address: u64,
}

impl<'a> Frame<'a> {
    /// A frame of `function`.
    pub const fn new(function: &'a [u8]) -> Self {
        Self { function, file: b"", line: 0, module: b"", address: 0 }
    }

    /// Sets the source file, and the line in it from 1 or 0.
    #[must_use]
    pub const fn source(self, file: &'a [u8], line: u32) -> Self {
        Self { file, line, ..self }
    }

    /// Sets the program or library, and the address relative to its start or 0.
    #[must_use]
    pub const fn module(self, module: &'a [u8], address: u64) -> Self {
        Self { module, address, ..self }
    }
}

/// A [`Frame`] with its texts interned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct FrameRecord {
    pub(crate) function: u32,
    pub(crate) file: u32,
    pub(crate) line: u32,
    pub(crate) module: u32,
    pub(crate) address: u64,
}

/// A table of texts and stacks of bounded size.
///
/// When the table exceeds its limit it is reset, and the full table is kept until the next reset.
/// So an identifier stays valid for at least one table of new names, which always includes the next
/// event. Check identifiers that are kept longer with [`Interner::holds_text`].
///
/// ```
/// let mut names = trace_export::Interner::default();
/// let id = names.text(b"main.main");
/// assert_eq!(names.text(b"main.main"), id);
/// assert!(names.holds_text(id));
/// ```
#[derive(Debug)]
pub struct Interner {
    epoch: u32,
    current: Tables,
    previous: Tables,
    /// The indexes in `current` of the texts and stacks of `previous` that were used again.
    moved_texts: Moved,
    moved_stacks: Moved,
    limit: usize,
    hash: DefaultHashBuilder,
    /// Frames of the stack being interned.
    scratch: Vec<u32>,
}

/// By index in the previous table: the index in the current one.
#[derive(Debug, Default)]
struct Moved(Vec<Option<u32>>);

impl Moved {
    #[inline]
    fn get(&self, previous: u32) -> Option<u32> {
        self.0.get(previous as usize).copied().flatten()
    }

    fn set(&mut self, previous: u32, current: u32) {
        let place = previous as usize;
        if place >= self.0.len() {
            self.0.resize(place + 1, None);
        }
        if let Some(entry) = self.0.get_mut(place) {
            *entry = Some(current);
        }
    }
}

#[derive(Debug, Default)]
struct Tables {
    texts: Slices<u8>,
    frames: Vec<FrameRecord>,
    frame_index: HashTable<u32>,
    /// The indexes of some frames by their addresses: most frames of a new stack are those of other
    /// stacks, and to compare their texts takes less than to find them. Empty until the first frame.
    recent: Vec<u32>,
    /// Indexes of frames.
    stacks: Slices<u32>,
}

impl Tables {
    /// Approximate number of bytes in use.
    fn size(&self) -> usize {
        self.texts.size() + 32 * self.frames.len() + self.stacks.size()
    }

    fn clear(&mut self) {
        self.texts.clear();
        self.frames.clear();
        self.frame_index.clear();
        self.recent.clear();
        self.stacks.clear();
    }

    /// The place of a frame among the recent ones.
    const fn place(frame: &Frame<'_>) -> usize {
        const BITS: u32 = 10;
        let mixed = (frame.address ^ frame.line as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed >> (u64::BITS - BITS)) as usize
    }

    /// The index of a frame that is among the recent ones.
    fn recent_frame(&self, frame: &Frame<'_>) -> Option<u32> {
        let index = *self.recent.get(Self::place(frame))?;
        let known = self.frames.get(index as usize)?;
        let is = |index, text| self.texts.get(index) == Some(text);
        let is_known = (known.address, known.line) == (frame.address, frame.line)
            && is(known.function, frame.function)
            && is(known.file, frame.file)
            && is(known.module, frame.module);
        is_known.then_some(index)
    }

    fn remember(&mut self, frame: &Frame<'_>, index: u32) {
        const NONE: u32 = u32::MAX;
        let place = Self::place(frame);
        if place >= self.recent.len() {
            self.recent.resize(place + 1, NONE);
        }
        if let Some(recent) = self.recent.get_mut(place) {
            *recent = index;
        }
    }
}

/// Concatenated slices, each stored once.
#[derive(Debug)]
struct Slices<T> {
    items: Vec<T>,
    spans: Vec<Span>,
    index: HashTable<u32>,
}

#[derive(Clone, Copy, Debug)]
struct Span {
    start: u32,
    len: u32,
}

impl Span {
    fn of<T>(self, items: &[T]) -> &[T] {
        items.get(self.start as usize..(self.start + self.len) as usize).unwrap_or_default()
    }
}

impl<T> Default for Slices<T> {
    fn default() -> Self {
        Self { items: Vec::new(), spans: Vec::new(), index: HashTable::new() }
    }
}

impl<T: Copy + Eq + Hash> Slices<T> {
    fn get(&self, index: u32) -> Option<&[T]> {
        Some(self.spans.get(index as usize)?.of(&self.items))
    }

    /// Returns the index of `slice`, which is added if it is new.
    #[expect(clippy::indexing_slicing, reason = "indexes of the table that has them")]
    fn intern(&mut self, slice: &[T], hasher: &impl BuildHasher) -> u32 {
        let Self { items, spans, index } = self;
        let hash = hasher.hash_one(slice);
        if let Some(&found) = index.find(hash, |&i| spans[i as usize].of(items) == slice) {
            return found;
        }
        let place = self.push(slice);
        let Self { items, spans, index } = self;
        index.insert_unique(hash, place, |&i| hasher.hash_one(spans[i as usize].of(items)));
        place
    }

    /// Adds `slice`, which [`Slices::intern`] will not find, and returns its index.
    fn push(&mut self, slice: &[T]) -> u32 {
        let place = self.spans.len() as u32;
        self.spans.push(Span { start: self.items.len() as u32, len: slice.len() as u32 });
        self.items.extend_from_slice(slice);
        place
    }

    /// Approximate number of bytes in use.
    fn size(&self) -> usize {
        size_of_val(&self.items[..]) + 16 * self.spans.len()
    }

    fn clear(&mut self) {
        self.items.clear();
        self.spans.clear();
        self.index.clear();
    }
}

impl Default for Interner {
    fn default() -> Self {
        Self::with_limit(Self::DEFAULT_LIMIT)
    }
}

impl Interner {
    /// The limit of [`Interner::default`], in bytes; the memory use is at most twice that.
    pub const DEFAULT_LIMIT: usize = 8 << 20;
    /// Longer texts are truncated to this number of bytes.
    pub const MAX_TEXT: usize = 64 << 10;
    /// Deeper stacks lose their outermost frames.
    pub const MAX_FRAMES: usize = 1024;

    /// Makes a table that is reset when it holds more than `limit` bytes.
    pub fn with_limit(limit: usize) -> Self {
        Self {
            epoch: 0,
            current: Tables::default(),
            previous: Tables::default(),
            moved_texts: Moved::default(),
            moved_stacks: Moved::default(),
            limit: limit.min(1 << 30),
            hash: DefaultHashBuilder::default(),
            scratch: Vec::new(),
        }
    }

    /// Interns `text`.
    pub fn text(&mut self, text: &[u8]) -> TextId {
        self.make_room();
        TextId(Place::new(self.epoch, self.text_index(text)))
    }

    /// Adds `text` without looking for an equal one. [`Interner::text`] does not find it.
    pub fn unique_text(&mut self, text: &[u8]) -> TextId {
        self.make_room();
        let text = text.get(..Self::MAX_TEXT).unwrap_or(text);
        TextId(Place::new(self.epoch, self.current.texts.push(text)))
    }

    /// Interns a stack, innermost frame first.
    pub fn stack<'a>(&mut self, frames: &mut dyn Iterator<Item = Frame<'a>>) -> StackId {
        self.make_room();
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.clear();
        for frame in frames.take(Self::MAX_FRAMES) {
            let index = self.current.recent_frame(&frame).unwrap_or_else(|| self.add_frame(&frame));
            scratch.push(index);
        }
        let index = self.current.stacks.intern(&scratch, &self.hash);
        self.scratch = scratch;
        StackId(Place::new(self.epoch, index))
    }

    /// Whether `id` is still valid.
    #[inline]
    pub const fn holds_text(&self, id: TextId) -> bool {
        self.holds(id.0.epoch())
    }

    /// Whether `id` is still valid.
    #[inline]
    pub const fn holds_stack(&self, id: StackId) -> bool {
        self.holds(id.0.epoch())
    }

    #[inline]
    const fn holds(&self, epoch: u32) -> bool {
        self.epoch.wrapping_sub(epoch) <= 1
    }

    /// Returns the text of `id`, if it is still valid.
    pub fn text_of(&self, id: TextId) -> Option<&[u8]> {
        self.tables(id.0.epoch())?.texts.get(id.0.index())
    }

    /// Returns the frames of the stack `id`, innermost first, if it is still valid.
    #[expect(clippy::indexing_slicing, reason = "the frames of a stack are in its table")]
    pub fn frames_of(&self, id: StackId) -> Option<impl ExactSizeIterator<Item = Frame<'_>>> {
        let tables = self.tables(id.0.epoch())?;
        let text = |index| tables.texts.get(index).unwrap_or_default();
        Some(tables.stacks.get(id.0.index())?.iter().map(move |&frame| {
            let FrameRecord { function, file, line, module, address } =
                tables.frames[frame as usize];
            Frame {
                function: text(function),
                file: text(file),
                line,
                module: text(module),
                address,
            }
        }))
    }

    fn tables(&self, epoch: u32) -> Option<&Tables> {
        match self.epoch.wrapping_sub(epoch) {
            0 => Some(&self.current),
            1 => Some(&self.previous),
            _ => None,
        }
    }

    /// The number of resets of the table.
    #[inline]
    pub(crate) const fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Returns the index of `id` in the current table; copies the text from the previous table if
    /// necessary.
    #[inline]
    pub(crate) fn current_text(&mut self, id: TextId) -> Option<u32> {
        if id.0.epoch() == self.epoch {
            return Some(id.0.index());
        }
        if !self.holds(id.0.epoch()) {
            return None;
        }
        self.moved_texts.get(id.0.index()).or_else(|| self.move_text(id.0.index()))
    }

    /// Copies a text of the previous table.
    #[cold]
    fn move_text(&mut self, previous: u32) -> Option<u32> {
        let tables = std::mem::take(&mut self.previous);
        let index = tables.texts.get(previous).map(|text| self.text_index(text));
        self.previous = tables;
        if let Some(index) = index {
            self.moved_texts.set(previous, index);
        }
        index
    }

    /// As [`Interner::current_text`], for a stack.
    #[inline]
    pub(crate) fn current_stack(&mut self, id: StackId) -> Option<u32> {
        if id.0.epoch() == self.epoch {
            return Some(id.0.index());
        }
        if !self.holds(id.0.epoch()) {
            return None;
        }
        self.moved_stacks.get(id.0.index()).or_else(|| self.move_stack(id.0.index()))
    }

    /// Copies a stack of the previous table.
    #[cold]
    #[expect(clippy::indexing_slicing, reason = "the frames of a stack are in its table")]
    fn move_stack(&mut self, place: u32) -> Option<u32> {
        let previous = std::mem::take(&mut self.previous);
        let index = previous.stacks.get(place).map(|frames| {
            let mut moved = std::mem::take(&mut self.scratch);
            moved.clear();
            for &frame in frames {
                let old = previous.frames[frame as usize];
                let mut text =
                    |index| self.text_index(previous.texts.get(index).unwrap_or_default());
                let record = FrameRecord {
                    function: text(old.function),
                    file: text(old.file),
                    module: text(old.module),
                    ..old
                };
                moved.push(self.frame_index(record));
            }
            let index = self.current.stacks.intern(&moved, &self.hash);
            self.scratch = moved;
            index
        });
        self.previous = previous;
        if let Some(index) = index {
            self.moved_stacks.set(place, index);
        }
        index
    }

    /// Interns a text in the current table without resetting it.
    pub(crate) fn text_in_place(&mut self, text: &[u8]) -> u32 {
        self.text_index(text)
    }

    /// Returns the text at an index of the current table.
    pub(crate) fn text_at(&self, index: u32) -> &[u8] {
        self.current.texts.get(index).unwrap_or_default()
    }

    /// Returns the frame at an index of the current table.
    #[expect(clippy::indexing_slicing, reason = "callers pass an index that this table returned")]
    pub(crate) fn frame_at(&self, index: u32) -> FrameRecord {
        self.current.frames[index as usize]
    }

    /// Returns the indexes of the frames of the stack at an index of the current table, innermost
    /// first.
    pub(crate) fn stack_at(&self, index: u32) -> &[u32] {
        self.current.stacks.get(index).unwrap_or_default()
    }

    fn make_room(&mut self) {
        if self.current.size() > self.limit {
            std::mem::swap(&mut self.current, &mut self.previous);
            self.current.clear();
            self.moved_texts.0.clear();
            self.moved_stacks.0.clear();
            self.epoch = self.epoch.wrapping_add(1);
        }
    }

    fn text_index(&mut self, text: &[u8]) -> u32 {
        let text = text.get(..Self::MAX_TEXT).unwrap_or(text);
        self.current.texts.intern(text, &self.hash)
    }

    fn add_frame(&mut self, frame: &Frame<'_>) -> u32 {
        let record = FrameRecord {
            function: self.text_index(frame.function),
            file: self.text_index(frame.file),
            line: frame.line,
            module: self.text_index(frame.module),
            address: frame.address,
        };
        let index = self.frame_index(record);
        self.current.remember(frame, index);
        index
    }

    #[expect(clippy::indexing_slicing, reason = "indexes of the table that has them")]
    fn frame_index(&mut self, frame: FrameRecord) -> u32 {
        let hash = self.hash.hash_one(frame);
        let tables = &mut self.current;
        let found = tables.frame_index.find(hash, |&i| tables.frames[i as usize] == frame).copied();
        found.unwrap_or_else(|| {
            let index = tables.frames.len() as u32;
            tables.frames.push(frame);
            tables
                .frame_index
                .insert_unique(hash, index, |&i| self.hash.hash_one(tables.frames[i as usize]));
            index
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn frame<'a>(function: &'a [u8], line: u32) -> Frame<'a> {
        Frame::new(function).source(b"a.go", line)
    }

    #[test]
    fn equal_stacks_are_one() {
        let mut names = Interner::default();
        let stack = [frame(b"leaf", 3), frame(b"main", 7)];
        let id = names.stack(&mut stack.into_iter());
        assert_eq!(names.stack(&mut stack.into_iter()), id);
        assert_ne!(names.stack(&mut stack.into_iter().rev()), id);
        assert_eq!(names.frames_of(id).unwrap().collect::<Vec<_>>(), stack);
    }

    /// Frames that differ in one field only, in any order, with as many as replace each other.
    #[test]
    fn frames_differ_in_any_field() {
        let mut names = Interner::default();
        let frames: Vec<Frame<'static>> = (0..5000)
            .flat_map(|address| {
                let plain = Frame::new(b"f").source(b"a.go", 1).module(b"m", address);
                let other = Frame::new(b"g").source(b"a.go", 1).module(b"m", address);
                let file = Frame::new(b"f").source(b"b.go", 1).module(b"m", address);
                [plain, other, file, Frame::new(b"f").source(b"a.go", 1).module(b"n", address)]
            })
            .collect();
        for _ in 0..2 {
            for frame in &frames {
                let id = names.stack(&mut std::iter::once(*frame));
                assert_eq!(names.frames_of(id).unwrap().collect::<Vec<_>>(), [*frame]);
            }
        }
        assert_eq!(names.current.frames.len(), frames.len(), "each is there once");
    }

    #[test]
    fn unique_texts_are_held_but_not_found() {
        let mut names = Interner::with_limit(1000);
        let unique = names.unique_text(b"G1 main.main");
        assert_eq!(names.text_of(unique), Some(&b"G1 main.main"[..]));
        let interned = names.text(b"G1 main.main");
        assert_ne!(interned, unique);
        assert_eq!(names.text(b"G1 main.main"), interned);
        // They count towards the limit.
        while names.holds_text(interned) {
            names.unique_text(b"another");
        }
        assert!(!names.holds_text(unique));
    }

    #[test]
    fn identifiers_outlive_one_restart_and_are_known_to_be_gone_after_two() {
        let mut names = Interner::with_limit(1000);
        let text = names.text(b"kept");
        let stack = names.stack(&mut [frame(b"kept", 1)].into_iter());
        let fill = |names: &mut Interner| {
            let epoch = names.epoch();
            for i in 0.. {
                names.text(format!("filler {i}").as_bytes());
                if names.epoch() != epoch {
                    return;
                }
            }
        };
        fill(&mut names);
        assert_eq!(names.text_of(text), Some(&b"kept"[..]));
        let moved = names.current_text(text).unwrap();
        assert_eq!(names.text_at(moved), b"kept");
        let moved = names.current_stack(stack).unwrap();
        let function = names.frame_at(names.stack_at(moved)[0]).function;
        assert_eq!(names.text_at(function), b"kept");
        // A second use copies nothing.
        let size = names.current.size();
        assert_eq!(names.current_stack(stack), Some(moved));
        assert!(names.current_text(text).is_some() && names.current.size() == size);
        fill(&mut names);
        assert!(!names.holds_text(text) && !names.holds_stack(stack));
        assert_eq!(names.current_text(text), None);
        assert_eq!(names.text_of(text), None);
    }

    proptest! {
        #[test]
        fn texts_are_found_again_while_the_table_holds_them(texts: Vec<Vec<u8>>) {
            let mut names = Interner::with_limit(500);
            let ids: Vec<_> = texts.iter().map(|t| names.text(t)).collect();
            for (text, id) in texts.iter().zip(ids) {
                prop_assert_eq!(names.text_of(id).is_some(), names.holds_text(id));
                if let Some(held) = names.text_of(id) {
                    prop_assert_eq!(held, &text[..]);
                }
            }
            prop_assert!(names.current.size() < 500 + 2 * 100 + 100);
        }
    }
}
