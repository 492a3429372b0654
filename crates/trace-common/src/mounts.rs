//! The mounts of a process: `/proc/PID/mountinfo`.

use crate::unescape_octal;
use std::path::{Component, Path, PathBuf};

/// A mounted file system: a line of `/proc/PID/mountinfo`.
///
/// Source: `proc_pid_mountinfo(5)`.
///
/// ```
/// use std::path::Path;
/// use trace_common::Mount;
///
/// let mountinfo = b"31 25 0:9 / /mnt/a\\040b rw shared:13 - tracefs nodev rw\n";
/// let mount = Mount::all(mountinfo).next().unwrap();
/// assert_eq!((mount.kind, &*mount.point), (&b"tracefs"[..], Path::new("/mnt/a b")));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Mount<'a> {
    /// The directory of the file system that is mounted: `/`, or that of a part of it.
    pub root: PathBuf,
    /// Where it is mounted.
    pub point: PathBuf,
    /// The type of the file system.
    pub kind: &'a [u8],
    /// The options of the file system, separated by commas: of a hierarchy of cgroups of version 1 its
    /// controllers.
    pub options: &'a [u8],
}

/// A version of cgroups: `cgroups(7)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CgroupVersion {
    /// Several hierarchies, each with controllers of its own.
    One,
    /// One hierarchy with all controllers that version 1 does not have.
    Two,
}

impl<'a> Mount<'a> {
    /// All mounts in the text of a `mountinfo` file. Lines that are none are left out.
    pub fn all(mountinfo: &'a [u8]) -> impl Iterator<Item = Self> {
        mountinfo.split(|b| *b == b'\n').filter_map(Self::parse)
    }

    fn parse(line: &'a [u8]) -> Option<Self> {
        // id parent major:minor root point options [optional…] - type source options
        let mut words = line.split(|b| *b == b' ');
        let (root, point) = (words.nth(3)?, words.next()?);
        words.find(|word| *word == b"-")?;
        let (kind, options) = (words.next()?, words.nth(1)?);
        Some(Self { root: unescape(root), point: unescape(point), kind, options })
    }

    /// Whether it is a hierarchy of cgroups: that of version 2, or the one of version 1 with this controller
    /// (`cpu`, `memory`, `perf_event`…).
    pub fn is_hierarchy(&self, version: CgroupVersion, controller: &str) -> bool {
        match version {
            CgroupVersion::One => {
                let mut options = self.options.split(|b| *b == b',');
                self.kind == b"cgroup" && options.any(|option| option == controller.as_bytes())
            }
            CgroupVersion::Two => self.kind == b"cgroup2",
        }
    }
}

/// The directories of a cgroup and of its ancestors in a hierarchy, innermost first, by the text of a
/// `mountinfo` file. `path` is that of `/proc/PID/cgroup`: `cgroups(7)`.
///
/// A part of the hierarchy can be mounted, as in a container, and the same cgroup can be in several mounts: the
/// directories are those of the mount with the most ancestors. Empty if the cgroup is in no mount, or outside
/// of the namespace of cgroups.
///
/// ```
/// use std::path::Path;
/// use trace_common::{CgroupVersion, mounted_cgroup};
///
/// let mountinfo = b"30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
/// let directories = mounted_cgroup(mountinfo, CgroupVersion::Two, "memory", Path::new("/a"));
/// assert_eq!(directories, [Path::new("/sys/fs/cgroup/a"), Path::new("/sys/fs/cgroup")]);
/// ```
pub fn mounted_cgroup(
    mountinfo: &[u8],
    version: CgroupVersion,
    controller: &str,
    path: &Path,
) -> Vec<PathBuf> {
    // All roots that a path is below are ancestors of each other.
    let size = |root: &Path| root.as_os_str().len();
    let mounts = Mount::all(mountinfo).filter(|mount| mount.is_hierarchy(version, controller));
    let found = mounts.filter(|mount| path.starts_with(&mount.root));
    let Some(mount) = found.min_by_key(|mount| size(&mount.root)) else { return Vec::new() };
    let Ok(below) = path.strip_prefix(&mount.root) else { return Vec::new() };
    // `..` leads out of the namespace.
    if below.components().any(|part| !matches!(part, Component::Normal(_))) {
        return Vec::new();
    }
    let directory = |below: &Path| match below == Path::new("") {
        true => mount.point.clone(),
        false => mount.point.join(below),
    };
    below.ancestors().map(directory).collect()
}

/// A path of `mountinfo`: spaces, tabs, newlines and backslashes are octal escapes.
fn unescape(text: &[u8]) -> PathBuf {
    path_of(&unescape_octal(text, |_| true))
}

/// A path of Linux, of any bytes.
pub(crate) fn path_of(bytes: &[u8]) -> PathBuf {
    #[cfg(unix)]
    {
        use std::os::unix::ffi::OsStrExt;
        std::ffi::OsStr::from_bytes(bytes).into()
    }
    // There are none of these files.
    #[cfg(not(unix))]
    String::from_utf8_lossy(bytes).into_owned().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_mount_with_most_ancestors_has_a_cgroup() {
        let of = |mountinfo: &str, path: &str| {
            let version = CgroupVersion::Two;
            mounted_cgroup(mountinfo.as_bytes(), version, "memory", Path::new(path))
        };
        let paths = |paths: &[&str]| paths.iter().map(PathBuf::from).collect::<Vec<_>>();
        let part = "29 25 0:26 /pod /mnt/a rw - cgroup2 none rw\n";
        let all = "30 25 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        let whole = paths(&["/sys/fs/cgroup/pod/x", "/sys/fs/cgroup/pod", "/sys/fs/cgroup"]);
        for mounts in [format!("{part}{all}"), format!("{all}{part}"), all.to_owned()] {
            assert_eq!(of(&mounts, "/pod/x"), whole, "{mounts}");
            assert_eq!(of(&mounts, "/"), paths(&["/sys/fs/cgroup"]));
            assert_eq!(of(&mounts, "/../other"), paths(&[]), "outside of the namespace");
        }
        assert_eq!(of(part, "/pod/x"), paths(&["/mnt/a/x", "/mnt/a"]));
        assert_eq!(of(part, "/pods"), paths(&[]), "a neighbour");
    }

    proptest! {
        #[test]
        fn any_file_is_no_panic(mountinfo: Vec<u8>, path: String) {
            let _ = mounted_cgroup(&mountinfo, CgroupVersion::One, "cpu", Path::new(&path));
            let _ = Mount::all(&mountinfo).count();
        }
    }
}
