//! Content of an input in a temporary file, to be read again or anywhere.

use super::input::Input;
use crate::failure::{Failure, Result};
use std::fs::File;
use std::io::{self, Seek};

/// The content of an input in a file without a name, from its start.
pub(crate) fn spool(mut input: Input) -> Result<File> {
    let written = tempfile::tempfile().and_then(|mut file| {
        io::copy(&mut input, &mut file)?;
        file.rewind()?;
        Ok(file)
    });
    written.map_err(|error| Failure::about("a temporary file", error))
}
