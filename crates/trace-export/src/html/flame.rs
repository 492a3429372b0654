//! Call trees of samples and of waits.

use super::json;
use super::refs::{Refs, Text};
use hashbrown::HashMap;
use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use trace_timeline::{EntityId, SampledEventId, StackId, Tables, TextId};

/// What the stacks of a tree stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Of {
    CpuSamples,
    /// Samples of an event of the kernel, by the number of events.
    Events(SampledEventId),
    ManagedStacks,
    Allocations,
    OffCpu,
    Waits,
}

impl Of {
    fn name(self, tables: &Tables) -> Cow<'_, str> {
        match self {
            Self::CpuSamples => "CPU samples".into(),
            Self::Events(event) => tables.str(tables.sampled_event(event).name),
            Self::ManagedStacks => "managed stack samples".into(),
            Self::Allocations => "allocations".into(),
            Self::OffCpu => "off CPU".into(),
            Self::Waits => "waiting time of goroutines".into(),
        }
    }

    fn unit(self, tables: &Tables) -> &'static str {
        match self {
            Self::Events(event) if tables.sampled_event(event).unit.is_empty() => "events",
            Self::Events(_) => "ns",
            Self::CpuSamples | Self::ManagedStacks => "samples",
            Self::Allocations => "bytes",
            Self::OffCpu | Self::Waits => "ns",
        }
    }
}

/// Nodes of all trees: the rest of a deeper stack counts for its last node.
const MAX_NODES: usize = 1 << 17;

/// Sums by outermost frame and stack.
type Sums = HashMap<(TextId, StackId), u64>;

/// Sums by stack, and the trees of them at the end.
#[derive(Debug, Default)]
pub(super) struct Flames {
    sums: BTreeMap<(Of, Option<EntityId>), Sums>,
}

impl Flames {
    /// `root` is the outermost frame; empty for none.
    pub(super) fn add(
        &mut self,
        of: Of,
        process: Option<EntityId>,
        root: TextId,
        stack: StackId,
        weight: u64,
    ) {
        let sums = self.sums.entry((of, process)).or_default();
        let sum = sums.entry((root, stack)).or_default();
        *sum = sum.saturating_add(weight);
    }

    /// `[{"name","unit","process","nodes":[[parent, text, self], …]}, …]`: those of processes of
    /// interest, for which `of` is true, first, then by kind and weight. Returns the number of stacks whose inner frames are not there.
    pub(super) fn write(
        &self,
        out: &mut String,
        refs: &mut Refs,
        tables: &Tables,
        of: &dyn Fn(Option<EntityId>) -> bool,
    ) -> u64 {
        let (mut room, mut cut) = (MAX_NODES, 0);
        let mut trees: Vec<_> = self.sums.iter().collect();
        // The order of the map remains for those of the same weight.
        trees.sort_by_cached_key(|((kind, process), sums)| {
            let weight = sums.values().fold(0u64, |sum, weight| sum.saturating_add(*weight));
            (!of(*process), *kind, Reverse(weight))
        });
        json::list(out, trees, |out, ((kind, process), sums)| {
            let tree = Tree::new(sums, tables, &mut room);
            cut += tree.cut;
            out.push_str("{\"name\":");
            json::text(out, &kind.name(tables));
            out.push_str(",\"unit\":");
            json::text(out, kind.unit(tables));
            out.push_str(",\"process\":");
            json::number(out, refs.entity(*process));
            out.push_str(",\"nodes\":");
            json::list(out, &tree.nodes, |out, (parent, text, own)| {
                out.push('[');
                json::number(out, parent);
                out.push(',');
                json::number(out, refs.name(*text));
                out.push(',');
                json::number(out, own);
                out.push(']');
            });
            out.push('}');
        });
        cut
    }
}

/// A tree whose root is node 0.
#[derive(Default)]
struct Tree {
    /// Parent, function, and what belongs to the node itself.
    nodes: Vec<(u32, Text, u64)>,
    children: HashMap<(u32, Text), u32>,
    /// Stacks of which frames are missing.
    cut: u64,
}

impl Tree {
    fn new(sums: &Sums, tables: &Tables, room: &mut usize) -> Self {
        let mut this = Self { nodes: vec![(0, Text::Id(TextId::EMPTY), 0)], ..Self::default() };
        // The heaviest are complete. The order of a map is not deterministic.
        let mut sums: Vec<_> = sums.iter().collect();
        sums.sort_unstable_by_key(|(key, weight)| (Reverse(**weight), **key));
        for ((root, stack), weight) in sums {
            let frames = tables.frames(*stack).iter().rev().map(|frame| Text::of(frame, tables));
            let root = Some(*root).filter(|root| !root.is_empty()).map(Text::Id);
            let path = root.into_iter().chain(frames);
            let mut node = 0;
            for text in path {
                match this.child(node, text, room) {
                    Some(child) => node = child,
                    None => {
                        this.cut += 1;
                        break;
                    }
                }
            }
            if let Some((.., own)) = this.nodes.get_mut(node as usize) {
                *own = own.saturating_add(*weight);
            }
        }
        this
    }

    fn child(&mut self, parent: u32, text: Text, room: &mut usize) -> Option<u32> {
        if let Some(child) = self.children.get(&(parent, text)) {
            return Some(*child);
        }
        *room = room.checked_sub(1)?;
        let child = u32::try_from(self.nodes.len()).ok()?;
        self.nodes.push((parent, text, 0));
        self.children.insert((parent, text), child);
        Some(child)
    }
}
