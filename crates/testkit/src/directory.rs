//! Directories that are removed at the end of a test, also of one that fails.

use std::path::{Path, PathBuf};

/// A new directory, which is removed with its files when it is dropped.
#[derive(Debug)]
pub struct Directory(tempfile::TempDir);

impl Directory {
    /// Creates one whose name begins with this.
    ///
    /// # Panics
    ///
    /// If it cannot be created.
    #[track_caller]
    pub fn new(prefix: &str) -> Self {
        Self(tempfile::Builder::new().prefix(prefix).tempdir().expect("a directory"))
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// The path of a file in it.
    pub fn join(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }
}
