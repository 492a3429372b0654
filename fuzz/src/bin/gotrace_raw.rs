#![no_main]

use triscope_fuzz::targets::gotrace_raw;

libfuzzer_sys::fuzz_target!(|data: &[u8]| gotrace_raw::target(data));
