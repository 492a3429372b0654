//! Format files of tracefs, and raw data in the layout that they describe.

#![no_main]

use libfuzzer_sys::fuzz_target;
use perf_monitor::EventFormat;

fuzz_target!(|data: (&str, &[u8])| {
    let (text, raw) = data;
    if let Ok(format) = EventFormat::parse("fuzz", text) {
        for field in format.common_fields().iter().chain(format.fields()) {
            if let Some(value) = field.value(raw) {
                let _ = value.to_string();
            }
        }
    }
});
