//! Processes, threads, goroutines: what events happen to.

use crate::tables::TextId;
use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroU32;
use trace_common::Timestamp;

/// The identifier of an entity in [`Entities`].
///
/// Identifiers are never reused: a thread or goroutine that gets the number of an earlier one is
/// another entity.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntityId(NonZeroU32);

impl EntityId {
    /// The position in the table.
    pub(crate) const fn index(self) -> usize {
        self.0.get() as usize - 1
    }

    pub(crate) fn from_key(key: i64) -> Option<Self> {
        u32::try_from(key).ok().and_then(NonZeroU32::new).map(Self)
    }

    /// As a key of an [`IdMap`](trace_common::IdMap).
    pub(crate) fn key(self) -> i64 {
        self.0.get().into()
    }
}

impl fmt::Debug for EntityId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}

/// The kind of an entity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum EntityKind {
    /// A CPU. Its number is the kernel's.
    Cpu,
    /// A process. Its number is its process id.
    Process,
    /// A thread of the kernel. Its number is its thread id.
    Thread,
    /// A thread as the Go runtime knows it: an M. Its number is its thread id.
    GoThread,
    /// A P of the Go scheduler.
    Proc,
    /// A goroutine.
    Goroutine,
    /// A thread as the .NET runtime knows it. Its number is its thread id.
    DotnetThread,
    /// A task of Go's `runtime/trace`.
    Task,
    /// An activity of .NET: a pair of start and stop events.
    Activity,
}

/// A process, thread, goroutine and so on, with its lifetime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Entity {
    /// The kind.
    pub kind: EntityKind,
    /// The number that its creator gave it: a process or thread id, a goroutine id, …
    pub number: i64,
    /// The process of a thread, P, goroutine, task or activity; the parent of a process.
    pub parent: Option<EntityId>,
    /// The last name: of a thread its comm, of a goroutine its entry function, of a task its type.
    pub name: TextId,
    /// When it was created; `None` if it existed before the trace or the time is unknown.
    pub start: Option<Timestamp>,
    /// When it ended; `None` if it existed at the end of the trace or the time is unknown.
    pub end: Option<Timestamp>,
}

impl Entity {
    /// An entity of unknown start, without a name.
    pub const fn new(kind: EntityKind, number: i64) -> Self {
        Self { kind, number, parent: None, name: TextId::EMPTY, start: None, end: None }
    }

    /// Sets the process.
    #[must_use]
    pub const fn child_of(self, parent: Option<EntityId>) -> Self {
        Self { parent, ..self }
    }

    /// Sets the name.
    #[must_use]
    pub const fn named(self, name: TextId) -> Self {
        Self { name, ..self }
    }

    /// Sets the start.
    #[must_use]
    pub const fn started(self, at: Timestamp) -> Self {
        Self { start: Some(at), ..self }
    }
}

/// An attribute of an entity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Attribute {
    /// The command line of a process.
    CommandLine,
    /// The path of the executable of a process.
    Executable,
    /// The cgroup of a process.
    Cgroup,
    /// The container of a process.
    Container,
    /// The runtime of a process, with its version.
    Runtime,
}

/// All entities of a timeline.
#[derive(Debug, Default)]
pub struct Entities {
    all: Vec<Entity>,
    attributes: BTreeMap<(EntityId, Attribute), TextId>,
}

impl Entities {
    pub(crate) fn add(&mut self, entity: Entity, limit: usize) -> Option<EntityId> {
        if self.all.len() >= limit {
            return None;
        }
        let id = u32::try_from(self.all.len()).ok()?.checked_add(1).and_then(NonZeroU32::new)?;
        self.all.push(entity);
        Some(EntityId(id))
    }

    /// The entity with this identifier; `None` for an identifier of other tables.
    pub fn get(&self, id: EntityId) -> Option<&Entity> {
        self.all.get(id.index())
    }

    /// The entity with this identifier for modification.
    pub fn get_mut(&mut self, id: EntityId) -> Option<&mut Entity> {
        self.all.get_mut(id.index())
    }

    /// The kind of an entity.
    pub fn kind(&self, id: EntityId) -> Option<EntityKind> {
        self.get(id).map(|entity| entity.kind)
    }

    /// The process of an entity: itself if it is one.
    pub fn process_of(&self, id: EntityId) -> Option<EntityId> {
        let entity = self.get(id)?;
        if entity.kind == EntityKind::Process { Some(id) } else { entity.parent }
    }

    /// All entities, in the order in which the sources found them.
    pub fn iter(&self) -> impl Iterator<Item = (EntityId, &Entity)> {
        self.all.iter().zip(1..).filter_map(|(entity, number)| {
            NonZeroU32::new(number).map(|number| (EntityId(number), entity))
        })
    }

    /// Number of entities.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Sets an attribute.
    pub fn describe(&mut self, id: EntityId, attribute: Attribute, value: TextId) {
        self.attributes.insert((id, attribute), value);
    }

    /// An attribute.
    pub fn attribute(&self, id: EntityId, attribute: Attribute) -> Option<TextId> {
        self.attributes.get(&(id, attribute)).copied()
    }
}
