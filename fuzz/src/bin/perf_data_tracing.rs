#![no_main]

use triscope_fuzz::targets::perf_data_tracing;

libfuzzer_sys::fuzz_target!(|data: &[u8]| perf_data_tracing::target(data));
