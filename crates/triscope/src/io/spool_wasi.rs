//! The same in the web page, whose host keeps written files outside the memory of the program.

use super::input::Input;
use crate::failure::Result;
use std::fs::{self, File};
use std::io::{self, Read};

/// Not the name of a dropped file: the page renames those in this directory.
const PATH: &str = "out/spool";

/// Maximum number of bytes: a small file can decompress to more than the browser has room for.
const MAX: u64 = 1 << 30;

/// The content of an input in a file without a name, from its start.
pub(crate) fn spool(mut input: Input) -> Result<File> {
    let mut copy = || {
        let mut file = File::create(PATH)?;
        let size = io::copy(&mut (&mut input).take(MAX + 1), &mut file)?;
        drop(file);
        let file = File::open(PATH)?;
        fs::remove_file(PATH)?;
        io::Result::Ok((file, size))
    };
    match copy() {
        Ok((file, size)) if size <= MAX => Ok(file),
        Ok(_) => Err(input.failure("decompresses to more than 1 GiB: decompress it first")),
        Err(error) => {
            // The page takes what is left in this directory for results. It may not be there.
            let _ = fs::remove_file(PATH);
            Err(input.failure(error))
        }
    }
}
