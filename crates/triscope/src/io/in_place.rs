//! Output files that are written in their place: they keep their content until there is something to write.

use std::fs::File;
use std::io;
use std::path::Path;

/// Opens a file, which keeps its content for now. The second result is whether it did not exist before.
pub(crate) fn open(path: &Path) -> io::Result<(File, bool)> {
    let open = |is_new: bool| {
        let mut options = File::options();
        options.write(true).create_new(is_new).create(true).truncate(false).open(path)
    };
    match open(true) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok((open(false)?, false)),
        file => Ok((file?, true)),
    }
}

/// Removes the content of a file. A terminal and a pipe have none.
pub(crate) fn empty(file: &File) -> io::Result<()> {
    if file.metadata().is_ok_and(|metadata| metadata.is_file()) { file.set_len(0) } else { Ok(()) }
}
