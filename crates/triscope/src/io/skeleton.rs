//! What a recorder creates in a directory before it records.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The files and directories of a recorder that has recorded nothing.
pub(crate) struct Skeleton {
    dir: PathBuf,
    /// Whether the directory was created.
    is_new: bool,
    files: Vec<PathBuf>,
    dirs: Vec<PathBuf>,
}

impl Skeleton {
    pub(crate) fn new(dir: &Path, is_new: bool, dirs: &[&str], files: &[&str]) -> Self {
        let of = |names: &[&str]| names.iter().map(|name| dir.join(name)).collect();
        Self { dir: dir.to_owned(), is_new, files: of(files), dirs: of(dirs) }
    }

    /// Removes them, if there is nothing in them.
    pub(crate) fn remove(self) {
        let is_gone = |path: &PathBuf| match fs::remove_dir(path) {
            Ok(()) => true,
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        };
        if self.dirs.iter().all(is_gone) {
            for file in &self.files {
                let _ = fs::remove_file(file); // it may not be there yet
            }
            if self.is_new {
                let _ = fs::remove_dir(&self.dir); // others may have put files there
            }
        }
    }
}
