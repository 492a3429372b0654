//! Counts the events of a trace by kind: `cargo run --release --example count_events -- FILE
//! [THREADS]`.

use gotrace::parallel::{Parallel, Split};
use gotrace::{Event, EventKind, Timestamp};
use std::fs::File;
use std::num::NonZeroUsize;

#[derive(Default)]
struct Counts([u64; EventKind::ALL.len()]);

impl Split for Counts {
    fn push(&mut self, event: Event<'_>) {
        self.0[event.kind() as usize] += 1;
    }

    fn part(&self, _start: Timestamp) -> Self {
        Self::default()
    }

    fn join(&mut self, part: Self) {
        self.0.iter_mut().zip(part.0).for_each(|(count, more)| *count += more);
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let path = args.next().ok_or("usage: count_events FILE [THREADS]")?;
    let threads = args.next().map_or(Ok(NonZeroUsize::MIN), |threads| threads.parse())?;
    let mut counts = Counts::default();
    let mut reader = Parallel::new(threads).read(|| File::open(&path), &mut counts)?;
    while let Some(event) = reader.next_event()? {
        counts.push(event);
    }
    for (kind, count) in EventKind::ALL.into_iter().zip(counts.0) {
        println!("{count:>10}  {kind}");
    }
    Ok(())
}
