#![no_main]

use triscope_fuzz::targets::nettrace_gcdump;

libfuzzer_sys::fuzz_target!(|data: &[u8]| nettrace_gcdump::target(data));
