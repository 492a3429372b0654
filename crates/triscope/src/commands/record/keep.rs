//! The raw sources of a recording: for `triscope report` and `triscope explain`, and for the timeline in
//! which the layers are related.

use crate::failure::{Failure, Result};
use crate::io::output_file::{directory, file_of};
use crate::io::skeleton::Skeleton;
use crate::io::unnamed::descriptor;
use crate::io::{private, private_dir};
use crate::sources::model::{PROCESSES, RECORDING, SCHEDULER, THREADS};
use crate::sources::processes::ProcessWriter;
use crate::sources::quota::{QUOTAS, QuotaWriter};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// Where the sources are kept.
pub(super) struct Keep {
    dir: PathBuf,
    unnamed: Option<Unnamed>,
}

/// Files without a name in the directory: nothing is left of them, however the recorder ends.
#[derive(Default)]
struct Unnamed {
    files: Vec<(&'static str, File)>,
    failure: FirstError,
}

/// The first error of files that can be done without.
type FirstError = Arc<Mutex<Option<io::Error>>>;

/// A file of the recording.
pub(super) struct KeptFile {
    file: File,
    /// For a file that the recording can do without: where its error is left. Nothing more is written
    /// after it.
    failure: Option<FirstError>,
}

/// The directory of files that grow with the recording. It is that of the output, if that is a file: the directory of
/// temporary files can be a part of the memory.
pub(super) fn files_dir(output: &Path) -> PathBuf {
    file_of(output).map_or_else(std::env::temp_dir, |file| directory(&file).to_owned())
}

impl KeptFile {
    /// Creates a file of samples, without a name, which the recording can do without.
    pub(super) fn of_samples(output: &Path) -> Result<Self> {
        let dir = files_dir(output);
        let file = tempfile::tempfile_in(&dir);
        let file = file.map_err(|error| Failure::about(dir.display(), error))?;
        Ok(Self { file, failure: Some(FirstError::default()) })
    }

    /// Why it has no samples, if one of [`of_samples`](Self::of_samples) could not be written.
    pub(super) fn failure_of_samples(&self, output: &Path) -> Option<Failure> {
        let failure = self.failure.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner);
        let error = failure.as_ref()?;
        let what = "the samples cannot be kept until the end";
        Some(Failure::about(files_dir(output).display(), format_args!("{what}: {error}")))
    }

    /// Its path, as long as it is open.
    pub(super) fn path(&self) -> PathBuf {
        descriptor(&self.file)
    }

    fn write_or_fail<T>(
        &mut self,
        done: T,
        write: impl FnOnce(&mut File) -> io::Result<T>,
    ) -> io::Result<T> {
        let Some(failure) = &self.failure else { return write(&mut self.file) };
        let mut failure = failure.lock().unwrap_or_else(PoisonError::into_inner);
        if failure.is_some() {
            return Ok(done);
        }
        write(&mut self.file).or_else(|error| {
            // The timeline needs the space.
            let _ = self.file.set_len(0);
            *failure = Some(error);
            Ok(done)
        })
    }
}

impl Write for KeptFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_or_fail(bytes.len(), |file| file.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.write_or_fail((), File::flush)
    }
}

impl Seek for KeptFile {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.file.seek(to)
    }
}

impl Keep {
    /// Creates the directory, which is private. An existing one must be empty, and of this user. The second result is what
    /// to remove if the recording cannot begin.
    pub(super) fn create(dir: &Path) -> Result<(Self, Skeleton)> {
        let fail = |error| Failure::about(dir.display(), error);
        let is_empty = || match fs::read_dir(dir).map_err(fail)?.next() {
            Some(_) => Err(Failure::about(dir.display(), "the directory is not empty")),
            None => Ok(()),
        };
        let is_new = !dir.is_dir();
        if !is_new {
            is_empty()?;
        } else if let Some(parent) = dir.parent() {
            fs::create_dir_all(parent).map_err(fail)?;
        }
        private_dir::create(dir)?;
        is_empty()?;
        let skeleton = Skeleton::new(dir, is_new, &[], &[SCHEDULER, PROCESSES, QUOTAS, RECORDING]);
        Ok((Self { dir: dir.to_owned(), unnamed: None }, skeleton))
    }

    /// Keeps the kernel's records until the end of the recording, on the file system of the output.
    pub(super) fn beside(output: &Path) -> Self {
        Self { dir: files_dir(output), unnamed: Some(Unnamed::default()) }
    }

    /// Whether the sources are there after the recording.
    pub(super) const fn is_named(&self) -> bool {
        self.unnamed.is_none()
    }

    /// Why not everything is kept until the end of the recording.
    pub(super) fn failure(&self) -> Option<Failure> {
        let failure = self.unnamed.as_ref()?.failure.lock();
        let failure = failure.unwrap_or_else(PoisonError::into_inner);
        let error = failure.as_ref()?;
        let what = "the kernel's records cannot be kept until the end";
        Some(Failure::about(self.dir.display(), format_args!("{what}: {error}")))
    }

    /// The path of one of the files, if it was created.
    pub(super) fn path(&self, name: &str) -> Option<PathBuf> {
        match &self.unnamed {
            Some(unnamed) => {
                let file = unnamed.files.iter().find(|(known, _)| *known == name);
                file.map(|(_, file)| descriptor(file))
            }
            None => Some(self.dir.join(name)).filter(|path| path.exists()),
        }
    }

    /// Creates one of the files. Returns it with its path.
    fn file(&mut self, name: &'static str) -> Result<(PathBuf, KeptFile)> {
        let Some(unnamed) = &mut self.unnamed else {
            let path = self.dir.join(name);
            let file = private::create_new(&path)
                .map_err(|error| Failure::about(path.display(), error))?;
            return Ok((path, KeptFile { file, failure: None }));
        };
        let fail = |error| Failure::about(self.dir.display(), error);
        let file = tempfile::tempfile_in(&self.dir).map_err(fail)?;
        unnamed.files.push((name, file.try_clone().map_err(fail)?));
        let failure = Some(Arc::clone(&unnamed.failure));
        Ok((descriptor(&file), KeptFile { file, failure }))
    }

    /// Names the process that was recorded, for [`RECORDING`]; at the end of the recording with its
    /// steal time in nanoseconds.
    pub(super) fn describe(&self, pid: u32, command: &str, steal: Option<u64>) -> Result {
        if !self.is_named() {
            return Ok(());
        }
        let path = self.dir.join(RECORDING);
        let mut about = serde_json::json!({ "pid": pid, "command": command });
        if let Some(steal) = steal {
            about["steal_nanos"] = steal.into();
        }
        let text = format!("{about:#}\n");
        // The one that is there stays if the disk is full.
        let partial = self.dir.join(format!("{RECORDING}.part"));
        let written = private::write_new(&partial, text.as_bytes())
            .and_then(|()| fs::rename(&partial, &path));
        written.map_err(|error| {
            // It may not even have been created.
            let _ = fs::remove_file(&partial);
            Failure::about(path.display(), error)
        })
    }

    /// Starts the file of the scheduler's records.
    pub(super) fn scheduler(&mut self) -> Result<KeptFile> {
        self.file(SCHEDULER).map(|(_, file)| file)
    }

    /// Starts the file of the CPU quotas.
    pub(super) fn quotas(&mut self) -> Result<QuotaWriter> {
        let (path, file) = self.file(QUOTAS)?;
        let started = QuotaWriter::start(path, Box::new(file));
        started.map_err(|error| Failure::about(self.dir.display(), error))
    }

    /// Starts the file of the processes.
    pub(super) fn processes(&mut self) -> Result<ProcessWriter> {
        let (path, file) = self.file(PROCESSES)?;
        Ok(ProcessWriter::start(path, Box::new(file)))
    }

    /// Copies the Go trace of a process.
    pub(super) fn go(&self, pid: u32, trace: &Path) -> Result {
        if !self.is_named() {
            return Ok(());
        }
        self.copy(&format!("go-{pid}"), "trace", || File::open(trace)).map(drop)
    }

    /// Copies the trace of a .NET process, and writes the ids of its threads if it has another PID
    /// namespace.
    pub(super) fn dotnet(
        &self,
        pid: u32,
        mut trace: &File,
        threads: &BTreeMap<u32, u32>,
    ) -> Result {
        if !self.is_named() {
            return Ok(());
        }
        let copy = self.copy(&format!("dotnet-{pid}"), "nettrace", || {
            trace.seek(SeekFrom::Start(0))?;
            Ok(trace)
        })?;
        if threads.is_empty() {
            return Ok(());
        }
        let path = copy.with_extension(THREADS);
        let written = serde_json::to_vec(threads)
            .map_err(io::Error::from)
            .and_then(|text| private::write_new(&path, &text));
        written.map_err(|error| Failure::about(path.display(), error))
    }

    /// Copies a trace to a new file: of the second trace of a process, the name ends with its number. Returns
    /// the path.
    fn copy<R: Read>(
        &self,
        name: &str,
        extension: &str,
        open: impl FnOnce() -> io::Result<R>,
    ) -> Result<PathBuf> {
        let to = private::numbered(&self.dir, name, extension);
        let copied =
            open().and_then(|mut from| io::copy(&mut from, &mut private::create_new(&to)?));
        copied.map_err(|error| Failure::about(to.display(), error))?;
        Ok(to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::output_file::is_file;

    #[test]
    fn files_are_beside_the_one_behind_a_link() {
        let base = tempfile::tempdir().unwrap();
        let dir = fs::canonicalize(base.path()).unwrap();
        let (large, link) = (dir.join("large"), dir.join("out"));
        fs::create_dir(&large).unwrap();
        fs::write(large.join("file"), "").unwrap();
        std::os::unix::fs::symlink("large/file", &link).unwrap();
        assert_eq!(files_dir(&link), large);
        assert_eq!(files_dir(&dir.join("other")), dir);
    }

    #[test]
    fn a_full_disk_ends_only_files_without_a_name() {
        let full = || File::options().write(true).open("/dev/full").unwrap();
        let mut named = KeptFile { file: full(), failure: None };
        assert_eq!(named.write(b"x").unwrap_err().kind(), io::ErrorKind::StorageFull);

        let mut keep = Keep::beside(Path::new("out"));
        let (path, mut file) = keep.file(SCHEDULER).unwrap();
        file.write_all(b"records").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"records");
        assert!(keep.failure().is_none() && keep.path(SCHEDULER) == keep.path(SCHEDULER));
        file.file = full();
        file.write_all(b"more").unwrap();
        file.write_all(b"and more").unwrap();
        let failure = keep.failure().unwrap();
        assert!(failure.message().contains("No space left"), "{}", failure.message());

        // Those of samples, too.
        let dir = tempfile::tempdir().unwrap();
        let output = dir.path().join("out");
        let mut samples = KeptFile::of_samples(&output).unwrap();
        samples.write_all(b"samples").unwrap();
        assert!(samples.failure_of_samples(&output).is_none());
        assert_eq!(fs::read(samples.path()).unwrap(), b"samples");
        samples.file = full();
        samples.write_all(b"more").unwrap();
        let failure = samples.failure_of_samples(&output).unwrap();
        let expected = format!("{}: the samples cannot be kept", dir.path().display());
        assert!(failure.message().starts_with(&expected), "{}", failure.message());
        assert!(failure.message().contains("No space left"), "{}", failure.message());
        // A device has no directory for them.
        assert!(is_file(&output) && !is_file(Path::new("/dev/null")) && !is_file(Path::new("-")));
    }

    #[test]
    fn a_recording_that_cannot_begin_leaves_no_files() {
        let dir = tempfile::tempdir().unwrap();
        let new = dir.path().join("kept");
        for (kept, is_new) in [(new.as_path(), true), (dir.path(), false)] {
            let (mut keep, skeleton) = Keep::create(kept).unwrap();
            keep.scheduler().unwrap();
            keep.processes().unwrap();
            keep.quotas().unwrap();
            keep.describe(1, "x", None).unwrap();
            drop(keep);
            assert!(Keep::create(kept).is_err());
            skeleton.remove();
            assert_eq!(kept.exists(), !is_new);
        }
        Keep::create(dir.path()).map(drop).unwrap();
    }

    #[test]
    fn files_are_private_and_never_written_through_links() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let dir = tempfile::tempdir().unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let victim = dir.path().join("victim");
        fs::write(&victim, "x").unwrap();
        let kept = dir.path().join("a/kept");
        let (mut keep, _) = Keep::create(&kept).unwrap();
        assert_eq!(mode(&kept), private_dir::MODE);
        // As another user would make them in a directory of their own.
        for name in ["recording.json.part", "go-1.trace", "dotnet-1.nettrace", SCHEDULER] {
            symlink(&victim, kept.join(name)).unwrap();
        }
        assert!(keep.describe(1, "x", None).is_err());
        keep.go(1, &victim).unwrap();
        let threads = BTreeMap::from([(1, 9)]);
        keep.dotnet(1, &File::open(&victim).unwrap(), &threads).unwrap();
        // What is there is left: it can also be the first trace of the process.
        for name in ["go-1-2.trace", "dotnet-1-2.nettrace", "dotnet-1-2.threads"] {
            assert_eq!(mode(&kept.join(name)), private::FILE, "{name}");
        }
        assert!(keep.scheduler().is_err());
        assert_eq!(fs::read(&victim).unwrap(), b"x");
        fs::remove_dir_all(&kept).unwrap();

        let (keep, _) = Keep::create(&kept).unwrap();
        keep.describe(1, "x", None).unwrap();
        keep.describe(1, "x", Some(2)).unwrap();
        keep.go(1, &victim).unwrap();
        for name in [RECORDING, "go-1.trace"] {
            assert_eq!(mode(&kept.join(name)), private::FILE);
        }
        let before = mode(dir.path());
        assert!(Keep::create(&kept).is_err());
        assert!(Keep::create(dir.path()).is_err());
        assert_eq!(mode(dir.path()), before);
    }
}
