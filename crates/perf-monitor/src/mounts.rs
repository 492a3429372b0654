//! The mounts of this process: `/proc/self/mountinfo`.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use trace_common::unescape_octal;

/// A line of `mountinfo`.
#[derive(Debug)]
pub(crate) struct Mount<'a> {
    /// The directory of the file system that is mounted.
    pub(crate) root: PathBuf,
    pub(crate) point: PathBuf,
    /// The type of the file system.
    pub(crate) kind: &'a [u8],
    /// Options of the file system: the controllers of version 1.
    options: &'a [u8],
}

impl<'a> Mount<'a> {
    /// All mounts in the text of a `mountinfo` file.
    pub(crate) fn all(text: &'a [u8]) -> impl Iterator<Item = Self> {
        text.split(|b| *b == b'\n').filter_map(Self::parse)
    }

    fn parse(line: &'a [u8]) -> Option<Self> {
        // id parent major:minor root point options [optional…] - type source options
        let mut words = line.split(|b| *b == b' ');
        let (root, point) = (words.nth(3)?, words.next()?);
        words.find(|word| *word == b"-")?;
        let (kind, options) = (words.next()?, words.nth(1)?);
        Some(Self { root: unescape(root), point: unescape(point), kind, options })
    }

    /// Whether it is a hierarchy of cgroups: that of version 2, or the one of version 1 with a controller.
    pub(crate) fn has(&self, controller: &str, is_unified: bool) -> bool {
        if is_unified {
            return self.kind == b"cgroup2";
        }
        let mut options = self.options.split(|b| *b == b',');
        self.kind == b"cgroup" && options.any(|option| option == controller.as_bytes())
    }
}

/// A path of `mountinfo`: spaces, tabs, newlines and backslashes are octal escapes.
fn unescape(text: &[u8]) -> PathBuf {
    PathBuf::from(OsString::from_vec(unescape_octal(text, |_| true).into_owned()))
}
