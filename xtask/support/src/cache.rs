//! Downloads and builds, kept by name and version below the XDG cache directory.

use crate::Result;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
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

/// Takes the lock with this file name in the cache, for `what`: until the file is closed. If another
/// process or thread holds it, reports that on standard error, and waits.
///
/// # Errors
/// Those of the file system.
pub fn lock(name: &str, what: &str) -> Result<fs::File> {
    let path = root()?.join(name);
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    let file = fs::File::create(&path)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => {
            eprintln!("==== waits for another run: {what} (lock {})", path.display());
            flock(&file, FlockOperation::LockExclusive)?;
        }
        locked => locked?,
    }
    Ok(file)
}

/// Writes a file that others may read meanwhile: all of it or nothing, and only if it differs.
///
/// # Errors
/// Those of the file system.
pub fn write(path: &Path, content: &str) -> Result {
    if fs::read(path).is_ok_and(|there| there == content.as_bytes()) {
        return Ok(());
    }
    let mut partial = path.as_os_str().to_owned();
    partial.push(format!(".{}", std::process::id()));
    fs::write(&partial, content)?;
    Ok(fs::rename(partial, path)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt as _;
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

    #[test]
    fn a_lock_is_held_until_it_is_closed() {
        let name = format!("tests/lock-{}", std::process::id());
        let take = || lock(&name, "a test").map_err(|error| error.to_string()).unwrap();
        let (is_free, start) = (AtomicBool::new(false), Barrier::new(2));
        let held = take();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                start.wait();
                let _held = take();
                assert!(is_free.load(Relaxed));
            });
            start.wait();
            is_free.store(true, Relaxed);
            drop(held);
        });
        fs::remove_file(root().unwrap().join(name)).unwrap();
    }

    #[test]
    fn a_file_is_replaced_only_if_it_differs() {
        let dir = root().unwrap().join(format!("tests/write-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let path = dir.join("file");
        let inode = |content| {
            write(&path, content).map_err(|error| error.to_string()).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), content);
            fs::metadata(&path).unwrap().ino()
        };
        let first = inode("a");
        let reader = fs::File::open(&path).unwrap();
        assert_eq!(inode("a"), first);
        // A reader keeps the old file.
        assert_ne!(inode("b"), first);
        assert_eq!(std::io::read_to_string(reader).unwrap(), "a");
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 1);
        fs::remove_dir_all(dir).unwrap();
    }

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
