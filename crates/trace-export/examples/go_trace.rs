//! Converts a Go execution trace to a Perfetto trace:
//! `cargo run --release -p trace-export --all-features --example go_trace -- trace.out trace.pftrace`.

use std::fs::File;
use trace_export::timeline::TimelineSource;
use trace_export::trace_timeline::{Tables, gotrace, sources::go::GoSource};
use trace_export::{Compressor, PerfettoSink, Sink};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args_os().skip(1);
    let (Some(from), Some(to)) = (args.next(), args.next()) else {
        return Err("usage: go_trace TRACE OUTPUT".into());
    };
    let mut reader = gotrace::Reader::new(File::open(from)?)?;
    let mut sink = PerfettoSink::new(Compressor::new(File::create(to)?)?, reader.clock_domain());
    let (mut tables, mut events) = (Tables::new(), Vec::new());
    let (mut source, mut timeline) = (GoSource::default(), TimelineSource::default());
    while let Some(event) = reader.next_event()? {
        source.push(event, &mut tables, &mut events);
        for event in events.drain(..) {
            timeline.push(&event, &tables, &mut sink)?;
        }
    }
    timeline.finish(&tables, &mut sink)?;
    sink.finish()?;
    println!("{:#?}\n{:#?}", timeline.stats(), sink.stats());
    sink.into_inner().into_inner()?;
    Ok(())
}
