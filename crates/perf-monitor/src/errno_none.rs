//! Error numbers where no system call of Linux is made.

use std::fmt;

/// The number of an error of Linux: there are none on this system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(clippy::exhaustive_enums, reason = "it has no values")]
pub enum Errno {}

impl fmt::Display for Errno {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {}
    }
}

impl std::error::Error for Errno {}

/// The number in an error of the standard library.
pub(crate) const fn of(_: &std::io::Error) -> Option<Errno> {
    None
}
