//! Directories that a command makes for its outputs.

use crate::run::cleanup::{self, Guard};
use std::fs;
use std::path::{Path, PathBuf};

/// Directories that do not exist yet. Those that are empty are removed when this is dropped, or when a
/// signal ends the program.
pub(crate) struct NewDirectory {
    paths: Vec<PathBuf>,
    _guard: Guard,
}

impl NewDirectory {
    /// Those that are missing at `path`, before they are made.
    pub(crate) fn at(path: &Path) -> Self {
        let is_missing =
            |path: &&Path| !path.as_os_str().is_empty() && matches!(path.try_exists(), Ok(false));
        let paths: Vec<PathBuf> =
            path.ancestors().take_while(is_missing).map(Path::to_owned).collect();
        let guard = cleanup::on_exit({
            let paths = paths.clone();
            move || remove(&paths)
        });
        Self { paths, _guard: guard }
    }
}

impl Drop for NewDirectory {
    fn drop(&mut self) {
        remove(&self.paths);
    }
}

/// Removes directories, innermost first, as far as they are empty.
fn remove(paths: &[PathBuf]) {
    for path in paths {
        // Of one that has files, this fails.
        let _ = fs::remove_dir(path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_directories_that_were_made_are_removed() {
        let base = tempfile::tempdir().unwrap();
        let [new, old] = ["new", "old"].map(|name| base.path().join(name));
        fs::create_dir(&old).unwrap();
        let made = |path: &Path, file: Option<&str>| {
            let made = NewDirectory::at(path);
            fs::create_dir_all(path).unwrap();
            if let Some(file) = file {
                fs::write(path.join(file), "").unwrap();
            }
            drop(made);
            path.exists()
        };
        assert!(!made(&new.join("inner"), None) && !new.exists());
        assert!(made(&old, None), "it was there before");
        assert!(made(&new.join("inner"), Some("file")));
        assert!(!made(&new.join("other"), None) && new.exists());
    }
}
