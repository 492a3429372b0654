//! A trace that is pushed in chunks: the events and the error of a reader of all of it.

use gotrace::{Event, Parser, Reader};
use trace_common::Limits;

/// The number of events, their last time, and the error.
type Outcome = (u64, i64, Option<String>);

fn add(outcome: &mut Outcome, next: Result<Option<Event<'_>>, gotrace::Error>) -> bool {
    match next {
        Ok(Some(event)) => {
            outcome.0 += 1;
            outcome.1 = event.time().nanos();
            true
        }
        Ok(None) => false,
        Err(error) => {
            outcome.2 = Some(error.to_string());
            false
        }
    }
}

pub fn target(data: &[u8]) {
    // The size of the chunks follows the trace, so that the seeds are traces.
    let size = 1 + data.last().map_or(0, |last| usize::from(*last).pow(2));
    let limits = Limits { max_buffer: 1 << 20, max_entries: 1 << 16, ..Limits::default() };
    let mut expected = (0, 0, None);
    match Reader::with_limits(data, limits) {
        Ok(mut reader) => while add(&mut expected, reader.next_event()) {},
        Err(error) => expected.2 = Some(error.to_string()),
    }
    let mut found = (0, 0, None);
    let mut parser = Parser::with_limits(limits);
    for chunk in data.chunks(size) {
        parser.push(chunk);
        while add(&mut found, parser.next_event()) {}
    }
    parser.finish();
    while add(&mut found, parser.next_event()) {}
    // More than the limit is held if it is pushed at once.
    if data.len() < limits.max_buffer {
        assert_eq!(found, expected);
    }
}
