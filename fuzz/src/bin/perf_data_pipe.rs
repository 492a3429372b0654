#![no_main]

use triscope_fuzz::targets::perf_data_pipe;

libfuzzer_sys::fuzz_target!(|data: &[u8]| perf_data_pipe::target(data));
