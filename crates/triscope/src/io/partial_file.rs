//! The file `NAME.partial`, which becomes `NAME` when it is complete.

use super::output_file::directory;
use crate::run::cleanup;
use rustix::fs::{Access, AtFlags, CWD, FlockOperation, accessat, flock};
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tempfile::NamedTempFile;

/// A file that is removed when this is dropped, or when a signal ends the program.
pub(super) struct Partial {
    file: NamedTempFile,
    _guard: cleanup::Guard,
}

impl Partial {
    /// Creates that of `path`, and opens it. A signal does not remove it once `is_kept` is set.
    pub(super) fn create(path: &Path, is_kept: &Arc<AtomicBool>) -> io::Result<(Self, File)> {
        let file = open_partial(path)?;
        let writer = file.as_file().try_clone()?;
        let guard = remover(file.path(), is_kept);
        Ok((Self { file, _guard: guard }, writer))
    }

    /// Whether that of `path` could be created, as far as this is known before.
    pub(super) fn check(path: &Path) -> io::Result<()> {
        let dir = directory(path);
        if !fs::metadata(dir)?.is_dir() {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        // As the user that opens it, not the one that started a program with the set-user-ID bit.
        Ok(accessat(CWD, dir, Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS)?)
    }

    pub(super) fn path(&self) -> &Path {
        self.file.path()
    }

    /// Renames it.
    pub(super) fn persist(self, path: &Path) -> io::Result<()> {
        self.file.persist(path).map_err(|error| error.error)?;
        Ok(())
    }

    /// Leaves it.
    pub(super) fn keep(self) {
        // It stays either way.
        let _ = self.file.keep();
    }
}

/// Opens `NAME.partial`, never through a symbolic link. Replaces a file that a killed program left.
fn open_partial(path: &Path) -> io::Result<NamedTempFile> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".partial");
    let partial = path.with_file_name(&name);
    let create = || {
        tempfile::Builder::new()
            .prefix(&name)
            .suffix(&OsString::new())
            .rand_bytes(0)
            .permissions(Permissions::from_mode(0o666))
            .tempfile_in(directory(path))
    };
    let file = match create() {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            if !is_abandoned(&partial) {
                let why = format!("{} is in use by another process", partial.display());
                return Err(io::Error::new(error.kind(), why));
            }
            message!("triscope: replacing {}, left by a run that was killed", partial.display());
            fs::remove_file(&partial)?;
            create()?
        }
        other => other?,
    };
    // The lock marks the file as in use; some file systems have no locks.
    let _ = flock(file.as_file(), FlockOperation::NonBlockingLockExclusive);
    Ok(file)
}

/// Whether no process writes to this file any more.
fn is_abandoned(partial: &Path) -> bool {
    let no_follow = rustix::fs::OFlags::NOFOLLOW.bits() as i32;
    let file = OpenOptions::new().write(true).custom_flags(no_follow).open(partial);
    file.is_ok_and(|file: File| {
        let is_file = file.metadata().is_ok_and(|metadata| metadata.is_file());
        is_file && flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok()
    })
}

/// The action on `NAME.partial` when a signal ends the program.
fn remover(path: &Path, is_kept: &Arc<AtomicBool>) -> cleanup::Guard {
    let (path, is_kept) = (path.to_owned(), Arc::clone(is_kept));
    cleanup::on_exit(move || {
        if is_kept.load(Ordering::Acquire) {
            message!("triscope: interrupted; {} has what was written so far", path.display());
        } else {
            let _ = fs::remove_file(&path); // it may not exist any more
        }
    })
}
