//! Traces as one stream of the timeline model.

use super::go::{Recovery, Trace};
use crate::failure::{Failure, OneLine, Result};
use crate::io::input::{Format, Input};
use crate::io::per_file::offsets;
use crate::io::progress::Progress;
use nettrace::{ErrorKind, MethodMap};
use std::cell::Cell;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use trace_common::{ClockDomain, Limits};
use trace_timeline::sources::dotnet::DotnetSource;
use trace_timeline::sources::go::{GoOptions, GoSource};
use trace_timeline::sources::perf::{PerfError, PerfSource};
use trace_timeline::{Correlator, Derived, Event, Streams, Tables, text};

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
}

/// How to read one of the traces.
struct Opening<'a> {
    path: &'a Path,
    /// In nanoseconds.
    offset: Option<i64>,
    is_single: bool,
    recovery: Recovery,
    has_stacks: bool,
    damage: Damage,
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
}

/// The file of a directory that `triscope record --keep` wrote which names the recorded process.
pub(crate) const RECORDING: &str = "recording.json";

/// Events that a trace gives at once.
const CHUNK: usize = 1 << 12;

/// Maximum number of damaged blocks before a .NET trace is given up.
const MAX_ERRORS: u32 = 1_000;

impl Traces {
    /// Traces that a command wrote or was given.
    pub(crate) fn of(files: Vec<PathBuf>) -> Self {
        Self { files, offset: Vec::new(), recovery: Recovery::default() }
    }

    /// The files and directories as they were given.
    pub(crate) fn inputs(&self) -> &[PathBuf] {
        &self.files
    }

    /// The process that `triscope record --keep` recorded, if these are its traces.
    pub(crate) fn recorded(&self) -> Option<i64> {
        let [dir] = self.files.as_slice() else { return None };
        let text = std::fs::read_to_string(dir.join(RECORDING)).ok()?;
        let value: serde_json::Value = serde_json::from_str(&text).ok()?;
        value.get("pid")?.as_i64()
    }

    /// A title: the names of the files and directories.
    pub(crate) fn title(&self) -> String {
        let name = |path: &PathBuf| {
            let path = path.canonicalize().unwrap_or_else(|_| path.clone());
            path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
        };
        self.files.iter().map(name).collect::<Vec<_>>().join(", ")
    }

    /// The files, those of a directory by name.
    fn files(&self) -> Result<Vec<PathBuf>> {
        let mut files = Vec::new();
        for path in &self.files {
            if path.as_os_str() == "-" {
                return Err(Failure::new("traces are read twice: standard input cannot be used"));
            }
            if !path.is_dir() {
                files.push(path.clone());
                continue;
            }
            let fail = |error| Failure::about(path.display(), error);
            let mut inside = Vec::new();
            for entry in std::fs::read_dir(path).map_err(fail)? {
                let path = entry.map_err(fail)?.path();
                if path.is_file() && !path.ends_with(RECORDING) {
                    inside.push(path);
                }
            }
            if inside.is_empty() {
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
        self.read(false, tables, each, &Failure::print)
    }

    /// The same with resolved stacks of .NET.
    pub(crate) fn derive_with_stacks(
        &self,
        tables: &mut Tables,
        each: &mut dyn FnMut(Derived<'_>, &Tables),
    ) -> Result<Result> {
        self.read(true, tables, each, &Failure::print)
    }

    /// The same as `derive` in another pass, which prints no damage.
    pub(crate) fn derive_again(
        &self,
        tables: &mut Tables,
        each: &mut dyn FnMut(Derived<'_>, &Tables),
    ) -> Result<Result> {
        self.read(false, tables, each, &|_| ())
    }

    fn read(
        &self,
        has_stacks: bool,
        tables: &mut Tables,
        each: &mut dyn FnMut(Derived<'_>, &Tables),
        report: &dyn Fn(&Failure),
    ) -> Result<Result> {
        let files = self.files()?;
        let offsets = offsets(&self.offset, &files)?;
        let mut streams = Streams::new();
        let mut damages = Vec::new();
        for (path, offset) in files.iter().zip(offsets) {
            let damage = Damage::default();
            damages.push(damage.clone());
            let opening = Opening {
                path,
                offset,
                is_single: files.len() == 1,
                recovery: self.recovery,
                has_stacks,
                damage,
            };
            opening.add(&mut streams)?;
        }
        let mut correlator = Correlator::new();
        let mut failures: Vec<Failure> = Vec::new();
        loop {
            let event = match streams.next(tables) {
                Ok(Some(event)) => event,
                Ok(None) => break,
                Err(error) => {
                    let name = files.get(error.stream).map(|path| path.display().to_string());
                    failures.push(Failure::about(name.unwrap_or_default(), error.cause));
                    continue;
                }
            };
            correlator.push(&event, &tables.entities, &mut |derived| each(derived, tables));
        }
        correlator.finish(&mut |derived| each(derived, tables));
        for (path, damage) in files.iter().zip(&damages) {
            failures.extend(damage.message().map(|text| Failure::about(path.display(), text)));
        }
        let dropped = tables.dropped();
        if dropped.entities > 0 {
            let many = "goroutines or threads are missing: there are too many";
            report(&Failure::new(format_args!("{} {many}", dropped.entities)));
        }
        let is_whole = failures.is_empty();
        failures.iter().for_each(report);
        Ok(if is_whole { Ok(()) } else { Err(Failure::Quiet(1)) })
    }
}

impl Opening<'_> {
    fn add(self, streams: &mut Streams<'_>) -> Result {
        let input = Input::open(self.path, Progress::bytes())?;
        match input.format {
            Format::GoTrace | Format::GoText | Format::GoTest => self.add_go(input, streams),
            Format::PerfData => self.add_perf(streams),
            Format::NetTrace => self.add_dotnet(input, streams),
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

    fn add_go(self, input: Input, streams: &mut Streams<'_>) -> Result {
        let Self { path, offset, is_single, recovery, damage, .. } = self;
        let name = input.name.clone();
        let trace = Trace::of(input, path, Progress::bytes())?;
        let mut reader = gotrace::Reader::with_limits(trace.bytes, recovery.limits())
            .map_err(|error| Failure::about(&name, error))?;
        let is_related = offset.is_some() || reader.clock_domain() == ClockDomain::Monotonic;
        if !is_single && !is_related {
            let why = "its clock cannot be related to that of other traces, as that of Go 1.21 and \
                       older: analyse it alone, or pass --offset FILE=SECONDS";
            return Err(Failure::about(&name, why));
        }
        let mut options = GoOptions::default();
        options.offset = offset.unwrap_or(0);
        let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        // `record --keep` has the process id in the name.
        options.pid = stem.strip_prefix("go-").and_then(|pid| pid.parse().ok());
        options.process = stem.into_bytes();
        let mut source = GoSource::new(options);
        streams.add(move |tables: &mut Tables, out: &mut Vec<Event>| {
            while out.len() < CHUNK {
                match reader.next_event() {
                    Ok(Some(event)) => source.push(event, tables, out),
                    Ok(None) => return Ok(false),
                    Err(error) if recovery.is_wanted() => {
                        let Some(loss) = reader.recover()? else { return Err(error.into()) };
                        damage.add(loss.bytes);
                        source.loss(tables, out);
                    }
                    Err(error) => return Err(format!("{error}{}", recovery.hint()).into()),
                }
            }
            Ok(true)
        });
        Ok(())
    }

    fn add_dotnet(self, input: Input, streams: &mut Streams<'_>) -> Result {
        let Self { path, offset, recovery, damage, .. } = self;
        let mut source = DotnetSource::new(offset.unwrap_or(0));
        if self.has_stacks {
            source.resolve_stacks(dotnet_methods(Input::open(path, Progress::bytes())?));
        }
        let mut reader = nettrace::Reader::new(input);
        let mut errors = 0;
        streams.add(move |tables: &mut Tables, out: &mut Vec<Event>| {
            while out.len() < CHUNK {
                match reader.next_item() {
                    Ok(Some(item)) => source.push(&item, tables, out),
                    Ok(None) => return Ok(false),
                    Err(error) => {
                        let is_io = matches!(error.kind, ErrorKind::Io(_));
                        if !recovery.is_wanted() || is_io || errors == MAX_ERRORS {
                            return Err(format!("{error}{}", recovery.hint()).into());
                        }
                        errors += 1;
                        damage.add(0);
                        source.loss(tables, out);
                    }
                }
            }
            Ok(true)
        });
        Ok(())
    }

    fn add_perf(self, streams: &mut Streams<'_>) -> Result {
        let fail = |error: &dyn std::fmt::Display| Failure::about(self.path.display(), error);
        let file = File::open(self.path).map_err(|error| fail(&error))?;
        let reader = perf_data::Reader::open(file, Limits::default()).map_err(|e| fail(&e))?;
        let mut reader = perf_data::SortedReader::new(reader, Limits::default());
        let mut source = match self.offset {
            Some(offset) => PerfSource::with_offset(reader.session(), offset),
            None => PerfSource::new(reader.session()),
        }
        .map_err(|error| match error {
            PerfError::Clock => fail(&format_args!("{error}, or pass --offset FILE=SECONDS")),
            error => fail(&error),
        })?;
        streams.add(move |tables: &mut Tables, out: &mut Vec<Event>| {
            while out.len() < CHUNK {
                match reader.next_record()? {
                    Some(entry) => source.push(&entry, tables, out),
                    None => return Ok(false),
                }
            }
            Ok(true)
        });
        Ok(())
    }
}

/// The methods of a .NET trace. Damage is reported by the reading of the events.
fn dotnet_methods(input: Input) -> MethodMap {
    let mut methods = MethodMap::new();
    let mut reader = nettrace::Reader::new(input);
    for _ in 0..MAX_ERRORS {
        let result = reader.for_each(|event| {
            methods.observe(&event);
        });
        match result {
            Err(error) if !matches!(error.kind, ErrorKind::Io(_)) => {}
            _ => break,
        }
    }
    methods
}

/// An entity as text on a terminal: `main.worker (G7)`, `server (thread 1234)`.
pub(crate) fn name(tables: &Tables, id: trace_timeline::EntityId) -> String {
    OneLine(&text::name(tables, id)).to_string()
}
