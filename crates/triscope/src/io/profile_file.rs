//! A profile in a file; its format follows from the name.

use super::output_file::OutputFile;
use crate::failure::{Failure, OneLine, Result};
use crate::timeline::{OPEN_PAGE, counted, notes};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use trace_export::profile::{FirefoxProfile, Format, Profile};
use trace_timeline::Tables;

/// The name and format of a profile that is to be written.
pub(crate) struct ProfileFile {
    path: PathBuf,
    format: Format,
}

/// The name of a file for the Firefox Profiler that is to be written.
pub(crate) struct FirefoxFile {
    path: PathBuf,
}

impl ProfileFile {
    /// Finds the format, and whether the file can be written. Nothing is created before there is a
    /// profile.
    pub(crate) fn create(path: &Path) -> Result<Self> {
        let file = Self::of(path)?;
        OutputFile::check(path)?;
        Ok(file)
    }

    /// Whether it has the order of the samples.
    pub(crate) fn has_order(&self) -> bool {
        matches!(self.format, Format::Speedscope)
    }

    /// Finds the format.
    pub(crate) fn of(path: &Path) -> Result<Self> {
        let format = Format::of(path).ok_or_else(|| {
            let endings: Vec<_> = Format::ENDINGS.iter().map(|(ending, _)| *ending).collect();
            let endings = endings.join(", ");
            let what = format!("the name must end in one of {endings}");
            Failure::about(path.display(), what).with_code(2)
        })?;
        Ok(Self { path: path.to_owned(), format })
    }

    /// Writes the profile, and prints its size with a remark.
    pub(crate) fn write(
        self,
        profile: &Profile,
        tables: &Tables,
        title: &str,
        remark: &str,
    ) -> Result {
        let (name, ()) = write(&self.path, |out| profile.write(self.format, title, tables, out))?;
        let events = &profile.measure().events;
        let events = counted(profile.count(), events.strip_suffix('s').unwrap_or(events));
        message!("{}: {events}{remark}", OneLine(&name));
        if name != "-" {
            message!("{}", next_step(self.format, &name));
        }
        Ok(())
    }
}

/// How to open a profile.
fn next_step(format: Format, name: &str) -> String {
    match format {
        Format::Pprof => format!("open it with: go tool pprof -http=: {}", OneLine(name)),
        Format::FlameGraph => OPEN_PAGE.to_owned(),
        Format::Speedscope => "open it at https://www.speedscope.app".to_owned(),
        _ => "open it at https://www.speedscope.app, or with another flame graph tool".to_owned(),
    }
}

impl FirefoxFile {
    /// The end of the names of such files.
    pub(crate) const ENDING: &str = ".json.gz";

    /// Whether the name selects this format.
    pub(crate) fn is_wanted(path: &Path) -> bool {
        path.to_str().is_some_and(|path| path.ends_with(Self::ENDING))
    }

    /// `None` if the name selects another format. An error if the file cannot be written.
    pub(crate) fn of(path: &Path) -> Result<Option<Self>> {
        if !Self::is_wanted(path) {
            return Ok(None);
        }
        OutputFile::check(path)?;
        Ok(Some(Self { path: path.to_owned() }))
    }

    /// Writes the profile, and prints its size with a remark.
    pub(crate) fn write(
        self,
        profile: FirefoxProfile,
        tables: &Tables,
        title: &str,
        remark: &str,
    ) -> Result {
        let (count, dropped) = (profile.count(), profile.dropped());
        let (name, left_out) = write(&self.path, |out| profile.write(title, tables, out))?;
        let notes = notes(&[
            (left_out, "sample of another event left out", "samples of other events left out"),
            (
                dropped.samples,
                "sample above 4 Mi left out: use a lower -F",
                "samples above 4 Mi left out: use a lower -F",
            ),
            (dropped.markers, "marker too many", "markers too many"),
        ]);
        let samples = counted(count.saturating_sub(left_out), "sample");
        message!("{}: {samples}{remark}{notes}", OneLine(&name));
        if name != "-" {
            message!("open it at https://profiler.firefox.com (\"Load a profile from file\")");
        }
        Ok(())
    }
}

/// The title of a profile of a trace: its name without the directory.
pub(crate) fn title(name: &str) -> String {
    Path::new(name).file_name().map_or(name.into(), |name| name.to_string_lossy()).into_owned()
}

/// Writes a file. Returns its name, and what `content` returns.
fn write<T>(
    path: &Path,
    content: impl FnOnce(&mut dyn Write) -> io::Result<T>,
) -> Result<(String, T)> {
    let mut file = OutputFile::create(path, &[])?;
    let mut out = BufWriter::new(file.writer()?);
    let written = content(&mut out).and_then(|value| out.flush().map(|()| value));
    let value = written.map_err(|error| file.failure(&error))?;
    drop(out);
    let name = file.name();
    file.complete()?;
    Ok((name, value))
}
