//! Files of processes: opened without side effects, and as the process sees them.

use crate::error::{PerfMapProblem, Result, Unresolved};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use trace_common::{FindError, FoundFile, innermost_pid, start_ticks};

/// A file is older than a process if it was changed longer than this before the start: clocks are adjusted.
const ADJUSTED: Duration = Duration::from_secs(1);

/// A regular file that is not open for reading.
#[derive(Debug)]
pub(crate) struct Found(FoundFile);

impl Found {
    /// Whether the file has this inode.
    pub(crate) fn is_inode(&self, inode: crate::Inode) -> bool {
        is_inode(self.0.file(), inode)
    }

    /// The time of its last change, as of [`changed`].
    pub(crate) fn changed(&self) -> Option<SystemTime> {
        changed(self.0.file())
    }

    /// Opens the file. Only procfs can do that without looking the path up again: where it is not
    /// mounted, no file is read.
    pub(crate) fn open(&self) -> Result<File> {
        self.0.open().map_err(reason)
    }
}

/// Finds a regular file.
pub(crate) fn find(path: &Path) -> Result<Found> {
    found(FoundFile::find(path))
}

/// Opens a regular file.
pub(crate) fn open(path: &Path) -> Result<File> {
    find(path)?.open()
}

/// Finds a regular file as a process sees it: in its root directory, with symbolic links resolved
/// there. Links of `/proc` that lead out of it are refused.
pub(crate) fn find_in_process(process: u32, path: &Path) -> Result<Found> {
    found(FoundFile::find_in(FoundFile::root_of(process)?, path))
}

fn found(found: std::result::Result<FoundFile, FindError>) -> Result<Found> {
    found.map(Found).map_err(|error| match error {
        FindError::Io(error) => reason(error),
        _ => Unresolved::NotAFile,
    })
}

/// Reads a file of at most `max` bytes that a process is said to have written, as it sees the file. Of
/// a process that has ended, the file of this machine is read, if this user wrote it. `path` makes the
/// path from the process id by which the process names its files; `what` is the file in errors.
pub(crate) fn read_written_by(
    process: u32,
    path: impl Fn(u32) -> PathBuf,
    max: u64,
    what: &'static str,
) -> Result<Vec<u8>> {
    let file = open_written(process, path)?;
    let size = file.metadata()?.len();
    if size > max {
        return Err(Unresolved::TooLarge { what, size });
    }
    let mut bytes = Vec::new();
    // The process may still write.
    file.take(max).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The size of a file that a process is said to have written: see [`read_written_by`].
pub(crate) fn size_written_by(process: u32, path: impl Fn(u32) -> PathBuf) -> Option<u64> {
    Some(open_written(process, path).ok()?.metadata().ok()?.len())
}

fn open_written(process: u32, path: impl Fn(u32) -> PathBuf) -> Result<File> {
    match inner_pid(process) {
        Some(inner) => open_written_by(process, &path(inner)),
        None => open_written_by_user(rustix::process::geteuid().as_raw(), &path(process)),
    }
}

/// Opens a file that a process is said to have written, at a path below its root directory, where
/// other users could have put it first, and an earlier process with its number could have left it.
fn open_written_by(process: u32, path: &Path) -> Result<File> {
    let user = std::fs::metadata(format!("/proc/{process}"))?.uid();
    let file =
        checked(found(FoundFile::find_no_link_in(FoundFile::root_of(process)?, path)), user)?;
    let is_older = changed(&file).zip(started(process)).is_some_and(|(changed, started)| {
        started.duration_since(changed).is_ok_and(|age| age > ADJUSTED)
    });
    // Where the wall clock was set since, its times are not in the order of the events.
    if is_older && !has_open(process, &file, path) {
        return Err(Unresolved::PerfMapRefused(PerfMapProblem::EarlierProcess));
    }
    Ok(file)
}

/// The wall-clock time at which a process started.
fn started(process: u32) -> Option<SystemTime> {
    /// Of the kernel's ticks (`USER_HZ`), the same on all architectures that this runs on.
    const MILLIS_PER_TICK: u64 = 10;
    let ticks = start_ticks(&std::fs::read(format!("/proc/{process}/stat")).ok()?)?;
    let start = Duration::from_millis(ticks.checked_mul(MILLIS_PER_TICK)?);
    let now = clock_gettime(ClockId::Boottime);
    let now = Duration::new(u64::try_from(now.tv_sec).ok()?, u32::try_from(now.tv_nsec).ok()?);
    SystemTime::now().checked_sub(now.checked_sub(start)?)
}

/// Whether a process has the file at a path open, other than as this one.
fn has_open(process: u32, file: &File, path: &Path) -> bool {
    let inode = |metadata: io::Result<std::fs::Metadata>| {
        metadata.ok().map(|metadata| (metadata.dev(), metadata.ino()))
    };
    let own = inode(file.metadata());
    let this = (process == std::process::id()).then(|| file.as_raw_fd().to_string());
    let open = std::fs::read_dir(format!("/proc/{process}/fd"));
    open.into_iter().flatten().flatten().any(|link| {
        if this.as_deref().is_some_and(|this| link.file_name() == this) {
            return false;
        }
        let link = link.path();
        // Others can be those of a server that does not answer.
        let has_name =
            std::fs::read_link(&link).is_ok_and(|target| target.file_name() == path.file_name());
        has_name && inode(std::fs::metadata(&link)) == own
    })
}

/// Opens a file that a process of this user, now ended, is said to have written.
fn open_written_by_user(user: u32, path: &Path) -> Result<File> {
    checked(found(FoundFile::find_no_link(path)), user)
}

fn reason(error: io::Error) -> Unresolved {
    match Errno::from_io_error(&error) {
        Some(Errno::LOOP) => Unresolved::NotAFile,
        _ => Unresolved::File(error.kind()),
    }
}

fn checked(found: Result<Found>, user: u32) -> Result<File> {
    let found = found.map_err(|error| match error {
        Unresolved::NotAFile => Unresolved::PerfMapRefused(PerfMapProblem::NotRegular),
        error => error,
    })?;
    let metadata = found.0.file().metadata()?;
    let owner = metadata.uid();
    if owner != user && owner != 0 {
        return Err(Unresolved::PerfMapRefused(PerfMapProblem::Owner { owner, user }));
    }
    if metadata.mode() & 0o002 != 0 {
        return Err(Unresolved::PerfMapRefused(PerfMapProblem::Writable));
    }
    found.open()
}

/// The process id in the innermost namespace of the process, by which it names its files.
pub(crate) fn inner_pid(process: u32) -> Option<u32> {
    innermost_pid(&std::fs::read(format!("/proc/{process}/status")).ok()?)
}

/// Whether a file has this inode.
pub(crate) fn is_inode(file: &File, inode: crate::Inode) -> bool {
    file.metadata().is_ok_and(|metadata| {
        let device = metadata.dev();
        let is_device =
            rustix::fs::major(device) == inode.major && rustix::fs::minor(device) == inode.minor;
        metadata.ino() == inode.inode && (is_device || has_other_devices(file))
    })
}

/// The time of the last change of a file (`st_ctime`): of its contents, its name or its mode. Unlike the
/// time of modification, programs cannot set it.
pub(crate) fn changed(file: &File) -> Option<SystemTime> {
    let metadata = file.metadata().ok()?;
    let seconds = Duration::from_secs(u64::try_from(metadata.ctime()).ok()?);
    let nanos = Duration::from_nanos(u64::try_from(metadata.ctime_nsec()).ok()?);
    SystemTime::UNIX_EPOCH.checked_add(seconds + nanos)
}

/// Whether a file with this time of its last change had the same contents at a time.
///
/// The kernel gives files the time of its last tick: a change after the time counts as one before it if
/// both are in one tick, at most 10 ms. The kernel refuses to write to a running program
/// (`ETXTBSY`, `execve(2)`), and a program that is run as soon as it is linked must have its names.
pub(crate) fn is_unchanged_since(changed: SystemTime, at: SystemTime) -> bool {
    changed <= at
}

/// Whether `fstat(2)` gives other devices than mappings have: of a subvolume, or of what is below an
/// overlay.
fn has_other_devices(file: &File) -> bool {
    const BTRFS: u32 = 0x9123_683e;
    const OVERLAYFS: u32 = 0x794c_7630;
    // The type of the field differs between architectures; the numbers have 32 bits.
    rustix::fs::fstatfs(file).is_ok_and(|fs| matches!(fs.f_type as u32, BTRFS | OVERLAYFS))
}

/// The files with a path: as a process sees it, then as this process does.
pub(crate) fn candidates(
    process: Option<u32>,
    path: &Path,
) -> impl Iterator<Item = Result<File>> + use<'_> {
    let ways = process.map(Some).into_iter().chain([None]);
    ways.map(move |process| match process {
        Some(process) => find_in_process(process, path)?.open(),
        None => open(path),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixListener;

    fn id() -> u32 {
        std::process::id()
    }

    #[test]
    fn special_files_are_not_opened() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        // To open a socket is an error of its own (`ENXIO`).
        let _listener = UnixListener::bind(&path).unwrap();
        assert_eq!(open(&path).unwrap_err(), Unresolved::NotAFile);
        for file in candidates(Some(id()), &path) {
            assert_eq!(file.unwrap_err(), Unresolved::NotAFile);
        }
        let refused = Unresolved::PerfMapRefused(PerfMapProblem::NotRegular);
        let user = rustix::process::geteuid().as_raw();
        assert_eq!(open_written_by(id(), &path).unwrap_err(), refused);
        assert_eq!(open_written_by_user(user, &path).unwrap_err(), refused);
        let link = dir.path().join("link");
        std::os::unix::fs::symlink("file", &link).unwrap();
        std::fs::write(dir.path().join("file"), "").unwrap();
        assert!(open(&link).is_ok());
        assert_eq!(open_written_by(id(), &link).unwrap_err(), refused);
        assert_eq!(open_written_by_user(user, &link).unwrap_err(), refused);
    }

    /// A file of the system, in place of what a process has left.
    #[test]
    fn files_that_are_older_than_the_process_are_not_its_own() {
        let path = Path::new("/etc/passwd");
        let refused = Unresolved::PerfMapRefused(PerfMapProblem::EarlierProcess);
        assert_eq!(open_written_by(id(), path).unwrap_err(), refused);
        let file = File::open(path).unwrap();
        assert!(open_written_by(id(), path).is_ok(), "it is open");
        drop(file);
        let user = rustix::process::geteuid().as_raw();
        assert!(open_written_by_user(user, path).is_ok(), "the process has ended");
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, "").unwrap();
        assert!(open_written_by(id(), &path).is_ok());
    }

    #[test]
    fn found_files_are_the_same_when_they_are_opened() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, "first").unwrap();
        let found = find(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "second").unwrap();
        let mut text = String::new();
        found.open().unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "first");
    }

    #[test]
    fn a_file_that_cannot_be_read_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, "").unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o000)).unwrap();
        let found = find_in_process(id(), &path).unwrap();
        assert!(found.changed().is_some());
        let metadata = found.0.file().metadata().unwrap();
        let device = metadata.dev();
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        let inode = crate::Inode { major, minor, inode: metadata.ino() };
        assert!(found.is_inode(inode));
        if !rustix::process::geteuid().is_root() {
            let denied = Unresolved::File(io::ErrorKind::PermissionDenied);
            assert_eq!(found.open().unwrap_err(), denied);
        }
    }
}
