//! Prints the critical paths of the three longest tasks of a Go trace.

use std::fs::File;
use trace_timeline::answers::{History, RequestFilter, Requests, critical_path};
use trace_timeline::sources::go::GoSource;
use trace_timeline::{Correlator, Derived, SpanKind, Tables};

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Reads the trace and derives everything.
fn derive(path: &str, tables: &mut Tables, each: &mut dyn FnMut(Derived<'_>)) -> Result {
    let mut reader = gotrace::Reader::new(File::open(path)?)?;
    let mut source = GoSource::new(Default::default());
    let mut correlator = Correlator::new();
    let mut events = Vec::new();
    while let Some(event) = reader.next_event()? {
        source.push(event, tables, &mut events);
        for event in events.drain(..) {
            correlator.push(&event, &tables.entities, each);
        }
    }
    correlator.finish(each);
    Ok(())
}

fn main() -> Result {
    let path = std::env::args().nth(1).ok_or("usage: explain TRACE")?;

    // The first pass finds the longest tasks, the second one what happened meanwhile.
    let mut filter = RequestFilter::default();
    filter.kind = Some(SpanKind::Task);
    let mut requests = Requests::new(filter, 3);
    derive(&path, &mut Tables::new(), &mut |derived| requests.push(&derived))?;
    for request in requests.into_worst() {
        let mut tables = Tables::new();
        let mut history = History::new(request.start, request.end);
        derive(&path, &mut tables, &mut |derived| history.push(&derived))?;
        history.finish();
        let name = tables.str(request.name);
        println!("{name} of {} us", request.nanos() / 1_000);
        let entities = &tables.entities;
        let (subject, task) = (request.subject, request.task);
        let path = critical_path(&history, entities, subject, request.start, request.end, task);
        for piece in path.pieces {
            let Some(entity) = entities.get(piece.entity) else { continue };
            println!(
                "{:>9} us  {:indent$}{} {} {}: {}, {}",
                piece.nanos() / 1_000,
                "",
                entity.kind,
                entity.number,
                tables.str(entity.name),
                piece.what,
                tables.str(piece.reason),
                indent = 2 * piece.depth as usize,
            );
        }
    }
    Ok(())
}
