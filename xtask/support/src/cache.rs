//! Downloads and builds, kept by name and version below the XDG cache directory.

use crate::Result;
use rustix::fs::{FlockOperation, flock};
use std::fs;
use std::path::{Path, PathBuf};

/// `$XDG_CACHE_HOME/triscope`, or `~/.cache/triscope`.
///
/// # Errors
/// When neither variable is set.
pub fn root() -> Result<PathBuf> {
    let base = std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .filter(|p| p.is_absolute())
        .or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache")))
        .ok_or("neither XDG_CACHE_HOME nor HOME is set")?;
    Ok(base.join("triscope"))
}

/// The directory of the entry `key` (such as `go/1.27.3`). `fill` creates it if it does not exist.
///
/// `fill` gets an empty directory, which is renamed to the entry when it is complete. An
/// interrupted task leaves no entry. Of several tasks or threads that need it at the same time, one
/// fills it.
///
/// # Errors
/// Those of `fill` and of the file system.
pub fn entry(key: &str, fill: impl FnOnce(&Path) -> Result) -> Result<PathBuf> {
    let dir = root()?.join(key);
    if dir.is_dir() {
        return Ok(dir);
    }
    let parent = dir.parent().ok_or("a cache key names a directory")?;
    fs::create_dir_all(parent)?;
    let name = dir.file_name().unwrap_or_default().to_string_lossy();
    let lock = fs::File::create(parent.join(format!(".{name}.lock")))?;
    flock(&lock, FlockOperation::LockExclusive)?; // until it is closed
    if dir.is_dir() {
        return Ok(dir);
    }
    let partial = parent.join(format!(".{name}.partial"));
    if partial.exists() {
        fs::remove_dir_all(&partial)?;
    }
    fs::create_dir(&partial)?;
    let filled = fill(&partial);
    if filled.is_err() {
        let _ = fs::remove_dir_all(&partial); // the first error is the one to report
    }
    filled?;
    fs::rename(&partial, &dir)?;
    Ok(dir)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    /// Tests of one program, which need the same toolchain.
    #[test]
    fn threads_that_need_an_entry_fill_it_once() {
        let key = format!("tests/{}", std::process::id());
        let (fills, start) = (AtomicUsize::new(0), Barrier::new(4));
        let fill = |dir: &Path| {
            fills.fetch_add(1, Relaxed);
            fs::write(dir.join("file"), "content")?;
            Ok(())
        };
        let entry = || {
            start.wait();
            entry(&key, fill).map_err(|error| error.to_string())
        };
        let dirs: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(entry)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap().unwrap()).collect()
        });
        assert_eq!(fills.load(Relaxed), 1);
        assert!(dirs.iter().all(|dir| fs::read(dir.join("file")).unwrap() == b"content"));
        fs::remove_dir_all(&dirs[0]).unwrap();
        let name = std::process::id();
        fs::remove_file(dirs[0].with_file_name(format!(".{name}.lock"))).unwrap();
    }
}
