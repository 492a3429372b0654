#![no_main]

use triscope_fuzz::targets::nettrace_stream;

libfuzzer_sys::fuzz_target!(|data: &[u8]| nettrace_stream::target(data));
