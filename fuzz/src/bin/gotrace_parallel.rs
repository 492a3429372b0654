#![no_main]

use triscope_fuzz::targets::gotrace_parallel;

libfuzzer_sys::fuzz_target!(|data: &[u8]| gotrace_parallel::target(data));
