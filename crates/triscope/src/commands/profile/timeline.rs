//! A profile as a timeline: the recording is written to a file beside it, and converted.

use crate::answers::html;
use crate::failure::{Failure, Result};
use crate::io::output_file::OutputFile;
use crate::sources::model::Traces;
use crate::timeline::{self, draw_traces, size};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use trace_export::Sink as _;
use trace_export::timeline::{TimelineOptions, TimelineSource};

/// The file of the recording.
pub(super) fn spool(output: &Path) -> PathBuf {
    let mut name = OsString::from(output);
    name.push(".data");
    name.into()
}

/// Converts the recording, and removes it.
pub(super) fn write(spool: &Path, output: &Path) -> Result {
    // The recording is a file that the user does not know.
    let name = output.file_stem().unwrap_or(output.as_os_str());
    let traces = Traces::of(vec![spool.to_owned()]).titled(name.to_string_lossy().into_owned());
    if output.extension().is_some_and(|extension| extension == "html") {
        html::write(&traces, output)??;
    } else {
        draw(&traces, output)?;
    }
    std::fs::remove_file(spool).map_err(|error| Failure::about(spool.display(), error))
}

fn draw(traces: &Traces, path: &Path) -> Result {
    let mut opened = traces.open()?;
    let mut output = OutputFile::create(path, &[])?;
    let mut options = TimelineOptions::default();
    if let Some(release) = &opened.kernel {
        options.set_kernel(release);
    }
    let mut source = TimelineSource::new(options);
    let (mut sink, written) = timeline::open(&mut output, false)?;
    if let Some(release) = &opened.kernel {
        sink.kernel(release.as_bytes()).map_err(|error| output.failure(&error))?;
    }
    let failures = draw_traces(&mut opened, &mut source, true, &mut sink, &output)?;
    sink.finish().map_err(|error| output.failure(&error))?;
    if let Some(failure) = failures.into_iter().next() {
        return Err(failure);
    }
    let name = output.name();
    output.complete()?;
    message!("{name}: {}", size(written.bytes.get()));
    timeline::print_next_step();
    Ok(())
}
