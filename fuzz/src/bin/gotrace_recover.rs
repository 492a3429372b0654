#![no_main]

use triscope_fuzz::targets::gotrace_recover;

libfuzzer_sys::fuzz_target!(|data: &[u8]| gotrace_recover::target(data));
