//! Traces as one stream of the timeline model.

mod first_threads;
mod origin;
mod perf;

use super::go::{MAX_REPORTS, Recovery, Trace, report};
use super::manifest::{self, MANIFEST};
use super::quota::{QUOTAS, QuotaReader};
use super::{perf_directory, symbols};
use crate::failure::{Failure, OneLine, Result};
use crate::io::input::{self, Format, Input};
use crate::io::per_file::offsets;
use crate::io::progress::Progress;
use crate::io::regular;
use crate::io::spool::spool;
use crate::timeline::{counted, notes};
use first_threads::FirstThreads;
use nettrace::ErrorKind;
use origin::Origins;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Seek};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use trace_common::{ClockDomain, Timestamp};
use trace_export::timeline::TimelineStats;
use trace_timeline::sources::dotnet::{DotnetNames, DotnetSource, DotnetStats};
use trace_timeline::sources::go::{GoOptions, GoSource, GoStats};
use trace_timeline::{
    Correlator, Derived, Dropped, EntityId, Event, EventKind, SampledGoroutines, Stream, Streams,
    Tables, text,
};

pub(crate) use trace_timeline::text::duration;

/// The traces of a timeline. They can be read several times.
#[derive(clap::Args)]
pub(crate) struct Traces {
    /// Go traces, .NET traces and perf.data recordings of one machine, or a directory that `triscope record
    /// --keep` wrote
    #[arg(value_name = "FILE|DIR", required = true)]
    files: Vec<PathBuf>,
    /// CLOCK_MONOTONIC time in seconds at which the clock of a trace shows 0; with several traces
    /// FILE=SECONDS
    #[arg(long, value_name = "[FILE=]SECONDS", allow_hyphen_values = true)]
    offset: Vec<String>,
    #[command(flatten)]
    recovery: Recovery,
    /// The programs of the traces, by file: see [`Traces::files`].
    #[arg(skip)]
    programs: Vec<Program>,
    /// A title that is not that of the files.
    #[arg(skip)]
    title: Option<String>,
    /// Whether functions of recordings of perf have files and lines, and inlined ones are frames.
    #[arg(skip)]
    has_lines: bool,
}

/// The program of a trace: a Go trace does not record its process id and name.
#[derive(Clone, Default)]
pub(crate) struct Program {
    pub(crate) pid: Option<u32>,
    pub(crate) name: Option<String>,
    /// The ids of its threads in its PID namespace and in that of the recorder, of a .NET program.
    pub(crate) threads: BTreeMap<u32, u32>,
    /// How messages call the trace, instead of its path.
    pub(crate) trace: Option<String>,
    /// The file with what the recorder read of processes, if it is not beside the trace.
    pub(crate) processes: Option<PathBuf>,
}

/// How to read one of the traces.
struct Opening<'a> {
    path: &'a Path,
    program: Program,
    /// In nanoseconds.
    offset: Option<i64>,
    is_single: bool,
    /// Whether another one is of the same process.
    has_siblings: bool,
    /// Of a recording of perf, if another one begins earlier.
    start: Option<Timestamp>,
    recovery: Recovery,
    damage: Damage,
    notes: Notes,
    summary: Summary,
    /// Whether each place of damage is reported when reading resumes after it.
    lists_damage: bool,
    /// As of [`Traces`].
    has_lines: bool,
}

/// Traces that are open, to be read as one stream.
pub(crate) struct Opened {
    streams: Streams<'static>,
    parts: Vec<Part>,
    /// The clock of the timeline: that of a trace which is alone, otherwise `CLOCK_MONOTONIC`.
    pub(crate) domain: ClockDomain,
    /// The release of the kernel that a recording of perf was made on.
    pub(crate) kernel: Option<String>,
    /// The host of that recording.
    pub(crate) host: Option<String>,
    /// The wall clock when the clock of the timeline shows 0, if that recording has it.
    pub(crate) clock_offset: Option<i64>,
    /// Where the traces were made whose clocks are not moved.
    origins: Origins,
    /// Whether a recording of perf is one of them.
    has_scheduler: bool,
    /// What is said of the Go traces that are not related to the kernel, when they were drawn.
    pub(crate) unrelated: Vec<String>,
    /// For each trace that was given up at damage: its last event before, or the first one of the timeline
    /// if it has none.
    pub(crate) given_up: Vec<Timestamp>,
    /// Complete when the traces are read.
    notes: Notes,
}

/// One of the traces.
struct Part {
    name: String,
    damage: Damage,
    summary: Summary,
    /// Why it was not read to its end.
    error: Option<String>,
}

/// What was read of a trace so far.
#[derive(Clone, Default)]
struct Summary(Rc<RefCell<Read>>);

#[derive(Default)]
enum Read {
    /// Its events are counted on the timeline.
    #[default]
    Other,
    /// As [`Read::Other`], with the number of samples, that of those which cannot be decoded, and the
    /// sampled events.
    Perf {
        samples: u64,
        undecodable: u64,
        events: String,
    },
    Go {
        stats: GoStats,
        process: Option<EntityId>,
        notes: Vec<(u64, &'static str, &'static str)>,
    },
    Dotnet {
        stats: DotnetStats,
        skipped: String,
    },
}

impl Summary {
    fn set(&self, read: Read) {
        *self.0.borrow_mut() = read;
    }
}

/// The ends of Go traces. A trace is at its end when an event of another one is later than all of its
/// own.
struct Ends(Vec<(Summary, Cell<bool>)>);

impl Ends {
    /// Passes on the processes of traces that were read to their end since the last call, with the times
    /// of their last events.
    fn each(&self, found: &mut dyn FnMut(EntityId, Timestamp)) {
        for (summary, is_known) in self.0.iter().filter(|(_, is_known)| !is_known.get()) {
            if let Read::Go { stats, process, .. } = &*summary.0.borrow() {
                is_known.set(true);
                if let (Some(process), Some(last)) = (process, stats.last) {
                    found(*process, last);
                }
            }
        }
    }
}

/// Places of damage that reading resumed after, and the bytes that were lost if they are known.
#[derive(Clone, Default)]
struct Damage(Rc<Cell<(u64, u64)>>);

impl Damage {
    fn add(&self, bytes: u64) {
        let (places, before) = self.0.get();
        self.0.set((places + 1, before.saturating_add(bytes)));
    }

    fn message(&self) -> Option<String> {
        let (places, bytes) = self.0.get();
        let s = |count| if count == 1 { "" } else { "s" };
        let lost =
            if bytes > 0 { format!(", {bytes} byte{} lost", s(bytes)) } else { String::new() };
        (places > 0).then(|| format!("damaged in {places} place{}{lost}", s(places)))
    }

    fn places(&self) -> u64 {
        self.0.get().0
    }
}

/// What a trace has and the model does not, by file.
#[derive(Clone, Default)]
struct Notes {
    all: Rc<RefCell<Vec<String>>>,
    /// Those of them that every command prints.
    warnings: Rc<RefCell<Vec<String>>>,
}

impl Notes {
    /// Adds a sentence about a file that every command prints: what it shows can be wrong.
    fn warn(&self, file: &str, what: &str) {
        self.say(file, what);
        self.warnings.borrow_mut().push(format!("{file}: {what}"));
    }

    /// Prints those that every command prints, for one that prints no others.
    fn print_warnings(&self) {
        self.warnings.take().iter().for_each(|note| message!("triscope: {}", OneLine(note)));
    }

    /// Adds a sentence about a file.
    fn say(&self, file: &str, what: &str) {
        self.all.borrow_mut().push(format!("{file}: {what}"));
    }

    /// Adds those of a file whose number is not 0.
    fn add(&self, file: &str, counts: &[(u64, &str)]) {
        let notes = counts.iter().filter(|(count, _)| *count > 0);
        let notes = notes.map(|(count, what)| format!("{file}: {count} {what}"));
        self.all.borrow_mut().extend(notes);
    }
}

/// The file of a directory that `triscope record --keep` wrote which names the recorded process.
pub(crate) const RECORDING: &str = "recording.json";

/// What that file says; `None` if there is none.
fn about_recording(dir: &Path) -> Result<Option<serde_json::Value>> {
    use std::io::ErrorKind::{NotADirectory, NotFound};
    /// It has a command line, which can be long.
    const LONGEST: u64 = 16 << 20;
    let path = dir.join(RECORDING);
    let bytes = match regular::read(&path, LONGEST) {
        Ok(bytes) => bytes,
        Err(error) if matches!(error.kind(), NotFound | NotADirectory) => return Ok(None),
        Err(error) => return Err(Failure::about(path.display(), error)),
    };
    serde_json::from_slice(&bytes).map(Some).map_err(|error| Failure::about(path.display(), error))
}

/// The dumps of a flight recorder, beside [`BOOT`].
pub(crate) const DUMPS: &str = "dumps";

/// The boot whose clock the segments of a flight recorder have.
pub(crate) const BOOT: &str = "boot_id";

/// The file there with what the recorder read of processes.
pub(crate) const PROCESSES: &str = "processes.jsonl";

/// The ending of a file with the ids of the threads of a .NET trace, which has the same name: a JSON object of
/// the ids in the trace, with those of the recorder.
pub(crate) const THREADS: &str = "threads";

/// The file with the records of the scheduler there.
pub(crate) const SCHEDULER: &str = "kernel.perf.data";

/// Events that a trace gives at once: those fit into the first-level cache of a CPU.
const CHUNK: usize = 1 << 9;

/// Maximum number of damaged blocks before a .NET trace is given up.
const MAX_ERRORS: u32 = 1_000;

impl Traces {
    /// Traces that a command wrote or was given.
    pub(crate) fn of(files: Vec<PathBuf>) -> Self {
        Self::with(files, Vec::new(), Recovery::default(), Vec::new())
    }

    /// Traces with the options of a command; `programs` has one for each file, those of directories
    /// expanded as by [`Traces::files`].
    pub(crate) fn with(
        files: Vec<PathBuf>,
        offset: Vec<String>,
        recovery: Recovery,
        programs: Vec<Program>,
    ) -> Self {
        Self { files, offset, recovery, programs, title: None, has_lines: false }
    }

    /// The files and directories as they were given.
    pub(crate) fn inputs(&self) -> &[PathBuf] {
        &self.files
    }

    /// The process that `triscope record --keep` recorded, if these are its traces.
    pub(crate) fn recorded(&self) -> Option<u32> {
        let [dir] = self.files.as_slice() else { return None };
        u32::try_from(about_recording(dir).ok()??.get("pid")?.as_u64()?).ok()
    }

    /// The same traces, for a profile: functions of recordings of perf have files and lines, and inlined
    /// ones are frames, as in a profile of a program that runs.
    pub(crate) fn with_lines(mut self) -> Self {
        self.has_lines = true;
        self
    }

    /// The same traces with this title.
    pub(crate) fn titled(mut self, title: String) -> Self {
        self.title = Some(title);
        self
    }

    /// A title: the one that was given, or the names of the files and directories.
    pub(crate) fn title(&self) -> String {
        if let Some(title) = &self.title {
            return title.clone();
        }
        let name = |path: &PathBuf| {
            let path = path.canonicalize().unwrap_or_else(|_| path.clone());
            path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
        };
        self.files.iter().map(name).collect::<Vec<_>>().join(", ")
    }

    /// The files, those of a directory by name.
    pub(crate) fn files(&self) -> Result<Vec<PathBuf>> {
        let mut files = Vec::new();
        for path in &self.files {
            if !path.is_dir() {
                files.push(path.clone());
                continue;
            }
            let fail = |error| Failure::about(path.display(), error);
            if let Some(why) = perf_directory(path) {
                return Err(Failure::about(path.display(), why));
            }
            // That of a flight recorder has its traces in its dumps.
            let dumps = path.join(DUMPS);
            if path.join(BOOT).is_file() && dumps.is_dir() {
                let why = format!(
                    "is the directory of a flight recorder: use one of its dumps, in {}",
                    dumps.display()
                );
                return Err(Failure::about(path.display(), why));
            }
            let mut inside = Vec::new();
            for entry in std::fs::read_dir(path).map_err(fail)? {
                let path = entry.map_err(fail)?.path();
                let is_about_others =
                    [RECORDING, PROCESSES, MANIFEST].into_iter().any(|name| path.ends_with(name))
                        || path.extension().is_some_and(|extension| extension == THREADS);
                // A recorder was killed before it wrote to it.
                let is_empty = path.ends_with(QUOTAS)
                    && path.metadata().is_ok_and(|metadata| metadata.len() == 0);
                if path.is_file() && !is_about_others && !is_empty {
                    inside.push(path);
                }
            }
            // Readings of CPU quotas alone say nothing.
            if inside.iter().all(|path| path.ends_with(QUOTAS)) {
                return Err(Failure::about(path.display(), "the directory has no traces"));
            }
            inside.sort();
            files.extend(inside);
        }
        Ok(files)
    }

    /// Reads all traces and derives everything. Damage is reported and is the second result: what
    /// is before it, and with `--recover` after it, was processed.
    pub(crate) fn derive(
        &self,
        tables: &mut Tables,
        each: &mut dyn FnMut(Derived<'_>, &Tables),
    ) -> Result<Result> {
        let notes = Notes::default();
        let failures = self.read(tables, each, &notes);
        notes.print_warnings();
        Ok(outcome(&failures?))
    }

    /// Reads all traces as one stream of events, with resolved stacks of .NET. Damage is reported
    /// and is the second result. An error of `each` ends the reading.
    pub(crate) fn merge(
        &self,
        tables: &mut Tables,
        each: &mut dyn FnMut(&Event, &Tables) -> Result,
    ) -> Result<Result> {
        let mut opened = self.open()?;
        let mut offset = opened.clock_offset;
        let mut each = |event: &Event, tables: &mut Tables| {
            offset.take().map_or(Ok(()), |nanos| each(&wall_clock(event.time, nanos), tables))?;
            each(event, tables)
        };
        let failures = opened.read(tables, &mut each);
        opened.print_warnings();
        Ok(outcome(&failures?))
    }

    /// The same as `merge`; samples of threads are those of the goroutines that the threads execute by
    /// the Go traces among them. Also returns what is said of that, if there are such samples.
    pub(crate) fn merge_with_goroutines(
        &self,
        tables: &mut Tables,
        each: &mut dyn FnMut(&Event, &mut Tables) -> Result,
    ) -> Result<(Result, Option<String>)> {
        let mut opened = self.open()?;
        let mut goroutines = SampledGoroutines::new();
        let (ends, mut offset) = (opened.ends(), opened.clock_offset);
        let mut apply = |event: &Event, tables: &mut Tables| {
            offset.take().map_or(Ok(()), |nanos| each(&wall_clock(event.time, nanos), tables))?;
            ends.each(&mut |process, last| goroutines.end(process, last));
            let mut event = *event;
            goroutines.apply(&mut event, tables);
            each(&event, tables)
        };
        let failures = opened.read(tables, &mut apply);
        opened.print_warnings();
        let outcome = outcome(&failures?);
        let (attributed, others) = (goroutines.attributed(), goroutines.others());
        let note = match attributed + others {
            0 => None,
            all => {
                let all = counted(all, "sample");
                Some(format!("; {attributed} of {all} of Go programs with a goroutine"))
            }
        };
        Ok((outcome, note))
    }

    /// The same as `derive`, and what the traces have that the model does not.
    pub(crate) fn derive_with_notes(
        &self,
        tables: &mut Tables,
        each: &mut dyn FnMut(Derived<'_>, &Tables),
    ) -> Result<(Result, Vec<String>)> {
        let notes = Notes::default();
        let failures = self.read(tables, each, &notes)?;
        self.note_directories(&notes);
        Ok((outcome(&failures), notes.all.take()))
    }

    /// What the traces have that the model does not, when `opened` was read: as of `derive_with_notes`.
    pub(crate) fn notes(&self, opened: &Opened) -> Vec<String> {
        self.note_directories(&opened.notes);
        opened.notes.all.take()
    }

    /// What files of the directories say of their traces.
    fn note_directories(&self, notes: &Notes) {
        for dir in &self.files {
            let missing = manifest::missing(dir).unwrap_or_else(|failure| {
                notes.all.borrow_mut().push(failure.message().to_owned());
                Vec::new()
            });
            for what in missing {
                notes.say(&dir.display().to_string(), &format!("missing: {what}"));
            }
            let about = about_recording(dir).unwrap_or_else(|failure| {
                notes.all.borrow_mut().push(failure.message().to_owned());
                None
            });
            // The records of switches show threads on their CPUs in steal time.
            let steal = about.as_ref().and_then(|about| about.get("steal_nanos")?.as_i64());
            if let Some(steal) = steal.filter(|steal| *steal > 0) {
                let what = "of steal time: the hypervisor had a CPU while a thread is shown on it";
                notes.all.borrow_mut().push(format!(
                    "{}: {} {what}",
                    dir.display(),
                    duration(steal)
                ));
            }
        }
    }

    /// Refuses traces that can be read only once, for a command that reads them twice.
    pub(crate) fn check_twice(&self) -> Result {
        self.files.iter().try_for_each(|path| input::check_twice(path, "this command"))
    }

    /// The same as `derive` in another pass: it returns the damage, and prints none. If it fails, it prints what it
    /// noticed until then.
    pub(crate) fn derive_again(
        &self,
        tables: &mut Tables,
        each: &mut dyn FnMut(Derived<'_>, &Tables),
    ) -> Result<Unreported> {
        let notes = Notes::default();
        let failures = self.read(tables, each, &notes).inspect_err(|_| notes.print_warnings())?;
        Ok(Unreported { failures, notes })
    }

    fn read(
        &self,
        tables: &mut Tables,
        each: &mut dyn FnMut(Derived<'_>, &Tables),
        notes: &Notes,
    ) -> Result<Vec<Failure>> {
        let mut correlator = Correlator::new();
        let mut correlate = |event: &Event, tables: &mut Tables| {
            correlator.push(event, &tables.entities, &mut |derived| each(derived, tables));
            Ok(())
        };
        let mut opened = self.open_with(notes, false)?;
        let failures = opened.read(tables, &mut correlate)?;
        correlator.finish(&mut |derived| each(derived, tables));
        opened.note_processes(&correlator, tables);
        Ok(failures)
    }

    /// Opens the traces. Standard input can be one of them.
    pub(crate) fn open(&self) -> Result<Opened> {
        let notes = Notes::default();
        self.open_with(&notes, true).inspect_err(|_| notes.print_warnings())
    }

    /// Opens the traces to look something up: damage and missing names are listed by the reading that
    /// the command is for.
    pub(crate) fn open_quietly(&self) -> Result<Opened> {
        self.open_with(&Notes::default(), false)
    }

    fn open_with(&self, notes: &Notes, lists_damage: bool) -> Result<Opened> {
        let files = self.files()?;
        input::check_distinct(&files)?;
        let offsets = offsets(&self.offset, &files)?;
        let starts = perf::later_starts(&files, &offsets);
        let mut opened = Opened {
            streams: Streams::new(),
            parts: Vec::new(),
            domain: ClockDomain::Monotonic,
            kernel: None,
            host: None,
            clock_offset: None,
            origins: Origins::default(),
            has_scheduler: false,
            unrelated: Vec::new(),
            given_up: Vec::new(),
            notes: notes.clone(),
        };
        let pid_of = |(index, path): (usize, &PathBuf)| {
            let given = self.programs.get(index).and_then(|program| program.pid);
            given.or_else(|| go_pid(path)).or_else(|| kept_dotnet_pid(path))
        };
        let pids: Vec<Option<u32>> = files.iter().enumerate().map(pid_of).collect();
        for (index, (path, offset)) in files.iter().zip(offsets).enumerate() {
            let (damage, summary) = (Damage::default(), Summary::default());
            let program = self.programs.get(index).cloned().unwrap_or_default();
            let pid = pids.get(index).copied().flatten();
            let of_process = pids.iter().filter(|other| pid.is_some() && **other == pid);
            let name = program.trace.clone().unwrap_or_else(|| match path.as_os_str() {
                name if name == "-" => "standard input".to_owned(),
                _ => path.display().to_string(),
            });
            let (known, read) = (damage.clone(), summary.clone());
            opened.parts.push(Part { name, damage: known, summary: read, error: None });
            let opening = Opening {
                path,
                program,
                offset,
                is_single: files.len() == 1,
                has_siblings: of_process.count() > 1,
                start: starts.get(index).copied().flatten(),
                recovery: self.recovery,
                damage,
                notes: notes.clone(),
                summary,
                lists_damage,
                has_lines: self.has_lines,
            };
            opening.add(&mut opened)?;
        }
        Ok(opened)
    }
}

/// What is said of a process whose trace is not related to the kernel: see [`Correlator::unrelated`].
pub(crate) fn unrelated(process: EntityId, tables: &Tables) -> String {
    let what = "its thread ids are those of several processes, as ids of a container are: it is not related \
                to threads of the kernel";
    format!("{}: {what}", name(tables, process))
}

/// What a pass noticed that leaves the report to another one.
pub(crate) struct Unreported {
    failures: Vec<Failure>,
    notes: Notes,
}

impl Unreported {
    /// Prints it, if no other pass follows.
    pub(crate) fn print(&self) {
        self.notes.print_warnings();
        self.failures.iter().for_each(Failure::print);
    }

    /// Whether nothing is damaged or missing.
    pub(crate) fn is_whole(&self) -> bool {
        self.failures.is_empty()
    }
}

/// Prints what is damaged or missing. It is a failure.
pub(crate) fn outcome(failures: &[Failure]) -> Result {
    failures.iter().for_each(Failure::print);
    if failures.is_empty() { Ok(()) } else { Err(Failure::Quiet(1)) }
}

/// A reading of the wall clock, from its offset: the records of perf have none.
fn wall_clock(at: Timestamp, offset: i64) -> Event {
    let (domain, reading) = (ClockDomain::Realtime, at.saturating_add_nanos(offset));
    Event { time: at, kind: EventKind::Clock { time: at, domain, reading } }
}

impl Opened {
    /// Reads all traces as one stream of events, with resolved stacks of .NET. What is damaged is
    /// the result. An error of `each` ends the reading.
    pub(crate) fn read(
        &mut self,
        tables: &mut Tables,
        each: &mut dyn FnMut(&Event, &mut Tables) -> Result,
    ) -> Result<Vec<Failure>> {
        let mut failures: Vec<Failure> = Vec::new();
        let (mut first, mut given_up) = (None, Vec::new());
        loop {
            let event = match self.streams.next_event(tables) {
                Ok(Some(event)) => event,
                Ok(None) => break,
                Err(error) => {
                    let Some(part) = self.parts.get_mut(error.stream) else { continue };
                    let cause = part.error.insert(error.source.to_string());
                    failures.push(Failure::about(&part.name, cause));
                    given_up.push(error.newest);
                    continue;
                }
            };
            first.get_or_insert(event.time);
            each(event, tables)?;
        }
        let first = first.unwrap_or_default();
        self.given_up.extend(given_up.into_iter().map(|last| last.unwrap_or(first)));
        for part in &self.parts {
            failures.extend(part.damage.message().map(|text| Failure::about(&part.name, text)));
        }
        let mut dropped = Dropped::default();
        dropped.entities = tables.dropped().entities;
        failures.extend(text::dropped(dropped).map(missing));
        Ok(failures)
    }

    /// Sets the process ids that the correlator found when the traces were read: a Go trace does not record its own.
    /// Notes the processes that it does not relate to the kernel.
    pub(crate) fn note_processes(&self, correlator: &Correlator, tables: &mut Tables) {
        for process in correlator.unrelated() {
            self.notes.all.borrow_mut().push(unrelated(process, tables));
        }
        for (process, pid) in correlator.processes() {
            if let Some(process) = tables.entities.get_mut(process) {
                process.number = pid.into();
            }
        }
    }

    /// Prints those of the notes that every command prints, for one that prints no others.
    pub(crate) fn print_warnings(&self) {
        self.notes.print_warnings();
    }

    /// Whether the clock is one that viewers relate to nothing, and that records of the scheduler can be on.
    pub(crate) fn needs_boottime(&self) -> bool {
        match self.domain {
            ClockDomain::Monotonic => true,
            ClockDomain::Boottime => false,
            _ => self.has_scheduler,
        }
    }

    /// The ends of the Go traces, as they are found.
    fn ends(&self) -> Ends {
        Ends(self.parts.iter().map(|part| (part.summary.clone(), Cell::new(false))).collect())
    }

    /// Number of traces.
    pub(crate) fn len(&self) -> usize {
        self.parts.len()
    }

    /// What was read of each trace that has events of its own, with notes: its name, and a text.
    pub(crate) fn summaries(&self, drawn: &TimelineStats) -> Vec<(&str, String)> {
        let parts = self.parts.iter().enumerate();
        parts.filter_map(|(file, part)| Some((&*part.name, self.summary(file, drawn)?))).collect()
    }

    /// The same of one trace, by the position of its file.
    pub(crate) fn summary(&self, file: usize, drawn: &TimelineStats) -> Option<String> {
        let part = self.parts.get(file)?;
        match &*part.summary.0.borrow() {
            Read::Perf { samples: samples @ 1.., events, .. } => {
                Some(format!("{} of {events}", counted(*samples, "sample")))
            }
            Read::Other | Read::Perf { .. } => None,
            Read::Go { stats, notes: others, .. } => {
                let seconds = seconds(stats.first, stats.last);
                let events = counted(stats.events, "event");
                let goroutines = counted(stats.goroutines, "goroutine");
                let mut counts = vec![(part.damage.places(), "gap", "gaps")];
                counts.extend(others);
                let notes = notes(&counts);
                Some(format!("{events} of {seconds:.3} s, {goroutines}{notes}"))
            }
            Read::Dotnet { stats, skipped } => {
                let seconds = seconds(stats.first, stats.last);
                let events = counted(stats.events, "event");
                let mut samples = counted(stats.samples, "sample");
                let (on, off) = (drawn.samples_on_cpu, drawn.samples_off_cpu);
                if self.dotnet_traces() == 1 && on + off > 0 {
                    samples.push_str(&format!(" ({on} on CPU, {off} off CPU)"));
                }
                let notes = notes(&[
                    (
                        stats.undecodable,
                        "event could not be decoded",
                        "events could not be decoded",
                    ),
                    (stats.lost, "event lost by the runtime", "events lost by the runtime"),
                    (stats.unnamed, "method without a name", "methods without a name"),
                    (
                        stats.unrelated_threads,
                        "thread of a container that is not related to one of the kernel",
                        "threads of a container that are not related to those of the kernel",
                    ),
                    (
                        stats.unpaired,
                        "start or stop without the other",
                        "starts or stops without the other",
                    ),
                ]);
                Some(format!("{events} of {seconds:.3} s, {samples}{skipped}{notes}"))
            }
        }
    }

    fn dotnet_traces(&self) -> usize {
        let is_dotnet = |part: &&Part| matches!(&*part.summary.0.borrow(), Read::Dotnet { .. });
        self.parts.iter().filter(is_dotnet).count()
    }

    /// Number of goroutines of a Go trace, by the position of its file.
    pub(crate) fn goroutines(&self, file: usize) -> Option<u64> {
        match &*self.parts.get(file)?.summary.0.borrow() {
            Read::Go { stats, .. } => Some(stats.goroutines),
            _ => None,
        }
    }

    /// Why a trace was not read to its end, by the position of its file.
    pub(crate) fn error(&self, file: usize) -> Option<&str> {
        self.parts.get(file)?.error.as_deref()
    }

    /// Number of samples of perf.data recordings that cannot be decoded.
    pub(crate) fn undecodable_samples(&self) -> u64 {
        let of = |part: &Part| match *part.summary.0.borrow() {
            Read::Perf { undecodable, .. } => undecodable,
            _ => 0,
        };
        self.parts.iter().map(of).sum()
    }

    /// A .NET trace all of whose events are of kinds that the model does not have.
    pub(crate) fn nothing_shown(&self) -> Option<Failure> {
        (0..self.parts.len()).find_map(|file| self.nothing_shown_of(file))
    }

    /// Whether that holds for the trace at this position of the files.
    pub(crate) fn nothing_shown_of(&self, file: usize) -> Option<Failure> {
        let part = self.parts.get(file)?;
        match &*part.summary.0.borrow() {
            Read::Dotnet { stats, skipped }
                if stats.skipped > 0 && stats.skipped == stats.events =>
            {
                let why = format!("nothing of the trace can be shown{skipped}");
                Some(Failure::about(&part.name, why))
            }
            _ => None,
        }
    }
}

/// A failure for what is missing because a table is full.
pub(crate) fn missing((count, what): (u64, &str)) -> Failure {
    Failure::new(format_args!("{count} {what}"))
}

/// What is missing of the events because a table is full. Entities are among the failures of
/// [`Opened::read`].
pub(crate) fn dropped(tables: &Tables) -> Dropped {
    let mut dropped = tables.dropped();
    dropped.entities = 0;
    dropped
}

/// The time from the first to the last event.
fn seconds(first: Option<Timestamp>, last: Option<Timestamp>) -> f64 {
    match (first, last) {
        (Some(first), Some(last)) => last.nanos_since(first) as f64 / 1e9,
        _ => 0.0,
    }
}

impl Opening<'_> {
    fn add(self, opened: &mut Opened) -> Result {
        let mut input = Input::open(self.path, Progress::bytes())?;
        input.name = self.program.trace.clone().unwrap_or(input.name);
        let Program { pid, name, .. } = &self.program;
        if matches!(input.format, Format::PerfData | Format::CpuStat)
            && (pid.is_some() || name.is_some())
        {
            let what = "has the process ids and names of its programs: --pid and --name are for the \
                        traces of a runtime";
            return Err(input.failure(what).with_code(2));
        }
        let is_test = self.path.extension().is_some_and(|extension| extension == "test");
        match input.format {
            Format::GoTrace | Format::GoText | Format::GoTest => self.add_go(input, opened),
            Format::Unknown if is_test => self.add_go(input, opened),
            Format::PerfData => self.add_perf(input, opened),
            Format::NetTrace => self.add_dotnet(input, opened),
            Format::CpuStat => {
                add_quotas(input, self.offset.unwrap_or(0), &mut opened.streams);
                Ok(())
            }
            Format::Unknown => Err(input.failure(
                "is not a trace of a known format: Go execution traces (runtime/trace, go test -trace, \
                 /debug/pprof/trace), .NET traces and perf.data recordings can be analysed",
            )),
            other => {
                let what = other
                    .description()
                    .map_or(String::new(), |what| format!("looks like {what}: "));
                Err(input.failure(format_args!(
                    "{what}Go execution traces, .NET traces and perf.data recordings can be \
                     analysed"
                )))
            }
        }
    }

    fn add_go(self, input: Input, opened: &mut Opened) -> Result {
        let Self { path, program, offset, is_single, recovery, damage, notes, summary, .. } = self;
        let (has_siblings, nanos) = (self.has_siblings, offset.unwrap_or(0));
        let (name, lists_damage) = (input.name.clone(), self.lists_damage);
        let Trace { bytes, progress, .. } = Trace::of(input, path, Progress::bytes())?;
        let mut reader = gotrace::Reader::with_limits(bytes, recovery.limits())
            .map_err(|error| Failure::about(&name, error))?;
        let is_related = offset.is_some() || reader.clock_domain() == ClockDomain::Monotonic;
        if !is_related {
            opened.domain = reader.clock_domain();
        }
        if !is_single && !is_related {
            let hint = recovery.offset_hint();
            let why = "its clock cannot be related to that of other traces, as that of Go 1.21 and \
                       older: analyse it alone";
            return Err(Failure::about(&name, format_args!("{why}{hint}")));
        }
        let mut options = GoOptions::default();
        options.offset_nanos = nanos;
        let stem = match path.as_os_str() {
            stdin if stdin == "-" => "Go program".to_owned(),
            _ => uncompressed(path).file_stem().unwrap_or_default().to_string_lossy().into_owned(),
        };
        options.pid = program.pid.or_else(|| go_pid(path));
        options.process = program.name.unwrap_or(stem).into_bytes();
        let mut threads = FirstThreads::new(is_single || options.pid.is_some());
        let mut source = GoSource::new(options);
        let mut origins = Some(opened.origins.clone()).filter(|_| offset.is_none());
        // What is read to know when it begins.
        let (mut head, mut start) = (VecDeque::new(), None);
        while has_siblings && start.is_none() {
            let Some(event) = reader.next() else { break };
            let first = event.as_ref().ok().map(gotrace::OwnedEvent::as_event);
            let first = first.filter(|event| event.sync().is_none());
            start = first.map(|event| event.time().saturating_add_nanos(nanos));
            let is_error = event.is_err();
            head.push_back(event);
            if is_error {
                break;
            }
        }
        add_stream(&mut opened.streams, start, move |tables: &mut Tables, out: &mut Vec<Event>| {
            let result = loop {
                if out.len() >= CHUNK && threads.are_known(out, tables) {
                    break Ok(true);
                }
                let next = match head.pop_front() {
                    Some(Ok(event)) => {
                        source.push(event.as_event(), tables, out);
                        continue;
                    }
                    Some(Err(error)) => Err(error),
                    None => reader.next_event(),
                };
                match next {
                    Ok(Some(event)) => source.push(event, tables, out),
                    Ok(None) => break Ok(false),
                    Err(error) if recovery.is_wanted() => {
                        let loss = match reader.recover() {
                            Ok(Some(loss)) => loss,
                            Ok(None) => break Err(error.into()),
                            Err(error) => break Err(error.into()),
                        };
                        if lists_damage && damage.places() < MAX_REPORTS {
                            progress.note(&report(&name, &error, &loss));
                        }
                        damage.add(loss.bytes);
                        source.loss(&error.to_string(), Some(loss.bytes), tables, out);
                    }
                    Err(error) => break Err(format!("{error}{}", recovery.hint()).into()),
                }
            };
            if let Some(origins) = origins.take() {
                origins.add_first(&name, out, &notes);
            }
            if !matches!(result, Ok(true)) {
                // What is open at the end of a trace alone is open at the end of the timeline.
                if !is_single {
                    source.finish(tables, out);
                }
                let stats = source.stats();
                let experiments = (stats.experimental, "events of experiments");
                let regions = (stats.regions_dropped, "regions: too many are open");
                notes.add(&name, &[experiments, regions]);
                let mut counts = vec![
                    (
                        stats.experimental,
                        "experimental event not shown",
                        "experimental events not shown",
                    ),
                    (stats.regions_dropped, "region too many", "regions too many"),
                ];
                let missing = [
                    (reader.missing_generations(), "missing generation", "missing generations"),
                    (
                        reader.unresolved_ids(),
                        "unresolved name or stack",
                        "unresolved names or stacks",
                    ),
                    (reader.lost_events(), "lost event", "lost events"),
                ];
                for (count, one, several) in missing {
                    notes.add(&name, &[(count, if count == 1 { one } else { several })]);
                }
                counts.extend(missing);
                let process = source.process();
                summary.set(Read::Go { stats, process, notes: counts });
            }
            result
        });
        Ok(())
    }

    fn add_dotnet(self, input: Input, opened: &mut Opened) -> Result {
        let Self { path, program, offset, recovery, damage, notes, summary, .. } = self;
        let (name, has_siblings) = (input.name.clone(), self.has_siblings);
        // The names of methods are late in a trace: it is read twice.
        let ((names, first), trace): (_, Box<dyn io::Read>) = if !input::is_file(path) {
            let spool = spool(input)?;
            let names = dotnet_names(&spool);
            (&spool).rewind().map_err(|e| Failure::about("a temporary file", e))?;
            (names, Box::new(spool))
        } else {
            (dotnet_names(Input::open(path, Progress::bytes())?), Box::new(input))
        };
        let first = first.filter(|_| has_siblings);
        let start = first.map(|first| first.saturating_add_nanos(offset.unwrap_or(0)));
        let source = DotnetSource::with_names(offset.unwrap_or(0), names);
        let mut source = symbols::with_lines(source, program.pid);
        if let Some(process) = &program.name {
            source.set_process_name(process);
        }
        let ids = dotnet_ids(path, program.pid, program.threads);
        if let Some((pid, threads)) = ids {
            source.set_ids(pid, threads);
        }
        let mut reader = nettrace::Reader::new(trace);
        let mut errors = 0;
        let mut origins = Some(opened.origins.clone()).filter(|_| offset.is_none());
        add_stream(&mut opened.streams, start, move |tables: &mut Tables, out: &mut Vec<Event>| {
            let result = loop {
                if out.len() >= CHUNK {
                    break Ok(true);
                }
                match reader.next_item() {
                    Ok(Some(item)) => source.push(&item, tables, out),
                    Ok(None) => break Ok(false),
                    Err(error) => {
                        let is_io = matches!(error.kind, ErrorKind::Io(_));
                        if !recovery.is_wanted() || is_io || errors == MAX_ERRORS {
                            break Err(format!("{error}{}", recovery.hint()).into());
                        }
                        errors += 1;
                        damage.add(0);
                        source.loss(&error.to_string(), tables, out);
                    }
                }
            };
            if let Some(origins) = origins.take() {
                origins.add_first(&name, out, &notes);
            }
            if !matches!(result, Ok(true)) {
                source.finish(tables, out);
                let stats = source.stats();
                let kinds = source.skipped();
                let skipped = (stats.skipped, &*skipped(&kinds));
                let undecodable =
                    (stats.undecodable, "events whose payload does not match its metadata");
                let unpaired = (
                    stats.unpaired,
                    "starts and stops of activities, waits and work items without the other, or \
                     too many of them",
                );
                let unnamed = (stats.unnamed, "events about methods that name none");
                let unrelated = (
                    stats.unrelated_threads,
                    "threads of which only the ids in their PID namespace are known: they are not \
                     related to threads of the kernel",
                );
                notes.add(&name, &[skipped, undecodable, unpaired, unnamed, unrelated]);
                let skipped = match stats.skipped {
                    0 => String::new(),
                    count => format!("; {} not shown: {}", counted(count, "event"), most(&kinds)),
                };
                summary.set(Read::Dotnet { stats, skipped });
            }
            result
        });
        Ok(())
    }
}

/// Adds a trace. Of several traces of a process, each is read when the ones before it have been: it continues with their
/// goroutines and threads. So is a recording of perf after an earlier one: it finds the ends of processes.
fn add_stream(
    streams: &mut Streams<'static>,
    start: Option<Timestamp>,
    stream: impl Stream + 'static,
) {
    match start {
        Some(start) => streams.add_from(start, stream),
        None => streams.add(stream),
    }
}

fn add_quotas(input: Input, offset: i64, streams: &mut Streams<'_>) {
    let mut reader = QuotaReader::new(input, offset);
    streams.add(move |tables: &mut Tables, out: &mut Vec<Event>| {
        while out.len() < CHUNK {
            if !reader.next_line(tables, out)? {
                return Ok(false);
            }
        }
        Ok(true)
    });
}

/// What is said of .NET events that the model does not have.
fn skipped(kinds: &[(&str, &str, u64)]) -> String {
    format!("events that no table counts: {}", most(kinds))
}

/// The most frequent kinds of .NET events.
fn most(kinds: &[(&str, &str, u64)]) -> String {
    const MOST: usize = 3;
    let shown = kinds.iter().take(MOST).map(|(provider, event, count)| {
        let provider = provider.rsplit('-').next().unwrap_or(provider);
        format!("{count} {provider}/{event}")
    });
    let mut named: Vec<String> = shown.collect();
    if kinds.len() > MOST {
        named.push(format!("{} more kinds", kinds.len() - MOST));
    }
    named.join(", ")
}

/// The names in a .NET trace, and the time of its first event. Damage is reported by the reading of the events.
fn dotnet_names(input: impl io::Read) -> (DotnetNames, Option<Timestamp>) {
    let (mut names, mut first) = (DotnetNames::new(), None);
    let mut reader = nettrace::Reader::new(input);
    for _ in 0..MAX_ERRORS {
        let result = reader.for_each(|event| {
            let time = event.time();
            first = Some(first.map_or(time, |first: Timestamp| first.min(time)));
            names.push(&event);
        });
        match result {
            Err(error) if !matches!(error.kind, ErrorKind::Io(_)) => {}
            _ => break,
        }
    }
    (names, first)
}

/// The path of a file that a recorder wrote, without the ending that it has because it was compressed since.
fn uncompressed(path: &Path) -> PathBuf {
    let ending = path.extension().unwrap_or_default();
    let is_compressed = ["gz", "zst"].into_iter().any(|known| ending == known);
    if is_compressed { path.with_extension("") } else { path.to_owned() }
}

/// The process in the name of a Go trace: `go-PID`. `record --keep` and a flight recorder number those of one process,
/// and what another recorder left is `go-PID-START`: other files can have such a name by chance.
fn go_pid(path: &Path) -> Option<u32> {
    let path = uncompressed(path);
    let stem = path.file_stem()?.to_str()?.strip_prefix("go-")?;
    let (pid, number) = stem.split_once('-').map_or((stem, None), |(pid, n)| (pid, Some(n)));
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let is_kept = |number: &str| is_number(number) && !number.is_empty() && is_of_recording(&path);
    pid.parse().ok().filter(|_| is_number(pid) && number.is_none_or(is_kept))
}

/// Whether a trace is in the directory of a recording.
fn is_of_recording(path: &Path) -> bool {
    let dir = path.parent();
    dir.is_some_and(|dir| [RECORDING, MANIFEST].into_iter().any(|name| dir.join(name).is_file()))
}

/// The process id of a .NET trace and the ids of its threads: those that are known, or otherwise those in
/// the directory of a recording, unless they are of another process.
fn dotnet_ids(
    path: &Path,
    pid: Option<u32>,
    threads: BTreeMap<u32, u32>,
) -> Option<(u32, BTreeMap<u32, u32>)> {
    let Some(pid) = pid else { return kept_dotnet_ids(path) };
    if !threads.is_empty() {
        return Some((pid, threads));
    }
    let kept = kept_dotnet_ids(path).filter(|(kept, _)| *kept == pid);
    Some(kept.unwrap_or((pid, threads)))
}

/// The process id of a .NET trace in the directory of a recording.
fn kept_dotnet_pid(path: &Path) -> Option<u32> {
    let path = uncompressed(path);
    let stem = path.file_stem()?.to_str()?.strip_prefix("dotnet-")?;
    stem.split('-').next()?.parse().ok().filter(|_| is_of_recording(&path))
}

/// The process id of a .NET trace in the directory of a recording, and the ids of its threads, for its
/// recorder: the trace has those of the process's own PID namespace.
fn kept_dotnet_ids(path: &Path) -> Option<(u32, BTreeMap<u32, u32>)> {
    /// Of all threads that a recorder keeps.
    const LONGEST: u64 = 4 << 20;
    let pid = kept_dotnet_pid(path)?;
    let path = uncompressed(path);
    // Threads that are not known are counted.
    let threads = regular::read(&path.with_extension(THREADS), LONGEST).ok();
    let threads = threads.and_then(|text| serde_json::from_slice(&text).ok());
    Some((pid, threads.unwrap_or_default()))
}

/// An entity as text on a terminal: `main.worker (G7)`, `server (thread 1234)`.
pub(crate) fn name(tables: &Tables, id: EntityId) -> String {
    OneLine(&text::name(tables, id)).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use perf_data::{Features, FileWriter, RecordWriter as _, RecordedEvent};
    use perf_monitor::RawRecord;
    use std::fs::File;

    #[test]
    fn a_trace_that_a_recorder_left_is_of_its_process() {
        let dir = tempfile::tempdir().unwrap();
        let pid = |stem: &str| go_pid(&dir.path().join(stem).with_extension("trace"));
        let others = [
            "go-",
            "go-x",
            "go-12x-3",
            "trace",
            "dotnet-1",
            "go-2024-06-01",
            "go-1-before",
            "go-1-",
        ];
        let check = || {
            assert_eq!(pid("go-123"), Some(123));
            for other in others {
                assert_eq!(pid(other), None, "{other}");
            }
        };
        check();
        assert_eq!(pid("go-123-4567890"), None, "nothing says that a recorder wrote it");
        for name in [MANIFEST, RECORDING] {
            let about = dir.path().join(name);
            std::fs::write(&about, "{}").unwrap();
            check();
            assert_eq!(pid("go-123-4567890"), Some(123));
            std::fs::remove_file(about).unwrap();
        }
    }

    /// A Go trace in which goroutine 8 waits. Times are in 64 ns.
    fn go_trace(time: u64) -> String {
        const NONE: u64 = u64::MAX;
        let mono = 64 * (time + 5);
        format!(
            "Trace Go1.26\n\
             EventBatch gen=2 m={NONE} time={time} size=19\nSync\n\
             Frequency freq=15625000\n\
             ClockSnapshot dt=5 mono={mono} sec=1700000000 nsec=120000000\n\
             EventBatch gen=2 m=7 time={time} size=18\n\
             ProcStatus dt=1 p=0 pstatus=1\n\
             GoStatus dt=1 g=8 m={NONE} gstatus=4\n\
             EndOfGeneration\n"
        )
    }

    /// A recorder was restarted. The order of the names is not that of the times.
    #[test]
    fn traces_of_one_process_have_the_same_goroutines() {
        for (left, next) in [(40, 140), (140, 40)] {
            let dir = tempfile::tempdir().unwrap();
            std::fs::write(dir.path().join(MANIFEST), "{}").unwrap();
            for (name, time) in [("go-7-5.trace", left), ("go-7.trace", next), ("go-9.trace", 50)] {
                std::fs::write(dir.path().join(name), go_trace(time)).unwrap();
            }
            let mut tables = Tables::new();
            let traces = Traces::of(vec![dir.path().to_owned()]);
            let outcome = traces.derive(&mut tables, &mut |_, _| ());
            assert!(outcome.is_ok_and(|outcome| outcome.is_ok()));
            let kind = trace_timeline::EntityKind::Goroutine;
            let goroutines = tables.entities.iter().filter(|(_, entity)| entity.kind == kind);
            let processes = goroutines.filter_map(|(_, goroutine)| {
                tables.entities.get(goroutine.parent?).map(|process| process.number)
            });
            let mut processes: Vec<i64> = processes.collect();
            processes.sort_unstable();
            assert_eq!(processes, [7, 9], "{left} {next}");
        }
    }

    /// The first events of a program can be those of one thread, whose id is that of another process.
    #[test]
    fn two_threads_of_a_go_trace_are_known_at_its_first_event() {
        const NONE: u64 = u64::MAX;
        const GOROUTINES: std::ops::Range<u64> = 1_000..2_000;
        let waits = |g| format!("GoStatus dt=1 g={g} m={NONE} gstatus=4\n");
        let trace = format!(
            "Trace Go1.26\n\
             EventBatch gen=2 m={NONE} time=40 size=19\nSync\n\
             Frequency freq=15625000\n\
             ClockSnapshot dt=5 mono=2880 sec=1700000000 nsec=120000000\n\
             EventBatch gen=2 m=7 time=40 size=15004\n\
             ProcStatus dt=1 p=0 pstatus=1\n\
             {}\
             EventBatch gen=2 m=8 time=2000 size=4\n\
             ProcStatus dt=1 p=1 pstatus=1\n\
             EndOfGeneration\n",
            GOROUTINES.map(waits).collect::<String>()
        );
        let dir = tempfile::tempdir().unwrap();
        let [shop, other] = ["shop.trace", "go-9.trace"].map(|name| dir.path().join(name));
        std::fs::write(&shop, trace).unwrap();
        std::fs::write(&other, go_trace(100)).unwrap();
        let of_shop = |tables: &Tables| -> Vec<i64> {
            let is_of_shop = |thread: &trace_timeline::Entity| {
                let process = thread.parent.and_then(|process| tables.entities.get(process));
                thread.kind == trace_timeline::EntityKind::GoThread
                    && process.is_some_and(|process| process.number < 0)
            };
            let all = tables.entities.iter().map(|(_, entity)| entity);
            all.filter(|entity| is_of_shop(entity)).map(|thread| thread.number).collect()
        };
        let mut known = None;
        let mut each = |_: &Event, tables: &mut Tables| {
            known.get_or_insert_with(|| of_shop(tables));
            Ok(())
        };
        let mut opened = Traces::of(vec![shop, other]).open().unwrap();
        let failures = opened.read(&mut Tables::new(), &mut each).unwrap();
        assert!(failures.is_empty(), "{failures:?}");
        assert_eq!(known, Some(vec![7, 8]));
    }

    /// A recorder has compressed nothing: its user may have.
    #[test]
    fn a_compressed_file_of_a_recording_has_its_name() {
        let name = |path: &str| uncompressed(Path::new(path));
        for compressed in ["d/go-123.trace.gz", "d/go-123.trace.zst", "d/go-123.trace"] {
            assert_eq!(go_pid(Path::new(compressed)), Some(123), "{compressed}");
        }
        assert!(name("d/kernel.perf.data.zst").ends_with(SCHEDULER));
        assert!(!name("d/kernel.perf.data.old").ends_with(SCHEDULER));
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(MANIFEST), "{}").unwrap();
        std::fs::write(dir.path().join("dotnet-9042.threads"), r#"{"1":9042}"#).unwrap();
        for name in ["dotnet-9042.nettrace", "dotnet-9042.nettrace.gz", "dotnet-9042.nettrace.zst"]
        {
            let ids = kept_dotnet_ids(&dir.path().join(name));
            assert_eq!(ids, Some((9042, BTreeMap::from([(1, 9042)]))), "{name}");
        }
    }

    #[test]
    fn a_damaged_trace_is_given_up_at_its_last_event() {
        let (dir, written) = (tempfile::tempdir().unwrap(), [100_u64, 200, 300]);
        let path = dir.path().join("perf.data");
        let (tid, time) = (1 << 1, 1 << 2);
        let mut attr = perf_data::perf_event_attr::new(1, 0);
        (attr.sample_type, attr.clockid) = (tid | time, 1);
        attr.set_use_clockid(true);
        let event = RecordedEvent { name: "cpu-clock".into(), attr, ids: vec![1] };
        let mut writer = FileWriter::new(File::create(&path).unwrap(), vec![event]).unwrap();
        for time in written {
            let head = [&9_u32.to_ne_bytes()[..], &[2, 0], &24_u16.to_ne_bytes()].concat();
            let bytes = [head, [7_u32.to_ne_bytes(); 2].concat(), time.to_ne_bytes().into()];
            let bytes = bytes.concat();
            writer.record(RawRecord::split_first(&bytes, 0).unwrap().0).unwrap();
        }
        writer.finish(&Features::default()).unwrap();
        let mut bytes = std::fs::read(&path).unwrap();
        let time = written[2].to_ne_bytes();
        let at = bytes.windows(8).position(|window| window == time).unwrap();
        // It is shorter than its header.
        bytes[at - 10..at - 8].copy_from_slice(&4_u16.to_ne_bytes());
        std::fs::write(&path, bytes).unwrap();
        let mut opened = Traces::of(vec![path]).open().unwrap();
        let mut last = Timestamp::default();
        let mut each = |event: &Event, _: &mut Tables| {
            last = event.time;
            Ok(())
        };
        let failures = opened.read(&mut Tables::new(), &mut each).unwrap();
        assert_eq!((failures.len(), &opened.given_up[..]), (1, &[last][..]));
        assert_eq!(last, Timestamp::from_nanos(200));
    }

    #[test]
    fn kept_traces_of_dotnet_have_ids_of_the_recorder() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("dotnet-9042.nettrace");
        assert_eq!(kept_dotnet_ids(&path), None, "not of a recording");
        std::fs::write(dir.path().join(RECORDING), "{}").unwrap();
        assert_eq!(kept_dotnet_ids(&path), Some((9042, BTreeMap::new())));
        assert_eq!(kept_dotnet_ids(&dir.path().join("app-1.nettrace")), None);
        let threads = dir.path().join("dotnet-9042.threads");
        std::fs::write(&threads, r#"{"1":9042,"7":9049}"#).unwrap();
        let kept = (9042, BTreeMap::from([(1, 9042), (7, 9049)]));
        assert_eq!(kept_dotnet_ids(&path), Some(kept.clone()));
        // Those that are known are better, and those of another process are none.
        let known = BTreeMap::from([(1, 9043)]);
        assert_eq!(dotnet_ids(&path, None, BTreeMap::new()), Some(kept.clone()));
        assert_eq!(dotnet_ids(&path, Some(9042), BTreeMap::new()), Some(kept));
        assert_eq!(dotnet_ids(&path, Some(9042), known.clone()), Some((9042, known)));
        assert_eq!(dotnet_ids(&path, Some(7), BTreeMap::new()), Some((7, BTreeMap::new())));
        std::fs::write(&path, "").unwrap();
        let traces = Traces::of(vec![dir.path().to_owned()]);
        assert_eq!(traces.files().unwrap(), std::slice::from_ref(&path));
        std::fs::write(&threads, "x").unwrap();
        assert_eq!(kept_dotnet_ids(&path), Some((9042, BTreeMap::new())));
    }
}
