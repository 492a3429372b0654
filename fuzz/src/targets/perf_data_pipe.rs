//! Recordings from a pipe, which passes a few bytes at a time: their records are those of a file.

use perf_data::{Limits, Reader};
use std::io::{Cursor, Read};

/// Returns 1 to 7 bytes at a time.
struct Pipe<'a>(&'a [u8]);

impl Read for Pipe<'_> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let most = 1 + self.0.len() % 7;
        let most = most.min(out.len());
        self.0.read(&mut out[..most])
    }
}

pub fn target(data: &[u8]) {
    let limits = Limits { max_buffer: 1 << 22, ..Limits::default() };
    let Ok(mut pipe) = Reader::of_pipe_with_limits(Pipe(data), limits) else { return };
    let mut file = Reader::with_limits(Cursor::new(data), limits).expect("it was opened as a pipe");
    loop {
        match (pipe.next_record(), file.next_record()) {
            (Ok(Some(a)), Ok(Some(b))) => assert_eq!(a.raw.bytes(), b.raw.bytes()),
            (Ok(None), Ok(None)) => break,
            (Err(a), Err(b)) => {
                assert_eq!(a.to_string(), b.to_string());
                break;
            }
            (a, b) => panic!("{:?}, and {:?} of a file", a.is_ok(), b.is_ok()),
        }
    }
}
