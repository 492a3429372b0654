//! Counts the events of a trace by kind: `cargo run --release --example count_events -- FILE`.

use gotrace::{EventKind, Reader};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("usage: count_events FILE")?;
    let mut reader = Reader::new(std::fs::File::open(path)?)?;
    let mut counts = [0u64; EventKind::ALL.len()];
    while let Some(event) = reader.next_event()? {
        counts[event.kind() as usize] += 1;
    }
    for (kind, count) in EventKind::ALL.into_iter().zip(counts) {
        println!("{count:>10}  {kind}");
    }
    Ok(())
}
