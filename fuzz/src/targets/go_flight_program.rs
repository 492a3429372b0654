//! Executable files of Go programs: any bytes.

use go_flight::Program;
use std::io::Cursor;

pub fn target(data: &[u8]) {
    if let Ok(program) = Program::parse(Cursor::new(data)) {
        assert!(!program.go_version().is_empty());
    }
}
