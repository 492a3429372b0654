//! The file of a uprobe, open while the kernel is given its name.

use super::definition::is_separator;
use crate::error::{Error, Result};
use rustix::fd::AsRawFd;
use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

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
        let file = match pid {
            None => File::open(path).map_err(failed)?,
            Some(pid) => open_in_root(path, pid)?,
        };
        let metadata = file.metadata().map_err(failed)?;
        if !metadata.is_file() {
            let error = std::io::Error::other("not a regular file");
            return Err(Error::file(path, error));
        }
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
        let name = name.unwrap_or_else(|| format!("/proc/self/fd/{}", file.as_raw_fd()));
        Ok(Self { file, path: path.to_owned(), name, is_descriptor })
    }
}

/// Opens a file below the root of a process. Symbolic links stay below it.
fn open_in_root(path: &Path, pid: u32) -> Result<File> {
    let root = PathBuf::from(format!("/proc/{pid}/root"));
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = rustix::fs::open(&root, flags, Mode::empty())
        .map_err(|errno| Error::file(&root, errno.into()))?;
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    // Linux 5.6.
    let fd = openat2(&dir, path, flags, Mode::empty(), ResolveFlags::IN_ROOT).map_err(|errno| {
        Error::file(root.join(path.strip_prefix("/").unwrap_or(path)), errno.into())
    })?;
    Ok(File::from(fd))
}
