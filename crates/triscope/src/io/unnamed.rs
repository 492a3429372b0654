//! Files without a name: nothing is left of them, however the program ends.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::PathBuf;

/// The path of a file that may have no name.
pub(crate) fn descriptor(file: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}
