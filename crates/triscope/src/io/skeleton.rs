//! What a recorder creates in a directory before it records.

use super::place::Place;
use std::fs;
use std::io;

/// The files and directories of a recorder that has recorded nothing.
#[derive(Clone)]
pub(crate) struct Skeleton {
    dir: Place,
    /// Whether the directory was created.
    is_new: bool,
    files: Vec<Place>,
    dirs: Vec<Place>,
}

impl Skeleton {
    pub(crate) fn new(dir: impl Into<Place>, is_new: bool, dirs: &[&str], files: &[&str]) -> Self {
        let dir = dir.into();
        let of = |names: &[&str]| names.iter().map(|name| dir.join(name)).collect();
        let (files, dirs) = (of(files), of(dirs));
        Self { dir, is_new, files, dirs }
    }

    /// Removes them, if there is nothing in them.
    pub(crate) fn remove(self) {
        let is_gone = |path: &Place| match fs::remove_dir(path) {
            Ok(()) => true,
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        };
        if self.dirs.iter().all(is_gone) {
            for file in &self.files {
                let _ = fs::remove_file(file); // it may not be there yet
            }
            if self.is_new {
                // Others may have put files there, and this user may have lost the right to change its parent.
                let _ = fs::remove_dir(self.dir.shown());
            }
        }
    }
}
