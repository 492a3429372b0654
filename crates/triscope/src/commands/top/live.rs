//! The samples of an interval, counted while they are taken.

use super::Args;
use super::methods::Methods;
use super::rows::{By, Interval, Sampled, Task};
use crate::failure::{OneLine, Result};
use crate::run::watch::Watch;
use crate::sources::goroutines::Goroutines;
use crate::sources::kernel::failure;
use crate::sources::kernel::hotplug::Hotplug;
use crate::sources::kernel::sampling::Opened;
use crate::sources::live::{LiveSamples, pid};
use crate::sources::symbols;
use crate::sources::symbols::live::{Before, take_stock};
use std::collections::HashMap;
use std::time::Duration;
use trace_timeline::{
    Dropped, EntityId, EntityKind, Event, EventKind, Frame, SampleKind, StackId, Tables,
};

/// Distinct stacks after which stacks, processes and names are forgotten: memory does not grow with the time.
const MAX_STACKS: usize = 100_000;

/// The sampled entity, its thread if it is no thread itself, the stack, and whether it is one of a wait.
type Key = (EntityId, Option<EntityId>, Option<StackId>, bool);

pub(super) struct Live {
    samples: LiveSamples,
    pids: Vec<u32>,
    is_command: bool,
    names: Names,
    methods: Option<Methods>,
    counts: Counts,
    hotplug: Hotplug,
    /// Lost samples before this interval.
    lost: u64,
}

/// The samples of an interval.
#[derive(Default)]
struct Counts {
    weights: HashMap<Key, u64>,
    samples: u64,
}

impl Counts {
    fn add(&mut self, event: &Event) {
        if let EventKind::Sample { entity, thread, stack, weight, kind, .. } = event.kind {
            let is_wait = kind == SampleKind::OffCpu;
            let count = self.weights.entry((entity, thread, stack, is_wait)).or_default();
            *count = count.saturating_add(weight);
            self.samples += 1;
        }
    }
}

/// The functions of a stack.
#[derive(Clone, Debug, Default)]
struct Path {
    /// Innermost first.
    functions: Vec<u32>,
    /// The function that waits, if it is the stack of a wait: that which called the kernel. In a thread of
    /// the kernel, the one that called the scheduler.
    waiting: Option<u32>,
}

/// The names of functions.
struct Names {
    symbols: symbols::Files,
    paths: HashMap<StackId, Path>,
    /// Functions with their files.
    functions: Vec<(String, String)>,
    numbers: HashMap<(String, String), u32>,
}

impl Names {
    fn new() -> Self {
        Self {
            symbols: symbols::Files::live(None),
            paths: HashMap::new(),
            functions: Vec::new(),
            numbers: HashMap::new(),
        }
    }

    /// The functions of a stack, by number.
    fn path(&mut self, stack: StackId, samples: &mut LiveSamples) -> Path {
        if !self.paths.contains_key(&stack) {
            let named = samples.name(stack, &mut self.symbols);
            let tables = &samples.tables;
            let frames = named.map_or(&[][..], |stack| tables.frames(stack));
            let functions: Vec<u32> =
                frames.iter().map(|frame| self.function(frame, tables)).collect();
            let is_user =
                |frame: &Frame| frame.mapping.is_none_or(|id| !tables.mapping(id).is_kernel);
            let is_scheduler = |frame: &Frame| tables.str(frame.function).contains("schedule");
            let of_kernel = || frames.iter().position(|frame| !is_scheduler(frame));
            let waiting = frames.iter().position(is_user).or_else(of_kernel);
            let waiting = waiting.and_then(|level| functions.get(level).copied());
            self.paths.insert(stack, Path { functions, waiting });
        }
        self.paths.get(&stack).cloned().unwrap_or_default()
    }

    fn function(&mut self, frame: &Frame, tables: &Tables) -> u32 {
        let path = frame.mapping.map(|id| tables.str(tables.mapping(id).path));
        let path = path.unwrap_or_default();
        let file = path.rsplit('/').next().unwrap_or_default().to_owned();
        let function = match tables.str(frame.function) {
            name if !name.is_empty() => OneLine(&name).to_string(),
            _ if frame.mapping.is_some() => format!("{:#x}", frame.address),
            _ => "[unknown]".to_owned(),
        };
        let key = (function, OneLine(&file).to_string());
        let next = self.functions.len() as u32;
        *self.numbers.entry(key).or_insert_with_key(|key| {
            self.functions.push(key.clone());
            next
        })
    }
}

fn task((entity, thread, ..): &Key, tables: &Tables) -> Task {
    let named = |id: EntityId| {
        let entity = tables.entities.get(id).copied();
        let name =
            entity.map_or(String::new(), |entity| OneLine(&tables.str(entity.name)).to_string());
        (entity.map_or(0, |entity| entity.number), name)
    };
    let is_goroutine = tables.entities.kind(*entity) == Some(EntityKind::Goroutine);
    let thread = thread.filter(|_| is_goroutine).unwrap_or(*entity);
    Task {
        process: tables.entities.process_of(thread).map(named).unwrap_or_default(),
        thread: named(thread),
        goroutine: is_goroutine.then(|| named(*entity)),
    }
}

impl Live {
    /// Starts to count; a command begins with its first instruction.
    pub(super) fn start(args: &Args, opened: &mut Opened) -> Result<Self> {
        let goroutines = (args.by == By::Goroutine).then(|| Goroutines::new(false)).transpose()?;
        let is_command = args.target.starts_on_exec();
        let mut this = Self {
            samples: LiveSamples::new(opened, false, goroutines)?,
            pids: args.target.pids(),
            is_command,
            names: Names::new(),
            methods: (!args.no_dotnet).then(|| Methods::new(args.target.is_system_wide())),
            counts: Counts::default(),
            hotplug: Hotplug::new(is_command),
            lost: 0,
        };
        // Processes that start meanwhile are in the records about tasks.
        if !is_command {
            opened
                .set
                .sideband()
                .map_or(Ok(()), |event| opened.set.enable_event(event))
                .map_err(failure)?;
        }
        this.take_stock(opened)?;
        if !is_command {
            opened.set.enable().map_err(failure)?;
        }
        Ok(this)
    }

    fn take_stock(&mut self, opened: &Opened) -> Result {
        let before = if self.is_command { Before::Command } else { Before::Processes(&self.pids) };
        let (samples, counts) = (&mut self.samples, &mut self.counts);
        take_stock(&opened.set, &before, |_, raw| {
            samples.push(raw, &mut |event, _, _| counts.add(&event));
        })
    }

    /// Reads what the rings have.
    pub(super) fn round(&mut self, opened: &mut Opened, watch: &Watch) -> Result {
        let ids = self.hotplug.ids(&mut opened.set, &opened.writers)?;
        ids.map_or(Ok(()), |ids| self.samples.add_ids(ids))?;
        if let Some(methods) = &mut self.methods {
            let (weights, tables) = (&self.counts.weights, &self.samples.tables);
            methods.look(watch, &self.pids, || {
                let processes = weights.keys().filter_map(|(entity, thread, ..)| {
                    tables.entities.process_of(thread.unwrap_or(*entity))
                });
                processes.filter_map(|process| pid(process, tables)).collect()
            });
        }
        let counts = &mut self.counts;
        self.samples.round(&mut opened.set, &mut |event, _, _| counts.add(&event))
    }

    /// Reads the rest: the events are disabled. Runtimes list their methods.
    pub(super) fn rest(&mut self, opened: &mut Opened) -> Result {
        let counts = &mut self.counts;
        self.samples.rest(&mut opened.set, &mut |event, _, _| counts.add(&event))?;
        self.samples.finish(&mut |event, _, _| counts.add(&event));
        opened.set.count_losses().map_err(failure)?;
        if let Some(methods) = self.methods.take() {
            methods.finish(&self.samples.source, self.names.symbols.methods_mut());
        }
        Ok(())
    }

    /// Prints the files whose code has no functions.
    pub(super) fn print_problems(&self) {
        self.names.symbols.print_problems();
    }

    /// The samples since the interval before, with names.
    pub(super) fn interval(&mut self, opened: &mut Opened, duration: Duration) -> Result<Interval> {
        let lost = opened.set.stats().rings.lost;
        let counts = &mut self.counts;
        self.samples.count_waits(&mut |event, _, _| counts.add(&event));
        let Counts { weights, samples } = std::mem::take(&mut self.counts);
        let mut interval = Interval {
            duration,
            samples,
            lost: lost.saturating_sub(self.lost),
            has_goroutines: self.samples.has_goroutines(),
            ..Interval::default()
        };
        self.lost = lost;
        if let Some(methods) = &mut self.methods {
            let managed = self.names.symbols.methods_mut();
            if methods.update(&self.samples.source, managed) {
                self.names.paths.clear();
                self.samples.source.forget_names();
            }
        }
        if self.names.symbols.forget_changed() {
            self.names.paths.clear();
            self.samples.source.forget_names();
        }
        for (key, weight) in weights {
            let path = match key.2 {
                Some(stack) => self.names.path(stack, &mut self.samples),
                None => Path::default(),
            };
            let Path { functions: path, waiting } = path;
            let own = waiting.filter(|_| key.3).or(path.first().copied());
            let task = task(&key, &self.samples.tables);
            interval.sampled.push(Sampled { task, path, own, weight });
        }
        interval.functions = self.names.functions.clone();
        let is_full = self.samples.tables.dropped() != Dropped::default();
        if is_full || self.names.paths.len() > MAX_STACKS {
            self.samples.forget()?;
            self.names = Names::new();
            self.is_command = false;
            self.take_stock(opened)?;
        }
        Ok(interval)
    }
}
