//! The timeline of a recording in which the layers are related: goroutines and .NET threads with the
//! threads and CPUs of the kernel. It is drawn at the end, of the records that were kept, as `triscope
//! convert` does.

use super::keep::Keep;
use super::subject::Subject;
use super::{Args, RuntimeTrace, draw_command, monotonic};
use crate::failure::{Failure, Result};
use crate::io::output_file::{self, OutputFile};
use crate::sources::go::Recovery;
use crate::sources::model::{Opened, PROCESSES, Program, SCHEDULER, Traces};
use crate::sources::quota::QUOTAS;
use crate::timeline::{self, draw_traces, size};
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use trace_export::timeline::{TimelineOptions, TimelineSource, TimelineStats};
use trace_export::{ClockDomain, Sink, Timestamp};

/// Records that are drawn without notice: in about a second.
const FEW: u64 = 32 << 20;

/// Readings of the clocks at one time.
pub(super) type Clocks = Vec<(ClockDomain, Timestamp)>;

/// Whether the timeline can be written again.
pub(super) fn is_possible(args: &Args) -> bool {
    output_file::is_file(&args.output) && !super::page::is_wanted(args)
}

/// What a timeline is drawn of.
pub(super) struct Sources<'a> {
    pub(super) args: &'a Args,
    /// The file that is written.
    pub(super) output: &'a Path,
    pub(super) keep: &'a Keep,
    pub(super) traces: &'a [RuntimeTrace],
    pub(super) subject: &'a Subject,
    /// The clocks at the start and at the end.
    pub(super) clocks: [&'a Clocks; 2],
}

/// A timeline that is complete.
pub(super) struct Related {
    path: PathBuf,
    pub(super) opened: Opened,
    pub(super) stats: TimelineStats,
    pub(super) bytes: u64,
    /// Values of counters that are not on it.
    pub(super) values_omitted: u64,
    /// The position of the first trace of a runtime in what was opened.
    pub(super) first: usize,
    /// What is missing, apart from the ends of traces.
    pub(super) missing: Vec<Failure>,
}

impl Related {
    /// Puts it where the live timeline of the recording is.
    pub(super) fn replace(self, output: &Path) -> Result {
        let live = named(output, ".partial");
        // Some file systems have no modes.
        let _ = fs::metadata(&live)
            .and_then(|live| fs::set_permissions(&self.path, live.permissions()));
        fs::rename(&self.path, &live).map_err(|error| Failure::about(live.display(), error))
    }
}

impl Sources<'_> {
    /// Draws them on a timeline beside the live one.
    pub(super) fn draw(&self) -> Result<Related> {
        if let Some(failure) = self.keep.failure() {
            return Err(failure);
        }
        let (traces, first) = self.open()?;
        let mut opened = traces.open()?;
        let path = named(self.output, ".related");
        let mut output = OutputFile::create(&path, &[])?;
        let (mut sink, written) = timeline::open(&mut output, self.args.uncompressed)?;
        let fail = |error| output.failure(&error);
        let mut options = TimelineOptions::default();
        if let Some(release) = &opened.kernel {
            options.set_kernel(release);
            sink.kernel(release.as_bytes()).map_err(fail)?;
        }
        let [start, end] = self.clocks;
        sink.clock_snapshot(start).map_err(fail)?;
        let mut source = TimelineSource::new(options);
        let failures = draw_traces(&mut opened, &mut source, false, &mut sink, &output)?;
        draw_command(self.subject, monotonic(end), &mut sink).map_err(fail)?;
        sink.clock_snapshot(end).map_err(fail)?;
        sink.finish().map_err(fail)?;
        let values_omitted = sink.stats().values_omitted;
        drop(sink);
        let ended = (0..opened.len()).filter(|file| opened.error(*file).is_some()).count();
        let missing = failures.into_iter().skip(ended).collect();
        output.complete()?;
        let (stats, bytes) = (source.stats(), written.bytes.get());
        Ok(Related { path, opened, stats, bytes, values_omitted, first, missing })
    }

    /// The files, in the order of their names where they are kept. The second result is the position of
    /// the first trace of a runtime.
    fn open(&self) -> Result<(Traces, usize)> {
        let scheduler = self.keep.path(SCHEDULER);
        let scheduler = scheduler.ok_or_else(|| Failure::new("the scheduler was not recorded"))?;
        let bytes = fs::metadata(&scheduler).map_or(0, |metadata| metadata.len());
        if bytes > FEW {
            let what = "relating the layers: the timeline is written again, of";
            message!("triscope: {what} {} of records", size(bytes));
        }
        let (mut files, mut programs) = (Vec::new(), Vec::new());
        let mut add = |path, program| {
            files.push(path);
            programs.push(program);
        };
        let named = |trace: &str| Program { trace: Some(trace.to_owned()), ..Program::default() };
        let quotas = self.keep.path(QUOTAS);
        let first = usize::from(quotas.is_some());
        quotas.into_iter().for_each(|path| add(path, named("the CPU quotas")));
        self.traces.iter().for_each(|trace| add(trace.path(), trace.program.clone()));
        let processes = self.keep.path(PROCESSES);
        add(scheduler, Program { processes, ..named("the kernel's records") });
        Ok((Traces::with(files, Vec::new(), Recovery::default(), programs), first))
    }
}

/// The path of a file beside the output.
fn named(output: &Path, ending: &str) -> PathBuf {
    let mut name: OsString = output.file_name().unwrap_or_default().to_owned();
    name.push(ending);
    output.with_file_name(name)
}
