//! Downloads and builds, kept by name and version below the XDG cache directory.

use crate::Result;
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
/// interrupted task leaves no entry.
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
    let partial = parent.join(format!(".{name}.{}.partial", std::process::id()));
    if partial.exists() {
        fs::remove_dir_all(&partial)?;
    }
    fs::create_dir(&partial)?;
    match fill(&partial) {
        Ok(()) => {}
        Err(error) => {
            let _ = fs::remove_dir_all(&partial); // the first error is the one to report
            return Err(error);
        }
    }
    match fs::rename(&partial, &dir) {
        Ok(()) => Ok(dir),
        // Another task created the same entry meanwhile: both are equal.
        Err(_) if dir.is_dir() => {
            fs::remove_dir_all(&partial)?;
            Ok(dir)
        }
        Err(error) => Err(error.into()),
    }
}
