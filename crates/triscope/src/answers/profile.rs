//! The samples of traces as one profile.

use crate::failure::{Failure, OneLine, Result};
use crate::io::output_file::OutputFile;
use crate::io::profile_file::{FirefoxFile, ProfileFile, title};
use crate::sources::goroutine_frame::on_goroutine;
use crate::sources::model::{Traces, dropped};
use crate::sources::profile::{Losses, choose, no_samples, report_dropped, report_others};
use crate::timeline::counted;
use std::path::Path;
use trace_export::profile::{FirefoxProfile, Format, Samples};
use trace_timeline::{EntityKind, Event, EventKind, SampleKind, Tables};

/// Whether the name of a file selects a format of profiles.
pub(crate) fn is_wanted(path: &Path) -> bool {
    Format::of(path).is_some() || FirefoxFile::is_wanted(path)
}

/// Writes the samples of one event: of `event`, otherwise of the one with most samples. Go traces among
/// the traces name their goroutines, which are the outermost frames if `by_goroutine` is set. An error
/// within a trace is the second result.
pub(crate) fn write(
    traces: &Traces,
    path: &Path,
    event: Option<&str>,
    by_goroutine: bool,
) -> Result<Result> {
    OutputFile::create(path, traces.inputs())?;
    if let Some(file) = FirefoxFile::of(path)? {
        return firefox(traces, file, event, by_goroutine);
    }
    let file = ProfileFile::create(path)?;
    let mut tables = Tables::new();
    let (mut samples, mut lost) = (Samples::new(), Losses::default());
    if file.has_order() {
        samples.keep_order();
    }
    let mut goroutines = Goroutines::new(by_goroutine);
    let (outcome, note) = traces.merge_with_goroutines(&mut tables, &mut |event, tables| {
        samples.push(&goroutines.below(event, tables), tables);
        lost.push(event);
        Ok(())
    })?;
    let note = note.unwrap_or_else(|| goroutines.note());
    let profiles = samples.into_profiles(&tables);
    if profiles.is_empty() && event.is_none() {
        return Err(outcome.err().unwrap_or_else(no_samples));
    }
    let ((name, profile), others) = choose(profiles, 0, event)?;
    let remark = format!(" of {}{note}", OneLine(&name));
    file.write(&profile, &tables, &title(&traces.title()), &remark)?;
    report_others(&others);
    lost.report(&traces.title());
    report_missing(traces, &tables);
    Ok(outcome)
}

/// Writes the samples with their times, and the spans, for the Firefox Profiler.
fn firefox(
    traces: &Traces,
    file: FirefoxFile,
    event: Option<&str>,
    by_goroutine: bool,
) -> Result<Result> {
    if event.is_some() {
        let message =
            "--samples is for other profiles: this one has the samples of which there are most";
        return Err(Failure::new(message).with_code(2));
    }
    let mut tables = Tables::new();
    let (mut profile, mut lost) = (FirefoxProfile::new(), Losses::default());
    let mut goroutines = Goroutines::new(by_goroutine);
    let (outcome, note) = traces.merge_with_goroutines(&mut tables, &mut |event, tables| {
        profile.push(&goroutines.below(event, tables), tables);
        lost.push(event);
        Ok(())
    })?;
    let note = note.unwrap_or_else(|| goroutines.note());
    if profile.is_empty() {
        return Err(outcome.err().unwrap_or_else(no_samples));
    }
    file.write(profile, &tables, &title(&traces.title()), &note)?;
    lost.report(&traces.title());
    report_missing(traces, &tables);
    Ok(outcome)
}

/// Reports the names, stacks and modules that are not in the profile.
fn report_missing(traces: &Traces, tables: &Tables) {
    report_dropped(&traces.title(), dropped(tables));
}

/// Goroutines as the outermost frames of samples.
struct Goroutines {
    are_wanted: bool,
    /// The samples of CPU profiles of Go traces, and how many of them have a goroutine.
    samples: u64,
    attributed: u64,
}

impl Goroutines {
    const fn new(are_wanted: bool) -> Self {
        Self { are_wanted, samples: 0, attributed: 0 }
    }

    /// The event; if they are wanted, the goroutine of a sample is its outermost frame.
    fn below(&mut self, event: &Event, tables: &mut Tables) -> Event {
        let mut event = *event;
        if let EventKind::Sample { entity, stack, kind, .. } = &mut event.kind {
            let goroutine = tables.entities.get(*entity).copied();
            let goroutine = goroutine.filter(|entity| entity.kind == EntityKind::Goroutine);
            if *kind == SampleKind::GoCpu {
                self.samples += 1;
                self.attributed += u64::from(goroutine.is_some());
            }
            if let Some(goroutine) = goroutine.filter(|_| self.are_wanted) {
                *stack = on_goroutine(*stack, goroutine.number, goroutine.name, tables);
            }
        }
        event
    }

    /// What is said of them if there are no samples of threads of Go programs.
    fn note(&self) -> String {
        let Self { are_wanted, samples, attributed } = self;
        match (are_wanted, samples) {
            (false, _) => String::new(),
            (true, 0) => {
                "; no samples of Go programs whose execution trace is given: no goroutines"
                    .to_owned()
            }
            (true, all) => {
                let all = counted(*all, "sample");
                format!("; {attributed} of {all} of Go programs with a goroutine")
            }
        }
    }
}
