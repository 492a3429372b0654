//! Executable files of Go programs: any bytes.

#![no_main]

use go_flight::Program;
use libfuzzer_sys::fuzz_target;
use std::io::Cursor;

fuzz_target!(|data: &[u8]| {
    if let Ok(program) = Program::parse(Cursor::new(data)) {
        assert!(!program.go_version().is_empty());
    }
});
