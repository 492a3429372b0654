//! Content of an input in a temporary file, to be read again or anywhere.

use super::input::Input;
use crate::failure::{Failure, Result};
use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Seek, Write};

/// The content of an input in a file without a name, from its start.
pub(crate) fn spool(input: Input) -> Result<File> {
    const CAPACITY: usize = 1 << 16;
    let fail = |error| Failure::about("a temporary file", error);
    let mut file = tempfile::tempfile().map_err(fail)?;
    let mut input = BufReader::with_capacity(CAPACITY, input);
    loop {
        let bytes = match input.fill_buf() {
            Ok([]) => break,
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(input.get_ref().failure(error)),
        };
        file.write_all(bytes).map_err(fail)?;
        let length = bytes.len();
        input.consume(length);
    }
    file.rewind().map_err(fail)?;
    Ok(file)
}
