//! Regular files in places that others can write to: a pipe there would block, and a device has no end.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _};
use std::path::Path;

/// Opens a regular file for reading. Any other file is an error, and not waited for.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    check(options().read(true).open(path)?)
}

/// The content of a regular file. One that is longer than this is an error.
pub(crate) fn read(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    open(path)?.take(limit.saturating_add(1)).read_to_end(&mut content)?;
    if content.len() as u64 > limit {
        let why = format!("is longer than {limit} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, why));
    }
    Ok(content)
}

fn check(file: File) -> io::Result<File> {
    if file.metadata()?.is_file() {
        return Ok(file);
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, "is not a regular file"))
}

/// A pipe without another end is not waited for.
#[cfg(unix)]
fn options() -> OpenOptions {
    use std::os::unix::fs::OpenOptionsExt as _;
    let mut options = OpenOptions::new();
    options.custom_flags(rustix::fs::OFlags::NONBLOCK.bits() as i32);
    options
}

#[cfg(not(unix))]
fn options() -> OpenOptions {
    OpenOptions::new()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn other_files_and_long_ones_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "12345678").unwrap();
        assert_eq!(read(&file, 8).unwrap(), b"12345678");
        assert!(read(&file, 7).unwrap_err().to_string().contains("longer than 7 bytes"));
        let pipe = dir.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let zeros = dir.path().join("zeros");
        std::os::unix::fs::symlink("/dev/zero", &zeros).unwrap();
        for path in [&pipe, &zeros, dir.path()] {
            let error = open(path).unwrap_err();
            assert!(error.to_string().contains("not a regular file"), "{error}");
        }
        assert_eq!(open(&dir.path().join("none")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
