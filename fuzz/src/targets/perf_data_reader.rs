//! Recordings in both modes, compressed or not.

use perf_data::{Limits, Reader, SortedReader};
use std::io::Cursor;

pub fn target(data: &[u8]) {
    let limits = Limits { max_buffer: 1 << 22, ..Limits::default() };
    let Ok(mut reader) = Reader::with_limits(Cursor::new(data), limits) else { return };
    let mut count = 0u64;
    while let Ok(Some(entry)) = reader.next_record() {
        count += 1;
        let _ = (entry.event(), entry.time(), entry.decode());
    }
    // Sorting returns the same records but for the marks of rounds, up to the damage and what waited.
    let Ok(reader) = Reader::with_limits(Cursor::new(data), limits) else { panic!("opened before") };
    let mut sorted = SortedReader::new(reader);
    let mut returned = 0u64;
    let mut failed = false;
    loop {
        match sorted.next_record() {
            Ok(Some(_)) => returned += 1,
            Ok(None) => break,
            Err(_) => {
                assert!(!failed, "damage is an error once");
                failed = true;
            }
        }
    }
    assert!(returned <= count && sorted.late() <= returned);
}
