#![no_main]

use triscope_fuzz::targets::gotrace_text;

libfuzzer_sys::fuzz_target!(|data: &[u8]| gotrace_text::target(data));
