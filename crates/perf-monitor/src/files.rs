//! Small files of procfs, sysfs and tracefs.

use std::path::Path;

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
