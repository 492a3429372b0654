#![no_main]

use triscope_fuzz::targets::nettrace_manifest;

libfuzzer_sys::fuzz_target!(|data: &[u8]| nettrace_manifest::target(data));
