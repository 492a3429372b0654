use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::time::Duration;

use super::contention::{Wait, Waited, Waits};
use super::{GcReason, RuntimeEvent, number};
use crate::manifest::Provider;
use crate::method_map::{Frame, MethodMap};
use crate::stack_table::StackTable;
use crate::{Event, Timestamp};

/// The events of the runtime whose stacks [`EventStacks`] adds up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StackEvent {
    /// Allocation samples, weighted by bytes: keyword `GC` (0x1), level 5. Those of a process that has
    /// `AllocationSampled` events (keyword 0x80000000000, level 4) are only these.
    Allocation,
    /// Exceptions thrown, each of weight 1: keyword `Exception` (0x8000), level 2.
    Exception,
    /// Waits for a lock, weighted by nanoseconds: keyword `Contention` (0x4000), level 4. The end of a wait says
    /// how long it was (.NET Core 3.0); otherwise it is the time since its start. The stack is that of the
    /// start, or of the end if the start was lost.
    Contention,
    /// GCs triggered, each of weight 1: keyword `GC` (0x1), level 4.
    Gc,
}

/// Events with the same stack, on one thread.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StackTotal {
    /// The operating system's id of the process.
    pub pid: u64,
    /// The operating system's id of the thread.
    pub tid: u64,
    /// Type of the allocated object or of the exception, or the [`GcReason`]; empty for lock waits, and
    /// if the runtime does not report it.
    pub type_name: String,
    /// Events.
    pub count: u64,
    /// Sum of the weights, in the unit of the [`StackEvent`].
    pub weight: u64,
    /// Time of the first of the events.
    pub first: Timestamp,
    stack: u32,
    is_tick: bool,
}

/// Events with the same key are added up.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Key {
    pid: u64,
    tid: u64,
    stack: u32,
    type_name: String,
    is_tick: bool,
    /// See [`MethodMap::replaced`].
    replaced: u64,
}

/// Stacks of allocations, exceptions, lock waits or triggers of GCs, added up by thread, stack and type.
///
/// The stacks are resolved at the end, because a stream may name its methods late. Memory is
/// bounded by the number of different stacks.
///
/// ```no_run
/// use nettrace::analysis::{EventStacks, StackEvent};
///
/// let mut stacks = EventStacks::new(StackEvent::Allocation);
/// let mut reader = nettrace::Reader::new(std::fs::File::open("app.nettrace")?);
/// reader.for_each(|event| stacks.push(&event))?;
/// for total in stacks.totals() {
///     println!("{} bytes of {}", total.weight, total.type_name);
///     for frame in stacks.frames(total) {
///         println!("    {frame}");
///     }
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct EventStacks {
    wanted: StackEvent,
    methods: MethodMap,
    stacks: StackTable,
    /// Waits that have begun, with their stacks.
    waiting: Waits<u32>,
    index: HashMap<Key, usize>,
    totals: Vec<StackTotal>,
    /// Processes with `AllocationSampled` events.
    sampled: HashSet<u64>,
    undecodable: u64,
}

/// `AllocationSampled`
const SAMPLED: u32 = 303;

/// Waits that may be under way: more can only be if ends were lost.
const MAX_WAITING: usize = 1 << 16;

impl EventStacks {
    /// No stacks yet, of one kind of event.
    pub fn new(wanted: StackEvent) -> Self {
        Self {
            wanted,
            methods: MethodMap::default(),
            stacks: StackTable::default(),
            waiting: Waits::default(),
            index: HashMap::new(),
            totals: Vec::new(),
            sampled: HashSet::new(),
            undecodable: 0,
        }
    }

    /// Takes an event: those of the kind, and those that name methods. Events in time order give
    /// lock waits their right durations and stacks.
    pub fn push(&mut self, event: &Event<'_>) {
        /// `GCTriggered`: on the thread that triggers it. The later `GCStart` has no stack.
        const GC_TRIGGERED: u32 = 35;
        self.waiting.pass(event);
        if self.methods.push(event) {
            return;
        }
        let is_runtime = event.known() == Some(Provider::Runtime);
        if is_runtime && event.id() == GC_TRIGGERED && self.wanted == StackEvent::Gc {
            match number(event, "Reason") {
                Some(reason) => {
                    let reason = GcReason::from_code(reason as u32).to_string();
                    let stack = self.stacks.intern(event);
                    self.add(event, reason, 1, stack);
                }
                None => self.undecodable += 1,
            }
            return;
        }
        let decoded = match RuntimeEvent::decode(event) {
            Ok(Some(decoded)) => decoded,
            Ok(None) => return,
            Err(_) => {
                self.undecodable += 1;
                return;
            }
        };
        let (type_name, weight, stack) = match (decoded, self.wanted) {
            (RuntimeEvent::Allocation { type_name, amount, .. }, StackEvent::Allocation) => {
                let name = type_name.map(|name| name.to_string()).unwrap_or_default();
                (name, amount, self.stacks.intern(event))
            }
            (RuntimeEvent::Exception { type_name, .. }, StackEvent::Exception) => {
                (type_name.to_string(), 1, self.stacks.intern(event))
            }
            // The stack of a wait is that of its start.
            (RuntimeEvent::ContentionStart { .. }, StackEvent::Contention) => {
                if self.waiting.len() >= MAX_WAITING {
                    self.waiting.clear();
                }
                let stack = self.stacks.intern(event);
                self.waiting.begin(event, stack);
                return;
            }
            (RuntimeEvent::ContentionStop, StackEvent::Contention) => {
                let started = self.waiting.end(event);
                let Some((nanos, stack)) = self.wait(event, started) else { return };
                (String::new(), nanos, stack)
            }
            _ => return,
        };
        self.add(event, type_name, weight, stack);
    }

    /// The nanoseconds and the stack of the wait that ends, and the last start on its thread.
    fn wait(&mut self, stop: &Event<'_>, started: Option<Wait<u32>>) -> Option<(u64, u32)> {
        if let Some(waited) = Waited::of(stop) {
            // The end of a wait is in the same function as its start.
            let own = started.filter(|wait| waited.is_of(wait));
            let stack = own.map_or_else(|| self.stacks.intern(stop), |wait| wait.of);
            return Some((nanos(waited.duration), stack));
        }
        let Wait { start, of: stack, .. } = started?;
        Some((nanos(stop.time() - start), stack))
    }

    fn add(&mut self, event: &Event<'_>, type_name: String, weight: u64, stack: u32) {
        let (pid, tid) = (event.pid(), event.tid());
        let is_tick = self.wanted == StackEvent::Allocation && event.id() != SAMPLED;
        if self.wanted == StackEvent::Allocation && !is_tick {
            self.sampled.insert(pid);
        }
        let replaced = self.methods.replaced();
        let key = Key { pid, tid, stack, type_name, is_tick, replaced };
        let total = match self.index.entry(key) {
            Entry::Occupied(known) => self.totals.get_mut(*known.get()),
            Entry::Vacant(new) => {
                self.totals.push(StackTotal {
                    pid,
                    tid,
                    type_name: new.key().type_name.clone(),
                    count: 0,
                    weight: 0,
                    first: event.time(),
                    stack,
                    is_tick,
                });
                new.insert(self.totals.len() - 1);
                self.totals.last_mut()
            }
        };
        if let Some(total) = total {
            total.count += 1;
            total.weight = total.weight.saturating_add(weight);
        }
    }

    /// Number of events that were ignored because they cannot be decoded.
    pub const fn undecodable(&self) -> u64 {
        self.undecodable
    }

    /// The sums, in the order of their first events. Events that have the same stack before and after code
    /// was replaced by other code at its address are in two sums.
    pub fn totals(&self) -> impl Iterator<Item = &StackTotal> {
        // `AllocationSampled` estimates the same allocations as `GCAllocationTick`, without its bias.
        self.totals.iter().filter(|t| !(t.is_tick && self.sampled.contains(&t.pid)))
    }

    /// The frames of a sum, innermost first.
    pub fn frames(&self, total: &StackTotal) -> impl ExactSizeIterator<Item = Frame<'_>> + '_ {
        self.stacks.frames(&self.methods, total.pid, total.first, total.stack)
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
