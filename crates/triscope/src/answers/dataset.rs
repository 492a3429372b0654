//! Traces as a dataset for SQL.

use super::explain;
use crate::failure::{Failure, OneLine, Result};
use crate::io::input;
use crate::io::new_directory::NewDirectory;
use crate::run::cleanup;
use crate::run::stop::Listener;
use crate::sources::model::{Traces, dropped};
use crate::sources::profile::report_dropped;
use crate::timeline::{counted, notes, size};
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use trace_dataset::{
    Dataset, DatasetOptions, Error, QUESTIONS, Question, SourceFile, Summary, with_cohorts,
};
use trace_timeline::{ClockDomain, Correlator, EventKind, Tables};

/// The default number of tasks, of activities and of regions with critical paths.
pub(crate) const PATHS: usize = 100;

/// Events in which a reading of the wall clock is searched: traces have it at their beginning.
const MOST_SEARCHED: usize = 1 << 20;

/// Whether there is a dataset at `dir`.
pub(crate) fn is_dataset(dir: &Path) -> bool {
    dir.join("recordings").is_dir()
}

/// The question with this name.
pub(crate) fn question(name: &str) -> Result<&'static Question> {
    QUESTIONS.iter().find(|question| question.name == name).ok_or_else(|| {
        Failure::new(format_args!("no question is named {name}: triscope questions")).with_code(2)
    })
}

/// The two cohorts of recordings that a question compares.
#[derive(clap::Args)]
pub(crate) struct Cohorts {
    /// SQL condition on recordings that selects the first cohort of a question that compares two, such as
    /// host = 'web-1'
    #[arg(long, value_name = "COND", requires = "after", value_parser = condition)]
    before: Option<String>,
    /// SQL condition on recordings that selects the second cohort
    #[arg(long, value_name = "COND", requires = "before", value_parser = condition)]
    after: Option<String>,
}

impl Cohorts {
    /// Whether they were given.
    pub(crate) const fn is_given(&self) -> bool {
        self.before.is_some()
    }

    /// The SQL of a question, with these cohorts if they were given.
    pub(crate) fn apply(&self, name: &str, sql: String) -> Result<String> {
        let (Some(before), Some(after)) = (&self.before, &self.after) else { return Ok(sql) };
        with_cohorts(&sql, before, after).ok_or_else(|| {
            let all = QUESTIONS.iter().filter(|question| question.compares_cohorts());
            let all: Vec<_> = all.map(|question| question.name).collect();
            let what = format!("--before and --after are for {}", all.join(" and "));
            Failure::about(name, what).with_code(2)
        })
    }
}

fn condition(text: &str) -> std::result::Result<String, String> {
    match text.trim() {
        "" => Err("the condition is empty".to_owned()),
        condition => Ok(condition.to_owned()),
    }
}

/// Traces that are added to a dataset.
pub(crate) struct Export<'a> {
    pub(crate) traces: &'a Traces,
    /// The directory of the dataset.
    pub(crate) output: &'a Path,
    /// The host; that of a recording of the kernel if it is not given.
    pub(crate) host: Option<&'a str>,
    /// When the recording begins, in nanoseconds since 1970, UTC.
    pub(crate) start: Option<i64>,
    /// The number of tasks, of activities and of regions with critical paths.
    pub(crate) paths: usize,
}

impl Export<'_> {
    pub(crate) fn run(&self) -> Result {
        self.traces.check_twice()?;
        let files = self.traces.files()?;
        let mut options = DatasetOptions::new(number(&files, self)?);
        options.paths = self.paths;
        for path in &files {
            let metadata = path.metadata().map_err(|error| input::failure(path, &error))?;
            let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
            options.sources.push(SourceFile { name, bytes: metadata.len() });
        }
        options.clock_offset_nanos = clock_offset(self.traces, self.start)?;
        let mut opened = self.traces.open()?;
        options.clock_domain = Some(opened.domain);
        options.host = self.host.map(str::to_owned).or_else(|| opened.host.clone());
        let _listener = Listener::exit();
        let _created = NewDirectory::at(self.output);
        let mut dataset = Dataset::create(self.output, options).map_err(failure)?;
        let partial = dataset.cleanup();
        let _guard = cleanup::on_exit(move || partial.run());
        let mut tables = Tables::new();
        let mut correlator = Correlator::new();
        let read = opened.read(&mut tables, &mut |event, tables| {
            let entities = &tables.entities;
            correlator.push(event, entities, &mut |derived| dataset.push(&derived, tables));
            // The rest would be read for nothing.
            if dataset.has_failed() { Err(Failure::Quiet(1)) } else { Ok(()) }
        });
        if dataset.has_failed() {
            return dataset.finish(&tables).map(drop).map_err(failure);
        }
        let failures = read?;
        correlator.finish(&mut |derived| dataset.push(&derived, &tables));
        opened.note_processes(&correlator, &mut tables);
        if !failures.is_empty() {
            dataset.set_partial();
        }
        opened.given_up.iter().for_each(|last| dataset.push_unread(*last));
        if dataset.is_empty() {
            failures.iter().for_each(Failure::print);
            return Err(Failure::new("the traces have no events"));
        }
        let requests = dataset.requests();
        let missing = match explain::paths_of(self.traces, requests, &tables)? {
            Some(paths) => {
                paths.iter().for_each(|(request, path)| dataset.push_path(request, path, &tables));
                ""
            }
            None => "; no critical paths: the longest requests have too many events (--paths)",
        };
        let summary = dataset.finish(&tables).map_err(failure)?;
        let partial = if failures.is_empty() { "" } else { " (partial)" };
        print(&summary, &format!("{}{partial}", self.output.display()), missing);
        for note in self.traces.notes(&opened) {
            message!("triscope: {}", OneLine(&note));
        }
        report_dropped(&self.traces.title(), dropped(&tables));
        failures.iter().for_each(Failure::print);
        if failures.is_empty() { Ok(()) } else { Err(Failure::Quiet(1)) }
    }
}

fn failure(error: Error) -> Failure {
    Failure::new(error)
}

fn print(summary: &Summary, output: &str, missing: &str) {
    let (rows, bytes) = (summary.rows(), summary.bytes());
    let notes = notes(&[(
        summary.arguments,
        "argument of events has no column",
        "arguments of events have no column",
    )]);
    let rows = counted(rows, "row");
    message!("{output}: {rows} in {}, {}{notes}{missing}", summary.partition, size(bytes));
}

/// FNV-1a, 64 bits.
struct Hash(u64);

impl Hash {
    const fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    fn add(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}

/// A number for a recording: a hash of its files in any order, host and begin, so that a second export
/// replaces the first one.
fn number(files: &[PathBuf], export: &Export<'_>) -> Result<i64> {
    let mut hash = Hash::new();
    hash.add(export.host.unwrap_or_default().as_bytes());
    // A begin in 1970 is not that of the traces' clocks.
    hash.add(&[export.start.is_some().into()]);
    hash.add(&export.start.unwrap_or_default().to_le_bytes());
    let mut hashes = files.iter().map(|path| hash_of(path)).collect::<Result<Vec<u64>>>()?;
    hashes.sort_unstable();
    hashes.iter().for_each(|file| hash.add(&file.to_le_bytes()));
    Ok(hash.0 as i64)
}

fn hash_of(path: &Path) -> Result<u64> {
    let fail = |error: io::Error| input::failure(path, &error);
    let mut file = File::open(path).map_err(fail)?;
    let (mut hash, mut buffer) = (Hash::new(), vec![0; 1 << 16]);
    loop {
        let len = file.read(&mut buffer).map_err(fail)?;
        if len == 0 {
            return Ok(hash.0);
        }
        hash.add(buffer.get(..len).unwrap_or_default());
    }
}

/// The wall clock when the clock of the timeline shows 0, if a trace has a reading of both, or it is
/// known when the first event was.
fn clock_offset(traces: &Traces, start: Option<i64>) -> Result<Option<i64>> {
    let mut opened = traces.open_quietly()?;
    if opened.clock_offset.is_some() && start.is_none() {
        return Ok(opened.clock_offset);
    }
    let mut tables = Tables::new();
    let (mut found, mut searched) = (None, 0);
    let result = opened.read(&mut tables, &mut |event, _| {
        searched += 1;
        if let Some(start) = start {
            found = Some(start.saturating_sub(event.time.nanos()));
        } else if let EventKind::Clock { time, domain: ClockDomain::Realtime, reading } = event.kind
        {
            found = Some(reading.nanos_since(time));
        }
        // Ends the reading. Damage is reported when the trace is exported.
        if found.is_some() || searched > MOST_SEARCHED { Err(Failure::Quiet(0)) } else { Ok(()) }
    });
    match result {
        Err(failure) if !matches!(failure, Failure::Quiet(0)) => Err(failure),
        _ => Ok(found),
    }
}
