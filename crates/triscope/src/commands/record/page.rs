//! A recording as one HTML page.

use super::{Args, keep};
use crate::answers::html;
use crate::failure::{Failure, OneLine, Result};
use crate::io::output_file::OutputFile;
use crate::run::cleanup;
use crate::run::serve::{self, Viewer};
use crate::run::stop::{Beginning, Listener};
use crate::sources::model::Traces;
use crate::timeline::OPEN_PAGE;
use std::{fs, io};
use tempfile::TempDir;

/// Whether a page is to be written.
pub(super) fn is_wanted(args: &Args) -> bool {
    args.output.extension().is_some_and(|extension| extension == "html")
}

/// Records, and writes the page of what is kept: its critical paths need a second pass.
pub(super) fn run(args: &Args, beginning: &Beginning) -> Result {
    // Report an output that cannot be written before anything is recorded.
    let mut output = OutputFile::create(&args.output, args.keep.as_slice())?;
    let writer = output.writer()?;
    let parent = keep::files_dir(&args.output);
    let created = cleanup::create(|| {
        let dir = tempfile::Builder::new().prefix("triscope-record-").tempdir_in(&parent)?;
        let path = dir.path().to_owned();
        let remove = move || {
            let _ = fs::remove_dir_all(&path); // nothing is left to report to
        };
        Ok((dir, remove))
    });
    let (dir, guard) =
        created.map_err(|error: io::Error| Failure::about(parent.display(), error))?;
    let mut args = args.clone();
    let named = args.keep.clone();
    let keep = args.keep.get_or_insert_with(|| dir.path().join("recording")).clone();
    args.uncompressed = true;
    let command = super::page_command(&keep, &args.output);
    let kept = named.is_none().then(|| super::kept(&keep, &command));
    let recorded = super::record(&args, &mut OutputFile::discarded(), beginning);
    drop(guard);
    let (summary, outcome) = match recorded {
        Ok(recorded) => recorded,
        Err(failure) => {
            let has_traces = Traces::of(vec![keep]).files().is_ok();
            return Err(keep_after(failure, dir, kept.filter(|_| has_traces)));
        }
    };
    // A signal that ends the writing of the page leaves the directory.
    let _guard = kept.clone().map(|kept| cleanup::on_exit(move || message!("{kept}")));
    // Signals are for the command until its end, and end this program from then on.
    let _listener = Listener::exit();
    message!("{}", OneLine(&format!("recorded: {summary}")));
    let title = args.output.file_stem().unwrap_or(args.output.as_os_str());
    let traces = Traces::of(vec![keep]).titled(title.to_string_lossy().into_owned());
    // The directory would be named otherwise.
    if traces.files().is_err() {
        let why = "there is nothing to show: neither the scheduler (triscope doctor) nor a runtime \
                   was recorded";
        return outcome.and(Err(Failure::about(args.output.display(), why)));
    }
    let written = match html::write_to(&traces, output, writer) {
        Ok(written) => written,
        Err(failure) => return outcome.and(Err(keep_after(failure, dir, kept))),
    };
    if args.open {
        serve::open(Viewer::Browser, &args.output)?;
    } else if !args.is_part {
        super::print_next_step(Some(OPEN_PAGE), named.as_deref());
    }
    outcome.and(written)
}

/// Prints a failure, and keeps the directory if there is a text that names it.
fn keep_after(failure: Failure, dir: TempDir, kept: Option<String>) -> Failure {
    failure.print();
    if let Some(kept) = kept {
        let _ = dir.keep(); // the text names it
        message!("{kept}");
    }
    failure.printed()
}
