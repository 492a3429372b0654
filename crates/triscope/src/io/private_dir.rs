//! Directories of recordings, which belong to their user alone: another one could read what is recorded,
//! or direct the files of root elsewhere.

use super::place::Place;
use crate::failure::{Failure, Result};
use rustix::fs::OFlags;
use std::fs::{self, DirBuilder, File, Metadata, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};

/// Only the user of the recording: traces say much about a machine.
pub(crate) const MODE: u32 = 0o700;

/// Write permissions of the group and of others.
const WRITE: u32 = 0o022;

/// Neither a link is followed, nor the other end of a pipe waited for.
const NO_FOLLOW: i32 = OFlags::NOFOLLOW.union(OFlags::NONBLOCK).bits() as i32;

/// Creates a directory, or makes the one that is there private.
pub(crate) fn create(path: impl Into<Place>) -> Result {
    let path = path.into();
    match DirBuilder::new().mode(MODE).create(&path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            Err(Failure::about(path.display(), error))
        }
        _ => secure(path).map(drop),
    }
}

/// Makes a directory private, and opens it. One that others control is refused.
pub(crate) fn secure(path: impl Into<Place>) -> Result<Place> {
    let path = path.into();
    let (dir, mode) = controlled(&path, &take_over())?;
    if mode != MODE {
        dir.set_permissions(Permissions::from_mode(MODE))
            .map_err(|error| Failure::about(path.display(), error))?;
    }
    Ok(Place::of_opened(path.shown(), dir))
}

/// Opens a directory that is there, and changes nothing. One that others control is refused.
pub(crate) fn open_dir(path: impl Into<Place>) -> Result<Place> {
    let path = path.into();
    let (dir, _) = controlled(&path, "run this as its user")?;
    Ok(Place::of_opened(path.shown(), dir))
}

/// Opens a directory that only this user and root can change. Returns it with its mode. `remedy` is that for a
/// directory of another user.
fn controlled(path: &Place, remedy: &str) -> Result<(File, u32)> {
    let fail = |error: io::Error| Failure::about(path.display(), error);
    let refuse = |why: &str| Failure::about(path.display(), why);
    if fs::symlink_metadata(path).map_err(fail)?.is_symlink() {
        return Err(refuse("is a symbolic link: use the directory itself"));
    }
    let dir = OpenOptions::new().read(true).custom_flags(NO_FOLLOW).open(path).map_err(fail)?;
    let metadata = dir.metadata().map_err(fail)?;
    if !metadata.is_dir() {
        return Err(refuse("is no directory"));
    }
    is_own(path, &metadata, remedy)?;
    let mode = metadata.mode() & 0o777;
    let has_entries = || fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_some());
    if mode & WRITE != 0 && has_entries() {
        let why = format!(
            "others can write to it (mode {mode:04o}), and may have: use a new directory, or check \
             its files and use chmod 700"
        );
        return Err(refuse(&why));
    }
    Ok((dir, mode))
}

/// Opens a file of the directory, never through a symbolic link. One of another user is refused.
pub(crate) fn open(path: impl Into<Place>, options: &mut OpenOptions) -> Result<File> {
    let path = path.into();
    let fail = |error: io::Error| Failure::about(path.display(), error);
    let file = options.custom_flags(NO_FOLLOW).open(&path).map_err(fail)?;
    let metadata = file.metadata().map_err(fail)?;
    if !metadata.is_file() {
        return Err(Failure::about(path.display(), "is no file"));
    }
    is_own(&path, &metadata, &take_over())?;
    Ok(file)
}

/// Refuses what belongs to another user than this one and root.
fn is_own(path: &Place, metadata: &Metadata, remedy: &str) -> Result {
    let (owner, own) = (metadata.uid(), own_user());
    if owner == own || owner == 0 {
        return Ok(());
    }
    let why = format!("belongs to user {owner}, and this is user {own}: {remedy}");
    Err(Failure::about(path.display(), why))
}

fn own_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// The remedy for a directory of another user that this program is to use for its own files.
fn take_over() -> String {
    format!("use another directory, or chown {}", own_user())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    /// A directory with this mode and a file in it.
    fn with_mode(mode: u32) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("file"), "").unwrap();
        fs::set_permissions(dir.path(), Permissions::from_mode(mode)).unwrap();
        dir
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o777
    }

    #[track_caller]
    fn is_refused(result: Result<impl Sized>, words: &str) {
        let Err(failure) = result else { panic!("it is accepted") };
        assert!(failure.message().contains(words), "{}", failure.message());
    }

    #[test]
    fn directories_that_others_can_read_become_private() {
        for before in [0o755, 0o711, 0o740] {
            let dir = with_mode(before);
            secure(dir.path()).unwrap();
            assert_eq!(mode(dir.path()), MODE);
        }
    }

    #[test]
    fn directories_that_are_only_opened_stay_as_they_are() {
        let dir = with_mode(0o755);
        open_dir(dir.path()).unwrap();
        assert_eq!(mode(dir.path()), 0o755);
    }

    #[test]
    fn directories_that_others_can_write_are_refused() {
        for before in [0o777, 0o770, 0o722] {
            let dir = with_mode(before);
            for refused in [secure(dir.path()), open_dir(dir.path())] {
                is_refused(refused, "use a new directory, or check its files and use chmod 700");
            }
            assert_eq!(mode(dir.path()), before);
            // Nobody has written to one that is empty.
            fs::remove_file(dir.path().join("file")).unwrap();
            secure(dir.path()).unwrap();
            assert_eq!(mode(dir.path()), MODE);
        }
    }

    #[test]
    fn symbolic_links_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (target, link) = (dir.path().join("target"), dir.path().join("link"));
        fs::create_dir(&target).unwrap();
        std::os::unix::fs::symlink(&target, &link).unwrap();
        is_refused(create(&link), "is a symbolic link: use the directory itself");
        is_refused(open_dir(&link), "is a symbolic link: use the directory itself");
        fs::write(target.join("file"), "").unwrap();
        let link = dir.path().join("file");
        std::os::unix::fs::symlink(target.join("file"), &link).unwrap();
        is_refused(open(&link, OpenOptions::new().read(true)), "symbolic link");
        is_refused(create(&target.join("file")), "is no directory");
        is_refused(open(&target, OpenOptions::new().read(true)), "is no file");
    }

    #[test]
    fn directories_of_others_are_refused() {
        if !rustix::process::geteuid().is_root() {
            // Those of root are accepted, as root can do everything.
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        for path in [&file, dir.path()] {
            std::os::unix::fs::chown(path, Some(65534), None).unwrap();
        }
        is_refused(secure(dir.path()), "belongs to user 65534, and this is user 0: use another");
        is_refused(open_dir(dir.path()), "belongs to user 65534, and this is user 0: run this as");
        is_refused(open(&file, OpenOptions::new().read(true)), "belongs to user 65534");
    }
}
