#![no_main]

use triscope_fuzz::targets::gotrace_push;

libfuzzer_sys::fuzz_target!(|data: &[u8]| gotrace_push::target(data));
