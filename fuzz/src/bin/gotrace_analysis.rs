#![no_main]

use triscope_fuzz::targets::gotrace_analysis;

libfuzzer_sys::fuzz_target!(|data: &[u8]| gotrace_analysis::target(data));
