//! The formats of tracepoints in a recording: what is parsed can be written.

use perf_data::{Limits, TracingData};

pub fn target(data: &[u8]) {
    let limits = Limits { max_buffer: 1 << 20, ..Limits::default() };
    let Ok(parsed) = TracingData::parse(data, 0, limits) else { return };
    let _ = parsed.formats().count();
    assert_eq!(TracingData::parse(&parsed.to_bytes(), 0, Limits::default()).unwrap(), parsed);
}
