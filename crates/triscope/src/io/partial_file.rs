//! The file `NAME.partial`, which becomes `NAME` when it is complete.

use super::output_file::directory;
use super::private;
use crate::run::cleanup;
use rustix::fs::{Access, AtFlags, CWD, FlockOperation, OFlags, accessat, flock};
use rustix::io::Errno;
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tempfile::NamedTempFile;

/// A file that is removed when this is dropped, or when a signal ends the program.
pub(super) struct Partial {
    file: NamedTempFile,
    /// Its mode when it is complete, if that is one of a file that it replaces.
    mode: Option<u32>,
    _guard: cleanup::Guard,
}

impl Partial {
    /// Creates that of `path`, and opens it. A signal does not remove it once `is_kept` is set.
    pub(super) fn create(
        path: &Path,
        is_private: bool,
        is_kept: &Arc<AtomicBool>,
    ) -> io::Result<(Self, File)> {
        let this = open_partial(path, is_private, is_kept)?;
        let writer = this.file.as_file().try_clone()?;
        Ok((this, writer))
    }

    /// Whether that of `path` could be created, as far as this is known before.
    pub(super) fn check(path: &Path) -> io::Result<()> {
        let dir = directory(path);
        if !fs::metadata(dir)?.is_dir() {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        // As the user that opens it, not the one that started a program with the set-user-ID bit.
        accessat(CWD, dir, Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS)?;
        let partial = partial_of(path);
        match fs::symlink_metadata(&partial) {
            Ok(_) => abandoned(&partial).map(drop),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }

    pub(super) fn path(&self) -> &Path {
        self.file.path()
    }

    /// Renames it. If that fails, it is returned.
    pub(super) fn persist(self, path: &Path) -> Result<(), (io::Error, Self)> {
        let Self { file, mode, _guard } = self;
        if let Some(mode) = mode {
            set_mode(file.as_file(), mode);
        }
        match file.persist(path) {
            Ok(_) => Ok(()),
            Err(error) => Err((error.error, Self { file: error.file, mode, _guard })),
        }
    }

    /// Leaves it.
    pub(super) fn keep(self) {
        // It stays either way.
        let _ = self.file.keep();
    }
}

/// Opens `NAME.partial`, never through a symbolic link. Replaces a file that a killed program left.
///
/// It has the mode of the file that it will replace, unless it is private, and can be written: a later run locks one
/// that is left, and opens it for that.
fn open_partial(path: &Path, is_private: bool, is_kept: &Arc<AtomicBool>) -> io::Result<Partial> {
    let partial = partial_of(path);
    let name = partial.file_name().unwrap_or_default();
    let replaced = fs::metadata(path).ok().filter(|_| !is_private);
    let usual = if is_private { private::FILE } else { 0o666 };
    let mode = replaced.as_ref().map_or(usual, |replaced| replaced.mode() & 0o777);
    let create = || {
        let created = tempfile::Builder::new()
            .prefix(name)
            .suffix(&OsString::new())
            .rand_bytes(0)
            .permissions(Permissions::from_mode(mode | WRITABLE))
            .tempfile_in(directory(path))?;
        let remove = remover(created.path(), is_kept);
        Ok::<_, io::Error>((created, remove))
    };
    let is_there = |error: &io::Error| error.kind() == io::ErrorKind::AlreadyExists;
    let created = cleanup::create(create);
    // Its lock keeps other runs from the path until the new file has one.
    let left = created.as_ref().is_err_and(is_there).then(|| abandoned(&partial)).transpose()?;
    let created = match &left {
        None => created,
        Some(_) => {
            message!("triscope: replacing {}, left by a run that was killed", partial.display());
            fs::remove_file(&partial)?;
            cleanup::create(create)
        }
    };
    let (file, guard) =
        created.map_err(|error| if is_there(&error) { in_use(&partial) } else { error })?;
    if !mark(file.as_file(), &partial) {
        // What is at its path is for the other run.
        let _ = file.keep();
        return Err(in_use(&partial));
    }
    let owner = file.as_file().metadata().ok().map(|file| file.uid());
    // umask(2) has narrowed the mode. That of another user's file is not taken over beyond it.
    let is_owner = owner.is_some() && owner == replaced.map(|replaced| replaced.uid());
    if is_owner {
        set_mode(file.as_file(), mode | WRITABLE);
    }
    Ok(Partial { file, mode: is_owner.then_some(mode), _guard: guard })
}

/// The bit of the mode by which the user may write.
const WRITABLE: u32 = 0o200;

fn set_mode(file: &File, mode: u32) {
    // Some file systems have no modes.
    let _ = file.set_permissions(Permissions::from_mode(mode));
}

pub(crate) fn partial_of(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".partial");
    path.with_file_name(name)
}

/// Checks that this is a file, and that no process writes to it any more. Other files may be in its place:
/// neither a link is followed, nor the reader of a pipe waited for. No other run takes it as long as the
/// result is there.
fn abandoned(partial: &Path) -> io::Result<File> {
    if !fs::symlink_metadata(partial)?.is_file() {
        return Err(refused(partial, "is in the way: it is not a regular file"));
    }
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32;
    let file = OpenOptions::new().write(true).custom_flags(flags).open(partial);
    let is_abandoned = |file: &File| {
        let is_file = file.metadata().is_ok_and(|metadata| metadata.is_file());
        is_file
            && flock(file, FlockOperation::NonBlockingLockExclusive).is_ok()
            && is_at(file, partial)
    };
    file.ok().filter(is_abandoned).ok_or_else(|| in_use(partial))
}

/// Marks a new file as in use, by a lock: some file systems have none. Returns whether no other run has taken it
/// or its path before.
fn mark(file: &File, partial: &Path) -> bool {
    let locked = flock(file, FlockOperation::NonBlockingLockExclusive);
    locked != Err(Errno::WOULDBLOCK) && is_at(file, partial)
}

/// Whether a file is still at its path.
fn is_at(file: &File, path: &Path) -> bool {
    let id = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
    match (file.metadata(), fs::symlink_metadata(path)) {
        (Ok(file), Ok(found)) => id(file) == id(found),
        _ => false,
    }
}

fn in_use(partial: &Path) -> io::Error {
    refused(partial, "is in use by another process")
}

fn refused(partial: &Path, why: &str) -> io::Error {
    let why = format!("{} {why}", partial.display());
    io::Error::new(io::ErrorKind::AlreadyExists, why)
}

/// The action on `NAME.partial` when a signal ends the program.
fn remover(path: &Path, is_kept: &Arc<AtomicBool>) -> impl Fn() + Send + use<> {
    let (path, is_kept) = (path.to_owned(), Arc::clone(is_kept));
    move || {
        if is_kept.load(Ordering::Acquire) {
            message!("triscope: interrupted; {} has what was written so far", path.display());
        } else {
            let _ = fs::remove_file(&path); // it may not exist any more
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_in_use<T>(result: io::Result<T>) -> bool {
        result.is_err_and(|error| error.to_string().ends_with("is in use by another process"))
    }

    #[test]
    fn one_of_two_runs_takes_the_file_of_a_killed_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        let partial = partial_of(&path);
        fs::write(&partial, "left").unwrap();
        // The first has looked at it, and will remove it.
        let left = abandoned(&partial).unwrap();
        assert!(is_in_use(Partial::create(&path, false, &Arc::default())));
        assert!(is_in_use(Partial::check(&path)));
        assert_eq!(fs::read(&partial).unwrap(), b"left");
        // A child of another test that has not executed its program yet can have a copy of it.
        flock(&left, FlockOperation::Unlock).unwrap();
        let (first, _) = Partial::create(&path, false, &Arc::default()).unwrap();
        // The second had opened what the first has removed.
        assert!(!is_at(&left, &partial));
        assert!(is_in_use(Partial::create(&path, false, &Arc::default())));
        assert!(is_at(first.file.as_file(), &partial));
        drop(first);
        assert!(!partial.exists());
    }

    #[test]
    fn a_new_file_that_another_run_has_taken_is_left_to_it() {
        let dir = tempfile::tempdir().unwrap();
        let partial = dir.path().join("out.partial");
        let new = File::create(&partial).unwrap();
        // Before it is marked, it seems to be abandoned.
        let taken = abandoned(&partial).unwrap();
        assert!(!mark(&new, &partial));
        fs::remove_file(&partial).unwrap();
        let theirs = File::create(&partial).unwrap();
        assert!(mark(&theirs, &partial));
        flock(&taken, FlockOperation::Unlock).unwrap();
        assert!(!mark(&new, &partial), "it has no path any more");
    }
}
