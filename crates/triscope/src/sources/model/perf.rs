//! Recordings of perf.

use super::{CHUNK, Opened, Opening, PROCESSES, Read, SCHEDULER};
use crate::failure::{Failure, Result};
use crate::io::input::Input;
use crate::io::spool::spool;
use crate::sources::processes::{self, Processes};
use crate::sources::symbols;
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
        let mut reader = perf_data::SortedReader::new(reader, Limits::default());
        let source = match self.offset {
            Some(offset) => PerfSource::with_offset(reader.session(), offset),
            // Nothing is to be related.
            None if self.is_single => PerfSource::with_offset(reader.session(), 0),
            None => PerfSource::new(reader.session()),
        };
        let source = source.map_err(|error| match error {
            PerfError::Clock => fail(&format_args!("{error}, or pass --offset FILE=SECONDS")),
            error => fail(&error),
        })?;
        let (mut source, problems) = symbols::named(source, reader.session().features());
        let (name, notes, summary) = (self.path.display().to_string(), self.notes, self.summary);
        let lists_problems = self.lists_damage;
        if self.path.ends_with(SCHEDULER) {
            let Processes { observed, skipped } = recorded_processes(self.path)?;
            notes.add(&name, &[(skipped, "lines about processes that cannot be read")]);
            source = source.with_processes(observed);
        }
        opened.streams.add(move |tables: &mut Tables, out: &mut Vec<Event>| {
            while out.len() < CHUNK {
                match reader.next_record()? {
                    Some(entry) => source.push(&entry, tables, out),
                    None => {
                        source.finish(tables, out);
                        let stats = source.samples();
                        let incomplete = [
                            (stats.undecodable, "samples that cannot be decoded"),
                            (stats.truncated, "stacks that the kernel truncated"),
                            (stats.cut, "stacks that were unwound incompletely"),
                            (stats.deferred, "stacks whose deferred user frames did not come"),
                            (stats.unfinished, "waits of unknown duration, left out"),
                        ];
                        notes.add(&name, &incomplete);
                        if lists_problems {
                            problems.print();
                        }
                        summary.set(Read::Perf { undecodable: stats.undecodable });
                        return Ok(false);
                    }
                }
            }
            Ok(true)
        });
        Ok(())
    }
}

/// What the recorder read of processes, in a file beside its records.
fn recorded_processes(records: &Path) -> Result<Processes> {
    let path = records.with_file_name(PROCESSES);
    let fail = |error: io::Error| Failure::about(path.display(), error);
    match File::open(&path) {
        Ok(file) => processes::read(file).map_err(fail),
        // Of an older recorder.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Processes::default()),
        Err(error) => Err(fail(error)),
    }
}
