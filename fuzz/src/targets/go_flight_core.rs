//! Core files: any bytes.

use crate::go_program::Elf;
use go_flight::{CoreFile, Limits, Program};
use std::io::Cursor;

pub fn target(data: &[u8]) {
    let Ok(mut core) = CoreFile::parse(Cursor::new(data)) else { return };
    let elf = Elf { is_stripped: data.len() % 2 == 0, ..Elf::default() };
    let program =
        Program::parse(Cursor::new(elf.bytes())).expect("the file is one of a Go program");
    let limits = Limits { max_buffer: 1 << 18, ..Limits::default() };
    if let Ok(snapshot) = core.snapshot(&program, limits) {
        assert!(snapshot.size() <= limits.max_buffer as u64 + 16);
    }
}
