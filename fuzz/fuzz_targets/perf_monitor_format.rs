//! Format files of tracefs, and raw data in the layout that they describe.

#![no_main]

use libfuzzer_sys::fuzz_target;
use perf_monitor::TracepointFormat;

// The text ends at the first NUL, so that real files and real data can be seeds.
fuzz_target!(|data: &[u8]| {
    let at = data.iter().position(|b| *b == 0).unwrap_or(data.len());
    let (text, raw) = data.split_at(at);
    let Ok(text) = std::str::from_utf8(text) else { return };
    let raw = raw.get(1..).unwrap_or_default();
    if let Ok(format) = TracepointFormat::parse("fuzz", text) {
        for field in format.common_fields().iter().chain(format.fields()) {
            if let Some(value) = field.value(raw) {
                let _ = value.to_string();
            }
        }
    }
});
