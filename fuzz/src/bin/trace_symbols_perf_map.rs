#![no_main]

use triscope_fuzz::targets::trace_symbols_perf_map;

libfuzzer_sys::fuzz_target!(|data: &[u8]| trace_symbols_perf_map::target(data));
