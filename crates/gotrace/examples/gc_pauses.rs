//! Prints every stop-the-world pause and every mark phase of the garbage collector:
//! `cargo run --release --example gc_pauses -- FILE`.

use gotrace::{EventKind, RangeName, Reader, Timestamp};
use std::collections::HashMap;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("usage: gc_pauses FILE")?;
    let mut reader = Reader::new(std::fs::File::open(path)?)?;
    let mut open: HashMap<String, Timestamp> = HashMap::new();
    let mut pauses = Vec::new();
    while let Some(event) = reader.next_event()? {
        let Some(range) = event.range() else { continue };
        if !matches!(range.name, RangeName::StopTheWorld(_) | RangeName::GcMark) {
            continue;
        }
        let name = range.name.to_string();
        if event.kind() == EventKind::RangeBegin {
            open.insert(name, event.time());
        } else if let (EventKind::RangeEnd, Some(start)) = (event.kind(), open.remove(&name)) {
            let micros = event.time().nanos_since(start) as f64 / 1e3;
            println!("{start}  {micros:>10.1} µs  {name}");
            if matches!(range.name, RangeName::StopTheWorld(_)) {
                pauses.push(micros);
            }
        }
    }
    pauses.sort_by(f64::total_cmp);
    if let Some(longest) = pauses.last() {
        let median = pauses[pauses.len() / 2];
        println!("{} pauses, median {median:.1} µs, longest {longest:.1} µs", pauses.len());
    }
    Ok(())
}
