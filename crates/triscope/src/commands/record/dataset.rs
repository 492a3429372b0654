//! A recording that is added to a dataset.

use super::Args;
use crate::answers::dataset::{Export, PATHS};
use crate::failure::{Failure, ForShell, Result};
use crate::run::cleanup;
use crate::sources::model::Traces;
use std::fs;
use std::path::Path;

/// The name of the sources in their temporary directory.
const RECORDED: &str = "recording";

/// Records, and exports what is kept: its critical paths need a second pass.
pub(super) fn run(args: &Args, dataset: &Path) -> Result {
    let fail = |error| Failure::about(dataset.display(), error);
    // A dataset that cannot be written is reported before anything is recorded. The sources are there
    // until they are exported: other file systems may have no space for them.
    fs::create_dir_all(dataset).map_err(fail)?;
    let dir = tempfile::Builder::new().prefix(".recording-").tempdir_in(dataset).map_err(fail)?;
    let path = dir.path().to_owned();
    let guard = cleanup::on_exit(move || {
        let _ = fs::remove_dir_all(&path); // nothing is left to report to
    });
    let mut args = args.clone();
    // Nothing can be done with sources that are gone.
    let is_temporary = args.keep.is_none();
    args.is_part |= is_temporary;
    let keep = args.keep.get_or_insert_with(|| dir.path().join(RECORDED)).clone();
    let outcome = super::run_one(&args);
    let traces = Traces::of(vec![keep]);
    if traces.files().is_err() {
        let why = "there is nothing to export: neither the scheduler (triscope doctor) nor a runtime \
                   was recorded";
        return outcome.and(Err(Failure::about(dataset.display(), why)));
    }
    drop(guard);
    let recording = dir.path().join(RECORDED);
    let export = format!("triscope export {} -o {}", ForShell(&recording), ForShell(dataset));
    let kept = is_temporary.then(|| super::kept(&recording, &export));
    // A signal that ends the export leaves the directory.
    let _guard = kept.clone().map(|kept| cleanup::on_exit(move || message!("{kept}")));
    // A command that failed was recorded, too.
    let export = Export { traces: &traces, output: dataset, host: None, begin: None, paths: PATHS };
    let Err(failure) = export.run() else { return outcome };
    failure.print();
    if let Some(kept) = kept {
        let _ = dir.keep(); // the text names it
        message!("{kept}");
    }
    outcome.and(Err(failure.printed()))
}
