//! What the targets of the ordered reader share.

use gotrace::{Event, Loss, Reader};
use trace_common::Limits;

/// Reads a trace; resumes after damage while `resumes` returns true. A header that is none of those of
/// `versions` is replaced by one of them: no time is lost with headers.
#[allow(dead_code, reason = "each target uses a part of it")]
pub fn read_all(data: &[u8], versions: &[&str], resumes: impl Fn(&Loss) -> bool) {
    read_all_with(data, versions, resumes, look_at);
}

/// The same; `each` processes the events.
pub fn read_all_with(
    data: &[u8],
    versions: &[&str],
    resumes: impl Fn(&Loss) -> bool,
    mut each: impl FnMut(Event<'_>),
) {
    let Some((found, rest)) = data.split_at_checked(16) else { return };
    let header = |version: &str| format!("go 1.{version} trace\0\0\0").into_bytes();
    let known = versions.iter().find(|version| header(version) == found);
    let version = known.unwrap_or(&versions[found[6] as usize % versions.len()]);
    let mut trace = header(version);
    trace.extend_from_slice(rest);
    let limits = Limits { max_buffer: 1 << 20, max_entries: 1 << 16, ..Limits::default() };
    let Ok(mut reader) = Reader::with_limits(&trace[..], limits) else { return };
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

#[allow(dead_code, reason = "each target uses a part of it")]
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
