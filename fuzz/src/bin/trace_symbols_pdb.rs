#![no_main]

use triscope_fuzz::targets::trace_symbols_pdb;

libfuzzer_sys::fuzz_target!(|data: &[u8]| trace_symbols_pdb::target(data));
