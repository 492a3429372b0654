//! Counts events by type and adds up their times and sizes: `count_types FILE [time|stream]
//! [fields]`. With `fields` all fields of each event are decoded and counted.

use std::fs::File;

use nettrace::{Options, Order, Reader, Summary};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let path = args.next().ok_or("usage: count_types FILE [time]")?;
    let order = match args.next().as_deref() {
        None | Some("stream") => Order::Stream,
        Some("time") => Order::Time,
        Some(other) => return Err(format!("{other} is no order: stream or time").into()),
    };
    let all_fields = args.next().as_deref() == Some("fields");
    let mut reader = Reader::with_options(File::open(path)?, Options::new().order(order));
    let mut summary = Summary::new();
    let (mut sum, mut fields, mut undecodable) = (0u64, 0u64, 0u64);
    while let Some(event) = reader.next_event()? {
        summary.push(&event);
        sum = sum.wrapping_add(event.header().ticks as u64);
        sum = sum.wrapping_add(event.payload().len() as u64);
        if all_fields {
            for field in event.fields() {
                match field {
                    Ok(_) => fields += 1,
                    Err(_) => undecodable += 1,
                }
            }
        } else if let Some(first) = event.field_at(0).and_then(|v| v.as_u64()) {
            sum = sum.wrapping_add(first);
        }
    }
    for (provider, id, version, count) in summary.iter() {
        println!("{count:>10} {provider}/{id} v{version}");
    }
    println!("{fields} fields, {undecodable} events with undecodable fields");
    println!("{:?} (checksum {sum:x})", reader.stats());
    Ok(())
}
