//! Prints the goroutines of a trace that is still being written as they end:
//! `cargo run -p gotrace --example follow trace.out`.
//!
//! The reader takes any [`Read`]. This one waits at the end of the file for more, and ends when the
//! file has not grown for ten seconds.

use gotrace::Reader;
use gotrace::analysis::{Finished, Summarizer};
use std::error::Error;
use std::fs::File;
use std::io::{self, Read};
use std::time::Duration;

struct Growing(File);

impl Read for Growing {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        const INTERVAL: Duration = Duration::from_millis(100);
        for _ in 0..100 {
            let count = self.0.read(out)?;
            if count > 0 {
                return Ok(count);
            }
            std::thread::sleep(INTERVAL);
        }
        Ok(0)
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1).ok_or("usage: follow TRACE")?;
    let mut reader = Reader::new(Growing(File::open(path)?))?;
    let mut summarizer = Summarizer::new();
    while let Some(event) = reader.next_event()? {
        if let Some(Finished::Goroutine(ended)) = summarizer.push(event) {
            let entry = ended.entry.as_ref().map(|entry| entry.name.to_string());
            let (id, times) = (ended.id, &ended.times);
            let entry = entry.unwrap_or_default();
            println!("{id} {entry}: ran {:?} of {:?}", times.running, times.total);
        }
    }
    Ok(())
}
