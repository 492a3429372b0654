//! The memory of a Go program: any bytes, at every address.

use crate::go_program::Elf;
use go_flight::{Limits, Memory, Program};
use std::io::{self, Cursor};

/// A running flight recorder, then the same bytes again and again, so that every pointer points to
/// something.
struct Repeated<'a> {
    recorder: Vec<u8>,
    bytes: &'a [u8],
    reads: u32,
}

impl Memory for Repeated<'_> {
    fn read_at(&mut self, address: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.reads += 1;
        for (to, offset) in buffer.iter_mut().zip(0..) {
            let at = address.wrapping_add(offset);
            let fixed = usize::try_from(at).ok().and_then(|at| self.recorder.get(at));
            *to = *fixed.unwrap_or(&self.bytes[(at % self.bytes.len() as u64) as usize]);
        }
        Ok(())
    }
}

/// The variable, a `recorder` and a `FlightRecorder` whose ring is behind them.
fn recorder(generations: u8) -> Vec<u8> {
    const END: usize = 512;
    let mut bytes = vec![0; END];
    let mut word = |at: usize, word: u64| bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
    for (at, value) in [(8, 1), (16, 1), (48, 64), (64, 128)] {
        word(at, value);
    }
    word(128 + 88, END as u64);
    word(128 + 96, generations.into());
    word(128 + 136, 1);
    bytes[128 + 16..][..16].copy_from_slice(b"go 1.26 trace\0\0\0");
    bytes
}

pub fn target(data: &[u8]) {
    let Some((&[first, generations], bytes)) = data.split_first_chunk() else { return };
    if bytes.is_empty() {
        return;
    }
    let elf = Elf {
        version: format!("go1.{}", 25 + first % 3),
        tracing: Some(0),
        is_stripped: first & 4 != 0,
        bss: (0, 512 + bytes.len() as u64),
        ..Elf::default()
    };
    let program =
        Program::parse(Cursor::new(elf.bytes())).expect("the file is one of a Go program");
    let limits = Limits { max_buffer: 1 << 18, ..Limits::default() };
    let recorder = if first & 8 == 0 { recorder(generations) } else { Vec::new() };
    let mut memory = Repeated { recorder, bytes, reads: 0 };
    if let Ok(snapshot) = program.snapshot(&mut memory, 0, limits) {
        assert!(snapshot.size() <= limits.max_buffer as u64 + 16);
        let mut trace = Vec::new();
        snapshot.write_to(&mut trace).expect("a Vec takes everything");
        assert_eq!(trace.len() as u64, snapshot.size());
    }
    // The memory does not change: there is one attempt, and every read is of at least a byte.
    assert!(memory.reads < 1 << 20);
}
