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
    /// Device and inode.
    pub(super) id: (u64, u64),
}

impl ProbedFile {
    /// Opens a file; with `pid`, the one that this process sees by that name.
    ///
    /// The name of a file of a process is the descriptor, which is exact, unless the probe is kept:
    /// then it must mean something to others, as long as that process exists.
    pub(super) fn open(path: &Path, pid: Option<u32>, is_kept: bool) -> Result<Self> {
        let failed = |e| Error::file(path, e);
        let found = match pid {
            None => FoundFile::find(path).map_err(|error| failed(error.into()))?,
            Some(pid) => find_in_root(path, pid)?,
        };
        let file = found.open().map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        let id = (metadata.dev(), metadata.ino());
        let canonical = || std::fs::canonicalize(path).ok();
        let candidates = match pid {
            None => vec![canonical()],
            Some(_) if !is_kept => Vec::new(),
            Some(pid) => {
                let below = |path: &Path| below_root(path, pid);
                // Its name in the namespace of the process, without symbolic links.
                let resolved = std::fs::read_link(descriptor(&file)).ok();
                vec![canonical(), Some(below(path)), resolved.map(|path| below(&path))]
            }
        };
        let mut names = candidates.into_iter().flatten();
        // A name with white space would end there, and one of another root means another file.
        let name = names.find_map(|name| {
            let name = name.into_os_string().into_string().ok()?;
            (!name.contains(is_separator) && is_file(&name, id)).then_some(name)
        });
        let is_descriptor = name.is_none();
        let name = name.unwrap_or_else(|| descriptor(&file));
        Ok(Self { file, path: path.to_owned(), name, is_descriptor, id })
    }

    /// Whether the name still means the file.
    pub(super) fn check(&self) -> Result<()> {
        if self.is_descriptor { Ok(()) } else { check_file(Path::new(&self.name), self.id) }
    }
}

/// Whether a name still means the file with this device and inode.
pub(crate) fn check_file(name: &Path, id: (u64, u64)) -> Result<()> {
    if is_file(name, id) {
        return Ok(());
    }
    let why = "the file was replaced or removed after the probe was looked up in it";
    Err(Error::file(name, std::io::Error::other(why)))
}

/// The name of an open file.
fn descriptor(file: &File) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

/// Whether a name is that of the file with this device and inode.
fn is_file(name: impl AsRef<Path>, id: (u64, u64)) -> bool {
    std::fs::metadata(name).is_ok_and(|metadata| (metadata.dev(), metadata.ino()) == id)
}

/// The name of a file of a process for others.
fn below_root(path: &Path, pid: u32) -> PathBuf {
    Path::new(&format!("/proc/{pid}/root")).join(path.strip_prefix("/").unwrap_or(path))
}

/// Finds a file below the root of a process. Symbolic links stay below it.
fn find_in_root(path: &Path, pid: u32) -> Result<FoundFile> {
    let root = PathBuf::from(format!("/proc/{pid}/root"));
    let dir = FoundFile::root_of(pid).map_err(|error| Error::file(&root, error))?;
    FoundFile::find_in(dir, path).map_err(|error| Error::file(below_root(path, pid), error.into()))
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
            let error = ProbedFile::open(&path, pid, false).unwrap_err().to_string();
            assert!(error.contains("not a regular file"), "{error}");
            let own = std::env::current_exe().unwrap();
            let opened = ProbedFile::open(&own, pid, false).unwrap();
            assert!(opened.file.metadata().unwrap().len() > 0);
        }
        std::fs::remove_file(&path).unwrap();
    }
}
