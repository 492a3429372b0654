//! A profile in a file; its format follows from the name.

use super::output_file::OutputFile;
use crate::failure::{Failure, OneLine, Result};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use trace_export::profile::{Format, Profile};

/// The name and format of a profile that is to be written.
pub(crate) struct ProfileFile {
    path: PathBuf,
    format: Format,
}

impl ProfileFile {
    /// Finds the format. Nothing is created before there is a profile.
    pub(crate) fn create(path: &Path) -> Result<Self> {
        let format = Format::of(path).ok_or_else(|| {
            let endings: Vec<_> = Format::ENDINGS.iter().map(|(ending, _)| *ending).collect();
            let endings = endings.join(", ");
            Failure::about(path.display(), format!("the name must end in one of {endings}"))
        })?;
        Ok(Self { path: path.to_owned(), format })
    }

    /// Writes the profile of the trace `name`, and prints its size with a remark.
    pub(crate) fn write(self, profile: &Profile, name: &str, remark: &str) -> Result {
        let title = Path::new(name).file_name().map_or(name.into(), |name| name.to_string_lossy());
        let mut file = OutputFile::create(&self.path, &[])?;
        let mut out = BufWriter::new(file.writer()?);
        profile
            .write(self.format, &title, &mut out)
            .and_then(|()| out.flush())
            .map_err(|error| file.failure(&error))?;
        let name = file.name();
        file.complete()?;
        let (count, events) = (profile.count(), profile.measure().events);
        eprintln!("{}: {count} {events}{remark}", OneLine(&name));
        if self.format == Format::Pprof && name != "-" {
            eprintln!("open it with: go tool pprof -http=: {}", OneLine(&name));
        }
        Ok(())
    }
}
