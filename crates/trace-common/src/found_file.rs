//! Regular files that are opened without effects on others.

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

/// Without opening the file: with `O_PATH`, files are found.
const FIND: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);

/// A file that is locked by a lease does not block, and a terminal does not become the controlling one.
const READ: OFlags =
    OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::NOCTTY).union(OFlags::CLOEXEC);

/// A regular file that is found, and not open for reading (Linux).
///
/// Other users can choose a path, or what is there, and opening a device can have effects: a watchdog starts, a tape
/// rewinds; opening a pipe waits. A file is found first, and only opened if it is a regular one.
///
/// ```
/// use std::io::Read;
/// use std::path::Path;
/// use trace_common::{FindError, FoundFile};
///
/// let found = FoundFile::find(Path::new("/dev/null"));
/// assert!(matches!(found, Err(FindError::NotRegular)));
/// let found = FoundFile::find(&std::env::current_exe()?)?;
/// let mut magic = [0; 4];
/// found.open()?.read_exact(&mut magic)?;
/// assert_eq!(&magic, b"\x7fELF");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct FoundFile(File);

/// Why a regular file is not found.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FindError {
    /// It is a directory, a device, a pipe, a socket or a symbolic link.
    #[error("not a regular file")]
    NotRegular,
    /// It cannot be looked up.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl From<FindError> for io::Error {
    fn from(error: FindError) -> Self {
        match error {
            FindError::NotRegular => Self::other(error),
            FindError::Io(error) => error,
        }
    }
}

impl FoundFile {
    fn new(found: rustix::io::Result<OwnedFd>) -> Result<Self, FindError> {
        let file = File::from(found.map_err(io::Error::from)?);
        if file.metadata()?.is_file() { Ok(Self(file)) } else { Err(FindError::NotRegular) }
    }

    /// Finds a regular file.
    ///
    /// # Errors
    ///
    /// [`FindError`] if there is none.
    pub fn find(path: &Path) -> Result<Self, FindError> {
        Self::new(openat(CWD, path, FIND, Mode::empty()))
    }

    /// As [`find`](Self::find), but a path that ends with a symbolic link is no regular file.
    ///
    /// # Errors
    ///
    /// Those of [`find`](Self::find).
    pub fn find_no_link(path: &Path) -> Result<Self, FindError> {
        Self::new(openat(CWD, path, FIND | OFlags::NOFOLLOW, Mode::empty()))
    }

    /// The root directory of a process, for [`find_in`](Self::find_in).
    ///
    /// # Errors
    ///
    /// There is no such process, or this user may not look into it.
    pub fn root_of(process: u32) -> io::Result<OwnedFd> {
        let root = format!("/proc/{process}/root");
        Ok(openat(CWD, root, FIND | OFlags::DIRECTORY, Mode::empty())?)
    }

    /// Finds a regular file below a root directory, with symbolic links resolved there (Linux 5.6). Links of `/proc`
    /// that lead out of it are refused.
    ///
    /// # Errors
    ///
    /// Those of [`find`](Self::find).
    pub fn find_in(root: impl AsFd, path: &Path) -> Result<Self, FindError> {
        Self::find_by(root, path, OFlags::empty())
    }

    /// As [`find_in`](Self::find_in), but a path that ends with a symbolic link is no regular file.
    ///
    /// # Errors
    ///
    /// Those of [`find`](Self::find).
    pub fn find_no_link_in(root: impl AsFd, path: &Path) -> Result<Self, FindError> {
        Self::find_by(root, path, OFlags::NOFOLLOW)
    }

    fn find_by(root: impl AsFd, path: &Path, more: OFlags) -> Result<Self, FindError> {
        Self::new(open_in(root, path, FIND | more))
    }

    /// Opens a directory below a root directory for reading, as [`find_in`](Self::find_in) finds files.
    ///
    /// # Errors
    ///
    /// It is no directory, or cannot be opened.
    pub fn directory_in(root: impl AsFd, path: &Path) -> io::Result<OwnedFd> {
        Ok(open_in(root, path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC)?)
    }

    /// The file, for its metadata: it cannot be read.
    pub const fn file(&self) -> &File {
        &self.0
    }

    /// Opens the file for reading, whatever has its path since.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or, of kind [`Unsupported`](io::ErrorKind::Unsupported), procfs is not mounted: only
    /// that can open the file without looking the path up again.
    pub fn open(&self) -> io::Result<File> {
        // Not `/proc/self`: it has no files if the main thread has ended.
        let path = format!("/proc/thread-self/fd/{}", self.0.as_raw_fd());
        match openat(CWD, path, READ, Mode::empty()) {
            Ok(file) => Ok(file.into()),
            Err(Errno::NOENT) if !Path::new("/proc/thread-self/fd").exists() => {
                Err(io::ErrorKind::Unsupported.into())
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// Opens a path below a root directory, with symbolic links resolved there.
fn open_in(root: impl AsFd, path: &Path, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let inside = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    again(|| openat2(&root, path, flags, Mode::empty(), inside))
}

/// Looks a path up again if a file was renamed meanwhile, anywhere: the kernel does not follow `..` below a
/// root then (`EAGAIN` of openat2(2)).
fn again<T>(mut look_up: impl FnMut() -> rustix::io::Result<T>) -> rustix::io::Result<T> {
    const ATTEMPTS: u32 = 32;
    let mut found = look_up();
    for _ in 1..ATTEMPTS {
        match found {
            Err(Errno::AGAIN) => found = look_up(),
            _ => break,
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::io::Read;
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;
    use std::path::PathBuf;

    /// A directory that is removed at the end.
    struct Dir(PathBuf);

    impl Dir {
        fn new(name: &str) -> Self {
            let path =
                std::env::temp_dir().join(format!("trace-common-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&path); // of an earlier process with this id
            fs::create_dir(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Dir {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0); // a test that failed has more to report
        }
    }

    #[test]
    fn special_files_are_not_found() {
        let dir = Dir::new("special");
        let (socket, link) = (dir.0.join("socket"), dir.0.join("link"));
        // To open a socket is an error of its own (`ENXIO`).
        let _listener = UnixListener::bind(&socket).unwrap();
        fs::write(dir.0.join("file"), "text").unwrap();
        symlink("file", &link).unwrap();
        let root = FoundFile::root_of(std::process::id()).unwrap();
        for found in [FoundFile::find(&socket), FoundFile::find_in(&root, &socket)] {
            assert!(matches!(found, Err(FindError::NotRegular)), "{found:?}");
        }
        for found in [FoundFile::find(&link), FoundFile::find_in(&root, &link)] {
            let mut text = String::new();
            found.unwrap().open().unwrap().read_to_string(&mut text).unwrap();
            assert_eq!(text, "text");
        }
        for found in [FoundFile::find_no_link(&link), FoundFile::find_no_link_in(&root, &link)] {
            assert!(matches!(found, Err(FindError::NotRegular)), "{found:?}");
        }
        let error = io::Error::from(FoundFile::find(&dir.0.join("missing")).unwrap_err());
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn directories_are_opened_below_a_root() {
        let dir = Dir::new("root");
        fs::create_dir(dir.0.join("tmp")).unwrap();
        fs::write(dir.0.join("tmp/file"), "text").unwrap();
        // Outside of this root, there are other directories with these paths.
        symlink("/tmp", dir.0.join("link")).unwrap();
        let root = File::open(&dir.0).unwrap();
        for path in ["/tmp", "/link", "/../link/../tmp"] {
            let opened = FoundFile::directory_in(&root, Path::new(path)).unwrap();
            FoundFile::find_in(opened, Path::new("file")).unwrap();
        }
        let of_file = FoundFile::directory_in(&root, Path::new("tmp/file")).unwrap_err();
        assert_eq!(of_file.raw_os_error(), Some(Errno::NOTDIR.raw_os_error()));
    }

    #[test]
    fn a_path_is_looked_up_again_while_files_are_renamed() {
        let mut count = 0;
        let found = again(|| {
            count += 1;
            if count < 5 { Err(Errno::AGAIN) } else { Ok(count) }
        });
        assert_eq!(found, Ok(5));
        assert_eq!(again(|| Err::<(), _>(Errno::AGAIN)), Err(Errno::AGAIN));
        assert_eq!(again(|| Err::<(), _>(Errno::NOENT)), Err(Errno::NOENT));
    }

    #[test]
    fn the_file_that_was_found_is_opened() {
        let dir = Dir::new("found");
        let path = dir.0.join("file");
        fs::write(&path, "first").unwrap();
        let found = FoundFile::find(&path).unwrap();
        fs::remove_file(&path).unwrap();
        fs::write(&path, "second").unwrap();
        let mut text = String::new();
        found.open().unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "first");
    }
}
