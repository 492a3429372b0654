//! A file that appears when it is complete.

use crate::failure::{Failure, Result};
use std::fs::{self, File, OpenOptions};
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// An output: written to a temporary file beside it, which takes its name when all is there.
/// What is no regular file (a device, a pipe, standard output) is written to as it is.
pub(crate) struct OutputFile {
    path: PathBuf,
    kind: Kind,
    /// A temporary file is there and is ours: one of another process may have its name.
    is_open: Arc<AtomicBool>,
}

enum Kind {
    Stdout,
    Device,
    /// The temporary file; removed unless it is renamed.
    Temporary(PathBuf),
}

impl OutputFile {
    /// Prepares `path`, which must not be one of `inputs`.
    pub(crate) fn create(path: &Path, inputs: &[PathBuf]) -> Result<Self> {
        let path = path.to_owned();
        let fail = |message: &str| Err(Failure::about(path.display(), message));
        if path.as_os_str() == "-" {
            if io::stdout().is_terminal() {
                return fail("a timeline is not for a terminal: name a file with -o FILE");
            }
            return Ok(Self::new(path, Kind::Stdout));
        }
        if let Some(output) = resolved(&path) {
            if inputs.iter().any(|input| resolved(input).is_some_and(|input| input == output)) {
                return fail("is the input: the output needs another name");
            }
        }
        let (Some(name), Ok(metadata)) = (path.file_name(), present(&path)) else {
            return fail("is not the name of a file");
        };
        match metadata {
            Some(metadata) if metadata.is_dir() => return fail("is a directory, not a file"),
            Some(metadata) if !metadata.is_file() => {
                return Ok(Self::new(path, Kind::Device));
            }
            _ => {}
        }
        let mut hidden = std::ffi::OsString::from(".");
        hidden.push(name);
        hidden.push(format!(".{}.partial", std::process::id()));
        let temporary = path.with_file_name(hidden);
        Ok(Self::new(path, Kind::Temporary(temporary)))
    }

    fn new(path: PathBuf, kind: Kind) -> Self {
        Self { path, kind, is_open: Arc::default() }
    }

    /// Opens it. To be called once.
    pub(crate) fn writer(&self) -> Result<Box<dyn Write + Send>> {
        let file = match &self.kind {
            Kind::Stdout => return Ok(Box::new(io::stdout())),
            Kind::Device => OpenOptions::new().write(true).open(&self.path),
            // Never through a link that somebody put there.
            Kind::Temporary(path) => OpenOptions::new().write(true).create_new(true).open(path),
        };
        let file: File = file.map_err(|error| self.failure(&error))?;
        self.is_open.store(true, Ordering::Release);
        Ok(Box::new(file))
    }

    pub(crate) const fn is_stdout(&self) -> bool {
        matches!(self.kind, Kind::Stdout)
    }

    /// A failure to write it.
    pub(crate) fn failure(&self, error: &io::Error) -> Failure {
        if self.is_stdout() {
            return Failure::output(error);
        }
        Failure::about(self.path.display(), format!("cannot be written: {error}"))
    }

    /// What removes the temporary file, for when the program ends otherwise than by returning.
    pub(crate) fn remover(&self) -> impl Fn() + Send + 'static {
        let temporary = match &self.kind {
            Kind::Temporary(path) => Some(path.clone()),
            _ => None,
        };
        let is_open = Arc::clone(&self.is_open);
        move || {
            if let (Some(path), true) = (&temporary, is_open.load(Ordering::Acquire)) {
                let _ = fs::remove_file(path); // it may not be there any more
            }
        }
    }

    /// Gives the file its name.
    pub(crate) fn complete(&self) -> Result {
        match &self.kind {
            Kind::Temporary(path) => {
                fs::rename(path, &self.path).map_err(|error| self.failure(&error))
            }
            _ => Ok(()),
        }
    }
}

impl Drop for OutputFile {
    fn drop(&mut self) {
        self.remover()();
    }
}

/// The path of a file without links, also of one that is not there yet.
fn resolved(path: &Path) -> Option<PathBuf> {
    if let Ok(path) = fs::canonicalize(path) {
        return Some(path);
    }
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Some(fs::canonicalize(dir).ok()?.join(path.file_name()?))
}

/// What is known of the file, if it is there.
fn present(path: &Path) -> io::Result<Option<fs::Metadata>> {
    match fs::metadata(path) {
        Ok(metadata) => Ok(Some(metadata)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}
