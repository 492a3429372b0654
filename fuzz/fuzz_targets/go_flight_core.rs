//! Core files: any bytes.

#![no_main]

#[path = "../../crates/go-flight/tests/common/mod.rs"]
mod common;

use common::Elf;
use go_flight::{CoreFile, Limits, Program};
use libfuzzer_sys::fuzz_target;
use std::io::Cursor;

fuzz_target!(|data: &[u8]| {
    let Ok(mut core) = CoreFile::parse(Cursor::new(data)) else { return };
    let elf = Elf { is_stripped: data.len() % 2 == 0, ..Elf::default() };
    let program =
        Program::parse(Cursor::new(elf.bytes())).expect("the file is one of a Go program");
    let limits = Limits { max_buffer: 1 << 18, ..Limits::default() };
    if let Ok(snapshot) = core.snapshot(&program, limits) {
        assert!(snapshot.size() <= limits.max_buffer as u64 + 16);
    }
});
