//! Texts, stacks and entities, which events refer to by identifier.

use crate::entity::{Entities, Entity, EntityId, EntityKind};
use crate::event::{Event, EventKind};
use hashbrown::{DefaultHashBuilder, HashMap, HashTable};
use std::hash::{BuildHasher, Hash};
use std::num::NonZeroU32;
use trace_common::Timestamp;

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

    /// The position in the table, from 0: for tables of a consumer.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// The identifier of a call stack in [`Tables`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StackId(NonZeroU32);

impl StackId {
    /// The position in the table, from 0: for tables of a consumer.
    pub const fn index(self) -> usize {
        self.0.get() as usize - 1
    }
}

/// The identifier of a span: see [`EventKind::Begin`](crate::EventKind::Begin).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SpanId(u32);

impl SpanId {
    /// Its number: spans are numbered in the order in which the sources begin them.
    pub const fn number(self) -> u32 {
        self.0
    }
}

/// The identifier of a [`Mapping`] in [`Tables`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MappingId(NonZeroU32);

/// A frame of a call stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Frame {
    /// The function.
    pub function: TextId,
    /// The executable, library or assembly that contains it, if it is known.
    pub mapping: Option<MappingId>,
    /// The source file; empty if it is unknown.
    pub file: TextId,
    /// The line in the source file; 0 if it is unknown.
    pub line: u32,
    /// The position in the file of the mapping, or the address relative to the start of a method that was
    /// compiled at run time; without a mapping the address in the process. 0 if it is unknown.
    pub address: u64,
}

/// A file with code that is mapped into a process: an executable, a library, an assembly, or the
/// kernel.
///
/// A file has one mapping for each of its parts with code, which is that of the first process: a
/// function has the same position in the file in all processes. The address of a frame in memory is
/// `start - offset + address`. Without a place in memory, `start`, `end` and `offset` are 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Mapping {
    /// The path or name.
    pub path: TextId,
    /// The build id as hexadecimal digits; empty if it is unknown.
    pub build_id: TextId,
    /// The first address.
    pub start: u64,
    /// The address after the last one; 0 if it is unknown.
    pub end: u64,
    /// The position in the file of the first address.
    pub offset: u64,
    /// Whether it is the kernel or one of its modules.
    pub is_kernel: bool,
}

/// The identifier of a [`SampledEvent`] in [`Tables`]. The default is [`NONE`](Self::NONE).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SampledEventId(u16);

impl SampledEventId {
    /// No event: the kind of the sample says all.
    pub const NONE: Self = Self(0);
}

/// An event of the kernel of which samples are taken, e.g. `cycles`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SampledEvent {
    /// Its name, as in `-e` of `perf record`.
    pub name: TextId,
    /// The unit of the weight of its samples: `ns` of a clock, empty for a number of events.
    pub unit: TextId,
    /// Whether the recording has samples of other events, too: they cannot be added up.
    pub has_others: bool,
}

/// Limits of [`Tables`], so that no input makes them grow without bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TableLimits {
    /// Bytes of all texts. Further texts become `?`.
    pub text_bytes: usize,
    /// Frames of all stacks. Further stacks are dropped.
    pub frames: usize,
    /// Mappings. Frames of further ones have none.
    pub mappings: usize,
    /// Entities. Further entities, and their events, are dropped.
    pub entities: usize,
}

impl Default for TableLimits {
    /// 64 MiB of texts, 4 Mi frames (96 MiB), 64 Ki mappings (3 MiB), 2 Mi entities (96 MiB).
    fn default() -> Self {
        Self { text_bytes: 64 << 20, frames: 4 << 20, mappings: 1 << 16, entities: 2 << 20 }
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
    /// Uses of mappings that are missing.
    pub mappings: u64,
    /// Entities that are missing with their events.
    pub entities: u64,
}

impl Dropped {
    /// The numbers since `before`.
    #[must_use]
    pub const fn since(self, before: Self) -> Self {
        Self {
            texts: self.texts.saturating_sub(before.texts),
            stacks: self.stacks.saturating_sub(before.stacks),
            mappings: self.mappings.saturating_sub(before.mappings),
            entities: self.entities.saturating_sub(before.entities),
        }
    }
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
    mappings: Vec<Mapping>,
    mapping_ids: HashMap<Mapping, MappingId>,
    sampled_events: Vec<SampledEvent>,
    /// Of names that begin with their source.
    short: HashMap<TextId, TextId>,
    spans: u32,
    /// What had not ended when the trace of its runtime did, by process, kind and number: with the end of the trace.
    #[cfg(any(feature = "dotnet", feature = "go"))]
    left: HashMap<(EntityId, EntityKind, i64), (EntityId, Timestamp)>,
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
            mappings: Vec::new(),
            mapping_ids: HashMap::new(),
            sampled_events: Vec::new(),
            short: HashMap::new(),
            spans: 0,
            #[cfg(any(feature = "dotnet", feature = "go"))]
            left: HashMap::new(),
            dropped: Dropped::default(),
        };
        this.texts.intern(b"", &this.hasher, usize::MAX);
        this.texts.intern(b"?", &this.hasher, usize::MAX);
        this
    }

    /// Sets the limits of what is added from now on.
    ///
    /// What is there already is kept, and what did not fit stays missing.
    pub const fn set_limits(&mut self, limits: TableLimits) {
        self.limits = limits;
    }

    /// Interns a text.
    pub fn text(&mut self, text: &[u8]) -> TextId {
        if text.is_empty() {
            return TextId::EMPTY;
        }
        let found = self.texts.intern(text, &self.hasher, self.limits.text_bytes);
        self.dropped.texts += u64::from(found.is_none());
        found.map_or(UNKNOWN, TextId)
    }

    /// The text with this identifier.
    #[inline]
    pub fn get(&self, id: TextId) -> &[u8] {
        self.texts.get(id.0)
    }

    /// The text with this identifier, with U+FFFD for bytes that are not UTF-8.
    pub fn str(&self, id: TextId) -> std::borrow::Cow<'_, str> {
        String::from_utf8_lossy(self.get(id))
    }

    /// Sets the short form of a name that begins with its source: that of an activity without the event
    /// source, for where this is shown beside it.
    ///
    /// ```
    /// use trace_timeline::Tables;
    ///
    /// let mut tables = Tables::new();
    /// let [request, path] = [&b"System.Net.Http/Request"[..], b"GET /users/42"].map(|name| tables.text(name));
    /// tables.set_short(request, b"Request");
    /// assert_eq!(tables.str(tables.short(request)), "Request");
    /// assert_eq!(tables.short(path), path, "it has no other form");
    /// ```
    pub fn set_short(&mut self, name: TextId, short: &[u8]) {
        if name != UNKNOWN && !self.short.contains_key(&name) {
            let short = self.text(short);
            self.short.insert(name, short);
        }
    }

    /// The short form of a name; the name itself without [one](Self::set_short).
    pub fn short(&self, name: TextId) -> TextId {
        self.short.get(&name).copied().unwrap_or(name)
    }

    /// Interns a stack, innermost frame first. `None` for an empty stack.
    pub fn stack(&mut self, frames: &[Frame]) -> Option<StackId> {
        if frames.is_empty() {
            return None;
        }
        let found = self.stacks.intern(frames, &self.hasher, self.limits.frames);
        let found = found.and_then(|id| NonZeroU32::new(id.checked_add(1)?));
        self.dropped.stacks += u64::from(found.is_none());
        found.map(StackId)
    }

    /// The frames of a stack, innermost first.
    pub fn frames(&self, id: StackId) -> &[Frame] {
        self.stacks.get(id.0.get() - 1)
    }

    /// Interns a mapping. `None` above the limit.
    pub fn add_mapping(&mut self, mapping: Mapping) -> Option<MappingId> {
        if let Some(known) = self.mapping_ids.get(&mapping) {
            return Some(*known);
        }
        let is_full = self.mappings.len() >= self.limits.mappings;
        let next = u32::try_from(self.mappings.len() + 1).ok().and_then(NonZeroU32::new);
        let Some(id) = next.filter(|_| !is_full).map(MappingId) else {
            self.dropped.mappings += 1;
            return None;
        };
        self.mappings.push(mapping);
        self.mapping_ids.insert(mapping, id);
        Some(id)
    }

    /// The mapping with this identifier; an empty one for an identifier of other tables.
    pub fn mapping(&self, id: MappingId) -> Mapping {
        self.mappings.get(id.0.get() as usize - 1).copied().unwrap_or_default()
    }

    /// Interns a sampled event. Above 65535 of them all further ones are the default.
    pub fn add_sampled_event(&mut self, event: SampledEvent) -> SampledEventId {
        let known = self.sampled_events.iter().position(|known| *known == event);
        let position = known.unwrap_or(self.sampled_events.len());
        let Ok(id) = u16::try_from(position + 1) else { return SampledEventId::default() };
        if known.is_none() {
            self.sampled_events.push(event);
        }
        SampledEventId(id)
    }

    /// The sampled event with this identifier; an empty one for the default.
    pub fn sampled_event(&self, id: SampledEventId) -> SampledEvent {
        let position = usize::from(id.0).checked_sub(1);
        position.and_then(|at| self.sampled_events.get(at)).copied().unwrap_or_default()
    }

    /// A span identifier that was not used before.
    pub fn new_span(&mut self) -> SpanId {
        self.spans = self.spans.wrapping_add(1);
        SpanId(self.spans)
    }

    /// Adds an entity. `None` above the limit: the caller drops its events. Its first event is a
    /// [`EventKind::Start`].
    ///
    /// All sources share processes, threads of the kernel and CPUs: this adds another one with the same
    /// number, and other sources do not know it. [`Tables::process`], [`Tables::thread`] and
    /// [`Tables::cpu`] find the known one.
    pub fn entity(&mut self, entity: Entity) -> Option<EntityId> {
        let id = self.entities.add(entity, self.limits.entities);
        self.dropped.entities += u64::from(id.is_none());
        id
    }

    /// Counts an entity that a source does not add, as its number is not possible.
    #[cfg(feature = "kernel")]
    pub(crate) const fn refuse(&mut self) {
        self.dropped.entities += 1;
    }

    /// The process with this process id at a time, for an event that follows. All sources share it. If no
    /// source knows it yet, it is added, and its [start](EventKind::Start) is appended to `out`. `None`
    /// above the limit.
    ///
    /// It is the last one with this id, unless that has ended before.
    pub fn process(&mut self, pid: u32, at: Timestamp, out: &mut Vec<Event>) -> Option<EntityId> {
        self.shared(Entity::new(EntityKind::Process, pid.into()), at, out)
    }

    /// The thread of the kernel with this thread id at a time: see [`Tables::process`]. A new one has no
    /// process until a recording of the scheduler says which.
    ///
    /// ```
    /// use trace_timeline::{Tables, Timestamp};
    ///
    /// let (mut tables, mut out) = (Tables::new(), Vec::new());
    /// let at = Timestamp::from_nanos(1_000);
    /// let thread = tables.thread(4711, at, &mut out);
    /// assert_eq!(out.len(), 1, "it was not known: its start comes first");
    /// assert_eq!(tables.thread(4711, at, &mut out), thread);
    /// assert_eq!(out.len(), 1);
    /// ```
    pub fn thread(&mut self, tid: u32, at: Timestamp, out: &mut Vec<Event>) -> Option<EntityId> {
        self.shared(Entity::new(EntityKind::Thread, tid.into()), at, out)
    }

    /// The CPU with this number: see [`Tables::process`].
    pub fn cpu(&mut self, number: i64, at: Timestamp, out: &mut Vec<Event>) -> Option<EntityId> {
        self.shared(Entity::new(EntityKind::Cpu, number), at, out)
    }

    /// The living entity with the kind and number of this one, which is added without one.
    pub(crate) fn shared(
        &mut self,
        entity: Entity,
        at: Timestamp,
        out: &mut Vec<Event>,
    ) -> Option<EntityId> {
        let is_alive = |known: &Entity| known.end.is_none_or(|end| end >= at);
        let known = self.entities.shared(entity.kind, entity.number);
        if let Some(known) = known.filter(|id| self.entities.get(*id).is_some_and(is_alive)) {
            return Some(known);
        }
        let entity = self.entity(entity)?;
        out.push(Event { time: at, kind: EventKind::Start { entity } });
        Some(entity)
    }

    /// The trace of a runtime has ended, and this entity of its process has not: a later trace can mention it.
    #[cfg(any(feature = "dotnet", feature = "go"))]
    pub(crate) fn leave(&mut self, id: EntityId, at: Timestamp) {
        let Some(entity) = self.entities.get(id).filter(|entity| entity.end.is_none()) else {
            return;
        };
        if let Some(process) = entity.parent {
            self.left.insert((process, entity.kind, entity.number), (id, at));
        }
    }

    /// The entity that a trace which has ended left with the process, kind and number of this one, which is first
    /// mentioned now. One with another name is another one.
    #[cfg(any(feature = "dotnet", feature = "go"))]
    pub(crate) fn take_left(&mut self, entity: &Entity, at: Timestamp) -> Option<EntityId> {
        if self.left.is_empty() {
            return None;
        }
        let key = (entity.parent?, entity.kind, entity.number);
        let (id, end) = *self.left.get(&key)?;
        let known = self.entities.get(id).filter(|known| known.end.is_none() && end <= at)?;
        let names = [known.name, entity.name];
        if names.iter().all(|name| !name.is_empty()) && known.name != entity.name {
            return None;
        }
        self.left.remove(&key);
        Some(id)
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
    /// Where each slice begins, and after the last one the end.
    starts: Vec<usize>,
    index: HashTable<u32>,
}

impl<T> Default for Arena<T> {
    fn default() -> Self {
        Self { items: Vec::new(), starts: vec![0], index: HashTable::new() }
    }
}

impl<T: Copy + Eq + Hash> Arena<T> {
    #[inline]
    fn get(&self, id: u32) -> &[T] {
        slice(&self.items, &self.starts, id)
    }

    /// The identifier of the slice; `None` if it is new and above the limit.
    fn intern(&mut self, new: &[T], hasher: &DefaultHashBuilder, limit: usize) -> Option<u32> {
        let hash = hasher.hash_one(new);
        if let Some(id) = self.index.find(hash, |id| self.get(*id) == new) {
            return Some(*id);
        }
        // Short slices count too: each has an entry.
        let count = self.starts.len() - 1;
        let cost = self.items.len() + new.len() + count;
        let id = u32::try_from(count).ok()?;
        if cost > limit {
            return None;
        }
        self.items.extend_from_slice(new);
        self.starts.push(self.items.len());
        let (items, starts) = (&self.items, &self.starts);
        self.index.insert_unique(hash, id, |id| hasher.hash_one(slice(items, starts, *id)));
        Some(id)
    }
}

#[inline]
fn slice<'a, T>(items: &'a [T], starts: &[usize], id: u32) -> &'a [T] {
    match starts.get(id as usize..) {
        Some([start, end, ..]) => items.get(*start..*end).unwrap_or_default(),
        _ => &[],
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
        let mut tables = Tables::with_limits(TableLimits {
            text_bytes: 10,
            frames: 2,
            mappings: 1,
            entities: 0,
        });
        let long = tables.text(b"twelve bytes");
        assert_eq!(tables.get(long), b"?");
        let kept = tables.text(b"ab");
        assert_eq!(tables.get(kept), b"ab");
        assert!(tables.stack(&[Frame::default(); 3]).is_none());
        let mapping = |start| Mapping { start, ..Mapping::default() };
        let kept = tables.add_mapping(mapping(1)).unwrap();
        assert_eq!(tables.add_mapping(mapping(1)), Some(kept));
        assert_eq!(tables.mapping(kept).start, 1);
        assert!(tables.add_mapping(mapping(2)).is_none());
        let Dropped { texts, stacks, mappings, .. } = tables.dropped();
        assert_eq!((texts, stacks, mappings), (1, 1, 1));
        let counts: Vec<u64> =
            crate::text::dropped(tables.dropped()).map(|(count, _)| count).collect();
        assert_eq!(counts, [1, 1, 1], "no entity is missing");
    }

    #[test]
    fn higher_limits_are_those_of_what_follows() {
        let mut limits = TableLimits { frames: 2, ..TableLimits::default() };
        let mut tables = Tables::with_limits(limits);
        let frame = |address| Frame { address, ..Frame::default() };
        let kept = tables.stack(&[frame(1)]).unwrap();
        assert_eq!(tables.stack(&[frame(2), frame(3)]), None);
        limits.frames = 4;
        tables.set_limits(limits);
        let before = tables.dropped();
        let added = tables.stack(&[frame(2), frame(3)]).unwrap();
        assert_eq!(tables.frames(kept), [frame(1)]);
        assert_eq!(tables.frames(added), [frame(2), frame(3)]);
        assert_eq!(tables.dropped().since(before), Dropped::default());
        assert_eq!(tables.stack(&[frame(4)]), None);
        assert_eq!(tables.dropped().stacks, 2);
        assert_eq!(tables.dropped().since(before).stacks, 1);
    }
}
