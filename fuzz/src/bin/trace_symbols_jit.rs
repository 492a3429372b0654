#![no_main]

use triscope_fuzz::targets::trace_symbols_jit;

libfuzzer_sys::fuzz_target!(|data: &[u8]| trace_symbols_jit::target(data));
