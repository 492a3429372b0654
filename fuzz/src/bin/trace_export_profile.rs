#![no_main]

use triscope_fuzz::targets::trace_export_profile;

libfuzzer_sys::fuzz_target!(|data: &[u8]| trace_export_profile::target(data));
