//! Directories that are removed at the end of a test, also of one that fails.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A new directory, which is removed with its files when it is dropped.
#[derive(Debug)]
pub struct Directory(tempfile::TempDir);

impl Directory {
    /// Creates one whose name begins with this.
    ///
    /// # Panics
    ///
    /// If it cannot be created.
    #[track_caller]
    pub fn new(prefix: &str) -> Self {
        Self(tempfile::Builder::new().prefix(prefix).tempdir().expect("a directory"))
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// The path of a file in it.
    pub fn join(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }
}

/// A new directory for all tests of this process. A process of its own removes it when this one has ended:
/// values of statics are not dropped.
///
/// # Panics
///
/// If it cannot be created.
pub fn of_this_process() -> PathBuf {
    let dir = tempfile::tempdir().expect("a directory").keep();
    // Its input ends with this process, by a signal to all of them, too.
    let script = "trap '' HUP INT TERM; cat > /dev/null; exec rm -rf \"$1\"";
    let mut remover = Command::new("sh");
    remover.args(["-c", script, "sh"]).arg(&dir).stdin(Stdio::piped());
    let remover = remover.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    std::mem::forget(remover.expect("a process"));
    dir
}
