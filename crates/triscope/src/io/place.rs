//! Paths that are reached also where the way to them is closed later.

use super::unnamed::descriptor;
use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A path, and its name in messages.
///
/// Below a directory that was opened, the path does not have that directory's parents: a program that has dropped its
/// capabilities may not enter all of them, and their owner can put another directory in its place.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    path: PathBuf,
    shown: PathBuf,
    /// The directory that the path begins with: it stays open as long.
    _opened: Option<Arc<File>>,
}

impl Place {
    /// A directory that is open.
    pub(crate) fn of_opened(shown: &Path, dir: File) -> Self {
        Self { path: descriptor(&dir), shown: shown.to_owned(), _opened: Some(Arc::new(dir)) }
    }

    /// Where the file is, for the system.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Where the user has it.
    pub(crate) fn shown(&self) -> &Path {
        &self.shown
    }

    /// Its name in messages.
    pub(crate) fn display(&self) -> impl fmt::Display + '_ {
        self.shown.display()
    }

    pub(crate) fn join(&self, name: impl AsRef<Path>) -> Self {
        self.change(|path| path.push(name.as_ref()))
    }

    /// The same path with more at the end of its last name.
    pub(crate) fn with_ending(&self, ending: &str) -> Self {
        self.change(|path| path.as_mut_os_string().push(ending))
    }

    fn change(&self, change: impl Fn(&mut PathBuf)) -> Self {
        let mut this = self.clone();
        change(&mut this.path);
        change(&mut this.shown);
        this
    }
}

impl From<&Path> for Place {
    fn from(path: &Path) -> Self {
        Self { path: path.to_owned(), shown: path.to_owned(), _opened: None }
    }
}

impl From<&PathBuf> for Place {
    fn from(path: &PathBuf) -> Self {
        path.as_path().into()
    }
}

impl From<&Self> for Place {
    fn from(place: &Self) -> Self {
        place.clone()
    }
}

impl AsRef<Path> for Place {
    fn as_ref(&self) -> &Path {
        &self.path
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// It is reached by the directory alone, whatever its name becomes.
    #[test]
    fn a_place_below_a_directory_that_is_open_does_not_need_its_name() {
        let base = tempfile::tempdir().unwrap();
        let (dir, elsewhere) = (base.path().join("a/dir"), base.path().join("elsewhere"));
        fs::create_dir_all(&dir).unwrap();
        let place = Place::of_opened(&dir, File::open(&dir).unwrap()).join("b").with_ending(".c");
        fs::rename(base.path().join("a"), &elsewhere).unwrap();
        fs::write(&place, "x").unwrap();
        assert_eq!(fs::read(elsewhere.join("dir/b.c")).unwrap(), b"x");
        assert_eq!(
            (place.shown(), place.display().to_string()),
            (&*dir.join("b.c"), dir.join("b.c").display().to_string())
        );
    }
}
