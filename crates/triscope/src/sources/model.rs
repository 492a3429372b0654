//! Traces as one stream of the timeline model.

use super::go::Trace;
use crate::failure::{Failure, OneLine, Result};
use crate::io::input::{Format, Input};
use crate::io::progress::Progress;
use std::fs::File;
use std::path::{Path, PathBuf};
use trace_common::{ClockDomain, Limits};
use trace_timeline::sources::dotnet::DotnetSource;
use trace_timeline::sources::go::{GoOptions, GoSource};
use trace_timeline::sources::perf::PerfSource;
use trace_timeline::{Correlator, Derived, Event, Streams, Tables, text};

pub(crate) use trace_timeline::text::duration;

/// The traces of a timeline. They can be read several times.
#[derive(clap::Args)]
pub(crate) struct Traces {
    /// Go traces, .NET traces and perf.data recordings of one machine, or a directory that `triscope record
    /// --keep` wrote
    #[arg(value_name = "FILE|DIR", required = true)]
    files: Vec<PathBuf>,
}

/// The file of a directory that `triscope record --keep` wrote which names the recorded process.
pub(crate) const RECORDING: &str = "recording.json";

/// Events that a trace gives at once.
const CHUNK: usize = 1 << 12;

impl Traces {
    /// Traces that a command wrote or was given.
    pub(crate) const fn of(files: Vec<PathBuf>) -> Self {
        Self { files }
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

    /// Reads all traces and derives everything. An error within a trace is the second result: what
    /// is before it was processed.
    pub(crate) fn derive(
        &self,
        tables: &mut Tables,
        each: &mut dyn FnMut(Derived<'_>, &Tables),
    ) -> Result<Result> {
        self.read(tables, each, &Failure::print)
    }

    /// The same once more. Damage was reported by the first pass and is not printed.
    pub(crate) fn derive_again(
        &self,
        tables: &mut Tables,
        each: &mut dyn FnMut(Derived<'_>, &Tables),
    ) -> Result<Result> {
        self.read(tables, each, &|_| ())
    }

    fn read(
        &self,
        tables: &mut Tables,
        each: &mut dyn FnMut(Derived<'_>, &Tables),
        report: &dyn Fn(&Failure),
    ) -> Result<Result> {
        let files = self.files()?;
        let is_single = files.len() == 1;
        let mut streams = Streams::new();
        for path in &files {
            add(path, is_single, &mut streams)?;
        }
        let mut correlator = Correlator::new();
        let mut outcome = Ok(());
        loop {
            let event = match streams.next(tables) {
                Ok(Some(event)) => event,
                Ok(None) => break,
                Err(error) => {
                    let name = files.get(error.stream).map(|path| path.display().to_string());
                    report(&Failure::about(name.unwrap_or_default(), error.cause));
                    outcome = Err(Failure::Quiet(1));
                    continue;
                }
            };
            correlator.push(&event, &tables.entities, &mut |derived| each(derived, tables));
        }
        correlator.finish(&mut |derived| each(derived, tables));
        let dropped = tables.dropped();
        if dropped.entities > 0 {
            let many = "goroutines or threads are missing: there are too many";
            report(&Failure::new(format_args!("{} {many}", dropped.entities)));
        }
        Ok(outcome)
    }
}

fn add<'a>(path: &Path, is_single: bool, streams: &mut Streams<'a>) -> Result {
    let input = Input::open(path, Progress::bytes())?;
    match input.format {
        Format::GoTrace | Format::GoText | Format::GoTest => {
            add_go(input, path, is_single, streams)
        }
        Format::PerfData => add_perf(path, streams),
        Format::NetTrace => {
            add_dotnet(input, streams);
            Ok(())
        }
        other => {
            let what =
                other.description().map_or(String::new(), |what| format!("looks like {what}: "));
            Err(input.failure(format_args!(
                "{what}Go execution traces, .NET traces and perf.data recordings can be analysed"
            )))
        }
    }
}

fn add_go(input: Input, path: &Path, is_single: bool, streams: &mut Streams<'_>) -> Result {
    let name = input.name.clone();
    let trace = Trace::of(input, path, Progress::bytes())?;
    let mut reader =
        gotrace::Reader::new(trace.bytes).map_err(|error| Failure::about(&name, error))?;
    if !is_single && reader.clock_domain() != ClockDomain::Monotonic {
        let why = "its clock cannot be related to that of other traces, as that of Go 1.21 and \
                   older: analyse it alone";
        return Err(Failure::about(&name, why));
    }
    let mut options = GoOptions::default();
    let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    // `record --keep` has the process id in the name.
    options.pid = stem.strip_prefix("go-").and_then(|pid| pid.parse().ok());
    options.process = stem.into_bytes();
    let mut source = GoSource::new(options);
    streams.add(move |tables: &mut Tables, out: &mut Vec<Event>| {
        while out.len() < CHUNK {
            match reader.next_event()? {
                Some(event) => source.push(event, tables, out),
                None => return Ok(false),
            }
        }
        Ok(true)
    });
    Ok(())
}

fn add_dotnet(input: Input, streams: &mut Streams<'_>) {
    let mut reader = nettrace::Reader::new(input);
    let mut source = DotnetSource::new(0);
    streams.add(move |tables: &mut Tables, out: &mut Vec<Event>| {
        while out.len() < CHUNK {
            match reader.next_item()? {
                Some(item) => source.push(&item, tables, out),
                None => return Ok(false),
            }
        }
        Ok(true)
    });
}

fn add_perf(path: &Path, streams: &mut Streams<'_>) -> Result {
    let fail = |error: &dyn std::fmt::Display| Failure::about(path.display(), error);
    let file = File::open(path).map_err(|error| fail(&error))?;
    let reader = perf_data::Reader::open(file, Limits::default()).map_err(|e| fail(&e))?;
    let mut reader = perf_data::SortedReader::new(reader, Limits::default());
    let mut source = PerfSource::new(reader.session()).map_err(|error| fail(&error))?;
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

/// An entity as text on a terminal: `main.worker (G7)`, `server (thread 1234)`.
pub(crate) fn name(tables: &Tables, id: trace_timeline::EntityId) -> String {
    OneLine(&text::name(tables, id)).to_string()
}
