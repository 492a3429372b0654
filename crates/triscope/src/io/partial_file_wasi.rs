//! The file `NAME.partial`, which becomes `NAME` when it is complete: without the locks, symbolic
//! links and signals of Unix.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// A file that is removed when this is dropped.
pub(super) struct Partial {
    path: PathBuf,
    is_removed: bool,
}

impl Partial {
    pub(super) fn create(path: &Path, _: bool, _: &Arc<AtomicBool>) -> io::Result<(Self, File)> {
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(".partial");
        let path = path.with_file_name(name);
        let writer = File::create(&path)?;
        Ok((Self { path, is_removed: true }, writer))
    }

    /// Not known before: the file system of a page has files whose names contain `/`, and no
    /// directories.
    pub(super) fn check(_: &Path) -> io::Result<()> {
        Ok(())
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn persist(mut self, path: &Path) -> Result<(), (io::Error, Self)> {
        match fs::rename(&self.path, path) {
            Ok(()) => {
                self.is_removed = false;
                Ok(())
            }
            Err(error) => Err((error, self)),
        }
    }

    pub(super) fn keep(mut self) {
        self.is_removed = false;
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        if self.is_removed {
            let _ = fs::remove_file(&self.path); // the error that was before is reported
        }
    }
}
