#![no_main]

use triscope_fuzz::targets::go_flight_core;

libfuzzer_sys::fuzz_target!(|data: &[u8]| go_flight_core::target(data));
