//! Rows of the tables, made of what the correlator derives.

use crate::parquet::{Cell, FileWriter};
use crate::partition;
use crate::schema::{SCHEMA_VERSION, TABLES, Table};
use hashbrown::HashMap;
use std::fs::{self, File};
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use trace_common::IdMap;
use trace_timeline::answers::{CriticalPath, Request, RequestFilter, Requests};
use trace_timeline::{
    Attribute, ClockDomain, Context, Derived, Entity, EntityId, EntityKind, Event, EventKind,
    FlowKind, Frame, InstantKind, Interval, Kernel, LossKind, Occupant, Pause, ResolvedFlow,
    SampleKind, Sampled, SpanId, SpanKind, StackId, State, Tables, TextId, Timestamp, text,
};

/// An error of a [`Dataset`]: a file or directory that cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("{}: cannot be written: {source}", path.display())]
#[non_exhaustive]
pub struct Error {
    /// The file or directory.
    pub path: PathBuf,
    /// Why.
    pub source: io::Error,
}

/// A result with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

fn at(path: &Path) -> impl FnOnce(io::Error) -> Error + '_ {
    move |source| Error { path: path.to_owned(), source }
}

/// A file that a recording was made of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceFile {
    /// Its name.
    pub name: String,
    /// Its size in bytes.
    pub bytes: u64,
}

/// Properties of a recording that its timeline does not have.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DatasetOptions {
    /// The number of the recording. Two recordings of a dataset have different ones; an export of
    /// the same one replaces its files.
    pub recording: i64,
    /// The host; `None` for that of the timeline.
    pub host: Option<String>,
    /// The clock of the timeline.
    pub clock_domain: Option<ClockDomain>,
    /// Nanoseconds since 1970, UTC, when that clock shows 0. `None` if it is not known: the times
    /// of day are `NULL` then.
    pub clock_offset_nanos: Option<i64>,
    /// The files.
    pub sources: Vec<SourceFile>,
    /// Number of tasks, of activities and of regions that have critical paths, longest first.
    pub paths: usize,
}

impl DatasetOptions {
    /// Options without anything but the number, and without critical paths.
    pub const fn new(recording: i64) -> Self {
        Self {
            recording,
            host: None,
            clock_domain: None,
            clock_offset_nanos: None,
            sources: Vec::new(),
            paths: 0,
        }
    }
}

/// The size of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TableSummary {
    /// The name.
    pub name: &'static str,
    /// Its rows.
    pub rows: u64,
    /// The size of its file.
    pub bytes: u64,
}

/// The numbers of written rows.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Summary {
    /// By table.
    pub tables: Vec<TableSummary>,
    /// The partition: `date=2026-11-22/host=web-1`.
    pub partition: String,
    /// Arguments of events and spans, for which the schema has no column.
    pub arguments: u64,
}

impl Summary {
    /// Rows of all tables.
    pub fn rows(&self) -> u64 {
        self.tables.iter().map(|table| table.rows).sum()
    }

    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.tables.iter().map(|table| table.bytes).sum()
    }
}

/// The position of a table in [`TABLES`].
#[derive(Clone, Copy, Debug)]
enum Name {
    Clocks,
    Counters,
    Cpus,
    CriticalPaths,
    DotnetThreadStates,
    Events,
    Frames,
    Gc,
    GoroutineStates,
    Goroutines,
    Losses,
    Pauses,
    ProcStates,
    Processes,
    Recordings,
    Regions,
    Samples,
    Sched,
    Sources,
    Stacks,
    Tasks,
    ThreadStates,
    Threads,
    Throttles,
    Waits,
    Wakeups,
}

/// The table whose file is the last one: with it, the recording is complete.
const RECORDINGS: &str = "recordings";

/// The end of the name of a hidden directory, which has the files until all are complete.
const PARTIAL: &str = ".partial";

/// The time after which nothing writes into a hidden directory any more. On a directory that several
/// hosts share, its process id is no evidence.
const ABANDONED: Duration = Duration::from_secs(24 * 60 * 60);

/// The name of a hidden directory. Its number is the process id, or a later one.
fn hidden_name(recording: i64, number: u32) -> String {
    format!(".{recording:016x}.{number}{PARTIAL}")
}

/// Makes a hidden directory that no other export has: the process id is also that of processes of other hosts and
/// containers.
fn create_hidden(dir: &Path, recording: i64) -> io::Result<PathBuf> {
    let mut number = std::process::id();
    loop {
        let path = dir.join(hidden_name(recording, number));
        match fs::create_dir(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                number = number.wrapping_add(1);
            }
            created => return created.map(|()| path),
        }
    }
}

/// Whether [`hidden_name`] makes this name, of any recording and number.
fn is_hidden_name(name: &str) -> bool {
    let inner = name.strip_prefix('.').and_then(|name| name.strip_suffix(PARTIAL));
    inner.and_then(|inner| inner.split_once('.')).is_some_and(|(recording, number)| {
        let recording = u64::from_str_radix(recording, 16).map(|number| number as i64);
        let numbers = recording.ok().zip(number.parse().ok());
        numbers.is_some_and(|(recording, number)| hidden_name(recording, number) == name)
    })
}

/// Removes the hidden directories that killed exports left, and no other ones: the dataset can be in
/// a directory that has those of other programs.
fn remove_abandoned(dir: &Path) {
    let hidden = |entry: &fs::DirEntry| entry.file_name().to_str().is_some_and(is_hidden_name);
    // One that cannot be looked at is left.
    for entry in fs::read_dir(dir).into_iter().flatten().flatten().filter(hidden) {
        let path = entry.path();
        let files = fs::read_dir(&path).into_iter().flatten().flatten().map(|file| file.path());
        let is_recent = |path: PathBuf| {
            let modified = fs::symlink_metadata(path).and_then(|metadata| metadata.modified());
            modified.is_ok_and(|at| at.elapsed().map_or(true, |age| age < ABANDONED))
        };
        let has_recent = files.chain([path.clone()]).any(is_recent);
        if !has_recent {
            let _ = fs::remove_dir_all(path); // it is as well left
        }
    }
}

/// Writes a timeline as a recording of a dataset. Feed it all derived data.
///
/// An error of [`push`](Self::push) is the result of [`finish`](Self::finish). A dataset that is
/// dropped before leaves nothing.
#[derive(Debug)]
pub struct Dataset {
    dir: PathBuf,
    cleanup: Cleanup,
    options: DatasetOptions,
    is_partial: bool,
    /// For each source whose rest could not be read: the last event before.
    unread: Vec<Timestamp>,
    writer: Writer,
    subjects: IdMap<Subject>,
    /// Those that are open, by number.
    spans: HashMap<SpanId, Event>,
    requests: [Requests; 3],
    paths: u64,
    recorded: Extent,
    /// Of the kernel's scheduler, which can be recorded for a part of that only.
    scheduler: Extent,
    arguments: u64,
}

/// The time from the first to the last of its parts.
#[derive(Debug, Default)]
struct Extent {
    start: Option<Timestamp>,
    end: Option<Timestamp>,
}

impl Extent {
    fn add(&mut self, start: Timestamp, end: Timestamp) {
        self.start = Some(self.start.map_or(start, |known| known.min(start)));
        self.end = self.end.max(Some(end));
    }

    fn cells(&self) -> [Cell<'static>; 2] {
        [self.start, self.end].map(|at| at.map(Timestamp::nanos).into())
    }
}

/// Removes the files of a [`Dataset`] that is not finished: for a program that a signal ends.
#[derive(Clone, Debug)]
pub struct Cleanup {
    temporary: PathBuf,
    /// Whether they were removed. Held while files are renamed.
    is_removed: Arc<Mutex<bool>>,
}

impl Cleanup {
    /// Removes the files: [`Dataset::finish`] fails then, and what was in the dataset before stays. If
    /// the files are being renamed, waits for the end of that: the recording is complete.
    pub fn run(&self) {
        let mut is_removed = self.hold();
        *is_removed = true;
        // Another error is reported, or there is none.
        let _ = fs::remove_dir_all(&self.temporary);
    }

    fn hold(&self) -> MutexGuard<'_, bool> {
        self.is_removed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The files, and the first error.
struct Writer {
    files: Vec<FileWriter<BufWriter<File>>>,
    recording: i64,
    clock_offset: Option<i64>,
    /// Those that rows refer to, by position.
    stacks: Vec<Option<StackId>>,
    error: Option<(Name, io::Error)>,
}

impl std::fmt::Debug for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writer").field("recording", &self.recording).finish_non_exhaustive()
    }
}

/// A wait of a thread or goroutine for its scheduler.
#[derive(Debug, Default)]
struct Subject {
    is_queued: bool,
    queued: i64,
    /// Whether it gets the P of the coroutine that switches to it: it waits for none.
    is_handed: bool,
}

fn id(entity: EntityId) -> i64 {
    entity.index() as i64
}

fn key(entity: Option<EntityId>) -> Cell<'static> {
    entity.map(id).into()
}

impl Writer {
    fn row(&mut self, table: Name, cells: &[Cell<'_>]) {
        let Some(file) = self.files.get_mut(table as usize) else { return };
        if self.error.is_some() {
            return;
        }
        if let Err(error) = file.row(cells) {
            self.error = Some((table, error));
        }
    }

    fn recording(&self) -> Cell<'static> {
        Cell::Int(self.recording)
    }

    /// The first cells of a row: the recording, the time of day, and the time.
    fn moment(&self, at: Timestamp) -> [Cell<'static>; 3] {
        let time = self.clock_offset.map(|offset| offset.saturating_add(at.nanos()));
        [self.recording(), time.into(), Cell::Int(at.nanos())]
    }

    fn stack(&mut self, stack: Option<StackId>) -> Cell<'static> {
        let Some(stack) = stack else { return Cell::Null };
        let index = stack.index();
        if self.stacks.len() <= index {
            self.stacks.resize(index + 1, None);
        }
        if let Some(used) = self.stacks.get_mut(index) {
            *used = Some(stack);
        }
        Cell::Int(index as i64)
    }
}

/// The kind and the CPU of what the kernel did.
fn kernel_cells(kernel: Kernel, tables: &Tables) -> [Cell<'static>; 2] {
    let number = |cpu| tables.entities.get(cpu).map(|cpu| cpu.number);
    let (name, cpu) = match kernel {
        Kernel::OnCpu { cpu } => ("on_cpu", number(cpu)),
        Kernel::Runnable { cpu, is_preempted: true, .. } => ("preempted", cpu.and_then(number)),
        Kernel::Runnable { cpu, .. } => ("woken", cpu.and_then(number)),
        Kernel::Sleeping => ("sleeping", None),
        Kernel::Blocked => ("blocked", None),
        Kernel::Stopped => ("stopped", None),
        Kernel::Absent => ("absent", None),
        _ => ("", None),
    };
    [Some(name).into(), cpu.into()]
}

fn state_cell(state: State) -> Cell<'static> {
    let name = if state == State::Unknown { "" } else { state.name() };
    Some(name).into()
}

/// The kind and the key of an entity.
fn entity_cells(entity: EntityId, tables: &Tables) -> [Cell<'static>; 2] {
    let kind = tables.entities.kind(entity).map_or("other", EntityKind::name);
    [Cell::Text(kind), Cell::Int(id(entity))]
}

impl Subject {
    /// The time in which it was runnable, when it begins to execute: as
    /// [`Report`](trace_timeline::answers::Report) counts it.
    fn latency(&mut self, state: State, nanos: i64) -> Option<i64> {
        match state {
            State::Runnable => {
                if !std::mem::replace(&mut self.is_queued, true) {
                    self.queued = 0;
                }
                self.queued = self.queued.saturating_add(nanos);
                None
            }
            State::Running => {
                let is_handed = std::mem::take(&mut self.is_handed);
                let is_latency = std::mem::take(&mut self.is_queued) && !is_handed;
                is_latency.then_some(self.queued)
            }
            _ => {
                self.is_queued = false;
                None
            }
        }
    }
}

impl Dataset {
    /// Begins a recording in the dataset at `dir`, which is created if it does not exist.
    ///
    /// # Errors
    ///
    /// The directory, or a file in it, cannot be created.
    pub fn create(dir: &Path, options: DatasetOptions) -> Result<Self> {
        remove_abandoned(dir);
        let hidden = || create_hidden(dir, options.recording);
        let temporary = match hidden() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                fs::create_dir_all(dir).and_then(|()| hidden())
            }
            created => created,
        };
        // The hidden directory is not the one that the caller knows.
        let temporary = temporary.map_err(at(dir))?;
        let requests = [SpanKind::Task, SpanKind::Activity, SpanKind::Region]
            .map(|kind| Requests::new(RequestFilter::of(kind), options.paths));
        let mut dataset = Self {
            dir: dir.to_owned(),
            cleanup: Cleanup { temporary, is_removed: Arc::default() },
            writer: Writer {
                files: Vec::new(),
                recording: options.recording,
                clock_offset: options.clock_offset_nanos,
                stacks: Vec::new(),
                error: None,
            },
            options,
            is_partial: false,
            unread: Vec::new(),
            subjects: IdMap::default(),
            spans: HashMap::new(),
            requests,
            paths: 0,
            recorded: Extent::default(),
            scheduler: Extent::default(),
            arguments: 0,
        };
        for table in TABLES {
            let path = dataset.temporary().join(table.name);
            let file = File::create_new(&path).and_then(|file| {
                // A row group goes out at once.
                FileWriter::new(BufWriter::with_capacity(1 << 12, file), table)
            });
            dataset.writer.files.push(file.map_err(at(dir))?);
        }
        Ok(dataset)
    }

    /// The directory in which the files are until [`finish`](Self::finish).
    pub fn temporary(&self) -> &Path {
        &self.cleanup.temporary
    }

    /// What removes the files when a signal ends the program.
    pub fn cleanup(&self) -> Cleanup {
        self.cleanup.clone()
    }

    /// Whether nothing with a time was added.
    pub const fn is_empty(&self) -> bool {
        self.recorded.end.is_none()
    }

    /// Whether a row could not be written, as on a full disk: nothing is added any more, and
    /// [`finish`](Self::finish) returns the error.
    pub const fn has_failed(&self) -> bool {
        self.writer.error.is_some()
    }

    /// A source is damaged: the recording is marked as partial.
    pub fn set_partial(&mut self) {
        self.is_partial = true;
    }

    /// The rest of a source cannot be read: `last` is the last event before. The recording is marked as
    /// partial, and has a loss that ends with the recording.
    pub fn push_unread(&mut self, last: Timestamp) {
        self.set_partial();
        self.unread.push(last);
    }

    /// Adds derived data.
    pub fn push(&mut self, derived: &Derived<'_>, tables: &Tables) {
        self.requests.iter_mut().for_each(|requests| requests.push(derived));
        match derived {
            Derived::Interval(interval) => self.interval(interval, tables),
            Derived::Flow(flow) => self.flow(flow, tables),
            Derived::Pause(pause) => self.pause(pause, tables),
            Derived::Sample(sample) => self.sample(sample, tables),
            Derived::Event(event) => self.event(event, tables),
            _ => {}
        }
    }

    /// The longest tasks, activities and regions so far, as many of each as the options say. Find
    /// their critical paths in a second pass: [`Paths`](trace_timeline::answers::Paths).
    pub fn requests(&mut self) -> Vec<Request> {
        self.requests.iter_mut().flat_map(Requests::worst).copied().collect()
    }

    /// Adds the critical path of a request. Only spans have a row to which it belongs.
    pub fn push_path(&mut self, request: &Request, path: &CriticalPath, tables: &Tables) {
        let Some(span) = request.span else { return };
        self.paths += 1;
        for piece in &path.pieces {
            let (what, phrase) = text::piece(piece, tables);
            let during = text::during(piece, tables);
            let texts = [piece.reason, piece.waiter_reason].map(|text| tables.str(text));
            let [reason, waiter_reason] = texts.each_ref().map(|text| Cell::from(Some(&**text)));
            let [recording, time, end] = self.writer.moment(piece.end);
            let [entity_kind, entity] = entity_cells(piece.entity, tables);
            let cells = [
                recording,
                time,
                end,
                Cell::Int(piece.nanos()),
                Cell::Int(span.number().into()),
                Cell::Text(what),
                Cell::Text(&phrase),
                entity_kind,
                entity,
                key(piece.thread),
                Cell::Int(piece.depth.into()),
                reason,
                key(piece.waiter),
                waiter_reason,
                during.as_deref().into(),
                key(piece.context),
                self.writer.stack(piece.stack),
            ];
            self.writer.row(Name::CriticalPaths, &cells);
        }
    }

    fn interval(&mut self, interval: &Interval, tables: &Tables) {
        self.recorded.add(interval.start, interval.end);
        let Some(entity) = tables.entities.get(interval.subject) else { return };
        let latency = Cell::from(self.latency(interval));
        let writer = &mut self.writer;
        let [recording, time, end] = writer.moment(interval.end);
        let duration = Cell::Int(interval.nanos());
        let subject = Cell::Int(id(interval.subject));
        let state = state_cell(interval.state);
        let thread = key(interval.thread);
        let proc = interval.proc.and_then(|proc| tables.entities.get(proc)).map(|p| p.number);
        let [kernel, cpu] = kernel_cells(interval.kernel, tables);
        match entity.kind {
            EntityKind::Thread => {
                match interval.kernel {
                    Kernel::Unknown | Kernel::Absent => {}
                    Kernel::OnCpu { .. } => self.scheduler.add(interval.start, interval.end),
                    // A wait can last beyond the records.
                    _ => self.scheduler.add(interval.start, interval.start),
                }
                let holder = key(interval.holder);
                if let Kernel::OnCpu { .. } = interval.kernel {
                    let cells = [recording, time, end, duration, cpu, subject, holder, latency];
                    return writer.row(Name::Sched, &cells);
                }
                let (occupant_kind, occupant) = match interval.kernel {
                    Kernel::Runnable { occupant, .. } => match occupant {
                        Occupant::Thread(thread) => ("thread", Some(thread)),
                        Occupant::Idle => ("idle", None),
                        Occupant::Unrecorded => ("unrecorded", None),
                        _ => ("", None),
                    },
                    _ => ("", None),
                };
                let occupant = [Some(occupant_kind).into(), key(occupant)];
                let cells = [recording, time, end, duration, subject, kernel, holder, cpu];
                writer.row(Name::ThreadStates, &[&cells[..], &occupant].concat());
            }
            EntityKind::Goroutine => {
                let (reason, stack) = (tables.str(interval.reason), writer.stack(interval.stack));
                let reason = Some(&*reason).into();
                let place = [thread, proc.into(), stack, latency];
                let cells = [recording, time, end, duration, subject, state, reason, kernel, cpu];
                writer.row(Name::GoroutineStates, &[&cells[..], &place].concat());
            }
            EntityKind::DotnetThread => {
                let cells = [recording, time, end, duration, subject, state];
                let place = [kernel, cpu, thread, latency];
                writer.row(Name::DotnetThreadStates, &[&cells[..], &place].concat());
            }
            EntityKind::Proc => {
                let number = Cell::Int(entity.number);
                let (process, holder) = (key(entity.parent), key(interval.holder));
                let cells = [recording, time, end, duration, process, number, state, holder];
                writer.row(Name::ProcStates, &[&cells[..], &[kernel, cpu, thread]].concat());
            }
            _ => {}
        }
    }

    /// The time in which the subject of an interval was runnable, if the interval is the first one after it.
    fn latency(&mut self, interval: &Interval) -> Option<i64> {
        let state = match interval.kind {
            EntityKind::DotnetThread => interval.kernel.state(),
            EntityKind::Thread | EntityKind::Goroutine => interval.state,
            _ => return None,
        };
        self.subjects.insert(id(interval.subject)).latency(state, interval.nanos())
    }

    fn flow(&mut self, flow: &ResolvedFlow, tables: &Tables) {
        self.recorded.add(flow.time, flow.time);
        if matches!(flow.kind, FlowKind::Wakes | FlowKind::HandsOver) {
            self.subjects.insert(id(flow.to)).is_handed = flow.kind == FlowKind::HandsOver;
        }
        let kind = match flow.kind {
            FlowKind::Wakes => "wakes",
            FlowKind::Creates => "creates",
            FlowKind::HandsOver => "hands_over",
            FlowKind::Continues => "continues",
            _ => "other",
        };
        let context = match flow.context {
            Context::Task => "task",
            Context::HardIrq => "hard_irq",
            Context::SoftIrq => "soft_irq",
            _ => "",
        };
        let is_task = !matches!(flow.context, Context::HardIrq | Context::SoftIrq);
        let from = |id: Option<EntityId>| key(id.filter(|_| is_task));
        let [recording, time, monotonic] = self.writer.moment(flow.time);
        let [entity_kind, entity] = entity_cells(flow.to, tables);
        let cells = [
            recording,
            time,
            monotonic,
            Cell::Text(kind),
            from(flow.from),
            from(flow.from_thread),
            Some(context).into(),
            entity_kind,
            entity,
            self.writer.stack(flow.stack),
        ];
        self.writer.row(Name::Wakeups, &cells);
    }

    fn pause(&mut self, pause: &Pause, tables: &Tables) {
        let [recording, time, end] = self.writer.moment(pause.end);
        let reason = tables.str(pause.reason);
        let cells = [
            recording,
            time,
            end,
            Cell::Int(pause.end.nanos_since(pause.start)),
            Cell::Int(id(pause.process)),
            Some(&*reason).into(),
            key(pause.by),
            pause.stopped.map(|stopped| stopped.nanos_since(pause.start)).into(),
        ];
        self.writer.row(Name::Pauses, &cells);
    }

    fn sample(&mut self, sample: &Sampled, tables: &Tables) {
        self.recorded.add(sample.time, sample.time);
        let kind = match sample.kind {
            SampleKind::Cpu => "cpu",
            SampleKind::OffCpu => "off_cpu",
            SampleKind::GoCpu => "go_cpu",
            SampleKind::Managed => "managed",
            SampleKind::Allocation => "allocation",
            _ => "other",
        };
        let event = tables.sampled_event(sample.event);
        let (name, unit) = (tables.str(event.name), tables.str(event.unit));
        let unit = if name.is_empty() { sample.kind.unit() } else { &*unit };
        let [recording, time, monotonic] = self.writer.moment(sample.time);
        let [entity_kind, entity] = entity_cells(sample.entity, tables);
        let [kernel, cpu] = kernel_cells(sample.kernel, tables);
        let cells = [
            recording,
            time,
            monotonic,
            Cell::Text(kind),
            Some(&*name).into(),
            Cell::Int(i64::try_from(sample.weight).unwrap_or(i64::MAX)),
            Some(unit).into(),
            key(tables.entities.process_of(sample.entity)),
            entity_kind,
            entity,
            key(sample.thread),
            kernel,
            cpu,
            key(sample.of),
            self.writer.stack(sample.stack),
        ];
        self.writer.row(Name::Samples, &cells);
    }

    fn event(&mut self, event: &Event, tables: &Tables) {
        self.recorded.add(event.time, event.time);
        let [recording, time, monotonic] = self.writer.moment(event.time);
        match event.kind {
            EventKind::Begin { span, .. } => {
                self.spans.insert(span, *event);
            }
            EventKind::Finish { span, is_cut, .. } => {
                if let Some(begin) = self.spans.remove(&span) {
                    self.span(&begin, event.time, is_cut, tables);
                }
            }
            EventKind::Instant { entity, kind, name, of, stack } => {
                let kind = match kind {
                    InstantKind::Log => "log",
                    InstantKind::Label => "label",
                    InstantKind::Exception => "exception",
                    InstantKind::Stopped => "stopped",
                    InstantKind::Starvation => "starvation",
                    _ => "other",
                };
                let name = tables.str(name);
                let [entity_kind, subject] = entity_cells(entity, tables);
                let cells = [
                    recording,
                    time,
                    monotonic,
                    Cell::Text(kind),
                    Some(&*name).into(),
                    key(tables.entities.process_of(entity)),
                    entity_kind,
                    subject,
                    key(of),
                    self.writer.stack(stack),
                ];
                self.writer.row(Name::Events, &cells);
            }
            // The records of its scheduler end.
            EventKind::End { entity } if tables.entities.kind(entity) == Some(EntityKind::Cpu) => {
                self.scheduler.add(event.time, event.time);
            }
            EventKind::Argument { .. } => self.arguments += 1,
            EventKind::Counter { entity, name, unit, value } => {
                let (name, unit) = (tables.str(name), tables.str(unit));
                let [entity_kind, subject] = entity_cells(entity, tables);
                let of = tables.entities.get(entity);
                let of = of.filter(|of| of.kind != EntityKind::Process);
                let of_name = of.map(|of| tables.str(of.name));
                let cells = [
                    recording,
                    time,
                    monotonic,
                    entity_kind,
                    subject,
                    key(tables.entities.process_of(entity)),
                    Cell::Text(&name),
                    Some(&*unit).into(),
                    Cell::Double(value),
                    of_name.as_deref().into(),
                ];
                self.writer.row(Name::Counters, &cells);
            }
            EventKind::Clock { time: at, domain, reading } => {
                let [recording, time, monotonic] = self.writer.moment(at);
                let clock = domain.to_string();
                let reading = Cell::Int(reading.nanos());
                let cells = [recording, time, monotonic, Cell::Text(&clock), reading];
                self.writer.row(Name::Clocks, &cells);
            }
            EventKind::Throttle { process, cgroup, since, nanos, periods } => {
                let cgroup = tables.str(cgroup);
                let cells = [
                    recording,
                    time,
                    monotonic,
                    Cell::Int(id(process)),
                    Cell::Int(since.nanos()),
                    Cell::Int(nanos),
                    Cell::Int(periods.into()),
                    Some(&*cgroup).into(),
                ];
                self.writer.row(Name::Throttles, &cells);
            }
            EventKind::Loss { entity, kind, since, count } => {
                let kind = match kind {
                    LossKind::SchedulerRecords => "scheduler_records",
                    LossKind::UnreportedSwitch => "unreported_switch",
                    LossKind::CpuOffline => "cpu_offline",
                    LossKind::Samples => "samples",
                    LossKind::GoTrace => "go_trace",
                    LossKind::DotnetEvents => "dotnet_events",
                    _ => "other",
                };
                let about = entity.and_then(|id| Some((id, tables.entities.get(id)?)));
                let cpu = about.filter(|(_, entity)| entity.kind == EntityKind::Cpu);
                let process = about.filter(|(_, entity)| entity.kind != EntityKind::Cpu);
                let process = process.and_then(|(id, _)| tables.entities.process_of(id));
                let cells = [
                    cpu.map(|(_, cpu)| cpu.number).into(),
                    key(process),
                    count.map(|count| i64::try_from(count).unwrap_or(i64::MAX)).into(),
                ];
                self.loss(kind, since, event.time, cells);
            }
            _ => {}
        }
    }

    /// A loss between two times, with the CPU, the process and the number of records.
    fn loss(&mut self, kind: &str, since: Timestamp, at: Timestamp, of: [Cell<'static>; 3]) {
        let [recording, time, monotonic] = self.writer.moment(at);
        let cells = [recording, time, monotonic, Cell::Text(kind), Cell::Int(since.nanos())];
        self.writer.row(Name::Losses, &[&cells[..], &of].concat());
    }

    fn span(&mut self, begin: &Event, end: Timestamp, is_open: bool, tables: &Tables) {
        let EventKind::Begin { span, entity, kind, name, by, of, stack } = begin.kind else {
            return;
        };
        let table = match kind {
            SpanKind::Task | SpanKind::Activity | SpanKind::Request => Name::Tasks,
            SpanKind::Gc | SpanKind::GcAssist | SpanKind::GcSweep => Name::Gc,
            SpanKind::LockWait
            | SpanKind::HandleWait
            | SpanKind::Queued
            | SpanKind::TaskWait
            | SpanKind::Await => Name::Waits,
            // With an end, it is a pause.
            SpanKind::StopTheWorld if !is_open => return,
            _ => Name::Regions,
        };
        let [recording, time, monotonic] = self.writer.moment(end);
        let name = tables.str(name);
        let kind = match kind {
            // A task that is scheduled is mostly a work item, too: its time would count twice.
            SpanKind::Queued if *name != *"work item" => "scheduled",
            kind => kind.name(),
        };
        let [entity_kind, subject] = entity_cells(entity, tables);
        let cells = [
            recording,
            time,
            monotonic,
            Cell::Int(end.nanos_since(begin.time)),
            Cell::Text(kind),
            Some(&*name).into(),
            key(tables.entities.process_of(entity)),
            entity_kind,
            subject,
            key(of),
            key(by),
            self.writer.stack(stack),
            Cell::Bool(is_open),
            Cell::Int(span.number().into()),
        ];
        self.writer.row(table, &cells);
    }

    /// Writes what is known at the end, and moves all files to their place.
    ///
    /// # Errors
    ///
    /// A file cannot be written or renamed.
    pub fn finish(mut self, tables: &Tables) -> Result<Summary> {
        let mut open: Vec<(SpanId, Event)> = self.spans.drain().collect();
        open.sort_unstable_by_key(|(span, _)| *span);
        let end = self.recorded.end.unwrap_or_default();
        for (_, begin) in open {
            self.span(&begin, end, true, tables);
        }
        for since in std::mem::take(&mut self.unread) {
            self.loss("unread", since, end.max(since), [Cell::Null; 3]);
        }
        self.entities(tables);
        self.stacks(tables);
        for source in std::mem::take(&mut self.options.sources) {
            let bytes = Cell::Int(i64::try_from(source.bytes).unwrap_or(i64::MAX));
            let cells = [self.writer.recording(), Cell::Text(&source.name), bytes];
            self.writer.row(Name::Sources, &cells);
        }
        let partition = self.recording(tables);
        let tables = self.publish(&partition)?;
        Ok(Summary { tables, partition, arguments: self.arguments })
    }

    fn entities(&mut self, tables: &Tables) {
        let writer = &mut self.writer;
        let recording = writer.recording();
        for (entity, known) in tables.entities.iter() {
            let attribute = |attribute| {
                tables.entities.attribute(entity, attribute).map(|text| tables.str(text))
            };
            let Entity { kind, number, parent, name, start, end, .. } = *known;
            let name = tables.str(name);
            let name: Cell<'_> = Some(&*name).into();
            let (subject, process) = (Cell::Int(id(entity)), key(parent));
            let known_number = Cell::from(Some(number).filter(|number| *number >= 0));
            let [start, end] = [start, end].map(|at| Cell::from(at.map(Timestamp::nanos)));
            match kind {
                EntityKind::Cpu => {
                    writer.row(Name::Cpus, &[recording, Cell::Int(number), subject]);
                }
                EntityKind::Process => {
                    let texts = [
                        Attribute::CommandLine,
                        Attribute::Executable,
                        Attribute::BuildId,
                        Attribute::Cgroup,
                        Attribute::Container,
                        Attribute::Runtime,
                    ]
                    .map(attribute);
                    let texts = texts.each_ref().map(|text| Cell::from(text.as_deref()));
                    let cells = [recording, subject, known_number, name, process];
                    writer.row(Name::Processes, &[&cells[..], &texts, &[start, end]].concat());
                }
                EntityKind::Thread | EntityKind::GoThread | EntityKind::DotnetThread => {
                    let layer = match kind {
                        EntityKind::Thread => "kernel",
                        EntityKind::GoThread => "go",
                        _ => "dotnet",
                    };
                    let layer = Cell::Text(layer);
                    let cells = [recording, subject, layer, known_number, process, name];
                    writer.row(Name::Threads, &[&cells[..], &[start, end]].concat());
                }
                EntityKind::Goroutine => {
                    let number = Cell::Int(number);
                    let cells = [recording, subject, process, number, name, start, end];
                    writer.row(Name::Goroutines, &cells);
                }
                _ => {}
            }
        }
    }

    fn stacks(&mut self, tables: &Tables) {
        let mut frames: HashMap<Frame, i64> = HashMap::new();
        let recording = self.writer.recording();
        for stack in std::mem::take(&mut self.writer.stacks).into_iter().flatten() {
            let index = stack.index();
            for (depth, frame) in (0..).zip(tables.frames(stack)) {
                let next = frames.len() as i64;
                let number = *frames.entry(*frame).or_insert(next);
                if number == next {
                    self.frame(number, frame, tables);
                }
                let cells =
                    [recording, Cell::Int(index as i64), Cell::Int(depth), Cell::Int(number)];
                self.writer.row(Name::Stacks, &cells);
            }
        }
    }

    fn frame(&mut self, number: i64, frame: &Frame, tables: &Tables) {
        let mapping = frame.mapping.map(|mapping| tables.mapping(mapping));
        let text = |text: TextId| tables.str(text);
        let (function, file) = (text(frame.function), text(frame.file));
        let module = mapping.map(|mapping| text(mapping.path));
        let build_id = mapping.map(|mapping| text(mapping.build_id));
        let cells = [
            self.writer.recording(),
            Cell::Int(number),
            Some(&*function).into(),
            Some(&*file).into(),
            Some(i64::from(frame.line)).filter(|line| *line > 0).into(),
            module.as_deref().into(),
            build_id.as_deref().into(),
            // Addresses of the kernel are in the upper half: negative numbers.
            Some(frame.address as i64).filter(|address| *address != 0).into(),
            mapping.map_or(Cell::Null, |mapping| Cell::Bool(mapping.is_kernel)),
        ];
        self.writer.row(Name::Frames, &cells);
    }

    /// The row of the recording. The result is its partition.
    fn recording(&mut self, tables: &Tables) -> String {
        let machine = tables.entities.iter().find(|(_, e)| e.kind == EntityKind::Machine);
        let attribute = |attribute| {
            let text = tables.entities.attribute(machine?.0, attribute)?;
            Some(tables.str(text).into_owned())
        };
        let host = self.options.host.take().or_else(|| {
            let name = tables.str(machine?.1.name).into_owned();
            Some(name).filter(|name| !name.is_empty())
        });
        let kernel = attribute(Attribute::KernelRelease);
        let architecture = attribute(Attribute::Architecture);
        let clock = self.options.clock_domain.map(|clock| clock.to_string());
        let start = self.recorded.start.map(Timestamp::nanos);
        let [recorded_start, recorded_end] = self.recorded.cells();
        let [scheduler_start, scheduler_end] = self.scheduler.cells();
        let offset = self.options.clock_offset_nanos;
        let start_time = start.zip(offset).map(|(start, offset)| offset.saturating_add(start));
        let dropped = tables.dropped();
        let count = |count: u64| Cell::Int(i64::try_from(count).unwrap_or(i64::MAX));
        let cells = [
            self.writer.recording(),
            Cell::Int(SCHEMA_VERSION.into()),
            host.as_deref().into(),
            kernel.as_deref().into(),
            architecture.as_deref().into(),
            clock.as_deref().into(),
            offset.into(),
            start_time.into(),
            recorded_start,
            recorded_end,
            scheduler_start,
            scheduler_end,
            Cell::Bool(self.is_partial),
            count(dropped.entities),
            count(dropped.texts),
            count(dropped.stacks),
            count(self.arguments),
            count(self.requests.iter().map(Requests::count).sum()),
            count(self.paths),
        ];
        self.writer.row(Name::Recordings, &cells);
        partition::path(start_time, host.as_deref())
    }

    /// Completes all files and renames them, that of the recording last, and removes those of the recording
    /// in other partitions. If a rename fails, files and directories that were not there before are removed:
    /// those of an earlier export stay.
    fn publish(&mut self, partition: &str) -> Result<Vec<TableSummary>> {
        let recording = self.options.recording;
        if let Some((name, source)) = self.writer.error.take() {
            let path = TABLES.get(name as usize).map_or("", |table| table.name);
            return Err(Error { path: self.dir.join(path), source });
        }
        let mut summaries = Vec::new();
        for (file, table) in std::mem::take(&mut self.writer.files).into_iter().zip(TABLES) {
            let rows = file.rows();
            let result = file.finish(recording).and_then(|(out, bytes)| {
                out.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
                Ok(bytes)
            });
            let bytes = result.map_err(at(&self.dir.join(table.name)))?;
            summaries.push(TableSummary { name: table.name, rows, bytes });
        }
        // From here on, a signal waits.
        let is_removed = self.cleanup.hold();
        if *is_removed {
            let source = io::ErrorKind::Interrupted.into();
            return Err(Error { path: self.dir.clone(), source });
        }
        // What is likely to fail comes before the first file is in its place.
        let mut directories = NewDirectories::default();
        for table in TABLES {
            directories.create(&self.dir.join(table.name).join(partition))?;
        }
        let place = |table: &Table| {
            self.dir.join(table.name).join(partition).join(format!("{recording:016x}.parquet"))
        };
        let (last, others): (Vec<_>, Vec<_>) =
            TABLES.iter().partition(|table| table.name == RECORDINGS);
        let mut created = Vec::new();
        let moved = others.iter().chain(&last).try_for_each(|table| {
            let path = place(table);
            let is_new = fs::symlink_metadata(&path).is_err();
            let from = self.temporary().join(table.name);
            move_file(&from, &path, &mut directories).map_err(at(&path))?;
            created.extend(Some(path).filter(|_| is_new));
            Ok(())
        });
        if moved.is_err() {
            for path in created {
                let _ = fs::remove_file(path); // the other error is reported
            }
        }
        moved?;
        directories.keep();
        self.remove_elsewhere(partition)?;
        Ok(summaries)
    }

    /// Removes the files of the recording in other partitions, in which it was before: by another clock
    /// or host of the same traces.
    fn remove_elsewhere(&self, partition: &str) -> Result<()> {
        let file = format!("{:016x}.parquet", self.options.recording);
        // The first table has a file wherever another one has.
        let Some((first, others)) = TABLES.split_first() else { return Ok(()) };
        let directories = |dir: &Path| fs::read_dir(dir).into_iter().flatten().flatten();
        let tables = self.dir.join(first.name);
        for date in directories(&tables) {
            for host in directories(&date.path()) {
                let found = Path::new(&date.file_name()).join(host.file_name());
                let path = host.path().join(&file);
                if found == Path::new(partition) || fs::symlink_metadata(&path).is_err() {
                    continue;
                }
                for table in others {
                    remove(&self.dir.join(table.name).join(&found).join(&file))?;
                }
                remove(&path)?;
            }
        }
        Ok(())
    }
}

/// Directories that were not there before. When this is dropped, those that are empty are removed.
#[derive(Debug, Default)]
struct NewDirectories(Vec<PathBuf>);

impl NewDirectories {
    /// Makes a directory, and those above it that are missing. Another export that failed can have removed them, as they
    /// were empty.
    fn create(&mut self, path: &Path) -> Result<()> {
        use io::ErrorKind::{AlreadyExists, NotADirectory, NotFound};
        let created = match (fs::create_dir(path), path.parent()) {
            (Err(error), Some(parent)) if matches!(error.kind(), NotFound | NotADirectory) => {
                self.create(parent)?;
                fs::create_dir(path)
            }
            (created, _) => created,
        };
        match created {
            Ok(()) => self.0.push(path.to_owned()),
            Err(error) if error.kind() == AlreadyExists && path.is_dir() => {}
            Err(error) => return Err(at(path)(error)),
        }
        Ok(())
    }

    /// Keeps all of them.
    fn keep(mut self) {
        self.0.clear();
    }
}

impl Drop for NewDirectories {
    fn drop(&mut self) {
        // Those in others come after them.
        for path in self.0.iter().rev() {
            let _ = fs::remove_dir(path); // another export has a file in it
        }
    }
}

/// Moves a file to its place. Another export that failed can have removed the directory, as it was empty. An error
/// names `from`, which can be what is missing, or on another file system than `to`.
fn move_file(from: &Path, to: &Path, directories: &mut NewDirectories) -> io::Result<()> {
    let moved = match fs::rename(from, to) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            if let Some(directory) = to.parent() {
                directories.create(directory).map_err(|error| error.source)?;
            }
            fs::rename(from, to)
        }
        result => result,
    };
    moved.map_err(|error| {
        let why = format!("{} cannot be moved there: {error}", from.display());
        io::Error::new(error.kind(), why)
    })
}

/// Removes a file, if it is there.
fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(at(path)(error)),
        _ => Ok(()),
    }
}

impl Drop for Dataset {
    fn drop(&mut self) {
        self.cleanup.run();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trace_timeline::Correlator;

    #[test]
    fn tables_have_their_names() {
        let name = |name: Name| TABLES[name as usize].name;
        assert_eq!(name(Name::Clocks), "clocks");
        assert_eq!(name(Name::CriticalPaths), "critical_paths");
        assert_eq!(name(Name::GoroutineStates), "goroutine_states");
        assert_eq!(name(Name::ProcStates), "proc_states");
        assert_eq!(name(Name::Recordings), RECORDINGS);
        assert_eq!(name(Name::ThreadStates), "thread_states");
        assert_eq!(name(Name::Wakeups), "wakeups");
        assert_eq!(Name::Wakeups as usize + 1, TABLES.len());
    }

    /// The session of a runtime begins before the scheduler is recorded, and lasts longer.
    #[test]
    fn the_scheduler_has_a_time_of_its_own() {
        use trace_timeline::sources::kernel::{KernelSource, Record, Task};
        let at = Timestamp::from_nanos;
        let clock = |time| {
            let (time, reading) = (at(time), at(0));
            let kind = EventKind::Clock { time, domain: ClockDomain::Realtime, reading };
            Event { time, kind }
        };
        let task = |tid| Task::new(tid, b"x", 120);
        let (mut tables, mut kernel) = (Tables::new(), KernelSource::new());
        let mut events = vec![clock(5)];
        for (time, prev, next) in [(100, 0, 7), (150, 7, 8), (180, 8, 7)] {
            let (prev, next) = (task(prev), task(next));
            let switch = Record::Switch { cpu: 0, prev, prev_state: 1, next };
            kernel.push(at(time), &switch, &mut tables, &mut events);
        }
        // The last one sleeps, and all is idle.
        let (prev, next) = (task(7), task(0));
        let switch = Record::Switch { cpu: 0, prev, prev_state: 1, next };
        kernel.push(at(190), &switch, &mut tables, &mut events);
        kernel.finish(at(200), &mut events);
        events.push(clock(900));
        let dir = tempfile::tempdir().unwrap();
        let mut dataset = Dataset::create(dir.path(), DatasetOptions::new(1)).unwrap();
        let mut correlator = Correlator::new();
        for event in &events {
            correlator
                .push(event, &tables.entities, &mut |derived| dataset.push(&derived, &tables));
        }
        correlator.finish(&mut |derived| dataset.push(&derived, &tables));
        let extent = |extent: &Extent| [extent.start, extent.end].map(Option::unwrap);
        assert_eq!(extent(&dataset.recorded), [at(5), at(900)]);
        assert_eq!(extent(&dataset.scheduler), [at(100), at(200)]);
    }

    /// A coroutine that another one switches to waits for no P.
    #[test]
    fn latencies_are_those_of_the_report() {
        use std::io::Read as _;
        use trace_timeline::answers::Report;
        use trace_timeline::sources::go::GoSource;
        // The package does not have the traces: `cargo xtask package` says where they are.
        let crates = std::env::var_os("TRISCOPE_TEST_CRATES")
            .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join(".."), PathBuf::from);
        let entries = match fs::read_dir(crates.join("gotrace/tests/data")) {
            Ok(entries) => entries,
            // In the repository they are there.
            Err(error) if crates.join("testkit/Cargo.toml").exists() => panic!("{error}"),
            Err(error) => {
                let reason = format!("\n==== SKIPPED: latencies of traces: {error}\n");
                io::Write::write_all(&mut io::stderr(), reason.as_bytes()).unwrap();
                return;
            }
        };
        let dir = tempfile::tempdir().unwrap();
        let (mut all, mut handed) = (0, 0);
        for entry in entries {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            let mut bytes = Vec::new();
            if name.ends_with(".trace.gz") {
                let file = File::open(&path).unwrap();
                flate2::read::GzDecoder::new(file).read_to_end(&mut bytes).unwrap();
            } else if name.ends_with(".trace") {
                bytes = fs::read(&path).unwrap();
            } else {
                continue;
            }
            let mut dataset = Dataset::create(dir.path(), DatasetOptions::new(1)).unwrap();
            let (mut report, mut latencies) = (Report::new(), Vec::new());
            let mut each = |derived: &Derived<'_>, tables: &Tables| {
                report.push(derived, &tables.entities);
                match derived {
                    Derived::Interval(interval) => latencies.extend(dataset.latency(interval)),
                    Derived::Flow(flow) => {
                        handed += usize::from(flow.kind == FlowKind::HandsOver);
                        dataset.flow(flow, tables);
                    }
                    _ => {}
                }
            };
            let mut reader = gotrace::Reader::new(&bytes[..]).unwrap();
            let (mut tables, mut correlator) = (Tables::new(), Correlator::new());
            let (mut source, mut events) = (GoSource::new(Default::default()), Vec::new());
            while let Some(event) = reader.next_event().unwrap() {
                source.push(event, &mut tables, &mut events);
                for event in events.drain(..) {
                    let each = &mut |derived: Derived<'_>| each(&derived, &tables);
                    correlator.push(&event, &tables.entities, each);
                }
            }
            correlator.finish(&mut |derived| each(&derived, &tables));
            let count: u64 = report.groups.values().map(|group| group.latency.count()).sum();
            let sum: u64 = report.groups.values().map(|group| group.latency.sum()).sum();
            assert_eq!(latencies.len() as u64, count, "{name}");
            assert_eq!(latencies.iter().sum::<i64>() as u64, sum, "{name}");
            all += latencies.len();
        }
        assert!(all > 0 && handed > 0, "{all} {handed}");
    }

    /// Times of a damaged trace.
    #[test]
    fn a_latency_has_the_limit_of_its_type() {
        let mut subject = Subject::default();
        for nanos in [i64::MAX, 1] {
            assert_eq!(subject.latency(State::Runnable, nanos), None);
        }
        assert_eq!(subject.latency(State::Running, 1), Some(i64::MAX));
    }

    /// Another export made it, and removed it as it failed.
    #[test]
    fn a_file_is_moved_to_a_directory_that_was_removed() {
        let dir = tempfile::tempdir().unwrap();
        let from = dir.path().join("file");
        let to = dir.path().join("date").join("host").join("file");
        let mut directories = NewDirectories::default();
        fs::write(&from, b"x").unwrap();
        move_file(&from, &to, &mut directories).unwrap();
        assert_eq!(fs::read(&to).unwrap(), b"x");
        let error = move_file(&from, &to, &mut directories).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        assert!(error.to_string().contains(&*from.to_string_lossy()), "{error}");
        // Another file cannot be moved.
        fs::remove_file(&to).unwrap();
        drop(directories);
        assert!(!dir.path().join("date").exists());
    }

    /// It is empty, and another export that failed removed it.
    #[test]
    fn a_directory_is_made_in_one_that_was_removed() {
        let dir = tempfile::tempdir().unwrap();
        let removed = dir.path().join("removed");
        let mut directories = NewDirectories::default();
        directories.create(&removed.join("date/host")).unwrap();
        assert!(removed.join("date/host").is_dir());
        drop(directories);
        assert!(!removed.exists() && dir.path().exists());
    }

    #[test]
    fn rows_that_cannot_be_written_are_noticed_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("read-only");
        File::create(&path).unwrap();
        let mut dataset = Dataset::create(dir.path(), DatasetOptions::new(1)).unwrap();
        let out = BufWriter::with_capacity(16, File::open(&path).unwrap());
        let table = &TABLES[Name::Clocks as usize];
        dataset.writer.files[Name::Clocks as usize] = FileWriter::new(out, table).unwrap();
        let tables = Tables::new();
        let mut pushed = 0;
        while !dataset.has_failed() {
            let (time, reading) = (Timestamp::from_nanos(pushed), Timestamp::from_nanos(0));
            let kind = EventKind::Clock { time, domain: ClockDomain::Realtime, reading };
            dataset.push(&Derived::Event(Event { time, kind }), &tables);
            pushed += 1;
            assert!(pushed < 1 << 20);
        }
        let error = dataset.finish(&tables).unwrap_err();
        assert_eq!(error.path, dir.path().join("clocks"));
    }
}
