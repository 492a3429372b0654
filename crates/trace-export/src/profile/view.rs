//! A profile with the names of its stacks, as the formats need it.

use super::{Label, LabelSet, Labels, Measure, Profile, Sample};
use crate::frame::{module, place};
use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use trace_timeline::{Attribute, EntityId, EntityKind, Frame, MappingId, StackId, Tables, TextId};

pub(super) struct View<'a> {
    pub(super) profile: &'a Profile,
    pub(super) tables: &'a Tables,
    /// Whether the samples, or those of a profile beside it, are of several processes: these are the
    /// outermost frames then.
    has_processes: bool,
}

/// The value of a label.
pub(super) enum LabelText<'a> {
    Text(Cow<'a, str>),
    Number(i64),
}

impl<'a> View<'a> {
    pub(super) fn new(profile: &'a Profile, tables: &'a Tables) -> Self {
        let mut view = Self { profile, tables, has_processes: false };
        let mut processes = profile.samples.iter().filter_map(|sample| view.process(sample));
        let first = processes.next();
        let has_processes = processes.any(|process| Some(process) != first);
        view.has_processes = has_processes;
        view
    }

    /// Makes two views show processes alike, so that their stacks can be compared.
    pub(super) fn align(&mut self, other: &mut Self) {
        let has_some = |view: &Self| view.samples().iter().any(|s| view.process(s).is_some());
        let has_processes = match (has_some(self), has_some(other)) {
            (true, false) => self.has_roots_of(other),
            (false, true) => other.has_roots_of(self),
            _ => self.has_processes || other.has_processes,
        };
        (self.has_processes, other.has_processes) = (has_processes, has_processes);
    }

    /// Whether the outermost frames of another profile are processes of this one, as in folded stacks.
    fn has_roots_of(&self, other: &Self) -> bool {
        let ids: HashSet<EntityId> =
            self.samples().iter().filter_map(|sample| self.process(sample)).collect();
        let mut names: HashSet<String> =
            ids.into_iter().map(|id| process_name(id, self.tables)).collect();
        // A function can have the name of its process.
        for sample in self.samples() {
            if let Some(frame) = self.frames(sample.stack).last() {
                names.remove(&*self.name(frame));
            }
        }
        let mut roots = other.samples().iter().filter_map(|s| other.frames(s.stack).last());
        roots.any(|frame| names.contains(&*other.name(frame)))
    }

    pub(super) const fn measure(&self) -> &'a Measure {
        &self.profile.measure
    }

    pub(super) fn samples(&self) -> &'a [Sample] {
        &self.profile.samples
    }

    /// The frames of a stack, innermost first.
    pub(super) fn frames(&self, stack: Option<StackId>) -> &'a [Frame] {
        stack.map_or(&[], |stack| self.tables.frames(stack))
    }

    pub(super) fn text(&self, text: TextId) -> Cow<'a, str> {
        self.tables.str(text)
    }

    pub(super) fn process(&self, sample: &Sample) -> Option<EntityId> {
        let entities = self.profile.labels_of(sample.labels)?.entities;
        entities.into_iter().flatten().find_map(|id| self.tables.entities.process_of(id))
    }

    /// The file of the program: the executable of the processes with the most samples. Where it is
    /// not known, the file that most stacks begin in.
    pub(super) fn program(&self) -> Option<MappingId> {
        let mut samples: HashMap<(bool, MappingId), u64> = HashMap::new();
        for sample in self.samples() {
            let executable = self
                .process(sample)
                .and_then(|process| self.tables.entities.attribute(process, Attribute::Executable));
            let frames = self.frames(sample.stack).iter().rev();
            let mut files = frames
                .filter_map(|frame| frame.mapping)
                .filter(|mapping| !self.tables.mapping(*mapping).is_kernel);
            let is_program =
                |mapping: &MappingId| executable == Some(self.tables.mapping(*mapping).path);
            let program = files.clone().find(is_program);
            if let Some(file) = program.or_else(|| files.next()) {
                let sum = samples.entry((program.is_some(), file)).or_default();
                *sum = sum.saturating_add(sample.count);
            }
        }
        let most = samples.into_iter().max_by_key(|((is_program, file), count)| {
            (*is_program, *count, std::cmp::Reverse(*file))
        });
        most.map(|((_, file), _)| file)
    }

    /// The outermost frame of a sample: its process, if processes are shown.
    pub(super) fn root(&self, sample: &Sample) -> Option<String> {
        self.shown_process(self.process(sample))
    }

    /// The name of a process, if processes are shown.
    pub(super) fn shown_process(&self, process: Option<EntityId>) -> Option<String> {
        let process = process.filter(|_| self.has_processes)?;
        Some(process_name(process, self.tables))
    }

    /// The name of a frame: its function, or its module and address.
    pub(super) fn name(&self, frame: &Frame) -> Cow<'a, str> {
        frame_name(frame, self.tables, self.profile.has_modules)
    }

    /// The labels of a sample: those of what was sampled, and then those that were given. Programs can give
    /// labels of the same names.
    pub(super) fn labels(&self, labels: LabelSet) -> Vec<(Cow<'a, str>, LabelText<'a>)> {
        let Some(Labels { entities, others }) = self.profile.labels_of(labels) else {
            return Vec::new();
        };
        let given = others.iter().map(|(key, value)| {
            let value = match value {
                Label::Text(text) => LabelText::Text(self.text(*text)),
                Label::Number(number) => LabelText::Number(*number),
            };
            (self.text(*key), value)
        });
        let mut labels = Vec::new();
        let mut processes = entities.iter().flatten();
        let process = processes.find_map(|id| self.tables.entities.process_of(*id));
        if let Some(process) = process {
            labels.push((
                "process".into(),
                LabelText::Text(process_name(process, self.tables).into()),
            ));
            let number = self.tables.entities.get(process).map(|process| process.number);
            if let Some(pid) = number.filter(|pid| *pid >= 0) {
                labels.push(("pid".into(), LabelText::Number(pid)));
            }
            for (key, attribute) in
                [("cgroup", Attribute::Cgroup), ("container", Attribute::Container)]
            {
                if let Some(text) = self.tables.entities.attribute(process, attribute) {
                    labels.push((key.into(), LabelText::Text(self.text(text))));
                }
            }
        }
        for entity in entities.iter().flatten().filter_map(|id| self.tables.entities.get(*id)) {
            let key = match entity.kind {
                EntityKind::Goroutine => "goroutine",
                EntityKind::Thread | EntityKind::GoThread | EntityKind::DotnetThread => "thread",
                _ => continue,
            };
            labels.push((key.into(), LabelText::Number(entity.number)));
            let named = match entity.kind {
                EntityKind::Thread => "comm",
                EntityKind::Goroutine => "go_entry",
                _ => continue,
            };
            if !entity.name.is_empty() {
                labels.push((named.into(), LabelText::Text(self.text(entity.name))));
            }
        }
        labels.extend(given);
        labels
    }
}

/// The name of a process, or its number. One without either is an unknown process.
pub(super) fn process_name(id: EntityId, tables: &Tables) -> String {
    let process = tables.entities.get(id);
    match process.map(|process| (tables.str(process.name), process.number)) {
        Some((name, pid)) if name.is_empty() => match u32::try_from(pid) {
            Ok(pid) => format!("process {pid}"),
            // A Go trace does not record its process id.
            Err(_) => "unknown process".to_owned(),
        },
        Some((name, _)) => name.into_owned(),
        None => String::new(),
    }
}

/// The name of a frame: its function, or its module and address.
pub(super) fn frame_name<'a>(frame: &Frame, tables: &'a Tables, has_modules: bool) -> Cow<'a, str> {
    let function = tables.str(frame.function);
    let path = frame.mapping.map_or("".into(), |id| tables.str(tables.mapping(id).path));
    if function.is_empty() {
        return place(&path, frame.address);
    }
    let module = module(&path);
    if !has_modules || module.is_empty() {
        return function;
    }
    let module = [".dll", ".exe"].iter().find_map(|end| module.strip_suffix(end)).unwrap_or(module);
    format!("{module}!{function}").into()
}

/// Names of frames and other texts, each once, numbered from 0.
#[derive(Debug, Default)]
pub(super) struct Names {
    texts: Vec<String>,
    index: HashMap<String, u32>,
    /// Frames that were named before.
    frames: HashMap<(TextId, Option<MappingId>, u64), u32>,
}

impl Names {
    pub(super) fn text(&mut self, text: Cow<'_, str>) -> u32 {
        if let Some(known) = self.index.get(&*text) {
            return *known;
        }
        let next = self.texts.len() as u32;
        self.texts.push(text.clone().into_owned());
        self.index.insert(text.into_owned(), next);
        next
    }

    pub(super) fn frame(&mut self, frame: &Frame, view: &View<'_>) -> u32 {
        let address = if frame.function.is_empty() { frame.address } else { 0 };
        let key = (frame.function, frame.mapping, address);
        if let Some(known) = self.frames.get(&key) {
            return *known;
        }
        let name = self.text(view.name(frame));
        self.frames.insert(key, name);
        name
    }

    /// Makes the names ready for another profile, with other tables.
    pub(super) fn forget_frames(&mut self) {
        self.frames.clear();
    }

    /// The names of the frames of a sample, outermost first, below its process.
    pub(super) fn path(&mut self, sample: &Sample, view: &View<'_>) -> Vec<u32> {
        let root = view.root(sample).map(|root| self.text(root.into()));
        let frames = view.frames(sample.stack).iter().rev();
        let frames = frames.map(|frame| self.frame(frame, view));
        let mut path: Vec<u32> = frames.collect();
        path.splice(0..0, root);
        path
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &str> {
        self.texts.iter().map(String::as_str)
    }

    pub(super) fn get(&self, name: u32) -> &str {
        self.texts.get(name as usize).map_or("", |name| name)
    }
}
