//! Go traces of any bytes, as the targets of the ordered reader read them.

use gotrace::{Event, Loss, Reader};
use trace_common::Limits;

/// Reads a [trace](trace_of); resumes after damage while `resumes` returns true.
pub(crate) fn read_all(data: &[u8], versions: &[&str], resumes: impl Fn(&Loss) -> bool) {
    read_all_with(data, versions, resumes, look_at);
}

/// A trace of one of these versions. A header that is none of theirs is replaced by one of them: no time is
/// lost with headers.
pub(crate) fn trace_of(data: &[u8], versions: &[&str]) -> Option<Vec<u8>> {
    let (found, rest) = data.split_at_checked(16)?;
    let header = |version: &str| format!("go 1.{version} trace\0\0\0").into_bytes();
    let known = versions.iter().find(|version| header(version) == found);
    let version = known.unwrap_or(&versions[found[6] as usize % versions.len()]);
    let mut trace = header(version);
    trace.extend_from_slice(rest);
    Some(trace)
}

/// Those of a small trace.
pub(crate) fn limits() -> Limits {
    Limits { max_buffer: 1 << 20, max_entries: 1 << 16, ..Limits::default() }
}

/// The same; `each` processes the events.
pub(crate) fn read_all_with(
    data: &[u8],
    versions: &[&str],
    resumes: impl Fn(&Loss) -> bool,
    mut each: impl FnMut(Event<'_>),
) {
    let Some(trace) = trace_of(data, versions) else { return };
    let Ok(mut reader) = Reader::with_limits(&trace[..], limits()) else { return };
    let mut last = None;
    // Every recovery makes progress, so that there are no more of them than bytes.
    for _ in 0..=trace.len() {
        loop {
            match reader.next_event() {
                Ok(Some(event)) => {
                    each(event);
                    let time = event.time();
                    // Times only wrap around where they are at the very end.
                    if let Some(last) = last {
                        assert!(time > last || time.nanos() == i64::MIN);
                    }
                    last = Some(time);
                }
                Ok(None) => return,
                Err(error) => {
                    let _ = error.to_string();
                    assert!(reader.next_event().unwrap().is_none(), "no events after an error");
                    break;
                }
            }
        }
        match reader.recover() {
            Ok(Some(loss)) if resumes(&loss) => {}
            _ => return,
        }
    }
    panic!("recovery does not end");
}

fn look_at(event: Event<'_>) {
    let _ = event.to_string();
    let _ = event.stack().map(|stack| stack.frames().count());
    let _ = event.metric();
    let _ = event.label();
    let _ = event.range().map(|range| range.name.to_string());
    let _ = event.range_attributes().map(Iterator::count);
    let _ = event.task();
    let _ = event.region();
    let _ = event.log();
    let _ = event.state_transition().map(|t| (t.goroutine(), t.proc(), t.stack()));
    let _ = event.sync().map(|s| (s.clock_snapshot(), s.experimental_batches().count()));
    let _ = event.experimental().map(|e| e.args().count());
    let _ = event.to_owned().as_event().kind();
}
