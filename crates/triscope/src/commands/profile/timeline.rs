//! A profile as a timeline: the recording is written to a file beside it, and converted.

use crate::answers::html;
use crate::failure::{Failure, OneLine, Result};
use crate::io::output_file::OutputFile;
use crate::io::partial_file::partial_of;
use crate::run::cleanup;
use crate::sources::model::{Traces, outcome};
use crate::timeline::{self, notes, size, values_omitted};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use trace_export::timeline::{TimelineOptions, TimelineSource};

/// A new file for the recording: one that is there can be all that is left of an earlier run.
pub(super) fn spool(output: &Path) -> PathBuf {
    let name = |end: String| {
        let mut name = OsString::from(output);
        name.push(end);
        PathBuf::from(name)
    };
    let mut names = (2_u32..).map(|number| name(format!(".{number}.data")));
    let first = name(".data".to_owned());
    // A run that did not end leaves its file under the name that it had while it was written.
    let is_free = |path: &PathBuf| {
        [path, &partial_of(path)].into_iter().all(|path| path.symlink_metadata().is_err())
    };
    if is_free(&first) { first } else { names.find(is_free).unwrap_or(first) }
}

/// Converts the recording, and removes it. The second result is that the timeline lacks something, which is
/// printed.
pub(super) fn write(spool: &Path, output: &Path) -> Result<Result> {
    let kept = format!("{} has the recording", spool.display());
    let interrupted = format!("triscope: interrupted; {}", OneLine(&kept));
    let guard = cleanup::on_exit(move || message!("{interrupted}"));
    // The recording is a file that the user does not know.
    let name = output.file_stem().unwrap_or(output.as_os_str());
    let traces = Traces::of(vec![spool.to_owned()]).titled(name.to_string_lossy().into_owned());
    let written = match output.extension().is_some_and(|extension| extension == "html") {
        true => html::write(&traces, output),
        false => draw(&traces, output),
    };
    let outcome = written.map_err(|failure| failure.and(&kept))?;
    drop(guard);
    std::fs::remove_file(spool).map_err(|error| Failure::about(spool.display(), error))?;
    Ok(outcome)
}

fn draw(traces: &Traces, path: &Path) -> Result<Result> {
    let mut opened = traces.open()?;
    let mut output = OutputFile::create(path, &[])?;
    let mut options = TimelineOptions::default();
    if let Some(release) = &opened.kernel {
        options.set_kernel(release);
    }
    let mut source = TimelineSource::new(options);
    let drawn = timeline::draw(&mut opened, &mut source, &mut output, false)?;
    let omitted = notes(&[values_omitted(drawn.values_omitted)]);
    let name = output.name();
    output.complete()?;
    message!("{name}: {}{omitted}", size(drawn.bytes));
    opened.print_warnings();
    timeline::print_next_step();
    Ok(outcome(&drawn.failures))
}
