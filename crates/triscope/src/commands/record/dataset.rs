//! A recording that is added to a dataset.

use super::Args;
use crate::answers::dataset::{Export, PATHS};
use crate::failure::{Failure, ForShell, OneLine, Result};
use crate::io::new_directory::NewDirectory;
use crate::run::cleanup;
use crate::run::stop::Beginning;
use crate::sources::model::Traces;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::fs::{self, DirEntry, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The beginning of the name of a temporary directory, which is in the dataset.
const TEMPORARY: &str = ".recording-";

/// The name of the sources in their temporary directory.
const RECORDED: &str = "recording";

/// Records, and exports what is kept: its critical paths need a second pass.
pub(super) fn run(args: &Args, dataset: &Path, beginning: &Beginning) -> Result {
    let fail = |error| Failure::about(dataset.display(), error);
    // A dataset that cannot be written is reported before anything is recorded. The sources are there
    // until they are exported: other file systems may have no space for them.
    let _created = NewDirectory::at(dataset);
    fs::create_dir_all(dataset).map_err(fail)?;
    // Another recorder does not look between the next two steps.
    let looking = lock_soon(dataset);
    // Without it, one that is between them has a directory that seems to be abandoned.
    let abandoned = looking.as_ref().map(|_| abandoned(dataset)).unwrap_or_default();
    let created = cleanup::create(|| {
        let dir = tempfile::Builder::new().prefix(TEMPORARY).tempdir_in(dataset)?;
        let path = dir.path().to_owned();
        let remove = move || {
            let _ = fs::remove_dir_all(&path); // nothing is left to report to
        };
        Ok((dir, remove))
    });
    let (dir, guard) = created.map_err(fail)?;
    // Other recorders do not name it while it is in use.
    let _lock = lock(dir.path(), FlockOperation::LockExclusive);
    drop(looking);
    for dir in abandoned {
        message!("triscope: {}", OneLine(&left(&dir, dataset)));
    }
    let mut args = args.clone();
    // Nothing can be done with sources that are gone.
    let is_temporary = args.keep.is_none();
    args.is_part |= is_temporary;
    let keep = args.keep.get_or_insert_with(|| dir.path().join(RECORDED)).clone();
    let outcome = super::run_one(&args, beginning);
    // It is removed if nothing begins.
    let is_kept = keep.is_dir();
    let traces = Traces::of(vec![keep]);
    if !is_kept || traces.files().is_err() {
        let why = "there is nothing to export: neither the scheduler (triscope doctor) nor a runtime \
                   was recorded";
        return outcome.and(Err(Failure::about(dataset.display(), why)));
    }
    drop(guard);
    let recording = dir.path().join(RECORDED);
    let export = export_command(&recording, dataset);
    let kept = is_temporary.then(|| super::kept(&recording, &export));
    // A signal that ends the export leaves the directory.
    let _guard = kept.clone().map(|kept| cleanup::on_exit(move || message!("{kept}")));
    // A command that failed was recorded, too.
    let export = Export { traces: &traces, output: dataset, host: None, start: None, paths: PATHS };
    let Err(failure) = export.run() else { return outcome };
    failure.print();
    if let Some(kept) = kept {
        let _ = dir.keep(); // the text names it
        message!("{kept}");
    }
    outcome.and(Err(failure.printed()))
}

/// The command that adds the sources of a recording to a dataset.
fn export_command(recording: &Path, dataset: &Path) -> String {
    format!("triscope export {} -o {}", ForShell(recording), ForShell(dataset))
}

/// Locks the dataset, unless another program keeps the lock: the directory is that of a user, in whose scripts it
/// can be locked while this recording runs.
fn lock_soon(dataset: &Path) -> Option<File> {
    const PATIENCE: Duration = Duration::from_millis(500);
    const PAUSE: Duration = Duration::from_millis(10);
    let file = File::open(dataset).ok()?;
    let start = Instant::now();
    loop {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Some(file),
            Err(Errno::WOULDBLOCK | Errno::INTR) if start.elapsed() < PATIENCE => {
                std::thread::sleep(PAUSE);
            }
            Err(_) => return None,
        }
    }
}

/// Locks a directory until the result is dropped.
fn lock(dir: &Path, operation: FlockOperation) -> Option<File> {
    let file = File::open(dir).ok()?;
    flock(&file, operation).is_ok().then_some(file)
}

/// The temporary directories of a dataset that no recorder uses any more: one that is killed removes
/// nothing, and one whose export fails keeps its sources. None on a file system without locks.
fn abandoned(dataset: &Path) -> Vec<PathBuf> {
    let is_temporary = |entry: &DirEntry| {
        let name = entry.file_name();
        name.to_string_lossy().starts_with(TEMPORARY) && entry.file_type().is_ok_and(|t| t.is_dir())
    };
    let is_free = |path: &PathBuf| lock(path, FlockOperation::NonBlockingLockExclusive).is_some();
    let entries = fs::read_dir(dataset).into_iter().flatten().flatten().filter(is_temporary);
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(is_free).collect();
    paths.sort_unstable();
    paths
}

/// The message about an abandoned directory.
fn left(dir: &Path, dataset: &Path) -> String {
    let recording = dir.join(RECORDED);
    let has_sources = fs::read_dir(&recording).is_ok_and(|mut entries| entries.next().is_some());
    let add = match has_sources {
        true => format!("to add it: {}; ", export_command(&recording, dataset)),
        false => String::new(),
    };
    let name = dir.display();
    format!("{name} was left by an earlier record; {add}to remove it: rm -r {}", ForShell(dir))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dataset_that_stays_locked_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let held = lock_soon(dir.path()).unwrap();
        assert!(lock_soon(dir.path()).is_none());
        drop(held);
        assert!(lock_soon(dir.path()).is_some());
        assert!(lock_soon(&dir.path().join("nowhere")).is_none());
    }

    #[test]
    fn directories_of_killed_recorders_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let dataset = dir.path();
        let [used, killed, empty] =
            ["c", "b", "a"].map(|name| dataset.join(format!("{TEMPORARY}{name}")));
        for path in [&used, &killed, &empty, &dataset.join("sched")] {
            fs::create_dir(path).unwrap();
        }
        fs::write(dataset.join(".recording-file"), "").unwrap();
        let _lock = lock(&used, FlockOperation::LockExclusive).unwrap();
        assert_eq!(abandoned(dataset), [empty.clone(), killed.clone()]);
        assert_eq!(abandoned(&dataset.join("nowhere")), [""; 0].map(PathBuf::from));

        let recording = killed.join(RECORDED);
        fs::create_dir(&recording).unwrap();
        fs::write(recording.join("scheduler.perf.data"), "").unwrap();
        let message = left(&killed, dataset);
        assert!(message.contains(&export_command(&recording, dataset)), "{message}");
        for (path, message) in [(&killed, message), (&empty, left(&empty, dataset))] {
            assert!(message.ends_with(&format!("rm -r {}", ForShell(path))), "{message}");
        }
        assert!(!left(&empty, dataset).contains("export"));
    }
}
