//! The samples of an interval, counted while they are taken.

use super::Args;
use super::rows::{By, Interval, Sampled, Task};
use crate::failure::{Failure, OneLine, Result};
use crate::sources::goroutines::Goroutines;
use crate::sources::kernel::failure;
use crate::sources::kernel::sampling::Opened;
use crate::sources::symbols::live::{Before, take_stock};
use crate::sources::symbols::{self, unwind::Unwinder};
use perf_data::{Entry, Session};
use perf_monitor::RawRecord;
use std::collections::HashMap;
use std::time::Duration;
use trace_timeline::sources::perf::PerfSource;
use trace_timeline::{EntityId, EntityKind, Event, EventKind, Frame, StackId, Tables};

/// Distinct stacks after which stacks, processes and names are forgotten: memory does not grow with the time.
const MAX_STACKS: usize = 100_000;

/// The sampled entity, its thread if it is no thread itself, and the stack.
type Key = (EntityId, Option<EntityId>, Option<StackId>);

pub(super) struct Live {
    session: Session,
    has_goroutines: bool,
    pids: Vec<u32>,
    is_command: bool,
    known: Known,
    counts: HashMap<Key, u64>,
    samples: u64,
    /// Lost samples before this interval.
    lost: u64,
}

/// What is known of processes, stacks and names.
struct Known {
    source: PerfSource,
    tables: Tables,
    symbols: symbols::Files,
    goroutines: Option<Goroutines>,
    /// Events of a record.
    events: Vec<Event>,
    /// The functions of stacks, innermost first.
    paths: HashMap<StackId, Vec<u32>>,
    /// Functions with their files.
    functions: Vec<(String, String)>,
    numbers: HashMap<(String, String), u32>,
}

impl Known {
    fn new(session: &Session, has_goroutines: bool) -> Result<Self> {
        let source = PerfSource::with_offset(session, 0).map_err(Failure::new)?;
        let source = source.with_scheduler_as_samples().with_unwinder(Unwinder::new(true));
        Ok(Self {
            source,
            tables: Tables::new(),
            symbols: symbols::Files::live(None),
            goroutines: has_goroutines.then(|| Goroutines::new(false)).transpose()?,
            events: Vec::new(),
            paths: HashMap::new(),
            functions: Vec::new(),
            numbers: HashMap::new(),
        })
    }

    /// The functions of a stack, by number, innermost first.
    fn path(&mut self, stack: StackId) -> &[u32] {
        if !self.paths.contains_key(&stack) {
            let named = self.source.name(stack, &mut self.symbols, &mut self.tables);
            let frames = named.map_or(&[][..], |stack| self.tables.frames(stack)).to_vec();
            let path = frames.iter().map(|frame| self.function(frame)).collect();
            self.paths.insert(stack, path);
        }
        self.paths.get(&stack).map_or(&[], Vec::as_slice)
    }

    fn function(&mut self, frame: &Frame) -> u32 {
        let path = frame.mapping.map(|id| self.tables.str(self.tables.mapping(id).path));
        let path = path.unwrap_or_default();
        let file = path.rsplit('/').next().unwrap_or_default().to_owned();
        let function = match self.tables.str(frame.function) {
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

    fn task(&self, (entity, thread, _): &Key) -> Task {
        let tables = &self.tables;
        let named = |id: EntityId| {
            let entity = tables.entities.get(id).copied();
            let name = entity
                .map_or(String::new(), |entity| OneLine(&tables.str(entity.name)).to_string());
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
}

impl Live {
    /// Starts to count; a command begins with its first instruction.
    pub(super) fn start(args: &Args, opened: &mut Opened) -> Result<Self> {
        let (events, features) = (opened.events.clone(), std::mem::take(&mut opened.features));
        let session = Session::new(events, features).map_err(Failure::new)?;
        let has_goroutines = args.by == By::Goroutine;
        let known = Known::new(&session, has_goroutines)?;
        if has_goroutines {
            Goroutines::prepare(&mut opened.set);
        }
        let is_command = args.target.starts_on_exec();
        let mut this = Self {
            session,
            has_goroutines,
            pids: args.target.pid.clone(),
            is_command,
            known,
            counts: HashMap::new(),
            samples: 0,
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
        let pids = self.pids.clone();
        let before = if self.is_command { Before::Command } else { Before::Processes(&pids) };
        take_stock(&opened.set, &before, |_, raw| self.push(raw))
    }

    fn push(&mut self, raw: RawRecord<'_>) {
        let Known { source, tables, goroutines, events, .. } = &mut self.known;
        let entry = Entry { raw, session: &self.session };
        if let (Some(goroutines), Some(Ok(record))) = (goroutines.as_mut(), entry.decode()) {
            goroutines.push(&record, tables);
        }
        source.push(&entry, tables, events);
        for mut event in events.drain(..) {
            if let Some(goroutines) = goroutines {
                goroutines.apply(&mut event, tables);
            }
            if let EventKind::Sample { entity, thread, stack, weight, .. } = event.kind {
                let count = self.counts.entry((entity, thread, stack)).or_default();
                *count = count.saturating_add(weight);
                self.samples += 1;
            }
        }
    }

    /// Reads what the rings have.
    pub(super) fn round(&mut self, opened: &mut Opened) -> Result {
        // A round passes on what the one before found: goroutines are read at once.
        for _ in 0..1 + usize::from(self.has_goroutines) {
            let read = opened.set.round(|record| {
                self.push(record.raw);
                Ok::<(), perf_monitor::Error>(())
            });
            read.map_err(failure)?;
        }
        Ok(())
    }

    /// Reads the rest: the events are disabled.
    pub(super) fn rest(&mut self, opened: &mut Opened) -> Result {
        let read = opened.set.drain(|record| {
            self.push(record.raw);
            Ok::<(), perf_monitor::Error>(())
        });
        read.map(drop).map_err(failure)
    }

    /// The samples since the interval before, with names.
    pub(super) fn interval(&mut self, opened: &mut Opened, duration: Duration) -> Result<Interval> {
        let lost = opened.set.stats().rings.lost;
        let mut interval = Interval {
            duration,
            samples: std::mem::take(&mut self.samples),
            lost: lost.saturating_sub(self.lost),
            has_goroutines: self.has_goroutines,
            ..Interval::default()
        };
        self.lost = lost;
        for (key, weight) in self.counts.drain() {
            let path = key.2.map_or_else(Vec::new, |stack| self.known.path(stack).to_vec());
            let task = self.known.task(&key);
            interval.sampled.push(Sampled { task, path, weight });
        }
        interval.functions = self.known.functions.clone();
        if self.known.paths.len() > MAX_STACKS {
            // The old one keeps its thread's priority until it is dropped.
            self.known.goroutines = None;
            self.known = Known::new(&self.session, self.has_goroutines)?;
            self.is_command = false;
            self.take_stock(opened)?;
        }
        Ok(interval)
    }
}
