//! Files that are still being written: WASI has no notifications of changes.

use crate::failure::{Failure, Result};
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// There is none.
pub(crate) enum Follow {}

impl Follow {
    pub(crate) fn open(path: &Path) -> Result<Self> {
        Err(Failure::about(path.display(), "--follow is not supported on this platform"))
    }

    pub(crate) fn stopped(&self) -> Arc<AtomicBool> {
        match *self {}
    }
}

impl Read for Follow {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        match *self {}
    }
}
