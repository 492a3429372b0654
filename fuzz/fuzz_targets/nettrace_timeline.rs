//! A .NET trace on a timeline, also after damage: it ends, the sink accepts every call, and the
//! output is whole packets.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nettrace::{Item, Reader};
use trace_common::Cursor;
use trace_export::dotnet::{DotnetNames, DotnetOptions, DotnetSource};
use trace_export::{ClockDomain, PerfettoSink, Sink};

fuzz_target!(|data: &[u8]| {
    let mut names = DotnetNames::new();
    each(data, |item| {
        if let Item::Event(event) = item {
            names.observe(event);
        }
    });
    // Small tables, so that they are reset now and then.
    let mut sink = PerfettoSink::with_limit(Vec::new(), ClockDomain::Monotonic, 1 << 12);
    let mut source = DotnetSource::new(DotnetOptions::default(), names);
    each(data, |item| source.push(item, &mut sink).unwrap());
    source.finish(&mut sink).unwrap();
    sink.finish().unwrap();
    let trace = sink.into_inner();
    let mut packets = Cursor::new(&trace);
    while !packets.is_empty() {
        assert_eq!(packets.uvarint(), Ok(0x0a));
        let len = packets.uvarint().unwrap();
        packets.skip(len as usize).unwrap();
    }
});

/// Every item of a stream, resumed after each damaged block.
fn each(data: &[u8], mut take: impl FnMut(&Item<'_>)) {
    let mut reader = Reader::new(data);
    // A block takes a byte at least, and each error skips one.
    for _ in 0..=data.len() {
        loop {
            match reader.next_item() {
                Ok(Some(item)) => take(&item),
                Ok(None) => return,
                Err(_) => break,
            }
        }
    }
}
