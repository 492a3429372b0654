//! Recordings of perf.

use super::origin::{Clocks, Origin};
use super::{CHUNK, Opened, Opening, PROCESSES, Read, SCHEDULER, add_stream, uncompressed};
use crate::failure::{Failure, Result};
use crate::io::input::{self, Input};
use crate::io::regular;
use crate::io::spool::spool;
use crate::sources::processes::{self, Processes};
use crate::sources::{INCOMPLETE, symbols};
use perf_data::{Reader, Session, SortedReader};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use trace_common::{ClockDomain, Timestamp};
use trace_timeline::sources::kernel::KernelStats;
use trace_timeline::sources::perf::{PerfError, PerfSource};
use trace_timeline::{Event, Tables};

/// The note of a recording of switches alone.
const NO_WAKE_UPS: &str = "no wake-ups (sched_waking) were recorded: the time from a wake-up to a CPU counts as \
                           sleeping, and who woke a thread is not known";

impl Opening<'_> {
    pub(super) fn add_perf(self, input: Input, opened: &mut Opened) -> Result {
        let name = input.name.clone();
        let fail = |error: &dyn std::fmt::Display| Failure::about(&name, error);
        // What is read of standard input or a pipe is not there again.
        let file = match input.is_compressed || !input::is_file(self.path) {
            true => spool(input)?,
            false => File::open(self.path).map_err(|error| fail(&error))?,
        };
        let reader = Reader::new(file).map_err(|e| fail(&e))?;
        let features = reader.session().features();
        opened.kernel = opened.kernel.take().or_else(|| features.os_release.clone());
        opened.host = opened.host.take().or_else(|| features.hostname.clone());
        let offset = features.clock.map(|clock| clock.offset_nanos());
        let offset = offset.map(|nanos| nanos.saturating_sub(self.offset.unwrap_or(0)));
        opened.clock_offset = opened.clock_offset.or(offset);
        let notes = self.notes;
        if self.offset.is_none() {
            if self.is_single {
                opened.domain = reader.session().clock_domain().unwrap_or(ClockDomain::Local(0));
            }
            let clocks =
                features.clock.map(|clock| Clocks { wall: clock.realtime, events: clock.clock });
            let own = Origin { file: name.clone(), host: features.hostname.clone(), clocks };
            opened.origins.add(own, &notes);
            opened.has_scheduler = true;
        }
        let is_complete = reader.is_complete();
        let damaged = features.damaged.len() as u64;
        let mut reader = SortedReader::new(reader);
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
        let (summary, lists_problems) = (self.summary, self.lists_damage);
        let is_kept = uncompressed(self.path).ends_with(SCHEDULER);
        let beside = is_kept.then(|| self.path.with_file_name(PROCESSES));
        if let Some(path) = self.program.processes.or(beside) {
            let Processes { observed, skipped } = recorded_processes(&path)?;
            notes.add(&name, &[(skipped, "lines about processes that cannot be read")]);
            source = source.with_processes(observed);
        }
        let start = self.start;
        add_stream(&mut opened.streams, start, move |tables: &mut Tables, out: &mut Vec<Event>| {
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
                let stats = source.stats();
                // Of a part of the switches, or of those of one program, no state follows.
                let KernelStats { switches, wakings, .. } = source.kernel_stats();
                let is_sampled = switches == 0;
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
                    (stats.dropped_mappings, "mappings too many, whose frames have no file"),
                    (stats.unfinished, "waits of unknown duration, left out"),
                    (stats.throttled, "times that the kernel throttled the sampling"),
                    (reader.late(), "records out of order"),
                    (damaged, "sections of the description that are damaged"),
                ];
                if !is_complete {
                    notes.warn(&name, INCOMPLETE);
                }
                if switches > 0 && wakings == 0 {
                    notes.say(&name, NO_WAKE_UPS);
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

/// By file: the start of a recording, on the clock of the timeline, if another one begins earlier. It is read when that
/// one has been read up to there: a process id may be used again between the two. Those of standard input, a pipe or a
/// compressed file are not looked up.
pub(super) fn later_starts(files: &[PathBuf], offsets: &[Option<i64>]) -> Vec<Option<Timestamp>> {
    let open = |path: &PathBuf| {
        let file = input::is_file(path).then(|| File::open(path).ok())??;
        Reader::new(file).ok()
    };
    let readers: Vec<Option<Reader<File>>> = files.iter().map(open).collect();
    if readers.iter().flatten().count() < 2 {
        return vec![None; files.len()];
    }
    let start = |(reader, offset): (Option<Reader<File>>, Option<i64>)| {
        let mut reader = SortedReader::new(reader?);
        while let Ok(Some(entry)) = reader.next_record() {
            if let Some(time) = entry.time() {
                return Some(time.saturating_add_nanos(offset.unwrap_or(0)));
            }
        }
        None
    };
    let starts: Vec<_> = readers.into_iter().zip(offsets.iter().copied()).map(start).collect();
    let first = starts.iter().flatten().min().copied();
    starts.into_iter().map(|start| start.filter(|start| Some(*start) > first)).collect()
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

#[cfg(test)]
mod tests {
    use super::super::{Recovery, Traces};
    use super::*;
    use crate::io::output_file::OutputFile;
    use crate::timeline::draw_traces;
    use perf_data::{Features, FileWriter, RecordWriter as _, RecordedEvent, TracingData};
    use perf_monitor::RawRecord;
    use trace_export::timeline::TimelineSource;
    use trace_export::{PerfettoSink, Sink as _};
    use trace_timeline::EntityKind;

    const SWITCH: &str = "name: sched_switch\nID: 300\nformat:\n\
        \tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
        \tfield:char prev_comm[8];\toffset:4;\tsize:8;\tsigned:0;\n\
        \tfield:pid_t prev_pid;\toffset:12;\tsize:4;\tsigned:1;\n\
        \tfield:int prev_prio;\toffset:16;\tsize:4;\tsigned:1;\n\
        \tfield:long prev_state;\toffset:20;\tsize:8;\tsigned:1;\n\
        \tfield:char next_comm[8];\toffset:28;\tsize:8;\tsigned:0;\n\
        \tfield:pid_t next_pid;\toffset:36;\tsize:4;\tsigned:1;\n\
        \tfield:int next_prio;\toffset:40;\tsize:4;\tsigned:1;\n";
    const WAKING: &str = "name: sched_waking\nID: 301\nformat:\n\
        \tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
        \tfield:char comm[8];\toffset:4;\tsize:8;\tsigned:0;\n\
        \tfield:pid_t pid;\toffset:12;\tsize:4;\tsigned:1;\n\
        \tfield:int prio;\toffset:16;\tsize:4;\tsigned:1;\n\
        \tfield:int target_cpu;\toffset:20;\tsize:4;\tsigned:1;\n";

    /// A recording of the scheduler: a switch of CPU 0, and a wake-up. Its clock has this number.
    fn write(path: &Path, is_woken: bool, clock: Option<i32>, host: &str) {
        const SAMPLE: u32 = 9;
        // The id, the thread, the time, the CPU and the data.
        const FIELDS: u64 = 1 << 16 | 1 << 1 | 1 << 2 | 1 << 7 | 1 << 10;
        let event = |number: u64| {
            let mut attr = perf_data::perf_event_attr::new(2, number);
            (attr.sample_type, attr.sample_period) = (FIELDS, 1);
            attr.set_use_clockid(clock.is_some());
            attr.clockid = clock.unwrap_or(0);
            RecordedEvent { name: format!("sched:{number}"), attr, ids: vec![number] }
        };
        let file = File::create(path).unwrap();
        let mut writer = FileWriter::new(file, vec![event(300), event(301)]).unwrap();
        let mut push = |number: u16, time: u64, data: &[u8]| {
            let ids = [u64::from(number), 7 | 7 << 32, time, 0].map(u64::to_le_bytes).concat();
            let data = [&u32::from(number).to_le_bytes()[..], data].concat();
            let body = [ids, (data.len() as u32).to_le_bytes().to_vec(), data].concat();
            let size = 8 + body.len() as u16;
            let head = [&SAMPLE.to_le_bytes()[..], &[1, 0], &size.to_le_bytes()].concat();
            let bytes = [head, body].concat();
            writer.record(RawRecord::split_first(&bytes, 0).unwrap().0).unwrap();
        };
        let task =
            |tid: i32| [[0; 8].to_vec(), tid.to_le_bytes().into(), vec![120, 0, 0, 0]].concat();
        // The thread sleeps.
        let state = 1_u64.to_le_bytes().to_vec();
        push(300, 1000, &[task(7), state, task(0)].concat());
        if is_woken {
            // With the CPU, and filled up.
            push(301, 2000, &[task(7), vec![0; 8]].concat());
        }
        let mut tracing = TracingData::default();
        let formats = [SWITCH, WAKING].map(|text| ("sched".to_owned(), text.as_bytes().to_vec()));
        tracing.events = formats.to_vec();
        let mut features = Features::default();
        (features.tracing, features.hostname) = (Some(tracing), Some(host.to_owned()));
        writer.finish(&features).unwrap();
    }

    /// A recording of process 7 up to its exit, 10 ns later.
    fn write_process(path: &Path, begin: u64) {
        const COMM: u32 = 3;
        const EXIT: u32 = 4;
        let mut attr = perf_data::perf_event_attr::new(1, 9);
        // The thread and the time.
        attr.sample_type = 1 << 1 | 1 << 2;
        attr.set_sample_id_all(true);
        attr.set_use_clockid(true);
        attr.clockid = 1;
        let event = RecordedEvent { name: "dummy".to_owned(), attr, ids: vec![1] };
        let mut writer = FileWriter::new(File::create(path).unwrap(), vec![event]).unwrap();
        let mut push = |type_: u32, time: u64, body: &[u64]| {
            let words = [body, &[7 | 7 << 32, time]].concat();
            let size = 8 + 8 * words.len() as u64;
            let words = [&[u64::from(type_) | size << 48], &words[..]].concat();
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            writer.record(RawRecord::split_first(&bytes, 0).unwrap().0).unwrap();
        };
        push(COMM, begin, &[7 | 7 << 32, u64::from(b'x')]);
        let (parent, end) = (1 << 32, begin + 10);
        push(EXIT, end, &[7 | parent, 7 | parent, end]);
        writer.finish(&Features::default()).unwrap();
    }

    /// The notes of a report of these.
    fn notes(files: &[&PathBuf]) -> Vec<String> {
        let traces = Traces::of(files.iter().copied().cloned().collect());
        traces.derive_with_notes(&mut Tables::new(), &mut |_, _| ()).unwrap().1
    }

    #[test]
    fn without_wake_ups_their_waits_are_said_to_be_sleeps() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("perf.data");
        write(&path, false, Some(1), "a");
        assert_eq!(notes(&[&path]), [format!("{}: {NO_WAKE_UPS}", path.display())]);
        write(&path, true, Some(1), "a");
        assert_eq!(notes(&[&path]), [""; 0]);
    }

    #[test]
    fn the_clock_of_a_recording_alone_is_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("perf.data");
        let domain = |offset: &[&str]| {
            let offset = offset.iter().map(ToString::to_string).collect();
            let traces = Traces::with(vec![path.clone()], offset, Recovery::default(), vec![]);
            traces.open().unwrap().domain
        };
        for (clock, expected) in [
            (None, ClockDomain::Local(0)),
            (Some(0), ClockDomain::Realtime),
            (Some(1), ClockDomain::Monotonic),
            (Some(4), ClockDomain::MonotonicRaw),
        ] {
            write(&path, true, clock, "a");
            assert_eq!(domain(&[]), expected);
            // It is moved to that clock.
            assert_eq!(domain(&["1"]), ClockDomain::Monotonic);
        }
    }

    /// Viewers have its switches on CLOCK_BOOTTIME.
    #[test]
    fn a_recording_on_another_clock_is_drawn() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("perf.data");
        for clock in [None, Some(0), Some(1), Some(4), Some(7), Some(11)] {
            write(&path, true, clock, "a");
            let mut opened = Traces::of(vec![path.clone()]).open().unwrap();
            let mut sink = PerfettoSink::new(Vec::new(), opened.domain);
            let mut source = TimelineSource::default();
            let output = OutputFile::discarded();
            let failures = draw_traces(&mut opened, &mut source, true, &mut sink, &output).unwrap();
            sink.finish().unwrap();
            assert!(failures.is_empty(), "{clock:?}");
            assert_eq!((source.stats().switches, sink.stats().sched), (1, 2), "{clock:?}");
        }
    }

    #[test]
    fn recordings_of_two_hosts_are_said_to_be_mixed() {
        let dir = tempfile::tempdir().unwrap();
        let [a, b] = ["a.perf.data", "b.perf.data"].map(|name| dir.path().join(name));
        write(&a, true, Some(1), "web-1");
        write(&b, true, Some(1), "web-2");
        let (first, second) = (a.display(), b.display());
        let note = format!(
            "{second}: it was recorded on web-2, and {first} on web-1: CPUs and threads with the same \
             numbers are shown as one"
        );
        assert_eq!(notes(&[&a, &b]), [note]);
        write(&b, true, Some(1), "web-1");
        assert_eq!(notes(&[&a, &b]), [""; 0]);
    }

    #[test]
    fn a_process_id_that_is_used_again_in_a_later_recording_is_another_process() {
        let dir = tempfile::tempdir().unwrap();
        let [early, late] = ["a.perf.data", "b.perf.data"].map(|name| dir.path().join(name));
        write_process(&early, 1_000);
        write_process(&late, 9_000);
        for files in [[&early, &late], [&late, &early]] {
            let mut tables = Tables::new();
            let traces = Traces::of(files.map(PathBuf::clone).to_vec());
            traces.derive_with_notes(&mut tables, &mut |_, _| ()).unwrap().0.unwrap();
            let processes = tables.entities.iter().map(|(_, entity)| entity);
            let processes = processes.filter(|e| (e.kind, e.number) == (EntityKind::Process, 7));
            let ends: Vec<_> = processes.map(|process| process.end.map(Timestamp::nanos)).collect();
            assert_eq!(ends, [Some(1_010), Some(9_010)]);
        }
    }
}
