#![no_main]

use triscope_fuzz::targets::timeline_sources;

libfuzzer_sys::fuzz_target!(|data: &[u8]| timeline_sources::target(data));
