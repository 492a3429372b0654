//! Error numbers of system calls.

pub use rustix::io::Errno;

/// The number in an error of the standard library.
pub(crate) fn of(error: &std::io::Error) -> Option<Errno> {
    Errno::from_io_error(error)
}
