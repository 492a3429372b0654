#![no_main]

use triscope_fuzz::targets::perf_monitor_event;

libfuzzer_sys::fuzz_target!(|data: &[u8]| perf_monitor_event::target(data));
