#![no_main]

use triscope_fuzz::targets::perf_data_reader;

libfuzzer_sys::fuzz_target!(|data: &[u8]| perf_data_reader::target(data));
