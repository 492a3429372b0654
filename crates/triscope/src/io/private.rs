//! Files that only their user can read.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The mode of a file.
pub(crate) const FILE: u32 = 0o600;

/// Creates a file where none is.
pub(crate) fn create_new(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(FILE).open(path)
}

/// The path of a new file in a directory: of the second one with a name, it ends with its number.
pub(crate) fn numbered(dir: &Path, name: &str, extension: &str) -> PathBuf {
    /// A program can execute itself any number of times.
    const MOST: usize = 1000;
    let path = |number: usize| match number {
        1 => dir.join(format!("{name}.{extension}")),
        number => dir.join(format!("{name}-{number}.{extension}")),
    };
    let is_free = |path: &PathBuf| fs::symlink_metadata(path).is_err();
    (1..MOST).map(path).find(is_free).unwrap_or_else(|| path(MOST))
}

/// Writes a file where none is, and synchronises it.
pub(crate) fn write_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = create_new(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}
