//! Outputs that are symbolic links: what is behind the link is written, and the link stays.

use super::output_file::{Kind, directory};
use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// How a regular file that is there is written.
pub(super) fn kind_of(path: &Path, file: &Metadata) -> Kind {
    /// As many links as the kernel follows.
    const MAX_LINKS: usize = 40;
    let mut at = path.to_owned();
    for _ in 0..MAX_LINKS {
        if let Some(kind) = of_descriptor(&at) {
            return kind;
        }
        let Ok(link) = fs::read_link(&at) else { break };
        at = at.parent().unwrap_or(Path::new("")).join(link);
    }
    // The kernel refuses some links of other users, who can change theirs at any time: only what it has found is
    // written. Otherwise, the link is replaced.
    let is_same = |found: Metadata| (found.dev(), found.ino()) == (file.dev(), file.ino());
    let is_found = fs::symlink_metadata(&at).is_ok_and(is_same);
    Kind::of_path(if is_found { at } else { path.to_owned() })
}

/// That of a file that a process has open, as `/dev/stdout`: it may have no name.
fn of_descriptor(path: &Path) -> Option<Kind> {
    let dir = fs::canonicalize(directory(path)).ok()?;
    if !dir.starts_with("/proc") || !dir.ends_with("fd") {
        return None;
    }
    let is_own = fs::canonicalize("/proc/self/fd").is_ok_and(|own| own == dir);
    let is_stdout = is_own && path.file_name().is_some_and(|name| name == "1");
    Some(if is_stdout { Kind::Stdout } else { Kind::InPlace })
}
