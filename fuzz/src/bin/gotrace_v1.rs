#![no_main]

use triscope_fuzz::targets::gotrace_v1;

libfuzzer_sys::fuzz_target!(|data: &[u8]| gotrace_v1::target(data));
