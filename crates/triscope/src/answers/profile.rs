//! The samples of traces as one profile.

use crate::failure::{Failure, OneLine, Result};
use crate::io::profile_file::{FirefoxFile, ProfileFile};
use crate::sources::model::Traces;
use crate::sources::profile::{choose, no_samples, report_others};
use std::path::Path;
use trace_export::profile::{FirefoxProfile, Format, Samples};
use trace_timeline::Tables;

/// Whether the name of a file selects a format of profiles.
pub(crate) fn is_wanted(path: &Path) -> bool {
    Format::of(path).is_some() || FirefoxFile::of(path).is_some()
}

/// Writes the samples of one event: of `event`, otherwise of the one with most samples. An error
/// within a trace is the second result.
pub(crate) fn write(traces: &Traces, path: &Path, event: Option<&str>) -> Result<Result> {
    if let Some(file) = FirefoxFile::of(path) {
        return firefox(traces, file, event);
    }
    let file = ProfileFile::create(path)?;
    let mut tables = Tables::new();
    let mut samples = Samples::new();
    let outcome = traces.merge(&mut tables, &mut |event, tables| {
        samples.push(event, tables);
        Ok(())
    })?;
    let profiles = samples.into_profiles(&tables);
    if profiles.is_empty() && event.is_none() {
        return Err(outcome.err().unwrap_or_else(no_samples));
    }
    let ((name, profile), others) = choose(profiles, 0, event)?;
    file.write(&profile, &tables, &traces.title(), &format!(" of {}", OneLine(&name)))?;
    report_others(&others);
    Ok(outcome)
}

/// Writes the samples with their times, and the spans, for the Firefox Profiler.
fn firefox(traces: &Traces, file: FirefoxFile, event: Option<&str>) -> Result<Result> {
    if event.is_some() {
        let message =
            "--samples is for other profiles: this one has the samples of which there are most";
        return Err(Failure::new(message).with_code(2));
    }
    let mut tables = Tables::new();
    let mut profile = FirefoxProfile::new();
    let outcome = traces.merge(&mut tables, &mut |event, tables| {
        profile.push(event, tables);
        Ok(())
    })?;
    if profile.is_empty() {
        return Err(outcome.err().unwrap_or_else(no_samples));
    }
    file.write(profile, &tables, &traces.title(), "")?;
    Ok(outcome)
}
