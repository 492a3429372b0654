//! An output file that appears when it is complete.

use super::links;
use super::partial_file::Partial;
use crate::failure::{Failure, Result};
use std::fs::{self, File, OpenOptions};
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// An output: written to `NAME.partial`, which is renamed when it is complete. `NAME` is the file behind a
/// symbolic link. Files other than regular files (a device, a pipe, standard output), and those that are
/// open (`/dev/fd/3`), are written directly.
pub(crate) struct OutputFile {
    path: PathBuf,
    kind: Kind,
    /// Whether only its user can read it.
    is_private: bool,
    /// Set if `NAME.partial` is useful on its own: it is then not removed.
    is_kept: Arc<AtomicBool>,
}

/// Where an output goes.
pub(super) enum Kind {
    Discarded,
    Stdout,
    /// To what is there, as it is.
    InPlace,
    /// To the file with this path.
    File {
        path: PathBuf,
        partial: Option<Partial>,
    },
}

impl Kind {
    /// That of an output which is no directory.
    fn of(path: &Path) -> io::Result<Self> {
        Ok(match present(path)? {
            Some(metadata) if metadata.is_file() => links::kind_of(path, &metadata),
            Some(_) => Self::InPlace,
            // A link that leads to no file is replaced: another user can have chosen where it leads.
            None => Self::of_path(path.to_owned()),
        })
    }

    pub(super) fn of_path(path: PathBuf) -> Self {
        Self::File { path, partial: None }
    }
}

impl OutputFile {
    /// Prepares `path`, which must be neither one of `inputs` nor a file of a directory among them: all
    /// files of a directory are read, this time or the next.
    pub(crate) fn create(path: &Path, inputs: &[PathBuf]) -> Result<Self> {
        let path = path.to_owned();
        let fail = |message: &str| Err(Failure::about(path.display(), message));
        if path.as_os_str() == "-" {
            if io::stdout().is_terminal() {
                return fail(
                    "binary data cannot be written to a terminal: name a file with -o FILE",
                );
            }
            return Ok(Self::new(path, Kind::Stdout));
        }
        Self::check_inputs(&path, inputs)?;
        if path.file_name().is_none() {
            return fail("is not the name of a file");
        }
        if path.is_dir() {
            return fail("is a directory, not a file");
        }
        let kind = Kind::of(&path).map_err(|error| cannot_be_written(&path, &error))?;
        if let Kind::File { path: file, .. } = &kind {
            Partial::check(file).map_err(|error| cannot_be_written(&path, &error))?;
        }
        Ok(Self::new(path, kind))
    }

    /// Prepares a recording at `path`. Only its user can read it, as that of perf(1).
    #[cfg(unix)]
    pub(crate) fn recording(path: &Path, inputs: &[PathBuf]) -> Result<Self> {
        let mut this = Self::create(path, inputs)?;
        this.is_private = true;
        Ok(this)
    }

    /// Whether `path` is neither one of `inputs` nor a file of a directory among them.
    pub(crate) fn check_inputs(path: &Path, inputs: &[PathBuf]) -> Result {
        let fail = |message: &str| Err(Failure::about(path.display(), message));
        let Some(output) = resolved(path) else { return Ok(()) };
        let is_input = |input: &PathBuf| resolved(input).is_some_and(|input| input == output);
        if inputs.iter().any(is_input) {
            return fail("is the input: the output needs another name");
        }
        let inside =
            |input: &&PathBuf| input.is_dir() && resolved(input).as_deref() == output.parent();
        if let Some(dir) = inputs.iter().find(inside) {
            let dir = dir.display();
            return fail(&format!(
                "is in {dir}, whose files are all read as inputs: the output needs another directory"
            ));
        }
        Ok(())
    }

    /// Whether `path` can be an output: to be known before the time until it is written.
    pub(crate) fn check(path: &Path) -> Result {
        Self::create(path, &[]).map(drop)
    }

    /// An output that nobody needs.
    pub(crate) fn discarded() -> Self {
        Self::new(PathBuf::new(), Kind::Discarded)
    }

    fn new(path: PathBuf, kind: Kind) -> Self {
        Self { path, kind, is_private: false, is_kept: Arc::default() }
    }

    /// Opens it. Call this or [`file`](Self::file) once.
    pub(crate) fn writer(&mut self) -> Result<Box<dyn Write + Send>> {
        if let Some(file) = self.file()? {
            return Ok(Box::new(file));
        }
        match self.kind {
            Kind::Stdout => return Ok(Box::new(io::stdout())),
            Kind::Discarded => return Ok(Box::new(io::sink())),
            Kind::InPlace | Kind::File { .. } => {}
        }
        // An open file keeps what it has: the position of its descriptor is not known.
        let is_file = fs::metadata(&self.path).is_ok_and(|metadata| metadata.is_file());
        let opened = OpenOptions::new().write(true).append(is_file).open(&self.path);
        Ok(Box::new(opened.map_err(|error| self.failure(&error))?))
    }

    /// Opens it for writing at any position. `None` if it is written directly.
    pub(crate) fn file(&mut self) -> Result<Option<File>> {
        let Kind::File { path, partial } = &mut self.kind else { return Ok(None) };
        let opened = Partial::create(path, self.is_private, &self.is_kept);
        let opened = opened.map(|(created, writer)| {
            *partial = Some(created);
            writer
        });
        opened.map(Some).map_err(|error| self.failure(&error))
    }

    pub(crate) const fn is_stdout(&self) -> bool {
        matches!(self.kind, Kind::Stdout)
    }

    /// The file that is written: behind a symbolic link.
    #[cfg(unix)]
    pub(crate) fn target(&self) -> &Path {
        match &self.kind {
            Kind::File { path, .. } => path,
            Kind::Discarded | Kind::Stdout | Kind::InPlace => &self.path,
        }
    }

    /// Its name in messages.
    pub(crate) fn name(&self) -> String {
        if self.is_stdout() {
            "standard output".to_owned()
        } else {
            self.path.display().to_string()
        }
    }

    /// Keeps `NAME.partial` from now on, however the program ends: it can be read up to the last
    /// write.
    pub(crate) fn keep(&self) {
        self.is_kept.store(true, Ordering::Release);
    }

    /// The file that is [kept](Self::keep), if it is not empty.
    pub(crate) fn kept(&self) -> Option<&Path> {
        let Kind::File { partial: Some(partial), .. } = &self.kind else { return None };
        let has_content = fs::metadata(partial.path()).is_ok_and(|metadata| metadata.len() > 0);
        (has_content && self.is_kept.load(Ordering::Acquire)).then(|| partial.path())
    }

    /// Adds to a failure where the part that was written is, if it is [kept](Self::keep).
    pub(crate) fn with_kept(&self, failure: Failure) -> Failure {
        match self.kept() {
            Some(kept) => failure.and(format_args!("{} has what was written", kept.display())),
            None => failure,
        }
    }

    /// A failure to write this output.
    pub(crate) fn failure(&self, error: &io::Error) -> Failure {
        if self.is_stdout() {
            return Failure::output(error);
        }
        cannot_be_written(&self.path, error)
    }

    /// Renames the file to its final name. If that fails, it is [kept](Self::keep): it is complete.
    pub(crate) fn complete(mut self) -> Result {
        let Kind::File { path, partial } = &mut self.kind else { return Ok(()) };
        let Some(complete) = partial.take() else { return Ok(()) };
        let Err((error, complete)) = complete.persist(path) else { return Ok(()) };
        *partial = Some(complete);
        self.keep();
        Err(self.with_kept(self.failure(&error)))
    }
}

impl Drop for OutputFile {
    fn drop(&mut self) {
        if self.kept().is_some() {
            if let Kind::File { partial, .. } = &mut self.kind {
                // Dropping the guard would remove the file.
                let _ = partial.take().map(Partial::keep);
            }
        }
    }
}

/// The file that an output is written to, behind a symbolic link: in its directory there can be others. `None` for a
/// pipe, device or file that is open: what it got, it has.
#[cfg(unix)]
pub(crate) fn file_of(path: &Path) -> Option<PathBuf> {
    if path.as_os_str() == "-" {
        return None;
    }
    match Kind::of(path) {
        Ok(Kind::File { path, .. }) => Some(path),
        Ok(_) => None,
        Err(_) => Some(path.to_owned()),
    }
}

/// Whether an output is written to [a file with a path](file_of).
#[cfg(unix)]
pub(crate) fn is_file(path: &Path) -> bool {
    file_of(path).is_some()
}

/// The failure to write an output.
pub(crate) fn cannot_be_written(path: &Path, error: &io::Error) -> Failure {
    Failure::about(path.display(), format!("cannot be written: {error}"))
}

/// The directory of a file.
pub(crate) fn directory(path: &Path) -> &Path {
    path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// The path of a file without symbolic links, also if the file does not exist yet.
fn resolved(path: &Path) -> Option<PathBuf> {
    if let Ok(path) = fs::canonicalize(path) {
        return Some(path);
    }
    Some(fs::canonicalize(directory(path)).ok()?.join(path.file_name()?))
}

/// The metadata of the file, if it exists.
fn present(path: &Path) -> io::Result<Option<fs::Metadata>> {
    match fs::metadata(path) {
        Ok(metadata) => Ok(Some(metadata)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use crate::io::partial_file::partial_of;

    #[test]
    fn recordings_are_private_and_others_have_the_mode_of_the_file_before() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        // While it is written, and then.
        let modes = |mut output: OutputFile| {
            output.writer().unwrap().write_all(b"content").unwrap();
            let partial = mode(&partial_of(&path));
            output.complete().unwrap();
            [partial, mode(&path)]
        };
        let other = dir.path().join("other");
        fs::write(&other, "").unwrap();
        assert_eq!(modes(OutputFile::create(&path, &[]).unwrap()), [mode(&other); 2]);
        for before in [0o640, 0o400, 0o666] {
            fs::set_permissions(&path, fs::Permissions::from_mode(before)).unwrap();
            // A later run can lock one that is left.
            let modes = modes(OutputFile::create(&path, &[]).unwrap());
            assert_eq!(modes, [before | 0o200, before]);
        }
        assert_eq!(modes(OutputFile::recording(&path, &[]).unwrap()), [0o600; 2]);
        fs::remove_file(&path).unwrap();
        assert_eq!(modes(OutputFile::recording(&path, &[]).unwrap()), [0o600; 2]);
    }

    #[test]
    fn a_complete_file_that_cannot_be_renamed_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        let mut output = OutputFile::create(&path, &[]).unwrap();
        output.writer().unwrap().write_all(b"content").unwrap();
        fs::create_dir(&path).unwrap();
        let failure = output.complete().unwrap_err();
        let message = failure.message();
        assert!(message.contains("out: cannot be written: "), "{message}");
        assert!(message.contains("out.partial has what was written"), "{message}");
        assert_eq!(fs::read(partial_of(&path)).unwrap(), b"content");

        // What is not complete does not.
        let other = dir.path().join("other");
        let mut output = OutputFile::create(&other, &[]).unwrap();
        output.writer().unwrap().write_all(b"cont").unwrap();
        assert!(partial_of(&other).exists());
        drop(output);
        assert!(!partial_of(&other).exists());
    }
}
