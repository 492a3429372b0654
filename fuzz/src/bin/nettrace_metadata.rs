#![no_main]

use triscope_fuzz::targets::nettrace_metadata;

libfuzzer_sys::fuzz_target!(|data: &[u8]| nettrace_metadata::target(data));
