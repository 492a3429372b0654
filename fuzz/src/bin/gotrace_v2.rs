#![no_main]

use triscope_fuzz::targets::gotrace_v2;

libfuzzer_sys::fuzz_target!(|data: &[u8]| gotrace_v2::target(data));
