//! Recordings of perf.

use super::{CHUNK, Opened, Opening, PROCESSES, Read, SCHEDULER};
use crate::failure::{Failure, Result};
use crate::io::input::Input;
use crate::io::regular;
use crate::io::spool::spool;
use crate::sources::processes::{self, Processes};
use crate::sources::{INCOMPLETE, symbols};
use perf_data::Session;
use std::fs::File;
use std::io;
use std::path::Path;
use trace_common::Limits;
use trace_timeline::sources::perf::{PerfError, PerfSource};
use trace_timeline::{Event, Tables};

impl Opening<'_> {
    pub(super) fn add_perf(self, input: Input, opened: &mut Opened) -> Result {
        if self.path.as_os_str() == "-" {
            return Err(Failure::new(
                "a perf.data recording is read twice: standard input cannot be used",
            ));
        }
        let fail = |error: &dyn std::fmt::Display| Failure::about(self.path.display(), error);
        let file = match input.is_compressed {
            true => spool(input)?,
            false => File::open(self.path).map_err(|error| fail(&error))?,
        };
        let reader = perf_data::Reader::open(file, Limits::default()).map_err(|e| fail(&e))?;
        let features = reader.session().features();
        opened.kernel = opened.kernel.take().or_else(|| features.os_release.clone());
        opened.host = opened.host.take().or_else(|| features.hostname.clone());
        let offset = features.clock.map(|clock| clock.realtime.wrapping_sub(clock.clock) as i64);
        let offset = offset.map(|nanos| nanos.saturating_sub(self.offset.unwrap_or(0)));
        opened.clock_offset = opened.clock_offset.or(offset);
        let is_incomplete = reader.is_incomplete();
        let damaged = features.damaged.len() as u64;
        let mut reader = perf_data::SortedReader::new(reader, Limits::default());
        let source = match self.offset {
            Some(offset) => PerfSource::with_offset(reader.session(), offset),
            // Nothing is to be related.
            None if self.is_single => PerfSource::with_offset(reader.session(), 0),
            None => PerfSource::new(reader.session()),
        };
        let source = source.map_err(|error| match error {
            PerfError::Clock => fail(&format_args!("{error}{}", self.recovery.offset_hint())),
            error => fail(&error),
        })?;
        let (mut source, problems) =
            symbols::named(source, reader.session().features(), self.has_lines);
        let names = event_names(reader.session());
        let (name, notes, summary) = (self.path.display().to_string(), self.notes, self.summary);
        let lists_problems = self.lists_damage;
        let beside = self.path.ends_with(SCHEDULER).then(|| self.path.with_file_name(PROCESSES));
        if let Some(path) = self.program.processes.or(beside) {
            let Processes { observed, skipped } = recorded_processes(&path)?;
            notes.add(&name, &[(skipped, "lines about processes that cannot be read")]);
            source = source.with_processes(observed);
        }
        opened.streams.add(move |tables: &mut Tables, out: &mut Vec<Event>| {
            let result = loop {
                if out.len() >= CHUNK {
                    break Ok(true);
                }
                match reader.next_record() {
                    Ok(Some(entry)) => source.push(&entry, tables, out),
                    Ok(None) => break Ok(false),
                    Err(error) => break Err(error.into()),
                }
            };
            if !matches!(result, Ok(true)) {
                source.finish(tables, out);
                let stats = source.samples();
                // Of a part of the switches, or of those of one program, no state follows.
                let is_sampled = source.stats().switches == 0;
                let events = names(is_sampled);
                let sampled = if is_sampled { stats.samples } else { 0 };
                let what =
                    format!("samples of {events}, not a system-wide record of the scheduler");
                let incomplete = [
                    (sampled, &*what),
                    (stats.undecodable, "samples that cannot be decoded"),
                    (stats.truncated, "stacks that the kernel truncated"),
                    (stats.cut, "stacks that were unwound incompletely"),
                    (stats.deferred, "stacks whose deferred user frames did not come"),
                    (stats.unfinished, "waits of unknown duration, left out"),
                    (stats.throttled, "times that the kernel throttled the sampling"),
                    (reader.late(), "records out of order"),
                    (damaged, "sections of the description that are damaged"),
                ];
                if is_incomplete {
                    notes.say(&name, INCOMPLETE);
                }
                notes.add(&name, &incomplete);
                if lists_problems {
                    problems.print();
                }
                let (samples, undecodable) = (stats.samples, stats.undecodable);
                summary.set(Read::Perf { samples, undecodable, events });
            }
            result
        });
        Ok(())
    }
}

/// The names of the events of a recording that are samples; with those of the scheduler, or without.
fn event_names(session: &Session) -> impl Fn(bool) -> String + use<> {
    let names: Vec<String> = session.events().iter().map(|event| event.name.clone()).collect();
    move |with_scheduler| {
        let is_shown = |name: &&String| {
            !name.starts_with("dummy") && (with_scheduler || !name.starts_with("sched:"))
        };
        names.iter().filter(is_shown).cloned().collect::<Vec<_>>().join(", ")
    }
}

/// What the recorder read of processes.
fn recorded_processes(path: &Path) -> Result<Processes> {
    let fail = |error: io::Error| Failure::about(path.display(), error);
    match regular::open(path) {
        Ok(file) => processes::read(file).map_err(fail),
        // Of an older recorder.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Processes::default()),
        Err(error) => Err(fail(error)),
    }
}
