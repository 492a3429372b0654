#![no_main]

use triscope_fuzz::targets::trace_symbols_object;

libfuzzer_sys::fuzz_target!(|data: &[u8]| trace_symbols_object::target(data));
