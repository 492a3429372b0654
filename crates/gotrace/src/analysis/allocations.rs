//! Heap objects by type, from the AllocFree experiment.

use super::Name;
use crate::event::{Event, EventKind, SyncPoint};
use crate::spec::{EventType, Experiment};
use bstr::BStr;
use std::collections::{BTreeMap, HashMap};
use trace_common::{Cursor, ReadError, SeededState, Timestamp};

/// A number of heap objects and their size in bytes, as the allocator counts it: the size of the
/// slots that they occupy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub struct HeapObjects {
    /// The number of objects.
    pub objects: u64,
    /// Their size in bytes.
    pub bytes: u64,
}

impl HeapObjects {
    const fn add(&mut self, bytes: u64) {
        self.objects = self.objects.saturating_add(1);
        self.bytes = self.bytes.saturating_add(bytes);
    }

    const fn remove(&mut self, bytes: u64) {
        self.objects = self.objects.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(bytes);
    }
}

/// The heap objects of one type.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TypeAllocations {
    /// Go's name of the type; for an array or slice that of its elements. Empty where the runtime
    /// has no type.
    pub name: Name,
    /// Live when tracing started.
    pub existing: HeapObjects,
    /// Allocated since then.
    pub allocated: HeapObjects,
    /// Freed since then. The GC frees objects when it sweeps.
    pub freed: HeapObjects,
    /// Live at the end.
    pub live: HeapObjects,
}

/// The live heap objects at one time.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HeapSnapshot {
    /// The time.
    pub time: Timestamp,
    /// By type: the order is that of [`AllocationsReport::types`], and types that appear later
    /// are missing.
    pub types: Vec<HeapObjects>,
}

/// The result of [`Allocations`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct AllocationsReport {
    /// Whether the trace has events of the experiment.
    pub is_recorded: bool,
    /// The types, in the order of first appearance.
    pub types: Vec<TypeAllocations>,
    /// The heap over time: up to 64 snapshots at equal distances, and one at the end.
    pub snapshots: Vec<HeapSnapshot>,
    /// Objects that were freed, but are unknown: their allocation was lost.
    pub unknown_frees: u64,
    /// Objects whose size is unknown, because their span is: they count with the size of their type.
    pub unknown_spans: u64,
    /// Objects that do not count because too many are live.
    pub dropped: u64,
    /// Spans that are unknown because there are too many. Their objects are in `unknown_spans`.
    pub dropped_spans: u64,
    /// Batches of types that cannot be decoded.
    pub damaged_batches: u64,
    /// The live objects that were live at a loss: they may have been freed in the part that is missing.
    pub uncertain: HeapObjects,
}

impl AllocationsReport {
    /// Live objects at the end, of all types.
    pub fn live(&self) -> HeapObjects {
        total(self.types.iter().map(|ty| ty.live))
    }
}

impl HeapSnapshot {
    /// Live objects of all types.
    pub fn total(&self) -> HeapObjects {
        total(self.types.iter().copied())
    }
}

fn total(each: impl Iterator<Item = HeapObjects>) -> HeapObjects {
    each.fold(HeapObjects::default(), |sum, each| HeapObjects {
        objects: sum.objects.saturating_add(each.objects),
        bytes: sum.bytes.saturating_add(each.bytes),
    })
}

/// Follows the objects of the heap by type, in traces of a program that runs with
/// `GODEBUG=traceallocfree=1` (Go ≥ 1.23).
///
/// Source: `src/runtime/traceallocfree.go` and `tracetype.go` of the Go distribution. Memory is
/// used for live objects, up to 8 Mi, for the spans of the heap, up to 4 Mi, and for distinct types, up
/// to 65 536.
///
/// ```
/// use gotrace::Reader;
/// use gotrace::analysis::Allocations;
///
/// # fn main() -> Result<(), gotrace::Error> {
/// # let file: &[u8] = include_bytes!("../../tests/data/shop.trace");
/// let mut reader = Reader::new(file)?;
/// let mut allocations = Allocations::new();
/// while let Some(event) = reader.next_event()? {
///     allocations.push(event);
/// }
/// let report = allocations.finish();
/// for ty in &report.types {
///     println!("{}: {} objects, {} bytes", ty.name, ty.live.objects, ty.live.bytes);
/// }
/// # assert!(!report.is_recorded);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Allocations {
    report: AllocationsReport,
    /// By name, the number of a type.
    numbers: HashMap<Name, u32>,
    /// By identifier in the generation: the number and the size of a type.
    types: HashMap<u64, (u32, u64), SeededState>,
    heap: Heap,
    /// By their first page.
    spans: BTreeMap<u64, Span>,
    max_spans: usize,
    live: HashMap<u64, Object, SeededState>,
    /// The number of losses so far.
    losses: u32,
    snapshots: Snapshots,
    last: Timestamp,
}

/// A live object.
#[derive(Clone, Copy, Debug)]
struct Object {
    /// The number of its type.
    ty: u32,
    /// The number of losses before it appeared.
    losses: u32,
    size: u64,
}

/// The units of addresses, from the trace.
#[derive(Clone, Copy, Debug)]
struct Heap {
    page_size: u64,
    object_align: u64,
}

impl Default for Heap {
    /// The values of all platforms so far.
    fn default() -> Self {
        Self { page_size: 8192, object_align: 8 }
    }
}

/// A span of the heap.
#[derive(Clone, Copy, Debug)]
struct Span {
    pages: u64,
    /// The size class of its objects; 0 for one large object.
    class: u64,
}

const MAX_LIVE: usize = 1 << 23;
const MAX_SPANS: usize = 1 << 22;
const MAX_TYPES: usize = 1 << 16;
/// The name of types above [`MAX_TYPES`].
const OTHERS: &str = "(other types)";

/// Bytes of an object by size class. Source: `src/internal/runtime/gc/sizeclasses.go`, the same
/// from Go 1.23 to 1.27.
const CLASSES: [u16; 68] = [
    0, 8, 16, 24, 32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240, 256, 288, 320,
    352, 384, 416, 448, 480, 512, 576, 640, 704, 768, 896, 1024, 1152, 1280, 1408, 1536, 1792,
    2048, 2304, 2688, 3072, 3200, 3456, 4096, 4864, 5376, 6144, 6528, 6784, 6912, 8192, 9472, 9728,
    10240, 10880, 12288, 13568, 14336, 16384, 18432, 19072, 20480, 21760, 24576, 27264, 28672,
    32768,
];

/// Snapshots at equal distances; the distance doubles when there are too many.
#[derive(Debug)]
struct Snapshots {
    list: Vec<HeapSnapshot>,
    /// In nanoseconds.
    distance: i64,
    next: Option<Timestamp>,
}

impl Snapshots {
    const MAX: usize = 64;

    const fn new() -> Self {
        Self { list: Vec::new(), distance: 1 << 16, next: None }
    }

    fn advance(&mut self, now: Timestamp, types: &[TypeAllocations]) {
        let Some(next) = self.next else {
            self.next = Some(now.saturating_add_nanos(self.distance));
            return;
        };
        if now < next {
            return;
        }
        self.list.push(snapshot(now, types));
        if self.list.len() > Self::MAX {
            let mut number = 0_usize;
            self.list.retain(|_| {
                number += 1;
                number % 2 == 0
            });
            self.distance = self.distance.saturating_mul(2);
        }
        self.next = Some(now.saturating_add_nanos(self.distance));
    }
}

fn snapshot(time: Timestamp, types: &[TypeAllocations]) -> HeapSnapshot {
    HeapSnapshot { time, types: types.iter().map(|ty| ty.live).collect() }
}

impl Default for Allocations {
    fn default() -> Self {
        Self::new()
    }
}

impl Allocations {
    /// Makes an analysis that has seen no event.
    pub fn new() -> Self {
        Self {
            report: AllocationsReport::default(),
            numbers: HashMap::new(),
            types: HashMap::default(),
            heap: Heap::default(),
            spans: BTreeMap::new(),
            max_spans: MAX_SPANS,
            live: HashMap::default(),
            losses: 0,
            snapshots: Snapshots::new(),
            last: Timestamp::default(),
        }
    }

    /// Processes the next event of the trace.
    pub fn push(&mut self, event: Event<'_>) {
        if event.record.restarts() {
            self.loss();
        }
        self.last = event.time();
        match event.kind() {
            EventKind::Sync => {
                if let Some(sync) = event.sync() {
                    self.sync(sync);
                }
            }
            EventKind::Experimental => self.experimental(event),
            _ => {}
        }
    }

    /// A part of the trace is missing here: see [`Reader::recover`](crate::Reader::recover).
    ///
    /// Objects that are live stay so until they are freed, or others are allocated in their places:
    /// [`AllocationsReport::uncertain`] counts those that are live at the end.
    pub const fn loss(&mut self) {
        self.losses = self.losses.saturating_add(1);
    }

    /// Counts from here: live objects are existing ones, and nothing is allocated or freed yet.
    pub fn count_from_here(&mut self) {
        for ty in &mut self.report.types {
            *ty = TypeAllocations {
                name: std::mem::take(&mut ty.name),
                existing: ty.live,
                live: ty.live,
                ..TypeAllocations::default()
            };
        }
        self.report.unknown_frees = 0;
        self.snapshots = Snapshots::new();
    }

    /// Completes the analysis after the last event.
    pub fn finish(self) -> AllocationsReport {
        let Self { mut report, live, losses, snapshots, last, .. } = self;
        report.snapshots = snapshots.list;
        if losses > 0 {
            let before = live.values().filter(|object| object.losses < losses);
            before.for_each(|object| report.uncertain.add(object.size));
        }
        if report.is_recorded {
            report.snapshots.push(snapshot(last, &report.types));
        }
        report
    }

    /// The types of the generation that begins.
    fn sync(&mut self, sync: SyncPoint<'_>) {
        self.types = HashMap::default(); // clearing it would visit the places of all that were there
        for batch in sync.experimental_batches() {
            if batch.experiment == Experiment::ALLOC_FREE && self.batch(batch.data).is_err() {
                self.report.damaged_batches += 1;
            }
        }
    }

    fn batch(&mut self, data: &[u8]) -> Result<(), ReadError> {
        let mut data = Cursor::new(data);
        match data.u8()? {
            0 => {
                while !data.is_empty() {
                    let id = data.uvarint()?;
                    let _address = data.uvarint()?;
                    let size = data.uvarint()?;
                    let _pointer_bytes = data.uvarint()?;
                    let length = usize::try_from(data.uvarint()?).unwrap_or(usize::MAX);
                    let name = data.bytes(length)?;
                    let number = self.number(BStr::new(name));
                    if self.types.len() < MAX_TYPES || self.types.contains_key(&id) {
                        self.types.insert(id, (number, size));
                    }
                }
            }
            1 => {
                let _min_heap_address = data.uvarint()?;
                let heap = Heap { page_size: data.uvarint()?, object_align: data.uvarint()? };
                if heap.page_size > 0 {
                    self.heap = heap;
                }
            }
            _ => self.report.damaged_batches += 1,
        }
        Ok(())
    }

    fn number(&mut self, name: &BStr) -> u32 {
        let mut name = Name::from(name);
        if let Some(number) = self.numbers.get(&name) {
            return *number;
        }
        if self.report.types.len() >= MAX_TYPES {
            name = Name::from(OTHERS);
            if let Some(number) = self.numbers.get(&name) {
                return *number;
            }
        }
        let number = self.report.types.len() as u32;
        self.report.types.push(TypeAllocations { name: name.clone(), ..Default::default() });
        self.numbers.insert(name, number);
        number
    }

    fn experimental(&mut self, event: Event<'_>) {
        use EventType as T;
        let [id, second, third, _] = event.record.args;
        self.report.is_recorded = true;
        self.snapshots.advance(event.time(), &self.report.types);
        match event.record.ty {
            // Spans of another kind, such as stacks, have an odd number.
            T::SPAN | T::SPAN_ALLOC if third & 1 == 0 => {
                // A span class is twice the size class, plus 1 if the objects have no pointers.
                self.span(id, Span { pages: second, class: third >> 2 });
            }
            T::SPAN_FREE => {
                self.spans.remove(&id);
            }
            T::HEAP_OBJECT | T::HEAP_OBJECT_ALLOC => {
                self.object(id, second, event.record.ty == T::HEAP_OBJECT);
            }
            T::HEAP_OBJECT_FREE => match self.live.remove(&self.slot(id).0) {
                Some(Object { ty, size, .. }) => {
                    if let Some(ty) = self.report.types.get_mut(ty as usize) {
                        ty.live.remove(size);
                        ty.freed.add(size);
                    }
                }
                None => self.report.unknown_frees += 1,
            },
            _ => {}
        }
    }

    fn span(&mut self, first: u64, span: Span) {
        if self.spans.len() < self.max_spans {
            self.spans.insert(first, span);
        } else if let Some(known) = self.spans.get_mut(&first) {
            *known = span;
        } else {
            self.report.dropped_spans += 1;
        }
    }

    fn object(&mut self, id: u64, ty: u64, exists: bool) {
        let (number, type_size) = match self.types.get(&ty) {
            Some(known) => *known,
            None => {
                // 0 is no type. Others are not known above the limit.
                let is_known = ty == 0 || self.types.len() < MAX_TYPES;
                let name = if is_known { "" } else { OTHERS };
                (self.number(BStr::new(name)), 0)
            }
        };
        let (id, size) = self.slot(id);
        let size = size.unwrap_or_else(|| {
            self.report.unknown_spans += 1;
            type_size
        });
        match self.live.get(&id).copied() {
            // The runtime lists each object once, when tracing starts.
            Some(_) if exists => return,
            // The tiny allocator puts several objects into one slot.
            Some(Object { ty, size, .. }) => {
                if let Some(ty) = self.report.types.get_mut(ty as usize) {
                    ty.live.remove(size);
                    ty.freed.add(size);
                }
            }
            None if self.live.len() >= MAX_LIVE => {
                self.report.dropped += 1;
                return;
            }
            None => {}
        }
        self.live.insert(id, Object { ty: number, losses: self.losses, size });
        if let Some(ty) = self.report.types.get_mut(number as usize) {
            ty.live.add(size);
            if exists { &mut ty.existing } else { &mut ty.allocated }.add(size);
        }
    }

    /// The slot of an object: its number, by address, and its size in bytes if that is known. An
    /// object may begin behind a header: it is allocated by one address and freed by another.
    fn slot(&self, id: u64) -> (u64, Option<u64>) {
        self.known_slot(id).map_or((id, None), |(id, size)| (id, Some(size)))
    }

    fn known_slot(&self, id: u64) -> Option<(u64, u64)> {
        let Heap { page_size, object_align } = self.heap;
        let address = id.checked_mul(object_align)?;
        let page = address / page_size;
        let (first, span) = self.spans.range(..=page).next_back()?;
        if page - first >= span.pages {
            return None;
        }
        let size = match span.class {
            0 => span.pages.checked_mul(page_size)?,
            class => CLASSES.get(usize::try_from(class).ok()?).map(|size| u64::from(*size))?,
        };
        let offset = address - first * page_size;
        Some(((address - offset % size) / object_align.max(1), size))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{ExperimentalBatch, Record};
    use crate::id::ThreadId;
    use crate::synthetic::{EventConfig, EventDetails, SyncDetails};
    use crate::table::Table;
    use std::sync::Arc;

    #[test]
    fn objects_of_types_above_the_limit_are_of_other_types() {
        let mut allocations = Allocations::new();
        let number = allocations.number(BStr::new("known"));
        allocations.types = (1..=MAX_TYPES as u64).map(|id| (id, (number, 8))).collect();
        for (id, ty) in [(1, 1), (2, 0), (3, u64::MAX)] {
            allocations.object(id, ty, false);
        }
        let names: Vec<String> =
            allocations.finish().types.iter().map(|ty| ty.name.to_string()).collect();
        assert_eq!(names, ["known", "", OTHERS]);
    }

    #[test]
    fn the_types_of_a_generation_are_limited() {
        let mut allocations = Allocations::new();
        let mut generation = |count: u64| {
            let mut data = vec![0]; // a batch of types
            for mut id in 0..count {
                while id >= 0x80 {
                    data.push(id as u8 | 0x80);
                    id >>= 7;
                }
                // The address, the size, the bytes with pointers, and the length of the name.
                data.extend([id as u8, 0, 8, 0, 0]);
            }
            let batch = ExperimentalBatch {
                experiment: Experiment::ALLOC_FREE,
                thread: ThreadId(1),
                data: &data,
            };
            let experimental_batches = vec![batch];
            let sync = SyncDetails { n: 1, experimental_batches, ..SyncDetails::default() };
            let event = EventConfig::new(EventDetails::Sync(sync)).build().unwrap();
            allocations.push(event.as_event());
            (allocations.types.len(), allocations.types.capacity())
        };
        assert_eq!(generation(200_000).0, MAX_TYPES);
        let (len, capacity) = generation(1);
        assert_eq!(len, 1);
        assert!(capacity < 1_000, "{capacity}");
        assert_eq!(allocations.finish().damaged_batches, 0);
    }

    #[test]
    fn spans_beyond_the_limit_are_counted() {
        let table = Arc::new(Table::new(1));
        let mut allocations = Allocations { max_spans: 2, ..Allocations::new() };
        let mut push = |ty, args| {
            allocations.push(Event { table: &table, record: &Record::new(ty, 0, args) });
        };
        // Each has one page, for 1024 objects of 8 bytes.
        let span = |page: u64| (EventType::SPAN_ALLOC, [page, 1, 1 << 2, 0]);
        let object = |page: u64| (EventType::HEAP_OBJECT_ALLOC, [page * 1024, 0, 0, 0]);
        let mut push_all = |events: &[(EventType, [u64; 4])]| {
            events.iter().for_each(|(ty, args)| push(*ty, *args));
        };
        push_all(&[1, 2, 3].map(span));
        push_all(&[1, 2, 3].map(object));
        // One of them is mentioned again, and the other one makes room.
        push_all(&[span(2), (EventType::SPAN_FREE, [1, 0, 0, 0]), span(4), object(4)]);
        assert_eq!(allocations.spans.keys().copied().collect::<Vec<_>>(), [2, 4]);
        let report = allocations.finish();
        assert_eq!((report.dropped_spans, report.unknown_spans), (1, 1));
        assert_eq!((report.live().objects, report.live().bytes), (4, 3 * 8));
    }
}
