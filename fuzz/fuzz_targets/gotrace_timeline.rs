//! A Go trace on a timeline, behind damage too: it ends, every call of the sink is accepted, and
//! what is written is whole packets.
#![no_main]

use gotrace::Reader;
use libfuzzer_sys::fuzz_target;
use trace_common::{Cursor, Limits};
use trace_export::go::GoSource;
use trace_export::{Loss, PerfettoSink, Sink};

fuzz_target!(|data: &[u8]| {
    let limits = Limits { max_buffer: 1 << 20, max_entries: 1 << 16, ..Limits::default() };
    let Ok(mut reader) = Reader::with_limits(data, limits) else { return };
    // Small tables, so that they start anew now and then.
    let mut sink = PerfettoSink::with_limit(Vec::new(), reader.clock_domain(), 1 << 12);
    let mut source = GoSource::default();
    for _ in 0..=data.len() {
        match reader.next_event() {
            Ok(Some(event)) => source.push(event, &mut sink).unwrap(),
            Ok(None) => break,
            Err(error) => {
                let Ok(Some(loss)) = reader.recover() else { break };
                let why = error.to_string();
                let count = Some(loss.bytes);
                let loss = Loss::new(b"bytes").count(count).why(why.as_bytes());
                source.loss(&loss, &mut sink).unwrap();
            }
        }
    }
    source.finish(&mut sink).unwrap();
    sink.finish().unwrap();
    assert_eq!(sink.stats().unmatched_ends, 0, "every end has its beginning");
    let trace = sink.into_inner();
    let mut packets = Cursor::new(&trace);
    while !packets.is_empty() {
        assert_eq!(packets.uvarint(), Ok(0x0a));
        let len = packets.uvarint().unwrap();
        packets.skip(len as usize).unwrap();
    }
});
