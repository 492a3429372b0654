//! Processes, threads, goroutines: what events happen to.

use crate::tables::TextId;
use hashbrown::HashMap;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::num::NonZeroU32;
use trace_common::Timestamp;

/// The number of a process whose process id is not known.
pub(crate) const UNKNOWN_PROCESS: i64 = -1;

/// The identifier of an entity in [`Entities`].
///
/// Identifiers are never reused: a thread or goroutine that gets the number of an earlier one is
/// another entity.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntityId(NonZeroU32);

impl EntityId {
    /// The position in the table, from 0: for tables of a consumer.
    pub const fn index(self) -> usize {
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
///
/// A region of Go's `runtime/trace` is no entity: it begins and ends on one goroutine, and no event
/// refers to it. It is a span of its goroutine with its task
/// ([`SpanKind::Region`](crate::SpanKind::Region)). Tasks, activities and requests are entities because
/// they pass from one goroutine or thread to another, and spans, samples and logs belong to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum EntityKind {
    /// A machine. Its name is the host name.
    Machine,
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
    /// A request that a .NET program serves or sends: an [`Activity`](Self::Activity) of ASP.NET
    /// Core's hosting or of `HttpClient`. Or one that an own source knows.
    Request,
    /// A garbage collection. Its number counts them in the process: for .NET since the process
    /// started, for Go since the trace started.
    Gc,
    /// A part of the heap of .NET. Its number is the generation; 3 is the large object heap, 4 the
    /// pinned object heap.
    Heap,
    /// The thread pool of .NET.
    ThreadPool,
}

impl EntityKind {
    /// A stable name: `go_thread`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Machine => "machine",
            Self::Cpu => "cpu",
            Self::Process => "process",
            Self::Thread => "thread",
            Self::GoThread => "go_thread",
            Self::Proc => "proc",
            Self::Goroutine => "goroutine",
            Self::DotnetThread => "dotnet_thread",
            Self::Task => "task",
            Self::Activity => "activity",
            Self::Request => "request",
            Self::Gc => "gc",
            Self::Heap => "heap",
            Self::ThreadPool => "thread_pool",
        }
    }
}

impl fmt::Display for EntityKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A process, thread, goroutine and so on, with its lifetime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Entity {
    /// The kind.
    pub kind: EntityKind,
    /// The number that its creator gave it: a process or thread id, a goroutine id, … A negative one is
    /// not known.
    pub number: i64,
    /// The process of a thread, P, goroutine, task, activity, GC, heap or thread pool; the parent
    /// of a process; the machine of a CPU.
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
    pub fn child_of(self, parent: impl Into<Option<EntityId>>) -> Self {
        Self { parent: parent.into(), ..self }
    }

    /// Sets the name.
    #[must_use]
    pub const fn name(self, name: TextId) -> Self {
        Self { name, ..self }
    }

    /// Sets the start.
    #[must_use]
    pub fn start(self, start: impl Into<Option<Timestamp>>) -> Self {
        Self { start: start.into(), ..self }
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
    /// The container of a process: its identifier.
    Container,
    /// The build id of the executable of a process, as hexadecimal digits.
    BuildId,
    /// The release of the kernel of a machine.
    KernelRelease,
    /// The architecture of a machine.
    Architecture,
    /// The runtime of a process: `Go` or `.NET`.
    Runtime,
}

/// Entities in a page: as many as bits in [`Page::forgotten`].
const PAGE: usize = 64;

/// Neighbours in the table. They were found at about the same time, and most end at about the same.
#[derive(Debug)]
struct Page {
    entities: Vec<Entity>,
    /// Those that are forgotten, by bit.
    forgotten: u64,
}

/// The entities of a timeline.
///
/// An entity stays in the table after its end, unless the consumer [forgets](Self::forget) it.
#[derive(Debug, Default)]
pub struct Entities {
    /// In pages, so that none moves when others are added. `None` if all of it is forgotten.
    pages: Vec<Option<Box<Page>>>,
    /// Number of entities so far, and of those that are forgotten.
    len: usize,
    forgotten: usize,
    /// Machines, CPUs, processes and threads by their number: the last one each.
    shared: HashMap<(EntityKind, i64), EntityId>,
    attributes: BTreeMap<(EntityId, Attribute), TextId>,
    /// The process of the first goroutine or .NET thread, and whether there are others.
    runtime: Option<EntityId>,
    has_runtimes: bool,
}

const fn is_shared(kind: EntityKind) -> bool {
    use EntityKind as Kind;
    matches!(kind, Kind::Machine | Kind::Cpu | Kind::Process | Kind::Thread)
}

impl Page {
    #[inline]
    const fn bit(id: EntityId) -> u64 {
        1 << (id.index() % PAGE)
    }

    #[inline]
    const fn is_forgotten(&self, id: EntityId) -> bool {
        self.forgotten & Self::bit(id) != 0
    }
}

impl Entities {
    pub(crate) fn add(&mut self, entity: Entity, limit: usize) -> Option<EntityId> {
        if self.len - self.forgotten >= limit {
            return None;
        }
        let id = u32::try_from(self.len).ok()?.checked_add(1).and_then(NonZeroU32::new)?;
        if self.len % PAGE == 0 {
            self.pages
                .push(Some(Box::new(Page { entities: Vec::with_capacity(PAGE), forgotten: 0 })));
        }
        self.pages.last_mut()?.as_mut()?.entities.push(entity);
        self.len += 1;
        let id = EntityId(id);
        if matches!(entity.kind, EntityKind::Goroutine | EntityKind::DotnetThread) {
            if let Some(process) = entity.parent {
                self.has_runtimes |= *self.runtime.get_or_insert(process) != process;
            }
        }
        if is_shared(entity.kind) && entity.number >= 0 {
            self.shared.insert((entity.kind, entity.number), id);
        }
        Some(id)
    }

    /// The entity with this identifier; `None` for one that is forgotten, and for an identifier of
    /// other tables.
    #[inline]
    pub fn get(&self, id: EntityId) -> Option<&Entity> {
        let page = self.pages.get(id.index() / PAGE)?.as_ref()?;
        page.entities.get(id.index() % PAGE).filter(|_| !page.is_forgotten(id))
    }

    /// The entity with this identifier for modification.
    #[inline]
    pub fn get_mut(&mut self, id: EntityId) -> Option<&mut Entity> {
        let page = self.pages.get_mut(id.index() / PAGE)?.as_mut()?;
        let is_forgotten = page.is_forgotten(id);
        page.entities.get_mut(id.index() % PAGE).filter(|_| !is_forgotten)
    }

    /// Forgets an entity that has ended: its memory is used again. For a consumer that does not
    /// look at entities after their end, so that a timeline of any length fits into memory.
    ///
    /// Only entities that one source alone knows are forgotten: goroutines, tasks, activities,
    /// requests and GCs. Nothing happens for others, and for those that have not ended. For threads
    /// and processes see [`KernelSource::forget`](crate::sources::kernel::KernelSource::forget).
    pub fn forget(&mut self, id: EntityId) {
        use EntityKind as Kind;
        let is_own = |entity: &&mut Entity| {
            entity.end.is_some()
                && matches!(
                    entity.kind,
                    Kind::Goroutine | Kind::Task | Kind::Activity | Kind::Request | Kind::Gc
                )
        };
        if self.get_mut(id).filter(is_own).is_some() {
            self.remove(id);
        }
    }

    /// Forgets a process or thread, its number and its attributes.
    #[cfg(feature = "kernel")]
    pub(crate) fn forget_shared(&mut self, id: EntityId) {
        let Some(key) = self.get(id).map(|entity| (entity.kind, entity.number)) else { return };
        if self.shared.get(&key) == Some(&id) {
            self.shared.remove(&key);
        }
        let first = (id, Attribute::CommandLine);
        let known = self.attributes.range(first..).take_while(|((of, _), _)| *of == id);
        for key in known.map(|(key, _)| *key).collect::<Vec<_>>() {
            self.attributes.remove(&key);
        }
        self.remove(id);
    }

    fn remove(&mut self, id: EntityId) {
        let Some(slot) = self.pages.get_mut(id.index() / PAGE) else { return };
        let Some(page) = slot else { return };
        page.forgotten |= Page::bit(id);
        self.forgotten += 1;
        if page.forgotten == u64::MAX {
            *slot = None;
        }
    }

    /// The last process with this process id. All sources of a timeline share it.
    pub fn process(&self, pid: u32) -> Option<EntityId> {
        self.shared(EntityKind::Process, pid.into())
    }

    /// The last thread of the kernel with this thread id. All sources of a timeline share it. A thread as
    /// a runtime knows it is another entity.
    pub fn thread(&self, tid: u32) -> Option<EntityId> {
        self.shared(EntityKind::Thread, tid.into())
    }

    /// The CPU with this number. All sources of a timeline share it.
    pub fn cpu(&self, number: i64) -> Option<EntityId> {
        self.shared(EntityKind::Cpu, number)
    }

    /// The last machine, CPU, process or thread of the kernel with this number. All sources of a
    /// timeline share them.
    pub(crate) fn shared(&self, kind: EntityKind, number: i64) -> Option<EntityId> {
        self.shared.get(&(kind, number)).copied()
    }

    /// The kind of an entity.
    #[inline]
    pub fn kind(&self, id: EntityId) -> Option<EntityKind> {
        self.get(id).map(|entity| entity.kind)
    }

    /// The process of an entity: itself if it is one. CPUs and machines have none.
    #[inline]
    pub fn process_of(&self, id: EntityId) -> Option<EntityId> {
        let entity = self.get(id)?;
        match entity.kind {
            EntityKind::Process => Some(id),
            // The parent of a CPU is its machine.
            EntityKind::Cpu | EntityKind::Machine => None,
            _ => entity.parent,
        }
    }

    /// Whether goroutines and .NET threads of several processes were added so far: their numbers alone do
    /// not say which one is meant.
    pub const fn has_several_runtimes(&self) -> bool {
        self.has_runtimes
    }

    /// The processes with this process id, and all their descendants.
    ///
    /// A process can be in the table before its parent: the trace of a runtime names its process, and
    /// the kernel's records say later which process is the parent.
    pub fn family(&self, pid: u32) -> BTreeSet<EntityId> {
        let mut children: HashMap<EntityId, Vec<EntityId>> = HashMap::new();
        let mut found = Vec::new();
        for (id, process) in self.iter().filter(|(_, e)| e.kind == EntityKind::Process) {
            if process.number == i64::from(pid) {
                found.push(id);
            }
            if let Some(parent) = process.parent {
                children.entry(parent).or_default().push(id);
            }
        }
        let mut family = BTreeSet::new();
        while let Some(id) = found.pop() {
            if family.insert(id) {
                found.extend(children.remove(&id).into_iter().flatten());
            }
        }
        family
    }

    /// All entities that are not forgotten, in the order in which the sources found them.
    pub fn iter(&self) -> impl Iterator<Item = (EntityId, &Entity)> {
        self.pages.iter().zip(0u32..).flat_map(|(page, number)| {
            let entities = page.iter().flat_map(|page| &page.entities);
            let ids = (number * PAGE as u32 + 1..).filter_map(NonZeroU32::new).map(EntityId);
            let is_kept = |id: &EntityId| page.as_ref().is_some_and(|page| !page.is_forgotten(*id));
            ids.zip(entities).filter(move |(id, _)| is_kept(id))
        })
    }

    /// Number of entities, without those that are forgotten.
    pub const fn len(&self) -> usize {
        self.len - self.forgotten
    }

    /// Whether there is none.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Sets an attribute; the empty text removes it.
    pub fn describe(&mut self, id: EntityId, attribute: Attribute, value: TextId) {
        if value.is_empty() {
            self.attributes.remove(&(id, attribute));
        } else {
            self.attributes.insert((id, attribute), value);
        }
    }

    /// An attribute.
    pub fn attribute(&self, id: EntityId, attribute: Attribute) -> Option<TextId> {
        self.attributes.get(&(id, attribute)).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process id that is used again, a cycle, and children that are in the table before their parents.
    #[test]
    fn a_family_is_found_in_any_order() {
        let mut entities = Entities::default();
        let mut process = |pid, parent| {
            let process = Entity::new(EntityKind::Process, pid).child_of(parent);
            entities.add(process, usize::MAX).unwrap()
        };
        let grandchild = process(3, None);
        let child = process(2, None);
        let root = process(1, None);
        let other = process(2, None);
        let of_other = process(4, Some(other));
        let cycle = [5, 6].map(|pid| process(pid, None));
        let mut adopt = |id, parent| entities.get_mut(id).unwrap().parent = Some(parent);
        adopt(child, root);
        adopt(grandchild, child);
        adopt(cycle[0], cycle[1]);
        adopt(cycle[1], cycle[0]);
        assert_eq!(entities.family(1), BTreeSet::from([grandchild, child, root]));
        assert_eq!(entities.family(4), BTreeSet::from([of_other]));
        assert_eq!(entities.family(5), BTreeSet::from(cycle));
        assert!(entities.family(7).is_empty());
        // A long line of descendants.
        let mut last = root;
        for pid in 100..400 {
            let process = Entity::new(EntityKind::Process, pid).child_of(Some(last));
            last = entities.add(process, usize::MAX).unwrap();
        }
        assert_eq!(entities.family(1).len(), 3 + 300);
    }

    #[test]
    fn runtimes_of_several_processes_are_noticed() {
        let mut entities = Entities::default();
        let mut add = |kind, parent, is_noticed| {
            let id = entities.add(Entity::new(kind, 1).child_of(parent), usize::MAX).unwrap();
            assert_eq!(entities.has_several_runtimes(), is_noticed);
            id
        };
        let [first, second] = [(); 2].map(|()| add(EntityKind::Process, None, false));
        for kind in [EntityKind::Goroutine, EntityKind::DotnetThread] {
            add(kind, Some(first), false);
        }
        add(EntityKind::Thread, Some(second), false);
        add(EntityKind::Goroutine, None, false);
        add(EntityKind::DotnetThread, Some(second), true);
    }

    #[test]
    fn a_machine_is_no_process_of_its_cpus() {
        let mut entities = Entities::default();
        let mut add =
            |kind, parent| entities.add(Entity::new(kind, 1).child_of(parent), usize::MAX).unwrap();
        let machine = add(EntityKind::Machine, None);
        let cpu = add(EntityKind::Cpu, Some(machine));
        let parent = add(EntityKind::Process, None);
        let process = add(EntityKind::Process, Some(parent));
        let thread = add(EntityKind::Thread, Some(process));
        let found = [machine, cpu, process, thread].map(|id| entities.process_of(id));
        assert_eq!(found, [None, None, Some(process), Some(process)]);
        assert_eq!(entities.get(cpu).unwrap().parent, Some(machine));
    }

    #[test]
    fn forgotten_entities_are_gone_and_their_numbers_are_not_used_again() {
        const LIVE: usize = 3;
        let mut entities = Entities::default();
        let process = entities.add(Entity::new(EntityKind::Process, 1), usize::MAX).unwrap();
        let mut last = process;
        for number in 0..10 * PAGE as i64 {
            let id = entities.add(Entity::new(EntityKind::Goroutine, number), 1 + LIVE).unwrap();
            assert!(id > last);
            last = id;
            entities.forget(id);
            assert_eq!(
                entities.get(id).map(|known| known.number),
                Some(number),
                "it has not ended"
            );
            if number >= LIVE as i64 - 1 {
                let ended = EntityId::from_key(id.key() - LIVE as i64 + 1).unwrap();
                entities.get_mut(ended).unwrap().end = Some(Timestamp::from_nanos(number));
                entities.forget(ended);
                entities.forget(ended);
                assert!(entities.get(ended).is_none() && entities.get_mut(ended).is_none());
            }
            assert!(entities.len() <= 1 + LIVE);
            assert_eq!(entities.iter().count(), entities.len());
            assert!(entities.iter().all(|(id, entity)| entities.get(id) == Some(entity)));
        }
        assert!(entities.add(Entity::new(EntityKind::Goroutine, -1), entities.len()).is_none());
        let kept = entities.pages.iter().flatten().count();
        assert!(kept <= 3, "{kept} pages are kept: the first, which has the process, and the last");
        entities.get_mut(process).unwrap().end = Some(Timestamp::default());
        entities.forget(process);
        assert!(entities.get(process).is_some(), "other sources may refer to it");
    }
}
