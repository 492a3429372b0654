//! Small files of procfs, sysfs and tracefs.

use std::path::{Path, PathBuf};
use trace_common::Mount;

/// The first `limit` bytes of a small file, as text. Files of procfs and sysfs are short; a longer
/// file is truncated.
pub(crate) fn read_text(path: impl AsRef<Path>) -> std::io::Result<String> {
    read_bytes(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// The same, as bytes.
pub(crate) fn read_bytes(path: impl AsRef<Path>) -> std::io::Result<Vec<u8>> {
    use std::io::Read as _;
    const LIMIT: u64 = 1 << 20;
    let mut bytes = Vec::new();
    std::fs::File::open(path)?.take(LIMIT).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Directories with a mounted tracefs, from the text of `/proc/self/mountinfo`; for a debugfs, the
/// directory in it where the kernel mounts a tracefs.
pub(crate) fn tracefs_mounts(mountinfo: &[u8]) -> Vec<PathBuf> {
    let mut points = Vec::new();
    let mut below_debugfs = Vec::new();
    for Mount { kind, point, .. } in Mount::all(mountinfo) {
        match kind {
            b"tracefs" => points.push(point),
            b"debugfs" => below_debugfs.push(point.join("tracing")),
            _ => {}
        }
    }
    points.extend(below_debugfs.into_iter().filter(|p| p.join("events").is_dir()));
    points
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_of_tracefs_are_found_in_mountinfo() {
        let text = "25 1 0:23 / /proc rw - proc proc rw\n\
            30 25 0:9 / /sys/kernel/tracing rw,relatime shared:13 - tracefs tracefs rw\n\
            31 25 0:9 / /mnt/a\\040b rw - tracefs nodev rw\nbroken line\n";
        assert_eq!(
            tracefs_mounts(text.as_bytes()),
            [PathBuf::from("/sys/kernel/tracing"), PathBuf::from("/mnt/a b")]
        );
    }
}
