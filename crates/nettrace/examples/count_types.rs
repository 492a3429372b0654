//! Counts events and adds up a field of each: `count_types FILE [time]`.

use std::fs::File;

use nettrace::{Options, Order, Reader, Summary};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let path = args.next().ok_or("usage: count_types FILE [time]")?;
    let order = if args.next().is_some() { Order::Time } else { Order::Stream };
    let mut reader = Reader::with_options(File::open(path)?, Options::new().order(order));
    let mut summary = Summary::new();
    let mut sum = 0u64;
    while let Some(event) = reader.next_event()? {
        summary.add(&event);
        sum = sum.wrapping_add(event.header().timestamp as u64);
        if let Some(first) = event.field_at(0).and_then(|v| v.as_u64()) {
            sum = sum.wrapping_add(first);
        }
    }
    for (provider, id, version, count) in summary.iter() {
        println!("{count:>10} {provider}/{id} v{version}");
    }
    println!("{:?} (checksum {sum:x})", reader.stats());
    Ok(())
}
