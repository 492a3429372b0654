//! Texts, stacks and entities, which events refer to by identifier.

use crate::entity::{Entities, EntityId};
use hashbrown::{DefaultHashBuilder, HashTable};
use std::hash::{BuildHasher, Hash};

/// The identifier of a text in [`Tables`]. The default is the empty text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TextId(u32);

impl TextId {
    /// The empty text.
    pub const EMPTY: Self = Self(0);

    /// Whether it is the empty text.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

/// The identifier of a call stack in [`Tables`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StackId(u32);

/// The identifier of a span: see [`EventKind::Begin`](crate::EventKind::Begin).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SpanId(u32);

/// A frame of a call stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Frame {
    /// The function.
    pub function: TextId,
    /// The module or executable; empty if it is unknown.
    pub module: TextId,
    /// The source file; empty if it is unknown.
    pub file: TextId,
    /// The line in the source file; 0 if it is unknown.
    pub line: u32,
}

/// Limits of [`Tables`], so that no input makes them grow without bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TableLimits {
    /// Bytes of all texts. Further texts become `?`.
    pub text_bytes: usize,
    /// Frames of all stacks. Further stacks are dropped.
    pub frames: usize,
    /// Entities. Further entities, and their events, are dropped.
    pub entities: usize,
}

impl Default for TableLimits {
    /// 64 MiB of texts, 4 Mi frames (64 MiB), 2 Mi entities (96 MiB).
    fn default() -> Self {
        Self { text_bytes: 64 << 20, frames: 4 << 20, entities: 2 << 20 }
    }
}

/// Numbers of texts, stacks and entities above [`TableLimits`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Dropped {
    /// Uses of texts that are shown as `?`.
    pub texts: u64,
    /// Uses of stacks that are missing.
    pub stacks: u64,
    /// Entities that are missing with their events.
    pub entities: u64,
}

/// Texts, stacks and entities of a timeline. All sources of a timeline share one.
///
/// ```
/// use trace_timeline::Tables;
///
/// let mut tables = Tables::new();
/// let name = tables.text(b"main.worker");
/// assert_eq!(tables.text(b"main.worker"), name);
/// assert_eq!(tables.get(name), b"main.worker");
/// ```
#[derive(Debug)]
pub struct Tables {
    /// Processes, threads, goroutines and so on.
    pub entities: Entities,
    limits: TableLimits,
    hasher: DefaultHashBuilder,
    texts: Arena<u8>,
    stacks: Arena<Frame>,
    spans: u32,
    dropped: Dropped,
}

/// The text of everything above the limit.
const UNKNOWN: TextId = TextId(1);

impl Default for Tables {
    fn default() -> Self {
        Self::with_limits(TableLimits::default())
    }
}

impl Tables {
    /// Makes empty tables.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes empty tables with other limits.
    pub fn with_limits(limits: TableLimits) -> Self {
        let mut this = Self {
            entities: Entities::default(),
            limits,
            hasher: DefaultHashBuilder::default(),
            texts: Arena::default(),
            stacks: Arena::default(),
            spans: 0,
            dropped: Dropped::default(),
        };
        this.texts.intern(b"", &this.hasher, usize::MAX);
        this.texts.intern(b"?", &this.hasher, usize::MAX);
        this
    }

    /// Interns a text.
    pub fn text(&mut self, text: &[u8]) -> TextId {
        let found = self.texts.intern(text, &self.hasher, self.limits.text_bytes);
        self.dropped.texts += u64::from(found.is_none());
        found.map_or(UNKNOWN, TextId)
    }

    /// The text with this identifier.
    pub fn get(&self, id: TextId) -> &[u8] {
        self.texts.get(id.0)
    }

    /// The text with this identifier, with U+FFFD for bytes that are not UTF-8.
    pub fn str(&self, id: TextId) -> std::borrow::Cow<'_, str> {
        String::from_utf8_lossy(self.get(id))
    }

    /// Interns a stack, innermost frame first. `None` for an empty stack.
    pub fn stack(&mut self, frames: &[Frame]) -> Option<StackId> {
        if frames.is_empty() {
            return None;
        }
        let found = self.stacks.intern(frames, &self.hasher, self.limits.frames);
        self.dropped.stacks += u64::from(found.is_none());
        found.map(StackId)
    }

    /// The frames of a stack, innermost first.
    pub fn frames(&self, id: StackId) -> &[Frame] {
        self.stacks.get(id.0)
    }

    /// A span identifier that was not used before.
    pub fn new_span(&mut self) -> SpanId {
        self.spans = self.spans.wrapping_add(1);
        SpanId(self.spans)
    }

    /// Adds an entity. `None` above the limit: the caller drops its events.
    pub fn entity(&mut self, entity: crate::Entity) -> Option<EntityId> {
        let id = self.entities.add(entity, self.limits.entities);
        self.dropped.entities += u64::from(id.is_none());
        id
    }

    /// Numbers of texts, stacks and entities above the limits.
    pub const fn dropped(&self) -> Dropped {
        self.dropped
    }
}

/// Slices, each stored once.
#[derive(Debug)]
struct Arena<T> {
    items: Vec<T>,
    /// The end of each slice; the next one begins there.
    ends: Vec<usize>,
    index: HashTable<u32>,
}

impl<T> Default for Arena<T> {
    fn default() -> Self {
        Self { items: Vec::new(), ends: Vec::new(), index: HashTable::new() }
    }
}

impl<T: Copy + Eq + Hash> Arena<T> {
    fn get(&self, id: u32) -> &[T] {
        let id = id as usize;
        let begin = id.checked_sub(1).and_then(|before| self.ends.get(before)).copied();
        let end = self.ends.get(id).copied().unwrap_or(0);
        self.items.get(begin.unwrap_or(0)..end).unwrap_or_default()
    }

    /// The identifier of the slice; `None` if it is new and above the limit.
    fn intern(&mut self, slice: &[T], hasher: &DefaultHashBuilder, limit: usize) -> Option<u32> {
        let hash = hasher.hash_one(slice);
        if let Some(id) = self.index.find(hash, |id| self.get(*id) == slice) {
            return Some(*id);
        }
        // Short slices count too: each has an entry.
        let cost = self.items.len() + slice.len() + self.ends.len();
        let id = u32::try_from(self.ends.len()).ok()?;
        if cost > limit {
            return None;
        }
        self.items.extend_from_slice(slice);
        self.ends.push(self.items.len());
        let (items, ends) = (&self.items, &self.ends);
        let get = |id: u32| {
            let id = id as usize;
            let begin = id.checked_sub(1).and_then(|before| ends.get(before)).copied();
            let end = ends.get(id).copied().unwrap_or(0);
            items.get(begin.unwrap_or(0)..end).unwrap_or_default()
        };
        self.index.insert_unique(hash, id, |id| hasher.hash_one(get(*id)));
        Some(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_texts_and_stacks_have_one_identifier() {
        let mut tables = Tables::new();
        assert_eq!(tables.text(b""), TextId::EMPTY);
        let ids: Vec<TextId> =
            (0..1000).map(|n: i32| tables.text(n.to_string().as_bytes())).collect();
        for (n, id) in ids.iter().enumerate() {
            assert_eq!(tables.get(*id), n.to_string().as_bytes());
            assert_eq!(tables.text(n.to_string().as_bytes()), *id);
        }
        let frame = |n: usize| Frame { function: ids[n], ..Frame::default() };
        let a = tables.stack(&[frame(1), frame(2)]).unwrap();
        let b = tables.stack(&[frame(1)]).unwrap();
        assert_ne!(a, b);
        assert_eq!(tables.stack(&[frame(1), frame(2)]), Some(a));
        assert_eq!(tables.frames(a), [frame(1), frame(2)]);
        assert_eq!(tables.stack(&[]), None);
    }

    #[test]
    fn above_the_limits_uses_are_counted() {
        let mut tables =
            Tables::with_limits(TableLimits { text_bytes: 10, frames: 2, entities: 0 });
        let long = tables.text(b"twelve bytes");
        assert_eq!(tables.get(long), b"?");
        let kept = tables.text(b"ab");
        assert_eq!(tables.get(kept), b"ab");
        assert!(tables.stack(&[Frame::default(); 3]).is_none());
        assert_eq!((tables.dropped().texts, tables.dropped().stacks), (1, 1));
    }
}
