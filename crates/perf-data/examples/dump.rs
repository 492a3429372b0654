//! Prints every record of a recording in time order: `dump perf.data`.

use perf_data::{Reader, SortedReader};
use std::fs::File;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args_os().nth(1).ok_or("usage: dump FILE")?;
    let reader = Reader::new(File::open(path)?)?;
    for event in reader.session().events() {
        println!("event {} with {} ids", event.name, event.ids.len());
    }
    let mut records = SortedReader::new(reader);
    while let Some(entry) = records.next_record()? {
        match entry.decode() {
            Some(Ok(record)) => println!("{:#x} {record:?}", entry.raw.offset()),
            Some(Err(error)) => println!("{error}"),
            None => println!("{:#x} a record before the first event", entry.raw.offset()),
        }
    }
    println!("{} records out of order", records.late());
    Ok(())
}
