use std::collections::{HashMap, HashSet};

use trace_common::Limits;

use super::number;
use crate::manifest::Provider;
use crate::{Event, Object, Timestamp, table_space};

/// A type of object.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HeapType {
    /// The runtime's type id.
    pub id: u64,
    /// Id of the module that defines it.
    pub module_id: u64,
    /// Name, with namespace.
    pub name: String,
    /// 1 finalizable, 2 delegate, 4 COM, 8 array.
    pub flags: u32,
}

/// An object on the heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HeapNode {
    /// Address.
    pub address: u64,
    /// Bytes.
    pub size: u64,
    /// Type id: see [`HeapSnapshot::type_of`].
    pub type_id: u64,
    /// Index of its first reference among those of the heap dump, or [`UNKNOWN`].
    first_edge: u64,
    /// Number of references that the object holds.
    pub edges: u64,
}

/// The first reference of an object after a missing one.
const UNKNOWN: u64 = u64::MAX;

/// A root: a reference from outside the heap to an object.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HeapRoot {
    /// Address of the object.
    pub address: u64,
    /// Kind of the reference.
    pub kind: RootKind,
    /// `GCRootFlags`: 1 pinning, 2 weak reference, 4 interior, 8 reference counted.
    pub flags: u32,
}

impl HeapRoot {
    /// Whether the root does not keep its object alive.
    pub fn is_weak(&self) -> bool {
        self.flags & 2 != 0
    }

    /// Whether the GC may not move the object.
    pub fn is_pinned(&self) -> bool {
        self.flags & 1 != 0
    }

    /// Whether the root is a reference-counted (COM) handle.
    pub fn is_ref_counted(&self) -> bool {
        self.flags & 8 != 0
    }
}

/// The kind of a root: `GCRootKind`, and the roots that have their own events.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum RootKind {
    /// A local variable or argument.
    Stack,
    /// The finalization queue.
    Finalizer,
    /// A GC handle.
    Handle,
    /// An object of an older generation.
    Older,
    /// A sized reference handle.
    SizedRef,
    /// The mark stack overflowed.
    Overflow,
    /// A dependent handle: an entry of a `ConditionalWeakTable` whose key is alive.
    DependentHandle,
    /// A COM callable wrapper.
    Com,
    /// A static variable, by the name of its field. The runtime does not report the type that declares it.
    StaticVar(String),
    /// A kind that this version of the crate does not know.
    Other(u8),
}

impl std::fmt::Display for RootKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Stack => "Stack",
            Self::Finalizer => "Finalizer",
            Self::Handle => "Handle",
            Self::Older => "Older",
            Self::SizedRef => "SizedRef",
            Self::Overflow => "Overflow",
            Self::DependentHandle => "DependentHandle",
            Self::Com => "COM",
            Self::StaticVar(name) => return write!(f, "static {name}"),
            Self::Other(kind) => return write!(f, "Other({kind})"),
        })
    }
}

/// Total number and size of the objects of a type.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TypeTotal {
    /// Name of the type, or its id if the stream has no name for it.
    pub name: String,
    /// Objects.
    pub count: u64,
    /// Bytes.
    pub size: u64,
}

/// A snapshot of the managed heap: types, objects, references, roots.
///
/// Needs the keywords `GCHeapDump`, `GCHeapCollect`, `GCHeapAndTypeNames` and `Type` (0x1980001
/// with `GC`) at level 5. Enabling them makes the runtime perform a full GC and dump its heap once.
/// If a stream has several heap dumps, the snapshot is the last one of the first process that has one.
#[derive(Debug, Default)]
pub struct HeapSnapshot {
    /// The process whose heap it is, once a part of a dump was read.
    process: Option<u64>,
    /// The time of the last part of the dump.
    time: Option<Timestamp>,
    /// The process whose types came first.
    typed: Option<u64>,
    /// By process and id: those of other processes until the process is known.
    types: HashMap<(u64, u64), HeapType>,
    /// Types of nodes without a description so far: it can follow the heap dump.
    undescribed: HashSet<u64>,
    nodes: Vec<HeapNode>,
    edges: Vec<u64>,
    roots: Vec<HeapRoot>,
    edges_expected: u64,
    /// An object is missing, and so is the number of its references: those of later objects are not known.
    has_node_gap: bool,
    /// Number of references before the first missing one: to which objects later ones belong is not known.
    known_edges: Option<usize>,
    bytes: usize,
    /// Bytes of the types, which all heap dumps share.
    type_bytes: usize,
    limits: Limits,
    dropped: u64,
    /// Number of the GC that started last, by process.
    walks: HashMap<u64, u32>,
    /// A GC has started, and none of its heap dump was read.
    is_new_gc: bool,
    complete: bool,
    lost_chunks: u64,
    next_node_chunk: u64,
    next_edge_chunk: u64,
    next_root_chunk: u64,
    next_dependent_chunk: u64,
}

/// Maximum number of processes whose GCs are tracked before a heap dump.
const MAX_PROCESSES: usize = 1 << 12;

impl HeapSnapshot {
    /// Creates an empty snapshot.
    pub fn new() -> Self {
        Self::with_limits(Limits::default())
    }

    /// Creates an empty snapshot that holds at most what `limits` allows.
    pub fn with_limits(limits: Limits) -> Self {
        Self { limits, ..Self::default() }
    }

    /// The operating system's id of the process whose heap it is; `None` if the stream has no heap dump.
    pub fn pid(&self) -> Option<u64> {
        self.process
    }

    /// The time of the last part of the heap dump; `None` if the stream has no heap dump.
    pub fn time(&self) -> Option<Timestamp> {
        self.time
    }

    /// Objects.
    pub fn nodes(&self) -> &[HeapNode] {
        &self.nodes
    }

    /// Addresses of the objects that an object refers to, as far as they are known: see
    /// [`unknown_references`](Self::unknown_references).
    pub fn edges(&self, node: &HeapNode) -> &[u64] {
        let first = usize::try_from(node.first_edge).unwrap_or(usize::MAX);
        let end = first.saturating_add(usize::try_from(node.edges).unwrap_or(usize::MAX));
        let known = self.known_edges.unwrap_or(self.edges.len());
        self.edges.get(first..end.min(known)).unwrap_or_default()
    }

    /// Number of objects whose references are not known, or not all: a part of the heap dump before them is
    /// missing, and only its order relates references and objects.
    pub fn unknown_references(&self) -> usize {
        let is_unknown = |node: &&HeapNode| (self.edges(node).len() as u64) < node.edges;
        self.nodes.iter().filter(is_unknown).count()
    }

    /// Total number of references.
    pub fn edge_count(&self) -> usize {
        self.edges.len()
    }

    /// References from outside the heap.
    pub fn roots(&self) -> &[HeapRoot] {
        &self.roots
    }

    /// The type of an object, if the stream describes it.
    pub fn type_of(&self, node: &HeapNode) -> Option<&HeapType> {
        self.type_by_id(node.type_id)
    }

    /// The type with this id, if the stream describes it.
    pub fn type_by_id(&self, id: u64) -> Option<&HeapType> {
        self.types.get(&(self.process.or(self.typed)?, id))
    }

    /// All known types.
    pub fn types(&self) -> impl Iterator<Item = &HeapType> {
        let process = self.process.or(self.typed);
        let types = self.types.iter().filter(move |((of, _), _)| Some(*of) == process);
        types.map(|(_, ty)| ty)
    }

    /// Whether the whole heap dump was read, no part is missing, and every type is described.
    pub fn is_complete(&self) -> bool {
        self.complete
            && self.lost_chunks == 0
            && self.dropped == 0
            && self.undescribed.is_empty()
            && self.edges_expected == self.edges.len() as u64
    }

    /// Number of types that objects have and the stream does not describe.
    pub fn undescribed_types(&self) -> usize {
        self.undescribed.len()
    }

    /// Number of missing parts of the heap dump, and number of items dropped because of the limits.
    pub fn missing(&self) -> (u64, u64) {
        (self.lost_chunks, self.dropped)
    }

    /// Bytes of all objects.
    pub fn total_size(&self) -> u64 {
        self.nodes.iter().fold(0, |sum, n| sum.saturating_add(n.size))
    }

    /// Objects by type, the largest total first.
    pub fn histogram(&self) -> Vec<TypeTotal> {
        let mut totals: HashMap<u64, (u64, u64)> = HashMap::new();
        for node in &self.nodes {
            let total = totals.entry(node.type_id).or_default();
            total.0 += 1;
            total.1 = total.1.saturating_add(node.size);
        }
        // Several ids can have one name, such as a type in several load contexts.
        let mut named: HashMap<String, (u64, u64)> = HashMap::new();
        for (id, (count, size)) in totals {
            let name = match self.type_by_id(id) {
                Some(t) if !t.name.is_empty() => t.name.clone(),
                _ => format!("[type {id:#x}]"),
            };
            let total = named.entry(name).or_default();
            total.0 += count;
            total.1 = total.1.saturating_add(size);
        }
        let mut list: Vec<_> = named
            .into_iter()
            .map(|(name, (count, size))| TypeTotal { name, count, size })
            .collect();
        list.sort_by(|a, b| b.size.cmp(&a.size).then_with(|| a.name.cmp(&b.name)));
        list
    }

    /// Processes an event.
    pub fn push(&mut self, event: &Event<'_>) {
        if event.known() != Some(Provider::Runtime) {
            return;
        }
        // An object at address 0, or a chunk with number 0, would be a guess.
        if self.event(event).is_none() {
            self.miss(event);
        }
    }

    /// An event, or an item of its list, is left out: what follows in lists of nodes or edges is not aligned.
    fn miss(&mut self, event: &Event<'_>) {
        self.dropped += 1;
        match event.id() {
            18 => self.has_node_gap = true,
            19 => self.lose_edges(),
            _ => {}
        }
    }

    /// Processes an event; `None` if it lacks a field.
    fn event(&mut self, event: &Event<'_>) -> Option<()> {
        let process = event.pid();
        if self.process.is_some_and(|known| known != process) {
            return Some(());
        }
        if matches!(event.id(), 16..=19 | 36 | 38) {
            if self.process.is_none() {
                self.begin_process(process);
            }
            self.begin_dump();
            self.time = Some(event.time());
        }
        match event.id() {
            // GCStart, GCEnd: a heap dump is within a GC
            1 => {
                self.is_new_gc = true;
                let number = number(event, "Count")? as u32;
                if self.walks.len() >= MAX_PROCESSES {
                    self.walks.clear();
                }
                self.walks.insert(process, number);
            }
            2 if self.walks.get(&process) == Some(&(number(event, "Count")? as u32)) => {
                self.complete |= !self.nodes.is_empty();
            }
            // BulkType
            15 => self.each(event, |this, v| this.describe(process, &v))?,
            // GCBulkRootEdge
            16 => {
                let chunk = number(event, "Index")?;
                self.lost_chunks += gap(&mut self.next_root_chunk, chunk);
                self.each(event, |this, v| {
                    let kind = match get(&v, "GCRootKind")? as u8 {
                        0 => RootKind::Stack,
                        1 => RootKind::Finalizer,
                        2 => RootKind::Handle,
                        3 => RootKind::Older,
                        4 => RootKind::SizedRef,
                        5 => RootKind::Overflow,
                        6 => RootKind::DependentHandle,
                        kind => RootKind::Other(kind),
                    };
                    let flags = get(&v, "GCRootFlag")? as u32;
                    this.root(get(&v, "RootedNodeAddress")?, kind, flags);
                    Some(())
                })?;
            }
            // GCBulkRootConditionalWeakTableElementEdge: an entry is alive while its key is alive
            17 => {
                let chunk = number(event, "Index")?;
                self.lost_chunks += gap(&mut self.next_dependent_chunk, chunk);
                self.each(event, |this, v| {
                    if get(&v, "GCKeyNodeID")? != 0 {
                        this.root(get(&v, "GCValueNodeID")?, RootKind::DependentHandle, 0);
                    }
                    Some(())
                })?;
            }
            // GCBulkNode
            18 => {
                let chunk = number(event, "Index")?;
                if chunk == 0 && !self.nodes.is_empty() {
                    self.restart();
                }
                self.has_node_gap |= chunk != self.next_node_chunk;
                self.lost_chunks += gap(&mut self.next_node_chunk, chunk);
                self.each(event, |this, v| {
                    // If it is left out.
                    let has_gap = std::mem::replace(&mut this.has_node_gap, true);
                    let (type_id, edges) = (get(&v, "TypeID")?, get(&v, "EdgeCount")?);
                    let (address, size) = (get(&v, "Address")?, get(&v, "Size")?);
                    if this.room(size_of::<HeapNode>()) {
                        if !this.types.contains_key(&(process, type_id)) {
                            this.undescribed.insert(type_id);
                        }
                        this.has_node_gap = has_gap;
                        let first_edge = if has_gap { UNKNOWN } else { this.edges_expected };
                        this.nodes.push(HeapNode { address, size, type_id, first_edge, edges });
                        this.edges_expected = this.edges_expected.saturating_add(edges);
                    }
                    Some(())
                })?;
            }
            // GCBulkEdge
            19 => {
                let chunk = number(event, "Index")?;
                if chunk == 0 && !self.edges.is_empty() {
                    self.restart();
                }
                if chunk != self.next_edge_chunk {
                    self.lose_edges();
                }
                self.lost_chunks += gap(&mut self.next_edge_chunk, chunk);
                self.each(event, |this, v| {
                    let target = get(&v, "Value")?;
                    match this.room(size_of::<u64>()) {
                        true => this.edges.push(target),
                        false => this.lose_edges(),
                    }
                    Some(())
                })?;
            }
            // GCBulkRootCCW
            36 => self.each(event, |this, v| {
                this.root(get(&v, "ObjectID")?, RootKind::Com, 0);
                Some(())
            })?,
            // GCBulkRootStaticVar
            38 => self.each(event, |this, v| {
                let name = v.get("FieldName")?.as_text()?.to_string();
                this.root(get(&v, "ObjectID")?, RootKind::StaticVar(name), 0);
                Some(())
            })?,
            _ => {}
        }
        Some(())
    }

    /// The description of a type; `None` if it lacks a field.
    fn describe(&mut self, process: u64, v: &Object<'_>) -> Option<()> {
        self.typed = self.typed.or(Some(process));
        let id = get(v, "TypeID")?;
        let name = v.get("Name")?.as_text()?.to_string();
        let (module_id, flags) = (get(v, "ModuleID")?, get(v, "Flags")? as u32);
        let ty = HeapType { id, module_id, name, flags };
        // A runtime repeats it, as for each finalized object.
        if self.types.get(&(process, id)) == Some(&ty) {
            return Some(());
        }
        let bytes = size_of::<HeapType>() + ty.name.len();
        if self.room(bytes) {
            self.type_bytes = self.type_bytes.saturating_add(bytes);
            self.undescribed.remove(&id);
            self.types.insert((process, id), ty);
        }
        Some(())
    }

    /// Begins with the heap of a process.
    fn begin_process(&mut self, process: u64) {
        self.process = Some(process);
        self.types.retain(|(of, _), _| *of == process);
        self.walks.retain(|of, _| *of == process);
    }

    /// Starts the next heap dump at the first part of it, whose roots come before its objects.
    fn begin_dump(&mut self) {
        let is_new_gc = std::mem::take(&mut self.is_new_gc);
        let is_empty = self.nodes.is_empty() && self.edges.is_empty() && self.roots.is_empty();
        if is_new_gc && !is_empty {
            self.restart();
        }
    }

    /// Starts the next heap dump, which replaces the previous one. Types are kept.
    fn restart(&mut self) {
        self.nodes.clear();
        table_space::empty(&mut self.undescribed);
        self.edges.clear();
        self.roots.clear();
        self.edges_expected = 0;
        self.has_node_gap = false;
        self.known_edges = None;
        self.next_node_chunk = 0;
        self.next_edge_chunk = 0;
        self.next_root_chunk = 0;
        self.next_dependent_chunk = 0;
        self.bytes = self.type_bytes;
        self.dropped = 0;
        self.lost_chunks = 0;
        self.complete = false;
    }

    /// Passes the items of an event on; counts those that lack a field. `None` if there is no list.
    fn each<'a>(
        &mut self,
        event: &Event<'a>,
        mut take: impl FnMut(&mut Self, Object<'a>) -> Option<()>,
    ) -> Option<()> {
        for value in event.field("Values")?.as_array()? {
            if value.as_object().and_then(|object| take(self, object)).is_none() {
                self.miss(event);
            }
        }
        Some(())
    }

    /// The next reference is missing.
    fn lose_edges(&mut self) {
        let known = self.edges.len();
        self.known_edges.get_or_insert(known);
    }

    fn root(&mut self, address: u64, kind: RootKind, flags: u32) {
        let name = if let RootKind::StaticVar(name) = &kind { name.len() } else { 0 };
        if self.room(size_of::<HeapRoot>() + name) {
            self.roots.push(HeapRoot { address, kind, flags });
        }
    }

    fn room(&mut self, bytes: usize) -> bool {
        self.bytes = self.bytes.saturating_add(bytes);
        let fits = self.bytes <= self.limits.max_buffer;
        self.dropped += u64::from(!fits);
        fits
    }
}

/// The number of parts that are missing before the part `chunk`, if `next` was expected.
fn gap(next: &mut u64, chunk: u64) -> u64 {
    let missing = chunk.saturating_sub(*next);
    *next = chunk.saturating_add(1);
    missing
}

fn get(object: &Object<'_>, name: &str) -> Option<u64> {
    object.get(name)?.as_u64()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each of many small heap dumps after a huge one would take the time of its types.
    #[test]
    fn the_next_heap_dump_has_no_space_of_the_last() {
        let mut snapshot = HeapSnapshot::new();
        snapshot.undescribed.extend(0..10_000);
        snapshot.restart();
        assert_eq!(snapshot.undescribed.capacity(), 0);
    }
}
