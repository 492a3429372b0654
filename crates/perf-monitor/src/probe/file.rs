//! The file of a uprobe, open while the kernel is given its name.

use super::definition::is_separator;
use crate::error::{Error, Result};
use rustix::fd::AsRawFd;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use trace_common::FoundFile;

/// A file that is probed.
#[derive(Debug)]
pub(super) struct ProbedFile {
    #[cfg_attr(not(feature = "symbols"), expect(dead_code, reason = "keeps the name valid"))]
    pub(super) file: File,
    /// For messages.
    pub(super) path: PathBuf,
    /// The name for the kernel, which resolves it now.
    pub(super) name: String,
    /// Whether the name is only valid as long as the file is open.
    pub(super) is_descriptor: bool,
}

impl ProbedFile {
    /// Opens a file; with `pid`, the one that this process sees by that name.
    pub(super) fn open(path: &Path, pid: Option<u32>) -> Result<Self> {
        let failed = |e| Error::file(path, e);
        let found = match pid {
            None => FoundFile::find(path).map_err(|error| failed(error.into()))?,
            Some(pid) => find_in_root(path, pid)?,
        };
        let file = found.open().map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        // A name with white space would end there, and one of another root means another file.
        let same = std::fs::canonicalize(path).ok().filter(|canonical| {
            pid.is_none()
                && std::fs::metadata(canonical)
                    .is_ok_and(|m| (m.dev(), m.ino()) == (metadata.dev(), metadata.ino()))
        });
        let name = same
            .and_then(|canonical| canonical.into_os_string().into_string().ok())
            .filter(|name| !name.contains(is_separator));
        let is_descriptor = name.is_none();
        let name = name.unwrap_or_else(|| descriptor(&file));
        Ok(Self { file, path: path.to_owned(), name, is_descriptor })
    }
}

/// The name of an open file.
fn descriptor(file: &File) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

/// Finds a file below the root of a process. Symbolic links stay below it.
fn find_in_root(path: &Path, pid: u32) -> Result<FoundFile> {
    let root = PathBuf::from(format!("/proc/{pid}/root"));
    let dir = FoundFile::root_of(pid).map_err(|error| Error::file(&root, error))?;
    FoundFile::find_in(dir, path).map_err(|error| {
        Error::file(root.join(path.strip_prefix("/").unwrap_or(path)), error.into())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn special_files_are_not_opened() {
        let path = std::env::temp_dir().join(format!("perf-probed-file-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        // To open a socket is an error of its own (`ENXIO`).
        let _listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        for pid in [None, Some(std::process::id())] {
            let error = ProbedFile::open(&path, pid).unwrap_err().to_string();
            assert!(error.contains("not a regular file"), "{error}");
            let own = std::env::current_exe().unwrap();
            let opened = ProbedFile::open(&own, pid).unwrap();
            assert!(opened.file.metadata().unwrap().len() > 0);
        }
        std::fs::remove_file(&path).unwrap();
    }
}
