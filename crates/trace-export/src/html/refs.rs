//! The entities, texts and stacks that a page refers to.

use super::json;
use super::processes::Processes;
use crate::cut;
use crate::frame::place;
use hashbrown::HashMap;
use std::borrow::Cow;
use trace_common::Timestamp;
use trace_timeline::{Attribute, EntityId, EntityKind, Frame, StackId, Tables, TextId, text};

/// Who ended a wait or has a CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum By {
    #[default]
    Unknown,
    HardIrq,
    SoftIrq,
    IdleCpu,
    Unrecorded,
    Entity(EntityId),
}

impl From<Option<EntityId>> for By {
    fn from(id: Option<EntityId>) -> Self {
        id.map_or(Self::Unknown, Self::Entity)
    }
}

/// A text of the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Text {
    Id(TextId),
    /// The name of a frame without a function: its file and the position in it.
    Place(TextId, u64),
}

impl Text {
    /// The name of a frame.
    pub(super) fn of(frame: &Frame, tables: &Tables) -> Self {
        if !frame.function.is_empty() {
            return Self::Id(frame.function);
        }
        let path = frame.mapping.map_or(TextId::EMPTY, |mapping| tables.mapping(mapping).path);
        Self::Place(path, frame.address)
    }

    fn get(self, tables: &Tables) -> Cow<'_, str> {
        match self {
            Self::Id(id) => tables.str(id),
            Self::Place(path, address) => place(&tables.str(path), address),
        }
    }
}

/// Bytes of an attribute: all processes of a container have the same cgroup, for example.
const ATTRIBUTE: usize = 1 << 12;

/// Numbers before those of entities: the variants of [`By`].
const RESERVED: u32 = 4;

/// Numbers by order of first use; 0 is none.
#[derive(Debug, Default)]
pub(super) struct Refs {
    entities: (HashMap<EntityId, u32>, Vec<EntityId>),
    texts: (HashMap<Text, u32>, Vec<Text>),
    stacks: (HashMap<StackId, u32>, Vec<StackId>),
}

fn number<T: Copy + Eq + std::hash::Hash>(
    (map, all): &mut (HashMap<T, u32>, Vec<T>),
    id: T,
) -> u32 {
    *map.entry(id).or_insert_with(|| {
        all.push(id);
        u32::try_from(all.len()).unwrap_or(u32::MAX)
    })
}

impl Refs {
    pub(super) fn entity(&mut self, id: Option<EntityId>) -> u32 {
        id.map_or(0, |id| number(&mut self.entities, id) + RESERVED)
    }

    pub(super) fn by(&mut self, by: By) -> u32 {
        match by {
            By::Unknown => 0,
            By::HardIrq => 1,
            By::SoftIrq => 2,
            By::IdleCpu => 3,
            By::Unrecorded => RESERVED,
            By::Entity(id) => self.entity(Some(id)),
        }
    }

    pub(super) fn text(&mut self, id: TextId) -> u32 {
        if id.is_empty() { 0 } else { number(&mut self.texts, Text::Id(id)) }
    }

    pub(super) fn name(&mut self, name: Text) -> u32 {
        match name {
            Text::Id(id) => self.text(id),
            place => number(&mut self.texts, place),
        }
    }

    pub(super) fn stack(&mut self, id: Option<StackId>) -> u32 {
        id.map_or(0, |id| number(&mut self.stacks, id))
    }

    /// `"texts":[…],"stacks":[…],"entities":[[kind, number, name, parent, process], …]`, with all that they
    /// refer to. Processes have a `process`, which is that of the kernel: it is the same of all that describe
    /// one. Times are relative to `start`.
    pub(super) fn write(&mut self, out: &mut String, tables: &Tables, start: Timestamp) {
        let (processes, mut of_kernel) = (Processes::new(tables), HashMap::new());
        // Parents are entities, too. The list grows while it is read.
        let mut at = 0;
        while let Some(id) = self.entities.1.get(at).copied() {
            let entity = tables.entities.get(id);
            self.entity(entity.and_then(|entity| entity.parent));
            self.text(entity.map_or(TextId::EMPTY, |entity| entity.name));
            if entity.is_some_and(|entity| entity.kind == EntityKind::Process) {
                of_kernel.insert(id, self.entity(Some(processes.of_kernel(id, tables))));
            }
            at += 1;
        }
        let entities = self.entities.1.clone();
        out.push_str("\"entities\":");
        json::list(out, &entities, |out, id| {
            let Some(entity) = tables.entities.get(*id) else { return out.push_str("[0,0,0,0]") };
            let (parent, name) = (self.entity(entity.parent), self.text(entity.name));
            let fields = [kind(entity.kind), entity.number, name.into(), parent.into()];
            let process = of_kernel.get(id).map(|process| i64::from(*process));
            json::list(out, fields.into_iter().chain(process), json::number);
        });
        out.push_str(",\"attributes\":");
        let attributes = [
            (Attribute::CommandLine, "command line"),
            (Attribute::Executable, "executable"),
            (Attribute::Cgroup, "cgroup"),
            (Attribute::Container, "container"),
            (Attribute::Runtime, "runtime"),
        ];
        let time = |at: Timestamp| text::duration(at.nanos_since(start));
        let known = entities.iter().zip(RESERVED + 1..).flat_map(|(id, number)| {
            let texts = attributes.iter().filter_map(move |(attribute, name)| {
                let value = tables.entities.attribute(*id, *attribute)?;
                Some((number, *name, cut::text(tables.get(value), ATTRIBUTE).into_owned()))
            });
            let process = tables.entities.get(*id);
            let process = process.filter(|entity| entity.kind == EntityKind::Process);
            let parent = process.and_then(|process| process.parent);
            let life = [
                ("parent", parent.map(|parent| short(parent, tables))),
                ("started at", process.and_then(|process| process.start).map(time)),
                ("ended at", process.and_then(|process| process.end).map(time)),
            ];
            texts.chain(
                life.into_iter().filter_map(move |(name, value)| Some((number, name, value?))),
            )
        });
        json::list(out, known, |out, (number, name, value)| {
            out.push('[');
            json::number(out, number);
            out.push(',');
            json::text(out, name);
            out.push(',');
            json::text(out, &value);
            out.push(']');
        });
        out.push_str(",\"stacks\":");
        let stacks = self.stacks.1.clone();
        json::list(out, stacks, |out, stack| {
            json::list(out, tables.frames(stack), |out, frame| {
                let name = self.name(Text::of(frame, tables));
                let fields = [name, self.text(frame.file), frame.line];
                json::list(out, fields, json::number);
            });
        });
        out.push_str(",\"texts\":");
        json::list(out, &self.texts.1, |out, text| json::text(out, &text.get(tables)));
    }
}

/// The name of an entity, which many can refer to.
pub(super) fn short(id: EntityId, tables: &Tables) -> String {
    cut::text(text::name(tables, id).as_bytes(), cut::NAME).into_owned()
}

/// The page's number of a kind.
const fn kind(kind: EntityKind) -> i64 {
    match kind {
        EntityKind::Cpu => 1,
        EntityKind::Process => 2,
        EntityKind::Thread => 3,
        EntityKind::GoThread => 4,
        EntityKind::Proc => 5,
        EntityKind::Goroutine => 6,
        EntityKind::DotnetThread => 7,
        EntityKind::Task => 8,
        EntityKind::Activity | EntityKind::Request => 9,
        EntityKind::Gc => 10,
        _ => 0,
    }
}
