#![no_main]

use triscope_fuzz::targets::gotrace_generations;

libfuzzer_sys::fuzz_target!(|data: &[u8]| gotrace_generations::target(data));
